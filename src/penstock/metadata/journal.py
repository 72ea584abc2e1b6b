"""The journal: the metadata commands of this broker, in order, on disk before they take effect.

Rules: an entry is acted on only after its flush. A torn tail (an unfinished last entry) is cut at start, its bytes kept
in a side file that nothing overwrites. Damage to an entry that is known to have been synced, or its loss, is
corruption: the broker does not start on it, and nothing is deleted. On a full disk every command but one that makes a
stream still finds room, in the reserve (`vfs/reserve.py`).

Theory: until a sync, a disk may keep a later entry and lose an earlier one, so a sound entry behind a damaged one
proves nothing by itself. What was synced is said twice: by the mark (`vfs/mark.py`), which is on the disk before
an entry is acted on, and, should the mark be lost, by every later entry.

    file   "PNSJ" | u32 version 1 | entry | entry | …                       little-endian
    entry  u32 bytes of what follows the CRC | u32 CRC-32C of it | u64 index | u64 synced index | command (MessagePack)
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.hot.crc import crc32c
from penstock.metadata.commands import Command, CreateStream, decode_command, encode_command
from penstock.vfs import File, Vfs
from penstock.vfs.mark import Mark
from penstock.vfs.reserve import Reserve

JOURNAL_PATH = "metadata.journal"
MARK_PATH = "metadata.synced"
RESERVE_PATH = "metadata.reserve"
JOURNAL_VERSION = 1

_MAGIC = b"PNSJ"
_FILE_HEAD = struct.Struct("<4sI")
_ENTRY_HEAD = struct.Struct("<II")
_INDEXES = struct.Struct("<QQ")
_HEAD = _FILE_HEAD.pack(_MAGIC, JOURNAL_VERSION)


@dataclass(frozen=True, slots=True)
class Entry:
    """One command and its place."""

    index: int
    position: int
    end_position: int
    command: Command


@dataclass(slots=True)
class JournalFlush:
    """A disk task: everything up to `index` survives a power loss once it has run. One at a time."""

    file: File
    mark: Mark
    index: int

    def run(self) -> None:
        """Sync the file, then the mark; in a disk thread. OSError, also if somebody has removed one of them."""
        self.file.sync()
        if not self.file.has_its_name():
            raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", JOURNAL_PATH)
        self.mark.move(self.index)


class Journal:
    """Append-only. One owner; only a flush runs elsewhere."""

    def __init__(self, file: File, mark: Mark, reserve: Reserve, end_position: int, index: int) -> None:
        """For `open` only: what is there has been synced."""
        self._file = file
        self._mark = mark
        self._reserve = reserve
        self._end_position = end_position
        self._failed: OSError | None = None
        self._synced_index = index
        self.index = index  # of the last entry

    @classmethod
    def open(cls, vfs: Vfs) -> tuple[Journal, list[Entry], str | None]:
        """Open or create the journal: (journal, its entries, a note if a torn tail was cut).

        CorruptionError if an entry that was synced is damaged or lost, RemoteError (unsupported_version) if it is
        newer.
        """
        file = vfs.open(JOURNAL_PATH, create=True)
        data = file.read_at(0, file.size())
        entries = list(read_entries(data, JOURNAL_PATH)) if len(data) >= _FILE_HEAD.size else []
        index = entries[-1].index if entries else 0
        end_position = entries[-1].end_position if entries else min(_FILE_HEAD.size, len(data))
        mark = Mark(vfs, MARK_PATH)
        if mark.index > index:
            found = "damaged bytes" if end_position < len(data) else "the end of the file"
            raise CorruptionError(
                JOURNAL_PATH, end_position, f"entry {index + 1}: up to entry {mark.index} all was synced", found
            )
        reserve = Reserve(vfs, RESERVE_PATH)
        if len(data) < _FILE_HEAD.size:
            return cls._begin(vfs, file, mark, reserve, data)
        note = None
        if end_position < len(data):
            side_path = _keep_aside(vfs, reserve, data[end_position:], end_position)
            file.truncate(end_position)
            note = (
                f"cut an unfinished entry of {len(data) - end_position} bytes from {JOURNAL_PATH}; kept in {side_path}"
            )
        # What was read may be in the page cache only: nothing is built on it before it is on the disk.
        file.sync()
        reserve.make_room(1, lambda: mark.move(index))
        return cls(file, mark, reserve, end_position, index), entries, note

    @classmethod
    def _begin(
        cls, vfs: Vfs, file: File, mark: Mark, reserve: Reserve, data: bytes
    ) -> tuple[Journal, list[Entry], str | None]:
        # Made by a start that was cut short before any command: then it holds a part of the head, or zeros.
        note = None
        if not (_HEAD.startswith(data) or not any(data)):
            side_path = _keep_aside(vfs, reserve, data, 0)
            note = f"{JOURNAL_PATH} held {len(data)} bytes that are no journal's; kept in {side_path}"
        file.truncate(0)
        file.write_at(0, _HEAD)
        file.sync()
        vfs.sync_dir("")
        return cls(file, mark, reserve, _FILE_HEAD.size, 0), [], note

    def append(self, command: Command) -> int:
        """Write `command`; its index. OperationalError if the disk refuses: it is then as before, or failed."""
        if self._failed is not None:
            raise OperationalError(f"the metadata journal failed before ({self._failed}); restart the broker")
        index = self.index + 1
        content = _INDEXES.pack(index, self._synced_index) + encode_command(command)
        if len(content) > limits.REQUEST_BODY_BYTES_MAX:
            raise RemoteError(ErrorCode.TOO_LARGE, f"a metadata command of {len(content)} bytes is too large")
        head = _ENTRY_HEAD.pack(len(content), crc32c(content))

        def write() -> None:
            self._file.write_at(self._end_position, head, content)

        try:
            if isinstance(command, CreateStream):
                write()  # it would find no room for the stream either
            else:
                self._reserve.make_room(len(head) + len(content), write)
        except OSError as error:
            try:
                self._file.truncate(self._end_position)
            except OSError as second:
                self._failed = second
            raise OperationalError(f"cannot write the metadata journal: {error}") from error
        self._end_position += _ENTRY_HEAD.size + len(content)
        self.index = index
        return index

    def flush(self) -> JournalFlush:
        """The task that makes all entries so far durable."""
        return JournalFlush(self._file, self._mark, self.index)

    def flushed(self, flush: JournalFlush) -> None:
        """`flush.run()` returned."""
        self._synced_index = max(self._synced_index, flush.index)

    def flush_failed(self, error: OSError) -> None:
        """A sync failed: what is on the disk is unknown, so nothing is appended any more."""
        self._failed = error

    def keep_reserve(self) -> None:
        """Take back what was given up, as far as there is room. Cheap where nothing is missing."""
        self._reserve.fill()

    def close(self) -> None:
        """Give the files back."""
        self._file.close()
        self._mark.close()
        self._reserve.close()


def _keep_aside(vfs: Vfs, reserve: Reserve, data: bytes, position: int) -> str:
    taken = set(vfs.list(""))
    path = f"{JOURNAL_PATH}.cut-{position}"
    number = 1
    while path in taken:
        number += 1
        path = f"{JOURNAL_PATH}.cut-{position}.{number}"
    side = vfs.open(path, create=True)
    try:
        reserve.make_room(len(data), lambda: side.write_at(0, data))
        side.sync()
    finally:
        side.close()
    vfs.sync_dir("")
    return path


def read_entries(data: bytes, path: str) -> Iterator[Entry]:
    """The entries in a journal's bytes up to a torn tail. Errors as `Journal.open`."""
    magic, version = _FILE_HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptionError(path, 0, _MAGIC, magic)
    if version > JOURNAL_VERSION:
        text = f"{path} has version {version}; this Penstock reads up to {JOURNAL_VERSION}: upgrade it"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text)
    if version < 1:
        raise CorruptionError(path, len(_MAGIC), "a version from 1 on", version)
    position = _FILE_HEAD.size
    index = 0
    while position < len(data):
        content = _content(data, position)
        if content is None:
            if _synced_behind(data, position) > index:
                raise CorruptionError(path, position, f"entry {index + 1} with a sound CRC-32C", "damaged bytes")
            return
        found_index, _ = _INDEXES.unpack_from(content)
        if found_index != index + 1:
            raise CorruptionError(path, position, f"entry {index + 1}", f"entry {found_index}")
        index = found_index
        try:
            command = decode_command(content[_INDEXES.size :])
        except msgspec.DecodeError as error:
            text = f"{path}: entry {index} is not known to this Penstock ({error}): a newer one wrote it; upgrade"
            raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text) from None
        end_position = position + _ENTRY_HEAD.size + len(content)
        yield Entry(index, position, end_position, command)
        position = end_position


def _content(data: bytes, position: int) -> bytes | None:
    if position + _ENTRY_HEAD.size > len(data):
        return None
    size, crc = _ENTRY_HEAD.unpack_from(data, position)
    start = position + _ENTRY_HEAD.size
    if not _INDEXES.size < size <= limits.REQUEST_BODY_BYTES_MAX or start + size > len(data):
        return None
    content = data[start : start + size]
    return content if crc32c(content) == crc else None


def _synced_behind(data: bytes, position: int) -> int:
    """The highest index that a sound entry behind `position` knows to have been synced; 0 if there is none."""
    synced_index = 0
    for start in range(position + 1, len(data) - _ENTRY_HEAD.size - _INDEXES.size):
        content = _content(data, start)
        if content is not None:
            synced_index = max(synced_index, _INDEXES.unpack_from(content)[1])
    return synced_index
