"""The program's side of a connection: an asyncio transport on the simulated network.

Rules: bytes arrive once and in order, in pieces of any size; nothing arrives after `close`. As with a socket, the
protocol learns of a broken or closed connection by `eof_received` or `connection_lost`. Writing never blocks: bytes
held back by the network count as sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from penstock.testing.loop import Loop
from penstock.testing.simulation.network import SimConnection

Buffer = bytes | bytearray | memoryview


class Service(Protocol):
    """A service that listens on a simulated machine."""

    def opened(self, connection: SimConnection, take: Callable[[bytes], None]) -> None:
        """Accept a program's connection; `take` receives the answers when they arrive at the program."""

    def receive(self, connection: SimConnection, data: bytes) -> None:
        """Take bytes that have arrived from the program."""


class Transport(asyncio.Transport):
    """A transport on the simulated network."""

    def __init__(self, loop: Loop, service: Service, protocol: Any, peer: tuple[str, int], random: Random) -> None:
        super().__init__({"peername": peer, "sockname": ("program", 0)})
        self._loop = loop
        self._service = service
        self._protocol = protocol
        self._random = random
        self._connection: SimConnection | None = None
        self._is_closing = False
        self._is_paused = False
        self._has_ended = False  # the peer sends and receives nothing more
        self._waiting: deque[bytes] = deque()  # received while reading was paused
        self._ends: BaseException | str | None = None  # the end of the connection, after those bytes

    def begin(self, connection: SimConnection) -> None:
        """Report that the connection is established."""
        self._connection = connection
        self._protocol.connection_made(self)
        self._service.opened(connection, self._take)

    def lost(self) -> None:
        """Report that the network or the peer has ended the connection."""
        # A process that dies closes its connections cleanly; a reset, or the loss of a machine, does not.
        self._ends = "eof" if self._random.random() < 0.5 else ConnectionResetError(104, "Connection reset by peer")
        self._loop.call_soon(self._hand_over)

    def _take(self, data: bytes) -> None:
        if self._is_closing:
            return
        if len(data) > 1 and self._random.random() < 0.05:  # a read may end anywhere
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
        """Send the bytes."""
        connection, service, sent = self._connection, self._service, bytes(data)
        if sent and connection is not None and not self._is_closing:
            connection.send(lambda: service.receive(connection, sent))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send all of the pieces."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Do nothing: no simulated server needs it."""

    def can_write_eof(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Close the connection; bytes already written still arrive."""
        self._gone(None)

    def abort(self) -> None:
        """Close the connection like `close`."""
        self._gone(None)

    def is_closing(self) -> bool:
        """True if the connection is closing or closed, by either side, or the program has ended."""
        return self._is_closing or self._has_ended or self._loop.is_closed()

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol."""
        self._protocol = protocol

    def pause_reading(self) -> None:
        """Buffer received bytes."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Deliver received bytes again."""
        self._is_paused = False
        self._loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        """True if received bytes are delivered."""
        return not (self._is_paused or self._is_closing)

    def get_write_buffer_size(self) -> int:
        """Return 0: there is no write buffer."""
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return zeros: there are no limits."""
        return 0, 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the setting."""
