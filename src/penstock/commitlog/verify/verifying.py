"""Verifies all files of a log, without a broker or beside a running one.

Rules: nothing is written, and corruption does not stop the check: it is recorded, and the rest is verified, too. A file
that cannot be read, such as a FIFO in its place, counts as corrupt. Data appended meanwhile is not judged, nor is data
at or behind the checkpoint's `flushed_end`, which a crash may have torn; a start cuts that. Memory is bounded by one
batch, a mebibyte of small ones, some bytes for each range of offsets, and what `SubjectSum` takes for one segment.

| file       | what is verified                                                                                  |
|------------|---------------------------------------------------------------------------------------------------|
| segment    | schema message; of each batch layout, CRC, every value; offsets without a gap up to the next      |
|            | segment; timestamps and leader epochs that never decrease                                         |
| index      | each entry, and that it agrees with its batch; it may be short or missing                         |
| subjects   | every byte, and that the table agrees with the rows of its segment; it may be missing             |
| checkpoint | both slots, the unused bytes, and that the segments begin and end accordingly                     |
| lineage    | each entry, and that it agrees with the leader epochs of the batches                              |

A running broker may truncate the log or clean a segment during the check: so a segment with errors is checked again,
and only repeated errors count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import PenstockError
from penstock.batch import codec
from penstock.batch.codec import PREFIX_BYTES
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.errors import FileMistake, mistake_of, unreadable
from penstock.commitlog.files import files, side_files
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.checkpoint import Checkpoint
from penstock.commitlog.verify.checksums import RangeSum, RangeSums
from penstock.commitlog.verify.segment_check import (
    Epochs,
    KnownLog,
    SegmentCheck,
    SegmentFile,
    SegmentFindings,
    ids_text,
)
from penstock.vfs import Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class NotALogError(PenstockError):
    """The folder has no segment."""


class LogBounds(NamedTuple):
    """Offsets of a log by its checkpoint. `committed_end` 0: unknown."""

    log_start: int
    committed_end: int


@dataclass(slots=True)
class VerifiedLog:
    """Result for the folder of one log, including rows below log_start that are still there."""

    directory: str
    stream_id: int = -1  # -1: no schema message could be read
    partition: int = -1
    log_start: int = 0
    log_end: int = 0
    committed_end: int = 0  # 0: unknown
    segments: int = 0
    batches: int = 0
    rows: int = 0
    size_bytes: int = 0  # of its segments, as far as they were read
    torn: FileMistake | None = None  # the position from which nothing is judged
    mistakes: list[FileMistake] = field(default_factory=list)
    unlisted: int = 0  # number of further errors
    sums: tuple[RangeSum, ...] = ()

    @property
    def is_sound(self) -> bool:
        """True if there are no errors."""
        return not self.mistakes

    def note(self, mistakes: Iterable[FileMistake]) -> None:
        """Record confirmed errors."""
        for one in mistakes:
            if len(self.mistakes) < limits.VERIFY_MISTAKES_MAX:
                self.mistakes.append(one)
            else:
                self.unlisted += 1

    def damaged(self) -> tuple[tuple[int, int | None], ...]:
        """Return the offset ranges that cannot be read."""
        return tuple(
            (one.base_offset, one.end_offset)
            for one in self.mistakes
            if one.base_offset is not None and one.base_offset != one.end_offset
        )


def log_bounds(vfs: Vfs, directory: str) -> LogBounds:
    """Return the offsets according to the checkpoint. OSError; NotALogError."""
    bases = sorted(_generations(vfs, directory))
    if not bases:
        raise NotALogError(f"{directory}: no segment of a log was found")
    point = side_files.checked_checkpoint(vfs, directory)[0]
    return LogBounds(bases[0], 0) if point is None else LogBounds(max(bases[0], point.log_start), point.committed_end)


def verify_log(
    vfs: Vfs,
    directory: str,
    *,
    ids: tuple[int, int] | None = None,
    is_made: bool = False,
    cuts: Iterable[int] = (),
    tell: Callable[[int], None] = lambda _: None,
) -> VerifiedLog:
    """Verify all files of a log. `cuts` as in `RangeSums`; `tell` gets the number of segment bytes just read.

    `ids`: the expected stream and partition, if known, as at a broker's start. `is_made`: the data directory says that
    the log was created, so it must have a checkpoint. OSError if the disk fails; NotALogError.
    """
    return _LogCheck(vfs, directory, ids, cuts, tell, is_made=is_made).run()


def batches_between(vfs: Vfs, directory: str, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the checked batches that hold these offsets, from the newest generations. CorruptionError, OSError."""
    generations = _generations(vfs, directory)
    bases = sorted(generations)
    for base, following in zip(bases, [*bases[1:], limits.OFFSET_MAX], strict=True):
        if base >= end or following <= begin:
            continue
        file = vfs.open(files.segment_path(directory, base, generations[base]), read_only=True)
        try:
            position, size, offset = SCHEMA_BYTES, file.size(), base
            while position < size and offset < end:
                header = codec.read_header(file.read_at(position, PREFIX_BYTES), file=file.path, position=position)
                if header.end_offset > begin and header.size_bytes <= size - position:
                    data = file.read_at(position, header.size_bytes)
                    codec.verify(data, file=file.path, position=position)
                    yield codec.check_rows(data, file=file.path, position=position)
                position += header.size_bytes
                offset = header.end_offset
        finally:
            file.close()


def size_of(vfs: Vfs, directory: str) -> int:
    """Return the number of bytes to read, without files that are removed meanwhile or cannot be read."""
    total = 0
    for base_offset, generation in _generations(vfs, directory).items():
        path = files.segment_path(directory, base_offset, generation)
        with suppress(OSError), closing(vfs.open(path, read_only=True)) as file:
            total += file.size()
    return total


def _generations(vfs: Vfs, directory: str) -> dict[int, int]:
    """Map each base offset to its newest generation."""
    found = sorted(parsed for name in vfs.list(directory) if (parsed := files.parsed(name)) is not None)
    return dict(found)


class _LogCheck:
    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int] | None,
        cuts: Iterable[int],
        tell: Callable[[int], None],
        *,
        is_made: bool,
    ) -> None:
        self._log = KnownLog(ids, None)
        self._is_made = is_made
        self._vfs = vfs
        self._directory = directory
        self._tell = tell
        self._out = VerifiedLog(directory)
        self._cuts = tuple(cuts)
        self._epochs = Epochs()
        self._sums = RangeSums()
        self._at: SegmentFindings | None = None  # the previous segment

    def run(self) -> VerifiedLog:
        out = self._out
        # Read the checkpoint first: it describes what was written before it.
        point = self._checkpoint()
        self._log = self._log._replace(point=point)
        generations = _generations(self._vfs, self._directory)
        if not generations:
            if point is None:
                raise NotALogError(f"{self._directory}: no segment of a log was found")
            path = files.segment_path(self._directory, point.segment_base)
            out.note([FileMistake(path, 0, point.log_start, point.flushed_end, "a segment", "no file")])
            return out
        bases = sorted(generations)
        out.log_start = bases[0]
        if point is not None:
            out.committed_end = point.committed_end
            # An interrupted retention leaves whole segments below log_start; they are no part of the log.
            bases = [base for base, following in zip(bases, [*bases[1:], None], strict=True)
                     if following is None or following > point.log_start]  # fmt: skip
            if point.log_start < bases[0]:
                path = files.segment_path(self._directory, point.log_start)
                out.note([FileMistake(path, 0, point.log_start, bases[0], f"offset {point.log_start}", "no file")])
            out.log_start = max(bases[0], point.log_start)
        self._sums = RangeSums(out.log_start, cuts=self._cuts)
        nexts = iter(list(zip(bases, [*bases[1:], None], strict=True)))
        for base, following in nexts:
            if not self._segment(base, following):
                break
        for base, following in nexts:  # their content is not judged, but a start fails on unreadable ones
            self._note_unreadable(base, following)
        self._finish()
        return out

    def _checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that a start would use."""
        point, mistakes = side_files.checked_checkpoint(self._vfs, self._directory)
        self._out.note(mistakes)
        path = f"{self._directory}/{files.CHECKPOINT}"
        if point is None and self._is_made and not mistakes:
            self._out.note([FileMistake(path, 0, None, None, "a checkpoint", "none")])
        expected = self._log.ids
        if point is not None and expected is not None and expected != (point.stream_id, point.partition):
            wanted, got = ids_text(expected), ids_text((point.stream_id, point.partition))
            self._out.note([FileMistake(path, 0, None, None, wanted, got)])
            return None
        return point

    def _segment(self, base_offset: int, following: int | None) -> bool:
        """Check one segment; return True if the next ones are to be judged, too."""
        looked: SegmentFindings | None = None
        for number in range(limits.VERIFY_AGAIN_MAX):
            state, before = self._sums.state(), looked
            path = self._path_of(base_offset)
            if path is None:  # retention removed it
                return True
            segment = SegmentFile(path, base_offset, following)
            check = SegmentCheck(self._vfs, segment, self._log, self._at, self._sums, self._tell)
            try:
                looked = check.run()
            except FileNotFoundError:
                self._sums.back_to(state)
                continue
            if not looked.mistakes or (before is not None and before.mistakes == looked.mistakes):
                break
            if number < limits.VERIFY_AGAIN_MAX - 1:
                self._sums.back_to(state)
                following = self._following(base_offset)
        if looked is None:
            return True
        self._take(looked)
        return looked.torn is None

    def _note_unreadable(self, base_offset: int, following: int | None) -> None:
        path = self._path_of(base_offset)
        if path is None:
            return
        try:
            self._vfs.open(path, read_only=True).close()
        except FileNotFoundError:
            return
        except OSError as error:
            self._out.note([unreadable(path, 0, error, (base_offset, following))])

    def _path_of(self, base_offset: int) -> str | None:
        generation = _generations(self._vfs, self._directory).get(base_offset)
        return None if generation is None else files.segment_path(self._directory, base_offset, generation)

    def _following(self, base_offset: int) -> int | None:
        return min((base for base in _generations(self._vfs, self._directory) if base > base_offset), default=None)

    def _take(self, looked: SegmentFindings) -> None:
        out = self._out
        self._at = looked
        if looked.ids is not None and not out.segments:
            out.stream_id, out.partition = looked.ids
        out.segments += 1
        out.batches += looked.batches
        out.rows += looked.rows
        out.size_bytes += looked.size_bytes
        out.torn = looked.torn
        out.log_end = looked.end_offset
        out.note(looked.mistakes)
        self._epochs.extend(looked.epochs)

    def _finish(self) -> None:
        out, point = self._out, self._log.point
        if point is not None and out.log_end < point.flushed_end and self._at is not None and not self._at.is_open_end:
            wanted = f"offsets up to {point.flushed_end}, which were flushed"
            place = FileMistake(self._at.path, self._at.size_bytes, out.log_end, point.flushed_end, wanted, "the end")
            out.note([place])
        # Read the lineage last: it is written before the batches, and grows during the check.
        self._check_lineage(out.log_end if point is None else point.flushed_end)
        out.sums = self._sums.finish()

    def _check_lineage(self, flushed_end: int) -> None:
        path = f"{self._directory}/{files.LINEAGE}"
        try:
            found = lineages.read(self._vfs, self._directory)
        except OSError as error:
            self._out.note([unreadable(path, 0, error)])
            return
        if found.mistake is not None:
            self._out.note([mistake_of(found.mistake)])
        self._out.note(self._epochs.mistakes(found, path, self._out.log_start, flushed_end))


def verify_segment(
    vfs: Vfs, path: str, *, ids: tuple[int, int] | None = None, tell: Callable[[int], None] = lambda _: None
) -> VerifiedLog:
    """Verify one segment file and its index; `ids` as in `verify_log`. ValueError: not a segment's name; OSError."""
    directory, _, name = path.rpartition("/")
    base_offset = files.base_offset_of(name)
    if base_offset is None:
        raise ValueError(f"{path}: not the name of a segment: <offset of 20 digits>.arrows")
    out = VerifiedLog(directory, log_start=base_offset, segments=1)
    point = side_files.checked_checkpoint(vfs, directory)[0]
    later = (base for base in _generations(vfs, directory) if base > base_offset)
    sums = RangeSums()
    segment = SegmentFile(path, base_offset, min(later, default=None))
    looked = SegmentCheck(vfs, segment, KnownLog(ids, point), None, sums, tell).run()
    if looked.ids is not None:
        out.stream_id, out.partition = looked.ids
    out.batches, out.rows, out.size_bytes = looked.batches, looked.rows, looked.size_bytes
    out.torn, out.log_end = looked.torn, looked.end_offset
    out.note(looked.mistakes)
    out.sums = sums.finish()
    return out
