"""The file `process_history`: the processes that have run on a data directory. It shows whether the directory is an
older copy.

Rules: a start adds its own process, durably, before it sends anything. So every process registered with this data
directory is in its file, and the metadata leader, which knows the process registered last, refuses a directory that
does not name it: a process ran on a later state since. Nothing else is concluded: a name missing for another reason
must never stop a broker.

| state                             | consequence                                                                   |
|-----------------------------------|-------------------------------------------------------------------------------|
| no file, in a directory with data | an older version used it: the list begins with ANY, which matches any run     |
| a corrupt slot                    | ANY after the names of the other one: power was lost during its write, or     |
|                                   | a bit has flipped                                                             |
| RUNS_MAX names                    | the start reuses the last name: no process was registered for so long         |
| no room on the disk               | the same; without any name, the process has none                              |
| the image has this process        | ANY and old names are removed                                                 |

A registration under an earlier name may still arrive after later ones, so half of the names are always kept.
The file has two slots that are written in turn, so that one is always whole, and a start needs no room on a full disk.
One slot, SLOT_BYTES, little-endian, padded with zeros; the one with the higher number counts:

| byte | type  | field                                                          |
|------|-------|----------------------------------------------------------------|
| 0    | u32   | CRC-32C of everything after it, without the padding            |
| 4    | u32   | length of the names                                            |
| 8    | u64   | number of the write                                            |
| 16   | bytes | the names, oldest first, separated by line feeds; ANY is empty |
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.hot.crc import crc32c
from penstock.metadata.disk_identity import ANY_RUN
from penstock.raft.tasks import RESERVE_PATH
from penstock.vfs import File, Vfs
from penstock.vfs.reserve import Reserve

RUNS_PATH = "runs"
SLOT_BYTES = 8192
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<4xIQ")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_KEPT = limits.RUNS_MAX // 2

assert _HEAD.size + limits.RUNS_MAX * (limits.PROCESS_ID_CHARS_MAX + 1) <= SLOT_BYTES  # names are ASCII


class _Slot(NamedTuple):
    number: int
    names: tuple[str, ...]


class ProcessHistory:
    """The processes that have run on one data directory. Call `begin` first."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._number = 0  # write number of the current slot
        self.names: tuple[str, ...] = ()  # oldest first
        self.notices: list[str] = []  # for the operator

    @property
    def process(self) -> str:
        """Name of this process run; empty if it has none."""
        return self.names[-1] if self.names else ANY_RUN

    def begin(self, process: str, *, has_data: bool) -> None:
        """Add this process to the file; blocks. Raise OSError or OperationalError."""
        self.names = self._read(has_data=has_data)
        if not process or len(self.names) >= limits.RUNS_MAX:
            self._write_again()
            return
        names = (*self.names, process)
        try:
            self._write(names)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._write_again()
            self.notices.append(f"cannot record this start in {RUNS_PATH}: {error.strerror or error}")
        else:
            self.names = names

    def _write_again(self) -> None:
        """Write and sync the reused slot again: the process that wrote it may have failed before its fsync."""
        if RUNS_PATH in self._vfs.list(""):
            with closing(self._vfs.open(RUNS_PATH)) as file:
                if self._number:
                    self._write_slot_again(file)
                file.sync()
            self._vfs.sync_dir("")

    def _write_slot_again(self, file: File) -> None:
        position = _position(self._number)
        try:
            file.write_at(position, file.read_at(position, SLOT_BYTES))
        except OSError as error:
            if error.errno not in _FULL:  # else the slot is unchanged
                raise

    def registered(self) -> Callable[[], None] | None:
        """Return a disk task that removes names no longer needed, if any, once the image has this process.

        If it raises OSError, nothing changes.
        """
        if ANY_RUN not in self.names and len(self.names) <= _KEPT:
            return None
        names = tuple(name for name in self.names if name != ANY_RUN)[-_KEPT:]
        return (lambda: self._write(names)) if names else None

    def _read(self, *, has_data: bool) -> tuple[str, ...]:
        names = self._vfs.list("")
        if f"{RUNS_PATH}/" in names:
            text = (
                f"{RUNS_PATH} is a directory, but must be the file in which a broker records its starts: move it away"
            )
            raise OperationalError(text)
        if RUNS_PATH not in names:
            return (ANY_RUN,) if has_data else ()
        with closing(self._vfs.open(RUNS_PATH, read_only=True)) as file:
            halves = [file.read_at(at, SLOT_BYTES) for at in (0, SLOT_BYTES)]
        slots = [slot for slot in map(_unpacked, halves) if slot is not None]
        if not slots:
            if has_data or any(map(any, halves)):  # else power was lost in the first start
                self.notices.append(f"{RUNS_PATH} cannot be read: whether this is an older copy cannot be checked now")
            return (ANY_RUN,)
        self._number, names = max(slots)
        # Both slots are created at once: a missing one was cut off.
        if len(slots) < sum(any(half) or len(half) < SLOT_BYTES for half in halves):
            self.notices.append(f"{RUNS_PATH} is damaged: an older copy may go unnoticed")
            return (*names[-_KEPT:], ANY_RUN)
        return names[-limits.RUNS_MAX :]

    def _write(self, names: tuple[str, ...]) -> None:
        number = self._number + 1
        content = _packed(_Slot(number, names))
        is_new = RUNS_PATH not in self._vfs.list("")
        if number == 1:  # both slots at once: later a full disk has no room for the second
            content += bytes(SLOT_BYTES)
        reserve = Reserve(self._vfs, RESERVE_PATH)
        try:
            with closing(self._vfs.open(RUNS_PATH, create=True)) as file:
                reserve.make_room(len(content), lambda: file.write_at(_position(number), content))
                file.sync()
        finally:
            reserve.close()
        if is_new:
            self._vfs.sync_dir("")
        self._number = number


def _position(number: int) -> int:
    return (number - 1) % 2 * SLOT_BYTES


def _packed(slot: _Slot) -> bytes:
    names = "\n".join(slot.names).encode()
    body = (_HEAD.pack(len(names), slot.number) + names)[_CRC.size :]
    content = _CRC.pack(crc32c(body)) + body
    assert len(content) <= SLOT_BYTES, slot
    return content.ljust(SLOT_BYTES, b"\0")


def _unpacked(content: bytes) -> _Slot | None:
    if len(content) < _HEAD.size:
        return None
    (crc,), (length, number) = _CRC.unpack_from(content), _HEAD.unpack_from(content)
    body = content[_CRC.size : _HEAD.size + length]
    if length > len(content) or crc32c(body) != crc:
        return None
    return _Slot(number, tuple(body[_HEAD.size - _CRC.size :].decode().split("\n")))
