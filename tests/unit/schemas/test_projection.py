"""Columns of one version as those of another: fields by name, safe casts, and rows whose values are lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.schemas.projection import projected

TEXTS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "expected", "lost"),
    [
        ([1, None], pa.int32(), pa.int64(), [1, None], None),
        ([1, 2**40, None], pa.int64(), pa.int32(), [1, None, None], [1]),
        ([1.0, 1.5], pa.float64(), pa.int64(), [1, None], [1]),
        ([b"a", b"\xff"], pa.binary(), pa.string(), ["a", None], [1]),
        ([1, None], pa.int64(), pa.string(), ["1", None], None),
        (["a", None, "b"], pa.string(), TEXTS, ["a", None, "b"], None),
        (["a", None], TEXTS, pa.string(), ["a", None], None),
        ([["a"], None], pa.list_(pa.string()), pa.int64(), [None, None], [0]),
        ([None, None], pa.null(), pa.struct([("a", pa.int8())]), [None, None], None),
        ([[1, 2**40], None, [], [3]], pa.list_(pa.int64()), pa.list_(pa.int32()), [[1, None], None, [], [3]], [0]),
        ([[("a", 1)], None, [("b", None)]], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()),
         [[("a", 1)], None, [("b", None)]], None),
        ([[("a", 2**40)], [("b", 1)]], pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8()),
         [[("a", None)], [("b", 1)]], [0]),
        ([[("x", 2**40), ("1", 5)], [("2", 2**40)], [("3", 6)]], pa.map_(pa.string(), pa.int64()),
         pa.map_(pa.int8(), pa.int8()), [None, [(2, None)], [(3, 6)]], [0, 1]),
    ],
)  # fmt: skip
def test_values_are_cast_safely(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType, expected: list[Any], lost: list[int] | None
) -> None:
    array = pa.array(values, kind)
    for given, skipped in ((array, 0), (pa.concat_arrays([array[:1], array])[1:], 0), (array[1:], 1)):
        made, marks = projected(given, wanted)
        made.validate(full=True)
        assert made.type == wanted
        assert made.to_pylist() == expected[skipped:]
        places = [row + skipped for row, mark in enumerate([] if marks is None else marks.to_pylist()) if mark]
        assert places == [row for row in lost or [] if row >= skipped]


def test_fields_are_found_by_name_and_rows_of_structs_stay_null() -> None:
    old = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])))])
    new = pa.struct([("b", pa.list_(pa.struct([("z", pa.bool_()), ("x", pa.int64())]))), ("a", pa.int8())])
    rows = [{"a": 1, "b": [{"x": 1, "y": "y"}, None]}, None, {"a": 300, "b": None}]
    made, lost = projected(pa.array(rows, old), new)
    made.validate(full=True)
    assert made.to_pylist() == [{"b": [{"z": None, "x": 1}, None], "a": 1}, None, {"b": None, "a": None}]
    assert lost is not None
    assert lost.to_pylist() == [False, False, True]
    same, none = projected(made, new)
    assert (same, none) == (made, None)


def test_a_lost_value_below_a_null_row_is_not_counted() -> None:
    inner = pa.StructArray.from_arrays([pa.array([2**40, 1])], ["a"], mask=pa.array([True, False]))
    made, lost = projected(inner, pa.struct([("a", pa.int8())]))
    assert made.to_pylist() == [None, {"a": 1}]
    assert lost is None or lost.to_pylist() == [False, False]
