"""Measure `publish_nowait` beside nats-py's `publish_async`: wall time and CPU of this process, in µs a message.

Rules: nats-server and one broker are started here and ended at the end. The three take turns, and each round checks
that every message has its ack. Run it from a checkout: `python tools/publish_nowait.py --rounds 5`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import nats

import penstock
from penstock import aio
from penstock.broker.nats.server import find_nats_server

VALUE, KEYS = b"v" * 160, [f"customer-{n}" for n in range(1_000)]
NATS, BROKER = "nats://127.0.0.1:24222", "127.0.0.1:27422"
SUBJECT = "bench.x"
Cost = tuple[float, float]  # wall and CPU, in µs a message


def now() -> Cost:
    gc.collect()
    return time.perf_counter(), time.process_time()


def since(start: Cost, count: int) -> Cost:
    wall_s, cpu_s = time.perf_counter() - start[0], time.process_time() - start[1]
    return wall_s / count * 1e6, cpu_s / count * 1e6


async def _publish_async(count: int) -> Cost:
    connection = await nats.connect(NATS)
    stream = connection.jetstream()
    await (await stream.publish_async(SUBJECT, VALUE))
    start = now()
    acks = [await stream.publish_async(SUBJECT, VALUE, headers={"Penstock-Key": KEYS[n % 1000]}) for n in range(count)]
    await stream.publish_async_completed()
    cost = since(start, count)
    assert all(ack.done() and ack.exception() is None for ack in acks)
    await connection.close()
    return cost


async def _asyncio(count: int) -> Cost:
    async with aio.connect(BROKER) as client:
        await client.publish(SUBJECT, VALUE)
        start = now()
        acks = [await client.publish_nowait(SUBJECT, VALUE, key=KEYS[n % 1000]) for n in range(count)]
        await client.flush()
        cost = since(start, count)
        assert all(ack.done() and ack.exception() is None for ack in acks)
    return cost


def _blocking(count: int) -> Cost:
    with penstock.connect(BROKER) as client:
        client.publish(SUBJECT, VALUE)
        start = now()
        acks = [client.publish_nowait(SUBJECT, VALUE, key=KEYS[n % 1000]) for n in range(count)]
        client.flush()
        cost = since(start, count)
        assert all(ack.exception() is None for ack in acks)
    return cost


WAYS: dict[str, Callable[[int], Cost]] = {
    "nats-py publish_async": lambda count: asyncio.run(_publish_async(count)),
    "publish_nowait, asyncio": lambda count: asyncio.run(_asyncio(count)),
    "publish_nowait, blocking": _blocking,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="publish_nowait", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=30_000)
    given = parser.parse_args(arguments)
    costs: dict[str, list[Cost]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        broker = [sys.executable, "-m", "penstock", "serve", "--nats", NATS, "--listen", BROKER, "--data-dir", folder]
        processes = [
            subprocess.Popen([find_nats_server(), "-a", "127.0.0.1", "-p", "24222"], stderr=subprocess.DEVNULL)
        ]
        try:
            processes.append(subprocess.Popen(broker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            waiting = [sys.executable, "-m", "penstock", "--server", BROKER, "wait", "--ready"]
            subprocess.run(waiting, check=True, stdout=subprocess.DEVNULL)
            with penstock.connect(BROKER) as client:
                client.create_stream("bench", "bench.>", durability="os")
            for _ in range(given.rounds):
                for name, way in WAYS.items():
                    costs[name].append(way(given.messages))
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(10)
    for name, found in costs.items():
        shown = (
            f"{statistics.median(one):5.1f} ({min(one):.1f} to {max(one):.1f})" for one in zip(*found, strict=True)
        )
        print(f"{name:25} wall and CPU, µs a message: {', '.join(shown)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
