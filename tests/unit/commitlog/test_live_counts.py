"""Counts of live rows: exact where log_start, the end, hidden rows and gaps cut batches, and cheap when repeated."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import LiveCounts, LiveState, Log, LogConfig, TooManyRowsError
from penstock.live.row_set import NONE, RowSet
from penstock.vfs.memory import MemoryVfs
from tests.logs import append, clean_all, flush, flush_and_note, give_up_before, open_log

S = 1_000_000


def cleaned(vfs: MemoryVfs, hidden: RowSet) -> Log:
    """A log of many segments whose hidden rows have left the sealed ones, opened again: none knows which have."""
    config = LogConfig(4096, 10 * S)
    log = open_log(vfs, config)
    for _ in range(40):
        append(log, 3, size_bytes=400)
    flush_and_note(log)
    log.note_committed(log.log_end)
    log.hide(hidden, hidden)
    assert clean_all(log, 20 * S)
    log.close()
    log = open_log(vfs, config)
    log.hide(hidden, hidden)
    return log


def test_stored_rows_are_counted_from_the_log_start_to_any_end() -> None:
    log = open_log(MemoryVfs())
    for _ in range(6):
        append(log, 3, size_bytes=400)
    flush(log)
    append(log, 3)
    view = log.view()
    assert len(view.segments) > 2
    for start in range(22):
        for end in range(start, 22):
            assert LiveCounts(view.starting_at(start), end).rows() == end - start
    assert LiveCounts(view, 21).state() == LiveState(21, size := view.bytes_between(0, 21), 0, 0, 0, 20, 0, size)
    assert LiveCounts(view.starting_at(21), 21).state() == LiveState(0, 0)


def test_hidden_rows_that_are_still_in_the_files_have_their_share_of_the_bytes() -> None:
    log = open_log(MemoryVfs())
    for _ in range(4):
        append(log, 5, size_bytes=400)
    flush(log)
    size_bytes = log.view().bytes_between(0, 20)
    found = LiveCounts(log.view().hiding(RowSet.of(range(5, 15))), 20).state()
    assert (found.rows, found.size_bytes, found.live_bytes) == (10, size_bytes, size_bytes // 2)
    assert LiveCounts(log.view().hiding(RowSet.of(range(20))), 20).state().live_bytes == 0


def test_where_rows_have_left_the_files_those_are_read_once() -> None:
    hidden = RowSet.of([*range(3, 50), *range(60, 110, 2)])
    log = cleaned(MemoryVfs(), hidden)
    view = log.view().hiding(log.hidden)
    left = [offset for offset in range(120) if offset not in hidden]
    read: list[int] = []
    assert LiveCounts(view, 120, read.append).rows() == len(left)
    assert read
    read.clear()
    for start in range(0, 121, 7):
        for end in range(start, 121, 5):
            found = LiveCounts(view.starting_at(start), end, read.append).rows()
            assert found == sum(start <= offset < end for offset in left), (start, end)
    state = LiveCounts(view, 60).state()
    assert (state.rows, state.first_offset, state.last_offset, state.deleted) == (13, 0, 59, 47)


def test_a_count_that_would_read_too_much_goes_on_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = RowSet.of(range(0, 110, 2))
    log = cleaned(MemoryVfs(), hidden)
    monkeypatch.setattr(limits, "ROW_COUNT_BYTES_MAX", 0)
    tries = 1
    while True:
        try:
            assert LiveCounts(log.view().hiding(log.hidden), 120).rows() == 65
            break
        except TooManyRowsError:
            tries += 1
            assert tries < 100
    assert tries > 2


def test_a_repeated_count_reads_no_file_of_a_sealed_segment() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs)
    for _ in range(40):
        append(log, 3, size_bytes=400)
    flush_and_note(log)
    view = log.view()
    assert LiveCounts(view, 120).rows() == 120
    for path in vfs.list(view.segments[0].path.rpartition("/")[0]):
        if path.endswith(".index"):
            vfs.remove(f"{view.segments[0].path.rpartition('/')[0]}/{path}")
    append(log, 1)
    assert LiveCounts(log.view(), 121).rows() == 121
    assert LiveCounts(log.view().hiding(RowSet.of([4, 119])), 121).rows() == 119


def test_a_log_start_within_a_batch_and_a_truncation() -> None:
    log = open_log(MemoryVfs())
    for _ in range(8):
        append(log, 5, size_bytes=300)
    flush_and_note(log)
    give_up_before(log, 7)
    assert LiveCounts(log.view(), 40).rows() == 33
    assert LiveCounts(log.view().hiding(RowSet.of(range(9))), 40).state().first_offset == 9
    task = log.truncate(22)
    assert task is not None
    task.run()
    log.truncated(task)
    assert LiveCounts(log.view(), log.log_end).rows() == log.log_end - 7
    append(log, 5)
    assert LiveCounts(log.view(), log.log_end).rows() == log.log_end - 7
    assert LiveCounts(log.view(), log.log_end).gone() == NONE


def test_a_damaged_segment_is_not_counted() -> None:
    log = open_log(MemoryVfs())
    for _ in range(8):
        append(log, 5, size_bytes=300)
    flush_and_note(log)
    view = log.view()
    log.damage_found(view.segments[1].path, 2_000, "a test")
    with pytest.raises(RemoteError) as caught:
        LiveCounts(log.view(), 40).rows()
    assert caught.value.code == ErrorCode.CORRUPT_RANGE
