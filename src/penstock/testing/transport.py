"""A program's side of a connection: an asyncio transport on the simulated network.

Rules: bytes arrive once and in order, in pieces of any size; nothing arrives after `close`. What broke, and what the
other side has closed, the protocol hears as it does from a socket: by `eof_received` or by `connection_lost`. There is
always room for what is written: what the network holds back counts as sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from penstock.sim.network import Connection
from penstock.testing.loop import Loop

Buffer = bytes | bytearray | memoryview


class Service(Protocol):
    """What listens on a simulated machine."""

    def opened(self, connection: Connection, take: Callable[[bytes], None]) -> None:
        """A program has connected; `take` gets what is said to it, where that arrives."""

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes of the program have arrived."""


class Transport(asyncio.Transport):
    """See the module."""

    def __init__(self, loop: Loop, service: Service, protocol: Any, peer: tuple[str, int], random: Random) -> None:
        super().__init__({"peername": peer, "sockname": ("program", 0)})
        self._loop = loop
        self._service = service
        self._protocol = protocol
        self._random = random
        self._connection: Connection | None = None
        self._is_closing = False
        self._is_paused = False
        self._has_ended = False  # the other side says nothing more, and hears nothing
        self._waiting: deque[bytes] = deque()  # what came while reading was paused
        self._ends: BaseException | str | None = None  # behind that

    def begin(self, connection: Connection) -> None:
        """The connection is there."""
        self._connection = connection
        self._protocol.connection_made(self)
        self._service.opened(connection, self._take)

    def lost(self) -> None:
        """The network, or the other side, has ended it."""
        # A process that dies closes its connections in order; a reset, and a machine that is gone, do not.
        self._ends = "eof" if self._random.random() < 0.5 else ConnectionResetError(104, "Connection reset by peer")
        self._loop.call_soon(self._hand_over)

    def _take(self, data: bytes) -> None:
        if self._is_closing:
            return
        if len(data) > 1 and self._random.random() < 0.05:  # a read ends anywhere
            cut = 1 + int(self._random.random() * (len(data) - 1))
            self._waiting.append(data[:cut])
            data = data[cut:]
        self._waiting.append(data)
        self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        while self._waiting and not (self._is_paused or self._is_closing):
            self._received(self._waiting.popleft())
        if self._ends is None or self._waiting or self._is_closing:
            return
        error, self._ends = self._ends, None
        if isinstance(error, BaseException):
            self._gone(error)
        else:
            self._has_ended = True
            if not self._protocol.eof_received():
                self._gone(None)

    def _received(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            room = memoryview(self._protocol.get_buffer(len(data)))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def _gone(self, error: BaseException | None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._waiting.clear()
        if self._connection is not None:
            self._connection.close(by_source=True)
        self._loop.call_soon(self._protocol.connection_lost, error)

    # asyncio.Transport

    def write(self, data: Buffer) -> None:
        """Send it."""
        connection, service, sent = self._connection, self._service, bytes(data)
        if sent and connection is not None and not self._is_closing:
            connection.send(lambda: service.receive(connection, sent))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send all of it."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """No server of the simulation looks for that."""

    def can_write_eof(self) -> bool:
        """No."""
        return False

    def close(self) -> None:
        """End it; what was written arrives."""
        self._gone(None)

    def abort(self) -> None:
        """The same."""
        self._gone(None)

    def is_closing(self) -> bool:
        """Whether it is over: also where the other side has ended it, or the program is gone."""
        return self._is_closing or self._has_ended or self._loop.is_closed()

    def get_protocol(self) -> Any:
        """Who hears what comes."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Somebody else does."""
        self._protocol = protocol

    def pause_reading(self) -> None:
        """What comes waits."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """It waits no longer."""
        self._is_paused = False
        self._loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        """Whether what comes is handed over."""
        return not (self._is_paused or self._is_closing)

    def get_write_buffer_size(self) -> int:
        """Nothing waits here."""
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """None that matter."""
        return 0, 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing comes of it."""
