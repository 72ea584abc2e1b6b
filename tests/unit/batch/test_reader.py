"""`open_segment`: whole, verified batches only, whatever the file looks like behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.reader import open_segment, segment_files
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from tests.batch_samples import MIXED, SMALL, message_of, numbers_of, rows_of, segment_of
from tests.groups import Columns, encoded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.arrows"


FIRST = message_of(SMALL, base_offset=0)
SECOND = message_of(MIXED, base_offset=1)


def test_a_sealed_segment_is_read_whole(path: Path) -> None:
    path.write_bytes(segment_of(FIRST, SECOND, stream_id=12, partition=3))
    with open_segment(path) as reader:
        assert (reader.stream_id, reader.partition) == (12, 3)
        table = reader.read_all()
        assert table.schema == reader.schema
        assert rows_of(table) == SMALL + MIXED
        assert reader.read_all().num_rows == 0
    assert os.fspath(path) == str(path)
    with open_segment(str(path)) as reader:
        assert [header.base_offset for header, _ in reader.messages()] == [0, 1]


def test_arrow_and_polars_read_the_file_as_it_lies(path: Path) -> None:
    polars = pytest.importorskip("polars")
    path.write_bytes(segment_of(FIRST, SECOND))
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        assert rows_of(stream.read_all()) == SMALL + MIXED
    frame = polars.read_ipc_stream(path)
    assert frame["offset"].to_list() == [0, 1, 2, 3, 4]
    assert [value.encode() for value in frame["subject"]] == [row.subject for row in SMALL + MIXED]
    assert frame["value"].to_list() == [row.value for row in SMALL + MIXED]


def test_duckdb_reads_it_through_arrow(path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path.write_bytes(segment_of(FIRST, SECOND))
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream, duckdb.connect() as connection:
        connection.register("log", stream)
        found = connection.execute('select "offset", value from log order by "offset"').fetchall()
    assert found == [(offset, row.value) for offset, row in enumerate(SMALL + MIXED)]


def test_a_reader_beside_a_writer_sees_each_batch_once_it_is_whole(path: Path) -> None:
    whole = segment_of(FIRST, SECOND)
    ends = {SCHEMA_BYTES + len(FIRST): SMALL, len(whole): MIXED}
    path.write_bytes(whole[:SCHEMA_BYTES])
    with open_segment(path) as reader, path.open("ab", buffering=0) as writer:
        for position in range(SCHEMA_BYTES, len(whole)):
            assert list(reader) == []
            writer.write(whole[position : position + 1])
            if rows := ends.get(position + 1):
                (batch,) = reader
                assert rows_of(batch) == rows


def test_a_schema_that_is_not_yet_whole_is_no_segment_yet(path: Path) -> None:
    message = schema_message(1, 0)
    for size in (0, 1, 100, SCHEMA_BYTES - 1):
        path.write_bytes(message[:size])
        with pytest.raises(CorruptionError, match=f"{size} bytes"):
            open_segment(path)


def test_a_torn_tail_ends_the_iteration(path: Path) -> None:
    for size in (1, 8, 279, 280, 719, len(SECOND) - 1):
        path.write_bytes(segment_of(FIRST, SECOND[:size]))
        with open_segment(path) as reader:
            assert rows_of(reader.read_all()) == SMALL


@pytest.mark.parametrize("size", [1, 279, 280, 4096, 20_000])
def test_zeros_at_the_tail_are_unwritten_and_seen_once_they_are_written(path: Path, size: int) -> None:
    path.write_bytes(segment_of(FIRST) + bytes(size))
    with open_segment(path) as reader:
        assert rows_of(reader.read_all()) == SMALL
        with path.open("r+b", buffering=0) as writer:
            writer.seek(SCHEMA_BYTES + len(FIRST))
            writer.write(SECOND)
        assert rows_of(reader.read_all()) == MIXED


def test_a_tail_that_was_cut_and_written_anew_is_read_anew(path: Path) -> None:
    path.write_bytes(segment_of(FIRST, SECOND[:500]))
    with open_segment(path) as reader:
        assert reader.read_all().num_rows == 1
        other = message_of(MIXED, base_offset=1, leader_epoch=2)
        os.truncate(path, SCHEMA_BYTES + len(FIRST))
        with path.open("ab", buffering=0) as writer:
            writer.write(other)
        ((header, _),) = reader.messages()
        assert header.leader_epoch == 2


@pytest.mark.parametrize("position", [0, 90, 150, 300, 700, 800, len(FIRST) - 1])
def test_a_flipped_bit_is_reported_with_file_and_position_every_time(path: Path, position: int) -> None:
    content = bytearray(segment_of(FIRST, SECOND))
    content[SCHEMA_BYTES + len(FIRST) + position] ^= 4
    path.write_bytes(content)
    with open_segment(path) as reader:
        batches = iter(reader)
        assert rows_of(next(batches)) == SMALL
        for _ in range(2):
            with pytest.raises(CorruptionError) as caught:
                next(iter(reader))
            assert caught.value.file == str(path)
            assert 0 <= caught.value.position - (SCHEMA_BYTES + len(FIRST)) <= 720


def test_bad_rows_behind_a_good_checksum_are_reported_every_time(path: Path) -> None:
    bad = encoded(Columns([b"\xff"], None, [b""], None), base_offset=1, timestamp_us=0, leader_epoch=1)
    path.write_bytes(segment_of(FIRST, bad, message_of(SMALL, base_offset=2)))
    with open_segment(path) as reader:
        assert rows_of(next(iter(reader))) == SMALL
        for _ in range(2):
            with pytest.raises(CorruptionError, match="subject") as caught:
                next(iter(reader))
            assert (caught.value.file, caught.value.position) == (str(path), SCHEMA_BYTES + len(FIRST))


def test_a_newer_format_says_so(path: Path) -> None:
    content = bytearray(segment_of(FIRST))
    content[212:213] = b"2"
    path.write_bytes(content)
    with pytest.raises(RemoteError, match="upgrade"):
        open_segment(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"not a segment" * 100, bytes(5000)])
def test_what_is_no_segment_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptionError) as caught:
        open_segment(path)
    assert caught.value.file == str(path)


def test_a_missing_file_is_the_operating_systems_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_segment(path)


def test_closing_twice_is_fine(path: Path) -> None:
    path.write_bytes(segment_of(FIRST))
    reader = open_segment(path)
    assert numbers_of(reader.read_all(), "offset") == [0]
    reader.close()
    reader.close()


def test_of_segments_that_were_written_anew_the_newest_counts(tmp_path: Path) -> None:
    names = [
        "00000000000000000000.arrows",
        "00000000000000000000.9.arrows",
        "00000000000000000000.10.arrows",
        "00000000000000000007.arrows",
        "00000000000000000007.1.cleaned",
        "00000000000000000003.2.arrows",
        "00000000000000000003.2.index",
        "3.arrows",
        "checkpoint",
    ]
    for name in names:
        (tmp_path / name).write_bytes(bytes(SCHEMA_BYTES))
    found = [path.name for path in segment_files(tmp_path)]
    assert found == ["00000000000000000000.10.arrows", "00000000000000000003.2.arrows", "00000000000000000007.arrows"]
    assert all(path.parent == tmp_path for path in segment_files(str(tmp_path)))


def test_a_segment_that_the_broker_is_creating_has_no_messages_yet(tmp_path: Path) -> None:
    """Only the last file of a log can be empty, and has no index then; anything else is damage."""
    first, last = tmp_path / "00000000000000000000.arrows", tmp_path / "00000000000000000007.arrows"
    first.write_bytes(b"")
    last.write_bytes(b"")
    assert segment_files(tmp_path) == [first]
    last.with_suffix(".index").write_bytes(b"")
    assert segment_files(tmp_path) == [first, last]
    last.with_suffix(".index").unlink()
    last.write_bytes(bytes(SCHEMA_BYTES - 1))
    assert segment_files(tmp_path) == [first, last]
    last.write_bytes(bytes(SCHEMA_BYTES))
    assert segment_files(tmp_path) == [first, last]
    with pytest.raises(CorruptionError, match=f"a schema message of {SCHEMA_BYTES} bytes"):
        open_segment(first)
