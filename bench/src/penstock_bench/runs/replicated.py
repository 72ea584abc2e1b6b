"""`penstock bench replicated`: cost of three replicas, beside JetStream's three; goals and results.

Rules: As in `reach`, every goal is a ratio of two systems in one comparison of the same run, or a single number of
Penstock's; those of throughput are in `reach`, those of latency in `latency_run`. Bytes are counted over one load of 1
KiB messages on an otherwise unused cluster, up to the last ack: rewrites after that are not counted. The catch-up of a
broker with an empty disk is measured last (`experiments.catch_up`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench.experiments import catch_up
from penstock_bench.experiments.experiment import Experiment, Row, Turn, last
from penstock_bench.load.generator import Load
from penstock_bench.measure.latency import LatencyLoad
from penstock_bench.measure.rounds import ROUNDS_MIN, untrue
from penstock_bench.runs import throughput
from penstock_bench.runs.latency_run import LatencyPlan
from penstock_bench.systems import clusters

_VARIANTS = (*clusters.PENSTOCK, *clusters.AGAINST["jetstream"], "null")
_LATENCY_VARIANTS = ("penstock-r3", "jetstream-r3", "jetstream-r3-away")
_COUNTED = ("penstock-r3", "jetstream-r3")
_LOAD = Load(messages=1_000_000)
_SHORT_LOAD = Load(messages=200_000, seconds_max=3.0)
_SECONDS, _SHORT_SECONDS = 30.0, 8.0  # of latency; short: 400 samples a round, so p99 has its 1,000 in three rounds
_BYTES, _SHORT_BYTES = 5_000_000_000, 500_000_000
_COUNT_SECONDS = 7.0  # for the time estimate
_REACH, _STRETCH = 1.15, 1.08


class ReplicatedPlan(msgspec.Struct, frozen=True):
    """The plans of all parts."""

    throughput: throughput.ThroughputPlan
    latency: LatencyPlan
    counted: Experiment
    catch_up: catch_up.CatchUpPlan

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        return self.throughput.measurements + self.latency.measurements + self.counted.steps + catch_up.STEPS

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.throughput.seconds + self.latency.seconds + self.counted.seconds + self.catch_up.seconds

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: the parts run one after the other."""
        copies = clusters.REPLICAS * self.throughput.bytes_needed
        return max(copies, self.latency.bytes_needed, self.catch_up.bytes_needed)


def planned(*, short: bool, rounds: int | None = None, catch_up_bytes: int | None = None) -> ReplicatedPlan:
    """Return the long or the short plan."""
    load, count = _SHORT_LOAD if short else _LOAD, rounds or ROUNDS_MIN
    latency = LatencyLoad(seconds=_SHORT_SECONDS if short else _SECONDS)
    return ReplicatedPlan(
        throughput.ThroughputPlan(_VARIANTS, (load,), (), count, clusters.variants(_VARIANTS)),
        LatencyPlan(_LATENCY_VARIANTS, (latency,), count),
        counted(msgspec.structs.replace(load, size=1_024, messages=min(load.messages, GIB // 4_096))),
        catch_up.CatchUpPlan(catch_up_bytes or (_SHORT_BYTES if short else _BYTES)),
    )


def counted(load: Load) -> Experiment:
    """Return the experiment that counts the bytes that each product's replicas cost, per byte of payload."""
    rows = [
        Row(f"{name}-{measure}", f"{name}: {what}, by the payload", "×", measure, name, "", *goal, once=last)
        for name, goal in zip(_COUNTED, ((_REACH, _STRETCH), (None, None)), strict=True)
        for measure, what in (
            ("disk", "bytes in files, a replica"),
            ("written", "bytes written to files, a replica"),
            ("network", "bytes between the processes, a follower"),
        )
    ]
    return Experiment(
        systems=_COUNTED,
        begin=partial(_begin, load=load),
        rounds=1,
        warm_up=False,
        start_seconds=0.0,
        turn_seconds=_COUNT_SECONDS,
        bytes_needed=GIB,
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, load: Load) -> Iterator[Turn]:
    def turn(name: str, _: int) -> dict[str, float]:
        with clusters.VARIANTS[name].start(folder / name) as system, system.log() as log:
            assert isinstance(system, clusters.PenstockCluster | clusters.JetStreamCluster)
            before = system.traffic()
            published = log.publish(load)
            cost = system.traffic().since(before)
            if (void := untrue(log, published, ordered=True)) is not None:
                raise OperationalError(void)
        copies, payload_bytes = clusters.REPLICAS, published.sent.value_bytes
        return {
            "disk": cost.disk_bytes / copies / payload_bytes,
            "written": cost.written_bytes / copies / payload_bytes,
            "network": cost.network_bytes / (copies - 1) / payload_bytes,
        }

    yield turn
