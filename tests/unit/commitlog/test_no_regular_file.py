"""Where a file of a log is none, as a FIFO: a start says so, and waits for nobody; and where the lineage is huge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.commitlog import LogState
from penstock.commitlog.errors import StorageFailedError
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.damage import write
from tests.logs import DIRECTORY, append, open_log, save

LINEAGE = f"{DIRECTORY}/lineage"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a log of some segments."""
    log = open_log(RealVfs(tmp_path))
    log.start_epoch(1)
    for number in range(60):
        append(log, 1, number)
    save(log)
    log.close()
    return tmp_path / DIRECTORY


def _put_fifo(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment(folder: Path, number: int) -> None:
    segments = sorted(folder.glob("*.arrows"))
    _put_fifo(segments[number])
    log = open_log(RealVfs(folder.parents[2]))
    (damage,) = log.damage
    assert damage.file == f"{DIRECTORY}/{segments[number].name}"
    assert damage.base_offset == int(segments[number].name[:20])
    assert "not a regular file, but a FIFO" in damage.reason
    assert log.log_end == 60
    log.close()


def test_an_index(folder: Path) -> None:
    for index in folder.glob("*.index"):
        _put_fifo(index)
    log = open_log(RealVfs(folder.parents[2]))
    assert (log.damage, log.log_end) == ((), 60)
    log.close()


@pytest.mark.parametrize("name", ["checkpoint", "lineage"])
def test_what_a_start_cannot_do_without(folder: Path, name: str) -> None:
    _put_fifo(folder / name)
    with pytest.raises(StorageFailedError, match="cannot be opened: not a regular file, but a FIFO"):
        open_log(RealVfs(folder.parents[2]))


def _led() -> MemoryVfs:
    disk = MemoryVfs()
    log = open_log(disk)
    for epoch in (1, 2, 3):
        log.start_epoch(epoch)
        append(log, 2, epoch)
    save(log)
    log.close()
    return disk


@pytest.mark.parametrize("has_bytes", [False, True])
def test_a_lineage_of_which_most_is_none(has_bytes: bool) -> None:
    disk = _led()
    whole = disk.open(LINEAGE).read_at(0, 1000)
    disk.open(LINEAGE).truncate(30 * limits.SCAN_READ_BYTES)
    if has_bytes:
        write(disk, LINEAGE, 20 * limits.SCAN_READ_BYTES, b"somebody's")
    log = open_log(disk)
    assert log.state is LogState.WRITABLE
    assert log.epoch_end(2).start_offset == 4
    assert disk.open(LINEAGE).read_at(0, 1000) == whole
    sides = [name for name in disk.list(DIRECTORY) if ".cut-" in name]
    assert sides == ([f"lineage.cut-{len(whole)}"] if has_bytes else [])
    log.close()


def test_more_entries_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINEAGE_ENTRIES_READ_MAX", 2)
    disk = _led()
    whole = disk.open(LINEAGE).read_at(0, 1000)
    log = open_log(disk)
    assert any("at byte 48" in notice and "at most 2 entries" in notice for notice in log.notices)
    assert log.epoch_end(3).leader_epoch == 3, "the batches say so"
    assert disk.open(f"{LINEAGE}.cut-48").read_at(0, 1000) == whole[48:]
    log.close()
