"""A TCP proxy on loopback; subclasses change, delay or count what it forwards."""

from __future__ import annotations

import asyncio
import socket
from typing import Self

PIECE_BYTES = 1 << 18


class Between:
    """Forwards from `port` (default: a free one) to `to_port`. When one side closes, the other is closed, too."""

    piece_bytes = PIECE_BYTES

    def __init__(self, to_port: int, port: int = 0) -> None:
        self.port = port
        self._to_port = to_port
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """HOST:PORT; valid while the proxy listens."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.prepare(listener)
        self._server = await asyncio.start_server(self._came, sock=listener, limit=self.piece_bytes)
        self.port = listener.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prepare(self, sock: socket.socket) -> None:
        """Set options of a socket before it listens or connects."""

    async def there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward from the connecting side until its end."""
        while data := await reader.read(self.piece_bytes):
            writer.write(data)
            await writer.drain()

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward from the target until its end."""
        await self.there(reader, writer)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side has closed, or the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = socket.socket()
        self.prepare(sock)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._to_port))
            to_reader, to_writer = await asyncio.open_connection(sock=sock, limit=self.piece_bytes)
        except (OSError, asyncio.CancelledError):
            sock.close()
            raise
        ways = [asyncio.create_task(way) for way in (self.there(reader, to_writer), self.back(to_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
