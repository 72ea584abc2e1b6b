"""Cleaning: rewrite one sealed segment with few large batches in place of many small ones. Runs in a disk thread.

Rules: offsets, timestamps and covered ranges stay as they are, and batches of different leader epochs are not merged.
The old file is never touched: the new one is written under a name that no reader looks for, synced, read back and
verified, and only then does `Log.cleaned` rename it to a segment. So a crash at any point leaves the old file or both,
and of both the newer counts; the old one is removed once no reader can be about to open it. Memory is bounded by one
merged batch and its sources, whatever the size of the segment. Rows that `compaction` removes are left out. The output
is compressed if the stream's config says so; `compressing` decides which segments are rewritten for that alone.

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

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.clock import growing
from penstock.base.config import Compression
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.batch.thinning import SealedMessage, Thinner
from penstock.commitlog.cleaner import compressing
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.compactor import Compactor
from penstock.commitlog.cleaner.expirer import Expirer
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.cleaner.merged import UnsoundError, merged_batches
from penstock.commitlog.files import files, index
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.commitlog.files.scan import Walk
from penstock.commitlog.segment import rebuild
from penstock.commitlog.segment.incremental_task import IncrementalTask
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view.view import LogView
from penstock.vfs import File, Vfs

if TYPE_CHECKING:
    import pyarrow as pa

_end_offset = attrgetter("end_offset")
_ENTRIES_AT_ONCE = 16_384
_WORDS = ENTRY_BYTES // 4  # 32-bit words per index entry; the numbers below name them
_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_SKIPPED_MAX = 64  # segments without an index file; they are skipped until a restart
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
        vfs: Vfs,
        segment: Segment,
        ids: tuple[int, int],
        view: LogView,
        bytes_max: int = limits.MERGED_BYTES_MAX,
        keep: pa.BooleanArray | None = None,
        compression: Compression = Compression.NONE,
        *,
        is_expiry: bool = False,
        is_ordered: bool = False,
    ) -> None:
        """`bytes_max`: limit of the rows of one merged batch. `view`: a view of the log that has the segment. `keep`:
        which of its rows stay; None: all. `is_expiry`: the others are removed because they expired. `is_ordered`:
        earlier renames must be durable before this segment is rewritten.
        """
        self.segment = segment
        self.path = files.following(segment.path)
        self.cleaned_path = files.cleaned_path(self.path)
        self.replacement: Segment | None = None
        self.takes_rows = keep is not None
        self.has_failed = False  # a retry may succeed
        self.is_expiry = is_expiry
        self._is_ordered = is_ordered
        self._vfs = vfs
        self._ids = ids
        self._view = view
        self._bytes_max = bytes_max
        self._keep = keep
        self._compression = compression
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
            self._vfs.sync_dir(self.path.rpartition("/")[0])
        if self._keep is None and not self._is_worth_it():
            is_sought = self._compression is not Compression.NONE
            if not is_sought or not (yield from compressing.has_sought(self._vfs, self.segment)):
                return
        yield from self._write()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # the next start removes it
            self._vfs.remove(self.cleaned_path)

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
            target.write_at(0, schema_message(*self._ids))
            sources, rows = yield from self._copy(target)
            entries = yield from self._read_back(target, rows)
            if self.takes_rows or self._has_compressed or 2 * len(entries) <= sources * ENTRY_BYTES:
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
                data, header = message = compressing.compressed(plain, self._compression)
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
        is_merge = self._keep is None
        batches = merged_batches(self._vfs, self.segment, self._view, self._bytes_max, unpacked=not is_merge)
        if self._keep is None:
            for data, header, sources, size_bytes in batches:
                yield _Outgoing([SealedMessage(data, header)], sources, size_bytes)
            return
        thinner = Thinner(limits.MERGED_ROWS_MAX, self._bytes_max)
        row = 0
        for data, header, sources, size_bytes in batches:
            keep = self._keep.slice(row, header.count)
            row += header.count
            yield _Outgoing(thinner.add(data, header, keep), sources, size_bytes)
        yield _Outgoing(thinner.end(), 0, 0)
        assert not thinner.forced_keys, "a row was judged to go, and must stay"

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
        rebuild.write_index(self._vfs, self.path, entries)
        segment = self.segment
        last_us = index.PackedEntries(entries).entry(len(entries) // ENTRY_BYTES - 1).max_timestamp_us
        self.replacement = Segment(self.path, segment.base_offset, segment.end_offset, target.size(), last_us, None)


CleanerTask = Cleaning | Survey | ExpirySurvey
"""The cleaner task that a log has under way."""


class Disposal:
    """Removes files that the cleaner replaced. Run it in a disk thread; then call `Log.disposed` in any case."""

    def __init__(self, vfs: Vfs, directory: str, paths: tuple[str, ...]) -> None:
        self._vfs = vfs
        self._directory = directory
        self.paths = paths

    def run(self) -> None:
        """Make the new files' names durable, then remove the old ones. OSError: it can be retried, also by a start."""
        self._vfs.sync_dir(self._directory)
        for path in self.paths:
            self._vfs.remove(path)
            self._vfs.remove(files.index_path(path))


class Cleaner:
    """Cleaning state of one log: one task at a time, and one open disposal."""

    __slots__ = ("_done_end", "_failed_base", "_failures", "_not_before_us", "_stale", "compactor", "disposal",
                 "expirer", "under_way")  # fmt: skip

    def __init__(self) -> None:
        self.under_way: CleanerTask | None = None
        self.disposal: Disposal | None = None
        self.compactor = Compactor()
        self.expirer = Expirer()
        self._done_end = 0  # segments up to here were checked
        self._failed_base = 0  # of the segment whose merge failed last …
        self._failures = 0  # … so many times in a row
        self._not_before_us = 0
        self._stale: list[str] = []  # replaced files, to be removed

    def merge_due_us(self, sealed: Sequence[Segment], end: int) -> int | None:
        """Time at which the next segment is to be merged; None: there is none."""
        return None if self.next_of(sealed, end) is None else self._not_before_us

    def next_of(self, sealed: Sequence[Segment], end: int) -> Segment | None:
        """Return the first segment below `end` that was not checked; None: there is none."""
        number = bisect_right(sealed, self._done_end, key=_end_offset)
        for segment in sealed[number : number + _SKIPPED_MAX]:
            if segment.end_offset > end:
                return None
            if segment.entries is None and segment.base_offset < segment.end_offset:
                return segment
        return None

    def look_again(self) -> None:
        """Check all segments again, as the config has changed."""
        self._done_end = 0

    def reconsider(self) -> None:
        """Void what expiry has found, as the config has changed."""
        self.expirer.reconsider()
        if isinstance(self.under_way, Cleaning) and self.under_way.is_expiry:
            self.under_way.is_void = True

    def looks_at(self, segment: Segment) -> None:
        """Mark the segment as checked."""
        self._done_end = segment.end_offset

    def merged(self) -> None:
        """Reset the backoff after a success."""
        self._failures = self._not_before_us = 0

    def not_merged(self, segment: Segment, now_us: int) -> None:
        """Back off, and retry the segment unless MERGE_TRIES_MAX is reached."""
        self._failures = self._failures + 1 if segment.base_offset == self._failed_base else 1
        self._failed_base = segment.base_offset
        if self._failures < limits.MERGE_TRIES_MAX:
            self._done_end = min(self._done_end, segment.base_offset)
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)

    def superseded(self, path: str) -> None:
        """Queue a replaced file for removal; readers may still use it."""
        self._stale.append(path)

    def writes(self, path: str) -> None:
        """Drop the path from the removal queue, as a task is about to write it."""
        assert self.disposal is None, "files are being removed"
        if path in self._stale:
            self._stale.remove(path)

    def dispose(self, vfs: Vfs, directory: str, young: int) -> Disposal | None:
        """Return a task that removes all replaced files but the newest `young`; None: there are none."""
        count = len(self._stale) - young
        if self.disposal is None and count > 0:
            self.disposal = Disposal(vfs, directory, tuple(self._stale[:count]))
            del self._stale[:count]
        return self.disposal

    def disposed(self, *, has_failed: bool) -> None:
        """End the disposal; if it failed, requeue its files."""
        if has_failed and self.disposal is not None:
            self._stale[:0] = self.disposal.paths
        self.disposal = None

    def void(self) -> None:
        """Void the running task: the log is about to be truncated or closed."""
        if self.under_way is not None:
            self.under_way.is_void = True

    def restart(self, active_base: int) -> None:
        """Forget what lies behind `active_base` after a truncation: file names from there on may be reused."""
        self._done_end = min(self._done_end, active_base)
        self.compactor.cut(active_base)
        self.expirer.cut(active_base)
        kept = [(files.parsed(path.rpartition("/")[2]), path) for path in self._stale]
        self._stale = [path for found, path in kept if found is not None and found.base_offset < active_base]
