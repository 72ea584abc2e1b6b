"""A flush needs nothing but what is open already, and does not vouch for files that nobody can find."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.commitlog import Log, LogConfig, LogState, StorageFailedError
from penstock.vfs import Vfs
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.logs import DIRECTORY, append, flush, open_log, read_slices


@pytest.fixture(params=["real", "memory"])
def vfs(request: pytest.FixtureRequest, tmp_path: Path) -> Vfs:
    return RealVfs(tmp_path) if request.param == "real" else MemoryVfs()


@contextmanager
def no_more_descriptors() -> Iterator[Callable[[], None]]:
    """Nothing can be opened meanwhile, as when clients hold all descriptors; call what it gives to take new ones."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take_all() -> None:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))

    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        take_all()
        yield take_all
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


# Descriptors.


def test_a_file_whose_size_cannot_be_read_does_not_stay_open(tmp_path: Path) -> None:
    vfs = FaultyVfs(RealVfs(tmp_path))
    log = open_log(vfs)
    log.start_epoch(1)
    append(log)
    flush(log)
    log.rest()
    before = len(os.listdir("/proc/self/fd"))
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SIZE)
    with pytest.raises(StorageFailedError) as failed:  # it holds the frames, and what they have open
        append(log)
    assert len(os.listdir("/proc/self/fd")) == before, failed


def test_a_flush_opens_nothing_that_it_cannot_do_without(tmp_path: Path) -> None:
    """With all descriptors taken a stream was fenced until a restart, by the sync of its folder."""
    vfs = RealVfs(tmp_path)
    log = open_log(vfs)
    log.start_epoch(1)
    wanted = append(log, 1, size_bytes=3000) + append(log, 1, size_bytes=3000)
    assert log.segment_count == 2
    with no_more_descriptors() as take_all:
        with pytest.raises(OSError, match="Too many open files"):
            vfs.open_folder(DIRECTORY)
        flush(log)
        assert (log.state, log.flushed_end) == (LogState.WRITABLE, 2)
        # The segment is full, a new one cannot be opened: the message is refused, and nothing else is lost.
        for _ in range(3):
            take_all()
            with pytest.raises(StorageFailedError, match="Too many open files"):
                append(log, 1, size_bytes=3000)
            flush(log)
        assert (log.state, log.log_end, log.segment_count) == (LogState.WRITABLE, 2, 2)
    wanted += append(log, 1, size_bytes=3000)
    flush(log)
    assert read_slices(vfs, log.view()) == wanted
    log.close()
    again = open_log(vfs)
    assert (again.state, again.leader_epoch, again.segment_count) == (LogState.WRITABLE, 1, 3)
    assert read_slices(vfs, again.view()) == wanted
    again.close()


def test_a_leadership_that_cannot_begin_for_want_of_descriptors_begins_later(tmp_path: Path) -> None:
    log = open_log(RealVfs(tmp_path))
    with no_more_descriptors(), pytest.raises(StorageFailedError, match="Too many open files"):
        log.start_epoch(1)
    assert (log.state, log.leader_epoch) == (LogState.WRITABLE, 0)
    log.start_epoch(1)
    append(log)
    flush(log)
    assert (log.flushed_end, log.leader_epoch) == (1, 1)
    log.close()


def test_no_descriptor_is_left_over(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    log = open_log(vfs)
    for epoch in range(1, 4):
        log.start_epoch(epoch)
        for _ in range(3):
            append(log, 1, size_bytes=3000)
        flush(log)
        assert len(os.listdir("/proc/self/fd")) == before + 1, "the active segment"
    append(log, 1, size_bytes=3000)
    log.start_epoch(9)
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
def test_only_a_sync_that_fails_fences(error_number: int) -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs)
    log.start_epoch(1)
    for _ in range(3):
        append(log, 1, size_bytes=3000)

    def plan(operation: FileOperation) -> FileFault | None:
        return (
            FileFault(error_number)
            if operation.kind
            in {FileOperationKind.OPEN, FileOperationKind.LIST, FileOperationKind.SIZE, FileOperationKind.READ}
            else None
        )

    vfs.plan = plan
    flush(log)
    assert (log.state, log.flushed_end) == (LogState.WRITABLE, 3)
    vfs.plan = no_faults
    assert open_log(vfs.inner).log_end == 3


# Names.


def taken_away(vfs: Vfs) -> list[Callable[[], None]]:
    return [
        lambda: vfs.remove(f"{DIRECTORY}/{0:020d}.arrows"),
        lambda: vfs.remove(DIRECTORY),
        lambda: vfs.remove("streams"),
        lambda: vfs.rename(DIRECTORY.rpartition("/")[0], "elsewhere"),
    ]


@pytest.mark.parametrize("which", range(4), ids=["file", "folder", "all streams", "moved"])
def test_rows_in_a_file_that_nobody_can_find_are_not_acked(vfs: Vfs, which: int) -> None:
    log = open_log(vfs)
    append(log)
    flush(log)
    taken_away(vfs)[which]()
    append(log)
    task = log.flush()
    assert task is not None
    with pytest.raises(FileNotFoundError, match="removed or moved") as caught:
        task.run()
    log.flush_failed(task, caught.value)
    assert (log.state, log.flushed_end) == (LogState.FENCED, 1)
    assert "removed or moved" in log.notices[-1]
    if which:
        assert list(vfs.list(DIRECTORY)) == [], "nothing is made in its place"


def test_a_sealed_segment_that_was_removed_before_it_was_synced_is_noticed(vfs: Vfs) -> None:
    log = open_log(vfs)
    append(log, 1, size_bytes=3000)
    append(log, 1, size_bytes=3000)
    vfs.remove(f"{DIRECTORY}/{0:020d}.arrows")
    task = log.flush()
    assert task is not None
    with pytest.raises(FileNotFoundError):
        task.run()


def test_a_roll_does_not_make_a_folder_that_was_taken_away(vfs: Vfs) -> None:
    log = open_log(vfs)
    append(log, 1, size_bytes=3000)
    vfs.remove("streams")
    with pytest.raises(StorageFailedError):
        append(log, 1, size_bytes=3000)
    with pytest.raises(StorageFailedError):
        log.start_epoch(1)
    with pytest.raises(StorageFailedError):
        log.close()
    assert list(vfs.list("")) == []


def test_segments_that_retention_removes_while_they_are_synced_alarm_nobody(vfs: Vfs) -> None:
    """Everything in them was durable before: log_start never passes flushed_end."""
    log = open_log(vfs)
    append(log, 3)
    flush(log)
    log.configure(LogConfig(segment_bytes=4096, segment_age_us=1))
    log.tick(10**6)
    assert log.segment_count == 2
    task = log.flush()
    assert task is not None
    vfs.remove(f"{DIRECTORY}/{0:020d}.arrows")
    task.run()
    log.flushed(task)
    assert (log.state, log.flushed_end) == (LogState.WRITABLE, 3)
    log.close()


def test_a_clone_of_a_new_segment_holds_its_name_after_the_flush() -> None:
    disk = MemoryVfs()
    log: Log = open_log(disk)
    wanted = append(log, 1, size_bytes=3000) + append(log, 1, size_bytes=3000)
    flush(log)
    clone = disk.crash_clone(Keep.SYNCED)
    again = open_log(clone)
    assert (again.state, again.segment_count) == (LogState.WRITABLE, 2)
    assert read_slices(clone, again.view()) == wanted
