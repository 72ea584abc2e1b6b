"""Visiting only the partitions whose turn it is does what visiting all of them every second does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Durability, StreamConfig
from penstock.base.errors import PenstockError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.commitlog import Log, LogConfig, LogFolder, OpenFiles
from penstock.node.api.partition_append import append
from penstock.node.context import Context
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEvents
from penstock.node.step import DiskWork
from penstock.vfs.memory import MemoryVfs
from tests.damage import content
from tests.extent import examples
from tests.unit.node.contexts import context_of
from tests.unit.node.harness import START_US, batch_of
from tests.unit.node.led import led, stream_state

STREAMS = range(1, 4)
CONFIGS: dict[int, dict[str, Any]] = {
    1: {"segment_age_ms": 5_000},
    2: {"max_age_ms": 5_000, "max_messages": 6},
    3: {"max_bytes": 3_000},
}
CHANGES: tuple[dict[str, Any], ...] = (
    {"max_messages": 3},
    {"max_messages": None, "max_bytes": 2_000},
    {"max_bytes": None, "max_age_ms": 5_000},
    {"max_age_ms": None},
    {"segment_age_ms": 2_000},
    {"segment_age_ms": 60_000},
)


def key_of(number: int) -> PartitionKey:
    """The one partition of a stream."""
    return PartitionKey(StreamId(number), PartitionId(0))


@dataclass
class Broker:
    """The upkeep of a few partitions, and a disk whose work runs when it is told to."""

    visits_all: bool
    now_us: int = START_US
    vfs: MemoryVfs = field(default_factory=MemoryVfs)
    context: Context = field(default_factory=context_of)
    disk: list[DiskWork] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    partitions: dict[PartitionKey, Partition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context.now = self.now
        self.upkeep = LogMaintenance(self.context, PartitionEvents())
        self.files = OpenFiles()
        for number in STREAMS:
            durability = Durability.OS if number == 1 else Durability.FSYNC
            rules = CONFIGS[number]
            config = StreamConfig(
                name=f"s{number}", subject=f"s{number}.>", segment_bytes=4096, durability=durability, **rules
            )
            state = stream_state(number, config)
            log = Log.open(
                LogFolder(self.vfs, f"s{number}/0", number, 0),
                LogConfig.of(config),
                now_us=START_US,
                open_files=self.files,
                noticed=self.upkeep.damage_found,
            )
            partition = self.partitions[key_of(number)] = led(state, log, self.vfs)
            self.upkeep.opened(partition)

    @property
    def now(self) -> Now:
        """Both times."""
        return Now(self.now_us, self.now_us - START_US)

    def append(self, number: int, rows: int) -> None:
        partition = self.partitions[key_of(number)]
        self.upkeep.lead(partition)
        committed_end = partition.committed_end
        batch = batch_of([(f"s{number}.x", None, b"v" * 300, None)] * rows)
        append(partition, "caller", batch, self.now, self.context.outbox.step)
        self.upkeep.note_progress(partition, committed_end)

    def alter(self, number: int, changes: dict[str, Any]) -> None:
        partition = self.partitions[key_of(number)]
        config = msgspec.structs.replace(partition.stream.config, **changes)
        partition.reconfigure(stream_state(number, config), 0)
        partition.log.configure(LogConfig.of(config))
        self.upkeep.note_progress(partition, partition.committed_end)

    def damage(self, number: int) -> None:
        partition = self.partitions[key_of(number)]
        if partition.log.log_end > partition.log.log_start and not partition.log.damage:
            view = partition.log.view()
            path = view.slice(view.log_start, end=view.log_end, bytes_max=1)
            assert path is not None
            partition.log.damage_found(path.path, path.position, "somebody has found it")

    def wait(self, ticks: int) -> None:
        """Nothing happens but what the upkeep itself does."""
        for _ in range(ticks):
            self.run_disk()
            self.tick(1_000)

    def tick(self, ms: int) -> None:
        self.now_us += ms * 1_000
        self.context.now = self.now
        if self.visits_all:
            for partition in self.partitions.values():
                self.upkeep.touch(partition)
        self.upkeep.tick(self.partitions, self.now_us)
        self.upkeep.cleaners.tick(self.now.elapsed_us)
        self.take()

    def take(self) -> None:
        step = self.context.outbox.take()
        self.disk += step.disk
        self.notices += step.notices

    def run_disk(self) -> None:
        while self.disk:
            work = self.disk.pop(0)
            error: Exception | None = None
            try:
                work.run()
            except (OSError, PenstockError) as raised:
                error = raised
            work.done(error)
            self.take()

    def seen(self) -> list[tuple[object, ...]]:
        """All that can be told of the partitions."""
        found: list[tuple[object, ...]] = []
        for partition in self.partitions.values():
            log = partition.log
            ends = (log.log_start, partition.committed_end, log.flushed_end, log.log_end)
            found.append((*ends, log.state, log.segment_count, log.size_bytes, log.lineage, log.damage))
        found.append((len(self.files),))
        return found


NUMBERS = st.sampled_from(STREAMS)
EVENTS = st.one_of(
    st.tuples(st.just("append"), NUMBERS, st.integers(1, 4)),
    st.tuples(st.just("append"), NUMBERS, st.integers(1, 4)),
    st.tuples(st.just("alter"), NUMBERS, st.sampled_from(CHANGES)),
    st.tuples(st.just("damage"), NUMBERS),
    st.tuples(st.just("tick"), st.sampled_from([300, 1_000, 1_000, 1_000, 2_500, limits.LOG_IDLE_MS, -60_000])),
    st.tuples(st.just("run_disk")),
    st.tuples(st.just("wait"), st.integers(2, 8)),
)


@given(st.lists(EVENTS, max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_few_visits_do_what_all_visits_do(events: list[tuple[Any, ...]]) -> None:
    few, every = Broker(visits_all=False), Broker(visits_all=True)
    for name, *arguments in events:
        for broker in (few, every):
            getattr(broker, name)(*arguments)
        assert few.seen() == every.seen()
        assert sorted(few.notices) == sorted(every.notices)
        assert len(few.disk) == len(every.disk)
    for broker in (few, every):
        for _ in range(4):
            broker.tick(1_000)
            broker.run_disk()
    assert few.seen() == every.seen()
    for path in {*few.vfs.files(), *every.vfs.files()}:
        assert content(few.vfs, path) == content(every.vfs, path), path
