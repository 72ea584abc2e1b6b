"""Checks an index file against the batches of its segment: for `penstock verify` and for a running broker.

Rules: a missing or short index is no error. After VERIFY_MISTAKES_MAX errors the rest of an index is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch.header import BatchHeader
from penstock.commitlog.errors import FileMistake, mistake_of, unreadable
from penstock.commitlog.files import index
from penstock.commitlog.files.batch_walk import Window
from penstock.commitlog.files.index import ENTRY_BYTES, IndexEntry
from penstock.vfs import File, Vfs


class IndexCheck:
    """Checks a segment's index entries, from number `first_entry` on, while the caller reads the batches."""

    def __init__(self, vfs: Vfs, path: str, first_entry: int = 0) -> None:
        self._path = path
        self._number = first_entry
        self._lost_end = 0  # batches before this byte are corrupt: their entries cannot be judged
        self._is_over = False
        self._places_left = limits.VERIFY_MISTAKES_MAX
        self._file: File | None = None
        self._refusal: FileMistake | None = None
        self.count = 0  # entries in the file
        file: File | None = None
        try:
            file = vfs.open(path, read_only=True)
            size = file.size()
        except FileNotFoundError:  # it is rebuilt when it is needed
            return
        except OSError as error:
            if file is not None:
                file.close()
            self._refusal = unreadable(path, 0, error)
            return
        self._file = file
        self.count = size // ENTRY_BYTES
        self._rest = size % ENTRY_BYTES
        self._window = Window(file, size)

    def _entry(self, number: int) -> IndexEntry:
        position = number * ENTRY_BYTES
        try:
            data = self._window.read(position, ENTRY_BYTES)
        except OSError as error:
            wrong = unreadable(self._path, position, error)
            raise CorruptionError(self._path, position, wrong.expected, wrong.found) from error
        return index.unpack_entry(data, file=self._path, position=position)

    def batch(self, position: int, header: BatchHeader) -> Iterator[FileMistake]:
        """Yield the errors in this batch's entry and in the entries before it that belong to no batch."""
        if self._file is None or self._is_over:
            return
        for mistake in self._of_batch(position, header):
            yield mistake
            self._places_left -= 1
            if not self._places_left:
                self._is_over = True
                return

    def _of_batch(self, position: int, header: BatchHeader) -> Iterator[FileMistake]:
        has_bad = False
        while self._number < self.count:
            place = self._number * ENTRY_BYTES
            try:
                entry = self._entry(self._number)
            except CorruptionError as error:
                self._number += 1
                has_bad = True
                yield mistake_of(error)
                continue
            if entry.position > position:
                if has_bad:
                    return  # the invalid entry was this batch's
                self._is_over = True
                yield FileMistake(
                    self._path, place, None, None, f"the batch at byte {position}", f"byte {entry.position}"
                )
                return
            self._number += 1
            if entry.position == position:
                said, is_so = tuple(entry), _said_of(position, header)
                if said != is_so:
                    yield FileMistake(self._path, place, None, None, str(IndexEntry._make(is_so)), str(entry))
                return
            if entry.position >= self._lost_end:
                yield FileMistake(
                    self._path, place, None, None, f"the batch at byte {position}", f"byte {entry.position}"
                )

    def lose(self, end_position: int) -> None:
        """Declare everything before this byte corrupt."""
        self._lost_end = end_position

    def hints(self, position: int) -> Iterator[int]:
        """Yield the positions of batches behind a byte, as far as the index is valid."""
        if self._file is None:
            return
        bad_left = self._places_left
        for number in range(self._number, self.count):
            try:
                entry = self._entry(number)
            except CorruptionError:
                bad_left -= 1
                if bad_left <= 0:
                    return
                continue
            if entry.position > position:
                yield entry.position

    def finish(self, end_position: int, *, is_last: bool) -> list[FileMistake]:
        """Return the errors behind the last batch. The last segment may have grown meanwhile."""
        found = [] if self._refusal is None else [self._refusal]
        if self._file is None or self._is_over:
            return found
        for number in range(self._number, self.count):
            if len(found) >= min(self._places_left, limits.VERIFY_ROWS_LISTED_MAX):
                break
            try:
                entry = self._entry(number)
            except CorruptionError as error:
                found.append(mistake_of(error))
                continue
            if entry.position >= self._lost_end:
                wanted = f"no batch behind byte {end_position}"
                found.append(
                    FileMistake(self._path, number * ENTRY_BYTES, None, None, wanted, f"byte {entry.position}")
                )
        if self._rest and not is_last:
            wanted, got = f"entries of {ENTRY_BYTES} bytes", f"{self._rest} bytes more"
            found.append(FileMistake(self._path, self.count * ENTRY_BYTES, None, None, wanted, got))
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _said_of(position: int, header: BatchHeader) -> tuple[int, ...]:
    return tuple(index.unpack_entry(index.pack_entry(position, header)))
