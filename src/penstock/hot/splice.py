"""Copying pieces of columns behind each other: written twice, here for plain Python.

Rules: `splice.pxd` has the same functions for compiled code, on pointers, without bounds checks. So the caller must
have checked that the source is there, and that the target has room. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from array import array

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_UINT32_MASK = 2**32 - 1


def text_of(raw: memoryview) -> memoryview:
    """The source to read from; compiled, a pointer to it, valid as long as `raw` is held."""
    return raw


def hex_number(text: memoryview, at: int) -> int:
    """Parse 8 lower-case hex digits; 0 if they are invalid."""
    digits = bytes(text[at : at + 8])
    return 0 if digits.translate(None, b"0123456789abcdef") else int(digits, 16)


def int32(text: memoryview, at: int) -> int:
    """Return 4 bytes as a number."""
    number: int = _INT32.unpack_from(text, at)[0]
    return number


def int64(text: memoryview, at: int) -> int:
    """Return 8 bytes as a number."""
    number: int = _INT64.unpack_from(text, at)[0]
    return number


def room(size: int) -> bytearray:
    """Return memory to be filled; compiled, it is not cleared."""
    return bytearray(size)


def copy(target: bytearray, to: int, text: memoryview, at: int, size: int) -> None:
    """Copy `size` bytes to position `to`."""
    target[to : to + size] = text[at : at + size]


def copy_int32s(target: bytearray, to: int, text: memoryview, at: int, count: int, more: int) -> None:
    """Copy `count` numbers of 4 bytes, each plus `more`, modulo 2**32."""
    numbers = array("I")
    numbers.frombytes(text[at : at + 4 * count])
    moved = array("I", [number + more & _UINT32_MASK for number in numbers])
    target[to : to + 4 * count] = moved.tobytes()


def copy_bits(target: bytearray, to: int, text: memoryview, at: int, count: int) -> None:
    """Copy `count` bits, from byte `at` to bit `to`; `target` has zeros there."""
    for number in range(count):
        if text[at + (number >> 3)] >> (number & 7) & 1:
            target[to + number >> 3] |= 1 << (to + number & 7)


def set_bits(target: bytearray, to: int, count: int) -> None:
    """Set `count` bits from bit `to` on."""
    for number in range(to, to + count):
        target[number >> 3] |= 1 << (number & 7)
