"""The power fails at every operation of a cleaning: a start finds all messages, in old segments or in new ones."""

from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest

from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import HAS_TIME, each_change, extent
from tests.logs import DIRECTORY, Message, append, clean_all, finished, open_log, read_slices, run, save

pytestmark = pytest.mark.usefixtures("at_rest")


CONFIG = LogConfig(segment_bytes=5000)
SUBSETS_PER_BOUNDARY = 3
SEEDS = range(extent(2 if HAS_TIME else 1, 8))


class Cleaned:
    """A log of several segments and epochs, all of it committed."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.disk = MemoryVfs()
        self.vfs = FaultyVfs(self.disk)
        self.log = open_log(self.vfs, CONFIG)
        self.messages: list[Message] = []
        for number in range(random.randint(20, 40)):
            if number == 0 or random.random() < 0.1:
                self.log.start_epoch(self.log.leader_epoch + 1)
            self.messages += append(self.log, random.randint(1, 4), number, size_bytes=random.choice((0, 40, 300)))
        save(self.log)
        self.log.note_committed(self.log.log_end)

    def watch(self) -> list[tuple[MemoryVfs, str]]:
        """What disks may look like after a crash at any operation from now on."""
        clones: list[tuple[MemoryVfs, str]] = []

        def after(operation: FileOperation) -> None:
            if operation.kind in CHANGES:
                clones.append((self.disk.crash_clone(Keep.SYNCED), f"synced after {operation}"))
                clones.append((self.disk.crash_clone(Keep.ALL), f"all after {operation}"))
                for number in range(SUBSETS_PER_BOUNDARY):
                    seed = len(clones) * 100 + number
                    clones.append((self.disk.crash_clone(Keep.SUBSET, Random(seed)), f"subset {seed} {operation}"))

        self.vfs.watcher = after
        return clones


def dispose(log: Log) -> None:
    task = log.dispose()
    assert task is not None
    try:
        task.run()
    finally:
        log.disposed()


def check(disk: MemoryVfs, messages: list[Message], where: str) -> None:
    """Nothing is lost, nothing is left over, and the log goes on."""
    log = open_log(disk, CONFIG, must_exist=True)
    assert (log.state, log.damage, log.cuts, log.notices) == (LogState.WRITABLE, (), (), ()), where
    assert read_slices(disk, log.view()) == messages, where
    names = [name for name in disk.list(DIRECTORY) if name.endswith((".arrows", ".cleaned"))]
    assert names == [one.path.rpartition("/")[2] for one in log.view().segments], where
    log.note_committed(log.log_end)
    more = append(log, 2, 10**9)
    save(log)
    clean_all(log)
    assert read_slices(disk, log.view()) == messages + more, where


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_at_every_operation(seed: int) -> None:
    cleaned = Cleaned(seed)
    clones = cleaned.watch()
    assert clean_all(cleaned.log) > 1
    dispose(cleaned.log)
    assert len(clones) > 100
    for disk, where in clones:
        check(disk, cleaned.messages, where)


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_at_every_operation_of_the_start_after_a_kill(seed: int) -> None:
    """Who was killed has renamed what it wrote anew, and not come to have the names on the disk."""
    cleaned = Cleaned(seed)
    assert clean_all(cleaned.log) > 1
    clones = cleaned.watch()
    open_log(cleaned.vfs, CONFIG, must_exist=True)
    assert len(clones) > 20
    for disk, where in clones:
        check(disk, cleaned.messages, where)


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_in_a_cut_behind_it(seed: int) -> None:
    """What was cut does not come back, though older files of its messages are there yet."""
    cleaned = Cleaned(seed)
    log = cleaned.log
    clean_all(log)
    segments = log.view().segments
    end = Random(seed).choice([one.base_offset for one in segments[1:]])
    clones = cleaned.watch()
    run(log, log.truncate(end))
    assert log.log_end == end
    for disk, where in clones:
        found = open_log(disk, CONFIG, must_exist=True)
        assert (found.state, found.damage) == (LogState.WRITABLE, ()), where
        assert end <= found.log_end <= len(cleaned.messages), where
        assert read_slices(disk, found.view()) == cleaned.messages[: found.log_end], where
    clones.clear()
    messages = cleaned.messages[:end]
    for number in range(15):
        messages += append(log, 1, 10**7 + number, size_bytes=77)
        if (task := log.dispose()) is not None:
            task.run()
            log.disposed()
    save(log)
    log.note_committed(log.log_end)
    clean_all(log)
    for disk, where in clones:
        found = open_log(disk, CONFIG, must_exist=True)
        assert end <= found.log_end, where
        assert read_slices(disk, found.view()) == messages[: found.log_end], where


@pytest.mark.parametrize(
    "kind",
    [
        FileOperationKind.OPEN,
        FileOperationKind.WRITE,
        FileOperationKind.SYNC,
        FileOperationKind.READ,
        FileOperationKind.RENAME,
        FileOperationKind.TRUNCATE,
        FileOperationKind.SIZE,
    ],
)
@pytest.mark.parametrize("number", range(4))
def test_a_disk_that_refuses_leaves_the_old_segment(kind: FileOperationKind, number: int) -> None:
    cleaned = Cleaned(0)
    log = cleaned.log
    cleaning = log.clean(0)
    assert cleaning is not None
    cleaned.vfs.plan = nth(number, FileFault(errno.EIO), kind)
    with contextlib.suppress(OSError):
        finished(cleaning)
    if kind is FileOperationKind.RENAME and number == 0:
        with pytest.raises(OSError, match="error"):
            log.cleaned(cleaning, 0)
    else:
        log.cleaned(cleaning, 0)
    cleaned.vfs.plan = no_faults
    assert log.state is LogState.WRITABLE
    assert read_slices(cleaned.disk, log.view()) == cleaned.messages
    clean_all(log)
    assert read_slices(cleaned.disk, log.view()) == cleaned.messages
    check(cleaned.disk.crash_clone(Keep.ALL), cleaned.messages, str(kind))


def test_a_removal_that_fails_is_made_up_for_at_the_next_start() -> None:
    cleaned = Cleaned(1)
    clean_all(cleaned.log)
    cleaned.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.REMOVE)
    with pytest.raises(OSError, match="error"):
        dispose(cleaned.log)
    assert not cleaned.log.is_disposing
    assert read_slices(cleaned.disk, cleaned.log.view()) == cleaned.messages
    check(cleaned.disk.crash_clone(Keep.ALL), cleaned.messages, "removal failed")
