"""Compaction: of each key the last message stays. This decides which rows go; `cleaning` writes segments without them.

Rules: judged is what is sealed, committed, on the disk and old enough. Messages without a key always stay. A pass reads
what has come since the last one (the dirty part), notes the last offset of each key in it, and then judges all rows
before its end: those of the dirty part, and those before it, where each key is there once. Where there are too many
keys to be noted, the pass ends there, and the next one goes on.

A tombstone (a null value) takes the older messages of its key with it, and may go itself, but later: a reader that has
seen one of those must find it. So it stays until a pass that had it judged has been over for `tombstone_retention`; and
as long as an older message of its key is still there, which is so where that was the only row that could cover its
offsets (`Thinner.forced_keys`). What was judged before a start is not known: then all is dirty again.

    [     clean: each key once     |      dirty      | too new ][ active ]
                                    ╰── last of each key ──╯

The idea is that of Kafka's log cleaner: "dirty" and "clean" parts, and tombstones that stay for a while after a pass
(KIP-534). Here keys are compared as they are, and rows are judged before a segment is written, for good or not at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch.codec import check_rows
from penstock.batch.merging import Merged
from penstock.commitlog.latest import Latest
from penstock.commitlog.merged import UnsoundError, merged_batches
from penstock.commitlog.segment import Segment
from penstock.commitlog.sliced import SlicedWork
from penstock.commitlog.view import LogView
from penstock.vfs import Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class Rules(NamedTuple):
    """By what a pass judges."""

    dirty_start: int  # each key is there once in what comes before
    end: int
    tombstones_end: int = 0  # those before it may go, …
    forced_keys: frozenset[bytes] = frozenset()  # … but for those of these keys


class Judged(NamedTuple):
    """One segment that has rows to go: which of its rows stay, as far as they were judged."""

    segment: Segment
    keep: pa.BooleanArray


class Survey(SlicedWork):
    """Finds which rows go."""

    def __init__(self, vfs: Vfs, view: LogView, segments: Sequence[Segment], rules: Rules, bytes_max: int) -> None:
        self.judged: list[Judged] = []
        self.end = rules.end  # up to where it has come
        self.has_tombstones = False  # that stay
        self.is_whole = False  # all was read, and is judged
        self._vfs = vfs
        self._view = view
        self._segments = segments
        self._rules = rules
        self._bytes_max = bytes_max
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        # A tombstone that goes must not come back to what it has ended, whatever the power does.
        self._vfs.sync_dir(self._segments[0].path.rpartition("/")[0])
        latest = Latest(limits.COMPACTION_KEYS_MAX, limits.COMPACTION_KEY_BYTES_MAX)
        try:
            yield from self._note(latest)
            yield from self._judge(latest)
        except UnsoundError:
            return
        self.is_whole = True

    def _note(self, latest: Latest) -> Iterator[int]:
        moved = 0
        dirty = [one for one in self._segments if one.end_offset > self._rules.dirty_start]
        for merged in self._batches(dirty):
            if merged.header.end_offset > self._rules.dirty_start:
                rows = check_rows(merged.data)
                latest.add(rows.column("key"), rows.column("offset"))
            if latest.is_full:
                self.end = merged.header.end_offset
                break
            moved += merged.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
        latest.close()
        yield moved

    def _batches(self, segments: Iterable[Segment]) -> Iterator[Merged]:
        for segment in segments:
            for merged in merged_batches(self._vfs, segment, self._view, self._bytes_max):
                if self.is_void:
                    raise UnsoundError
                yield merged

    def _judge(self, latest: Latest) -> Iterator[int]:
        import pyarrow as pa

        judging = _Judging(self._rules, latest)
        moved = 0
        for segment in self._segments:
            if segment.base_offset >= self.end:
                break
            judging.begin(segment)
            for merged in self._batches([segment]):
                header = merged.header
                if header.end_offset > self.end:
                    judging.note(pa.repeat(pa.scalar(True), header.count))
                elif header.end_offset > self._rules.dirty_start:
                    judging.dirty(check_rows(merged.data))
                else:
                    judging.clean(check_rows(merged.data))
                moved += merged.size_bytes
                if moved >= limits.CLEANING_SLICE_BYTES:
                    yield moved
                    moved = 0
        judging.finish()
        self.judged = judging.judged
        self.has_tombstones = judging.has_tombstones
        yield moved


class _Judging:
    """Collects what is judged, segment by segment."""

    def __init__(self, rules: Rules, latest: Latest) -> None:
        self.judged: list[Judged] = []
        self.has_tombstones = False
        self._rules = rules
        self._latest = latest
        self._found: list[tuple[Segment, list[pa.BooleanArray | None]]] = []
        # Clean rows are judged many at a time: each time costs as much as all keys that are noted.
        self._clean: list[tuple[list[pa.BooleanArray | None], int, pa.Table]] = []
        self._clean_rows = self._clean_bytes = 0

    def begin(self, segment: Segment) -> None:
        """What comes now is of it."""
        self._found.append((segment, []))

    def note(self, keep: pa.BooleanArray) -> None:
        """The next rows of the segment, judged."""
        self._found[-1][1].append(keep)

    def dirty(self, rows: pa.RecordBatch) -> None:
        """The next rows, of the dirty part."""
        import pyarrow.compute as pc

        keep = self._latest.are_last(rows.column("key"), rows.column("offset"))
        self.has_tombstones = self.has_tombstones or bool(pc.and_(keep, _tombstones(rows)).true_count)
        self.note(keep)

    def clean(self, rows: pa.RecordBatch) -> None:
        """The next rows, of the clean part."""
        import pyarrow as pa

        places = self._found[-1][1]
        few = pa.table([rows.column("offset"), rows.column("key"), _tombstones(rows)], ["offset", "key", "gone"])
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
        keep = self._of_clean(*(column.combine_chunks() for column in rows.columns))
        first = 0
        for places, number, few in self._clean:
            places[number] = keep.slice(first, few.num_rows)
            first += few.num_rows
        self._clean = []
        self._clean_rows = self._clean_bytes = 0

    def _of_clean(self, offsets: pa.Int64Array, keys: pa.BinaryArray, gone: pa.BooleanArray) -> pa.BooleanArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        rules = self._rules
        keep = self._latest.lack(keys)
        may_go = pc.and_(gone, pc.less(offsets, rules.tombstones_end))
        if rules.forced_keys and may_go.true_count:
            forced = pa.array(list(rules.forced_keys), pa.binary())
            may_go = pc.and_(may_go, pc.invert(pc.is_in(keys, value_set=forced)))
        keep = pc.and_(keep, pc.invert(may_go))
        self.has_tombstones = self.has_tombstones or bool(pc.and_(keep, gone).true_count)
        return keep

    def finish(self) -> None:
        """That was all."""
        import pyarrow as pa

        self._judge_clean()
        for segment, places in self._found:
            keep = pa.concat_arrays(places)
            if keep.false_count:
                self.judged.append(Judged(segment, keep))


def _tombstones(rows: pa.RecordBatch) -> pa.BooleanArray:
    import pyarrow.compute as pc

    return pc.and_(rows.column("value").is_null(), rows.column("key").is_valid())
