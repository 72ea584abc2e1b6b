"""A checkpoint that passes its check and yet cannot be true: nothing is removed, cut or hidden because of it."""

from __future__ import annotations

import errno
from functools import partial
from random import Random

import pytest

from penstock.commitlog import LogConfig, LogState, StorageFailedError
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files.checkpoint import CheckpointFile
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.logs import DIRECTORY, Message, append, flush, flush_and_note, give_up_before, open_log, read_slices, retain


def closed_log() -> tuple[MemoryVfs, list[Message]]:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = [message for number in range(12) for message in append(log, 2, number, size_bytes=900)]
    assert log.segment_count > 3
    log.close()
    return disk, wanted


def say(disk: MemoryVfs, **values: int) -> None:
    """Write a newer checkpoint that says something else."""
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    CheckpointFile(disk, DIRECTORY, found.newest.sequence, found.slot).write(found.newest._replace(**values))


def test_the_first_checkpoint_takes_the_room_of_both_slots() -> None:
    """Else a start on a disk that has become full could not write the second one, and the log would not open."""
    disk = MemoryVfs()
    places: list[int] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.WRITE and operation.path.endswith("/checkpoint"):
            places.append(operation.position)

    open_log(FaultyVfs(disk, watcher=watch))
    assert set(places) == {0, checkpoints.SLOT_STEP_BYTES}
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    assert found.mistakes == ()


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_a_power_loss_leaves_one_slot_whole_though_the_other_was_written_in_part(runs: int) -> None:
    """Writing them in turn had one torn by a full disk, and the other one in the page cache only: no slot was left."""
    for seed in range(100):
        random = Random(seed)
        memory = MemoryVfs()
        known_end = 0
        for _ in range(runs):  # each is killed
            disk = FaultyVfs(memory)
            log = open_log(disk)
            known_end = log.flushed_end
            disk.plan = partial(tear_checkpoints, random)
            for number in range(random.randrange(5)):
                append(log, 1, number)
                flush_and_note(log)
        append(log, 9, 9, size_bytes=500)
        clone = memory.crash_clone(Keep.SUBSET, random)
        newest = checkpoints.read(clone, DIRECTORY).newest
        assert newest is not None
        assert newest.flushed_end >= known_end, "a start syncs what it writes"
        again = open_log(clone)
        assert (again.state, again.damage) == (LogState.WRITABLE, ())


def test_a_start_writes_again_what_it_found_before_it_touches_the_other_slot() -> None:
    """A sync has failed, and the page cache alone has the newer slot: a power loss in the first write left neither."""
    for seed in range(20):
        random = Random(seed)
        memory = MemoryVfs()
        log = open_log(memory)
        append(log, 1, 0)
        flush_and_note(log)
        memory.fail_sync(f"{DIRECTORY}/checkpoint")
        disk = FaultyVfs(memory)
        disk.plan = nth(
            1, FileFault(errno.ENOSPC, random.randrange(96)), FileOperationKind.WRITE, path_end="/checkpoint"
        )
        with pytest.raises(StorageFailedError):
            open_log(disk)
        assert checkpoints.read(memory.crash_clone(Keep.SUBSET, random), DIRECTORY).newest is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_that_stands_alone_is_not_written_over(seed: int) -> None:
    """The disk is full from the second start on: a part of each write comes, and none is synced."""
    memory = MemoryVfs()
    open_log(memory)
    disk = FaultyVfs(memory)
    log = open_log(disk, must_exist=True)  # which is as it was left: nothing is written
    random = Random(seed)
    disk.plan = partial(tear_checkpoints, random)
    for number in range(6):
        append(log, 1, number)
        flush_and_note(log)
    assert checkpoints.read(memory.crash_clone(Keep.SUBSET, random), DIRECTORY).newest is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_checkpoint_that_stands_alone_is_written_again_in_the_other_slot(seed: int) -> None:
    memory = MemoryVfs()
    open_log(memory)
    found = checkpoints.read(memory, DIRECTORY)
    assert found.newest is not None
    assert found.is_alone
    disk = FaultyVfs(memory)
    disk.plan = lambda one: FileFault(errno.ENOSPC, 50) if one.kind is FileOperationKind.WRITE else None
    file = CheckpointFile(disk, DIRECTORY, found.newest.sequence, found.slot, is_alone=True)
    with pytest.raises(OSError, match="No space"):
        file.write_again(found.newest)
    disk.plan = lambda _: None
    assert checkpoints.read(memory.crash_clone(Keep.SUBSET, Random(seed)), DIRECTORY).newest is not None
    file.write_again(found.newest)
    again = checkpoints.read(memory.crash_clone(), DIRECTORY)
    assert (again.newest, again.is_alone) == (found.newest, False)


def tear_checkpoints(random: Random, one: FileOperation) -> FileFault | None:
    """The disk is full now and then, and takes a part of what is to be written."""
    if one.kind is FileOperationKind.WRITE and one.path.endswith("/checkpoint") and random.random() < 0.5:
        return FileFault(errno.ENOSPC, random.randrange(one.length))
    return None


def test_nothing_is_removed_while_the_log_start_that_allows_it_is_not_there_as_a_whole() -> None:
    """A full disk took a part of the next checkpoint: what the removal synced said nothing of the new log_start."""
    for seed in range(20):
        memory = MemoryVfs()
        disk = FaultyVfs(memory)
        log = open_log(disk)
        for number in range(12):
            append(log, 2, number, size_bytes=900)
        flush_and_note(log)
        removal = give_up_before(log, 16)
        assert removal is not None
        disk.plan = lambda one: (
            FileFault(errno.ENOSPC, 50) if one.kind is FileOperationKind.WRITE and "checkpoint" in one.path else None
        )
        append(log, 2, 12)
        flush_and_note(log)
        disk.plan = lambda _: None
        with pytest.raises(OSError, match="the last checkpoint write is incomplete"):
            removal.run()
        again = open_log(memory.crash_clone(Keep.SUBSET, Random(seed)))
        assert (again.state, again.damage) == (LogState.WRITABLE, ())


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_that_was_written_in_part_is_not_taken_for_durable_because_it_is_synced(seed: int) -> None:
    memory = MemoryVfs()
    disk = FaultyVfs(memory)
    open_log(disk)
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    file = CheckpointFile(disk, DIRECTORY, found.newest.sequence, found.slot)
    file.sync()
    file.write(found.newest._replace(flushed_end=1))
    for end in (2, 3):
        disk.plan = lambda one: FileFault(errno.ENOSPC, 50) if one.kind is FileOperationKind.WRITE else None
        with pytest.raises(OSError, match="No space"):
            file.write(found.newest._replace(flushed_end=end))
        disk.plan = lambda _: None
        with pytest.raises(OSError, match="the last checkpoint write is incomplete"):
            file.sync()
    newest = checkpoints.read(memory.crash_clone(Keep.SUBSET, Random(seed)), DIRECTORY).newest
    assert newest is not None
    assert newest.flushed_end in (0, 1)
    file.write(found.newest._replace(flushed_end=4))
    file.sync()
    newest = checkpoints.read(memory.crash_clone(), DIRECTORY).newest
    assert newest is not None
    assert newest.flushed_end == 4


def test_a_slot_whose_sync_failed_is_not_taken_for_durable_because_the_next_one_succeeds() -> None:
    """The kernel forgets what it could not write: the second sync has nothing left to do."""
    disk = FaultyVfs(MemoryVfs())
    open_log(disk)
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    file = CheckpointFile(disk, DIRECTORY, found.newest.sequence, found.slot)
    file.sync()
    file.write(found.newest._replace(flushed_end=1))
    disk.plan = lambda one: FileFault(errno.EIO) if one.kind is FileOperationKind.SYNC else None
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    disk.plan = lambda _: None
    with pytest.raises(OSError, match="the last checkpoint write is incomplete"):
        file.sync()
    file.write(found.newest._replace(flushed_end=2))
    again = checkpoints.read(disk, DIRECTORY)
    assert again.newest is not None
    assert (again.newest.flushed_end, again.slot) == (2, 1 - found.slot)


def everything(disk: MemoryVfs) -> dict[str, bytes]:
    return {path: disk.open(path).read_at(0, 10**7) for path in disk.files()}


@pytest.mark.parametrize(
    "values",
    [
        {"log_start": 10**6},
        {"log_start": 25},
        {"log_start": 10**6, "flushed_end": 10**6},
        {"log_start": 10**6, "flushed_end": 10**6, "segment_base": 10**6},
        {"log_start": 2**63 - 1, "flushed_end": 2**63 - 1, "segment_base": 2**63 - 1},
        {"log_start": 8, "flushed_end": 4},
        {"log_start": 24, "flushed_end": 0, "segment_base": 0, "segment_position": 0},
    ],
    ids=str,
)
def test_a_log_start_that_cannot_be_true_is_damage_and_removes_nothing(values: dict[str, int]) -> None:
    disk, wanted = closed_log()
    say(disk, **values)
    before = everything(disk)
    for _ in range(2):
        log = open_log(disk)
        assert log.state is LogState.READ_ONLY
        assert any(damage.file.endswith("checkpoint") for damage in log.damage)
        assert log.tick(10**12) is None
        assert read_slices(disk, log.view(), 0, 24) == wanted, "what is sound can be read"
        log.close()
        assert everything(disk) == before


def test_a_flushed_end_beyond_what_is_found_is_damage_and_removes_nothing() -> None:
    disk, wanted = closed_log()
    say(disk, log_start=8, flushed_end=30)
    before = everything(disk)
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    assert [(damage.base_offset, damage.end_offset) for damage in log.damage] == [(24, 30)]
    assert log.log_start == 8
    assert read_slices(disk, log.view(), 8, 24) == wanted[8:]
    assert everything(disk) == before


def test_what_retention_left_behind_is_removed_once_log_start_is_durable() -> None:
    """The process died between writing the checkpoint and syncing it; the machine dies while the next one removes."""
    disk, wanted = closed_log()
    say(disk, log_start=8)
    vfs = FaultyVfs(disk)
    clones: list[MemoryVfs] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind in {FileOperationKind.REMOVE, FileOperationKind.SYNC_DIR}:
            clones.append(disk.crash_clone())

    vfs.watcher = watch
    log = open_log(vfs)
    assert log.log_start == 8
    removal = retain(log, 0)
    assert removal is not None
    removal.run()
    assert min(int(name[:20]) for name in disk.list(DIRECTORY) if name[0] == "0") <= 8
    assert not any(int(name[:20]) < 7 for name in disk.list(DIRECTORY) if name[0] == "0")
    assert len(clones) > 2
    for clone in clones:
        again = open_log(clone)
        assert (again.state, again.damage) == (LogState.WRITABLE, ())
        assert read_slices(clone, again.view(), 8, 24) == wanted[8:]


def test_segments_below_log_start_stay_while_there_is_damage() -> None:
    disk, _ = closed_log()
    say(disk, log_start=8)
    names = list(disk.list(DIRECTORY))
    active = f"{DIRECTORY}/{[name for name in names if name.endswith('.arrows')][-1]}"
    disk.open(active).truncate(disk.open(active).size() - 1)
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    assert log.tick(10**12) is None
    assert list(disk.list(DIRECTORY)) == names


def test_a_power_loss_while_the_last_full_segment_is_removed_leaves_a_log() -> None:
    """The new segment's name must be durable before the old one's goes."""
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = open_log(vfs)
    append(log, 3)
    flush(log)
    log.configure(LogConfig(segment_bytes=4096, max_age_us=1))
    removal = retain(log, 10**12)
    assert removal is not None
    clones: list[MemoryVfs] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.REMOVE:
            clone = disk.crash_clone(Keep.ALL)
            for path in list(clone.files()):
                if path not in set(disk.crash_clone().files()):
                    clone.remove(path)  # the removal is on the disk, what was made before it is not
            clones.append(clone)

    vfs.watcher = watch
    removal.run()
    for clone in clones:
        again = open_log(clone)
        assert (again.state, again.log_start, again.log_end) == (LogState.WRITABLE, 3, 3)
    assert clones
