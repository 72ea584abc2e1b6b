"""A disk that is full or fails, at every operation."""

from __future__ import annotations

import errno

import pytest

from penstock.commitlog import LogConfig, LogState, NotWritableError, StorageFailedError, StorageFullError
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.logs import DIRECTORY, append, flush, make_batch, open_log, read_slices, retain, save

FULL = FileFault(errno.ENOSPC)
BROKEN = FileFault(errno.EIO)


def setup() -> tuple[MemoryVfs, FaultyVfs]:
    disk = MemoryVfs()
    return disk, FaultyVfs(disk)


@pytest.mark.parametrize("written_bytes", [0, 1, 100, 800])
def test_a_full_disk_in_the_middle_of_an_append_leaves_the_log_as_it_was(written_bytes: int) -> None:
    disk, vfs = setup()
    log = open_log(vfs)
    wanted = append(log, 2)
    size = log.size_bytes
    vfs.plan = nth(0, FileFault(errno.ENOSPC, written_bytes), FileOperationKind.WRITE)
    with pytest.raises(StorageFullError, match="No space left"):
        append(log, 1)
    assert (log.log_end, log.size_bytes, log.state) == (2, size, LogState.WRITABLE)
    assert read_slices(vfs, log.view()) == wanted
    # There is room again.
    wanted += append(log, 3)
    flush(log)
    assert read_slices(vfs, log.view()) == wanted
    assert read_slices(disk, open_log(disk.crash_clone()).view()) == wanted


def test_a_full_disk_when_a_segment_rolls_leaves_the_log_as_it_was() -> None:
    for fault in (
        nth(0, FULL, FileOperationKind.OPEN),
        nth(0, FileFault(errno.ENOSPC, 300), FileOperationKind.WRITE),
        nth(0, FULL, FileOperationKind.TRUNCATE),
    ):
        disk, vfs = setup()
        log = open_log(vfs)
        wanted = append(log, 1, size_bytes=3000)
        vfs.plan = fault
        with pytest.raises(StorageFullError):
            append(log, 1, size_bytes=3000)
        assert (log.log_end, log.segment_count, log.state) == (1, 1, LogState.WRITABLE)
        # Meanwhile segments may grow larger: the old one goes on, and nothing of the new one is in its way.
        log.configure(LogConfig(segment_bytes=100_000))
        wanted += append(log, 2)
        log.configure(LogConfig(segment_bytes=4096))
        wanted += append(log, 1, size_bytes=3000)
        flush(log)
        again = open_log(disk.crash_clone())
        assert (again.state, again.segment_count) == (LogState.WRITABLE, 2)
        assert read_slices(disk, again.view()) == wanted


def test_a_partial_write_that_cannot_be_undone_fences() -> None:
    disk, vfs = setup()
    log = open_log(vfs)
    wanted = append(log, 2)
    flush(log)

    def plan(operation: FileOperation) -> FileFault | None:
        return (
            FileFault(errno.EIO, 500)
            if operation.kind in {FileOperationKind.WRITE, FileOperationKind.TRUNCATE}
            else None
        )

    vfs.plan = plan
    with pytest.raises(StorageFailedError):
        append(log, 1)
    vfs.plan = no_faults
    assert log.state is LogState.FENCED
    with pytest.raises(NotWritableError):
        append(log, 1)
    assert log.flush() is None
    assert read_slices(vfs, log.view()) == wanted, "what is there can be read"
    again = open_log(disk.crash_clone(Keep.ALL))
    assert (again.log_end, again.state) == (2, LogState.WRITABLE)


def test_a_failed_sync_fences_for_good_and_is_never_tried_again() -> None:
    disk, vfs = setup()
    log = open_log(vfs)
    append(log, 2)
    flush(log)
    append(log, 2)
    vfs.plan = nth(0, BROKEN, FileOperationKind.SYNC, path_end=".arrows")
    task = log.flush()
    assert task is not None
    with pytest.raises(OSError, match="Input/output") as caught:
        task.run()
    log.flush_failed(task, caught.value)
    assert (log.state, log.flushed_end) == (LogState.FENCED, 2)
    assert log.flush() is None
    with pytest.raises(NotWritableError):
        append(log, 1)
    assert "fenced" in log.notices[-1]
    syncs = 0

    def count(operation: FileOperation) -> FileFault | None:
        nonlocal syncs
        syncs += operation.kind is FileOperationKind.SYNC
        return None

    vfs.plan = count
    assert log.tick(10**12) is None
    log.close()
    assert syncs == 0
    assert disk.crash_clone().open(f"{DIRECTORY}/{0:020d}.arrows").size() < log.size_bytes


def test_after_a_failed_sync_the_next_start_writes_the_tail_again() -> None:
    """The kernel drops what it could not write and calls it clean: syncing once more would prove nothing."""
    disk, vfs = setup()
    log = open_log(vfs)
    wanted = append(log, 2)
    save(log)
    flushed_position = log.size_bytes
    wanted += append(log, 2)
    written: list[FileOperation] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.WRITE and operation.path.endswith(".arrows"):
            written.append(operation)

    vfs.watcher = watch
    again = open_log(vfs)
    assert sum(operation.length for operation in written) == again.size_bytes - flushed_position
    assert again.flushed_end == 4
    assert read_slices(disk, open_log(disk.crash_clone()).view()) == wanted


def test_a_failed_sync_of_the_folder_fences_too() -> None:
    _, vfs = setup()
    log = open_log(vfs)
    for _ in range(3):
        append(log, 1, size_bytes=3000)
    vfs.plan = nth(0, BROKEN, FileOperationKind.SYNC_DIR)
    task = log.flush()
    assert task is not None
    with pytest.raises(OSError, match="Input/output") as caught:
        task.run()
    log.flush_failed(task, caught.value)
    assert log.state is LogState.FENCED


@pytest.mark.parametrize("path_end", ["checkpoint", ".index"])
def test_files_that_only_save_work_may_fail(path_end: str) -> None:
    disk, vfs = setup()
    log = open_log(vfs)

    def plan(operation: FileOperation) -> FileFault | None:
        return FULL if operation.path.endswith(path_end) and operation.kind is not FileOperationKind.READ else None

    vfs.plan = plan
    wanted = []
    for number in range(12):
        wanted += append(log, 1, size_bytes=1000)
        if number % 2:
            flush(log)
    assert (log.flushed_end, log.state) == (12, LogState.WRITABLE)
    assert read_slices(vfs, log.view()) == wanted
    vfs.plan = no_faults
    again = open_log(disk.crash_clone())
    assert again.state is LogState.WRITABLE
    assert read_slices(disk, again.view()) == wanted


def test_log_start_does_not_move_if_that_cannot_be_written() -> None:
    disk, vfs = setup()
    log = open_log(vfs, LogConfig(segment_bytes=4096, max_messages=2))
    for _ in range(8):
        append(log, 1, size_bytes=1500)
    flush(log)
    vfs.plan = nth(1, FULL, FileOperationKind.WRITE, path_end="checkpoint")  # the first tells what was flushed
    assert retain(log, 10**8) is None
    assert log.log_start == 0
    removal = retain(log, 10**9)
    assert removal is not None
    assert log.log_start == 6
    vfs.plan = nth(0, BROKEN, FileOperationKind.SYNC, path_end="checkpoint")
    with pytest.raises(OSError, match="Input/output"):
        removal.run()
    log.removal_failed(removal)
    assert open_log(disk.crash_clone()).log_start == 0, "nothing is removed before log_start is durable"
    again = retain(log, 2 * 10**9)
    assert again is not None
    assert again.paths == removal.paths
    again.run()
    assert open_log(disk.crash_clone()).log_start == 6


def test_every_single_failure_of_opening_is_an_error_and_leaves_a_log_that_opens() -> None:
    failed = damaged = 0
    for number in range(60):
        disk = MemoryVfs()
        log = open_log(disk)
        wanted = append(log, 1, size_bytes=3000) + append(log, 1, size_bytes=3000)
        flush(log)
        wanted += append(log, 2)
        crashed = disk.crash_clone(Keep.ALL)
        crashed.open(f"{DIRECTORY}/{1:020d}.index").truncate(10)
        vfs = FaultyVfs(crashed, nth(number, BROKEN))
        try:
            opened = open_log(vfs)
        except StorageFailedError:
            failed += 1
        else:
            # A failure that only costs work at the next start is none; one of a segment's file is that file's damage.
            damaged += opened.state is LogState.READ_ONLY
            assert opened.log_end == 4 or opened.damage
        vfs.plan = no_faults
        again = open_log(crashed)
        assert (again.state, again.damage) == (LogState.WRITABLE, ())
        assert read_slices(crashed, again.view()) == wanted
    assert failed > 10
    assert damaged > 3


def test_new_logs_need_the_disk() -> None:
    for number in range(40):
        disk, vfs = setup()
        vfs.plan = nth(number, FULL)
        try:
            log = open_log(vfs)
        except StorageFullError:
            vfs.plan = no_faults
            log = open_log(vfs)
        vfs.plan = no_faults
        log.append(*make_batch(0, 1, 0))
        flush(log)
        assert open_log(disk.crash_clone()).log_end == 1, number
