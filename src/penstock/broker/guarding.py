"""Who has to prove what to this broker: users to the metadata's, brokers to the secret that all of them share.

Rules: brokers prove to each other that they know the secret of the cluster, which never crosses the network; without
one no other broker is let in where anybody has to log in. It is long, and kept in a file that only brokers read.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.proving import Credentials
from penstock.access.scram import Verifier, verifier_of
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import AuthenticateResponse
from penstock.node.access import Access
from penstock.node.metadata_link import THE_BROKER


class ClusterSecret:
    """What brokers of a cluster know, and nobody else."""

    def __init__(self, text: str, salt: bytes) -> None:
        """`salt`: drawn by chance for each start."""
        self.verifier = verifier_of(text, salt, limits.CLUSTER_SECRET_ITERATIONS)
        self.credentials = Credentials(BROKER, text, is_token=True)


class Guarding:
    """See the module; a `greeting.Guard`, and the `Directory` of its logins."""

    def __init__(
        self,
        access: Access,
        secret: ClusterSecret | None,
        nonce: Callable[[], str],
        *,
        cluster_id: Callable[[], str],
        nats_urls: tuple[str, ...],
    ) -> None:
        self.connections_of: Callable[[str], int] = lambda name: 0
        self.secret = secret
        self.nonce = nonce
        self._access = access
        self._cluster_id = cluster_id
        self._nats_urls = nats_urls

    @property
    def is_guarded(self) -> bool:
        """Whether everybody has to log in now."""
        return self._access.is_guarded

    @property
    def is_current(self) -> bool:
        """Whether it is known who there is."""
        return self._access.is_current

    def begin_login(self) -> ServerHandshake:
        """A login of a user, or of a broker."""
        return ServerHandshake(self, self.nonce())

    def logged_in(self, who: Principal, data: bytes) -> AuthenticateResponse:
        """What hello did not tell. RemoteError overloaded."""
        quotas = self._access.quotas_of(who.name)
        most = None if quotas is None else quotas.connections_max
        if most is not None and not self._access.is_ruler(who.name) and self.connections_of(who.name) >= most:
            text = f"user {who.name!r} has {most} connections to this broker already, and may have no more"
            raise RemoteError(ErrorCode.OVERLOADED, text)
        return AuthenticateResponse(data=data, is_done=True, cluster_id=self._cluster_id(), nats_urls=self._nats_urls)

    # Directory

    def verifier(self, name: str) -> tuple[Verifier, Principal] | None:
        """Of the name of a user, of a token, or of brokers."""
        if name == BROKER:
            return None if self.secret is None else (self.secret.verifier, THE_BROKER)
        return self._access.verifier(name)

    def holder(self, public_key: str) -> Principal | None:
        """Whose nkey that is."""
        return self._access.holder(public_key)

    @property
    def decoy_key(self) -> bytes:
        """As `Access`."""
        return self._access.decoy_key
