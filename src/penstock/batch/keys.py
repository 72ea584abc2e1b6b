"""Which rows have a key: one that has a byte at least. An empty key is no key.

Rules: what is appended over the socket, by whomever, has null in the place of an empty key once it is stored; headers
and envelopes have none to begin with (`hot.headers`, `hot.unwrap`). Logs from before may hold empty keys, and so do
their backups and copies, which are compared row by row: readers see them as they lie there, and whatever decides by
key asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def have_key(keys: pa.BinaryArray) -> pa.BooleanArray:
    """Return a mask, without nulls: True for each row that has a key."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.greater(pc.binary_length(keys), 0), False)


def without_empty(keys: pa.BinaryArray) -> pa.BinaryArray:
    """The column with null in the place of each empty key; itself, where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.any(pc.equal(pc.binary_length(keys), 0)).as_py():
        return keys
    return pc.if_else(have_key(keys), keys, pa.scalar(None, keys.type))
