"""A disk in memory with a limited number of blocks."""

from __future__ import annotations

import errno

from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, Plan
from penstock.vfs.memory import MemoryVfs

BLOCK_BYTES = 4096


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def blocks_of(vfs: FaultyVfs, path: str) -> int:
    """Return the size of a file's blocks in bytes."""
    return _blocks(vfs.inner.open(path, read_only=True).size())


def _taken(vfs: FaultyVfs) -> dict[str, int]:
    assert isinstance(vfs.inner, MemoryVfs)
    return {path: blocks_of(vfs, path) for path in vfs.inner.files()}


def full_at(vfs: FaultyVfs, size_bytes: int) -> Plan:
    """Return a fault plan for a disk of that size: a write beyond it is partial and fails with ENOSPC."""

    def plan(operation: FileOperation) -> FileFault | None:
        if operation.kind is not FileOperationKind.WRITE:
            return None
        taken = _taken(vfs)
        others = sum(taken.values()) - taken[operation.path]
        end = operation.position + operation.length
        if others + _blocks(end) <= size_bytes or end <= taken[operation.path]:
            return None
        room = max(size_bytes - others, taken[operation.path])
        return FileFault(errno.ENOSPC, written_bytes=max(0, room - operation.position))

    return plan


def fill(vfs: FaultyVfs) -> None:
    """Make the disk full: no block is free."""
    vfs.plan = full_at(vfs, sum(_taken(vfs).values()))
