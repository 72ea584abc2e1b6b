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

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench.experiments.experiment import ROUNDS, Experiment, Row, Turn
from penstock_bench.load.generator import GENERATOR, Load, PublishTask, publish
from penstock_bench.machine import worker
from penstock_bench.systems.brokers import TIMEOUT_S, running_brokers
from penstock_bench.systems.system import nats_server, time_for

_BROKERS = 2
_ONE = "one"
_WAYS = ("mapped", "group", "key", "token")
_SUBJECTS = 64
_COST_MAX = 1.5  # highest CPU per message relative to one partition, if the leaders choose (key, token)
_FLAT = 0.9  # least messages per second of CPU relative to one partition, if subjects belong to partitions (mapped)
_MESSAGES_A_SECOND = 60_000  # for the time estimate


def experiment(partitions: int = 4, messages: int = 400_000, rounds: int | None = None) -> Experiment:
    """Return the experiment: acked messages per second of CPU time, of both brokers together."""
    load = Load(messages=messages, window=4_000, seconds_max=20.0)
    many = f"{partitions} partitions"
    of = "CPU of both brokers for a message"
    rows = [
        Row(f"cost-{name}", f"{of}, {'one partition' if name == _ONE else f'{many}, {name}'}", "us", "cpu_us", name)
        for name in (_ONE, *_WAYS)
    ]
    rows += [
        Row(f"more-{name}", f"the same, {name} by one partition", "×", "rate", _ONE, name, reach)
        for name, reach in (("mapped", None), ("group", None), ("key", _COST_MAX), ("token", _COST_MAX))
    ]
    flat = f"acked messages by second of CPU, {many} by one, each subject one partition's"
    rows.append(Row("flat", flat, "×", "rate", "mapped", _ONE, _FLAT, at_least=True))
    return Experiment(
        systems=(_ONE, *_WAYS),
        begin=partial(_begin, partitions=partitions, load=load),
        rounds=rounds or ROUNDS,
        turn_seconds=messages / _MESSAGES_A_SECOND,
        bytes_needed=GIB + 2 * messages * (load.size + 128),
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, partitions: int, load: Load) -> Iterator[Turn]:
    with nats_server(folder / "nats-server") as (nats, _), running_brokers(folder, nats, _BROKERS) as brokers:

        def turn(name: str, round_number: int) -> dict[str, float]:
            stream = f"bench-{name}-{round_number + 1}"
            config: dict[str, Any] = {"replicas": 1, "durability": "os", "dedup_window_ms": None}
            is_mapped = name == "mapped"
            if name != _ONE:
                config |= {"partitions": partitions, "partition_by": "token:2" if name == "token" else name}
            subject = stream if is_mapped else f"{stream}.*"
            brokers.client.create_stream(stream, subject, **config, timeout=TIMEOUT_S)
            try:
                sent = msgspec.structs.replace(load, subjects=partitions if is_mapped else _SUBJECTS)
                task = PublishTask(nats, stream, sent, dict(brokers.by_number()))
                published = worker.run(publish, task, timeout_s=time_for(sent))
                info = brokers.client.stream(stream, timeout=TIMEOUT_S)
            finally:
                brokers.client.delete_stream(stream, timeout=TIMEOUT_S)
            stored = sum(int(part.committed_end or 0) for part in info.partitions)
            if published.errors or stored != published.acks:
                raise OperationalError(
                    f"{published.acks} acks, {stored} stored, {published.errors} errors {published.first_error}"
                )
            cpu = sum(seconds for one, seconds in published.cpu_seconds.items() if one != GENERATOR)
            return {"rate": published.acks / max(1e-9, cpu), "cpu_us": 1e6 * cpu / max(1, published.acks)}

        yield turn
