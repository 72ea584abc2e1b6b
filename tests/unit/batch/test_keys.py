"""An empty key is no key: where rows come in it becomes null, and nothing else of the message changes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import codec
from penstock.batch.codec import BatchProducer
from penstock.batch.keys import have_key, without_empty
from penstock.batch.schema import arrow_schema
from penstock.hot.rows import BatchRows
from tests import hot_modes

KEYS = st.lists(st.sampled_from([None, b"", b"k", b"\x00\xff"]), min_size=1, max_size=20)


def message(keys: list[bytes | None], under_null: bytes = b"") -> bytearray:
    """A message of rows with these keys; `under_null` are bytes that lie under each null."""
    column = pa.array([under_null if key is None else key for key in keys], pa.binary())
    validity = pa.array([key is not None for key in keys]).buffers()[1]
    if None in keys:
        column = pa.Array.from_buffers(pa.binary(), len(keys), [validity, *column.buffers()[1:]])
    columns = {
        "offset": pa.array(range(10, 10 + 2 * len(keys), 2), pa.int64()),
        "timestamp": pa.array(range(len(keys)), pa.timestamp("us", "UTC")),
        "subject": pa.array(["s"] * len(keys)),
        "key": column,
        "value": pa.array([b"%d" % row if row % 3 else None for row in range(len(keys))], pa.binary()),
        "headers": pa.array([b"NATS/1.0\r\n\r\n" if row % 2 else None for row in range(len(keys))], pa.binary()),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=arrow_schema())
    return codec.encode_arrow_at(rows, 9, 10 + 2 * len(keys))


@given(KEYS, st.sampled_from([b"", b"hidden"]))
def test_an_empty_key_is_found_by_both_modes(keys: list[bytes | None], under_null: bytes) -> None:
    data = bytes(message(keys, under_null))
    for rows in (hot_modes.plain("rows").BatchRows, BatchRows):
        assert rows(data, codec.LAYOUT).has_empty_key() == (b"" in keys)


@given(KEYS, st.sampled_from([b"", b"hidden"]))
def test_it_becomes_null_and_nothing_else_changes(keys: list[bytes | None], under_null: bytes) -> None:
    before = message(keys, under_null)
    codec.renumber(before, base_offset=7, timestamp_us=5, leader_epoch=3, flags=1, producer=BatchProducer(1, 2, 3))
    after = codec.without_empty_keys(before)
    expected = codec.check_rows(before).to_pydict() | {"key": [key or None for key in keys]}
    assert codec.check_rows(after).to_pydict() == expected
    header, old = codec.verify(after), codec.verify(before)
    for name in ("flags", "count", "leader_epoch", "base_offset", "end_offset", "producer_id", "producer_sequence"):
        assert getattr(header, name) == getattr(old, name)


@pytest.mark.parametrize("keys", [[], [None], [b"", None, b"k"]])
def test_a_column(keys: list[bytes | None]) -> None:
    column = pa.array(keys, pa.binary())
    assert have_key(column).to_pylist() == [bool(key) for key in keys]
    assert without_empty(column).to_pylist() == [key or None for key in keys]
