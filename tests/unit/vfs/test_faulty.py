"""Operations that fail on demand, and the watcher."""

from __future__ import annotations

import errno

import pytest

from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs


def test_the_nth_operation_of_a_kind_fails() -> None:
    vfs = FaultyVfs(MemoryVfs(), nth(1, FileFault(errno.EIO), FileOperationKind.SYNC))
    file = vfs.open("file", create=True)
    file.sync()
    with pytest.raises(OSError, match="Input/output") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()


def test_a_failed_sync_makes_nothing_durable() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk, nth(0, FileFault(errno.EIO), FileOperationKind.SYNC))
    file = vfs.open("file", create=True)
    vfs.sync_dir("")
    file.write_at(0, b"x")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert disk.crash_clone().open("file").size() == 0


def test_a_full_disk_takes_a_part_of_a_write() -> None:
    vfs = FaultyVfs(
        MemoryVfs(), nth(0, FileFault(errno.ENOSPC, written_bytes=4), FileOperationKind.WRITE, path_end="file")
    )
    file = vfs.open("file", create=True)
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at(0, b"abc", b"def")
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 10) == b"abcd"


@pytest.mark.parametrize(
    "kind",
    [
        FileOperationKind.OPEN,
        FileOperationKind.LIST,
        FileOperationKind.RENAME,
        FileOperationKind.REMOVE,
        FileOperationKind.SYNC_DIR,
    ],
)
def test_every_operation_of_the_file_system_can_fail(kind: FileOperationKind) -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.open("file", create=True).close()
    vfs.plan = nth(0, FileFault(errno.EACCES), kind)
    calls = {
        FileOperationKind.OPEN: lambda: vfs.open("file"),
        FileOperationKind.LIST: lambda: vfs.list(""),
        FileOperationKind.RENAME: lambda: vfs.rename("file", "other"),
        FileOperationKind.REMOVE: lambda: vfs.remove("file"),
        FileOperationKind.SYNC_DIR: lambda: vfs.sync_dir(""),
    }
    with pytest.raises(PermissionError):
        calls[kind]()
    assert vfs.list("") == ["file"]


@pytest.mark.parametrize(
    "kind",
    [
        FileOperationKind.READ,
        FileOperationKind.WRITE,
        FileOperationKind.TRUNCATE,
        FileOperationKind.SIZE,
        FileOperationKind.SYNC,
    ],
)
def test_every_operation_of_a_file_can_fail(kind: FileOperationKind) -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("file", create=True)
    file.write_at(0, b"abc")
    vfs.plan = nth(0, FileFault(errno.EIO), kind)
    calls = {
        FileOperationKind.READ: lambda: file.read_at(0, 1),
        FileOperationKind.WRITE: lambda: file.write_at(0, b"x"),
        FileOperationKind.TRUNCATE: lambda: file.truncate(0),
        FileOperationKind.SIZE: file.size,
        FileOperationKind.SYNC: file.sync,
    }
    with pytest.raises(OSError, match="Input/output"):
        calls[kind]()
    assert file.read_at(0, 9) == b"abc"


def test_the_watcher_sees_each_operation_after_it_was_carried_out() -> None:
    disk = MemoryVfs()
    seen: list[tuple[FileOperationKind, int]] = []

    def watch(operation: FileOperation) -> None:
        there = disk.crash_clone(Keep.ALL)
        seen.append((operation.kind, there.open("file").size()))

    file = FaultyVfs(disk, watcher=watch).open("file", create=True)
    file.write_at(0, b"abc")
    file.truncate(1)
    assert seen == [(FileOperationKind.OPEN, 0), (FileOperationKind.WRITE, 3), (FileOperationKind.TRUNCATE, 1)]
