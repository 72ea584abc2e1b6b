"""Verifying the files of a log: what is sound, what is damaged, and what is not judged."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.batch import layout
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import Log
from penstock.commitlog.errors import FileMistake
from penstock.commitlog.files.files import segment_path
from penstock.commitlog.files.lineage import LineageEntry, pack_entry
from penstock.commitlog.verify.verifying import (
    NotALogError,
    VerifiedLog,
    log_bounds,
    size_of,
    verify_log,
    verify_segment,
)
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import Keep, MemoryFile, MemoryVfs
from tests.damage import WIDE, content, flip, write
from tests.extent import each_change
from tests.logs import (
    DIRECTORY,
    PARTITION,
    SMALL,
    STREAM_ID,
    append,
    clean_all,
    give_up_before,
    make_batch,
    open_log,
    run,
    save,
)
from tests.work import lines_run

SEGMENT = f"{DIRECTORY}/{0:020d}.arrows"
INDEX = f"{DIRECTORY}/{0:020d}.index"
CHECKPOINT = f"{DIRECTORY}/checkpoint"
LINEAGE = f"{DIRECTORY}/lineage"


def small_log() -> tuple[MemoryVfs, Log]:
    """A log of small segments, which is led."""
    disk = MemoryVfs()
    log = open_log(disk, SMALL)
    log.start_epoch(1)
    return disk, log


def closed_log(batches: int = 12) -> MemoryVfs:
    """A log that was stopped cleanly: one segment of batches of two."""
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    log.start_epoch(1)
    for number in range(batches):
        append(log, 2, number)
    log.close()
    return disk


def verified(disk: MemoryVfs) -> VerifiedLog:
    """What is found; nothing is written."""
    before = {path: content(disk, path) for path in disk.files()}
    found = verify_log(disk, DIRECTORY)
    assert {path: content(disk, path) for path in disk.files()} == before
    return found


def test_a_file_whose_size_cannot_be_read_is_an_unreadable_one() -> None:
    """The first such file ended the whole check."""
    failing = INDEX

    def plan(operation: FileOperation) -> FileFault | None:
        is_failing = operation.kind is FileOperationKind.SIZE and operation.path == failing
        return FileFault(errno.EIO) if is_failing else None

    vfs = FaultyVfs(closed_log(), plan)
    found = verify_log(vfs, DIRECTORY)
    assert [(one.file, one.found) for one in found.mistakes] == [(INDEX, "Input/output error")]
    assert found.rows == 24
    failing = SEGMENT
    assert size_of(vfs, DIRECTORY) == 0


def sound(disk: MemoryVfs) -> VerifiedLog:
    found = verified(disk)
    assert not found.mistakes
    assert found.torn is None
    return found


def the_mistake(disk: MemoryVfs) -> FileMistake:
    (mistake,) = verified(disk).mistakes
    return mistake


def test_a_log_that_was_stopped() -> None:
    disk = closed_log()
    found = sound(disk)
    assert (found.stream_id, found.partition) == (STREAM_ID, PARTITION)
    assert (found.log_start, found.log_end, found.rows, found.batches, found.segments) == (0, 24, 24, 12, 1)
    assert found.size_bytes == size_of(disk, DIRECTORY) == disk.open(SEGMENT).size()
    assert [(one.begin, one.rows, one.last_offset) for one in found.sums] == [(0, 24, 23)]


def test_many_segments_and_leaderships_while_it_is_written() -> None:
    disk = MemoryVfs()
    log = open_log(disk, SMALL)
    for epoch in (1, 2, 5):
        log.start_epoch(epoch)
        for number in range(12):
            append(log, 3, epoch * 100 + number)
            found = sound(disk)
            assert found.log_end == log.log_end
        save(log)
        assert sound(disk).rows == log.log_end
    assert found.segments > 3


def test_cleaned_segments_have_the_checksums_of_before() -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    save(log)
    log.note_committed(log.log_end)
    before = sound(disk)
    assert clean_all(log, 10**12)
    after = sound(disk)
    assert after.sums == before.sums
    assert after.rows == before.rows


def test_retention_has_taken_the_beginning() -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    save(log)
    give_up_before(log, 33)
    found = sound(disk)
    assert found.log_start == 33
    assert (found.sums[0].first_offset, sum(one.rows for one in found.sums)) == (33, 60 - 33)


def test_cut_by_a_new_leader_and_gone_on() -> None:
    disk, log = small_log()
    for number in range(30):
        append(log, 1, number)
    save(log)
    run(log, log.truncate(17))
    log.start_epoch(3)
    for number in range(30, 50):
        append(log, 1, number)
    save(log)
    assert sound(disk).log_end == 37


def test_what_a_crash_has_torn_is_no_damage() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    log.start_epoch(1)
    append(log, 5, 1)
    save(log)
    flushed = disk.open(SEGMENT).size()
    append(log, 5, 2)
    torn = disk.crash_clone(Keep.ALL)
    torn.open(SEGMENT).truncate(flushed + 400)
    found = verified(torn)
    assert not found.mistakes
    assert found.torn is not None
    assert (found.torn.position, found.torn.base_offset, found.log_end) == (flushed, 5, 5)


def test_a_flipped_bit_costs_the_rows_of_its_batch() -> None:
    disk = closed_log()
    size = len(make_batch(0, 2, 0)[0])
    third = SCHEMA_BYTES + 2 * size
    flip(disk, SEGMENT, third + layout.BODY_POSITION + 3)
    found = verified(disk)
    (mistake,) = found.mistakes
    assert mistake[:4] == (SEGMENT, third, 4, 6)
    assert mistake.expected.startswith("CRC-32C")
    assert mistake.found != mistake.expected
    assert found.damaged() == ((4, 6),)
    assert (found.rows, found.log_end) == (22, 24)


def test_several_places_are_all_found() -> None:
    disk = closed_log()
    size = len(make_batch(0, 2, 0)[0])
    for number in (1, 2, 7, 11):
        flip(disk, SEGMENT, SCHEMA_BYTES + number * size + 5)
    found = verified(disk)
    assert [one[1:4] for one in found.mistakes] == [
        (SCHEMA_BYTES + 1 * size, 2, 6),
        (SCHEMA_BYTES + 7 * size, 14, 16),
        (SCHEMA_BYTES + 11 * size, 22, None),
    ]


@pytest.mark.parametrize("position", [0, 100, SCHEMA_BYTES - 1])
def test_the_schema_message(position: int) -> None:
    disk = closed_log()
    flip(disk, SEGMENT, position, 6)
    found = verified(disk)
    assert [(one.file, one.base_offset) for one in found.mistakes] == [(SEGMENT, None)]
    assert found.rows == 24


def test_a_segment_of_another_stream() -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    log.close()
    second = sorted(name for name in disk.list(DIRECTORY) if name.endswith(".arrows"))[1]
    write(disk, f"{DIRECTORY}/{second}", 0, schema_message(9, 0))
    assert the_mistake(disk)[4:] == ("stream 7, partition 0", "stream 9, partition 0")


def test_a_segment_that_is_gone_or_too_short() -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    log.close()
    first, second, third, *_ = sorted(name for name in disk.list(DIRECTORY) if name.endswith(".arrows"))
    begins, ends = int(second[:20]), int(third[:20])
    gone = disk.crash_clone(Keep.ALL)
    gone.remove(f"{DIRECTORY}/{second}")
    mistake = the_mistake(gone)
    assert mistake[:4] == (f"{DIRECTORY}/{first}", gone.open(f"{DIRECTORY}/{first}").size(), begins, ends)
    short = disk.open(f"{DIRECTORY}/{second}")
    short.truncate(short.size() - 10)
    found = verified(disk)
    assert found.mistakes[0].file == f"{DIRECTORY}/{second}"
    assert (found.mistakes[0].base_offset, found.mistakes[0].end_offset) == (ends - 1, ends)
    disk.remove(f"{DIRECTORY}/{first}")
    assert verified(disk).mistakes[0][2:4] == (0, begins)


def test_the_end_of_what_was_flushed_is_gone() -> None:
    disk = closed_log()
    size = len(make_batch(0, 2, 0)[0])
    disk.open(SEGMENT).truncate(SCHEMA_BYTES + 10 * size)
    found = verified(disk)
    assert found.mistakes[-1][:4] == (SEGMENT, SCHEMA_BYTES + 10 * size, 20, 24)


def sealed(disk: MemoryVfs) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".arrows")]


@pytest.mark.parametrize("length", [0, 300, SCHEMA_BYTES])
def test_a_segment_that_was_cut_hides_nothing_behind_it(length: int) -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    log.close()
    path, third, *_ = sealed(disk)[1:]
    begins, ends = int(path[-27:-7]), int(third[-27:-7])
    disk.open(path).truncate(length)
    found = verified(disk)
    assert found.mistakes[-1][:4] == (path, length, begins, ends)
    assert {one.file for one in found.mistakes} == {path}  # what its index says of what is gone is so
    assert (found.log_end, found.rows) == (60, 60 - (ends - begins))
    alone = verify_segment(disk, path)
    assert (alone.mistakes, alone.rows) == (found.mistakes, 0)


@pytest.mark.parametrize("at_end", [True, False])
def test_an_index_that_was_lengthened_costs_no_more(at_end: bool) -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    log.close()
    path = sealed(disk)[0]
    index = path.replace(".arrows", ".index")
    entries = disk.open(index).size() if at_end else 0
    disk.open(index).truncate(entries)
    disk.open(index).truncate(64 * 1_000_000)
    assert lines_run(lambda: verified(disk)) < 100_000  # a tenth of a line for each entry of the index
    found = verified(disk)
    assert {one.file for one in found.mistakes} == {index}
    assert found.mistakes[0].position == entries
    assert found.rows == 60
    flip(disk, path, SCHEMA_BYTES + 5)
    found = verified(disk)
    assert path in {one.file for one in found.mistakes}
    assert found.log_end == 60


class _Refusing(MemoryVfs):
    """One file of it is none that can be opened, as where a FIFO or a link to itself is in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""
        self.error = errno.ENXIO

    def open(
        self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False
    ) -> MemoryFile:
        if path == self.refused:
            raise OSError(self.error, "not a regular file, but a FIFO", path)
        return super().open(path, create=create, make_folders=make_folders, read_only=read_only)


@pytest.mark.parametrize("name", ["checkpoint", "lineage", "index", "first", "last"])
def test_what_cannot_be_opened_is_damage_and_all_else_is_verified(name: str) -> None:
    disk = _Refusing()
    log = open_log(disk, SMALL)
    log.start_epoch(1)
    for number in range(60):
        append(log, 1, number)
    log.close()
    first, second, *_, last = sealed(disk)
    disk.refused = {
        "index": first.replace(".arrows", ".index"),
        "first": first,
        "last": last,
    }.get(name, f"{DIRECTORY}/{name}")
    found = verify_log(disk, DIRECTORY)
    lost: tuple[int | None, int | None] = (None, None)
    if name in ("first", "last"):
        lost = (0, int(second[-27:-7])) if name == "first" else (int(last[-27:-7]), None)
    assert found.mistakes == [FileMistake(disk.refused, 0, *lost, "bytes", "not a regular file, but a FIFO")]
    assert found.rows == 60 - (0 if lost[0] is None else (lost[1] or 60) - lost[0])
    assert size_of(disk, DIRECTORY) >= found.size_bytes
    assert log_bounds(disk, DIRECTORY).log_start == 0
    disk.error = errno.EMFILE  # of this process, and no fault of the file
    with pytest.raises(OSError, match="FIFO"):
        verify_log(disk, DIRECTORY)


def test_what_cannot_be_opened_behind_what_is_torn() -> None:
    disk = _Refusing()
    log = open_log(disk, WIDE)
    log.start_epoch(1)
    append(log, 5, 1)
    log.close()
    for number in (100, 200, 300):
        disk.open(f"{DIRECTORY}/{number:020d}.arrows", create=True).write_at(0, b"x")
    disk.refused = f"{DIRECTORY}/{200:020d}.arrows"
    found = verify_log(disk, DIRECTORY)
    assert [one[:4] for one in found.mistakes] == [(disk.refused, 0, 200, 300)]
    assert (found.rows, found.log_end, found.torn is not None) == (5, 5, True)


def test_an_index_may_be_missing_and_may_not_be_wrong() -> None:
    disk = closed_log()
    flip(disk, INDEX, 64 * 3 + 20)
    mistake = the_mistake(disk)
    assert mistake[:4] == (INDEX, 64 * 3, None, None)
    flip(disk, INDEX, 64 * 3 + 20)
    whole = content(disk, INDEX)
    write(disk, INDEX, 64 * 5, whole[64 * 6 : 64 * 7])  # sound, and of another batch
    assert [one.file for one in verified(disk).mistakes] == [INDEX]
    disk.open(INDEX).truncate(64 * 5)
    sound(disk)
    disk.remove(INDEX)
    sound(disk)


def test_the_index_of_another_segment() -> None:
    disk = closed_log()
    longer = closed_log(14)
    write(disk, INDEX, 0, content(longer, INDEX))
    assert [(one.file, one.position) for one in verified(disk).mistakes] == [(INDEX, 64 * 12), (INDEX, 64 * 13)]


@pytest.mark.parametrize("position", [9, 70, 100, 4095])
def test_the_checkpoint(position: int) -> None:
    disk = closed_log()
    flip(disk, CHECKPOINT, position)
    assert the_mistake(disk).file == CHECKPOINT


def test_the_lineage() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    for epoch in (1, 2, 4):
        log.start_epoch(epoch)
        append(log, 2, epoch)
    log.close()
    sound(disk)
    whole = content(disk, LINEAGE)
    flip(disk, LINEAGE, 24 + 8)
    assert the_mistake(disk)[:4] == (LINEAGE, 24, None, None)
    disk.open(LINEAGE).truncate(0)
    write(disk, LINEAGE, 0, whole[:24] + whole[48:])  # each entry sound, and one is missing
    mistake = the_mistake(disk)
    assert mistake.file == LINEAGE
    assert mistake.expected == "leader epoch 2 at offset 2, as its batch says"
    assert mistake.found == "1"


@each_change
def test_a_lineage_that_was_lengthened(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = closed_log()
    disk.open(LINEAGE).truncate(24 * 1_000_000)
    assert the_mistake(disk)[:4] == (LINEAGE, 24, None, None)
    many = b"".join(pack_entry(LineageEntry(1 + number, 30 * bool(number))) for number in range(100_000))
    write(disk, LINEAGE, 0, many)
    disk.open(LINEAGE).truncate(len(many))
    monkeypatch.setattr(limits, "LINEAGE_ENTRIES_READ_MAX", 90_000)
    assert the_mistake(disk)[:5] == (LINEAGE, 24 * 90_000, None, None, "at most 90000 entries")
    monkeypatch.setattr(limits, "LINEAGE_ENTRIES_READ_MAX", 100_000)
    sound(disk)


def test_one_segment_alone() -> None:
    disk = closed_log()
    found = verify_segment(disk, SEGMENT)
    assert (found.rows, found.log_end, found.mistakes) == (24, 24, [])
    flip(disk, SEGMENT, SCHEMA_BYTES + 5)
    assert verify_segment(disk, SEGMENT).mistakes[0][1:4] == (SCHEMA_BYTES, 0, 2)
    with pytest.raises(ValueError, match="not the name of a segment"):
        verify_segment(disk, CHECKPOINT)


def test_no_log_at_all() -> None:
    disk = MemoryVfs()
    with pytest.raises(NotALogError, match="no segment"):
        verify_log(disk, DIRECTORY)
    with pytest.raises(NotALogError, match="no segment"):
        log_bounds(disk, DIRECTORY)


def test_all_segments_gone() -> None:
    disk = closed_log()
    disk.remove(SEGMENT)
    assert the_mistake(disk)[:4] == (SEGMENT, 0, 0, 24)


def test_where_a_log_begins_and_what_of_it_is_committed() -> None:
    disk, log = small_log()
    for number in range(60):
        append(log, 1, number)
    save(log)
    log.note_committed(47)
    give_up_before(log, 33)
    save(log)
    assert log_bounds(disk, DIRECTORY) == (33, 47)
    found = verify_log(disk, DIRECTORY, cuts=(40, 47))
    assert [one[:3] for one in found.sums] == [(33, 40, 7), (40, 47, 7), (47, 65_536, 13)]


def test_segments_that_overlap_are_told_and_no_row_counts_twice() -> None:
    disk, log = small_log()
    append(log, 6)
    log.close()
    data, _ = make_batch(4, 2, 9)
    disk.open(segment_path(DIRECTORY, 4), create=True).write_at(0, schema_message(STREAM_ID, PARTITION), data)
    found = verify_log(disk, DIRECTORY)
    assert any("where the next segment begins" in mistake.expected for mistake in found.mistakes)
    assert found.rows == sum(one.rows for one in found.sums) == 6
