"""Compaction: keep the last message of each key and, with rollups, what followed a subject's last rollup. Decides which
rows to remove; `cleaning` rewrites segments without them.

Rules: only sealed, committed, flushed and old enough segments are considered. Messages without a key always stay, and
an empty key counts as none. A pass reads the segments added since the last pass (the dirty part), records the last
offset of each key in it, and then decides on all rows before its end: those of the dirty part, and those before it,
where each key is unique already. If there are too many keys to hold, the pass ends there and the next one continues.

A tombstone (a null value) removes the older messages of its key. It may be removed itself, but later: a reader that has
seen one of those must find it. So it stays until `tombstone_retention` has elapsed since the end of a pass that covered
it, and as long as an older message of its key is still there, which happens where that row alone could cover its
offsets. The last row of the log always stays. Decisions made before a restart are not known: then all is dirty again.

A hidden row (see `eraser`) is no current one of its key, so the last one that readers are shown stays.

Where marks say which rows are live (ADR 89), the survey is the leader's, and what it finds is to be hidden: no row has
to stay to cover offsets. Offsets that this replica's log has lost, as its cleaner once decided alone, are among it.

    [     clean: each key once     |      dirty      | too new ][ active ]
                                    ╰── last of each key ──╯

Where rollups are allowed (`Nats-Rollup: sub`), the same pass removes rows that a rollup of their subject follows: see
`subject_rollups`. Batch headers tell which segments have new rollups; if none has, and no keys are due, the pass ends
there.

The idea is that of Kafka's log cleaner: "dirty" and "clean" parts, and tombstones that stay for a while after a pass
(KIP-534). Here keys are compared as they are, not by a hash, and all decisions on a segment are made before it is
rewritten, completely or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.batch import masking
from penstock.batch.codec import PREFIX_BYTES, check_rows
from penstock.batch.header import MAY_ROLL_UP_SUBJECTS, BatchHeader
from penstock.batch.keys import without_empty
from penstock.batch.merging import Merged
from penstock.commitlog.cleaner.latest_by_key import LatestByKey
from penstock.commitlog.cleaner.merged import UnsoundError, merged_batches, wanted_batches
from penstock.commitlog.cleaner.retained_rows import CompactionRules, FoundRows, RetainedRows, RetainedRowsBuilder
from penstock.commitlog.cleaner.subject_rollups import SubjectRollups, rollups_of
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView
from penstock.live.row_set import NONE, RowSet
from penstock.vfs import Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class Survey(IncrementalTask):
    """Finds the rows that a compaction pass removes."""

    def __init__(
        self, vfs: Vfs, view: LogView, segments: Sequence[Segment], rules: CompactionRules, bytes_max: int
    ) -> None:
        self.judged: list[RetainedRows] = []
        self.found = NONE  # rows to be hidden, if the pass works by marks; then no segment is judged
        self.pieces: list[RowSet] = []  # the same, split for marks: that may take seconds
        self.rules = rules
        self.end = rules.end  # up to which the pass has decided
        self.has_tombstones = False  # that stay now and may be removed later
        self.forced_keys: list[bytes] = []  # of rows that should be removed but must cover offsets
        self.forced_subjects: list[bytes] = []  # the same for subjects, where rollups are allowed
        self.is_whole = False  # everything was read and decided
        self.has_judged = False  # more than the search for rollups was done
        self._vfs = vfs
        self._view = view
        self._segments = segments
        self._bytes_max = bytes_max
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        # A removed tombstone must not coexist with the messages that it ended, even after a power loss.
        self._vfs.sync_dir(self._segments[0].path.rpartition("/")[0])
        latest, rollups = (LatestByKey(limits.COMPACTION_KEYS_MAX, limits.COMPACTION_KEY_BYTES_MAX) for _ in range(2))
        try:
            rolling = yield from self._rolling()
            if self.rules.is_due or rolling:
                yield from self._note(latest, rollups, rolling)
                yield from self._judge(latest, rollups)
                self.has_judged = True
        except UnsoundError:
            return
        self.is_whole = True

    def _rolling(self) -> Generator[int, None, list[Segment]]:
        """Return the segments that may have new rollups, by the headers of their batches."""
        start = self.rules.rollups_start
        found: list[Segment] = []
        if start is None:
            return found
        moved = 0
        for segment in self._segments:
            if segment.end_offset <= start:
                continue
            with (
                contextlib.suppress(FileNotFoundError),  # retention removed it
                contextlib.closing(wanted_batches(self._vfs, segment, self._view, _never)) as batches,
            ):
                for header, _ in batches:
                    moved += PREFIX_BYTES
                    if header.flags & MAY_ROLL_UP_SUBJECTS and header.end_offset > start:
                        found.append(segment)
                        break
                    if moved >= limits.CLEANING_SLICE_BYTES:
                        yield moved
                        moved = 0
                        if self.is_void:
                            raise UnsoundError
        yield moved
        return found

    def _note(self, latest: LatestByKey, rollups: LatestByKey, rolling: Sequence[Segment]) -> Iterator[int]:
        moved = 0
        rules = self.rules
        wanted = {one.base_offset for one in rolling}
        if rules.by_key:
            wanted.update(one.base_offset for one in self._segments if one.end_offset > rules.dirty_start)
        for merged in self._batches([one for one in self._segments if one.base_offset in wanted]):
            header = merged.header
            if rules.by_key and header.end_offset > rules.dirty_start:
                rows = check_rows(merged.data)
                if (
                    rules.hidden is not None
                    and (shown := masking.shown(rows.column("offset"), rules.hidden)) is not None
                ):
                    rows = rows.filter(shown)
                latest.add(_keys(rows), rows.column("offset"))
            if rules.rollups_start is not None and header.flags & MAY_ROLL_UP_SUBJECTS:
                rollups.add(*rollups_of(merged.data, rules.rollups_start))
            if latest.is_full or rollups.is_full:
                self.end = header.end_offset
                break
            moved += merged.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
        latest.close()
        rollups.close()
        yield moved

    def _batches(self, segments: Iterable[Segment]) -> Iterator[Merged]:
        for segment in segments:
            with contextlib.suppress(FileNotFoundError):  # retention removed it: it has no rows any more
                for merged in merged_batches(self._vfs, segment, self._view, self._bytes_max):
                    if self.is_void:
                        raise UnsoundError
                    yield merged

    def _judge(self, latest: LatestByKey, rollups: LatestByKey) -> Iterator[int]:
        rules = self.rules
        judging = _Judging(rules, latest, rollups, self.end - 1)
        moved = 0
        for segment in self._segments:
            if segment.base_offset >= (self.end if rules.by_key else min(self.end, rollups.last_offset)):
                break
            judging.begin(segment)
            for merged in self._batches([segment]):
                judging.batch(merged.header, check_rows(merged.data))
                moved += merged.size_bytes
                if moved >= limits.CLEANING_SLICE_BYTES:
                    yield moved
                    moved = 0
        judging.finish()
        self.judged, self.found = judging.judged, judging.found
        self.pieces = self.found.split(limits.SURVEY_MARK_BYTES_MAX)
        self.has_tombstones = judging.has_tombstones
        self.forced_keys, self.forced_subjects = judging.forced_keys, judging.forced_subjects
        yield moved


class _Judging:
    """Collects the decisions, segment by segment."""

    def __init__(self, rules: CompactionRules, latest: LatestByKey, rollups: LatestByKey, last_offset: int) -> None:
        self.judged: list[RetainedRows] = []
        self.found = NONE
        self.forced_keys: list[bytes] = []
        self.forced_subjects: list[bytes] = []
        self.has_tombstones = False
        self._rules = rules
        self._hides = FoundRows(rules.hidden) if rules.by_marks else None
        self._latest = latest
        # Keep the last row: without it, the log would seem to end earlier than readers have read.
        self._last_offset = last_offset
        self._found: list[RetainedRowsBuilder] = []
        self._rolled = SubjectRollups(rules, rollups) if len(rollups) else None
        # Clean rows are processed in bulk: each lookup costs as much as all recorded keys.
        self._clean: list[tuple[list[pa.BooleanArray | None], int, pa.Table]] = []
        self._clean_rows = self._clean_bytes = 0

    def begin(self, segment: Segment) -> None:
        """Start the next segment."""
        if self._rolled is not None and self._rolled.is_enough:
            self._judge_clean()
            self._rolled.judge()
        self._found.append(RetainedRowsBuilder(segment))

    def batch(self, header: BatchHeader, rows: pa.RecordBatch) -> None:
        """Process the next batch of the segment."""
        import pyarrow as pa

        found, rules = self._found[-1], self._rules
        if self._hides is not None:
            self._look(header, rows, self._hides)
            return
        last_key = _keys(rows)[-1].as_py() if rules.by_key else None
        last_subject = None if self._rolled is None else rows.column("subject")[-1].as_py().encode()
        if rules.hidden is not None and rows.column("offset")[-1].as_py() in rules.hidden:
            last_key = last_subject = None  # nothing is hidden from readers by what they are not shown
        found.batch(header, last_key, last_subject)
        if header.end_offset > self._last_offset + 1:  # left to the next pass
            found.keeps.append(pa.repeat(pa.scalar(True), header.count))
            return
        if not rules.by_key:
            found.keeps.append(pa.repeat(pa.scalar(True), header.count))
        elif header.end_offset > rules.dirty_start:
            self.dirty(rows)
        else:
            self.clean(rows)
        if self._rolled is not None:
            self._rolled.add(found, header, rows)

    def _look(self, header: BatchHeader, rows: pa.RecordBatch, hides: FoundRows) -> None:
        """Process the next batch for marks: rows that are hidden are no rows any more."""
        if header.end_offset > self._last_offset + 1:  # left to the next pass
            return
        is_dirty = header.end_offset > self._rules.dirty_start
        if is_dirty:
            hides.add_gaps(header, rows.column("offset"))
        hidden = self._rules.hidden
        if hidden is not None and (shown := masking.shown(rows.column("offset"), hidden)) is not None:
            rows = rows.filter(shown)
        if not rows.num_rows:
            return
        if is_dirty:
            self.dirty(rows)
        else:
            self.clean(rows)

    def _note(self, offsets: pa.Int64Array, keep: pa.BooleanArray) -> None:
        """Append decisions for the next rows of the segment."""
        import pyarrow.compute as pc

        if self._hides is None:
            self._found[-1].keeps.append(keep)
        else:
            self._hides.add(offsets.filter(pc.invert(keep)))

    def dirty(self, rows: pa.RecordBatch) -> None:
        """Decide on the next rows of the dirty part."""
        import pyarrow.compute as pc

        keys = _keys(rows)
        keep = self._latest.are_last(keys, rows.column("offset"))
        if not self.has_tombstones:
            stay = pc.and_(keep, _tombstones(rows, keys))
            self._look_for_tombstones(rows.column("offset"), keys, stay)
        self._note(rows.column("offset"), keep)

    def _look_for_tombstones(self, offsets: pa.Int64Array, keys: pa.BinaryArray, stay: pa.BooleanArray) -> None:
        """Set `has_tombstones` if one of the rows that stay may be removed later."""
        import pyarrow.compute as pc

        if stay.true_count:
            may_go = pc.and_(pc.and_(stay, pc.less(offsets, self._last_offset)), self._are_free(keys))
            self.has_tombstones = self.has_tombstones or bool(may_go.true_count)

    def _are_free(self, keys: pa.BinaryArray) -> pa.BooleanArray:
        """Return, per key, True if no older message of it has to stay."""
        import pyarrow as pa
        import pyarrow.compute as pc

        forced = pa.array(list(self._rules.forced_keys), pa.binary())
        return pc.invert(pc.is_in(keys, value_set=forced))

    def clean(self, rows: pa.RecordBatch) -> None:
        """Buffer the next rows of the clean part."""
        import pyarrow as pa

        places, keys = self._found[-1].keeps, _keys(rows)
        few = pa.table([rows.column("offset"), keys, _tombstones(rows, keys)], ["offset", "key", "gone"])
        self._clean.append((places, len(places), few))
        places.append(None)
        self._clean_rows += rows.num_rows
        self._clean_bytes += few.nbytes
        if self._clean_rows >= limits.COMPACTION_ROWS_AT_ONCE or self._clean_bytes >= limits.COMPACTION_KEY_BYTES_MAX:
            self._judge_clean()

    def _judge_clean(self) -> None:
        import pyarrow as pa

        if not self._clean:
            return
        rows = pa.concat_tables([few for _, _, few in self._clean])
        offsets, *others = (column.combine_chunks() for column in rows.columns)
        keep = self._of_clean(offsets, *others)
        if self._hides is not None:
            self._note(offsets, keep)
        first = 0
        for places, number, few in self._clean:
            places[number] = keep.slice(first, few.num_rows)
            first += few.num_rows
        self._clean = []
        self._clean_rows = self._clean_bytes = 0

    def _of_clean(self, offsets: pa.Int64Array, keys: pa.BinaryArray, gone: pa.BooleanArray) -> pa.BooleanArray:
        import pyarrow.compute as pc

        keep = self._latest.lack(keys)
        may_go = pc.and_(gone, pc.less(offsets, min(self._rules.tombstones_end, self._last_offset)))
        if may_go.true_count:
            keep = pc.and_(keep, pc.invert(pc.and_(may_go, self._are_free(keys))))
        self._look_for_tombstones(offsets, keys, pc.and_(keep, gone))
        return keep

    def finish(self) -> None:
        """Finish the pass: decide on all buffered rows, and force one row to stay where offsets need a cover."""
        self._judge_clean()
        if self._rolled is not None:
            self._rolled.judge()
        if self._hides is not None:
            self.found = self._hides.finish()
            return
        for found in self._found:
            if found.keeps:
                keep, keys, subjects = found.forced()
                self.forced_keys += keys
                self.forced_subjects += subjects
                if keep.false_count:
                    self.judged.append(RetainedRows(found.segment, keep, is_ordered=self._rolled is not None))


def _never(_: BatchHeader) -> bool:
    """Want no batch: its header is enough."""
    return False


def _keys(rows: pa.RecordBatch) -> pa.BinaryArray:
    return without_empty(rows.column("key"))


def _tombstones(rows: pa.RecordBatch, keys: pa.BinaryArray) -> pa.BooleanArray:
    import pyarrow.compute as pc

    return pc.and_(rows.column("value").is_null(), keys.is_valid())
