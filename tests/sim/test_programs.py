"""Programs of a user's on the simulation, under all that is drawn: nothing acked is lost, and a seed is one run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import nats
import pytest

import penstock.aio
from penstock.testing import Cluster
from tests.extent import code_seed, needs_time

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 60


class Shop:
    """Programs that publish by the client and by nats-py, append, and consume in a group of two."""

    def __init__(self, seed: int, brokers: int) -> None:
        self.cluster = Cluster(seed, brokers=brokers, faults=True, every_s=2.0)
        self.acked: set[tuple[str, int]] = set()  # stream and offset
        self.seen: set[tuple[str, int]] = set()

    async def publish(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            for number in range(MESSAGES):
                try:
                    ack = await client.publish("orders.eu", b"%d" % number, retries=3, timeout=20)
                    self.acked.add(("orders", ack.offset))
                except penstock.PenstockError:
                    await asyncio.sleep(0.5)
                await asyncio.sleep(0.3)

    async def publish_by_nats(self) -> None:
        connection = await nats.connect(connect_timeout=5, max_reconnect_attempts=-1)
        js = connection.jetstream(timeout=10)
        for number in range(MESSAGES):
            try:
                ack = await js.publish("orders.us", b"%d" % number)
                self.acked.add(("orders", ack.seq - 1))
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.3)
        await connection.close()

    async def append(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            producer = client.producer("rows")
            for number in range(MESSAGES // 3):
                for result in await producer.append([{"subject": "rows", "value": b"%d" % number}] * 3):
                    self.acked |= {("rows", offset) for offset in range(result.base_offset, result.end_offset)}
                await asyncio.sleep(0.5)

    async def consume(self, stream: str) -> None:
        async with (
            penstock.aio.connect(timeout=60) as client,
            client.consumer(stream, "readers", follow=True, session=5.0) as consumer,
        ):
            async for message in consumer.messages():
                await asyncio.sleep(0.001)
                self.seen.add((stream, message.offset))

    async def main(self) -> None:
        start = self.cluster.start
        async with penstock.aio.connect(timeout=60) as client:
            await client.create_stream("orders", "orders.*", timeout=60)
            await client.create_stream("rows", "rows", timeout=60)
        for number in range(2):
            start(lambda: self.consume("orders"), f"orders-{number}")
            start(lambda: self.consume("rows"), f"rows-{number}")
        writers = [start(self.publish), start(self.publish_by_nats), start(self.append)]
        for writer in writers:
            await writer.finished()
        await self.cluster.settle()
        await asyncio.sleep(30)
        assert self.acked <= self.seen
        assert len(self.acked) > MESSAGES

    def run(self) -> str:
        self.cluster.run(self.main())
        return self.cluster.digest


@pytest.mark.parametrize(("seed", "brokers"), [(1, 3), (2, 1), pytest.param(3, 3, marks=needs_time)])
def test_what_was_acked_is_read_whatever_strikes(seed: int, brokers: int) -> None:
    shop = Shop(seed, brokers)
    shop.run()
    assert " 0 faults" not in shop.cluster.summary()


@needs_time
@pytest.mark.parametrize("number", range(10))
def test_what_was_acked_is_read_in_seeds_that_no_other_code_had(number: int) -> None:
    Shop(code_seed() + number, 3).run()


@needs_time
def test_a_seed_is_the_same_run_in_any_process_and_after_any_other() -> None:
    script = "from tests.sim.test_programs import Shop; print(*[Shop(seed, 3).run() for seed in map(int, '%s')])"
    said = [
        subprocess.run(
            [sys.executable, "-c", script % seeds],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout.split()
        for seeds, hash_seed in (("4", "1"), ("64", "2"))
    ]
    assert said[0][-1] == said[1][-1]
    assert said[1][0] != said[1][1]
