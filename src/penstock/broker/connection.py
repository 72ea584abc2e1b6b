"""One client's connection: frames in, answers out, batches with sendfile(2).

Rules: nothing here blocks the event loop. Each connection has one write queue; a turn writes at most one slice, so that
a large answer to one client does not hold up another. A range that is not in the page cache is read by a disk thread
first. While too many requests are open or too much waits to be written, no further request is read: the client's own
socket fills, and nobody's memory does.

| what                                         | what happens                                                |
|----------------------------------------------|-------------------------------------------------------------|
| malformed or oversized frame                 | an error frame, then the connection is closed               |
| no hello within HELLO_TIMEOUT_MS             | closed                                                      |
| half a frame and then silence                | closed after WRITE_STALL_MS_MAX                             |
| answers that the client does not take        | closed after WRITE_STALL_MS_MAX without a byte of progress  |
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import HelloRequest, Request, Response
from penstock.node.step import Extent
from penstock.vfs import File, Vfs
from penstock.wire import Frame, FrameDecoder, decode_request, encode_error, encode_response_head

_READ_BYTES = 256 * limits.KIB
_SLICE_BYTES = 256 * limits.KIB
_PAGE_BYTES = 4 * limits.KIB
_GONE = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, TimeoutError)


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One open request: where its answer goes."""

    connection: Connection
    api: int
    version: int
    correlation_id: int


class ConnectionOwner(Protocol):
    """The server that a connection belongs to."""

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """A sound request; exactly one `reply` must follow."""

    def connection_closed(self, connection: Connection) -> None:
        """The end of it; `connection.open_requests` will not be answered."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[], None]) -> None:
        """Have a disk thread `run`, then call `done` on the loop."""


@dataclass(slots=True)
class _Range:
    """A part of a file that still has to be sent."""

    vfs: Vfs
    file: File
    position: int
    length: int
    warm_end: int = 0  # up to here the page cache has it
    is_last_user: bool = True  # else the next range in the queue goes on with the same file


class Progress(NamedTuple):
    """For the server's sweep: since when a connection owes or is owed something, None if it does not."""

    silent_since_us: int | None
    stalled_since_us: int | None


@dataclass(slots=True)
class _Output:
    queue: deque[memoryview | _Range] = field(default_factory=deque)
    waiting_bytes: int = 0


class Connection:
    """See the module's rules. Owns its socket."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        elapsed_us: Callable[[], int],
    ) -> None:
        self.peer = peer
        self.client_name = ""
        self.open_requests: dict[int, Caller] = {}
        self._socket = sock
        self._owner = owner
        self._loop = loop
        self._elapsed_us = elapsed_us
        self._decoder = FrameDecoder(limits.HELLO_BYTES_MAX)
        self._hello_done = False
        self._output = _Output()
        self._closing = False  # no more requests; closed once the output is written
        self._shut = False
        self._closed = False
        self._reading = False
        self._taking = False  # frames are being taken: an answer that is given at once must not begin to take more
        self._writing = False
        self._warming: File | None = None  # a disk thread reads from it
        self._last_read_us = self._last_write_us = elapsed_us()
        self._set_reading(True)

    # Reading

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._reading and not self._closed:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._socket.fileno(), self._readable)
            else:
                self._loop.remove_reader(self._socket.fileno())

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        if self._closing:
            return  # what a refused client goes on sending is thrown away until it hears why
        self._last_read_us = self._elapsed_us()
        self._decoder.receive(data)
        self._take_frames()

    def _take_frames(self) -> None:
        if self._taking:
            return
        self._taking = True
        try:
            while not self._closing and not self._closed:
                if self._is_full:
                    self._set_reading(False)
                    return
                frame = self._decoder.next_frame()
                if frame is None:
                    self._set_reading(True)
                    return
                self._take_frame(frame)
        except RemoteError as error:
            self._refuse(Frame(0, 0, 0, b"", b""), error)
        finally:
            self._taking = False

    @property
    def _is_full(self) -> bool:
        return (
            len(self.open_requests) >= limits.IN_FLIGHT_REQUESTS_MAX
            or self._output.waiting_bytes > limits.WRITE_QUEUE_BYTES_MAX
            or len(self._output.queue) > limits.WRITE_QUEUE_PARTS_MAX
        )

    def _take_frame(self, frame: Frame) -> None:
        caller = Caller(self, frame.api, frame.version, frame.correlation_id)
        if frame.correlation_id in self.open_requests:
            text = f"correlation id {frame.correlation_id} is in use by a request that is not answered yet"
            self._refuse(frame, RemoteError(ErrorCode.BAD_FRAME, text))
            return
        try:
            request = decode_request(frame)
        except RemoteError as error:
            if self._hello_done:
                self._send(encode_error(frame.api, frame.version, frame.correlation_id, error))
            else:
                self._refuse(frame, error)
            return
        if isinstance(request, HelloRequest):
            self._hello_done = True
            self.client_name = request.client_name[:128]
            self._decoder.frame_bytes_max = limits.REQUEST_BODY_BYTES_MAX + limits.APPEND_BYTES_MAX
            self._decoder.body_bytes_max = limits.REQUEST_BODY_BYTES_MAX
        elif not self._hello_done:
            self._refuse(frame, RemoteError(ErrorCode.BAD_REQUEST, "the first request on a connection is hello"))
            return
        self.open_requests[frame.correlation_id] = caller
        self._owner.request_received(caller, request, frame.raw)

    def _refuse(self, frame: Frame, error: RemoteError) -> None:
        """Say what was wrong and close: after a frame that cannot be trusted, nothing else can."""
        self._closing = True
        self._send(encode_error(frame.api, frame.version, frame.correlation_id, error))
        self._set_reading(True)

    # Writing

    def reply(
        self, caller: Caller, response: Response | RemoteError, payload: bytes | bytearray | Extent | None
    ) -> None:
        """Answer one open request."""
        if self._closed or self.open_requests.pop(caller.correlation_id, None) is not caller:
            return
        if isinstance(response, RemoteError):
            self._send(encode_error(caller.api, caller.version, caller.correlation_id, response))
        elif isinstance(payload, Extent):
            self._reply_extent(caller, response, payload)
        else:
            raw = payload or b""
            head = encode_response_head(caller.api, caller.version, caller.correlation_id, response, len(raw))
            self._send(head, raw)
        if not self._reading and not self._closing:
            self._take_frames()

    def _reply_extent(self, caller: Caller, response: Response, extent: Extent) -> None:
        last = self._output.queue[-1] if self._output.queue else None
        shared = isinstance(last, _Range) and last.vfs is extent.vfs and last.file.path == extent.path
        try:
            file = last.file if isinstance(last, _Range) and shared else extent.vfs.open(extent.path, read_only=True)
        except OSError as error:
            text = f"the broker cannot open {extent.path}: {error}"
            failed = RemoteError(ErrorCode.STORAGE_FAILED, text)
            self._send(encode_error(caller.api, caller.version, caller.correlation_id, failed))
            return
        head = encode_response_head(caller.api, caller.version, caller.correlation_id, response, extent.length)
        if file.fileno() is None:
            data = file.read_at(extent.position, extent.length)
            file.close()
            self._send(head, data)
            return
        if isinstance(last, _Range) and shared:
            last.is_last_user = False
        self._enqueue(memoryview(head))
        self._enqueue(_Range(extent.vfs, file, extent.position, extent.length))
        self._flush()

    def _send(self, *parts: bytes | bytearray) -> None:
        for part in parts:
            if part:
                self._enqueue(memoryview(part))
        self._flush()

    def _enqueue(self, part: memoryview | _Range) -> None:
        if not self._output.queue:
            self._last_write_us = self._elapsed_us()
        self._output.queue.append(part)
        self._output.waiting_bytes += part.length if isinstance(part, _Range) else len(part)

    def _flush(self) -> None:
        if not self._writing and self._warming is None:
            self._writable()

    def _writable(self) -> None:
        """Write one turn's worth; called at once, and by the loop while there is more."""
        budget = _SLICE_BYTES
        try:
            while self._output.queue and budget > 0 and not self._closed:
                sent = self._write_some()
                if sent == 0:
                    return  # a disk thread reads ahead
                budget -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            if not isinstance(error, _GONE) and error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            self.close()
            return
        self._set_writing(bool(self._output.queue))
        if not self._output.queue and self._closing:
            self._shut_down()
        elif not self._reading and not self._closing:
            self._take_frames()

    def _write_some(self) -> int:
        part = self._output.queue[0]
        if isinstance(part, _Range):
            sent = self._send_range(part)
            if sent and not part.length:
                if part.is_last_user:
                    part.file.close()
                self._output.queue.popleft()
        else:
            more = socket.MSG_MORE if len(self._output.queue) > 1 else 0
            sent = self._socket.send(part, more)
            if sent == len(part):
                self._output.queue.popleft()
            else:
                self._output.queue[0] = part[sent:]
        if sent:
            self._output.waiting_bytes -= sent
            self._last_write_us = self._elapsed_us()
        return sent

    def _send_range(self, part: _Range) -> int:
        size = min(part.length, _SLICE_BYTES)
        fileno = part.file.fileno()
        assert fileno is not None
        if part.position + size > part.warm_end and not _is_cached(fileno, part.position, size):
            self._read_ahead(part, size)
            return 0
        sent = os.sendfile(self._socket.fileno(), fileno, part.position, size)
        if sent == 0:
            # The file is shorter than its index said: the frame cannot be finished.
            self.close()
            return 0
        part.position += sent
        part.length -= sent
        return sent

    def _read_ahead(self, part: _Range, size: int) -> None:
        self._warming = file = part.file
        self._set_writing(False)
        position = part.position

        def done() -> None:
            self._warming = None
            part.warm_end = position + size
            if self._closed:
                file.close()
            else:
                self._flush()

        self._owner.read_ahead(lambda: _touch(file, position, size), done)

    def _set_writing(self, wanted: bool) -> None:
        if wanted != self._writing and not self._closed:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._socket.fileno())

    # The end

    @property
    def progress(self) -> Progress:
        """What the server's sweep needs to see who is dead."""
        owes_bytes = not self._hello_done or self._decoder.in_frame or self._closing
        reading = owes_bytes and (self._reading or self._closing)
        stalled = bool(self._output.queue) and self._warming is None
        return Progress(self._last_read_us if reading else None, self._last_write_us if stalled else None)

    @property
    def said_hello(self) -> bool:
        """Whether the client has introduced itself."""
        return self._hello_done

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked is answered and written."""
        return not self._output.queue and not self.open_requests

    def finish(self) -> None:
        """Take no more requests; close once what is queued is written."""
        self._closing = True
        if not self._output.queue:
            self.close()

    def _shut_down(self) -> None:
        # Closing a socket with unread input resets it, and the error frame would be lost with it: so say that nothing
        # more comes, and let the client (or the sweep) close.
        if not self._shut:
            self._shut = True
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()

    def close(self) -> None:
        """Close now. Twice is fine."""
        if self._closed:
            return
        self._set_reading(False)
        self._set_writing(False)
        self._closed = True
        for part in self._output.queue:
            if isinstance(part, _Range) and part.file is not self._warming:
                part.file.close()
        self._output.queue.clear()
        self._socket.close()
        self._owner.connection_closed(self)


def _is_cached(fileno: int, position: int, size: int) -> bool:
    """Whether the ends and the middle of a range are in the page cache; True where the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    probe = bytearray(1)
    for place in (position, position + size // 2, position + size - 1):
        try:
            os.preadv(fileno, [probe], place, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # this file system does not know the flag
    return True


def _touch(file: File, position: int, size: int) -> None:
    """Read a range for the sake of the page cache, a piece at a time; in a disk thread."""
    end = position + size
    while position < end:
        length = min(end - position, 16 * _PAGE_BYTES)
        if not file.read_at(position, length):
            return
        position += length
