"""Validate subjects and UTF-8 text in bytes, without creating objects.

The rules are those of `base.subjects`, which also gives the error texts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.subjects import RESERVED_PREFIXES, are_plain
from penstock.hot import memory

_SUBJECT_BYTES_MAX = limits.SUBJECT_BYTES_MAX
_RESERVED = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)

_DOT = 0x2E
_STAR = 0x2A
_GREATER = 0x3E
_DELETE = 0x7F
_JETSTREAM_ACK = b"$JS.ACK."
JETSTREAM_ACKED = b"+ACK"
"""JetStream's ack; after any other text, except its few commands, it redelivers."""


def is_plain(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is a plain subject: UTF-8, no wildcard, no empty token, no space, not too long."""
    if not cython.compiled:
        return begin < end and are_plain((text[begin:end],))
    if begin >= end or end - begin > _SUBJECT_BYTES_MAX:
        return False
    token = at = begin
    while at < end:
        byte = text[at]
        if byte <= 0x20 or byte == _DELETE:
            return False
        if byte < 0x80:
            at += 1
            if byte == _DOT:
                if at - 1 == token or _is_wildcard(text, token, at - 1):
                    return False
                token = at
        else:
            size = _character(text, at, end)
            if size == 0:
                return False
            at += size
    return token < end and not _is_wildcard(text, token, end)


def _is_wildcard(text: bytes, begin: int, end: int) -> bool:
    return end - begin == 1 and (text[begin] == _STAR or text[begin] == _GREATER)


def is_text(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is UTF-8."""
    if not cython.compiled:
        try:
            text[begin:end].decode()
        except UnicodeDecodeError:
            return False
        return True
    at = begin
    while at < end:
        size = 1 if text[at] < 0x80 else _character(text, at, end)
        if size == 0:
            return False
        at += size
    return True


def _character(text: bytes, at: int, end: int) -> int:
    """Return the size in bytes of the non-ASCII character at `at`; 0 if it is not UTF-8."""
    first = text[at]
    size = 0 if first < 0xC2 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4 if first < 0xF5 else 0
    if size == 0 or end - at < size:
        return 0
    code = first & (0x7F >> size)
    for place in range(at + 1, at + size):
        if text[place] & 0xC0 != 0x80:
            return 0
        code = code << 6 | (text[place] & 0x3F)
    # Overlong, half of a surrogate pair, or beyond Unicode: not UTF-8 either.
    if (size == 3 and code < 0x800) or 0xD800 <= code <= 0xDFFF:
        return 0
    return 0 if (size == 4 and code < 0x10000) or code > 0x10FFFF else size


def is_reserved(text: bytes, begin: int, end: int) -> bool:
    """True if only a stream that names its first token may capture text[begin:end]."""
    if begin == end or (text[begin] != 0x24 and text[begin] != 0x5F):
        return False
    for prefix in _RESERVED:  # noqa: SIM110 (a generator is no C loop)
        if memory.begins(text, begin, end, prefix):
            return True
    return False


def is_jetstream_ack(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is the reply subject of a JetStream consumer's delivery; begin -1: there is none."""
    return begin >= 0 and memory.begins(text, begin, end, _JETSTREAM_ACK)


def covers(pattern: bytes, size: int, text: bytes, begin: int, end: int) -> bool:
    """True if the pattern covers the plain subject text[begin:end]; compares token by token."""
    at = begin
    place = 0
    while True:
        # Both are at the beginning of a token; the subject's is not empty.
        if pattern[place] == _GREATER and place + 1 == size:
            return True
        if pattern[place] == _STAR and (place + 1 == size or pattern[place + 1] == _DOT):
            place += 1
            while at < end and text[at] != _DOT:
                at += 1
        else:
            while place < size and pattern[place] != _DOT:
                if at == end or text[at] != pattern[place]:
                    return False
                at += 1
                place += 1
        if place == size or at == end:
            return place == size and at == end
        if text[at] != _DOT:
            return False
        at += 1
        place += 1
