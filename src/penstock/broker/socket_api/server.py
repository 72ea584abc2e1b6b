"""Server of the socket API: accepts connections, closes dead ones, and lets the last answers out at a stop.

Rules: it listens on every address that the host name resolves to, or does not start. Above `connections_max` a client
gets an error and is closed: open files are partitioned, so that idle clients never keep a log from its files. Brokers
are accepted above the limit, as are a few new connections until their hello shows whether they are brokers. If every
client must log in, connections without a login have a limited share. When one of these two classes is full, the oldest
connection of the address that has most of them is closed. A half-closed connection, whose client may have disconnected,
is closed to make room for a new one. One sweep a second finds stalled connections; no connection has a timer of its
own. Connections with complete requests queue; each loop turn takes a few, round-robin by connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId
from penstock.base.turns import Turns
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.socket_api.acceptor import Acceptor
from penstock.broker.socket_api.connection import Caller, Connection
from penstock.broker.socket_api.connection_handshake import Authenticator, ConnectionHandshake, NoAuthentication
from penstock.broker.socket_api.quotas import Usage
from penstock.broker.socket_api.request_meters import RequestMeters, name_of
from penstock.broker.socket_api.shared_budget import SharedBudget
from penstock.broker.transport.tls_handshakes import TlsHandshakes
from penstock.broker.transport.transport import PlainTransport, TlsPolicy, TlsTransport, Transport
from penstock.broker.transport.unauthenticated_slots import UnauthenticatedSlots, is_of_this_machine
from penstock.messages import PeerHelloRequest, Request

_log = logging.getLogger("penstock.server")

_SMALL_BUFFER_BYTES_MAX = 1 * limits.MIB  # larger buffers must leave a quarter of the broker's buffers to smaller ones
_TLS_CONNECTION_BYTES = 64 * limits.KIB  # memory of OpenSSL and Python per connection, at most
_TLS_CONNECTIONS_BYTES_MAX = 256 * limits.MIB  # of all connections: limits their number
_ACCEPTS_PER_TURN = 64
_DENIAL_CHARS_MAX = 300  # of a log line: it contains names sent by clients


class ServerOwner(Protocol):
    """Handles the requests of all connections."""

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """Handle a valid request; exactly one reply must follow. Its effects may wait for `requests_taken`."""

    def requests_taken(self) -> None:
        """No further request comes in this loop turn."""

    def callers_gone(self, callers: list[Caller]) -> None:
        """These requests need no answer any more."""

    def peer_came(self, broker_id: BrokerId) -> None:
        """That broker has connected and its peer hello was accepted."""

    def process_of(self, broker_id: BrokerId) -> str:
        """Return the process registered for a broker; empty if unknown."""

    def disk_of(self, broker_id: BrokerId) -> str:
        """Return the data directory registered for a broker; empty if unknown."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Run `run` on a disk thread on behalf of `user`, then call `done` on the loop."""


class Server:
    """Accepts and owns the connections of clients and of other brokers."""

    def __init__(
        self,
        owner: ServerOwner,
        listeners: list[socket.socket],
        loop: asyncio.AbstractEventLoop,
        elapsed_us: Callable[[], int],
        *,
        open_files_max: int,
        buffer_bytes_max: int = limits.BROKER_BUFFER_BYTES_MAX,
        tls: TlsPolicy | None = None,
        guard: Authenticator | None = None,
    ) -> None:
        """Create the server; `open_files_max` is the limit of the whole process, of which clients get shares.

        `tls`: None for plain TCP.
        """
        self.connections: set[Connection] = set()
        self.damaged_frames = 0  # received; each has cost its connection
        self.connections_max = min(limits.CONNECTIONS_MAX, open_files_max // limits.CONNECTION_FILES_SHARE)
        self._needs = "a higher limit of open files"  # what would raise `connections_max`
        if tls is not None and (fit := _TLS_CONNECTIONS_BYTES_MAX // _TLS_CONNECTION_BYTES) < self.connections_max:
            self.connections_max, self._needs = fit, "less memory for each than TLS takes"
        self._tls = tls
        self.handshakes = TlsHandshakes(loop, elapsed_us)
        self._strangers_max = min(limits.STRANGERS_MAX, self.connections_max // limits.STRANGERS_SHARE)
        self._unknown_peers_max = max(limits.UNKNOWN_PEERS_MIN, self._strangers_max)
        self.buffers = SharedBudget(buffer_bytes_max, _SMALL_BUFFER_BYTES_MAX)
        self.peers: dict[BrokerId, Connection] = {}  # connections of other brokers
        self._strangers: UnauthenticatedSlots[Connection] = (
            UnauthenticatedSlots()
        )  # above the limit; their hello may show that they are brokers
        self.peer_buffers = SharedBudget(limits.PEER_BUFFER_BYTES_MAX, _SMALL_BUFFER_BYTES_MAX)
        self.requests = RequestMeters()
        self.files = SharedBudget(open_files_max // limits.ANSWER_FILES_SHARE)
        self.guard = guard or NoAuthentication()
        self.usage = Usage(self.guard.quotas_for, elapsed_us)
        self.connections_of: Counter[str] = Counter()  # by user name
        self.failed_logins = 0
        self.unfinished_logins = 0
        self._unknown: UnauthenticatedSlots[Connection] = UnauthenticatedSlots()  # have to log in and have not
        self._leaving: dict[Connection, None] = {}  # half-closed by their clients; the oldest first
        self._unknown_max = max(1, self.connections_max // limits.UNKNOWN_SHARE)
        self._owner = owner
        self._loop = loop
        self._elapsed_us = elapsed_us
        self._acceptor = Acceptor(loop, listeners, self._welcome, per_turn=_ACCEPTS_PER_TURN)
        self._line: Turns[Connection] = Turns()  # each connection is queued at most once
        self._turn_scheduled = False
        self._all_closed = asyncio.Event()
        self._complaints = RateLimitedLog(limits.PEER_LOG_INTERVAL_MS)
        self._login_complaints = RateLimitedLog(limits.LOGIN_COMPLAINT_INTERVAL_MS)
        self._denial_complaints = RateLimitedLog()

    def start(self) -> None:
        self._acceptor.start()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        overload: RemoteError | None = None
        if self._is_full and not (self.make_room() and not self._is_full):
            text = f"this broker has {self.connections_max} connections already, and takes no more"
            if self.connections_max < limits.CONNECTIONS_MAX:
                text += f"; it needs {self._needs}"
            overload = RemoteError(ErrorCode.OVERLOADED, text)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            is_here = is_of_this_machine(peer, str(sock.getsockname()[0]))
            transport = self._transport(sock, peer)
        except OSError:  # disconnected already
            sock.close()
            return
        handshake = ConnectionHandshake(self.guard, overload, is_here=is_here)
        connection = Connection(transport, peer, handshake, self, self._loop, self._elapsed_us)
        if isinstance(transport, TlsTransport):
            transport.give_way = connection.close
        self.connections.add(connection)
        if self.guard.is_guarded:
            self._unknown.take(connection, peer)
            if len(self._unknown) > self._unknown_max:
                self._unknown.first_to_go().close()
        if overload is not None:
            self._strangers.take(connection, peer)
            if len(self._strangers) > self._strangers_max:
                self._strangers.first_to_go().give_way()

    @property
    def _is_full(self) -> bool:
        return self._client_count >= self.connections_max

    @property
    def _client_count(self) -> int:
        return len(self.connections) - len(self.peers) - len(self._strangers)

    def has_share(self, user: str) -> bool:
        """True if the connection on which `user` logs in is within that user's share of all (`FairShares`)."""
        has = self.connections_of[user]
        shares = FairShares([(user, has), ("", self._client_count - 1 - has)])
        return shares.fits(user, 1, self.connections_max)

    def make_room(self, user: str | None = None) -> bool:
        """Close the oldest half-closed client connection, or that of `user`; return False if there is none."""
        for one in self._leaving:
            if one not in self._strangers and (user is None or (one.who is not None and one.who.name == user)):
                one.close()
                return True
        return False

    def _transport(self, sock: socket.socket, peer: str) -> Transport:
        return PlainTransport(sock) if self._tls is None else TlsTransport(sock, peer, self._tls, self.handshakes)

    # What connections call

    def frames_waiting(self, connection: Connection, *, at_once: bool = False) -> None:
        """Queue the connection; `at_once`: run the turn now unless one is scheduled."""
        self._line.put("" if connection.who is None else connection.who.name, connection)
        if at_once and not self._turn_scheduled:
            self._turn()
        else:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        end_us = self._elapsed_us() + limits.REQUEST_TURN_US_MAX
        for _ in range(limits.REQUESTS_PER_TURN_MAX):
            if not self._line:
                break
            connection, begun_us = self._line.take(), self._elapsed_us()
            self._take_frame(connection)
            now_us = self._elapsed_us()
            if user := sharer_of(connection.who):  # one request may take the loop a thousand times as long as another
                self._line.charge(user, (now_us - begun_us) * limits.TURN_BYTES_PER_US)
            if now_us >= end_us:
                break
        if self._line:
            self._schedule_turn()
        self._owner.requests_taken()

    def _take_frame(self, connection: Connection) -> None:
        try:
            connection.take_frame()
        except Exception:  # noqa: BLE001 (reported; the connections queued behind it keep their turns)
            _log.exception("internal error (bug) in a request of %s, which is closed", connection.peer)
            connection.close()

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        self._owner.request_received(caller, request, raw)

    def peer_refused(self, connection: Connection, hello: PeerHelloRequest) -> RemoteError | None:
        """Return the error for a peer hello whose broker id another data directory or process already uses, else None.

        A restarted broker waits until the connection of its previous run is closed, or until its registration has
        arrived here.
        """
        there = self.peers.get(hello.broker_id)
        if there is None:
            return self._one_too_many(hello)
        if there is connection:
            return None
        if hello.process and hello.process == self._owner.process_of(hello.broker_id):
            return None  # the registered process takes the place of any other connection with its id
        is_same_disk = there.data_dir_id == hello.data_dir_id
        if is_same_disk and hello.process == there.process:
            return None
        if not is_same_disk and hello.data_dir_id == self._owner.disk_of(hello.broker_id):
            return None  # another data directory has connected under this id before the broker itself came back
        other = "in another process" if is_same_disk else "with another data directory"
        text = f"broker {hello.broker_id} is there already, from {there.peer}, {other}"
        line = self._complaints.line("taken", f"refusing {connection.peer}: {text}", self._elapsed_us())
        if line is not None:
            _log.warning("%s", line)
        return RemoteError(ErrorCode.CLUSTER_MISMATCH, text, broker_id=int(hello.broker_id), taken=True)

    def _one_too_many(self, hello: PeerHelloRequest) -> RemoteError | None:
        """Limit unregistered brokers: broker connections come on top of the client limit."""
        if self._owner.process_of(hello.broker_id):
            return None
        unknown = sum(not self._owner.process_of(broker_id) for broker_id in self.peers)
        if unknown < self._unknown_peers_max:
            return None
        text = f"there are {unknown} brokers already that are not registered, and no more of them are taken"
        return RemoteError(ErrorCode.OVERLOADED, text)

    def login_failed(self, connection: Connection, error: RemoteError) -> None:
        """Count and log a failed login, with its address."""
        self.failed_logins += 1
        who = f"as {connection.handshake.claimed!r} " if connection.handshake.claimed else ""
        text = f"a login {who}from {connection.peer} failed: {error.message}"
        if (line := self._login_complaints.line("login", text, self._elapsed_us())) is not None:
            _log.warning("%s", line)

    def denied(self, caller: Caller, error: RemoteError) -> None:
        """Log a denied request, rate-limited per API so that frequent ones do not hide others."""
        api = name_of(caller.api)
        said = " ".join(error.message.split())[:_DENIAL_CHARS_MAX]
        text = f"denied: {api} from {caller.connection.peer}: {said}"
        if (line := self._denial_complaints.line(api, text, self._elapsed_us())) is not None:
            _log.warning("%s", line)

    def _login_unfinished(self, connection: Connection) -> None:
        self.unfinished_logins += 1
        who = f"as {connection.handshake.claimed!r} " if connection.handshake.claimed else ""
        text = f"a login {who}from {connection.peer} was begun and not finished"
        if (line := self._login_complaints.line("unfinished", text, self._elapsed_us())) is not None:
            _log.info("%s", line)

    def login_answered(self, connection: Connection) -> None:
        """Update the quota of connections without a login."""
        if connection.who is None:
            # the login continues: a connection that has only said hello gives way before this one
            self._unknown.renew(connection)
        else:
            self._unknown.leave(connection)
            self.connections_of[connection.who.name] += 1

    def peer_came(self, connection: Connection, broker_id: BrokerId) -> None:
        """Register a broker's connection and close its previous one, whose late frames must not interleave."""
        self._strangers.leave(connection)
        self._unknown.leave(connection)
        before = self.peers.get(broker_id)
        self.peers[broker_id] = connection
        if before is not None and before is not connection:
            _log.info("closing %s: broker %d has connected anew, from %s", before.peer, broker_id, connection.peer)
            before.close()
        self._owner.peer_came(broker_id)

    def frame_damaged(self, connection: Connection, error: RemoteError) -> None:
        """Count and log a damaged frame."""
        self.damaged_frames += 1
        who = connection.peer if connection.broker_id is None else f"broker {connection.broker_id} ({connection.peer})"
        line = self._complaints.line("damaged", f"closing {who}: {error}", self._elapsed_us())
        if line is not None:
            _log.warning("%s", line)

    def half_closed(self, connection: Connection) -> None:
        """Let this connection give way to new ones, unless it is a broker's."""
        if connection.broker_id is None:
            self._leaving[connection] = None

    def callers_gone(self, callers: list[Caller]) -> None:
        self._owner.callers_gone(callers)

    def connection_closed(self, connection: Connection) -> None:
        if connection in self.connections and connection.who is not None:
            self.connections_of[connection.who.name] -= 1
            self.connections_of += Counter()  # drop users with no connection
        if connection in self.connections and connection.handshake.is_logging_in:
            self._login_unfinished(connection)
        self.connections.discard(connection)
        self._strangers.leave(connection)
        self._unknown.leave(connection)
        self._leaving.pop(connection, None)
        if connection.broker_id is not None and self.peers.get(connection.broker_id) is connection:
            del self.peers[connection.broker_id]
        if connection.open_requests:
            self._owner.callers_gone(list(connection.open_requests.values()))
            connection.open_requests.clear()
        if not self.connections:
            self._all_closed.set()

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        self._owner.read_ahead(run, done, user)

    # Time and the end

    def sweep(self) -> None:
        """Close connections that stall in the middle of a frame or do not take their answers."""
        self.usage.sweep()
        now_us = self._elapsed_us()
        for connection in list(self.connections):
            reason = connection.overdue(now_us)
            if connection.handshake.is_stranger:
                reason = "it has not proved to be a broker of this cluster, which is required by now"
            if reason is not None:
                _log.info("closing %s: %s", connection.peer, reason)
                connection.close()

    @property
    def open_request_count(self) -> int:
        """Number of requests that are not answered yet."""
        return sum(len(connection.open_requests) for connection in self.connections)

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        self._acceptor.stop()

    async def finish(self, timeout_s: float) -> None:
        """Send the queued answers, then close all connections; takes at most `timeout_s`."""
        self._all_closed.clear()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            with contextlib.suppress(TimeoutError):  # connections that do not take their answers are closed below
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
        for connection in list(self.connections):
            connection.close()
