"""HTTP server of a broker: metrics and health checks, never data.

Rules: it runs on the broker's event loop and must cost it little. At most HTTP_CONNECTIONS_MAX are connected; with one
more an idle one is closed, or any if none is idle. TLS handshakes have a limit of their own, a share of
TLS_HANDSHAKES_MAX: above it an unfinished one is closed, so that abandoned handshakes lock out no client, and cut no
connected one. In both cases the oldest of the address with most of them is closed. One connection is accepted per loop
turn, because a handshake takes about a millisecond of the loop. A handshake must finish within HTTP_TIMEOUT_MS. The
bound port is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.broker.observability.http_connection import HttpConnection, HttpRequest, HttpResponse
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.socket_api.acceptor import Acceptor, bind
from penstock.broker.transport.unauthenticated_slots import UnauthenticatedSlots, address_of

_log = logging.getLogger("penstock.http")

_ACCEPTS_PER_TURN = 1
_HANDSHAKES_MAX = limits.TLS_HANDSHAKES_MAX // 4  # unfinished at once; asyncio's TLS takes some 300 KiB for each


def bind_http(address: Address, *, is_chosen: bool) -> tuple[list[socket.socket], Address]:
    """Return listening sockets and their address. Raise OperationalError if a configured address is not available; a
    default address falls back to a free port.
    """
    try:
        return bind(address, "--http")
    except OperationalError:
        if is_chosen:
            raise
        return bind(Address(address.host, 0), "--http")


class HttpServer:
    """Serves `answer` on listening sockets; with TLS if `tls`, which returns the context for one more connection."""

    def __init__(
        self,
        listeners: list[socket.socket],
        answer: Callable[[HttpRequest], Awaitable[HttpResponse]],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(self._loop, listeners, self._welcome, per_turn=_ACCEPTS_PER_TURN)
        self._answer = answer
        self._tls = tls
        self._connections: dict[HttpConnection, str] = {}  # → the client's address; the oldest first
        self._beginning: dict[
            HttpConnection, tuple[socket.socket, str]
        ] = {}  # connections without a transport yet → socket, address
        self._handshakes: UnauthenticatedSlots[HttpConnection] = UnauthenticatedSlots()  # of the same connections
        self._tasks: set[asyncio.Task[None]] = set()  # one for each of them
        self._complaints = RateLimitedLog()

    def start(self) -> None:
        self._acceptor.start()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        connection = HttpConnection(self, self._answer, is_encrypted=self._tls is not None)
        self._beginning[connection] = sock, address_of(peer)
        self._handshakes.take(connection, peer)
        task = self._loop.create_task(self._begin(connection, sock, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._beginning) > _HANDSHAKES_MAX:
            self._cut(self._handshakes.first_to_go())

    async def _begin(self, connection: HttpConnection, sock: socket.socket, peer: str) -> None:
        """Give the connection its transport, after the TLS handshake if there is one."""
        patience_s = None if self._tls is None else limits.HTTP_TIMEOUT_MS / 1_000
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=None if self._tls is None else self._tls(),
                ssl_handshake_timeout=patience_s,
                ssl_shutdown_timeout=patience_s,
            )
        except OSError as error:
            if connection in self._beginning:  # otherwise this side has closed it
                self._failed(peer, error)
        finally:
            self._begun(connection)

    def _failed(self, peer: str, error: OSError) -> None:
        reason = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
        text = f"no TLS on the HTTP port with {peer}: {reason}"
        if (line := self._complaints.line("handshake", text, int(self._loop.time() * 1e6))) is not None:
            _log.info("%s", line)

    def opened(self, connection: HttpConnection) -> None:
        """The handshake is finished; the connection may have been closed meanwhile."""
        if (begun := self._begun(connection)) is None:
            connection.cut()
            return
        if len(self._connections) >= limits.HTTP_CONNECTIONS_MAX:
            counts = Counter(self._connections.values())
            waiting = [one for one in self._connections if one.is_waiting] or list(self._connections)
            self._cut(max(waiting, key=lambda one: counts[self._connections[one]]))  # the oldest one
        self._connections[connection] = begun[1]

    def _begun(self, connection: HttpConnection) -> tuple[socket.socket, str] | None:
        """Remove a connection whose handshake has ended; None if it was closed before."""
        self._handshakes.leave(connection)
        return self._beginning.pop(connection, None)

    def closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def _cut(self, connection: HttpConnection) -> None:
        """Free the connection's place at once; its socket is closed in the next turns."""
        if (begun := self._begun(connection)) is None:
            del self._connections[connection]
            connection.cut()
        else:
            with contextlib.suppress(OSError):  # disconnected already
                begun[0].shutdown(socket.SHUT_RDWR)  # the handshake then fails, and closes the socket

    def stop(self) -> None:
        """Stop accepting, and close all connections; idempotent."""
        self._acceptor.stop()
        for connection in [*self._beginning, *self._connections]:
            self._cut(connection)
