"""The power fails at every write boundary of a workload: nothing that was flushed is lost, whatever else is.

A watcher clones the disk after every operation that changes something, in all the ways in which it may look after a
crash; the log is then opened on each clone and compared with what had been promised at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import extent, needs_time
from tests.logs import Message, append, as_logs_see, open_log, read_slices, retain, value_of

pytestmark = pytest.mark.usefixtures("at_rest")


SUBSETS_PER_BOUNDARY = 3
CONFIG = LogConfig(segment_bytes=5000, max_messages=30)


@dataclass
class Promise:
    """What a user may rely on at one moment."""

    flushed_end: int = 0
    removed_before: int = 0
    started: int = 0


class Workload:
    """Appends, flushes with appends in between, rolls, epochs, retention; watched at every boundary."""

    def __init__(self, seed: int, check: Callable[[Workload, MemoryVfs, str], None], steps: int = 20) -> None:
        self.steps = steps
        self.random = Random(seed)
        self.disk = MemoryVfs()
        self.messages: list[Message] = []
        self.promise = Promise()
        self.boundaries = 0
        self._check = check
        self.vfs = FaultyVfs(self.disk, watcher=self._after)

    def _after(self, operation: FileOperation) -> None:
        if operation.kind not in CHANGES:
            return
        self.boundaries += 1
        where = f"after {operation}"
        self._check(self, self.disk.crash_clone(Keep.SYNCED), f"synced {where}")
        self._check(self, self.disk.crash_clone(Keep.ALL), f"all {where}")
        for number in range(SUBSETS_PER_BOUNDARY):
            seed = self.boundaries * 1000 + number
            self._check(self, self.disk.crash_clone(Keep.SUBSET, Random(seed)), f"subset {seed} {where}")

    def run(self) -> None:
        log = open_log(self.vfs, CONFIG)
        log.start_epoch(1)
        now_us = 0
        for step in range(self.steps):
            for _ in range(self.random.randint(1, 3)):
                now_us += self.random.randint(0, 400_000)
                self._append(log, now_us)
            flush = log.flush()
            assert flush is not None
            self._append(log, now_us)
            flush.run()
            # From here on a publisher may have been told.
            self.promise.flushed_end = flush.end
            log.flushed(flush)
            log.note_flushed()
            if (removal := retain(log, now_us)) is not None:
                self.promise.started = log.log_start
                removal.run()
                self.promise.removed_before = log.log_start
            if step == 10:
                log.start_epoch(2)
        log.close()

    def _append(self, log: Log, now_us: int) -> None:
        rows, size_bytes = self.random.randint(1, 3), self.random.choice((0, 100, 1500))
        base = log.log_end
        # In the list before it is written: a crash in the middle may keep it or not.
        stamped = max(now_us, log.last_timestamp_us)
        self.messages += [(base + row, stamped, value_of(base + row, size_bytes)) for row in range(rows)]
        assert append(log, rows, now_us, size_bytes=size_bytes) == self.messages[base:]


def holds(work: Workload, disk: MemoryVfs, where: str) -> Log:
    """The log on `disk` keeps every promise."""
    log = open_log(disk, CONFIG)
    assert log.state is LogState.WRITABLE, (where, log.damage)
    assert work.promise.flushed_end <= log.log_end <= len(work.messages), where
    assert work.promise.removed_before <= log.log_start, where
    assert log.flushed_end == log.log_end, where
    assert read_slices(disk, log.view()) == work.messages[log.log_start : log.log_end], where
    return log


def check_boundary(work: Workload, disk: MemoryVfs, where: str) -> None:
    log = holds(work, disk, where)
    # What recovery has promised by opening holds through the next crash, too; and a second start finds the same.
    again = open_log(disk.crash_clone(), CONFIG)
    assert (again.log_start, again.log_end, again.lineage) == (log.log_start, log.log_end, log.lineage), where
    assert not again.cuts, (where, again.cuts)
    assert not again.damage, where
    append(again, 2, 10**9)
    assert again.log_end == log.log_end + 2


@needs_time
@pytest.mark.parametrize("seed", range(1, 1 + extent(1, 4)))
def test_power_loss_at_every_write_boundary_loses_nothing_that_was_flushed(seed: int) -> None:
    work = Workload(seed, check_boundary)
    work.run()
    assert work.boundaries > 150
    assert work.promise.removed_before > 0, "retention was at work"
    assert work.promise.flushed_end > 40


@needs_time
def test_power_loss_during_recovery_at_every_boundary() -> None:
    """Recovery itself is crashed at each of its own boundaries, on disks that are torn."""
    recovered = 0
    crashed = 0

    def check(work: Workload, disk: MemoryVfs, where: str) -> None:
        nonlocal recovered, crashed
        if "subset" not in where or work.boundaries % 20:
            return
        recovered += 1
        clones: list[tuple[MemoryVfs, str]] = []

        def after(operation: FileOperation) -> None:
            if operation.kind in CHANGES:
                seed = len(clones)
                clones.append((disk.crash_clone(Keep.SYNCED), f"{where}, then {operation}"))
                clones.append((disk.crash_clone(Keep.SUBSET, Random(seed)), f"{where}, then {seed} {operation}"))

        open_log(FaultyVfs(disk, watcher=after), CONFIG)
        for clone, then in clones:
            crashed += 1
            holds(work, clone, then)

    Workload(3, check, steps=14).run()
    assert recovered > 20
    assert crashed > 100


def test_side_files_keep_whole_batches_that_lie_beyond_a_torn_one() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for _ in range(3):
        append(log, 1)
    # Nothing was flushed; of three batches the first one did not reach the disk.
    clone = disk.crash_clone(Keep.ALL)
    file = as_logs_see(clone).open("streams/00000007-orders/0/00000000000000000000.arrows")
    whole = file.read_at(0, file.size())
    file.write_at(568, bytes(512))
    torn = file.read_at(568, file.size())
    again = open_log(clone)
    assert again.log_end == 0
    assert again.state is LogState.WRITABLE
    (cut,) = again.cuts
    assert (cut.position, cut.length_bytes) == (568, len(whole) - 568)
    assert cut.kept_as is not None
    side = as_logs_see(clone).open(cut.kept_as)
    assert side.read_at(0, side.size()) == torn


def test_the_power_fails_while_a_log_is_made() -> None:
    """Its segment, its checkpoint and their names are synced together, so each may be lost without the others."""
    disk = MemoryVfs()
    random = Random(7)
    left: list[MemoryVfs] = []

    def after(operation: FileOperation) -> None:
        if operation.kind in CHANGES:
            left.extend((disk.crash_clone(Keep.SYNCED), disk.crash_clone(Keep.ALL)))
            left.extend(disk.crash_clone(Keep.SUBSET, random) for _ in range(40))

    open_log(FaultyVfs(disk, watcher=after), CONFIG)
    assert len(left) > 200
    for clone in left:
        log = open_log(clone, CONFIG)
        assert (log.state, log.damage, log.log_end) == (LogState.WRITABLE, (), 0)
        append(log, 1, 0)
        flush = log.flush()
        assert flush is not None
        flush.run()
        again = open_log(clone.crash_clone(), CONFIG, must_exist=True)
        assert (again.state, again.log_end) == (LogState.WRITABLE, 1)
    for keep in (Keep.SYNCED, Keep.ALL):
        assert open_log(disk.crash_clone(keep), CONFIG, must_exist=True).state is LogState.WRITABLE
