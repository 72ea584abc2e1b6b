"""The stream that holds what is staged for another one: how it is called, and on which subject it is.

It is told by the other one's id, so that what was staged for a stream that was deleted is never taken for what is
staged for one that was made again under its name.

Whoever publishes is told by 16 bytes, a UUID. Of version 8, whose meaning RFC 9562 leaves to whoever makes one, it is
for one batch, and no other one ever follows.
"""

from __future__ import annotations

from penstock.base.subjects import INTERNAL_NAME_PREFIX, INTERNAL_SUBJECT_PREFIX

_ONCE_VERSION = 8
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
