"""When the loop calls a connection: there is something to read, or room to write, and it wants to.

Rules: what TLS has taken out of the socket and not handed out is read without being told of. Where a read waits until
something can be sent, or a write until something has come, the loop looks for that instead, and what waits is called
when it happens: the socket would wake the loop for nothing again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.broker.transport import Transport


class Watch:
    """See the module. `readable` and `writable` are called on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        readable: Callable[[], None],
        writable: Callable[[], None],
    ) -> None:
        self.reading = self.writing = False  # what is wanted
        self._loop = loop
        self._transport = transport
        self._readable = readable
        self._writable = writable
        self._has_reader = self._has_writer = False
        self._rest: asyncio.Handle | None = None  # what the socket does not tell of is about to be read
        self._closed = False

    def read(self, wanted: bool) -> None:
        """Whether to be called when there is something to read."""
        self.reading = wanted
        self.update()

    def write(self, wanted: bool) -> None:
        """Whether to be called when there is room."""
        self.writing = wanted
        self.update()

    def update(self) -> None:
        """After the transport was used."""
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
        """Call nobody any more."""
        self.reading = self.writing = False
        self.update()
        self._closed = True
        self._readable = self._writable = _nothing  # a connection that is over is not held by what it had
        if self._rest is not None:
            self._rest.cancel()


def _nothing() -> None:
    pass
