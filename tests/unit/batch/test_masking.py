"""Which rows are shown, with and without gaps between their offsets; and messages without the hidden ones."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import codec, masking
from penstock.batch.header import MAY_HOLD_IDS
from penstock.live.row_set import NONE, RowSet
from tests.extent import examples
from tests.groups import Columns, encoded

PLACES = st.integers(0, 60) | st.integers(65_500, 65_600) | st.sampled_from([2**20, 2**40, 2**40 + 1])


@settings(max_examples=examples(200))
@given(st.sets(PLACES, max_size=80), st.sets(PLACES, max_size=80), st.integers(0, 3))
def test_rows_are_shown_that_are_not_hidden(offsets: set[int], hidden: set[int], skipped: int) -> None:
    rows = sorted(offsets)
    column = pa.array(rows, pa.int64()).slice(skipped)
    found = masking.shown(column, RowSet.of(hidden))
    wanted = [row not in hidden for row in rows[skipped:]]
    assert (found is None) == all(wanted)
    assert found is None or found.to_pylist() == wanted


def test_a_message_keeps_all_but_its_hidden_rows() -> None:
    values = [b"v%d" % row for row in range(5)]
    data = encoded(Columns([b"s"] * 5, [b"k"] * 5, values, [None] * 5), base_offset=10, timestamp_us=7, leader_epoch=3)
    header = codec.renumber(data, base_offset=10, timestamp_us=7, leader_epoch=3, flags=MAY_HOLD_IDS)
    whole = masking.masked(data, header, RowSet.of([9, 15]))
    assert whole is not None
    assert whole.data is data
    part = masking.masked(data, header, RowSet.of([10, 12, 14]))
    assert part is not None
    assert codec.verify(part.data) == part.header
    assert (part.header.base_offset, part.header.end_offset, part.header.count) == (10, 15, 2)
    assert (part.header.leader_epoch, part.header.flags) == (3, MAY_HOLD_IDS)
    assert codec.check_rows(part.data).select(["offset", "value"]).to_pydict() == {
        "offset": [11, 13],
        "value": [b"v1", b"v3"],
    }
    assert b"v2" not in bytes(part.data)
    assert masking.masked(data, header, RowSet.of(range(10, 15))) is None
    assert masking.masked(data, header, NONE) is not None
