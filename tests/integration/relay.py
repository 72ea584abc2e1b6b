"""A relay on loopback that makes a link slow: so many bytes a second in each direction of each connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PIECE_BYTES = 16_384
_BUFFER_BYTES = 32_768  # of the sockets: a link holds little


def _small_buffers(sock: socket.socket) -> socket.socket:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    return sock


class Relay:
    """From `port` to `to_port` of this machine. `bytes_per_s` may change."""

    def __init__(self, port: int, to_port: int, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.passed_bytes = 0  # of all connections, both ways
        self._port = port
        self._to_port = to_port
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        listener = _small_buffers(socket.create_server(("127.0.0.1", self._port)))
        self._server = await asyncio.start_server(self._came, sock=listener, limit=_PIECE_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side is gone, or the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = _small_buffers(socket.socket())
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._to_port))
            to_reader, to_writer = await asyncio.open_connection(sock=sock, limit=_PIECE_BYTES)
        except OSError:
            sock.close()
            raise
        try:
            pumps = (self._pump(reader, to_writer), self._pump(to_reader, writer))
            ways = [asyncio.create_task(pump) for pump in pumps]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            to_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()  # when the link is free again
        writer.transport.set_write_buffer_limits(high=_PIECE_BYTES)
        while data := await reader.read(_PIECE_BYTES):
            free_s = max(free_s, loop.time()) + len(data) / self.bytes_per_s
            await asyncio.sleep(free_s - loop.time())
            writer.write(data)
            await writer.drain()
            self.passed_bytes += len(data)


@asynccontextmanager
async def relays(ports: dict[int, int], bytes_per_s: int) -> AsyncIterator[list[Relay]]:
    """One for each port, to the port that it names."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Relay(port, to, bytes_per_s)) for port, to in ports.items()]
