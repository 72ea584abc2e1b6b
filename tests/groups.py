"""Message groups (`hot.group.Group`) for tests: made from lists of messages, and read back as lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.batch import codec
from penstock.hot.group import Group

Message = tuple[bytes, bytes | None, bytes | None, bytes]
"""Subject, reply subject, header block, value."""


def group_of(messages: Sequence[Message]) -> Group:
    """Return a group as one read of the NATS connection gives it."""
    subjects, replies, headers, values = zip(*messages, strict=True) if messages else ((), (), (), ())
    return Group.of(subjects, values, headers=headers, replies=replies)


def column(group: Group, part: Callable[[Group, int], bytes | None]) -> list[bytes | None]:
    """Return one part of every row, for example `column(group, Group.value)`."""
    return [part(group, row) for row in range(len(group))]


def subjects(group: Group) -> list[bytes]:
    return [group.subject(row) for row in range(len(group))]


def values(group: Group) -> list[bytes | None]:
    return column(group, Group.value)


def keys(group: Group) -> list[bytes | None]:
    return column(group, Group.key)


def headers(group: Group) -> list[bytes | None]:
    return column(group, Group.headers)


def replies(group: Group) -> list[bytes | None]:
    """Return the reply subject of each row, for an early ack or a normal one."""
    return [group.reply(row) or group.early(row) for row in range(len(group))]


def messages(group: Group) -> list[Message]:
    """Return the messages of a group, in the form that `group_of` takes."""
    parts = zip(subjects(group), replies(group), headers(group), values(group), strict=True)
    return [(subject or b"", reply, block, value or b"") for subject, reply, block, value in parts]


def early(group: Group) -> set[int]:
    """Return the rows that are acked as soon as they are written."""
    return {row for row in range(len(group)) if group.early(row) is not None}


class Columns(NamedTuple):
    """The rows of one batch, column by column. A column that is None is None in every row."""

    subjects: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None


def encoded(columns: Columns, *, base_offset: int = 0, timestamp_us: int = 0, leader_epoch: int = 0) -> bytearray:
    """Encode `columns` as a batch message."""
    group = Group.of(columns.subjects, columns.values, keys=columns.keys, headers=columns.headers)
    message, _ = codec.encode(
        group, 0, len(group), base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch
    )
    return message
