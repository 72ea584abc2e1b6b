"""Verifies one segment file and its index; see `verifying` for the rules.

Rules: an error has the file, the byte, the lost offsets, the expected and the actual value. Behind corruption the check
resynchronises as recovery does (see `batch_walk`); if the disk cannot read a sector, or the file cannot be opened, the
rest of the segment counts as lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.commitlog.errors import FileMistake, mistake_of, unreadable
from penstock.commitlog.files import files
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.batch_walk import ResyncBounds, Window, find_behind, verified_at
from penstock.commitlog.files.checkpoint import Checkpoint
from penstock.commitlog.segment.index_check import IndexCheck
from penstock.commitlog.subjects.layout import SegmentIdentity
from penstock.commitlog.verify.checksums import RangeSums
from penstock.commitlog.verify.subject_check import SubjectCheck
from penstock.vfs import File, Vfs

_ALL = 2**63
_start_offset = attrgetter("start_offset")


def ids_text(ids: tuple[int, int]) -> str:
    """Format a stream and a partition for people."""
    return f"stream {ids[0]}, partition {ids[1]}"


class EpochRun(NamedTuple):
    """Consecutive rows of one leader epoch: the first and the last offset."""

    leader_epoch: int
    first_offset: int
    last_offset: int


class Epochs:
    """Leader epochs of the rows, according to their batches."""

    def __init__(self) -> None:
        self.runs: list[EpochRun] = []

    def add(self, run: EpochRun) -> None:
        if self.runs and self.runs[-1].leader_epoch == run.leader_epoch:
            self.runs[-1] = self.runs[-1]._replace(last_offset=run.last_offset)
        else:
            self.runs.append(run)

    def extend(self, others: Epochs) -> None:
        """Append those of the next segment."""
        for run in others.runs:
            self.add(run)

    def mistakes(
        self, found: lineages.LineageRead, path: str, log_start: int, flushed_end: int
    ) -> Iterator[FileMistake]:
        """Yield where the lineage contradicts the rows from `log_start` up to `flushed_end`."""
        for run in self.runs:
            first, last = max(run.first_offset, log_start), min(run.last_offset, flushed_end - 1)
            if first > last or not run.leader_epoch:
                continue
            for offset in (first, last):
                number = bisect_right(found.entries, offset, key=_start_offset) - 1
                if found.mistake is not None and number == len(found.entries) - 1:
                    continue  # the unreadable part may say so
                said = found.entries[number].leader_epoch if number >= 0 else None
                if said != run.leader_epoch:
                    wanted = f"leader epoch {run.leader_epoch} at offset {offset}, as its batch says"
                    yield FileMistake(
                        path, max(0, number) * lineages.ENTRY_BYTES, None, None, wanted, str(said or "no entry")
                    )
                    break


@dataclass(slots=True)
class SegmentFindings:
    """Result of checking one segment. `is_open_end`: its corruption may extend beyond its end."""

    path: str
    end_offset: int
    ids: tuple[int, int] | None = None
    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    last_timestamp_us: int = 0
    leader_epoch: int = 0
    last_offset: int = -1  # highest offset of the rows so far
    torn: FileMistake | None = None
    is_open_end: bool = False
    mistakes: list[FileMistake] = field(default_factory=list)
    epochs: Epochs = field(default_factory=Epochs)


class SegmentFile(NamedTuple):
    """A segment file, and the offsets that it must cover."""

    path: str
    base_offset: int
    following: int | None  # where the next segment begins; None: this is the last one


class KnownLog(NamedTuple):
    """The facts about a log that are known without its segments.

    `ids`: the expected stream and partition; None: those of the previous segment, or of the checkpoint.
    """

    ids: tuple[int, int] | None
    point: Checkpoint | None

    def is_unflushed(self, offset: int) -> bool:
        """True if a crash may have torn what comes there; False without a checkpoint."""
        return self.point is not None and offset >= self.point.flushed_end


class SegmentCheck:
    """One check of a segment."""

    def __init__(
        self,
        vfs: Vfs,
        segment: SegmentFile,
        log: KnownLog,
        before: SegmentFindings | None,
        sums: RangeSums,
        tell: Callable[[int], None],
    ) -> None:
        """`before`: the result of the previous segment; `tell` gets the number of bytes just read."""
        path, self._base_offset, self._following = segment
        self._vfs = vfs
        self._log = log
        self._before = before
        self._sums = sums
        self._tell = tell
        self._offset = self._base_offset
        self._last_crc = 0  # of the batches so far
        self._subjects: SubjectCheck | None = None
        self._out = SegmentFindings(path, self._base_offset)
        if before is not None:
            self._out.last_timestamp_us, self._out.leader_epoch = before.last_timestamp_us, before.leader_epoch
            self._out.last_offset = before.last_offset

    def run(self) -> SegmentFindings:
        out = self._out
        # Open the index first: it never has more entries than the segment had batches then.
        entries = IndexCheck(self._vfs, files.index_path(out.path))
        try:
            self._subjects = None if self._following is None else SubjectCheck(self._vfs, out.path)
            if self._read(entries) and out.torn is None:
                self._check_end(entries)
                out.mistakes += entries.finish(out.size_bytes, is_last=self._following is None)
                out.mistakes += self._check_subjects()
        finally:
            entries.close()
            if self._subjects is not None:
                self._subjects.close()
        out.end_offset = self._offset
        return out

    def _check_subjects(self) -> list[FileMistake]:
        out, name = self._out, files.parsed(self._out.path.rpartition("/")[2])
        if self._subjects is None or out.ids is None or name is None or out.mistakes:
            return []
        identity = SegmentIdentity(
            name.generation, *out.ids, self._last_crc, self._base_offset, self._offset, out.size_bytes
        )
        return self._subjects.finish(identity)

    def _read(self, entries: IndexCheck) -> bool:
        """Check the segment's content; return False if the disk cannot read it."""
        out = self._out
        file: File | None = None
        try:
            file = self._vfs.open(out.path, read_only=True)
            size = file.size()
            if self._check_schema(file):
                self._check_batches(file, size, entries)
            else:
                entries.lose(_ALL)
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
        """Return True if its batches can be read."""
        out = self._out
        try:
            out.ids = check_schema_message(file.read_at(0, SCHEMA_BYTES), file=out.path)
        except CorruptionError as error:
            if self._following is None and (self._log.point is None or self._log.is_unflushed(self._base_offset)):
                out.torn = mistake_of(error)
                return False
            # No batch is lost with it.
            out.mistakes.append(mistake_of(error))
            return True
        except RemoteError as error:
            lost = FileMistake(
                out.path, 0, self._base_offset, self._following, "a format that this version knows", str(error)
            )
            out.mistakes.append(lost)
            out.is_open_end = True
            self._offset = self._following if self._following is not None else self._base_offset
            return False
        point, expected = self._log.point, self._log.ids
        if expected is not None and expected != out.ids:
            # At a start, the broker takes no batch of it for the log's.
            texts = ids_text(expected), ids_text(out.ids)
            out.mistakes.append(FileMistake(out.path, 0, self._base_offset, self._following, *texts))
            out.is_open_end = self._following is None
            self._offset = self._base_offset if self._following is None else self._following
            return False
        wanted = None if point is None else (point.stream_id, point.partition)
        if self._before is not None and self._before.ids is not None:
            wanted = self._before.ids
        if wanted is not None and wanted != out.ids:
            out.mistakes.append(FileMistake(out.path, 0, None, None, ids_text(wanted), ids_text(out.ids)))
            out.ids = wanted
        return True

    def _check_batches(self, file: File, size: int, entries: IndexCheck) -> None:
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

    def _behind(self, file: File, position: int, size: int, error: CorruptionError, entries: IndexCheck) -> int | None:
        """Return the position at which the check continues behind an error at `position`; None: nowhere."""
        out = self._out
        is_torn = self._log.is_unflushed(self._offset)
        beyond = ResyncBounds(position, size, self._offset, self._following)
        found = None if is_torn else find_behind(file, beyond, entries.hints(position))
        # Without a checkpoint, an error with a valid batch behind it is corruption.
        if is_torn or (self._log.point is None and self._following is None and found is None):
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
        self._last_crc = header.crc
        extent = header.base_offset, header.end_offset
        try:
            rows = codec.check_rows(data, file=out.path, position=position)
        except CorruptionError as error:
            out.mistakes.append(mistake_of(error, *extent))
            return
        if header.min_timestamp_us < out.last_timestamp_us:
            wanted, got = f"timestamps from {out.last_timestamp_us} on", str(header.min_timestamp_us)
            out.mistakes.append(FileMistake(out.path, position, None, None, wanted, got))
        if header.leader_epoch < out.leader_epoch:
            wanted, got = f"leader epoch {out.leader_epoch} or a later one", str(header.leader_epoch)
            out.mistakes.append(FileMistake(out.path, position, None, None, wanted, got))
        out.last_timestamp_us = max(out.last_timestamp_us, header.max_timestamp_us)
        out.leader_epoch = max(out.leader_epoch, header.leader_epoch)
        first, last = rows.column(0)[0].as_py(), rows.column(0)[-1].as_py()
        out.epochs.add(EpochRun(header.leader_epoch, first, last))
        if first > out.last_offset:  # overlapping segments are reported elsewhere: no row counts twice
            out.last_offset = last
            out.rows += header.count
            self._sums.add(rows)
        if self._subjects is not None:
            self._subjects.add(rows)

    def _check_end(self, entries: IndexCheck) -> None:
        out, following = self._out, self._following
        if following is not None and self._offset != following:
            wanted, got = f"offsets up to {following}, where the next segment begins", f"the end at {self._offset}"
            if self._offset > following:
                out.mistakes.append(FileMistake(out.path, out.size_bytes, None, None, wanted, got))
            elif self._log.is_unflushed(self._offset):
                out.torn = FileMistake(out.path, out.size_bytes, self._offset, None, wanted, got)
                return
            else:
                out.mistakes.append(FileMistake(out.path, out.size_bytes, self._offset, following, wanted, got))
                entries.lose(_ALL)
            self._offset = following
