"""Find traced messages: those whose `traceparent` header (W3C Trace Context) has the sampled flag.

Rules: `are_possible` is a quick check of a whole read, before any message is searched. The first header of a message
counts, spelled as OpenTelemetry does or capitalised, as some clients spell every name.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01␍␊
                    ╰ trace id, 32 digits ─────────╯ ╰ parent, 16 ──╯ ╰ flags: the lowest bit is the sampled flag
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython  # noqa: F401 (types stand in the .pxd)

from penstock.hot import memory, places
from penstock.hot.message_group import MessageGroup

_NAME = b"raceparent:"  # after a small or capital T
_VALUE_BYTES = 55
_LAST_FLAG = 54
_LINE_END = 0x0A
_SMALL, _CAPITAL, _SPACE = 0x74, 0x54, 0x20
_ODD = b"13579bdfBDF"


def are_possible(data: bytes) -> bool:
    """True if a read may contain traced messages."""
    return _NAME in data


def sampled(group: MessageGroup, limit: int) -> list[tuple[int, bytes]]:
    """Return the traced rows, at most `limit`, each with the value of its header, which is not validated."""
    found: list[tuple[int, bytes]] = []
    text = group.data
    numbers = group.numbers
    for row in range(group.count):
        at = row * places.STRIDE + places.HEADERS
        if numbers[at] >= 0:
            value = _value(text, numbers[at], numbers[at + 1])
            if value >= 0 and _is_sampled(text, value):
                found.append((row, group.data[value : value + _VALUE_BYTES]))
                if len(found) >= limit:
                    break
    return found


def _value(text: bytes, begin: int, end: int) -> int:
    """Return the position of the header's value in the block text[begin:end]; -1 if it is missing or incomplete."""
    name = _NAME
    at = memory.find(text, begin, end, name, 0, len(_NAME))
    while at >= 0:
        is_name = at >= begin + 2 and text[at - 2] == _LINE_END and (text[at - 1] == _SMALL or text[at - 1] == _CAPITAL)
        at += len(_NAME)
        if is_name:
            while at < end and text[at] == _SPACE:
                at += 1
            return at if at + _VALUE_BYTES <= end else -1
        at = memory.find(text, at, end, name, 0, len(_NAME))
    return -1


def _is_sampled(text: bytes, value: int) -> bool:
    flag = text[value + _LAST_FLAG]
    return memory.find_byte(_ODD, flag, 0, len(_ODD)) >= 0
