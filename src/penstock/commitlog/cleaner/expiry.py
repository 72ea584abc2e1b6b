"""Expiry: find the messages of a segment whose own time to live (TTL) is over; `cleaning` rewrites it without them.

Rules: only sealed, committed and flushed segments are considered, one at a time. A batch whose header says that no row
has a TTL is not read. As in `compaction`, the last row of the log stays, and one row where nothing else could cover the
offsets. A message with an id stays as long as the deduplication window needs the id. Where marks say which rows are
live (ADR 89), the leader alone looks, what it finds is to be hidden, and no row has to stay.

With compaction, a message with a key stays until the older ones of its key are removed; otherwise those would count as
current again. Like a tombstone, it goes after a compaction pass. In the same way a rollup of its subject stays until
the messages before it are removed, and while one of them must stay.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch import codec, masking
from penstock.batch.codec import LAYOUT
from penstock.batch.header import MAY_EXPIRE, MAY_ROLL_UP_SUBJECTS, BatchHeader
from penstock.commitlog.cleaner.merged import UnsoundError, wanted_batches
from penstock.commitlog.cleaner.retained_rows import FoundRows, RetainedRows, RetainedRowsBuilder
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView
from penstock.hot.rows import BatchRows
from penstock.live.row_set import NONE, RowSet
from penstock.vfs import Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class ExpiryRules(NamedTuple):
    """Rules by which a segment's rows expire."""

    now_us: int
    end: int  # of all that may be removed: the row before it stays
    dedup_window_us: int = 0  # a message with an id stays at least so long
    is_compacted: bool = False  # rows with keys stay, …
    compacted_end: int = 0  # … except those before it, …
    forced_keys: frozenset[bytes] = frozenset()  # … unless they have one of these keys
    rolled_end: int | None = None  # rollups of subjects stay from there on; None: rollups are not allowed …
    forced_subjects: frozenset[bytes] = frozenset()  # … and so do those of these subjects
    by_marks: bool = False  # rows that expire are collected to be hidden; the segment is not to be rewritten
    hidden: RowSet | None = None  # with `by_marks`: rows that are hidden already


class ExpirySurvey(IncrementalTask):
    """Finds which rows of one segment expire now, and when the next ones do."""

    def __init__(self, vfs: Vfs, view: LogView, segment: Segment, rules: ExpiryRules) -> None:
        self.segment = segment
        self.rules = rules
        self.judged: RetainedRows | None = None  # None: no row is removed
        self.found = NONE  # rows to be hidden, if it works by marks
        self.pieces: list[RowSet] = []  # the same, split for marks
        self.next_us: int | None = None  # when the next row expires; None: no remaining row does
        self.awaits_more = False  # a row waits for others to follow it
        self.awaits_compaction = False  # a row waits for the removal of older ones of its key or subject
        self.is_whole = False  # everything was read and decided
        self._vfs = vfs
        self._view = view
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        if self.rules.is_compacted or self.rules.rolled_end is not None:
            # A removed message must not coexist with the older ones that it replaced, even after a power loss.
            self._vfs.sync_dir(self.segment.path.rpartition("/")[0])
        try:
            yield from self._judge()
        except FileNotFoundError:  # retention removed it: it has no rows any more
            self.is_whole = True
        except UnsoundError:
            return

    def _judge(self) -> Iterator[int]:
        import pyarrow as pa

        found, hides = RetainedRowsBuilder(self.segment), FoundRows(self.rules.hidden)
        moved = 0

        def wants(header: BatchHeader) -> bool:
            return bool(header.flags & MAY_EXPIRE) or (self.rules.by_marks and hides.may_have_gaps(header))

        for header, data in wanted_batches(self._vfs, self.segment, self._view, wants):
            found.batch(header)
            if data is None:
                found.keeps.append(pa.repeat(pa.scalar(True), header.count))
                moved += codec.PREFIX_BYTES
            else:
                found.keeps.append(self._of_batch(header, data, hides))
                moved += header.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
                if self.is_void:
                    raise UnsoundError
        if self.rules.by_marks:
            self.found = hides.finish()
            self.pieces = self.found.split(limits.SURVEY_MARK_BYTES_MAX)
        elif (keep := found.forced().keep).false_count:
            self.judged = RetainedRows(self.segment, keep)
        self.is_whole = True
        yield moved

    def _of_batch(self, header: BatchHeader, data: bytes, hides: FoundRows) -> pa.BooleanArray:
        """Return which rows of the batch stay."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rules = self.rules
        rows = codec.check_rows(data, file=self.segment.path)
        looked_at = BatchRows(data, LAYOUT)
        lifetimes = looked_at.lifetimes_us(rules.dedup_window_us, 0, 0)
        lifetimes_us = pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(lifetimes)])
        expiries_us = pc.add(rows.column("timestamp").cast(pa.int64()), lifetimes_us)
        lives_on = pc.equal(lifetimes_us, 0)
        if rules.hidden is not None and (shown := masking.shown(rows.column("offset"), rules.hidden)) is not None:
            lives_on = pc.or_(lives_on, pc.invert(shown))
        is_over = pc.and_not(pc.less_equal(expiries_us, rules.now_us), lives_on)
        later_us = pc.min(expiries_us.filter(pc.invert(pc.or_(is_over, lives_on)))).as_py()
        if later_us is not None:
            self.next_us = later_us if self.next_us is None else min(self.next_us, later_us)
        if rules.by_marks:
            hides.add_gaps(header, rows.column("offset"))
        if not is_over.true_count:
            return pc.invert(is_over)
        goes = pc.and_(is_over, pc.less(rows.column("offset"), rules.end - 1))
        self.awaits_more = self.awaits_more or goes.true_count < is_over.true_count
        if rules.is_compacted:
            before, goes = goes, pc.and_(goes, self._is_free(rows))
            self.awaits_compaction = self.awaits_compaction or goes.true_count < before.true_count
        if rules.rolled_end is not None and header.flags & MAY_ROLL_UP_SUBJECTS:
            marks = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(looked_at.rollups())])
            is_rollup = pc.equal(marks, 1)
            is_new = pc.greater_equal(rows.column("offset"), rules.rolled_end)
            forced = pa.array(list(rules.forced_subjects), pa.binary())
            is_forced = pc.is_in(rows.column("subject").cast(pa.binary()), value_set=forced)
            before, goes = goes, pc.and_not(goes, pc.and_(is_rollup, pc.or_(is_new, is_forced)))
            self.awaits_compaction = self.awaits_compaction or goes.true_count < before.true_count
        if rules.by_marks:
            hides.add(rows.column("offset").filter(goes))
        return pc.invert(goes)

    def _is_free(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return, per row, True if no older row of its key exists."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = rows.column("key")
        forced = pa.array(list(self.rules.forced_keys), pa.binary())
        is_judged = pc.less(rows.column("offset"), self.rules.compacted_end)
        return pc.or_(keys.is_null(), pc.and_not(is_judged, pc.is_in(keys, value_set=forced)))
