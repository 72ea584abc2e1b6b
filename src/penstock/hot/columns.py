"""Arrow column buffers from lists of byte strings, with C loops only.

| Arrow column     | buffers                                                                 |
|------------------|-------------------------------------------------------------------------|
| `int64`          | 8 bytes a row                                                           |
| `utf8`, `binary` | 4-byte offsets, one more than rows, from 0; then all bytes, end to end  |
| validity         | one bit a row, least significant first, 1 = not null; absent = no nulls |
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

_int = int


class VarColumn(NamedTuple):
    """The three buffers of a `utf8` or `binary` column. `validity` is empty if nothing is null."""

    null_count: int
    validity: bytes | memoryview
    offsets: bytes | memoryview
    data: bytes | memoryview


def int64_range(start: _int, count: _int) -> bytes:
    """Return start, start + 1, … as an int64 buffer."""
    return array("q", range(start, start + count)).tobytes()


def int64_repeat(value: _int, count: _int) -> bytes:
    """Return one number, `count` times, as an int64 buffer."""
    return array("q", (value,)).tobytes() * count


def var_column(values: Sequence[bytes]) -> VarColumn:
    """Return a column without nulls."""
    return VarColumn(0, b"", _offsets(values), b"".join(values))


def nullable_var_column(values: Sequence[bytes | None]) -> VarColumn:
    """Return a column in which None is null."""
    null_count = values.count(None)
    if null_count == 0:
        return var_column(values)  # type: ignore[arg-type]
    if null_count == len(values):
        return null_var_column(null_count)
    present = [value or b"" for value in values]
    return VarColumn(null_count, _validity(values), _offsets(present), b"".join(present))


def null_var_column(count: _int) -> VarColumn:
    """Return a column of nulls only."""
    return VarColumn(count, bytes((count + 7) // 8), bytes(4 * (count + 1)), b"")


def _offsets(values: Sequence[bytes]) -> bytes:
    return array("i", accumulate(map(len, values), initial=0)).tobytes()


def _validity(values: Sequence[bytes | None]) -> bytes:
    # A binary literal is parsed in linear time, and its last digit is the lowest bit: so the rows are reversed.
    digits = "".join(map(_DIGIT.__getitem__, map(_is_none, reversed(values), repeat(None))))
    return int(digits, 2).to_bytes((len(values) + 7) // 8, "little")


_DIGIT = ("1", "0")


def _is_none(value: object, none: None) -> bool:
    return value is none
