"""Rollups: a message with `Nats-Rollup: sub` removes the older messages of its subject. Decides which ones.

Rules: a rollup takes effect in the pass that covers it, so it is committed by then. It stays itself until the next
rollup or, with compaction, a newer message of its key. So that no power loss keeps the older messages but loses the
rollup's effect, such a pass writes segments in order, each after the names of the earlier ones are durable.

With compaction, a row removed by a rollup must take the earlier rows of its key along, as those would count as current
again. If one of these must stay to cover offsets, the last row of the key stays, too. Forced rows are known only once
the whole segment is decided, so segments are decided as a whole, several at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch.codec import LAYOUT, Buffer, check_rows
from penstock.batch.header import BatchHeader
from penstock.commitlog.cleaner.latest_by_key import LatestByKey
from penstock.commitlog.cleaner.retained_rows import CompactionRules, RetainedRowsBuilder
from penstock.hot.rows import BatchRows

if TYPE_CHECKING:
    import pyarrow as pa


class _Part(NamedTuple):
    """Rows that a rollup may remove, and where their decisions are stored."""

    found: RetainedRowsBuilder
    number: int
    rows: pa.Table


def rollups_of(data: Buffer, start: int) -> tuple[pa.BinaryArray, pa.Int64Array]:
    """Return subjects and offsets of the rollups in an uncompressed message, from `start` on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = check_rows(data)
    marks = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(BatchRows(data, LAYOUT).rollups())])
    wanted = pc.and_(pc.equal(marks, 1), pc.greater_equal(rows.column("offset"), start))
    return rows.column("subject").filter(wanted).cast(pa.binary()), rows.column("offset").filter(wanted)


class SubjectRollups:
    """Applies the recorded rollups to the decisions already made on rows."""

    def __init__(self, rules: CompactionRules, rollups: LatestByKey) -> None:
        self._rules = rules
        self._rollups = rollups
        self._forced_keys = set(rules.forced_keys)
        self._parts: list[_Part] = []
        self._rows = self._bytes = 0

    @property
    def is_enough(self) -> bool:
        """True if enough rows are buffered for `judge`, which costs as much as all recorded rollups."""
        return self._rows >= limits.COMPACTION_ROWS_AT_ONCE or self._bytes >= limits.COMPACTION_KEY_BYTES_MAX

    def add(self, found: RetainedRowsBuilder, header: BatchHeader, rows: pa.RecordBatch) -> None:
        """Buffer the rows on which the latest decisions were made."""
        import pyarrow as pa

        if header.base_offset >= self._rollups.last_offset:
            return
        few = {"offset": rows.column("offset"), "subject": rows.column("subject").cast(pa.binary())}
        if self._rules.by_key:
            few["key"] = rows.column("key")
        part = _Part(found, len(found.keeps) - 1, pa.table(few))
        self._parts.append(part)
        self._rows += part.rows.num_rows
        self._bytes += part.rows.nbytes

    def judge(self) -> None:
        """Apply the rollups to the buffered rows, which must be complete segments with all other decisions made."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._parts:
            return
        rows = pa.concat_tables([part.rows for part in self._parts])
        before = pa.concat_arrays([part.found.keeps[part.number] for part in self._parts])
        offsets, subjects, *keyed = (column.combine_chunks() for column in rows.columns)
        goes = pc.fill_null(pc.less(offsets, self._rollups.last_of(subjects)), fill_value=False)
        keep = pc.and_not(before, goes)
        for keys in keyed:
            if not self._rules.keys_go:
                goes = pc.and_(goes, keys.is_null())
                keep = pc.and_not(before, goes)
            self._note(keep)
            stay = self._are_forced(keys)
            keep = pc.and_(before, pc.or_(keep, stay))
        self._note(keep)
        self._parts = []
        self._rows = self._bytes = 0

    def _note(self, keep: pa.BooleanArray) -> None:
        """Store the decisions."""
        first = 0
        for part in self._parts:
            part.found.keeps[part.number] = keep.slice(first, part.rows.num_rows)
            first += part.rows.num_rows

    def _are_forced(self, keys: pa.BinaryArray) -> pa.BooleanArray:
        """Return, per row, True if an older row of its key must stay, as far as decided."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for found in dict.fromkeys(part.found for part in self._parts):
            self._forced_keys.update(found.forced().keys)
        return pc.is_in(keys, value_set=pa.array(list(self._forced_keys), pa.binary()))
