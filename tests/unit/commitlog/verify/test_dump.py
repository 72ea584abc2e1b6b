"""Rows of the files of a log, sound and damaged."""

from __future__ import annotations

import pytest

from penstock.commitlog import LogConfig, SubjectQueries
from penstock.commitlog.verify import dump
from penstock.vfs.memory import MemoryVfs
from tests.logs import DIRECTORY, append, flush, log_files, open_log

SEGMENT = f"{DIRECTORY}/{0:020d}.arrows"


def small_log() -> MemoryVfs:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=10**6))
    log.start_epoch(4)
    for number in range(5):
        append(log, 2, number)
        flush(log)
    log.close()
    return disk


def rows(disk: MemoryVfs, path: str) -> list[dump.Row]:
    return list(dump.file_rows(disk, path))


def test_every_file_of_a_log_has_rows() -> None:
    disk = small_log()
    found = {path.rsplit("/", 1)[-1]: rows(disk, path) for path in log_files(disk)}
    assert sorted(found) == [f"{0:020d}.arrows", f"{0:020d}.index", "checkpoint", "lineage"]
    schema, *batches = found[f"{0:020d}.arrows"]
    assert (schema["stream_id"], schema["partition"]) == (7, 0)
    assert [(row["base_offset"], row["end_offset"]) for row in batches] == [(n, n + 2) for n in range(0, 10, 2)]
    entries = found[f"{0:020d}.index"]
    assert [row["position"] for row in entries] == [row["position"] for row in batches]
    assert [row["batch_crc"] for row in entries] == [row["crc"] for row in batches]
    assert max(row["flushed_end"] for row in found["checkpoint"]) == 10  # type: ignore[type-var]
    assert found["lineage"] == [{"leader_epoch": 4, "start_offset": 0}]


def test_a_subject_index_has_a_row_for_each_subject() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for _ in range(5):
        append(log, 9, size_bytes=150)
    view = log.view()
    assert SubjectQueries(view, view.log_end).last("orders.new") == 44
    assert SubjectQueries(view, view.log_end).count([">"]) == 45
    path = f"{DIRECTORY}/{0:020d}.subjects"
    assert path in log_files(disk)
    trailer, *subjects = rows(disk, path)
    end = view.segments[0].end_offset
    assert (trailer["stream_id"], trailer["end_offset"], trailer["rows"]) == (7, end, end)
    assert subjects == [{"subject": "orders.new", "messages": end, "first": 0, "last": end - 1}]
    disk.open(path).write_at(700, b"\xff\xfe")
    assert [*rows(disk, path)[1]] == ["position", "damage"]


def test_damage_is_a_row_and_the_rest_goes_on() -> None:
    disk = small_log()
    sound = rows(disk, SEGMENT)
    disk.open(SEGMENT).write_at(int(str(sound[2]["position"])) + 730, b"\xff\xfe")
    damaged = rows(disk, SEGMENT)
    assert [row.get("base_offset") for row in damaged] == [None, 0, None, 4, 6, 8]
    assert "CRC-32C" in str(damaged[2]["damage"])
    assert damaged[2]["position"] == sound[2]["position"]
    for name, step in ((f"{0:020d}.index", 64), ("checkpoint", 4096), ("lineage", 24)):
        path = f"{DIRECTORY}/{name}"
        before = rows(disk, path)
        disk.open(path).write_at(step * (len(before) - 1) + 9, b"\xff\xfe")
        after = rows(disk, path)
        assert after[:-1] == before[:-1]
        assert "damage" in after[-1]


def test_a_broken_schema_message_and_a_torn_tail() -> None:
    disk = small_log()
    file = disk.open(SEGMENT)
    file.write_at(100, b"!!!!")
    file.truncate(file.size() - 5)
    found = rows(disk, SEGMENT)
    assert ["damage" in row for row in found] == [True, False, False, False, False, True]


def test_side_files_show_the_batches_in_them() -> None:
    disk = small_log()
    whole = disk.open(SEGMENT).read_at(0, 10**6)
    position = int(str(rows(disk, SEGMENT)[3]["position"]))
    disk.open(f"{SEGMENT}.cut-{position - 24}", create=True).write_at(0, whole[position - 24 :])
    disk.open(f"{SEGMENT}.cut-0", create=True).write_at(0, whole)
    assert [row["base_offset"] for row in rows(disk, f"{SEGMENT}.cut-{position - 24}")] == [4, 6, 8]
    assert [row.get("base_offset") for row in rows(disk, f"{SEGMENT}.cut-0")] == [None, 0, 2, 4, 6, 8]


def test_other_files_are_refused_by_name() -> None:
    disk = small_log()
    disk.open(f"{DIRECTORY}/notes.txt", create=True)
    assert f"{DIRECTORY}/notes.txt" not in log_files(disk)
    with pytest.raises(ValueError, match="not a file of a log"):
        rows(disk, f"{DIRECTORY}/notes.txt")
    with pytest.raises(FileNotFoundError):
        rows(disk, f"{DIRECTORY}/{9:020d}.arrows")


def test_a_segment_that_the_cleaner_has_not_finished_has_rows_too() -> None:
    disk = small_log()
    data = disk.open(SEGMENT).read_at(0, 10**6)
    path = f"{DIRECTORY}/{0:020d}.1.cleaned"
    disk.open(path, create=True).write_at(0, data[:-5])
    assert path in log_files(disk)
    *found, cut = rows(disk, path)
    assert found == rows(disk, SEGMENT)[:-1]
    assert "damage" in cut
