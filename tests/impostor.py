"""A server on a real port that pretends to be a broker without the secret: records requests and answers falsely."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from typing import Self

from penstock.access.scram import ScramServer, verifier_of
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import (
    Api,
    AuthenticateRequest,
    AuthenticateResponse,
    HelloRequest,
    HelloResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    Request,
    Response,
    api_versions,
)
from penstock.wire import Frame, FrameDecoder, decode_request, encode_answer
from tests.certificates import Pair

Lie = Callable[[AuthenticateRequest], AuthenticateResponse]

_GUESSED = verifier_of("guessed", b"salt" * 4, 1)
_NOTHING = base64.b64encode(bytes(32))


def done_at_once(request: AuthenticateRequest) -> AuthenticateResponse:
    """Claim success at once, with an empty signature."""
    return AuthenticateResponse(data=b"v=", is_done=True)


def challenge(request: AuthenticateRequest, iterations: int = 10_000) -> AuthenticateResponse:
    """Answer every message with a challenge for a guessed secret."""
    verifier = _GUESSED._replace(iterations=iterations)
    with suppress(RemoteError):
        return AuthenticateResponse(data=ScramServer("m" * 24).challenge(request.data, verifier))
    return AuthenticateResponse(data=b"r=" + b"m" * 24 + b",s=c2FsdA==,i=%d" % iterations)


def wrong_signature(request: AuthenticateRequest, iterations: int = 10_000) -> AuthenticateResponse:
    """Send a challenge, then an invalid signature."""
    if request.data.startswith(b"n,,"):
        return challenge(request, iterations)
    return AuthenticateResponse(data=b"v=" + _NOTHING, is_done=True)


def malformed(request: AuthenticateRequest) -> AuthenticateResponse:
    """Send bytes that are no SCRAM message."""
    return AuthenticateResponse(data=b"hello")


def never_heard_of(request: AuthenticateRequest) -> AuthenticateResponse:
    """Refuse the login as if the secret were wrong."""
    raise RemoteError(ErrorCode.UNAUTHENTICATED, "the name or the secret is wrong")


class Impostor:
    """Listens on `port` as broker `broker_id`; each connection gets the next of `lies` as login answers."""

    def __init__(self, port: int, broker_id: int, *lies: Lie, mechanisms: tuple[str, ...] = ()) -> None:
        self.port = port
        self.heard: set[int] = set()  # API numbers of the received requests
        self.bytes = bytearray()  # all received bytes
        self.came = 0  # number of connections, including failed TLS handshakes
        self.logins = 0  # number of login requests
        self._broker_id = broker_id
        self._lies: Iterator[Lie] = cycle(lies)
        self._mechanisms = mechanisms
        self._changed = asyncio.Condition()
        self._tls: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._came, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def speak_tls(self, pair: Pair) -> None:
        """Use TLS with that certificate."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pair.cert, pair.key)

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def has_come(self, count: int) -> None:
        """Wait for `count` connections."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self.came >= count)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def has_logins(self, count: int) -> None:
        """Wait for `count` login requests."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self.logins >= count)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        async with self._changed:
            self.came += 1
            self._changed.notify_all()
        decoder, lie = FrameDecoder(1 << 20), next(self._lies)
        with suppress(OSError, RemoteError, asyncio.CancelledError):
            if self._tls is not None:
                await writer.start_tls(self._tls)
            while data := await reader.read(1 << 16):
                self.bytes += data
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    await self._hear(frame, writer, lie)
        self._tasks.discard(task)
        writer.transport.abort()

    async def _hear(self, frame: Frame, writer: asyncio.StreamWriter, lie: Lie) -> None:
        self.heard.add(frame.api)
        request = decode_request(frame)
        try:
            answer = self._answer(request, lie)
        except RemoteError as error:
            writer.write(encode_answer(frame, error))
        else:
            writer.write(encode_answer(frame, answer) if answer is not None else b"")
        if frame.api == Api.AUTHENTICATE:
            async with self._changed:
                self.logins += 1
                self._changed.notify_all()

    def _answer(self, request: Request, lie: Lie) -> Response | None:
        if isinstance(request, HelloRequest):
            return HelloResponse(
                broker_id=BrokerId(self._broker_id),
                broker_version="1",
                cluster_id="",
                format_version=1,
                api_versions=api_versions(),
                mechanisms=self._mechanisms,
                proves_brokers=True,
            )
        if isinstance(request, AuthenticateRequest):
            return lie(request)
        if isinstance(request, PeerHelloRequest):  # echo the cluster id
            return PeerHelloResponse(
                cluster_id=request.cluster_id,
                broker_id=BrokerId(self._broker_id),
                data_dir_id="another",
                broker_version="1",
            )
        return None
