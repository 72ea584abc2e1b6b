"""Logs of messages with headers, for tests of time to live and rollups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.batch import codec
from penstock.batch.codec import LAYOUT, NOBODY, BatchProducer
from penstock.batch.header import asked_flags
from penstock.commitlog import Log, LogView
from penstock.hot.rows import BatchRows
from tests.groups import Columns, encoded
from tests.keyed import batches_of


class Told(NamedTuple):
    """A message to append."""

    headers: Mapping[str, str] = {}
    key: bytes | None = None
    value: bytes | None = b"v"
    subject: bytes = b"s"


class Row(NamedTuple):
    """A message in the log."""

    offset: int
    timestamp_us: int
    told: Told


def block_of(headers: Mapping[str, str]) -> bytes | None:
    """Encode a NATS header block; None without headers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode() if headers else None


def append_told(log: Log, messages: Sequence[Told], timestamp_us: int, producer: BatchProducer = NOBODY) -> list[Row]:
    """Append one batch, as a leader does; return its messages."""
    base = log.log_end
    columns = Columns(
        [one.subject for one in messages],
        [one.key for one in messages],
        [one.value for one in messages],
        [block_of(one.headers) for one in messages],
    )
    numbers = {"base_offset": base, "timestamp_us": timestamp_us, "leader_epoch": log.leader_epoch}
    data = encoded(columns, **numbers)
    asked = BatchRows(data, LAYOUT).asked()
    header = codec.renumber(data, **numbers, producer=producer, flags=asked_flags(asked))
    log.append(bytes(data), header)
    return [Row(base + at, timestamp_us, message) for at, message in enumerate(messages)]


def offsets_of(view: LogView) -> list[int]:
    """Return the offsets of all messages of a log, after a check of the rows."""
    return [offset for _, data in batches_of(view) for offset in _offsets_in(codec.check_rows(data))]


def _offsets_in(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column(0).to_pylist()
    return found
