"""What a start makes of damage: nothing flushed is cut, nothing that is not understood is deleted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.base.errors import RemoteError
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import LineageEntry, Log, LogConfig, LogFolder, LogMissingError, LogState, StorageFailedError
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files.checkpoint import CheckpointFile
from penstock.commitlog.files.files import segment_path
from penstock.commitlog.files.lineage import pack_entry
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import WIDE, closed_log, content, flip, indexes, readable, write
from tests.groups import Columns, encoded
from tests.logs import (
    DIRECTORY,
    PARTITION,
    STREAM_ID,
    append,
    flush,
    give_up_before,
    make_batch,
    open_log,
    read_batches,
    read_slices,
    retain,
)

CHECKPOINT = f"{DIRECTORY}/checkpoint"
LINEAGE = f"{DIRECTORY}/lineage"

# Index.


@pytest.mark.parametrize(
    "harm",
    [
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.open(path).truncate(0),
        lambda disk, path: disk.open(path).truncate(100),
        lambda disk, path: disk.open(path).truncate(64),
        lambda disk, path: flip(disk, path, 5),
        lambda disk, path: flip(disk, path, 64 + 20),
        lambda disk, path: write(disk, path, 0, Random(1).randbytes(640)),
        lambda disk, path: write(disk, path, 10**4, b"more"),
    ],
    ids=["missing", "empty", "short", "one entry", "first flipped", "middle flipped", "garbage", "too long"],
)
@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_a_corrupt_index_is_rebuilt(harm: Callable[[MemoryVfs, str], None], when: str) -> None:
    """Liftbridge panicked at start on a corrupt index (its issue 411)."""
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    before = {path: content(disk, path) for path in indexes(disk)}
    assert len(before) > 3
    log = open_log(disk) if when == "while it runs" else None
    for path in before:
        harm(disk, path)
    log = log or open_log(disk)
    assert (log.state, log.damage, log.cuts) == (LogState.WRITABLE, (), ())
    view = log.view()
    assert read_slices(disk, view) == wanted
    assert read_batches(view, 0, 60, reverse=True) == wanted
    assert [view.offset_at(number, end=60) for number in range(30)] == [2 * number for number in range(30)]
    log.close()
    open_log(disk).close()
    assert {path: content(disk, path) for path in indexes(disk)} == before


def test_an_index_that_a_flush_wrote_for_a_removed_segment_is_removed() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = [message for _ in range(8) for message in append(log, 1, size_bytes=900)]
    flush(log)
    wanted += append(log, 1, size_bytes=4000)
    task = log.flush()
    assert task is not None
    removal = give_up_before(log, 8)
    assert removal is not None
    removal.run()
    task.run()
    log.flushed(task)
    names = disk.list(DIRECTORY)
    assert [name for name in names if name.endswith(".index")] == [
        name.replace("arrows", "index") for name in names if name.endswith(".arrows")
    ]
    # The removal may also come between the flush's look at the name and its write.
    gone = disk.open(f"{DIRECTORY}/{0:020d}.index", create=True)
    gone.write_at(0, b"entries")
    gone.close()
    again = open_log(disk)
    assert read_slices(disk, again.view()) == wanted[8:]
    removal = retain(again, 0)
    assert removal is not None
    removal.run()
    names = disk.list(DIRECTORY)
    assert [name for name in names if name.endswith(".index")] == [
        name.replace("arrows", "index") for name in names if name.endswith(".arrows")
    ]


# Checkpoint.


@pytest.mark.parametrize(
    "harm",
    [
        lambda disk: disk.open(CHECKPOINT).truncate(0),
        lambda disk: disk.open(CHECKPOINT).truncate(50),
        lambda disk: disk.remove(CHECKPOINT),
        lambda disk: write(disk, CHECKPOINT, 0, bytes(8192)),
        lambda disk: write(disk, CHECKPOINT, 0, Random(2).randbytes(8192)),
        lambda disk: flip(disk, CHECKPOINT, 33),
        lambda disk: flip(disk, CHECKPOINT, 4096 + 33),
    ],
    ids=["empty", "short", "missing", "zeros", "garbage", "first slot flipped", "second slot flipped"],
)
def test_an_empty_or_corrupt_checkpoint_does_not_prevent_the_start(harm: Callable[[MemoryVfs], None]) -> None:
    """Liftbridge did not start with an empty checkpoint (its issue 333)."""
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    harm(disk)
    log = open_log(disk)
    assert (log.state, log.log_end, log.flushed_end) == (LogState.WRITABLE, 60, 60)
    assert read_slices(disk, log.view()) == wanted
    wanted += append(log, 1)
    log.close()
    assert read_slices(disk, open_log(disk).view()) == wanted


def test_without_a_checkpoint_a_torn_tail_is_cut_and_kept() -> None:
    disk, wanted = closed_log(5)
    disk.remove(CHECKPOINT)
    path = segment_path(DIRECTORY, 0)
    size = disk.open(path).size()
    disk.open(path).truncate(size - 10)
    tail = content(disk, path)[-(size - SCHEMA_BYTES) // 5 + 10 :]
    log = open_log(disk, WIDE)
    assert (log.state, log.log_end) == (LogState.WRITABLE, 8)
    (cut,) = log.cuts
    assert cut.kept_as is not None
    assert content(disk, cut.kept_as) == tail
    assert read_slices(disk, log.view()) == wanted[:8]
    # The same place is cut again: the first side file stays.
    disk.remove(CHECKPOINT)
    append(log, 2)
    disk.open(path).truncate(disk.open(path).size() - 3)
    (second,) = open_log(disk).cuts
    assert second.kept_as not in {None, cut.kept_as}
    assert content(disk, cut.kept_as) == tail


def test_without_a_checkpoint_damage_before_whole_batches_is_not_cut() -> None:
    disk, wanted = closed_log(5)
    disk.remove(CHECKPOINT)
    path = segment_path(DIRECTORY, 0)
    flip(disk, path, SCHEMA_BYTES + 800)
    before = content(disk, path)
    log = open_log(disk)
    assert (log.state, log.cuts) == (LogState.READ_ONLY, ())
    assert content(disk, path) == before
    assert readable(disk, log) == wanted[2:]


# Damage below flushed_end.


@pytest.mark.parametrize("found_by", ["start", "reader", "query from its end"])
@pytest.mark.parametrize("place", [0, 20, 40, 100, 300, 719, 720, 900])
def test_a_flipped_bit_below_flushed_end_is_reported_and_everything_else_is_readable(place: int, found_by: str) -> None:
    disk, wanted = closed_log(12)
    path = segment_path(DIRECTORY, 0)
    size = (disk.open(path).size() - SCHEMA_BYTES) // 12
    flip(disk, path, SCHEMA_BYTES + 4 * size + place)
    before = content(disk, path)
    if found_by == "start":
        disk.remove(indexes(disk)[0])
    else:
        log = open_log(disk)
        assert log.state is LogState.WRITABLE, "what was flushed and has an index is not read at every start"
        with pytest.raises(RemoteError, match="damaged"):
            read_batches(log.view(), 0, 24, reverse=found_by != "reader")
        assert log.state is LogState.READ_ONLY
        (seen,) = log.damage
        assert (seen.position, seen.base_offset, seen.end_offset) == (SCHEMA_BYTES + 4 * size, 8, 10)
        log.close()
    for _ in range(2):  # every start from now on knows it
        log = open_log(disk)
        assert log.state is LogState.READ_ONLY
        (damage,) = log.damage
        assert (damage.file, damage.position) == (path, SCHEMA_BYTES + 4 * size)
        assert (damage.base_offset, damage.end_offset) == (8, 10)
        assert (log.log_end, log.cuts) == (24, ())
        assert readable(disk, log) == wanted[:8] + wanted[10:]
        assert content(disk, path) == before
        with pytest.raises(RemoteError, match="damaged") as caught:
            log.view().slice(9, end=24, bytes_max=10)
        assert caught.value.details == {
            "file": path, "position": damage.position, "base_offset": 8, "end_offset": 10,
            "expected": damage.expected, "found": damage.found
        }  # fmt: skip
        with pytest.raises(RemoteError, match="damaged"):
            read_batches(log.view(), 0, 24)
        with pytest.raises(RemoteError, match="damaged"):
            read_batches(log.view(), 0, 24, reverse=True)
        assert read_batches(log.view(), 10, 24, reverse=True) == wanted[10:]
        piece = log.view().slice(0, end=24, bytes_max=10**6)
        assert piece is not None
        assert (piece.end_offset, piece.position + piece.length) == (8, damage.position), "it stops at the damage"
        assert log.view().offset_at(7, end=24) == 14
        log.close()


def test_a_lost_tail_below_flushed_end_is_damage_and_its_offsets_are_never_given_again() -> None:
    disk, wanted = closed_log(6)
    path = segment_path(DIRECTORY, 0)
    size = (disk.open(path).size() - SCHEMA_BYTES) // 6
    for cut_bytes in (size, size + 10):  # at the end of a batch, and within one
        clone = disk.crash_clone()
        clone.open(path).truncate(SCHEMA_BYTES + 6 * size - cut_bytes)
        log = open_log(clone)
        assert log.state is LogState.READ_ONLY
        (damage,) = log.damage
        assert damage.end_offset == log.log_end == 12
        assert readable(clone, log) == wanted[: damage.base_offset]


def test_damage_in_a_sealed_segment_is_found_by_the_reader_and_makes_the_log_read_only() -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    path = segment_path(DIRECTORY, 0)
    size = (disk.open(path).size() - SCHEMA_BYTES) // (disk.open(path).size() // 950)
    flip(disk, path, SCHEMA_BYTES + size + 750)
    log = open_log(disk)
    assert log.state is LogState.WRITABLE, "sealed segments are not read at every start"
    with pytest.raises(RemoteError, match="CRC-32C"):
        read_batches(log.view(), 0, 60)
    assert log.state is LogState.READ_ONLY
    (damage,) = log.damage
    assert (damage.file, damage.base_offset, damage.end_offset) == (path, 2, 4)
    assert read_batches(log.view(), 4, 60) == wanted[4:]
    # With its index gone, the next start reads the segment and finds the same; so does the one after.
    disk.remove(indexes(disk)[0])
    for _ in range(2):
        again = open_log(disk)
        assert [(d.file, d.position, d.base_offset, d.end_offset) for d in again.damage] == [
            (damage.file, damage.position, 2, 4)
        ]
        assert readable(disk, again) == wanted[:2] + wanted[4:]


def test_a_removed_segment_in_the_middle_is_damage() -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    bases = sorted(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows"))
    disk.remove(segment_path(DIRECTORY, bases[1]))
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    (damage,) = log.damage
    assert (damage.base_offset, damage.end_offset) == (bases[1], bases[2])
    assert readable(disk, log) == wanted[: bases[1]] + wanted[bases[2] :]


def test_a_removed_first_or_only_segment_is_damage() -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    bases = sorted(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows"))
    disk.remove(segment_path(DIRECTORY, 0))
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    assert (log.damage[0].base_offset, log.damage[0].end_offset) == (0, bases[1])
    assert read_slices(disk, log.view()) == wanted[bases[1] :]
    for base in bases:
        disk.remove(segment_path(DIRECTORY, base))
    log = open_log(disk)
    assert (log.state, log.log_end) == (LogState.READ_ONLY, 60)
    assert readable(disk, log) == []


@pytest.mark.parametrize("name", ["checkpoint.bak", "checkpoints.txt", "lineage.cut-0"])
def test_a_lost_first_segment_is_damage_whatever_other_files_are_called(name: str) -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    disk.remove(segment_path(DIRECTORY, 0))
    disk.open(f"{DIRECTORY}/{name}", create=True)
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    (damage,) = log.damage
    assert (damage.base_offset, damage.end_offset) == (0, log.log_start)
    assert read_slices(disk, log.view()) == wanted[log.log_start :]


def test_a_lost_slot_of_the_checkpoint_may_have_known_of_a_removal() -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    first = sorted(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows"))[1]
    disk.remove(segment_path(DIRECTORY, 0))
    flip(disk, CHECKPOINT, 40)
    log = open_log(disk)
    assert (log.state, log.log_start) == (LogState.WRITABLE, first)
    assert any("the corrupt checkpoint slot" in notice for notice in log.notices)
    assert read_slices(disk, log.view()) == wanted[first:]


def test_a_log_that_must_exist_is_never_begun_anew() -> None:
    disk = MemoryVfs()
    with pytest.raises(LogMissingError, match=f"{DIRECTORY}.*created here earlier"):
        open_log(disk, must_exist=True)
    assert disk.list("") == [], "nothing is written in its place"
    log = open_log(disk)
    wanted = append(log, 3)
    log.close()
    again = open_log(disk, must_exist=True)
    assert read_slices(disk, again.view()) == wanted
    again.close()
    for name in disk.list(DIRECTORY):
        if name != "lineage":
            disk.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(LogMissingError):
        open_log(disk, must_exist=True)


def test_a_checkpoint_without_any_segment_is_damage_even_if_nothing_was_flushed() -> None:
    """The log was durable before its mark was made, so the segment was there."""
    disk = MemoryVfs()
    open_log(disk)
    disk.remove(segment_path(DIRECTORY, 0))
    log = open_log(disk, must_exist=True)
    assert log.state is LogState.READ_ONLY
    assert [damage.reason for damage in log.damage] == ["the segment file is missing"]
    assert log.view().slice(0, end=0, bytes_max=1) is None
    assert not any(name.endswith(".arrows") for name in disk.list(DIRECTORY))


LEFT_OF_THE_SEGMENT = {
    "no file": None,
    "an empty file": b"",
    "zeros": bytes(SCHEMA_BYTES),
    "its second sector": bytes(512) + schema_message(STREAM_ID, PARTITION)[512:],
    "a part": schema_message(STREAM_ID, PARTITION)[:100] + bytes(SCHEMA_BYTES - 100),
    "all of it": schema_message(STREAM_ID, PARTITION),
}


@pytest.mark.parametrize("left", LEFT_OF_THE_SEGMENT.values(), ids=LEFT_OF_THE_SEGMENT)
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_what_a_crash_leaves_of_a_new_log_is_begun_anew(left: bytes | None, has_checkpoint: bool) -> None:
    """Segment and checkpoint are synced together, so that each may be there without the other."""
    disk = MemoryVfs()
    open_log(disk)
    disk.remove(segment_path(DIRECTORY, 0))
    if left is not None:
        disk.open(segment_path(DIRECTORY, 0), create=True).write_at(0, left)
    if not has_checkpoint:
        disk.remove(f"{DIRECTORY}/{CHECKPOINT}")
    log = open_log(disk)
    assert (log.state, log.damage, log.log_end) == (LogState.WRITABLE, (), 0)
    wanted = append(log, 3)
    flush(log)
    again = open_log(disk.crash_clone(), must_exist=True)
    assert (again.state, again.damage) == (LogState.WRITABLE, ())
    assert read_slices(disk, again.view()) == wanted


def test_a_segment_that_a_failed_sync_left_in_the_page_cache_is_written_again() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk, plan=_failed_segment_sync)
    with pytest.raises(StorageFailedError):
        open_log(vfs)
    disk.fail_sync(segment_path(DIRECTORY, 0))
    open_log(disk)
    clone = disk.crash_clone(Keep.SYNCED)
    assert content(clone, segment_path(DIRECTORY, 0)) == schema_message(STREAM_ID, PARTITION)
    assert open_log(clone, must_exist=True).state is LogState.WRITABLE


def _failed_segment_sync(operation: FileOperation) -> FileFault | None:
    is_of_segment = operation.kind is FileOperationKind.SYNC and operation.path == segment_path(DIRECTORY, 0)
    return FileFault(errno.EIO) if is_of_segment else None


@pytest.mark.parametrize("field", ["log_start", "flushed_end", "leader_epoch"])
def test_without_its_mark_a_log_that_was_used_is_not_begun_anew(field: str) -> None:
    disk = MemoryVfs()
    open_log(disk)
    point = checkpoints.read(disk, DIRECTORY).newest
    assert point is not None
    CheckpointFile(disk, DIRECTORY, 1, 1).write(point._replace(**{field: 1}))
    disk.remove(segment_path(DIRECTORY, 0))
    assert open_log(disk).state is LogState.READ_ONLY


def test_without_its_mark_a_log_that_was_led_is_not_begun_anew() -> None:
    """The first checkpoint stays for long: that a leader wrote here is in the lineage."""
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(1)
    append(log, 3)
    flush(log)
    left = disk.crash_clone(Keep.SYNCED)
    left.remove(segment_path(DIRECTORY, 0))
    again = open_log(left)
    assert again.state is LogState.READ_ONLY
    assert [damage.reason for damage in again.damage] == ["the segment file is missing"]


@pytest.mark.parametrize("kind", [FileOperationKind.OPEN, FileOperationKind.SIZE, FileOperationKind.READ])
def test_without_its_mark_a_log_whose_segment_cannot_be_read_is_opened_as_damaged(kind: FileOperationKind) -> None:
    disk = MemoryVfs()
    append(open_log(disk), 3)
    path = segment_path(DIRECTORY, 0)

    def fail(operation: FileOperation) -> FileFault | None:
        return FileFault(errno.EIO) if operation.kind is kind and operation.path == path else None

    log = open_log(FaultyVfs(disk, plan=fail))
    assert log.state is LogState.READ_ONLY
    assert log.damage


# Files that are not ours.


def test_a_segment_of_another_stream_is_reported_and_left_alone() -> None:
    """A stream that was deleted and created again is another stream (Liftbridge lost messages there, its issue 367)."""
    disk, _ = closed_log(5)
    before = content(disk, segment_path(DIRECTORY, 0))
    log = Log.open(LogFolder(disk, DIRECTORY, STREAM_ID + 1, PARTITION), WIDE, now_us=0)
    assert log.state is LogState.READ_ONLY
    assert "stream 7, partition 0" in log.damage[0].reason
    assert content(disk, segment_path(DIRECTORY, 0)) == before
    assert open_log(disk).log_end == 10, "its own stream still reads it"


def test_a_segment_of_a_newer_format_is_reported_and_left_alone() -> None:
    disk, wanted = closed_log(30, LogConfig(segment_bytes=6000))
    path = segment_path(DIRECTORY, 0)
    write(disk, path, 212, b"2")
    before = content(disk, path)
    log = open_log(disk)
    (damage,) = log.damage
    assert "upgrade" in damage.reason
    assert content(disk, path) == before
    assert damage.end_offset is not None
    assert readable(disk, log) == wanted[damage.end_offset :]
    assert log.view().offset_at(0, end=60) == damage.end_offset
    assert log.view().offset_at(29, end=60) == 58


def test_a_broken_schema_message_loses_no_batch() -> None:
    disk, wanted = closed_log(5)
    flip(disk, segment_path(DIRECTORY, 0), 300)
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    assert [(damage.base_offset, damage.end_offset, damage.position) for damage in log.damage] == [(0, 0, 300)]
    assert read_slices(disk, log.view()) == wanted


def test_files_that_are_not_of_a_log_are_named_and_left_alone() -> None:
    disk, wanted = closed_log(5)
    for name in ("notes.txt", "123.arrows", "99999999999999999999.arrows", ".nfs00000000a1b2c3"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    log = open_log(disk)
    assert log.state is LogState.WRITABLE
    assert sorted(notice.split(":")[0].rsplit("/")[-1] for notice in log.notices) == [
        "123.arrows", "99999999999999999999.arrows", "notes.txt"
    ]  # fmt: skip
    assert read_slices(disk, log.view()) == wanted
    assert "notes.txt" in disk.list(DIRECTORY)


def test_segments_that_overlap_are_reported_and_left_alone() -> None:
    disk, wanted = closed_log(5)
    data, _ = make_batch(4, 1, 9)
    path = segment_path(DIRECTORY, 4)
    disk.open(path, create=True).write_at(0, schema_message(STREAM_ID, PARTITION), data)
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    assert [damage.file for damage in log.damage if "begins" in damage.reason] != []
    assert readable(disk, log)[:4] == wanted[:4]
    assert content(disk, path)[SCHEMA_BYTES:] == data


# Beyond flushed_end.


def test_every_length_of_a_torn_tail_is_cut_to_whole_batches() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = append(log, 1) + append(log, 2)
    flush(log)
    flushed = log.size_bytes
    append(log, 1)
    for length in range(flushed, log.size_bytes, 7):
        clone = disk.crash_clone(Keep.ALL)
        clone.open(segment_path(DIRECTORY, 0)).truncate(length)
        again = open_log(clone)
        assert (again.state, again.log_end, again.damage) == (LogState.WRITABLE, 3, ())
        assert [cut.length_bytes for cut in again.cuts] == ([length - flushed] if length > flushed else [])
        assert read_slices(clone, again.view()) == wanted


def test_zeros_at_the_tail_are_cut_without_a_side_file() -> None:
    disk, wanted = closed_log(3)
    path = segment_path(DIRECTORY, 0)
    disk.open(path).truncate(disk.open(path).size() + 5000)
    for remove_checkpoint in (False, True):
        clone = disk.crash_clone(Keep.ALL)
        if remove_checkpoint:
            clone.remove(CHECKPOINT)
        log = open_log(clone)
        assert [(cut.length_bytes, cut.kept_as) for cut in log.cuts] == [(5000, None)]
        assert read_slices(clone, log.view()) == wanted


@pytest.mark.parametrize("length", [0, 1, 300, SCHEMA_BYTES - 1])
@pytest.mark.parametrize("zeros", [True, False])
def test_a_crash_while_a_segment_is_created_is_completed(length: int, zeros: bool) -> None:
    disk, wanted = closed_log(3)
    start = bytes(length) if zeros else schema_message(STREAM_ID, PARTITION)[:length]
    disk.open(segment_path(DIRECTORY, 6), create=True).write_at(0, start)
    log = open_log(disk)
    assert (log.state, log.segment_count) == (LogState.WRITABLE, 2)
    wanted += append(log, 1)
    log.close()
    assert content(disk, segment_path(DIRECTORY, 6)).startswith(schema_message(STREAM_ID, PARTITION))
    assert read_slices(disk, open_log(disk).view()) == wanted


def test_a_message_that_holds_a_batch_does_not_forge_one_when_its_own_batch_is_damaged() -> None:
    """A publisher can put anything into a value; behind damage only what fits on is taken."""
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = append(log, 2)
    forged, _ = make_batch(1, 1, 0)
    columns = Columns([b"s"], None, [b"\0" * 4 + forged + forged], None)
    data = bytes(encoded(columns, base_offset=2, timestamp_us=0, leader_epoch=1))
    log.append(data, codec.read_header(data))
    position = log.size_bytes - len(data)
    wanted += [(2, 0, columns.values[0] or b"")]
    wanted += append(log, 1)
    log.close()
    flip(disk, segment_path(DIRECTORY, 0), position + 2)
    disk.remove(indexes(disk)[0])
    again = open_log(disk)
    assert [(damage.base_offset, damage.end_offset) for damage in again.damage] == [(2, 3)]
    assert readable(disk, again) == wanted[:2] + wanted[3:]


# Lineage.


def test_a_damaged_lineage_is_kept_aside_and_written_anew() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for epoch in (1, 2, 3):
        log.start_epoch(epoch)
        append(log, 1)
    log.close()
    flip(disk, LINEAGE, 24 + 3)
    broken = content(disk, LINEAGE)
    again = open_log(disk)
    assert again.state is LogState.WRITABLE
    assert again.lineage == (LineageEntry(1, 0), LineageEntry(2, 1), LineageEntry(3, 2)), "all batches say so"
    assert again.leader_epoch == 3
    assert content(disk, f"{DIRECTORY}/lineage.cut-24") == broken[24:]
    again.start_epoch(4)
    again.close()
    assert [entry.leader_epoch for entry in open_log(disk).lineage] == [1, 2, 3, 4]


def test_a_lineage_without_the_batches_that_a_lost_checkpoint_brings_back_is_rebuilt() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=4096))
    for epoch in (1, 2):
        log.start_epoch(epoch)
        append(log, 1, size_bytes=5000)
    flush(log)
    log.raise_start(1)
    log.close()
    disk.open(LINEAGE).truncate(0)
    assert open_log(disk).lineage == (LineageEntry(2, 1),), "of the batches from the log's start on"
    disk.remove(f"{DIRECTORY}/checkpoint")
    again = open_log(disk)
    assert again.log_start == 0
    assert again.lineage == (LineageEntry(1, 0), LineageEntry(2, 1))


def test_a_torn_lineage_entry_is_dropped_quietly() -> None:
    disk, _ = closed_log(2)
    log = open_log(disk)
    log.start_epoch(5)
    log.close()
    disk.open(LINEAGE).truncate(20)
    again = open_log(disk)
    assert again.lineage == (LineageEntry(1, 0),), "as the batches say"
    assert again.leader_epoch == 5
    assert [name for name in disk.list(DIRECTORY) if "cut" in name] == []


def test_a_lineage_that_only_the_page_cache_has_is_on_the_disk_before_its_batches_count_as_flushed() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(1)
    append(log, 3)
    flush(log)
    log.start_epoch(2)
    append(log, 3)
    again = open_log(disk)  # the process died, the machine did not
    for _ in range(40):  # until it lies in a sealed segment, whose index vouches for it
        append(again)
        flush(again)
        again.tick(again.last_timestamp_us)
    after = open_log(disk.crash_clone())
    assert after.log_end == 46
    assert after.lineage == (LineageEntry(1, 0), LineageEntry(2, 3))


@pytest.mark.parametrize("entry", [LineageEntry(2**32, 3), LineageEntry(2**64 - 1, 3), LineageEntry(9, 2**63)])
def test_an_entry_of_the_lineage_that_no_leadership_can_have_is_a_mistake(entry: LineageEntry) -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    log.start_epoch(1)
    wanted = append(log, 3)
    log.close()
    write(disk, LINEAGE, len(content(disk, LINEAGE)), pack_entry(entry))
    log = open_log(disk, WIDE)
    assert (log.state, log.damage) == (LogState.WRITABLE, ())
    assert entry not in log.lineage
    assert readable(disk, log) == wanted
    log.start_epoch(log.leader_epoch + 1)
    log.close()


@pytest.mark.parametrize("name", ["sequence", "flushed_end", "segment_position", "log_start", "committed_end"])
def test_a_slot_of_the_checkpoint_with_numbers_that_cannot_be_is_a_mistake(name: str) -> None:
    disk, wanted = closed_log(6)
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    for slot in (0, 1):
        broken = found.newest._replace(**{name: 2**64 - 1 - slot})
        write(disk, CHECKPOINT, slot * checkpoints.SLOT_STEP_BYTES, checkpoints.pack_slot(broken))
    log = open_log(disk, WIDE)
    assert (log.log_start, log.log_end, log.damage) == (0, len(wanted), ())
    assert readable(disk, log) == wanted
    log.close()
    assert readable(disk, open_log(disk, WIDE)) == wanted


def test_a_log_without_segments_does_not_begin_behind_its_end() -> None:
    disk, _ = closed_log(6)
    found = checkpoints.read(disk, DIRECTORY)
    assert found.newest is not None
    broken = found.newest._replace(sequence=99, log_start=50, flushed_end=3)
    write(disk, CHECKPOINT, 0, checkpoints.pack_slot(broken))
    disk.remove(segment_path(DIRECTORY, 0))
    log = open_log(disk, WIDE)
    assert log.state is LogState.READ_ONLY
    assert log.log_start <= log.log_end == 3
    assert readable(disk, log) == []


def test_a_flipped_bit_above_a_purge_is_one_damage_of_offsets_that_are_still_there() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    for _ in range(12):
        append(log, 10, log.log_end)
    flush(log)
    give_up_before(log, 70)
    flush(log)
    for path in indexes(disk):
        disk.remove(path)
    path = segment_path(DIRECTORY, 0)
    flip(disk, path, SCHEMA_BYTES + 5)
    (damage,) = open_log(disk, WIDE).damage
    assert damage.file == path
    assert damage.base_offset >= 70 or damage.base_offset == damage.end_offset
