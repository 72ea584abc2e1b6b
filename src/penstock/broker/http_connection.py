"""One HTTP connection: h11 says what the bytes mean, this says how long and how much.

Rules: whoever connects holds little, and not for long. A read takes HTTP_PIECE_BYTES at most, a head may have
HTTP_HEAD_BYTES_MAX, and a body none. One request is answered at a time: while it is, nothing is read, so what is sent
ahead waits in the client's own socket. From the first byte of the wait for a request until its head is there, and from
the answer until it is taken, no more than HTTP_PATIENCE_MS may pass.

    waits ──head──▶ answers ──answer──▶ writes ──all taken──▶ waits
      └── too large, nonsense, a body, another version ──▶ an error ──▶ ends ──▶ closed

Through TLS it is the same, but for two things of asyncio's transport: it closes both ways at once, so whoever ends what
it sends before it has the answer gets none; and it does not tell of the 64 KiB that wait below it. So an answer goes
out in pieces of HTTP_PIECE_BYTES, one when the one before is taken, and those 64 KiB are all that is not seen.

What still comes at the end is thrown away, until the client closes or the patience is over: closing a socket with
unread input resets it, and the answer would be lost with it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import h11

from penstock.base import limits

_log = logging.getLogger("penstock.http")

_OTHER_VERSION = "requests here are of HTTP/1.1, or HTTP/1.0"
_VERSION = re.compile(rb" HTTP/[0-9.]+\r?$")
_VERSION_OF_1 = re.compile(rb" HTTP/1\.[0-9]\r?$")
_TEXT = "text/plain; charset=utf-8"
_ALWAYS = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("server", "penstock"),
)


class Asked(NamedTuple):
    """A request without a body."""

    method: str
    target: str
    authorization: str  # as it came; empty: none


class Answer(NamedTuple):
    """What is said to it."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpOwner(Protocol):
    """Whose connection it is."""

    def opened(self, connection: HttpConnection) -> None:
        """It is there."""

    def closed(self, connection: HttpConnection) -> None:
        """It is gone."""


class HttpConnection(asyncio.BufferedProtocol):
    """See the module's rules."""

    def __init__(
        self, owner: HttpOwner, answer: Callable[[Asked], Awaitable[Answer]], *, is_encrypted: bool = False
    ) -> None:
        self.is_waiting = True  # for a request, or for the client to close: it owes nothing
        self._owner = owner
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._is_encrypted = is_encrypted
        self._buffer = memoryview(bytearray(limits.HTTP_PIECE_BYTES))  # asyncio's TLS writes into a slice of it
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX)
        self._asked: Asked | None = None
        self._requests = 0
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._has_written = asyncio.Event()
        self._has_written.set()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # So that it is known when all is taken; that of TLS pauses where there is as much as `high`, others above it.
        transport.set_write_buffer_limits(high=1 if self._is_encrypted else 0, low=0)
        self._be_patient()
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """They came."""
        if not self._is_ending:
            self._protocol.receive_data(bytes(self._buffer[:nbytes]))
            self._go_on()

    def eof_received(self) -> bool:
        """The client sends no more; it may wait for an answer."""
        if self._is_ending:
            return False
        self._protocol.receive_data(b"")
        self._go_on()
        return not self._is_encrypted  # TLS ends both ways at once

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()
        self._has_written.set()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        """Something waits to be taken."""
        self._has_written.clear()

    def resume_writing(self) -> None:
        """All is taken."""
        self._has_written.set()

    # Requests

    def _go_on(self) -> None:
        """Take what came, up to the end of a request."""
        if self._task is not None or self._transport.is_closing():
            return
        try:
            while True:
                event = self._protocol.next_event()
                if isinstance(event, h11.Request):
                    self._asked = _asked(event)
                    if (refusal := _refusal(event)) is not None:  # at once: the client may wait for that with its body
                        self._refuse(*refusal)
                        return
                elif isinstance(event, h11.EndOfMessage):
                    self._begin()
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    self._end()
                    return
                else:  # more is needed
                    if self._protocol.their_state is h11.IDLE:
                        self._check_line(self._protocol.trailing_data[0])
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, "this is no HTTP request that is understood here")

    def _check_line(self, begin: bytes) -> None:
        """A request line without a version is all that a client of HTTP/0.9 sends: it would wait for the answer."""
        line, has_end, _ = begin.lstrip(b"\r\n").partition(b"\n")
        if has_end and not _VERSION_OF_1.search(line):
            is_later = _VERSION.search(line) is not None
            self._refuse(505 if is_later else 400, _OTHER_VERSION)

    def _begin(self) -> None:
        self._stop_waiting()
        self.is_waiting = False
        self._requests += 1
        self._transport.pause_reading()
        self._task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        assert self._asked is not None
        try:
            answer = await self._answer(self._asked)
        except Exception:  # noqa: BLE001 (reported; whoever asks hears that)
            _log.exception("a mistake in the program, found by a request for %s", self._asked.target[:100])
            answer = Answer(500, b"the broker made a mistake; its log says which\n")
        self._be_patient()
        is_last = self._requests >= limits.HTTP_REQUESTS_MAX
        said = self._said(answer, is_last=is_last, has_body=self._asked.method != "HEAD")
        for start in range(0, len(said), limits.HTTP_PIECE_BYTES):
            self._transport.write(said[start : start + limits.HTTP_PIECE_BYTES])
            await self._has_written.wait()
        self._task = None
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            self._end()
            return
        self._protocol.start_next_cycle()
        self.is_waiting = True
        self._be_patient()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._go_on()  # with what was sent ahead

    def _refuse(self, status: int, text: str) -> None:
        """Say what is wrong, and close."""
        self.is_waiting = False
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._transport.write(self._said(Answer(status, f"{text}\n".encode()), is_last=True, has_body=True))
        self._end()

    def _end(self) -> None:
        """Say that nothing more comes; the client, or the patience, closes."""
        self._is_ending = self.is_waiting = True
        if self._transport.is_closing():
            return
        if self._protocol.their_state is h11.CLOSED:  # it has closed its side already
            self._transport.close()
        elif self._is_encrypted:
            self._transport.resume_reading()
            self._transport.close()  # says so, and throws away what comes until the client does
        else:
            try:
                self._transport.write_eof()
            except OSError:  # the client has gone meanwhile
                self._transport.abort()
            else:
                self._transport.resume_reading()

    def _said(self, answer: Answer, *, is_last: bool, has_body: bool) -> memoryview:
        """It as bytes."""
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
            *_ALWAYS,
            *answer.headers,
            *([("connection", "close")] if is_last else []),
        ]
        pieces = [self._protocol.send(h11.Response(status_code=answer.status, headers=headers))]
        if has_body:
            pieces.append(self._protocol.send(h11.Data(data=answer.body)))
        pieces.append(self._protocol.send(h11.EndOfMessage()))
        return memoryview(b"".join(piece for piece in pieces if piece))

    # Time and the end

    def _be_patient(self) -> None:
        self._stop_waiting()
        self._deadline = self._loop.call_later(limits.HTTP_PATIENCE_MS / 1_000, self.cut)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def cut(self) -> None:
        """Close now."""
        self._transport.abort()


def _refusal(request: h11.Request) -> tuple[int, str] | None:
    """Why it is not answered, as its head says."""
    if not request.http_version.startswith(b"1."):
        return 505, _OTHER_VERSION
    for name, value in request.headers:
        if (name == b"content-length" and value != b"0") or name == b"transfer-encoding":
            return 413, "no request here has a body"
    for name, value in request.headers:
        if name == b"expect" and value.lower() != b"100-continue":
            return 417, "nothing is expected here but 100-continue"
    return None


def _asked(request: h11.Request) -> Asked:
    authorization = next((value for name, value in request.headers if name == b"authorization"), b"")
    return Asked(request.method.decode("latin-1"), request.target.decode("latin-1"), authorization.decode("latin-1"))
