"""`penstock bench many`: three brokers with many streams of three replicas: idle cost, and the loss of a broker.

Rules: Real processes, real files, one nats-server. The brokers' resources are measured on the same cluster before it
has a stream: this memory is subtracted, the other figures are reported beside. Every stream stores a message before the
idle phase, so that no idle log was never written. Then the broker that leads the most streams, about a third, is
killed, and a message is published into each of these streams until it is acked: the time runs from the kill to the last
stream's first ack. Finally every acked message of all streams is read back at the offset of its ack.

The cost of a message is measured twice by the same load into one stream: as the only stream, and as one of many.

Goals apply to STREAMS streams or more: a run with fewer is measured, but not judged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from penstock import aio
from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock.messages import StreamInfo
from penstock_bench.experiments.experiment import Findings, Said
from penstock_bench.load.generator import Load
from penstock_bench.load.resending_publisher import Acked, Publisher
from penstock_bench.machine import vital
from penstock_bench.machine.idle_resources import Held, held
from penstock_bench.results.report import Figure
from penstock_bench.systems.brokers import TIMEOUT_S
from penstock_bench.systems.clusters import REPLICAS, PenstockCluster, penstock_cluster

STREAMS = 10_000
STEPS = 6
_AT_ONCE = 64  # streams that are created, or read, concurrently
_FAILOVER_TIMEOUT_S = 120.0
_LOAD = Load(messages=200_000, window=1_000, seconds_max=3.0)
# For the time estimate.
_STREAMS_A_SECOND = 200
_READS_A_SECOND = 1_000


class ManyStreamsPlan(msgspec.Struct, frozen=True):
    """The streams, times and load of a run."""

    streams: int = STREAMS
    idle_seconds: float = 20.0
    settle_seconds: float = 40.0  # more than LOG_IDLE_MS, after which idle logs close their files
    load: Load = _LOAD

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        made = self.streams / _STREAMS_A_SECOND + 2 * self.streams / _READS_A_SECOND
        return made + 2 * (self.idle_seconds + self.settle_seconds) + 2 * self.load.seconds_max + 30.0

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + REPLICAS * self.streams * 32 * 1024

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return STEPS

    def run(self, folder: Path, said: Said) -> Findings:
        """Run the whole plan and return its figures."""
        return Findings(figures(self, measure(self, folder, said)))

    @property
    def has_goals(self) -> bool:
        """True if the goals apply to this number of streams."""
        return self.streams >= STREAMS


class Rest(msgspec.Struct, frozen=True):
    """The brokers' resources over an idle period."""

    held: dict[int, Held]  # at its end
    cpu_percent: dict[int, float]  # of a core
    network_bytes_per_s: float  # between the brokers


class Failover(msgspec.Struct, frozen=True):
    """The outcome of killing a broker."""

    led: int  # streams that the broker led
    seconds: tuple[float, ...]  # sorted times from the kill to the first ack of each of these streams
    acked: int  # acks of all streams, before and after the kill
    read_back: int  # acked messages that were read back: all, or the run has failed


class ManyStreamsResult(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    empty: Rest
    many: Rest
    create_seconds: float
    first_messages_seconds: float
    list_seconds: float
    failover: Failover
    cpu_us_alone: float  # CPU of all brokers for one message of a load into the only stream
    cpu_us_among_many: float


def measure(plan: ManyStreamsPlan, folder: Path, said: Said) -> ManyStreamsResult:
    """Run the whole plan. Raise OperationalError if an acked message is not at the offset of its ack."""
    with penstock_cluster(folder) as cluster:
        empty = rest(cluster, plan)
        said("no stream")
        cpu_us_alone = _cpu_us_of_a_message(cluster, plan.load)
        said("one stream")
        began_s = time.monotonic()
        streams = asyncio.run(_made(cluster, plan.streams))
        create_seconds = time.monotonic() - began_s
        said(f"{plan.streams:,} streams made")
        publisher = Publisher(cluster.nats, {number: stream.subject for number, stream in streams.items()})
        try:
            began_s = time.monotonic()
            acked = publisher.publish({number: b"before %d" % number for number in streams}, _FAILOVER_TIMEOUT_S)
            first_messages_seconds = time.monotonic() - began_s
            many = rest(cluster, plan)
            said("at rest")
            cpu_us_among_many = _cpu_us_of_a_message(cluster, plan.load)
            said("one of many")
            list_seconds, led = _led_by(cluster)
            failover = _failover(cluster, publisher, streams, led, acked)
        finally:
            publisher.close()
        said("read back")
    return ManyStreamsResult(
        empty, many, create_seconds, first_messages_seconds, list_seconds, failover, cpu_us_alone, cpu_us_among_many
    )


def rest(cluster: PenstockCluster, plan: ManyStreamsPlan) -> Rest:
    """Measure the cluster's resources over an idle period."""
    vital.wait(plan.settle_seconds)
    before, began_s = {number: held(pid) for number, pid in cluster.brokers.process_ids.items()}, time.monotonic()
    traffic = cluster.traffic()
    vital.wait(plan.idle_seconds)
    network_bytes = cluster.traffic().since(traffic).network_bytes
    after = {number: held(pid) for number, pid in cluster.brokers.process_ids.items()}
    seconds = time.monotonic() - began_s
    used = {number: 100 * (after[number].cpu_seconds - before[number].cpu_seconds) / seconds for number in after}
    return Rest(after, used, network_bytes / seconds)


async def _made(cluster: PenstockCluster, count: int) -> dict[int, StreamInfo]:
    """Create `count` streams; return them by number."""
    found: dict[int, StreamInfo] = {}
    numbers = iter(range(count))

    async def make(client: aio.Client) -> None:
        for number in numbers:
            subject = f"many.{number:05d}"
            found[number] = await client.create_stream(
                f"many-{number:05d}", subject, timeout=TIMEOUT_S, replicas=REPLICAS
            )

    async with aio.connect(list(cluster.brokers.addresses.values()), name="penstock-bench") as client:
        await asyncio.gather(*(make(client) for _ in range(_AT_ONCE)))
    return found


def _cpu_us_of_a_message(cluster: PenstockCluster, load: Load) -> float:
    """Return the CPU microseconds per message of all brokers, for a load into one stream."""
    with cluster.log() as log:
        published = log.publish(load)
    used = sum(
        seconds for name, seconds in published.cpu_seconds.items() if name == "leader" or name.startswith("follower")
    )
    return 1e6 * used / max(1, published.acks)


def _led_by(cluster: PenstockCluster) -> tuple[float, dict[str, int]]:
    """Return the seconds for listing all streams, and the leader of each stream by name."""
    began_s = time.monotonic()
    streams = cluster.brokers.client.streams(timeout=TIMEOUT_S)
    seconds = time.monotonic() - began_s
    return seconds, {stream.name: int(stream.partitions[0].leader_id or 0) for stream in streams}


def _failover(
    cluster: PenstockCluster,
    publisher: Publisher,
    streams: Mapping[int, StreamInfo],
    led: Mapping[str, int],
    before: Mapping[int, list[Acked]],
) -> Failover:
    """Kill the broker that leads most of the streams, and measure the failover."""
    by_broker = {
        broker: [number for number, one in streams.items() if led[one.name] == broker]
        for broker in cluster.brokers.addresses
    }
    victim = max(by_broker, key=lambda broker: len(by_broker[broker]))
    killed_ns = cluster.brokers.kill(victim)
    after = publisher.publish({number: b"after %d" % number for number in by_broker[victim]}, _FAILOVER_TIMEOUT_S)
    seconds = sorted((min(one.acked_ns for one in found) - killed_ns) / 1e9 for found in after.values())
    acked = [
        (streams[number].name, one) for known in (before, after) for number, found in known.items() for one in found
    ]
    left = [address for number, address in cluster.brokers.addresses.items() if number != victim]
    read_back = asyncio.run(_read_back(left, acked))
    return Failover(len(by_broker[victim]), tuple(seconds), len(acked), read_back)


async def _read_back(addresses: list[str], acked: Iterable[tuple[str, Acked]]) -> int:
    """Count the messages at the offsets of their acks. Raise OperationalError at the first mismatch."""
    todo, count = iter(acked), 0

    async def look(client: aio.Client) -> None:
        nonlocal count
        for stream, one in todo:
            found = await client.get(stream, one.offset, timeout=TIMEOUT_S)
            if found.value != one.value:
                raise OperationalError(
                    f"{stream}: {one.value!r} was acked at offset {one.offset}, and {found.value!r} is there"
                )
            count += 1

    async with aio.connect(addresses, name="penstock-bench") as client:
        await asyncio.gather(*(look(client) for _ in range(_AT_ONCE)))
    return count


def figures(plan: ManyStreamsPlan, found: ManyStreamsResult) -> list[Figure]:
    """Return the figures of the report; a figure of several brokers is that of the worst."""
    which = f"{plan.streams:,} idle streams"

    def goal(reach: float, stretch: float | None = None) -> tuple[float | None, float | None]:
        return (reach, stretch) if plan.has_goals else (None, None)

    many, empty, over = found.many, found.empty, found.failover
    grown = {number: one.resident_bytes - empty.held[number].resident_bytes for number, one in many.held.items()}
    each = [size / plan.streams / 1024 for size in grown.values()]
    cpu = list(many.cpu_percent.values())
    lost = over.seconds or (0.0,)
    median = lost[len(lost) // 2]
    failed = f"loss of a broker that leads {over.led:,} of {plan.streams:,}"
    return [
        Figure("idle-cpu", f"{which}: CPU of a broker", "% of a core", max(cpu), *goal(5), min(cpu), max(cpu)),
        Figure("empty-cpu", "no stream: the same", "% of a core", max(empty.cpu_percent.values())),
        Figure("idle-memory", f"{which}: resident, each, a broker", "KB", max(each), *goal(12), min(each), max(each)),
        Figure("idle-network", f"{which}: between the brokers", "KB/s", many.network_bytes_per_s / 1e3),
        Figure("empty-network", "no stream: the same", "KB/s", empty.network_bytes_per_s / 1e3),
        *(
            Figure(
                f"{name}-{kind}",
                f"{what}: {told}, a broker",
                "",
                max(getattr(one, kind) for one in rest_of.held.values()),
            )
            for name, what, rest_of in (("idle", which, many), ("empty", "no stream", empty))
            for kind, told in (("files", "open files"), ("sockets", "sockets"), ("threads", "threads"))
        ),
        Figure("create", f"{plan.streams:,} streams: made", "s", found.create_seconds),
        Figure("first", f"{plan.streams:,} streams: a first message each", "s", found.first_messages_seconds),
        Figure("list", f"{plan.streams:,} streams: told to a client", "s", found.list_seconds),
        Figure("message-alone", "a message, to the only stream: CPU of the brokers", "µs", found.cpu_us_alone),
        Figure("message-among", f"a message, to one of {plan.streams:,}: the same", "µs", found.cpu_us_among_many),
        Figure("failover", f"{failed}: until the last takes a message", "s", lost[-1], *goal(8)),
        Figure("failover-median", f"{failed}: half of them do", "s", median),
        Figure("lost", f"{failed}: acked messages not read back", "", over.acked - over.read_back, *goal(0)),
    ]
