"""The table of plain Parquet files: what is missing, too much or changed is reported, and no row is lost or doubled."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.base.errors import CorruptionError, OperationalError
from penstock.lake.archiving.decoding import COLUMNS
from penstock.lake.reading.columns import arrow_schema
from penstock.lake.reading.positions import Key
from penstock.lake.reading.positions import Position as At
from penstock.lake.tables import folder as folder_module
from penstock.lake.tables.data_files import LakeWriter, Writing
from penstock.lake.tables.folder import write_durably
from penstock.lake.tables.manifest import ArchiveManifest, read_about
from penstock.lake.tables.parquet import ParquetTable
from penstock.lake.tables.table import Commit, LakeFile

ZERO, ONE = Key("orders", 0), Key("orders", 1)
DAY_US = 86_400 * 1_000_000


class Killed(BaseException):
    """Stands for kill -9."""


def rows(key: Key, start: int, end: int, day: int = 0) -> pa.RecordBatch:
    row = {"topic": key.stream, "partition": key.partition, "timestamp": day * DAY_US, "timestampType": 1}
    made = [{**row, "subject": key.stream, "value": b"x", "offset": offset} for offset in range(start, end)]
    return pa.RecordBatch.from_pylist(made, schema=arrow_schema(COLUMNS))


def staged(root: Path, key: Key, start: int, end: int, day: int = 0) -> tuple[LakeFile, ...]:
    writer = LakeWriter(Writing(str(root), is_staged=True, with_topic=False, file_bytes=2**20))
    try:
        writer.add(rows(key, start, end, day))
        return tuple(writer.finish())
    except BaseException:
        writer.drop()
        raise


def add(root: Path, key: Key, start: int, end: int, day: int = 0, *, table: ParquetTable | None = None) -> LakeFile:
    """Commit rows of one partition; return their file."""
    (file,) = staged(root, key, start, end, day)
    (table or ParquetTable(root)).commit(Commit((file,), {key: At(start, 1)}, {key: At(end, 1)}))
    return file


def commits(root: Path) -> list[Path]:
    return sorted((root / "_penstock/commits").glob("*.json"))


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


def as_version_1(root: Path) -> None:
    """Rewrite the commits as they were before they had a checksum."""
    for file in commits(root):
        found = json.loads(file.read_text())
        kept = {name: found[name] for name in ("ends", "epochs", "files")}
        file.write_text(json.dumps({"version": 1, **kept}))


def test_a_committed_file_that_is_gone_before_it_was_moved_is_reported(tmp_path: Path) -> None:
    """Between commit and move a committed file lies in `staged`: who empties that folder takes it."""

    def dies(_from: Path, _to: Path) -> None:
        raise Killed

    add(tmp_path, ZERO, 0, 100)
    with pytest.raises(Killed):
        add(tmp_path, ZERO, 100, 200, table=ParquetTable(tmp_path, move=dies))
    (part,) = (tmp_path / "_penstock/staged").iterdir()
    name = part.name.removesuffix(".part")
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError, match=f"{part.name}: .*{len(whole)} bytes, found {len(whole) - 1} bytes"):
        ParquetTable(tmp_path).finish()
    part.unlink()
    more = staged(tmp_path, ZERO, 200, 300)
    for told in (
        lambda: ParquetTable(tmp_path).finish(),
        lambda: ParquetTable(tmp_path).commit(Commit(more, {ZERO: At(200, 1)}, {ZERO: At(300, 1)})),
    ):
        with pytest.raises(CorruptionError, match=f"{name}: .* bytes, found no file") as raised:
            told()
        assert "copy of the archive" in raised.value.advice
    part.write_bytes(whole)
    ParquetTable(tmp_path).finish()
    assert (tmp_path / "date=1970-01-01/topic=orders" / name).read_bytes() == whole


def test_a_run_removes_what_a_killed_one_left_uncommitted(tmp_path: Path) -> None:
    add(tmp_path, ZERO, 0, 100)
    staged(tmp_path, ZERO, 100, 200)
    table = ParquetTable(tmp_path)
    table.finish()
    assert len(list((tmp_path / "_penstock/staged").iterdir())) == 1  # of a lost commit it may be all that is left
    table.drop_staged()
    assert list((tmp_path / "_penstock/staged").iterdir()) == []
    assert [one.ranges for one in ParquetTable(tmp_path).files()] == [((0, 0, 100),)]


def test_a_commit_needs_its_files(tmp_path: Path) -> None:
    add(tmp_path, ZERO, 0, 100)
    files = staged(tmp_path, ZERO, 100, 200)
    for part in (tmp_path / "_penstock/staged").iterdir():
        part.unlink()
    with pytest.raises(OperationalError, match=r"\.part .*run it again"):
        ParquetTable(tmp_path).commit(Commit(files, {ZERO: At(100, 1)}, {ZERO: At(200, 1)}))
    assert ParquetTable(tmp_path).ends([ZERO]) == {ZERO: At(100, 1)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"0": 200}', '{"0": 100}'),
        ('{"0": 200}', '{"0": 300}'),
        ('"files"', '"filez"'),
        ('"ends"', '"endz"'),
        ('"0": 200', '"0": "x"'),
        ('"version": 2', '"version": 1'),
        ('"version": 2', '"version": 3'),
        ('"rows": 100', '"rows": 101'),
        ("{", ""),
        ("{", "["),
    ],
)
def test_a_commit_that_was_changed_is_reported(tmp_path: Path, before: str, after: str) -> None:
    add(tmp_path, ZERO, 0, 100)
    add(tmp_path, ZERO, 100, 200)
    last = commits(tmp_path)[-1]
    change(last, before, after)
    for told in (lambda: ParquetTable(tmp_path).finish(), lambda: ParquetTable(tmp_path).ends([ZERO])):
        with pytest.raises(CorruptionError, match=f"{last}: .* a commit of an archive") as raised:
            told()
        assert "copy of the archive" in raised.value.advice


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"0": 200}', '{"0": 100}'),
        ('"files"', '"filez"'),
        ('"ends"', '"endz"'),
        ('"0": 200', '"0": "x"'),
        ('"0": 200', '"0": null'),
        ('"epochs": {"orders"', '"epochs": {"orders": 5, "o"'),
        ('"path": "', '"path": "../'),
        ('"rows": 100', '"rows": "x"'),
        ('"ranges": [[0, 100, 200]]', '"ranges": [[0, 100]]'),
    ],
)
def test_a_commit_without_a_checksum_is_read_and_checked_as_far_as_it_goes(
    tmp_path: Path, before: str, after: str
) -> None:
    add(tmp_path, ZERO, 0, 100)
    add(tmp_path, ZERO, 100, 200)
    as_version_1(tmp_path)
    table = ParquetTable(tmp_path)
    table.finish()
    assert table.ends([ZERO]) == {ZERO: At(200, 1)}
    assert [one.rows for one in table.files()] == [100, 100]
    change(commits(tmp_path)[-1], before, after)
    with pytest.raises(CorruptionError, match="a commit of an archive"):
        table.finish()


def test_an_archive_of_commits_without_checksums_is_continued(tmp_path: Path) -> None:
    add(tmp_path, ZERO, 0, 100)
    add(tmp_path, ZERO, 100, 200)
    as_version_1(tmp_path)
    add(tmp_path, ZERO, 200, 300)
    ParquetTable(tmp_path).finish()
    commits(tmp_path)[-1].unlink()
    with pytest.raises(CorruptionError, match="found none that does"):
        ParquetTable(tmp_path).finish()


@pytest.mark.parametrize("name", ["9x.json", "3.json", "00000000000000000001 (copy).json"])
def test_a_file_among_the_commits_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    add(tmp_path, ZERO, 0, 100)
    (tmp_path / "_penstock/commits" / name).write_text("{}")
    with pytest.raises(CorruptionError, match="a commit of an archive") as raised:
        ParquetTable(tmp_path).ends([ZERO])
    assert raised.value.file.endswith(f"/{name}")


@pytest.mark.parametrize("key", [ZERO, ONE])
def test_a_lost_commit_is_noticed_in_a_copy_of_other_times(tmp_path: Path, key: Key) -> None:
    """A copy, a restore or `touch` changes the times of files; ends of other partitions say nothing."""
    add(tmp_path / "lake", ZERO, 0, 500)
    add(tmp_path / "lake", ONE, 0, 100)
    file = add(tmp_path / "lake", key, 500 if key == ZERO else 100, 600)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "lake", copy, copy_function=shutil.copy)
    ParquetTable(copy).finish()
    for one in commits(copy):
        os.utime(one, (4e9, 4e9))
    commits(copy)[-1].unlink()
    with pytest.raises(CorruptionError, match="found none that does") as raised:
        ParquetTable(copy).finish()
    assert raised.value.file == str(copy / file.path)


def test_an_older_copy_of_an_archive_is_whole(tmp_path: Path) -> None:
    add(tmp_path, ZERO, 0, 100)
    file = add(tmp_path, ZERO, 100, 200)
    commits(tmp_path)[-1].unlink()
    (tmp_path / file.path).unlink()
    table = ParquetTable(tmp_path)
    table.finish()
    add(tmp_path, ZERO, 100, 300, table=table)
    assert ParquetTable(tmp_path).ends([ZERO])[ZERO].offset == 300
    ParquetTable(tmp_path).finish()


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("old", [False, True])
def test_a_data_file_that_is_gone_or_shorter_is_reported(tmp_path: Path, number: int, old: bool) -> None:
    for start in (0, 100, 200):
        add(tmp_path, ZERO, start, start + 100)
    if old:
        as_version_1(tmp_path)
    place = tmp_path / ParquetTable(tmp_path).files()[number].path
    whole = place.read_bytes()
    place.write_bytes(whole[:-10])
    with pytest.raises(CorruptionError, match=f"of {len(whole)} bytes, found {len(whole) - 10} bytes") as raised:
        ParquetTable(tmp_path).finish()
    assert raised.value.file == str(place)
    place.unlink()
    with pytest.raises(CorruptionError, match=f"of {len(whole)} bytes, found no file") as raised:
        ParquetTable(tmp_path).finish()
    assert raised.value.file == str(place)
    assert "copy of the archive" in raised.value.advice
    place.write_bytes(whole)
    ParquetTable(tmp_path).finish()


def test_whole_folders_of_old_days_may_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once it is a warning, until the next commit knows."""
    for day in range(3):
        add(tmp_path, ZERO, day * 100, day * 100 + 100, day)
    shutil.rmtree(tmp_path / "date=1970-01-01")
    table = ParquetTable(tmp_path)
    with caplog.at_level(logging.WARNING):
        table.finish()
    assert "date=1970-01-01/topic=orders" in caplog.text
    add(tmp_path, ZERO, 300, 400, 3, table=table)
    caplog.clear()
    ParquetTable(tmp_path).finish()
    assert caplog.text == ""
    shutil.rmtree(tmp_path / "date=1970-01-04")  # of the last commit
    with caplog.at_level(logging.WARNING):
        ParquetTable(tmp_path).finish()
    assert "date=1970-01-04/topic=orders" in caplog.text
    add(tmp_path, ZERO, 400, 500, 4)
    assert [one.ranges[0].start for one in ParquetTable(tmp_path).files()] == [0, 100, 200, 300, 400]
    ParquetTable(tmp_path).finish()


@pytest.mark.parametrize("mark", [None, b"", b"0 0", b"1 00000000", b"1", b"\xff\xfe", b"9" * 5_000])
def test_moves_of_which_it_is_not_known_that_they_are_over_are_done_again(tmp_path: Path, mark: bytes | None) -> None:
    """The mark of the moves is missing, torn, or that of another commit with this number: an older copy goes on so."""
    add(tmp_path, ZERO, 0, 100)
    last = tmp_path / add(tmp_path, ZERO, 100, 200, 1).path
    whole = last.read_bytes()
    file = tmp_path / "_penstock/moved"
    file.unlink() if mark is None else file.write_bytes(mark)
    aside = tmp_path / "_penstock/staged" / f"{last.name}.part"
    last.replace(aside)
    ParquetTable(tmp_path).finish()
    assert last.read_bytes() == whole
    file.unlink(missing_ok=True) if mark is None else file.write_bytes(mark)
    shutil.rmtree(last.parent)
    with pytest.raises(CorruptionError, match="found no file"):
        ParquetTable(tmp_path).finish()
    last.parent.mkdir(parents=True)
    last.write_bytes(whole)
    ParquetTable(tmp_path).finish()
    shutil.rmtree(last.parent)
    ParquetTable(tmp_path).finish()  # warns: the mark is there again


def test_a_folder_is_synced_once_for_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def counting(folder: Path) -> None:
        synced.append(folder)

    monkeypatch.setattr(folder_module, "sync_folder_if_possible", counting)
    table = ParquetTable(tmp_path)
    for start in range(0, 300, 100):
        add(tmp_path, ZERO, start, start + 100, start // 100, table=table)
    of_days = [one for one in synced if one.name == "topic=orders"]
    assert sorted(of_days) == [tmp_path / f"date=1970-01-0{day}/topic=orders" for day in (1, 2, 3)]


def test_a_reader_sees_all_commits_while_a_job_makes_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of a folder that changes may have a later commit and lack the one before it."""
    for start in range(0, 500, 100):
        add(tmp_path, ZERO, start, start + 100)
    whole = [0, 1, 2, 3, 4]
    listings = [[0, 2], [0, 1, 3], [0, 1, 2, 4], whole]
    monkeypatch.setattr(ParquetTable, "_listed", lambda table: listings.pop(0) if listings else whole)
    assert len(ParquetTable(tmp_path).files()) == 5
    listings = [[0, 2], [0, 2]]
    with pytest.raises(CorruptionError, match="A commit is missing"):
        ParquetTable(tmp_path).files()


def test_only_what_readers_take_for_data_counts(tmp_path: Path) -> None:
    place = tmp_path / add(tmp_path, ZERO, 0, 100).path
    for name in ("._a.parquet", "_b.parquet", ".c.parquet.crc", "_SUCCESS"):
        (place.parent / name).touch()
    ParquetTable(tmp_path).finish()
    assert [one.path for one in ParquetTable(tmp_path).files()] == [str(place.relative_to(tmp_path))]


def test_the_usual_start_reads_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(0, 500, 100):
        add(tmp_path, ZERO, start, start + 100)
    read: list[str] = []
    before = Path.read_bytes

    def noted(file: Path) -> bytes:
        read.append(file.name)
        return before(file)

    monkeypatch.setattr(Path, "read_bytes", noted)
    ParquetTable(tmp_path).finish()
    assert set(read) == {commits(tmp_path)[-1].name}


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let files grow to `size` bytes only."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 2, 200])
def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, size: int) -> None:
    with full_disk(size), pytest.raises(OperationalError, match=r"staged/.*\.part cannot be written: "):
        staged(tmp_path, ZERO, 0, 100)
    gc.collect()  # a writer that tries to close its file again is an error here
    assert list((tmp_path / "_penstock/staged").iterdir()) == []
    files = staged(tmp_path, ZERO, 0, 100)
    with full_disk(size), pytest.raises(OperationalError, match=r"commits/.* cannot be written: "):
        ParquetTable(tmp_path).commit(Commit(files, {ZERO: At(0, 1)}, {ZERO: At(100, 1)}))
    assert list((tmp_path / "_penstock/commits").iterdir()) == []
    place = tmp_path / "file"
    place.write_bytes(b"as it was")
    with full_disk(size), pytest.raises(OperationalError, match=r"file cannot be written: "):
        write_durably(place, bytes(1_000))
    assert place.read_bytes() == b"as it was"
    assert [one for one in tmp_path.iterdir() if one.name.endswith(".new")] == []


SOUND = ArchiveManifest("parquet", {"orders": 7}, {ZERO: At(5, 1)}, name="lake")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        "[]",
        '{"version": 2}',
        json.dumps(SOUND.to_json()).replace('"0": 5', '"0": "x"'),
        json.dumps({**SOUND.to_json(), "streams": ["orders"]}),
    ],
)
def test_a_manifest_that_is_damaged_is_reported_with_advice(tmp_path: Path, content: str) -> None:
    write_durably(tmp_path / "_penstock/archive.json", content.encode())
    with pytest.raises(CorruptionError) as raised:
        read_about(tmp_path)
    assert "copy of the archive" in raised.value.advice
