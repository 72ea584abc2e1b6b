"""Message groups (`hot.message_group.MessageGroup`) for tests: made from lists of messages, and read back as lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.batch import codec
from penstock.hot.message_group import MessageGroup

Message = tuple[bytes, bytes | None, bytes | None, bytes]
"""Subject, reply subject, header block, value."""


def group_of(messages: Sequence[Message]) -> MessageGroup:
    """Return a group as one read of the NATS connection gives it."""
    subjects, replies, headers, values = zip(*messages, strict=True) if messages else ((), (), (), ())
    return MessageGroup.of(subjects, values, headers=headers, replies=replies)


def column(group: MessageGroup, part: Callable[[MessageGroup, int], bytes | None]) -> list[bytes | None]:
    """Return one part of every row, for example `column(group, MessageGroup.value)`."""
    return [part(group, row) for row in range(len(group))]


def subjects(group: MessageGroup) -> list[bytes]:
    return [group.subject(row) for row in range(len(group))]


def values(group: MessageGroup) -> list[bytes | None]:
    return column(group, MessageGroup.value)


def keys(group: MessageGroup) -> list[bytes | None]:
    return column(group, MessageGroup.key)


def headers(group: MessageGroup) -> list[bytes | None]:
    return column(group, MessageGroup.headers)


def replies(group: MessageGroup) -> list[bytes | None]:
    """Return the reply subject of each row, for an early ack or a normal one."""
    return [group.reply(row) or group.early(row) for row in range(len(group))]


def messages(group: MessageGroup) -> list[Message]:
    """Return the messages of a group, in the form that `group_of` takes."""
    parts = zip(subjects(group), replies(group), headers(group), values(group), strict=True)
    return [(subject or b"", reply, block, value or b"") for subject, reply, block, value in parts]


def early(group: MessageGroup) -> set[int]:
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
    group = MessageGroup.of(columns.subjects, columns.values, keys=columns.keys, headers=columns.headers)
    message, _ = codec.encode(
        group, 0, len(group), base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch
    )
    return message
