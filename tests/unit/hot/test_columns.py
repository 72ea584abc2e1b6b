"""The column buffers are Arrow's: pyarrow finds the same values in them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.columns import (
    VarColumn,
    int64_range,
    int64_repeat,
    null_var_column,
    nullable_var_column,
    var_column,
)


def values_of(column: VarColumn, count: int) -> list[bytes | None]:
    """What pyarrow reads out of the three buffers."""
    validity, *others = (pa.py_buffer(buffer) for buffer in column[1:])
    buffers = [validity if column.null_count else None, *others]
    array = pa.Array.from_buffers(pa.binary(), count, buffers, null_count=column.null_count)
    array.validate(full=True)
    values: list[bytes | None] = array.to_pylist()
    return values


@given(st.lists(st.none() | st.binary(max_size=10), min_size=1, max_size=80))
def test_nullable_values_come_back(values: list[bytes | None]) -> None:
    column = nullable_var_column(values)
    assert column.null_count == values.count(None)
    assert len(column.validity) == ((len(values) + 7) // 8 if None in values else 0)
    assert values_of(column, len(values)) == values


@given(st.lists(st.binary(max_size=10), min_size=1, max_size=80))
def test_values_without_nulls_have_no_validity(values: list[bytes]) -> None:
    column = var_column(values)
    assert (column.null_count, column.validity) == (0, b"")
    assert column == nullable_var_column(values)
    assert values_of(column, len(values)) == values


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 65])
def test_a_column_of_nulls(count: int) -> None:
    column = null_var_column(count)
    assert column == nullable_var_column([None] * count)
    assert values_of(column, count) == [None] * count


def test_bits_behind_the_last_row_are_zero() -> None:
    column = nullable_var_column([b"", None, b""])
    assert column.validity == b"\x05"


def test_an_empty_value_is_not_null() -> None:
    assert values_of(nullable_var_column([b"", None]), 2) == [b"", None]


def test_a_large_column_is_quick_to_mark_and_right() -> None:
    values = [None if row % 3 == 0 else b"%d" % row for row in range(65_536)]
    assert values_of(nullable_var_column(values), len(values)) == values


@given(start=st.integers(-(2**63), 2**63 - 101), count=st.integers(0, 100))
def test_ranges_of_numbers(start: int, count: int) -> None:
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(int64_range(start, count))])
    assert numbers.to_pylist() == list(range(start, start + count))


@given(value=st.integers(-(2**63), 2**63 - 1), count=st.integers(0, 100))
def test_repeated_numbers(value: int, count: int) -> None:
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(int64_repeat(value, count))])
    assert numbers.to_pylist() == [value] * count


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_numbers_that_do_not_fit_are_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        int64_repeat(value, 1)
    with pytest.raises(OverflowError):
        int64_range(value, 1)
