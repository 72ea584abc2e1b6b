"""Cleaning: one sealed segment is written anew, with few large batches in place of many small ones. In a disk thread.

Rules: offsets, timestamps and covered ranges stay as they are, and no batch of two leader epochs is made. Nothing of
the old file is touched: the new one is written under a name that no reader looks for, synced, read back and verified,
and only then `Log.cleaned` gives it the name of a segment. So a crash at any point leaves the old one, or both, and of
both the newer counts; it goes once nobody can be about to read it. Memory is bounded by one merged batch and what it
is made of, whatever the size of the segment.

Theory: a batch costs 720 bytes beside its rows, and a reader some microseconds. A lone message of 256 bytes takes 1,050
on the disk, and 300 in a batch of thousands.

    0…0.arrows ──▶ 0…0.1.cleaned ──synced, verified, index written──▶ 0…0.1.arrows      later: 0…0.arrows goes
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter

from penstock.base import limits
from penstock.base.errors import CorruptionError, PenstockError
from penstock.batch import merging
from penstock.batch.codec import PREFIX_BYTES, read_header
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import files, index, rebuild
from penstock.commitlog.index import ENTRY_BYTES
from penstock.commitlog.scan import Walk
from penstock.commitlog.segment import Segment
from penstock.commitlog.view import LogView
from penstock.vfs import File, Vfs

_end_offset = attrgetter("end_offset")
_ENTRIES_AT_ONCE = 16_384
_WORDS = ENTRY_BYTES // 4  # of an index entry, as numbers of 32 bits: which of them is what
_SKIPPED_MAX = 64  # segments without an index file, which wait for a restart
_SIZE_WORD, _ROWS_WORD, _EPOCH_WORD = 10, 11, 12


class Cleaning:
    """Writes a segment anew. `run` it in a disk thread until `is_done`; then hand it to `Log.cleaned` in any case.

    `replacement` is the new segment then; None: it was not worth it, or not to be read.
    """

    def __init__(
        self, vfs: Vfs, segment: Segment, ids: tuple[int, int], view: LogView, bytes_max: int = limits.MERGED_BYTES_MAX
    ) -> None:
        """`bytes_max`: of the rows of one merged batch. `view` is of the log, and has the segment."""
        self.segment = segment
        self.path = files.following(segment.path)
        self.cleaned_path = files.cleaned_path(self.path)
        self.replacement: Segment | None = None
        self.is_done = False
        self.is_void = False  # the log was cut meanwhile, or is closed
        self.moved_bytes = 0  # read and written by the last `run`
        self._vfs = vfs
        self._ids = ids
        self._view = view
        self._bytes_max = bytes_max
        self._steps = self._work()

    def run(self) -> None:
        """Go on, by CLEANING_SLICE_BYTES or so. OSError: then it is over."""
        self.moved_bytes = 0
        try:
            self.moved_bytes = next(self._steps)
        except StopIteration:
            self.is_done = True
        except BaseException:
            self.is_done = True
            raise

    def close(self) -> None:
        """Give it up, and all files; what is written stays until the next start. Not while it runs."""
        self.is_void = self.is_done = True
        self._steps.close()

    def _work(self) -> Generator[int, None, None]:
        if not self._is_worth_it():
            return
        try:
            yield from self._write()
        except GeneratorExit:
            raise  # the next start removes it: by now, another one may be at it
        except BaseException:
            self._discard()
            raise
        if self.replacement is None:
            self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # a start tries again
            self._vfs.remove(self.cleaned_path)

    def _is_worth_it(self) -> bool:
        """Whether the segment has small batches, most of which would be merged, by what its index says."""
        count = rows = size_bytes = 0
        epochs: set[int] = set()
        try:
            file = self._vfs.open(files.index_path(self.segment.path), read_only=True)
        except FileNotFoundError:
            return False  # whoever reads the segment writes it again
        try:
            while data := file.read_at(count * ENTRY_BYTES, _ENTRIES_AT_ONCE * ENTRY_BYTES):
                words = array("I", data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
                if not words:
                    break
                size_bytes += sum(words[_SIZE_WORD::_WORDS])
                rows += sum(words[_ROWS_WORD::_WORDS])
                epochs.update(words[_EPOCH_WORD::_WORDS])
                count += len(words) // _WORDS
        finally:
            file.close()
        if count < 2 or size_bytes // count > limits.CLEANING_SMALL_BATCH_BYTES:
            return False
        least = max(rows // limits.MERGED_ROWS_MAX, size_bytes // self._bytes_max) + len(epochs)
        return 2 * least <= count

    def _write(self) -> Iterator[int]:
        source = self._vfs.open(self.segment.path, read_only=True)
        try:
            target = self._vfs.open(self.cleaned_path, create=True, make_folders=False)
            try:
                target.truncate(0)
                target.write_at(0, schema_message(*self._ids))
                sources, rows = yield from self._copy(source, target)
                entries = yield from self._read_back(target, rows)
                if 2 * len(entries) <= sources * ENTRY_BYTES:
                    self._finish(target, entries)
            except _UnsoundError:
                return  # its readers hear of it; what cannot be read is not written anew
            finally:
                target.close()
        finally:
            source.close()

    def _copy(self, source: File, target: File) -> Generator[int, None, tuple[int, int]]:
        """All batches, merged; gives how many there were, and their rows."""
        position, end_position = SCHEMA_BYTES, SCHEMA_BYTES
        offset = self.segment.base_offset
        sources = rows = moved = 0
        while position < self.segment.size_bytes:
            raw = memoryview(self._window(source, position))
            try:
                merged = merging.next_merged(raw, offset, rows_max=limits.MERGED_ROWS_MAX, bytes_max=self._bytes_max)
            except CorruptionError as error:
                self._tell()
                raise _UnsoundError from error
            target.write_at(end_position, merged.data)
            position += merged.size_bytes
            end_position += merged.header.size_bytes
            offset = merged.header.end_offset
            sources, rows = sources + merged.sources, rows + merged.header.count
            moved += merged.size_bytes + merged.header.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                target.sync()  # a little each time: one large sync would hold up all others
                yield moved
                moved = 0
                if self.is_void:
                    raise _UnsoundError
        if offset != self.segment.end_offset:
            self._tell()
            raise _UnsoundError
        target.sync()
        yield moved
        return sources, rows

    def _window(self, source: File, position: int) -> bytes:
        """What one merged batch may be made of, from `position` on; one whole batch at least."""
        rest = self.segment.size_bytes - position
        raw = source.read_at(position, min(limits.CLEANING_WINDOW_BYTES, rest))
        with contextlib.suppress(CorruptionError):
            size_bytes = read_header(raw[:PREFIX_BYTES]).size_bytes
            if len(raw) < size_bytes <= rest:
                return source.read_at(position, size_bytes)
        return raw

    def _tell(self) -> None:
        """Have the log hear of the damage, as from any reader."""
        view = self._view
        with contextlib.suppress(PenstockError, OSError):
            for _ in view.batches(max(self.segment.base_offset, view.log_start), self.segment.end_offset):
                pass

    def _read_back(self, target: File, rows: int) -> Generator[int, None, bytearray]:
        """What is written is what was meant; gives the entries of its index."""
        entries = bytearray()
        moved = 0
        walk = Walk(target, position=SCHEMA_BYTES, end_position=target.size(), offset=self.segment.base_offset)
        for position, header in walk:
            entries += index.pack_entry(position, header)
            rows -= header.count
            moved += header.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
        if walk.mistake is not None:
            raise OSError(f"what was written to {target.path} reads otherwise: {walk.mistake}")
        assert (walk.offset, rows) == (self.segment.end_offset, 0), (walk.offset, rows)
        return entries

    def _finish(self, target: File, entries: bytearray) -> None:
        rebuild.write_index(self._vfs, self.path, entries)
        segment = self.segment
        last_us = index.PackedEntries(entries).entry(len(entries) // ENTRY_BYTES - 1).max_timestamp_us
        self.replacement = Segment(self.path, segment.base_offset, segment.end_offset, target.size(), last_us, None)


class _UnsoundError(Exception):
    """The segment cannot be cleaned."""


class Disposal:
    """Removes what the cleaner needs no more. Run it in a disk thread; then hand it to `Log.disposed` in any case."""

    def __init__(self, vfs: Vfs, directory: str, paths: tuple[str, ...]) -> None:
        self._vfs = vfs
        self._directory = directory
        self._paths = paths

    def run(self) -> None:
        """Make the names of what took its place durable, then remove; OSError: a start tries again."""
        self._vfs.sync_dir(self._directory)
        for path in self._paths:
            self._vfs.remove(path)
            self._vfs.remove(files.index_path(path))


class Cleaner:
    """What one log knows of its cleaning. At most one segment is written anew at a time, and one disposal is open."""

    __slots__ = ("_done_end", "_stale", "disposal", "under_way")

    def __init__(self) -> None:
        self.under_way: Cleaning | None = None
        self.disposal: Disposal | None = None
        self._done_end = 0  # segments up to here were looked at
        self._stale: list[str] = []  # files that others took the place of

    def next_of(self, sealed: Sequence[Segment], end: int) -> Segment | None:
        """The first segment below `end` that was not looked at, unless one is written anew just now."""
        if self.under_way is not None:
            return None
        number = bisect_right(sealed, self._done_end, key=_end_offset)
        for segment in sealed[number : number + _SKIPPED_MAX]:
            if segment.end_offset > end:
                return None
            if segment.entries is None and segment.base_offset < segment.end_offset:
                return segment
        return None

    def begin(self, cleaning: Cleaning) -> Cleaning:
        """It is written anew, or at least looked at."""
        self._done_end = cleaning.segment.end_offset
        self.under_way = cleaning
        return cleaning

    def superseded(self, path: str) -> None:
        """Another file has taken its place, and readers may still be at it."""
        self._stale.append(path)

    def dispose(self, vfs: Vfs, directory: str) -> Disposal | None:
        """A task that removes what nobody is at any more."""
        if self.disposal is None and self._stale:
            self.disposal = Disposal(vfs, directory, tuple(self._stale))
            self._stale = []
        return self.disposal

    def void(self) -> None:
        """The log is about to be cut, or closed: what is under way comes to nothing."""
        if self.under_way is not None:
            self.under_way.is_void = True

    def restart(self, active_base: int) -> None:
        """The log was cut, and goes on in the segment that begins there: names behind it may be used again."""
        self._done_end = min(self._done_end, active_base)
        kept = [(files.parsed(path.rpartition("/")[2]), path) for path in self._stale]
        self._stale = [path for found, path in kept if found is not None and found.base_offset < active_base]
