"""Look-ups of a subject in large segments without an index: their rows are read before one is made."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base import limits
from penstock.commitlog import Log, LogConfig, LogView, SubjectQueries
from penstock.live.row_set import NONE, RowSet
from penstock.vfs.memory import MemoryVfs
from tests.logs import DIRECTORY, give_up_before, open_log, save
from tests.subjects import append_on

CONFIG = LogConfig(segment_bytes=4_000)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_FIRST_BYTES_MIN", 1)


def filled(vfs: MemoryVfs) -> Log:
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    for number in range(60):
        append_on(log, ["common", f"own.{number}"])
    save(log)
    log.note_committed(log.log_end)
    return log


def last(view: LogView, subject: str, end: int | None = None) -> int | None:
    return SubjectQueries(view, view.log_end if end is None else end, reads_first=True).last(subject)


def indexes(vfs: MemoryVfs) -> int:
    return sum(".subjects" in name for name in vfs.list(DIRECTORY))


def test_indexes_are_made_once_reads_have_taken_as_long() -> None:
    vfs = MemoryVfs()
    log = filled(vfs)
    for _ in range(limits.READ_FIRST_MAX):
        assert last(log.view(), "own.0") == 1
        assert last(log.view(), "common") == 118  # reads the active segment only
        assert not indexes(vfs)
    assert last(log.view(), "absent") is None
    assert indexes(vfs) == len(log.view().segments) - 1
    assert last(log.view(), "own.0") == 1


def test_a_segment_with_an_index_is_not_read() -> None:
    vfs = MemoryVfs()
    log = filled(vfs)
    view = log.view()
    assert SubjectQueries(view, view.log_end).last("absent") is None
    assert last(log.view(), "own.0") == 1
    assert [one.subjects.reads for one in log.view().segments] == [0] * len(view.segments)
    again = open_log(vfs, CONFIG)
    assert last(again.view(), "own.0") == 1  # the index was not looked into by this log before
    assert [one.subjects.reads for one in again.view().segments[:-1]] == [0] * (len(view.segments) - 1)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_the_last_row_that_counts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_FIRST_MAX", 1_000)
    chance = Random(seed)
    log = open_log(MemoryVfs(), CONFIG)
    log.start_epoch(1)
    rows: list[tuple[int, str]] = []
    for _ in range(80):
        rows += append_on(log, [f"s.{chance.randrange(60)}" for _ in range(chance.randrange(1, 6))])
    save(log)
    log.note_committed(log.log_end)
    begin = chance.randrange(log.log_end // 3)
    if (removal := give_up_before(log, begin)) is not None:
        removal.run()
    begin, end = log.log_start, log.log_end - chance.randrange(30)
    for hidden in (NONE, RowSet.of(sorted(chance.sample(range(log.log_end), log.log_end // 2)))):
        lasts = {subject: offset for offset, subject in rows if begin <= offset < end and offset not in hidden}
        view = log.view().hiding(hidden)
        for number in range(70):
            assert last(view, f"s.{number}", end) == lasts.get(f"s.{number}")
    assert all(one.subjects.trailer is None for one in log.view().segments)
