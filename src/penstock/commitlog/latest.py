"""Which offset is the last one of each key, of a part of a log: what compaction decides by.

Rules: rows come in the order of their offsets. Keys are compared as they are, not by a hash. Memory is bounded: once
there are too many keys, or too many bytes of them, `is_full`, and whoever asks stops there.

Theory: one grouping of all rows would take the memory of all their keys. So each batch is grouped by itself, and groups
are put together when they have become as many as those that are put together already: each row is grouped a few times
at most, and what is kept is never more than twice what it comes to.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 262_144  # fewer are not worth being put together
_PARTS_SHARE = 4  # of all bytes that may be noted; to put parts together takes several times as much for a moment


class Latest:
    """See the module. `rows_max`: how many keys are too many; `bytes_max`: how many bytes of them."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.is_full = False
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._whole: pa.Table | None = None
        self._parts: list[pa.Table] = []
        self._part_rows = self._part_bytes = 0
        self._offsets: memoryview | None = None  # of all that are the last of their keys, in order

    def add(self, keys: pa.BinaryArray, offsets: pa.Int64Array) -> None:
        """The next rows; those without a key are passed over."""
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
        """All rows are there; before anything is asked."""
        import pyarrow as pa

        self._put_together()
        if self._whole is None:
            self._whole = _grouped([pa.table({"key": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})])
        offsets = self._whole.column("offset").combine_chunks().sort()
        self._offsets = memoryview(offsets.buffers()[1]).cast("B").cast("q")[: len(offsets)]

    def __len__(self) -> int:
        """How many keys there are."""
        assert self._whole is not None
        return len(self._whole)

    def are_last(self, keys: pa.BinaryArray, offsets: pa.Int64Array) -> pa.BooleanArray:
        """Of rows that were added: whether each is the last of its key, or has none."""
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
        """Of rows that come before all that were added: whether the key of each is not among theirs, or it has none."""
        import pyarrow.compute as pc

        assert self._whole is not None
        return pc.or_(pc.invert(pc.is_in(keys, value_set=self._whole.column("key"))), keys.is_null())

    def last_of(self, keys: pa.BinaryArray) -> pa.Int64Array:
        """Of each row the last offset that was added of its key; null: there is none."""
        import pyarrow.compute as pc

        assert self._whole is not None
        places = pc.index_in(keys, value_set=self._whole.column("key"))
        return self._whole.column("offset").combine_chunks().take(places)

    @property
    def last_offset(self) -> int:
        """Of all that were added; -1: there was none."""
        return self._offsets[-1] if self._offsets else -1


def _grouped(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    grouped = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate([("offset", "max")])
    return grouped.rename_columns({"key": "key", "offset_max": "offset"}).combine_chunks()
