"""Files for other programs hold every message; a file is there when it is complete."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.batch.schema import arrow_schema
from penstock.client.read.batches import of_partition
from penstock.ops.reading import files

BLOCK = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
ROWS = [
    (0, 1_000_001, "a.b", b"k", b'{"x": "\xc3\xa9"}', BLOCK),
    (1, 2_000_000, 'a."quoted",b', None, b"\xff\xfe", b"NATS/1.0\r\nA: \xff\r\n\r\n"),
    (5, 2_000_000, "a.c", b"line\nend", None, None),
    (6, 3_000_000, "a.c", b"", b"base64:x", None),
]


def batch() -> pa.RecordBatch:
    fields = arrow_schema()
    columns = zip(zip(*ROWS, strict=True), fields, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in columns], schema=fields)


def written(write, batches, schema, **options) -> bytes:
    out = io.BytesIO()
    write(batches, schema, out, **options)
    assert not out.closed, "stdout stays open"
    return out.getvalue()


def test_csv_holds_every_byte() -> None:
    schema = files.plain_schema(arrow_schema(), has_partition=True)
    plain = [files.plain(of_partition(batch(), 3), has_partition=True)]
    text = written(files.write_csv, plain, schema).decode()
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert found == [
        ["offset", "timestamp", "subject", "key", "value", "headers", "partition"],
        ["0", "1970-01-01 00:00:01.000001Z", "a.b", "k", '{"x": "é"}', '{"A":["1","2"]}', "3"],
        ["1", "1970-01-01 00:00:02.000000Z", 'a."quoted",b', "", "base64://4=", found[2][5], "3"],
        ["5", "1970-01-01 00:00:02.000000Z", "a.c", "line\nend", "", "", "3"],
        ["6", "1970-01-01 00:00:03.000000Z", "a.c", "", "base64:YmFzZTY0Ong=", "", "3"],
    ]
    assert found[2][5].startswith("base64:")
    assert '"a.c","","base64' in text, "the empty text is in quotes, null is not"
    assert written(files.write_csv, [], arrow_schema()).count(b"\n") == 1


def test_csv_has_nested_columns_as_json() -> None:
    rows = pa.record_batch({"a": [{"b": [1, None]}, None], "n": pa.nulls(2), "t": [True, None]})
    assert written(files.write_csv, [rows], rows.schema) == b'"a","n","t"\n"{""b"":[1,null]}",,true\n,,\n'


def test_maps_are_dicts_at_any_depth_and_with_any_keys() -> None:
    by_text = pa.map_(pa.string(), pa.list_(pa.map_(pa.int16(), pa.bool_())))
    kinds = {
        "plain": (by_text, [[("a", [[(-1, True)], None]), ("b", None)], None]),
        "inside": (pa.struct([("m", by_text), ("n", pa.int8())]), [{"m": [("a", [])], "n": 1}, {"m": None, "n": 2}]),
        "listed": (pa.list_(pa.map_(pa.binary(), pa.int8())), [[[(b"k", 1), (b"\xff", 2)]], []]),
        "struct": (pa.map_(pa.struct([("x", pa.int8())]), pa.int8()), [[({"x": 1}, 2)], []]),
        "double": (pa.map_(pa.float64(), pa.int8()), [[(0.5, 1), (0.5, 2)], []]),
        "bool": (pa.map_(pa.bool_(), pa.date32()), [[(True, None)], []]),
    }
    assert {name: files.values_of(pa.array(values, kind)) for name, (kind, values) in kinds.items()} == {
        "plain": [{"a": [{"-1": True}, None], "b": None}, None],
        "inside": [{"m": {"a": []}, "n": 1}, {"m": None, "n": 2}],
        "listed": [[{"k": 1, "base64:/w==": 2}], []],
        "struct": [{'{"x":1}': 2}, {}],
        "double": [{"0.5": 2}, {}],
        "bool": [{"true": None}, {}],
    }


@pytest.mark.parametrize("count", [0, 2])
def test_parquet_and_arrow(count: int) -> None:
    batches = [batch()] * count
    parquet = pq.read_table(pa.BufferReader(written(files.write_parquet, batches, arrow_schema())))
    stream = pa.ipc.open_stream(written(files.write_arrow, batches, arrow_schema())).read_all()
    file = pa.ipc.open_file(written(files.write_arrow, batches, arrow_schema(), is_stream=False)).read_all()
    for table in (parquet, stream, file):
        assert table.equals(pa.Table.from_batches(batches, arrow_schema()))


def test_small_batches_become_one_row_group() -> None:
    data = written(files.write_parquet, [batch()] * 50, arrow_schema())
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups == 1


def test_a_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    with files.complete_file(path) as file:
        file.write(b"1")
        assert not path.exists()
    assert path.read_bytes() == b"1"
    with pytest.raises(FileExistsError), files.complete_file(path):
        pytest.fail("it is refused before it is read")
    with pytest.raises(ZeroDivisionError), files.complete_file(path, replace=True) as file:
        file.write(b"2" * (1 // 0))
    assert path.read_bytes() == b"1"
    with files.complete_file(path, replace=True) as file:
        file.write(b"3")
    assert path.read_bytes() == b"3"
    with pytest.raises(FileExistsError), files.complete_file(tmp_path / "other") as file:
        (tmp_path / "other").write_bytes(b"of somebody else")
    with pytest.raises(IsADirectoryError), files.complete_file(tmp_path):
        pass
    assert sorted(one.name for one in tmp_path.iterdir()) == ["orders.csv", "other"]


def test_a_symbolic_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    for replace, value in ((False, b"1"), (True, b"2")):
        with files.complete_file(link, replace=replace) as file:
            file.write(value)
        assert link.is_symlink()
        assert real.read_bytes() == value
    with pytest.raises(FileExistsError), files.complete_file(link):
        pytest.fail("it is refused before it is read")


def test_a_complete_file_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def recorded(number: int) -> None:
        synced.append(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", recorded)
    with files.complete_file(tmp_path / "orders.csv") as file:
        file.write(b"1")
    assert synced == [(tmp_path / "orders.csv").stat().st_ino, tmp_path.stat().st_ino]


def test_a_device_is_written_to_directly() -> None:
    with files.complete_file(Path("/dev/null")) as file:
        file.write(b"1")
    assert Path("/dev/null").is_char_device()
