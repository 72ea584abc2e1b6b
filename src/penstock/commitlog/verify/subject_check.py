"""Checks a subject index against the rows of its segment, for `penstock verify`.

Rules: without a file nothing is summed up. A file that names another content of the segment is no error: a broker
ignores it, and an older version may have left it behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.errors import CorruptionError
from penstock.commitlog.errors import FileMistake, mistake_of, unreadable
from penstock.commitlog.files import files
from penstock.commitlog.subjects import reading
from penstock.commitlog.subjects.blocks import SubjectRows
from penstock.commitlog.subjects.layout import SegmentIdentity, UnknownVersionError
from penstock.commitlog.subjects.reading import SubjectIndex
from penstock.commitlog.subjects.summing import SubjectSum, joined
from penstock.vfs import File, Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class SubjectCheck:
    """Sums up the rows of a segment that has a subject index, and compares."""

    def __init__(self, vfs: Vfs, segment_path: str) -> None:
        self._path = files.subjects_path(segment_path)
        self._file: File | None = None
        self._refusal: FileMistake | None = None
        self._total = SubjectSum()
        try:
            self._file = vfs.open(self._path, read_only=True)
        except FileNotFoundError:  # it is made when it is needed
            return
        except OSError as error:
            self._refusal = unreadable(self._path, 0, error)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the next rows of the segment."""
        if self._file is not None:
            self._total.add(rows.select(["offset", "subject"]))

    def finish(self, segment: SegmentIdentity) -> list[FileMistake]:
        """Return what is wrong with the index of a segment without errors, all rows of which were added."""
        if self._file is None:
            return [] if self._refusal is None else [self._refusal]
        try:
            trailer = reading.read_trailer(self._file)
            if trailer.segment == segment:
                self._compare(SubjectIndex(self._file, trailer))
        except UnknownVersionError:
            return []
        except CorruptionError as error:
            return [mistake_of(error)]
        except OSError as error:
            return [unreadable(self._path, 0, error)]
        return []

    def _compare(self, index: SubjectIndex) -> None:
        wanted = self._total.parts()
        rest = joined([])
        for number, block in enumerate(index.check()):
            rest = _filled(rest, wanted, len(block))
            if not block.batch.equals(rest.batch.slice(0, len(block))):
                position = index.directory.place(number).position
                raise CorruptionError(self._path, position, "the subjects of the segment", "others")
            rest = SubjectRows(rest.batch.slice(len(block)))
        if len(rest) or any(map(len, wanted)):
            position = index.trailer.blocks_end
            raise CorruptionError(self._path, position, "all subjects of the segment", f"{index.trailer.subjects}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _filled(rows: SubjectRows, more: Iterator[SubjectRows], count: int) -> SubjectRows:
    """Return so many rows or more, as long as there are any."""
    parts, total = [rows], len(rows)
    while total < count and (part := next(more, None)) is not None:
        parts.append(part)
        total += len(part)
    return joined(parts)
