"""`penstock bench partitions`: CPU cost of a message on two brokers, in a stream of one partition and of several.

Rules: Two brokers on one nats-server, one replica, `durability = os`: ingest is measured, neither the disk nor
replication. One publisher on one connection sends to many subjects in turn, with a window of unacked messages. Each
partitioning rule has its turn in each round, with its own stream, which is deleted afterwards. The CPU time of both
brokers counts, including that for messages that a broker receives and skips. A measurement counts only if exactly the
acked messages are committed.

| name      | the stream                                                                                |
|-----------|-------------------------------------------------------------------------------------------|
| one       | one partition                                                                             |
| mapped    | several; each subject belongs to one partition: brokers receive only what they store      |
| group     | several; a queue group: NATS picks a random member                                        |
| key       | several; each broker receives all messages and keeps its own, by the hash of the subject, |
|           | because the messages have no key                                                          |
| token     | the same, by a subject token                                                              |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench import worker
from penstock_bench.brokers import TIMEOUT_S, Brokers, running_brokers
from penstock_bench.generator import GENERATOR, Load, PublishTask, publish
from penstock_bench.report import Figure
from penstock_bench.rounds import Measurement, interleave, median, ratio
from penstock_bench.systems import nats_server, time_for

ROUNDS = 5
_BROKERS = 2
_ONE = "one"
_WAYS = ("mapped", "group", "key", "token")
_SUBJECTS = 64
_COST_MAX = 1.5  # highest CPU per message relative to one partition, if the leaders choose (key, token)
_FLAT = 0.9  # least messages per second of CPU relative to one partition, if subjects belong to partitions (mapped)
_MESSAGES_A_SECOND = 60_000  # for the time estimate
Step = Callable[[str], None]


class PartitionsPlan(msgspec.Struct, frozen=True):
    """The partitions, rounds and load of a run."""

    partitions: int = 4
    rounds: int = ROUNDS
    load: Load = Load(messages=400_000, window=4_000, seconds_max=20.0)

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        return (1 + len(_WAYS)) * (self.rounds + 1)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return 10 + self.steps * self.load.messages / _MESSAGES_A_SECOND

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + 2 * self.load.messages * (self.load.size + 128)


def run(plan: PartitionsPlan, folder: Path, said: Step) -> list[Figure]:
    """Run the whole plan. Raise OperationalError if no measurement is valid."""
    with nats_server(folder / "nats-server") as (nats, _), running_brokers(folder, nats, _BROKERS) as brokers:

        def measure(name: str) -> Callable[[int], Measurement]:
            def once(round_number: int) -> Measurement:
                measured = _measured(brokers, nats, plan, name, round_number)
                said(name)
                return measured

            return once

        found = list(interleave({name: measure(name) for name in (_ONE, *_WAYS)}, rounds=plan.rounds))
    if median(found, _ONE) is None:
        raise OperationalError(f"nothing could be measured: {next(one.void for one in found if one.void)}")
    return _figures(plan, found)


def _measured(brokers: Brokers, nats: Any, plan: PartitionsPlan, name: str, round_number: int) -> Measurement:
    """Measure acked messages per second of CPU time, of both brokers together."""
    stream = f"bench-{name}-{round_number + 1}"
    config: dict[str, Any] = {"replicas": 1, "durability": "os", "dedup_window_ms": None}
    subject, subjects = f"{stream}.*", _SUBJECTS
    if name == "mapped":
        subject, subjects = stream, plan.partitions
    if name != _ONE:
        config |= {"partitions": plan.partitions, "partition_by": "token:2" if name == "token" else name}
    brokers.client.create_stream(stream, subject, **config, timeout=TIMEOUT_S)
    try:
        processes = {f"broker-{number}": one for number, one in sorted(brokers.process_ids.items())}
        load = msgspec.structs.replace(plan.load, subjects=subjects)
        task = PublishTask(nats, stream, load, processes)
        published = worker.run(publish, task, timeout_s=time_for(load))
        info = brokers.client.stream(stream, timeout=TIMEOUT_S)
    finally:
        brokers.client.delete_stream(stream, timeout=TIMEOUT_S)
    stored = [int(part.committed_end or 0) for part in info.partitions]
    void = None
    if published.errors or sum(stored) != published.acks:
        void = f"{published.acks} acks, {sum(stored)} stored, {published.errors} errors {published.first_error}"
    cpu = {one: seconds for one, seconds in published.cpu_seconds.items() if one != GENERATOR}
    return Measurement(
        system=name,
        round_number=round_number,
        value=published.acks / max(1e-9, sum(cpu.values())),
        seconds=published.seconds,
        messages=published.acks,
        cpu_seconds=cpu,
        void=void,
    )


def _figures(plan: PartitionsPlan, found: list[Measurement]) -> list[Figure]:
    figures = []
    for name in (_ONE, *_WAYS):
        costs = sorted(1e6 / one.value for one in found if one.system == name and one.void is None)
        if costs:
            many = "one partition" if name == _ONE else f"{plan.partitions} partitions, {name}"
            middle = costs[len(costs) // 2]
            what = f"CPU of both brokers for a message, {many}"
            figures.append(Figure(f"cost-{name}", what, "us", middle, low=costs[0], high=costs[-1]))
    for name in _WAYS:
        if (against := ratio(found, _ONE, name)) is not None:
            reach = _COST_MAX if name in ("key", "token") else None
            what = f"the same, {name} by one partition"
            figures.append(Figure(f"more-{name}", what, "×", against.median, reach, low=against.low, high=against.high))
    if (flat := ratio(found, "mapped", _ONE)) is not None:
        what = f"acked messages by second of CPU, {plan.partitions} partitions by one, each subject one partition's"
        figures.append(Figure("flat", what, "×", flat.median, _FLAT, low=flat.low, high=flat.high, at_least=True))
    return figures
