"""Arrow types as Spark and tables hold them; header blocks of archived rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.reading.columns import header_blocks, parsed_headers
from penstock.lake.reading.storable import storable, storable_type

DAY = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "values", "stored", "found"),
    [
        (pa.uint8(), [255], pa.int16(), [255]),
        (pa.uint16(), [65535], pa.int32(), [65535]),
        (pa.uint32(), [2**32 - 1], pa.int64(), [2**32 - 1]),
        (pa.uint64(), [2**64 - 1], pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
        (pa.timestamp("ms", "Europe/Berlin"), [DAY], pa.timestamp("us", "UTC"), [DAY.replace(microsecond=0)]),
        (pa.timestamp("ns"), [1_999], pa.timestamp("us"), [datetime.datetime(1970, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
        (pa.time32("s"), [datetime.time(0, 0, 1)], pa.int64(), [1_000_000]),
        (pa.time64("ns"), [5_000], pa.int64(), [5]),
        (pa.duration("ms"), [datetime.timedelta(milliseconds=2)], pa.int64(), [2_000]),
        (pa.decimal256(50, 1), [Decimal("1.5")], pa.string(), ["1.5"]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None], pa.string(), ["a", None]),
        (pa.null(), [None], pa.string(), [None]),
        (pa.binary(2), [b"ab"], pa.binary(), [b"ab"]),
        (pa.struct([]), [{}, None], pa.bool_(), [True, None]),
        (pa.list_(pa.uint8()), [[1, None], None, []], pa.list_(pa.field("element", pa.int16())), [[1, None], None, []]),
        (pa.large_list(pa.uint8()), [[1]], pa.list_(pa.field("element", pa.int16())), [[1]]),
        (pa.list_(pa.uint8(), 2), [[1, 2]], pa.list_(pa.field("element", pa.int16())), [[1, 2]]),
        (
            pa.map_(pa.string(), pa.list_(pa.uint32())),
            [[("a", [1])], None, [("b", None), ("b", [])]],
            pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64()))),
            [[("a", [1])], None, [("b", None), ("b", [])]],
        ),
        (
            pa.struct([("a", pa.struct([("b", pa.uint8())]))]),
            [{"a": {"b": 1}}, {"a": None}, None],
            pa.struct([("a", pa.struct([("b", pa.int16())]))]),
            [{"a": {"b": 1}}, {"a": None}, None],
        ),
    ],
)
def test_values_are_stored_as_a_type_that_holds_them(
    kind: pa.DataType, values: list[Any], stored: pa.DataType, found: list[Any]
) -> None:
    array = pa.array([values[0], *values], kind).slice(1)  # with an offset
    made = storable(array)
    made.validate(full=True)
    assert (storable_type(kind), made.type) == (stored, stored)
    assert made.to_pylist() == found


names = st.text(st.characters(codec="ascii", categories=("Lu", "Ll", "Nd")), min_size=1, max_size=4)
header_values = st.binary(max_size=4).map(lambda value: value.replace(b"\r\n", b"").strip(b" \t"))
headers = st.fixed_dictionaries({"key": names, "value": header_values})
blocks = st.none() | st.lists(headers, min_size=1, max_size=3)


@given(st.lists(blocks, max_size=5))
def test_headers_of_archived_rows_are_blocks_again(found: list[Any]) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    parsed = pa.array([[{"key": "x", "value": b"y"}], *found], kind).slice(1)
    assert parsed_headers(header_blocks(parsed)).to_pylist() == found
