"""Where the logs of a run lie: a folder of its own on a real disk, gone when the run ends.

Rules: not in memory, unless it is asked for by name: a log that is written to a tmpfs is not durable at any price. A
run that is killed cannot remove its folder; the next one there names it, and leaves it to whoever knows what is in it.

Theory: the folder holds a file that its run keeps locked, and the kernel lets go of the lock when the run ends, however
it ends. The file gets its name when it is locked already, so that nobody finds it unlocked while its run lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import OperationalError
from penstock.base.units import format_bytes
from penstock.bench.machine import MEMORY_FILE_SYSTEMS, file_system

_CANDIDATES = (Path("/var/tmp"), Path.home(), Path.cwd())  # noqa: S108 (a folder of our own is made inside)
_PREFIX = "penstock-bench-"
LOCK_FILE = "bench.pid"  # in the folder: the process id of its run


def folder_on_disk() -> Path:
    """The folder for temporary files, or one that is not in memory."""
    for candidate in (Path(tempfile.gettempdir()), *_CANDIDATES):
        if candidate.is_dir() and file_system(candidate) not in MEMORY_FILE_SYSTEMS:
            return candidate
    return Path(tempfile.gettempdir())


@contextmanager
def place(parent: Path, *, bytes_needed: int, or_else: str = "") -> Iterator[Path]:
    """A new folder in `parent`, which is there; OperationalError if the disk has too little room.

    `or_else`: what would need less of it, for whoever cannot name another folder.
    """
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < bytes_needed:
        raise OperationalError(
            f"{parent} has {format_bytes(free_bytes)} free, and this may need {format_bytes(bytes_needed)}; "
            f"name another folder with --dir{or_else and f', or {or_else}'}"
        )
    made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    with made, _held(Path(made.name)):
        yield Path(made.name)


def left_behind(parent: Path) -> list[Path]:
    """The folders in `parent` whose run was killed."""
    return sorted(lock.parent for lock in parent.glob(f"{_PREFIX}*/{LOCK_FILE}") if _is_released(lock))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    unnamed = folder / f"{LOCK_FILE}.new"
    with unnamed.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        unnamed.rename(folder / LOCK_FILE)
        yield


def _is_released(lock: Path) -> bool:
    """Whether nobody holds it; not where that cannot be found out: it is somebody else's, or gone by now."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
