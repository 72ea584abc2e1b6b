"""The HTTP port among rude clients: what they may send, hold and wait for. Sockets are real, time is short.

Whatever is not about one of the two is tried plain and through TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.broker.config.tls_settings import BrokerTls
from penstock.broker.observability import http_server
from penstock.broker.observability.http_connection import HttpRequest, HttpResponse
from penstock.broker.observability.http_server import HttpServer, bind_http
from penstock.broker.transport.tls import InThread, ServerTls
from tests.broker_process import eventually
from tests.certificates import Authority
from tests.extent import each_change

PAGE = b"x" * 64_000_000  # more than sockets hold
DEADLINE_S = 20.0


class Served:
    """A server that says what was asked; `/slow` waits until it is let go, `/large` is large, `/broken` a mistake."""

    server: HttpServer

    def __init__(self, trusted: ssl.SSLContext | None) -> None:
        self.port = 0
        self.trusted = trusted  # of clients; None: they come without TLS
        self.asked: list[str] = []
        self.let_go = asyncio.Event()
        self._is_asked = asyncio.Event()

    async def is_asked(self) -> None:
        """Once the first request is there."""
        await asyncio.wait_for(self._is_asked.wait(), DEADLINE_S)

    async def is_empty(self) -> bool:
        """Whether nobody is connected."""
        return not self.server._connections

    async def is_done(self) -> bool:
        """Whether nothing is left of those who were."""
        return not self.server._tasks

    async def answer(self, asked: HttpRequest) -> HttpResponse:
        self.asked.append(asked.target)
        self._is_asked.set()
        if asked.target == "/slow":
            await self.let_go.wait()
        if asked.target == "/broken":
            raise ZeroDivisionError
        return HttpResponse(200, PAGE if asked.target == "/large" else f"{asked.method} {asked.target}".encode())

    async def connect(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, limit=len(PAGE) * 2, ssl=self.trusted, local_addr=(source, 0)
        )

    def dialled(self) -> socket.socket:
        """A socket that has said nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    async def said(self, sent: bytes) -> bytes:
        """All that comes until the server closes."""
        try:
            reader, writer = await self.connect()
        except ConnectionError:  # the server closed during the TLS handshake
            return b""
        writer.write(sent)
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await reader.read()
            except ConnectionError:  # the read or the write finds that the server has closed
                return b""
            finally:
                writer.close()


@asynccontextmanager
async def served_with(trusted: ssl.SSLContext | None, tls: ServerTls | None) -> AsyncIterator[Served]:
    listeners, address = bind_http(Address("127.0.0.1", 0), is_chosen=True)
    served = Served(trusted)
    server = HttpServer(listeners, served.answer, None if tls is None else tls.http_context)
    server.start()
    served.port, served.server = address.port, server
    try:
        yield served
    finally:
        server.stop()
        await eventually(served.is_done, "all are closed")


Serving = Callable[[], AbstractAsyncContextManager[Served]]


class Certificates:
    """Those of a server, and who trusts them; certificates are asked for on the port of clients, and not here."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        pair = self.authority.issue("broker")
        ca = self.authority.ca
        settings = BrokerTls(pair.cert, pair.key, ca_file=ca, client_ca_file=ca, peer_names=("broker",))
        self.server = ServerTls(settings)
        self.trusted = ssl.create_default_context(cafile=self.authority.ca)

    def serving(self) -> AbstractAsyncContextManager[Served]:
        return served_with(self.trusted, self.server)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def serving(request: pytest.FixtureRequest, certificates: Certificates) -> Serving:
    return certificates.serving if request.param == "tls" else lambda: served_with(None, None)


def request(target: str, *headers: str, method: str = "GET", last: bool = True) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers, *(["Connection: close"] if last else [])]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_requests_sent_ahead_are_answered_in_order_one_by_one(serving: Serving) -> None:
    async with serving() as served:
        ahead = b"".join(request(f"/{number}", last=number == 9) for number in range(10))
        said = await served.said(ahead)
        assert served.asked == [f"/{number}" for number in range(10)]
        assert [line for line in said.split(b"\r\n") if line.startswith(b"GET ")] == [
            *(b"GET /%dHTTP/1.1 200 " % number for number in range(9)),
            b"GET /9",
        ]


@each_change
async def test_while_one_is_answered_nothing_more_is_read(serving: Serving) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(request("/slow", last=False))
        await served.is_asked()
        for _ in range(2):  # asyncio's TLS does not tell of what the transport below it has taken from it first
            writer.write(request("/next", last=False) * 1_000_000)  # megabytes that nobody takes in
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        assert served.asked == ["/slow"]
        served.let_go.set()
        assert (await asyncio.wait_for(reader.readline(), DEADLINE_S)).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET /" + b"a" * 100_000, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, b"431"),
        (request("/", "Content-Length: 3") + b"abc", b"413"),
        (request("/", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n", b"413"),
        (request("/", "Content-Length: 99999999999999999999") + b"a", b"4"),
        (request("/", "Content-Length: 1", "Content-Length: 2"), b"400"),
        (request("/broken"), b"500"),
        # Who waits, and sends no more, hears it at once.
        (request("/", "Expect: 100-continue", "Content-Length: 5", method="POST"), b"413"),
        (request("/", "Content-Length: 5", method="POST"), b"413"),
        (request("/", "Expect: more"), b"417"),
        (b"GET /\r\n", b"400"),
        (b"\r\nGET /\n", b"400"),
        (b"GET / HTTP/2.0\r\n", b"505"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_closed(serving: Serving, sent: bytes, status: bytes) -> None:
    async with serving() as served:
        said = await served.said(sent)
        assert said.startswith(b"HTTP/1.1 " + status), said[:200]
        assert served.asked in ([], ["/broken"])


async def test_who_expects_that_a_request_without_a_body_is_taken_gets_his_answer(serving: Serving) -> None:
    async with serving() as served:
        said = await served.said(request("/a", "Expect: 100-continue", "Content-Length: 0"))
        assert said.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", request("/")[:-2]])
async def test_who_sends_a_request_too_slowly_is_cut_off(
    serving: Serving, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_MS", 100)
    async with serving() as served:
        assert await served.said(sent) == b""
        assert served.asked == []


async def test_a_drop_now_and_then_buys_no_time(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_MS", 200)
    async with serving() as served:
        reader, writer = await served.connect()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        ended = asyncio.ensure_future(reader.read())
        while not ended.done() and loop.time() - begun_s < DEADLINE_S:
            writer.write(b"X")
            await asyncio.wait((ended,), timeout=0.02)
        assert loop.time() - begun_s < DEADLINE_S
        with suppress(ConnectionError):
            assert ended.result() == b""
        writer.close()


async def test_who_does_not_take_the_answer_is_cut_off(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_MS", 300)
    async with serving() as served:
        reader, writer = await served.connect()
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        writer.write(request("/large"))
        await served.is_asked()
        await eventually(served.is_empty, "it is cut off while it takes nothing")
        writer.transport.resume_reading()
        taken = b""
        with suppress(ConnectionError):
            while data := await asyncio.wait_for(reader.read(1 << 20), DEADLINE_S):
                taken += data
        assert len(taken) < len(PAGE)
        writer.close()


async def test_the_answer_to_head_has_the_length_and_no_body(serving: Serving) -> None:
    async with serving() as served:
        said = await served.said(request("/large", method="HEAD"))
        assert b"content-length: %d\r\n" % len(PAGE) in said.lower()
        assert said.endswith(b"\r\n\r\n")


async def test_there_are_so_many_connections_and_the_oldest_that_waits_makes_room(serving: Serving) -> None:
    async with serving() as served:
        busy_reader, busy = await served.connect()
        busy.write(request("/slow"))
        await served.is_asked()
        idle = [await served.connect() for _ in range(limits.HTTP_CONNECTIONS_MAX - 1)]
        for number in range(3):
            assert b"GET /more" in await served.said(request("/more"))
            reader, _ = idle[number]
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), limits.HTTP_TIMEOUT_MS / 2_000) == b""
            idle.append(await served.connect())  # in its place
        served.let_go.set()
        assert (await asyncio.wait_for(busy_reader.read(), DEADLINE_S)).endswith(b"GET /slow")
        for _, writer in (*idle, (busy_reader, busy)):
            writer.close()


async def test_who_takes_all_places_from_one_address_takes_none_of_another(serving: Serving) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        held = [await served.connect("127.0.0.2") for _ in range(limits.HTTP_CONNECTIONS_MAX * 3)]
        writer.write(request("/more"))
        async with asyncio.timeout(DEADLINE_S):
            assert b"GET /more" in await reader.read()
        for _, other in (*held, (reader, writer)):
            other.transport.abort()


@each_change
@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", request("/large"), b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"]
)
async def test_who_holds_all_places_and_does_not_close_keeps_nobody_out(serving: Serving, sent: bytes) -> None:
    async with serving() as served:
        held = [await served.connect() for _ in range(limits.HTTP_CONNECTIONS_MAX * 2)]
        for _, writer in held:
            writer.write(sent)
        for number in range(3):
            assert b"GET /more" in await served.said(request("/more")), number
        for _, writer in held:
            writer.transport.abort()


async def test_a_connection_is_good_for_so_many_requests(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUESTS_MAX", 3)
    async with serving() as served:
        await served.said(request("/a", last=False) * 9)
        assert len(served.asked) == 3


async def test_a_client_that_closes_its_side_gets_its_answer() -> None:
    async with served_with(None, None) as served:
        reader, writer = await served.connect()
        writer.write(request("/a", last=False))
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).endswith(b"GET /a")
        writer.close()


def test_a_port_that_is_taken_is_replaced_unless_somebody_chose_it() -> None:
    listeners, address = bind_http(Address("127.0.0.1", 0), is_chosen=True)
    try:
        others, other = bind_http(address, is_chosen=False)
        assert other.port not in (0, address.port)
        for one in others:
            one.close()
        with pytest.raises(Exception, match="--http"):
            bind_http(address, is_chosen=True)
    finally:
        for one in listeners:
            one.close()


# Through TLS


@each_change
async def test_a_large_page_comes_byte_for_byte_and_a_request_in_as_many_records_as_it_has_bytes(
    certificates: Certificates,
) -> None:
    async with certificates.serving() as served:
        reader, writer = await served.connect()
        for byte in request("/large"):
            writer.write(bytes((byte,)))
        said = await asyncio.wait_for(reader.read(), DEADLINE_S)
        assert said.partition(b"\r\n\r\n")[2] == PAGE
        assert served.asked == ["/large"]
        writer.close()


async def test_handshakes_that_are_left_keep_nobody_out(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_HANDSHAKES_MAX", 48)
    async with certificates.serving() as served:
        reader, writer = await served.connect()
        with ExitStack() as stack:
            left = [stack.enter_context(closing(served.dialled())) for _ in range(http_server._HANDSHAKES_MAX * 3)]
            for number, one in enumerate(left):
                one.sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
            for number in range(3):
                assert b"GET /more" in await served.said(request("/more")), number
            assert len(served.server._connections) <= limits.HTTP_CONNECTIONS_MAX
            assert len(served.server._tasks) <= http_server._HANDSHAKES_MAX
            assert await asyncio.to_thread(left[0].recv, 1) == b""  # the oldest
        writer.write(request("/still"))  # who is connected is not cut for them
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).endswith(b"GET /still")
        writer.close()


async def test_a_probe_comes_through_while_handshakes_come_that_are_left(certificates: Certificates) -> None:
    """As many of them as there are connections, between each two of its steps."""
    async with certificates.serving() as served:
        with ExitStack() as stack:

            def leave() -> None:
                for _ in range(limits.HTTP_CONNECTIONS_MAX + 4):
                    stack.enter_context(closing(served.dialled())).sendall(b"\x16\x03\x01")

            hello, back = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = certificates.trusted.wrap_bio(back, hello, server_hostname="localhost")
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            while True:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                await asyncio.to_thread(leave)
                writer.write(hello.read())
                back.write(await asyncio.wait_for(reader.read(65_536), DEADLINE_S))
            tls.write(request("/probe"))
            writer.write(hello.read())
            said = b""
            while b"GET /probe" not in said:
                more = await asyncio.wait_for(reader.read(65_536), DEADLINE_S)
                assert more
                back.write(more)
                with suppress(ssl.SSLWantReadError):
                    said += tls.read(65_536)
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_that_hangs_is_ended(
    certificates: Certificates, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_MS", 100)
    async with certificates.serving() as served:
        with served.dialled() as one:
            one.sendall(sent)
            assert await asyncio.to_thread(one.recv, 1) == b""
        await eventually(served.is_empty, "its place is free")


async def test_who_speaks_no_tls_gets_nothing_and_the_log_says_it_once(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with certificates.serving() as served:
        plain = Served(None)
        plain.port = served.port
        with caplog.at_level(logging.INFO, "penstock.http"):
            for _ in range(5):
                assert b"HTTP" not in await plain.said(request("/a"))
            await eventually(served.is_done, "they are gone")
        assert served.asked == []
        (line,) = caplog.messages
        assert line.startswith("no TLS on the HTTP port with 127.0.0.1:")
        assert "HTTP_REQUEST" in line
        assert b"GET /a" in await served.said(request("/a"))


async def test_a_new_certificate_is_that_of_new_connections(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    def at_once(run: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        run()
        done(None)

    in_thread: InThread = at_once
    async with certificates.serving() as served:

        def shown(writer: asyncio.StreamWriter) -> bytes:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

        reader, stays = await served.connect()
        before = shown(stays)
        pair = certificates.authority.issue("broker")
        certificates.server.reload(0, in_thread)
        _, comes = await served.connect()
        assert before != shown(comes) == ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
        stays.write(request("/a"))
        assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).endswith(b"GET /a")
        for writer in (stays, comes):
            writer.close()
