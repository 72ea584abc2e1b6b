"""Operations that fail on demand, and the watcher."""

from __future__ import annotations

import errno

import pytest

from penstock.vfs.faulty import Fault, FaultyVfs, Kind, Operation, nth
from penstock.vfs.memory import Keep, MemoryVfs


def test_the_nth_operation_of_a_kind_fails() -> None:
    vfs = FaultyVfs(MemoryVfs(), nth(1, Fault(errno.EIO), Kind.SYNC))
    file = vfs.open("file", create=True)
    file.sync()
    with pytest.raises(OSError, match="Input/output") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()


def test_a_failed_sync_makes_nothing_durable() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk, nth(0, Fault(errno.EIO), Kind.SYNC))
    file = vfs.open("file", create=True)
    vfs.sync_dir("")
    file.write_at(0, b"x")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert disk.crash_clone().open("file").size() == 0


def test_a_full_disk_takes_a_part_of_a_write() -> None:
    vfs = FaultyVfs(MemoryVfs(), nth(0, Fault(errno.ENOSPC, written_bytes=4), Kind.WRITE, path_end="file"))
    file = vfs.open("file", create=True)
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at(0, b"abc", b"def")
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 10) == b"abcd"


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.LIST, Kind.RENAME, Kind.REMOVE, Kind.SYNC_DIR])
def test_every_operation_of_the_file_system_can_fail(kind: Kind) -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.open("file", create=True).close()
    vfs.plan = nth(0, Fault(errno.EACCES), kind)
    calls = {
        Kind.OPEN: lambda: vfs.open("file"),
        Kind.LIST: lambda: vfs.list(""),
        Kind.RENAME: lambda: vfs.rename("file", "other"),
        Kind.REMOVE: lambda: vfs.remove("file"),
        Kind.SYNC_DIR: lambda: vfs.sync_dir(""),
    }
    with pytest.raises(PermissionError):
        calls[kind]()
    assert vfs.list("") == ["file"]


@pytest.mark.parametrize("kind", [Kind.READ, Kind.WRITE, Kind.TRUNCATE, Kind.SIZE, Kind.SYNC])
def test_every_operation_of_a_file_can_fail(kind: Kind) -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("file", create=True)
    file.write_at(0, b"abc")
    vfs.plan = nth(0, Fault(errno.EIO), kind)
    calls = {
        Kind.READ: lambda: file.read_at(0, 1),
        Kind.WRITE: lambda: file.write_at(0, b"x"),
        Kind.TRUNCATE: lambda: file.truncate(0),
        Kind.SIZE: file.size,
        Kind.SYNC: file.sync,
    }
    with pytest.raises(OSError, match="Input/output"):
        calls[kind]()
    assert file.read_at(0, 9) == b"abc"


def test_the_watcher_sees_each_operation_after_it_was_carried_out() -> None:
    disk = MemoryVfs()
    seen: list[tuple[Kind, int]] = []

    def watch(operation: Operation) -> None:
        there = disk.crash_clone(Keep.ALL)
        seen.append((operation.kind, there.open("file").size()))

    file = FaultyVfs(disk, watcher=watch).open("file", create=True)
    file.write_at(0, b"abc")
    file.truncate(1)
    assert seen == [(Kind.OPEN, 0), (Kind.WRITE, 3), (Kind.TRUNCATE, 1)]
