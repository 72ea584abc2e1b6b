"""Segments that older encoders wrote are read for ever, and today's encoder still writes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.config import Compression
from penstock.batch import codec, compression, schema
from penstock.batch.header import INCOMPRESSIBLE
from penstock.batch.reader import open_segment
from tests.compat.golden_segments import FOLDER, SEGMENTS, rows_as_json

WRITTEN_WITH = 26
"""The version of pyarrow, with its compressors."""
FILES = sorted(FOLDER.glob("*.arrows"))


def rows_beside(path: Path) -> list[dict[str, object]]:
    """The rows that were written down beside a golden segment."""
    rows: list[dict[str, object]] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return rows


def test_every_segment_has_its_golden_file() -> None:
    assert [path.name for path in FILES] == sorted(f"format1-{name}.arrows" for name in SEGMENTS)


@pytest.mark.parametrize("name", SEGMENTS)
def test_todays_encoder_writes_the_same_bytes(name: str) -> None:
    if name in {"lz4", "zstd"} and int(pa.__version__.split(".")[0]) != WRITTEN_WITH:
        pytest.skip("another version of the compressor may find other bytes that unpack to the same")
    assert SEGMENTS[name].content() == (FOLDER / f"format1-{name}.arrows").read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_todays_decoder_finds_the_rows(path: Path) -> None:
    with open_segment(path) as reader:
        assert rows_as_json(reader.read_all()) == rows_beside(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_arrow_finds_the_rows(path: Path) -> None:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        assert rows_as_json(reader.read_all()) == rows_beside(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_polars_finds_the_rows(path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_ipc_stream(path)
    assert rows_as_json(frame.to_arrow()) == rows_beside(path)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_compressed_batches_unpack_to_what_was_compressed(name: str) -> None:
    segment = SEGMENTS[name]
    with open_segment(FOLDER / f"format1-{name}.arrows") as reader:
        found = [(header, data) for header, data in reader.messages()]
    assert [compression.of(header) for header, _ in found] == [name, "none", name, "none", "none"]
    assert [header.flags for header, _ in found[3:]] == [INCOMPRESSIBLE, 0]
    for (_, data), batch in zip(found, segment.batches, strict=True):
        assert codec.as_appended(data) == batch._replace(compression=Compression.NONE).message()


@pytest.mark.parametrize("name", SEGMENTS)
def test_headers_say_what_was_written(name: str) -> None:
    segment = SEGMENTS[name]
    with open_segment(FOLDER / f"format1-{name}.arrows") as reader:
        assert (reader.stream_id, reader.partition) == (segment.stream_id, segment.partition)
        headers = [header for header, _ in reader.messages()]
    assert len(headers) == len(segment.batches)
    for header, batch in zip(headers, segment.batches, strict=True):
        assert codec.producer_of(header) == (batch.producer or codec.BatchProducer())
        assert (header.base_offset, header.leader_epoch) == (batch.base_offset, batch.leader_epoch)
        assert header.end_offset == batch.base_offset + len(batch.columns.values)
        assert header.min_timestamp_us == header.max_timestamp_us == batch.timestamp_us


def test_the_schema_message_is_what_arrow_writes() -> None:
    metadata = {
        b"penstock.format": b"1",
        b"penstock.stream_id": b"00000000000000ff",
        b"penstock.partition": b"00000007",
    }
    expected = schema.arrow_schema().with_metadata(metadata)
    ours = schema.schema_message(255, 7)
    assert pa.ipc.read_schema(pa.py_buffer(ours)).equals(expected, check_metadata=True)
    # Byte for byte too, by the Arrow that the template was taken from. Another version may lay the same flatbuffer out
    # differently; that changes nothing for us, because our bytes are fixed and parse to the same schema, as seen above.
    if int(pa.__version__.split(".")[0]) == WRITTEN_WITH:
        assert expected.serialize().to_pybytes() == ours
