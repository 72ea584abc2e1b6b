"""Entries of a resumed segment: those of its first batches in the index file, those of later ones in memory.

Rules: after a start, and for an idle log, batches in the index file take no memory; only later ones do. Lookups in
those open no file. If the index file turns out to be corrupt, entries rebuilt from the segment replace it in memory:
`IndexHead.entries`.

    batches   0 1 2 3 4 5 6 7 8 | 9 10 11
              head: index file  | tail: memory
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.commitlog.files import files
from penstock.commitlog.files.index import BatchExtent, Entries, FileEntries, PackedEntries
from penstock.vfs import File, Vfs


class IndexHead:
    """The first `count` batches of a segment, at least one. Immutable except for `entries`.

    `entries`: rebuilt from the segment after the index file has failed; None before.
    """

    __slots__ = ("count", "end_offset", "end_position", "entries", "first_timestamp_us", "last_timestamp_us")

    def __init__(
        self, count: int, end_offset: int, end_position: int, first_timestamp_us: int, last_timestamp_us: int
    ) -> None:
        self.count = count
        self.end_offset = end_offset
        self.end_position = end_position
        self.first_timestamp_us = first_timestamp_us
        self.last_timestamp_us = last_timestamp_us
        self.entries: PackedEntries | None = None


class ResumedEntries:
    """Head and tail of one segment, for any thread."""

    __slots__ = ("_tail", "head")

    def __init__(self, head: IndexHead, tail: Entries) -> None:
        self.head = head
        self._tail = tail

    def in_memory(self, offset: int) -> bool:
        """True if lookups from `offset` on need no file."""
        return offset >= self.head.end_offset or self.head.entries is not None

    @contextmanager
    def opened(self, vfs: Vfs, segment_path: str) -> Iterator[Entries]:
        """Yield all entries as one sequence; the index file is opened on first use and closed at the end."""
        if (rebuilt := self.head.entries) is not None:
            yield _Joined(rebuilt, self.head.end_offset, self._tail)
            return
        index_file = _IndexFile(vfs, files.index_path(segment_path), self.head)
        try:
            yield _Joined(index_file, self.head.end_offset, self._tail)
        finally:
            index_file.close()


class _IndexFile:
    """Entries of a head, from an index file that is opened on first use."""

    __slots__ = ("_entries", "_file", "_head", "_path", "_vfs", "count")

    def __init__(self, vfs: Vfs, path: str, head: IndexHead) -> None:
        self._vfs = vfs
        self._path = path
        self._head = head
        self._file: File | None = None
        self._entries: FileEntries | None = None
        self.count = head.count

    def _opened(self) -> FileEntries:
        if self._entries is None:
            head = self._head
            self._file = self._vfs.open(self._path, read_only=True)
            self._entries = FileEntries(
                self._file, end_position=head.end_position, end_offset=head.end_offset, count=head.count
            )
        return self._entries

    def extent(self, number: int) -> BatchExtent:
        return self._opened().extent(number)

    def last_at_or_below(self, offset: int) -> int:
        return self._opened().last_at_or_below(offset)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Joined:
    """Two sequences of entries as one; the second begins at `offset`."""

    __slots__ = ("_first", "_offset", "_second", "count")

    def __init__(self, first: Entries, offset: int, second: Entries) -> None:
        self._first = first
        self._offset = offset
        self._second = second
        self.count = first.count + second.count

    def extent(self, number: int) -> BatchExtent:
        later = number - self._first.count
        return self._first.extent(number) if later < 0 else self._second.extent(later)

    def last_at_or_below(self, offset: int) -> int:
        if offset < self._offset:
            return self._first.last_at_or_below(offset)
        return self._first.count + self._second.last_at_or_below(offset)
