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
    return mistake_in(at, when, count, base_offset, end_offset, min_us, max_us)


def mistake_in(
    offsets: list[int],
    timestamps: list[int],
    count: _int,
    base_offset: _int,
    end_offset: _int,
    min_us: _int,
    max_us: _int,
) -> _int:
    """Return a `NumberMistake` for `count` rows, at least one. Compiled, it takes pointers to the numbers."""
    if offsets[0] < base_offset or offsets[count - 1] >= end_offset or not load.rises(offsets, count):
        return _OFFSETS
    if timestamps[0] < min_us or timestamps[count - 1] > max_us or load.goes_back(timestamps, count):
        return _TIMESTAMPS
    return _NONE
