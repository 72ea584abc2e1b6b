"""Defines which rows have a key: at least one byte. An empty key counts as none.

Rules: an empty key appended over the socket is stored as null; headers and envelopes cannot have one (`hot.headers`,
`hot.unwrap`). Older logs, and their backups and copies, may hold empty keys and are compared row by row: readers see
them unchanged, and all code that decides by key uses this module.
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
    """Return the column with null in place of each empty key; the same column if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.any(pc.equal(pc.binary_length(keys), 0)).as_py():
        return keys
    return pc.if_else(have_key(keys), keys, pa.scalar(None, keys.type))
