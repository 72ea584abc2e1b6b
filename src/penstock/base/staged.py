"""Names of the stream that holds rows staged for another stream, and ids of staged queries and plans.

The stream is named by the other one's id, so that rows staged for a deleted stream are never published into a recreated
stream of the same name.

A publishing query is identified by a UUID of 16 bytes. Version 8, whose content RFC 9562 leaves to its maker, marks an
id for a single batch, never followed by another.

A plan is identified by its mark: the lower 48 bits are the offset at which it was staged, the 15 bits above follow from
the leader epoch that staged it. After a power loss or an unclean election has truncated staged rows, another attempt's
plan may get the same offset, but in a later leader epoch and thus with another mark.
"""

from __future__ import annotations

from penstock.base.subjects import INTERNAL_NAME_PREFIX, INTERNAL_SUBJECT_PREFIX

_ONCE_VERSION = 8
_OFFSET_BITS = 48
_EPOCHS = 0x7FFF  # distinct values; 0 in the mark: a mark from before epochs were included
_NAME_PREFIX = f"{INTERNAL_NAME_PREFIX}staged-"


def staged_name(stream_id: int) -> str:
    """Return the name of the stream that holds rows staged for the stream with this id."""
    return f"{_NAME_PREFIX}{stream_id}"


def staged_subject(stream_id: int) -> str:
    """Return the subject of that stream; nothing subscribes to it."""
    return f"{INTERNAL_SUBJECT_PREFIX}staged.{stream_id}"


def staged_for(name: str, subject: str) -> int | None:
    """Return the id of the stream for which a stream holds staged rows; None: it is no such stream."""
    number = name.removeprefix(_NAME_PREFIX)
    if number == name or not (number.isascii() and number.isdecimal()) or len(number) > 19:
        return None
    stream_id = int(number)
    return stream_id if subject == staged_subject(stream_id) and name == staged_name(stream_id) else None


def once_id(chance: bytes) -> bytes:
    """Return an id for publishing a single batch, from 16 random bytes."""
    return chance[:6] + bytes([chance[6] & 0x0F | _ONCE_VERSION << 4]) + chance[7:]


def is_once(query_id: bytes) -> bool:
    """True if an id is for a single batch."""
    return query_id[6] >> 4 == _ONCE_VERSION


def plan_mark(offset: int, leader_epoch: int) -> int:
    """Return the mark of the plan staged at this offset in this leader epoch."""
    assert 0 <= offset < 1 << _OFFSET_BITS, offset
    return (1 + leader_epoch % _EPOCHS) << _OFFSET_BITS | offset


def plan_offset(mark: int) -> int:
    """Return the offset of the plan with this mark, which may have been truncated."""
    return mark & (1 << _OFFSET_BITS) - 1


def is_plan(mark: int, leader_epoch: int) -> bool:
    """True if the row at the mark's offset, staged in this leader epoch, may be the plan of this mark."""
    return mark >> _OFFSET_BITS in (0, 1 + leader_epoch % _EPOCHS)
