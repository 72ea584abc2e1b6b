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
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.base.errors import OperationalError
from penstock.base.limits import GIB, MIB
from penstock.client import aio
from penstock.client.link.read_from import Which
from penstock.client.values import LATEST
from penstock_bench.brokers import TIMEOUT_S, Brokers, running_brokers, until
from penstock_bench.processes import cpu_seconds_of
from penstock_bench.report import Figure
from penstock_bench.rounds import Measurement, Ratio, interleave, median, ratio
from penstock_bench.systems import nats_server

ROUNDS = 5
_BROKERS = 3
_STREAM = "bench-observed"
_VALUE_BYTES = 1_024
_ROWS = 4_096
_ALONE, _CROWDED, _SPREAD = "alone", "crowded", "spread"
_FLAT = 0.9  # least MB per second of CPU, relative to one replica
_BYTES_PER_S = 800 * MIB  # for the time estimate
Step = Callable[[str], None]


class ReadReplicasPlan(msgspec.Struct, frozen=True):
    """The size of the log and the number of concurrent consumers."""

    size_bytes: int = 256 * MIB
    consumers: int = 24
    rounds: int = ROUNDS

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        return 3 * (self.rounds + 1)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return 10 + self.steps * self.size_bytes * self.consumers / _BYTES_PER_S

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + _BROKERS * self.size_bytes * 11 // 10


def run(plan: ReadReplicasPlan, folder: Path, said: Step) -> list[Figure]:
    """Run the whole plan. Raise OperationalError if the observers do not catch up, or no measurement is valid."""
    with nats_server(folder / "nats-server") as (nats, _), running_brokers(folder, nats, _BROKERS) as brokers:
        _fill(brokers, plan.size_bytes)

        def measure(name: str, which: Which, consumers: int) -> Callable[[int], Measurement]:
            def once(round_number: int) -> Measurement:
                measured = asyncio.run(_read(brokers, consumers, which, round_number))
                said(name)
                return msgspec.structs.replace(measured, system=name)

            return once

        few = max(1, plan.consumers // _BROKERS)
        measures = {
            _ALONE: measure(_ALONE, "leader", few),
            _CROWDED: measure(_CROWDED, "leader", plan.consumers),
            _SPREAD: measure(_SPREAD, "any", plan.consumers),
        }
        with _parted(brokers):
            found = list(interleave(measures, rounds=plan.rounds))
    ratios = [(name, ratio(found, _SPREAD, name), reach) for name, reach in ((_ALONE, _FLAT), (_CROWDED, None))]
    if ratios[0][1] is None:
        raise OperationalError(f"nothing could be measured: {next(one.void for one in found if one.void)}")
    return [*_figures(found, few, plan.consumers), *(_flatness(*one) for one in ratios if one[1] is not None)]  # type: ignore[arg-type]


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
    values = [random.Random(1).randbytes(_VALUE_BYTES) for _ in range(_ROWS)]  # noqa: S311 (content, no secret)
    table = pa.table({"value": pa.array(values, pa.binary())})
    batches = -(-size_bytes // (_ROWS * _VALUE_BYTES))
    for _ in range(batches):
        brokers.client.append(_STREAM, table, timeout=TIMEOUT_S)

    def are_whole() -> bool:
        part = brokers.client.stream(_STREAM, timeout=TIMEOUT_S).partitions[0]
        return len(part.followers) == _BROKERS - 1 and all(one.lag == 0 for one in part.followers)

    until(are_whole, "all observers have all", TIMEOUT_S)
    asyncio.run(_read(brokers, _BROKERS * 8, "any", 0))  # brings the log into the page cache


async def _read(brokers: Brokers, consumers: int, which: Which, round_number: int) -> Measurement:
    """Read the whole log with `consumers` concurrent consumers; the value is MB per second of the brokers' CPU."""
    servers = list(brokers.addresses.values())
    clients = [await aio.connect(servers, name="penstock-bench", timeout=TIMEOUT_S) for _ in range(consumers)]
    loop = asyncio.get_running_loop()
    try:
        for client in clients:
            end = (await client.offsets(_STREAM, LATEST, timeout=TIMEOUT_S)).offset
        before, began_s = cpu_seconds_of(_processes(brokers)), loop.time()

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
        seconds = loop.time() - began_s
        after = cpu_seconds_of(_processes(brokers))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    cpu = {name: after[name] - before[name] for name in before}
    counts = {rows for rows, _ in got}
    void = None if counts == {end} else f"of {end} rows consumers got {sorted(counts)}"
    mb = sum(size_bytes for _, size_bytes in got) / 1e6
    return Measurement(
        system=which,
        round_number=round_number,
        value=mb / max(1e-9, sum(cpu.values())),
        seconds=seconds,
        messages=sum(rows for rows, _ in got),
        cpu_seconds=cpu,
        void=void,
    )


def _processes(brokers: Brokers) -> dict[str, int]:
    return {f"broker-{number}": process_id for number, process_id in sorted(brokers.process_ids.items())}


def _figures(found: list[Measurement], few: int, consumers: int) -> list[Figure]:
    texts = {
        _ALONE: f"read by {few} from the leader",
        _CROWDED: f"read by {consumers} from the leader",
        _SPREAD: f"read by {consumers} from the leader and two observers",
    }
    figures = []
    for name, text in texts.items():
        values = [one.value for one in found if one.system == name and one.void is None]
        got = median(found, name)
        if got is not None:
            what = f"{text}, by second of all brokers' CPU"
            figures.append(Figure(f"read-{name}", what, "MB/s", got, low=min(values), high=max(values)))
    shares = [max(one.cpu_seconds.values()) / sum(one.cpu_seconds.values()) for one in found if one.system == _SPREAD]
    what = "the busiest broker's share of the CPU, of three that serve"
    figures.append(Figure("read-share", what, "", statistics.median(shares), low=min(shares), high=max(shares)))
    return figures


def _flatness(name: str, against: Ratio, reach: float | None) -> Figure:
    who = {_ALONE: "with as many consumers for each", _CROWDED: "with as many consumers for all"}[name]
    what = f"three replicas by one, {who}, by second of CPU"
    return Figure(f"flat-{name}", what, "×", against.median, reach, low=against.low, high=against.high, at_least=True)
