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

Servers are tried in turn (see `pool`). When none answers, the backoff before the next round grows from 250 ms to 5
s, doubling each time, less a random jitter so that brokers do not reconnect simultaneously. A connection with broken
framing is replaced at once; if that happens again within a few seconds, after 250 ms, and never later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base import limits
from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.nats.answers import AnswerOutput
from penstock.broker.nats.connection import LinkTiming, NatsConnection
from penstock.broker.nats.pool import NatsPool
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind, ServerInfo
from penstock.ingest.nats import (
    BarrierReached,
    InfoChanged,
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

_NATS_ROUND_MS = 2_000  # after it, announced servers wait for the next round, which starts with the configured ones
# Reasons for pausing the reading.
_CALLER = "caller"
_WRITING = "writing"  # backpressure: until nats-server takes our output
_KNOWN_FAILURES_MAX = 16  # bounds servers that give a different reason each time


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


class NatsFailureLog:
    """Log lines for the failures of one outage: new ones at once, repeated ones once a minute. Times are monotonic.

    An outage is retried several times a second, and its log must stay readable.
    """

    def __init__(self) -> None:
        self._known: set[tuple[NatsServer, str]] = set()
        self._count = 0
        self._told_ms = 0

    def line(self, server: NatsServer, reason: str, now_ms: int) -> str | None:
        """Return the log line for one more failure, or None."""
        self._count += 1
        is_new = (server, reason) not in self._known and len(self._known) < _KNOWN_FAILURES_MAX
        if not is_new and now_ms - self._told_ms < limits.NATS_OUTAGE_LOG_MS:
            return None
        self._known.add((server, reason))
        self._told_ms = now_ms
        so_far = f" (tried {self._count} times so far)" if self._count > 1 else ""
        return f"no connection to {server}: {reason}{so_far}"

    def over(self) -> None:
        """The link is up: log the next failure at once."""
        self._known.clear()
        self._count = 0


class LinkOwner(Protocol):
    """Receives what the link delivers. All calls are on the event loop; none may block."""

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Messages by the lower GROUP_BITS bits of subscription ids (`hot.scan`), in the order of arrival for each."""

    def link_event(self, event: LinkEvent) -> None:
        """An event of the table in the module's docstring."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


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
    ) -> None:
        """Create a link; `random` returns numbers in [0, 1). Raise ConfigError if credentials or certificates cannot
        work.
        """
        if mistakes := access.mistakes():
            raise ConfigError(mistakes)
        self._owner = owner
        self._access = access
        self._pool = NatsPool(access.servers, uses_announced=access.uses_announced, random=random)
        self._clock_us = clock_us
        self._random = random
        self._timing = timing or LinkTiming()
        self._connection: NatsConnection | None = None  # up or being established
        self._connection_up_ms: int | None = None  # when it came up
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
        self._framing_lost_ms: int | None = None  # time of the last framing error
        self._tls_first: set[NatsServer] = set()
        self._served: set[NatsServer] = set()  # at some time of this run
        self._stopping = asyncio.Event()
        self._up = asyncio.Event()
        self._last_failure = ""
        self._failures = NatsFailureLog()

    # State

    @property
    def is_up(self) -> bool:
        """True if every subscription is confirmed on a live connection."""
        return self._up.is_set()

    @property
    def server(self) -> NatsServer | None:
        """The server of the current connection."""
        return None if self._connection is None else self._connection.server

    @property
    def info(self) -> ServerInfo | None:
        """The INFO of the current connection's server."""
        return None if self._connection is None else self._connection.session.info

    @property
    def announced(self) -> tuple[NatsServer, ...]:
        """The servers that NATS announces besides the configured ones."""
        return self._pool.announced

    @property
    def last_failure(self) -> str:
        """The reason why the link is, or last was, down; empty if nothing has failed."""
        return self._last_failure

    @property
    def proven_us(self) -> int | None:
        """Wall-clock time up to which all published messages have been received, from the last PONG. None if down."""
        return self._proven_us(self._connection) if self._connection is not None and self.is_up else None

    @property
    def gap_start_us(self) -> int | None:
        """Start of the current gap while the link is down after having been up; else None."""
        return self._gap_start_us

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes written that nats-server has not taken yet."""
        waiting = 0 if self._connection is None else self._connection.write_buffer_bytes
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
            connection = self._connection
            so_far = "none has been tried yet" if connection is None else f"{connection.server}: {connection.silence}"
            reason = self._last_failure or so_far
            raise OperationalError(f"no connection to NATS within {timeout_ms} ms: {reason}") from None

    # Commands

    def subscribe(self, sid: int, subject: str, queue: str | None = None) -> None:
        """Subscribe now and after every reconnect. `sid` must be new. A later barrier confirms it."""
        assert sid not in self._subscriptions
        self._subscriptions[sid] = (subject, queue)
        if (connection := self._ready_connection()) is not None:
            connection.session.subscribe(sid, subject, queue)
            connection.send_output()

    def unsubscribe(self, sid: int) -> None:
        """End a subscription; messages in flight still arrive until a barrier. Unknown ids are ignored."""
        self._subscriptions.pop(sid, None)
        if (connection := self._ready_connection()) is not None:
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
            reason = "it does not answer" if self.is_up else self._last_failure
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
        if self._stopping.is_set():
            return False
        drained = await self.drain(timeout_ms)
        flushed = await self._flush(timeout_ms) if drained else False
        self._stopping.set()
        return flushed

    async def run(self) -> None:
        """Keep the link up until `stop`. Raises only what its owner raised."""
        rounds = 0
        try:
            while not self._stopping.is_set():
                rounds = await self._round(rounds + 1)
                if rounds:
                    await self._wait_before_round(rounds)
        finally:
            self._leave()
            for future in self._waiting.values():
                if future is not None and not future.done():
                    future.set_exception(OperationalError("the link to NATS has stopped"))

    # Inside: connecting

    async def _round(self, number: int) -> int:
        """Try servers until one has served for a while. Return the backoff step before the next round; 0 is no wait."""
        started_ms = _now_ms()
        wait = number
        for server in self._pool.round(lambda: _now_ms() - started_ms < _NATS_ROUND_MS):
            up_ms, kind = await self._connect_and_serve(server)
            if self._stopping.is_set() or up_ms >= self._timing.steady_ms:
                return 0
            if up_ms and kind is ErrorKind.PROTOCOL:
                last_ms, self._framing_lost_ms = self._framing_lost_ms, _now_ms()
                if last_ms is None or _now_ms() - last_ms >= self._timing.steady_ms:
                    return 0
                wait = 1
        return wait

    async def _wait_before_round(self, rounds: int) -> None:
        longest_ms = min(self._timing.reconnect_ms_min * 2 ** min(rounds - 1, 16), self._timing.reconnect_ms_max)
        await self._unless_stopped(asyncio.sleep(longest_ms * (0.5 + 0.5 * self._random()) / 1000))

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Run `work`; cancel it when the link is stopped."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def _connect_and_serve(self, server: NatsServer) -> tuple[int, ErrorKind]:
        """Connect to `server` and serve until the connection ends. Return how many ms the link was up, and why it
        ended.
        """
        kind, reason = ErrorKind.OTHER, "stopped"
        connection: NatsConnection | None = None
        try:
            connection = self._connection = self._new_connection(server)
            tls_first = server in self._tls_first
            self._tls_first.discard(server)
            await self._unless_stopped(connection.connect(self._access.tls, self._timing, tls_first=tls_first))
            if connection.tls_came_first:
                self._tls_first.add(server)
            if connection.was_ready:
                self._served.add(server)
                await self._unless_stopped(connection.ended())
            if self._stopping.is_set():
                await self._close(connection)
        except OperationalError as error:
            reason = str(error)
        if connection is not None and connection.end is not None and not self._stopping.is_set():
            kind, reason = connection.end
        lived_ms = self._leave()
        if connection is not None and connection.failure is not None:
            raise connection.failure
        self._report_end(server, kind, reason, was_ready=connection is not None and connection.was_ready)
        return lived_ms, kind

    def _new_connection(self, server: NatsServer) -> NatsConnection:
        session = NatsSession(
            name=self._access.name,
            version=self._access.version,
            authentication=self._access.credentials.authentication(server),
            tls_wanted=server.tls or bool(self._access.tls),
            ping_interval_ms=self._timing.ping_interval_ms,
            now_ms=_now_ms(),
        )
        return NatsConnection(server, session, self, _now_ms, served_before=server in self._served)

    async def _close(self, connection: NatsConnection) -> None:
        connection.close()  # after the queued output
        try:
            async with asyncio.timeout(self._timing.connect_timeout_ms / 1000):
                if connection.transport is not None:
                    await connection.ended()
        except TimeoutError:
            _log.warning("%s takes nothing more; its connection is cut", connection.server)

    def _leave(self) -> int:
        """Drop the current connection; return how many ms the link was up."""
        up_ms = self._connection_up_ms
        if self._connection is not None:
            if up_ms is not None and self._gap_start_us is None:
                self._gap_start_us = self._proven_us(self._connection)
            self._connection.discard()
        self._connection = None
        self._connection_up_ms = None
        self._tokens.clear()
        self._up.clear()
        self._answers.closed()
        return 0 if up_ms is None else max(1, _now_ms() - up_ms)

    def _proven_us(self, connection: NatsConnection) -> int:
        # One more millisecond, because both times are rounded.
        return self._clock_us() - 1000 * (_now_ms() - connection.session.proven_ms + 1)

    def _report_end(self, server: NatsServer, kind: ErrorKind, reason: str, *, was_ready: bool) -> None:
        if not self._stopping.is_set():
            self._last_failure = f"{server}: {reason}"
            if (line := self._failures.line(server, reason, _now_ms())) is not None:
                _log.warning("%s", line)
        if was_ready:
            self._owner.link_event(LinkDown(self._clock_us(), self._gap_start_us, server, kind, reason))
        elif not self._stopping.is_set():
            self._owner.link_event(ConnectFailed(self._clock_us(), server, kind, reason))

    # What the connection calls

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        self._owner.groups_received(groups)

    def writable_changed(self, writable: bool) -> None:
        self._answers.writable_changed(writable)

    def session_event(self, event: SessionEvent) -> None:
        """Keep the subscriptions and barriers in step with the session; pass on all other events."""
        if isinstance(event, (SessionReady, InfoChanged)):
            assert self._connection is not None
            has_tls = self._connection.session.has_tls
            self._pool.announce(event.info.connect_urls, self._connection.server, has_tls=has_tls)
        if isinstance(event, SessionReady):
            self._subscribe_again()
        elif isinstance(event, BarrierReached):
            token = self._tokens.pop(event.token)
            if token is None:
                self._confirmed()
            else:
                self._reached(token)
        elif not isinstance(event, (TlsWanted, SessionClosed)):  # handled by the connection
            self._owner.link_event(event)

    def _subscribe_again(self) -> None:
        assert self._connection is not None
        if not self._connection.is_ready:
            return  # bytes behind the PONG have ended the session already
        session = self._connection.session
        for sid, (subject, queue) in self._subscriptions.items():
            session.subscribe(sid, subject, queue)
        self._tokens[session.barrier()] = None
        self._connection.send_output()
        self._answers.opened(self._connection)

    def _confirmed(self) -> None:
        assert self._connection is not None
        self._connection_up_ms = _now_ms()
        gap_start_us, self._gap_start_us = self._gap_start_us, None
        self._up.set()
        self._failures.over()
        self._connection.set_reading(not self._pauses)
        server = self._connection.server
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
        if (connection := self._ready_connection()) is not None:
            self._tokens[connection.session.barrier()] = self._last_token
            connection.send_output()
        self._waiting[self._last_token] = future
        return self._last_token

    async def _flush(self, timeout_ms: int) -> bool:
        if self._ready_connection() is None:
            return False
        try:
            await self.wait_barrier(timeout_ms)
        except OperationalError:
            return False
        return True

    def _ready_connection(self) -> NatsConnection | None:
        connection = self._connection
        return connection if connection is not None and connection.is_ready else None

    def _writing_pauses(self, paused: bool) -> None:
        self._pause(_WRITING, paused)

    def _pause(self, reason: str, paused: bool) -> None:
        if paused:
            self._pauses.add(reason)
        else:
            self._pauses.discard(reason)
        # Before the link is up it reads in any case: it waits for nats-server's answers.
        if self._connection is not None and self._connection_up_ms is not None:
            self._connection.set_reading(not self._pauses)
