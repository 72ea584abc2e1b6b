"""Metadata journal of a broker from before Raft: its commands, in order. It is only read.

Rules: a torn tail (an unfinished last entry) was never acted on and does not count. Corruption or loss of a synced
entry is CorruptionError: the broker does not start on it. Nothing is written or deleted.

Theory: until a sync, a disk may keep a later entry and lose an earlier one, so a sound entry after a corrupt one proves
nothing by itself. The synced part is recorded twice: by the mark (`vfs/synced_mark.py`), which was on the disk before
an entry was acted on, and, should the mark be lost, by every later entry.

    file   "PNSJ" | u32 version 1 | entry | entry | …                       little-endian
    entry  u32 bytes of what follows the CRC | u32 CRC-32C of it | u64 index | u64 synced index | command (MessagePack)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.hot.crc import crc32c
from penstock.metadata.commands import Command, decode_command
from penstock.vfs import Vfs
from penstock.vfs.synced_mark import SyncedMark

JOURNAL_PATH = "metadata.journal"
MARK_PATH = "metadata.synced"
RESERVE_PATH = "metadata.reserve"  # space that was given up to empty a full disk
JOURNAL_VERSION = 1

_MAGIC = b"PNSJ"
_FILE_HEAD = struct.Struct("<4sI")
_ENTRY_HEAD = struct.Struct("<II")
_INDEXES = struct.Struct("<QQ")
_HEAD = _FILE_HEAD.pack(_MAGIC, JOURNAL_VERSION)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One command and its position."""

    index: int
    position: int
    end_position: int
    command: Command


def read_journal(vfs: Vfs) -> tuple[list[JournalEntry], str | None]:
    """Return the journal's entries, and a note if a torn tail is left out.

    Raise CorruptionError if a synced entry is corrupt or lost, RemoteError (unsupported_version) if a newer version
    wrote it, OSError.
    """
    file = vfs.open(JOURNAL_PATH, read_only=True)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    mark = SyncedMark(vfs, MARK_PATH)
    mark.close()
    has_head = len(data) >= _FILE_HEAD.size  # otherwise a start was interrupted before any command
    entries = list(read_entries(data, JOURNAL_PATH)) if has_head else []
    index = entries[-1].index if entries else 0
    end_position = entries[-1].end_position if entries else min(_FILE_HEAD.size, len(data))
    if mark.index > index:
        found = "damaged bytes" if end_position < len(data) else "the end of the file"
        raise CorruptionError(
            JOURNAL_PATH, end_position, f"entry {index + 1}: up to entry {mark.index} all was synced", found
        )
    if not has_head:
        is_begun = _HEAD.startswith(data) or not any(data)
        return [], None if is_begun else f"{JOURNAL_PATH} held {len(data)} bytes that are not a journal"
    if end_position < len(data):
        return entries, f"left out an unfinished entry of {len(data) - end_position} bytes at the end of {JOURNAL_PATH}"
    return entries, None


def read_entries(data: bytes, path: str) -> Iterator[JournalEntry]:
    """Yield the entries of a journal up to a torn tail. Raise CorruptionError, RemoteError (unsupported_version)."""
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
        yield JournalEntry(index, position, end_position, command)
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
    """Return the highest synced index in a sound entry after `position`; 0 if there is none."""
    synced_index = 0
    for start in range(position + 1, len(data) - _ENTRY_HEAD.size - _INDEXES.size):
        content = _content(data, start)
        if content is not None:
            synced_index = max(synced_index, _INDEXES.unpack_from(content)[1])
    return synced_index
