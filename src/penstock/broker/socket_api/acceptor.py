"""Accepts connections, a limited number per turn of the event loop, so that many of them do not delay other work."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger("penstock.server")

_PAUSE_S = 1.0


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
