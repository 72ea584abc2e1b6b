"""File systems in memory with given files."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.vfs.memory import MemoryVfs


def holding(files: Mapping[str, bytes]) -> MemoryVfs:
    """A disk with these files, all of them synced."""
    vfs = MemoryVfs()
    for path, data in files.items():
        file = vfs.open(path, create=True)
        file.write_at(0, data)
        file.sync()
        file.close()
    return vfs


def all_files(vfs: MemoryVfs) -> dict[str, bytes]:
    """Every file, by its path."""
    return {path: vfs.open(path, read_only=True).read_at(0, 10**8) for path in sorted(vfs.files())}
