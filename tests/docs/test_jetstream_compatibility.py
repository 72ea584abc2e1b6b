"""The page on JetStream compatibility: each row is tried, with nats-py, and with nats.go where a Go toolchain is.

A row is known by its first cell. What comes of the call must be what its second cell says; a row that nothing tries, or
that is tried and not there, fails.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamSource
from nats.js.errors import (
    APIError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)

from penstock import aio
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import each_change, needs_time
from tests.nats_programs import built_by_go

PAGE = Path(__file__).parents[2] / "docs/reference/jetstream-compatibility.md"
GO = Path(__file__).parents[1] / "compat/go"
SILENCE_S = 0.5  # far beyond what an answer takes here
NO_RESPONDERS = "no responders"
API_ON = ("--jetstream-api", "auto")


def rows(heading: str, column: int = 1) -> dict[str, str]:
    """The first cell of each row of the table under a heading, and the one in that column."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}")[1].split("\n## ")[0]
    found = re.findall(rf"^\| (.*?) \|{'.*?[|]' * (column - 1)} (.*?) \|", section, flags=re.MULTILINE)
    assert len(dict(found)) == len(found)
    return {call: result for call, result in found if call != "call"}


class Publisher:
    """One connection, and what comes of what it publishes."""

    def __init__(self, connection: Nats, client: aio.Client) -> None:
        self.nats = connection
        self.js: JetStreamContext = connection.jetstream()
        self.client = client

    async def ack(self, headers: dict[str, str] | None = None, subject: str = "orders.py", **how: Any) -> Any:
        return await self.js.publish(subject, b"x", timeout=30.0, headers=headers, **how)

    async def acked(self, headers: dict[str, str] | None = None, subject: str = "orders.py", **how: Any) -> str:
        """Publish, and see that the message is where the ack says, with its headers."""
        ack = await self.ack(headers, subject, **how)
        assert not ack.duplicate
        stored = await self.client.get(ack.stream, offset=ack.seq - 1)
        assert (stored.subject, stored.value) == (subject, b"x")
        assert set((headers or {}).items()) <= set(stored.headers.items())
        return "yes"

    async def last(self) -> int:
        """The sequence of the last message on `orders`."""
        return (await self.ack()).seq


Try = Callable[[Publisher], Awaitable[Any]]


async def outcome(call: Awaitable[Any]) -> str:
    """What a call comes to, in the page's words."""
    try:
        return str(await call)
    except (ServiceUnavailableError, NoStreamResponseError, nats.errors.NoRespondersError):
        return NO_RESPONDERS
    except APIError as error:
        return str(error.err_code)
    except (nats.errors.TimeoutError, TimeoutError):
        return "silence"


async def _async(one: Publisher) -> str:
    futures = [await one.js.publish_async("orders.py", b"x") for _ in range(3)]
    await one.js.publish_async_completed()
    sequences = [(await future).seq for future in futures]
    assert sequences == list(range(sequences[0], sequences[0] + 3))
    return "yes"


async def _request(one: Publisher) -> str:
    answer = json.loads((await one.nats.request("orders.py", b"x", timeout=30.0)).data)
    assert answer["stream"] == "orders"
    assert answer["seq"] == answer["offset"] + 1
    assert {"partition", "offset", "epoch", "replicas", "fsynced"} <= set(answer)
    return "yes"


async def _unacked(one: Publisher) -> str:
    before = await one.last()
    await one.nats.publish("orders.py", b"x")
    assert await one.last() == before + 2
    return "yes"


async def _duplicate(one: Publisher) -> str:
    first = await one.ack({"Nats-Msg-Id": "twice"})
    again = await one.ack({"Nats-Msg-Id": "twice"})
    assert (again.seq, again.duplicate) == (first.seq, True)
    return "yes"


async def _last_id(one: Publisher) -> str:
    await one.ack({"Nats-Msg-Id": "the last one"})
    return await one.acked({"Nats-Expected-Last-Msg-Id": "the last one"})


async def _last_sequence(one: Publisher) -> str:
    return await one.acked({"Nats-Expected-Last-Sequence": str(await one.last())})


async def _last_of_subject(one: Publisher) -> str:
    seq = (await one.ack(subject="orders.one")).seq
    await one.last()  # on another subject
    return await one.acked({"Nats-Expected-Last-Subject-Sequence": str(seq)}, "orders.one")


async def _ttl(one: Publisher) -> str:
    await one.acked(subject="short.py", msg_ttl=60.0)
    return await one.acked({"Nats-TTL": "1m"}, "short.py")


async def _rollup(one: Publisher) -> str:
    await one.acked({"Nats-Rollup": "sub"}, "rolled.py")
    return await one.acked({"Nats-Rollup": "all"}, "rolled.py")


async def _batch(one: Publisher) -> str:
    batch = {"Nats-Batch-Id": "b"}
    answers = []
    for number, more in enumerate(({}, {}, {"Nats-Batch-Commit": "1"}), 1):
        headers = {**batch, "Nats-Batch-Sequence": str(number), **more}
        answers.append((await one.nats.request("batched.py", b"x", timeout=30, headers=headers)).data)
    assert answers[:2] == [b"", b""]
    ack = json.loads(answers[2])
    assert (ack["seq"], ack["batch"], ack["count"]) == (3, "b", 3)
    return "yes"


async def _fast(one: Publisher) -> str:
    reply = f"{one.nats.new_inbox()}.b.10.ok.1.0.$FI"
    answers = await one.nats.subscribe(reply)
    await one.nats.publish("orders.py", b"x", reply=reply)
    return str(json.loads((await answers.next_msg(timeout=30)).data)["error"]["err_code"])


async def _told(one: Publisher) -> str:
    told = {
        "Nats-Scheduler": "orders.s",
        "Nats-Schedule-Next": "purge",
        "Nats-Required-Api-Level": "9",
        "Nats-Other": "1",
    }
    outcomes = {await outcome(one.acked({name: value})) for name, value in told.items()}
    assert len(outcomes) == 1, outcomes
    return outcomes.pop()


async def _repeating(one: Publisher) -> str:
    patterns = ("@every 5s", "@hourly", "0 0 5 * * *")
    outcomes = {
        await outcome(one.acked({"Nats-Schedule": each, "Nats-Schedule-Target": "later.t"}, "later.py"))
        for each in patterns
    }
    assert len(outcomes) == 1, outcomes
    return outcomes.pop()


def headed(headers: dict[str, str], subject: str = "orders.py", **how: Any) -> Try:
    return lambda one: one.acked(headers, subject, **how)


PUBLISHING: dict[str, Try] = {
    "`js.publish(subject, payload)`": lambda one: one.acked(),
    "`js.publish(subject, payload, headers=…)`": headed({"Of-Its-Own": "kept"}),
    "`js.publish_async(…)`, `publish_async_completed()`": _async,
    "`connection.request(subject, payload)`": _request,
    "`connection.publish(subject, payload)`": _unacked,
    "`js.publish(…)` where no stream is on the subject": lambda one: one.acked(subject="nobody.py"),
    '`js.publish(…, stream="orders")`, `Nats-Expected-Stream`': headed({}, stream="orders"),
    "`Nats-Expected-Stream`, another stream's name": lambda one: one.js.publish(
        "orders.py", b"x", timeout=SILENCE_S, stream="other"
    ),
    "`Nats-Msg-Id`": headed({"Nats-Msg-Id": "once"}),
    "`Nats-Msg-Id`, once more": _duplicate,
    "`Nats-Expected-Last-Msg-Id`": _last_id,
    "`Nats-Expected-Last-Msg-Id`, another one": headed({"Nats-Expected-Last-Msg-Id": "never there"}),
    "`Nats-Expected-Last-Sequence`": _last_sequence,
    "`Nats-Expected-Last-Sequence`, another one": headed({"Nats-Expected-Last-Sequence": "1000000"}),
    "`Nats-Expected-Last-Subject-Sequence`": _last_of_subject,
    "`Nats-Expected-Last-Subject-Sequence`, another one": headed({"Nats-Expected-Last-Subject-Sequence": "1000000"}),
    "`Nats-Expected-Last-Subject-Sequence-Subject`": headed(
        {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": "orders.never"}
    ),
    "`Nats-Expected-Last-Subject-Sequence-Subject`, with a wildcard": headed(
        {"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": "orders.*"}
    ),
    "`js.publish(…, msg_ttl=60)`, `Nats-TTL`, on a stream with `--allow-message-ttl yes`": _ttl,
    "`Nats-TTL`, on another stream": headed({"Nats-TTL": "1m"}),
    "`Nats-TTL`, not a time": headed({"Nats-TTL": "soon"}, "short.py"),
    "`Nats-Rollup: sub`, `all`, on a stream with `--allow-rollup yes`": _rollup,
    "`Nats-Rollup`, on another stream": headed({"Nats-Rollup": "sub"}),
    "`Nats-Batch-Id`, `Nats-Batch-Sequence`, `Nats-Batch-Commit`, on a stream with `--allow-atomic yes`": _batch,
    "`Nats-Batch-Id`, on another stream": headed({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}),
    "a reply subject that ends with `.$FI` (fast ingest)": _fast,
    "`Nats-Incr`": headed({"Nats-Incr": "+1"}),
    "`Nats-Schedule: @at …`, on a stream with `--allow-message-schedules yes`": headed(
        {"Nats-Schedule": "@at 2099-01-01T00:00:00Z", "Nats-Schedule-Target": "later.t"}, "later.py"
    ),
    "`Nats-Schedule: @every …`, `@hourly`, a cron pattern": _repeating,
    "`Nats-Schedule`, on another stream": headed(
        {"Nats-Schedule": "@at 2099-01-01T00:00:00Z", "Nats-Schedule-Target": "orders.t"}
    ),
    "`Nats-Scheduler`, `Nats-Schedule-Next`, `Nats-Required-Api-Level`, any other `Nats-` header": _told,
    "a payload beyond the stream's `--max-message-bytes`": lambda one: one.js.publish("small.py", b"x" * 2_000),
    "a stream that is sealed or read-only": headed({}, "sealed.py"),
}


async def _each(*calls: Awaitable[Any]) -> str:
    """What all of them come to, which must be the same."""
    outcomes = {await outcome(call) for call in calls}
    assert len(outcomes) == 1, outcomes
    return outcomes.pop()


async def _queues(one: Publisher) -> str:
    for retention in (RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST):
        added = await one.js.add_stream(name=retention.value, subjects=[f"{retention.value}.>"], retention=retention)
        assert added.config.retention == retention
        worker = await one.js.pull_subscribe(f"{retention.value}.>", durable="worker")
        await one.js.publish(f"{retention.value}.a", b"1")
        (message,) = await worker.fetch(1)
        await message.ack_sync()
        assert (await one.js.stream_info(retention.value)).state.messages == 0
    return "yes"


async def _streams(one: Publisher) -> str:
    added = await one.js.add_stream(name="made", subjects=["made.>"])
    assert added.config.max_msgs == -1
    changed = await one.js.update_stream(name="made", subjects=["made.>"], max_msgs=5)
    assert changed.config.max_msgs == 5
    assert await one.js.delete_stream("made")
    return "yes"


async def _purge(one: Publisher) -> str:
    await one.js.add_stream(name="purged", subjects=["purged.>"])
    for number in range(6):
        await one.js.publish(f"purged.{number % 2}", b"x")
    assert await one.js.purge_stream("purged", subject="purged.1")
    assert await one.js.purge_stream("purged", keep=1)
    assert (await one.js.stream_info("purged")).state.messages == 1
    await one.js.delete_stream("purged")
    return "yes"


async def _infos(one: Publisher) -> str:
    await one.js.publish("orders.told")
    info = await one.js.stream_info("orders", subjects_filter=">")
    assert info.state.subjects is not None
    names = {one.config.name for one in await one.js.streams_info()}
    assert {"orders", "short"} <= names
    assert await one.js.find_stream_name_by_subject("orders.py") == "orders"
    return "yes"


async def _looks(one: Publisher) -> str:
    seq = (await one.ack({"Own": "kept"})).seq
    for message in (
        await one.js.get_msg("orders", seq),
        await one.js.get_last_msg("orders", "orders.py"),
        await one.js.get_msg("orders", seq, direct=True),
    ):
        assert (message.seq, message.data, (message.headers or {})["Own"]) == (seq, b"x", "kept")
    return "yes"


async def _deletes(one: Publisher) -> str:
    seq = (await one.ack()).seq
    assert await one.js.delete_msg("orders", seq)
    with pytest.raises(NotFoundError):
        await one.js.get_msg("orders", seq)
    return "yes"


async def _consumers(one: Publisher) -> str:
    info = await one.js.add_consumer("orders", ack_policy=AckPolicy.NONE, deliver_subject="_INBOX.tried")
    assert (await one.js.consumer_info("orders", info.name)).num_pending == info.num_pending
    assert info.name in {found.name for found in await one.js.consumers_info("orders")}
    assert await one.js.delete_consumer("orders", info.name)
    return "yes"


async def _ordered(one: Publisher) -> str:
    seq = (await one.ack(subject="orders.ordered")).seq
    for more in ({"ordered_consumer": True}, {"config": ConsumerConfig(ack_policy=AckPolicy.NONE)}):
        subscription = await one.js.subscribe("orders.ordered", **more)
        assert (await subscription.next_msg(timeout=30)).metadata.sequence.stream == seq
        await subscription.unsubscribe()
    return "yes"


async def _pulled(one: Publisher) -> str:
    await one.ack(subject="orders.pulled")
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await one.js.pull_subscribe("orders.pulled", config=config)
    assert len(await subscription.fetch(1, timeout=30)) == 1
    await subscription.unsubscribe()
    return "yes"


async def _stored(one: Publisher) -> str:
    for config in ({"durable_name": "mail", "ack_policy": AckPolicy.NONE}, {"ack_policy": AckPolicy.EXPLICIT}):
        info = await one.js.add_consumer("orders", **config)
        assert (await one.js.consumer_info("orders", info.name)).config.ack_policy == config["ack_policy"]
        assert await one.js.delete_consumer("orders", info.name)
    return "yes"


async def _pushed_with_acks(one: Publisher) -> str:
    seq = (await one.ack(subject="orders.pushed")).seq
    subscription = await one.js.subscribe("orders.pushed", durable="pushed")
    message = await subscription.next_msg(timeout=30)
    await message.ack_sync(timeout=30)
    assert (await one.js.consumer_info("orders", "pushed")).ack_floor.stream_seq == seq
    await subscription.unsubscribe()
    return "yes"


async def _pulled_with_acks(one: Publisher) -> str:
    await one.ack(subject="orders.acked")
    subscription = await one.js.pull_subscribe("orders.acked", "pulled")
    (message,) = await subscription.fetch(1, timeout=30)
    await message.nak()
    (message,) = await subscription.fetch(1, timeout=30)
    assert message.metadata.num_delivered == 2
    await message.ack_sync(timeout=30)
    return "yes"


async def _bucket(one: Publisher) -> str:
    bucket = await one.js.create_key_value(bucket="keys", history=5)
    revision = await bucket.put("a", b"1")
    assert await bucket.update("a", b"2", last=revision) == revision + 1
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.update("a", b"3", last=revision)
    await bucket.create("b", b"1")
    assert (await bucket.get("a")).value == b"2"
    await bucket.delete("b")
    assert await bucket.keys() == ["a"]
    assert [entry.value for entry in await bucket.history("a")] == [b"1", b"2"]
    watcher = await bucket.watchall()
    first = await watcher.updates(timeout=30)
    assert first is not None
    assert first.key == "a"
    await watcher.stop()
    assert (await (await one.js.key_value("keys")).status()).values == 4
    await one.js.delete_key_value("keys")
    return "yes"


async def _objects(one: Publisher) -> str:
    store = await one.js.create_object_store("objects")
    await store.put("object", b"x" * 300_000)
    assert (await (await one.js.object_store("objects")).get("object")).data == b"x" * 300_000
    assert [found.name for found in await store.list()] == ["object"]
    await store.delete("object")
    await one.js.delete_object_store("objects")
    return "yes"


ELSE: dict[str, Try] = {
    "`js.account_info()`": lambda one: _yes(one.js.account_info()),
    "`js.add_stream(…)`, `update_stream(…)`, `delete_stream(…)`": _streams,
    "`js.add_stream(…)` with the retention `workqueue` or `interest`": _queues,
    "`js.add_stream(…)` with a mirror, or with sources": lambda one: _each(
        one.js.add_stream(name="m", mirror=StreamSource(name="orders")),
        one.js.add_stream(name="s", sources=[StreamSource(name="orders")]),
    ),
    "`js.add_stream(…)` on a subject of another stream": lambda one: one.js.add_stream(name="o", subjects=["orders.a"]),
    "`js.purge_stream(…)`": _purge,
    "`js.stream_info(…)`, `streams_info()`, `find_stream_name_by_subject(…)`": _infos,
    "`js.get_msg(…)`, `get_last_msg(…)`": _looks,
    "`js.delete_msg(…)`": _deletes,
    "`js.add_consumer(…)` without acks, `consumer_info(…)`, `consumers_info(…)`, `delete_consumer(…)`": _consumers,
    "`js.add_consumer(…)`, durable or with acks": _stored,
    "`js.subscribe(…, ordered_consumer=True)`, or with `ack_policy` none": _ordered,
    "`js.subscribe(…)` without these": _pushed_with_acks,
    "`js.pull_subscribe(…)` with `ack_policy` none": _pulled,
    "`js.pull_subscribe(…)` without": _pulled_with_acks,
    "`js.create_key_value(…)`, and all calls of a bucket": _bucket,
    "`js.create_object_store(…)`, and all calls of a store": _objects,
}


async def _yes(call: Awaitable[Any]) -> str:
    await call
    return "yes"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as shared:
        yield shared


@pytest.fixture(scope="module")
def api_broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_broker(tmp_path_factory.mktemp("api") / "data", *API_ON) as shared:
        yield shared


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Publisher]:
    connection = await nats.connect(broker.nats_url)
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>")
        await client.create_stream("short", "short.>", allow_message_ttl=True)
        await client.create_stream("rolled", "rolled.>", allow_rollup=True)
        await client.create_stream("later", "later.>", allow_rollup=True, allow_message_schedules=True)
        await client.create_stream("batched", "batched.>", allow_atomic=True)
        await client.create_stream("small", "small.>", max_message_bytes=1_000)
        await client.create_stream("sealed", "sealed.>")
        await client.seal_stream("sealed")
        yield Publisher(connection, client)
    await connection.close()


@pytest.fixture
async def publisher(broker: BrokerProcess) -> AsyncIterator[Publisher]:
    async with connected(broker) as found:
        yield found


@pytest.fixture
async def caller(api_broker: BrokerProcess) -> AsyncIterator[Publisher]:
    async with connected(api_broker) as found:
        yield found


@each_change
@pytest.mark.parametrize("call", PUBLISHING)
async def test_publishing(publisher: Publisher, call: str) -> None:
    assert await outcome(PUBLISHING[call](publisher)) == rows("Publish with nats-py")[call]


@each_change
@pytest.mark.parametrize("call", PUBLISHING)
async def test_publishing_where_the_api_is_served(caller: Publisher, call: str) -> None:
    assert await outcome(PUBLISHING[call](caller)) == rows("Publish with nats-py")[call]


@pytest.mark.parametrize("call", ELSE)
async def test_all_else_with_the_api_off(publisher: Publisher, call: str) -> None:
    assert await outcome(ELSE[call](publisher)) == NO_RESPONDERS


@each_change
@pytest.mark.parametrize("call", ELSE)
async def test_all_else(caller: Publisher, call: str) -> None:
    assert await outcome(ELSE[call](caller)) == rows("Other calls of nats-py")[call]


def test_every_row_is_tried() -> None:
    assert list(rows("Publish with nats-py")) == list(PUBLISHING)
    assert list(rows("Other calls of nats-py")) == list(ELSE)


def test_the_page_names_the_versions_that_are_tried() -> None:
    from importlib.metadata import version

    page = PAGE.read_text(encoding="utf-8")
    assert f"nats-py {'.'.join(version('nats-py').split('.')[:2])}," in page
    required = re.search(r"github.com/nats-io/nats.go v(\d+\.\d+)\.", (GO / "go.mod").read_text())
    assert required is not None
    assert f"nats.go {required[1]} " in page


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go program, built where a Go toolchain is and its modules can be had."""
    return built_by_go(GO, tmp_path_factory.mktemp("go") / "compat")


@needs_time
@pytest.mark.parametrize(("options", "column"), [((), 1), (API_ON, 2)], ids=["off", "on"])
async def test_nats_go(go_program: Path, tmp_path: Path, options: tuple[str, ...], column: int) -> None:
    with running_broker(tmp_path / "data", *options) as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
            done = subprocess.run(
                [go_program, broker.nats_url], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            said = {one["call"]: one["result"] for one in map(json.loads, done.stdout.splitlines())}
            assert {f"`{call}`": result for call, result in said.items()} == rows("nats.go", column)
            info = await client.stream("orders")
            assert info.partitions[0].log_end == 8
            assert (await client.get("orders", offset=7)).headers == {"Of-Its-Own": "kept"}
