"""Batches that are never cut, because their headers say what they hold, are mended as a whole wherever a log begins."""

from __future__ import annotations

import pytest

from penstock.batch.codec import BatchProducer
from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.keyed import Row, append_keyed, batches_of, rows_of
from tests.logs import DIRECTORY, give_up_before, open_log, save
from tests.property.test_mending import Donor, copied, find_all, mend

CONFIG = LogConfig(segment_bytes=100_000, compact=True)
SEGMENT = f"{DIRECTORY}/{0:020d}.arrows"
PRODUCER = BatchProducer(3, 0, 4)
PIECE = BatchProducer(0, 1, 4, b"one run of sixte", 0)


def grown(producer: BatchProducer) -> tuple[MemoryVfs, Log, list[Row]]:
    """A log of three batches with three rows each, of which `producer` has made the second."""
    disk = MemoryVfs()
    log = open_log(disk, CONFIG)
    log.start_epoch(1)
    rows: list[Row] = []
    for number, by in enumerate((BatchProducer(), producer, BatchProducer())):
        rows += append_keyed(log, [(b"%d" % number, b"%d" % row) for row in range(3)], number, by)
    save(log)
    log.note_committed(log.log_end)
    return disk, log, rows


def give_up(log: Log, offset: int) -> None:
    if (removal := give_up_before(log, offset)) is not None:
        removal.run()
    assert log.log_start == offset
    save(log)


def damaged(disk: MemoryVfs, offset: int) -> Log:
    """With a flipped bit in the batch at `offset`."""
    log = open_log(disk, CONFIG, must_exist=True)
    view = log.view()
    number, extent = view.batch_at(offset)
    log.close()
    flip(disk, view.segments[number].path, extent.position + extent.size_bytes - 40)
    log = open_log(disk, CONFIG, must_exist=True)
    find_all(log)
    assert log.state is LogState.READ_ONLY
    return log


def mended(disk: MemoryVfs, log: Log, other_disk: MemoryVfs, other: Log) -> Log:
    """With what the other one has, and opened anew."""
    mending = mend(log, Donor(other, other_disk, other.log_end, 10**6))
    log.close()
    mending.place()
    again = open_log(disk, CONFIG, must_exist=True)
    assert again.state is LogState.WRITABLE
    return again


@pytest.mark.parametrize("start", [3, 4, 5])
@pytest.mark.parametrize("producer", [PRODUCER, PIECE], ids=["a producer", "a run"])
@pytest.mark.parametrize("knows", ["both know", "the other one says"])
def test_a_batch_that_is_not_cut_may_be_damaged_where_the_log_begins(
    start: int, producer: BatchProducer, knows: str
) -> None:
    disk, log, rows = grown(producer)
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    give_up(other, start)
    if knows == "both know":
        give_up(log, start)
    log.close()
    again = mended(disk, damaged(disk, start), other_disk, other)
    assert (again.log_start, again.log_end) == (start if knows == "both know" or start > 3 else 0, len(rows))
    assert rows_of(again.view())[-6:] == rows[-6:]
    (header,) = [header for header, _ in batches_of(again.view()) if header.base_offset == 3]
    assert (header.end_offset, header.count) == (6, 3)
    assert (header.producer_id, header.producer_epoch, header.producer_sequence) == producer[:3]
    assert (header.run_id, header.run_plan) == producer[3:]


@pytest.mark.parametrize("start", [3, 4, 5])
def test_so_may_a_segment_that_somebody_removed(start: int) -> None:
    disk, log, rows = grown(PRODUCER)
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    give_up(log, start)
    log.close()
    remove_segments(disk)
    log = open_log(disk, CONFIG, must_exist=True)
    assert log.state is LogState.READ_ONLY
    again = mended(disk, log, other_disk, other)
    assert (again.log_start, again.log_end) == (start, len(rows))
    assert rows_of(again.view()) == rows[3:]


def remove_segments(disk: MemoryVfs) -> None:
    for name in disk.list(DIRECTORY):
        if name.endswith((".arrows", ".index")):
            disk.remove(f"{DIRECTORY}/{name}")
