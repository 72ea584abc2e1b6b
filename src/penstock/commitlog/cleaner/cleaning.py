"""Cleaning: rewrite one sealed segment with few large batches in place of many small ones. Runs in a disk thread.

Rules: offsets, timestamps and covered ranges stay as they are, and batches of different leader epochs are not merged.
The old file is never touched: the new one is written under a name that no reader looks for, synced, read back and
verified, and only then does `Log.cleaned` rename it to a segment. So a crash at any point leaves the old file or both,
and of both the newer counts; the old one is removed once no reader can be about to open it. Memory is bounded by one
merged batch and its sources, whatever the size of the segment. Rows that `compaction` removes are left out, and so are
hidden ones; of such a row that must cover offsets only offset and timestamp are kept. The output is compressed if the
stream's config says so.

A batch is compressed once; a change of the configured codec affects only later writes. A batch that gains next to
nothing is marked permanently, so that no later start tries again. Small batches stay plain and unmarked, as they may be
merged later.

Theory: a batch costs 720 bytes beside its rows, and a reader some microseconds. A lone message of 256 bytes takes 1,050
on the disk, and 300 in a batch of thousands.

    0…0.arrows ──▶ 0…0.1.cleaned ──synced, verified, index written──▶ 0…0.1.arrows      later: 0…0.arrows is removed

Any step may fail. Retries back off, and each begins with what it finds:

| step                                | files when it fails            | what the next try does       |
|-------------------------------------|--------------------------------|------------------------------|
| 1. write X.1.cleaned, sync          | X, perhaps part of X.1.cleaned | rewrites it from the start   |
| 2. read it back, write X.1.index    | … and part of X.1.index        | same                         |
| 3. rename X.1.cleaned to X.1.arrows | X, X.1.cleaned, X.1.index      | same                         |
| 4. sync the folder (`Disposal`)     | X and X.1, which counts        | syncs it; so does a start    |
| 5. remove X and its index           | X.1, and perhaps X             | removes it; so does a start  |

One task writes at a time, and none while a `Disposal` runs: that may be about to remove a file of the same name.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec, masking
from penstock.batch.codec import Buffer
from penstock.batch.header import COMPRESSION_FLAGS, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.batch.thinning import SealedMessage, Thinner, last_as_cover
from penstock.commitlog.cleaner.merged import UnsoundError, merged_batches
from penstock.commitlog.cleaner.retained_rows import RetainedRows
from penstock.commitlog.config import LogConfig
from penstock.commitlog.files import files, index
from penstock.commitlog.files.batch_walk import Walk
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.segment.segment import Erased, Segment
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet
from penstock.vfs import File, Vfs

if TYPE_CHECKING:
    import pyarrow as pa

_ENTRIES_AT_ONCE = 16_384
_HEADERS_AT_ONCE = 1_024
_WORDS = ENTRY_BYTES // 4  # 32-bit words per index entry; the numbers below name them
_SIZE_WORD, _ROWS_WORD, _EPOCH_WORD = 10, 11, 12


class _Outgoing(NamedTuple):
    """Messages to write next, made of `sources` batches for which `read_bytes` were read."""

    messages: list[SealedMessage]
    sources: int
    read_bytes: int


class Cleaning(IncrementalTask):
    """Rewrites a segment. `replacement`: the new segment; None: not worth it, or the old one is unreadable."""

    def __init__(
        self,
        folder: LogFolder,
        view: LogView,
        segment: Segment,
        config: LogConfig,
        retained: RetainedRows | None = None,
        *,
        is_expiry: bool = False,
        erased: RowSet | None = None,
        is_erasure: bool = False,
    ) -> None:
        """`view`: a view of the log that has the segment. `retained`: which of its rows stay; None: all. `is_expiry`:
        the others are removed because they expired. `erased`: hidden rows to remove; `is_erasure`: they alone are the
        reason of the rewrite.
        """
        self.segment = segment
        self.path = files.following(segment.path)
        self.cleaned_path = files.cleaned_path(self.path)
        self.replacement: Segment | None = None
        self.takes_rows = retained is not None
        self.has_failed = False  # a retry may succeed
        self.is_left = False  # there is no replacement, and its unfinished file could not be removed
        self.is_expiry = is_expiry
        self.is_erasure = is_erasure
        self.erases = erased is not None
        self.found: Erased | None = None  # what the old file lacks, if that is all of it: there is nothing to erase
        self._hidden = erased
        self._erased: Erased | None = None  # what the new file lacks
        self._is_ordered = retained is not None and retained.is_ordered
        self._folder = folder
        self._vfs = folder.vfs
        self._view = view
        self._bytes_max = config.merged_bytes_max  # of the rows of one merged batch
        self._keep = None if retained is None else retained.keep
        self._compression = config.compression
        self._has_compressed = False  # or marked as incompressible
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        try:
            yield from self._look_and_write()
        except GeneratorExit:
            raise  # the file stays: the next try rewrites it, and a start removes it
        except BaseException:
            self.has_failed = True
            self._discard()
            raise
        if self.replacement is None:
            self._discard()

    def _look_and_write(self) -> Generator[int, None, None]:
        if self._is_ordered:
            self._folder.sync()
        if self.is_erasure and not (yield from self._has_hidden()):
            return
        if self._keep is None and not self.is_erasure and not self._is_worth_it():
            is_sought = self._compression is not Compression.NONE
            if not is_sought or not (yield from _has_sought(self._vfs, self.segment)):
                return
        yield from self._write()

    def _has_hidden(self) -> Generator[int, None, bool]:
        """Return True if the file has the content of a hidden row; otherwise set `found`."""
        import pyarrow.compute as pc

        assert self._hidden is not None
        covers: list[int] = []
        moved = 0
        view, segment = self._view.as_stored(), self.segment
        begin = max(segment.base_offset, view.log_start)
        if self._hidden.any_in(segment.base_offset, begin):
            return True  # no reader gets there to look
        for _, data in view.batches(begin, segment.end_offset, wants=self._may_have_hidden):
            if (shown := masking.shown_of(data, self._hidden)) is not None:
                rows = codec.check_rows(data).filter(pc.invert(shown))
                if pc.any(pc.not_equal(pc.binary_length(rows.column("subject")), 0)).as_py():
                    return True
                covers += rows.column("offset").to_pylist()
            moved += len(data)
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
                if self.is_void:
                    return False
        yield moved
        self.found = Erased(self._hidden, RowSet.of(covers))
        return False

    def _may_have_hidden(self, header: BatchHeader) -> bool:
        return self._hidden is not None and self._hidden.any_in(header.base_offset, header.end_offset)

    def _discard(self) -> None:
        try:
            self._vfs.remove(self.cleaned_path)
        except OSError:  # the next disposal removes it, or the next start
            self.is_left = True

    def _is_worth_it(self) -> bool:
        """True if, by the segment's index, its batches are small and merging would at least halve their number."""
        count = rows = size_bytes = 0
        epochs: set[int] = set()
        try:
            file = self._vfs.open(files.index_path(self.segment.path), read_only=True)
        except FileNotFoundError:
            return False  # the next reader rebuilds the index
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
        target = self._vfs.open(self.cleaned_path, create=True, make_folders=False)
        try:
            target.truncate(0)
            target.write_at(0, schema_message(*self._folder.ids))
            sources, rows = yield from self._copy(target)
            entries = yield from self._read_back(target, rows)
            if self.takes_rows or self.erases or self._has_compressed or 2 * len(entries) <= sources * ENTRY_BYTES:
                self._finish(target, entries)
        except UnsoundError:
            return  # its readers report the corruption; an unreadable segment is not rewritten
        finally:
            target.close()

    def _copy(self, target: File) -> Generator[int, None, tuple[int, int]]:
        """Write the new batches; return how many batches were read, and how many rows were written."""
        end_position = SCHEMA_BYTES
        sources = rows = moved = 0
        for outgoing in self._outgoing():
            for plain in outgoing.messages:
                data, header = message = _compressed(plain, self._compression)
                self._has_compressed |= message is not plain
                target.write_at(end_position, data)
                end_position += header.size_bytes
                rows += header.count
                moved += header.size_bytes
            sources += outgoing.sources
            moved += outgoing.read_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                target.sync()  # in small steps: one large sync would delay all others
                yield moved
                moved = 0
                if self.is_void:
                    raise UnsoundError
        target.sync()
        yield moved
        return sources, rows

    def _outgoing(self) -> Iterator[_Outgoing]:
        is_merge = self._keep is None and self._hidden is None
        batches = merged_batches(self._vfs, self.segment, self._view, self._bytes_max, unpacked=not is_merge)
        if is_merge:
            for data, header, sources, size_bytes in batches:
                yield _Outgoing([SealedMessage(data, header)], sources, size_bytes)
            return
        thinner = Thinner(limits.MERGED_ROWS_MAX, self._bytes_max)
        row = 0
        for data, header, sources, size_bytes in batches:
            keep, shown = self._kept(data, header, row)
            row += header.count
            message = SealedMessage(data, header)
            if shown is not None and header.end_offset == self._view.log_end and not shown[-1].as_py():
                # The log's last row: without it, its timestamp would be forgotten, and later ones could lie before it.
                message = last_as_cover(data, header)
                keep, shown = _with_last(keep), _with_last(shown)
                thinner.covers.append(codec.offsets(data)[-1])
            yield _Outgoing(thinner.add(*message, keep, shown), sources, size_bytes)
        yield _Outgoing(thinner.end(), 0, 0)
        assert not thinner.forced_keys, "a row was judged to go, and must stay"
        if self._hidden is not None:
            self._erased = Erased(self._hidden, RowSet.of(thinner.covers))

    def _kept(self, data: Buffer, header: BatchHeader, row: int) -> tuple[pa.BooleanArray, pa.BooleanArray | None]:
        """Return which rows of a batch stay, and which are not hidden; None: none is. `row`: number of its first."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keep = self._keep
        keep = pa.repeat(pa.scalar(True), header.count) if keep is None else keep.slice(row, header.count)
        hidden = self._hidden
        shown = None if hidden is None else masking.shown_of(data, hidden)
        return (keep if shown is None else pc.and_(keep, shown)), shown

    def _read_back(self, target: File, rows: int) -> Generator[int, None, bytearray]:
        """Verify what was written; return its index entries."""
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
        yield moved
        if walk.mistake is not None:
            raise OSError(f"{target.path} fails verification after the write: {walk.mistake}")
        assert (walk.offset, rows) == (self.segment.end_offset, 0), (walk.offset, rows)
        return entries

    def _finish(self, target: File, entries: bytearray) -> None:
        index.write_index(self._vfs, self.path, entries)
        segment = self.segment
        last_us = index.PackedEntries(entries).entry(len(entries) // ENTRY_BYTES - 1).max_timestamp_us
        new = Segment(self.path, segment.base_offset, segment.end_offset, target.size(), last_us, None)
        new.erased = self._erased
        self.replacement = new


def _with_last(keep: pa.BooleanArray) -> pa.BooleanArray:
    """Return the same with true at the end."""
    import pyarrow as pa

    return pa.concat_arrays([keep.slice(0, len(keep) - 1), pa.array([True])])


def _is_sought(header: BatchHeader) -> bool:
    """True if the batch was never compressed or marked, and is large enough."""
    return not header.flags & COMPRESSION_FLAGS and header.size_bytes >= limits.COMPRESSED_BATCH_BYTES_MIN


def _has_sought(vfs: Vfs, segment: Segment) -> Generator[int, None, bool]:
    """Return True if the segment has a batch to compress, by its headers; yield the bytes read now and then.

    OSError.
    """
    position, count = SCHEMA_BYTES, 0
    file = vfs.open(segment.path, read_only=True)
    try:
        while position < segment.size_bytes:
            try:
                header = codec.read_header(file.read_at(position, codec.PREFIX_BYTES))
            except CorruptionError:
                return True  # the rewrite reports the corruption
            if _is_sought(header):
                return True
            position += header.size_bytes
            count += 1
            if count % _HEADERS_AT_ONCE == 0:
                yield _HEADERS_AT_ONCE * codec.PREFIX_BYTES
    finally:
        file.close()
    return False


def _compressed(message: SealedMessage, wished: Compression) -> SealedMessage:
    """Return the message compressed, or marked as incompressible; unchanged if it is not to be compressed."""
    if wished is Compression.NONE or not _is_sought(message.header):
        return message
    return SealedMessage(*codec.compressed(message.data, wished))
