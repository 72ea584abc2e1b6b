"""What a connection wants of the server that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.greeting import Guard
from penstock.broker.quotas import Usage
from penstock.broker.request_meters import RequestMeters
from penstock.broker.shared_budget import SharedBudget
from penstock.messages import PeerHelloRequest, Request

if TYPE_CHECKING:
    from penstock.broker.connection import Caller, Connection


class ConnectionOwner(Protocol):
    """The server that a connection belongs to."""

    buffers: SharedBudget
    """Bytes of memory for half-received frames and answers."""
    peer_buffers: SharedBudget
    """The same for brokers."""
    files: SharedBudget
    """Files that answers hold open."""
    requests: RequestMeters
    """What is counted of requests."""

    def frames_waiting(self, connection: Connection, *, at_once: bool = False) -> None:
        """Call its `take_frame` once, in its turn; `at_once`: before this returns, unless others are in line."""

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """A sound request; exactly one `reply` must follow."""

    guard: Guard
    """Who has to prove what."""

    def login_failed(self, connection: Connection, error: RemoteError) -> None:
        """Somebody did not prove who he is; the connection is closed."""

    def denied(self, caller: Caller, error: RemoteError) -> None:
        """Somebody has asked for what he may not do."""

    def login_answered(self, connection: Connection) -> None:
        """It has come further in a login; to its end, if `who` is there."""

    def peer_refused(self, connection: Connection, hello: PeerHelloRequest) -> RemoteError | None:
        """Why it cannot be who it says; None if it may."""

    def peer_came(self, connection: Connection, broker_id: BrokerId) -> None:
        """It is that broker's from now on."""

    usage: Usage
    """What users have used."""

    def frame_damaged(self, connection: Connection, error: RemoteError) -> None:
        """What came on a connection with checksums cannot be what was sent; it is closed."""

    def callers_gone(self, callers: list[Caller]) -> None:
        """These need no answer any more."""
        ...

    def half_closed(self, connection: Connection) -> None:
        """Its client sends nothing more, and is owed answers; or it has gone away, which looks the same."""

    def connection_closed(self, connection: Connection) -> None:
        """The end of it; `connection.open_requests` will not be answered."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Have a disk thread `run`, for a user, then call `done` on the loop."""
