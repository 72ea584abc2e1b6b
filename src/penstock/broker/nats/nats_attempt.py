"""One attempt at a connection to one nats-server: TCP, TLS if needed, CONNECT, and its life until the end.

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

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.nats.nats_connection import NatsConnection
from penstock.broker.security.nats_credentials import NatsServer, TlsFiles
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind
from penstock.ingest.nats import NatsSession, NatsSessionState, SessionEvent, SessionReady, TlsWanted

_TLS_FIRST = "if it speaks TLS first (handshake_first: true), write tls:// in place of nats://"


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Time-outs and backoff of the link."""

    connect_timeout_ms: int = limits.NATS_CONNECT_TIMEOUT_MS
    tls_first_ms: int = limits.NATS_TLS_FIRST_MS
    reconnect_ms_min: int = limits.NATS_RECONNECT_MS_MIN
    reconnect_ms_max: int = limits.NATS_RECONNECT_MS_MAX
    steady_ms: int = limits.NATS_STEADY_MS
    ping_interval_ms: int = limits.NATS_PING_INTERVAL_MS


@dataclass(frozen=True, slots=True)
class AttemptCalls:
    """Callbacks of a connection; called on the event loop."""

    on_groups: Callable[[dict[int, MessageGroup]], None]
    on_session: Callable[[SessionEvent], None]
    on_writable: Callable[[bool], None]


class NatsAttempt:
    """One connection attempt. `end`: why it is over; `failure`: what a callback raised."""

    def __init__(
        self, server: NatsServer, session: NatsSession, calls: AttemptCalls, now_ms: Callable[[], int]
    ) -> None:
        self.server = server
        self.connection = NatsConnection(session, self, now_ms)
        self.end: tuple[ErrorKind, str] | None = None
        self.failure: BaseException | None = None
        self.was_ready = False  # stays true after the connection has ended
        self.tls_came_first = False
        self.groups_received = calls.on_groups  # called by the connection
        self._calls = calls
        self._tls_due = False
        self._changed = asyncio.Event()

    @property
    def session(self) -> NatsSession:
        return self.connection.session

    @property
    def is_ready(self) -> bool:
        """True if the session takes commands now."""
        return self.session.state is NatsSessionState.READY

    @property
    def silence(self) -> str:
        """Description of a server that has not answered so far."""
        if self.connection.transport is None or self.session.state is not NatsSessionState.CONNECTING_INFO:
            return "it does not answer"
        said = "it takes the connection and says nothing: is it a NATS server?"
        return said if self.server.tls else f"{said} {_TLS_FIRST[0].upper()}{_TLS_FIRST[1:]}"

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

    # What the connection calls

    def session_event(self, event: SessionEvent) -> None:
        """Pass events on, and record those that `connect` waits for."""
        if isinstance(event, TlsWanted):
            self._tls_due = True
            self._changed.set()
            return
        if isinstance(event, SessionReady):
            self.was_ready = True
            self._changed.set()
        self._calls.on_session(event)

    def writable_changed(self, writable: bool) -> None:
        self._calls.on_writable(writable)

    def lost(self, kind: ErrorKind, reason: str) -> None:
        """The connection has ended."""
        if self.end is None:
            is_unclear = self.connection.ended_unheard and not self.server.tls
            self.end = (kind, f"{reason}; {_TLS_FIRST}" if is_unclear else reason)
        self._changed.set()

    def failed(self, error: BaseException) -> None:
        """A callback raised: end the connection; the link raises the error again."""
        self.failure = error
        self.connection.abort(ErrorKind.OTHER, f"internal error: {error!r}")

    # Inside

    async def _connect(self, tls: TlsFiles, timing: LinkTiming, *, tls_first: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.connection, self.server.host, self.server.port)
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
        transport = self.connection.transport
        if transport is None:
            return
        upgraded = await asyncio.get_running_loop().start_tls(
            transport, self.connection, tls.context(), server_hostname=self.server.verified_host
        )
        if upgraded is None:
            raise OperationalError("it closed the connection during the TLS handshake")
        self.connection.upgraded(upgraded)


def _explain(error: OSError) -> str:
    """Return what is wrong, without the server, which the caller knows."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); give its CA file"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}); does it ask for a client certificate?"
    # asyncio replaces strerror by its own text, without the reason.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
