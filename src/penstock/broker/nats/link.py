"""Link to NATS: keeps one connection up with every subscription on it.

Rules: every subscription is made again after a reconnect, and the link is *up* only once nats-server has confirmed all
of them (the PONG behind the SUBs). From the loss of a connection until the link is up again, published messages are not
received. Both ends of that gap are reported. Its start is the last moment up to which delivery is proven, because
nats-server discards what is queued for a connection that it closes. Messages may arrive before LinkUp and for a short
time after `unsubscribe`; the receiver must cope with that. One call of `groups_received` has all that one
socket read delivered.

| event                | when                                                                          |
|----------------------|-------------------------------------------------------------------------------|
| LinkUp               | connected and every subscription confirmed; has the start of the gap          |
| LinkDown             | a connection that was up, or being established, is lost                       |
| ConnectFailed        | a server was unreachable or refused the connection; the next one is tried     |
| BarrierReached       | a token of `barrier` is confirmed; it survives a reconnect                    |
| SubscriptionRefused, ServerComplaint, LameDuck, InfoChanged,  | passed on from the session             |
| MessagesSkipped, RepliesUnanswerable                          |                                        |

`reconnecting` says when which server is tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.nats.answers import AnswerOutput
from penstock.broker.nats.connection import LinkTiming, NatsConnection
from penstock.broker.nats.reconnecting import Reconnector, now_ms
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind, ServerInfo
from penstock.ingest.nats import (
    BarrierReached,
    InfoChanged,
    InterestLost,
    LameDuck,
    MessagesSkipped,
    NatsSession,
    RepliesUnanswerable,
    ServerComplaint,
    SessionClosed,
    SessionEvent,
    SessionReady,
    SubscriptionRefused,
    TlsWanted,
)
from penstock.node.step import NatsAnswers

_log = logging.getLogger("penstock.nats")

# Reasons for pausing the reading.
_CALLER = "caller"
_WRITING = "writing"  # backpressure: until nats-server takes our output


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Every subscription is confirmed since `at_us`; nothing was received since `gap_start_us` (None: first
    connection).
    """

    at_us: int
    server: NatsServer
    gap_start_us: int | None


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection is lost, noticed at `at_us`.

    All that was published before `gap_start_us` has been received (None: the link has never been up).
    """

    at_us: int
    gap_start_us: int | None
    server: NatsServer
    kind: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """A connection attempt failed; `reason` has the remedy."""

    at_us: int
    server: NatsServer
    kind: ErrorKind
    reason: str


LinkEvent = (
    LinkUp
    | LinkDown
    | ConnectFailed
    | BarrierReached
    | SubscriptionRefused
    | ServerComplaint
    | LameDuck
    | InfoChanged
    | MessagesSkipped
    | RepliesUnanswerable
)


class LinkOwner(Protocol):
    """Receives what the link delivers. All calls are on the event loop; none may block."""

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Messages by the lower GROUP_BITS bits of subscription ids (`hot.scan`), in the order of arrival for each."""

    def link_event(self, event: LinkEvent) -> None:
        """An event of the table in the module's docstring."""


class NatsLink:
    """Keeps the connection to NATS. `run` is its one task; all other methods are called on the same event loop."""

    def __init__(
        self,
        owner: LinkOwner,
        access: NatsAccess,
        *,
        clock_us: Callable[[], int],
        random: Callable[[], float],
        timing: LinkTiming | None = None,
        what: str = "connection",
        read_buffer_bytes: int = limits.READ_BUFFER_BYTES,
    ) -> None:
        """Create a link; `random` returns numbers in [0, 1). `what` names it in the log. Raise ConfigError if
        credentials or certificates cannot work.
        """
        self._owner = owner
        self._access = access
        self._clock_us = clock_us
        self._timing = timing or LinkTiming()
        self._reconnector: Reconnector[NatsSession] = Reconnector(
            self, access, random=random, timing=self._timing, what=what, read_buffer_bytes=read_buffer_bytes
        )
        # of its barriers: session token → link token; None for the one behind the re-subscribing
        self._tokens: dict[int, int | None] = {}
        self._subscriptions: dict[int, tuple[str, str | None]] = {}
        self._last_token = 0
        self._waiting: dict[int, asyncio.Future[None] | None] = {}  # link tokens that are not confirmed yet
        self._answers = AnswerOutput(
            self._writing_pauses,
            lambda sid: self._subscriptions.get(sid, ("a stream that shares a subject, or has ended", None))[0],
        )
        self._pauses: set[str] = set()
        self._gap_start_us: int | None = None
        self._up = asyncio.Event()

    # State

    @property
    def is_up(self) -> bool:
        """True if every subscription is confirmed on a live connection."""
        return self._up.is_set()

    @property
    def server(self) -> NatsServer | None:
        """The server of the current connection."""
        return None if self._reconnector.connection is None else self._reconnector.connection.server

    @property
    def info(self) -> ServerInfo | None:
        """The INFO of the current connection's server."""
        return None if self._reconnector.connection is None else self._reconnector.connection.session.info

    @property
    def announced(self) -> tuple[NatsServer, ...]:
        """The servers that NATS announces besides the configured ones."""
        return self._reconnector.announced

    @property
    def last_failure(self) -> str:
        """The reason why the link is, or last was, down; empty if nothing has failed."""
        return self._reconnector.last_failure

    @property
    def proven_us(self) -> int | None:
        """Wall-clock time up to which all published messages have been received, from the last PONG. None if down."""
        connection = self._reconnector.connection
        return self._proven_us(connection) if connection is not None and self.is_up else None

    @property
    def gap_start_us(self) -> int | None:
        """Start of the current gap while the link is down after having been up; else None."""
        return self._gap_start_us

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes written that nats-server has not taken yet."""
        waiting = 0 if self._reconnector.connection is None else self._reconnector.connection.write_buffer_bytes
        return waiting + self._answers.waiting_bytes

    @property
    def answers_dropped(self) -> int:
        """Number of answers that nats-server did not take in time."""
        return self._answers.dropped

    async def wait_up(self, timeout_ms: int) -> None:
        """Return once the link is up; raise OperationalError with the last failure on time-out."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._up.wait()
        except TimeoutError:
            connection = self._reconnector.connection
            so_far = "none has been tried yet" if connection is None else f"{connection.server}: {connection.silence}"
            reason = self._reconnector.last_failure or so_far
            raise OperationalError(f"no connection to NATS within {timeout_ms} ms: {reason}") from None

    # Commands

    def subscribe(self, sid: int, subject: str, queue: str | None = None) -> None:
        """Subscribe now and after every reconnect. `sid` must be new. A later barrier confirms it."""
        assert sid not in self._subscriptions
        self._subscriptions[sid] = (subject, queue)
        if (connection := self._reconnector.ready_connection) is not None:
            connection.session.subscribe(sid, subject, queue)
            connection.send_output()

    def unsubscribe(self, sid: int) -> None:
        """End a subscription; messages in flight still arrive until a barrier. Unknown ids are ignored."""
        self._subscriptions.pop(sid, None)
        if (connection := self._reconnector.ready_connection) is not None:
            connection.session.unsubscribe(sid)
            connection.send_output()

    def barrier(self) -> int:
        """Return a token whose BarrierReached proves that nats-server has processed all earlier commands."""
        return self._barrier(None)

    async def wait_barrier(self, timeout_ms: int) -> None:
        """Wait for a new barrier; raise OperationalError on time-out."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        token = self._barrier(future)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            reason = "it does not answer" if self.is_up else self._reconnector.last_failure
            raise OperationalError(f"no confirmation from NATS within {timeout_ms} ms: {reason}") from None
        finally:
            self._waiting.pop(token, None)

    def answer(self, answers: Sequence[NatsAnswers]) -> None:
        """Send acks to publishers. While nats-server does not take them, they are queued up to limits; see
        `answers`.
        """
        self._answers.send(answers)

    def pause_reading(self) -> None:
        """Leave messages in the socket until `resume_reading`. nats-server disconnects a client that pauses
        for long.
        """
        self._pause(_CALLER, True)

    def resume_reading(self) -> None:
        self._pause(_CALLER, False)

    async def drain(self, timeout_ms: int) -> bool:
        """End all subscriptions; return True once every message in flight has been handed over."""
        for sid in list(self._subscriptions):
            self.unsubscribe(sid)
        return await self._flush(timeout_ms)

    async def stop(self, timeout_ms: int) -> bool:
        """Drain, send the queued output, close; then `run` returns. True if nats-server has confirmed all of it.

        Idempotent; a second call returns False.
        """
        if self._reconnector.is_stopping:
            return False
        drained = await self.drain(timeout_ms)
        flushed = await self._flush(timeout_ms) if drained else False
        self._reconnector.stop()
        return flushed

    async def run(self) -> None:
        """Keep the link up until `stop`. Raises only what its owner raised."""
        try:
            await self._reconnector.run()
        finally:
            for future in self._waiting.values():
                if future is not None and not future.done():
                    future.set_exception(OperationalError("the link to NATS has stopped"))

    # What the reconnector calls

    def new_session(self, server: NatsServer) -> NatsSession:
        return NatsSession(
            name=self._access.name,
            version=self._access.version,
            authentication=self._access.credentials.authentication(server),
            tls_wanted=server.tls or bool(self._access.tls),
            ping_interval_ms=self._timing.ping_interval_ms,
            now_ms=now_ms(),
        )

    def connection_left(self, connection: NatsConnection[NatsSession]) -> None:
        if self._reconnector.is_up and self._gap_start_us is None:
            self._gap_start_us = self._proven_us(connection)
        self._tokens.clear()
        self._up.clear()
        self._answers.closed()

    def connection_ended(self, server: NatsServer, kind: ErrorKind, reason: str, *, was_ready: bool) -> None:
        if was_ready:
            self._owner.link_event(LinkDown(self._clock_us(), self._gap_start_us, server, kind, reason))
        elif not self._reconnector.is_stopping:
            self._owner.link_event(ConnectFailed(self._clock_us(), server, kind, reason))

    def _proven_us(self, connection: NatsConnection[NatsSession]) -> int:
        # One more millisecond, because both times are rounded.
        return self._clock_us() - 1000 * (now_ms() - connection.session.proven_ms + 1)

    # What the connection calls

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        self._owner.groups_received(groups)

    def writable_changed(self, writable: bool) -> None:
        self._answers.writable_changed(writable)

    def session_event(self, event: SessionEvent) -> None:
        """Keep the subscriptions and barriers in step with the session; pass on all other events."""
        if isinstance(event, (SessionReady, InfoChanged)):
            self._reconnector.announce(event.info.connect_urls)
        if isinstance(event, SessionReady):
            self._subscribe_again()
        elif isinstance(event, BarrierReached):
            token = self._tokens.pop(event.token)
            if token is None:
                self._confirmed()
            else:
                self._reached(token)
        elif not isinstance(event, (TlsWanted, SessionClosed, InterestLost)):  # the connection's; a leaf's
            self._owner.link_event(event)

    def _subscribe_again(self) -> None:
        assert self._reconnector.connection is not None
        if not self._reconnector.connection.is_ready:
            return  # bytes behind the PONG have ended the session already
        session = self._reconnector.connection.session
        for sid, (subject, queue) in self._subscriptions.items():
            session.subscribe(sid, subject, queue)
        self._tokens[session.barrier()] = None
        self._reconnector.connection.send_output()
        self._answers.opened(self._reconnector.connection)

    def _confirmed(self) -> None:
        assert self._reconnector.connection is not None
        gap_start_us, self._gap_start_us = self._gap_start_us, None
        self._up.set()
        self._reconnector.came_up()
        self._reconnector.connection.set_reading(not self._pauses)
        server = self._reconnector.connection.server
        if gap_start_us is not None or not server.is_embedded:  # the start of the embedded one has told its address
            _log.info("connected to %s", server)
        self._owner.link_event(LinkUp(self._clock_us(), server, gap_start_us))
        # This connection proves the barriers of earlier ones: all that was requested has been requested again.
        on_the_way = set(self._tokens.values())
        for waiting in [token for token in self._waiting if token not in on_the_way]:
            self._reached(waiting)

    def _reached(self, token: int) -> None:
        if token not in self._waiting:
            return  # the waiter has given up
        future = self._waiting.pop(token)
        if future is None:
            self._owner.link_event(BarrierReached(token))
        elif not future.done():
            future.set_result(None)

    def _barrier(self, future: asyncio.Future[None] | None) -> int:
        if len(self._waiting) >= limits.NATS_BARRIERS_MAX:
            raise OperationalError(f"{limits.NATS_BARRIERS_MAX} confirmations from NATS are awaited already")
        self._last_token += 1
        if (connection := self._reconnector.ready_connection) is not None:
            self._tokens[connection.session.barrier()] = self._last_token
            connection.send_output()
        self._waiting[self._last_token] = future
        return self._last_token

    async def _flush(self, timeout_ms: int) -> bool:
        if self._reconnector.ready_connection is None:
            return False
        try:
            await self.wait_barrier(timeout_ms)
        except OperationalError:
            return False
        return True

    def _writing_pauses(self, paused: bool) -> None:
        self._pause(_WRITING, paused)

    def _pause(self, reason: str, paused: bool) -> None:
        if paused:
            self._pauses.add(reason)
        else:
            self._pauses.discard(reason)
        # Before the link is up it reads in any case: it waits for nats-server's answers.
        if self._reconnector.connection is not None and self._reconnector.is_up:
            self._reconnector.connection.set_reading(not self._pauses)
