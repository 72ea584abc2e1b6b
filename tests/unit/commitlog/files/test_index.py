"""Looking up a batch in an index file: the same with few reads, and what damage leaves of it."""

from __future__ import annotations

import contextlib

import pytest

from penstock.batch.header import HEADER_VERSION, BatchHeader
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files.index import ENTRY_BYTES, FileEntries, pack_entries
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip

ROWS, SIZE_BYTES = 3, 1_000


def opened(count: int) -> tuple[MemoryVfs, FileEntries]:
    """The index of a segment of so many batches of ROWS rows, from offset 10 on."""
    disk = MemoryVfs()
    places = [
        (
            SIZE_BYTES * number,
            BatchHeader(HEADER_VERSION, 0, SIZE_BYTES, 0, ROWS, 1, 10 + ROWS * number, 10 + ROWS * (number + 1), 0, 0),
        )
        for number in range(count)
    ]
    file = disk.open("x.index", create=True)
    file.write_at(0, pack_entries(places))
    return disk, FileEntries(file, end_position=SIZE_BYTES * count, end_offset=10 + ROWS * count)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 500])
def test_the_batch_of_each_offset_is_found(count: int) -> None:
    _, entries = opened(count)
    assert entries.last_at_or_below(9) == -1
    for offset in range(10, 10 + ROWS * count):
        number = entries.last_at_or_below(offset)
        assert number == (offset - 10) // ROWS
        assert entries.extent(number).base_offset <= offset < entries.extent(number).end_offset
    assert entries.last_at_or_below(10 + ROWS * count) == count - 1


def test_a_damaged_entry_is_an_error_or_concerns_others_only() -> None:
    count = 150
    for damaged in range(0, count - 1, 7):
        for position, bit in ((8, 7), (9, 3), (16, 1), (60, 0)):
            disk, entries = opened(count)
            flip(disk, "x.index", damaged * ENTRY_BYTES + position, bit)
            for number in range(0, count, 5):
                with contextlib.suppress(IndexDamagedError):
                    assert entries.last_at_or_below(10 + ROWS * number) == number
            with pytest.raises(IndexDamagedError):
                entries.extent(entries.last_at_or_below(10 + ROWS * damaged))
