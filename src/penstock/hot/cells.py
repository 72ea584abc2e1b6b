"""Cells of typed columns: the kinds of columns, why a row is refused, and numbers in foreign byte orders.

Written twice, here for plain Python. Rules: `cells.pxd` has the same constants and functions for compiled code, on
pointers, without bounds checks. So the caller must have checked that what is read lies within the source, and that the
target has room.

| kind of a column | bytes of a value in the column              |
|------------------|---------------------------------------------|
| BOOL, INT8       | 1; the bits of booleans are packed at last  |
| INT16            | 2                                           |
| INT32, FLOAT     | 4                                           |
| INT64, DOUBLE    | 8                                           |
| DECIMAL          | 16                                          |
| TEXT             | its UTF-8                                   |
| BINARY           | its own                                     |
| UUID             | 36, its text                                |
| RAW              | the value as it is encoded                  |
| LIST, MAP        | none: offsets into the columns of its parts |
| STRUCT           | none: its fields are columns                |
| CHOICE           | none: one of its fields has a value         |
| NOTHING          | none: always null                           |
"""

from __future__ import annotations

import struct
import sys
from decimal import Decimal

BOOL = 1
INT8 = 2
INT16 = 3
INT32 = 4
INT64 = 5
FLOAT = 6
DOUBLE = 7
DECIMAL = 8
TEXT = 9
BINARY = 10
UUID = 11
RAW = 12
LIST = 13
MAP = 14
STRUCT = 15
CHOICE = 16
NOTHING = 17

DECODED = 0
ENDS = 1  # the bytes end within a value
SIZE = 2  # a size is negative
DEEP = 3
ENCODING = 4  # text that is not UTF-8
MISSING = 5  # a required field
TRAILING = 6  # bytes behind the value
FRAME = 7  # no such frame, or one of another version
NAME = 8  # a frame of another operation
EXPANDS = 9  # many more cells than bytes
WIRE_TYPE = 10  # a type that the encoding does not have
NUMBER = 11  # one that its type cannot hold
FORM = 12  # of another form than the schema asks for
SYNTAX = 13  # no JSON

INT32_MAX = 2**31 - 1

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_DOUBLE_MAX = sys.float_info.max
_FLOAT_END = 2.0**128 - 2.0**103  # from here on a number rounds to no float
_LONG_TEXT_MAX = 1_000  # characters of a number of 64 bits; longer ones are refused, as their cost is not linear
_UINT64 = 2**64 - 1


def bytes_of(view: memoryview) -> bytes:
    """Return the bytes of a buffer. Compiled, a pointer to them: the caller holds the buffer."""
    return bytes(view)


def data_of(text: bytes) -> bytes:
    """Return the text. Compiled, a pointer to it: the caller holds the text."""
    return text


def int16_be(text: bytes, at: int) -> int:
    """Return 2 bytes, big-endian, signed."""
    return int.from_bytes(text[at : at + 2], "big", signed=True)


def int32_be(text: bytes, at: int) -> int:
    """Return 4 bytes, big-endian, signed."""
    return int.from_bytes(text[at : at + 4], "big", signed=True)


def int32_at(source: bytearray | bytes, at: int) -> int:
    """Return 4 bytes, little-endian, signed."""
    return int.from_bytes(source[at : at + 4], "little", signed=True)


def wrap32(number: int) -> int:
    """Return the number that the low 32 bits are, signed."""
    return (number & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def unsigned64(number: int) -> int:
    """Return the number that a signed one is without a sign; compiled, a `uint64_t`."""
    return number & _UINT64


def signed64(number: int) -> int:
    """Return the number that the low 64 bits are, signed; compiled, an `int64_t`."""
    return (number & _UINT64 ^ 1 << 63) - (1 << 63)


def unzigzag(number: int) -> int:
    """Return the signed number of a zigzag one: 0, -1, 1, -2, …"""
    return (number >> 1) ^ -(number & 1)


def put_number(target: bytearray, at: int, value: int, width: int) -> None:
    """Write the low `width` (1, 2, 4 or 8) bytes of a number, little-endian."""
    target[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


def put_swapped(target: bytearray, at: int, text: bytes, begin: int, width: int) -> None:
    """Write `width` bytes (at most 16) of `text` in the opposite order."""
    target[at : at + width] = text[begin : begin + width][::-1]


def is_within(target: bytearray, at: int, bounds: bytes) -> bool:
    """True if a number of 16 bytes, little-endian, signed, lies between two: below the first, above the second."""
    number, above, below = (
        int.from_bytes(text, "little", signed=True) for text in (target[at : at + 16], bounds[:16], bounds[16:32])
    )
    return below < number < above


def put_repeated(target: bytearray, at: int, byte: int, count: int) -> None:
    """Write a byte `count` times."""
    target[at : at + count] = bytes((byte,)) * count


def put_uuid(target: bytearray, at: int, text: bytes, begin: int) -> None:
    """Write 16 bytes as the text of a UUID: 36 bytes, lower case."""
    digits = text[begin : begin + 16].hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    target[at : at + 36] = "-".join(parts).encode()


def is_utf8(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is UTF-8, without surrogates."""
    try:
        text[begin:end].decode()
    except UnicodeDecodeError:
        return False
    return True


def long_number(text: bytes, begin: int, end: int, is_unsigned: int) -> int:
    """Return why a JSON number does not fit a whole number of 64 bits: FORM, NUMBER, or DECODED if it does."""
    try:
        _whole(text[begin:end], bool(is_unsigned))
    except ArithmeticError:  # decimal's own, too
        return NUMBER
    except ValueError:
        return FORM
    return DECODED


def long_value(text: bytes, begin: int, end: int) -> int:
    """Return the low 64 bits, signed, of a JSON number that `long_number` has passed."""
    return signed64(_whole(text[begin:end], text[begin] != 0x2D))


def _whole(digits: bytes, is_unsigned: bool) -> int:
    """Return a JSON number. ValueError: it is not whole; OverflowError: it takes more than 64 bits."""
    if len(digits) > _LONG_TEXT_MAX:
        raise OverflowError
    number = Decimal(digits.decode())
    if number.is_zero():
        return 0
    if number.adjusted() > 20:
        raise OverflowError
    if number != int(number):
        raise ValueError
    whole = int(number)
    if not (0 <= whole < 1 << 64 if is_unsigned else -(1 << 63) <= whole < 1 << 63):
        raise OverflowError
    return whole


def scaled(mantissa: int, exponent: int) -> float:
    """Return mantissa * 10**exponent, exact where both are doubles: up to 2**53, and 22 either way."""
    return mantissa / 10.0**-exponent if exponent < 0 else mantissa * 10.0**exponent


def parsed_real(text: bytes, begin: int, end: int) -> float:
    """Return the double that a JSON number is next to."""
    return float(text[begin:end])


def is_finite(real: float, width: int) -> bool:
    """True if a floating-point number of 4 or 8 bytes can hold a number."""
    return abs(real) < _FLOAT_END if width == 4 else abs(real) <= _DOUBLE_MAX


def put_real(target: bytearray, at: int, real: float, width: int) -> None:
    """Write a floating-point number of 4 or 8 bytes, little-endian."""
    (_FLOAT if width == 4 else _DOUBLE).pack_into(target, at, real)


def zeros(target: bytearray, count: int) -> int:
    """Return how many of the first `count` bytes are 0."""
    return target[:count].count(0)


def packed(target: bytearray, count: int) -> bytearray:
    """Return `count` bytes of 0 and 1 as bits, lowest first."""
    digits = target[:count].translate(_DIGITS)[::-1]
    return bytearray(int(digits or b"0", 2).to_bytes((count + 7) // 8, "little"))


_DIGITS = bytes((48, 49)) + bytes(254)
