"""The data directory: whose it is, which format it has, and that one broker at a time uses it.

    penstock.json   {"format": 1, "id": "<random, made once>"}
    LOCK            held with flock(2) while a broker runs; holds its process id, for people
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import OperationalError

DATA_FORMAT = 1

_IDENTITY = "penstock.json"
_LOCK = "LOCK"


@dataclass(slots=True)
class DataDir:
    """A data directory that this process holds."""

    path: Path
    id: str
    _lock: int

    def release(self) -> None:
        """Let another broker have it."""
        os.close(self._lock)


def take_data_dir(path: Path) -> DataDir:
    """Make the directory where it is missing, and hold it. OperationalError says why it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OperationalError(f"cannot use the data directory {path}: {error.strerror or error}") from error
    try:
        _lock(lock, path)
        return DataDir(path, _identity(path), lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        by = f" (process {holder})" if holder else ""
        raise OperationalError(
            f"the data directory {path} is in use by another broker{by}; stop that one, or choose another (--data-dir)"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _identity(path: Path) -> str:
    file = path / _IDENTITY
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return _new_identity(path)
    except OSError as error:
        raise OperationalError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        identity = json.loads(content)
        data_format, data_id = int(identity["format"]), str(identity["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise OperationalError(
            f"{file} is not readable as Penstock's ({error!r}); nothing was touched. Restore it, or choose another "
            "directory with --data-dir"
        ) from None
    if data_format > DATA_FORMAT:
        raise OperationalError(
            f"the data directory {path} has format {data_format}; this Penstock reads up to {DATA_FORMAT}: upgrade it"
        )
    return data_id


def _new_identity(path: Path) -> str:
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in (_LOCK, _IDENTITY + ".new"))
    if strangers:
        shown = ", ".join(strangers[:5])
        raise OperationalError(
            f"{path} has no {_IDENTITY} but holds {shown}: not a data directory of Penstock's; choose an empty one"
        )
    data_id = uuid.uuid4().hex
    new = path / f"{_IDENTITY}.new"
    with new.open("wb") as file:
        file.write(json.dumps({"format": DATA_FORMAT, "id": data_id}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.rename(path / _IDENTITY)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return data_id
