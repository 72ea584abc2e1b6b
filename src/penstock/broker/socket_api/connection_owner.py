"""Interface of the server that connections use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.socket_api.connection_handshake import Authenticator
from penstock.broker.socket_api.quotas import Usage
from penstock.broker.socket_api.request_meters import RequestMeters
from penstock.broker.socket_api.shared_budget import SharedBudget
from penstock.messages import PeerHelloRequest, Request

if TYPE_CHECKING:
    from penstock.broker.socket_api.connection import Caller, Connection


class ConnectionOwner(Protocol):
    """The server that a connection belongs to."""

    buffers: SharedBudget
    """Memory for incomplete frames and for answers."""
    peer_buffers: SharedBudget
    """The same for connections of brokers."""
    files: SharedBudget
    """Files that answers hold open."""
    requests: RequestMeters
    """Latencies and errors of requests."""

    def frames_waiting(self, connection: Connection, *, at_once: bool = False) -> None:
        """Call the connection's `take_frame` once, in its turn; `at_once`: before returning, unless others
        are queued.
        """

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """Handle a valid request; exactly one `reply` must follow."""

    guard: Authenticator
    """Authentication of clients and brokers."""

    def login_failed(self, connection: Connection, error: RemoteError) -> None:
        """A login has failed; the connection is closed."""

    def denied(self, caller: Caller, error: RemoteError) -> None:
        """A request was refused for lack of permission."""

    def login_answered(self, connection: Connection) -> None:
        """A login has advanced; it is complete if `who` is set."""

    def peer_refused(self, connection: Connection, hello: PeerHelloRequest) -> RemoteError | None:
        """Return why this peer hello is refused, or None."""

    def peer_came(self, connection: Connection, broker_id: BrokerId) -> None:
        """The connection belongs to that broker from now on."""

    usage: Usage
    """Recent use by users, for quotas."""

    def frame_damaged(self, connection: Connection, error: RemoteError) -> None:
        """A checksum of a frame does not match; the connection is closed."""

    def callers_gone(self, callers: list[Caller]) -> None:
        """These requests need no answer any more."""
        ...

    def half_closed(self, connection: Connection) -> None:
        """The client has closed its sending half and is owed answers; or it has disconnected, which looks the same."""

    def connection_closed(self, connection: Connection) -> None:
        """The connection is closed; `connection.open_requests` will not be answered."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Run `run` on a disk thread on behalf of `user`, then call `done` on the loop."""
