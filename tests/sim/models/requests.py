"""The client side of the request API: sends requests to any broker, over connections that may break.

Rules: Each request gets one answer: the broker's, or None after a disconnect or time-out, when its outcome is unknown.
A client keeps one connection to each broker and follows `not_leader`. With credentials it logs in first on each
connection. If a broker answers `unauthenticated`, the client closes the connection with all requests in flight there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import Request, Response
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.network import Network, SimConnection
from tests.sim.models.logins import Login

Done = Callable[[Response | RemoteError | None, bytes], None]
_TIMEOUT_US = 12_000_000


class _Asked:
    """One request in flight."""

    __slots__ = ("done", "raw", "request")

    def __init__(self, request: Request, raw: bytes, done: Done) -> None:
        self.request = request
        self.raw = raw
        self.done: Done | None = done

    def answer(self, response: Response | RemoteError | None, raw: bytes) -> None:
        """Answer it; only the first call counts."""
        done, self.done = self.done, None
        if done is not None:
            done(response, raw)


class _Line:
    """The connection and the requests to one broker."""

    __slots__ = ("asked", "connection", "is_connecting")

    def __init__(self) -> None:
        self.connection: SimConnection | None = None
        self.is_connecting = False
        self.asked: dict[_Asked, None] = {}


class SimClient:
    def __init__(
        self,
        name: str,
        network: Network,
        brokers: Mapping[int, SimBroker],
        random: Random,
        login: Login | None = None,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        """`known`: index of the last user change that was acknowledged to any client."""
        self.name = name
        self.login = login
        self._known = known
        self._network = network
        self._brokers = brokers
        self._random = random
        self._lines = {broker_id: _Line() for broker_id in brokers}
        self._leaders: dict[tuple[int, int], int] = {}

    def ask(
        self, request: Request, done: Done, raw: bytes = b"", *, broker_id: int = 0, timeout_us: int = _TIMEOUT_US
    ) -> None:
        """Send a request to a broker; 0: any."""
        if not broker_id:
            ids = list(self._brokers)
            broker_id = ids[int(self._random.random() * len(ids))]
        asked = _Asked(request, raw, done)
        line = self._lines[broker_id]
        line.asked[asked] = None
        self._network.scheduler.after(timeout_us, lambda: self._late(line, asked))
        if line.connection is not None:
            self._send(broker_id, line.connection, asked)
        elif not line.is_connecting:
            self._connect(broker_id, line)

    def _connect(self, broker_id: int, line: _Line) -> None:
        line.is_connecting = True
        self._network.connect(
            self.name, f"b{broker_id}", partial(self._connected, broker_id), partial(self._lost, broker_id)
        )

    def ask_leader(self, stream_id: int, partition: int, request: Request, done: Done, raw: bytes = b"") -> None:
        """Send a request to the presumed leader; the leader named in `not_leader` is used the next time."""
        key = (stream_id, partition)

        def heard(response: Response | RemoteError | None, payload: bytes) -> None:
            if isinstance(response, RemoteError) and response.code == ErrorCode.NOT_LEADER:
                self._leaders[key] = int(response.details.get("leader") or 0)
            elif response is None:
                self._leaders.pop(key, None)
            done(response, payload)

        self.ask(request, heard, raw, broker_id=self._leaders.get(key, 0))

    def _late(self, line: _Line, asked: _Asked) -> None:
        line.asked.pop(asked, None)
        asked.answer(None, b"")

    def _connected(self, broker_id: int, connection: SimConnection | None) -> None:
        line = self._lines[broker_id]
        line.is_connecting = False
        if connection is None:
            self._fail(line)
            return
        if self.login is None:
            self._open(broker_id, connection)
        else:
            line.is_connecting = True
            self._log_in(broker_id, connection, self.login)

    def _open(self, broker_id: int, connection: SimConnection) -> None:
        line = self._lines[broker_id]
        line.connection = connection
        for asked in line.asked:
            self._send(broker_id, connection, asked)

    def _log_in(self, broker_id: int, connection: SimConnection, login: Login) -> None:
        line, doors, shown = self._lines[broker_id], self._brokers[broker_id].doors, login.proof()
        tried = login.tried

        def challenged(answer: bytes | RemoteError) -> None:
            if isinstance(answer, RemoteError):
                failed(answer)
                return
            final = shown.take(answer, is_done=False)
            assert final is not None
            connection.send(partial(doors.log_in, connection, shown.mechanism, final, finished))

        def finished(answer: bytes | RemoteError) -> None:
            if isinstance(answer, RemoteError):
                failed(answer)
                return
            shown.take(answer, is_done=True)
            line.is_connecting = False
            self._open(broker_id, connection)

        def failed(error: RemoteError) -> None:
            if error.code == ErrorCode.UNAUTHENTICATED and login.has_another(tried):
                connection.close(by_source=True)
                self._connect(broker_id, line)
            else:
                self._close(line, connection)

        connection.send(partial(doors.log_in, connection, shown.mechanism, shown.first(), challenged))

    def _close(self, line: _Line, connection: SimConnection) -> None:
        connection.close(by_source=True)
        line.connection, line.is_connecting = None, False
        self._fail(line)

    def _send(self, broker_id: int, connection: SimConnection, asked: _Asked) -> None:
        broker, line = self._brokers[broker_id], self._lines[broker_id]

        def answered(response: Response | RemoteError, raw: bytes) -> None:
            line.asked.pop(asked, None)
            asked.answer(response, raw)
            is_nobody = isinstance(response, RemoteError) and response.code == ErrorCode.UNAUTHENTICATED
            if is_nobody and line.connection is connection:
                self._close(line, connection)

        connection.send(partial(broker.doors.ask, connection, asked.request, asked.raw, answered, self._known()))

    def _lost(self, broker_id: int) -> None:
        line = self._lines[broker_id]
        line.connection, line.is_connecting = None, False
        self._fail(line)

    @staticmethod
    def _fail(line: _Line) -> None:
        waiting = list(line.asked)
        line.asked.clear()
        for asked in waiting:
            asked.answer(None, b"")
