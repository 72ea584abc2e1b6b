"""Tables of a lake, by themselves: files and ends become part of one together, once, and by one job at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import CorruptionError
from penstock.lake.archiving.decoding import COLUMNS
from penstock.lake.reading.columns import arrow_schema
from penstock.lake.reading.positions import Key
from penstock.lake.reading.positions import Position as At
from penstock.lake.tables.data_files import LakeWriter, Writing
from penstock.lake.tables.folder import OvertakenError, locked, other_in
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.manifest import read_about
from penstock.lake.tables.parquet import ParquetTable
from penstock.lake.tables.table import Commit, LakeFile, Range, Table
from tests.extent import each_change
from tests.spark.jobs.test_archive import table_rows

DAY_US = 86_400_000_000
KEY = Key("s", 0)


def rows(start: int, end: int, *, partition: int = 0, timestamp_us: int = 0, topic: str = "s") -> pa.RecordBatch:
    """Messages of one partition, a second apart."""
    count = end - start
    columns: dict[str, list[Any]] = {
        "key": [b"k"] * count,
        "value": [b"v%d" % one for one in range(start, end)],
        "topic": [topic] * count,
        "partition": [partition] * count,
        "offset": list(range(start, end)),
        "timestamp": [timestamp_us + one * 1_000_000 for one in range(start, end)],
        "timestampType": [1] * count,
        "subject": ["s.a"] * count,
        "headers": [[{"key": "A", "value": b"1"}]] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(COLUMNS))


def written(root: Path, table_format: str, *batches: pa.RecordBatch, file_bytes: int = 2**20) -> tuple[LakeFile, ...]:
    writer = LakeWriter(Writing(str(root), table_format == "parquet", table_format == "iceberg", file_bytes))
    for one in batches:
        writer.add(one)
    return tuple(writer.finish())


def table_in(root: Path, table_format: str) -> Table:
    return open_table(root, table_format, arrow_schema(COLUMNS))


@each_change
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_commit_is_made_once_and_upon_what_was_there(tmp_path: Path, table_format: str) -> None:
    table, other = table_in(tmp_path, table_format), table_in(tmp_path, table_format)
    assert table.ends([KEY]) == {}
    assert table.files() == []
    first = Commit(written(tmp_path, table_format, rows(0, 10)), {KEY: At(0, 3)}, {KEY: At(10, 3)})
    table.commit(first)
    table.commit(first)
    other.commit(first._replace(files=written(tmp_path, table_format, rows(0, 10))))
    assert other.ends([KEY, Key("s", 1)]) == {KEY: At(10, 3)}
    assert table_rows(tmp_path, table_format) == [(0, one) for one in range(10)]
    other.commit(Commit((), {KEY: At(10, 3)}, {KEY: At(20, 4)}))  # compaction has left nothing there
    with pytest.raises(OvertakenError):
        table.commit(Commit(written(tmp_path, table_format, rows(10, 30)), {KEY: At(10, 3)}, {KEY: At(30, 3)}))
    assert table.ends([KEY]) == {KEY: At(20, 4)}
    (found,) = table_in(tmp_path, table_format).files(["s"])
    assert (found.topic, found.date, found.rows, found.ranges) == ("s", "1970-01-01", 10, (Range(0, 0, 10),))
    assert (tmp_path / found.path).stat().st_size == found.size_bytes
    assert table.files(["other"]) == []


@pytest.mark.parametrize("table_format", FORMATS)
def test_partitions_and_streams_go_on_by_themselves(tmp_path: Path, table_format: str) -> None:
    table = table_in(tmp_path, table_format)
    other = Key("t", 1)
    table.commit(Commit(written(tmp_path, table_format, rows(0, 5)), {KEY: At(0, 3)}, {KEY: At(5, 3)}))
    files = written(tmp_path, table_format, rows(7, 9, partition=1, topic="t"))
    table.commit(Commit(files, {other: At(7, 3)}, {other: At(9, 3)}))
    assert table.ends([KEY, other]) == {KEY: At(5, 3), other: At(9, 3)}
    assert [one.topic for one in table.files(["t"])] == ["t"]


def test_rows_come_into_files_by_day_and_row_groups_by_partition(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    late = DAY_US - 5_000_000
    batches = [rows(0, 10, timestamp_us=late), rows(0, 4, partition=1, timestamp_us=late)]
    files = written(tmp_path, "delta", *batches)
    assert sorted((one.date, one.rows, one.ranges) for one in files) == [
        ("1970-01-01", 9, (Range(0, 0, 5), Range(1, 0, 4))),
        ("1970-01-02", 5, (Range(0, 5, 10),)),
    ]
    first = next(one for one in files if one.date == "1970-01-01")
    metadata = pq.ParquetFile(tmp_path / first.path).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [5, 4]


class Overtaken(tuple[LakeFile, ...]):
    """Files of a commit. While it looks at them, another job is quicker."""

    theirs: Commit
    table: Table | None

    def __iter__(self) -> Iterator[LakeFile]:
        if self.table is not None:
            table, self.table = self.table, None
            table.commit(self.theirs)
        return super().__iter__()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_job_that_is_overtaken_while_it_commits_is_refused(tmp_path: Path, table_format: str) -> None:
    table = table_in(tmp_path, table_format)
    table.commit(Commit(written(tmp_path, table_format, rows(0, 5)), {KEY: At(0, 3)}, {KEY: At(5, 3)}))
    mine = Overtaken(written(tmp_path, table_format, rows(5, 9)))
    mine.table = table_in(tmp_path, table_format)
    mine.theirs = Commit(written(tmp_path, table_format, rows(5, 8)), {KEY: At(5, 3)}, {KEY: At(8, 3)})
    with pytest.raises(OvertakenError, match="at the same time"):
        table.commit(Commit(mine, {KEY: At(5, 3)}, {KEY: At(9, 3)}))
    assert table_rows(tmp_path, table_format) == [(0, one) for one in range(8)]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_names_of_new_folders_are_on_the_disk_up_to_the_root(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        fsync(number)
        synced.append(Path(f"/proc/self/fd/{number}").resolve())

    monkeypatch.setattr(os, "fsync", noted)
    root = tmp_path / "new" / "lake"
    with locked(root):
        files = written(root, table_format, rows(0, 5))
        if table_format == "parquet":
            ParquetTable(root).commit(Commit(files, {KEY: At(0, 3)}, {KEY: At(5, 3)}))
    (file,) = root.glob("date=*/topic=*/*.parquet")
    for folder in (file.parent, file.parent.parent, root, root.parent, tmp_path):
        assert folder in synced, folder
    assert synced.index(file.parent) < len(synced) - 1 - synced[::-1].index(root)


def test_what_cannot_be_understood_is_said(tmp_path: Path) -> None:
    (tmp_path / "_penstock/commits").mkdir(parents=True)
    (tmp_path / "_penstock/commits/00000000000000000000.json").write_text("{}")
    with pytest.raises(CorruptionError, match="a commit of an archive"):
        ParquetTable(tmp_path).ends([KEY])
    (tmp_path / "_penstock/archive.json").write_text('{"version": 2}')
    with pytest.raises(CorruptionError, match="version 2 is newer"):
        read_about(tmp_path)


def damaged(root: Path, table_format: str, what: str) -> Path:
    """The file of a table with two commits that is damaged now, or gone."""
    if table_format == "parquet":
        file = sorted((root / "_penstock" / "commits").glob("*.json"))[0 if what == "first" else 1]
    elif table_format == "delta":
        file = sorted((root / "_delta_log").glob("*.json"))[-1]
    elif what == "catalog":
        file = root / "_penstock" / "catalog.db"
    else:
        file = max((root / "metadata").glob(f"*{what}"), key=lambda one: one.stat().st_mtime)
    if table_format == "parquet":
        file.unlink()
    elif what == "catalog":
        file.write_bytes(b"")
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def go_on_with(table: Table) -> None:
    """What each job does first."""
    table.finish()
    table.ends([KEY])
    table.files()


DAMAGE = [
    ("parquet", "first"), ("parquet", "last"), ("delta", ""), ("iceberg", "catalog"), ("iceberg", ".metadata.json"),
    ("iceberg", "m0.avro"),
]  # fmt: skip


@pytest.mark.parametrize(("table_format", "what"), DAMAGE)
def test_a_table_that_is_damaged_is_not_gone_on_with(tmp_path: Path, table_format: str, what: str) -> None:
    """Its rows would be there twice."""
    table = table_in(tmp_path, table_format)
    for number in range(2):
        start = 10 * number
        files = written(tmp_path, table_format, rows(start, start + 10))
        table.commit(Commit(files, {KEY: At(start, 3)}, {KEY: At(start + 10, 3)}))
    table_in(tmp_path, table_format).finish()
    file = damaged(tmp_path, table_format, what)
    with pytest.raises(CorruptionError) as told:
        go_on_with(table_in(tmp_path, table_format))
    assert str(tmp_path) in told.value.file
    assert table_format != "parquet" or what == "last" or told.value.file == str(file)


def test_a_table_that_was_killed_while_it_was_made_is_made_again(tmp_path: Path) -> None:
    """Iceberg writes its metadata before its catalog."""
    table_in(tmp_path, "iceberg")._make()  # type: ignore[attr-defined]
    (tmp_path / "_penstock" / "catalog.db").write_bytes(b"")
    table = table_in(tmp_path, "iceberg")
    go_on_with(table)
    table.commit(Commit(written(tmp_path, "iceberg", rows(0, 10)), {KEY: At(0, 3)}, {KEY: At(10, 3)}))
    assert table_rows(tmp_path, "iceberg") == [(0, one) for one in range(10)]


def test_folders_are_taken_that_have_nothing_in_them(tmp_path: Path) -> None:
    for name in ("lost+found", "_delta_log", ".hidden"):
        (tmp_path / name).mkdir()
    assert other_in(tmp_path) == other_in(tmp_path / "none") == ""
    (tmp_path / "_delta_log" / "0.json").touch()
    assert other_in(tmp_path) == "_delta_log"


def test_an_error_of_the_disk_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_in(tmp_path, "iceberg")
    table.commit(Commit(written(tmp_path, "iceberg", rows(0, 10)), {KEY: At(0, 3)}, {KEY: At(10, 3)}))

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.load_table", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        table_in(tmp_path, "iceberg").ends([KEY])
