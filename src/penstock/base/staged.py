"""The stream that holds what is staged for another one: how it is called, and on which subject it is.

It is told by the other one's id, so that what was staged for a stream that was deleted is never taken for what is
staged for one that was made again under its name.

Whoever publishes is told by 16 bytes, a UUID. Of version 8, whose meaning RFC 9562 leaves to whoever makes one, it is
for one batch, and no other one ever follows.

A plan is told by its mark: the lower 48 bits are the offset at which it was staged, the 15 above them follow from the
leader epoch that staged it. Where power loss or an unclean election has taken the end of what was staged, another
attempt's plan comes to lie at the same offset: its leader epoch is a later one, and so its mark is another.
"""

from __future__ import annotations

from penstock.base.subjects import INTERNAL_NAME_PREFIX, INTERNAL_SUBJECT_PREFIX

_ONCE_VERSION = 8
_OFFSET_BITS = 48
_EPOCHS = 0x7FFF  # told apart; 0 in their place says nothing: a mark of before they were in it
_NAME_PREFIX = f"{INTERNAL_NAME_PREFIX}staged-"


def staged_name(stream_id: int) -> str:
    """The name of the stream that holds what is staged for that one."""
    return f"{_NAME_PREFIX}{stream_id}"


def staged_subject(stream_id: int) -> str:
    """Its subject, on which nobody listens."""
    return f"{INTERNAL_SUBJECT_PREFIX}staged.{stream_id}"


def staged_for(name: str, subject: str) -> int | None:
    """The id of the stream for which a stream holds what is staged; None: it is none of those."""
    number = name.removeprefix(_NAME_PREFIX)
    if number == name or not (number.isascii() and number.isdecimal()) or len(number) > 19:
        return None
    stream_id = int(number)
    return stream_id if subject == staged_subject(stream_id) and name == staged_name(stream_id) else None


def once_id(chance: bytes) -> bytes:
    """An id for who publishes one batch, of 16 bytes of chance."""
    return chance[:6] + bytes([chance[6] & 0x0F | _ONCE_VERSION << 4]) + chance[7:]


def is_once(query_id: bytes) -> bool:
    """Whether an id is for one batch."""
    return query_id[6] >> 4 == _ONCE_VERSION


def plan_mark(offset: int, leader_epoch: int) -> int:
    """What names the plan that was staged there, under that leader epoch."""
    assert 0 <= offset < 1 << _OFFSET_BITS, offset
    return (1 + leader_epoch % _EPOCHS) << _OFFSET_BITS | offset


def plan_offset(mark: int) -> int:
    """Where the plan of that mark is, if it is there yet."""
    return mark & (1 << _OFFSET_BITS) - 1


def is_plan(mark: int, leader_epoch: int) -> bool:
    """Whether a row at its offset that was staged under that leader epoch may be the plan that it names."""
    return mark >> _OFFSET_BITS in (0, 1 + leader_epoch % _EPOCHS)
