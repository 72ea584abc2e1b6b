"""Reads a subject index, with a few short reads for each look-up.

Rules: everything that is read is checked before use, and a CorruptionError names the file and the byte. The file is
opened for one look-up and closed again by the caller; the trailer may be kept.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.errors import CorruptionError
from penstock.commitlog.files.index import ActiveEntries
from penstock.commitlog.subjects import blocks, layout
from penstock.commitlog.subjects.blocks import OffsetSpan, SubjectRow, SubjectRows
from penstock.commitlog.subjects.kept_filters import KeptFilter
from penstock.commitlog.subjects.layout import TRAILER_BYTES, Directory, FilterBits, Trailer
from penstock.hot import subject_filter
from penstock.hot.subject_filter import BITS_BYTES, PAGE_BYTES
from penstock.vfs import File

if TYPE_CHECKING:
    import pyarrow as pa


_PAGES_PER_READ = 32  # reading one page takes about as long as reading and checking so many at once


class WantedSubjects:
    """Subjects that are looked for in one segment after another."""

    __slots__ = ("hashes", "names")

    def __init__(self, names: list[bytes]) -> None:
        self.names = names
        self.hashes = subject_filter.hashes(names)


def read_trailer(file: File) -> Trailer:
    """Return the trailer of a file. CorruptionError, OSError."""
    size = file.size()
    position = max(0, size - TRAILER_BYTES)
    return layout.unpack_trailer(file.read_at(position, TRAILER_BYTES), size, file=file.path)


def check_trailer(file: File, trailer: Trailer) -> None:
    """Raise CorruptionError if the file has another trailer by now: parts of any index are valid by themselves."""
    position = trailer.file_bytes - TRAILER_BYTES
    if file.read_at(position, TRAILER_BYTES) != layout.pack_trailer(trailer):
        raise CorruptionError(file.path, position, "the trailer of the segment's index", "another one")


class SubjectIndex:
    """An open index with its trailer. Every method may raise CorruptionError or OSError."""

    def __init__(self, file: File, trailer: Trailer, kept: KeptFilter | None = None) -> None:
        """`kept`: filter and directory of this index."""
        self.trailer = trailer
        self._file = file
        self._pages = None if kept is None else kept.pages
        self._directory = None if kept is None else kept.directory

    @property
    def filter_bytes(self) -> int:
        """Size of what `read_filter` returns, without the entries."""
        trailer = self.trailer
        return trailer.pages * PAGE_BYTES + trailer.directory_bytes + trailer.sum_pages * BITS_BYTES

    def read_filter(self, entries: ActiveEntries | None = None) -> KeptFilter:
        """Read all that `kept` is, beside the `entries` of the segment's batches, and use it."""
        trailer = self.trailer
        self._pages = self._read_pages()
        try:
            subject_filter.check_pages(self._pages)
        except subject_filter.WrongPageError as error:
            raise self._wrong_page(error) from None
        sums = array("I")
        for number in range(trailer.sum_pages):
            sums.frombytes(self.sum_page(number)[:BITS_BYTES])
        if sys.byteorder == "big":
            sums.byteswap()
        return KeptFilter(trailer.segment.base_offset, self._pages, self.directory, sums, entries)

    def _read_pages(self) -> bytes:
        trailer = self.trailer
        size_bytes = trailer.pages * PAGE_BYTES
        pages = self._file.read_at(trailer.filter_position, size_bytes)
        if len(pages) != size_bytes:
            raise layout.wrong_page(trailer.filter_position + len(pages), file=self._file.path)
        return pages

    def _wrong_page(self, error: subject_filter.WrongPageError) -> CorruptionError:
        return layout.wrong_page(self.trailer.filter_position + error.number * PAGE_BYTES, file=self._file.path)

    @property
    def directory(self) -> Directory:
        """The directory, read on first use."""
        if self._directory is None:
            trailer = self.trailer
            data = self._file.read_at(trailer.directory_position, trailer.directory_bytes)
            self._directory = Directory(data, trailer, file=self._file.path)
        return self._directory

    def block(self, number: int) -> SubjectRows:
        """Return one block."""
        position, size, rows, crc = self.directory.place(number)
        data = self._file.read_at(position, size)
        block = blocks.decode(data, rows, crc, file=self._file.path, position=position)
        if block.subject(0) != (first := self.directory.first_subject(number)):
            raise CorruptionError(self._file.path, position, f"a block from {first!r} on", repr(block.subject(0)))
        return block

    def may_hold(self, subject: bytes) -> bool:
        """True if the filter says that the subject may be there."""
        trailer = self.trailer
        if self._pages is not None:
            return bool(subject_filter.holding([self._pages], subject_filter.hashes([subject])))
        number = subject_filter.page_of(subject, trailer.pages)
        page = self._file.read_at(trailer.filter_position + number * PAGE_BYTES, PAGE_BYTES)
        return subject_filter.may_hold(layout.checked_page(page, number, trailer, file=self._file.path), subject)

    def sum_page(self, number: int) -> bytes:
        """Return a page with checksums of blocks of the segment."""
        number += self.trailer.pages
        page = self._file.read_at(self.trailer.filter_position + number * PAGE_BYTES, PAGE_BYTES)
        return layout.checked_page(page, number, self.trailer, file=self._file.path)

    def find(self, subject: bytes) -> SubjectRow | None:
        """Return the row of one subject; None if there is none."""
        if not self.may_hold(subject) or (number := self.directory.number_of(subject)) < 0:
            return None
        return self.block(number).find(subject)

    def find_each(self, subjects: WantedSubjects) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there. Each block is read once."""
        if self._pages is None and _PAGES_PER_READ * len(subjects.names) < self.trailer.pages:
            candidates = [one for one in subjects.names if self.may_hold(one)]
        else:
            pages = self._read_pages() if self._pages is None else self._pages
            try:
                candidates = [subjects.names[row] for row in subject_filter.may_hold_each(pages, subjects.hashes)]
            except subject_filter.WrongPageError as error:
                raise self._wrong_page(error) from None
        by_block: dict[int, list[bytes]] = {}
        for one in candidates:
            by_block.setdefault(self.directory.number_of(one), []).append(one)
        by_block.pop(-1, None)
        found: dict[bytes, OffsetSpan] = {}
        for number, these in sorted(by_block.items()):
            position, size, rows, crc = self.directory.place(number)
            data, first = self._file.read_at(position, size), self.directory.first_subject(number)
            found.update(blocks.spans(data, rows, crc, first, these, file=self._file.path, position=position))
        return found

    def between(self, begin: bytes, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the subjects from `begin` to `end` in order; None: to the last."""
        for number in range(max(0, self.directory.number_of(begin)), self.directory.blocks):
            if end is not None and self.directory.first_subject(number) >= end:
                return
            yield from self.block(number).between(begin, end)

    def check(self) -> Iterator[SubjectRows]:
        """Check every part of the file; yield its blocks meanwhile."""
        trailer, path = self.trailer, self._file.path
        if self._file.read_at(0, layout.BLOCKS_POSITION) != layout.SCHEMA:
            raise CorruptionError(path, 0, "the schema message of an index", "other bytes")
        self.directory.check()
        rows, before, bits = 0, b"", FilterBits(trailer.pages)
        low, high = trailer.segment.base_offset, trailer.segment.end_offset
        for number in range(self.directory.blocks):
            block = self.block(number)
            position = self.directory.place(number).position
            if number and block.subject(0) <= before:
                raise CorruptionError(path, position, "subjects in order", repr(block.subject(0)))
            before = block.subject(len(block) - 1)
            if (wrong := block.offsets_mistake(low, high)) is not None:
                raise CorruptionError(path, position, f"offsets from {low} to {high}", wrong)
            bits.add(len(block), *block.text(0, len(block)))
            rows += block.rows
            yield block
        end = self._file.read_at(trailer.blocks_end, len(layout.END_OF_STREAM))
        if end != layout.END_OF_STREAM:
            raise CorruptionError(path, trailer.blocks_end, "the end of the stream", end.hex())
        for number in range(trailer.pages):
            page = self._file.read_at(trailer.filter_position + number * PAGE_BYTES, PAGE_BYTES)
            if layout.checked_page(page, number, trailer, file=path) != bits.page(number):
                wanted = "the bits of all subjects"
                raise CorruptionError(path, trailer.filter_position + number * PAGE_BYTES, wanted, "others")
        for number in range(trailer.sum_pages):
            self.sum_page(number)
        if rows != trailer.rows:
            raise CorruptionError(path, trailer.file_bytes - TRAILER_BYTES, f"{trailer.rows} rows", str(rows))
