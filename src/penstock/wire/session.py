"""One connection to a broker, sans-IO: hello, requests in flight, deadlines.

Rules: bytes and `now` (seconds of any steady clock) come in, bytes and events go out; no socket, no clock. A request
stays in flight until its answer arrives, even if its caller has given up, because the broker still works on it. The
broker is not trusted: an answer to no request, or an undecodable one, closes the session. The requester is a client or
another broker. All frames have checksums in both directions; only a refusal may come without them, from a broker that
could not read the first frame. From `encrypt` on all frames are encrypted in both directions.

| state        | hello()      | request()    | receive()               | closed()  |
|--------------|--------------|--------------|-------------------------|-----------|
| `NEW`        | → HELLO_SENT |              |                         | → CLOSED  |
| `HELLO_SENT` |              |              | hello's answer → READY  | → CLOSED  |
| `READY`      |              | in flight    | `Answered`, `Refused`   | → CLOSED  |
| `CLOSED`     |              |              | ignored                 | ignored   |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    API_OF_REQUEST,
    Api,
    HelloRequest,
    HelloResponse,
    Request,
    Response,
    api_versions,
)
from penstock.wire.bodies import decode_response, encode_checked_request, encoded_body, refusal_in, request_versions
from penstock.wire.encryption import FrameCipher
from penstock.wire.frames import Buffer, Frame, FrameDecoder

_UNKNOWN_FIELD = "Object contains unknown field"  # how a broker refuses a field of a later version (msgspec's words)
_FRAME_OVERHEAD_BYTES = 1 * limits.MIB  # head and body around the largest raw part


class SessionState(Enum):
    """State of a session; the module's table shows the transitions."""

    NEW = auto()
    HELLO_SENT = auto()
    READY = auto()
    CLOSED = auto()


class HelloReceived(NamedTuple):
    """The broker has answered the hello."""

    hello: HelloResponse


class Answered(NamedTuple):
    correlation_id: int
    response: Response
    raw: bytes | memoryview


class Refused(NamedTuple):
    """A request failed: the broker refused it, or its deadline passed."""

    correlation_id: int
    error: RemoteError


class Broken(NamedTuple):
    """The session has ended; the requests `lost` were in flight and get no answer."""

    error: RemoteError
    lost: tuple[int, ...]


Event = HelloReceived | Answered | Refused | Broken


class _InFlight(NamedTuple):
    request_type: type[Request]
    sent_s: float
    deadline_s: float
    waited_for: bool  # False once its caller has been notified of the time-out


PEER_NAME = "penstock broker"
"""Prefix of the client name that a broker uses in its own requests to other brokers."""


class Session:
    """Protocol state of one connection. `allocate` returns the memory of a large raw part; its contents are
    overwritten.
    """

    def __init__(
        self,
        client_name: str,
        client_version: str,
        *,
        allocate: Callable[[int], bytearray | memoryview] = bytearray,
    ) -> None:
        self.state = SessionState.NEW
        self.hello_response: HelloResponse | None = None
        self.in_flight_max = 1
        self._client_name = client_name
        self._client_version = client_version
        self._versions: dict[int, int] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._next_correlation_id = 1
        self._decoder = FrameDecoder(limits.REQUEST_BODY_BYTES_MAX, allocate=allocate)
        self._received_s = float("-inf")
        self._cipher: FrameCipher | None = None

    def encrypt(self, cipher: FrameCipher) -> None:
        """Encrypt all frames from now on; no request may be in flight."""
        assert self.state is SessionState.READY, self.state
        assert not self._in_flight
        self._cipher = cipher

    @property
    def in_flight(self) -> int:
        """Number of requests that the broker has not answered yet."""
        return len(self._in_flight)

    @property
    def is_full(self) -> bool:
        """True if the next request must wait for an answer first."""
        return len(self._in_flight) >= self.in_flight_max

    def hello(self, now_s: float, deadline_s: float) -> bytes:
        """Return the hello frame, which must be the first frame sent."""
        assert self.state is SessionState.NEW, self.state
        self.state = SessionState.HELLO_SENT
        request = HelloRequest(
            client_name=self._client_name[:256], client_version=self._client_version, api_versions=api_versions()
        )
        _, parts = self._put_in_flight(request, now_s, deadline_s, API_OF_REQUEST[HelloRequest].version_max, b"")
        return b"".join(parts)

    def request(
        self, request: Request, now_s: float, deadline_s: float, raw: Buffer = b""
    ) -> tuple[int, tuple[Buffer, ...]]:
        """Return (correlation id, parts of the frame); the caller must send all parts.

        RemoteError unsupported_version if the broker does not support this request.
        """
        assert self.state is SessionState.READY, self.state
        assert not self.is_full
        spec = API_OF_REQUEST[type(request)]
        version = self._versions.get(spec.api)
        if version is None or version < request.version_needed():
            assert self.hello_response is not None
            offered = self.hello_response.api_versions
            is_newer = any(one.api == spec.api and one.version_min > spec.version_max for one in offered)
            which, what = ("newer", "client") if is_newer else ("older", "broker")
            text = f"the {which} broker does not know this request ({spec.api.name.lower()}): upgrade the {what}"
            raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, f"{self._versions_text()}; {text}", api=int(spec.api))
        return self._put_in_flight(request, now_s, deadline_s, version, raw)

    def _versions_text(self) -> str:
        assert self.hello_response is not None
        return f"the broker has version {self.hello_response.broker_version}, and this client {self._client_version}"

    @property
    def missing_raw_bytes(self) -> int:
        """Bytes that the raw part of the answer being received still needs; 0 if there is none."""
        return self._decoder.missing_raw_bytes

    def buffer(self) -> memoryview:
        """Return writable memory for the next read, to be reported with `received`."""
        return self._decoder.buffer()

    def received(self, count: int, now_s: float) -> list[Event]:
        """Process the first `count` bytes of `buffer`; return their events in order."""
        if self.state is SessionState.CLOSED:
            return []
        self._decoder.received(count)
        return self._events(now_s)

    def receive(self, data: bytes | bytearray | memoryview, now_s: float) -> list[Event]:
        """Process a copy of `data`; return its events in order."""
        if self.state is SessionState.CLOSED:
            return []
        self._decoder.receive(data)
        return self._events(now_s)

    def _events(self, now_s: float) -> list[Event]:
        events: list[Event] = []
        self._received_s = now_s
        try:
            while (frame := self._decoder.next_frame()) is not None:
                if (event := self._answer(frame)) is not None:
                    events.append(event)
                if isinstance(event, Broken):
                    break
        except RemoteError as error:
            events.append(self.closed(error))
        return events

    def data_arrived(self, now_s: float) -> None:
        """Record that unread bytes have arrived, so the broker is alive."""
        self._received_s = now_s

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the broker last sent anything while a request was in flight; 0 if none is."""
        if not self._in_flight:
            return 0.0
        first_sent_s = next(iter(self._in_flight.values())).sent_s
        return now_s - max(self._received_s, first_sent_s)

    def give_up(self, correlation_id: int) -> None:
        """Stop waiting for a request on behalf of its caller: its answer will be ignored."""
        entry = self._in_flight.get(correlation_id)
        if entry is not None:
            # Keep its deadline: if nothing arrives until then, the broker counts as dead.
            self._in_flight[correlation_id] = entry._replace(waited_for=False)

    def next_deadline_s(self) -> float | None:
        """Return when to call `expire`; None while no request has a deadline."""
        deadline = min((entry.deadline_s for entry in self._in_flight.values()), default=float("inf"))
        return None if deadline == float("inf") else deadline

    def expire(self, now_s: float) -> list[Refused | Broken]:
        """Time out overdue requests; if the broker has sent nothing since such a request, close the session."""
        events: list[Refused | Broken] = []
        for correlation_id, entry in list(self._in_flight.items()):
            if entry.deadline_s > now_s:
                continue
            name = API_OF_REQUEST[entry.request_type].api.name.lower()
            text = f"the broker did not answer {name} within {round(entry.deadline_s - entry.sent_s, 2):g} s"
            error = RemoteError(ErrorCode.TIMED_OUT, text)
            if entry.waited_for:
                events.append(Refused(correlation_id, error))
            self._in_flight[correlation_id] = entry._replace(waited_for=False, deadline_s=float("inf"))
            if self._received_s < entry.sent_s and self.state is not SessionState.CLOSED:
                del self._in_flight[correlation_id]
                events.append(self.closed(error))
                break
        return events

    def closed(self, error: RemoteError) -> Broken:
        """Close the session; return the requests lost with it."""
        self.state = SessionState.CLOSED
        lost = tuple(correlation_id for correlation_id, entry in self._in_flight.items() if entry.waited_for)
        self._in_flight.clear()
        return Broken(error, lost)

    def _put_in_flight(
        self, request: Request, now_s: float, deadline_s: float, version: int, raw: Buffer
    ) -> tuple[int, tuple[Buffer, ...]]:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id % (2**32 - 1) + 1
        assert correlation_id not in self._in_flight
        self._in_flight[correlation_id] = _InFlight(type(request), now_s, deadline_s, True)
        if self._cipher is not None:
            api = API_OF_REQUEST[type(request)].api
            return correlation_id, self._cipher.encrypted(api, version, correlation_id, encoded_body(request), (raw,))
        head = encode_checked_request(request, correlation_id, version=version, raw=raw)
        return correlation_id, (head, raw) if raw else (head,)

    def _answer(self, frame: Frame) -> Event | None:
        if not frame.is_checked:
            return self.closed(self._unchecked(frame))
        if self._cipher is not None:
            frame = self._cipher.decrypted(frame)
        entry = self._in_flight.pop(frame.correlation_id, None)
        if entry is None:
            return self.closed(self._unasked(frame))
        try:
            response = decode_response(frame, entry.request_type)
        except RemoteError as error:
            if error.code == ErrorCode.BAD_FRAME or self.state is SessionState.HELLO_SENT:
                return self._broken_with(frame.correlation_id, entry, error)
            if error.code == ErrorCode.BAD_REQUEST and _UNKNOWN_FIELD in error.message:
                text = f"{error.message}; {self._versions_text()}: the older one does not know that field, upgrade it"
                error = RemoteError(error.code, text, **error.details)
            return Refused(frame.correlation_id, error) if entry.waited_for else None
        if isinstance(response, HelloResponse):
            return self._ready(response)
        return Answered(frame.correlation_id, response, frame.raw) if entry.waited_for else None

    def _unchecked(self, frame: Frame) -> RemoteError:
        # It comes from an older broker, one that could not read our first frame, or one with too many connections.
        return refusal_in(frame.body) or RemoteError(ErrorCode.BAD_FRAME, "an answer came without checksums")

    def _unasked(self, frame: Frame) -> RemoteError:
        # A broker answers an unreadable frame with an error under correlation id 0, then closes.
        if frame.correlation_id == 0 and self._in_flight:
            first = next(iter(self._in_flight.values()))
            api = API_OF_REQUEST[first.request_type].api
            try:
                decode_response(frame._replace(api=api), first.request_type)
            except RemoteError as error:
                return error
        text = f"an answer came to request {frame.correlation_id}, which is not in flight"
        return RemoteError(ErrorCode.BAD_FRAME, text)

    def _broken_with(self, correlation_id: int, entry: _InFlight, error: RemoteError) -> Broken:
        broken = self.closed(error)
        return broken._replace(lost=(correlation_id, *broken.lost)) if entry.waited_for else broken

    def _ready(self, hello: HelloResponse) -> HelloReceived:
        self.state = SessionState.READY
        self.hello_response = hello
        self._versions = request_versions(hello)
        self._versions.pop(Api.HELLO, None)
        self.in_flight_max = max(1, min(hello.limits.in_flight_requests_max, limits.IN_FLIGHT_REQUESTS_MAX))
        self._decoder.frame_bytes_max = limits.RESPONSE_BYTES_MAX + _FRAME_OVERHEAD_BYTES
        self._decoder.body_bytes_max = limits.RESPONSE_BYTES_MAX + limits.FRAME_ENCRYPTION_BYTES
        return HelloReceived(hello)
