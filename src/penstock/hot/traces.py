"""Find the messages of a group that are traced: whose `traceparent` (W3C Trace Context) has the sampled flag.

Rules: of bytes in which nothing of that kind stands no message is looked at: `are_possible` tells. Of a message the
first counts, written as OpenTelemetry does or with a capital, as some clients make every name.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01␍␊
                    ╰ trace id, 32 digits ─────────╯ ╰ parent, 16 ──╯ ╰ flags: the lowest bit says that it is sampled
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython  # noqa: F401 (types stand in the .pxd)

from penstock.hot import memory, places
from penstock.hot.group import Group

_NAME = b"raceparent:"  # behind a small letter or a capital
_VALUE_BYTES = 55
_LAST_FLAG = 54
_LINE_END = 0x0A
_SMALL, _CAPITAL, _SPACE = 0x74, 0x54, 0x20
_ODD = b"13579bdfBDF"


def are_possible(data: bytes) -> bool:
    """Whether there may be any in what was read together."""
    return _NAME in data


def sampled(group: Group, limit: int) -> list[tuple[int, bytes]]:
    """Rows that are traced, up to `limit` of them, each with the value of its header, which may be nonsense."""
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
    """Where the value of the header begins in the block text[begin:end]; -1 if it is not there, or not whole."""
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
