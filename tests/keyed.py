"""Logs of messages with keys, for tests of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.batch import codec
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.batch.header import BatchHeader
from penstock.commitlog import Log, LogView
from tests.groups import Columns, encoded

Told = tuple[bytes | None, bytes | None]
"""Key and value of a message to append; a value of None is a tombstone."""


class Row(NamedTuple):
    """A message in the log."""

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None


def append_keyed(log: Log, messages: Sequence[Told], timestamp_us: int, producer: BatchProducer = NOBODY) -> list[Row]:
    """Append one batch; return its messages."""
    base = log.log_end
    columns = Columns([b"s"] * len(messages), [key for key, _ in messages], [value for _, value in messages], None)
    numbers = {"base_offset": base, "timestamp_us": timestamp_us, "leader_epoch": log.leader_epoch}
    data = encoded(columns, **numbers)
    header = codec.renumber(data, **numbers, producer=producer)
    log.append(bytes(data), header)
    return [Row(base + at, timestamp_us, *message) for at, message in enumerate(messages)]


def batches_of(view: LogView) -> list[tuple[BatchHeader, bytes]]:
    """Return all batches of a log."""
    return [(header, bytes(data)) for header, data in view.batches(view.log_start, view.log_end)]


def rows_of(view: LogView) -> list[Row]:
    """Return all rows of a log, after a check of the rows."""
    return [row for _, data in batches_of(view) for row in _rows_in(codec.check_rows(data))]


def _rows_in(batch: pa.RecordBatch) -> list[Row]:
    numbers = [batch.column(at).cast(pa.int64()).to_pylist() for at in (0, 1)]
    return [Row(*row) for row in zip(*numbers, *(batch.column(at).to_pylist() for at in (3, 4)), strict=True)]
