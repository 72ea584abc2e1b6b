"""Generated files on the disk.

Rules: a file that was not generated is never written over, and none is removed. All files are checked before the first
is written; a file takes its place by a rename, so a reader sees the old or the new one. A link is not followed: neither
a folder nor a file below the given folder may be one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.idl.python.generate import MARK


class ForeignFileError(FileExistsError):
    """A file that was not generated is in the place of one that would be. `paths`: all such files."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        names = ", ".join(map(str, paths))
        super().__init__(f"not generated, so not written over: {names}; move them, or choose another folder")


def write(files: Mapping[str, str], folder: str | Path) -> list[Path]:
    """Write generated files below a folder, which is made if it is missing, and return the paths that changed.

    `files`: texts by relative path, as `generate` returns them. ForeignFileError: nothing was written. OSError.
    """
    root = Path(folder)
    paths = {root / name: text for name, text in files.items()}
    foreign = [path for path in paths if _is_foreign(path, root)]
    if foreign:
        raise ForeignFileError(foreign)
    changed = []
    for path, text in paths.items():
        data = text.encode()
        if path.exists() and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
        changed.append(path)
    return changed


def _is_foreign(path: Path, root: Path) -> bool:
    """Return whether a path is taken by something that was not generated."""
    folders = [each for each in path.parents if each != root and each.is_relative_to(root)]
    if any(each.is_symlink() or (each.exists() and not each.is_dir()) for each in folders) or path.is_symlink():
        return True
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        first = file.read(len(MARK))
    # An empty `__init__.py` is often made by hand, and is the same as ours.
    return first not in (MARK.encode(), b"")


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
