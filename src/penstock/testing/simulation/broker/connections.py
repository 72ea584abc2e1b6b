"""The server side of one broker's connections: logins, requests, answers.

Rules: as in the real driver. A connection has no user until a client has logged in on it by the real exchange, and it
keeps that user. A request from another broker is authorised as a broker's. An answer arrives only if its connection is
still open. Login nonces are numbered instead of random: whether a login succeeds does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.access import User
from penstock.access.handshake import Principal, ServerHandshake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import PassApiCallsRequest, PassApiCallsResponse, ReplicaFetchResponse, Request, Response
from penstock.node.partition.partition_errors import read_failed
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.step import Reply
from penstock.testing.simulation.broker.payloads import CutShortError, bytes_of
from penstock.testing.simulation.broker.peers import Answer
from penstock.testing.simulation.network import SimConnection

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker, Surroundings

Told = Callable[[bytes | RemoteError], None]
Checked = Callable[[Response | RemoteError], None]
_FENCED = frozenset({ErrorCode.FENCED_EPOCH, ErrorCode.UNKNOWN_EPOCH, ErrorCode.STALE_INCARNATION})


class AccessChecks(Protocol):
    """Checks what brokers permit. Brokers that are checked require logins."""

    def first_user(self) -> User:
        """Return the administrator of the first start."""

    def acted(self, broker: SimBroker) -> None:
        """Look at a broker after each of its events."""

    def asks(self, broker: SimBroker, who: Principal | None, request: Request, raw: bytes, since: int) -> Checked:
        """Record a client's request at its arrival at a broker; return the check of its response."""


@dataclass(slots=True, eq=False)
class SimCaller:
    """The caller of a request and the way back to it. `checked`: takes the response first; None: not checked."""

    connection: SimConnection
    request: Request
    asked_us: int
    answer: Answer
    checked: Checked | None = None


class BrokerConnections:
    """The connections of one broker."""

    def __init__(self, broker: SimBroker, around: Surroundings) -> None:
        self._broker = broker
        self._around = around
        self._callers: dict[SimConnection, dict[SimCaller, None]] = {}
        self._whos: dict[SimConnection, Principal] = {}
        self._logins: dict[SimConnection, ServerHandshake] = {}
        self._nonces = 0

    def clear(self) -> None:
        """Drop everything at the end of a run."""
        self._callers.clear()
        self._whos.clear()
        self._logins.clear()

    def accept(self, connection: SimConnection) -> None:
        """Accept a connection."""
        self._callers[connection] = {}
        connection.target_lost = lambda: self._broker.event(lambda: self._gone(connection))

    def _gone(self, connection: SimConnection) -> None:
        assert self._broker.node is not None
        self._whos.pop(connection, None)
        self._logins.pop(connection, None)
        callers = self._callers.pop(connection, None)
        if callers:
            self._broker.node.callers_disconnected(list(callers))

    def unanswered(self, until_us: int) -> str:
        """Describe a request that was taken until then and has no answer yet; empty if there is none."""
        for connection, callers in self._callers.items():
            for caller in callers:
                if caller.asked_us <= until_us and connection.is_open:
                    request = type(caller.request).__name__
                    return f"{self._broker.name} has not answered {request} of {connection.source}"
        return ""

    # Logins

    def log_in(self, connection: SimConnection, mechanism: str, data: bytes, told: Told) -> None:
        """Take one message of a login; `told` receives the answer at the client."""
        if connection in self._callers:
            self._broker.event(partial(self._take, connection, mechanism, data, told))

    def _take(self, connection: SimConnection, mechanism: str, data: bytes, told: Told) -> None:
        node = self._broker.node
        if node is None or connection not in self._callers:
            return
        self._nonces += 1
        login = self._logins.get(connection)
        if login is None:
            login = self._logins[connection] = ServerHandshake(node.access, f"{self._broker.name}-{self._nonces:016}")
        try:
            answer: bytes | RemoteError = login.take(mechanism, data)
        except RemoteError as refusal:
            is_known = node.access.is_current
            answer = why = refusal if is_known else RemoteError(ErrorCode.NOT_YET, "who there is, is not known")
            self._logins.pop(connection)
            self._around.count("refused logins")
            self._around.trace.add(self._broker.name, f"does not let {login.claimed} in: {why.code}")
        if login.who is not None:
            self._whos[connection] = login.who
            self._logins.pop(connection)
            self._around.count("logins")
        connection.send_back(partial(told, answer))

    # Requests

    def ask(self, connection: SimConnection, request: Request, raw: bytes, answer: Answer, since: int = 0) -> None:
        """Take a request; `answer` is called at the client. `since`: last acknowledged user change known to it."""
        if connection in self._callers:  # else the connection belongs to an earlier run
            self._broker.event(partial(self._asked, connection, request, raw, answer, since))

    def _asked(self, connection: SimConnection, request: Request, raw: bytes, answer: Answer, since: int) -> None:
        callers, broker = self._callers.get(connection), self._broker
        if callers is None or broker.node is None:
            return
        is_broker = connection.source in self._around.brokers
        who = THE_BROKER if is_broker else self._whos.get(connection)
        caller = SimCaller(connection, request, self._around.scheduler.now_us, answer)
        callers[caller] = None
        if not is_broker and (rights := self._around.rights) is not None:
            caller.checked = rights.asks(broker, who, request, raw, since)
        if isinstance(request, PassApiCallsRequest):
            if broker.api is not None:
                broker.api.gateway.passed_on(raw, broker.clock.now())
            self.reply(Reply(caller, PassApiCallsResponse()))
            return
        broker.node.request(caller, request, raw, broker.clock.now(), who)

    def reply(self, reply: Reply) -> None:
        """Send an answer of the node."""
        caller = reply.caller
        assert isinstance(caller, SimCaller)
        callers = self._callers.get(caller.connection)
        if callers is None:
            return  # disconnected meanwhile
        assert caller in callers, f"answered twice: {reply}"
        del callers[caller]
        response, answer, broker = reply.response, caller.answer, self._broker
        if caller.checked is not None:
            caller.checked(response)
        try:
            raw = bytes_of(reply.payload)
        except CutShortError as error:
            self._around.trace.add(broker.name, f"closes {caller.connection.source}: {error}")
            self._around.count("answers that were cut short")
            caller.connection.cut()
            return
        except OSError as error:  # retention has deleted the file
            raw, response = b"", read_failed(error)
        if (refusal := _refusal_in(response)) in _FENCED:
            self._around.trace.add(broker.name, f"refuses: {refusal}")
            self._around.count("fenced requests")
        caller.connection.send_back(partial(answer, response, raw))


def _refusal_in(response: Response | RemoteError) -> str:
    """Return the first error code in an answer; empty if there is none."""
    if isinstance(response, RemoteError):
        return response.code
    if isinstance(response, ReplicaFetchResponse):
        return next((news.error for news in response.partitions if news.error), "")
    return ""
