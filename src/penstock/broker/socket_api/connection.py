"""Connection of one client or of another broker: reads frames and writes answers (`output.py`).

Rules: nothing here blocks the event loop. Socket and file errors never leave this module; they close this one
connection. Backpressure: while too many requests are open or too many bytes wait to be written, no request is read, so
the client's socket fills and not the broker's memory. A frame that does not arrive whole with one small read reserves
its size in the buffers shared by all connections before more of it is read, and waits unread while there is no room.
Frames are taken one by one when the server grants a turn: pipelined requests of one client delay neither others nor
NATS. The client's time-outs do not run while nothing is read. A half-closed client gets its pending answers, then is
closed; its connection may be closed earlier to make room, since a disconnected client looks the same until we send.

`ConnectionHandshake` decides who the peer is and what it may request. A peer hello makes this the connection of another
broker; only then are requests between brokers accepted. Such a connection has buffers and limits of its own, so that
clients do not delay it, and must not be silent: an idle broker sends peer hellos. If its peer hello is refused, it
is closed. The first frame decides whether all following frames and answers have checksums; between brokers they must.

| what                                   | what happens                                                     |
|----------------------------------------|------------------------------------------------------------------|
| malformed, damaged or oversized frame  | an error frame, then the connection is closed                    |
| no hello within HELLO_TIMEOUT_MS       | closed, also if a part of it arrived                             |
| no login within LOGIN_TIMEOUT_MS       | closed; between its requests a client may be silent: it hashes   |
| half a frame of a login, then silence  | closed after HELLO_TIMEOUT_MS                                    |
| half a frame and then silence          | closed after WRITE_STALL_MS_MAX                                  |
| half a frame, and the rest slowly      | closed after that and its size at TRANSFER_BYTES_PER_S_MIN       |
| answers that the client does not take  | closed after WRITE_STALL_MS_MAX without progress (see `Output`)  |
| a login that is not valid any more     | its requests are refused; closed after REVOKED_IDLE_MS idle      |
| a broker that is silent                | closed after PEER_SILENCE_MS_MAX                                 |
| no memory or file left for an answer   | `overloaded`                                                     |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.access.handshake import Principal, sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import watch_peer
from penstock.broker.socket_api.connection_handshake import Authenticator, ConnectionHandshake
from penstock.broker.socket_api.output import FileRangeError, Output, WriteOutcome
from penstock.broker.socket_api.quotas import Usage
from penstock.broker.socket_api.request_meters import RequestMeters
from penstock.broker.socket_api.shared_budget import BudgetWaiter, SharedBudget, UsersBudget
from penstock.broker.socket_api.socket_watch import SocketWatch
from penstock.broker.transport.transport import HandshakeError, Transport
from penstock.messages import Api, PeerHelloRequest, PeerHelloResponse, Request, Response
from penstock.node.partition.partition_errors import read_failed
from penstock.node.step import FileRange, Payload
from penstock.wire import Frame, FrameDecoder, decode_request, encode_answer, encode_error
from penstock.wire.bodies import answer_body
from penstock.wire.encryption import FrameCipher

_log = logging.getLogger("penstock.server")

_JOINED_ANSWER_BYTES_MAX = 64 * limits.KIB  # an answer up to this size is sent in one buffer with its head
_WRITE_QUEUE_BYTES_MAX = 128 * limits.MIB  # unsent answers per connection; beyond it no request is read
_WRITE_QUEUE_PARTS_MAX = 256  # the same as a number of parts: a file range holds its file open
_READ_BYTES = 256 * limits.KIB


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One open request and the destination of its answer."""

    connection: Connection
    frame: Frame  # only the head; body and raw are dropped
    since_us: int = 0  # arrival, elapsed time

    @property
    def api(self) -> int:
        """Number of the requested API."""
        return self.frame.api

    @property
    def correlation_id(self) -> int:
        return self.frame.correlation_id


class ConnectionOwner(Protocol):
    """The server that a connection belongs to."""

    buffers: SharedBudget
    """Memory for incomplete frames and for answers."""
    peer_buffers: SharedBudget
    """The same for connections of brokers."""
    files: SharedBudget
    """Files that answers hold open."""
    requests: RequestMeters
    """Latencies and errors of requests."""
    guard: Authenticator
    """Authentication of clients and brokers."""
    usage: Usage
    """Recent use by users, for quotas."""

    def frames_waiting(self, connection: Connection, *, at_once: bool = False) -> None:
        """Call the connection's `take_frame` once, in its turn; `at_once`: before returning, unless others
        are queued.
        """

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """Handle a valid request; exactly one `reply` must follow."""

    def login_failed(self, connection: Connection, error: RemoteError) -> None:
        """A login has failed; the connection is closed."""

    def denied(self, caller: Caller, error: RemoteError) -> None:
        """A request was refused for lack of permission."""

    def login_answered(self, connection: Connection) -> None:
        """A login has advanced; it is complete if `who` is set."""

    def peer_refused(self, connection: Connection, hello: PeerHelloRequest) -> RemoteError | None:
        """Return why this peer hello is refused, or None."""

    def peer_came(self, connection: Connection, broker_id: BrokerId) -> None:
        """The connection belongs to that broker from now on."""

    def frame_damaged(self, connection: Connection, error: RemoteError) -> None:
        """A checksum of a frame does not match; the connection is closed."""

    def callers_gone(self, callers: list[Caller]) -> None:
        """These requests need no answer any more."""

    def half_closed(self, connection: Connection) -> None:
        """The client has closed its sending half and is owed answers; or it has disconnected, which looks the same."""

    def connection_closed(self, connection: Connection) -> None:
        """The connection is closed; `connection.open_requests` will not be answered."""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Run `run` on a disk thread on behalf of `user`, then call `done` on the loop."""


class Connection:
    """One connection of a client or broker; owns its socket."""

    def __init__(
        self,
        transport: Transport,
        peer: str,
        handshake: ConnectionHandshake,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        elapsed_us: Callable[[], int],
    ) -> None:
        self.peer = peer
        self.open_requests: dict[int, Caller] = {}
        self.data_dir_id = self.process = ""  # of a broker, from its peer hello
        self.transport = transport
        self._owner = owner
        self._elapsed_us = elapsed_us
        self._decoder = FrameDecoder(limits.HELLO_BYTES_MAX)
        self.handshake = handshake
        self._buffers = UsersBudget(owner.buffers)
        self._files = UsersBudget(owner.files)
        self._output = Output(transport, self._buffers, self._files, elapsed_us)
        self._cipher: FrameCipher | None = None  # from a broker's login on
        self._closing = False  # no more requests are taken; closed once the output is written
        self._shut = False
        self._closed = False
        self._watch = SocketWatch(loop, transport, self._readable, self._writable)
        self._in_line = False  # queued at the server: `take_frame` will be called
        self._ended = False  # the client has closed its sending half
        self._refused_as_nobody = 0
        self._waiting: BudgetWaiter | None = None  # for room in the shared buffers
        self._reserved_bytes = 0  # of the shared buffers, for the frame being read
        self._made_us = self._last_read_us = elapsed_us()
        self._looked_us = 0  # last check that the login is still valid, while idle
        # start of the incomplete frame, or of the wait for the hello
        self._frame_start_us: int | None = self._last_read_us
        self._paused_us = self._last_read_us  # since when nothing is read
        self._set_reading(True)

    @property
    def who(self) -> Principal | None:
        """The user that has logged in, or None."""
        return self.handshake.who

    @property
    def broker_id(self) -> BrokerId | None:
        """Id of the other broker, from its peer hello; None for a client."""
        return self.handshake.broker_id

    @property
    def is_peer(self) -> bool:
        """True if the peer hello was answered."""
        return self.handshake.is_peer

    # Reading

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._watch.reading and not self._closed:
            now_us = self._elapsed_us()
            if wanted:
                # This side paused. A frame keeps the time it had used, so that pauses give a slow client no extra time.
                self._last_read_us = now_us
                if self._frame_start_us is not None:
                    self._frame_start_us = min(now_us, self._frame_start_us + now_us - self._paused_us)
            else:
                self._paused_us = now_us
            self._watch.read(wanted)

    def _readable(self) -> None:
        if self._in_line:
            self._set_reading(False)  # until the bytes read so far are taken
            return
        missing = self._decoder.missing_bytes if self._reserved_bytes else None
        try:
            # Never read beyond a frame with a reservation: the bytes behind it have none yet.
            data = self.transport.recv(limits.UNRESERVED_READ_BYTES if missing is None else min(missing, _READ_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except HandshakeError:
            self._begin_end()
            self._shut_down()
            return
        except OSError:
            self.close()
            return
        if not data:
            self._ended = True
            self._set_reading(False)
            self._look_for_frames()
            return
        if self._closing:
            return  # discard input of a refused client until it gets the error
        self._last_read_us = self._elapsed_us()
        self._decoder.receive(data)
        self._look_for_frames(at_once=self.is_peer)  # acks may wait for requests of another broker

    def _look_for_frames(self, *, at_once: bool = False) -> None:
        if not self._in_line and self._waiting is None and not self._closed:
            self._in_line = True
            self._owner.frames_waiting(self, at_once=at_once)

    def take_frame(self) -> None:
        """Take one complete request and queue again; without a complete one, read on."""
        self._in_line = False
        if self._closed:
            return
        if self._closing:
            if self._ended and not self._output:
                self.close()
            return
        if self._is_full:
            self._set_reading(False)
            return
        if self._buffers.is_full and not self._reserved_bytes:
            self._wait_for(0)
            return
        try:
            frame = self._decoder.next_frame()
            if frame is not None and self._cipher is not None:
                frame = self._cipher.decrypted(frame)
        except RemoteError as error:
            if self.handshake.is_checked and error.code == ErrorCode.DAMAGED_FRAME:
                self._owner.frame_damaged(self, error)
            self._refuse(Frame(0, 0, 0, b"", b"", self.handshake.is_checked), error)
            return
        if frame is None:
            self._await_rest()
            return
        self._frame_start_us = None
        self._give_reserved()
        self._take_frame(frame)
        if self._decoder.buffered_bytes or self._ended or not self._watch.reading:
            self._look_for_frames()

    def _await_rest(self) -> None:
        """Read on; once the frame's length is known, only after it is reserved in the shared buffers."""
        if self._ended:
            if not self.open_requests and not self._output:
                self.close()
            else:
                self._owner.half_closed(self)
            return
        missing = self._decoder.missing_bytes
        if self._frame_start_us is None and self._decoder.in_frame:
            self._frame_start_us = self._elapsed_us()
        if missing is not None and not self._reserved_bytes:
            size = self._decoder.buffered_bytes + missing
            if not self._buffers.take(size):
                self._wait_for(size)
                return
            self._reserved_bytes = size
        self._set_reading(True)

    def _wait_for(self, size: int) -> None:
        self._set_reading(False)

        def granted() -> None:
            self._waiting = None
            self._reserved_bytes += size
            self._look_for_frames()

        self._waiting = self._buffers.wait(size, granted)

    def _give_reserved(self) -> None:
        size, self._reserved_bytes = self._reserved_bytes, 0
        if size:
            self._buffers.give(size)

    @property
    def _is_full(self) -> bool:
        if self._output.waiting_bytes > _WRITE_QUEUE_BYTES_MAX:
            return True
        if self.is_peer:
            # A broker's next request must not wait for the many small parts of an answer; `bytes_max` bounds them.
            return len(self.open_requests) >= limits.PEER_REQUESTS_MAX + 1
        return len(self.open_requests) >= limits.IN_FLIGHT_REQUESTS_MAX or len(self._output) > _WRITE_QUEUE_PARTS_MAX

    def _take_frame(self, frame: Frame) -> None:
        greeting, caller = self.handshake, Caller(self, frame._replace(body=b"", raw=b""), self._last_read_us)
        try:
            greeting.check_frame(frame)
            if frame.correlation_id in self.open_requests:
                text = f"correlation id {frame.correlation_id} is in use by a request that is not answered yet"
                raise RemoteError(ErrorCode.BAD_FRAME, text)
        except RemoteError as error:
            self._refuse(frame, error)
            return
        try:
            request = decode_request(frame)
        except RemoteError as error:
            if greeting.is_open:
                self._send_error(caller, error)
            else:
                self._refuse(frame, error)
            return
        try:
            if (refusal := self.transport.refusal(request, is_peer=self.is_peer)) is not None:
                raise refusal
            answer = greeting.take(request)
            if isinstance(request, PeerHelloRequest) and (refusal := self._owner.peer_refused(self, request)):
                raise refusal
        except RemoteError as error:
            if error.code == ErrorCode.UNAUTHENTICATED:
                self._owner.login_failed(self, error)
            self._refuse(frame, error)
            return
        if greeting.is_open:
            added = 0 if self._cipher is None else limits.FRAME_ENCRYPTION_BYTES
            self._decoder.frame_bytes_max = limits.REQUEST_BODY_BYTES_MAX + limits.APPEND_BYTES_MAX + added
            self._decoder.body_bytes_max = limits.REQUEST_BODY_BYTES_MAX + added
        if answer is not None:
            self._send_response(caller, answer, None)
            self._cipher = greeting.cipher  # the answer above was the last one in clear text
            if self.who is not None:
                self._count_for(sharer_of(self.who))
            self._owner.login_answered(self)
            return
        try:
            greeting.check_allowed(frame.api)
        except RemoteError as error:
            self._send_error(caller, error)
            return
        if self.who is not None and (refusal := self._owner.usage.asked(self.who, request, len(frame.raw))) is not None:
            self._send_error(caller, refusal)
            return
        if isinstance(request, PeerHelloRequest):
            self.data_dir_id, self.process = request.data_dir_id, request.process
            self._introduced(request.broker_id)
        self.open_requests[frame.correlation_id] = caller
        self._owner.request_received(caller, request, frame.raw)

    def _count_for(self, user: str) -> None:
        """Account this connection's buffers and files to `user` from now on."""
        assert not self._reserved_bytes  # a whole frame has just been taken
        assert self._waiting is None
        self._buffers, self._files = self._buffers.of(user), self._files.of(user)
        self._output.use(self._buffers, self._files)

    def _introduced(self, broker_id: BrokerId) -> None:
        """Account this connection to the broker named in the peer hello."""
        if self.broker_id is None:
            assert not self._reserved_bytes  # a whole frame has just been taken
            self.handshake.introduced(broker_id)
            self._buffers = UsersBudget(self._owner.peer_buffers)
            self._output.use(self._buffers, self._files)
            with contextlib.suppress(OSError):  # disconnected already; the next read finds it
                watch_peer(self.transport.sock)

    def _refuse(self, frame: Frame, error: RemoteError) -> None:
        """Send the error and close: after a frame that cannot be trusted, the rest of the stream cannot be either."""
        self._begin_end()
        self._give_reserved()
        self._send_error(Caller(self, frame), error)
        self._set_reading(not self._ended)

    # Writing

    def reply(self, caller: Caller, response: Response | RemoteError, payload: Payload, looked_bytes: int = 0) -> None:
        """Answer one open request; `looked_bytes` is how many bytes the broker scanned for it."""
        if self._closed or self.open_requests.pop(caller.correlation_id, None) is not caller:
            return
        if isinstance(response, RemoteError):
            if self.who is not None:
                self._owner.usage.looked(self.who, looked_bytes)
            self._send_error(caller, response)
            if response.code == ErrorCode.UNAUTHENTICATED:
                self._is_nobody(response)
            elif response.code == ErrorCode.NOT_AUTHORIZED:
                self._owner.denied(caller, response)
            # A client that logs in again does so on another connection and closes this one once it has its answers.
            if caller.api == Api.PEER_HELLO or self._refused_as_nobody > limits.IN_FLIGHT_REQUESTS_MAX:
                self.finish()
        else:
            if isinstance(response, PeerHelloResponse) and not self.is_peer:
                assert self.broker_id is not None
                self.handshake.accepted()
                self._owner.peer_came(self, self.broker_id)
            self._send_response(caller, response, payload, looked_bytes)
        if not self._watch.reading and not self._closing:
            self._look_for_frames()

    def _is_nobody(self, refusal: RemoteError) -> None:
        """Answer waiting fetches at once if the login is not valid any more."""
        self._refused_as_nobody += 1
        waiting = [one for one in self.open_requests.values() if one.api == Api.FETCH]
        for one in waiting:
            del self.open_requests[one.correlation_id]
            self._send_error(one, refusal)
        if waiting:
            self._owner.callers_gone(waiting)

    def _send_response(self, caller: Caller, response: Response, payload: Payload, looked_bytes: int = 0) -> None:
        pieces = payload if isinstance(payload, tuple) else () if payload is None else (payload,)
        raw_bytes = sum(piece.length if isinstance(piece, FileRange) else len(piece) for piece in pieces)
        if self.who is not None:
            told = self._owner.usage.answered(self.who, response, raw_bytes, looked_bytes)
            if isinstance(told, RemoteError):
                self._send_error(caller, told)
                return
            response = told
        memory = [piece for piece in pieces if not isinstance(piece, FileRange)]
        is_in_memory = len(memory) == len(pieces)
        if self._cipher is not None and is_in_memory:
            whole = self._encrypted(self._cipher, caller.frame, response, memory)
            self._output.add(*((b"".join(whole),) if raw_bytes <= _JOINED_ANSWER_BYTES_MAX else whole))
            self._flush()
            return
        head = b""
        if self._cipher is None:
            head = encode_answer(caller.frame, response, raw_bytes, memory if is_in_memory else None)
        if is_in_memory and 0 < raw_bytes <= _JOINED_ANSWER_BYTES_MAX:
            head, pieces = b"", (b"".join((head, *memory)),)  # one system call
        try:
            parts = self._output.prepare(*pieces)
        except OSError as error:
            self._send_error(caller, read_failed(error))
            return
        if parts is None:
            text = "too many clients have not taken their answers yet; ask again in a moment"
            self._send_error(caller, RemoteError(ErrorCode.OVERLOADED, text))
            return
        if self._cipher is not None:  # encrypt only once it is certain to be sent: the cipher counts frames
            (head,) = self._encrypted(self._cipher, caller.frame, response, clear_bytes=raw_bytes)
        self._output.send(head, parts)
        self._flush()

    @staticmethod
    def _encrypted(
        cipher: FrameCipher,
        frame: Frame,
        answer: Response | RemoteError,
        raw: Iterable[bytes | bytearray] = (),
        clear_bytes: int = 0,
    ) -> tuple[bytes, ...]:
        body = answer_body(answer)
        return cipher.encrypted(frame.api, frame.version, frame.correlation_id, body, raw, clear_bytes)

    def _send_error(self, caller: Caller, error: RemoteError) -> None:
        self._owner.requests.failed(caller.api, error.code)
        if self._cipher is not None:
            self._output.add(*self._encrypted(self._cipher, caller.frame, error))
        else:
            self._output.add(encode_answer(caller.frame, error))
        self._flush()

    def _flush(self) -> None:
        if not self._watch.writing and self._output.cold is None:
            self._writable()

    def _writable(self) -> None:
        """Write one turn's worth; called directly, and by the loop while there is more."""
        try:
            written = self._output.write()
        except OSError as error:
            self._fail(error)
            return
        self._watch.write(written is WriteOutcome.MORE)
        if written is WriteOutcome.COLD:
            self._read_ahead()
        elif written is WriteOutcome.DONE and self._closing:
            self._shut_down()
        elif not self._watch.reading and not self._closing:
            self._look_for_frames()

    def _read_ahead(self) -> None:
        cold = self._output.cold
        assert cold is not None

        def done(error: Exception | None) -> None:
            try:
                self._output.warmed(error)
            except OSError as failure:
                self._fail(failure)
                return
            if not self._closed:
                self._flush()

        self._owner.read_ahead(cold.read, done, sharer_of(self.who))

    def _fail(self, error: OSError) -> None:
        """Close after a write error; an answer may be cut off in the middle."""
        if isinstance(error, FileRangeError):
            _log.error("closing %s: %s", self.peer, error.strerror)
        elif not isinstance(error, ConnectionError):
            _log.info("closing %s: %s", self.peer, error)
        self.close()

    # The end

    def overdue(self, now_us: int) -> str | None:
        """Return why the server's sweep should close this connection; None if it meets its time-outs."""
        owes_bytes = self.handshake.is_new or self._decoder.in_frame or self._closing
        if owes_bytes and (self._watch.reading or self._closing):
            patience_ms = limits.WRITE_STALL_MS_MAX if self.handshake.is_open else limits.HELLO_TIMEOUT_MS
            if now_us - self._last_read_us > patience_ms * 1_000:
                return f"it sent half a request and then nothing for {patience_ms} ms"
            if self._frame_start_us is not None:
                patience_ms += self._reserved_bytes * 1_000 // limits.TRANSFER_BYTES_PER_S_MIN
                if now_us - self._frame_start_us > patience_ms * 1_000:
                    return f"it sent a request too slowly, {self._decoder.buffered_bytes} bytes in {patience_ms} ms"
        if not self.handshake.is_open and now_us - self._made_us > limits.LOGIN_TIMEOUT_MS * 1_000:
            return f"no login within {limits.LOGIN_TIMEOUT_MS} ms"
        if self.is_peer and self._watch.reading and now_us - self._last_read_us > limits.PEER_SILENCE_MS_MAX * 1_000:
            return f"broker {self.broker_id} said nothing for {limits.PEER_SILENCE_MS_MAX} ms"
        if self._output.is_stalled(now_us):
            return f"it took no answer for {limits.WRITE_STALL_MS_MAX} ms, or too little of it"
        if self._is_revoked(now_us):
            return "its login is not valid any more, and it is idle"
        return None

    def _is_revoked(self, now_us: int) -> bool:
        """True if an idle connection's login is not valid any more; checked rarely, since there may be many
        connections.
        """
        idle_since_us = max(self._last_read_us, self._looked_us)
        if self.who is None or self.open_requests or now_us - idle_since_us <= limits.REVOKED_IDLE_MS * 1_000:
            return False
        self._looked_us = now_us
        return not self._owner.guard.counts(self.who)

    def finish(self) -> None:
        """Take no more requests; close once the queued output is written."""
        self._begin_end()
        if not self._output:
            self.close()

    def _begin_end(self) -> None:
        self._closing = True
        # The client gets a fresh time-out for its answers: this side may have paused reading before.
        self._last_read_us = self._elapsed_us()
        self._frame_start_us = None

    def _shut_down(self) -> None:
        if self._ended:
            self.close()
            return
        # Closing a socket with unread input resets it and loses the error frame: shut down the sending half and let the
        # client, or the sweep, close.
        if not self._shut:
            self._shut = True
            try:
                self.transport.shut_down()
            except OSError:
                self.close()

    def give_way(self) -> None:
        """Send the overload error if the socket takes it at once, then close."""
        if self.handshake.overload is not None and not self._closed:
            with contextlib.suppress(OSError):  # closed in any case
                self.transport.send(encode_error(Api.HELLO, 1, 0, self.handshake.overload))
        self.close()

    def close(self) -> None:
        """Close now; idempotent."""
        if self._closed:
            return
        self._watch.close()
        self._closed = True
        self._output.drop()
        if self._waiting is not None:
            self._buffers.leave(self._waiting)
            self._waiting = None
        self._give_reserved()
        with contextlib.suppress(OSError):  # network errors do not matter here
            self.transport.close()
        self._owner.connection_closed(self)
