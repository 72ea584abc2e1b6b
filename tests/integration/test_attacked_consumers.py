"""Consumers with acks under attack: garbage, floods and churn. All published messages are acked at the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NotFoundError

from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.extent import each_change
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected, said

TIMEOUT_S = 30
HUGE = (0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**19, 10**20, 10**40, -1, -(2**63))
PAYLOADS = (
    *(b"", b"+ACK", b"+OK", b"-NAK", b"+WPI", b"+TERM", b"+TERM why", b"+NXT", b"+NXT 5", b'+NXT {"batch":-1}'),
    *(
        b'-NAK {"delay":-5}',
        b'-NAK {"delay":1e99}',
        b"-NAK 1h",
        b"-NAK 99999999999999999999999h",
        b"-NAK {",
        b"-NAK [1]",
    ),
    *(b"-NAK \xff", b"+TERM \xff\xfe", b'+NXT {"batch":1e30}', b"+NXT " + b"[" * 5_000, b"-NAK {" + b'"a":{' * 2_000),
    *(b"+nxt", b"ACK", b"\x00", b"x" * 1_000_000, b"-NAK" + b" " * 900_000, b"+TERM " + b"y" * 900_000),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker; after all attacks it must still run, stop cleanly, and never have failed."""
    options = api_options("--jetstream-rights", "manage")
    with running_broker(tmp_path_factory.mktemp("broker") / "data", *options) as broker:
        yield broker
        assert broker.is_running, broker.said
        assert broker.stop() == 0, broker.said
        assert "Traceback" not in broker.said, broker.said


@asynccontextmanager
async def stream_of(broker: BrokerProcess, name: str, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a connection, and the context of JetStream with a new stream `name` on `<name>.>`."""
    async with connected(broker.nats_url) as connection:
        await delivering(connection)
        js = connection.jetstream(timeout=TIMEOUT_S)
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **more))
        yield connection, js


async def add(js: Any, stream: str, name: str, **config: Any) -> Any:
    await js.add_consumer(stream, ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT, **config))
    return await js.pull_subscribe_bind(name, stream)


async def publish(js: Any, stream: str, count: int, begin: int = 0) -> set[bytes]:
    values = [b"%d" % number for number in range(begin, begin + count)]
    for at in range(0, count, 256):
        await asyncio.gather(
            *(js.publish(f"{stream}.{int(value) % 8}", value, timeout=TIMEOUT_S) for value in values[at : at + 256])
        )
    return set(values)


async def drained(pull: Any, wanted: set[bytes], *, batch: int = 100) -> Counter[bytes]:
    """Fetch and confirm until all that is wanted was confirmed; return how often each value came."""
    came: Counter[bytes] = Counter()
    left = set(wanted)

    async def fetch() -> None:
        while left:
            try:
                messages = await pull.fetch(batch, timeout=2)
            except (TimeoutError, nats.errors.Error, APIError):
                continue
            came.update(message.data for message in messages)
            acked = await asyncio.gather(*(confirmed(message) for message in messages))
            left.difference_update(message.data for message, is_acked in zip(messages, acked, strict=True) if is_acked)

    async with asyncio.timeout(90):
        await fetch()
    return came


async def confirmed(message: Any) -> bool:
    try:
        await message.ack_sync(timeout=5)
    except (TimeoutError, nats.errors.Error):
        return False
    return True


async def idle(js: Any, stream: str, name: str) -> Any:
    """Wait until a consumer has nothing to do; return its info, which must be exact."""

    async def look() -> Any:
        info = await js.consumer_info(stream, name)
        return info if (info.num_ack_pending, info.num_pending) == (0, 0) else None

    info = await eventually(look, f"{name} of {stream} is idle", 30)
    state = (await js.stream_info(stream)).state
    assert info.ack_floor.stream_seq <= state.last_seq
    assert (info.num_redelivered, info.ack_floor.consumer_seq) == (0, info.delivered.consumer_seq)
    return info


def replies_of_garbage(chance: random.Random, reply: str) -> Iterator[str]:
    """Yield subjects that look like acks of a delivery, and name none."""
    parts = reply.split(".")
    yield from (".".join((*parts, *"12345")[:number]) for number in range(3, 14) if number != len(parts))
    wrong = [str(number) for number in HUGE] + ["nobody", "@", "x" * 3_000, "\u00e4", "0x10", "+1", "1e3"]
    for at in (2, 3, 5, 6, 7):
        yield from (".".join((*parts[:at], one, *parts[at + 1 :])) for one in wrong if one[-3:] != parts[at][-3:])
    for _ in range(200):
        yield ".".join((*parts[:4], *(str(chance.randrange(50)) for _ in range(5))))


@each_change
async def test_garbage_in_acks_changes_nothing(broker: BrokerProcess) -> None:
    chance = random.Random(37)
    async with stream_of(broker, "garbage") as (connection, js):
        pull = await add(js, "garbage", "c", ack_wait=30)
        other = await add(js, "garbage", "other", ack_wait=30)
        wanted = await publish(js, "garbage", 40)
        messages = await pull.fetch(20, timeout=TIMEOUT_S)
        before = await js.consumer_info("garbage", "c")
        inbox = await connection.subscribe(connection.new_inbox(), max_msgs=100_000)
        own = {message.reply for message in messages}
        sent = 0
        for message in messages[:3]:
            for subject in replies_of_garbage(chance, message.reply):
                if subject in own:
                    continue
                for payload in chance.sample(PAYLOADS, 3):
                    await connection.publish(subject, payload, reply=inbox.subject if sent % 2 else "")
                    sent += 1
            await connection.flush(timeout=TIMEOUT_S)
        after = await js.consumer_info("garbage", "c")
        assert sent > 1_000
        for field in ("delivered", "ack_floor", "num_ack_pending", "num_pending", "num_redelivered"):
            assert getattr(after, field) == getattr(before, field), field
        for payload in PAYLOADS:  # of a real delivery: only what an ack may be counts
            if payload[:4] not in (b"", b"+ACK", b"+OK", b"+TER", b"-NAK", b"+NXT"):
                await connection.publish(messages[5].reply, payload)
        after = await js.consumer_info("garbage", "c")
        assert after.num_ack_pending == before.num_ack_pending
        for message in messages:
            await message.ack_sync(timeout=TIMEOUT_S)
        await drained(pull, wanted - {message.data for message in messages})
        await drained(other, wanted)
        await idle(js, "garbage", "c")
        await idle(js, "garbage", "other")


@each_change
async def test_every_payload_on_a_real_delivery_leaves_the_consumer_well(broker: BrokerProcess) -> None:
    async with stream_of(broker, "payloads") as (connection, js):
        pull = await add(js, "payloads", "c", ack_wait=2)
        wanted = await publish(js, "payloads", 3 * len(PAYLOADS))
        done, late = set(), set()
        for payload in PAYLOADS:
            for reply in ("", connection.new_inbox()):
                (message,) = await pull.fetch(1, timeout=TIMEOUT_S)
                await connection.publish(message.reply, payload, reply=reply)
                if payload.startswith((b"+TERM", b"+NXT", b"+ACK", b"+OK")) or not payload:
                    done.add(message.data)
                elif payload.endswith(b"h"):
                    late.add(message.data)
        done |= (await drained(pull, wanted - done - late, batch=10)).keys()
        assert done | late == wanted
        info = await js.consumer_info("payloads", "c")
        assert (info.num_pending, info.num_ack_pending) == (0, len(late))


@each_change
async def test_a_storm_of_naks_ends_when_the_naks_end(broker: BrokerProcess) -> None:
    async with stream_of(broker, "naks") as (_, js):
        pull = await add(js, "naks", "c", ack_wait=60, max_ack_pending=100)
        wanted = await publish(js, "naks", 200)
        naks = 0
        async with asyncio.timeout(90):
            while naks < 10_000:
                for message in await pull.fetch(100, timeout=TIMEOUT_S):
                    await message.nak()
                    naks += 1
        came = await drained(pull, wanted)
        assert set(came) == wanted
        info = await idle(js, "naks", "c")
        assert (info.ack_floor.stream_seq, info.delivered.stream_seq) == (200, 200)


@each_change
async def test_a_flood_of_pulls_leaves_none_stuck(broker: BrokerProcess) -> None:
    async with stream_of(broker, "flood") as (connection, js):
        pull = await add(js, "flood", "c", ack_wait=2, max_waiting=50)
        subject = "$JS.API.CONSUMER.MSG.NEXT.flood.c"
        requests = (
            b"",
            b"1",
            b"-1",
            b"99999999999999999999",
            b"{",
            b"[]",
            b'{"batch":0}',
            b'{"batch":-1,"no_wait":true}',
        )
        requests += (
            b'{"batch":100000000000,"expires":1}',
            b'{"expires":-1}',
            b'{"batch":5,"max_bytes":1,"expires":1000000}',
        )
        requests += (b'{"batch":1,"idle_heartbeat":1,"expires":1000000}', b"x" * 500_000, b'{"batch":3,"group":"g"}')
        requests += (b'{"batch":1,"expires":9223372036854775807}', b'{"batch":1,"min_pending":-1,"expires":1000}')
        for number in range(10_000):
            await connection.publish(subject, requests[number % len(requests)], reply=f"_INBOX.nobody.{number}")
            if number % 500 == 0:
                await connection.flush(timeout=TIMEOUT_S)
        wanted = await publish(js, "flood", 300)
        assert set(await drained(pull, wanted)) == wanted
        await idle(js, "flood", "c")

        async def none_waits() -> bool:
            return (await js.consumer_info("flood", "c")).num_waiting == 0

        await eventually(none_waits, "no request waits", 40)


@each_change
@pytest.mark.parametrize(
    "config",
    [
        {"max_ack_pending": 1},
        {"ack_wait": 0.001},
        {"backoff": [0.001, 0.002, 0.003]},
        {"filter_subjects": ["{}.1", "{}.*"]},
    ],
    ids=["one in hand", "1 ms", "backoff", "wildcards"],
)
async def test_edges_of_a_config_deliver_all(broker: BrokerProcess, config: Any, request: Any) -> None:
    name = f"edge{abs(hash(request.node.name)) % 10_000}"
    if "filter_subjects" in config:
        config = {"filter_subjects": [f"{name}.{one}" for one in ("1", "2", "*.x", "3.>")]}
    async with stream_of(broker, name) as (_, js):
        pulls = [await add(js, name, "c", **config)]
        pulls += [await js.pull_subscribe_bind("c", name) for _ in range(3)]
        wanted = await publish(js, name, 400)
        if "filter_subjects" in config:
            wanted = {value for value in wanted if int(value) % 8 in (1, 2)}
        shared = set(wanted)
        batch = config.get("max_ack_pending", 7)

        async def work(pull: Any, chance: random.Random) -> None:
            while shared:
                try:
                    messages = await pull.fetch(batch, timeout=1)
                except (TimeoutError, nats.errors.Error):
                    continue
                for message in messages:
                    if chance.random() < 0.3:
                        await message.nak()
                    elif await confirmed(message):
                        shared.discard(message.data)

        async with asyncio.timeout(90):
            await asyncio.gather(*(work(pull, random.Random(number)) for number, pull in enumerate(pulls)))
        info = await idle(js, name, "c")
        assert info.num_pending == 0


@each_change
async def test_consumers_that_come_and_go_leave_nothing(broker: BrokerProcess) -> None:
    async with stream_of(broker, "churn") as (connection, js):
        wanted = await publish(js, "churn", 50)

        async def churn(number: int) -> None:
            for turn in range(15):
                pull = await add(js, "churn", f"c{number % 3}")
                with_messages = turn % 2
                try:
                    if with_messages:
                        for message in await pull.fetch(10, timeout=5):
                            await message.ack()
                    waiting = asyncio.create_task(pull.fetch(1_000, timeout=20))
                    await asyncio.sleep(0)
                    await js.delete_consumer("churn", f"c{number % 3}")
                    await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 25)
                except (NotFoundError, TimeoutError, nats.errors.Error, APIError):
                    continue

        await asyncio.gather(*(churn(number) for number in range(6)))
        names = await said(connection, "CONSUMER.NAMES.churn")
        for name in names["consumers"] or ():
            await js.delete_consumer("churn", name)
        pull = await add(js, "churn", "c0")
        assert set(await drained(pull, wanted)) == wanted
        await idle(js, "churn", "c0")


@each_change
async def test_a_stream_that_is_deleted_ends_pulls_that_wait(broker: BrokerProcess) -> None:
    async with stream_of(broker, "gone") as (connection, js):
        await add(js, "gone", "c")
        for turn in range(5):
            inbox = await connection.subscribe(connection.new_inbox())
            for name in ("c",):
                request = json.dumps({"batch": 5, "expires": 60_000_000_000}).encode()
                await connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.gone.{name}", request, reply=inbox.subject)
            await connection.flush()
            await js.publish("gone.1", b"%d" % turn)
            message = await inbox.next_msg(timeout=TIMEOUT_S)
            assert message.data == b"%d" % turn
            await js.delete_stream("gone")
            status = await inbox.next_msg(timeout=TIMEOUT_S)
            assert status.headers["Status"] == "409", status.headers
            await connection.publish(message.reply, b"", reply=inbox.subject)  # an ack for what is gone
            await js.add_stream(StreamConfig(name="gone", subjects=["gone.>"]))
            await add(js, "gone", "c")
            assert (await js.consumer_info("gone", "c")).delivered.consumer_seq == 0


@each_change
async def test_what_is_purged_or_deleted_while_pending_is_stepped_over(broker: BrokerProcess) -> None:
    chance = random.Random(3)
    async with stream_of(broker, "holes") as (connection, js):
        pull = await add(js, "holes", "c", ack_wait=1, max_ack_pending=50)
        everything = await publish(js, "holes", 500)
        gone: set[bytes] = set()
        acked: set[bytes] = set()
        async with asyncio.timeout(90):
            for turn in range(12):
                try:
                    messages = await pull.fetch(50, timeout=3)
                except TimeoutError:
                    messages = []
                for message in messages:
                    what = chance.randrange(4)
                    if what == 0:
                        await said(
                            connection, "STREAM.MSG.DELETE.holes", json.dumps({"seq": message.metadata.sequence.stream})
                        )
                        gone.add(message.data)
                    elif what == 1 and await confirmed(message):
                        acked.add(message.data)
                    elif what == 2:
                        await message.nak()
                if turn == 6:
                    await js.purge_stream("holes", subject="holes.3")
                    gone |= {value for value in everything if int(value) % 8 == 3}
                if turn == 9:
                    await js.purge_stream("holes", seq=60)
                    gone |= {value for value in everything if int(value) < 59}
        left = everything - gone - acked
        came = await drained(pull, left)
        assert not (set(came) & acked)
        await idle(js, "holes", "c")
        await js.purge_stream("holes")
        info = await idle(js, "holes", "c")
        assert info.num_ack_pending == 0


@each_change
async def test_clients_that_never_ack_do_not_hold_up_others(broker: BrokerProcess) -> None:
    async with stream_of(broker, "never") as (_, js):
        pull = await add(js, "never", "c", ack_wait=1, max_ack_pending=64)
        wanted = await publish(js, "never", 300)
        stop = asyncio.Event()

        async def take() -> None:
            async with connected(broker.nats_url) as own:
                rude = await own.jetstream().pull_subscribe_bind("c", "never")
                while not stop.is_set():
                    try:
                        await rude.fetch(20, timeout=1)
                    except (TimeoutError, nats.errors.Error):
                        continue

        tasks = [asyncio.create_task(take()) for _ in range(2)]
        came = await drained(pull, wanted, batch=20)
        stop.set()
        await asyncio.gather(*tasks)
        assert set(came) == wanted
        await idle(js, "never", "c")
