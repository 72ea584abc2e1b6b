"""Reading and writing memory: written twice, here for plain Python.

Rules: `memory.pxd` has the same functions for compiled code, on pointers, without bounds checks. So the caller must
have checked that [begin, end) lies within the source, and that the target has room. Text is `bytes`, a target a
`bytearray`.
"""

from __future__ import annotations

import binascii
import struct

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_UINT64_MASK = 2**64 - 1


def part(buffer: bytes | bytearray | memoryview, begin: int, end: int) -> bytes:
    """Return a copy of buffer[begin:end]. Raise IndexError if it is out of bounds."""
    view = memoryview(buffer)
    if not 0 <= begin <= end <= view.nbytes:
        raise IndexError(f"{begin} to {end} of {view.nbytes} bytes")
    return bytes(view[begin:end])


def copied(text: bytes, begin: int, end: int) -> bytes:
    """Return a copy of text[begin:end], which is not checked."""
    return text[begin:end]


def find_byte(text: bytes, byte: int, begin: int, end: int) -> int:
    """Return the first position of the byte within [begin, end), or -1."""
    return text.find(byte, begin, end)


def find(text: bytes, begin: int, end: int, other: bytes, other_begin: int, other_end: int) -> int:
    """Return the first position of other[other_begin:other_end] in text[begin:end], or -1."""
    return text.find(other[other_begin:other_end], begin, end)


def equals(text: bytes, begin: int, end: int, wanted: bytes) -> bool:
    """True if text[begin:end] is `wanted`."""
    return text[begin:end] == wanted


def begins(text: bytes, begin: int, end: int, wanted: bytes) -> bool:
    """True if text[begin:end] begins with `wanted`."""
    return text.startswith(wanted, begin, end)


def number(text: bytes, begin: int, end: int, digits_max: int) -> int:
    """Parse the decimal digits text[begin:end]; -1 if invalid, or more than `digits_max` (at most 18)."""
    digits = text[begin:end]
    return int(digits) if digits.isdigit() and end - begin <= digits_max else -1


def cut(target: bytearray, size: int) -> None:
    """Truncate to `size` bytes."""
    del target[size:]


def put_decimal(target: bytearray, at: int, value: int) -> int:
    """Write a non-negative number in decimal digits; return their end."""
    digits = b"%d" % value
    target[at : at + len(digits)] = digits
    return at + len(digits)


def decimal_digits(value: int) -> int:
    """Return the number of digits that `put_decimal` writes."""
    return len(b"%d" % value)


def new_text(size: int) -> bytes:
    """Return new bytes that are not shared yet, to be filled through `inside`; compiled code only."""
    raise NotImplementedError


def inside(text: bytes) -> bytearray:
    """Return the memory of a `new_text`; compiled code only."""
    raise NotImplementedError


def new(size: int) -> bytearray:
    """Return memory to be filled; compiled, it is not cleared."""
    return bytearray(size)


def widen(target: bytearray, size: int) -> int:
    """Append `size` bytes to be filled; return their position."""
    begin = len(target)
    target += bytes(size)
    return begin


def more_places(places: list[int], count: int) -> list[int]:
    """Return room for `count` places, which begins with the present ones."""
    return places


def free_places(places: list[int]) -> None:
    """Free the room."""


def more_int64s(numbers: list[int], count: int) -> list[int]:
    """Return room for `count` numbers, at least one, which begins with the present ones; the rest is not cleared."""
    return numbers[:count] + [0] * (count - len(numbers))


def more_int32s(numbers: list[int], count: int) -> list[int]:
    """Return room for `count` numbers, at least one, which begins with the present ones; the rest is not cleared."""
    return more_int64s(numbers, count)


def free_int64s(numbers: list[int]) -> None:
    """Free the room."""


def free_int32s(numbers: list[int]) -> None:
    """Free the room."""


def append(target: bytearray, text: bytes | bytearray, begin: int, end: int) -> None:
    """Append text[begin:end] to `target`."""
    target += text[begin:end]


def append_base64(target: bytearray, text: bytes, begin: int, end: int) -> bool:
    """Append the decoded base64 text[begin:end]; return False, and append nothing, if it is not strict base64."""
    if (end - begin) % 4 or text[begin:end].endswith(b"==="):  # some Python versions accept this after a whole group
        return False
    try:
        target += binascii.a2b_base64(text[begin:end], strict_mode=True)
    except binascii.Error:
        return False
    return True


def put(target: bytearray, at: int, text: bytes | bytearray, begin: int, end: int) -> None:
    """Write text[begin:end] at `at`."""
    target[at : at + end - begin] = text[begin:end]


def put_zeros(target: bytearray, at: int, size: int) -> None:
    """Write `size` zeros at `at`."""
    target[at : at + size] = bytes(size)


def put_int32(target: bytearray, at: int, value: int) -> None:
    """Write 4 bytes, little-endian."""
    _INT32.pack_into(target, at, value)


def put_int64(target: bytearray, at: int, value: int) -> None:
    """Write 8 bytes, little-endian."""
    _INT64.pack_into(target, at, value)


def put_hex(target: bytearray, at: int, value: int, digits: int) -> None:
    """Write a number as `digits` hex digits, at most 16; a negative one as its 64-bit two's complement."""
    target[at : at + digits] = b"%0*x" % (digits, value & _UINT64_MASK)
