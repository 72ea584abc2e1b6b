"""Who has to prove what to this broker: users to the metadata's, brokers to the secret that all of them share.

Rules: brokers prove to each other that they know the secret of the cluster, which never crosses the network; without
one no other broker is let in where anybody has to log in. It is long, and kept in a file that only brokers read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.proving import Credentials
from penstock.access.scram import Verifier, verifier_of
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import AuthenticateResponse
from penstock.node.access import Access

_BROKERS = re.compile(re.escape(BROKER) + r"/([1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")


class ClusterSecret:
    """What brokers of a cluster know, and nobody else.

    A proof names who proves it and to whom, `$broker/2/3`: what broker 2 says to one that it takes for broker 3 is
    worth nothing to any other one, nor to itself. A broker that joins does not know whom it asks: 0.
    """

    def __init__(self, text: str, salt: bytes) -> None:
        """`salt`: drawn by chance for each start."""
        self.verifier = verifier_of(text, salt, limits.CLUSTER_SECRET_ITERATIONS)
        self._text = text
        self._salted: dict[tuple[bytes, int], bytes] = {}

    def credentials(self, own: BrokerId, to: BrokerId) -> Credentials:
        """For one broker to log in to another; no other number of iterations is taken than all brokers have."""
        only = limits.CLUSTER_SECRET_ITERATIONS
        name = f"{BROKER}/{own}/{to}"
        return Credentials(name, self._text, is_token=True, iterations=only, _salted=self._salted)


class Guarding:
    """See the module; a `greeting.Guard`, and the `Directory` of its logins."""

    def __init__(
        self,
        access: Access,
        secret: ClusterSecret | None,
        nonce: Callable[[], str],
        *,
        broker_id: BrokerId,
        cluster_id: Callable[[], str],
        nats_urls: tuple[str, ...],
        nats_urls_of_rulers: tuple[str, ...],
    ) -> None:
        """`nats_urls_of_rulers`: the URLs for administrators on this machine, with the embedded server's login."""
        self._connections_of: Callable[[str], int] = lambda name: 0
        self._make_room: Callable[[str], bool] = lambda name: False
        self._has_share: Callable[[str], bool] = lambda name: True
        self.secret = secret
        self.nonce = nonce
        self._access = access
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._nats_urls = nats_urls
        self._nats_urls_of_rulers = nats_urls_of_rulers

    def count(
        self,
        connections_of: Callable[[str], int],
        make_room: Callable[[str], bool],
        has_share: Callable[[str], bool],
    ) -> None:
        """How many connections a user has; how one of them is closed that he has left, if there is one; and whether one
        more is within his share of all.
        """
        self._connections_of, self._make_room, self._has_share = connections_of, make_room, has_share

    @property
    def is_guarded(self) -> bool:
        """Whether everybody has to log in now."""
        return self._access.is_guarded

    @property
    def brokers_prove(self) -> bool:
        """As `Access`."""
        return self._access.brokers_prove

    @property
    def is_current(self) -> bool:
        """Whether it is known who there is."""
        return self._access.is_current

    def begin_login(self) -> ServerHandshake:
        """A login of a user, or of a broker."""
        return ServerHandshake(self, self.nonce())

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """The answer that ends a login: the cluster's id and the URLs of NATS. RemoteError overloaded."""
        quotas, is_ruler = self._access.quotas_of(who.name), self._access.is_ruler(who.name)
        if quotas is not None and not is_ruler:
            most = quotas.connections_max
            while (most is not None and self._connections_of(who.name) >= most) or not self._has_share(who.name):
                if not self._make_room(who.name):
                    count = self._connections_of(who.name)
                    text = f"user {who.name!r} has {count} connections to this broker already, and may have no more"
                    if most is None or count < most:
                        text += " than it leaves to others"
                    raise RemoteError(ErrorCode.OVERLOADED, text)
        # The embedded server is reached from this machine only, and no network shall carry its password.
        urls = self._nats_urls_of_rulers if is_ruler and is_here else self._nats_urls
        return AuthenticateResponse(data=data, is_done=True, cluster_id=self._cluster_id(), nats_urls=urls)

    def counts(self, who: Principal) -> bool:
        """Whether that user, with that credential, is still there; other brokers are."""
        return who.name == BROKER or self._access.refusal(who) is None

    # Directory

    def verifier(self, name: str) -> tuple[Verifier, Principal] | None:
        """Of the name of a user, of a token, or of brokers."""
        if (found := _BROKERS.fullmatch(name)) is not None:
            is_meant = int(found[2]) in (self._broker_id, 0)
            if self.secret is None or not is_meant:
                return None
            return self.secret.verifier, Principal(BROKER, int(found[1]))
        return self._access.verifier(name)

    def holder(self, public_key: str) -> Principal | None:
        """Whose nkey that is."""
        return self._access.holder(public_key)

    def expired(self, who: Principal) -> str | None:
        """As `Access`; the secret of brokers does not expire."""
        return None if who.name == BROKER else self._access.expired(who)

    @property
    def decoy_key(self) -> bytes:
        """As `Access`."""
        return self._access.decoy_key
