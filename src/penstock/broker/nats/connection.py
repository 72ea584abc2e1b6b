"""One connection to one nats-server: TCP, TLS if needed, CONNECT; then bytes between its socket and a session.

Rules: everything that one socket read delivered is handed over in one call. The buffer grows only with bytes actually
received, never because the server announces a size, and shrinks back. A connection ends once, with one reason (`end`).

SO_RCVBUF is left alone: setting it would turn off the kernel's autotuning, which goes beyond what a process may
request. asyncio sets TCP_NODELAY itself.

| URL       | the server                       | what happens                                                      |
|-----------|----------------------------------|-------------------------------------------------------------------|
| `nats://` | INFO, TLS not required           | plain, unless certificates are set: then TLS or an error          |
| `nats://` | INFO, TLS required               | TLS after INFO                                                    |
| `nats://` | silent, or closes                | an error that names `handshake_first` and `tls://`                |
| `tls://`  | INFO                             | TLS after INFO, or an error                                       |
| `tls://`  | silent (`handshake_first: true`) | TLS after a second of silence; later attempts at once             |
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.security.nats_credentials import NatsServer, TlsFiles
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind
from penstock.ingest.nats import NatsSessionState, ServerSession, SessionClosed, SessionEvent, SessionReady, TlsWanted

SessionT = TypeVar("SessionT", bound=ServerSession)

_TLS_FIRST = "if it speaks TLS first (handshake_first: true), write tls:// in place of nats://"
# nats-server does not tell a slow consumer why it is disconnected.
_WHY = "it stopped, or this broker read too slowly (its log then says Slow Consumer)"


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Time-outs and backoff of the link."""

    connect_timeout_ms: int = limits.NATS_CONNECT_TIMEOUT_MS
    tls_first_ms: int = limits.NATS_TLS_FIRST_MS
    reconnect_ms_min: int = limits.NATS_RECONNECT_MS_MIN
    reconnect_ms_max: int = limits.NATS_RECONNECT_MS_MAX
    steady_ms: int = limits.NATS_STEADY_MS
    ping_interval_ms: int = limits.NATS_PING_INTERVAL_MS


class NatsConnectionOwner(Protocol):
    """Receives what a connection delivers. All calls are on the event loop; none may block."""

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Messages, in the order of arrival for each group of subscriptions."""

    def session_event(self, event: SessionEvent) -> None:
        """An event of the session, after the messages received with it."""

    def writable_changed(self, writable: bool) -> None:
        """True if nats-server takes our output."""


class NatsConnection(asyncio.BufferedProtocol, Generic[SessionT]):
    """The protocol object of one connection. An exception of its owner ends it, and is kept as `failure`."""

    def __init__(
        self,
        server: NatsServer,
        session: SessionT,
        owner: NatsConnectionOwner,
        now_ms: Callable[[], int],
        *,
        served_before: bool = False,
        read_buffer_bytes: int = limits.READ_BUFFER_BYTES,
    ) -> None:
        self.server = server
        self._served_before = served_before  # so it is a NATS server, and the URL fits
        self.session = session
        self.is_writable = True
        self.end: tuple[ErrorKind, str] | None = None  # why it is over
        self.failure: BaseException | None = None
        self.was_ready = False  # stays true after the end
        self.tls_came_first = False
        self._owner = owner
        self._now_ms = now_ms
        self._transport: asyncio.Transport | None = None
        self._read_buffer_bytes = read_buffer_bytes
        self._buffer = bytearray(read_buffer_bytes)
        self._view = memoryview(self._buffer)
        self._used = 0  # bytes of the buffer in use
        self._needed = 0  # do not parse before this many bytes are there
        self._reading = True
        self._write_buffer_bytes_max = limits.NATS_WRITE_BUFFER_BYTES_MAX
        self._closed: SessionClosed | None = None
        self._lost = False
        self._tls_due = False
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self, tls: TlsFiles, timing: LinkTiming, *, tls_first: bool) -> None:
        """Return once the session is, or was, ready; raise OperationalError if it ended before."""
        try:
            async with asyncio.timeout(timing.connect_timeout_ms / 1000):
                await self._connect(tls, timing, tls_first=tls_first)
        except TimeoutError:
            raise OperationalError(self.silence) from None
        except OSError as error:
            # A failed TLS handshake has ended the connection already, but this error has the better reason.
            self.end = (ErrorKind.OTHER, _explain(error))
        if self.end is not None and not self.was_ready:
            raise OperationalError(self.end[1])

    async def ended(self) -> None:
        """Return once `end` is set."""
        while self.end is None:
            await self._next_change()

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
            size = min(2 * len(self._buffer), max(self._needed, self._used + self._read_buffer_bytes))
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
        except Exception as error:  # noqa: BLE001 (kept: the link raises it again)
            self._fail(error)
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
        if self.end is None:
            self.end = self._reason(exc)
        self.session.state = NatsSessionState.CLOSED
        self._changed.set()

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
    def is_ready(self) -> bool:
        """True if the session takes commands now."""
        return self.session.state is NatsSessionState.READY

    @property
    def silence(self) -> str:
        """Description of a server that has not answered so far."""
        if self._transport is None or self.session.state is not NatsSessionState.CONNECTING_INFO:
            return "it does not answer"
        if self._served_before:
            return "it takes the connection and says nothing, and served before: it hangs, or is suspended"
        said = "it takes the connection and says nothing: is it a NATS server?"
        return said if self.server.tls else f"{said} {_TLS_FIRST[0].upper()}{_TLS_FIRST[1:]}"

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes that nats-server has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written before `writable_changed(False)`."""
        return self._write_buffer_bytes_max - self.write_buffer_bytes

    def send_output(self) -> None:
        """Write the session's pending output."""
        output = self.session.take_output()
        if output and self._transport is not None:
            self._transport.write(output)

    def write(self, data: bytes | bytearray) -> None:
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

    def end_for(self, reason: str) -> None:
        """End the connection at once, for a reason that its session does not know."""
        if self._transport is not None and self._closed is None:
            self._closed = SessionClosed(ErrorKind.OTHER, reason)
            self._transport.abort()

    def close(self) -> None:
        """Write the queued output, then close."""
        if self._transport is not None:
            self._transport.close()

    def discard(self) -> None:
        """Close at once without any further call to the owner, and without an `end`."""
        self._lost = True
        self.session.state = NatsSessionState.CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # Inside

    async def _connect(self, tls: TlsFiles, timing: LinkTiming, *, tls_first: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self.server.host, self.server.port)
        if self.server.tls and (tls_first or not await self._hears_info(timing.tls_first_ms)):
            await self._start_tls(tls)
            self.tls_came_first = True
        while not self.was_ready and self.end is None:
            if self._tls_due:
                self._tls_due = False
                await self._start_tls(tls)
            else:
                await self._next_change()

    async def _hears_info(self, wait_ms: int) -> bool:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._next_change()
        except TimeoutError:
            return False
        return True

    async def _next_change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _start_tls(self, tls: TlsFiles) -> None:
        if self._transport is None:
            return
        transport = await asyncio.get_running_loop().start_tls(
            self._transport, self, tls.context(), server_hostname=self.server.verified_host
        )
        if transport is None:
            raise OperationalError("it closed the connection during the TLS handshake")
        if self._lost:
            transport.abort()
            return
        self._use(transport)
        self.session.tls_established()
        self.send_output()

    def _reason(self, exc: Exception | None) -> tuple[ErrorKind, str]:
        """Return why the socket was closed."""
        if self._closed is not None:
            return self._closed.kind, self._closed.reason
        if self.session.state is NatsSessionState.CONNECTING_INFO:
            why = "" if exc is None else f" ({exc})"
            text = f"it closed the connection before it said anything{why}"
            return ErrorKind.OTHER, text if self.server.tls else f"{text}; {_TLS_FIRST}"
        how = "nats-server closed the connection" if exc is None else f"the connection to nats-server broke ({exc})"
        return ErrorKind.OTHER, f"{how}: {_WHY}"

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        if self._closed is None:
            self._closed = SessionClosed(ErrorKind.OTHER, f"internal error: {error!r}")
        if self._transport is not None:
            self._transport.abort()

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=self._write_buffer_bytes_max)

    def _event(self, event: SessionEvent) -> None:
        if isinstance(event, SessionClosed):
            self._closed = event
            if self._transport is not None:
                self._transport.abort()
            return
        if isinstance(event, TlsWanted):
            self._tls_due = True
            self._changed.set()
            return
        if isinstance(event, SessionReady):
            self.was_ready = True
            self._changed.set()
        self._owner.session_event(event)

    def _keep_from(self, position: int) -> None:
        rest = self._used - position
        if len(self._buffer) > self._read_buffer_bytes >= 2 * rest:
            self._replace_buffer(self._read_buffer_bytes, self._view[position : self._used])
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
        except Exception as error:  # noqa: BLE001 (kept: the link raises it again)
            self._fail(error)
        self.send_output()
        if self._transport is not None:
            self._set_timer()


def _explain(error: OSError) -> str:
    """Return what is wrong, without the server, which the caller knows."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); give its CA file"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}); does it ask for a client certificate?"
    # asyncio replaces strerror by its own text, without the reason.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
