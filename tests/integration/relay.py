"""A proxy on loopback that limits the rate of a link, in each direction of each connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.between import Between

_PIECE_BYTES = 16_384
_BUFFER_BYTES = 32_768  # of the sockets, so that the link buffers little


class Relay(Between):
    """The proxy; `bytes_per_s` can be changed at any time."""

    piece_bytes = _PIECE_BYTES

    def __init__(self, port: int, to_port: int, bytes_per_s: int) -> None:
        super().__init__(to_port, port)
        self.bytes_per_s = bytes_per_s
        self.passed_bytes = 0  # all connections, both directions

    def prepare(self, sock: socket.socket) -> None:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    async def there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()  # time at which the link is free again
        writer.transport.set_write_buffer_limits(high=_PIECE_BYTES)
        while data := await reader.read(_PIECE_BYTES):
            free_s = max(free_s, loop.time()) + len(data) / self.bytes_per_s
            await asyncio.sleep(free_s - loop.time())
            writer.write(data)
            await writer.drain()
            self.passed_bytes += len(data)


@asynccontextmanager
async def relays(ports: dict[int, int], bytes_per_s: int) -> AsyncIterator[list[Relay]]:
    """Run a relay for each item of `ports`: from its key to its value."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Relay(port, to, bytes_per_s)) for port, to in ports.items()]
