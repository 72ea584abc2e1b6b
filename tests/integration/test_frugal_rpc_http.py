"""Typed RPC over HTTP: calls, limits, and what a server makes of requests that are none."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.frugal.codecs import BINARY, CODECS
from penstock.frugal.context import Context
from penstock.frugal.errors import (
    DeadlineExceeded,
    Disconnected,
    FrameError,
    RequestTooLarge,
    ResponseTooLarge,
    ServiceDraining,
    ServiceNotAvailable,
    TransportClosed,
    TransportError,
)
from penstock.frugal.framing import FRUGAL
from penstock.frugal.http_transport import HttpServer, HttpTransport
from tests.certificates import Authority
from tests.frugal_shop import NOTE, ORDER, PING, SHOP, BlockingShopClient, NotFound, Shop, ShopClient

LONG_MS = 60_000


@asynccontextmanager
async def served(shop: Shop, *, codec: Any = BINARY, server: Any = None, **options: Any) -> AsyncIterator[ShopClient]:
    async with HttpServer([(SHOP, shop)], codec=codec, **(server or {})) as running:
        transport = HttpTransport(f"http://127.0.0.1:{running.port}/", **options)
        async with ShopClient(transport, SHOP, codec=codec) as client:
            yield client


async def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes to a server, and return what it says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(60):
        said = await reader.read()
    writer.close()
    return said


def post(body: bytes, *, target: str = "/", method: str = "POST", more: str = "") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    if "content-type" not in more:
        head += "content-type: application/x-frugal\r\n"
    return f"{head}{more}\r\n".encode() + body


def frame(method: Any, **arguments: Any) -> bytes:
    return FRUGAL.encode_request(BINARY, method, Context("c"), 7, 0.0, method.arguments(**arguments)).data


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_calls(codec: Any) -> None:
    shop = Shop()
    async with served(shop, codec=codec) as client:
        ctx = Context("c1", headers={"tenant": "ä"})
        assert await client.place(ctx, ORDER, 2) == replace(ORDER, lines=ORDER.lines * 2)
        assert dict(ctx.response_headers) == {"copies": "2"}
        assert dict(shop.contexts[0].headers) == {"tenant": "ä"}
        with pytest.raises(NotFound):
            await client.place(Context(), replace(ORDER, number=404), 1)
        await client.note(Context(), "x")
        assert await shop.notes.get() == "x"


async def test_bytes_on_the_wire() -> None:
    """What a client of Frugal sends and is answered, to the byte."""
    shop = Shop()
    async with HttpServer([(SHOP, shop)]) as server:
        said = await exchange(server.port, post(base64.b64encode(frame(NOTE, text="x"))))
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-type: application/x-frugal" in head
        assert b"content-transfer-encoding: base64" in head
        assert body == b"AAAAAA=="
        said = await exchange(server.port, post(base64.b64encode(frame(PING))))
        answer = base64.b64decode(said.partition(b"\r\n\r\n")[2])
        assert (
            FRUGAL.decode_answer(BINARY, PING, Context(), 7, type("", (), {"data": answer, "headers": {}})())
            is not None
        )


async def test_a_slow_call_holds_up_no_other_until_all_connections_are_in_use() -> None:
    shop = Shop()
    async with served(shop, connections_max=2) as client:
        slow = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "a"))
        await shop.begun["a"].wait()
        assert await asyncio.gather(*(client.count(Context(), "x" * size) for size in range(20))) == list(range(20))
        other = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "b"))
        await shop.begun["b"].wait()
        with pytest.raises(DeadlineExceeded):
            await client.ping(Context(timeout_ms=50))
        assert shop.pings == 0
        shop.gates["a"].set()
        shop.gates["b"].set()
        assert await asyncio.gather(slow, other) == ["a", "b"]
        await client.ping(Context())


async def test_deadline_and_cancellation() -> None:
    shop = Shop()
    async with served(shop) as client:
        with pytest.raises(DeadlineExceeded):
            await client.wait_for(Context(timeout_ms=50), "never")
        await shop.cancelled["never"].wait()
        task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
        await shop.begun["gate"].wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        shop.gates["gate"].set()
        await client.ping(Context())


async def test_sizes() -> None:
    shop = Shop()
    async with served(shop, server={"request_bytes_max": 4096}, response_bytes_max=4096) as client:
        with pytest.raises(RequestTooLarge, match="more than 4096 bytes"):
            await client.place(Context(), replace(ORDER, data=b"x" * 1_000_000), 1)
        with pytest.raises(ResponseTooLarge, match="more than 4096"):
            await client.place(Context(), ORDER, 200)
        await client.ping(Context())
    async with served(shop, request_bytes_max=100) as client:
        with pytest.raises(RequestTooLarge, match="and 100 fit"):
            await client.place(Context(), ORDER, 1)


async def test_nobody_listens_and_closed() -> None:
    shop = Shop()
    async with served(shop) as client:
        await client.ping(Context())
        await client.close()
        with pytest.raises(TransportClosed):
            await client.ping(Context())
    async with HttpServer([(SHOP, shop)]) as server:
        port = server.port
    async with ShopClient(HttpTransport(f"http://127.0.0.1:{port}/"), SHOP) as client:
        with pytest.raises(ServiceNotAvailable, match="there is no connection"):
            await client.ping(Context())


async def test_a_closed_client_fails_its_calls() -> None:
    shop = Shop()
    async with served(shop) as client:
        task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
        await shop.begun["gate"].wait()
        await client.close()
        with pytest.raises(TransportClosed) as raised:
            await task
        assert raised.value.may_be_done
        shop.gates["gate"].set()


async def test_a_client_that_leaves_cancels_its_handler_and_no_other() -> None:
    shop = Shop()
    async with served(shop, server={"concurrency_max": 1}) as client:
        left = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "left"))
        async with asyncio.timeout(60):
            await shop.begun["left"].wait()
        waiting = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "waiting"))
        left.cancel()  # closes its connection
        async with asyncio.timeout(60):
            await shop.cancelled["left"].wait()
            await shop.begun["waiting"].wait()
        shop.gates["waiting"].set()
        async with asyncio.timeout(60):
            assert await waiting == "waiting"
            assert await client.count(Context(timeout_ms=LONG_MS), "abc") == 3


async def test_a_request_behind_another_one_is_kept_while_that_is_answered() -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        bodies = [base64.b64encode(frame(PING)) for _ in range(2)]
        writer.write(b"".join(post(each).replace(b"connection: close\r\n", b"") for each in bodies))
        async with asyncio.timeout(60):
            for _ in bodies:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                size = next(line for line in head.splitlines() if line.startswith(b"content-length: "))
                await reader.readexactly(int(size.split()[1]))
        writer.close()
        await writer.wait_closed()
    assert shop.pings == 2


async def test_a_drain_answers_what_has_begun() -> None:
    shop = Shop()
    server = HttpServer([(SHOP, shop)])
    await server.start()
    async with ShopClient(HttpTransport(f"http://127.0.0.1:{server.port}/"), SHOP) as client:
        await client.ping(Context())  # its connection stays, idle
        task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
        await shop.begun["gate"].wait()
        drain = asyncio.create_task(server.drain())
        shop.gates["gate"].set()
        assert await task == "gate"
        await drain
        with pytest.raises((ServiceNotAvailable, Disconnected)):
            await client.ping(Context())


async def test_a_drain_has_a_time_out() -> None:
    shop = Shop()
    server = HttpServer([(SHOP, shop)])
    await server.start()
    async with ShopClient(HttpTransport(f"http://127.0.0.1:{server.port}/"), SHOP) as client:
        task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
        await shop.begun["gate"].wait()
        await server.drain(0.01)
        with pytest.raises(ServiceDraining):
            await task
    assert shop.cancelled["gate"].is_set()


BAD = base64.b64encode(b"\0\0\0\5\0\0\0\0\0")


@pytest.mark.parametrize(
    ("sent", "status", "what"),
    [
        (post(BAD), b"400", b"the header _opid is missing"),
        (post(b"!!!"), b"400", b"no base64"),
        (post(b""), b"400", b"0 bytes are no frame"),
        (post(base64.b64encode(b"\xff" * 100)), b"400", b"the body is no request"),
        (post(BAD, target="/other"), b"404", b"nothing is served"),
        (post(b"", method="GET"), b"405", b"a call is a POST"),
        (post(BAD, more="content-type: text/plain\r\n"), b"415", b"application/x-frugal"),
        (post(BAD, more="x-frugal-payload-limit: x\r\n"), b"400", b"a number of bytes"),
        (post(base64.b64encode(frame(PING)), more="x-frugal-payload-limit: 10\r\n"), b"413", b"more than 10"),
        (b"\x16\x03\x01\x02\x00" * 10 + b"\r\n\r\n", b"400", b"no HTTP request"),
        (b"POST / HTTP/1.1\r\n" + b"a: " + b"b" * 20_000, b"431", b"no HTTP request"),
    ],
)
async def test_what_is_no_request(sent: bytes, status: bytes, what: bytes, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)]) as server:
        said = await exchange(server.port, sent)
        assert said.split(b" ")[1] == status
        assert what in said
        async with ShopClient(HttpTransport(f"http://127.0.0.1:{server.port}/"), SHOP) as client:
            before = shop.pings
            await client.ping(Context())
    assert shop.pings == before + 1
    caplog.clear()


async def test_a_server_has_a_most_of_connections() -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)], connections_max=1) as server, AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{server.port}/"
        first, second = [await stack.enter_async_context(ShopClient(HttpTransport(url), SHOP)) for _ in range(2)]
        task = asyncio.create_task(first.wait_for(Context(timeout_ms=LONG_MS), "gate"))
        await shop.begun["gate"].wait()
        with pytest.raises(ServiceNotAvailable, match="no place for another connection"):
            await second.ping(Context())
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        assert await idle[1][0].read() == b""  # beyond twice the most
        for _, writer in idle:
            writer.close()
        shop.gates["gate"].set()
        assert await task == "gate"
        await first.ping(Context())


async def test_calls_one_after_the_other_use_one_connection() -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)]) as server:
        transport = HttpTransport(f"http://127.0.0.1:{server.port}/")
        async with ShopClient(transport, SHOP) as client:
            for _ in range(5):
                await client.ping(Context())
    assert (shop.pings, transport.connections_opened) == (5, 1)


async def test_a_request_has_a_time_to_arrive() -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)], read_timeout_s=0.05) as server:
        for begun in (b"", b"POST / HTTP/1.1\r\n", post(BAD)[:-1]):
            assert await exchange(server.port, begun) == b""


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Disconnected),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 3\r\n\r\nboo", TransportError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nAAAAAA==", FrameError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n!!!", FrameError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nAAAA", Disconnected),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n" + b"A" * 9000, ResponseTooLarge),
        (
            b"HTTP/1.1 413 Big\r\ncontent-length: 42\r\n\r\nResponse size (9) larger than requested size",
            ResponseTooLarge,
        ),
        (b"HTTP/1.1 413 Big\r\ncontent-length: 0\r\n\r\n", ResponseTooLarge),
        (b"HTTP/1.1 413 Big\r\ncontent-length: 37\r\n\r\n<html>Request Entity Too Large</html>\n", RequestTooLarge),
        (b"HTTP/1.1 413 Big\r\ncontent-length: 17\r\n\r\nPayload Too Large", RequestTooLarge),
        (b"hello\r\n\r\n", Disconnected),
    ],
)
async def test_answers_that_are_none(answer: bytes, error: type[Exception]) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with ShopClient(HttpTransport(url, response_bytes_max=1000), SHOP) as client:
            with pytest.raises(error):
                await client.ping(Context())


async def test_a_blocking_client() -> None:
    shop = Shop()
    async with HttpServer([(SHOP, shop)]) as server:
        url = f"http://127.0.0.1:{server.port}/"

        def use() -> int:
            with BlockingShopClient(HttpTransport.connecting(url), SHOP) as client:
                return client.count(Context(), "Ann")

        assert await asyncio.to_thread(use) == 3


async def test_the_native_framing_is_one_of_nats() -> None:
    async with ShopClient(HttpTransport("http://127.0.0.1:1/"), SHOP, framing="native") as client:
        with pytest.raises(ValueError, match="over HTTP a client has frugal-v0"):
            await client.ping(Context())


@pytest.mark.parametrize("url", ["", "nats://a", "http://", "http://user:word@a/"])
async def test_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="the URL of a service"):
        HttpTransport(url)


async def test_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("server", hosts=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    shop = Shop()
    async with HttpServer([(SHOP, shop)], tls=context) as server:
        url = f"https://127.0.0.1:{server.port}/"
        async with ShopClient(HttpTransport(url, tls=trusted), SHOP) as client:
            for _ in range(3):
                await client.ping(Context())
        async with ShopClient(HttpTransport(url), SHOP) as client:
            with pytest.raises(ServiceNotAvailable, match="certificate verify failed"):
                await client.ping(Context())
    assert shop.pings == 3


async def test_a_connection_that_comes_while_the_server_drains_is_closed() -> None:
    """Not left to wait for a request, which nothing would answer."""
    server = HttpServer([(SHOP, Shop())])
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await server.drain()
    async with asyncio.timeout(10):
        with suppress(ConnectionResetError):  # or it was never accepted
            assert await reader.read() == b""
    writer.close()
