"""Rows survive every way through the format: encode, re-encode, Arrow, Polars, `open_segment`."""

from __future__ import annotations

import io
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from tests.batch_samples import (
    LEADER_EPOCHS,
    OFFSETS,
    ROWS,
    TIMESTAMPS_US,
    Row,
    message_of,
    numbers_of,
    opened,
    rows_of,
    segment_of,
)


def table_of(rows: list[Row]) -> pa.RecordBatch:
    """`rows` as pyarrow builds them, with offsets and timestamps that do not count."""
    subjects, keys, values, headers = zip(*rows, strict=True)
    zeros = [0] * len(rows)
    columns = [zeros, zeros, [subject.decode() for subject in subjects], keys, values, headers]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow_schema(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema())


@given(rows=ROWS, base_offset=OFFSETS, timestamp_us=TIMESTAMPS_US, leader_epoch=LEADER_EPOCHS)
def test_what_is_encoded_is_what_arrow_reads(rows, base_offset, timestamp_us, leader_epoch) -> None:
    message = message_of(rows, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch)
    header = codec.verify(message)
    end_offset = base_offset + len(rows)
    assert (header.base_offset, header.end_offset, header.count) == (base_offset, end_offset, len(rows))
    assert header.min_timestamp_us == header.max_timestamp_us == timestamp_us
    assert header.leader_epoch == leader_epoch
    assert header.size_bytes == len(message)
    table = opened(segment_of(message))
    table.validate(full=True)
    assert rows_of(table) == rows
    assert numbers_of(table, "offset") == list(codec.offsets(message)) == list(range(base_offset, end_offset))
    assert numbers_of(table, "timestamp") == list(codec.timestamps(message)) == [timestamp_us] * len(rows)
    assert codec.check_rows(message) == table.combine_chunks().to_batches()[0].replace_schema_metadata(None)


@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_polars_reads_a_segment_as_it_lies(batches: list[list[Row]]) -> None:
    polars = pytest.importorskip("polars")
    segment = segment_of(*map(message_of, batches))
    frame = polars.read_ipc_stream(io.BytesIO(segment))
    found = [Row(subject.encode(), *rest) for subject, *rest in frame.select(*Row._fields).iter_rows()]
    assert found == [row for rows in batches for row in rows]


@given(rows=ROWS, base_offset=OFFSETS, timestamp_us=TIMESTAMPS_US)
def test_reencode_equals_a_fresh_encode(rows: list[Row], base_offset: int, timestamp_us: int) -> None:
    sent = codec.encode_arrow(table_of(rows))
    assert rows_of(codec.check_rows(sent)) == rows
    stored = codec.reencode(sent, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=2)
    codec.verify(stored)
    assert rows_of(codec.check_rows(stored)) == rows
    fresh = message_of(rows, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=2)
    assert list(codec.offsets(stored)) == list(codec.offsets(fresh))
    assert replace(codec.read_header(stored), crc=0) == replace(codec.read_header(fresh), crc=0)


@given(rows=ROWS, data=st.data())
def test_slices_and_joined_chunks_keep_their_rows(rows: list[Row], data: st.DataObject) -> None:
    whole = table_of(rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    bounds = [0, *cuts, len(rows)]
    slices = [whole.slice(start, end - start) for start, end in itertools.pairwise(bounds) if start < end]
    for part in slices:
        message = codec.encode_arrow(part)
        codec.verify(message)
        assert rows_of(codec.check_rows(message)) == rows_of(part)
    (joined,) = pa.Table.from_batches(slices).combine_chunks().to_batches()
    message = codec.encode_arrow(joined)
    codec.verify(message)
    assert rows_of(codec.check_rows(message)) == rows


@given(rows=ROWS, begin=st.integers(0, 40))
def test_what_went_through_arrows_own_writer_keeps_its_rows(rows: list[Row], begin: int) -> None:
    part = table_of(rows).slice(begin % len(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema()) as writer:
        writer.write_batch(part)
    (batch,) = pa.ipc.open_stream(sink.getvalue())
    message = codec.encode_arrow(batch)
    codec.verify(message)
    assert rows_of(codec.check_rows(message)) == rows_of(part)


def test_a_null_subject_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, field.type) for field in arrow_schema()], schema=arrow_schema())
    with pytest.raises(CorruptionError, match="none for offset, timestamp and subject"):
        codec.verify(codec.encode_arrow(batch))
