"""Reading numbers from bytes: written twice, here for plain Python.

Rules: `load.pxd` has the same functions for compiled code, on pointers, without bounds checks. So the caller must have
checked the bounds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from operator import add, sub

_INT32 = struct.Struct("<i")


def head(data: bytes | bytearray | memoryview, size: int) -> bytes:
    """Return a copy of the first `size` bytes, or of all if there are fewer."""
    return bytes(data[:size])


def zeroed(text: bytes, at: int) -> bytes:
    """Return a copy with the digits `00000000` at `at`, which is within it."""
    return b"%b00000000%b" % (text[:at], text[at + 8 :])


def copied(data: bytes | bytearray | memoryview) -> bytearray:
    """Return a copy. Compiled, it releases the GIL meanwhile."""
    return bytearray(data)


def put_int64s(target: bytearray, at: int, first: int, step: int, count: int) -> None:
    """Write `count` numbers of 8 bytes, little-endian: first, first + step, …"""
    numbers = range(first, first + step * count, step) if step else (first,) * count
    target[at : at + 8 * count] = array("q", numbers).tobytes()


def same(one: bytes, other: bytes, begin: int, end: int) -> bool:
    """True if both are equal from `begin` to `end`."""
    return one[begin:end] == other[begin:end]


def equal(text: bytes, one: int, other: int, size: int) -> bool:
    """True if the bytes at both positions are equal."""
    return text[one : one + size] == text[other : other + size]


def int64s(text: bytes, at: int, count: int) -> Sequence[int]:
    """Return `count` numbers of 8 bytes, little-endian, at any position. Compiled, a pointer to them."""
    return struct.unpack_from(f"<{count}q", text, at)


def uint32(text: bytes | bytearray, at: int) -> int:
    """Return 4 bytes, little-endian, unsigned."""
    return int.from_bytes(text[at : at + 4], "little")


def uint64(text: bytes | bytearray, at: int) -> int:
    """Return 8 bytes, little-endian, unsigned."""
    return int.from_bytes(text[at : at + 8], "little")


def put_int32(target: bytearray, at: int, value: int) -> None:
    """Write 4 bytes, little-endian."""
    _INT32.pack_into(target, at, value)


def int32s(view: memoryview, at: int, count: int) -> list[int]:
    """Return `count` little-endian int32; raise IndexError if out of bounds. Compiled, a pointer to them."""
    if at < 0 or count <= 0 or count > (len(view) - at) // 4:
        raise IndexError("numbers beyond the end")
    return view[at : at + 4 * count].cast("i").tolist()


def int64s_within(view: memoryview, at: int, count: int) -> list[int]:
    """Return `count` little-endian int64; raise IndexError if out of bounds. Compiled, a pointer to them."""
    if at < 0 or count <= 0 or count > (len(view) - at) // 8:
        raise IndexError("numbers beyond the end")
    return view[at : at + 8 * count].cast("q").tolist()


def rises(numbers: list[int], count: int) -> bool:
    """True if each number is larger than the one before it."""
    return numbers == sorted(set(numbers))


def goes_back(numbers: list[int], count: int) -> bool:
    """True if any number is smaller than the one before it."""
    return numbers != sorted(numbers)


def falls(numbers: list[int], count: int) -> bool:
    """True if any number is smaller than the one before it."""
    return numbers != sorted(numbers)


def widest(ends: list[int], count: int) -> int:
    """Return the largest step between consecutive value offsets, which never fall; there is at least one."""
    found: int = max(map(sub, ends[1:], ends))
    return found


def widest_pair(ends: list[int], other_ends: list[int], count: int) -> int:
    """Return the largest sum of the two steps at the same position in both."""
    found: int = max(map(add, map(sub, ends[1:], ends), map(sub, other_ends[1:], other_ends)))
    return found


def ones(bits: bytes, count: int) -> int:
    """Return the number of 1s in the first `count` bits, lowest first; the caller has checked the bounds."""
    return (int.from_bytes(bits, "little") & ((1 << count) - 1)).bit_count()


def hex_number(text: bytes, at: int, digits: int) -> int:
    """Parse `digits` hex digits, at most 16; the caller has checked that they are hex digits."""
    return int(text[at : at + digits], 16)


def hex_spelling(text: bytes, begin: int, end: int) -> int:
    """Return 2 for lower-case hex digits only, 1 for hex digits with upper-case ones, else 0."""
    part = text[begin:end]
    if not part.translate(None, b"0123456789abcdef"):
        return 2
    return 0 if part.translate(None, b"0123456789abcdefABCDEF") else 1
