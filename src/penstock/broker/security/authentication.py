"""Authentication at this broker: users against the metadata, brokers with the cluster secret.

Rules: brokers prove to each other that they know the cluster secret, which never crosses the network. Without one, no
other broker is accepted if authentication is on. The secret is long, and kept in a file that only brokers read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.access import Quotas
from penstock.access.credentials import Credentials
from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.scram import ScramVerifier, verifier_of
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import AuthenticateResponse
from penstock.node.security.access import Access

_BROKERS = re.compile(re.escape(BROKER) + r"/([1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")


class ClusterSecret:
    """The secret shared by the brokers of a cluster.

    A proof names its sender and receiver, `$broker/2/3`: a proof of broker 2 for broker 3 is worthless to any other
    broker and cannot be reflected. A joining broker does not know the receiver's id and uses 0.
    """

    def __init__(self, text: str, salt: bytes) -> None:
        """`salt`: random, new for each start."""
        self.verifier = verifier_of(text, salt, limits.CLUSTER_SECRET_ITERATIONS)
        self._text = text
        self._salted: dict[tuple[bytes, int], bytes] = {}

    def credentials(self, own: BrokerId, to: BrokerId) -> Credentials:
        """Return one broker's login to another; only the cluster's fixed number of iterations is accepted."""
        only = limits.CLUSTER_SECRET_ITERATIONS
        name = f"{BROKER}/{own}/{to}"
        return Credentials(name, self._text, is_token=True, iterations=only, _salted=self._salted)


class BrokerAuthenticator:
    """A `connection_handshake.Authenticator`, and the `CredentialDirectory` of its logins."""

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
        """Set the callbacks: number of connections of a user; close one that the user has half-closed, if any; is one
        more within the user's share.
        """
        self._connections_of, self._make_room, self._has_share = connections_of, make_room, has_share

    @property
    def is_guarded(self) -> bool:
        return self._access.is_guarded

    @property
    def brokers_prove(self) -> bool:
        return self._access.brokers_prove

    @property
    def is_current(self) -> bool:
        return self._access.is_current

    def begin_login(self) -> ServerHandshake:
        return ServerHandshake(self, self.nonce())

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """Return the answer that ends a login: the cluster id and the URLs of NATS. Raise RemoteError overloaded."""
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
        # The embedded server is on this machine, and its password must not cross a network.
        urls = self._nats_urls_of_rulers if is_ruler and is_here else self._nats_urls
        return AuthenticateResponse(data=data, is_done=True, cluster_id=self._cluster_id(), nats_urls=urls)

    def counts(self, who: Principal) -> bool:
        """True if that user with that credential still exists; always for brokers."""
        return who.name == BROKER or self._access.refusal(who) is None

    def quotas_for(self, who: Principal) -> Quotas | None:
        return self._access.quotas_for(who)

    # Directory

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        """Return the verifier for the name of a user, a token, or a broker."""
        if (found := _BROKERS.fullmatch(name)) is not None:
            is_meant = int(found[2]) in (self._broker_id, 0)
            if self.secret is None or not is_meant:
                return None
            return self.secret.verifier, Principal(BROKER, int(found[1]))
        return self._access.verifier(name)

    def holder(self, public_key: str) -> Principal | None:
        """Return the owner of an nkey."""
        return self._access.holder(public_key)

    def expired(self, who: Principal) -> str | None:
        """Return why a credential has expired, or None; the cluster secret does not expire."""
        return None if who.name == BROKER else self._access.expired(who)

    @property
    def decoy_key(self) -> bytes:
        return self._access.decoy_key
