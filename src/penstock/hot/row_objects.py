"""One object for each row of a batch, out of the lists of its columns.

Rules: a row holds copies, so that it keeps no batch alive; what of it is seldom asked for is made when it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.hot import objects


class Row:
    """What one stored message holds. `header_block` is the NATS header block as it came."""

    __slots__ = ("_parsed", "header_block", "key", "offset", "partition", "subject", "timestamp_us", "value")

    offset: int
    partition: int  # of its stream: offsets count within one
    timestamp_us: int
    subject: str
    key: bytes | None
    value: bytes | None
    header_block: bytes | None
    _parsed: Any  # of the header block, once somebody has asked


R = TypeVar("R", bound=Row)


def rows(
    kind: type[R],
    partition: int,
    offsets: Sequence[int],
    timestamps_us: Sequence[int],
    subjects: Sequence[str],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    header_blocks: Sequence[bytes | None],
) -> list[R]:
    """A `kind` for each row, all of one partition; `__init__` is not called."""
    found = []
    for number in range(len(offsets)):
        row = objects.new(kind)
        row.offset = offsets[number]
        row.partition = partition
        row.timestamp_us = timestamps_us[number]
        row.subject = subjects[number]
        row.key = keys[number]
        row.value = values[number]
        row.header_block = header_blocks[number]
        row._parsed = None  # noqa: SLF001 (no `__init__` was called)
        found.append(row)
    return found
