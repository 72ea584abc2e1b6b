"""Three real brokers: what is acked stays, whoever is killed, stopped or loses his disk.

Rules: times without acks are measured and bounded loosely, because other work may slow the machine down.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from penstock.broker.serve import END_TIMEOUT_S
from tests.broker_process import eventually, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, check, load
from tests.integration.publishers import connected_to

KILL_SILENCE_S_MAX = 4.0
KILL_METADATA_LEADER_SILENCE_S_MAX = 7.0
STOP_SILENCE_S_MAX = 1.5  # half a session: a leader that hands over is not waited for
HANG_SILENCE_S_MAX = 7.0
HANG_CREATE_S_MAX = 8.0

WHICH_LEADER = pytest.mark.parametrize(
    "is_metadata_leader",
    [pytest.param(False, id="leader"), pytest.param(True, id="leader and metadata leader", marks=needs_time)],
)


async def stream_led_by(cluster: ClusterProcesses, is_metadata_leader: bool) -> str:
    """A stream whose leader is, or is not, the metadata leader too."""
    metadata_leader = await cluster.metadata_leader()
    async with cluster.client(1) as client:
        for number in range(12):
            name = f"orders{number}"
            await client.create_stream(name, f"{name}.>", replicas=3)
            if (await cluster.leader_of(name) == metadata_leader) is is_metadata_leader:
                return name
    raise AssertionError("leaders are not spread over the brokers")


def another(cluster: ClusterProcesses, *not_these: int) -> int:
    """A broker that is none of these."""
    return next(number for number in cluster.brokers if number not in not_these)


@needs_time
async def test_a_stream_made_at_any_broker_is_published_to_and_read_at_each(cluster: ClusterProcesses) -> None:
    for number in (1, 2, 3):
        name = f"orders{number}"
        async with cluster.client(number) as client:
            info = await client.create_stream(name, f"{name}.>", replicas=3)
            assert set(info.partitions[0].isr) == {1, 2, 3}
            async with connected_to(cluster.nats.url) as connection:
                ack = await connection.jetstream().publish(f"{name}.a", b"0")
                assert (ack.stream, ack.seq) == (name, 1)
                reply = await connection.request(f"{name}.a", b"1")
            assert json.loads(reply.data)["replicas"] >= 2
            values = [message.value async for message in client.messages(name)]
            assert values == [b"0", b"1"]
            clients = (await client.status()).connections
            assert clients == 1, "brokers are no clients"


@needs_time
async def test_a_broker_is_ready_when_it_has_its_part_in_the_cluster(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        first, second = cluster.brokers[1], cluster.brokers[2]
        try:
            first.launch()
            first.logged(r"not ready yet: waiting for a majority: 1 of 3 voters reachable")
            state = await cluster.status(1)
            assert state is not None
            assert state.waits_for == "waiting for a majority: 1 of 3 voters reachable"
            assert first.stdout is not None
            first.stdout.wait_for("^cluster id=1 voters=1@")
            assert "ready" not in first.stdout.text
            second.launch()
            for broker in (first, second):
                assert broker.stdout is not None
                broker.stdout.wait_for("^ready client=")
            first.logged("ready: this broker is registered in the cluster")

            async def knows_both() -> bool:
                # What the second has heard when it says so, the first hears a moment later, behind a save of its own.
                state = await cluster.status(1)
                live = set() if state is None else {one.broker_id for one in state.brokers if one.is_live}
                return state is not None and not state.waits_for and {1, 2} <= live

            await eventually(knows_both, "broker 1 has its part, and knows of both")
            assert [second.stop(), first.stop()] == [0, 0]
        finally:
            print(cluster.said)
            cluster.end()


@needs_time
async def test_the_last_of_three_stops_in_good_order_though_nobody_leads_the_metadata(
    cluster: ClusterProcesses,
) -> None:
    for number in (1, 2):
        cluster.brokers[number].kill()

    async def nobody_leads() -> bool:
        state = await cluster.status(3)
        return state is not None and state.metadata_leader is None

    await eventually(nobody_leads, "nobody leads the metadata")
    assert cluster.brokers[3].stop(END_TIMEOUT_S) == 0


@each_change
async def test_a_broker_that_waits_for_others_stops_when_it_is_told_to(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        try:
            cluster.brokers[1].launch()
            cluster.brokers[1].logged("not ready yet")
            assert cluster.brokers[1].stop(5.0) == 0
        finally:
            cluster.end()


@each_change
@WHICH_LEADER
async def test_a_killed_leader_is_replaced_and_comes_back(cluster: ClusterProcesses, is_metadata_leader: bool) -> None:
    name = await stream_led_by(cluster, is_metadata_leader)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(200)
        killed_s = time.monotonic()
        cluster.brokers[victim].kill()
        await publishers.acks(200)
        silence_s = publishers.longest_silence_s(killed_s)
        print(f"no ack for {silence_s:.3f} s after kill -9 of the leader")
        assert silence_s < (KILL_METADATA_LEADER_SILENCE_S_MAX if is_metadata_leader else KILL_SILENCE_S_MAX)
        assert await cluster.leader_of(name, other) != victim
        cluster.brokers[other].logged(f"WARNING broker {victim} is away")
        cluster.brokers[victim].launch()
        await cluster.in_sync(name, {1, 2, 3}, other)
        cluster.brokers[other].logged(f"INFO +broker {victim} is there")
        await publishers.acks(100)
    async with cluster.client(victim) as client:
        assert await check(client, name, publishers) >= 500


@needs_time
@WHICH_LEADER
async def test_a_leader_that_hangs_is_replaced_and_streams_are_made_meanwhile(
    cluster: ClusterProcesses, is_metadata_leader: bool
) -> None:
    name = await stream_led_by(cluster, is_metadata_leader)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(200)
        hung_s = time.monotonic()
        cluster.brokers[victim].signal(signal.SIGSTOP)  # its connections stay
        async with cluster.client(other) as client:
            await client.create_stream("meanwhile", "meanwhile", replicas=2, timeout=HANG_CREATE_S_MAX)
        print(f"a stream was made {time.monotonic() - hung_s:.3f} s after SIGSTOP")
        await publishers.acks(200)
        silence_s = publishers.longest_silence_s(hung_s)
        print(f"no ack for {silence_s:.3f} s after SIGSTOP of the leader")
        assert silence_s < HANG_SILENCE_S_MAX
        assert await cluster.leader_of(name, other) != victim
        cluster.brokers[victim].signal(signal.SIGCONT)
        await cluster.in_sync(name, {1, 2, 3}, other)
        await publishers.acks(100)
    async with cluster.client(victim) as client:
        assert await check(client, name, publishers) >= 500


@needs_time
@WHICH_LEADER
async def test_a_leader_that_is_told_to_stop_hands_over_at_once(
    cluster: ClusterProcesses, is_metadata_leader: bool
) -> None:
    name = await stream_led_by(cluster, is_metadata_leader)
    for _ in range(2):
        leader = await cluster.leader_of(name, await cluster.metadata_leader())
        async with load(cluster.nats.url, f"{name}.a") as publishers:
            await publishers.acks(200)
            stopped_s = time.monotonic()
            cluster.brokers[leader].signal(signal.SIGTERM)
            await publishers.acks(500)
            assert await asyncio.to_thread(cluster.brokers[leader].wait) == 0
            silence_s = publishers.longest_silence_s(stopped_s)
            print(f"no ack for {silence_s:.3f} s after SIGTERM; failed: {dict(publishers.failed)}")
            assert silence_s < STOP_SILENCE_S_MAX
        cluster.brokers[leader].launch()
        await cluster.in_sync(name, {1, 2, 3}, another(cluster, leader))


@needs_time
async def test_a_metadata_leader_that_is_told_to_stop_is_not_missed_by_other_leaders(cluster: ClusterProcesses) -> None:
    name = await stream_led_by(cluster, is_metadata_leader=False)
    victim = await cluster.metadata_leader()
    leader = await cluster.leader_of(name, victim)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(200)
        stopped_s = time.monotonic()
        cluster.brokers[victim].signal(signal.SIGTERM)
        await publishers.acks(500)
        assert await asyncio.to_thread(cluster.brokers[victim].wait) == 0
        silence_s = publishers.longest_silence_s(stopped_s)
        print(f"no ack for {silence_s:.3f} s after SIGTERM of a follower; failed: {dict(publishers.failed)}")
        assert silence_s < STOP_SILENCE_S_MAX
        assert not publishers.failed
    assert await cluster.leader_of(name, leader) == leader


@needs_time
async def test_a_broker_with_an_empty_disk_is_taken_in_again(cluster: ClusterProcesses) -> None:
    name = await stream_led_by(cluster, is_metadata_leader=False)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(200)
        cluster.brokers[victim].kill()
        cluster.empty_disk(victim)
        cluster.brokers[victim].launch()
        await publishers.acks(200)
        await cluster.in_sync(name, {1, 2, 3}, other, 30.0)
        await cluster.all_vote()  # so the cluster can lose another one
        cluster.brokers[other].kill()
        await publishers.acks(200)
    async with cluster.client(victim) as client:
        await check(client, name, publishers)


@needs_time
async def test_most_voters_with_empty_disks_form_no_second_cluster(cluster: ClusterProcesses, tmp_path: Path) -> None:
    name = await stream_led_by(cluster, is_metadata_leader=False)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(100)
    for broker in cluster.brokers.values():
        broker.kill()
    kept = tmp_path / "kept"
    cluster.brokers[1].data_dir.rename(kept)
    cluster.empty_disk(3)
    for number in (2, 1, 3):
        cluster.brokers[number].launch()
    for number in (1, 3):
        cluster.brokers[number].logged(r"not ready yet: broker 2 belongs to cluster \S+ already")
    cluster.brokers[1].kill()
    cluster.empty_disk(1)
    kept.rename(cluster.brokers[1].data_dir)
    cluster.brokers[1].launch()
    await cluster.all_live()
    await cluster.in_sync(name, {1, 2, 3}, 2, 30.0)
    assert cluster.brokers[2].is_running
    async with cluster.client(3) as client:
        await check(client, name, publishers)


@needs_time
async def test_a_fourth_broker_joins_and_holds_what_is_made_then(cluster: ClusterProcesses) -> None:
    cluster.launch_joining(4, member=2)
    state = await cluster.all_live()
    assert [one.broker_id for one in state.brokers] == [1, 2, 3, 4]
    async with cluster.client(4) as client:
        await client.create_stream("orders", "orders.>", replicas=4)
        async with load(cluster.nats.url, "orders.a") as publishers:
            await publishers.acks(100)
        await check(client, "orders", publishers)
    # It knows its cluster, and needs nobody's address any more.
    broker = cluster.brokers[4]
    broker.kill()
    broker.launch()

    async def follows() -> bool:
        part = await cluster.partition("orders", 4)
        return part is not None and set(part.isr) == {1, 2, 3, 4}

    await eventually(follows, "broker 4 is in sync again")


@needs_time
async def test_a_whole_cluster_that_is_killed_or_moved_goes_on_where_it_was(cluster: ClusterProcesses) -> None:
    name = await stream_led_by(cluster, is_metadata_leader=False)
    async with load(cluster.nats.url, f"{name}.a") as publishers:
        await publishers.acks(200)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start()
        await publishers.acks(200)
        await cluster.in_sync(name, {1, 2, 3}, 1)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.place(3)
        cluster.start()
        await publishers.acks(200)
    await cluster.all_live()
    for number in (1, 2, 3):
        async with cluster.client(number) as client:
            await check(client, name, publishers)
