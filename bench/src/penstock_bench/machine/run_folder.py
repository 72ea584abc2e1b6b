"""The folder of a run's logs: its own folder on a real disk, deleted at the end of the run.

Rules: The folder is on a file system in memory only if the user names it, or if no candidate is elsewhere: a log on a
tmpfs is not durable. A killed run cannot delete its folder; the next run reports the folder and does not delete it.
A run that ends otherwise, by an error or a signal too, removes it, says so if that takes long, and names what is left.

Theory: The folder holds a file that its run keeps locked; the kernel releases the lock when the run ends, however it
ends. The file gets its name after it is locked, so that no other process finds it unlocked while its run lives.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import OperationalError
from penstock.base.units import format_bytes
from penstock.cli.terminal.failure import say_note
from penstock_bench.machine.facts import MEMORY_FILE_SYSTEMS, file_system

_CANDIDATES = (Path("/var/tmp"), Path.home(), Path.cwd())  # noqa: S108 (a folder of our own is made inside)
_PREFIX = "penstock-bench-"
_MANY_FILES = 1_000  # their removal takes seconds on a busy disk
LOCK_FILE = "bench.pid"  # in the run's folder; holds the process id of the run


def folder_on_disk() -> Path:
    """Return the first candidate that is not on a file system in memory; the folder for temporary files if all are."""
    for candidate in (Path(tempfile.gettempdir()), *_CANDIDATES):
        if candidate.is_dir() and file_system(candidate) not in MEMORY_FILE_SYSTEMS:
            return candidate
    return Path(tempfile.gettempdir())


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def place(
    parent: Path,
    *,
    bytes_needed: int,
    or_else: str = "",
    say: Callable[[str], None] = say_note,
    remove: Callable[[Path], None] = _remove,
) -> Iterator[Path]:
    """Make a new folder in the existing `parent`. Raise OperationalError if the disk has too little free space.

    `or_else` names an option that needs less space, for the error text. `say` is told of a removal that takes long, and
    of what could not be removed.
    """
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < bytes_needed:
        raise OperationalError(
            f"{parent} has {format_bytes(free_bytes)} free, and this may need {format_bytes(bytes_needed)}; "
            f"name another folder with --dir{or_else and f', or {or_else}'}"
        )
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with _held(made):
            yield made
    finally:
        if (files := sum(len(names) for _, _, names in os.walk(made))) >= _MANY_FILES:
            say(f"removing {files:,} files from {made}")
        remove(made)
        if made.exists():  # a process that ends at this moment may have written to it
            remove(made)
        if made.exists():
            say(f"not all could be removed: rm -r {shlex.quote(str(made.absolute()))}")


def left_behind(parent: Path) -> list[Path]:
    """Return the folders in `parent` whose run was killed."""
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
    """True if no process holds the lock; False if that is unknown (another user's file, or deleted)."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
