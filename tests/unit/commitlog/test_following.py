"""What a follower takes over from its leader beside batches: where the log begins, and up to where it is committed."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.commitlog import LogConfig, NotWritableError, StorageFullError
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files.checkpoint import Checkpoint, pack_slot, unpack_slot
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, nth
from penstock.vfs.memory import MemoryVfs
from tests.logs import DIRECTORY, append, flush, flush_and_note, open_log, read_slices, retain, save


def test_a_followers_log_begins_where_its_leaders_does() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(4096, max_messages=3).following())
    wanted = [message for number in range(12) for message in append(log, 2, number, size_bytes=900)]
    flush(log)
    append(log, 1)
    assert retain(log, 10**12) is None, "only the leader decides"
    log.raise_start(15)
    assert log.log_start == 15
    removal = retain(log, 10**12)
    assert removal is not None
    removal.run()
    assert min(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows")) > 10
    again = open_log(disk.crash_clone())
    assert (again.log_start, again.log_end) == (15, 24)
    assert read_slices(disk, again.view()) == wanted[15:]
    log.raise_start(3)
    assert log.log_start == 15, "it never goes back"
    log.raise_start(25)
    assert log.log_start == 24, "only what is on the disk is given up"
    flush(log)
    log.raise_start(99)
    assert log.log_start == log.log_end == 25


def test_a_log_that_cannot_write_keeps_its_start() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs)
    append(log, 5)
    flush(log)
    vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end="checkpoint")
    with pytest.raises(StorageFullError):
        log.raise_start(2)
    assert log.log_start == 0
    log.raise_start(2)
    assert log.log_start == 2
    append(log)
    task = log.flush()
    assert task is not None
    log.flush_failed(task, OSError(errno.EIO, "broken"))
    with pytest.raises(NotWritableError):
        log.raise_start(3)


def test_the_committed_end_outlives_a_crash_as_far_as_the_log_does() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    append(log, 4)
    assert log.committed_end == 0
    flush(log)
    log.note_committed(3)
    log.note_committed(2)
    assert log.committed_end == 3
    log.note_flushed()
    save(log)
    append(log, 4)
    log.note_committed(99)
    assert log.committed_end == 8, "never beyond the log"
    log.tick(3 * limits.CHECKPOINT_SYNC_INTERVAL_MS * 1_000)
    assert open_log(disk.crash_clone()).committed_end == 3
    flush(log)
    assert open_log(disk.crash_clone()).committed_end == 8
    log.close()
    assert open_log(disk).committed_end == 8


def test_a_committed_end_beyond_what_a_crash_left_is_cut_with_it() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    append(log, 2)
    flush_and_note(log)
    append(log, 2)
    log.note_committed(4)
    log.checkpoint()
    again = open_log(disk.crash_clone())
    assert (again.log_end, again.committed_end) == (2, 2)


def test_the_committed_end_is_never_below_the_start() -> None:
    log = open_log(MemoryVfs())
    append(log, 4)
    flush(log)
    log.note_committed(1)
    log.raise_start(3)
    assert log.committed_end == 3


def test_a_log_that_is_not_replicated_needs_no_checkpoint_for_it() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(1)
    append(log, 4)
    log.close()
    before = disk.open(f"{DIRECTORY}/checkpoint").read_at(0, 10**5)
    assert checkpoints.read(disk, DIRECTORY).newest is not None
    open_log(disk, must_exist=True).close()
    assert disk.open(f"{DIRECTORY}/checkpoint").read_at(0, 10**5) == before


def test_checkpoints_of_before_are_read() -> None:
    """Their bytes from 72 on are zeros: the committed end is not known."""
    slot = bytes.fromhex(
        "70656e636b7074310900000000000000070000000000000000000000030000002a00000000000000"
        "0a00000000000000b80b000000000000050000000000000040420f0000000000" + "00" * 20
    )  # fmt: skip
    old = Checkpoint(9, 7, 0, 3, 42, 10, 3000, 5, 1_000_000)
    assert pack_slot(old)[:92] == slot
    assert unpack_slot(pack_slot(old)) == old
    assert unpack_slot(pack_slot(old)).committed_end == 0
    new = old._replace(committed_end=2**63)
    assert unpack_slot(pack_slot(new)) == new


def test_a_replica_gets_what_is_not_committed_and_the_whole_batch_that_holds_the_start() -> None:
    log = open_log(MemoryVfs())
    for _ in range(3):
        append(log, 4)
    flush(log)
    log.raise_start(6)
    view = log.view()
    for offset in (4, 5, 6, 7):
        piece = view.replica_range(offset, bytes_max=1)
        assert piece is not None
        assert (piece.base_offset, piece.end_offset) == (4, 8)
    piece = view.replica_range(8, bytes_max=10**6)
    assert piece is not None
    assert piece.end_offset == log.log_end == 12
    assert view.replica_range(12, bytes_max=1) is None
    for offset in (0, 3, 13):
        with pytest.raises(RemoteError) as caught:
            view.replica_range(offset, bytes_max=1)
        assert caught.value.code == "offset_out_of_range"
        assert caught.value.details == {"log_start": 6, "log_end": 12, "replica_start": 4}
    log.raise_start(12)
    with pytest.raises(RemoteError) as caught:
        log.view().replica_range(8, bytes_max=1)
    assert caught.value.details["replica_start"] == 12


def test_what_was_written_last_is_kept_until_it_is_committed() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    append(log)
    assert log.latest is None, "nobody has asked for it"
    log.keep_latest(True)
    append(log, 2)
    latest = log.latest
    assert latest is not None
    assert (latest.base_offset, latest.end_offset) == (1, 3)
    last = log.view().replica_range(1, bytes_max=1)
    assert last is not None
    assert disk.open(last.path, read_only=True).read_at(last.position, last.length) == latest.data
    log.note_committed(2)
    assert log.latest is latest
    log.note_committed(3)
    assert log.latest is None
    append(log)
    log.keep_latest(False)
    assert log.latest is None


def test_what_is_large_is_read_from_the_file() -> None:
    log = open_log(MemoryVfs())
    log.keep_latest(True)
    append(log)
    assert log.latest is not None
    append(log, size_bytes=limits.REPLICA_MEMORY_BYTES_MAX)
    assert log.latest is None
