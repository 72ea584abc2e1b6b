"""Streams with several subjects, with a real nats-server: order, changes of the subjects, refusals and failover."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import nats
import nats.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from penstock import InvalidConfig, InvalidSchema, RemoteError, aio
from penstock.base.errors import ErrorCode
from penstock.schemas.kinds import Schema, SchemaKind
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_process import command
from tests.extent import code_seed, each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[NatsClient]:
    connection = await nats.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _stored(client: aio.Client, stream: str) -> list[tuple[str, bytes]]:
    return [(message.subject, message.value or b"") async for message in client.messages(stream)]


async def _is_acked(connection: NatsClient, subject: str, value: bytes) -> bool:
    """True if something acks; False for `no responders`."""
    try:
        await connection.request(subject, value, timeout=10)
    except nats.errors.NoRespondersError:
        return False
    return True


@each_change
async def test_what_a_publisher_sends_on_several_subjects_keeps_its_order(
    broker: BrokerProcess, client: aio.Client
) -> None:
    subjects = ["order.a", "order.b.*", "order.c.>"]
    info = await client.create_stream("order", subjects)
    assert info.subjects == tuple(subjects)
    assert info.subject == "order.a"
    plain = ["order.a", "order.b.x", "order.c.x.y"]
    async with _connected(broker.nats_url) as connection:
        sent = [(plain[number * number % 7 % 3], b"%d" % number) for number in range(5_000)]
        for subject, value in sent:
            await connection.publish(subject, value)
        await connection.flush()
        assert await _is_acked(connection, "order.a", b"last")
    assert await _stored(client, "order") == [*sent, ("order.a", b"last")]


@each_change
async def test_an_added_subject_is_stored_from_the_answer_on_and_a_removed_one_is_not(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("changing", "changing.a")
    async with _connected(broker.nats_url) as connection:
        assert not await _is_acked(connection, "changing.b", b"too early")
        info = await client.alter_stream("changing", add_subjects="changing.b")
        assert info.subjects == ("changing.a", "changing.b")
        assert await _is_acked(connection, "changing.b", b"1")
        assert [one.name for one in await client.streams_for("changing.b")] == ["changing"]
        info = await client.alter_stream("changing", add_subjects=["changing.c"], remove_subjects=["changing.a"])
        assert (info.subject, info.subjects) == ("changing.b", ("changing.b", "changing.c"))
        assert not await _is_acked(connection, "changing.a", b"too late")
        assert await _is_acked(connection, "changing.c", b"2")
        assert await client.streams_for("changing.a") == []
        with pytest.raises(InvalidConfig, match=r"'changing.b' is its last one"):
            await client.alter_stream("changing", remove_subjects=["changing.b", "changing.c"])
    assert [value for _, value in await _stored(client, "changing")] == [b"1", b"2"]


@each_change
async def test_a_refused_subject_is_named_and_the_others_are_stored(tmp_path: Path) -> None:
    config = 'authorization { users = [{user: u, password: p, permissions: {subscribe: {deny: "secret.>"}}}] }'
    with running_nats(tmp_path / "nats", config) as server:
        url = server.url.replace("nats://", "nats://u:p@")
        with running_broker(tmp_path / "data", nats=url) as broker:
            async with await broker.client() as client, _connected(url) as connection:
                with pytest.raises(RemoteError, match=r"'secret.x'.*the stream was not created"):
                    await client.create_stream("both", ["open.*", "secret.x"])
                await client.create_stream("both", "open.*")
                with pytest.raises(RemoteError, match=r"NATS refuses the subscription to 'secret.x'") as refused:
                    await client.alter_stream("both", add_subjects="secret.x")
                assert refused.value.code == ErrorCode.NATS_REFUSED
                assert await _is_acked(connection, "open.1", b"v")
                (part,) = (await client.stream("both")).partitions
                assert "'secret.x'" in part.state_reason
                assert part.gaps[-1].end_us is None
                assert "'secret.x'" in part.gaps[-1].reason
                info = await client.alter_stream("both", remove_subjects="secret.x")
                assert info.partitions[0].gaps[-1].end_us is not None
                assert info.partitions[0].state == "online"


@pytest.mark.parametrize("how", ["key", "token:2", "range", "group"])
@each_change
async def test_each_partition_takes_its_messages_of_all_subjects_in_their_order(
    broker: BrokerProcess, client: aio.Client, how: str
) -> None:
    name = how.partition(":")[0]
    config: dict[str, Any] = {"partitions": 3, "partition_by": how, "dedup_window_ms": None}
    if how == "range":
        config["range_bounds"] = ("k3", "k6")
    await client.create_stream(f"by-{name}", [f"{name}-a.*", f"{name}-b.*"], **config)
    await client.alter_stream(f"by-{name}", add_subjects=f"{name}-c.*")
    random = Random(code_seed())
    async with _connected(broker.nats_url) as connection:
        for number in range(2_000):
            key = f"k{random.randrange(9)}"
            subject = f"{name}-{random.choice('abc')}.{key}"
            await connection.publish(subject, b"%d" % number, headers={"Penstock-Key": key})
        await connection.flush()
        expected = {"Nats-Expected-Stream": f"by-{name}"}
        last = await connection.request(f"{name}-c.k0", b"last", timeout=10, headers=expected)
        assert json.loads(last.data)["stream"] == f"by-{name}"
    found: dict[int, list[int]] = {}

    async def are_stored() -> bool:  # the answer to the last one says nothing of the other partitions
        found.clear()
        async for message in client.messages(f"by-{name}"):
            if message.value != b"last":
                found.setdefault(message.partition, []).append(int(message.value or b""))
        return sum(map(len, found.values())) >= 2_000

    await eventually(are_stored, "all are stored")
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(2_000))
    assert len(found) == 3
    assert all(numbers == sorted(numbers) for numbers in found.values())


@pytest.mark.parametrize("how", ["publisher", "mapped"])
@each_change
async def test_where_partitions_have_subjects_of_their_own_there_is_one(client: aio.Client, how: str) -> None:
    with pytest.raises(InvalidConfig, match=r"subject: .* so the stream has one subject; choose 'key'"):
        await client.create_stream("own", ["own.a", "own.b"], partitions=2, partition_by=how)
    await client.create_stream(f"own-{how}", f"own-{how}.a", partitions=2, partition_by=how)
    with pytest.raises(InvalidConfig, match="subject: "):
        await client.alter_stream(f"own-{how}", add_subjects=f"own-{how}.b")


@each_change
async def test_streams_of_a_group_share_the_messages_of_all_their_subjects(
    broker: BrokerProcess, client: aio.Client
) -> None:
    for number in range(2):
        await client.create_stream(f"sharing{number}", ["share.a", "share.b"], group="sharing")
    async with _connected(broker.nats_url) as connection:
        for number in range(200):
            assert await _is_acked(connection, f"share.{'ab'[number % 2]}", b"%d" % number)
    found = [await _stored(client, f"sharing{number}") for number in range(2)]
    assert sorted(int(value) for _, value in found[0] + found[1]) == list(range(200))
    assert all({subject for subject, _ in one} == {"share.a", "share.b"} for one in found)


@each_change
async def test_rows_are_appended_and_staged_on_each_subject_and_on_no_other(client: aio.Client) -> None:
    await client.create_stream("rows", ["rows.a", "rows.b.*"])
    await client.append("rows", [{"subject": "rows.b.1", "value": b"1"}])
    await client.append("rows", [{"value": b"on the first"}])
    with pytest.raises(RemoteError, match=r"is on 'rows.a', 'rows.b.\*'"):
        await client.append("rows", [{"subject": "rows.c", "value": b"x"}])
    staged = await client.staging.stage("rows", [{"subject": "rows.b.2", "value": b"2"}])
    done = await client.staging.publish("rows", [staged], query_id=uuid4(), batch_id=0)
    assert done.end_offset == 3
    assert await _stored(client, "rows") == [("rows.b.1", b"1"), ("rows.a", b"on the first"), ("rows.b.2", b"2")]


@each_change
async def test_a_schema_is_registered_for_each_subject(client: aio.Client) -> None:
    await client.create_stream("typed", ["typed.a", "typed.b.*"])
    schema = Schema(SchemaKind.AVRO, '{"type": "record", "name": "one", "fields": [{"name": "n", "type": "int"}]}')
    assert (await client.register_schema("typed", schema)).typed.subject == "typed.a"
    assert [one.typed.subject for one in (await client.schemas("typed")).versions] == ["typed.a", "typed.b.*"]
    with pytest.raises(InvalidSchema, match=r"stores 'typed.a', 'typed.b.\*', which 'other' does not match"):
        await client.register_schema("typed", schema, subject="other")


@each_change
async def test_a_copy_and_a_restored_backup_have_all_subjects_and_messages_of_former_ones(
    broker: BrokerProcess, client: aio.Client, tmp_path: Path
) -> None:
    await client.create_stream("kept", ["kept.a", "kept.b"], description="d", metadata={"team": "shop"})
    await client.append("kept", [{"subject": f"kept.{one}", "value": one} for one in "ab"])
    await client.alter_stream("kept", add_subjects="kept.c", remove_subjects="kept.b")
    expected = await _stored(client, "kept")
    at = broker.client_address
    await command(at, "stream", "copy", "kept", "copied")
    await command(at, "backup", str(tmp_path / "backup"), "--stream", "kept")
    await command(at, "restore", str(tmp_path / "backup"), "--stream", "kept", "--as", "restored")
    for name in ("copied", "restored"):
        info = await client.stream(name)
        assert info.subjects == ("kept.a", "kept.c")
        assert (info.config.description, info.config.metadata) == ("d", {"team": "shop"})
        assert await _stored(client, name) == expected


@needs_time
async def test_order_holds_through_kills_of_leaders_and_changes_of_the_subjects(cluster: ClusterProcesses) -> None:
    """A publisher that waits for nothing: of its messages some are lost with a leader, and none passes another."""
    subjects = ["hard.a", "hard.b", "hard.c"]
    random = Random(code_seed())
    async with cluster.client(1) as client:
        await client.create_stream("hard", subjects, dedup_window_ms=None, replicas=3)
        acked: set[int] = set()
        sent = 0
        async with connected_to(cluster.nats.url) as connection:
            inbox = connection.new_inbox()

            async def heard(message: Msg) -> None:
                if b'"error"' not in message.data and message.data:
                    acked.add(int(message.subject.rpartition(".")[2]))

            await connection.subscribe(f"{inbox}.*", cb=heard)

            async def publish(until: Callable[[], bool]) -> None:
                nonlocal sent
                while not until():
                    for _ in range(1 + random.randrange(40)):
                        subject = random.choice([*subjects, "hard.d"])
                        await connection.publish(subject, b"%d" % sent, reply=f"{inbox}.{sent}")
                        sent += 1
                    await connection.flush()

            for number in range(3):
                changed = asyncio.create_task(
                    client.alter_stream("hard", add_subjects="hard.d")
                    if number % 2 == 0
                    else client.alter_stream("hard", remove_subjects="hard.d")
                )
                await publish(changed.done)
                await changed
                leader = await cluster.leader_of("hard", 1)
                cluster.brokers[leader].kill()
                before = len(acked)
                await publish(lambda before=before: len(acked) > before + 500)  # type: ignore[misc]
                cluster.brokers[leader].launch()
                await cluster.all_live()
        found = [int(value) for _, value in await _stored(client, "hard")]
    assert found == sorted(set(found))
    assert acked <= set(found)
