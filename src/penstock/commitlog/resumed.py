"""The entries of a segment that goes on: of its first batches in the index file, of the later ones in memory.

Rules: a start, and a log at rest, keep nothing in memory of the batches that the index file names; only what is written
afterwards is. Who asks about those opens no file. An index file that cannot be trusted any more is replaced, in memory,
by what the segment itself says: `Head.entries`.

    batches   0 1 2 3 4 5 6 7 8 | 9 10 11
              head: index file  | tail: memory
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.commitlog import files
from penstock.commitlog.index import Entries, Extent, FileEntries, PackedEntries
from penstock.vfs import File, Vfs


class Head:
    """The first `count` batches of a segment: one at least. A value, but for `entries`.

    `entries`: what the segment itself says, once the index file has failed; None before.
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

    def __init__(self, head: Head, tail: Entries) -> None:
        self.head = head
        self._tail = tail

    def in_memory(self, offset: int) -> bool:
        """Whether what is asked about the batches from `offset` on needs no file."""
        return offset >= self.head.end_offset or self.head.entries is not None

    @contextmanager
    def opened(self, vfs: Vfs, segment_path: str) -> Iterator[Entries]:
        """All entries as one; the index file is opened when it is needed, and closed at the end."""
        if (rebuilt := self.head.entries) is not None:
            yield _Joined(rebuilt, self.head.end_offset, self._tail)
            return
        index_file = _IndexFile(vfs, files.index_path(segment_path), self.head)
        try:
            yield _Joined(index_file, self.head.end_offset, self._tail)
        finally:
            index_file.close()


class _IndexFile:
    """The entries of a head, from a file that is opened when somebody asks."""

    __slots__ = ("_entries", "_file", "_head", "_path", "_vfs", "count")

    def __init__(self, vfs: Vfs, path: str, head: Head) -> None:
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

    def extent(self, number: int) -> Extent:
        """Batch `number`."""
        return self._opened().extent(number)

    def last_at_or_below(self, offset: int) -> int:
        """Number of the last batch with base_offset <= offset, or -1."""
        return self._opened().last_at_or_below(offset)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


class _Joined:
    """Two runs of entries as one: the second begins at `offset`."""

    __slots__ = ("_first", "_offset", "_second", "count")

    def __init__(self, first: Entries, offset: int, second: Entries) -> None:
        self._first = first
        self._offset = offset
        self._second = second
        self.count = first.count + second.count

    def extent(self, number: int) -> Extent:
        """Batch `number`."""
        later = number - self._first.count
        return self._first.extent(number) if later < 0 else self._second.extent(later)

    def last_at_or_below(self, offset: int) -> int:
        """Number of the last batch with base_offset <= offset, or -1."""
        if offset < self._offset:
            return self._first.last_at_or_below(offset)
        return self._first.count + self._second.last_at_or_below(offset)
