"""Batches that are merged hold what they held, and cover what they covered, whatever the limits are."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import codec, merging
from penstock.batch.schema import arrow_schema
from tests.batch_samples import MIXED, ROWS, SMALL, Row, message_of

LOGS = st.lists(st.tuples(ROWS, st.integers(0, 3)), min_size=1, max_size=12)


@given(LOGS, st.integers(0, 2**40), st.integers(1, 40), st.integers(1, 5000))
def test_all_rows_are_there_in_fewer_batches(
    batches: list[tuple[list[object], int]], base_offset: int, rows_max: int, bytes_max: int
) -> None:
    raw, offset, timestamp_us = b"", base_offset, 0
    for rows, step_us in batches:
        timestamp_us += step_us
        raw += message_of(rows, base_offset=offset, timestamp_us=timestamp_us)  # type: ignore[arg-type]
        offset += len(rows)
    wanted = _rows(raw)
    merged, position, at, sources = b"", 0, base_offset, 0
    while position < len(raw):
        found = merging.next_merged(memoryview(raw)[position:], at, rows_max=rows_max, bytes_max=bytes_max)
        header = codec.verify(found.data)
        assert header == found.header
        assert header.base_offset == at
        assert header.count == header.end_offset - header.base_offset
        if found.sources > 1:
            assert header.count <= rows_max
            assert header.size_bytes - 720 <= bytes_max + 720
        times = codec.timestamps(found.data)
        assert (header.min_timestamp_us, header.max_timestamp_us) == (times[0], times[-1])
        merged += bytes(found.data)
        position += found.size_bytes
        at = header.end_offset
        sources += found.sources
    assert (at, sources) == (offset, len(batches))
    assert _rows(merged).equals(wanted)


def test_so_many_that_they_are_merged_piece_by_piece() -> None:
    raw, offset, number = bytearray(), 0, 0
    while len(raw) < 3 * 2**20:
        rows = MIXED if number % 3 else [*SMALL, Row(b"large", b"k", bytes(5_000), None)]
        raw += message_of(rows, base_offset=offset, timestamp_us=number)
        offset, number = offset + len(rows), number + 1
    found = merging.next_merged(memoryview(raw), 0, rows_max=10**5, bytes_max=10**8)
    assert (found.sources, found.size_bytes) == (number, len(raw))
    header = codec.verify(found.data)
    assert (header.base_offset, header.end_offset, header.count) == (0, offset, offset)
    assert (header.min_timestamp_us, header.max_timestamp_us) == (0, number - 1)
    assert _rows(bytes(found.data)).equals(_rows(bytes(raw)))


@given(ROWS, st.integers(0, 2**40), st.integers(0, 70))
def test_the_rest_of_a_batch_is_what_comes_from_an_offset_on(rows: list[Row], base_offset: int, skipped: int) -> None:
    message = message_of(rows, base_offset=base_offset, timestamp_us=9)
    rest = codec.rest_of(message, base_offset + skipped)
    if skipped >= len(rows):
        assert rest is None
        return
    assert rest is not None
    header = codec.verify(rest)
    assert (header.base_offset, header.end_offset) == (base_offset + skipped, base_offset + len(rows))
    assert codec.check_rows(rest).equals(codec.check_rows(message).slice(skipped))


def _rows(raw: bytes) -> pa.Table:
    batches, position = [], 0
    while position < len(raw):
        size = codec.read_header(memoryview(raw)[position:]).size_bytes
        batches.append(codec.check_rows(raw[position : position + size]))
        position += size
    return pa.Table.from_batches(batches, arrow_schema()).combine_chunks()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_batches_of_producers_stay_as_they_are(whose: list[int]) -> None:
    """Leaders look for them by their headers: see `penstock.ingest.producers`."""
    raw, offset = b"", 0
    for number, one in enumerate(whose):
        batch = bytearray(message_of(SMALL, base_offset=offset, timestamp_us=number))
        producer = codec.BatchProducer(one, 0, number)
        codec.renumber(batch, base_offset=offset, timestamp_us=number, leader_epoch=1, producer=producer)
        raw, offset = raw + bytes(batch), offset + len(SMALL)
    found, position, at = [], 0, 0
    while position < len(raw):
        merged = merging.next_merged(memoryview(raw)[position:], at, rows_max=10**5, bytes_max=10**8)
        found.append((merged.header.producer_id, merged.header.producer_sequence, merged.sources))
        position, at = position + merged.size_bytes, merged.header.end_offset
    assert [one[:2] for one in found if one[0]] == [(one, number) for number, one in enumerate(whose) if one]
    assert all(sources == 1 for one, _, sources in found if one)
    assert sum(sources for *_, sources in found) == len(whose)
