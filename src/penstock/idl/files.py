"""Files of contracts: which an include may name, and how they are read from the disk.

Rules: an included file lies below one of the roots that the caller gives. `is_within` decides, once for the path as it
is written, with its `..` taken out, and once for the place that the disk has for it, with its links followed. What is
no regular file (a pipe, a device) is not read.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Mapping, Sequence

from penstock.idl.lexer import FILE_BYTES_MAX

PATH_CHARS_MAX = 1_024
"""Most characters of the path of an included file."""

Read = Callable[[str], str]
"""Returns the text of a file by its path; FileNotFoundError: there is none; OSError, UnicodeDecodeError: why not."""


def is_within(path: str, root: str) -> bool:
    """True if a path lies below a root, or is it; both without links. `..` and `.` in them are taken out."""
    path, root = posixpath.normpath(path), posixpath.normpath(root)
    if root == ".":
        return not path.startswith("/") and not _leads_up(path)
    before = root if root == "/" else f"{root}/"
    return path == root or (path.startswith(before) and not _leads_up(path[len(before) :]))


def _leads_up(path: str) -> bool:
    """True if a normal path begins with `..`, as does what is left of `../../a` below the root `..`."""
    return path == ".." or path.startswith("../")


def candidates(include: str, including: str, roots: Sequence[str]) -> list[str]:
    """Return the paths that an include may mean: beside the file that includes it, then below each root.

    Only those within the roots: an empty list means that it leads out of them. ValueError: no path that may be tried.
    """
    if len(include) > PATH_CHARS_MAX:
        raise ValueError(f"the path has {len(include):,} characters; {PATH_CHARS_MAX:,} are the most")
    if posixpath.isabs(include) or "\\" in include or not include.isprintable():
        raise ValueError("the path is not one with / that is relative to this file or to a root")
    folders = (posixpath.dirname(including), *roots)
    paths = dict.fromkeys(posixpath.normpath(posixpath.join(folder, include)) for folder in folders)
    return [path for path in paths if any(is_within(path, root) for root in roots)]


def texts(files: Mapping[str, str]) -> Read:
    """Return what reads from a mapping of paths to texts."""

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return files[path]

    return read


class FileReader:
    """Reads files of the disk that lie below the roots, wherever links lead."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = [os.path.realpath(root or ".") for root in roots]

    def __call__(self, path: str) -> str:
        """Return the text of a file. OSError, UnicodeDecodeError: it cannot be read, or is not below a root."""
        real = os.path.realpath(path, strict=True)
        if not any(is_within(real, root) for root in self._roots):
            raise PermissionError(errno.EACCES, "it lies, or a link leads, outside of the folders that are given", path)
        # Neither a pipe nor a link that took the file's place meanwhile.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PermissionError(errno.EACCES, "it is no regular file", path)
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(FILE_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
        if len(data) > FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES_MAX:,} bytes, the most of one", path)
        return data.decode()
