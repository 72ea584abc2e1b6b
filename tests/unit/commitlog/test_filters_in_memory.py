"""Look-ups with kept filters: what they read, and that no filter of something else is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from penstock.base import limits
from penstock.commitlog import FilterBudget, Log, LogConfig, SubjectQueries, row_at
from penstock.commitlog.files import files
from penstock.commitlog.subject_reads import SubjectRanges
from penstock.commitlog.subjects import layout
from penstock.vfs import Vfs
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.damage import flip
from tests.logs import clean_all, encrypted_logs, give_up_before, open_log, run, save
from tests.subjects import append_on

CONFIG = LogConfig(segment_bytes=4_000)


class Counted:
    """A log of some segments, each batch on `common` and a subject of its own, whose file operations are counted."""

    def __init__(self, config: LogConfig = CONFIG, filters: FilterBudget | None = None) -> None:
        self.operations: list[FileOperation] = []
        self.disk = MemoryVfs()
        self.log = filled(FaultyVfs(self.disk, self._count), config, filters)

    def _count(self, operation: FileOperation) -> FileFault | None:
        self.operations.append(operation)
        return None

    def last(self, *subjects: str) -> list[int]:
        """Look up the last messages of subjects."""
        self.operations.clear()
        return last(self.log, *subjects)

    def looked_at(self) -> set[str]:
        """The files of the latest look-up."""
        return {one.path for one in self.operations}


def filled(vfs: Vfs, config: LogConfig = CONFIG, filters: FilterBudget | None = None) -> Log:
    log = open_log(vfs, config, filters=filters)
    log.start_epoch(1)
    for number in range(60):
        append_on(log, ["common", f"own.{number}"])
    commit(log)
    return log


def commit(log: Log) -> None:
    save(log)
    log.note_committed(log.log_end)


def last(log: Log, *subjects: str) -> list[int]:
    view = log.view()
    return SubjectQueries(view, view.log_end).last_of_many([one.encode() for one in subjects])


def test_an_absent_subject_reads_nothing_and_a_present_one_the_index_of_its_segment() -> None:
    counted = Counted()
    assert len(counted.log.view().segments) > 4
    assert counted.last("absent") == [-1]
    assert counted.last("absent") == [-1]
    assert not counted.operations
    assert counted.last("absent", "absent.2") == [-1, -1]
    assert not counted.operations
    assert counted.last("own.0") == [1]
    first = counted.log.view().segments[0]
    assert counted.looked_at() == {files.subjects_path(first.path)}
    assert counted.last("common", "own.59", "own.1", "absent") == [118, 119, 3, -1]
    assert counted.looked_at() == {files.subjects_path(first.path)}


def test_a_count_opens_no_index_of_segments_without_the_subject() -> None:
    counted = Counted()

    def counts(*subjects: bytes) -> list[int]:
        counted.operations.clear()
        view = counted.log.view()
        return SubjectQueries(view, view.log_end).counts_of_many(subjects, 100, hides_oldest=False)

    assert counts(b"absent") == [0]
    assert counts(b"absent", b"absent.2") == [0, 0]
    assert not counted.operations
    assert counts(b"own.0", b"absent") == [1, 0]
    assert counted.looked_at() == {files.subjects_path(counted.log.view().segments[0].path)}
    assert counts(b"common") == [60]
    assert counts() == []


def test_a_read_of_one_subject_opens_no_index_of_segments_without_it() -> None:
    counted = Counted()
    assert counted.last("absent") == [-1]
    view = counted.log.view()
    counted.operations.clear()
    ranges, offset, found = SubjectRanges(view, ["own.7"]), 0, []
    while offset < view.segments[-1].base_offset:
        low, offset = ranges.at(offset)
        found += [(low, offset)] if low < offset else []
    segment = view.segment_of(15)
    assert found == [(segment.base_offset, segment.end_offset)]  # of so few rows
    assert counted.looked_at() == {files.subjects_path(segment.path)}
    assert ranges.looked_segments == 1


def test_a_row_of_a_segment_with_a_kept_filter_reads_neither_index() -> None:
    counted = Counted()
    assert counted.last("absent") == [-1]
    view = counted.log.view()
    counted.operations.clear()
    found = row_at(view, 1)
    assert found is not None
    assert found.row.subject == b"own.0"
    assert counted.looked_at() == {view.segments[0].path}
    for segment in view.segments[:-1]:
        kept = segment.subjects.filter
        assert kept is not None
        assert kept.entries is not None
        segment.subjects.filter = None
        from_file = [view.extent_in(segment, offset) for offset in range(segment.base_offset, segment.end_offset)]
        segment.subjects.filter = kept
        assert [view.extent_in(segment, offset) for offset in range(segment.base_offset, segment.end_offset)] == (
            from_file
        )


def test_the_places_of_many_batches_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEPT_ENTRIES_MAX", 2)
    counted = Counted()
    assert counted.last("absent") == [-1]
    kept = [one.subjects.filter for one in counted.log.view().segments[:-1]]
    assert [one is not None and one.entries for one in kept] == [None] * len(kept)


def test_a_damaged_offset_index_is_rebuilt_as_without_a_filter() -> None:
    counted = Counted()
    first = counted.log.view().segments[0]
    flip(counted.disk, files.index_path(first.path), 3)
    assert counted.last("own.0", "absent") == [1, -1]
    assert first.subjects.filter is not None
    assert row_at(counted.log.view(), 1) is not None


def test_without_room_the_answers_are_the_same() -> None:
    counted = Counted(filters=FilterBudget(0))
    for _ in range(2):
        assert counted.last("absent") == [-1]
        assert counted.operations
        assert counted.last("own.0", "common") == [1, 118]


def test_the_memory_goes_with_the_segments() -> None:
    budget = FilterBudget()
    log = filled(MemoryVfs(), filters=budget)
    assert last(log, "own.0", "absent") == [1, -1]
    before, segments = budget.size_bytes, len(log.view().segments)
    assert before > 0
    removal = give_up_before(log, log.view().segments[-2].base_offset)
    assert removal is not None
    removal.run()
    assert budget.size_bytes * (segments - 1) == before
    assert last(log, "own.0", "own.59") == [-1, 119]
    log.close()
    del log, removal
    assert not budget.size_bytes


def test_a_rewritten_segment_gets_a_filter_of_its_own() -> None:
    budget = FilterBudget()
    log = filled(MemoryVfs(), replace(CONFIG, indexes_subjects=True), budget)
    view = log.view()
    assert last(log, "absent") == [-1]
    old = [one.subjects.filter for one in view.segments[:-1]]
    assert clean_all(log)
    assert last(log, "absent", "own.0", "own.59") == [-1, 1, 119]
    new = [one.latest.subjects.filter for one in view.segments[:-1]]
    assert None not in {*old, *new}
    assert not {*map(id, old)} & {*map(id, new)}
    assert SubjectQueries(view, view.log_end).last("own.0") == 1
    del view, old
    assert budget.size_bytes == sum(one.size_bytes for one in new if one is not None)


@pytest.mark.parametrize("end", [31, 62])
def test_a_truncation_forgets_the_filters_of_what_it_takes(end: int) -> None:
    log = filled(MemoryVfs())
    assert last(log, "absent") == [-1]
    run(log, log.truncate(end))
    end = log.log_end  # the begin of the batch
    for number in range(60, 120):
        append_on(log, ["common", f"own.{number}"])
    commit(log)
    assert last(log, "own.59", "own.119", "own.60") == [-1, end + 119, end + 1]


def test_a_damaged_page_is_reported_before_it_is_kept_and_the_index_made_again() -> None:
    counted = Counted()
    assert counted.last("common") == [118]  # the newest segment alone
    first = counted.log.view().segments[0]
    path = files.subjects_path(first.path)
    assert counted.last("absent") == [-1]
    first.subjects.filter = None
    trailer = first.subjects.trailer
    assert trailer is not None
    flip(counted.disk, path, trailer.filter_position + 3)
    view = counted.log.view()
    assert SubjectQueries(view, view.log_end).last("own.0") == 1
    assert [(one.file, one.position) for one in view.wrong_indexes] == [(path, trailer.filter_position)]
    assert first.subjects.filter is not None
    assert counted.last("absent") == [-1]
    assert not counted.operations


def test_a_filter_is_forgotten_with_an_index_in_error() -> None:
    counted = Counted()
    assert counted.last("absent") == [-1]
    first = counted.log.view().segments[0]
    path = files.subjects_path(first.path)
    kept = first.subjects.filter
    flip(counted.disk, path, layout.BLOCKS_POSITION + 9)
    assert counted.last("own.0") == [1]
    assert first.subjects.filter is not kept
    assert counted.last("own.0", "absent") == [1, -1]


def test_filters_of_encrypted_logs_are_kept_as_well() -> None:
    with encrypted_logs():
        counted = Counted()
        assert counted.last("absent") == [-1]
        assert counted.last("absent") == [-1]
        assert not counted.operations
        assert counted.last("own.0") == [1]


def test_recent_subjects_are_looked_up_on_the_event_loop_without_the_filters_of_old_segments(tmp_path: Path) -> None:
    log = filled(RealVfs(tmp_path))
    newest = log.view().segments[-2]
    subject = f"own.{newest.base_offset // 2}"
    assert last(log, subject) == [newest.base_offset | 1]
    kept = [one.subjects.filter is not None for one in log.view().segments]
    assert kept == [False] * (len(kept) - 2) + [True, False]
    vfs = log.view().vfs.cached(reads_max=9, bytes_max=50_000)
    assert vfs is not None
    view = log.view().reading(vfs)
    assert SubjectQueries(view, view.log_end).last(subject) == newest.base_offset | 1
    log.close()


@pytest.mark.parametrize("seed", range(5))
def test_no_present_subject_is_refused(seed: int) -> None:
    chance = Random(seed)
    size = open_size()
    log = open_log(MemoryVfs(), CONFIG, filters=FilterBudget(chance.choice([0, size, 3 * size, 10**6])))
    log.start_epoch(1)
    lasts: dict[str, int] = {}
    for _ in range(80):
        rows = append_on(log, [f"s.{chance.randrange(300)}" for _ in range(chance.randrange(1, 6))])
        lasts.update((subject, offset) for offset, subject in rows)
        if not chance.randrange(8):
            commit(log)
            names = [f"s.{chance.randrange(400)}" for _ in range(chance.randrange(1, 9))]
            assert last(log, *names) == [lasts.get(name, -1) for name in names]


def open_size() -> int:
    """The size of one of the filters of these logs, about."""
    log = filled(MemoryVfs(), filters=(budget := FilterBudget()))
    last(log, "absent")
    return budget.size_bytes // (len(log.view().segments) - 1)
