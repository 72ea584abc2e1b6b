"""Subject indexing: writes the subject index of each sealed segment that has none. Runs in a disk thread.

Rules: only with `LogConfig.indexes_subjects`; without it, a query makes the indexes that it needs. A segment is indexed
after small batches were merged in it, and again after each rewrite. The index is written under a name that no reader
looks for and renamed, so a crash leaves none, or a whole one; a start removes the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.subject_queries import SegmentReplacedError, build_index, has_index
from penstock.commitlog.subjects.writing import IndexTooLargeError
from penstock.commitlog.view import LogView


class SubjectIndexing(IncrementalTask):
    """Indexes some segments. `end_offset`: of the last one that is done, or that cannot be indexed."""

    def __init__(self, view: LogView, segments: Sequence[Segment]) -> None:
        self.end_offset = segments[0].base_offset
        self.has_failed = False  # a retry may succeed
        self._view = view
        self._segments = segments
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        for segment in self._segments:
            try:
                yield from self._index(segment)
            except OSError:
                self.has_failed = True
                raise
            if self.is_void:
                return
            self.end_offset = segment.end_offset

    def _index(self, segment: Segment) -> Generator[int, None, None]:
        moved = limits.SCRUB_BATCH_BYTES  # a look at a file costs time, too
        try:
            if not has_index(self._view, segment):
                for size_bytes in build_index(self._view, segment):
                    moved += size_bytes
                    if moved >= limits.CLEANING_SLICE_BYTES:
                        yield moved
                        moved = 0
                        if self.is_void:
                            return
        except (SegmentReplacedError, LogCutError, RemoteError, CorruptionError, IndexTooLargeError):
            pass  # removed, rewritten or corrupt: a reader reports it, and a query reads the rows
        yield moved
