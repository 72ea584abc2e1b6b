"""Parse a message's `Nats-TTL` and `Nats-Rollup` as JetStream does.

Rules: an invalid value is reported, never taken for another time: a message that is to live for an hour must not live
for ever, nor be removed at once.

| `Nats-TTL`                              | meaning                                                           |
|-----------------------------------------|-------------------------------------------------------------------|
| `90`, decimal digits                    | seconds; zeros mean none (but a single `0` is INVALID)            |
| `1h30m`, `1.5s`, a Go duration          | its whole seconds; at least one, else INVALID                     |
| `never`, in capitals or not             | NEVER                                                             |
| anything else, or over TTL_S_MAX        | INVALID                                                           |

| `Nats-Rollup`, in capitals or not       | removes all earlier messages …                                    |
|-----------------------------------------|-------------------------------------------------------------------|
| `sub`                                   | … on its subject                                                  |
| `all`                                   | … in its partition                                                |

The idea is that of NATS's ADR-43; the notation is that of Go's `time.ParseDuration`.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.hot import memory

NEVER = -1
INVALID = -2
OF_SUBJECT = 1
OF_ALL = 2

_TTL_S_MAX = limits.TTL_S_MAX
_S_NS = 1_000_000_000
_NS_MAX = limits.TTL_S_MAX * 1_000_000_000
_DIGITS_MAX = 18
_FRACTION_MAX = 10**17  # further digits are less than a nanosecond
_NEVER = b"never"
_SUB = b"sub"
_ALL = b"all"
_MICRO_SIGN = b"\xc2\xb5s"
_GREEK_MU = b"\xce\xbcs"
_ZERO = 0x30
_NINE = 0x39
_DOT = 0x2E
_PLUS = 0x2B
_LOWER = 0x20
_H = 0x68
_M = 0x6D
_N = 0x6E
_S = 0x73
_U = 0x75
_int = int


def ttl_s(text: bytes, begin: _int, end: _int) -> int:
    """Parse the non-empty text[begin:end] as a TTL: seconds, 0 for none, NEVER or INVALID."""
    if _is_word(text, begin, end, _NEVER):
        return NEVER
    if end - begin == 1 and text[begin] == _ZERO:
        return INVALID  # a duration that is too short
    first = begin
    while first < end - 1 and text[first] == _ZERO:
        first += 1
    seconds = memory.number(text, first, end, _DIGITS_MAX)
    if seconds < 0:
        seconds = _duration_ns(text, begin, end) // _S_NS
        if seconds < 1:
            return INVALID
    return seconds if seconds <= _TTL_S_MAX else INVALID


def is_ttl(text: bytes) -> bool:
    """True if the non-empty text is a TTL."""
    return ttl_s(text, 0, len(text)) != INVALID


def rollup(text: bytes, begin: _int, end: _int) -> int:
    """Parse the non-empty text[begin:end] as a rollup: OF_SUBJECT, OF_ALL or INVALID."""
    if _is_word(text, begin, end, _SUB):
        return OF_SUBJECT
    return OF_ALL if _is_word(text, begin, end, _ALL) else INVALID


def _is_word(text: bytes, begin: _int, end: _int, word: bytes) -> bool:
    """True if text[begin:end] is `word` (lower-case letters), ignoring case."""
    letters = word
    if end - begin != len(word):
        return False
    for at in range(end - begin):  # noqa: SIM110 (compiled, a generator would cost more)
        if text[begin + at] | _LOWER != letters[at]:
            return False
    return True


def _duration_ns(text: bytes, at: _int, end: _int) -> int:
    """Return the nanoseconds of a duration; 0 if it is invalid or too long."""
    if text[at] == _PLUS:
        at += 1
    total = 0
    while at < end:
        begin = at
        whole = 0
        while at < end and _is_digit(text[at]):
            if whole > _NS_MAX // 10:
                return 0
            whole = 10 * whole + (text[at] - _ZERO)
            at += 1
        digits = at - begin
        fraction = 0
        scale = 1.0
        if at < end and text[at] == _DOT:
            at += 1
            begin = at
            while at < end and _is_digit(text[at]):
                if fraction < _FRACTION_MAX:
                    fraction = 10 * fraction + (text[at] - _ZERO)
                    scale *= 10
                at += 1
            digits += at - begin
        begin = at
        while at < end and text[at] != _DOT and not _is_digit(text[at]):
            at += 1
        unit = _unit_ns(text, begin, at)
        if digits == 0 or unit == 0 or whole > _NS_MAX // unit:
            return 0
        part = whole * unit + int(fraction * (unit / scale))
        if part > _NS_MAX - total:
            return 0
        total += part
    return total


def _unit_ns(text: bytes, begin: _int, end: _int) -> int:
    """Return the nanoseconds of the unit text[begin:end], or 0 if it is none."""
    size = end - begin
    if size == 0 or (size > 1 and text[end - 1] != _S):
        return 0
    first = text[begin]
    if size == 1:
        if first == _S:
            return 1_000_000_000
        if first == _M:
            return 60_000_000_000
        return 3_600_000_000_000 if first == _H else 0
    if size == 2:
        if first == _M:
            return 1_000_000
        if first == _U:
            return 1_000
        return 1 if first == _N else 0
    is_micro = memory.equals(text, begin, end, _MICRO_SIGN) or memory.equals(text, begin, end, _GREEK_MU)
    return 1_000 if is_micro else 0


def _is_digit(byte: _int) -> bool:
    return _ZERO <= byte <= _NINE
