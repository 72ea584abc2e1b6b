"""The speed at which a broker with an empty disk catches up, and its effect on ack latency.

Rules: There are three brokers. One of them, which does not lead the stream, is stopped and loses its disk; the other
two get a log of `CatchUpPlan.size_bytes`, in batches of many rows, as a bulk writer makes them. Then a sender publishes
at a fixed rate all the time, on schedule (`latency`): first for a while alone (quiet), then while the broker catches
up. The catch-up is timed from the first bytes of the log on the broker's disk until it is in sync. An ack belongs to
the phase in which its message was due. The log is read from the page cache if memory suffices: it was written just
before.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from penstock.base.limits import GIB, MIB
from penstock.messages import StreamInfo
from penstock_bench.experiments.experiment import Said
from penstock_bench.load.latency_sender import SendTask, Sent, send
from penstock_bench.machine import vital, worker
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import ACK_WAIT_S, LatencyLoad
from penstock_bench.results.report import Figure
from penstock_bench.systems.brokers import TIMEOUT_S, Brokers, until
from penstock_bench.systems.clusters import REPLICAS, penstock_cluster

STEPS = 2
_START_S = 5.0  # time for a broker to start and the cluster to register it
_BYTES_PER_S_MIN = 60 * MIB  # slowest accepted catch-up: sets the time-out
_RATE = 200.0  # messages a second: more than elsewhere, because a phase lasts only some seconds
_REACH_MB_PER_S, _REACH_TIMES = 300.0, 2.0
_PERCENTILES = ("50", "99")


class CatchUpPlan(msgspec.Struct, frozen=True):
    """The size of the log and the duration of the quiet phase."""

    size_bytes: int
    quiet_s: float = 10.0

    @property
    def publish_s(self) -> float:
        """Seconds of publishing: the quiet time, and the catch-up at the slowest accepted speed."""
        return self.quiet_s + _START_S + self.size_bytes / _BYTES_PER_S_MIN

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.size_bytes / (100 * MIB) + self.publish_s + 3 * _START_S

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + REPLICAS * self.size_bytes * 11 // 10


class _Caught(msgspec.Struct, frozen=True):
    """The outcome of a catch-up; times are of the monotonic clock."""

    size_bytes: int
    began_ns: int
    ended_ns: int
    cpu_seconds: dict[str, float]

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9


def run(plan: CatchUpPlan, folder: Path, said: Said) -> list[Figure]:
    """Measure the catch-up. Raise OperationalError if it takes too long."""
    with penstock_cluster(folder) as cluster, cluster.log() as log:
        victim = next(number for number in cluster.brokers.addresses if number != _leader(log.stream))
        cluster.brokers.stop(victim)
        cluster.brokers.empty_disk(victim)
        cluster.brokers.fill(log.stream, plan.size_bytes)
        said("filled")
        load = LatencyLoad(size=256, rate_per_s=_RATE, seconds=plan.publish_s, consumer=False).plan(1)
        task = SendTask(log.nats, log.subject, load, ACK_WAIT_S)
        with worker.started(send, task) as (next_answer, _):
            began_ns = time.monotonic_ns()
            vital.wait(plan.quiet_s)
            caught = _catch_up(cluster.brokers, log.stream, victim, plan)
            sent = next_answer(plan.publish_s + ACK_WAIT_S + TIMEOUT_S)
        said("caught up")
    quiet = _between(sent, began_ns + int(1e9), began_ns + int(plan.quiet_s * 1e9))
    return _figures(caught, quiet, _between(sent, caught.began_ns, caught.ended_ns))


def _catch_up(brokers: Brokers, stream: StreamInfo, victim: int, plan: CatchUpPlan) -> _Caught:
    """Start the broker with the empty disk, and wait until it is in sync."""
    brokers.start(victim)
    folder = brokers.folder(victim)
    until(lambda: next(folder.glob(f"streams/*-{stream.name}/0/*.arrows"), None), "the first bytes come")
    watch, began_ns = Stopwatch(brokers.by_role(_leader(stream))), time.monotonic_ns()
    brokers.wait_until_in_sync(stream, REPLICAS, plan.publish_s)
    ended_ns = time.monotonic_ns()
    _, cpu = watch.read()
    size_bytes = sum(file.stat().st_size for file in folder.glob(f"streams/*-{stream.name}/0/*.arrows"))
    return _Caught(size_bytes, began_ns, ended_ns, cpu)


def _leader(stream: StreamInfo) -> int:
    return int(stream.partitions[0].leader_id or 0)


def _between(sent: Sent, first_ns: int, end_ns: int) -> Latencies:
    """Return the ack latencies of messages due in [first_ns, end_ns); a missing ack counts with the time waited."""
    pairs = zip(sent.due_ns, sent.acked_ns, strict=True)
    return Latencies(
        (acked if acked > 0 else sent.gave_up_ns) - due for due, acked in pairs if first_ns <= due < end_ns
    )


def _figures(caught: _Caught, quiet: Latencies, beside: Latencies) -> list[Figure]:
    rate = caught.size_bytes / 1e6 / caught.seconds
    figures = [
        Figure(
            "catch-up",
            f"an empty replica of {caught.size_bytes / 1e9:.2g} GB catches up",
            "MB/s",
            rate,
            _REACH_MB_PER_S,
            at_least=True,
        ),
        Figure(
            "catch-up-cpu",
            "CPU of the brokers meanwhile",
            "s/GB",
            sum(caught.cpu_seconds.values()) / caught.size_bytes * 1e9,
        ),
    ]
    for percentile in _PERCENTILES:
        one, other = beside.percentile_us(percentile), quiet.percentile_us(percentile)
        if one is not None and other is not None:
            reach = _REACH_TIMES if percentile == _PERCENTILES[-1] else None
            what = f"p{percentile} of acks meanwhile, by the quiet {other / 1e3:.2g} ms"
            figures.append(Figure(f"catch-up-p{percentile}", what, "×", one / other, reach))
    return figures
