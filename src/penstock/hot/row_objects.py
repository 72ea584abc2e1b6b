"""Objects for the rows of a batch, from the lists of its columns.

Rules: a row holds copies, so that it keeps no batch alive; rarely used parts are made on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.hot import objects


class Row:
    """One stored message. `header_block` is the NATS header block as received."""

    __slots__ = ("_parsed", "header_block", "key", "offset", "partition", "subject", "timestamp_us", "value")

    offset: int
    partition: int  # of its stream: each has its own offsets
    timestamp_us: int
    subject: str
    key: bytes | None
    value: bytes | None
    header_block: bytes | None
    _parsed: Any  # the parsed header block, once requested


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
    """Return a `kind` for each row, all of one partition; `__init__` is not called."""
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
