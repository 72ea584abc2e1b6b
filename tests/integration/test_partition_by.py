"""Every way in which a message finds its partition, with three real brokers and an unmodified JetStream publisher."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.js.errors import APIError

from penstock import InvalidConfig, RemoteError, aio, partitions_of
from penstock.base.config import StreamConfig
from penstock.batch.schema import PARTITION_KEY
from penstock.cli.access.nats_config import mapping
from penstock.hot.keymap import KeyMap
from tests.broker_process import BrokerProcess, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses


async def _placed(client: aio.Client, stream: str) -> dict[bytes, list[tuple[int, int]]]:
    """Value → where it lies, (partition, offset) each."""
    found: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    async for message in client.messages(stream):
        assert message.value is not None
        found[message.value].append((message.partition, message.offset))
    return found


@needs_time
async def test_leaders_part_a_subject_by_keys_and_tokens_for_plain_publishers(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("by-key", "k.>", partitions=4, partition_by="key")
        await client.create_stream("by-token", "k.*.*", partitions=4, partition_by="token:2")
        purchases = await client.create_stream(
            "purchases", "k.purchases.*", partitions=3, partition_by="range:3", range_bounds=("h", "q")
        )
        assert len({one.leader_id for one in purchases.partitions}) > 1
        connection = await nats.connect(cluster.nats.url)
        try:
            js = connection.jetstream(timeout=10)
            for number in range(60):
                name = f"{'aimz'[number % 4]}{number % 12}"
                headers = {"Penstock-Key": f"c{number % 7}"} if number % 2 else None
                for stream in ("by-key", "by-token", "purchases"):
                    expecting = {**(headers or {}), "Nats-Expected-Stream": stream}
                    subject, value = f"k.purchases.{name}", f"{stream} {number}".encode()
                    ack = await js.publish(subject, value, headers=expecting)
                    assert ack.stream == stream
        finally:
            await connection.close()
        by_key, by_token = await _placed(client, "by-key"), await _placed(client, "by-token")
        by_range = await _placed(client, "purchases")
        for number in range(60):
            name = f"{'aimz'[number % 4]}{number % 12}"
            key = f"c{number % 7}" if number % 2 else f"k.purchases.{name}"
            (place,) = by_key[b"by-key %d" % number]  # once, whoever led
            assert place[0] == KeyMap((4,)).partition_of(key.encode())
            assert [at for at, _ in by_token[b"by-token %d" % number]] == [KeyMap((4,)).partition_of(b"purchases")]
            assert [at for at, _ in by_range[b"purchases %d" % number]] == [sum(name >= bound for bound in "hq")]
        info = await client.stream("by-key")
        async for batch in client.read(info):
            here = int(batch.schema.metadata[PARTITION_KEY], 16)
            assert set(partitions_of(batch, info).to_pylist()) == {here}  # as whoever appends would place it


@needs_time
async def test_a_broker_that_takes_over_keeps_what_is_its_own(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "o.*", partitions=6, partition_by="token:2", replicas=3)
        place = KeyMap((6,)).partition_of(b"first")
        await client.append("orders", [{"subject": "o.first", "value": b"by socket"}], partition=place)
        with pytest.raises(RemoteError, match="belongs to partition"):
            await client.append("orders", [{"subject": "o.first", "value": b"v"}], partition=(place + 1) % 6)
        connection = await nats.connect(cluster.nats.url)
        acked: list[tuple[str, int]] = []
        try:
            js = connection.jetstream(timeout=0.5)
            for turn in range(240):
                if turn == 60:
                    cluster.brokers[3].kill()
                name, number = f"n{turn % 12}", turn // 12
                for _ in range(40):
                    try:
                        await js.publish(f"o.{name}", b"%d" % number, headers={"Nats-Msg-Id": f"{name}-{number}"})
                    except (nats.errors.Error, APIError):
                        continue
                    acked.append((name, number))
                    break
        finally:
            await connection.close()
        assert len(acked) == 240
        found: dict[str, list[int]] = defaultdict(list)
        partitions: dict[str, set[int]] = defaultdict(set)
        async for message in client.messages("orders"):
            if message.value != b"by socket":
                found[message.subject].append(int(message.value))
                partitions[message.subject].add(message.partition)
        assert all(values == list(range(20)) for values in found.values()), found  # in order, and once
        assert len(found) == 12
        assert all(len(one) == 1 for one in partitions.values())


async def test_chance_parts_what_a_group_shares(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("g-random", "g.in", partitions=3, partition_by="group")
    await client.create_stream("g-one", "g.in", group="workers")
    await client.create_stream("g-two", "g.*", group="workers")
    await client.create_stream("g-all", "g.>")
    connection = await nats.connect(broker.nats_url)
    acks: Counter[str] = Counter()
    try:
        inbox = connection.new_inbox()
        heard = await connection.subscribe(inbox)
        for number in range(200):
            await connection.publish("g.in", b"%d" % number, reply=inbox)
        for _ in range(600):
            message = await heard.next_msg(timeout=10)
            ack = json.loads(message.data)
            assert ack["seq"] == ack["offset"] + 1
            assert ack["partition"] < (3 if ack["stream"] == "g-random" else 1)
            acks[ack["stream"]] += 1
        for header in ("Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"):
            refused: Counter[str] = Counter()
            await connection.publish("g.in", b"x", reply=inbox, headers={header: "1"})
            for _ in range(3):
                body = json.loads((await heard.next_msg(timeout=10)).data)
                refused[body["stream"]] += "at random" in body.get("error", {}).get("description", "")
            assert refused["g-random"] == 1
            assert refused["g-one"] + refused["g-two"] == 1
            assert not refused["g-all"]
    finally:
        await connection.close()
    assert acks["g-random"] == acks["g-all"] == acks["g-one"] + acks["g-two"] == 200
    shared = {**await _placed(client, "g-one"), **await _placed(client, "g-two")}
    assert len(shared) == 200  # each in one of the two
    assert acks["g-one"] > 0 < acks["g-two"]
    assert {at for places in (await _placed(client, "g-random")).values() for at, _ in places} == {0, 1, 2}


@each_change
async def test_nats_server_parts_a_mapped_stream_by_tokens_and_any_other_by_chance(tmp_path: Path) -> None:
    by_token = StreamConfig(name="m", subject="m.*.in.*", partitions=4, partition_by="mapped")
    by_chance = StreamConfig(name="c", subject="c", partitions=3)
    config = "\n".join(mapping(one) for one in (by_token, by_chance)).replace("}\nmappings: {\n", "")
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
    ):
        async with await broker.client() as client:
            await client.create_stream("m", "m.*.in.*", partitions=4, partition_by="mapped")
            await client.create_stream("c", "c", partitions=3)
            assert [one.name for one in await client.streams_for("m.a.in.b.0")] == ["m"]
            assert [one.name for one in await client.streams_for("m.a.in.b")] == []
            connection = await nats.connect(server.url)
            try:
                js = connection.jetstream(timeout=10)
                for number in range(120):
                    assert (await js.publish(f"m.a.in.{number % 9}", b"%d" % (number % 9))).stream == "m"
                    assert (await js.publish("c", b"c")).stream == "c"
            finally:
                await connection.close()
            found = await _placed(client, "m")
            assert all(len({at for at, _ in places}) == 1 for places in found.values())  # a token keeps its partition
            assert len({at for places in found.values() for at, _ in places}) > 1
            assert {at for at, _ in (await _placed(client, "c"))[b"c"]} == {0, 1, 2}


@pytest.mark.parametrize(
    ("config", "mistake"),
    [
        ({"subject": "x.*", "partitions": 2}, "with wildcards"),
        ({"subject": "x.*", "partitions": 2, "partition_by": "token:1"}, "token 1 of 'x.\\*' is always 'x'"),
        ({"subject": "x.*", "partitions": 2, "partition_by": "token:3"}, "has no token 3"),
        ({"subject": "x", "partitions": 2, "partition_by": "key", "group": "g"}, "each partition has to see them all"),
        ({"subject": "x", "partitions": 3, "partition_by": "range", "range_bounds": ("a",)}, "1 are given"),
        ({"subject": "x", "partitions": 2, "range_bounds": ("a",)}, "only partition_by 'range'"),
        ({"subject": "x", "partitions": 3, "partition_by": "range", "range_bounds": ("a", "a")}, "the same key"),
        ({"subject": "x.>", "partitions": 2, "partition_by": "mapped"}, "nothing can follow"),
        ({"subject": "x", "group": "_penstock.1.1"}, "group: the name"),
    ],
)
async def test_what_cannot_be_parted_is_refused_with_the_reason(
    client: aio.Client, config: dict[str, object], mistake: str
) -> None:
    with pytest.raises(InvalidConfig, match=mistake):
        await client.create_stream("refused", **config)  # type: ignore[arg-type]
