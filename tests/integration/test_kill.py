"""kill -9 under load, many times over: what was acked is there, in order, once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import extent, needs_time
from tests.integration.publishers import check_nothing_acked_is_lost, publishers

ROUNDS = extent(8, 24)
CHANGING_ROUNDS = extent(4, 12)
SEED = 20_260_101


async def _follow(client: aio.Client, seen: list[bytes]) -> None:
    """Read the log as it grows, through every restart, until cancelled; each offset must come once, in order."""
    async for batch in client.read("killed", follow=True, timeout=30.0):
        offsets = batch.column("offset").to_pylist()
        assert offsets == list(range(len(seen), len(seen) + len(offsets)))
        seen += [_place(*row) for row in zip(*(batch.column(name).to_pylist() for name in _PLACE), strict=True)]


_PLACE = ("subject", "value")


def _place(subject: str, value: bytes) -> bytes:
    return subject.encode() + b" " + value.split(b" ", 1)[0]


async def _load_and_kill(broker: BrokerProcess, rng: random.Random, rounds: int, durability: str) -> None:
    stop = asyncio.Event()
    seen: list[bytes] = []
    stored = 0
    async with publishers(broker.nats_url, "killed", 3, window=200, padding=b"x" * 200) as senders:
        async with await broker.client() as client:
            await client.create_stream("killed", "killed.*", durability=durability, segment_bytes=200_000)
        follower = await broker.client()
        following = asyncio.create_task(_follow(follower, seen))
        for number in range(rounds):
            stop.clear()
            acked = sum(sender.acked_count for sender in senders)
            tasks = [asyncio.create_task(sender.publish_until(stop)) for sender in senders]
            wanted = acked + rng.randrange(1, 600)

            async def enough(wanted: int = wanted) -> bool:
                return sum(sender.acked_count for sender in senders) >= wanted

            await eventually(enough, f"round {number}: {wanted} messages acked")
            for _ in range(rng.randrange(40)):  # so that the kill does not always follow an ack
                await asyncio.sleep(0)
            broker.kill()
            stop.set()
            for sender in senders:
                sender.forget_unacked()
            await asyncio.gather(*tasks)
            broker.restart()
            async with await broker.client() as client:
                stored = await check_nothing_acked_is_lost(client, "killed", senders)
                info = await client.stream("killed")
            assert info.partitions[0].state == "online", info
            assert info.partitions[0].leader_epoch == number + 2
            assert stored >= sum(sender.acked_count for sender in senders) > acked

        # What a reader has seen stays: it saw only what no kill could take back.
        async def has_seen_all() -> bool:
            return following.done() or len(seen) == stored

        await eventually(has_seen_all, f"the follower has seen {stored} messages")
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        table = await follower.to_table("killed", columns=_PLACE)
        assert seen == [_place(*row) for row in zip(*(table.column(name).to_pylist() for name in _PLACE), strict=True)]
        await follower.close()


@pytest.mark.parametrize("durability", [pytest.param("fsync", marks=needs_time), "os"])
async def test_nothing_acked_is_lost_when_the_broker_is_killed_again_and_again(tmp_path: Path, durability: str) -> None:
    rounds = ROUNDS if durability == "fsync" else ROUNDS // 4
    print(f"seed {SEED}, {durability}")
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            await _load_and_kill(broker, random.Random(SEED), rounds, durability)


class _Change:
    """One stream's fate: what was confirmed last, and whether something was on its way since."""

    def __init__(self) -> None:
        self.exists = False
        self.max_messages: int | None = None
        self.under_way = False


async def _change_streams(client: aio.Client, rng: random.Random, changes: dict[str, _Change]) -> None:
    while True:
        name = rng.choice(list(changes))
        change = changes[name]
        change.under_way = True
        if not change.exists:
            await client.create_stream(name, name)
            change.exists, change.max_messages = True, None
        elif rng.random() < 0.5:
            wanted = rng.randrange(1, 1_000_000)
            await client.alter_stream(name, max_messages=wanted)
            change.max_messages = wanted
        else:
            await client.delete_stream(name)
            change.exists = False
        change.under_way = False


@needs_time
async def test_streams_are_as_confirmed_when_the_broker_is_killed_while_they_change(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    changes = {f"changed-{number}": _Change() for number in range(12)}
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            for number in range(CHANGING_ROUNDS):
                async with await broker.client() as client:
                    changing = asyncio.create_task(_change_streams(client, rng, changes))
                    for _ in range(rng.randrange(20, 400)):
                        await client.status()  # time, in round trips
                    broker.kill()
                    changing.cancel()
                    await asyncio.gather(changing, return_exceptions=True)
                broker.restart()
                async with await broker.client() as client:
                    there = {info.name: info for info in await client.streams()}
                    for name, change in changes.items():
                        info = there.get(name)
                        if not change.under_way:
                            assert (info is not None) == change.exists, f"round {number}: {name}"
                            if info is not None:
                                assert info.config.max_messages == change.max_messages, f"round {number}: {name}"
                        change.exists, change.under_way = info is not None, False
                        change.max_messages = info.config.max_messages if info is not None else None
                        if info is not None:
                            assert info.partitions[0].state == "online"
                            ack = await client.publish(name, b"%d" % number)
                            assert ack is not None
                            assert (await client.get(name, ack.offset)).value == b"%d" % number
                assert not (broker.data_dir / "quarantine").exists(), broker.said
                folders = {folder.name.partition("-")[2] for folder in (broker.data_dir / "streams").iterdir()}
                assert folders == set(there)


@needs_time
async def test_the_embedded_nats_server_dies_with_its_broker_and_comes_back_with_it(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("both", "both")
            await client.publish("both", b"1")
        port = broker.nats_url.rpartition(":")[2]
        broker.arguments = ["--nats-port", port]
        for number in range(3):
            child = int(broker.logged(r"nats-server listens on .* \(process (\d+)\)").group(1))

            async def is_gone(child: int = child) -> bool:
                return not Path(f"/proc/{child}/exe").exists()

            broker.kill()
            await eventually(is_gone, "the nats-server of a killed broker has ended")
            broker.listen = broker.client_address
            broker.start()
            assert broker.nats_url.endswith(f":{port}"), broker.said
            async with await broker.client() as client:
                ack = await client.publish("both", b"again")
                assert ack is not None
                assert ack.offset == number + 1


@needs_time
async def test_an_embedded_nats_server_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        child = int(broker.logged(r"nats-server listens on .* \(process (\d+)\)").group(1))
        async with await broker.client() as client:
            await client.create_stream("alone", "alone")
            await client.publish("alone", b"before")
            os.kill(child, signal.SIGKILL)
            await asyncio.to_thread(broker.logged, "nats-server was started again on port")

            async def is_up() -> bool:
                return (await client.stream("alone")).partitions[0].state == "online"

            await eventually(is_up, "the stream is subscribed again")
            try:
                ack = await client.publish("alone", b"after")
            except penstock.Unavailable:  # the publisher's own connection may notice only now
                ack = await client.publish("alone", b"after")
            assert ack is not None
            assert ack.offset == 1
            (gap,) = (await client.status()).nats.gaps
            assert gap.end_us is not None
        assert broker.stop() == 0
