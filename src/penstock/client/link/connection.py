"""One TCP connection to a broker: drives a `Session` on an asyncio loop.

Rules: everything runs on one loop. A call ends with its answer, its deadline or the end of the connection, whichever
comes first; the answer to a cancelled call is ignored. A connection is retired if its login is no longer valid or its
broker had no cluster id: it takes no new calls and closes after the last answer in flight, so that the outcome of each
call is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import secrets
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.access.credentials import Credentials, shown_name
from penstock.access.users import GIVE_CREDENTIALS
from penstock.base import limits
from penstock.base.errors import HTTP_GREETING, NATS_GREETING, ErrorCode, OperationalError, RemoteError
from penstock.client.errors import NotABroker, TimedOut, Unauthenticated, Unavailable, specific
from penstock.client.link.addresses import DEFAULT_PORT, parse_server
from penstock.client.link.credentials import Show
from penstock.client.link.tls import plain, why
from penstock.messages import AuthenticateRequest, AuthenticateResponse, HelloResponse, Request, Response
from penstock.wire.session import Answered, Broken, Event, HelloReceived, Refused, Session, SessionState

Raw = bytes | bytearray | memoryview
Dialling = Callable[[str], dict[str, Any]]
"""Returns the keyword arguments for asyncio's `create_connection` to a host."""


class ConnectionLost(Unavailable):
    """The connection ended; `sent` is True if the broker may have received the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class NotProven(Unavailable):
    """The peer failed to authenticate itself: it is not the expected broker, or a faulty one."""


class Connection(asyncio.BufferedProtocol):
    """One connection; made by `open_connection`."""

    def __init__(self, session: Session, server: str) -> None:
        self.server = server
        self.names_cluster = True  # False if the broker has no cluster id yet
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._wakes_at_bytes = 1
        self._is_encrypted = False
        self._ready: asyncio.Future[HelloResponse] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[tuple[Response, bytes | memoryview]]] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_retired = False
        self._slot_waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._gone = self._loop.create_future()
        self._reason = f"the connection to the broker at {server} is closed"

    @property
    def is_open(self) -> bool:
        """True if a call may be tried."""
        return self._session.state is SessionState.READY and not self._is_retired

    @property
    def is_gone(self) -> bool:
        """True if the connection has ended."""
        return self._session.state is SessionState.CLOSED

    @property
    def is_idle(self) -> bool:
        """True if no request waits for its answer."""
        return self._session.in_flight == 0 and not self._slot_waiters

    def silent_s(self) -> float:
        """Return the seconds since the broker last sent anything while a request was in flight; 0 if none is."""
        if self._unread_bytes():
            self._session.data_arrived(self._loop.time())
        return self._session.silent_s(self._loop.time())

    async def say_hello(self, deadline_s: float) -> HelloResponse:
        """Exchange hellos; the first call on a new connection."""
        assert self._transport is not None
        self._transport.write(self._session.hello(self._loop.time(), deadline_s))
        self._set_timer()
        return await self._ready

    async def log_in(self, credentials: Credentials, hello: HelloResponse, deadline_s: float) -> HelloResponse:
        """Log in; return `hello` with the fields that only authenticated clients get.

        RemoteError unauthenticated: the broker refuses the login. NotProven: the broker does not prove that it knows
        this user, or violates the login protocol. OperationalError: an invalid seed.
        """
        login = credentials.proof(lambda: secrets.token_urlsafe(24))
        data = login.first()
        while True:
            try:
                answer, _ = await self.call(AuthenticateRequest(mechanism=login.mechanism, data=data), b"", deadline_s)
            except Unauthenticated as error:
                text = f"the broker at {self.server} refuses the login of {shown_name(credentials)}: {error.message}"
                raise Unauthenticated(error.code, text, **error.details) from None
            assert isinstance(answer, AuthenticateResponse)
            # A password proof takes a tenth of a second and more.
            take = partial(login.take, answer.data, is_done=answer.is_done)
            try:
                following = await self._loop.run_in_executor(None, take)
            except RemoteError as error:
                raise NotProven(f"the broker at {self.server} fails in its login: {error.message}") from None
            if following is None:
                return msgspec.structs.replace(hello, cluster_id=answer.cluster_id, nats_urls=answer.nats_urls)
            data = following

    async def call(self, request: Request, raw: Raw, deadline_s: float) -> tuple[Response, bytes | memoryview]:
        """Return the answer and its raw part. RemoteError: refused or too late; ConnectionLost: connection ended."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._wait_for_slot()
        except TimeoutError:
            raise TimedOut("the time-out passed before the request could be sent: too many are in flight") from None
        if not self.is_open:
            raise self._refused() if self._is_retired else ConnectionLost(self._reason, sent=False)
        assert self._transport is not None
        correlation_id, parts = self._session.request(request, self._loop.time(), deadline_s, raw)
        answer: asyncio.Future[tuple[Response, bytes | memoryview]] = self._loop.create_future()
        self._answers[correlation_id] = answer
        self._transport.writelines(parts)
        self._set_timer()
        try:
            return await answer
        finally:
            if self._answers.pop(correlation_id, None) is not None:
                self._session.give_up(correlation_id)
            if self._is_retired and not self._answers:
                self.close()

    async def _wait_for_slot(self) -> None:
        # Check both again after each wait: another call may have filled the socket or taken the slot.
        while self.is_open and (self._session.is_full or not self._writable.is_set()):
            if not self._writable.is_set():
                await self._writable.wait()
                continue
            waiter = self._loop.create_future()
            self._slot_waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                self._wake_slot_waiters()  # the freed slot may have been meant for this call
                raise

    def retire(self, refusal: RemoteError) -> None:
        """Accept no more calls: the broker would refuse them with `refusal`. Close after the last answer in flight."""
        if self._is_retired or self.is_gone:
            return
        self._is_retired = True
        self._reason = refusal.message
        self._wake_slot_waiters()
        if not self._answers:
            self.close()

    def _refused(self) -> RemoteError:
        return specific(RemoteError(ErrorCode.UNAUTHENTICATED, self._reason))

    def close(self) -> None:
        """Close the connection; calls in flight fail."""
        if self._session.state is not SessionState.CLOSED:
            self._handle(self._session.closed(RemoteError(ErrorCode.STOPPING, "the client was closed")))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._gone)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is established."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        if self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: return the buffer for the next read."""
        return self._session.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: `nbytes` bytes were read."""
        for event in self._session.received(nbytes, self._loop.time()):
            self._handle(event)
        self._wake_slot_waiters()
        self._choose_wake_up()

    def _choose_wake_up(self) -> None:
        # By default the kernel wakes the loop for the first bytes, and so once for each piece that the broker sends. A
        # large answer cannot be used before its end. (A full receive buffer and a lost connection wake the loop too.)
        wanted = min(limits.RECEIVE_AT_ONCE_BYTES, self._session.missing_raw_bytes)
        if self._is_encrypted:
            # All but one byte of an incomplete TLS record may already have been taken out of the socket.
            missing = self._session.missing_raw_bytes - limits.TLS_SENT_RECORD_BYTES_MAX
            wanted = min(limits.TLS_RECEIVE_AT_ONCE_BYTES, missing)
        self._wake_up_at(max(1, wanted))

    def _wake_up_at(self, count: int) -> None:
        if count != self._wakes_at_bytes and self._socket is not None:
            self._wakes_at_bytes = count
            with contextlib.suppress(OSError):  # kernels without SO_RCVLOWAT only wake the loop more often
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _unread_bytes(self) -> int:
        """Return the number of bytes in the socket that are too few to wake the loop."""
        if self._socket is None or self._wakes_at_bytes == 1:
            return 0
        try:
            found = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(found, sys.byteorder)

    def pause_writing(self) -> None:
        """asyncio: the write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the write buffer has room again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        if self._session.state is not SessionState.CLOSED:
            reason = f"the connection to the broker at {self.server} broke: {why(exc) or exc or 'the broker closed it'}"
            self._handle(self._session.closed(RemoteError(ErrorCode.STOPPING, reason)))
        self._writable.set()
        if not self._gone.done():
            self._gone.set_result(None)

    def _handle(self, event: Event) -> None:
        match event:
            case HelloReceived(hello):
                if not self._ready.done():
                    self._ready.set_result(hello)
            case Answered(correlation_id, response, raw):
                answer = self._answers.pop(correlation_id, None)
                if answer is not None and not answer.done():
                    answer.set_result((response, raw))
            case Refused(correlation_id, error):
                answer = self._answers.pop(correlation_id, None)
                if answer is not None and not answer.done():
                    answer.set_exception(specific(error))
            case Broken(error, _):
                self._break(specific(error))

    def _break(self, error: RemoteError) -> None:
        self._reason = error.message
        # A broker that refuses the connection gives its reason; any other error means that the connection broke.
        failure: Exception = error
        if error.code in (ErrorCode.STOPPING, ErrorCode.TIMED_OUT, ErrorCode.DAMAGED_FRAME):
            failure = ConnectionLost(error.message, sent=True)
        if not self._ready.done():
            self._ready.set_exception(failure)
            self._ready.exception()  # mark it as retrieved: there may be no waiter
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(failure)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._wake_slot_waiters()

    def _wake_slot_waiters(self) -> None:
        free = len(self._slot_waiters)
        if self.is_open:
            free = self._session.in_flight_max - self._session.in_flight
        while self._slot_waiters and free > 0:
            waiter = self._slot_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def _set_timer(self) -> None:
        deadline_s = self._session.next_deadline_s()
        if self._timer is not None:
            if deadline_s is not None and self._timer.when() <= deadline_s:
                return  # it fires in time and is then set again
            self._timer.cancel()
        self._timer = None if deadline_s is None else self._loop.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time() + 0.001  # the loop may fire timers early, by its clock's resolution
        if self._unread_bytes():
            self._session.data_arrived(now_s)
            self._wake_up_at(1)  # read them at once, so that any further bytes are noticed
        for event in self._session.expire(now_s):
            self._handle(event)
        if self._session.state is not SessionState.CLOSED:
            self._set_timer()


async def open_connection(
    server: str,
    session: Session,
    deadline_s: float,
    show: Show = lambda: None,
    dialling: Dialling = plain,
) -> tuple[Connection, HelloResponse]:
    """Open a connection, exchange hellos, and log in if the broker requires it.

    Unavailable, TimedOut or RemoteError say why that failed; OperationalError: the credentials cannot be read.
    """
    host, port = parse_server(server)
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    is_greeted = False

    def make() -> Connection:
        nonlocal connection
        connection = Connection(session, server)
        return connection

    try:
        async with asyncio.timeout_at(deadline_s):
            await loop.create_connection(make, host, port, **dialling(host))
            assert connection is not None
            hello = await connection.say_hello(deadline_s + 1)
            if hello.mechanisms:
                if (credentials := show()) is None:
                    text = f"the broker at {server} asks for a login: {GIVE_CREDENTIALS}"
                    raise RemoteError(ErrorCode.UNAUTHENTICATED, text)
                hello = await connection.log_in(credentials, hello, deadline_s)
        is_greeted = True
        return connection, hello
    except TimeoutError:
        raise TimedOut(f"the broker at {server} did not answer in time") from None
    except RemoteError as error:
        if error.code == ErrorCode.UNAUTHENTICATED:
            raise specific(error) from None
        if error.code in (ErrorCode.BAD_FRAME, ErrorCode.TOO_LARGE):
            text = f"what listens at {server} does not speak Penstock's protocol: {error.message}"
            if error.message.startswith(NATS_GREETING):
                text = f"this is a NATS server, and no broker: {server}; a broker listens on another port, usually"
                text = f"{text} {DEFAULT_PORT}"
            elif error.message.startswith(HTTP_GREETING):
                text = f"an HTTP server listens at {server}: perhaps a broker's port for metrics and health (--http); "
                text += f"a broker listens for clients on another port, usually {DEFAULT_PORT}"
            raise NotABroker(text) from None
        raise
    except OSError as error:
        if isinstance(error, OperationalError):
            raise
        if (mistake := why(error)) is not None:
            raise Unavailable(f"no TLS with the broker at {server}: {mistake}") from None
        at = server if server.rpartition(":")[2] == str(port) else f"{server}, port {port}"
        text = f"no broker answers at {at}: {_reason(error)}"
        raise Unavailable(
            f"{text}; start one with `penstock serve`, or say where it is (server=, PENSTOCK_SERVER)"
        ) from None
    finally:
        # Also if the time-out or a cancellation came together with the hello: the connection would have no owner.
        if connection is not None and not is_greeted:
            connection.close()


def _reason(error: OSError) -> str:
    with contextlib.suppress(IndexError, TypeError):
        if isinstance(error, ConnectionRefusedError):
            return "connection refused"
    return error.strerror or str(error)


def uninitialised(size: int) -> memoryview:
    """Return uninitialised memory for a large answer."""
    # Arrow's allocator keeps the pages of large buffers for reuse (measured: no page faults, against about 5 a buffer
    # with malloc), and does not zero them first.
    import pyarrow as pa

    return memoryview(pa.allocate_buffer(size))
