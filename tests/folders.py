"""Simulates file systems that cannot sync a folder, and NFS, which keeps removed files while they are open."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

_fsync, _unlink = os.fsync, os.unlink


def without_folders(number: int) -> Callable[[int], None]:
    """Return an `os.fsync` that fails for folders with this errno, as on CIFS."""

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        _fsync(descriptor)

    return fsync


def as_nfs_keeps(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate that `file` is open on NFS: removal renames it to `.nfs…`, which cannot be removed. Return that path."""
    kept = file.with_name(".nfs0000000000a1b2c300000001")

    def unlink(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> None:
        name = os.path.basename(os.fspath(path))
        if name == kept.name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        if name == file.name:
            os.rename(path, kept.name if dir_fd is not None else kept, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            _unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    return kept
