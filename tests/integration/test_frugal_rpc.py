"""Typed RPC through a real nats-server: multiplexing, deadlines, drains, hostile messages, discovery."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from penstock.frugal.codecs import BINARY, CODECS
from penstock.frugal.context import Context
from penstock.frugal.errors import (
    DeadlineExceeded,
    RequestTooLarge,
    ResponseTooLarge,
    ServiceDraining,
    ServiceNotAvailable,
    ServiceOverloaded,
    TooManyCalls,
    TransportClosed,
)
from penstock.frugal.framing import FRUGAL
from penstock.frugal.native import FRAMINGS
from penstock.frugal.nats_barrier import reach
from penstock.frugal.nats_transport import NatsTransport
from penstock.frugal.server import Server
from tests.frugal_shop import ORDER, PING, SHOP, BlockingShopClient, NotFound, Shop, ShopClient
from tests.nats_servers import RunningNats, running_nats, silent_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:nats.*")

LONG_MS = 60_000


async def _silent(error: Exception) -> None:
    """Nothing: else nats-py logs what tests do to it on purpose."""


@asynccontextmanager
async def connected(server: RunningNats, **options: Any) -> AsyncIterator[Client]:
    connection = await nats.connect(
        server.url, error_cb=_silent, reconnect_time_wait=0.01, max_reconnect_attempts=-1, **options
    )
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningNats]:
    async with running_nats(tmp_path) as server:
        yield server


class Parts:
    """A nats-server's connections, with clients and servers of the shop on them."""

    def __init__(self, server: RunningNats, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack

    async def connection(self, **options: Any) -> Client:
        return await self._stack.enter_async_context(connected(self.server, **options))

    async def serve(self, shop: Shop, **options: Any) -> Server:
        connection = await self.connection()
        made = Server(connection, "shop", [(SHOP, shop)], **{"queue": "shops", **options})
        self._stack.push_async_callback(made.drain, 0)
        await made.start()
        return made

    async def client(self, *, in_flight_max: int = 1000, **options: Any) -> ShopClient:
        self._asking = await self.connection()
        self.transport = NatsTransport(self._asking, "shop", in_flight_max=in_flight_max)
        return await self._stack.enter_async_context(ShopClient(self.transport, SHOP, **options))

    async def reached(self) -> None:
        """Return when a server has what tasks before this have sent on the client's connection."""
        await asyncio.create_task(self._asking.request("$SRV.PING", timeout=60))


@pytest.fixture
async def parts(server: RunningNats) -> AsyncIterator[Parts]:
    async with AsyncExitStack() as stack:
        yield Parts(server, stack)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_calls(parts: Parts, framing: str, codec: Any) -> None:
    shop = Shop()
    await parts.serve(shop, codec=codec)
    client = await parts.client(codec=codec, framing=framing)
    ctx = Context("c1", headers={"tenant": "a"})
    assert await client.place(ctx, ORDER, 2) == replace(ORDER, lines=ORDER.lines * 2)
    assert dict(ctx.response_headers) == {"copies": "2"}
    assert (shop.contexts[0].correlation_id, dict(shop.contexts[0].headers)) == ("c1", {"tenant": "a"})
    with pytest.raises(NotFound):
        await client.place(Context(), replace(ORDER, number=404), 1)
    await client.ping(Context())
    await client.note(Context(), "ä")
    assert await shop.notes.get() == "ä"


async def test_a_slow_call_holds_up_no_other_and_answers_come_in_any_order(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await parts.client()
    slow = [asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), name)) for name in "abc"]
    for name in "abc":
        await shop.begun[name].wait()
    counted = await asyncio.gather(*(client.count(Context(), "x" * size) for size in range(200)))
    assert counted == list(range(200))
    assert not any(task.done() for task in slow)
    done = []
    for name, task in zip("cab", (slow[2], slow[0], slow[1]), strict=True):
        shop.gates[name].set()
        done.append(await task)
    assert done == ["c", "a", "b"]
    assert parts.transport.in_flight == 0


async def test_a_timed_out_call_cancels_its_handler_and_its_late_answer_is_dropped(parts: Parts) -> None:
    connection = await parts.connection()
    asked = asyncio.Queue[Any]()
    await connection.subscribe("shop", cb=asked.put)
    await reach(connection)
    client = await parts.client()
    with pytest.raises(DeadlineExceeded, match="no answer came from 'shop'"):
        await client.ping(Context(timeout_ms=50))
    request = await asked.get()
    await connection.publish(request.reply, b"late")
    await connection.publish(request.reply.rpartition(".")[0] + ".x", b"stray")
    shop = Shop()
    await connection.drain()
    await parts.serve(shop)
    with pytest.raises(DeadlineExceeded):
        await client.wait_for(Context(timeout_ms=50), "never")
    await shop.cancelled["never"].wait()
    await client.ping(Context())  # on the same inbox: what was published before has come
    assert (parts.transport.stray_messages, parts.transport.in_flight) == (1, 0)
    assert parts.transport.late_answers >= 1


async def test_a_cancelled_call_is_forgotten(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await parts.client()
    task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
    await shop.begun["gate"].wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert parts.transport.in_flight == 0
    shop.gates["gate"].set()
    await client.ping(Context())
    await client.ping(Context())


async def test_nobody_listens(parts: Parts) -> None:
    client = await parts.client()
    with pytest.raises(ServiceNotAvailable, match="no server is subscribed to 'shop'") as raised:
        await client.ping(Context(timeout_ms=LONG_MS))
    assert not raised.value.may_be_done


async def test_the_ack_of_a_stream_is_no_answer(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """Penstock and JetStream ack what they store on its reply subject, also a request."""
    connection = await parts.connection()

    async def stores(message: Any) -> None:
        await message.respond(b'{"stream":"everything","seq":1}')

    await connection.subscribe(">", cb=stores)
    await reach(connection)
    client = await parts.client()
    with pytest.raises(DeadlineExceeded, match="its requests are stored by the stream 'everything'"):
        await client.ping(Context(timeout_ms=500))
    await parts.serve(Shop())
    await client.ping(Context(timeout_ms=LONG_MS))
    assert caplog.text.count("give services a subject that no stream stores") == 1


async def test_an_empty_reply_is_service_not_available(parts: Parts) -> None:
    connection = await parts.connection()

    async def empty(message: Any) -> None:
        await message.respond(b"")

    await connection.subscribe("shop", cb=empty)
    await reach(connection)
    client = await parts.client()
    with pytest.raises(ServiceNotAvailable):
        await client.ping(Context(timeout_ms=LONG_MS))


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_sizes_beyond_those_of_nats(tmp_path: Path, framing: str) -> None:
    async with running_nats(tmp_path, "max_payload: 4096") as server, AsyncExitStack() as stack:
        parts = Parts(server, stack)
        shop = Shop()
        await parts.serve(shop)
        client = await parts.client(framing=framing)
        with pytest.raises(RequestTooLarge, match="and 4,096 fit"):
            await client.place(Context(), replace(ORDER, data=b"x" * 4000), 1)
        with pytest.raises(RequestTooLarge):
            await client.ping(Context(headers={"large": "x" * 4050}))
        with pytest.raises(ResponseTooLarge, match="and 4,096 fit"):
            await client.place(Context(), ORDER, 200)
        await client.ping(Context())


async def test_a_queue_group_shares_the_requests(parts: Parts) -> None:
    shops = [Shop(), Shop()]
    for shop in shops:
        await parts.serve(shop)
    client = await parts.client()
    for _ in range(40):
        await client.ping(Context())
    assert sum(shop.pings for shop in shops) == 40
    assert all(shop.pings for shop in shops)


async def test_requests_beyond_the_queue_are_refused_at_once(parts: Parts) -> None:
    shop = Shop()
    server = await parts.serve(shop, concurrency_max=2, waiting_max=1)
    client = await parts.client()
    tasks = []
    for name in "ab":
        tasks.append(asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), name)))
        await shop.begun[name].wait()
    waits = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "c"))
    await parts.reached()
    with pytest.raises(ServiceOverloaded, match="2 requests are in progress and 1 wait"):
        await client.ping(Context(timeout_ms=LONG_MS))
    assert server.overloaded == 1
    for name in "abc":
        shop.gates[name].set()
    assert await asyncio.gather(*tasks, waits) == ["a", "b", "c"]


async def test_a_client_has_a_most_of_calls(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await parts.client(in_flight_max=1)
    task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
    await shop.begun["gate"].wait()
    with pytest.raises(TooManyCalls, match="1 calls wait"):
        await client.ping(Context())
    shop.gates["gate"].set()
    assert await task == "gate"
    await client.ping(Context())


async def test_a_drain_ends_what_has_begun_and_another_server_takes_over(parts: Parts) -> None:
    shop, other = Shop(), Shop()
    server = await parts.serve(shop, concurrency_max=1)
    client = await parts.client()
    running = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "running"))
    await shop.begun["running"].wait()
    waiting = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "waiting"))
    await parts.reached()
    assert server.waiting == 1
    drain = asyncio.create_task(server.drain())
    await parts.serve(other)
    for _ in range(5):
        await client.ping(Context())
    shop.gates["running"].set()
    shop.gates["waiting"].set()
    assert await asyncio.gather(running, waiting) == ["running", "waiting"]
    await drain
    await server.drained()
    assert other.pings >= 1


async def test_a_drain_has_a_time_out(parts: Parts) -> None:
    shop = Shop()
    server = await parts.serve(shop, concurrency_max=1)
    client = await parts.client()
    running = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "running"))
    await shop.begun["running"].wait()
    waiting = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "waiting"))
    await parts.reached()
    assert server.waiting == 1
    await server.drain(0.01)
    for task in (running, waiting):
        with pytest.raises(ServiceDraining):
            await task
    assert shop.cancelled["running"].is_set()
    assert not shop.begun["waiting"].is_set()


async def test_a_drain_does_not_wait_for_nats_while_it_is_away(parts: Parts) -> None:
    gone = asyncio.Event()

    async def disconnected() -> None:
        gone.set()

    shop, other = Shop(), Shop()
    connection = await parts.connection(disconnected_cb=disconnected)
    server = Server(connection, "shop", [(SHOP, shop)])
    await server.start()
    await parts.server.kill()
    await gone.wait()
    async with asyncio.timeout(30):  # each of ten subscriptions would wait for ten seconds
        await server.drain()
    await parts.server.start()
    await parts.serve(other)
    client = await parts.client()
    for _ in range(10):  # none reaches the drained one, whose connection comes back
        await client.ping(Context())
    assert (shop.pings, other.pings) == (0, 10)


async def test_nats_server_is_killed_and_comes_back(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await parts.client()
    await client.ping(Context())
    running = asyncio.create_task(client.wait_for(Context(timeout_ms=500), "gate"))
    await shop.begun["gate"].wait()
    await parts.server.kill()
    with pytest.raises(DeadlineExceeded):
        await running
    with pytest.raises(DeadlineExceeded):
        await client.ping(Context(timeout_ms=100))
    await parts.server.start()
    async with asyncio.timeout(60):
        while True:
            try:
                await client.ping(Context(timeout_ms=500))
                break
            except (DeadlineExceeded, ServiceNotAvailable):  # the server may reconnect later
                continue
    assert await client.count(Context(), "Ann") == 3


async def test_a_closed_client_and_a_closed_connection(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await parts.client()
    task = asyncio.create_task(client.wait_for(Context(timeout_ms=LONG_MS), "gate"))
    await shop.begun["gate"].wait()
    await client.close()
    with pytest.raises(TransportClosed) as raised:
        await task
    assert raised.value.may_be_done  # it was under way
    with pytest.raises(TransportClosed) as raised:
        await client.ping(Context())
    assert not raised.value.may_be_done
    connection = await parts.connection()
    other = ShopClient(NatsTransport(connection, "shop"), SHOP)
    await other.ping(Context())
    task = asyncio.create_task(other.wait_for(Context(timeout_ms=200), "other"))
    await shop.begun["other"].wait()
    await connection.close()
    with pytest.raises(TransportClosed, match="closed before the answer came"):
        await task
    with pytest.raises(TransportClosed, match="connection is closed"):
        await other.ping(Context())


async def test_hostile_messages_while_calls_go_on(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    server = await parts.serve(shop)
    client = await parts.client()
    connection = await parts.connection()
    inbox = connection.new_inbox()
    answers = await connection.subscribe(f"{inbox}.>")
    ctx = Context()
    frame = FRUGAL.encode_request(BINARY, PING, ctx, 1, 0.0, PING.arguments()).data
    hostile: list[tuple[bytes, dict[str, str] | None]] = [
        (b"", None),
        (b"\0" * 9, None),
        (b"\xff" * 5000, None),
        (frame[:-1], None),
        (b"\0\0\x10\0\0\xff\xff\xff\xff" + b"x" * 0xFFB, None),
        (b"", {"Frugal-Method": "x" * 5000}),
        (b"\x0f\x00\x01\x0c\x7f\xff\xff\xff", {"Frugal-Method": "place"}),
        (b"\x0c\x00\x63" * 5000, {"Frugal-Method": "place"}),
        (b"", {"Frugal-Method": "ping", **{f"h{number}": "x" for number in range(300)}}),
    ]
    for number, (data, headers) in enumerate(hostile * 5):
        await connection.publish("shop", data, reply=f"{inbox}.{number}", headers=headers)
        await client.ping(Context())
    await connection.publish("shop", frame)  # no reply subject
    await reach(connection)
    await client.ping(Context())
    assert shop.pings == len(hostile) * 5 + 1
    assert (server.stats.malformed, server.stats.no_reply) == (6 * 5, 1)
    codes = [((await answers.next_msg()).headers or {})["Nats-Service-Error-Code"] for _ in range(15)]
    assert sorted(codes) == ["400"] * 10 + ["404"] * 5
    assert 1 <= len(caplog.records) <= 4  # warnings are limited
    caplog.clear()


async def test_discovery(parts: Parts) -> None:
    shop = Shop()
    server = await parts.serve(shop, version="1.2.3", description="Orders", metadata={"team": "a"})
    client = await parts.client()
    await client.ping(Context())
    with pytest.raises(NotFound):
        await client.place(Context(), replace(ORDER, number=404), 1)
    connection = await parts.connection()
    for subject in ("$SRV.PING", "$SRV.PING.Shop", f"$SRV.PING.Shop.{server.identity.id}"):
        ping = ServicePing.from_dict(json.loads((await connection.request(subject, timeout=30)).data))
        assert (ping.name, ping.id, ping.version) == ("Shop", server.identity.id, "1.2.3")
        assert ping.metadata == {"team": "a"}
    info = ServiceInfo.from_dict(json.loads((await connection.request("$SRV.INFO.Shop", timeout=30)).data))
    assert info.description == "Orders"
    assert {(each.name, each.subject, each.queue_group) for each in info.endpoints} == {
        (name, "shop", "shops") for name in SHOP.methods
    }
    stats = ServiceStats.from_dict(json.loads((await connection.request("$SRV.STATS", timeout=30)).data))
    counted = {each.name: (each.num_requests, each.num_errors) for each in stats.endpoints}
    assert counted == {"ping": (1, 0), "place": (1, 0), "count": (0, 0), "wait_for": (0, 0), "note": (0, 0)}
    with pytest.raises(nats.errors.NoRespondersError):
        await connection.request("$SRV.PING.Other", timeout=30)


async def test_blocking_clients_are_used_by_many_threads(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    found: list[int] = []
    failed: list[Exception] = []

    def use(client: BlockingShopClient, size: int) -> None:
        try:
            found.extend(client.count(Context(), "x" * size) for _ in range(5))
        except Exception as error:  # noqa: BLE001 (the test shows it)
            failed.append(error)

    def run() -> None:
        with BlockingShopClient(NatsTransport.connecting(parts.server.url, "shop"), SHOP) as client:
            threads = [threading.Thread(target=use, args=(client, size)) for size in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with pytest.raises(NotFound):
                client.place(Context(), replace(ORDER, number=404), 1)

    await asyncio.to_thread(run)
    assert failed == []
    assert sorted(found) == sorted([*range(8)] * 5)


async def test_a_blocking_client_that_cannot_connect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_nats(tmp_path) as server:
        url = server.url
    connect = NatsTransport.connecting(url, "shop", first_connect_timeout_s=0.5)
    with pytest.raises(ServiceNotAvailable, match=rf"NATS at {url} was not reached in 0\.5 s: .*Connect call failed"):
        await asyncio.to_thread(BlockingShopClient, connect, SHOP)
    assert caplog.records == [], "the error says it"


async def test_a_server_that_says_nothing_is_told_as_a_time_out() -> None:
    async with silent_server() as (url, _):
        connect = NatsTransport.connecting(url, "shop", first_connect_timeout_s=0.5, connect_timeout=0.05)
        with pytest.raises(ServiceNotAvailable, match=r"was not reached in 0\.5 s: .*[Tt]ime.?out"):
            await connect()


async def test_clients_with_one_inbox_prefix_get_their_own_answers(parts: Parts) -> None:
    await parts.serve(Shop())
    for connection in (await parts.connection(), await parts.connection(inbox_prefix=b"_INBOX.other")):
        transports = [NatsTransport(connection, "shop", inbox="_INBOX.shop") for _ in range(2)]
        clients = [ShopClient(transport, SHOP) for transport in transports]
        found = await asyncio.gather(
            *(client.count(Context(), "x" * place) for _ in range(50) for place, client in enumerate(clients))
        )
        assert found == [0, 1] * 50
        assert [transport.late_answers for transport in transports] == [0, 0]


async def test_a_blocking_client_that_is_closed_says_so(parts: Parts) -> None:
    shop = Shop()
    await parts.serve(shop)
    client = await asyncio.to_thread(BlockingShopClient, NatsTransport.connecting(parts.server.url, "shop"), SHOP)
    assert await asyncio.to_thread(client.count, Context(), "Ann") == 3
    await asyncio.to_thread(client.close)
    with pytest.raises(TransportClosed, match="the client of the service is closed") as raised:
        await asyncio.to_thread(client.count, Context(), "Ann")
    assert not raised.value.may_be_done


def test_a_request_has_a_plain_subject() -> None:
    for subject in ("", "a.*", "a b", "a..b"):
        with pytest.raises(ValueError, match="subject"):
            NatsTransport(Client(), subject)


async def test_a_connection_that_is_not_made_in_time_is_closed() -> None:
    async with silent_server() as (url, connections):
        connect = NatsTransport.connecting(url, "shop", first_connect_timeout_s=0.05, error_cb=_silent)
        connecting = asyncio.create_task(connect())
        reader = await connections.get()
        with pytest.raises(ServiceNotAvailable, match=r"0\.05 s"):
            await connecting
        assert await reader.read() == b""
