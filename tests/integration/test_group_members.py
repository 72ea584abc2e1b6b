"""Consumers of one group share partitions: as they come and go, are killed or asleep, and as their coordinator is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.hot.keyhash import partition_of
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster

CHILD = """
import sys, penstock
with penstock.connect(sys.argv[1]) as client:
    with client.consumer("orders", "billing", follow=True, session=1.0, checkpoint_interval=0.05) as consumer:
        for message in consumer.messages():
            print(message.partition, message.offset, flush=True)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "data") as running:
        yield running


@contextmanager
def consuming(server: str) -> Iterator[subprocess.Popen[str]]:
    """A consumer in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, server],
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


class Reading:
    """A consumer in a task; what it was given."""

    def __init__(self, client: aio.Client, **options: object) -> None:
        self.seen: list[tuple[int, int]] = []
        self.consumer = client.consumer("orders", "billing", follow=True, session=2.0, **options)  # type: ignore[arg-type]
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.consumer as consumer:
            async for message in consumer.messages():
                self.seen.append((message.partition, message.offset))

    @property
    def partitions(self) -> set[int]:
        return set(self.consumer.positions)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def append(client: aio.Client, partitions: int, count: int) -> None:
    for number in range(partitions):
        subject = "orders" if number == 0 else f"orders.{number}"
        rows = [{"value": b"%d" % one, "subject": subject} for one in range(count)]
        await client.append("orders", rows, partition=number)


async def append_until_stored(client: aio.Client, number: int) -> None:
    """One message; perhaps twice, for its leader may have been killed as well."""
    subject = "orders" if number == 0 else f"orders.{number}"
    while True:
        with suppress(penstock.OutcomeUnknown, penstock.TimedOut):
            await client.append("orders", [{"value": b"x", "subject": subject}], partition=number, timeout=30.0)
            return


@each_change
async def test_partitions_are_shared_handed_over_and_taken_over(client: aio.Client) -> None:
    await client.create_stream("orders", "orders", partitions=4)
    one = Reading(client)

    async def has(reading: Reading, count: int) -> bool:
        if reading.task.done():
            reading.task.result()
        return len(reading.partitions) == count

    await eventually(lambda: has(one, 4), "all partitions with the only member")
    await append(client, 4, 5)
    other = Reading(client)
    await eventually(lambda: has(other, 2), "half of them with the second")
    await eventually(lambda: has(one, 2), "and half with the first")
    assert not one.partitions & other.partitions
    members = [at.member for at in await client.groups.offsets("billing", "orders")]
    assert None not in members
    assert {members[number] for number in one.partitions} != {members[number] for number in other.partitions}
    assert len(set(members)) == 2
    shown = await client.groups.members("billing", "orders")
    assert {one.member: set(one.partitions) for one in shown} == {
        members[min(reading.partitions)]: reading.partitions for reading in (one, other)
    }
    assert {one.client_name for one in shown} == {"test"}
    assert all(one.address.startswith("127.0.0.1:") and one.joined is not None for one in shown)
    await append(client, 4, 5)

    async def all_seen() -> bool:
        return len(one.seen) + len(other.seen) >= 40

    await eventually(all_seen, "every message with one of them")
    assert Counter(one.seen + other.seen) == dict.fromkeys([(part, at) for part in range(4) for at in range(10)], 1)
    await one.stop()
    await eventually(lambda: has(other, 4), "all with the one that is left")
    await append(client, 4, 1)

    async def more_seen() -> bool:
        return len(one.seen) + len(other.seen) >= 44

    await eventually(more_seen, "what comes then")
    await other.stop()
    left = await client.groups.offsets("billing", "orders")
    assert [(at.lag, at.member) for at in left] == [(0, None)] * 4
    assert len(set(one.seen + other.seen)) == 44


@needs_time
async def test_one_that_finds_nothing_to_do_ends_where_it_does_not_follow(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await append(client, 1, 3)
    one = Reading(client)

    async def has_all() -> bool:
        return len(one.seen) == 3

    await eventually(has_all, "all with the first")
    async with client.consumer("orders", "billing") as idle:
        assert [batch async for batch in idle] == []
        assert idle.positions == {}
    with pytest.raises(penstock.GroupInUse, match="group 'billing' has 1 member"):
        await client.groups.reset("billing", "orders", 0)
    with pytest.raises(penstock.GroupInUse, match="group 'billing' has 1 member: only they commit") as refused:
        await client.groups.reset("billing", "orders", 0, dry_run=True)
    assert refused.value.details["members"] == 1
    async with client.consumer("orders", "billing", partition=0) as alone:
        await anext(alone, None)
        with pytest.raises(penstock.GroupInUse):
            await alone.commit({0: 1})
        await one.stop()
        await alone.commit({0: 3})


@needs_time
async def test_one_that_does_not_follow_waits_for_what_a_killed_one_holds(
    broker: BrokerProcess, client: aio.Client
) -> None:
    """None of the partitions is its own until the session of the dead one is over: that is no end."""
    await client.create_stream("orders", "orders")
    await append(client, 1, 3)
    with consuming(broker.client_address) as child:
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)
        child.kill()
        child.wait()
        await append(client, 1, 2)
        async with client.consumer("orders", "billing", session=2.0) as heir:
            seen = [message.offset async for message in heir.messages()]
    assert seen[-2:] == [3, 4]
    assert [at.lag for at in await client.groups.offsets("billing", "orders")] == [0]


@each_change
async def test_one_that_does_not_follow_ends_where_a_live_one_keeps_all(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    async with client.consumer("orders", "billing", session=1.0) as owner:
        assert owner.positions == {0: 0}
        await append(client, 1, 3)
        async with client.consumer("orders", "billing", session=0.5) as idle, asyncio.timeout(10):
            assert [batch async for batch in idle] == []
            assert idle.positions == {}


@needs_time
async def test_a_killed_consumer_is_followed_by_another_one(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("orders", "orders", partitions=2)
    await append(client, 2, 3)
    with consuming(broker.client_address) as child:
        assert child.stdout is not None
        lines = {await asyncio.to_thread(child.stdout.readline) for _ in range(6)}
        assert len(lines) == 6
        child.kill()
        one = Reading(client)

        async def has_both() -> bool:
            return one.partitions == {0, 1}

        await eventually(has_both, "both partitions with the one that is left")
    await append(client, 2, 1)

    async def has_new() -> bool:
        return {(0, 3), (1, 3)} <= set(one.seen)

    await eventually(has_new, "what came since")
    await one.stop()


@needs_time
async def test_a_consumer_that_slept_for_longer_than_its_session_takes_nothing_back(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("orders", "orders")
    await append(client, 1, 3)
    with consuming(broker.client_address) as child:
        assert child.stdout is not None
        for _ in range(3):
            await asyncio.to_thread(child.stdout.readline)
        child.send_signal(signal.SIGSTOP)
        one = Reading(client)

        async def has_it() -> bool:
            return one.partitions == {0}

        await eventually(has_it, "the partition with the one that is awake")
        await append(client, 1, 5)

        async def has_all() -> bool:
            return (0, 7) in one.seen

        await eventually(has_all, "all messages with it")
        await one.consumer.commit()
        child.send_signal(signal.SIGCONT)

        async def are_two() -> bool:
            answer = await client.groups.all()
            return [found.members for found in answer] == [2]

        await eventually(are_two, "the one that slept is a member again, as another")
        (at,) = await client.groups.offsets("billing", "orders")
        assert at.offset == 8
        await one.stop()


@needs_time
async def test_members_go_on_when_their_coordinator_is_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders", partitions=4, replicas=3)
            await append(client, 4, 5)
            readings = [Reading(client, timeout=30.0) for _ in range(2)]

            async def are_shared() -> bool:
                for reading in readings:
                    if reading.task.done():
                        reading.task.result()
                return [len(reading.partitions) for reading in readings] == [2, 2]

            await eventually(are_shared, "the partitions are shared")
            kept = await client.stream("__offsets")
            leader = kept.partitions[partition_of(b"billing", len(kept.partitions))].leader_id
            assert leader is not None
            cluster.brokers[leader].kill()
            await eventually(are_shared, "and so they are again")
            for number in range(4):
                await append_until_stored(client, number)

            async def all_seen() -> bool:
                seen = {one for reading in readings for one in reading.seen}
                return seen >= {(part, at) for part in range(4) for at in range(6)}

            await eventually(all_seen, "every message with one of them, through the failover")
            for reading in readings:
                await reading.stop()
            found = await client.groups.offsets("billing", "orders", timeout=20.0)
            assert [at.lag for at in found] == [0, 0, 0, 0]


@needs_time
async def test_a_consumer_that_is_cancelled_while_partitions_change_hands_goes_on(broker: BrokerProcess) -> None:
    """Whoever waits for the next message for a short time only cancels it anywhere."""
    async with await broker.client() as client, asyncio.timeout(60):
        await client.create_stream("orders", "orders", partitions=4)
        async with client.consumer("orders", "billing", follow=True) as first:
            assert len(first.positions) == 4
            second = client.consumer("orders", "billing", follow=True)
            joining = asyncio.create_task(second.open())
            turns = 0
            while len(second.positions) < 2:
                turns += 1
                for one in (first, second):
                    if one is second and not joining.done():
                        continue
                    waiting = asyncio.create_task(one.take())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
            await append(client, 4, 1)
            for one in (first, second):
                seen = set()
                async for message in one.messages():
                    seen.add(message.partition)
                    if len(seen) == 2:
                        break
            await second.close()
