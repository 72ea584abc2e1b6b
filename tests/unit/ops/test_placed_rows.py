"""Rows that are put at their offsets, whatever the batches that they come in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.base import limits
from penstock.ops import placed_rows
from penstock.ops.placed_rows import FutureTimes, RowTimes


def _rows(*values: int) -> pa.RecordBatch:
    times = pa.array(values, pa.int64()).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays([times], names=["timestamp"])


def test_a_gap_after_a_full_batch_is_covered_by_it() -> None:
    put: list[tuple[int, int]] = []

    class Recorder:
        def put(self, rows: pa.RecordBatch, end: int, *, may_be_ahead: bool) -> None:
            put.append((rows.num_rows, end))

    recorder: Any = Recorder()
    full = limits.BATCH_ROWS_MAX
    batches = [
        (_rows(), 2),
        (_rows(*range(full)), full + 2),
        (_rows(), full + 5),
        (_rows(1), full + 6),
        (_rows(), 9**9),
    ]
    told: list[int] = []
    placed_rows.put(recorder, iter(batches), told.append, RowTimes(FutureTimes.KEEP, 10**15))
    assert put == [(full, full + 5), (1, 9**9)]
    assert told == [full + 5, 9**9]
    put.clear()
    placed_rows.put(recorder, iter(batches[:3]), told.append, RowTimes(FutureTimes.KEEP, 10**15))
    assert put == [(full, full + 5)]
