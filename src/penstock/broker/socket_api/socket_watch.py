"""Registers a connection's socket with the event loop for reading and writing, as wanted.

Rules: data that TLS has buffered is read without an event of the socket. If a read waits until something can be sent,
or a write until something has arrived, the loop watches for that instead, and then calls the waiting side: otherwise
the socket would wake the loop repeatedly for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.transport.transport import Transport


class SocketWatch:
    """The loop registration of one connection. `readable` and `writable` are called on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        readable: Callable[[], None],
        writable: Callable[[], None],
    ) -> None:
        self.reading = self.writing = False  # True if wanted
        self._loop = loop
        self._transport = transport
        self._readable = readable
        self._writable = writable
        self._has_reader = self._has_writer = False
        self._rest: asyncio.Handle | None = None  # a read of buffered data is scheduled
        self._closed = False

    def read(self, wanted: bool) -> None:
        """Set if `readable` should be called."""
        self.reading = wanted
        self.update()

    def write(self, wanted: bool) -> None:
        """Set if `writable` should be called."""
        self.writing = wanted
        self.update()

    def update(self) -> None:
        """Update the registration; call after each use of the transport."""
        if self._closed:
            return
        transport = self._transport
        reader = (self.reading and not transport.reads_wait) or (self.writing and transport.writes_wait)
        writer = (self.writing and not transport.writes_wait) or (self.reading and transport.reads_wait)
        if reader != self._has_reader:
            self._has_reader = reader
            if reader:
                self._loop.add_reader(transport.fileno(), self._told_readable)
            else:
                self._loop.remove_reader(transport.fileno())
        if writer != self._has_writer:
            self._has_writer = writer
            if writer:
                self._loop.add_writer(transport.fileno(), self._told_writable)
            else:
                self._loop.remove_writer(transport.fileno())
        if self._rest is None and self.reading and transport.has_read:
            self._rest = self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._rest = None
        if self.reading and not self._closed:
            self._readable()
            self.update()

    def _told_readable(self) -> None:
        if self._transport.writes_wait and self.writing:
            self._transport.writes_wait = False
            self._writable()
        if self.reading and not self._closed and not self._transport.reads_wait:
            self._readable()
        self.update()

    def _told_writable(self) -> None:
        if self._transport.reads_wait and self.reading:
            self._transport.reads_wait = False
            self._readable()
        if self.writing and not self._closed and not self._transport.writes_wait:
            self._writable()
        self.update()

    def close(self) -> None:
        """Stop all calls."""
        self.reading = self.writing = False
        self.update()
        self._closed = True
        self._readable = self._writable = _nothing  # drop references, so that a closed connection can be freed
        if self._rest is not None:
            self._rest.cancel()


def _nothing() -> None:
    pass
