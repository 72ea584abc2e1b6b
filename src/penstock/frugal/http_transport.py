"""Calls over HTTP: client and server, as Frugal has them.

    POST /                                        200
    content-type: application/x-frugal            content-type: application/x-frugal
    content-transfer-encoding: base64      ──▶    content-transfer-encoding: base64
    x-frugal-payload-limit: 65536          ◀──
                                                  base64 of the answer's frame,
    base64 of the request's frame                 or of 4 zero bytes for a oneway

| answer               | the client raises                                                                    |
|----------------------|--------------------------------------------------------------------------------------|
| 200 and a frame      | what the frame says                                                                  |
| 400                  | `TransportError`: the body was no frame                                              |
| 404, 405, 415        | `TransportError`: another path, method or content type                               |
| 413 of a service     | `ResponseTooLarge`: beyond the client's limit; `RequestTooLarge` beyond the server's |
| 413 of a proxy       | `RequestTooLarge`, since its text is none of a Frugal server                         |
| 503                  | `ServiceNotAvailable`: the server has its most connections                           |
| another one from 300 | `TransportError`                                                                     |
| no connection        | `ServiceNotAvailable`                                                                |
| it broke in between  | `Disconnected`                                                                       |

Rules: the framing is frugal-v0; the native one is NATS's. A connection carries one call at a time and is used again; a
client has `connections_max` of them, and calls beyond wait for one until their deadline. The server reads no more than
its limits, gives a request `READ_TIMEOUT_S` to arrive, and answers only the content type of Frugal, which a page of
another site cannot send without being asked for it first (CORS). When a client closes its connection before the
answer, the handler of its request is cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self
from urllib.parse import urlsplit

import h11

from penstock.frugal.codecs import BINARY, Codec
from penstock.frugal.complaints import Complaints
from penstock.frugal.contracts import ServiceType
from penstock.frugal.errors import (
    DeadlineExceeded,
    Disconnected,
    FrameError,
    RequestTooLarge,
    ResponseTooLarge,
    ServiceNotAvailable,
    TransportClosed,
    TransportError,
)
from penstock.frugal.frames import FRAME_BYTES_MAX
from penstock.frugal.framing import Packet
from penstock.frugal.middleware import Middleware
from penstock.frugal.processor import MethodStats, Processor
from penstock.frugal.workers import CONCURRENCY_DEFAULT, WAITING_DEFAULT, Job, Workers

log = logging.getLogger("penstock.frugal")

CONTENT_TYPE = b"application/x-frugal"
PAYLOAD_LIMIT = b"x-frugal-payload-limit"
CONNECTIONS_MAX = 100
"""Connections of one client, unless it says another number."""
SERVER_CONNECTIONS_MAX = 1000
"""Connections to one server, unless it says another number."""
REQUEST_BYTES_MAX = 1024 * 1024
"""Most bytes of a request's frame that a server reads, unless it says another number."""
READ_TIMEOUT_S = 30.0
"""Time for a request to arrive once it has begun, and for an idle connection until it is closed."""
REFUSAL_TIMEOUT_S = 2.0
"""Time for a request on a connection beyond the most of the server: it is refused; beyond twice the most, unread."""
DISCARD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes beyond the limit that a server reads and drops: a client sends all before it reads the answer."""
ERROR_BYTES_MAX = 1024
"""Most bytes of an error's body that the client reads."""
_ONEWAY: Final = b"\0\0\0\0"
_READ_BYTES = 64 * 1024
_FRUGAL_HEADERS: Final = [(b"content-type", CONTENT_TYPE), (b"content-transfer-encoding", b"base64")]


class _Wire:
    """HTTP events of one connection."""

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: Any) -> None:
        self.state = h11.Connection(our_role=role)
        self._reader = reader
        self._writer = writer

    async def next_event(self) -> Any:
        """Return the next event of the other side. RemoteProtocolError: it does not speak HTTP."""
        while (event := self.state.next_event()) is h11.NEED_DATA:
            self.state.receive_data(await self._reader.read(_READ_BYTES))
        return event

    async def body(self, bytes_max: int, *, discard_max: int = 0) -> bytes | None:
        """Return the body; None: it is longer. `discard_max` more bytes are read, so that the answer gets through."""
        parts: list[bytes] = []
        size = 0
        while type(event := await self.next_event()) is h11.Data:
            size += len(event.data)
            if size <= bytes_max:
                parts.append(bytes(event.data))
            elif size > bytes_max + discard_max:
                break
        return b"".join(parts) if size <= bytes_max else None

    async def send(self, head: h11.Request | h11.Response, body: bytes) -> None:
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self.state.send(event))
        await self._writer.drain()

    async def client_leaves(self) -> bool:
        """Wait for the end of what the client sends, and return True; False: it sends more requests than are watched.

        As with Go's server, a client that closes its sending half has left.
        """
        read = 0
        try:
            while read < _READ_BYTES:
                data = await self._reader.read(_READ_BYTES - read)
                if not data:
                    return True
                self.state.receive_data(data)  # the next request: it is read after this one is answered
                read += len(data)
        except OSError:
            return True
        return False

    def begin_again(self) -> bool:
        """Return whether the connection is ready for another request; else it must be closed."""
        if self.state.our_state is not h11.DONE or self.state.their_state is not h11.DONE:
            return False
        self.state.start_next_cycle()
        return not self._reader.at_eof()

    def is_usable(self) -> bool:
        """Return whether the other side has left an idle connection open."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()


def _base64_size(size: int) -> int:
    return (size + 2) // 3 * 4


# The client


class HttpTransport:
    """Carries the requests of a client to the service at a URL.

    `url`: "http://host:port/path" or https. `headers`: HTTP headers of each request, such as an authorization.
    `tls`: for https, instead of the system's certificates. ValueError: another sort of URL.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        request_bytes_max: int = FRAME_BYTES_MAX,
        response_bytes_max: int = FRAME_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
            raise ValueError("the URL of a service is http://host:port/path, or https, without a login")
        self.subject = url
        self.request_bytes_max = request_bytes_max
        self.connections_opened = 0
        self._response_bytes_max = response_bytes_max
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = [
            (b"host", parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")),
            (b"accept", CONTENT_TYPE),
            (PAYLOAD_LIMIT, str(response_bytes_max).encode()),
            *_FRUGAL_HEADERS,
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]
        self._slots = asyncio.Semaphore(connections_max)
        self._idle: list[_Wire] = []
        self._in_use: set[_Wire] = set()
        self._last_id = 0
        self._is_closed = False

    @classmethod
    def connecting(cls, url: str, **options: Any) -> Callable[[], Coroutine[Any, Any, Self]]:
        """Return what makes a transport, for a blocking client. `options`: those of the class."""

        async def connect() -> Self:
            return cls(url, **options)

        return connect

    def next_operation_id(self) -> int:
        """Return the next number, from 1 on."""
        self._last_id += 1
        return self._last_id

    async def request(self, operation_id: int, packet: Packet, left_s: float) -> Packet:
        """Send a request and return its answer."""
        frame = await self._post(packet, left_s)
        if frame == _ONEWAY:
            raise FrameError("the answer is that to a oneway", 0)
        return Packet(frame)

    async def send(self, packet: Packet, left_s: float) -> None:
        """Send a oneway, and wait until the server has it."""
        await self._post(packet, left_s)

    async def close(self) -> None:
        """Close the connections: calls that are under way fail with `TransportClosed`."""
        self._is_closed = True
        for wire in (*self._idle, *self._in_use):
            wire.close()
        self._idle.clear()

    async def _post(self, packet: Packet, left_s: float) -> bytes:
        if packet.headers:
            raise ValueError("the native framing is one of NATS; over HTTP a client has frugal-v0")
        self._check_open()
        try:
            async with asyncio.timeout(left_s), self._slots:
                wire = await self._take()
                self._in_use.add(wire)
                is_reusable = False
                try:
                    frame = await self._exchange(wire, packet)
                    is_reusable = wire.begin_again() and not self._is_closed
                finally:
                    self._in_use.discard(wire)
                    if is_reusable:
                        self._idle.append(wire)
                    else:
                        wire.close()
                return frame
        except TimeoutError:
            raise DeadlineExceeded(f"no answer came from {self.subject!r} in the time of the call") from None
        except (OSError, h11.RemoteProtocolError) as error:
            self._check_open(may_be_done=True)
            raise Disconnected(f"the connection to {self.subject!r} broke: {error}") from error

    def _check_open(self, *, may_be_done: bool = False) -> None:
        if self._is_closed:
            raise TransportClosed(f"the client of {self.subject!r} is closed", may_be_done=may_be_done)

    async def _take(self) -> _Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_usable():
                return wire
            wire.close()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise ServiceNotAvailable(f"there is no connection to {self.subject!r}: {error}") from error
        self.connections_opened += 1
        return _Wire(h11.CLIENT, reader, writer)

    async def _exchange(self, wire: _Wire, packet: Packet) -> bytes:
        """Return the frame that answers. TransportError: another status than 200."""
        body = base64.b64encode(packet.data)
        headers = [*self._headers, (b"content-length", str(len(body)).encode())]
        await wire.send(h11.Request(method="POST", target=self._target, headers=headers), body)
        while type(event := await wire.next_event()) is h11.InformationalResponse:
            continue
        if type(event) is not h11.Response:
            self._check_open(may_be_done=True)
            raise Disconnected(f"{self.subject!r} closed the connection without an answer")
        if event.status_code != 200:
            text = (await wire.body(ERROR_BYTES_MAX) or b"").decode("utf-8", "replace").strip()
            raise self._status_error(event.status_code, text, len(body))
        encoded = await wire.body(_base64_size(self._response_bytes_max + 4))
        if encoded is None:
            raise ResponseTooLarge(f"the answer has more than {self._response_bytes_max:,} bytes")
        try:
            return binascii.a2b_base64(encoded, strict_mode=True)
        except binascii.Error as error:
            raise FrameError(f"the answer is no base64: {error}", 0) from None

    def _status_error(self, status: int, text: str, sent_bytes: int) -> TransportError:
        """Return the error for another status than 200. `sent_bytes`: those of the request's body."""
        if status == 413 and (not text or text.startswith((_ANSWER_TOO_LARGE, _OF_FRUGAL))):
            return ResponseTooLarge(text or f"the answer has more than {self._response_bytes_max:,} bytes")
        if status == 413:
            said = text if text.startswith(_REQUEST_TOO_LARGE) else f"HTTP status 413: {text}"
            return RequestTooLarge(f"the body of {sent_bytes:,} bytes is too large for {self.subject!r}: {said}")
        kind_of = ServiceNotAvailable if status == 503 else TransportError
        return kind_of(f"the server answered with HTTP status {status}: {text}")


_REQUEST_TOO_LARGE: Final = "the request"
_ANSWER_TOO_LARGE: Final = "the answer"
_OF_FRUGAL: Final = "Response size"  # the beginning of the text of Workiva's servers, if they give one


# The server


class HttpServer:
    """Serves services over HTTP.

    `services`: pairs of a service and its handler (see `processor`). `path`: what is served; others are 404. `tls`: a
    server's context, for https. The other parameters are those of `Server`. `port` 0: a free one, see `port`.
    """

    def __init__(
        self,
        services: Sequence[tuple[ServiceType, object]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/",
        codec: Codec = BINARY,
        middleware: Sequence[Middleware] = (),
        concurrency_max: int = CONCURRENCY_DEFAULT,
        waiting_max: int = WAITING_DEFAULT,
        connections_max: int = SERVER_CONNECTIONS_MAX,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        read_timeout_s: float = READ_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._port = port
        self._path = path
        self._processor = Processor(services, now=now, codec=codec, middleware=middleware)
        self._workers = Workers(self._processor, concurrency_max=concurrency_max, waiting_max=waiting_max)
        self._connections_max = connections_max
        self._request_bytes_max = request_bytes_max
        self._read_timeout_s = read_timeout_s
        self._tls = tls
        self._complaints = Complaints(log, now)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], bool] = {}  # True while it is answered
        self._is_draining = False
        self.malformed = 0

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        assert self._server is not None, "the server has not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def method_stats(self) -> Mapping[str, MethodStats]:
        """Counters by the names of the methods."""
        return self._processor.stats

    async def start(self) -> None:
        """Listen. Handlers see the context variables that are set here."""
        self._workers.begin()
        self._server = await asyncio.start_server(
            self._on_connection, self._host, self._port, ssl=self._tls, limit=_READ_BYTES
        )

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Take no more connections, answer the requests that came, and close; after the time-out, cancel them."""
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for task, is_busy in self._connections.items():
            if not is_busy:
                task.cancel()
        await self._workers.drain(timeout_s)
        if self._connections:
            await asyncio.wait(self._connections, timeout=1.0)  # answers are on their way
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin a task, which is known at once: a drain that comes before it has begun ends it, too."""
        wire = _Wire(h11.SERVER, reader, writer)
        if self._is_draining or len(self._connections) >= 2 * self._connections_max:
            wire.close()
            return
        is_one_too_many = len(self._connections) >= self._connections_max
        task = asyncio.get_running_loop().create_task(self._converse(wire, is_one_too_many=is_one_too_many))
        self._connections[task] = False
        task.add_done_callback(partial(self._ended, wire))

    def _ended(self, wire: _Wire, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        wire.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection ended: %s", error, exc_info=error)

    async def _converse(self, wire: _Wire, *, is_one_too_many: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(OSError, TimeoutError, h11.ProtocolError):  # gone, slow, no HTTP
            await self._serve(wire, task, is_one_too_many=is_one_too_many)

    async def _serve(self, wire: _Wire, task: asyncio.Task[None], *, is_one_too_many: bool) -> None:
        while True:
            try:
                async with asyncio.timeout(REFUSAL_TIMEOUT_S if is_one_too_many else self._read_timeout_s):
                    event = await wire.next_event()
                    if type(event) is not h11.Request:
                        return
                    self._connections[task] = True
                    status, body = await self._read(wire, event, is_one_too_many=is_one_too_many)
            except h11.RemoteProtocolError as error:
                await _send(wire, error.error_status_hint, b"this is no HTTP request\n", is_frugal=False)
                return
            if status == 200:
                status, body = await self._answer(wire, event, body)
            await _send(wire, status, body, is_frugal=status == 200)
            self._connections[task] = False
            if self._is_draining or not wire.begin_again():
                return

    async def _read(self, wire: _Wire, head: h11.Request, *, is_one_too_many: bool) -> tuple[int, bytes]:
        """Return 200 and the frame of a request; or another status and its text."""
        headers = {bytes(name): bytes(value) for name, value in head.headers}
        if is_one_too_many or self._is_draining:
            return 503, b"the server has no place for another connection\n"
        if bytes(head.target).partition(b"?")[0] != self._path.encode():
            return 404, b"nothing is served at this path\n"
        if head.method != b"POST":
            return 405, b"a call is a POST\n"
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != CONTENT_TYPE:
            return 415, b"the content type of a call is application/x-frugal\n"
        if wire.state.they_are_waiting_for_100_continue:
            return 417, b"send the request without asking\n"
        encoded = await wire.body(_base64_size(self._request_bytes_max), discard_max=DISCARD_BYTES_MAX)
        if encoded is None:
            text = f"{_REQUEST_TOO_LARGE} has more than {self._request_bytes_max} bytes\n"
            return 413, text.encode()
        try:
            return 200, binascii.a2b_base64(encoded, strict_mode=True)
        except binascii.Error:
            self.malformed += 1
            return 400, b"the body is no base64\n"

    async def _answer(self, wire: _Wire, head: h11.Request, frame: bytes) -> tuple[int, bytes]:
        """Return the status and body that answer a request's frame."""
        limit_text = next((bytes(value) for name, value in head.headers if name == PAYLOAD_LIMIT), b"0")
        if not (limit_text.isdigit() and len(limit_text) < 20):
            return 400, PAYLOAD_LIMIT + b" is a number of bytes\n"
        try:
            request = self._processor.accept(Packet(frame))
        except FrameError as error:
            self.malformed += 1
            self._complaints.tell("malformed", f"a body is no request: {error}")
            return 400, f"the body is no request: {error}\n".encode()
        answered: asyncio.Future[Packet | None] = asyncio.get_running_loop().create_future()

        async def reply(packet: Packet | None) -> None:
            if not answered.done():
                answered.set_result(packet)

        job = Job(request, reply, FRAME_BYTES_MAX, self._path)
        await self._workers.submit(job)
        if not await _answered_first(answered, wire):
            self._workers.abandon(job)
            raise ConnectionResetError("the client has left before its answer")
        packet = await answered
        answer = _ONEWAY if packet is None else packet.data
        limit = int(limit_text)
        if 0 < limit < len(answer) - 4:
            return 413, f"{_ANSWER_TOO_LARGE} has {len(answer) - 4} bytes, more than {limit}\n".encode()
        return 200, base64.b64encode(answer)


async def _answered_first(answered: asyncio.Future[Packet | None], wire: _Wire) -> bool:
    """Wait for an answer; False: the client has closed its connection before."""
    leaving = asyncio.ensure_future(wire.client_leaves())
    try:
        either: tuple[asyncio.Future[Any], ...] = (answered, leaving)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return answered.done() or not leaving.result()
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


async def _send(wire: _Wire, status: int, body: bytes, *, is_frugal: bool) -> None:
    """Send an answer; after an error the connection ends, since the request may not have been read."""
    if wire.state.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
        return
    headers = [(b"content-length", str(len(body)).encode())]
    headers += _FRUGAL_HEADERS if is_frugal else [(b"content-type", b"text/plain"), (b"connection", b"close")]
    with contextlib.suppress(h11.LocalProtocolError):
        await wire.send(h11.Response(status_code=status, headers=headers), body)
