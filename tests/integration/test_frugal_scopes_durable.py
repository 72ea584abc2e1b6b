"""Durable scopes on real brokers: what is acked is handled or is a dead letter, through restarts and hostile bytes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import penstock
from penstock import aio
from penstock.base.dead_letters import DELIVERIES, GROUP, HEADER, OFFSET, PARTITION, REASON, STREAM, SUBJECT
from penstock.client.values import Message, PubAck
from penstock.frugal.codecs import BINARY, COMPACT, MessageKind
from penstock.frugal.context import Context
from penstock.frugal.middleware import Call, Proceed
from penstock.frugal.scopes.dead_letters import DeadLetters
from penstock.frugal.scopes.durable import Delivery
from penstock.frugal.scopes.keys import MissingKeyError
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.redelivery import RetryPolicy
from penstock.frugal.scopes.streams import UnsuitableStreamError
from penstock.frugal.scopes.subscriptions import MessageRejected, Subscription
from penstock.lake.reading.typed import registered
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from tests import cli_process
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.frugal_frames import encode_frame
from tests.unit.frugal.scopes.contract import PLACED, OrdersPublisher, OrdersSubscriber, order

QUICK = RetryPolicy(attempts_max=3, wait_s=0.02, wait_s_max=0.05)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One of the test's own: streams and groups have the names that the contract gives them."""
    with running_broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def provider(broker: BrokerProcess) -> AsyncIterator[ScopeProvider]:
    async with await broker.client() as client:
        yield ScopeProvider(client=client)


class Handled:
    """A handler that fails for some numbers, and notes what it has taken."""

    def __init__(self, *failing: int, rejected: int | None = None) -> None:
        self.failing = set(failing)
        self.rejected = rejected
        self.numbers: list[int] = []
        self.deliveries: list[tuple[int, int]] = []
        self.topics: list[Any] = []
        self._came = asyncio.Event()

    async def __call__(self, ctx: Context, message: Any) -> None:
        self._came.set()
        if message.number in self.failing:
            raise LookupError(f"no customer for {message.number}")
        if message.number == self.rejected:
            raise MessageRejected("it is of last year")
        self.numbers.append(message.number)
        self.topics.append(ctx.topic)

    async def counting(self, ctx: Context, call: Call, proceed: Proceed) -> Any:
        self.deliveries.append((call.arguments[0].number, call.deliveries))
        return await proceed(ctx, call)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.numbers) < count:
                self._came.clear()
                await self._came.wait()


async def counted(subscription: Subscription, **wanted: int) -> None:
    async def are_there() -> bool:
        return all(subscription.counts.get(name) == count for name, count in wanted.items())

    await eventually(are_there, f"{wanted} in {dict(subscription.counts)}")


async def dead(client: aio.Client, stream: str = "orders-dead") -> list[Message]:
    return [message async for message in client.messages(stream)]


async def test_a_subscription_to_a_stream_of_other_subjects_is_warned_of(
    provider: ScopeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    await provider.client.create_stream("shop", "shop.>")
    async with await OrdersSubscriber(provider).subscribe_Placed("*", Handled(), group="g", stream="shop"):
        text = "stream shop is on 'shop.>', which stores no message on 'frugal.shop.*.Orders.Placed'"
        assert text in caplog.text
    caplog.clear()
    await provider.client.create_stream("all", "frugal.>")
    await provider.client.create_stream("lost", "penstock.dead.>")
    for stream in ("all", "lost"):
        async with await OrdersSubscriber(provider).subscribe_Placed("*", Handled(), group="g", stream=stream):
            assert "stores no message" not in caplog.text


async def test_what_is_published_is_acked_kept_once_and_partitioned_by_its_key(provider: ScopeProvider) -> None:
    publisher = OrdersPublisher(provider, create={"partitions": 4})
    acks = [await publisher.publish_Placed(Context("c"), "eu", order(n, f"c{n % 3}")) for n in range(9)]
    assert all(isinstance(ack, PubAck) and ack.stream == "orders" for ack in acks)
    info = await provider.client.stream("orders")
    assert (info.config.subject, info.config.partition_by) == ("frugal.shop.*.Orders.Placed", "key")
    stored = [message async for message in provider.client.messages("orders")]
    by_key = {message.key: {one.partition for one in stored if one.key == message.key} for message in stored}
    assert by_key.keys() == {b"c0", b"c1", b"c2"}
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert {message.subject for message in stored} == {"frugal.shop.eu.Orders.Placed"}
    first = await publisher.publish_Placed(Context(), "eu", order(20), message_id="order-20")
    again = await publisher.publish_Placed(Context(), "eu", order(20), message_id="order-20")
    assert isinstance(first, PubAck)
    assert isinstance(again, PubAck)
    assert (again.duplicate, again.offset) == (True, first.offset)
    futures = [await publisher.publish_Placed(Context(), "eu", order(n), nowait=True) for n in range(100, 300)]
    await publisher.flush()
    done = [future.result() for future in futures if isinstance(future, asyncio.Future)]
    offsets = [ack.offset for ack in done if ack is not None]
    assert offsets == sorted(offsets)
    assert len(offsets) == 200
    with pytest.raises(penstock.RemoteError, match=r"too large|takes at most"):
        await publisher.publish_Placed(Context(), "eu", order(1, "x"), headers={"pad": "x" * 9_000_000})


async def test_a_stream_that_cannot_keep_a_scope_is_refused_with_the_reason(provider: ScopeProvider) -> None:
    client = provider.client
    publisher = OrdersPublisher(provider)
    with pytest.raises(penstock.StreamNotFound) as refused:
        await publisher.publish_Placed(Context(), "eu", order(1))
    (note,) = refused.value.__notes__
    assert "`penstock stream create orders 'frugal.shop.*.Orders.Placed'`" in note
    assert "create={}" in note
    await client.create_stream("elsewhere", "elsewhere.>")
    await client.create_stream("random", "frugal.shop.random.>", partitions=2, partition_by="group")
    await client.create_stream("shared", "frugal.shop.shared.>", group="workers")
    await client.create_stream("numbered", "frugal.shop.numbered.Orders.Placed", partitions=2)
    for stream, region, text in [
        ("elsewhere", "eu", "does not store 'frugal.shop.eu.Orders.Placed'"),
        ("random", "random", "has a key, and stream random has partitions by group"),
        ("shared", "shared", "has a key, and stream shared is in the group 'workers'"),
        ("numbered", "numbered", "partitions by publisher, each on a subject of its own"),
    ]:
        with pytest.raises(UnsuitableStreamError, match=text):
            await publisher.publish_Placed(Context(), region, order(1), stream=stream)
    for stream in ("random", "shared"):  # without a key it is kept, at least once
        ack = await publisher.publish_Counted(Context(), stream, 7, stream=stream)
        assert isinstance(ack, PubAck)
        assert ack.stream == stream
    for create in ({"partitions": 2, "partition_by": "group"}, {"group": "g"}):
        with pytest.raises(UnsuitableStreamError, match=r"Orders\.Placed has a key"):
            await OrdersPublisher(provider, create=create).publish_Placed(Context(), "eu", order(1))
    for message in (order(1, None), order(1, "")):
        with pytest.raises(MissingKeyError, match=r"Orders\.Placed: .*customer"):
            await OrdersPublisher(provider, create={}).publish_Placed(Context(), "eu", message)


async def test_what_was_handled_is_committed_and_what_fails_comes_again_and_then_is_a_dead_letter(
    provider: ScopeProvider,
) -> None:
    publisher = OrdersPublisher(provider, create={})
    handled = Handled(3, rejected=5)
    subscriber = OrdersSubscriber(provider, middleware=[handled.counting])
    for number in range(8):
        await publisher.publish_Placed(Context(headers={"tenant": "a"}), "eu", order(number), headers={"trace": "t"})
    async with await subscriber.subscribe_Placed("*", handled, group="billing", retry=QUICK) as subscription:
        await handled.wait_for(6)
        await counted(subscription, dead_letters=2, handled=6, failed=3, rejected=1, malformed=0)
    assert handled.numbers == [0, 1, 2, 4, 6, 7]
    assert [found for found in handled.deliveries if found[0] in (2, 3)] == [(2, 1), (3, 1), (3, 2), (3, 3)]
    assert handled.topics[0] == {"region": "eu"}
    client = provider.client
    (at,) = await client.groups.offsets("billing.shop._.Orders.Placed", "orders")
    assert at.offset == 8  # a drain commits
    failed, rejected = await dead(client)
    assert failed.subject == "penstock.dead.orders-dead.frugal.shop.eu.Orders.Placed"
    assert failed.key == b"ann"
    found = {name: failed.headers[name] for name in (REASON, DELIVERIES, GROUP, STREAM, PARTITION, OFFSET, SUBJECT)}
    assert list(found.values()) == [
        "LookupError: no customer for 3",
        "3",
        "billing.shop._.Orders.Placed",
        "orders",
        "0",
        "3",
        "frugal.shop.eu.Orders.Placed",
    ]
    assert failed.headers["trace"] == "t"
    assert HEADER + "Nats-Msg-Id" in failed.headers
    assert (rejected.headers[REASON], rejected.headers[DELIVERIES]) == ("rejected: it is of last year", "1")
    # A handler that can take them reads the dead letters as it reads the stream.
    repaired = Handled()
    async with await OrdersSubscriber(provider).subscribe_Placed("eu", repaired, group="repair", stream="orders-dead"):
        await repaired.wait_for(2)
    assert repaired.numbers == [3, 5]
    assert repaired.topics == [{"region": "eu"}] * 2
    await publisher.publish_Placed(Context(), "eu", order(9))
    again = Handled()
    async with await OrdersSubscriber(provider).subscribe_Placed("*", again, group="billing"):
        await again.wait_for(1)
    assert again.numbers == [9]  # the group goes on where it was


async def test_frames_of_old_publishers_are_read_and_hostile_ones_never_stop_a_partition(
    broker: BrokerProcess, provider: ScopeProvider
) -> None:
    client = provider.client
    await client.create_stream("orders", "frugal.>")  # as an operator attaches it: publishers know nothing of it
    old = await nats.connect(broker.nats_url)
    subject = "frugal.shop.eu.Orders.Placed"
    headers = {"_opid": "7", "_cid": "old", "_timeout": "5000", "_topic_region": "mars", "tenant": "b"}

    def frame(number: int, name: str = "Placed") -> bytes:
        return encode_frame(headers, BINARY.encode(name, MessageKind.CALL, 0, PLACED.spec, order(number)))

    await old.publish("frugal.shop.eu.Orders.Counted", frame(0))  # of another operation: passed over
    await old.publish("frugal.other.Scope.Op", b"anything")
    hostile = [b"", b"\0", frame(1)[:-3], frame(1, "Counted"), b"\xff" * 100]
    for payload in (frame(1), *hostile, frame(2)):
        await old.publish(subject, payload)
    await old.publish(subject, b"\xff", headers={"junk": "\u00fc"})
    await old.publish(subject, frame(3))
    await old.flush()
    handled = Handled()
    contexts = []

    async def handle(ctx: Context, message: Any) -> None:
        contexts.append(ctx)
        await handled(ctx, message)

    async with await OrdersSubscriber(provider).subscribe_Placed("*", handle, group="g") as subscription:
        await handled.wait_for(3)
        await counted(subscription, dead_letters=6, malformed=6, passed_over=2, handled=3)
    assert handled.numbers == [1, 2, 3]
    assert contexts[0].correlation_id == "old"
    assert dict(contexts[0].headers) == {"tenant": "b"}
    assert contexts[0].topic == {"region": "eu"}  # the subject says so, whatever the header says
    letters = await dead(client)
    assert [one.value for one in letters] == [*hostile, b"\xff"]
    assert all(one.headers[REASON].startswith("not decoded: ") for one in letters)
    await old.close()


async def test_messages_that_the_dead_letter_stream_would_refuse_are_dead_letters_and_delete_none(
    provider: ScopeProvider,
) -> None:
    client = provider.client
    await client.create_stream(
        "orders", "frugal.>", allow_message_ttl=True, allow_rollup=True, max_message_bytes=70_000
    )
    await client.create_stream("orders-dead", "penstock.dead.orders-dead.>", allow_rollup=True, max_message_bytes=2_000)
    subject = "frugal.shop.eu.Orders.Placed"
    poison = [
        {"subject": subject, "value": b"0", "headers": {"Nats-TTL": "1h"}},
        {"subject": subject, "value": b"1", "headers": {"pad": "x" * 65_000}},
        {"subject": subject, "value": b"2" * 69_000},
        {"subject": subject, "value": b"3", "headers": {"Nats-Rollup": "sub", "trace": "t"}},
        {"subject": subject, "value": b"4"},
    ]
    handled = Handled()
    async with await OrdersSubscriber(provider).subscribe_Placed("*", handled, group="g", retry=QUICK) as subscription:
        await client.append("orders", poison[:3])
        await counted(subscription, dead_letters=3)
        await client.append("orders", poison[3:4])  # alone: a rollup removes what is before it in its own stream
        await client.append("orders", poison[4:])
        await counted(subscription, dead_letters=5, dead_letters_failed=0)
    letters = await dead(client)
    assert [one.headers[OFFSET] for one in letters] == ["0", "1", "2", "3", "4"]
    assert [one.value for one in letters] == [b"0", b"1", b"", b"3", b"4"]
    assert letters[0].headers[HEADER + "Nats-TTL"] == "1h"
    assert letters[1].headers[REASON].endswith("(left out: the last 1 of 1 headers)")
    assert letters[2].headers[REASON].endswith("(left out: the value of 69000 bytes)")
    assert (letters[3].headers[HEADER + "Nats-Rollup"], letters[3].headers["trace"]) == ("sub", "t")


async def test_a_dead_letter_that_fits_no_more_is_written_shorter(provider: ScopeProvider) -> None:
    client = provider.client
    source = await client.create_stream("orders", "frugal.>")
    letters = DeadLetters(client, "orders-dead", "g", timeout_s=30)
    await letters.open(source)
    created = await client.stream("orders-dead")
    assert created.config.max_message_bytes > source.config.max_message_bytes
    first, second, third = [
        (Delivery("orders", Message(offset, 0, "frugal.a", None, b"x" * 900, None, 0), 1), "no") for offset in range(3)
    ]
    await client.alter_stream("orders-dead", max_message_bytes=1_000)
    await letters.write([first])  # refused as it was; then it is written without its value
    await client.alter_stream("orders-dead", max_message_bytes=2_000)
    await letters.open(source)
    await client.alter_stream("orders-dead", max_message_bytes=1_000)
    with pytest.raises(penstock.RemoteError, match="over the limit of 1000"):
        await letters.write([second, third])  # the first alone comes next; but they fit from now on
    await letters.write([second, third])
    written = await dead(client)
    assert [one.headers[OFFSET] for one in written] == ["0", "1", "2"]
    assert {(one.value, one.headers[REASON]) for one in written} == {(b"", "no (left out: the value of 900 bytes)")}


async def test_a_dead_letter_stream_that_takes_nothing_stops_the_commit_and_is_tried_again(
    provider: ScopeProvider,
) -> None:
    client = provider.client
    publisher = OrdersPublisher(provider, create={})
    handled = Handled(1)
    await publisher.publish_Placed(Context(), "eu", order(0))
    async with await OrdersSubscriber(provider).subscribe_Placed(
        "*", handled, group="billing", retry=QUICK
    ) as subscription:
        await handled.wait_for(1)
        await client.make_read_only("orders-dead")
        await publisher.publish_Placed(Context(), "eu", order(1))

        async def has_failed() -> bool:
            return subscription.counts["dead_letters_failed"] > 0

        await eventually(has_failed, "a try to write the dead letter")
        await publisher.publish_Placed(Context(), "eu", order(2))

        async def has_failed_again() -> bool:
            return subscription.counts["dead_letters_failed"] > 2

        await eventually(has_failed_again, "several tries to write the dead letter")
        (at,) = await client.groups.offsets("billing.shop._.Orders.Placed", "orders")
        assert at.offset is not None
        assert at.offset <= 1
        assert handled.numbers == [0]  # those behind it wait
        await client.resume_stream("orders-dead")
        await handled.wait_for(2)
    assert handled.numbers == [0, 2]
    assert [one.headers[OFFSET] for one in await dead(client)] == ["1"]


async def test_a_dead_letter_stream_that_begins_to_check_values_stops_no_partition(provider: ScopeProvider) -> None:
    client = provider.client
    publisher = OrdersPublisher(provider, create={})
    number = Schema(SchemaKind.JSON_SCHEMA, '{"type": "object", "properties": {"n": {"type": "integer"}}}')
    handled = Handled(1, 2, 4)
    await client.create_stream("orders", "frugal.shop.>")
    async with await OrdersSubscriber(provider).subscribe_Placed(
        "*", handled, group="billing", retry=QUICK
    ) as subscription:
        typed = "penstock.dead.orders-dead.frugal.>"
        await client.register_schema("orders-dead", number, subject=typed)
        await client.alter_stream("orders-dead", schema_check="refuse")

        async def is_checked() -> bool:
            try:
                await client.append("orders-dead", [{"subject": typed.replace(">", "x"), "value": b"no"}])
            except penstock.RemoteError as refused:
                return refused.code == "schema_mismatch"
            return False

        await eventually(is_checked, "the check of the dead letters' values")
        for each in range(4):
            await publisher.publish_Placed(Context(), "eu", order(each))
        await counted(subscription, dead_letters=2, handled=2)
        # A schema for all subjects: nothing is stored, nothing is lost, and the error says what to do.
        await client.forget_schema("orders-dead", typed)
        await client.register_schema("orders-dead", number, subject="penstock.dead.orders-dead.>")
        typed = "penstock.dead.orders-dead.>"
        await eventually(is_checked, "the check by the other schema")
        await publisher.publish_Placed(Context(), "eu", order(4))

        async def has_failed() -> bool:
            return subscription.counts["dead_letters_failed"] > 2

        await eventually(has_failed, "several tries to write the dead letter")
        with pytest.raises(ValueError, match=r"`penstock stream alter orders-dead --schema-check count`"):
            await OrdersSubscriber(provider).subscribe_Placed("*", handled, group="other")
        await client.alter_stream("orders-dead", schema_check="count")
        await counted(subscription, dead_letters=3)
    letters = [one for one in await dead(client) if OFFSET in one.headers]
    assert [one.headers[OFFSET] for one in letters] == ["1", "2", "4"]
    assert all(one.value for one in letters)
    assert [one.subject.removeprefix("penstock.dead.orders-dead.") for one in letters] == [
        "unfit",
        "unfit",
        "frugal.shop.eu.Orders.Placed",
    ]
    repaired = Handled()
    async with await OrdersSubscriber(provider).subscribe_Placed("eu", repaired, group="repair", stream="orders-dead"):
        await repaired.wait_for(3)
    assert repaired.numbers == [1, 2, 4]


async def test_dead_letters_are_typed_columns_by_the_schemas_of_their_stream(
    broker: BrokerProcess, provider: ScopeProvider
) -> None:
    client = provider.client
    publisher = OrdersPublisher(provider, create={})
    subscriber = OrdersSubscriber(provider)
    await publisher.publish_Placed(Context(), "eu", order(0))
    contract = """
        struct Customer { 1: string id }
        struct Order { 1: i64 number, 2: Customer customer, 3: string from_ }
        scope Orders prefix shop.{region} { Placed: Order }
    """
    schema = Schema(SchemaKind.FRUGAL, contract, type_name="Orders.Placed")
    subject = "frugal.shop.*.Orders.Placed"
    await client.register_schema("orders", schema, subject=subject, message="Placed", framing="frugal-v0")
    async with await subscriber.subscribe_Placed("*", Handled(0, 1), group="g", retry=QUICK) as subscription:
        await publisher.publish_Placed(Context(), "us", order(1, "bob"))
        await client.append("orders", [{"subject": "frugal.shop.eu.Orders.Placed", "value": b"no"}])
        await counted(subscription, dead_letters=3)
    for decode in (await client.schemas("orders"), "schema"):
        with pytest.warns(penstock.DecodeWarning, match="1 of 3 values not decoded"):
            letters = (await client.to_table("orders-dead", decode=decode)).to_pylist()
        assert [row["number"] for row in letters] == [0, 1, None]
        assert letters[1]["customer"] == {"id": "bob"}
        assert [row["decode_error"] is None for row in letters] == [True, True, False]
    us = penstock.Filter(subject="penstock.dead.orders-dead.frugal.shop.us.>")
    (bob,) = (await client.to_table("orders-dead", where=us, decode="schema")).to_pylist()
    assert bob["number"] == 1
    read = await cli_process.command(
        broker.client_address, "read", "orders-dead", "--decode", "schema", "--format", "json"
    )
    values = [json.loads(line)["value"] for line in read[0].splitlines()]
    assert [each["number"] for each in values[:2]] == [0, 1]
    assert values[2] == "no"
    with penstock.connect(broker.client_address) as blocking:  # as Spark and archives plan their columns
        (found,) = await asyncio.to_thread(registered, blocking, ["orders-dead"], 30)
    assert (found.stream, [each.typed.subject for each in found.versions]) == ("orders-dead", [subject])
    await client.create_stream("other-dead", "penstock.dead.other-dead.>")
    with pytest.raises(SchemaError, match="'other-dead' has no schemas"):
        await client.to_table("other-dead", decode="schema")


async def test_two_subscriptions_of_one_name_never_take_messages_from_each_other(provider: ScopeProvider) -> None:
    await provider.client.create_stream("orders", "frugal.shop.>", partitions=2, partition_by="key")
    publisher = OrdersPublisher(provider)
    for number in range(10):
        await publisher.publish_Placed(Context(), ("eu", "us")[number % 2], order(number, f"c{number}"))
        await publisher.publish_Counted(Context(), "eu", number, stream="orders")
    both, eu, counts = Handled(), Handled(), []

    async def count(_ctx: Context, message: int) -> None:
        counts.append(message)

    subscriber = OrdersSubscriber(provider, stream="orders")
    async with (
        await subscriber.subscribe_Placed("*", both, group="g"),
        await subscriber.subscribe_Placed("eu", eu, group="g"),
        await subscriber.subscribe_Counted("eu", count, group="g") as last,
    ):
        await both.wait_for(10)
        await eu.wait_for(5)
        await counted(last, handled=10)
    assert sorted(both.numbers) == list(range(10))
    assert sorted(eu.numbers) == [0, 2, 4, 6, 8]
    assert sorted(counts) == list(range(10))


async def test_a_subscription_outlives_its_broker(broker: BrokerProcess, provider: ScopeProvider) -> None:
    publisher = OrdersPublisher(provider, create={"partitions": 2})
    handled = Handled()
    subscriber = OrdersSubscriber(provider, create={"partitions": 2})
    subscription = await subscriber.subscribe_Placed("*", handled, group="billing", session=2.0)
    for number in range(5):
        await publisher.publish_Placed(Context(), "eu", order(number, f"c{number}"))
    await handled.wait_for(5)
    broker.restart()  # killed; its NATS server is its child
    async with await broker.client() as client:
        later = OrdersPublisher(ScopeProvider(client=client))

        async def published() -> bool:
            try:
                await later.publish_Placed(Context(), "eu", order(7), message_id="seven", timeout=5.0)
            except (penstock.PenstockError, OSError):
                return False
            return True

        await eventually(published, "an ack after the restart")
    await handled.wait_for(6)
    assert set(handled.numbers) == {0, 1, 2, 3, 4, 7}
    assert await dead(provider.client) == []
    await subscription.drain()


async def test_a_failed_publish_has_the_id_with_which_to_publish_again(
    broker: BrokerProcess, provider: ScopeProvider
) -> None:
    publisher = OrdersPublisher(provider, create={"partitions": 2})
    await publisher.publish_Placed(Context(), "eu", order(1))
    broker.signal(signal.SIGSTOP)  # NATS goes on
    future = await publisher.publish_Placed(Context(), "eu", order(2), nowait=True, timeout=0.5, message_id="two")
    with pytest.raises(penstock.TimedOut) as raised:
        await publisher.publish_Placed(Context(), "eu", order(3), timeout=0.5)
    assert isinstance(future, asyncio.Future)
    with pytest.raises(penstock.TimedOut) as raised_later:
        await future
    assert raised_later.value.details["message_id"] == "two"
    broker.signal(signal.SIGCONT)
    again = raised.value.details["message_id"]
    await publisher.publish_Placed(Context(), "eu", order(3), message_id=again)
    await provider.client.close()
    with pytest.raises(penstock.Unavailable) as closed:
        await publisher.publish_Placed(Context(), "eu", order(4), message_id="four")
    assert closed.value.details["message_id"] == "four"
    async with await broker.client() as client:
        stored = [one.headers["Nats-Msg-Id"] async for one in client.messages("orders")]
    assert (stored.count("two"), stored.count(again), stored.count("four")) == (1, 1, 0)


async def test_a_member_that_leaves_while_a_message_waits_loses_nothing(
    broker: BrokerProcess, provider: ScopeProvider
) -> None:
    publisher = OrdersPublisher(provider, create={"partitions": 2})
    slow = RetryPolicy(attempts_max=100, wait_s=30.0)
    failing, taking = Handled(*range(20)), Handled()
    subscriber = OrdersSubscriber(provider, create={"partitions": 2})
    first = await subscriber.subscribe_Placed("*", failing, group="g", retry=slow)
    for number in range(20):
        await publisher.publish_Placed(Context(), "eu", order(number, f"c{number}"))

    async def is_waiting() -> bool:
        return first.counts["failed"] == 2  # one of each partition, and they wait for long

    await eventually(is_waiting, "a retry in each partition")
    async with await broker.client() as client:
        subscriber = OrdersSubscriber(ScopeProvider(client=client))
        async with await subscriber.subscribe_Placed("*", taking, group="g") as second:
            # A new member gets a partition although its message waits for a retry.
            await eventually(lambda: _some(taking), "messages of the partition that was given back")
            await first.drain()
            await taking.wait_for(20)
            assert second.counts["failed"] == 0
    assert sorted(taking.numbers) == list(range(20))


async def _some(handled: Handled) -> bool:
    return bool(handled.numbers)


async def test_a_subscription_whose_stream_is_deleted_ends_with_the_reason(provider: ScopeProvider) -> None:
    publisher = OrdersPublisher(provider, create={})
    await publisher.publish_Placed(Context(), "eu", order(0))
    handled = Handled()
    subscription = await OrdersSubscriber(provider).subscribe_Placed("*", handled, group="g")
    await handled.wait_for(1)
    await provider.client.delete_stream("orders")
    with pytest.raises(penstock.RemoteError) as ended:
        async with asyncio.timeout(60):
            await subscription.wait()
    assert isinstance(ended.value, penstock.StreamChanged | penstock.StreamNotFound)
    await subscription.unsubscribe()


async def test_a_dead_letter_stream_on_another_subject_is_refused(provider: ScopeProvider) -> None:
    await provider.client.create_stream("graveyard", "graveyard")
    with pytest.raises(ValueError, match=r"'penstock\.dead\.graveyard\.>'"):
        await OrdersSubscriber(provider, create={}).subscribe_Placed(
            "*", Handled(), group="g", dead_letters="graveyard"
        )
    with pytest.raises(ValueError, match="the group's name"):
        await OrdersSubscriber(provider, create={}).subscribe_Placed("*", Handled(), group="a b")


async def test_native_messages_have_headers_that_brokers_filter_by_and_all_subscribers_take_both_framings(
    broker: BrokerProcess, provider: ScopeProvider
) -> None:
    connection = await nats.connect(broker.nats_url)
    client = provider.client
    native = ScopeProvider(connection, client=client, framing="native", codec=COMPACT)
    frugal = ScopeProvider(connection, client=client)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    durable, live = Handled(), Handled()
    subscriber = OrdersSubscriber(frugal, create={})
    async with (
        await subscriber.subscribe_Placed("*", durable, group="g"),
        await subscriber.subscribe_Placed("*", live),
    ):
        for number, way in enumerate((native, frugal, native)):
            ctx = Context("c1", headers={"tenant": f"t{number}", "traceparent": trace})
            await OrdersPublisher(way, create={}).publish_Placed(ctx, "eu", order(number))
        await durable.wait_for(3)
        await live.wait_for(3)
    assert durable.numbers == live.numbers == [0, 1, 2]
    assert durable.topics == live.topics == [{"region": "eu"}] * 3
    stored = [message async for message in client.messages("orders", where=penstock.Filter(headers={"tenant": "t2"}))]
    assert [message.offset for message in stored] == [2]
    headers = stored[0].headers
    assert headers["Frugal-Operation"] == "Placed"
    assert headers["Content-Type"] == "application/vnd.apache.thrift.compact"
    assert headers["Frugal-Correlation-Id"] == "c1"
    assert COMPACT.decode_bare(stored[0].value or b"", PLACED.spec) == order(2)
    traces = [message.headers["traceparent"] async for message in client.messages("orders")]
    assert traces == [trace] * 3  # brokers find it in either framing
    await connection.close()
