"""Numbers in bytes: code that is written twice, here for plain Python.

Rules: `load.pxd` has the same functions for compiled code, on pointers, where nothing checks a bound. So whoever calls
one has made sure that what it reads is there.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from operator import add, sub

_INT32 = struct.Struct("<i")


def head(data: bytes | bytearray | memoryview, size: int) -> bytes:
    """A copy of the first bytes, `size` of them if there are so many."""
    return bytes(data[:size])


def zeroed(text: bytes, at: int) -> bytes:
    """The same with the digits `00000000` at one place, which is within it."""
    return b"%b00000000%b" % (text[:at], text[at + 8 :])


def copied(data: bytes | bytearray | memoryview) -> bytearray:
    """A copy. Compiled, other threads run while it is made."""
    return bytearray(data)


def put_int64s(target: bytearray, at: int, first: int, step: int, count: int) -> None:
    """Write `count` numbers of 8 bytes, little-endian: first, first + step, …"""
    numbers = range(first, first + step * count, step) if step else (first,) * count
    target[at : at + 8 * count] = array("q", numbers).tobytes()


def same(one: bytes, other: bytes, begin: int, end: int) -> bool:
    """Whether both hold the same from `begin` to `end`."""
    return one[begin:end] == other[begin:end]


def equal(text: bytes, one: int, other: int, size: int) -> bool:
    """Whether the same bytes lie at both places."""
    return text[one : one + size] == text[other : other + size]


def int64s(text: bytes, at: int, count: int) -> Sequence[int]:
    """So many numbers of 8 bytes, little-endian, at any place. Compiled, it points to them."""
    return struct.unpack_from(f"<{count}q", text, at)


def uint32(text: bytes, at: int) -> int:
    """4 bytes, little-endian."""
    return int.from_bytes(text[at : at + 4], "little")


def uint64(text: bytes, at: int) -> int:
    """8 bytes, little-endian."""
    return int.from_bytes(text[at : at + 8], "little")


def put_int32(target: bytearray, at: int, value: int) -> None:
    """Write 4 bytes, little-endian."""
    _INT32.pack_into(target, at, value)


def int32s(view: memoryview, at: int, count: int) -> list[int]:
    """So many numbers of 4 bytes, little-endian; IndexError if they are not all there. Compiled, it points to them."""
    if at < 0 or count <= 0 or count > (len(view) - at) // 4:
        raise IndexError("numbers beyond the end")
    return view[at : at + 4 * count].cast("i").tolist()


def int64s_within(view: memoryview, at: int, count: int) -> list[int]:
    """So many numbers of 8 bytes, little-endian; IndexError if they are not all there. Compiled, it points to them."""
    if at < 0 or count <= 0 or count > (len(view) - at) // 8:
        raise IndexError("numbers beyond the end")
    return view[at : at + 8 * count].cast("q").tolist()


def rises(numbers: list[int], count: int) -> bool:
    """Whether each of so many numbers is larger than the one before it."""
    return numbers == sorted(set(numbers))


def goes_back(numbers: list[int], count: int) -> bool:
    """Whether any of so many numbers is smaller than the one before it."""
    return numbers != sorted(numbers)


def falls(numbers: list[int], count: int) -> bool:
    """Whether any of so many numbers is smaller than the one before it."""
    return numbers != sorted(numbers)


def widest(ends: list[int], count: int) -> int:
    """The largest step from one to the next of so many value offsets, which never fall; one step at least."""
    found: int = max(map(sub, ends[1:], ends))
    return found


def widest_pair(ends: list[int], other_ends: list[int], count: int) -> int:
    """The same for the sum of the steps at one place in both."""
    found: int = max(map(add, map(sub, ends[1:], ends), map(sub, other_ends[1:], other_ends)))
    return found


def ones(bits: bytes, count: int) -> int:
    """How many of the first `count` bits are 1; a byte's lowest bit comes first. They are all there."""
    return (int.from_bytes(bits, "little") & ((1 << count) - 1)).bit_count()


def hex_number(text: bytes, at: int, digits: int) -> int:
    """So many hex digits, 16 at most. They are hex digits: somebody has looked."""
    return int(text[at : at + digits], 16)


def hex_spelling(text: bytes, begin: int, end: int) -> int:
    """What lies there: 0 something that is no hex digit, 1 hex digits, some in upper case, 2 lower-case hex digits."""
    part = text[begin:end]
    if not part.translate(None, b"0123456789abcdef"):
        return 2
    return 0 if part.translate(None, b"0123456789abcdefABCDEF") else 1
