"""kill -9 under load, many times over: what was acked is there, in order, once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.integration.publishers import check_nothing_acked_is_lost, publishers

ROUNDS = 24
SEED = 20_260_101


async def _load_and_kill(broker: BrokerProcess, rng: random.Random, rounds: int, durability: str) -> None:
    stop = asyncio.Event()
    async with publishers(broker.nats_url, "killed", 3, window=200, padding=b"x" * 200) as senders:
        async with await broker.client() as client:
            await client.create_stream("killed", "killed.*", durability=durability, segment_bytes=200_000)
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


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_nothing_acked_is_lost_when_the_broker_is_killed_again_and_again(tmp_path: Path, durability: str) -> None:
    rounds = ROUNDS if durability == "fsync" else ROUNDS // 6
    print(f"seed {SEED}, {durability}")
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            await _load_and_kill(broker, random.Random(SEED), rounds, durability)
