"""Fetches of some subjects read only what the subject indexes leave possible: the bytes that they read are counted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, StreamId
from penstock.batch.codec import BatchProducer
from penstock.commitlog import FilterBudget, Log, LogConfig, SubjectQueries
from penstock.commitlog.subjects import reading
from penstock.hot.subject_filter import PAGE_BYTES
from penstock.live.row_set import RowSet
from penstock.messages import FetchRequest
from penstock.messages.fields import ColumnField
from penstock.node.api.projections import Project
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.expiring import Told, append_told
from tests.logs import DIRECTORY, clean_all, open_log, save
from tests.subjects import append_on

ROWS = 20_000
SEGMENT_BYTES = 1_000_000


class Counted:
    """A log whose reads are counted: `rows` on the subjects that `subject_of` names, in batches of `per_batch`."""

    def __init__(
        self,
        subjects: Sequence[str],
        per_batch: int,
        size_bytes: int = 256,
        *,
        is_indexed: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = Compression.NONE,
    ):
        self.read_bytes = 0
        self.disk = MemoryVfs()
        self.vfs = FaultyVfs(self.disk, self._count)
        config, nothing = LogConfig(segment_bytes=segment_bytes, compression=compression), FilterBudget(0)
        self.log: Log = open_log(self.vfs, config, filters=nothing)  # filters are read from the files
        self.log.start_epoch(1)
        for first in range(0, len(subjects), per_batch):
            append_on(self.log, subjects[first : first + per_batch], size_bytes)
        save(self.log)
        self.log.note_committed(self.log.log_end)
        if compression is not Compression.NONE:
            clean_all(self.log)
        view = self.log.view()
        self.end = view.segments[-1].base_offset  # of what is sealed
        self.sealed_bytes = sum(one.size_bytes for one in view.segments[:-1])
        if is_indexed:
            SubjectQueries(view, view.log_end).last("absent")  # makes the indexes

    def _count(self, operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.READ:
            self.read_bytes += operation.length
        return None

    def read(
        self, *patterns: str, columns: tuple[ColumnField, ...] | None = None, hidden: RowSet | None = None
    ) -> tuple[list[int], float]:
        """Return the offsets of all matching rows in sealed segments, and the share of the bytes read for that."""
        self.read_bytes = offset = 0
        found: list[int] = []
        while offset < self.end:
            view = self.log.view().hiding(hidden)
            request = FetchRequest(
                stream_id=StreamId(7),
                offset=Offset(offset),
                subjects=patterns,
                columns=columns,
                end=Offset(self.end),
            )
            query = Project(view, self.vfs, view.log_end, request, is_indexed=True)
            query.run()
            assert query.end_offset > offset
            if query.raw:
                found += pa.ipc.open_stream(query.raw).read_all().column("offset").to_pylist()
            offset = query.end_offset
        return found, self.read_bytes / self.sealed_bytes

    def segment_paths(self) -> list[str]:
        return [one.path for one in self.log.view().segments[:-1]]


@pytest.mark.parametrize("hidden_before", [(), (3,)], ids=["none was hidden", "another was hidden"])
def test_a_read_that_begins_before_a_deletion_shows_nothing_blank(hidden_before: tuple[int, ...]) -> None:
    log = open_log(MemoryVfs(), LogConfig(1 << 20, 10_000_000))
    log.start_epoch(1)
    append_told(log, [Told()] * 3, 1, BatchProducer(9, 1, 1))
    append_told(log, [Told()] * 2, 1)
    log.tick(10_000_001)  # rolls
    append_told(log, [Told()], 11_000_000)
    save(log)
    log.note_committed(log.log_end)
    log.hide(RowSet.of(hidden_before))
    view = log.view().hiding(log.hidden)
    request = FetchRequest(stream_id=StreamId(7), offset=Offset(0), columns=("value",))
    query = Project(view, view.vfs, view.log_end, request)
    log.hide(RowSet.of([0, 1, 2, *hidden_before]))
    assert clean_all(log, 20_000_000) == 1
    query.run()
    assert query.end_offset == 6
    assert pa.ipc.open_stream(query.raw).read_all().num_rows == 3 - len(hidden_before)


def on_own(rows: int = ROWS) -> list[str]:
    """Each row on a subject of its own, those of a group of ten far from each other."""
    return [f"u.{number % (rows // 10)}.{number}" for number in range(rows)]


def test_a_filter_that_matches_few_rows_reads_few_bytes() -> None:
    log = Counted(on_own(), 50)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, ROWS // 10))
    assert share <= 0.065  # of each ten batches in a thousand and an index of small segments
    assert log.read("u.no.*")[1] <= 0.01
    assert log.read("absent")[1] <= 0.001


@pytest.mark.parametrize("per_batch", [20, 200, 4_000])
def test_a_filter_that_matches_one_row_of_ten_thousand_reads_three_hundredths_at_most(per_batch: int) -> None:
    subjects = [f"u.{number % 10_000}.{number}" for number in range(60_000)]
    log = Counted(subjects, per_batch, segment_bytes=8_000_000)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, 10_000))
    assert share <= 0.03


def test_few_rows_of_large_batches_are_read_without_the_rest() -> None:
    log = Counted(on_own(), 1_500, segment_bytes=4_000_000)
    assert len(log.segment_paths()) == 1
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, ROWS // 10))
    assert share <= 0.12  # of seven rows in 9,000; the whole batches would be seven of eight
    assert log.read("u.77.*", columns=("offset",))[1] < 0.6 * share


def test_hidden_rows_are_not_picked() -> None:
    log = Counted(on_own(), 1_500, segment_bytes=4_000_000)
    hidden = RowSet.of([77, 78, 4_077])
    found, share = log.read("u.77.*", hidden=hidden)
    assert found == [one for one in range(77, log.end, ROWS // 10) if one not in hidden]
    assert share <= 0.12


def test_a_subject_with_many_rows_costs_the_column_of_subjects_in_large_batches() -> None:
    subjects = ["rare" if number % 1_000 == 7 else f"often.{number % 7}" for number in range(ROWS)]
    log = Counted(subjects, 4_000, 600, segment_bytes=4_000_000)
    found, share = log.read("rare")
    assert found == list(range(7, log.end, 1_000))
    assert share <= 0.15


def test_a_damaged_block_is_found_and_reported_by_the_batch() -> None:
    log = Counted(on_own(), 1_500, segment_bytes=4_000_000)
    (path,) = log.segment_paths()
    view = log.log.view()
    extent = view.extent_in(view.segments[0], 77)
    assert extent is not None
    for position in range(extent.position + 800, extent.end_position, 4_000):
        flip(log.disk, path, position)
    with pytest.raises(RemoteError) as caught:
        log.read("u.77.*")
    assert caught.value.code == ErrorCode.CORRUPT_RANGE
    assert log.read("u.1600.*")[0] == list(range(1600, log.end, 2_000))  # it lies elsewhere


def test_damaged_checksums_of_blocks_cost_reading_the_batches() -> None:
    log = Counted(on_own(), 1_500, segment_bytes=4_000_000)
    (path,) = log.segment_paths()
    trailer = reading.read_trailer(log.disk.open(path.replace(".arrows", ".subjects")))
    assert trailer.sum_pages
    position = trailer.directory_position - trailer.sum_pages * PAGE_BYTES
    for number in range(trailer.sum_pages):
        flip(log.disk, path.replace(".arrows", ".subjects"), position + number * PAGE_BYTES + 9)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, ROWS // 10))
    assert share > 0.5


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
def test_compressed_batches_have_no_checksums_of_blocks(compression: Compression) -> None:
    log = Counted(on_own(), 1_500, segment_bytes=4_000_000, compression=compression)
    for path in log.segment_paths():
        assert not reading.read_trailer(log.disk.open(path.replace(".arrows", ".subjects"))).sum_pages
    assert log.read("u.77.*")[0] == list(range(77, log.end, ROWS // 10))


def test_segments_without_a_match_are_not_read() -> None:
    subjects = [f"often.{number % 7}" for number in range(ROWS)]
    subjects[5_000] = subjects[5_100] = "rare"
    log = Counted(subjects, 50)
    found, share = log.read("rare")
    assert found == [5_000, 5_100]
    assert share <= 0.02
    found, share = log.read("often.3", "rare")
    assert len(found) == sum(one in ("often.3", "rare") for one in subjects[: log.end])


def test_without_an_index_all_is_read() -> None:
    log = Counted(on_own(2_000 * 4), 50, is_indexed=False)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, 800))
    assert share > 0.9


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_or_damaged_index_costs_reading_its_segment(harm: str) -> None:
    log = Counted(on_own(), 50)
    path = log.segment_paths()[1].replace(".arrows", ".subjects")
    assert log.disk.list(DIRECTORY).count(path.rpartition("/")[2]) == 1
    if harm == "lost":
        log.disk.remove(path)
    else:
        for position in range(400, log.disk.open(path).size() - 200, 90):
            flip(log.disk, path, position)
    before = log.read("u.77.*")
    assert before[0] == list(range(77, log.end, ROWS // 10))
    assert 1 / (len(log.segment_paths()) + 1) < before[1] < 2.5 / len(log.segment_paths())


def test_a_fetch_looks_into_so_many_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SKIPPED_SEGMENTS_MAX", 2)
    log = Counted(on_own(), 50)
    view = log.log.view()
    request = FetchRequest(stream_id=StreamId(7), offset=Offset(0), subjects=("absent",))
    query = Project(view, log.vfs, view.log_end, request, is_indexed=True)
    query.run()
    assert (query.end_offset, query.last_epoch, query.raw) == (view.segments[2].base_offset, None, b"")
    assert log.read("u.77.*")[0] == list(range(77, log.end, ROWS // 10))


def test_rows_come_once_though_the_cleaner_merges_batches_between_two_ranges() -> None:
    log = Counted([f"rare.{number}" if number in (100, 110, 500, 900) else f"u.{number}" for number in range(4_000)], 1)
    request = FetchRequest(stream_id=StreamId(7), offset=Offset(0), columns=("offset",), subjects=("rare.*",))
    view = log.log.view()
    query = Project(view, log.vfs, view.log_end, request, is_indexed=True)
    plan, cleaned = log.vfs.plan, list[int]()

    def clean_between(operation: FileOperation) -> FileFault | None:
        if query.end_offset > 110 and not cleaned:
            cleaned.append(0)
            cleaned.append(clean_all(log.log))
        return plan(operation)

    log.vfs.plan = clean_between
    query.run()
    assert cleaned[-1]
    assert pa.ipc.open_stream(query.raw).read_all().column(0).to_pylist() == [100, 110, 500, 900]
