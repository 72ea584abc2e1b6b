"""Look through the offsets and timestamps of a batch: are they what its header says?

Rules: a CRC says that bytes are as they were written, not that whoever wrote them was right. A reader goes by the
header; so a row that is not where the header has it would be lost, or come twice, and nobody would know.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.hot import load

_int = int


class NumberMistake(IntEnum):
    """What can be wrong."""

    NONE = 0
    OFFSETS = 1  # they do not rise from row to row, or leave the header's
    TIMESTAMPS = 2  # they go back, or leave the header's


_NONE = 0
_OFFSETS = 1
_TIMESTAMPS = 2


def number_mistake(
    offsets: memoryview, timestamps: memoryview, base_offset: _int, end_offset: _int, min_us: _int, max_us: _int
) -> int:
    """A `NumberMistake`, of both columns as they lie in the body: 8 bytes a row, one row at least."""
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
