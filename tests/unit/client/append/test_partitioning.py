"""The partition of each row of a table: as `partition_of` says for its key alone."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import partitions_of
from penstock.hot.keyhash import partition_of

KEYS = st.none() | st.binary(max_size=40)
ROWS = st.lists(st.tuples(KEYS, KEYS, st.none() | st.integers(0, 6)), max_size=60)


def one_by_one(row: tuple[bytes | None, bytes | None, int | None], count: int) -> int:
    key, value, partition = row
    if partition is not None:
        return partition
    return partition_of(key or value or b"", count)  # an empty key is none


@given(ROWS, st.integers(7, 1_000), st.integers(0, 9), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_a_table_is_split_as_each_of_its_rows(
    rows: list[tuple[bytes | None, bytes | None, int | None]], count: int, cut: int, kind: pa.DataType
) -> None:
    keys, values, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "key": pa.array(keys, kind),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array(numbers, pa.int64()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    found = partitions_of(batch, count)
    assert found.type == pa.int32()
    assert found.to_pylist() == [one_by_one(row, count) for row in rows]
    assert partitions_of(batch.slice(cut), count).to_pylist() == found.to_pylist()[cut:]
    table = pa.concat_tables([pa.Table.from_batches([batch.slice(0, cut)]), pa.Table.from_batches([batch.slice(cut)])])
    assert partitions_of(table, count).equals(found)


@given(ROWS)
def test_columns_that_are_missing_are_nulls(rows: list[tuple[bytes | None, bytes | None, int | None]]) -> None:
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    for columns, expected in (
        ({"key": keys}, [one_by_one((key, None, None), 7) for key in keys]),
        ({"value": values}, [one_by_one((None, value, None), 7) for value in values]),
        ({"other": values}, [partition_of(b"", 7)] * len(rows)),
    ):
        table = pa.table({name: pa.array(column, pa.binary()) for name, column in columns.items()})
        assert partitions_of(table, 7).to_pylist() == expected


def test_text_is_hashed_as_utf8_and_what_lies_under_a_null_is_not() -> None:
    words = ["größe", "", None, "größe"]
    expected = [partition_of((word or "").encode(), 5) for word in words]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        assert partitions_of(pa.table({"value": pa.array(words).cast(kind)}), 5).to_pylist() == expected
    categories = pl.DataFrame({"value": words}, schema={"value": pl.Categorical})
    assert partitions_of(pa.table(categories), 5).to_pylist() == expected
    assert partitions_of(pa.table(categories).slice(1), 5).to_pylist() == expected[1:]
    hidden = pa.Array.from_buffers(
        pa.binary(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(pa.array([0, 3, 3], pa.int32()).buffers()[1]), pa.py_buffer(b"abc")],
    )
    assert hidden.to_pylist() == [None, b""]
    assert partitions_of(pa.table({"value": hidden}), 1_000).to_pylist() == [partition_of(b"", 1_000)] * 2


@pytest.mark.parametrize(
    ("columns", "count", "error", "text"),
    [
        ({"key": [b"a"]}, 0, ValueError, "at least one"),
        ({"partition": [0, 4]}, 4, ValueError, "holds 0 to 4; the partitions are 0 to 3"),
        ({"partition": [-1, None]}, 4, ValueError, "holds -1 to -1"),
        ({"partition": ["1"]}, 4, TypeError, "whole numbers"),
        ({"key": [1]}, 4, TypeError, "the column 'key' is int64"),
    ],
)
def test_what_cannot_be_split_is_refused(columns: Any, count: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        partitions_of(pa.table(columns), count)


@pytest.mark.parametrize("rows", [{"value": ["1"]}, None, pa.array([b"1"])])
def test_rows_that_are_none_are_told(rows: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot append .*[:;] (give|it is one column)"):
        partitions_of(rows, 3)


def test_rows_may_be_given_as_an_append_takes_them() -> None:
    rows = [{"key": b"a", "value": b"1"}, {"key": None, "value": b"2"}, {"key": "c", "value": None}]
    table = pa.table({"key": [b"a", None, b"c"], "value": [b"1", b"2", None]})
    assert partitions_of(rows, 5).equals(partitions_of(table, 5))
    assert partitions_of(table.to_pandas(), 5).equals(partitions_of(table, 5))
    assert partitions_of(pl.DataFrame(rows[:1]), 5).equals(partitions_of(table.slice(0, 1), 5))
    assert partitions_of([], 5).to_pylist() == []
