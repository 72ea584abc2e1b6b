"""One connection to another broker: identification, requests, and liveness.

Rules: nothing received is trusted. Errors do not leave this module; they end the connection, with a reason. Requests
are pipelined; a peer that does not take or answer them costs at most PEER_WRITE_QUEUE_BYTES_MAX and PEER_REQUESTS_MAX.
A peer that has been silent for a while gets another peer hello, so that its loss is noticed without other requests. It
gets one as well while this side sends nothing because a large answer is arriving: the peer would take the silence for
our end. While a large answer arrives fast enough, the time-outs of answers are suspended, so that requests behind it
keep theirs: each answer delays the others by at most its size at TRANSFER_BYTES_PER_S_MIN. Time passes only in `sweep`,
which the owner calls once a second.

| state       | on                                  | becomes                                                    |
|-------------|-------------------------------------|------------------------------------------------------------|
| CONNECTING  | the socket is connected             | GREETING: hello is sent                                    |
| GREETING    | the answer to hello                 | INTRODUCING: peer hello is sent; or                        |
|             |                                     | PROVING: a login, if both have a cluster secret            |
| PROVING     | the first challenge                 | PROVING: the proof is sent                                 |
| PROVING     | done, and the peer has proved itself | INTRODUCING: peer hello is sent; all is encrypted         |
| INTRODUCING | the expected broker of our cluster  | UP                                                         |
| UP          | an answer                           | UP: the answer to a token, or to a peer hello              |
| any         | time-out, silence, garbage, refusal | ENDED                                                      |
| any         | another broker, another cluster     | ENDED                                                      |
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from penstock.access.handshake import ClientHandshake
from penstock.base import limits
from penstock.base.errors import NATS_GREETING, ErrorCode, RemoteError
from penstock.base.ids import BrokerId, are_different_clusters
from penstock.base.tls_errors import Words, tls_mistake
from penstock.broker.security.authentication import BrokerAuthenticator
from penstock.messages import (
    AuthenticateRequest,
    AuthenticateResponse,
    HelloResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    Request,
    Response,
)
from penstock.node.step import PeerRequest
from penstock.wire.encryption import FrameCipher
from penstock.wire.session import PEER_NAME, Answered, Broken, Event, HelloReceived, Refused, Session

PEER_WRITE_QUEUE_BYTES_MAX = 32 * limits.MIB  # unsent requests to a peer; beyond it the connection is closed
# Interval of signs of life while a large answer arrives, so that the sender does not time out
_PEER_KEEPALIVE_MS = 2_500
PEER_RECEIVED_MS = 100  # interval of progress reports on a large answer
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux


class PeerState(Enum):
    """State of a connection; see the module's table."""

    CONNECTING = auto()
    GREETING = auto()
    PROVING = auto()
    INTRODUCING = auto()
    UP = auto()
    ENDED = auto()


class PeerCalls(Protocol):
    """Receives what a connection delivers."""

    def up(self, cluster_id: str) -> None:
        """The peer is the expected broker; `cluster_id` is its cluster, or empty. `send` works once this has
        returned.
        """

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        """The answer to the request with that token."""

    def receiving(self, size_bytes: int) -> None:
        """`size_bytes` more of a large answer have arrived, 0 when it begins; called every PEER_RECEIVED_MS."""

    def ended(self) -> None:
        """The connection has ended; `end_reason` has the reason."""


_WORDS = Words(
    authority="tls_ca", certificate="tls_cert", name="tls_ignore_hosts", plain="give it a certificate (tls_cert), too"
)


def dialling_mistake(error: Exception) -> str:
    """Return why a broker could not be reached, or its connection was lost."""
    if isinstance(error, ConnectionRefusedError):  # asyncio's text is about its call
        return "connection refused"
    return tls_mistake(error, _WORDS) or getattr(error, "strerror", None) or str(error)


def watch_peer(sock: socket.socket) -> None:
    """Have the kernel close a connection to a broker that has vanished. Raise OSError if it is closed already."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _TCP_USER_TIMEOUT is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, limits.PEER_SILENCE_MS_MAX)


class PeerConnection(asyncio.BufferedProtocol):
    """One connection to another broker. `hello`: this broker's peer hello; `peer_id`: the expected broker, if known."""

    def __init__(
        self,
        peer_id: BrokerId | None,
        hello: PeerHelloRequest,
        calls: PeerCalls,
        elapsed_us: Callable[[], int],
        guarding: BrokerAuthenticator | None = None,
    ) -> None:
        self.is_proven = False  # the peer knows the cluster secret
        self._guarding = guarding
        self._login: ClientHandshake | None = None  # the login in progress
        self.state = PeerState.CONNECTING
        self.end_reason = ""
        self.is_impostor = False  # it ended because the peer does not know the cluster secret
        self.is_damaged = False  # it ended because of a corrupt frame, in either direction
        self.refusal: RemoteError | None = None  # the reason why the two brokers are not peers, if known
        self._peer_id = peer_id
        self._hello = hello
        self._calls = calls
        self._elapsed_us = elapsed_us
        self._session = Session(f"{PEER_NAME} {hello.broker_id}", hello.broker_version)
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._tokens: dict[int, int] = {}  # correlation id → token
        self._asked_who: set[int] = set()  # correlation ids of peer hellos without an answer
        self._heard_us = self._said_us = elapsed_us()
        self._large_bytes = 0  # received of a large answer since the last `receiving`
        self._large_us = 0  # time of the last `receiving`
        self._held_us = 0  # total time for which the answers' time-outs were suspended
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_gone(self) -> None:
        """Return once the socket is closed; only for a connection that was connected."""
        await asyncio.shield(self._gone)

    def send(self, request: PeerRequest) -> None:
        """Send a request; dropped unless the connection is up."""
        if self.state is not PeerState.UP or self._ends_as_stranger():
            return
        if self._session.is_full:
            text = "it has too many requests to answer"
            self._calls.answered(request.token, RemoteError(ErrorCode.OVERLOADED, text), b"")
            return
        try:
            correlation_id = self._write(request.request, request.payload)
        except RemoteError as error:  # an older broker does not know the request
            self._calls.answered(request.token, error, b"")
            return
        if correlation_id is not None:
            self._tokens[correlation_id] = request.token

    def sweep(self) -> None:
        """Check all time-outs."""
        if self.state in (PeerState.CONNECTING, PeerState.ENDED):
            return
        if self.state is PeerState.UP and self._ends_as_stranger():
            return
        now_us = self._elapsed_us()
        silent_ms = (now_us - self._heard_us) // 1_000
        if silent_ms > limits.PEER_PING_MS and self._has_unread():
            self._heard_us = now_us  # this broker was stalled: read what has arrived first
            return
        if silent_ms > limits.PEER_SILENCE_MS_MAX:
            self.end(f"it said nothing for {silent_ms} ms")
        elif self.state is PeerState.UP and self._should_ask(now_us, silent_ms):
            self._ask_who()
        for expired in self._session.expire(self._answer_s(now_us)):
            self.end(expired.error.message)

    def _ends_as_stranger(self) -> bool:
        """End the connection if its peer has not proved to be a broker although that is required by now; True if it has
        ended.
        """
        if self._is_stranger:
            self.end("it has not proved to be a broker of this cluster, which is required by now")
        return self.state is PeerState.ENDED

    def _should_ask(self, now_us: int, silent_ms: int) -> bool:
        if self._session.is_full:
            return False
        if self._session.missing_raw_bytes:
            # the answer comes behind the one being received
            return now_us - self._said_us >= _PEER_KEEPALIVE_MS * 1_000
        return silent_ms > limits.PEER_PING_MS and not self._asked_who

    def _answer_s(self, now_us: int) -> float:
        return (now_us - self._held_us) / 1e6

    def end(self, reason: str) -> None:
        """End the connection now; idempotent, and the first reason counts."""
        if self.state is PeerState.ENDED:
            return
        self.state = PeerState.ENDED
        self.end_reason = reason
        self._tokens.clear()
        if self._transport is not None:
            self._transport.abort()
        self._calls.ended()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        if self.state is PeerState.ENDED:  # ended while connecting
            transport.abort()
            return
        assert self._socket is not None
        with contextlib.suppress(OSError):  # `connection_lost` follows
            watch_peer(self._socket)
        self.state = PeerState.GREETING
        now_us = self._heard_us = self._elapsed_us()
        now_s = self._answer_s(now_us)
        transport.write(self._session.hello(now_s, now_s + limits.PEER_ANSWER_MS_MAX / 1e3))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_us = self._elapsed_us()
        was_large = self._session.missing_raw_bytes > 0
        if was_large:
            self._note_large(nbytes)
        self._handle(self._session.received(nbytes, self._answer_s(self._heard_us)))
        if not was_large and self._session.missing_raw_bytes:
            self._large_bytes, self._large_us = 0, self._heard_us
            self._calls.receiving(0)

    def _note_large(self, nbytes: int) -> None:
        self._large_bytes += nbytes
        passed_us = self._heard_us - self._large_us
        if passed_us < PEER_RECEIVED_MS * 1_000:
            return
        self._held_us += min(passed_us, self._large_bytes * 1_000_000 // limits.TRANSFER_BYTES_PER_S_MIN)
        size_bytes, self._large_bytes, self._large_us = self._large_bytes, 0, self._heard_us
        self._calls.receiving(size_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"the connection broke: {dialling_mistake(exc)}" if exc is not None else "it closed the connection")
        if not self._gone.done():
            self._gone.set_result(None)

    # Inside

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if self.state is PeerState.ENDED:
                return
            match event:
                case HelloReceived(hello):
                    # A Broken event of the same read has the better reason.
                    if self.state is PeerState.GREETING and not any(isinstance(one, Broken) for one in events):
                        self._greeted(hello)
                case Answered(correlation_id, response, raw):
                    self._answered(correlation_id, response, raw)
                case Refused(correlation_id, error):
                    self._refused(correlation_id, error)
                case Broken(error, _):
                    self.is_damaged = error.code == ErrorCode.DAMAGED_FRAME
                    is_nats = error.message.startswith(NATS_GREETING)
                    self.end("this is a NATS server, and no broker" if is_nats else error.message)

    @property
    def _is_stranger(self) -> bool:
        return not self.is_proven and self._guarding is not None and self._guarding.brokers_prove

    def _greeted(self, hello: HelloResponse) -> None:
        guarding = self._guarding
        if guarding is not None and guarding.secret is not None and hello.proves_brokers:
            self.state = PeerState.PROVING
            shown = guarding.secret.credentials(self._hello.broker_id, self._peer_id or BrokerId(0))
            self._login = shown.proof(guarding.nonce)
            self._say(self._login.first())
        elif self._is_stranger:
            self.end("it does not prove to be a broker of this cluster: start all with the same cluster_secret_file")
        else:
            self._introduce()

    def _say(self, data: bytes) -> None:
        assert self._login is not None
        try:
            self._write(AuthenticateRequest(mechanism=self._login.mechanism, data=data), b"")
        except RemoteError as error:
            self.end(error.message)

    def _proved(self, response: AuthenticateResponse) -> None:
        assert self._login is not None
        try:
            data = self._login.take(response.data, is_done=response.is_done)
        except RemoteError as error:
            self.is_impostor = True
            self.end(f"it does not know the secret of this cluster: {error.message}")
            return
        if data is not None:
            self._say(data)
            return
        self.is_proven = True
        self._session.encrypt(FrameCipher(self._login.session_key, is_dialler=True))
        self._introduce()

    def _introduce(self) -> None:
        self.state = PeerState.INTRODUCING
        self._session.in_flight_max = limits.PEER_REQUESTS_MAX + 1  # one more for the peer hello
        self._ask_who()

    def _ask_who(self) -> None:
        try:
            correlation_id = self._write(self._hello, b"")
        except RemoteError as error:
            self.end(error.message)
            return
        if correlation_id is not None:
            self._asked_who.add(correlation_id)

    def _answered(self, correlation_id: int, response: Response, raw: bytes | memoryview) -> None:
        if isinstance(response, AuthenticateResponse) and self.state is PeerState.PROVING:
            self._proved(response)
        elif correlation_id in self._asked_who:
            assert isinstance(response, PeerHelloResponse)
            self._asked_who.remove(correlation_id)
            self._take_introduction(response)
        elif (token := self._tokens.pop(correlation_id, None)) is not None:
            self._calls.answered(token, response, raw)

    def _refused(self, correlation_id: int, error: RemoteError) -> None:
        if self.state is PeerState.PROVING:
            self.end(f"it does not accept this broker's proof; is the cluster_secret_file the same? {error}")
        elif correlation_id in self._asked_who:
            if error.code == ErrorCode.CLUSTER_MISMATCH:
                self.refusal = error
            self.end(f"it refuses this broker: {error}")
        elif (token := self._tokens.pop(correlation_id, None)) is not None:
            self._calls.answered(token, error, b"")

    def _take_introduction(self, who: PeerHelloResponse) -> None:
        mistake = introduction_mistake(self._peer_id, self._hello, who)
        if mistake is not None:
            if is_of_another_cluster(self._hello, who):
                self.refusal = RemoteError(ErrorCode.CLUSTER_MISMATCH, mistake, cluster_id=who.cluster_id)
            self.end(mistake)
        elif self.state is PeerState.INTRODUCING:
            self._calls.up(who.cluster_id)
            if self.state is PeerState.INTRODUCING:  # otherwise it was ended meanwhile
                self.state = PeerState.UP

    def _write(self, request: Request, payload: bytes) -> int | None:
        """Return the correlation id, or None if that ended the connection. Raise RemoteError if the peer does not
        support it.
        """
        assert self._transport is not None
        assert len(payload) <= limits.APPEND_BYTES_MAX, len(payload)
        self._said_us = self._elapsed_us()
        now_s = self._answer_s(self._said_us)
        deadline_s = now_s + limits.PEER_ANSWER_MS_MAX / 1e3
        correlation_id, parts = self._session.request(request, now_s, deadline_s, payload)
        self._transport.writelines(parts)
        waiting_bytes = self._transport.get_write_buffer_size()
        if waiting_bytes > PEER_WRITE_QUEUE_BYTES_MAX:
            self.end(f"it has not taken {waiting_bytes} bytes of requests")
            return None
        return correlation_id

    def _has_unread(self) -> bool:
        """True if the socket has unread bytes."""
        if self._socket is None:
            return False
        try:
            found = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4))
        except (OSError, ValueError):
            return False
        return int.from_bytes(found, sys.byteorder) > 0


def introduction_mistake(peer_id: BrokerId | None, hello: PeerHelloRequest, who: PeerHelloResponse) -> str | None:
    """Return why the broker that answered `who` is not the expected peer, or None."""
    if is_of_another_cluster(hello, who):
        return f"it belongs to cluster {who.cluster_id}, this broker to {hello.cluster_id}: the address is wrong"
    if who.data_dir_id == hello.data_dir_id:
        return "that is this broker's own data directory: the address is its own, or the directory was copied"
    if who.broker_id == hello.broker_id:
        return f"another broker has the id {who.broker_id}, too"
    if peer_id is not None and who.broker_id != peer_id:
        return f"broker {who.broker_id} answers there, not {peer_id}: the address or an id is wrong"
    return None


def is_of_another_cluster(hello: PeerHelloRequest, who: PeerHelloResponse) -> bool:
    """True if both sides know their cluster ids and these differ."""
    return are_different_clusters(hello.cluster_id, who.cluster_id)
