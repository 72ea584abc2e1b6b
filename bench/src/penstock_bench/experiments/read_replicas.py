"""`penstock bench read-replicas`: read throughput per broker CPU, with one serving replica and with three.

Rules: Three brokers; a stream of one replica and two observers (read replicas), in the page cache of all. Many
consumers with connections of their own read the whole log, in turn from the leader alone and from any replica, in each
round. Each consumer begins at another offset, because a range that one has just read would be in the processor's caches
for the others, and three machines would not share these caches. If the machine has several cores, all brokers share
one, and the consumers have the others: brokers and consumers on separate machines do not compete for cores, either. The
bytes of all consumers together and the CPU time of all three brokers, also of idle ones, are counted.

If reads scale with replicas, a second of CPU serves as many bytes with three replicas as with one: this ratio is
reported, taken within a round, with equally many consumers per serving replica (`alone`: a third of the consumers at
the leader). A busier broker processes more at once and needs less CPU per byte, so the ratio for equally many consumers
in total (`crowded`) is reported, too. Bytes per elapsed second are not reported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock.base.errors import OperationalError
from penstock.base.limits import GIB, MIB
from penstock.client import aio
from penstock.client.link.read_from import Which
from penstock.client.values import LATEST
from penstock_bench.experiments.experiment import ROUNDS, Experiment, Row, Turn
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.systems.brokers import TIMEOUT_S, Brokers, running_brokers, until
from penstock_bench.systems.system import nats_server

_BROKERS = 3
_STREAM = "bench-observed"
_ALONE, _CROWDED, _SPREAD = "alone", "crowded", "spread"
_FLAT = 0.9  # least MB per second of CPU, relative to one replica
_BYTES_PER_S = 800 * MIB  # for the time estimate


def experiment(consumers: int = 24, size_bytes: int = 256 * MIB, rounds: int | None = None) -> Experiment:
    """Return the experiment: MB per second of the brokers' CPU time, for a log of `size_bytes`."""
    few = _few(consumers)
    ratio, of_cpu = "three replicas by one, with as many consumers for", "by second of all brokers' CPU"
    return Experiment(
        systems=(_ALONE, _CROWDED, _SPREAD),
        begin=partial(_begin, size_bytes=size_bytes, consumers=consumers),
        rounds=rounds or ROUNDS,
        turn_seconds=size_bytes * consumers / _BYTES_PER_S,
        bytes_needed=GIB + _BROKERS * size_bytes * 11 // 10,
        rows=(
            Row("read-alone", f"read by {few} from the leader, {of_cpu}", "MB/s", "mb_per_s", _ALONE),
            Row("read-crowded", f"read by {consumers} from the leader, {of_cpu}", "MB/s", "mb_per_s", _CROWDED),
            Row(
                "read-spread",
                f"read by {consumers} from the leader and two observers, {of_cpu}",
                "MB/s",
                "mb_per_s",
                _SPREAD,
            ),
            Row("read-share", "the busiest broker's share of the CPU, of three that serve", "", "share", _SPREAD),
            *(
                Row(
                    f"flat-{one}",
                    f"{ratio} {whom}, by second of CPU",
                    "×",
                    "mb_per_s",
                    _SPREAD,
                    one,
                    reach,
                    at_least=True,
                )
                for one, whom, reach in ((_ALONE, "each", _FLAT), (_CROWDED, "all", None))
            ),
        ),
    )


def _few(consumers: int) -> int:
    return max(1, consumers // _BROKERS)


@contextmanager
def _begin(folder: Path, *, size_bytes: int, consumers: int) -> Iterator[Turn]:
    with nats_server(folder / "nats-server") as (nats, _), running_brokers(folder, nats, _BROKERS) as brokers:
        _fill(brokers, size_bytes)

        def turn(name: str, _: int) -> dict[str, float]:
            count = _few(consumers) if name == _ALONE else consumers
            return asyncio.run(_read(brokers, count, "any" if name == _SPREAD else "leader"))

        with _parted(brokers):
            yield turn


@contextmanager
def _parted(brokers: Brokers) -> Iterator[None]:
    """Give one core to the brokers and the others to this process, which runs the consumers."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    for process_id in brokers.process_ids.values():
        for thread in os.listdir(f"/proc/{process_id}/task"):
            os.sched_setaffinity(int(thread), cores[:1])
    os.sched_setaffinity(0, cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _fill(brokers: Brokers, size_bytes: int) -> None:
    """Create the stream, and wait until all observers have caught up."""
    brokers.client.create_stream(_STREAM, _STREAM, replicas=1, observers=_BROKERS - 1)
    brokers.fill(_STREAM, size_bytes)

    def are_whole() -> bool:
        part = brokers.client.stream(_STREAM, timeout=TIMEOUT_S).partitions[0]
        return len(part.followers) == _BROKERS - 1 and all(one.lag == 0 for one in part.followers)

    until(are_whole, "all observers have all", TIMEOUT_S)
    asyncio.run(_read(brokers, _BROKERS * 8, "any"))  # brings the log into the page cache


async def _read(brokers: Brokers, consumers: int, which: Which) -> dict[str, float]:
    """Read the whole log with `consumers` concurrent consumers. Raise OperationalError if one misses a row."""
    servers = list(brokers.addresses.values())
    clients = [await aio.connect(servers, name="penstock-bench", timeout=TIMEOUT_S) for _ in range(consumers)]
    try:
        for client in clients:
            end = (await client.offsets(_STREAM, LATEST, timeout=TIMEOUT_S)).offset
        watch = Stopwatch(brokers.by_number())

        async def one(number: int) -> tuple[int, int]:
            rows = size_bytes = 0
            begin = number * end // consumers
            for start, stop in ((begin, end), (0, begin)):
                if start == stop:
                    continue
                read = clients[number].read(_STREAM, start, end=stop, read_from=which, timeout=TIMEOUT_S)
                async for batch in read:
                    rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            return rows, size_bytes

        got = await asyncio.gather(*(one(number) for number in range(consumers)))
        _, cpu = watch.read()
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    if (counts := {rows for rows, _ in got}) != {end}:
        raise OperationalError(f"of {end} rows consumers got {sorted(counts)}")
    mb, used = sum(size_bytes for _, size_bytes in got) / 1e6, max(1e-9, sum(cpu.values()))
    return {"mb_per_s": mb / used, "share": max(cpu.values()) / used}
