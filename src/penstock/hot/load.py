"""Reading numbers out of bytes: code that is written twice, here for plain Python.

Rules: `load.pxd` has the same functions for compiled code, on pointers, where nothing checks a bound. So whoever calls
one has made sure that what it reads is there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence


def same(one: bytes, other: bytes, begin: int, end: int) -> bool:
    """Whether both hold the same from `begin` to `end`."""
    return one[begin:end] == other[begin:end]


def int64s(text: bytes, at: int, count: int) -> Sequence[int]:
    """So many numbers of 8 bytes, little-endian. Compiled, it points to them: `at` must be a multiple of 8."""
    return struct.unpack_from(f"<{count}q", text, at)


def hex_number(text: bytes, at: int, digits: int) -> int:
    """So many hex digits, 16 at most. They are hex digits: somebody has looked."""
    return int(text[at : at + digits], 16)


def hex_spelling(text: bytes, begin: int, end: int) -> int:
    """What lies there: 0 something that is no hex digit, 1 hex digits, some in upper case, 2 lower-case hex digits."""
    part = text[begin:end]
    if not part.translate(None, b"0123456789abcdef"):
        return 2
    return 0 if part.translate(None, b"0123456789abcdefABCDEF") else 1
