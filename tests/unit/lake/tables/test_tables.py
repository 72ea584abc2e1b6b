"""Tables of a lake without Spark: what the rejects of an archive begin with, and how large metadata become."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.base import limits
from penstock.base.errors import ConfigError, CorruptionError, OperationalError
from penstock.cli.lake.progress import line
from penstock.lake.archiving.decoding import COLUMNS, rejects_schema
from penstock.lake.progress import BatchDone
from penstock.lake.reading.columns import arrow_schema
from penstock.lake.reading.positions import Key
from penstock.lake.reading.positions import Position as At
from penstock.lake.tables.data_files import LakeWriter, Writing, empty_file
from penstock.lake.tables.folder import sync_up, write_durably
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.iceberg import IcebergLake
from penstock.lake.tables.parquet import ParquetTable
from penstock.lake.tables.table import Commit, LakeFile
from tests.extent import each_change
from tests.folders import without_folders

KEY = Key("orders", 0)


def rows(start: int, end: int) -> pa.RecordBatch:
    offsets = list(range(start, end))
    given = {
        "offset": offsets,
        "partition": [0] * len(offsets),
        "topic": ["orders"] * len(offsets),
        "timestamp": offsets,
    }
    schema = arrow_schema(COLUMNS)
    columns = [
        pa.array(given[field.name], field.type) if field.name in given else pa.nulls(len(offsets), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def written(root: Path, start: int, end: int, *, staged: bool = False, topic: bool = True) -> tuple[LakeFile, ...]:
    writer = LakeWriter(Writing(str(root), is_staged=staged, with_topic=topic, file_bytes=2**20))
    writer.add(rows(start, end))
    return tuple(writer.finish())


def test_rejects_without_a_row_have_columns(tmp_path: Path) -> None:
    writing = Writing(str(tmp_path), is_staged=True, with_topic=False, file_bytes=2**20, is_rejects=True)
    table = ParquetTable(tmp_path)
    table.commit(Commit((empty_file(writing, rejects_schema(), "orders"),), {KEY: At(0)}, {KEY: At(10)}))
    table.finish()
    found = pl.scan_parquet(f"{tmp_path}/date=*/topic=*/*.parquet", hive_partitioning=True)
    assert found.select(pl.len()).collect().item() == 0
    assert set(found.collect_schema().names()) == {*rejects_schema().names, "date"}
    assert [(one.rows, one.ranges, one.is_rejects) for one in table.files()] == [(0, (), True)]


@pytest.mark.parametrize(("rejected", "told"), [(None, ""), (0, ""), (2_000, " · 2,000 rejected")])
def test_a_batch_says_how_much_was_rejected(rejected: int | None, told: str) -> None:
    assert line(BatchDone(1, 4_000, 0, 1.0, 0, rejected)) == f"batch 1 · 4,000 rows in 1.0 s, 4,000/s{told} · lag 0"


def commit_each(root: Path, table: IcebergLake, first: int, last: int) -> None:
    for number in range(first, last):
        table.commit(Commit(written(root, number, number + 1), {KEY: At(number, 3)}, {KEY: At(number + 1, 3)}))


def metadata(root: Path) -> set[str]:
    return {one.name for one in (root / "metadata").iterdir()}


def newest(root: Path) -> dict[str, object]:
    file = max((root / "metadata").glob("*.metadata.json"))
    found: dict[str, object] = json.loads(file.read_bytes())
    return found


@each_change
def test_metadata_of_an_iceberg_archive_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a snapshot, a list and a manifest with each commit: those of long ago are not there any more."""
    properties = {"write.metadata.previous-versions-max": "4", "commit.manifest.min-count-to-merge": "4"}
    monkeypatch.setattr("penstock.lake.tables.iceberg._PROPERTIES", _properties() | properties)
    table = IcebergLake(tmp_path, arrow_schema(COLUMNS), snapshots=3)
    commit_each(tmp_path, table, 0, 9)
    before = metadata(tmp_path)
    assert len(before) <= 6 + 5 + 6 * 2 + 4
    commit_each(tmp_path, table, 9, 20)
    after = metadata(tmp_path)
    assert len(after) <= 6 + 5 + 6 * 2 + 4
    kept = before & after
    assert all("-m" in one for one in kept), "a manifest that was merged from others stays; all else is replaced"
    assert len(newest(tmp_path)["snapshots"]) <= 6  # type: ignore[arg-type]
    files = table.files()
    assert sorted(one.ranges[0].start for one in files) == list(range(20))
    assert table.ends([KEY]) == {KEY: At(20, 3)}


def _properties() -> dict[str, str]:
    from penstock.lake.tables import iceberg

    return dict(iceberg._PROPERTIES)


def test_snapshots_do_not_repeat_where_partitions_end(tmp_path: Path) -> None:
    table = IcebergLake(tmp_path, arrow_schema(COLUMNS))
    keys = [Key("orders", number) for number in range(16)]
    table.commit(Commit(written(tmp_path, 0, 1), dict.fromkeys(keys, At(0)), dict.fromkeys(keys, At(1, 2))))
    assert table.ends(keys) == dict.fromkeys(keys, At(1, 2))
    found = newest(tmp_path)
    assert "penstock.end.orders.15" in found["properties"]  # type: ignore[operator]
    assert "penstock" not in json.dumps(found["snapshots"][0]["summary"])  # type: ignore[index]


@each_change
def test_what_an_earlier_version_has_left_of_metadata_goes(tmp_path: Path) -> None:
    """It kept all snapshots, with all ends in each, and no file of metadata was ever deleted."""
    table = IcebergLake(tmp_path, arrow_schema(COLUMNS), snapshots=100)
    commit_each(tmp_path, table, 0, 9)
    orphan = tmp_path / "metadata" / "00000-0a0b0c.metadata.json"
    orphan.write_text("{}")
    assert len(newest(tmp_path)["snapshots"]) == 9  # type: ignore[arg-type]
    now = IcebergLake(tmp_path, arrow_schema(COLUMNS), snapshots=2)
    commit_each(tmp_path, now, 9, 10)
    assert len(newest(tmp_path)["snapshots"]) == 2  # type: ignore[arg-type]
    assert len(list((tmp_path / "metadata").glob("snap-*.avro"))) == 2
    assert sorted(one.ranges[0].start for one in now.files()) == list(range(10))


def test_an_archive_may_lie_where_folders_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", without_folders(errno.EINVAL))
    write_durably(tmp_path / "new" / "folder" / "file", b"content")
    sync_up([tmp_path / "new" / "folder"], tmp_path)
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"content"


def _rows(offset: int, topic: str, rows: int, value: bytes = b"x") -> pa.RecordBatch:
    schema = arrow_schema(COLUMNS)
    row = {"topic": topic, "partition": 0, "timestamp": 0, "timestampType": 1, "subject": topic, "value": value}
    return pa.RecordBatch.from_pylist([{**row, "offset": offset + number} for number in range(rows)], schema=schema)


def test_a_task_that_fails_leaves_no_files(tmp_path: Path) -> None:
    writer = LakeWriter(Writing(str(tmp_path), True, False, 64 * 1024))
    for topic in ("a", "b"):
        for start in range(0, 4_000, 1_000):
            writer.add(_rows(start, topic, 1_000, os.urandom(100)))
    assert list(tmp_path.rglob("*.part"))
    writer.drop()
    gc.collect()  # a writer that tries to close its file again is an error here
    assert list(tmp_path.rglob("*.part")) == []


def test_what_a_task_buffers_for_all_its_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAKE_TASK_BUFFER_BYTES", 100_000)
    writer = LakeWriter(Writing(str(tmp_path), False, False, limits.LAKE_FILE_BYTES_MAX))
    for start in range(0, 10_000, 1_000):
        for topic in ("a", "b", "c"):
            writer.add(_rows(start, topic, 1_000))
    files = [pq.ParquetFile(tmp_path / one.path) for one in writer.finish()]
    assert [one.metadata.num_rows for one in files] == [10_000] * 3
    assert all(one.metadata.num_row_groups > 1 for one in files)


class Synced:
    """Records the files and folders that `os.fsync` is called for, with the sizes of files at that time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[int, int] = {}  # by inode, because a staged file is renamed
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._record)

    def _record(self, number: int) -> None:
        self._fsync(number)
        self.sizes[os.fstat(number).st_ino] = os.fstat(number).st_size

    def lacks(self, files: Iterable[Path]) -> list[Path]:
        """Return those of some files and folders that are not on disk as they are now."""
        found = {one: one.stat() for one in files}
        return [
            one
            for one, now in found.items()
            if now.st_ino not in self.sizes or (one.is_file() and now.st_size != self.sizes[now.st_ino])
        ]


@each_change
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_commit_is_on_disk_before_the_brokers_hear_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    synced = Synced(monkeypatch)
    root = tmp_path / "lake"
    table = open_table(root, table_format, arrow_schema(COLUMNS))
    for number in range(2):
        files = written(root, number, number + 1, staged=table_format == "parquet", topic=table_format == "iceberg")
        table.commit(Commit(files, {KEY: At(number, 3)}, {KEY: At(number + 1, 3)}))
        # SQLite syncs its files itself, not through Python; without `moved` the next run only does more.
        needed = [one for one in root.rglob("*") if one.suffix != ".db" and one.name != "moved"]
        assert synced.lacks([root, *needed]) == []


@each_change
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_run_syncs_what_a_killed_run_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    columns = arrow_schema(COLUMNS)
    files = written(tmp_path, 0, 1, staged=table_format == "parquet", topic=table_format == "iceberg")
    open_table(tmp_path, table_format, columns).commit(Commit(files, {KEY: At(0, 3)}, {KEY: At(1, 3)}))
    synced = Synced(monkeypatch)
    open_table(tmp_path, table_format, columns).finish()
    commits = {"parquet": "_penstock/commits", "delta": "_delta_log", "iceberg": "_penstock"}
    folder = tmp_path / commits[table_format]
    assert synced.lacks([tmp_path, folder, *folder.glob("*1.json" if table_format == "delta" else "-")]) == []


@each_change
def test_damaged_metadata_of_an_iceberg_archive_are_named(tmp_path: Path) -> None:
    table = IcebergLake(tmp_path, arrow_schema(COLUMNS))
    commit_each(tmp_path, table, 0, 2)
    newest = max((tmp_path / "metadata").glob("*.metadata.json"))
    newest.write_bytes(b"")
    with pytest.raises(CorruptionError, match="from a backup of the folder, or archive elsewhere") as raised:
        IcebergLake(tmp_path, arrow_schema(COLUMNS)).ends([KEY])
    assert raised.value.file == str(newest)


@each_change
def test_a_copy_of_an_iceberg_archive_is_refused(tmp_path: Path) -> None:
    original, copied = tmp_path / "lake", tmp_path / "copy"
    original.mkdir()
    commit_each(original, IcebergLake(original, arrow_schema(COLUMNS)), 0, 1)
    shutil.copytree(original, copied)
    with pytest.raises(ConfigError, match=f"{copied} is a copy or a moved folder of the Iceberg archive in {original}"):
        IcebergLake(copied, arrow_schema(COLUMNS)).ends([KEY])


@each_change
def test_a_locked_catalog_is_an_error_that_a_later_run_may_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlite3.dbapi2.connect", partial(sqlite3.connect, timeout=0.1))
    commit_each(tmp_path, IcebergLake(tmp_path, arrow_schema(COLUMNS)), 0, 1)
    with closing(sqlite3.connect(tmp_path / "_penstock" / "catalog.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        table = IcebergLake(tmp_path, arrow_schema(COLUMNS))
        with pytest.raises(OperationalError, match=r"catalog.db: database is locked; if another program has it open"):
            table.ends([KEY])
    assert table.ends([KEY]) == {KEY: At(1, 3)}


def test_a_commit_of_a_parquet_archive_costs_the_same_after_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        ParquetTable(tmp_path).commit(Commit((), {KEY: At(number)}, {KEY: At(number + 1)}))
    opened = ParquetTable(tmp_path)
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(file: Path) -> bytes:
        read.append(file)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", counted)
    opened.finish()
    for number in range(10, 20):
        assert opened.ends([KEY]) == {KEY: At(number)}
        opened.commit(Commit((), {KEY: At(number)}, {KEY: At(number + 1)}))
    assert len(read) <= 11
    ParquetTable(tmp_path).commit(Commit((), {KEY: At(20)}, {KEY: At(21)}))
    assert opened.ends([KEY]) == {KEY: At(21)}, "a commit of another job is found"


def test_a_damaged_log_of_a_delta_archive_is_told_in_plain_text(tmp_path: Path) -> None:
    open_table(tmp_path, "delta", arrow_schema(COLUMNS)).commit(Commit((), {KEY: At(0)}, {KEY: At(1)}))
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_bytes(b"{garbage")
    with pytest.raises(CorruptionError, match="from a backup of the folder, or archive elsewhere") as raised:
        open_table(tmp_path, "delta", arrow_schema(COLUMNS)).ends([KEY])
    assert str(raised.value).isprintable()
