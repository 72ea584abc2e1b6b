"""Verify one segment file, and its index: see `verifying` for what, and what is not judged.

Rules: a mistake has the file, the byte, the offsets that are lost with it, what was expected and what is there.
Behind damage the way is found again as recovery finds it (see `scan`); where the disk cannot read a sector, or there is
no file that could be read, all of the segment from there on is taken for lost. Of an index that is wrong in
VERIFY_MISTAKES_MAX places no more is looked at.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.commitlog import files, index
from penstock.commitlog import lineage as lineages
from penstock.commitlog.checkpoint import Checkpoint
from penstock.commitlog.checksums import RangeSums
from penstock.commitlog.index import ENTRY_BYTES, IndexEntry
from penstock.commitlog.scan import Beyond, Window, find_behind, verified_at
from penstock.vfs import File, Vfs

# That bytes cannot be read; all else, as a want of descriptors or of permission, is this process's own affair.
_UNREADABLE = frozenset({errno.EIO, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR})
_ALL = 2**63
_start_offset = attrgetter("start_offset")


class Mistake(NamedTuple):
    """What is wrong at one byte. Offsets as of `Damage`; None, None: no rows are lost with it."""

    file: str
    position: int
    base_offset: int | None
    end_offset: int | None
    expected: str
    found: str


def mistake_of(error: CorruptionError, base_offset: int | None = None, end_offset: int | None = None) -> Mistake:
    """The mistake that an error tells of."""
    return Mistake(error.file, error.position, base_offset, end_offset, str(error.expected), str(error.found))


def unreadable(path: str, position: int, error: OSError, lost: tuple[int | None, int | None] = (None, None)) -> Mistake:
    """The mistake that a file cannot be read from there on; OSError, the one that came, if that is no fault of it."""
    if error.errno not in _UNREADABLE:
        raise error
    return Mistake(path, position, *lost, "bytes", error.strerror or str(error))


class EpochRun(NamedTuple):
    """Rows of one leader epoch that follow each other: the first and the last offset."""

    leader_epoch: int
    first_offset: int
    last_offset: int


class Epochs:
    """Which rows are of which leader epoch, by their batches."""

    def __init__(self) -> None:
        self.runs: list[EpochRun] = []

    def add(self, run: EpochRun) -> None:
        """What comes next."""
        if self.runs and self.runs[-1].leader_epoch == run.leader_epoch:
            self.runs[-1] = self.runs[-1]._replace(last_offset=run.last_offset)
        else:
            self.runs.append(run)

    def extend(self, others: Epochs) -> None:
        """Those of the next segment."""
        for run in others.runs:
            self.add(run)

    def mistakes(self, found: lineages.Read, path: str, log_start: int, flushed_end: int) -> Iterator[Mistake]:
        """Where the lineage says otherwise of rows from `log_start` up to `flushed_end`."""
        for run in self.runs:
            first, last = max(run.first_offset, log_start), min(run.last_offset, flushed_end - 1)
            if first > last or not run.leader_epoch:
                continue
            for offset in (first, last):
                number = bisect_right(found.entries, offset, key=_start_offset) - 1
                if found.mistake is not None and number == len(found.entries) - 1:
                    continue  # what cannot be read may say so
                said = found.entries[number].leader_epoch if number >= 0 else None
                if said != run.leader_epoch:
                    wanted = f"leader epoch {run.leader_epoch} at offset {offset}, as its batch says"
                    yield Mistake(
                        path, max(0, number) * lineages.ENTRY_BYTES, None, None, wanted, str(said or "no entry")
                    )
                    break


@dataclass(slots=True)
class Looked:
    """What was found in one segment. `is_open_end`: what is lost of it may reach beyond its end."""

    path: str
    end_offset: int
    ids: tuple[int, int] | None = None
    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    last_timestamp_us: int = 0
    leader_epoch: int = 0
    last_offset: int = -1  # of all rows so far
    torn: Mistake | None = None
    is_open_end: bool = False
    mistakes: list[Mistake] = field(default_factory=list)
    epochs: Epochs = field(default_factory=Epochs)


class SegmentCheck:
    """One look at a segment."""

    def __init__(
        self,
        vfs: Vfs,
        path: str,
        base_offset: int,
        following: int | None,
        point: Checkpoint | None,
        before: Looked | None,
        sums: RangeSums,
        tell: Callable[[int], None],
    ) -> None:
        """`following`: where the next segment begins; None: this is the last one. `before`: the one before it."""
        self._vfs = vfs
        self._base_offset = base_offset
        self._following = following
        self._point = point
        self._before = before
        self._sums = sums
        self._tell = tell
        self._offset = base_offset
        self._out = Looked(path, base_offset)
        if before is not None:
            self._out.last_timestamp_us, self._out.leader_epoch = before.last_timestamp_us, before.leader_epoch
            self._out.last_offset = before.last_offset

    def run(self) -> Looked:
        """OSError."""
        out = self._out
        # The index first: it never names more than the segment held then.
        entries = _IndexCheck(self._vfs, files.index_path(out.path))
        try:
            if self._read(entries) and out.torn is None:
                self._check_end(entries)
                out.mistakes += entries.finish(out.size_bytes, is_last=self._following is None)
        finally:
            entries.close()
        out.end_offset = self._offset
        return out

    def _read(self, entries: _IndexCheck) -> bool:
        """Look at its bytes; whether the disk lets it, as far as there is something to look at."""
        out = self._out
        file: File | None = None
        try:
            file = self._vfs.open(out.path, read_only=True)
            size = file.size()
            if self._check_schema(file):
                self._check_batches(file, size, entries)
        except FileNotFoundError:
            raise
        except OSError as error:
            out.mistakes.append(unreadable(out.path, out.size_bytes, error, (self._offset, self._following)))
            out.is_open_end = self._following is None
            self._offset = self._offset if self._following is None else self._following
            return False
        finally:
            if file is not None:
                file.close()
        return True

    def _check_schema(self, file: File) -> bool:
        """Whether its batches can be read."""
        out = self._out
        try:
            out.ids = check_schema_message(file.read_at(0, SCHEMA_BYTES), file=out.path)
        except CorruptionError as error:
            if self._following is None and (self._point is None or self._is_unflushed(self._base_offset)):
                out.torn = mistake_of(error)
                return False
            # No batch goes with it.
            out.mistakes.append(mistake_of(error))
            return True
        except RemoteError as error:
            lost = Mistake(
                out.path, 0, self._base_offset, self._following, "a format that this version knows", str(error)
            )
            out.mistakes.append(lost)
            out.is_open_end = True
            self._offset = self._following if self._following is not None else self._base_offset
            return False
        point = self._point
        wanted = None if point is None else (point.stream_id, point.partition)
        if self._before is not None and self._before.ids is not None:
            wanted = self._before.ids
        if wanted is not None and wanted != out.ids:
            text = "stream {}, partition {}"
            out.mistakes.append(Mistake(out.path, 0, None, None, text.format(*wanted), text.format(*out.ids)))
            out.ids = wanted
        return True

    def _is_unflushed(self, offset: int) -> bool:
        """Whether a crash may have torn what comes there; where no checkpoint says so, it is not known to be."""
        return self._point is not None and offset >= self._point.flushed_end

    def _check_batches(self, file: File, size: int, entries: _IndexCheck) -> None:
        out = self._out
        window = Window(file, size)
        position = SCHEMA_BYTES
        out.size_bytes = min(size, SCHEMA_BYTES)
        while position < size:
            try:
                header = verified_at(window, position, size, out.path)
                if header.base_offset != self._offset:
                    raise CorruptionError(out.path, position, f"offset {self._offset}", str(header.base_offset))
            except CorruptionError as error:
                found = self._behind(file, position, size, error, entries)
                if found is None:
                    return
                self._tell(found - position)
                out.size_bytes = position = found
                continue
            self._check_rows(header, window.read(position, header.size_bytes), position)
            out.mistakes += entries.batch(position, header)
            position += header.size_bytes
            self._offset = header.end_offset
            out.size_bytes = position
            self._tell(header.size_bytes)

    def _behind(self, file: File, position: int, size: int, error: CorruptionError, entries: _IndexCheck) -> int | None:
        """Where it goes on behind a mistake at `position`; None: nowhere."""
        out = self._out
        is_torn = self._is_unflushed(self._offset)
        beyond = Beyond(position, size, self._offset, self._following)
        found = None if is_torn else find_behind(file, beyond, entries.hints(position))
        # Where no checkpoint says what was flushed, a mistake with something whole behind it is damage.
        if is_torn or (self._point is None and self._following is None and found is None):
            out.torn = mistake_of(error, self._offset, None)
            return None
        end = self._following if found is None else found.base_offset
        out.mistakes.append(mistake_of(error, self._offset, end))
        entries.lose(_ALL if found is None else found.position)
        if found is None:
            out.size_bytes = size
            out.is_open_end = self._following is None
            self._offset = self._offset if end is None else end
            return None
        self._offset = found.base_offset
        return found.position

    def _check_rows(self, header: BatchHeader, data: bytes, position: int) -> None:
        out = self._out
        out.batches += 1
        extent = header.base_offset, header.end_offset
        try:
            rows = codec.check_rows(data, file=out.path, position=position)
        except CorruptionError as error:
            out.mistakes.append(mistake_of(error, *extent))
            return
        if header.min_timestamp_us < out.last_timestamp_us:
            wanted, got = f"timestamps from {out.last_timestamp_us} on", str(header.min_timestamp_us)
            out.mistakes.append(Mistake(out.path, position, None, None, wanted, got))
        if header.leader_epoch < out.leader_epoch:
            wanted, got = f"leader epoch {out.leader_epoch} or a later one", str(header.leader_epoch)
            out.mistakes.append(Mistake(out.path, position, None, None, wanted, got))
        out.last_timestamp_us = max(out.last_timestamp_us, header.max_timestamp_us)
        out.leader_epoch = max(out.leader_epoch, header.leader_epoch)
        first, last = rows.column(0)[0].as_py(), rows.column(0)[-1].as_py()
        out.epochs.add(EpochRun(header.leader_epoch, first, last))
        if first > out.last_offset:  # else two segments overlap, which is told: no row counts twice
            out.last_offset = last
            out.rows += header.count
            self._sums.add(rows)

    def _check_end(self, entries: _IndexCheck) -> None:
        out, following = self._out, self._following
        if following is not None and self._offset != following:
            wanted, got = f"offsets up to {following}, where the next segment begins", f"the end at {self._offset}"
            if self._offset > following:
                out.mistakes.append(Mistake(out.path, out.size_bytes, None, None, wanted, got))
            elif self._is_unflushed(self._offset):
                out.torn = Mistake(out.path, out.size_bytes, self._offset, None, wanted, got)
                return
            else:
                out.mistakes.append(Mistake(out.path, out.size_bytes, self._offset, following, wanted, got))
                entries.lose(_ALL)
            self._offset = following


class _IndexCheck:
    """The entries of a segment's index, as the batches come."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        self._path = path
        self._number = 0
        self._lost_end = 0  # batches before this byte are damaged: what the index says of them cannot be told
        self._is_over = False
        self._places_left = limits.VERIFY_MISTAKES_MAX
        self._file: File | None = None
        self._refusal: Mistake | None = None
        try:
            self._file = vfs.open(path, read_only=True)
        except FileNotFoundError:  # it is rebuilt when it is needed
            return
        except OSError as error:
            self._refusal = unreadable(path, 0, error)
            return
        size = self._file.size()
        self._count = size // ENTRY_BYTES
        self._rest = size % ENTRY_BYTES
        self._window = Window(self._file, size)

    def _entry(self, number: int) -> IndexEntry:
        position = number * ENTRY_BYTES
        try:
            data = self._window.read(position, ENTRY_BYTES)
        except OSError as error:
            wrong = unreadable(self._path, position, error)
            raise CorruptionError(self._path, position, wrong.expected, wrong.found) from error
        return index.unpack_entry(data, file=self._path, position=position)

    def batch(self, position: int, header: BatchHeader) -> Iterator[Mistake]:
        """What is wrong with the entry of this batch, and with those before it that no batch has asked for."""
        if self._file is None or self._is_over:
            return
        for mistake in self._of_batch(position, header):
            yield mistake
            self._places_left -= 1
            if not self._places_left:
                self._is_over = True
                return

    def _of_batch(self, position: int, header: BatchHeader) -> Iterator[Mistake]:
        has_bad = False
        while self._number < self._count:
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
                    return  # that was this batch's
                self._is_over = True
                yield Mistake(self._path, place, None, None, f"the batch at byte {position}", f"byte {entry.position}")
                return
            self._number += 1
            if entry.position == position:
                said, is_so = tuple(entry), _said_of(position, header)
                if said != is_so:
                    yield Mistake(self._path, place, None, None, str(IndexEntry._make(is_so)), str(entry))
                return
            if entry.position >= self._lost_end:
                yield Mistake(self._path, place, None, None, f"the batch at byte {position}", f"byte {entry.position}")

    def lose(self, end_position: int) -> None:
        """What lies before this byte is damaged."""
        self._lost_end = end_position

    def hints(self, position: int) -> Iterator[int]:
        """Where batches lie behind a byte, as far as the index can be trusted."""
        if self._file is None:
            return
        bad_left = self._places_left
        for number in range(self._number, self._count):
            try:
                entry = self._entry(number)
            except CorruptionError:
                bad_left -= 1
                if bad_left <= 0:
                    return
                continue
            if entry.position > position:
                yield entry.position

    def finish(self, end_position: int, *, is_last: bool) -> list[Mistake]:
        """What is wrong behind the last batch. Of the last segment more may have been written meanwhile."""
        found = [] if self._refusal is None else [self._refusal]
        if self._file is None or self._is_over:
            return found
        for number in range(self._number, self._count):
            if len(found) >= min(self._places_left, limits.VERIFY_ROWS_LISTED_MAX):
                break
            try:
                entry = self._entry(number)
            except CorruptionError as error:
                found.append(mistake_of(error))
                continue
            if entry.position >= self._lost_end:
                wanted = f"no batch behind byte {end_position}"
                found.append(Mistake(self._path, number * ENTRY_BYTES, None, None, wanted, f"byte {entry.position}"))
        if self._rest and not is_last:
            wanted, got = f"entries of {ENTRY_BYTES} bytes", f"{self._rest} bytes more"
            found.append(Mistake(self._path, self._count * ENTRY_BYTES, None, None, wanted, got))
        return found

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


def _said_of(position: int, header: BatchHeader) -> tuple[int, ...]:
    return tuple(index.unpack_entry(index.pack_entry(position, header)))
