"""Rollups of subjects: for a message with `Nats-Rollup: sub` the older ones of its subject go. This decides which.

Rules: a rollup counts once it is judged, so it is committed, and what comes before it goes in that pass. The rollup
itself stays until another one comes, or a newer message of its key, where that counts. So that no power loss keeps what
was to go without what it was to go for, such a pass writes segments in their order, each once the names of those before
are durable.

Where of each key the last row stays, one that goes for a rollup must take those before it of its key along: they would
count again, else. Where one of these must stay, to cover offsets, so does the last one. What must stay of a segment is
known once all of it is judged, so segments are judged as a whole, some at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch.codec import LAYOUT, Buffer, check_rows
from penstock.batch.header import BatchHeader
from penstock.commitlog.judged import Found, Rules
from penstock.commitlog.latest import Latest
from penstock.hot.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa


class _Part(NamedTuple):
    """Rows that a rollup may come behind, and where what is judged of them is noted."""

    found: Found
    number: int
    rows: pa.Table


def rollups_of(data: Buffer, start: int) -> tuple[pa.BinaryArray, pa.Int64Array]:
    """Subjects and offsets of the rollups of a plain message, from `start` on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = check_rows(data)
    marks = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(Rows(data, LAYOUT).subject_rollups())])
    wanted = pc.and_(pc.equal(marks, 1), pc.greater_equal(rows.column("offset"), start))
    return rows.column("subject").filter(wanted).cast(pa.binary()), rows.column("offset").filter(wanted)


class Rolled:
    """Judges rows by the rollups that are noted: takes out of what else was judged those that go."""

    def __init__(self, rules: Rules, rollups: Latest) -> None:
        self._rules = rules
        self._rollups = rollups
        self._forced_keys = set(rules.forced_keys)
        self._parts: list[_Part] = []
        self._rows = self._bytes = 0

    @property
    def is_enough(self) -> bool:
        """Whether `judge` is worth it: each time costs as much as all rollups that are noted."""
        return self._rows >= limits.COMPACTION_ROWS_AT_ONCE or self._bytes >= limits.COMPACTION_KEY_BYTES_MAX

    def add(self, found: Found, header: BatchHeader, rows: pa.RecordBatch) -> None:
        """The next rows, of which something was noted last."""
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
        """All rows of some segments are there, and judged else."""
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
        """What is judged goes to where it belongs."""
        first = 0
        for part in self._parts:
            part.found.keeps[part.number] = keep.slice(first, part.rows.num_rows)
            first += part.rows.num_rows

    def _are_forced(self, keys: pa.BinaryArray) -> pa.BooleanArray:
        """Of each row whether an older one of its key must stay, as far as was judged."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for found in dict.fromkeys(part.found for part in self._parts):
            self._forced_keys.update(found.forced().keys)
        return pc.is_in(keys, value_set=pa.array(list(self._forced_keys), pa.binary()))
