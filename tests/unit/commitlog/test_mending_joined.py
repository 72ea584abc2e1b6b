"""Where the other replica has no row left of a whole segment, that becomes one file with the one that covers it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.batch import codec
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.groups import Columns, encoded
from tests.keyed import Row, append_keyed, batches_of, rows_of
from tests.logs import DIRECTORY, give_up_before, open_log, save
from tests.property.test_mending import Donor, find_all, mend

SINGLE = LogConfig(segment_bytes=1_200)
"""Each batch of these tests in a segment of its own."""
WIDE = LogConfig(segment_bytes=100_000)
END = 12
TRIES_MAX = 3


class Case(NamedTuple):
    """Two rows were appended at a time. `sparse` is what one batch of the other replica covers, and where the rows are
    that it has left.
    """

    damaged: tuple[int, ...]
    sparse: tuple[int, int, int, int]
    producers: tuple[int, ...] = ()  # their batches begin there
    given_up: int = 0
    log_start: int = 0
    log_end: int = END
    bases: tuple[int, ...] = (0, 2, 4, 6, 8, 10)  # of the segments, at last


CASES = {
    "the segment behind covers it": Case((4,), (4, 10, 8, 10), bases=(0, 2, 4, 8, 10)),
    "that behind another damaged one": Case((4, 6), (4, 10, 8, 10), bases=(0, 2, 4, 10)),
    "the segment before covers it": Case((4,), (2, 6, 2, 4), (6,), bases=(0, 2, 8, 10)),
    "a damaged one before covers it": Case((2, 4), (2, 6, 3, 4), (6,), bases=(0, 2, 8, 10)),
    "none does at the end": Case((10,), (10, 14, 12, 14), (8,), log_end=10, bases=(0, 2, 4, 6, 8, 10)),
    "none does at the beginning": Case((4,), (2, 6, 2, 4), (6,), given_up=4, log_start=6, bases=(6, 8, 10)),
}


def grown(case: Case) -> tuple[MemoryVfs, Donor, list[Row]]:
    """A damaged disk; the other replica; all that was appended."""
    disk, other_disk = MemoryVfs(), MemoryVfs()
    log, other = open_log(disk, SINGLE), open_log(other_disk, WIDE)
    begin, end, first, last = case.sparse
    rows: list[Row] = []
    for one in (log, other):
        one.start_epoch(1)
    for offset in range(0, max(END, end), 2):
        by = BatchProducer(3, 0, offset) if offset in case.producers else NOBODY
        messages = [(b"key", value_of(offset + number)) for number in range(2)]
        if offset < END:
            rows += append_keyed(log, messages, 0, by)
        if offset == begin:
            columns = Columns([b"s"] * (last - first), None, None, None)
            columns = columns._replace(keys=[b"key"] * (last - first), values=list(map(value_of, range(first, last))))
            data = encoded(columns, base_offset=first, timestamp_us=0, leader_epoch=1)
            header = codec.covering(data, begin, end)
            other.append(bytes(data), header)
        elif not begin <= offset < end:
            append_keyed(other, messages, 0, by)
    for one in (log, other):
        save(one)
        one.note_committed(one.log_end)
    if case.given_up and (removal := give_up_before(log, case.given_up)) is not None:
        removal.run()
        save(log)
    view = log.view()
    paths = [view.segments[view.batch_at(offset)[0]].path for offset in case.damaged]
    assert [one.base_offset for one in view.segments if one.base_offset < END] == [*range(case.given_up, END, 2)]
    log.close()
    for path in paths:
        flip(disk, path, disk.open(path).size() - 40)
    return disk, Donor(other, other_disk, other.log_end, 10**6), rows


def value_of(offset: int) -> bytes:
    return b"%d" % offset


def damaged_log(disk: MemoryVfs | FaultyVfs) -> Log:
    log = open_log(disk, SINGLE, must_exist=True)
    find_all(log)
    return log


def assert_mended(log: Log, case: Case, rows: list[Row]) -> None:
    """It has all that both had, and what producers' batches say is as it was."""
    assert log.state is LogState.WRITABLE, log.damage
    assert log.log_end == case.log_end
    begin, _, first, last = case.sparse
    lost = {
        offset for one in case.damaged for offset in (one, one + 1) if begin <= offset and not first <= offset < last
    }
    found = [row for row in rows_of(log.view()) if row.offset >= log.log_start]
    assert found == [row for row in rows if row.offset >= log.log_start and row.offset not in lost]
    made = [(one.base_offset, one.end_offset) for one, _ in batches_of(log.view()) if one.producer_id]
    assert made == [(offset, offset + 2) for offset in case.producers]


@pytest.mark.parametrize("name", CASES)
def test_where_no_row_is_left_of_a_segment(name: str) -> None:
    case = CASES[name]
    disk, donor, rows = grown(case)
    log = damaged_log(disk)
    assert log.state is LogState.READ_ONLY
    mending = mend(log, donor)
    assert mending.ranges == len(case.damaged)
    log.close()
    mending.place()
    log = open_log(disk, SINGLE, must_exist=True)
    assert_mended(log, case, rows)
    assert log.log_start == case.log_start
    assert tuple(one.base_offset for one in log.view().segments) == case.bases
    names = [one for one in disk.list(DIRECTORY) if one.endswith(".arrows")]
    assert len(names) == len(case.bases), "what went into another file is gone"


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
@pytest.mark.parametrize("name", CASES)
def test_the_power_may_fail_at_every_change(name: str, keep: Keep) -> None:
    case = CASES[name]
    disk, donor, rows = grown(case)
    disk = disk.crash_clone(Keep.ALL)
    vfs = FaultyVfs(disk)
    log = damaged_log(vfs)
    mending = mend(log, donor)
    log.close()
    clones: list[tuple[FileOperation, MemoryVfs]] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind in CHANGES:
            clones.append((operation, disk.crash_clone(keep)))

    vfs.watcher = watch
    mending.place()
    vfs.watcher = None
    assert len(clones) > 3
    for operation, clone in clones:
        log = damaged_log(clone)
        for _ in range(TRIES_MAX):
            if log.state is LogState.WRITABLE:
                break
            again = mend(log, donor)
            log.close()
            again.place()
            log = damaged_log(clone)
        assert log.state is LogState.WRITABLE, operation
        assert case.given_up <= log.log_start <= case.log_start, operation
        assert_mended(log, case, rows)
