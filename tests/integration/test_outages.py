"""When NATS goes away, when the disk is slow, when the broker is: nothing acked is lost, nobody is left to guess."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from nats.js.api import PubAck
from nats.js.errors import APIError

from penstock import aio
from penstock.base.errors import CorruptionError
from penstock.messages import GapInfo
from penstock.node.replicas.listened_file import read_listened
from penstock.vfs.real import RealVfs
from tests.broker_process import BrokerProcess, NatsProcess, eventually, running_broker, running_nats
from tests.extent import needs_time
from tests.integration.publishers import Publisher, check_nothing_acked_is_lost, connected_to, publishers

CHILD = str(Path(__file__).parent / "child")


def _now_us() -> int:
    return time.time_ns() // 1_000


async def _connected(broker: BrokerProcess) -> None:
    async with await broker.client() as client:

        async def is_up() -> bool:
            info = await client.status()
            return info.nats.state == "connected" and info.partitions_by_state.get("starting", 0) == 0

        await eventually(is_up, "the broker is connected and subscribed again")


async def _gaps(client: aio.Client, stream: str) -> list[GapInfo]:
    """The broker's gaps, which must be the stream's as well."""
    before = (await client.status()).nats.gaps
    while True:
        info = await client.stream(stream)
        after = (await client.status()).nats.gaps
        if after == before:  # else one has begun or ended between the answers
            assert info.partitions[0].gaps == after
            return list(after)
        before = after


@needs_time
async def test_nats_is_killed_under_load_and_the_gap_is_told(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("outage", "outage.*")
                async with publishers(nats_server.url, "outage", 2, window=100, padding=b"y" * 100) as senders:
                    for number in range(3):
                        await _one_outage(broker, nats_server, client, senders, number)
                    await check_nothing_acked_is_lost(client, "outage", senders)
                gaps = await _gaps(client, "outage")
            assert len(gaps) == 3
            assert broker.stop() == 0, broker.said
            broker.start()
            await _connected(broker)
            async with await broker.client() as client:
                after = await _gaps(client, "outage")
                assert after[:3] == gaps
                assert after[3].reason == "the broker was stopped"
                assert after[3].end_us is not None

                async def is_saved() -> bool:
                    return (broker.data_dir / "gaps.jsonl").read_text().count('"end_us":null') == 0

                await eventually(is_saved, "the end of the gap is on the disk")
                broker.kill()
            broker.start()
            await _connected(broker)
            async with await broker.client() as client:
                (*_, last) = await _gaps(client, "outage")
                assert last.reason == "the broker stopped without saying so"
                assert last.end_us is not None
                assert last.start_us >= (after[2].end_us or 0)


@needs_time  # NATS is asked every five seconds whether it is there
async def test_a_kill_of_an_idle_broker_is_told_from_when_it_listened_last(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("idle", "idle.*")
        created_us = _now_us()

        async def is_noted() -> bool:
            with suppress(CorruptionError):  # read while it was written
                return read_listened(RealVfs(broker.data_dir), _now_us()).broker_us > created_us + 1_000_000
            return False

        await eventually(is_noted, "it has noted that NATS was there", timeout_s=60)
        noted_us = read_listened(RealVfs(broker.data_dir), _now_us()).broker_us
        broker.kill()
        killed_us = _now_us()
        broker.start()
        await _connected(broker)
        async with await broker.client() as client:
            (*_, gap) = await _gaps(client, "idle")
        assert gap.end_us is not None
        assert noted_us <= gap.start_us <= killed_us < gap.end_us


async def _one_outage(
    broker: BrokerProcess, nats_server: NatsProcess, client: aio.Client, senders: list[Publisher], number: int
) -> None:
    stop = asyncio.Event()
    acked = sum(sender.acked_count for sender in senders)
    tasks = [asyncio.create_task(sender.publish_until(stop)) for sender in senders]

    async def more() -> bool:
        return sum(sender.acked_count for sender in senders) >= acked + 500

    await eventually(more, "messages are acked")
    before_us = _now_us()
    nats_server.kill()

    async def noticed() -> bool:
        return (await client.status()).nats.state == "connecting"

    await eventually(noticed, "the broker knows that NATS is gone")
    noticed_us = _now_us()
    info = await client.stream("outage")
    assert info.partitions[0].state == "starting"
    assert "NATS" in info.partitions[0].state_reason
    open_gap = (await _gaps(client, "outage"))[-1]
    assert open_gap.end_us is None
    assert open_gap.start_us <= before_us
    reading = [message async for message in client.messages("outage", end=10)]
    assert len(reading) == 10  # reads work meanwhile
    stop.set()
    for sender in senders:
        sender.forget_unacked()
    await asyncio.gather(*tasks)
    nats_server.start()
    await _connected(broker)
    gaps = await _gaps(client, "outage")
    assert len(gaps) == number + 1
    assert gaps[-1].start_us == open_gap.start_us
    assert gaps[-1].end_us is not None
    assert noticed_us <= gaps[-1].end_us <= _now_us()
    assert (await client.status()).nats.reconnects == number + 1
    broker.logged(r"not subscribed for at most \d+\.\d+ s")


async def test_a_stopped_broker_is_cut_off_as_a_slow_consumer_and_says_so(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", 'max_pending: 1MB\nwrite_deadline: "1s"\n') as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client, AsyncExitStack() as stack:
                await client.create_stream("slow", "slow")
                publisher = await stack.enter_async_context(connected_to(nats_server.url))
                ack = await publisher.jetstream().publish("slow", b"before")
                assert ack.seq == 1
                broker.signal(signal.SIGSTOP)
                assert nats_server.stderr is not None

                cut_off = asyncio.create_task(asyncio.to_thread(nats_server.stderr.wait_for, "Slow Consumer"))
                while not cut_off.done():
                    await publisher.publish("slow", bytes(500_000))
                    await publisher.flush()
                await cut_off
                broker.signal(signal.SIGCONT)

                async def gap() -> GapInfo | None:
                    return next((gap for gap in await _gaps(client, "slow") if gap.end_us is not None), None)

                found = await eventually(gap, "the gap is recorded with its end")
                assert found is not None
                assert "slow consumer" in found.reason.lower(), found
                ack = await eventually(lambda: publisher.jetstream().publish("slow", b"after"), "publishing goes on")
                assert (await client.get("slow", ack.seq - 1)).value == b"after"


@contextmanager
def _slow_disk(gate: Path) -> Iterator[None]:
    """While this is open, no sync of the broker comes back."""
    descriptor = os.open(gate, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@needs_time
async def test_a_disk_that_does_not_keep_up_refuses_and_pauses_but_does_not_lose(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    environment = {"PYTHONPATH": CHILD, "TEST_SYNC_GATE": str(gate)}
    budgets = ("--partition-in-flight-bytes", "1MiB", "--broker-in-flight-bytes", "3MiB")
    with running_broker(tmp_path / "data", *budgets, environment=environment) as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            for number in range(4):
                await client.create_stream(f"full{number}", f"full.{number}")
            await client.create_stream("quick", "quick", durability="os")
            js = connection.jetstream()
            with _slow_disk(gate):

                def publish(number: int, size_bytes: int, count: int) -> list[asyncio.Task[PubAck]]:
                    # Not publish_async: nats-py's never tells of an error.
                    value = bytes(size_bytes)
                    return [asyncio.create_task(js.publish(f"full.{number}", value, timeout=30)) for _ in range(count)]

                tasks = publish(0, 100_000, 40)
                # One stream over its budget refuses; the others do not feel it.
                with pytest.raises(APIError) as error:
                    await asyncio.wait_for(asyncio.shield(tasks[-1]), 10)
                assert (error.value.code, error.value.err_code) == (503, 10008)
                assert (await js.publish("quick", b"")).seq == 1
                status = await client.status()
                assert not status.nats.reading_paused
                assert 1 << 20 < status.in_flight_bytes < 3 << 20  # by what one read of the socket brings, at most
                dropped = (await client.stream("full0")).partitions[0].dropped
                assert dropped["over_budget"] >= 5
                # All together over theirs: the broker stops reading, and grows no further.
                for number in (1, 2, 3):
                    tasks += publish(number, 100_000, 12)

                async def is_paused() -> bool:
                    return (await client.status()).nats.reading_paused

                await eventually(is_paused, "reading is paused")
                memory_bytes = broker.memory_bytes()
                tasks += publish(3, 500_000, 200)
                await connection.flush(timeout=20)
                assert await is_paused()
                assert broker.memory_bytes() < memory_bytes + (16 << 20)
            outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
            acked = [ack for ack in outcomes if not isinstance(ack, BaseException)]
            refused = [error for error in outcomes if isinstance(error, APIError)]
            assert {error.err_code for error in refused} == {10008}
            assert len(acked) + len(refused) == len(tasks)
            stored = {info.name: info.partitions[0].committed_end or 0 for info in await client.streams()}
            assert sum(stored.values()) - stored["quick"] == len(acked)
            status = await client.status()
            assert not status.nats.reading_paused
            assert status.nats.reconnects == 0
            assert status.in_flight_bytes == 0
            ack = await js.publish("full.3", b"room again")
            assert (await client.get("full3", ack.seq - 1)).value == b"room again"


@needs_time
async def test_a_sync_that_fails_fences_the_stream_until_a_restart(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    environment = {"PYTHONPATH": CHILD, "TEST_SYNC_FAILS": str(fails)}
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url, environment=environment) as broker:
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                js = connection.jetstream()
                await client.create_stream("fenced", "fenced")
                for number in range(10):
                    await js.publish("fenced", b"%d" % number)
                fails.touch()
                for _ in range(2):
                    with pytest.raises(APIError) as error:
                        await js.publish("fenced", b"not on the disk")
                    assert (error.value.code, error.value.err_code) == (503, 10077)
                fails.unlink()
                with pytest.raises(APIError) as error:  # not retried as if it had worked
                    await js.publish("fenced", b"not on the disk")
                assert error.value.err_code == 10077
                info = (await client.stream("fenced")).partitions[0]
                assert info.state == "fenced"
                assert "restart" in info.state_reason
                assert [message.value async for message in client.messages("fenced")] == [
                    b"%d" % number for number in range(10)
                ]
            broker.restart()
            await _connected(broker)
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                assert (await client.stream("fenced")).partitions[0].state == "online"
                await connection.jetstream().publish("fenced", b"again")
                stored = [message.value async for message in client.messages("fenced")]
                assert stored[:10] == [b"%d" % number for number in range(10)]
                assert stored[-1] == b"again"
                assert len(stored) <= 12
