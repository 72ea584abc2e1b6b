"""Check the offsets and timestamps of a batch against its header.

Rules: a CRC proves that bytes are as they were written, not that the writer was right. A reader trusts the header; a
row with another offset than the header says would be lost, or read twice, without notice.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.hot import load

_int = int


class NumberMistake(IntEnum):
    """The result of the check."""

    NONE = 0
    OFFSETS = 1  # they do not rise, or leave the header's range
    TIMESTAMPS = 2  # they fall, or leave the header's range


_NONE = 0
_OFFSETS = 1
_TIMESTAMPS = 2


def number_mistake(
    offsets: memoryview, timestamps: memoryview, base_offset: _int, end_offset: _int, min_us: _int, max_us: _int
) -> int:
    """Return a `NumberMistake` for both columns as in the body: 8 bytes a row, at least one row."""
    count = len(offsets) // 8
    if len(timestamps) // 8 != count:
        raise IndexError("as many timestamps as offsets")
    at = load.int64s_within(offsets, 0, count)
    when = load.int64s_within(timestamps, 0, count)
    if at[0] < base_offset or at[count - 1] >= end_offset or not load.rises(at, count):
        return _OFFSETS
    if when[0] < min_us or when[count - 1] > max_us or load.goes_back(when, count):
        return _TIMESTAMPS
    return _NONE
