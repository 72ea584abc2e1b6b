"""Segments that are shorter than they were, on a real folder and in memory alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogConfig, LogState
from penstock.commitlog.files.files import segment_path
from penstock.vfs import Vfs
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.extent import each_change
from tests.logs import DIRECTORY, Message, append, flush, open_log, read_slices

WIDE = LogConfig(segment_bytes=100_000)
STEP_BYTES = 89
"""Between the lengths that are tried; no divisor of a batch, so that every kind of place is met."""


class Disks:
    """Makes a file system of the wanted kind with the files of another one."""

    def __init__(self, kind: str, root: Path) -> None:
        self._kind = kind
        self._root = root
        self._made = 0

    def copy(self, disk: MemoryVfs) -> Vfs:
        """All files of `disk`, on a file system of their own."""
        if self._kind == "memory":
            return disk.crash_clone(Keep.ALL)
        self._made += 1
        target = RealVfs(self._root / str(self._made))
        for path in disk.files():
            source, file = disk.open(path), target.open(path, create=True)
            file.write_at(0, source.read_at(0, source.size()))
            file.close()
        return target


@pytest.fixture(params=["memory", "real"])
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Disks:
    return Disks(request.param, tmp_path)


def cut(vfs: Vfs, path: str, length: int) -> None:
    file = vfs.open(path)
    file.truncate(length)
    file.close()


def test_a_torn_tail_of_any_length_is_cut_to_whole_batches(disks: Disks) -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = append(log, 1) + append(log, 2)
    flush(log)
    flushed = log.size_bytes
    append(log, 1)
    for length in range(flushed, log.size_bytes, STEP_BYTES):
        vfs = disks.copy(disk)
        cut(vfs, segment_path(DIRECTORY, 0), length)
        again = open_log(vfs)
        assert (again.state, again.log_end, again.damage) == (LogState.WRITABLE, 3, ())
        assert read_slices(vfs, again.view()) == wanted
        again.close()


@each_change
def test_a_segment_of_any_length_below_what_was_flushed_costs_no_more_than_is_missing(disks: Disks) -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = [message for number in range(4) for message in append(log, 2, number)]
    log.close()
    whole = log.size_bytes
    batch = (whole - SCHEMA_BYTES) // 4
    for length in range(0, whole, STEP_BYTES):
        vfs = disks.copy(disk)
        cut(vfs, segment_path(DIRECTORY, 0), length)
        again = open_log(vfs)
        assert (again.state, again.log_end) == (LogState.READ_ONLY, 8)
        left = 2 * max(0, (length - SCHEMA_BYTES) // batch)
        assert read_slices(vfs, again.view(), end=left) == wanted[:left]
        with pytest.raises(RemoteError) as caught:
            again.view().slice(left, end=8, bytes_max=1)
        assert caught.value.code == "corrupt_range"
        assert (caught.value.details["base_offset"], caught.value.details["end_offset"]) == (left, 8)


def test_a_shortened_segment_between_others_costs_no_more_than_is_missing(disks: Disks) -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted: list[Message] = []
    while log.segment_count < 3:
        wanted += append(log, 2, size_bytes=400)
    log.close()
    bases = sorted(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows"))
    path = segment_path(DIRECTORY, bases[1])
    vfs = disks.copy(disk)
    cut(vfs, path, disk.open(path).size() // 2)
    again = open_log(vfs)
    assert again.state is LogState.READ_ONLY
    (damage,) = again.damage
    assert (damage.file, damage.end_offset) == (path, bases[2])
    assert read_slices(vfs, again.view(), end=damage.base_offset) == wanted[: damage.base_offset]
    assert read_slices(vfs, again.view(), bases[2]) == wanted[bases[2] :]
