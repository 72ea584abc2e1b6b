"""The last rows of a partition, whose offsets may have no rows, and the ranges that are read for them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.read.last_rows import LastRows


def _batches(offsets: list[int], rows_max: int) -> list[pa.RecordBatch]:
    parts = (offsets[at : at + rows_max] for at in range(0, len(offsets), rows_max))
    return [pa.record_batch({"offset": pa.array(part, pa.int64())}) for part in parts]


@given(
    st.sets(st.integers(10, 400), max_size=80), st.integers(0, 60), st.integers(10, 400), st.integers(1, 30), st.data()
)
def test_the_last_rows_are_found_and_no_offset_is_read_twice(
    kept: set[int], count: int, end: int, rows_max: int, data: st.DataObject
) -> None:
    log_start = data.draw(st.integers(10, end))
    expected = sorted(one for one in kept if log_start <= one < end)
    last = LastRows(log_start, end, count)
    begin = end
    while (offsets := last.next_range()) is not None:
        assert log_start <= offsets.start < offsets.end == begin
        begin = offsets.start
        for batch in _batches(sorted(one for one in kept if offsets.start <= one < offsets.end), rows_max):
            last.append(batch)
    found = [offset for batch in last.batches for offset in batch["offset"].to_pylist()]
    assert found[max(0, len(found) - count) :] == expected[max(0, len(expected) - count) :]
    assert len(found) < count + rows_max or not count
