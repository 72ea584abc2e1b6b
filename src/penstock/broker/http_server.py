"""The HTTP port of a broker: for those who look at it, never for data.

Rules: it is on the event loop of the broker, and may cost it little. At most HTTP_CONNECTIONS_MAX are connected; with
one more the oldest goes that only waits, or the new one, if none does. What the port came to is logged.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.broker.http_connection import Answer, Asked, HttpConnection
from penstock.broker.server import bind

_log = logging.getLogger("penstock.http")


def bind_http(address: Address, *, is_chosen: bool) -> tuple[list[socket.socket], Address]:
    """Its sockets, and where it is. OperationalError: the address cannot be had, if somebody has chosen it; else a free
    port is taken.
    """
    try:
        return bind(address, "--http")
    except OperationalError:
        if is_chosen:
            raise
        return bind(Address(address.host, 0), "--http")


class HttpServer:
    """Serves what `answer` says on sockets that listen."""

    def __init__(self, listeners: list[socket.socket], answer: Callable[[Asked], Awaitable[Answer]]) -> None:
        self._listeners = listeners
        self._answer = answer
        self._servers: list[asyncio.Server] = []
        self._connections: dict[HttpConnection, None] = {}  # the oldest first

    async def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            server = await loop.create_server(lambda: HttpConnection(self, self._answer), sock=listener)
            self._servers.append(server)

    def opened(self, connection: HttpConnection) -> None:
        """One more; there may be one too many."""
        self._connections[connection] = None
        if len(self._connections) > limits.HTTP_CONNECTIONS_MAX:
            others = [one for one in self._connections if one is not connection]
            next((one for one in others if one.is_waiting), others[0]).cut()  # whoever keeps a place does not keep it

    def closed(self, connection: HttpConnection) -> None:
        """Forget it."""
        self._connections.pop(connection, None)

    def stop(self) -> None:
        """Accept nobody any more, and close what is open. Twice is fine."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.cut()
