"""Consumers with acks through JetStream's API: the same answers and messages as nats-server's, and through nats-py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from tests.broker_process import running_broker, running_nats
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import S, create, delivering, published, without_times
from tests.integration.test_jetstream_streams import api_options, connected, said, serving
from tests.ports import free_ports

TIMEOUT_S = 20
QUIET_S = 1.0  # nothing more comes to an inbox
LEFT_TIMES = 20
LEFT_S = 0.15  # nats-py waits so long for messages that do not come
WAIT_S = 0.2  # for acks, which have no answer


def durable(name: str, **config: Any) -> tuple[str, str]:
    return create(name, **{"durable_name": name, "ack_policy": "explicit", **config})


CALLS = (
    ("STREAM.CREATE.S", '{"name":"S","subjects":["a.>"]}'),
    durable("plain"),
    durable("plain"),
    durable("plain", description="other"),
    durable("plain", ack_policy="all"),
    durable("all", ack_policy="all", ack_wait=5 * S, max_deliver=7, max_ack_pending=3),
    durable("back", backoff=[S, 2 * S], max_deliver=4, sample_freq="50%"),
    durable("back", backoff=[S, 2 * S, 3 * S], max_deliver=4),
    durable("back", backoff=[S, 2 * S, 3 * S, 4 * S, 5 * S], max_deliver=4),
    durable("push", deliver_subject="nobody", deliver_group="g", idle_heartbeat=5 * S, flow_control=True),
    durable("none", ack_policy="none"),
    durable("gone", inactive_threshold=60 * S),
    durable("over", priority_policy="overflow", priority_groups=["A"]),
    durable("prio", priority_policy="prioritized", priority_groups=["A"]),
    durable("bad", priority_policy="overflow"),
    durable("bad", backoff=[S, S], max_deliver=1),
    durable("bad", ack_wait=-1),
    durable("bad", backoff=[-5]),
    durable("bad", max_ack_pending=5, deliver_subject="nobody", ack_policy="none"),
    (
        "CONSUMER.CREATE.S.x",
        '{"stream_name":"S","config":{"durable_name":"x","ack_policy":"explicit"},"action":"update"}',
    ),
    ("CONSUMER.DURABLE.CREATE.S.old", '{"stream_name":"S","config":{"durable_name":"old","ack_policy":"explicit"}}'),
    *(
        (
            f"CONSUMER.{operation}.S.old",
            f'{{"stream_name":"S","config":{{"durable_name":"old","ack_policy":"explicit"{more}}},"action":"create"}}',
        )
        for operation in ("DURABLE.CREATE", "CREATE")
        for more in ("", ',"description":"other"', ',"inactive_threshold":60000000000')
    ),
    ("CONSUMER.DURABLE.CREATE.S.x", '{"stream_name":"S","config":{"durable_name":"y","ack_policy":"explicit"}}'),
    create("eph", ack_policy="explicit", inactive_threshold=60 * S),
    ("CONSUMER.NAMES.S", ""),
    ("CONSUMER.INFO.S.plain", ""),
    ("CONSUMER.PAUSE.S.plain", '{"pause_until":"2100-01-01T00:00:00.123456789Z"}'),
    ("CONSUMER.INFO.S.plain", ""),
    ("CONSUMER.PAUSE.S.plain", ""),
    ("CONSUMER.UNPIN.S.over", '{"group":"B"}'),
    ("CONSUMER.DELETE.S.old", ""),
    ("CONSUMER.INFO.S.old", ""),
)
"""Calls whose answers are nats-server's, but for times, and versions."""
STEPS = (
    ("pull", 3), ("info",), ("ack", 1, b""), ("info",), ("ack", 0, b"+ACK"), ("info",), ("ack", 0, b""), ("info",),
    ("ack", 2, b"-NAK"), ("info",), ("pull", 1), ("info",), ("ack", 0, b"+TERM why"), ("info",),
    ("pull", 4), ("ack", 0, b"+WPI"), ("ack", 3, b"+ACK"), ("info",), ("reset", ""), ("info",), ("pull", 2), ("info",),
    ("ack", 0, b'-NAK {"delay":300000000}'), ("pull", 1), ("sleep", 0.6), ("pull", 1), ("info",),
    ("delete", 7), ("info",), ("pull", 9), ("info",), ("ack", 1, b"+NXT"), ("info",), ("reset", '{"seq":2}'), ("info",),
    ("purge", 6), ("info",), ("pull", 2), ("info",),
)  # fmt: skip
"""What one consumer does, step by step."""


class Worker:
    """A client of one consumer; it says what happened, without times."""

    def __init__(self, connection: Any, name: str) -> None:
        self.connection = connection
        self.name = name
        self.messages: list[Any] = []

    async def do(self, kind: str, *of: Any) -> Any:
        match kind:
            case "pull":
                self.messages = await self.pull(*of)
                return [said_of(message) for message in self.messages]
            case "ack":
                return await self.ack(*of)
            case "reset":
                return told(await said(self.connection, f"CONSUMER.RESET.S.{self.name}", *of))
            case "delete":
                return await said(self.connection, "STREAM.MSG.DELETE.S", json.dumps({"seq": of[0]}))
            case "purge":
                return await said(self.connection, "STREAM.PURGE.S", json.dumps({"seq": of[0]}))
            case "sleep":
                await asyncio.sleep(of[0])
                return None
            case _:
                await asyncio.sleep(WAIT_S)
                return told(await said(self.connection, f"CONSUMER.INFO.S.{self.name}"))

    async def pull(self, batch: int) -> list[Any]:
        """Return what a request gets that does not wait."""
        request = json.dumps({"batch": batch, "no_wait": True}).encode()
        return await self.heard(f"$JS.API.CONSUMER.MSG.NEXT.S.{self.name}", request, batch)

    async def heard(self, subject: str, request: bytes, wanted: int = 0) -> list[Any]:
        """Return what comes back: so many messages, or up to a status; 0: what comes within a while."""
        inbox = self.connection.new_inbox()
        got: asyncio.Queue[Any] = asyncio.Queue()
        subscription = await self.connection.subscribe(inbox, cb=got.put)
        await self.connection.publish(subject, request, reply=inbox)
        found: list[Any] = []
        while True:
            is_whole = not wanted or len(found) >= wanted or (found and "Status" in (found[-1].headers or {}))
            try:
                found.append(await asyncio.wait_for(got.get(), QUIET_S if is_whole else TIMEOUT_S))
            except TimeoutError:
                break
        await subscription.unsubscribe()
        return found

    async def ack(self, number: int, payload: bytes) -> Any:
        """Ack a message, and return what comes back."""
        return [said_of(message) for message in await self.heard(self.messages[number].reply, payload)]


def said_of(message: Any) -> tuple[str, bytes, str]:
    """Return the parts of a reply subject but for the time, the value, and the headers."""
    parts = message.reply.split(".")
    if len(parts) > 7:
        del parts[7]
    return ".".join(parts), message.data, str(dict(message.headers or {}))


def told(answer: Any) -> Any:
    found = without_times(answer)
    if isinstance(found, dict) and "ack_floor" in found:
        found["ack_floor"].pop("last_active", None)
    return found


def difference(expected: Any, found: Any) -> Any:
    """Return what is different: of infos the fields, theirs first."""
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return expected, found
    names = expected.keys() | found.keys()
    return {name: (expected.get(name), found.get(name)) for name in names if expected.get(name) != found.get(name)}


@each_change
@pytest.mark.parametrize("policy", ["explicit", "all"])
async def test_answers_and_messages_are_those_of_nats_server(tmp_path: Path, policy: str) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", *api_options()) as broker,
    ):
        async with connected(server.url) as theirs, connected(broker.nats_url) as ours:
            await delivering(ours)
            different: list[Any] = []
            for operation, request in CALLS:
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if told(found) != told(expected):
                    different.append((operation, request, "theirs:", expected, "ours:", found))
            assert different == []
            workers = Worker(theirs, "w"), Worker(ours, "w")
            for connection in (theirs, ours):
                assert "error" not in await said(connection, *durable("w", ack_policy=policy))
                for number in range(12):
                    await connection.request(f"a.{number % 2}", b"%d" % number, timeout=TIMEOUT_S)
            for number, step in enumerate(STEPS):
                expected, found = await asyncio.gather(*(worker.do(*step) for worker in workers))
                if found != expected:
                    different.append((number, step, difference(expected, found)))
            assert different == [], str(different)


@each_change
async def test_nats_py_works_with_acks(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection:
            await delivering(connection)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="py", subjects=["py.>"]))
            for number in range(1_000):
                await connection.publish(f"py.{number % 4}", b"%d" % number)
            await js.publish("py.last", b"last")
            pull = await js.pull_subscribe("py.>", durable="pull")
            seen: list[int] = []
            while len(seen) < 1_001:
                for message in await pull.fetch(100, timeout=TIMEOUT_S):
                    seen.append(message.metadata.sequence.stream)
                    await message.ack()
            assert seen == list(range(1, 1_002))
            await js.publish("py.new", b"new")
            (message,) = await pull.fetch(1, timeout=TIMEOUT_S)
            await message.ack_sync(timeout=TIMEOUT_S)
            info = await pull.consumer_info()
            assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 0, 1_002)
            await js.publish("py.again", b"again")
            (message,) = await pull.fetch(1, timeout=TIMEOUT_S)
            await message.nak(delay=0.2)
            (message,) = await pull.fetch(1, timeout=TIMEOUT_S)
            assert (message.data, message.metadata.num_delivered) == (b"again", 2)
            await message.term()
            await queue_group(js)


async def queue_group(js: Any) -> None:
    """Two members of a queue group share the messages of a durable push consumer."""
    taken: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    def member(number: int) -> Any:
        async def take(message: Any) -> None:
            taken.append((number, message.data))
            await message.ack()
            if len(taken) == 200:
                done.set()

        return take

    for number in range(2):
        await js.subscribe("py.q", queue="workers", durable="workers", cb=member(number), manual_ack=True)
    for number in range(200):
        await js.publish("py.q", b"%d" % number)
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
    assert sorted(int(value) for _, value in taken) == list(range(200))
    assert {number for number, _ in taken} == {0, 1}


@each_change
async def test_nothing_is_delivered_to_who_has_just_unsubscribed(tmp_path: Path) -> None:
    """A message that went there would come again after `ack_wait` only, half a minute later."""
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection:
            await delivering(connection)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="left", subjects=["left"]))
            left = await js.pull_subscribe("left", durable="d")
            for number in range(LEFT_TIMES):
                await js.publish("left", b"taken")
                (message,) = await left.fetch(1, timeout=TIMEOUT_S)
                await message.ack_sync(timeout=TIMEOUT_S)
                await js.publish("left", b"%d" % number)
                await left.unsubscribe()
                with pytest.raises(TimeoutError):
                    await left.fetch(1, timeout=LEFT_S)
                left = await js.pull_subscribe_bind("d", "left")
                info = await left.consumer_info()
                assert (info.num_pending, info.num_ack_pending) == (1, 0)
                (message,) = await left.fetch(1, timeout=TIMEOUT_S)
                assert (message.data, message.metadata.num_delivered) == (b"%d" % number, 1)
                await message.ack_sync(timeout=TIMEOUT_S)


@each_change
async def test_a_durable_consumer_outlives_its_only_broker(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with (
        running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server,
        running_broker(
            tmp_path / "data",
            *api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}"),
            nats=server.url,
        ) as broker,
    ):
        async with connected(server.url) as connection:
            await delivering(connection)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="s"))
            for number in range(100):
                await js.publish("s", b"%d" % number)
            pull = await js.pull_subscribe("s", durable="d", config=ConsumerConfig(ack_wait=2))
            confirmed = set()
            for message in await pull.fetch(40, timeout=TIMEOUT_S):
                if message.metadata.sequence.stream % 2:
                    await message.ack_sync(timeout=TIMEOUT_S)
                    confirmed.add(message.data)
            broker.restart()
            found = await drained(pull, 100 - len(confirmed))
            assert found.isdisjoint(confirmed)
            assert found | confirmed == {b"%d" % number for number in range(100)}
            info = await pull.consumer_info()
            assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 100)


@each_change
async def test_a_durable_consumer_outlives_a_killed_broker(tmp_path: Path) -> None:
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
                config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.EXPLICIT, ack_wait=2)
                await js.add_consumer("s", config)
                pull = await js.pull_subscribe_bind("d", "s")
                confirmed = set()
                for message in await pull.fetch(50, timeout=TIMEOUT_S):
                    if message.metadata.sequence.stream % 2:
                        await message.ack_sync(timeout=TIMEOUT_S)
                        confirmed.add(message.data)
                killed = await brokers.leader_of("s")
                brokers.brokers[killed].kill()
                for number in range(100, 150):
                    await published(js, b"%d" % number)
                found = await drained(pull, 150 - len(confirmed))
                assert found.isdisjoint(confirmed)
                assert found | confirmed == {b"%d" % number for number in range(150)}
        finally:
            print(brokers.said)
            brokers.end()


async def drained(pull: Any, count: int) -> set[bytes]:
    """Fetch and ack until so many different messages have come."""
    found: set[bytes] = set()
    while len(found) < count:
        try:
            for message in await pull.fetch(50, timeout=2):
                found.add(message.data)
                await message.ack_sync(timeout=TIMEOUT_S)
        except (nats.errors.Error, TimeoutError, APIError, NoStreamResponseError):
            await asyncio.sleep(0.1)
    return found
