"""Fast path: detect groups whose messages all become rows unchanged, as most do; then nothing is copied.

`classification` has the rules for each message.
"""

from __future__ import annotations

from operator import sub

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base.subjects import are_plain
from penstock.hot import envelope, places, subjects
from penstock.hot.message_group import MessageGroup

_COOKIE_BYTE = envelope.COOKIE[0]


def all_pass(group: MessageGroup, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """True if all messages become rows unchanged."""
    if not cython.compiled:
        return _all_pass_plain(group, acks_replies, message_bytes_max, skips_reserved)
    text = group.data
    numbers = group.numbers
    for row in range(group.count):
        at = row * places.STRIDE
        size = numbers[at + places.VALUE + 1] - numbers[at + places.VALUE]
        if (
            numbers[at + places.HEADERS] >= 0
            or size > message_bytes_max
            or (numbers[at + places.REPLY] >= 0 and not acks_replies)
            or (size > 0 and text[numbers[at + places.VALUE]] == _COOKIE_BYTE)  # perhaps an envelope
        ):
            return False
        subject = numbers[at + places.SUBJECT]
        subject_end = numbers[at + places.SUBJECT + 1]
        if not subjects.is_plain(text, subject, subject_end):
            return False
        if skips_reserved and subjects.is_reserved(text, subject, subject_end):
            return False
    return True


def _all_pass_plain(group: MessageGroup, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """Plain-Python version of `all_pass`, with C loops as far as possible."""
    if cython.compiled:
        raise NotImplementedError
    numbers = group.numbers
    if (
        envelope.COOKIE in group.data
        or not acks_replies
        or skips_reserved
        or max(numbers[places.HEADERS :: places.STRIDE], default=-1) >= 0
    ):
        return False
    sizes = map(sub, numbers[places.VALUE + 1 :: places.STRIDE], numbers[places.VALUE :: places.STRIDE])
    if max(sizes, default=0) > message_bytes_max:
        return False
    begins = numbers[places.SUBJECT :: places.STRIDE]
    ends = numbers[places.SUBJECT + 1 :: places.STRIDE]
    return are_plain([group.data[begin:end] for begin, end in zip(begins, ends, strict=True)])
