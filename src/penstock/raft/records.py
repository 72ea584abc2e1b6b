"""The bytes of the log file: records, and the state they add up to.

Rules: records are only appended; a file is replaced as a whole. Record numbers rise by one, also from one file to the
next. Every record names the last record that was synced when it was written, so that the synced part is known even if
the sync mark (`vfs/synced_mark.py`) is lost. An entry replaces the entries from its index on.

    file    "PNRL" | u32 version 1 | record | record | …                   little-endian
    record  u32 bytes of what follows the CRC | u32 CRC-32C of it | u64 number | u64 synced number | u8 kind | body
    body    1  base        u64 index | u64 term | u8 1 if there is a snapshot     the log begins after this entry
            2  entry       u64 index | u64 term | u8 kind of entry | data
            3  hard state  u64 term | u64 vote, 0 for none | u64 commit index

The first record of a file, and no other, is a base.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft.values import BROKER_ID_MAX, NO_STATE, NUMBER_MAX, Entry, EntryKind, HardState

LOG_VERSION = 1

_MAGIC = b"PNRL"
_FILE_HEAD = struct.Struct("<4sI")
_RECORD_HEAD = struct.Struct("<II")
_NUMBERS = struct.Struct("<QQB")
_BASE = struct.Struct("<QQB")
_ENTRY = struct.Struct("<QQB")
_HARD_STATE = struct.Struct("<QQQ")
_CONTENT_BYTES_MAX = _NUMBERS.size + _ENTRY.size + limits.RAFT_ENTRY_BYTES_MAX

_KIND_BASE, _KIND_ENTRY, _KIND_HARD_STATE = 1, 2, 3

HEAD_BYTES = _FILE_HEAD.size


class LogRecord(NamedTuple):
    """One record and its position."""

    number: int
    kind: int
    body: bytes
    position: int
    end_position: int
    synced_number: int = 0  # the last record that was synced when this one was written


@dataclass(slots=True)
class LogContents:
    """The state that the records of a file add up to."""

    base_index: int = 0
    base_term: int = 0
    has_snapshot: bool = False
    hard_state: HardState = NO_STATE
    entries: list[Entry] = field(default_factory=list)
    last_number: int = 0
    end_position: int = HEAD_BYTES
    synced_number: int = 0  # the last synced record, by what the records themselves say
    synced_position: int = HEAD_BYTES  # bytes before it were synced, by the mark

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries, replacing those from their indexes on."""
        for entry in entries:
            del self.entries[entry.index - self.base_index - 1 :]
            self.entries.append(entry)

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, including the base; None if it is not here."""
        if index == self.base_index:
            return self.base_term
        place = index - self.base_index - 1
        return self.entries[place].term if 0 <= place < len(self.entries) else None

    def behind(self, index: int) -> tuple[Entry, ...]:
        """Return the entries after `index`."""
        return tuple(self.entries[max(0, index - self.base_index) :])


class RecordWriter:
    """Encodes records with rising numbers."""

    def __init__(self, last_number: int, synced_number: int) -> None:
        self.last_number = last_number
        self._synced_number = synced_number
        self._parts: list[bytes] = []

    def base(self, index: int, term: int, *, has_snapshot: bool) -> None:
        """Add the base, the first record of a file."""
        self._add(_KIND_BASE, _BASE.pack(index, term, has_snapshot))

    def entry(self, entry: Entry) -> None:
        self._add(_KIND_ENTRY, _ENTRY.pack(entry.index, entry.term, entry.kind) + entry.data)

    def hard_state(self, state: HardState) -> None:
        self._add(_KIND_HARD_STATE, _HARD_STATE.pack(state.term, state.vote or 0, state.commit))

    def _add(self, kind: int, body: bytes) -> None:
        self.last_number += 1
        content = _NUMBERS.pack(self.last_number, self._synced_number, kind) + body
        self._parts += (_RECORD_HEAD.pack(len(content), crc32c(content)), content)

    def data(self) -> bytes:
        """Return the bytes of all records so far."""
        return b"".join(self._parts)


def file_bytes(contents: LogContents, synced_number: int) -> tuple[bytes, LogContents]:
    """Return a new file with the same contents, and the contents with their new record numbers."""
    writer = RecordWriter(contents.last_number, synced_number)
    writer.base(contents.base_index, contents.base_term, has_snapshot=contents.has_snapshot)
    for entry in contents.entries:
        writer.entry(entry)
    writer.hard_state(contents.hard_state)
    data = _FILE_HEAD.pack(_MAGIC, LOG_VERSION) + writer.data()
    return data, replace(contents, last_number=writer.last_number, end_position=len(data))


def check_head(data: bytes, path: str, magic: bytes, version_max: int) -> None:
    """Check magic and version of a file. Raise CorruptionError, RemoteError (unsupported_version)."""
    if len(data) < _FILE_HEAD.size:
        raise CorruptionError(path, len(data), f"{_FILE_HEAD.size} bytes", "the end of the file")
    found, version = _FILE_HEAD.unpack_from(data)
    if found != magic:
        raise CorruptionError(path, 0, magic, found)
    if version > version_max:
        text = f"{path} has version {version}; this Penstock reads up to {version_max}: upgrade it"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text)
    if version < 1:
        raise CorruptionError(path, len(magic), "a version from 1 on", version)


def read_contents(data: bytes, path: str, marked_number: int) -> LogContents:
    """Return the contents of a file up to a torn tail, which begins at `end_position`.

    Raise CorruptionError if a synced record is corrupt or missing: one up to `marked_number`, or one that a later
    record says was synced.
    """
    contents = LogContents()
    for record in read_records(data, path):
        _take(contents, record, path)
        contents.synced_number = max(contents.synced_number, record.synced_number)
        if record.number <= marked_number:
            contents.synced_position = record.end_position
    if marked_number > contents.last_number:
        is_end = contents.end_position >= len(data)
        raise CorruptionError(
            path,
            contents.end_position,
            f"record {contents.last_number + 1}: up to {marked_number} all was synced",
            "the end of the file" if is_end else "damaged bytes",
        )
    return contents


def read_records(data: bytes, path: str) -> Iterator[LogRecord]:
    """Yield the records of a file up to a torn tail. Raise as `read_contents`, without the check against the mark."""
    check_head(data, path, _MAGIC, LOG_VERSION)
    position, number = HEAD_BYTES, 0
    while position < len(data):
        content = _content(data, position)
        if content is None:
            # The first record was synced before the file got its name.
            if not number or _synced_behind(data, position) > number:
                raise CorruptionError(path, position, "a record with a sound CRC-32C", "damaged bytes")
            return
        found, synced_number, kind = _NUMBERS.unpack_from(content)
        if (number and found != number + 1) or found > NUMBER_MAX:
            raise CorruptionError(path, position, f"record {number + 1}", f"record {found}")
        number = found
        end_position = position + _RECORD_HEAD.size + len(content)
        yield LogRecord(number, kind, content[_NUMBERS.size :], position, end_position, synced_number)
        position = end_position
    if not number:
        raise CorruptionError(path, position, "a first record", "the end of the file")


def _content(data: bytes, position: int) -> bytes | None:
    if position + _RECORD_HEAD.size > len(data):
        return None
    size, crc = _RECORD_HEAD.unpack_from(data, position)
    start = position + _RECORD_HEAD.size
    if not _NUMBERS.size <= size <= _CONTENT_BYTES_MAX or start + size > len(data):
        return None
    content = data[start : start + size]
    return content if crc32c(content) == crc else None


def _synced_behind(data: bytes, position: int) -> int:
    """Return the highest synced number in a sound record after `position`; 0 if there is none."""
    synced_number = 0
    for start in range(position + 1, len(data) - _RECORD_HEAD.size - _NUMBERS.size):
        content = _content(data, start)
        if content is not None:
            synced_number = max(synced_number, _NUMBERS.unpack_from(content)[1])
    return synced_number


def decode_record(record: LogRecord, path: str) -> Entry | HardState | tuple[int, int, bool]:
    """Decode a record; a base gives (index, term, has_snapshot).

    Raise RemoteError (unsupported_version); CorruptionError if a number is out of range.
    """
    try:
        if record.kind == _KIND_BASE:
            base_index, base_term, has_snapshot = _BASE.unpack(record.body)
            _check_numbers(record, path, base_index, base_term)
            return base_index, base_term, bool(has_snapshot)
        if record.kind == _KIND_HARD_STATE:
            term, vote, commit = _HARD_STATE.unpack(record.body)
            _check_numbers(record, path, term, commit)
            if vote > BROKER_ID_MAX:
                raise CorruptionError(path, record.position, "a vote for a broker", f"one for {vote}")
            return HardState(term, BrokerId(vote) or None, commit)
        if record.kind == _KIND_ENTRY:
            index, term, kind = _ENTRY.unpack_from(record.body)
            _check_numbers(record, path, index, term)
            return Entry(term, index, EntryKind(kind), record.body[_ENTRY.size :])
        raise ValueError(f"record of kind {record.kind}")
    except (ValueError, struct.error) as error:
        text = f"{path}: record {record.number} is not known to this Penstock ({error}): a newer one wrote it; upgrade"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text) from None


def _check_numbers(record: LogRecord, path: str, *numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise CorruptionError(path, record.position, f"numbers up to {NUMBER_MAX}", f"{max(numbers)}")


def _take(contents: LogContents, record: LogRecord, path: str) -> None:
    is_first = record.position == HEAD_BYTES
    if (record.kind == _KIND_BASE) != is_first:
        raise CorruptionError(path, record.position, "a base first and nowhere else", f"record of kind {record.kind}")
    content = decode_record(record, path)
    if isinstance(content, HardState):
        contents.hard_state = content
    elif isinstance(content, Entry):
        if not contents.base_index < content.index <= contents.base_index + len(contents.entries) + 1:
            expected = "an entry that goes on from the last"
            raise CorruptionError(path, record.position, expected, f"entry {content.index}")
        contents.put((content,))
    else:
        contents.base_index, contents.base_term, contents.has_snapshot = content
    contents.last_number = record.number
    contents.end_position = record.end_position
