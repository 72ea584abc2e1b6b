"""`penstock bench replicated`: cost of three replicas, beside JetStream's three; goals and results.

Rules: As in `reach`, every goal is a ratio of two systems in one comparison of the same run, or a single number of
Penstock's; those of throughput are in `reach`, those of latency in `latency_run`. Bytes are counted over one load of 1
KiB messages on an otherwise unused cluster, up to the last ack: rewrites after that are not counted. The catch-up of a
broker with an empty disk is measured last (`catch_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.limits import GIB
from penstock_bench import catch_up, clusters, throughput
from penstock_bench.generator import Load
from penstock_bench.latency import LatencyLoad
from penstock_bench.latency_run import LatencyPlan
from penstock_bench.report import Figure
from penstock_bench.rounds import ROUNDS_MIN, untrue
from penstock_bench.traffic import Traffic

_VARIANTS = (*clusters.PENSTOCK, *clusters.AGAINST["jetstream"], "null")
_LATENCY_VARIANTS = ("penstock-r3", "jetstream-r3", "jetstream-r3-away")
_COUNTED = ("penstock-r3", "jetstream-r3")
_LOAD = Load(messages=1_000_000)
_SHORT_LOAD = Load(messages=200_000, seconds_max=3.0)
_SECONDS, _SHORT_SECONDS = 30.0, 8.0  # of latency; short: 400 samples a round, so p99 has its 1,000 in three rounds
_BYTES, _SHORT_BYTES = 5_000_000_000, 500_000_000
_COUNT_SECONDS = 10.0  # for the time estimate
_REACH, _STRETCH = 1.15, 1.08
Step = Callable[[str], None]


class ReplicatedPlan(msgspec.Struct, frozen=True):
    """The plans of all parts."""

    throughput: throughput.ThroughputPlan
    latency: LatencyPlan
    counted: Load
    catch_up: catch_up.CatchUpPlan

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        return self.throughput.measurements + self.latency.measurements + len(_COUNTED) + catch_up.STEPS

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        measured = self.throughput.seconds + self.latency.seconds
        return measured + len(_COUNTED) * _COUNT_SECONDS + self.catch_up.seconds

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
        msgspec.structs.replace(load, size=1_024, messages=min(load.messages, GIB // 4_096)),
        catch_up.CatchUpPlan(catch_up_bytes or (_SHORT_BYTES if short else _BYTES)),
    )


def counted(load: Load, folder: Path, said: Step) -> list[Figure]:
    """Measure the bytes that each product's replicas cost, per byte of payload. A void measurement gives no figures."""
    figures = []
    for name in _COUNTED:
        with clusters.VARIANTS[name].start(folder / name) as system, system.log() as log:
            assert isinstance(system, clusters.PenstockCluster | clusters.JetStreamCluster)
            before = system.traffic()
            published = log.publish(load)
            cost = system.traffic().since(before)
            void = untrue(log, published, ordered=True)
        said(name)
        if void is None:
            figures += _figures(name, cost, published.sent.value_bytes, is_ours=name == _COUNTED[0])
    return figures


def _figures(name: str, cost: Traffic, payload_bytes: int, *, is_ours: bool) -> list[Figure]:
    reach, stretch = (_REACH, _STRETCH) if is_ours else (None, None)
    copies = clusters.REPLICAS
    figures = (
        ("disk", "bytes in files, a replica", cost.disk_bytes / copies),
        ("written", "bytes written to files, a replica", cost.written_bytes / copies),
        ("network", "bytes between the processes, a follower", cost.network_bytes / (copies - 1)),
    )
    return [
        Figure(f"{name}-{kind}", f"{name}: {what}, by the payload", "×", got / payload_bytes, reach, stretch)
        for kind, what, got in figures
    ]
