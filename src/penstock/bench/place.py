"""Where the logs of a run lie: a folder of its own on a real disk, gone when the run ends.

Rules: not in memory, unless it is asked for by name: a log that is written to a tmpfs is not durable at any price.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import OperationalError
from penstock.base.units import format_bytes
from penstock.bench.machine import MEMORY_FILE_SYSTEMS, file_system

_CANDIDATES = (Path("/var/tmp"), Path.home(), Path.cwd())  # noqa: S108 (a folder of our own is made inside)


def folder_on_disk() -> Path:
    """The folder for temporary files, or one that is not in memory."""
    for candidate in (Path(tempfile.gettempdir()), *_CANDIDATES):
        if candidate.is_dir() and file_system(candidate) not in MEMORY_FILE_SYSTEMS:
            return candidate
    return Path(tempfile.gettempdir())


@contextmanager
def place(parent: Path | None, *, bytes_needed: int) -> Iterator[Path]:
    """A new folder in `parent` (None: wherever a real disk is); OperationalError if the disk has too little room."""
    inside = folder_on_disk() if parent is None else parent
    inside.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(inside).free
    if free_bytes < bytes_needed:
        raise OperationalError(
            f"{inside} has {format_bytes(free_bytes)} free, and this may need {format_bytes(bytes_needed)}; "
            "name another folder with --dir, or give fewer --messages"
        )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=inside, ignore_cleanup_errors=True) as made:
        yield Path(made)
