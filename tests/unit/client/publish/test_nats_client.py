"""Clients that are asked for TLS send nothing in plain, against servers made of bytes that record what they get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from nats.errors import Error as NatsError

import penstock
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import Publisher, first_connection
from penstock.ops.jetstream.source import JetStream
from penstock.ops.relay.nats_output import NatsOutput
from tests.certificates import Authority

INFO = {"server_id": "X", "version": "2.10.0", "max_payload": 1000, "headers": True, "auth_required": True}
OFFERS_NONE = "offers no TLS, but tls:// or the TLS options ask for it"


class Tls(NamedTuple):
    """Contexts of a server and of a client that trusts it."""

    of_server: ssl.SSLContext
    of_client: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    pair = authority.issue("nats")
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(pair.cert, pair.key)
    return Tls(of_server, ssl.create_default_context(cafile=authority.ca))


class Recording:
    """A server that says `info`, answers each PING, and keeps what each connection sent in plain, and what over TLS.

    `tls`: it begins TLS behind INFO, and answers there with an INFO that announces `announced`.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, announced: str = "", **info: object) -> None:
        self.info = {**INFO, **info}
        self._tls = tls
        self._announced = announced
        self.encrypted: list[bytearray] = []
        self.got: list[bytearray] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Recording]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.host, self.port = server.sockets[0].getsockname()
            yield self
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        self._writers.append(writer)
        got = bytearray()
        self.got.append(got)
        writer.write(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            if self._tls is not None:
                await writer.drain()
                await writer.start_tls(self._tls)
                got = bytearray()
                self.encrypted.append(got)
            while line := await reader.readline():
                got += line
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
                    if self._announced:
                        writer.write(
                            b"INFO " + json.dumps({**self.info, "connect_urls": [self._announced]}).encode() + b"\r\n"
                        )
        writer.close()

    def without_tls(self) -> None:
        """From the next connection on."""
        self._tls, self.info = None, INFO

    def drop_all(self) -> None:
        """Reset what is connected."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    @property
    def at(self) -> str:
        return f"{self.host}:{self.port}"


async def _published(*urls: str, **options: object) -> None:
    publisher = Publisher(urls, "test", {"reconnect_time_wait": 0.01, **options})
    try:
        await publisher.publish_without_ack("s", b"VALUE", None, timeout_s=5.0)
    finally:
        await publisher.close()


async def _relayed(*urls: str, **options: object) -> None:
    output = NatsOutput(urls, 5.0)
    try:
        await output.open({"reconnect_time_wait": 0.01, **options})
    finally:
        await output.close()


async def _imported(*urls: str, **options: object) -> None:
    js = JetStream(urls, None, 5.0)
    try:
        await js.open({"reconnect_time_wait": 0.01, **options})
    finally:
        await js.close()


Connect = Callable[..., Awaitable[None]]
each_client = pytest.mark.parametrize("connect", [_published, _relayed, _imported])


@each_client
@pytest.mark.parametrize("asked_by", ["url", "context", "name"])
async def test_no_byte_goes_to_a_server_that_offers_no_tls(connect: Connect, asked_by: str) -> None:
    options: dict[str, Any] = {
        "url": {},
        "context": {"tls": ssl.create_default_context()},
        "name": {"tls_hostname": "nats.example.com"},
    }[asked_by]
    scheme = "tls" if asked_by == "url" else "nats"
    async with asyncio.timeout(10), Recording().listening() as server:
        with pytest.raises(penstock.Unavailable, match=OFFERS_NONE) as caught:
            await connect(f"{scheme}://ann:SECRET@{server.at}", **options)
        assert server.at in str(caught.value)
        assert "SECRET" not in str(caught.value)
    assert server.got == [b""]


@each_client
async def test_options_that_log_in_are_not_sent_either(connect: Connect) -> None:
    async with asyncio.timeout(10), Recording().listening() as server:
        with pytest.raises(penstock.Unavailable, match=OFFERS_NONE):
            await connect(f"tls://{server.at}", user="ann", password="SECRET")
    assert server.got == [b""]


@each_client
@pytest.mark.parametrize("said", ["tls_required", "tls_available"])
async def test_tls_begins_where_the_server_requires_or_offers_it(connect: Connect, said: str, tls: Tls) -> None:
    """nats-py begins it only where it is required; nats-server offers it where it takes both (`allow_non_tls`)."""
    async with asyncio.timeout(10), Recording(tls.of_server, **{said: True}).listening() as server:
        await connect(f"tls://ann:SECRET@{server.at}", tls=tls.of_client)
    assert server.got == [b""]
    assert b"SECRET" in server.encrypted[0]


async def test_a_plain_url_goes_on_to_be_plain() -> None:
    async with asyncio.timeout(10), Recording().listening() as server:
        await _published(f"nats://ann:SECRET@{server.at}")
    assert b"SECRET" in server.got[0]


async def test_a_server_without_tls_does_not_hide_one_that_is_plain_by_its_url() -> None:
    async with asyncio.timeout(10), Recording().listening() as strict, Recording().listening() as plain:
        await _relayed(f"tls://ann:SECRET@{strict.at}", f"nats://ann:SECRET@{plain.at}")
    assert not any(strict.got)


async def test_each_further_connection_is_held_to_it_and_so_are_servers_that_are_announced(tls: Tls) -> None:
    told: list[str] = []
    announced_is_known, all_refused = asyncio.Event(), asyncio.Event()

    async def announced() -> None:
        announced_is_known.set()

    async def tell(error: Exception) -> None:
        told.append(str(error))
        if all(any(OFFERS_NONE in one and server.at in one for one in told) for server in (first, second)):
            all_refused.set()

    async with asyncio.timeout(10), Recording().listening() as second:
        async with Recording(tls.of_server, second.at, tls_required=True).listening() as first:
            connection, urls = StrictNatsClient(), [f"tls://ann:SECRET@{first.at}"]
            options = {"tls": tls.of_client, "reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}
            await first_connection(connection, urls, error_cb=tell, discovered_server_cb=announced, **options)
            await announced_is_known.wait()
            first.without_tls()
            first.drop_all()
            await connection.publish("s", b"VALUE")
            await all_refused.wait()
            await connection.close()
    assert b"SECRET" in first.encrypted[0]
    assert not any(first.got + second.got)


@pytest.mark.parametrize("again", ["", "192.0.2.2:4222"])
async def test_servers_that_the_first_line_announces_are_known_once_this_one_has_proved_who_it_is(
    tls: Tls, again: str
) -> None:
    """nats-server before 2.12 announces them there alone."""
    announced = {"connect_urls": ["192.0.2.1:4222"], "tls_required": True}
    stranger, told = ssl.create_default_context(), asyncio.Event()

    async def tell() -> None:
        told.set()

    async with asyncio.timeout(10), Recording(tls.of_server, again, **announced).listening() as server:
        urls = [f"tls://{server.at}"]
        connection = StrictNatsClient()
        with pytest.raises((NatsError, OSError)):
            await connection.connect(urls, tls=stranger, allow_reconnect=False, connect_timeout=5)
        assert {one.netloc for one in connection.servers} <= {server.at}
        await first_connection(connection, urls, error_cb=None, tls=tls.of_client, discovered_server_cb=tell)
        assert {server.at, "192.0.2.1:4222"} <= {one.netloc for one in connection.servers}
        if again:
            await told.wait()
            assert again in {one.netloc for one in connection.servers}
        await connection.close()
