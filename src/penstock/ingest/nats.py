"""Session of one connection to nats-server: bytes in, events and bytes out.

Rules: nothing here opens, reads, waits or checks a clock. A session ends once and is never reused: invalid protocol, a
refusal or a silence ends it with SessionClosed, and the caller reconnects.

PONGs come in the order of the PINGs, and nats-server processes a connection's lines in order. So the PONG of a PING
sent after SUB or UNSUB proves that nats-server has processed it, and that messages sent earlier have been received.
Likewise all that reached nats-server before an answered PING was sent has been received: `proven_ms`. Messages
published later may be lost with the connection, even if bytes arrived after them: those bytes may have waited for long.

| state           | INFO                        | TLS is up    | PONG           | messages | refusal, invalid  |
|-----------------|-----------------------------|--------------|----------------|----------|-------------------|
| CONNECTING_INFO | TLS, or CONNECT_SENT        | (TLS first)  | invalid        | invalid  | CLOSED            |
| TLS             | invalid                     | CONNECT_SENT | invalid        | invalid  | CLOSED            |
| CONNECT_SENT    | kept                        |              | READY          | invalid  | CLOSED            |
| READY           | kept; InfoChanged, LameDuck |              | BarrierReached | groups   | CLOSED            |
| CLOSED          | everything is ignored       |              |                |          |                   |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.subjects import subject_mistake
from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import Frames, ProtocolError, scan
from penstock.ingest.connect import (
    ANONYMOUS,
    Authentication,
    ErrorKind,
    ErrorLine,
    ServerInfo,
    connect_line,
    parse_error,
    parse_info,
)

_SILENT_PINGS_MAX = 2
_PING = b"PING\r\n"
_PONG = b"PONG\r\n"


class NatsSessionState(Enum):
    """State of a session; see the module's table."""

    CONNECTING_INFO = auto()
    TLS = auto()
    CONNECT_SENT = auto()
    READY = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class TlsWanted:
    """Start TLS on the connection now, then call `tls_established`."""


@dataclass(frozen=True, slots=True)
class SessionReady:
    """nats-server has accepted the connection; subscriptions may be made."""

    info: ServerInfo


@dataclass(frozen=True, slots=True)
class InfoChanged:
    """nats-server has sent a new INFO, such as another `max_payload`."""

    info: ServerInfo


@dataclass(frozen=True, slots=True)
class LameDuck:
    """nats-server is about to stop (lame duck mode) and asks its clients to reconnect elsewhere."""


@dataclass(frozen=True, slots=True)
class BarrierReached:
    """nats-server has processed everything written before the barrier; messages sent before have been received."""

    token: int


@dataclass(frozen=True, slots=True)
class SubscriptionRefused:
    """nats-server refuses a subscription; it delivers nothing.

    `sid` is None if nats-server does not say which: one of those made since the last barrier (`subject` is empty).
    """

    sid: int | None
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerComplaint:
    """A -ERR that leaves the connection open."""

    kind: ErrorKind
    text: str
    subject: str | None


@dataclass(frozen=True, slots=True)
class MessagesSkipped:
    """Messages that could not be parsed and are not stored; `line` is the start of the first one's control line."""

    count: int
    line: str


@dataclass(frozen=True, slots=True)
class RepliesUnanswerable:
    """Messages that get no answer because nats-server would close the connection for their reply subjects."""

    count: int


@dataclass(frozen=True, slots=True)
class InterestLost:
    """No subscription gets messages on these watched subjects any more. A leaf's event."""

    subjects: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session has ended. Close the connection."""

    kind: ErrorKind
    reason: str


SessionEvent = (
    TlsWanted
    | SessionReady
    | InfoChanged
    | LameDuck
    | BarrierReached
    | SubscriptionRefused
    | ServerComplaint
    | MessagesSkipped
    | RepliesUnanswerable
    | InterestLost
    | SessionClosed
)


class Received(msgspec.Struct, frozen=True):
    """Parsed bytes: process `groups` before `events`; `position` is the first unused byte.

    `needed_bytes`: bytes from `position` on that are needed to continue (0: any number).
    """

    position: int
    groups: dict[int, MessageGroup]
    events: list[SessionEvent]
    needed_bytes: int


class Subscription(NamedTuple):
    """A subscription: a subject (wildcards allowed), and a queue group or None."""

    subject: str
    queue: str | None


class ServerSession:
    """Our side of one connection to nats-server: INFO, TLS, CONNECT, PING and errors. What else comes and goes is for
    its subclasses: a client's session (`NatsSession`) and a leaf's (`ingest.leaf`).
    """

    def __init__(
        self,
        *,
        name: str,
        authentication: Authentication = ANONYMOUS,
        tls_wanted: bool = False,
        ping_interval_ms: int = limits.NATS_PING_INTERVAL_MS,
        now_ms: int = 0,
    ) -> None:
        """`tls_wanted`: refuse a server without TLS."""
        self.state = NatsSessionState.CONNECTING_INFO
        self.info = ServerInfo()
        self._name = name
        self._authentication = authentication
        self._tls_wanted = tls_wanted
        self._tls = False
        self._output = bytearray()
        # (token of the barrier or None, time of sending), in order
        self._pings: deque[tuple[int | None, int]] = deque()
        self._now_ms = now_ms
        self.proven_ms = now_ms
        self._last_token = 0
        self._ping_interval_ms = ping_interval_ms
        self._next_ping_ms = now_ms + ping_interval_ms
        self._silent_pings = 0
        self._lame_duck = False

    @property
    def has_tls(self) -> bool:
        """True if TLS is up on the connection."""
        return self._tls

    def receive(self, buffer: bytes | bytearray | memoryview, start: int, end: int, now_ms: int) -> Received:
        """Parse buffer[start:end]. Never raises: invalid input becomes SessionClosed, after the events before it."""
        raise NotImplementedError

    def data_arrived(self, now_ms: int) -> None:
        """Bytes have arrived that are not parsed yet: the server is alive."""
        self._now_ms = now_ms
        self._silent_pings = 0

    def tls_established(self) -> None:
        """TLS is up: as TlsWanted requested, or before INFO if the server does TLS first."""
        assert self.state in (NatsSessionState.TLS, NatsSessionState.CONNECTING_INFO)
        self._tls = True
        if self.state is NatsSessionState.TLS:
            self._connect()

    def barrier(self) -> int:
        """Request a BarrierReached with the returned token."""
        assert self.state is NatsSessionState.READY
        if len(self._pings) >= limits.NATS_BARRIERS_MAX:
            raise OperationalError(f"{limits.NATS_BARRIERS_MAX} barriers wait for nats-server already")
        self._last_token += 1
        self._ping(self._last_token)
        return self._last_token

    @property
    def next_tick_ms(self) -> int:
        """Time of the next `tick`."""
        return self._next_ping_ms

    def tick(self, now_ms: int, *, reading: bool = True) -> list[SessionEvent]:
        """Send a PING, or detect a dead connection. If not `reading`, silence does not count against the server."""
        events: list[SessionEvent] = []
        if now_ms < self._next_ping_ms:
            return events
        self._now_ms = now_ms
        self._next_ping_ms = now_ms + self._ping_interval_ms
        if self.state is not NatsSessionState.READY:
            return events  # the driver has the time-out of connecting
        if not reading:
            self._silent_pings = 0
        elif self._silent_pings >= _SILENT_PINGS_MAX:
            silence_ms = (_SILENT_PINGS_MAX + 1) * self._ping_interval_ms
            self._close(ErrorKind.STALE_CONNECTION, f"nats-server has been silent for {silence_ms} ms", events)
        else:
            self._silent_pings += 1
            self._ping(None)
        return events

    def take_output(self) -> bytes:
        """Return and clear the bytes to write to the connection."""
        if not self._output:
            return b""
        output = bytes(self._output)
        self._output.clear()
        return output

    def _line(self, line: bytes, events: list[SessionEvent]) -> None:
        if self.state is NatsSessionState.CLOSED:
            return
        if self.state is NatsSessionState.TLS:
            raise OperationalError("nats-server sent plain bytes after asking for TLS")
        if line == b"PING":
            self._output += _PONG
        elif line == b"PONG":
            self._pong(events)
        elif line.startswith(b"INFO "):
            self._info(parse_info(line), events)
        elif line.startswith(b"-ERR"):
            self._error(parse_error(line), events)
        elif line != b"+OK":
            raise ProtocolError("unknown line", 0, line)

    def _info(self, info: ServerInfo, events: list[SessionEvent]) -> None:
        self.info = info
        if self.state is NatsSessionState.CONNECTING_INFO:
            if not info.headers:
                raise OperationalError(f"nats-server {info.version} knows no headers; Penstock needs 2.2 or newer")
            if self._tls:
                self._connect()
            elif info.tls_required or (self._tls_wanted and info.tls_available):
                self.state = NatsSessionState.TLS
                # sent in clear: a man in the middle could have written them
                self.info = msgspec.structs.replace(info, connect_urls=())
                events.append(TlsWanted())
            elif self._tls_wanted:
                text = "nats-server offers no TLS, but the settings ask for it (tls:// or certificate files)"
                self._close(ErrorKind.TLS_REQUIRED, text, events)
            else:
                self._connect()
        elif self.state is NatsSessionState.READY:
            events.append(InfoChanged(info))
        if info.ldm and not self._lame_duck and self.state is not NatsSessionState.CLOSED:
            self._lame_duck = True
            events.append(LameDuck())

    def _connect(self) -> None:
        self.state = NatsSessionState.CONNECT_SENT
        self._output += self._connect_line()
        self._ping(None)

    def _connect_line(self) -> bytes:
        raise NotImplementedError

    def _ping(self, token: int | None) -> None:
        self._pings.append((token, self._now_ms))
        self._output += _PING

    def _pong(self, events: list[SessionEvent]) -> None:
        if not self._pings:
            raise ProtocolError("PONG without PING", 0, b"PONG")
        token, self.proven_ms = self._pings.popleft()
        if self.state is NatsSessionState.CONNECT_SENT:
            self.state = NatsSessionState.READY
            events.append(SessionReady(self.info))
        elif token is not None:
            events.append(BarrierReached(token))

    def _error(self, error: ErrorLine, events: list[SessionEvent]) -> None:
        if error.closes or self.state is not NatsSessionState.READY:
            # Before READY every error concerns the connection itself.
            kind = error.kind
            if kind is ErrorKind.AUTHORIZATION:
                text = f"nats-server refuses the credentials ({error.text}); check user, password, token or files"
            else:
                text = f"nats-server says: {error.text}"
            self._close(kind, text, events)
        else:
            events.append(ServerComplaint(error.kind, error.text, error.subject))

    def _close(self, kind: ErrorKind, reason: str, events: list[SessionEvent]) -> None:
        if self.state is not NatsSessionState.CLOSED:
            self.state = NatsSessionState.CLOSED
            events.append(SessionClosed(kind, reason))


class NatsSession(ServerSession):
    """A client's session."""

    def __init__(
        self,
        *,
        name: str,
        version: str,
        authentication: Authentication = ANONYMOUS,
        tls_wanted: bool = False,
        ping_interval_ms: int = limits.NATS_PING_INTERVAL_MS,
        now_ms: int = 0,
    ) -> None:
        """`tls_wanted`: refuse a server without TLS."""
        super().__init__(
            name=name,
            authentication=authentication,
            tls_wanted=tls_wanted,
            ping_interval_ms=ping_interval_ms,
            now_ms=now_ms,
        )
        self._version = version
        self._subscriptions: dict[int, Subscription] = {}
        self._skip_bytes = 0  # see Frames

    def receive(self, buffer: bytes | bytearray | memoryview, start: int, end: int, now_ms: int) -> Received:
        """Parse buffer[start:end]. Never raises: invalid input becomes SessionClosed, after the events before it."""
        if self.state is NatsSessionState.CLOSED:
            return Received(end, {}, [], 0)
        self.data_arrived(now_ms)
        frames = Frames(self._skip_bytes)
        events: list[SessionEvent] = []
        mistake: OperationalError | None = None
        was_ready = self.state is NatsSessionState.READY
        position = end
        try:
            position = scan(buffer, start, end, frames)
            self._skip_bytes = frames.skip_bytes
        except ProtocolError as error:
            mistake = error
        if frames.lines or not was_ready:  # otherwise messages only, the common case
            try:
                if (frames.groups or frames.skipped) and not was_ready:
                    raise OperationalError("not NATS protocol: a message before any subscription")
                for line in frames.lines:
                    self._line(line, events)
                if self.state is NatsSessionState.TLS and position < end:
                    raise OperationalError("nats-server sent plain bytes after asking for TLS")
            except OperationalError as error:
                mistake = error
        if frames.skipped:
            events.append(MessagesSkipped(frames.skipped, frames.skipped_line.decode("utf-8", "replace")))
        if frames.unanswerable:
            events.append(RepliesUnanswerable(frames.unanswerable))
        if mistake is not None:
            self._close(ErrorKind.PROTOCOL, str(mistake), events)
        return Received(position, frames.groups if was_ready else {}, events, frames.needed_bytes)

    def subscribe(self, sid: int, subject: str, queue: str | None = None) -> None:
        """Subscribe with the new id `sid`. A later barrier confirms it."""
        assert self.state is NatsSessionState.READY
        assert sid > 0
        assert sid not in self._subscriptions
        assert subject_mistake(subject, wildcards=True) is None
        assert queue is None or subject_mistake(queue) is None
        self._subscriptions[sid] = Subscription(subject, queue)
        self._output += b"SUB %b %b%d\r\n" % (subject.encode(), f"{queue} ".encode() if queue else b"", sid)

    def unsubscribe(self, sid: int) -> None:
        """End a subscription; messages in flight still arrive. Unknown ids are ignored."""
        assert self.state is NatsSessionState.READY
        if self._subscriptions.pop(sid, None) is not None:
            self._output += b"UNSUB %d\r\n" % sid

    def _connect_line(self) -> bytes:
        return connect_line(self.info, self._authentication, name=self._name, version=self._version, tls=self._tls)

    def _error(self, error: ErrorLine, events: list[SessionEvent]) -> None:
        if error.closes or self.state is not NatsSessionState.READY:
            super()._error(error, events)
        elif error.kind is ErrorKind.PERMISSION_SUBSCRIBE and error.subject is not None:
            sid = self._refused_sid(error.subject)
            events.append(SubscriptionRefused(sid, error.subject, error.text))
        elif error.kind is ErrorKind.MAX_SUBSCRIPTIONS:
            events.append(SubscriptionRefused(None, "", error.text))
        else:
            super()._error(error, events)

    def _refused_sid(self, subject: str) -> int | None:
        # nats-server processes SUBs in order: of several on one subject it means the oldest one not refused yet.
        for sid, subscription in self._subscriptions.items():
            if subscription.subject == subject:
                del self._subscriptions[sid]
                return sid
        return None
