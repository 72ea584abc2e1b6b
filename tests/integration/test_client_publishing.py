"""Publishing from the client through a real nats-server; a plain NATS subscriber plays the stream's leader."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from tests.extent import each_change
from tests.fake_broker import FakeBroker
from tests.nats_servers import RunningNats, running_nats

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:nats.*")


class Leader:
    """Acks what comes, as a stream's leader does; a test may change what it answers."""

    def __init__(self, connection: NatsClient) -> None:
        self.connection = connection
        self.got: list[Msg] = []
        self.answers: dict[str, dict] = {}  # value → body instead of an ack
        self.silent = False
        self.arrived = asyncio.Event()

    async def stores(self, stream: str, subject: str) -> None:
        count = 0

        async def ack(message: Msg) -> None:
            nonlocal count
            self.got.append(message)
            self.arrived.set()
            if (message.headers or {}).get("Nats-Expected-Stream", stream) != stream:
                return
            count += 1
            body = self.answers.get(message.data.decode("utf-8", "replace"), {"stream": stream, "seq": count})
            if message.reply and not self.silent:
                await self.connection.publish(message.reply, json.dumps(body).encode())

        await self.connection.subscribe(subject, cb=ack)
        await self.connection.flush()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningNats]:
    async with running_nats(tmp_path) as server:
        yield server


@pytest.fixture
async def leader(server: RunningNats) -> AsyncIterator[Leader]:
    connection = await nats.connect(server.url)
    yield Leader(connection)
    await connection.close()


@pytest.fixture
async def broker(server: RunningNats) -> AsyncIterator[FakeBroker]:
    async with FakeBroker(nats_urls=(server.url,)) as broker:
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await aio.connect(broker.address) as client:
        yield client


async def test_a_publish_is_acked_with_key_headers_and_tombstones_where_they_belong(
    leader: Leader, client: aio.Client
) -> None:
    await leader.stores("orders", "orders.>")
    ack = await client.publish("orders.eu", b"1", key="zürich 7", headers={"A": "x"})
    assert ack is not None
    assert (ack.stream, ack.offset, ack.duplicate) == ("orders", 0, False)
    await client.publish("orders.eu", "2", key=b"\xff\x00")
    await client.publish("orders.eu", None, key=" k")
    await client.publish("orders.eu", b"", ack="leader")
    await client.publish("orders.eu", b"5")
    assert [message.data for message in leader.got] == [b"1", b"2", b"", b"", b"5"]
    assert [message.headers for message in leader.got] == [
        {"A": "x", "Penstock-Key": "zürich 7"},
        {"Penstock-Key-Base64": "/wA="},
        {"Penstock-Key-Base64": "IGs=", "Penstock-Tombstone": "1"},
        {"Penstock-Ack": "leader"},
        None,
    ]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
async def test_an_infinite_time_out_waits_for_the_ack_as_long_as_it_takes(
    broker: FakeBroker, leader: Leader, client: aio.Client, timeout: float, retries: int
) -> None:
    broker.create("orders", "orders")
    await leader.stores("orders", "orders")
    ack = await client.publish("orders", b"1", timeout=timeout, retries=retries)
    assert (ack.stream, ack.offset) == ("orders", 0)
    assert (await client.publish_to_all("orders", b"2", timeout=timeout))["orders"].offset == 1
    await client.publish("orders", b"3", ack="none", timeout=timeout)
    await client.publish_nowait("orders", b"4", timeout=timeout, retries=retries)
    await client.flush(timeout=timeout)
    assert [message.data for message in leader.got] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(("timeout", "kind"), [(None, TypeError), ("5", TypeError), (float("nan"), ValueError)])
async def test_a_time_out_that_is_none_is_refused_and_nothing_is_sent(
    broker: FakeBroker, leader: Leader, client: aio.Client, timeout: Any, kind: type[Exception]
) -> None:
    broker.create("orders", "orders")
    await leader.stores("orders", "orders")
    await client.publish("orders", b"1")
    for call in (
        client.publish("orders", b"2", timeout=timeout),
        client.publish("orders", b"2", timeout=timeout, retries=2),
        client.publish("orders", b"2", timeout=timeout, ack="none"),
        client.publish_nowait("orders", b"2", timeout=timeout),
        client.publish_to_all("orders", b"2", timeout=timeout),
        client.flush(timeout=timeout),
    ):
        with pytest.raises(kind, match="timeout is"):
            await call
    await client.publish("orders", b"3")
    assert [message.data for message in leader.got] == [b"1", b"3"]


async def test_further_fields_of_an_ack_are_told(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    full = {"partition": 0, "offset": 9, "epoch": 3, "replicas": 1, "fsynced": True, "duplicate": True, "more": 1}
    leader.answers["x"] = {"stream": "orders", "seq": 10} | full
    assert await client.publish("orders", b"x") == penstock.PubAck("orders", 9, 0, True, 3, 1, True)


@pytest.mark.parametrize(
    ("err_code", "kind", "code"),
    [
        (10054, RemoteError, "too_large"),
        (10077, penstock.StorageFailed, "storage_failed"),
        (10008, penstock.Overloaded, "overloaded"),
        (10109, penstock.ReadOnly, "read_only"),
        (10071, RemoteError, "nats_10071"),
    ],
)
async def test_a_refusal_has_its_class_and_code(
    leader: Leader, client: aio.Client, err_code: int, kind: type[RemoteError], code: str
) -> None:
    await leader.stores("orders", "orders")
    error = {"code": 400, "err_code": err_code, "description": "not now"}
    leader.answers["x"] = {"stream": "orders", "seq": 0, "error": error}
    with pytest.raises(kind, match="not now") as caught:
        await client.publish("orders", b"x")
    assert caught.value.code == code
    assert caught.value.details == {"stream": "orders", "err_code": err_code}


@pytest.mark.parametrize(
    ("err_code", "description", "flag"),
    [
        (10166, "per-message TTL is disabled", "--allow-message-ttl"),
        (10111, "rollup not permitted", "--allow-rollup"),
    ],
)
async def test_a_refusal_that_an_option_of_the_stream_turns_off_names_it(
    leader: Leader, client: aio.Client, err_code: int, description: str, flag: str
) -> None:
    await leader.stores("orders", "orders")
    error = {"code": 400, "err_code": err_code, "description": description}
    leader.answers["x"] = {"stream": "orders", "seq": 0, "error": error}
    with pytest.raises(RemoteError) as caught:
        await client.publish("orders", b"x")
    assert f"{description}; `penstock stream alter orders {flag} yes`" in str(caught.value)


async def test_a_refused_time_to_live_is_told_with_the_rule(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    error = {"code": 400, "err_code": 10165, "description": "invalid per-message TTL"}
    leader.answers["x"] = {"stream": "orders", "seq": 0, "error": error}
    with pytest.raises(RemoteError, match="invalid per-message TTL: a Nats-TTL is a number of seconds"):
        await client.publish("orders", b"x")


@each_change
async def test_a_subject_that_nobody_stores_is_told_and_a_leader_that_comes_a_little_late_is_found(
    leader: Leader, client: aio.Client
) -> None:
    with pytest.raises(penstock.StreamNotFound, match="'orders'"):
        await client.publish("orders", b"x")
    late = await client.publish_nowait("orders", b"y")
    await leader.stores("orders", "orders")
    ack = await late
    assert ack is not None
    assert ack.stream == "orders"


async def test_no_ack_in_time_means_that_the_outcome_is_unknown(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    leader.silent = True
    with pytest.raises(penstock.TimedOut, match="unknown"):
        await client.publish("orders", b"x", timeout=0.1)


@each_change
async def test_a_message_without_an_ack_is_sent_again_where_that_was_asked_for(
    leader: Leader, client: aio.Client
) -> None:
    """As when a leader dies between its append and its ack; the next one hears it again, and stores it again."""
    await leader.stores("orders", "orders")
    leader.silent = True
    sent = await client.publish_nowait("orders", b"x", retries=100, timeout=20.0)
    while len(leader.got) < 3:
        leader.arrived.clear()
        await asyncio.wait_for(leader.arrived.wait(), 10)
    assert not sent.done()
    leader.silent = False
    ack = await asyncio.wait_for(sent, 10)
    assert ack is not None
    assert ack.offset == len(leader.got) - 1
    assert {message.reply for message in leader.got} == {leader.got[0].reply}
    with pytest.raises(ValueError, match="retries is -1"):
        await client.publish("orders", b"x", retries=-1)


@each_change
async def test_a_message_is_sent_again_until_somebody_is_subscribed_where_that_was_asked_for(
    leader: Leader, client: aio.Client
) -> None:
    with pytest.raises(penstock.StreamNotFound):
        await client.publish("orders", b"x", retries=1, timeout=1.2)
    late = await client.publish_nowait("orders", b"y", retries=1, timeout=20.0)
    tried = asyncio.create_task(client.publish("orders", b"z"))
    with pytest.raises(penstock.StreamNotFound):  # without retries, after half a second
        await tried
    assert not late.done()
    await leader.stores("orders", "orders")
    ack = await asyncio.wait_for(late, 10)
    assert ack is not None
    assert [message.data for message in leader.got] == [b"y"]


async def test_no_ack_at_all_is_unknown_whatever_was_tried(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    leader.silent = True
    with pytest.raises(penstock.TimedOut, match="unknown"):
        await client.publish("orders", b"x", retries=3, timeout=0.2)
    assert len(leader.got) >= 2


@each_change
async def test_order_is_kept_and_messages_in_flight_are_bounded(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    count = limits.PUBLISHES_IN_FLIGHT_MAX + 1_000
    futures = [await client.publish_nowait("orders", b"%d" % number) for number in range(count)]
    publisher = client._publications._publisher
    assert publisher is not None
    assert len(publisher._in_flight) <= limits.PUBLISHES_IN_FLIGHT_MAX
    await client.flush()
    acks = [future.result() for future in futures]
    assert [ack.offset for ack in acks if ack] == list(range(count))
    assert [message.data for message in leader.got] == [b"%d" % number for number in range(count)]


async def test_a_flush_raises_the_first_failure_once(leader: Leader, client: aio.Client) -> None:
    await leader.stores("orders", "orders")
    for value in ("b", "d"):
        error = {"code": 503, "err_code": 10008, "description": f"no {value}"}
        leader.answers[value] = {"stream": "orders", "seq": 0, "error": error}
    for value in "abcd":
        await client.publish_nowait("orders", value)
    with pytest.raises(penstock.Overloaded, match="no b") as caught:
        await client.flush()
    assert caught.value.__notes__ == ["2 publishes failed; this is the first one"]
    await client.flush()


async def test_without_an_ack_nothing_is_awaited_but_a_flush_proves_that_it_went_out(
    leader: Leader, client: aio.Client
) -> None:
    await leader.stores("orders", "orders")
    assert await client.publish("orders", b"x", ack="none") is None  # type: ignore[func-returns-value]
    for number in range(2_000):
        assert (await client.publish_nowait("orders", b"%d" % number, ack="none")).result() is None
    await client.flush(timeout=30)
    while len(leader.got) < 2_001:
        leader.arrived.clear()
        await asyncio.wait_for(leader.arrived.wait(), 5)
    assert leader.got[0].headers == {"Penstock-Ack": "none"}
    assert leader.got[0].reply == ""


async def test_a_stream_that_is_there_and_that_nobody_listens_for_is_not_denied(
    broker: FakeBroker, client: aio.Client
) -> None:
    broker.create("all", "orders.>")
    for publishing in (client.publish("orders.eu", b"x"), client.publish_to_all("orders.eu", b"x")):
        with pytest.raises(
            penstock.RemoteError, match=r"stores the subject 'orders\.eu', but no broker is subscribed"
        ) as error:
            await publishing
        assert error.value.code == ErrorCode.NOT_LEADER


async def test_several_streams_on_a_subject_each_ack(broker: FakeBroker, leader: Leader, client: aio.Client) -> None:
    await leader.stores("all", "orders.>")
    await leader.stores("eu", "orders.eu")
    for name, subject in (("all", "orders.>"), ("eu", "orders.eu")):
        broker.create(name, subject)
    broker.create("quiet", "orders.*", acks="never")
    acks = await client.publish_to_all("orders.eu", b"x")
    assert {name: (ack.stream, ack.offset) for name, ack in acks.items()} == {"all": ("all", 0), "eu": ("eu", 0)}
    assert list(await client.publish_to_all("orders.us", b"x")) == ["all"]
    ack = await client.publish("orders.eu", b"y", stream="eu")
    assert ack is not None
    assert ack.stream == "eu"
    with pytest.raises(penstock.StreamNotFound):
        await client.publish_to_all("other", b"x")


async def test_streams_that_did_not_ack_are_named(broker: FakeBroker, leader: Leader, client: aio.Client) -> None:
    await leader.stores("all", "orders.>")
    for name in ("all", "eu", "us"):
        broker.create(name, "orders.>")
    with pytest.raises(penstock.TimedOut, match="eu, us") as caught:
        await client.publish_to_all("orders.1", b"x", timeout=0.3)
    assert list(caught.value.details["acks"]) == ["all"]


async def test_a_service_that_answers_for_itself_is_no_ack(
    server: RunningNats, leader: Leader, client: aio.Client
) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"hello yourself")

    await leader.connection.subscribe("service", cb=answer)
    await leader.connection.flush()
    with pytest.raises(RemoteError, match="no ack of a stream"):
        await client.publish("service", b"x")


@pytest.mark.parametrize(
    ("subject", "options", "reason"),
    [
        ("orders.*", {}, "wildcard"),
        ("a b", {}, "white space"),
        ("orders", {"headers": {"A": "1\r\nB: 2"}}, "line ends"),
        ("orders", {"headers": {"A b": "1"}}, "header name"),
        ("orders", {"key": b""}, "empty key"),
        ("orders", {"key": bytes(limits.KEY_BYTES_MAX + 1)}, "limit"),
        ("orders", {"ack": "some"}, "'all', 'leader' or 'none'"),
    ],
)
async def test_what_cannot_be_sent_is_refused_here(
    client: aio.Client, subject: str, options: dict, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        await client.publish(subject, b"x", **options)


async def test_a_message_larger_than_nats_takes_is_refused_and_the_next_goes_through(
    leader: Leader, client: aio.Client
) -> None:
    await leader.stores("orders", "orders")
    with pytest.raises(RemoteError, match="takes at most") as caught:
        await client.publish("orders", bytes(2_000_000))
    assert caught.value.code == "too_large"
    assert await client.publish("orders", b"x") is not None


async def test_a_nats_server_that_comes_back_is_used_again(
    server: RunningNats, broker: FakeBroker, tmp_path: Path
) -> None:
    async with await aio.connect(broker.address, nats_options={"reconnect_time_wait": 0.01}) as client:
        with pytest.raises(penstock.StreamNotFound):
            await client.publish("orders", b"x")
        await server.kill()
        await server.start()
        connection = await nats.connect(server.url)
        leader = Leader(connection)
        await leader.stores("orders", "orders")
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await client.publish("orders", b"x", timeout=1) is not None
                    break
                except (penstock.TimedOut, OperationalError):
                    continue
        await connection.close()


async def test_a_broker_that_comes_back_with_another_nats_server_is_followed_there(
    server: RunningNats, broker: FakeBroker, tmp_path: Path
) -> None:
    cut_off = asyncio.Event()

    async def tell() -> None:
        cut_off.set()

    async with await aio.connect(broker.address, nats_options={"disconnected_cb": tell}) as client:
        with pytest.raises(penstock.StreamNotFound):
            await client.publish("orders", b"x")
        await server.kill()
        await asyncio.wait_for(cut_off.wait(), 5)
        (tmp_path / "other").mkdir()
        async with running_nats(tmp_path / "other") as other:
            connection = await nats.connect(other.url)
            await Leader(connection).stores("orders", "orders")
            broker.hello["nats_urls"] = (other.url,)
            broker.cut_connections()
            await client.status()
            assert await client.publish("orders", b"x") is not None
            await connection.close()


async def test_no_nats_is_told_without_its_password(broker: FakeBroker, server: RunningNats) -> None:
    await server.kill()
    url = server.url.replace("nats://", "nats://me:secret@")
    async with await aio.connect(broker.address, nats=url) as client:
        with pytest.raises(penstock.Unavailable, match="no NATS server answers") as caught:
            await client.publish("orders", b"x", timeout=0.3)
    assert "secret" not in str(caught.value)


async def test_a_broker_without_a_nats_address_says_what_to_do() -> None:
    async with FakeBroker() as broker, await aio.connect(broker.address) as client:
        with pytest.raises(OperationalError, match="nats=URL"):
            await client.publish("orders", b"x")


@each_change
async def test_the_blocking_face_publishes_from_many_threads(broker: FakeBroker, leader: Leader) -> None:
    await leader.stores("orders", "orders")

    def work() -> list[int]:
        with penstock.connect(broker.address) as client:
            ack = client.publish("orders", b"first")
            assert ack is not None
            futures = [client.publish_nowait("orders", b"%d" % number) for number in range(3_000)]
            client.flush()
            assert all(future.done() for future in futures)
            with pytest.raises(penstock.StreamNotFound):
                client.publish("nobody", b"x")
            client.publish_nowait("or ders", b"x")
            with pytest.raises(ValueError, match="white space"):
                client.flush()
            return [ack.offset for future in futures if (ack := future.result()) is not None]

    assert await asyncio.to_thread(work) == list(range(1, 3_001))


async def test_a_clean_end_of_the_block_waits_for_the_acks(broker: FakeBroker, leader: Leader) -> None:
    await leader.stores("orders", "orders")
    async with aio.connect(broker.address) as client:
        futures = [await client.publish_nowait("orders", b"%d" % number) for number in range(3_000)]
    assert [ack.offset for future in futures if (ack := future.result())] == list(range(3_000))

    def work() -> list[concurrent.futures.Future[penstock.PubAck | None]]:
        with penstock.connect(broker.address) as client:
            return [client.publish_nowait("orders", b"%d" % number) for number in range(3_000)]

    futures_of_threads = await asyncio.to_thread(work)
    assert [ack.offset for future in futures_of_threads if (ack := future.result())] == list(range(3_000, 6_000))


async def test_a_clean_end_of_the_block_tells_what_has_no_ack(broker: FakeBroker, leader: Leader) -> None:
    leader.silent = True
    await leader.stores("orders", "orders")

    async def publishes() -> None:
        async with aio.connect(broker.address) as client:
            for _ in range(3):
                await client.publish_nowait("orders", b"x", timeout=0.2)

    with pytest.warns(penstock.PublishWarning, match=r"^3 messages .* the first: .*no ack") as caught:
        await publishes()
    assert [one.filename for one in caught] == [__file__]

    def work() -> None:
        with penstock.connect(broker.address) as client:
            for _ in range(3):
                client.publish_nowait("orders", b"x", timeout=0.2)
            client.publish_nowait("or ders", b"x")

    with pytest.warns(penstock.PublishWarning, match=r"^4 messages .* the first: .*white space") as caught:
        await asyncio.to_thread(work)
    assert [one.filename for one in caught] == [__file__]


async def test_failures_that_were_looked_at_or_raised_by_flush_are_not_told_again(
    broker: FakeBroker, leader: Leader
) -> None:
    leader.silent = True
    await leader.stores("orders", "orders")
    async with aio.connect(broker.address) as client:
        future = await client.publish_nowait("orders", b"x", timeout=0.1)
        with pytest.raises(penstock.TimedOut):
            await future
        await client.publish_nowait("orders", b"x", timeout=0.1)
        with pytest.raises(penstock.TimedOut):
            await client.flush()

    def work() -> None:
        with penstock.connect(broker.address) as client:
            with pytest.raises(penstock.TimedOut):
                client.publish_nowait("orders", b"x", timeout=0.1).result()
            assert isinstance(client.publish_nowait("orders", b"x", timeout=0.1).exception(), penstock.TimedOut)
            client.publish_nowait("or ders", b"x")
            with pytest.raises(ValueError, match="white space"):
                client.flush()

    await asyncio.to_thread(work)


async def test_an_exception_ends_the_block_at_once(broker: FakeBroker, leader: Leader) -> None:
    leader.silent = True
    await leader.stores("orders", "orders")
    futures: list[asyncio.Future[penstock.PubAck | None]] = []

    async def publishes() -> None:
        async with aio.connect(broker.address) as client:
            futures.append(await client.publish_nowait("orders", b"x", timeout=60))
            raise KeyError

    with pytest.raises(KeyError):
        await publishes()
    with pytest.raises(penstock.Unavailable, match="closed before the ack came"):
        await futures[0]

    def work() -> None:
        with penstock.connect(broker.address) as client:
            client.publish_nowait("orders", b"x", timeout=60)
            raise KeyError

    with pytest.raises(KeyError):
        await asyncio.wait_for(asyncio.to_thread(work), 20)


async def test_a_subject_of_which_no_broker_can_be_asked_may_be_tried_again(
    broker: FakeBroker, leader: Leader, client: aio.Client
) -> None:
    await leader.stores("all", "orders.>")
    await client.publish("orders.eu", b"x")
    await broker.stop()
    with pytest.raises(penstock.Unavailable, match="has no subscriber now, so it was not stored"):
        await client.publish("elsewhere", b"x")
