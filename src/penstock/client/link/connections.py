"""The connections of one client: one to each broker that it needs.

Rules: a connection is opened on first use by one caller, while other callers wait for it. At most
`CLIENT_CONNECTIONS_MAX` are open; a connection idle for `CLIENT_CONNECTION_IDLE_S` is closed, except the last one.
In a cluster, a broker that owes an answer and sends nothing for `CLIENT_SILENCE_S` gets a probe that it can answer at
once. If nothing arrives for the same time again, the connection is closed and its requests go to other brokers. (The
death of a host is not signalled, and a slow answer must not be mistaken for it.) A single broker is not probed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from penstock.base import limits
from penstock.base.errors import PenstockError, RemoteError
from penstock.client.errors import TimedOut, Unavailable
from penstock.client.link.connection import Connection
from penstock.messages import MetadataRequest

_LOOK_S = 1.0  # interval of the checks for silent and idle connections

Open = Callable[[str, float], Awaitable[Connection]]


class _Entry:
    """State of the connection to one broker."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening = asyncio.Lock()
        self.wanted = 0  # number of callers waiting for it
        self.used_s = 0.0
        self.probe: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.is_open

    @property
    def is_needed(self) -> bool:
        return self.wanted > 0 or (self.is_open and self.connection is not None and not self.connection.is_idle)


class Connections:
    """Opens, shares and closes connections. `open_one(address, deadline_s)` connects; `is_cluster`: several brokers."""

    def __init__(self, open_one: Open, is_cluster: Callable[[], bool]) -> None:
        self._open_one = open_one
        self._is_cluster = is_cluster
        self._entries: dict[str, _Entry] = {}
        self._retired: set[Connection] = set()  # each closes by itself
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def is_open(self, address: str) -> bool:
        """True if there is an open connection to that broker."""
        entry = self._entries.get(address)
        return entry is not None and entry.is_open

    async def at(self, address: str, deadline_s: float) -> Connection:
        """Return the connection to that broker; open it if needed. Unavailable, TimedOut, or the broker's refusal."""
        clock = asyncio.get_running_loop()
        entry = self._entries.get(address)
        if entry is None or entry.connection is None or not entry.connection.is_open:
            entry = await self._opened(address, deadline_s)
        assert entry.connection is not None
        entry.used_s = clock.time()
        if self._timer is None and not self._is_closed:
            self._timer = clock.call_later(_LOOK_S, self._look)
        return entry.connection

    def retire(self, connection: Connection, refusal: RemoteError) -> None:
        """Retire a connection whose login is no longer valid; the next call to that broker opens another one."""
        self._retired = {one for one in self._retired if not one.is_gone}
        connection.retire(refusal)
        if not connection.is_gone:
            self._retired.add(connection)

    async def close(self) -> None:
        """Close all connections; calls in flight fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.probe is not None:
                entry.probe.cancel()
        connections = [*self._retired, *(one.connection for one in entries if one.connection is not None)]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    async def _opened(self, address: str, deadline_s: float) -> _Entry:
        if address not in self._entries:
            self._make_room()
            self._entries[address] = _Entry()
        entry = self._entries[address]
        entry.wanted += 1
        try:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await entry.opening.acquire()
            except TimeoutError:
                raise TimedOut(f"no connection to the broker at {address} within the time-out") from None
            try:
                if not entry.is_open:
                    entry.connection = await self._open_one(address, deadline_s)
            finally:
                entry.opening.release()
            return entry
        finally:
            entry.wanted -= 1
            if not entry.is_open and not entry.wanted and self._entries.get(address) is entry:
                del self._entries[address]

    def _make_room(self) -> None:
        if len(self._entries) < limits.CLIENT_CONNECTIONS_MAX:
            return
        free = [address for address, entry in self._entries.items() if not entry.is_needed]
        if not free:
            raise Unavailable(f"all {limits.CLIENT_CONNECTIONS_MAX} connections of this client are in use")
        self._give_back(min(free, key=lambda address: self._entries[address].used_s))

    def _give_back(self, address: str) -> None:
        entry = self._entries.pop(address)
        if entry.connection is not None:
            entry.connection.close()

    def _look(self) -> None:
        clock = asyncio.get_running_loop()
        self._timer = None
        for address, entry in list(self._entries.items()):
            is_old = clock.time() - entry.used_s >= limits.CLIENT_CONNECTION_IDLE_S
            if not entry.is_needed and (not entry.is_open or (is_old and len(self._entries) > 1)):
                self._give_back(address)
            elif entry.is_open and self._is_cluster():
                self._look_for_silence(entry)
        if len(self._entries) > 1 or any(entry.is_needed for entry in self._entries.values()):
            self._timer = clock.call_later(_LOOK_S, self._look)

    def _look_for_silence(self, entry: _Entry) -> None:
        assert entry.connection is not None
        is_probed = entry.probe is not None and not entry.probe.done()
        if not is_probed and entry.connection.silent_s() >= limits.CLIENT_SILENCE_S:
            entry.probe = asyncio.get_running_loop().create_task(_probe(entry.connection))


async def _probe(connection: Connection) -> None:
    # The session closes by itself if nothing arrives before the deadline.
    deadline_s = asyncio.get_running_loop().time() + limits.CLIENT_SILENCE_S
    with contextlib.suppress(PenstockError):
        await connection.call(MetadataRequest(names=()), b"", deadline_s)
