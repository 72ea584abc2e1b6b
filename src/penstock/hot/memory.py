"""Reading and writing single pieces of memory: the only code that is written twice, here for plain Python.

Rules: `memory.pxd` has the same functions for compiled code, on pointers, where nothing checks a bound. So whoever
calls one has made sure that [begin, end) lies within what it reads, and that there is room for what it writes.
Text is `bytes`, what is written to is a `bytearray`.
"""

from __future__ import annotations

import binascii
import struct

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_UINT64_MASK = 2**64 - 1


def part(buffer: bytes | bytearray | memoryview, begin: int, end: int) -> bytes:
    """A copy of buffer[begin:end]; IndexError if it is not all there."""
    view = memoryview(buffer)
    if not 0 <= begin <= end <= view.nbytes:
        raise IndexError(f"{begin} to {end} of {view.nbytes} bytes")
    return bytes(view[begin:end])


def find_byte(text: bytes, byte: int, begin: int, end: int) -> int:
    """Where the first such byte is within [begin, end), or -1."""
    return text.find(byte, begin, end)


def find(text: bytes, begin: int, end: int, other: bytes, other_begin: int, other_end: int) -> int:
    """Where text[begin:end] first holds other[other_begin:other_end], or -1."""
    return text.find(other[other_begin:other_end], begin, end)


def equals(text: bytes, begin: int, end: int, wanted: bytes) -> bool:
    """Whether text[begin:end] is `wanted`."""
    return text[begin:end] == wanted


def begins(text: bytes, begin: int, end: int, wanted: bytes) -> bool:
    """Whether text[begin:end] begins with `wanted`."""
    return text.startswith(wanted, begin, end)


def number(text: bytes, begin: int, end: int, digits_max: int) -> int:
    """What the decimal digits text[begin:end] say; -1 if they are none, or more than `digits_max` (18 at most)."""
    digits = text[begin:end]
    return int(digits) if digits.isdigit() and end - begin <= digits_max else -1


def cut(target: bytearray, size: int) -> None:
    """Give back what lies behind the first `size` bytes."""
    del target[size:]


def put_decimal(target: bytearray, at: int, value: int) -> int:
    """Write a number that is not negative in decimal digits; where they end."""
    digits = b"%d" % value
    target[at : at + len(digits)] = digits
    return at + len(digits)


def decimal_digits(value: int) -> int:
    """How many digits `put_decimal` writes."""
    return len(b"%d" % value)


def new_text(size: int) -> bytes:
    """Bytes that nobody has seen yet, to be written to through `inside`; compiled code only."""
    raise NotImplementedError


def inside(text: bytes) -> bytearray:
    """The memory of what `new_text` made; compiled code only."""
    raise NotImplementedError


def new(size: int) -> bytearray:
    """Memory to be written to; whatever lay there before may still be in it."""
    return bytearray(size)


def widen(target: bytearray, size: int) -> int:
    """Make room for so many bytes more at the end, to be written to; where the room begins."""
    begin = len(target)
    target += bytes(size)
    return begin


def more_places(places: list[int], count: int) -> list[int]:
    """Room for `count` places, the first of which are those that were there."""
    return places


def free_places(places: list[int]) -> None:
    """Give the room back."""


def append(target: bytearray, text: bytes, begin: int, end: int) -> None:
    """Put text[begin:end] behind `target`."""
    target += text[begin:end]


def append_base64(target: bytearray, text: bytes, begin: int, end: int) -> bool:
    """Put what text[begin:end] encodes behind `target`; False, and nothing, if it is not base64 to the letter."""
    if (end - begin) % 4 or text[begin:end].endswith(b"==="):  # which some Pythons let pass behind a whole group
        return False
    try:
        target += binascii.a2b_base64(text[begin:end], strict_mode=True)
    except binascii.Error:
        return False
    return True


def put(target: bytearray, at: int, text: bytes | bytearray, begin: int, end: int) -> None:
    """Write text[begin:end] from `at` on."""
    target[at : at + end - begin] = text[begin:end]


def put_zeros(target: bytearray, at: int, size: int) -> None:
    """Write `size` zeros from `at` on."""
    target[at : at + size] = bytes(size)


def put_int32(target: bytearray, at: int, value: int) -> None:
    """Write 4 bytes, little-endian."""
    _INT32.pack_into(target, at, value)


def put_int64(target: bytearray, at: int, value: int) -> None:
    """Write 8 bytes, little-endian."""
    _INT64.pack_into(target, at, value)


def put_hex(target: bytearray, at: int, value: int, digits: int) -> None:
    """Write a number as so many hex digits, 16 at most; what is negative as 64 bits show it."""
    target[at : at + digits] = b"%0*x" % (digits, value & _UINT64_MASK)
