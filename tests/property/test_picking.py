"""Single rows read out of a batch are those that a read of all of it has; bytes that are no batch are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout, projecting
from penstock.batch.picking import RowPicker
from penstock.batch.projecting import Projection
from penstock.batch.schema import arrow_schema
from penstock.client.read.batches import messages_of, one_message
from tests.batch_samples import ROWS, Row, message_of, with_header

COLUMNS = tuple(arrow_schema().names)


def opened(message: bytes) -> RowPicker:
    def read(begin: int, length: int) -> bytes:
        if begin + length > len(message):
            raise CorruptionError("x", begin, f"{length} bytes", "the end")
        return message[begin : begin + length]

    return RowPicker(read, len(message))


@given(
    rows=ROWS,
    times=st.integers(1, 5),
    gap=st.integers(0, 3),
    places=st.lists(st.integers(0, 10_000), max_size=6),
    columns=st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=6, unique=True),
)
def test_rows_are_those_of_the_whole_batch(
    rows: list[Row], times: int, gap: int, places: list[int], columns: list[str]
) -> None:
    message = message_of(rows * times, base_offset=100, leader_epoch=3)
    message = bytes(with_header(message, end_offset=100 + len(rows) * times + gap))
    whole = codec.check_rows(message)
    places = [place % whole.num_rows for place in places]
    batch = opened(message)
    assert batch.header == codec.read_header(message)
    assert batch.subjects().equals(whole.column("subject"))
    assert [batch.place_of(100 + place) for place in places] == places
    found = Projection(columns, None).of_rows(batch, places)
    assert found.schema.equals(projecting.schema_of(columns))
    wanted = whole.take(pa.array(places, pa.int64())).select(columns)
    assert found.to_pylist() == wanted.to_pylist()
    found.validate(full=True)
    for place in places:
        wanted_row = {name: whole.column(name)[place] for name in COLUMNS}
        row = batch.row(place)
        assert row.offset == wanted_row["offset"].as_py() == 100 + place
        assert row.timestamp_us == wanted_row["timestamp"].cast(pa.int64()).as_py()
        assert row.subject == wanted_row["subject"].as_py().encode()
        assert (row.key, row.value, row.headers) == tuple(
            wanted_row[name].as_py() for name in ("key", "value", "headers")
        )
        assert one_message(message, 100 + place, 3, source="x") == next(messages_of(whole.slice(place, 1), 3))
    assert batch.find(99) is batch.find(100 + whole.num_rows) is None


@given(
    rows=ROWS,
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    place=st.integers(0, 20),
)
def test_bytes_that_are_no_batch_are_refused(rows: list[Row], changes: list[tuple[float, int]], place: int) -> None:
    message = bytearray(message_of(rows, base_offset=100, leader_epoch=3))
    for at, value in changes:
        message[int(at * len(message))] = value
    try:
        batch = opened(bytes(message))
        batch.subjects()
        row = batch.row(place % batch.header.count)
        assert row.subject is None or isinstance(row.subject, bytes)
        found = batch.rows([place % batch.header.count], range(len(COLUMNS)), arrow_schema())
    except CorruptionError:
        return
    found.validate(full=True)


@pytest.mark.parametrize("number", range(layout.BUFFER_COUNT))
def test_a_buffer_before_the_batch_is_refused(number: int) -> None:
    message = bytearray(message_of([Row(b"s", b"k", b"v", b"h")], base_offset=100, leader_epoch=3))
    layout.INT64.pack_into(message, layout.BUFFERS_POSITION + 16 * number, -8)
    with pytest.raises(CorruptionError):
        opened(bytes(message))
