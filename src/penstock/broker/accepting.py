"""Accepts connections: some in one turn of the event loop, so that a crowd does not keep it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger("penstock.server")

_PAUSE_S = 1.0


class Acceptor:
    """Hands each connection that comes to `welcome`, with a socket that does not block, and where it comes from."""

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
        """Begin to accept."""
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def stop(self) -> None:
        """Accept nobody any more. Twice is fine."""
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
                # Out of file descriptors, most likely: what is open goes on, and new clients wait in the backlog.
                _log.warning("cannot accept a connection: %s", error)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_PAUSE_S, self._accept_again, listener)
                return
            sock.setblocking(False)
            self._welcome(sock, f"{peer[0]}:{peer[1]}")

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)
