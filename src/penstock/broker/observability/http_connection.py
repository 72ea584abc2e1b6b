"""One HTTP connection: h11 parses, this module limits sizes and times.

Rules: a client can hold little memory, and not for long. A read takes HTTP_PIECE_BYTES at most, a head may have
HTTP_HEAD_BYTES_MAX, and a body none. One request is served at a time: meanwhile nothing is read, so pipelined requests
wait in the client's own socket. From the first byte of the wait for a request until its head is complete, and from the
answer until it is taken, no more than HTTP_TIMEOUT_MS may pass.

    waits ──head──▶ answers ──answer──▶ writes ──all taken──▶ waits
      └── too large, invalid, a body, another version ──▶ an error ──▶ ends ──▶ closed

TLS is the same, except for two properties of asyncio's transport: it closes both directions at once, so a client that
shuts down its sending half before the answer gets none; and it does not report the 64 KiB buffered below it. So an
answer is sent in pieces of HTTP_PIECE_BYTES, each once the previous one is taken, and only those 64 KiB are
unaccounted.

At the end further input is discarded until the client closes or the time-out expires: closing a socket with unread
input resets it, and the answer would be lost.
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

_OTHER_VERSION = "this port speaks HTTP/1.1 and HTTP/1.0 only"
_VERSION = re.compile(rb" HTTP/[0-9.]+\r?$")
_VERSION_OF_1 = re.compile(rb" HTTP/1\.[0-9]\r?$")
_TEXT = "text/plain; charset=utf-8"
_ALWAYS = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("server", "penstock"),
)


class HttpRequest(NamedTuple):
    """A request without a body."""

    method: str
    target: str
    authorization: str  # the header's value; empty: none


class HttpResponse(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpOwner(Protocol):
    """The server of an HTTP connection."""

    def opened(self, connection: HttpConnection) -> None:
        """The connection is established."""

    def closed(self, connection: HttpConnection) -> None:
        """The connection is closed."""


class HttpConnection(asyncio.BufferedProtocol):
    """Serves the requests of one HTTP connection."""

    def __init__(
        self, owner: HttpOwner, answer: Callable[[HttpRequest], Awaitable[HttpResponse]], *, is_encrypted: bool = False
    ) -> None:
        self.is_waiting = True  # for a request, or for the client to close: no answer is owed
        self._owner = owner
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._is_encrypted = is_encrypted
        self._buffer = memoryview(bytearray(limits.HTTP_PIECE_BYTES))  # asyncio's TLS writes into a slice of it
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX)
        self._asked: HttpRequest | None = None
        self._requests = 0
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._has_written = asyncio.Event()
        self._has_written.set()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Report when everything is taken; the TLS transport pauses at `high` bytes, others above it.
        transport.set_write_buffer_limits(high=1 if self._is_encrypted else 0, low=0)
        self._be_patient()
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_ending:
            self._protocol.receive_data(bytes(self._buffer[:nbytes]))
            self._go_on()

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for an answer."""
        if self._is_ending:
            return False
        self._protocol.receive_data(b"")
        self._go_on()
        return not self._is_encrypted  # TLS closes both directions at once

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()
        self._has_written.set()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        self._has_written.clear()

    def resume_writing(self) -> None:
        self._has_written.set()

    # Requests

    def _go_on(self) -> None:
        """Parse the received bytes up to the end of a request."""
        if self._task is not None or self._transport.is_closing():
            return
        try:
            while True:
                event = self._protocol.next_event()
                if isinstance(event, h11.Request):
                    self._asked = _asked(event)
                    # at once: the client may wait for it before it sends the body
                    if (refusal := _refusal(event)) is not None:
                        self._refuse(*refusal)
                        return
                elif isinstance(event, h11.EndOfMessage):
                    self._begin()
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    self._end()
                    return
                else:  # more input is needed
                    if self._protocol.their_state is h11.IDLE:
                        self._check_line(self._protocol.trailing_data[0])
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, "this is not a valid HTTP request")

    def _check_line(self, begin: bytes) -> None:
        """Refuse a request line without a version (HTTP/0.9), whose client would otherwise wait for ever."""
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
        except Exception:  # noqa: BLE001 (reported; the client gets status 500)
            _log.exception("internal error (bug) in a request for %s", self._asked.target[:100])
            answer = HttpResponse(500, b"the broker made a mistake; its log says which\n")
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
        self._go_on()  # with pipelined input

    def _refuse(self, status: int, text: str) -> None:
        """Send an error and close."""
        self.is_waiting = False
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._transport.write(self._said(HttpResponse(status, f"{text}\n".encode()), is_last=True, has_body=True))
        self._end()

    def _end(self) -> None:
        """Shut down the sending half; the client, or the time-out, closes the connection."""
        self._is_ending = self.is_waiting = True
        if self._transport.is_closing():
            return
        if self._protocol.their_state is h11.CLOSED:  # the client has closed its side already
            self._transport.close()
        elif self._is_encrypted:
            self._transport.resume_reading()
            self._transport.close()  # sends close_notify and discards input until the client closes
        else:
            try:
                self._transport.write_eof()
            except OSError:  # the client has disconnected
                self._transport.abort()
            else:
                self._transport.resume_reading()

    def _said(self, answer: HttpResponse, *, is_last: bool, has_body: bool) -> memoryview:
        """Return the response as bytes."""
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
        self._deadline = self._loop.call_later(limits.HTTP_TIMEOUT_MS / 1_000, self.cut)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def cut(self) -> None:
        self._transport.abort()


def _refusal(request: h11.Request) -> tuple[int, str] | None:
    """Return status and text if the request's head makes it unacceptable, or None."""
    if not request.http_version.startswith(b"1."):
        return 505, _OTHER_VERSION
    for name, value in request.headers:
        if (name == b"content-length" and value != b"0") or name == b"transfer-encoding":
            return 413, "requests with a body are not supported"
    for name, value in request.headers:
        if name == b"expect" and value.lower() != b"100-continue":
            return 417, "the only supported Expect is 100-continue"
    return None


def _asked(request: h11.Request) -> HttpRequest:
    authorization = next((value for name, value in request.headers if name == b"authorization"), b"")
    return HttpRequest(
        request.method.decode("latin-1"), request.target.decode("latin-1"), authorization.decode("latin-1")
    )
