"""What a start reads, what it takes the index's word for, and what readers may then rely on."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogState
from penstock.commitlog.files import checkpoint, lineage
from penstock.commitlog.files.files import segment_path
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import WIDE, closed_log, content, flip, indexes, readable, write
from tests.logs import DIRECTORY, Message, append, flush, flush_and_note, open_log, read_batches, read_slices, save


class Reads:
    """How many bytes of segments a start reads."""

    def __init__(self, disk: MemoryVfs) -> None:
        self.vfs = FaultyVfs(disk, watcher=self._watch)
        self.bytes = 0

    def _watch(self, operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.READ and operation.path.endswith(".arrows"):
            self.bytes += operation.length


def test_a_start_after_a_clean_stop_does_not_read_the_active_segment() -> None:
    disk, wanted = closed_log(50)
    size = disk.open(segment_path(DIRECTORY, 0)).size()
    reads = Reads(disk)
    log = open_log(reads.vfs)
    assert reads.bytes < SCHEMA_BYTES + 2 * size // 50, "the schema message, and the last batch"
    assert (log.state, log.log_end, log.last_timestamp_us) == (LogState.WRITABLE, 100, 49)
    assert read_slices(disk, log.view()) == wanted
    assert [log.view().offset_at(number, end=100) for number in range(50)] == list(range(0, 100, 2))
    wanted += append(log, 2, 60)
    log.close()
    assert read_batches(open_log(disk).view(), 0, 102) == wanted


def test_a_start_after_a_crash_reads_what_was_not_flushed() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = [message for number in range(50) for message in append(log, 2, number)]
    save(log)
    flushed = log.size_bytes
    wanted += [message for number in range(50, 60) for message in append(log, 2, number)]
    reads = Reads(disk)
    again = open_log(reads.vfs, WIDE)
    batch = (log.size_bytes - SCHEMA_BYTES) // 60
    # Once to verify, once to write it again.
    assert 2 * (log.size_bytes - flushed) <= reads.bytes < 2 * (log.size_bytes - flushed) + SCHEMA_BYTES + 2 * batch
    assert read_batches(again.view(), 0, 120) == wanted


def test_one_flush_in_many_pays_for_the_index() -> None:
    disk = MemoryVfs()
    written: list[str] = []
    vfs = FaultyVfs(disk, watcher=lambda one: written.append(one.path) if one.kind is FileOperationKind.WRITE else None)
    log = open_log(vfs, WIDE)
    written.clear()
    wanted = append(log, 1)
    flush(log)
    assert set(written) == {segment_path(DIRECTORY, 0)}, "a lone message waits for neither index nor checkpoint"
    for number in range(3 * limits.UNINDEXED_BATCHES_MAX):
        wanted += append(log, 1)
        flush_and_note(log)
        if number % 10 == 0:
            reads = Reads(disk.crash_clone(Keep.ALL))
            again = open_log(reads.vfs, WIDE)
            batch_bytes = (log.size_bytes - SCHEMA_BYTES) // len(wanted) + 8
            assert reads.bytes < batch_bytes * (limits.UNINDEXED_BATCHES_MAX + 2) + SCHEMA_BYTES
            assert read_batches(again.view(), 0, len(wanted)) == wanted
    indexed = [path for path in written if path.endswith(".index")]
    assert len(indexed) <= len(wanted) // limits.UNINDEXED_BATCHES_MAX + 1
    others = [path for path in written if path.endswith("checkpoint")]
    assert len(others) == len(wanted) - 1, "one small write each, of which nobody waits for any"


def test_many_bytes_at_once_pay_for_the_index_as_well() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    append(log, 1, size_bytes=limits.UNINDEXED_BYTES_MAX)
    flush_and_note(log)
    reads = Reads(disk.crash_clone(Keep.ALL))
    assert open_log(reads.vfs, WIDE).log_end == 1
    assert reads.bytes < limits.UNINDEXED_BYTES_MAX * 3 // 2, "once, to see that the index belongs to it"


@pytest.mark.parametrize("batch", [0, 30, 58])
def test_what_was_flushed_before_a_kill_is_not_cut_where_a_byte_has_rotted(batch: int) -> None:
    """Up to 64 flushes were named by no checkpoint: damage in them passed for a torn tail, and acked rows were cut."""
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = []
    for _ in range(60):
        wanted += append(log, 1)
        flush_and_note(log)
    path = segment_path(DIRECTORY, 0)
    flip(disk, path, SCHEMA_BYTES + (log.size_bytes - SCHEMA_BYTES) * batch // 60 + 200)
    again = open_log(disk, WIDE, must_exist=True)
    assert (again.state, again.log_end, again.cuts) == (LogState.READ_ONLY, 60, ())
    assert [(damage.base_offset, damage.end_offset) for damage in again.damage] == [(batch, batch + 1)]
    assert readable(disk, again) == wanted[:batch] + wanted[batch + 1 :]


def test_a_checkpoint_that_was_removed_is_there_again_a_second_later() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    append(log)
    flush_and_note(log)
    disk.remove(f"{DIRECTORY}/checkpoint")
    wanted = append(log)
    save(log)
    found = checkpoint.read(disk, DIRECTORY)
    assert found.newest is not None
    assert found.newest.flushed_end == log.log_end == wanted[-1][0] + 1


@pytest.mark.parametrize("harm", ["middle flipped", "short", "last batch flipped", "of another segment"])
def test_a_start_reads_from_where_the_index_cannot_vouch_on(harm: str) -> None:
    disk, wanted = closed_log(50)
    path = segment_path(DIRECTORY, 0)
    size = disk.open(path).size()
    (index,) = indexes(disk)
    lineage.rewrite(disk, DIRECTORY, (lineage.LineageEntry(1, 0),))  # else all batches are asked for theirs
    match harm:
        case "middle flipped":
            flip(disk, index, 25 * 64 + 9)
        case "short":
            disk.open(index).truncate(25 * 64 + 9)
        case "last batch flipped":
            flip(disk, path, size - 100)
        case "of another segment":
            other, _ = closed_log(50, size_bytes=50)
            write(disk, index, 0, content(other, indexes(other)[0]))
    reads = Reads(disk)
    log = open_log(reads.vfs)
    if harm == "middle flipped":
        assert reads.bytes < SCHEMA_BYTES + 2 * size // 50, "whoever looks for the entry finds out"
    elif harm == "short":
        assert size // 2 < reads.bytes < size * 6 // 10
    else:
        assert reads.bytes > size - SCHEMA_BYTES
    if harm == "last batch flipped":
        assert [(damage.base_offset, damage.end_offset) for damage in log.damage] == [(98, 100)]
        assert readable(disk, log) == wanted[:98]
    else:
        assert log.state is LogState.WRITABLE
        assert read_batches(log.view(), 0, 100) == wanted


def test_damage_that_a_reader_has_found_is_not_vouched_for_by_a_flush_afterwards() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    for _ in range(4):
        append(log, 2)
    flip(disk, segment_path(DIRECTORY, 0), SCHEMA_BYTES + 1200)
    with pytest.raises(RemoteError, match="damaged"):
        read_batches(log.view(), 0, 8)
    log.close()
    again = open_log(disk)
    assert (again.state, again.log_end) == (LogState.READ_ONLY, 8)
    assert [(damage.base_offset, damage.end_offset) for damage in again.damage] == [(2, 4)]


# What readers may rely on in a damaged log.


def damaged_log_with_a_tail() -> tuple[MemoryVfs, list[Message]]:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = [message for _ in range(6) for message in append(log, 2)]
    save(log)
    path = segment_path(DIRECTORY, 0)
    flip(disk, path, SCHEMA_BYTES + 1200)
    disk.open(path).sync()
    disk.remove(indexes(disk)[0])
    wanted += [message for _ in range(3) for message in append(log, 2)]
    return disk, wanted


def test_the_unflushed_tail_of_a_damaged_log_is_written_again_before_it_counts_as_flushed() -> None:
    disk, wanted = damaged_log_with_a_tail()
    log = open_log(disk)
    assert (log.state, log.flushed_end, log.log_end) == (LogState.READ_ONLY, 18, 18)
    left = disk.crash_clone(Keep.SYNCED)
    assert readable(left, open_log(left)) == wanted[:2] + wanted[4:], "a power loss takes nothing that was shown"


@pytest.mark.parametrize("kind", [FileOperationKind.WRITE, FileOperationKind.SYNC])
def test_the_tail_of_a_damaged_log_that_cannot_be_synced_does_not_count_as_flushed(kind: FileOperationKind) -> None:
    disk, wanted = damaged_log_with_a_tail()
    vfs = FaultyVfs(disk, nth(0, FileFault(errno.EROFS), kind, path_end=".arrows"))
    log = open_log(vfs)
    assert (log.state, log.flushed_end, log.log_end) == (LogState.READ_ONLY, 12, 18)
    assert any("cannot be synced" in notice for notice in log.notices)
    assert readable(disk, log) == wanted[:2] + wanted[4:]
    log.close()
