"""Readers through JetStream's API: the same answers and statuses as nats-server's, and through nats-py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_streams import api_options, connected, said, serving, steady
from tests.ports import free_ports

TIMEOUT_S = 20
QUIET_S = 0.4  # nothing more comes to an inbox
MS = 1_000_000  # ns
S = 1_000 * MS


def create(name: str, **config: Any) -> tuple[str, str]:
    filtered = f".{config['filter_subject']}" if "filter_subject" in config else ""
    wanted = {"stream_name": "S", "config": {"name": name, **config}}
    return f"CONSUMER.CREATE.S.{name}{filtered}", json.dumps(wanted)


PUSH = {
    "deliver_subject": "nobody", "flow_control": True, "idle_heartbeat": 5 * S, "max_deliver": 1, "mem_storage": True,
    "num_replicas": 1, "ack_wait": 79_200 * S, "inactive_threshold": 300 * S,
}  # fmt: skip
CALLS = (
    ("STREAM.CREATE.S", '{"name":"S","subjects":["a.>"]}'),
    *(("PUBLISH", f"a.{number % 2}") for number in range(5)),
    create("p1", filter_subject="a.1"),
    create("p1", filter_subject="a.0"),
    create("p1", filter_subject="a.0", deliver_policy="new"),
    create("push", **PUSH, deliver_policy="last_per_subject", filter_subject="a.>"),
    create("time", deliver_policy="by_start_time", opt_start_time="2026-01-01T01:02:03.5+02:00", metadata={"k": "v"}),
    create("late", deliver_policy="by_start_sequence", opt_start_seq=20),
    create("last", deliver_policy="last"),
    create("lastof", deliver_policy="last", filter_subjects=["a.0", "b"]),
    create("none", filter_subject="other.x"),
    ("CONSUMER.NAMES.S", ""),
    ("CONSUMER.INFO.S.p1", ""),
    ("CONSUMER.INFO.S.nope", ""),
    ("CONSUMER.INFO.X.nope", ""),
    ("CONSUMER.INFO.S.p1", '{"a":1}'),
    ("CONSUMER.DELETE.S.nope", ""),
    ("CONSUMER.DELETE.S.none", ""),
    ("CONSUMER.PAUSE.S.p1", '{"pause_until":"2100-01-01T00:00:00Z"}'),
    ("CONSUMER.INFO.S.p1", ""),
    ("CONSUMER.PAUSE.S.p1", ""),
    ("CONSUMER.RESET.S.p1", '{"seq":3}'),
    ("CONSUMER.RESET.S.p1", ""),
    ("CONSUMER.RESET.S.time", '{"seq":1}'),
    ("CONSUMER.UNPIN.S.p1", '{"group":"x"}'),
    ("CONSUMER.UNPIN.S.p1", ""),
    ("CONSUMER.CREATE.S", "{"),
    ("CONSUMER.CREATE.S", ""),
    ("CONSUMER.CREATE.S.x", '{"stream_name":"S","config":{"durable_name":"y"}}'),
    ("CONSUMER.CREATE.S", '{"stream_name":"S","config":{"durable_name":"y"}}'),
    ("CONSUMER.DURABLE.CREATE.S.x", '{"stream_name":"S","config":{}}'),
    create("bad", deliver_subject="a.x"),
    create("bad", filter_subjects=["a.>", "a.1"]),
    create("bad", deliver_policy="last_per_subject"),
    create("bad", flow_control=True, idle_heartbeat=S),
)
"""Calls whose answers are nats-server's, but for times, and versions."""
PULLS = (
    '{"batch":4}',
    '{"batch":2,"expires":2000000000}',
    '{"batch":2,"max_bytes":2000}',
    '{"batch":2,"max_bytes":30}',
    '{"batch":3,"max_bytes":900}',
    '{"batch":3,"no_wait":true}',
    '{"batch":3,"no_wait":true}',
    '{"batch":3,"expires":200000000}',
    '{"batch":1,"expires":300000000,"idle_heartbeat":200000000}',
    '{"batch":1,"expires":350000000,"idle_heartbeat":100000000}',
    '{"batch":1,"min_pending":2}',
    '{"batch":0,"expires":100000000}',
    '{"batch":1,"group":"x","expires":100000000}',
    '{"batch":1,"expires":-5}',
)
PULLS_WITHOUT_WAITING = ('{"batch":1,"no_wait":true}', '{"batch":1,"no_wait":true,"expires":100000000}')


def without_times(answer: Any) -> Any:
    found = steady(answer)
    if isinstance(found, dict):
        found.pop("pause_remaining", None)
        if "delivered" in found:
            found["delivered"].pop("last_active", None)
    return found


async def pulled(connection: Any, request: str, name: str = "pull") -> list[tuple[str, str, bytes, str]]:
    """What a pull request gets: subject, reply subject without the time, value, headers."""
    inbox = connection.new_inbox()
    got: asyncio.Queue[Any] = asyncio.Queue()
    subscription = await connection.subscribe(inbox, cb=got.put)
    await connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", request.encode(), reply=inbox)
    found = []
    while True:
        try:
            message = await asyncio.wait_for(got.get(), QUIET_S)
        except TimeoutError:
            break
        reply = message.reply.split(".")
        if len(reply) > 7:
            del reply[7]
        subject = "inbox" if message.subject == inbox else message.subject
        one = (subject, ".".join(reply), message.data, str(dict(message.headers or {})))
        if "Idle Heartbeat" not in one[3] or one not in found:  # how many there are depends on the machine
            found.append(one)
    await subscription.unsubscribe()
    return found


@each_change
async def test_answers_and_statuses_are_those_of_nats_server(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", *api_options()) as broker,
    ):
        async with connected(server.url) as theirs, connected(broker.nats_url) as ours:
            await delivering(ours)
            different = []
            for operation, request in CALLS:
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if without_times(found) != without_times(expected):
                    different.append((operation, request, "theirs:", expected, "ours:", found))
            assert different == []
            limits = create("pull", max_batch=3, max_expires=S, max_bytes=1_000, inactive_threshold=60 * S)
            for connection in (theirs, ours):
                assert "error" not in await said(connection, *limits)
            for request in PULLS:
                expected_messages, found_messages = await asyncio.gather(pulled(theirs, request), pulled(ours, request))
                assert found_messages == expected_messages, request
            paused = create("paused", pause_until="2100-01-01T00:00:00Z", inactive_threshold=60 * S)
            for connection in (theirs, ours):
                assert "error" not in await said(connection, *paused)
            for request in PULLS_WITHOUT_WAITING:
                expected_messages, found_messages = await asyncio.gather(
                    pulled(theirs, request, "paused"), pulled(ours, request, "paused")
                )
                assert found_messages == expected_messages != [], request
            expected_shares, found_shares = await shared(theirs), await shared(ours)
            assert found_shares == expected_shares
            assert [len(one) for one in found_shares.values()][:2] == [3, 1]


async def shared(connection: Any) -> dict[str, list[tuple[bytes, str]]]:
    """What each of several requests of one consumer gets: messages, and statuses."""
    assert "error" not in await said(connection, *create("shared", deliver_policy="new", inactive_threshold=60 * S))
    found: dict[str, list[tuple[bytes, str]]] = {}
    news: asyncio.Queue[None] = asyncio.Queue()
    requests = {"a": {"batch": 3}, "b": {"batch": 1}, "c": {"batch": 9, "max_bytes": 200}, "d": {"batch": 9}}
    for name, request in requests.items():
        inbox, got = connection.new_inbox(), found.setdefault(name, [])

        async def take(message: Any, got: list[tuple[bytes, str]] = got) -> None:
            got.append((message.data, str(dict(message.headers or {}))))
            news.put_nowait(None)

        await connection.subscribe(inbox, cb=take)
        wanted = json.dumps({**request, "expires": 30 * S}).encode()
        await connection.publish("$JS.API.CONSUMER.MSG.NEXT.S.shared", wanted, reply=inbox)
    for number in range(12):
        await connection.request("a.x", b"%d" % number, timeout=TIMEOUT_S)
    while True:
        try:
            await asyncio.wait_for(news.get(), QUIET_S)
        except TimeoutError:
            return found


async def delivering(connection: Any) -> None:
    """Wait until the API is served, and the leaf connection is there, which comes a moment later."""
    await serving(connection)
    await said(connection, "STREAM.CREATE.trial", '{"name":"trial"}')
    config = '{"stream_name":"trial","config":{"filter_subject":"other"}}'

    async def can_deliver() -> bool:
        return "error" not in await said(connection, "CONSUMER.CREATE.trial", config)

    await eventually(can_deliver, "the leaf connection is up")
    await said(connection, "STREAM.DELETE.trial")


@each_change
async def test_nats_py_reads_in_every_way_without_acks(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection:
            await delivering(connection)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="py", subjects=["py.>"]))
            for number in range(2_000):
                await connection.publish(f"py.{number % 4}", b"%d" % number, headers={"Number": str(number)})
            await js.publish("py.last", b"last")

            ordered = await js.subscribe("py.>", ordered_consumer=True)
            for number in range(2_000):
                message = await ordered.next_msg(timeout=TIMEOUT_S)
                assert (message.subject, message.data) == (f"py.{number % 4}", b"%d" % number)
                assert message.headers == {"Number": str(number)}
                assert message.metadata.sequence.stream == number + 1
                assert message.metadata.num_pending == 2_000 - number
            assert (await ordered.next_msg(timeout=TIMEOUT_S)).data == b"last"
            await js.publish("py.new", b"new")
            assert (await ordered.next_msg(timeout=TIMEOUT_S)).data == b"new"
            await ordered.unsubscribe()

            config = ConsumerConfig(ack_policy=AckPolicy.NONE, filter_subject="py.3", deliver_policy=DeliverPolicy.ALL)
            made = await js.add_consumer("py", config, name="pull")
            assert made.num_pending == 500
            pull = await js.pull_subscribe_bind("pull", "py")
            found = await pull.fetch(300, timeout=TIMEOUT_S)
            assert [message.metadata.sequence.stream for message in found] == [4 * n + 4 for n in range(300)]
            assert found[-1].metadata.num_pending == 200
            assert (await js.consumer_info("py", "pull")).num_pending == 200
            assert await js.delete_consumer("py", "pull")
            with pytest.raises(NotFoundError):
                await js.consumer_info("py", "pull")

            last = await js.subscribe(
                "py.*", config=ConsumerConfig(deliver_policy="last_per_subject"), ordered_consumer=True
            )
            subjects = [(await last.next_msg(timeout=TIMEOUT_S)).subject for _ in range(6)]
            assert subjects == ["py.0", "py.1", "py.2", "py.3", "py.last", "py.new"]


@each_change
async def test_key_value_buckets_are_watched(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection:
            await delivering(connection)
            js = connection.jetstream()
            for history in (1, 5):
                bucket = await js.create_key_value(bucket=f"b{history}", history=history)
                assert await watched(await bucket.watchall()) == []
                for number in range(3):
                    for key in ("a", "b.x", "b.y"):
                        await bucket.put(key, b"%d" % number)
                await bucket.delete("b.y")
                assert sorted(await watched(await bucket.watchall())) == [
                    ("a", b"2", None), ("b.x", b"2", None), ("b.y", b"", "DEL"),
                ]  # fmt: skip
                assert await watched(await bucket.watch("b.x")) == [("b.x", b"2", None)]
                assert await watched(await bucket.watch("b.*", ignore_deletes=True)) == [("b.x", b"2", None)]
                kept = await watched(await bucket.watch("a", include_history=True))
                assert kept == [("a", b"%d" % number, None) for number in range(3)][-history:]
                assert sorted(await bucket.keys()) == ["a", "b.x"]
                updates = await bucket.watchall()
                await watched(updates, stops=False)
                await bucket.put("new", b"v")
                entry = await updates.updates(timeout=TIMEOUT_S)
                assert (entry.key, entry.value) == ("new", b"v")
                await updates.stop()


@each_change
async def test_objects_are_put_read_watched_and_deleted(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection:
            await delivering(connection)
            store = await connection.jetstream().create_object_store(bucket="o")
            data = bytes(range(256)) * 5_000
            await store.put("big", data)
            found = await store.get("big")
            assert (found.data == data, found.info.chunks) == (True, 10)
            watcher = await store.watch()
            assert (await watcher.updates(timeout=TIMEOUT_S)).name == "big"
            assert await watcher.updates(timeout=TIMEOUT_S) is None  # that was all
            await store.delete("big")
            assert (await watcher.updates(timeout=TIMEOUT_S)).deleted


async def watched(watcher: Any, *, stops: bool = True) -> list[tuple[str, bytes, str | None]]:
    """Return the values that a watch begins with, up to the mark behind them."""
    found = []
    while (entry := await watcher.updates(timeout=TIMEOUT_S)) is not None:
        found.append((entry.key, entry.value or b"", entry.operation))
    if stops:
        await watcher.stop()
    return found


@needs_time
async def test_a_reader_goes_on_through_a_change_of_the_leader(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with connected(server.url) as connection:
                await serving(connection)
                await delivering(connection)
                js = connection.jetstream()
                await js.add_stream(StreamConfig(name="s", num_replicas=3))
                for number in range(100):
                    await js.publish("s", b"%d" % number)
                reader = await js.subscribe("s", ordered_consumer=True, idle_heartbeat=0.5)
                found = [(await reader.next_msg(timeout=TIMEOUT_S)).data for _ in range(100)]
                killed = await brokers.leader_of("s")
                brokers.brokers[killed].kill()
                for number in range(100, 200):
                    await published(js, b"%d" % number)
                found += [(await reader.next_msg(timeout=TIMEOUT_S)).data for _ in range(100)]
                assert found == [b"%d" % number for number in range(200)]
        finally:
            print(brokers.said)
            brokers.end()


@needs_time
async def test_partitions_are_read_in_order_from_any_broker(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with brokers.client(1) as client, connected(server.url) as connection:
                await delivering(connection)
                await client.create_stream("orders", "orders.*", partitions=4, partition_by="token:2")
                sent: dict[int, list[bytes]] = {}
                for number in range(40):
                    ack = await client.publish(f"orders.{number % 10}", b"%d" % number)
                    sent.setdefault(ack.partition, []).append(b"%d" % number)
                assert len(sent) > 1, sent
                for _ in range(6):  # the queue group chooses a broker for each
                    info = await said(connection, "STREAM.INFO.orders")
                    assert info["state"]["messages"] == 40
                    assert info["config"]["metadata"]["_penstock.partitions"] == "orders-p0 to orders-p3"
                    (listed,) = (await said(connection, "STREAM.LIST"))["streams"]
                    assert listed["state"]["messages"] == 40
                js = connection.jetstream()
                for partition, values in sent.items():
                    await read_partition(js, f"orders-p{partition}", values)
                assert [(await said(connection, "STREAM.PURGE.orders"))["purged"] for _ in range(2)] == [40, 0]
                assert (await said(connection, "STREAM.INFO.orders"))["state"]["messages"] == 0
        finally:
            print(brokers.said)
            brokers.end()


async def read_partition(js: Any, name: str, values: list[bytes]) -> None:
    """Look each of its messages up, and read them in order."""
    assert (await js.stream_info(name)).state.last_seq == len(values)
    for seq, value in enumerate(values, 1):
        assert (await js.get_msg(name, seq)).data == value
        assert (await js.get_msg(name, seq, direct=True)).data == value
    while True:
        try:
            reader = await js.subscribe("orders.*", stream=name, ordered_consumer=True)
        except APIError as error:  # the leaf connection of that broker comes a moment after its API
            assert error.err_code == 10008, error  # noqa: PT017
            await asyncio.sleep(0.1)
        else:
            break
    found = [await reader.next_msg(timeout=TIMEOUT_S) for _ in values]
    assert [one.data for one in found] == values
    assert [one.metadata.sequence.stream for one in found] == list(range(1, len(values) + 1))
    await reader.unsubscribe()


async def published(js: Any, value: bytes) -> None:
    """Publish, again until a leader takes it: it drops what it has already."""
    while True:
        try:
            await js.publish("s", value, timeout=1, headers={"Nats-Msg-Id": value.decode()})
        except (NoStreamResponseError, TimeoutError, nats.errors.Error, APIError):
            await asyncio.sleep(0.1)
        else:
            return
