"""Listening sockets, and the connections that come to them.

Rules: all addresses that a host name resolves to are listened on, or none. Only so many connections are accepted in one
turn of the event loop that they do not delay other work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError

_log = logging.getLogger("penstock.server")

_BACKLOG = 1024
_PAUSE_S = 1.0


def bind(address: Address, flag: str = "--listen") -> tuple[list[socket.socket], Address]:
    """Return listening sockets on every address that `address` resolves to, and the address with the actual port.

    Raise OperationalError if one of them cannot be bound; `flag` is the option that the error names. Clients wait in
    the backlog until a Server starts.
    """
    listeners: list[socket.socket] = []
    port = address.port
    try:
        found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((where[0], port, *where[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            port = listener.getsockname()[1]  # with port 0, the second address takes the port of the first
    except OSError as error:
        for listener in listeners:
            listener.close()
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise OperationalError(f"{text}; choose another address with {flag} (port 0: any free one)") from error
    return listeners, Address(address.host, port)


class Acceptor:
    """Passes each new connection to `welcome`, with a non-blocking socket and the address of the peer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listeners: list[socket.socket],
        welcome: Callable[[socket.socket, str], None],
        *,
        per_turn: int,
    ) -> None:
        self._loop = loop
        self._listeners = listeners
        self._welcome = welcome
        self._per_turn = per_turn

    def start(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def stop(self) -> None:
        """Stop accepting; idempotent."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._per_turn):
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely out of file descriptors: open connections continue, and new clients wait in the backlog.
                _log.warning("cannot accept a connection: %s", error)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_PAUSE_S, self._accept_again, listener)
                return
            sock.setblocking(False)
            self._welcome(sock, f"{peer[0]}:{peer[1]}")

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)
