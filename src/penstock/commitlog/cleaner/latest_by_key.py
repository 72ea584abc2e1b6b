"""The last offset of each key in a part of a log: the basis of compaction.

Rules: rows come in offset order. Keys are compared as they are, not by a hash. Memory is bounded: with too many keys,
or too many bytes of them, `is_full` is set, and the caller stops there.

Theory: grouping all rows at once would take the memory of all their keys. So each batch is grouped by itself, and the
groups are merged once they hold as many rows as the groups merged before: each row is grouped a few times at most, and
memory never exceeds twice that of the result.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 262_144  # fewer are not worth a merge
_PARTS_SHARE = 4  # of the bytes limit; a merge takes several times as much for a moment


class LatestByKey:
    """Maps each key to its last offset. `rows_max` and `bytes_max` limit the number and the bytes of the keys."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.is_full = False
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._whole: pa.Table | None = None
        self._parts: list[pa.Table] = []
        self._part_rows = self._part_bytes = 0
        self._offsets: memoryview | None = None  # of all rows that are the last of their keys, in order

    def add(self, keys: pa.BinaryArray, offsets: pa.Int64Array) -> None:
        """Add the next rows; rows without a key are ignored."""
        import pyarrow as pa

        table = pa.table({"key": keys, "offset": offsets})
        if keys.null_count:
            table = table.filter(keys.is_valid())
        if not len(table):
            return
        self._parts.append(_grouped([table]))
        self._part_rows += len(self._parts[-1])
        self._part_bytes += keys.nbytes
        whole_rows = 0 if self._whole is None else len(self._whole)
        if self._part_rows > max(_ROWS_AT_ONCE, whole_rows) or self._part_bytes > self._bytes_max // _PARTS_SHARE:
            self._put_together()

    def _put_together(self) -> None:
        if not self._parts:
            return
        before = [] if self._whole is None else [self._whole]
        self._whole = whole = _grouped([*before, *self._parts])
        self._parts = []
        self._part_rows = self._part_bytes = 0
        self.is_full = len(whole) > self._rows_max or whole.nbytes > self._bytes_max

    def close(self) -> None:
        """End the input; required before any lookup."""
        import pyarrow as pa

        self._put_together()
        if self._whole is None:
            self._whole = _grouped([pa.table({"key": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})])
        offsets = self._whole.column("offset").combine_chunks().sort()
        self._offsets = memoryview(offsets.buffers()[1]).cast("B").cast("q")[: len(offsets)]

    def __len__(self) -> int:
        """Number of keys."""
        assert self._whole is not None
        return len(self._whole)

    def are_last(self, keys: pa.BinaryArray, offsets: pa.Int64Array) -> pa.BooleanArray:
        """Return, per added row, True if it is the last of its key or has no key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self._offsets is not None
        first, stop = (bisect_left(self._offsets, offsets[at].as_py()) for at in (0, -1))
        last = pa.Array.from_buffers(pa.int64(), 0, [None, None])
        found = self._offsets[first : stop + 1]
        if found:
            last = pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])
        return pc.or_(pc.is_in(offsets, value_set=last), keys.is_null())

    def lack(self, keys: pa.BinaryArray) -> pa.BooleanArray:
        """Return, per row before all added ones, True if its key was not added or it has no key."""
        import pyarrow.compute as pc

        assert self._whole is not None
        return pc.or_(pc.invert(pc.is_in(keys, value_set=self._whole.column("key"))), keys.is_null())

    def last_of(self, keys: pa.BinaryArray) -> pa.Int64Array:
        """Return, per row, the last offset added for its key; null if there is none."""
        import pyarrow.compute as pc

        assert self._whole is not None
        places = pc.index_in(keys, value_set=self._whole.column("key"))
        return self._whole.column("offset").combine_chunks().take(places)

    @property
    def last_offset(self) -> int:
        """Highest offset added; -1 if there was none."""
        return self._offsets[-1] if self._offsets else -1


def _grouped(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    grouped = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate([("offset", "max")])
    return grouped.rename_columns({"key": "key", "offset_max": "offset"}).combine_chunks()
