"""The folder of an archive or a table: durable files and folders, and the lock by which one job at a time writes it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import ConfigError, OperationalError
from penstock.vfs.real import sync_folder_if_possible

OWN = "_penstock"
"""Folder of Penstock's metadata in an archive. Readers of Hive folders ignore names that begin with an underscore."""
REJECTS = "_rejects"
RESTORE = "Nothing was deleted. Restore the file from a copy of the archive, or archive into another folder."
"""Advice where a file of an archive is damaged or missing."""


class OvertakenError(OperationalError):
    """Another job writes the same archive or table."""


def other_in(root: Path) -> str:
    """Return a name in a folder that readers would take for data; empty if none. Raise ConfigError for a file."""
    if not root.exists():
        return ""
    if not root.is_dir():
        raise ConfigError([f"to: {root} is no folder"])
    if any((root / "_delta_log").glob("*.json")):
        return "_delta_log"
    return min((one.name for one in root.iterdir() if not one.name.startswith(("_", ".", "lost+found"))), default="")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock an archive for one job. Raise OvertakenError if another job, perhaps on another machine, has the lock."""
    with held(root / OWN / "LOCK", f"another job writes the archive in {root}"):
        yield


@contextmanager
def held(file: Path, otherwise: str) -> Iterator[None]:
    """Lock a file, created if missing. Raise OvertakenError(`otherwise`) if another process holds the lock."""
    make_folder(file.parent)
    with file.open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OvertakenError(otherwise) from None
        yield


def write_durably(file: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    make_folder(file.parent)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with naming(file), new.open("wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    sync_folder_if_possible(file.parent)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Raise an OSError as OperationalError with the file's name, which errors of a write lack."""
    try:
        yield
    except OSError as error:
        raise OperationalError(f"{file} cannot be written: {error.strerror or error}") from error


def sync_file(file: Path) -> None:
    """Sync a file that is closed already."""
    number = os.open(file, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    missing = [folder]
    while not (above := missing[-1].parent).exists():
        missing.append(above)
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder_if_possible(one.parent)


def sync_up(folders: Iterable[Path], root: Path) -> None:
    """Sync folders and their parents up to an archive's root.

    Existing folders are synced, too: another task may have created one and not synced it yet.
    """
    above = {one for folder in folders for one in (folder, *folder.parents) if one.is_relative_to(root)}
    for one in sorted(above, key=lambda folder: len(folder.parts), reverse=True):
        sync_folder_if_possible(one)
