"""Reads that need no disk: what is cached is read, anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.vfs.faulty import FaultyVfs, no_faults
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.page_cache import CachedFile, CachedVfs, ColdError
from penstock.vfs.real import RealVfs

CONTENT = bytes(range(256)) * 64


def opened(root: Path, reads_max: int = 10, bytes_max: int = 10**6) -> tuple[CachedVfs, CachedFile]:
    vfs = RealVfs(root)
    vfs.open("x", create=True).write_at(0, CONTENT)
    cached = vfs.cached(reads_max=reads_max, bytes_max=bytes_max)
    file = cached.open("x", read_only=True)
    try:
        file.read_at(0, 1)
    except ColdError:
        pytest.skip("this file system does not say what the page cache has")
    return cached, file


def test_what_was_written_just_now_is_read(tmp_path: Path) -> None:
    _, file = opened(tmp_path)
    assert file.read_at(100, 5_000) == CONTENT[100:5_100]
    assert (file.path, file.size()) == ("x", len(CONTENT))
    with pytest.raises(ColdError, match="ends there"):
        file.read_at(len(CONTENT) - 4, 8)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="there is no way to empty the cache")
def test_what_is_on_the_disk_only_is_not_read(tmp_path: Path) -> None:
    _, file = opened(tmp_path)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with pytest.raises(ColdError):
        file.read_at(0, len(CONTENT))


def test_the_budget_ends(tmp_path: Path) -> None:
    _, file = opened(tmp_path, reads_max=3)
    assert file.read_at(0, 8)
    with pytest.raises(ColdError):
        file.read_at(0, 8)
    _, file = opened(tmp_path, bytes_max=100)
    assert file.read_at(0, 99)
    with pytest.raises(ColdError):
        file.read_at(0, 1)


def test_nothing_is_changed(tmp_path: Path) -> None:
    vfs, file = opened(tmp_path)
    for change in (
        lambda: vfs.open("x"),
        lambda: vfs.open("y", create=True),
        lambda: vfs.rename("x", "y"),
        lambda: vfs.remove("x"),
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        file.sync,
        lambda: vfs.sync_dir(""),
    ):
        with pytest.raises(ColdError):
            change()
    assert (tmp_path / "x").read_bytes() == CONTENT
    with pytest.raises(FileNotFoundError):
        vfs.open("y", read_only=True)


def test_others_cannot_tell() -> None:
    memory = MemoryVfs()
    for vfs in (memory, FaultyVfs(memory, no_faults)):
        assert vfs.cached(reads_max=1, bytes_max=1) is None
