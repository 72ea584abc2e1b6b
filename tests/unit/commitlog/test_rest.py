"""A log that nobody writes to costs no file and no memory per batch, and goes on as if it had never rested."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig, LogFolder, LogState, OpenFiles, StorageFailedError
from penstock.commitlog.files.files import segment_path
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.damage import WIDE, flip, indexes
from tests.logs import DIRECTORY, Message, append, flush, open_log, read_batches, read_slices


def resting(disk: MemoryVfs, batches: int = 10) -> tuple[Log, list[Message]]:
    """A log of so many batches of two messages, at rest."""
    log = open_log(disk, WIDE)
    wanted = [message for number in range(batches) for message in append(log, 2, number)]
    flush(log)
    assert log.rest()
    return log, wanted


def test_a_log_goes_on_after_a_rest() -> None:
    disk = MemoryVfs()
    log, wanted = resting(disk)
    for number in range(10, 40, 3):
        for later in range(3):
            wanted += append(log, 2, number + later)
        assert read_slices(disk, log.view()) == wanted
        assert read_batches(log.view(), 0, log.log_end, reverse=True) == wanted
        end = log.log_end
        assert [log.view().offset_at(one, end=end) for one in range(end // 2)] == list(range(0, end, 2))
        assert log.view().start_keeping(1) == end - 2
        flush(log)
        assert log.rest()
        assert read_slices(disk, log.view()) == wanted
    log.close()
    assert read_slices(disk, open_log(disk, WIDE).view()) == wanted


def test_what_was_written_since_the_rest_is_read_without_a_file() -> None:
    watched: list[str] = []
    disk = MemoryVfs()
    vfs = FaultyVfs(disk, watcher=lambda operation: watched.append(operation.path))
    log = open_log(vfs, WIDE)
    for _ in range(10):
        append(log, 2)
    flush(log)
    log.rest()
    assert not log.view().in_memory(19)
    for _ in range(10):
        append(log, 2)
    view = log.view()
    assert not view.in_memory(19)
    assert view.in_memory(20)
    watched.clear()
    for offset in range(20, 40):
        found = view.slice(offset, end=37, bytes_max=2_000)
        assert (found is None) == (offset >= 36)
    assert not watched


def test_a_log_does_not_rest_while_something_waits_for_the_disk() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = open_log(vfs, WIDE)
    assert log.rest(), "it has no file before its first message"
    append(log)
    assert not log.rest()
    task = log.flush()
    assert task is not None
    assert not log.rest(), "the disk may be at it"
    task.run()
    log.flushed(task)
    assert log.rest()
    log.start_epoch(1)
    assert log.rest(), "there is nothing open that rests"
    append(log)
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=".arrows")
    task = log.flush()
    assert task is not None
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    log.flush_failed(task, OSError(errno.EIO, "Input/output error"))
    assert log.rest(), "nothing is synced any more, so nobody needs to be told of another error"
    assert log.flush() is None
    assert log.state is LogState.FENCED


def test_without_a_whole_index_the_batches_stay_in_memory() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk, nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".index"))
    log = open_log(vfs, WIDE)
    wanted = append(log, 2)
    flush(log)
    wanted += append(log, 2)
    flush(log)
    assert log.rest()
    assert log.view().in_memory(0)
    assert read_slices(disk, log.view()) == wanted


@pytest.mark.parametrize("harm", ["removed", "flipped", "empty"])
def test_an_index_that_fails_after_a_rest_is_rebuilt(harm: str) -> None:
    disk = MemoryVfs()
    log, wanted = resting(disk)
    wanted += append(log, 2, 10)
    (path,) = indexes(disk)
    match harm:
        case "removed":
            disk.remove(path)
        case "flipped":
            flip(disk, path, 5 * 64 + 9)
        case "empty":
            disk.open(path).truncate(0)
    assert read_slices(disk, log.view()) == wanted
    assert read_batches(log.view(), 0, 22) == wanted
    flush(log)
    assert log.rest()
    assert read_slices(disk, log.view()) == wanted
    log.close()
    assert read_slices(disk, open_log(disk, WIDE).view()) == wanted


def test_damage_to_a_log_at_rest_is_found_by_its_readers() -> None:
    disk = MemoryVfs()
    log, wanted = resting(disk)
    wanted += append(log, 2, 10)
    flip(disk, segment_path(DIRECTORY, 0), SCHEMA_BYTES + 1200)
    disk.remove(indexes(disk)[0])
    with pytest.raises(RemoteError, match="damaged"):
        read_batches(log.view(), 0, 22)
    assert log.state is LogState.READ_ONLY
    assert [(damage.base_offset, damage.end_offset) for damage in log.damage] == [(2, 4)]
    assert read_batches(log.view(), 4, 22) == wanted[4:]


@pytest.mark.parametrize("change", ["removed", "longer", "shorter"])
def test_a_file_that_somebody_changed_meanwhile_takes_no_message(change: str) -> None:
    disk = MemoryVfs()
    log, _ = resting(disk)
    path = segment_path(DIRECTORY, 0)
    match change:
        case "removed":
            disk.remove(path)
        case "longer":
            disk.open(path).write_at(log.size_bytes, b"x")
        case "shorter":
            disk.open(path).truncate(log.size_bytes - 1)
    with pytest.raises(StorageFailedError, match="cannot be written"):
        append(log)
    assert (log.state, log.log_end) == (LogState.FENCED, 20)
    assert "was removed or changed" in log.fence_reason


def test_a_log_at_rest_rolls_by_age_and_is_retained() -> None:
    disk = MemoryVfs()
    config = LogConfig(segment_bytes=10**6, segment_age_us=100, max_messages=5)
    log = open_log(disk, config)
    for number in range(10):
        append(log, 1, number)
    flush(log)
    assert log.rest()
    retention = log.tick(1_000_000)
    assert log.segment_count == 2
    flush(log)
    assert retention is not None
    retention.run()
    log.apply_retention(retention)
    assert log.log_start == 5
    wanted = append(log, 1, 1_000_001)
    flush(log)
    log.close()
    again = open_log(disk, config)
    assert (again.log_start, again.log_end) == (5, 11)
    assert read_batches(again.view(), 10, 11) == wanted


# A start.


def test_a_start_on_a_log_that_is_as_it_was_left_changes_nothing() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(1)
    wanted = [message for number in range(50) for message in append(log, 2, number)]
    log.close()
    changes: list[FileOperation] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind in CHANGES - {FileOperationKind.OPEN}:
            changes.append(operation)

    vfs = FaultyVfs(disk, watcher=watch)
    log = open_log(vfs, must_exist=True)
    log.tick(10**15)
    assert log.flush() is None
    log.close()
    assert not changes
    assert read_slices(disk, open_log(disk).view()) == wanted


def test_a_start_keeps_no_file_and_no_entry(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs)
    wanted = [message for number in range(10) for message in append(log, 2, number)]
    log.close()
    before = len(os.listdir("/proc/self/fd"))
    again = open_log(vfs)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not again.view().in_memory(0)
    assert read_slices(vfs, again.view()) == wanted


# Many logs.


def test_logs_share_a_bounded_number_of_files(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    files = OpenFiles(3)
    logs = [
        Log.open(LogFolder(vfs, f"streams/{number}/0", number, 0), WIDE, now_us=0, open_files=files)
        for number in range(1, 11)
    ]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for log in logs:
            append(log)
            flush(log)
            assert len(os.listdir("/proc/self/fd")) - before == len(files) <= 3
    for log in logs[:3]:
        append(log)
    with pytest.raises(StorageFailedError, match="3 logs are open"):
        append(logs[5])
    assert logs[5].state is LogState.WRITABLE
    flush(logs[1])
    append(logs[5])
    for log in logs:
        log.close()
    assert len(files) == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_log_that_another_thread_closes_is_not_asked_to_rest() -> None:
    files = OpenFiles(1)
    vfs = MemoryVfs()
    first, second = (
        Log.open(LogFolder(vfs, f"streams/{number}/0", number, 0), WIDE, now_us=0, open_files=files)
        for number in (1, 2)
    )
    append(first)
    flush(first)
    first.leave()
    append(second)
    assert len(files) == 1
    first.close()
    assert len(files) == 1


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_after_a_rest_loses_nothing_that_was_flushed(keep: Keep) -> None:
    disk = MemoryVfs()
    log, wanted = resting(disk)
    more = append(log, 2, 10)
    flush(log)
    log.rest()
    append(log, 2, 11)
    left = disk.crash_clone(keep, Random(1) if keep is Keep.SUBSET else None)
    again = open_log(left, WIDE, must_exist=True)
    assert again.state is LogState.WRITABLE
    assert read_batches(again.view(), 0, 22) == wanted + more


def test_a_log_that_takes_no_more_messages_holds_no_place() -> None:
    files = OpenFiles(1)
    vfs = FaultyVfs(MemoryVfs())
    first, second = (
        Log.open(LogFolder(vfs, f"streams/{number}/0", number, 0), WIDE, now_us=0, open_files=files)
        for number in (1, 2)
    )
    append(first)
    task = first.flush()
    assert task is not None
    assert not second.has_room
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC)
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    first.flush_failed(task, OSError(errno.EIO, "Input/output error"))
    assert second.has_room
    append(second)
    first.close()
    second.close()


def test_sealed_segments_that_wait_for_a_sync_are_counted_as_well(tmp_path: Path) -> None:
    """300 rolls without a sync held 300 descriptors, and one place."""
    vfs = RealVfs(tmp_path)
    files = OpenFiles(4)
    before = len(os.listdir("/proc/self/fd"))
    config = LogConfig(segment_bytes=4096)
    first, second = (
        Log.open(LogFolder(vfs, f"streams/{number}/0", number, 0), config, now_us=0, open_files=files)
        for number in (1, 2)
    )
    wanted = []
    folders = 2  # open as long as names in them wait for a sync
    for _ in range(30):
        wanted += append(first, 1, size_bytes=3000)
        assert len(os.listdir("/proc/self/fd")) - before <= len(files) + folders <= 4 + folders
    assert first.segment_count == 4
    assert not second.has_room
    flush(first)
    assert len(os.listdir("/proc/self/fd")) - before == len(files) == 1
    append(second)
    for _ in range(30):
        append(second, 1, size_bytes=3000)
        wanted += append(first, 1, size_bytes=3000)
        assert len(os.listdir("/proc/self/fd")) - before <= len(files) + folders
        assert len(files) <= 5, "one beyond the limit for each log"
        flush(second)
    assert first.segment_count == 5, "it has not been synced meanwhile"
    assert second.segment_count > 20
    flush(first)
    assert read_slices(vfs, first.view()) == wanted
    task = second.flush()
    assert task is None
    first.close()
    second.close()
    assert len(files) == 0
    assert len(os.listdir("/proc/self/fd")) == before
