"""The power fails at every operation of a truncation: a start finds the log of before or less of it, never damage."""

from __future__ import annotations

from random import Random

import pytest

from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import HAS_TIME, each_change, extent
from tests.logs import (
    Message,
    append,
    flush_and_note,
    give_up_before,
    make_batch,
    messages_in,
    open_log,
    read_slices,
    run,
    save,
)

pytestmark = pytest.mark.usefixtures("at_rest")


CONFIG = LogConfig(segment_bytes=5000)
SUBSETS_PER_BOUNDARY = 3
SEEDS = range(extent(2 if HAS_TIME else 1, 6))


class Follower:
    """A log with several segments and epochs, partly flushed, of which `messages` were written."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.disk = MemoryVfs()
        self.vfs = FaultyVfs(self.disk)
        self.log = open_log(self.vfs, CONFIG)
        self.messages: list[Message] = []
        for number in range(random.randint(5, 30)):
            if number == 0 or random.random() < 0.2:
                self.log.start_epoch(self.log.leader_epoch + random.randint(1, 3))
            self.messages += append(self.log, random.randint(1, 4), number, size_bytes=random.choice((0, 300, 1500)))
            if random.random() < 0.15:
                flush_and_note(self.log)
            if random.random() < 0.05:
                save(self.log)
                give_up_before(self.log, random.randint(0, self.log.log_end))
        self.log.note_committed(random.randint(0, self.log.log_end))

    def clones_during(self, work: object) -> list[tuple[MemoryVfs, str]]:
        """What disks may look like after a crash at any operation of `work`, which is called."""
        clones: list[tuple[MemoryVfs, str]] = []

        def after(operation: FileOperation) -> None:
            if operation.kind in CHANGES:
                clones.append((self.disk.crash_clone(Keep.SYNCED), f"synced after {operation}"))
                clones.append((self.disk.crash_clone(Keep.ALL), f"all after {operation}"))
                for number in range(SUBSETS_PER_BOUNDARY):
                    seed = len(clones) * 100 + number
                    clones.append((self.disk.crash_clone(Keep.SUBSET, Random(seed)), f"subset {seed} {operation}"))

        self.vfs.watcher = after
        assert callable(work)
        work()
        self.vfs.watcher = None
        return clones


def check(disk: MemoryVfs, messages: list[Message], where: str) -> Log:
    """A log of some of the messages, whose lineage is theirs, and which goes on."""
    log = open_log(disk, CONFIG)
    assert (log.state, log.damage) == (LogState.WRITABLE, ()), (where, log.damage)
    assert log.log_start <= log.committed_end <= log.log_end, where
    if log.log_start < log.log_end:
        assert read_slices(disk, log.view()) == messages[log.log_start : log.log_end], where
        for header, _ in log.view().batches(log.log_start, log.log_end):
            said = [one.leader_epoch for one in log.lineage if one.start_offset <= header.base_offset]
            assert said[-1] == header.leader_epoch, where
    assert all(one.start_offset <= log.log_end for one in log.lineage), where
    again = open_log(disk.crash_clone(), CONFIG)
    assert (again.log_start, again.log_end, again.lineage) == (log.log_start, log.log_end, log.lineage), where
    assert again.cuts == (), where
    end = again.log_end
    append(again, 2, 10**9)
    flush_and_note(again)
    assert open_log(disk.crash_clone(Keep.ALL), CONFIG).log_end == end
    return log


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_at_every_operation_of_a_cut(seed: int) -> None:
    follower = Follower(seed)
    log = follower.log
    random = Random(seed + 1000)
    start, before_end, flushed_end = log.log_start, log.log_end, log.flushed_end
    end = random.randint(start, before_end - 1)
    cut = log.view().batch_at(end)[1].base_offset
    clones = follower.clones_during(lambda: run(log, log.truncate(end)))
    assert log.log_end == cut
    for disk, where in clones:
        found = check(disk, follower.messages, where)
        assert min(cut, flushed_end) <= found.log_end <= before_end, where
        assert found.log_start <= start, where
        if where.startswith("all"):  # else what was never synced may be torn, and is kept aside
            assert found.cuts == (), where
    assert len(clones) > 5 * 10
    # It is done: nothing of what was cut comes back, in whatever way the machine dies later.
    last = follower.clones_during(lambda: _go_on(log, follower.messages))
    for disk, where in last:
        found = check(disk, follower.messages, where)
        assert cut <= found.log_end, where


def _go_on(log: Log, messages: list[Message]) -> None:
    del messages[log.log_end :]
    random = Random(log.log_end)
    for number in range(12):
        # Other batches than those that were cut, and of another epoch.
        if number == 0:
            log.start_epoch(log.leader_epoch + 10)
        base, rows, size = log.log_end, random.randint(1, 3), random.choice((10, 350, 1400))
        data, header = make_batch(base, rows, 10**7, size_bytes=size, leader_epoch=log.leader_epoch)
        messages += messages_in(data)
        log.append(data, header)
        if number % 3 == 2:
            flush_and_note(log)


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_at_every_operation_of_a_new_beginning(seed: int) -> None:
    follower = Follower(seed)
    log = follower.log
    before_start, before_end = log.log_start, log.log_end
    start = Random(seed).choice((0, before_start, before_end // 2, before_end, before_end + 5))
    clones = follower.clones_during(lambda: run(log, log.reset(start)))
    assert (log.log_start, log.log_end) == (start, start)
    old = new = 0
    for disk, where in clones:
        found = check(disk, follower.messages, where)
        if found.log_start < found.log_end:
            old += 1
            assert found.log_end <= before_end, where
        elif found.log_start == start:
            new += 1
    assert old > 0
    assert new > 0
    messages: list[Message] = [(offset, 0, b"") for offset in range(start)]
    for disk, where in follower.clones_during(lambda: _go_on(log, messages)):
        assert check(disk, messages, where).log_start == start


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_during_the_recovery_of_a_cut(seed: int) -> None:
    follower = Follower(seed)
    log = follower.log
    end = (log.log_start + log.log_end) // 2
    cut = log.view().batch_at(end)[1].base_offset if end < log.log_end else log.log_end
    flushed_end = log.flushed_end
    for number, (disk, where) in enumerate(follower.clones_during(lambda: run(log, log.truncate(end)))):
        if number % 5 or "subset" not in where:
            continue
        clones: list[MemoryVfs] = []

        def after(operation: FileOperation, disk: MemoryVfs = disk, clones: list[MemoryVfs] = clones) -> None:
            if operation.kind in CHANGES:
                clones.append(disk.crash_clone(Keep.SUBSET, Random(len(clones))))

        open_log(FaultyVfs(disk, watcher=after), CONFIG)
        for clone in clones:
            assert check(clone, follower.messages, where).log_end >= min(cut, flushed_end), where
