"""A segment file with every kind of cell, and the rows that readers must find in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.batch.schema import schema_message
from tests.groups import Columns, encoded

STREAM_ID = 7
PARTITION = 2
TIMESTAMP_US = 1_700_000_000_123_456

Row = tuple[int, int, str, bytes | None, bytes | None, bytes | None]
"""Offset, timestamp in microseconds, subject, key, value, headers."""


@dataclass(frozen=True)
class Segment:
    """A segment file, without an end-of-stream mark."""

    path: Path
    batches: list[list[Row]]

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]


def rows_of_every_kind(first: int, count: int, timestamp_us: int) -> list[Row]:
    """Return rows with nulls, empty cells, non-ASCII text and binary values."""
    keys = (None, b"", b"N14228", bytes(range(256)))
    values = (b'{"n": 1}', b"", None, b"\xff\x00\xfe", "große Werte 🛫".encode())
    headers = (None, b"NATS/1.0\r\nPenstock-Key: N14228\r\n\r\n", None)
    subjects = ("flights.EWR.UA", "flights.São-Paulo.π", "a")
    return [
        (
            offset,
            timestamp_us,
            subjects[offset % len(subjects)],
            keys[offset % len(keys)],
            values[offset % len(values)],
            headers[offset % len(headers)],
        )
        for offset in range(first, first + count)
    ]


def batch_bytes(rows: list[Row]) -> bytes:
    """Encode rows with the same timestamp as one batch message."""
    columns = Columns(
        subjects=[row[2].encode() for row in rows],
        keys=[row[3] for row in rows],
        values=[row[4] for row in rows],
        headers=[row[5] for row in rows],
    )
    return bytes(encoded(columns, base_offset=rows[0][0], timestamp_us=rows[0][1], leader_epoch=3))


def write_segment(path: Path, *sizes: int) -> Segment:
    """Write a segment file with one batch of each size, and a last batch of one row."""
    batches = []
    first = 0
    for number, size in enumerate(sizes):
        batches.append(rows_of_every_kind(first, size, TIMESTAMP_US + number))
        first += size
    # The last batch has no key and no headers: these columns have only nulls.
    batches.append([(first, TIMESTAMP_US + len(sizes), "lone", None, b"x", None)])
    path.write_bytes(schema_message(STREAM_ID, PARTITION) + b"".join(map(batch_bytes, batches)))
    return Segment(path, batches)
