"""Keeps one connection to one of several nats-servers: tries them in turn, with backoff. For the link and the leaf.

Servers are tried in turn (see `pool`). When none answers, the backoff before the next round grows from 250 ms to 5
s, doubling each time, less a random jitter so that brokers do not reconnect simultaneously. A connection with broken
framing is replaced at once; if that happens again within a few seconds, after 250 ms, and never later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, Protocol

from penstock.base import limits
from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.nats.connection import LinkTiming, NatsConnection, NatsConnectionOwner, SessionT
from penstock.broker.nats.pool import NatsPool
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer
from penstock.ingest.connect import ErrorKind

_log = logging.getLogger("penstock.nats")

_NATS_ROUND_MS = 2_000  # after it, announced servers wait for the next round, which starts with the configured ones
_KNOWN_FAILURES_MAX = 16  # bounds servers that give a different reason each time


def now_ms() -> int:
    """Return the monotonic time of sessions and connections."""
    return time.monotonic_ns() // 1_000_000


class NatsFailureLog:
    """Log lines for the failures of one outage: new ones at once, repeated ones once a minute. Times are monotonic.

    An outage is retried several times a second, and its log must stay readable.
    """

    def __init__(self, what: str = "connection") -> None:
        self._what = what
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
        return f"no {self._what} to {server}: {reason}{so_far}"

    def over(self) -> None:
        """The connection is up: log the next failure at once."""
        self._known.clear()
        self._count = 0


class ReconnectorOwner(NatsConnectionOwner, Protocol[SessionT]):
    """Owns the sessions. All calls are on the event loop; none may block."""

    def new_session(self, server: NatsServer) -> SessionT:
        """Return a session for a new connection; raise OperationalError if there can be none now."""

    def connection_left(self, connection: NatsConnection[SessionT]) -> None:
        """The connection is over; its session still tells up to when it was alive."""

    def connection_ended(self, server: NatsServer, kind: ErrorKind, reason: str, *, was_ready: bool) -> None:
        """Why it is over; `was_ready`: nats-server had accepted it."""


class Reconnector(Generic[SessionT]):
    """Keeps one connection. `run` is its one task; all other methods are called on the same event loop."""

    def __init__(
        self,
        owner: ReconnectorOwner[SessionT],
        access: NatsAccess,
        *,
        random: Callable[[], float],
        timing: LinkTiming,
        what: str = "connection",
        read_buffer_bytes: int = limits.READ_BUFFER_BYTES,
    ) -> None:
        """`random` returns numbers in [0, 1). Raise ConfigError if credentials or certificates cannot work."""
        if mistakes := access.mistakes():
            raise ConfigError(mistakes)
        self._owner = owner
        self._access = access
        self._pool = NatsPool(access.servers, uses_announced=access.uses_announced, random=random)
        self._random = random
        self._timing = timing
        self._read_buffer_bytes = read_buffer_bytes
        self.connection: NatsConnection[SessionT] | None = None  # up or being established
        self._up_ms: int | None = None  # when it came up
        self._framing_lost_ms: int | None = None  # time of the last framing error
        self._tls_first: set[NatsServer] = set()
        self._served: set[NatsServer] = set()  # at some time of this run
        self._stopping = asyncio.Event()
        self.last_failure = ""
        """The reason why the connection is, or last was, down; empty if nothing has failed."""
        self._failures = NatsFailureLog(what)

    @property
    def is_up(self) -> bool:
        """True from `came_up` to the end of the connection."""
        return self._up_ms is not None

    @property
    def is_stopping(self) -> bool:
        """True after `stop`."""
        return self._stopping.is_set()

    @property
    def announced(self) -> tuple[NatsServer, ...]:
        """The servers that NATS announces besides the configured ones."""
        return self._pool.announced

    @property
    def ready_connection(self) -> NatsConnection[SessionT] | None:
        """The connection if its session takes commands."""
        connection = self.connection
        return connection if connection is not None and connection.is_ready else None

    def announce(self, addresses: Sequence[str]) -> None:
        """Take the addresses that the current server announces."""
        assert self.connection is not None
        has_tls = self.connection.session.has_tls
        self._pool.announce(addresses, self.connection.server, has_tls=has_tls)

    def came_up(self) -> None:
        """The owner's part is done, too: the connection works."""
        self._up_ms = now_ms()
        self._failures.over()

    def stop(self) -> None:
        """Have `run` return, after the queued output."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep the connection until `stop`. Raises only what its owner raised."""
        rounds = 0
        try:
            while not self._stopping.is_set():
                rounds = await self._round(rounds + 1)
                if rounds:
                    await self._wait_before_round(rounds)
        finally:
            self._leave()

    # Inside

    async def _round(self, number: int) -> int:
        """Try servers until one has served for a while. Return the backoff step before the next round; 0 is no wait."""
        started_ms = now_ms()
        wait = number
        for server in self._pool.round(lambda: now_ms() - started_ms < _NATS_ROUND_MS):
            up_ms, kind = await self._connect_and_serve(server)
            if self._stopping.is_set() or up_ms >= self._timing.steady_ms:
                return 0
            if up_ms and kind is ErrorKind.PROTOCOL:
                last_ms, self._framing_lost_ms = self._framing_lost_ms, now_ms()
                if last_ms is None or now_ms() - last_ms >= self._timing.steady_ms:
                    return 0
                wait = 1
        return wait

    async def _wait_before_round(self, rounds: int) -> None:
        longest_ms = min(self._timing.reconnect_ms_min * 2 ** min(rounds - 1, 16), self._timing.reconnect_ms_max)
        await self._unless_stopped(asyncio.sleep(longest_ms * (0.5 + 0.5 * self._random()) / 1000))

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Run `work`; cancel it at the stop."""
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
        """Connect to `server` and serve until the connection ends. Return how many ms it was up, and why it ended."""
        kind, reason = ErrorKind.OTHER, "stopped"
        connection: NatsConnection[SessionT] | None = None
        try:
            connection = self.connection = NatsConnection(
                server,
                self._owner.new_session(server),
                self._owner,
                now_ms,
                served_before=server in self._served,
                read_buffer_bytes=self._read_buffer_bytes,
            )
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
        if not self._stopping.is_set():
            self.last_failure = f"{server}: {reason}"
            if (line := self._failures.line(server, reason, now_ms())) is not None:
                _log.warning("%s", line)
        was_ready = connection is not None and connection.was_ready
        self._owner.connection_ended(server, kind, reason, was_ready=was_ready)
        return lived_ms, kind

    async def _close(self, connection: NatsConnection[SessionT]) -> None:
        connection.close()  # after the queued output
        try:
            async with asyncio.timeout(self._timing.connect_timeout_ms / 1000):
                if connection.transport is not None:
                    await connection.ended()
        except TimeoutError:
            _log.warning("%s takes nothing more; its connection is cut", connection.server)

    def _leave(self) -> int:
        """Drop the current connection; return how many ms it was up."""
        up_ms = self._up_ms
        if self.connection is not None:
            self._owner.connection_left(self.connection)
            self.connection.discard()
        self.connection = None
        self._up_ms = None
        return 0 if up_ms is None else max(1, now_ms() - up_ms)
