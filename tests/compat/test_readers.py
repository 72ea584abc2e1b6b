"""A segment file as it lies on disk, opened by readers that know nothing of Penstock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

from penstock.base.config import Compression
from penstock.batch import codec, compression, merging
from penstock.batch.reader import open_segment
from penstock.batch.schema import SCHEMA_BYTES
from tests.segments import Row, Segment, write_segment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ["offset", "timestamp", "subject", "key", "value", "headers"]


@pytest.fixture(
    params=[
        ((), ""),
        ((1,), ""),
        ((5, 1000, 1), ""),
        ((1,) * 50, ""),
        ((5, 1000, 1, 900), "lz4"),
        ((5, 1000, 900), "zstd"),
    ],
    ids=["one row", "two batches", "many rows", "lone rows, merged", "some LZ4", "some Zstandard"],
)
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Segment:
    counts, compression = request.param
    segment = write_segment(tmp_path / "00000000000000000000.arrows", *counts)
    if compression:
        return compressed(segment, Compression(compression))
    return merged(segment) if len(counts) == 50 else segment


def compressed(segment: Segment, wished: Compression) -> Segment:
    """The same with its large batches compressed, between small ones that are not."""
    with open_segment(segment.path) as reader:
        found = [codec.compressed(data, wished)[0] if one.count > 500 else data for one, data in reader.messages()]
    kinds = [compression.of(codec.verify(data)) for data in found]
    assert set(kinds) == {wished, Compression.NONE}
    path = segment.path.with_name("00000000000000000000.1.arrows")
    path.write_bytes(segment.path.read_bytes()[:SCHEMA_BYTES] + b"".join(found))
    return Segment(path, segment.batches)


def merged(segment: Segment) -> Segment:
    """The same as the cleaner leaves it: all in one batch."""
    raw = memoryview(segment.path.read_bytes())
    found = merging.next_merged(raw[SCHEMA_BYTES:], 0, rows_max=10**4, bytes_max=10**6)
    assert SCHEMA_BYTES + found.size_bytes == len(raw)
    path = segment.path.with_name("00000000000000000000.1.arrows")
    path.write_bytes(bytes(raw[:SCHEMA_BYTES]) + bytes(found.data))
    return Segment(path, [segment.rows])


def with_datetimes(rows: list[Row]) -> list[tuple]:
    return [(row[0], EPOCH + timedelta(microseconds=row[1]), *row[2:]) for row in rows]


def test_pyarrow_reads_it_batch_by_batch(segment: Segment) -> None:
    with pa.OSFile(str(segment.path)) as file, pa.ipc.open_stream(file) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    found = [list(zip(*batch.to_pydict().values(), strict=True)) for batch in batches]
    assert found == [with_datetimes(rows) for rows in segment.batches]
    assert reader.schema.names == COLUMNS
    assert reader.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_pyarrow_reads_it_from_mapped_memory(segment: Segment) -> None:
    with pa.memory_map(str(segment.path)) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
        assert table.to_pylist() == [dict(zip(COLUMNS, row, strict=True)) for row in with_datetimes(segment.rows)]


def test_polars_reads_it(segment: Segment) -> None:
    frame = polars.read_ipc_stream(segment.path)
    assert frame.columns == COLUMNS
    assert frame.schema["timestamp"] == polars.Datetime("us", "UTC")
    assert frame.rows() == with_datetimes(segment.rows)


def test_duckdb_reads_it_through_a_pyarrow_reader(segment: Segment) -> None:
    with pa.OSFile(str(segment.path)) as file, duckdb.connect() as connection:
        connection.register("segment", pa.ipc.open_stream(file))
        query = 'SELECT "offset", epoch_us(timestamp), subject, key, value, headers FROM segment'
        found = connection.execute(query).fetchall()
    assert found == segment.rows


def test_pandas_reads_it_through_pyarrow(segment: Segment) -> None:
    with pa.OSFile(str(segment.path)) as file:
        frame = pa.ipc.open_stream(file).read_pandas()
    assert list(frame.columns) == COLUMNS
    assert frame["offset"].tolist() == [row[0] for row in segment.rows]
    assert frame["timestamp"].tolist() == [pandas.Timestamp(row[1], unit="us", tz="UTC") for row in segment.rows]
    assert frame["subject"].tolist() == [row[2] for row in segment.rows]
    for number, name in enumerate(["key", "value", "headers"], start=3):
        assert [None if cell is None else bytes(cell) for cell in frame[name]] == [row[number] for row in segment.rows]


def test_a_batch_that_is_still_being_written_hides_none_of_the_whole_ones(segment: Segment) -> None:
    whole = segment.path.read_bytes()
    segment.path.write_bytes(whole[:-1])
    found = []
    with pa.OSFile(str(segment.path)) as file, pa.ipc.open_stream(file) as reader:
        with pytest.raises((pa.ArrowInvalid, OSError)):
            found.extend(iter(reader))
        while len(found) < len(segment.batches) - 1:
            found.append(reader.read_next_batch())
    assert [batch.num_rows for batch in found] == [len(rows) for rows in segment.batches[:-1]]
