"""The listening side of the socket API: accepts connections, sweeps the dead ones, lets the last answers out.

Rules: it listens on every address that the host name stands for, or does not start. Over `connections_max` a client is
told so and closed: what the process may open is shared out, so that idle clients never keep a log from its files. A
broker is taken all the same, and a few strangers until they have said whether they are one. Where everybody has to log
in, a share of the connections may be of those who have not. Of both, one of the address that has most of them gives
way where they are too many, its oldest. Whoever has closed his sending half, and may be gone, gives way to who comes.
One sweep a second finds who is silent or takes nothing; no connection has a timer of its own. Connections with requests
to be taken stand in line; a turn of the event loop takes a few of them, one of each connection after the other.
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
from penstock.base.addresses import Address
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId
from penstock.base.turns import Turns
from penstock.broker.accepting import Acceptor
from penstock.broker.complaints import Complaints
from penstock.broker.connection import Caller, Connection
from penstock.broker.greeting import Guard, Unguarded
from penstock.broker.handshakes import Handshakes
from penstock.broker.places import Places, is_of_this_machine
from penstock.broker.quotas import Usage
from penstock.broker.request_meters import RequestMeters, name_of
from penstock.broker.shared_budget import SharedBudget
from penstock.broker.transport import PlainTransport, Policy, TlsTransport, Transport
from penstock.messages import PeerHelloRequest, Request

_log = logging.getLogger("penstock.server")

_BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
_DENIAL_CHARS_MAX = 300  # of a line in the log: it has names that clients have sent


def bind(address: Address, flag: str = "--listen") -> tuple[list[socket.socket], Address]:
    """Listening sockets on every address that `address` stands for, and the port that it came to.

    OperationalError if one of them cannot be had; `flag` names another one. Clients wait in the backlog until a Server
    starts.
    """
    listeners: list[socket.socket] = []
    port = address.port
    try:
        found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((where[0], port, *where[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            port = listener.getsockname()[1]  # with port 0, the second address takes the port of the first
    except OSError as error:
        for listener in listeners:
            listener.close()
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise OperationalError(f"{text}; choose another address with {flag} (port 0: any free one)") from error
    return listeners, Address(address.host, port)


class ServerOwner(Protocol):
    """Who answers the requests."""

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """A sound request; exactly one reply must follow. What it leads to may wait for `requests_taken`."""

    def requests_taken(self) -> None:
        """No further request comes in this turn."""

    def callers_gone(self, callers: list[Caller]) -> None:
        """These requests need no answer any more."""

    def peer_came(self, broker_id: BrokerId) -> None:
        """That broker has connected, and was taken for it."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Have a disk thread `run`, for a user, then call `done` on the loop."""


class Server:
    """See the module's rules."""

    def __init__(
        self,
        owner: ServerOwner,
        listeners: list[socket.socket],
        loop: asyncio.AbstractEventLoop,
        elapsed_us: Callable[[], int],
        *,
        open_files_max: int,
        buffer_bytes_max: int = limits.BROKER_BUFFER_BYTES_MAX,
        process_of: Callable[[BrokerId], str] = lambda broker_id: "",
        disk_of: Callable[[BrokerId], str] = lambda broker_id: "",
        tls: Policy | None = None,
        guard: Guard | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`open_files_max` is what the whole process may have open; clients get their shares of it. `tls`: not plain.

        `process_of`, `disk_of`: which process, with which data directory, is registered for a broker; empty: not known.
        """
        self.connections: set[Connection] = set()
        self.damaged_frames = 0  # that came; each has cost its connection
        self.connections_max = min(limits.CONNECTIONS_MAX, open_files_max // limits.CONNECTION_FILES_SHARE)
        self._needs = "a higher limit of open files"  # to take more
        if tls is not None and (fit := limits.TLS_CONNECTIONS_BYTES_MAX // limits.TLS_CONNECTION_BYTES) < (
            self.connections_max
        ):
            self.connections_max, self._needs = fit, "less memory for each than TLS takes"
        self._tls = tls
        self.handshakes = Handshakes(loop, elapsed_us)
        self._strangers_max = min(limits.STRANGERS_MAX, self.connections_max // limits.STRANGERS_SHARE)
        self._unknown_peers_max = max(limits.UNKNOWN_PEERS_MIN, self._strangers_max)
        self.buffers = SharedBudget(buffer_bytes_max, limits.SMALL_BUFFER_BYTES_MAX)
        self.peers: dict[BrokerId, Connection] = {}  # those of other brokers
        self._strangers: Places[Connection] = Places()  # over the limit, and perhaps brokers
        self.peer_buffers = SharedBudget(limits.PEER_BUFFER_BYTES_MAX, limits.SMALL_BUFFER_BYTES_MAX)
        self.requests = RequestMeters()
        self.files = SharedBudget(open_files_max // limits.ANSWER_FILES_SHARE)
        self.guard = guard or Unguarded()
        self.usage = usage or Usage(lambda who: None, elapsed_us)
        self.connections_of: Counter[str] = Counter()  # by user
        self.failed_logins = 0
        self.unfinished_logins = 0
        self._unknown: Places[Connection] = Places()  # who have not logged in, and have to
        self._leaving: dict[Connection, None] = {}  # whose clients send nothing more; the oldest first
        self._unknown_max = max(1, self.connections_max // limits.UNKNOWN_SHARE)
        self._owner = owner
        self._process_of = process_of
        self._disk_of = disk_of
        self._loop = loop
        self._elapsed_us = elapsed_us
        self._acceptor = Acceptor(loop, listeners, self._welcome, per_turn=_ACCEPTS_PER_TURN)
        self._line: Turns[Connection] = Turns()  # each is there once
        self._turn_scheduled = False
        self._all_closed = asyncio.Event()
        self._complaints = Complaints(limits.PEER_COMPLAINT_INTERVAL_MS)
        self._login_complaints = Complaints(limits.LOGIN_COMPLAINT_INTERVAL_MS)
        self._denial_complaints = Complaints()

    def start(self) -> None:
        """Begin to accept."""
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
        except OSError:  # it has gone already
            sock.close()
            return
        connection = Connection(transport, peer, self, self._loop, self._elapsed_us, overload, is_here=is_here)
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
        """Whether the connection on which a user logs in is within its share of all (`FairShares`)."""
        has = self.connections_of[user]
        shares = FairShares([(user, has), ("", self._client_count - 1 - has)])
        return shares.fits(user, 1, self.connections_max)

    def make_room(self, user: str | None = None) -> bool:
        """Close the first client, or that user's, that sends nothing more, and may be gone; False: there is none."""
        for one in self._leaving:
            if one not in self._strangers and (user is None or (one.who is not None and one.who.name == user)):
                one.close()
                return True
        return False

    def _transport(self, sock: socket.socket, peer: str) -> Transport:
        return PlainTransport(sock) if self._tls is None else TlsTransport(sock, peer, self._tls, self.handshakes)

    # What connections call

    def frames_waiting(self, connection: Connection, *, at_once: bool = False) -> None:
        """Put it in line; `at_once`: have the turn now, unless others are in line already."""
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
            if user := sharer_of(connection.who):  # a request may cost the loop a thousand times what another does
                self._line.charge(user, (now_us - begun_us) * limits.TURN_BYTES_PER_US)
            if now_us >= end_us:
                break
        if self._line:
            self._schedule_turn()
        self._owner.requests_taken()

    def _take_frame(self, connection: Connection) -> None:
        try:
            connection.take_frame()
        except Exception:  # noqa: BLE001 (reported; whoever is in line behind it keeps its turn)
            _log.exception("a mistake in the program, found by %s, which is closed", connection.peer)
            connection.close()

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """Pass it on."""
        self._owner.request_received(caller, request, raw)

    def peer_refused(self, connection: Connection, hello: PeerHelloRequest) -> RemoteError | None:
        """Whoever says that it is a broker which is there with another disk, or process, does not take its place.

        One that was restarted waits until the connection of the run before is gone, or its registration has come here.
        """
        there = self.peers.get(hello.broker_id)
        if there is None:
            return self._one_too_many(hello)
        if there is connection:
            return None
        if hello.process and hello.process == self._process_of(hello.broker_id):
            return None  # whoever else bears its number
        is_same_disk = there.data_dir_id == hello.data_dir_id
        if is_same_disk and hello.process == there.process:
            return None
        if not is_same_disk and hello.data_dir_id == self._disk_of(hello.broker_id):
            return None  # a stranger has come before the broker itself is back
        other = "in another process" if is_same_disk else "with another data directory"
        text = f"broker {hello.broker_id} is there already, from {there.peer}, {other}"
        line = self._complaints.line("taken", f"refusing {connection.peer}: {text}", self._elapsed_us())
        if line is not None:
            _log.warning("%s", line)
        return RemoteError(ErrorCode.CLUSTER_MISMATCH, text, broker_id=int(hello.broker_id), taken=True)

    def _one_too_many(self, hello: PeerHelloRequest) -> RemoteError | None:
        """Connections of brokers come on top of those of clients, so not everybody can be one that nobody knows."""
        if self._process_of(hello.broker_id):
            return None
        unknown = sum(not self._process_of(broker_id) for broker_id in self.peers)
        if unknown < self._unknown_peers_max:
            return None
        text = f"there are {unknown} brokers already that are not registered, and no more of them are taken"
        return RemoteError(ErrorCode.OVERLOADED, text)

    def login_failed(self, connection: Connection, error: RemoteError) -> None:
        """Count it, and tell from where."""
        self.failed_logins += 1
        who = f"as {connection.greeting.claimed!r} " if connection.greeting.claimed else ""
        text = f"a login {who}from {connection.peer} failed: {error.message}"
        if (line := self._login_complaints.line("login", text, self._elapsed_us())) is not None:
            _log.warning("%s", line)

    def denied(self, caller: Caller, error: RemoteError) -> None:
        """Tell who has asked for what, and from where; many of one kind do not hide those of another."""
        api = name_of(caller.api)
        said = " ".join(error.message.split())[:_DENIAL_CHARS_MAX]
        text = f"denied: {api} from {caller.connection.peer}: {said}"
        if (line := self._denial_complaints.line(api, text, self._elapsed_us())) is not None:
            _log.warning("%s", line)

    def _login_unfinished(self, connection: Connection) -> None:
        self.unfinished_logins += 1
        who = f"as {connection.greeting.claimed!r} " if connection.greeting.claimed else ""
        text = f"a login {who}from {connection.peer} was begun and not finished"
        if (line := self._login_complaints.line("unfinished", text, self._elapsed_us())) is not None:
            _log.info("%s", line)

    def login_answered(self, connection: Connection) -> None:
        """Whoever has logged in is known."""
        if connection.who is None:
            self._unknown.renew(connection)  # it goes on: who only says hello gives way before it
        else:
            self._unknown.leave(connection)
            self.connections_of[connection.who.name] += 1

    def peer_came(self, connection: Connection, broker_id: BrokerId) -> None:
        """Close the one that it had before: nothing that is still on the way there must come between."""
        self._strangers.leave(connection)
        self._unknown.leave(connection)
        before = self.peers.get(broker_id)
        self.peers[broker_id] = connection
        if before is not None and before is not connection:
            _log.info("closing %s: broker %d has connected anew, from %s", before.peer, broker_id, connection.peer)
            before.close()
        self._owner.peer_came(broker_id)

    def frame_damaged(self, connection: Connection, error: RemoteError) -> None:
        """Count it, and tell."""
        self.damaged_frames += 1
        who = connection.peer if connection.broker_id is None else f"broker {connection.broker_id} ({connection.peer})"
        line = self._complaints.line("damaged", f"closing {who}: {error}", self._elapsed_us())
        if line is not None:
            _log.warning("%s", line)

    def half_closed(self, connection: Connection) -> None:
        """It gives way, unless it is a broker's."""
        if connection.broker_id is None:
            self._leaving[connection] = None

    def callers_gone(self, callers: list[Caller]) -> None:
        """As the owner of connections: these need no answer any more."""
        self._owner.callers_gone(callers)

    def connection_closed(self, connection: Connection) -> None:
        """Forget it, and what it asked for."""
        if connection in self.connections and connection.who is not None:
            self.connections_of[connection.who.name] -= 1
            self.connections_of += Counter()  # who has none is forgotten
        if connection in self.connections and connection.greeting.is_logging_in:
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
        """Pass it on."""
        self._owner.read_ahead(run, done, user)

    # Time and the end

    def sweep(self) -> None:
        """Close connections that are silent in the middle of something, or do not take their answers."""
        self.usage.sweep()
        now_us = self._elapsed_us()
        for connection in list(self.connections):
            reason = connection.overdue(now_us)
            if connection.greeting.is_stranger:
                reason = "it has not proved to be a broker of this cluster, and by now everybody has to"
            if reason is not None:
                _log.info("closing %s: %s", connection.peer, reason)
                connection.close()

    @property
    def open_request_count(self) -> int:
        """Requests that are not answered yet."""
        return sum(len(connection.open_requests) for connection in self.connections)

    def stop_listening(self) -> None:
        """Accept nobody any more."""
        self._acceptor.stop()

    async def finish(self, timeout_s: float) -> None:
        """Let the queued answers out, then close everything; at most `timeout_s`."""
        self._all_closed.clear()
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            with contextlib.suppress(TimeoutError):  # those that do not take their answers are cut off below
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
        for connection in list(self.connections):
            connection.close()
