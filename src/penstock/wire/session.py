"""One connection to a broker, without the connection: hello, requests in flight, their deadlines.

Rules: bytes and `now` (seconds, any steady clock) come in, bytes and events go out; no socket, no clock. A request is
in flight until its answer has come, also when its caller has given up: the broker still works on it. What the broker
sends is not trusted: an answer to nothing, or one that cannot be read, closes the session. Who asks may be a client or
another broker. All frames have checksums, both ways; only a broker that did not get so far may refuse without them.
From `encrypt` on all frames are encrypted, both ways.

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

_FRAME_OVERHEAD_BYTES = 1 * limits.MIB  # head and body around the largest raw part


class SessionState(Enum):
    """Where a session stands; see the module's table."""

    NEW = auto()
    HELLO_SENT = auto()
    READY = auto()
    CLOSED = auto()


class Ready(NamedTuple):
    """The broker has said hello."""

    hello: HelloResponse


class Answered(NamedTuple):
    """A request succeeded."""

    correlation_id: int
    response: Response
    raw: bytes | memoryview


class Refused(NamedTuple):
    """A request failed: the broker refused it, or its deadline passed."""

    correlation_id: int
    error: RemoteError


class Broken(NamedTuple):
    """The session is over; every request still in flight is lost with it."""

    error: RemoteError
    lost: tuple[int, ...]


Event = Ready | Answered | Refused | Broken


class _InFlight(NamedTuple):
    request_type: type[Request]
    sent_s: float
    deadline_s: float
    waited_for: bool  # False once its caller has been told that its time is up


PEER_NAME = "penstock broker"
"""How the name begins that a broker gives itself where it asks another one."""


class Session:
    """See the module. `allocate` gives the memory of a large raw part; what it holds at first does not matter."""

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
        """Do so from now on; nothing is in flight."""
        assert self.state is SessionState.READY, self.state
        assert not self._in_flight
        self._cipher = cipher

    @property
    def in_flight(self) -> int:
        """Requests that the broker has not answered yet."""
        return len(self._in_flight)

    @property
    def is_full(self) -> bool:
        """Whether a further request has to wait for an answer first."""
        return len(self._in_flight) >= self.in_flight_max

    def hello(self, now_s: float, deadline_s: float) -> bytes:
        """The first frame."""
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
        """(correlation id, the frame in parts, which have to be sent).

        RemoteError if the broker does not speak this request.
        """
        assert self.state is SessionState.READY, self.state
        assert not self.is_full
        spec = API_OF_REQUEST[type(request)]
        version = self._versions.get(spec.api)
        if version is None or version < request.version_needed():
            known = "that this client knows" if version is None else f"from {request.version_needed()} on"
            raise RemoteError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker does not speak a version of {spec.api.name.lower()} {known}; upgrade the older of the two",
                api=int(spec.api),
            )
        return self._put_in_flight(request, now_s, deadline_s, version, raw)

    @property
    def missing_raw_bytes(self) -> int:
        """How many bytes the raw part of the answer that is being received still needs; 0 where there is none."""
        return self._decoder.missing_raw_bytes

    def buffer(self) -> memoryview:
        """Where the next read may put its bytes, for `received`."""
        return self._decoder.buffer()

    def received(self, count: int, now_s: float) -> list[Event]:
        """What the first `count` bytes in `buffer` mean, in order."""
        if self.state is SessionState.CLOSED:
            return []
        self._decoder.received(count)
        return self._events(now_s)

    def receive(self, data: bytes | bytearray | memoryview, now_s: float) -> list[Event]:
        """What these bytes mean, in order; they are copied."""
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

    def heard(self, now_s: float) -> None:
        """Bytes have come that nobody has read yet: the broker lives."""
        self._received_s = now_s

    def silent_s(self, now_s: float) -> float:
        """How long the broker has said nothing, while there was something to answer."""
        if not self._in_flight:
            return 0.0
        first_sent_s = next(iter(self._in_flight.values())).sent_s
        return now_s - max(self._received_s, first_sent_s)

    def give_up(self, correlation_id: int) -> None:
        """Its caller no longer waits: an answer will be ignored."""
        entry = self._in_flight.get(correlation_id)
        if entry is not None:
            # Its deadline stays: that nothing came until then still shows that the broker is dead.
            self._in_flight[correlation_id] = entry._replace(waited_for=False)

    def next_deadline_s(self) -> float | None:
        """When to call `expire`, or None while nothing has a deadline."""
        deadline = min((entry.deadline_s for entry in self._in_flight.values()), default=float("inf"))
        return None if deadline == float("inf") else deadline

    def expire(self, now_s: float) -> list[Refused | Broken]:
        """Tell the callers whose time is up; a broker that said nothing in all that time is taken for dead."""
        events: list[Refused | Broken] = []
        for correlation_id, entry in list(self._in_flight.items()):
            if entry.deadline_s > now_s:
                continue
            name = API_OF_REQUEST[entry.request_type].api.name.lower()
            text = f"the broker did not answer {name} within {entry.deadline_s - entry.sent_s:g} s"
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
        """The connection is gone, or has to go."""
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
            return Refused(frame.correlation_id, error) if entry.waited_for else None
        if isinstance(response, HelloResponse):
            return self._ready(response)
        return Answered(frame.correlation_id, response, frame.raw) if entry.waited_for else None

    def _unchecked(self, frame: Frame) -> RemoteError:
        # Of an older broker, of one that could not read our first frame, or that has too many connections.
        return refusal_in(frame.body) or RemoteError(ErrorCode.BAD_FRAME, "an answer came without checksums")

    def _unasked(self, frame: Frame) -> RemoteError:
        # The broker answers a frame that it cannot read with an error under correlation id 0, and closes.
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

    def _ready(self, hello: HelloResponse) -> Ready:
        self.state = SessionState.READY
        self.hello_response = hello
        self._versions = request_versions(hello)
        self._versions.pop(Api.HELLO, None)
        self.in_flight_max = max(1, min(hello.limits.in_flight_requests_max, limits.IN_FLIGHT_REQUESTS_MAX))
        self._decoder.frame_bytes_max = limits.RESPONSE_BYTES_MAX + _FRAME_OVERHEAD_BYTES
        self._decoder.body_bytes_max = limits.RESPONSE_BYTES_MAX + limits.FRAME_ENCRYPTION_BYTES
        return Ready(hello)
