"""One TCP (or TLS) connection to nats-server: moves bytes between a socket and a NatsSession.

Rules: everything that one socket read delivered is handed over in one call. The buffer grows only with bytes actually
received, never because the server announces a size, and shrinks back. A connection ends once: `lost` is called exactly
once.

SO_RCVBUF is left alone: setting it would turn off the kernel's autotuning, which goes beyond what a process may
request. asyncio sets TCP_NODELAY itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from penstock.base import limits
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind
from penstock.ingest.nats import NatsSession, NatsSessionState, SessionClosed, SessionEvent

# nats-server does not tell a slow consumer why it is disconnected.
_WHY = "it stopped, or this broker read too slowly (its log then says Slow Consumer)"


class NatsConnectionOwner(Protocol):
    """Receives what a connection delivers. All calls are on the event loop; none may block."""

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Messages, in order per subscription."""

    def session_event(self, event: SessionEvent) -> None:
        """An event of the session, after the messages received with it."""

    def writable_changed(self, writable: bool) -> None:
        """True if nats-server takes our output."""

    def lost(self, kind: ErrorKind, reason: str) -> None:
        """The connection has ended."""

    def failed(self, error: BaseException) -> None:
        """One of these calls raised: an internal error (bug)."""


class NatsConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    def __init__(self, session: NatsSession, owner: NatsConnectionOwner, now_ms: Callable[[], int]) -> None:
        self.session = session
        self.is_writable = True
        self.ended_unheard = False  # the connection was closed before any INFO
        self._owner = owner
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(limits.READ_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._used = 0  # bytes of the buffer in use
        self._needed = 0  # do not parse before this many bytes are there
        self._reading = True
        self._write_buffer_bytes_max = limits.NATS_WRITE_BUFFER_BYTES_MAX
        self._closed: SessionClosed | None = None
        self._lost = False
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._lost:
            cast(asyncio.Transport, transport).abort()
            return
        self._use(cast(asyncio.Transport, transport))
        self._set_timer()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return room for the next read."""
        if not self._used:
            return self._view
        if self._used == len(self._buffer):
            size = min(2 * len(self._buffer), max(self._needed, self._used + limits.READ_BUFFER_BYTES))
            self._replace_buffer(size, self._view)
        return self._view[self._used :]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse and hand over what has been received."""
        self._used += nbytes
        now_ms = self._now_ms()
        if self._used < self._needed:
            self.session.data_arrived(now_ms)
            return
        received = self.session.receive(self._buffer, 0, self._used, now_ms)
        try:
            if received.groups:
                self._owner.groups_received(received.groups)
            for event in received.events:
                self._event(event)
        except Exception as error:  # noqa: BLE001 (handed to the owner, who ends with it)
            self._owner.failed(error)
        finally:  # also when the process is ending: consumed bytes must not be parsed again
            self._keep_from(received.position)
            self._needed = received.needed_bytes
        self.send_output()

    def eof_received(self) -> bool:
        """Let asyncio close the transport: nats-server has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        if self._lost:
            return
        self._lost = True
        self.ended_unheard = self._closed is None and self.session.state is NatsSessionState.CONNECTING_INFO
        self.session.state = NatsSessionState.CLOSED
        if self.ended_unheard:
            why = "" if exc is None else f" ({exc})"
            self._owner.lost(ErrorKind.OTHER, f"it closed the connection before it said anything{why}")
        elif self._closed is not None:
            self._owner.lost(self._closed.kind, self._closed.reason)
        elif exc is not None:
            self._owner.lost(ErrorKind.OTHER, f"the connection to nats-server broke ({exc}): {_WHY}")
        else:
            self._owner.lost(ErrorKind.OTHER, f"nats-server closed the connection: {_WHY}")

    def pause_writing(self) -> None:
        """The write buffer is above its limit."""
        self.is_writable = False
        self._owner.writable_changed(False)

    def resume_writing(self) -> None:
        """The write buffer is below its limit again."""
        self.is_writable = True
        self._owner.writable_changed(True)

    # What the link calls

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport while the connection is open."""
        return self._transport

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes that nats-server has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written before `writable_changed(False)`."""
        return self._write_buffer_bytes_max - self.write_buffer_bytes

    def upgraded(self, transport: asyncio.Transport) -> None:
        """TLS is up on `transport`."""
        if self._lost:
            transport.abort()
            return
        self._use(transport)
        self.session.tls_established()
        self.send_output()

    def send_output(self) -> None:
        """Write the session's pending output."""
        output = self.session.take_output()
        if output and self._transport is not None:
            self._transport.write(output)

    def write(self, data: bytes) -> None:
        """Write complete protocol commands."""
        if self._transport is not None:
            self._transport.write(data)

    def set_write_buffer(self, bytes_max: int) -> None:
        """Set how many bytes may wait before `writable_changed(False)`."""
        self._write_buffer_bytes_max = bytes_max
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=bytes_max)

    def set_reading(self, reading: bool) -> None:
        """Resume reading, or leave incoming bytes in the socket."""
        if reading == self._reading or self._transport is None:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
            self.session.data_arrived(self._now_ms())
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Write the queued output, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, kind: ErrorKind = ErrorKind.OTHER, reason: str = "the connection was given up") -> None:
        """Close at once; `lost` follows with this reason."""
        if self._closed is None:
            self._closed = SessionClosed(kind, reason)
        if self._transport is not None:
            self._transport.abort()

    def discard(self) -> None:
        """Close at once without any further call to the owner."""
        self._lost = True
        self.session.state = NatsSessionState.CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # Inside

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=self._write_buffer_bytes_max)

    def _event(self, event: SessionEvent) -> None:
        if isinstance(event, SessionClosed):
            self._closed = event
            if self._transport is not None:
                self._transport.abort()
        else:
            self._owner.session_event(event)

    def _keep_from(self, position: int) -> None:
        rest = self._used - position
        if len(self._buffer) > limits.READ_BUFFER_BYTES >= 2 * rest:
            self._replace_buffer(limits.READ_BUFFER_BYTES, self._view[position : self._used])
        elif position and rest:
            self._buffer[:rest] = self._buffer[position : self._used]
        self._used = rest

    def _replace_buffer(self, size: int, kept: memoryview) -> None:
        self._buffer = bytearray(size)
        self._buffer[: len(kept)] = kept
        self._view = memoryview(self._buffer)

    def _set_timer(self) -> None:
        delay_ms = max(self.session.next_tick_ms - self._now_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        try:
            for event in self.session.tick(self._now_ms(), reading=self._reading):
                self._event(event)
        except Exception as error:  # noqa: BLE001 (handed to the owner, who ends with it)
            self._owner.failed(error)
        self.send_output()
        if self._transport is not None:
            self._set_timer()
