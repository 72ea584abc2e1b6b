"""The golden segments of format 1: what is in them, and the script that wrote them.

Rules: the files in `golden/` were written once, by the first encoder of their format, and never change. This module
says what went into them, so that a test can compare today's encoder with them; the rows beside each file (`.json`) are
what every later decoder must find. `python -m tests.compat.golden_segments` writes what is missing, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.base.config import Compression
from penstock.batch import codec, schema
from penstock.batch.header import ENDS_RUN, OF_RUN
from tests.groups import Columns, encoded

FOLDER = Path(__file__).with_name("golden")


class Batch(NamedTuple):
    """One batch of a golden segment. With a producer it goes the way of a client's append; with flags, of a run."""

    columns: Columns
    base_offset: int
    timestamp_us: int
    leader_epoch: int
    producer: codec.BatchProducer | None = None
    compression: Compression = Compression.NONE
    flags: int = 0

    def message(self) -> bytes:
        """The message that today's encoder makes of it, and its cleaner."""
        plain = self._plain()
        return plain if self.compression is Compression.NONE else bytes(codec.compressed(plain, self.compression)[0])

    def _plain(self) -> bytes:
        numbers = {
            "base_offset": self.base_offset,
            "timestamp_us": self.timestamp_us,
            "leader_epoch": self.leader_epoch,
        }
        if self.producer is None:
            return bytes(encoded(self.columns, **numbers))
        message = codec.own_copy(codec.encode_arrow(self._arrow()))
        codec.renumber(message, flags=self.flags, producer=self.producer, **numbers)
        return bytes(message)

    def _arrow(self) -> pa.RecordBatch:
        count = len(self.columns.values)
        zeros, nulls = [0] * count, [None] * count
        subjects = [subject.decode() for subject in self.columns.subjects]
        _, keys, values, headers = self.columns
        columns = [zeros, zeros, subjects, keys or nulls, values, headers or nulls]
        fields = schema.arrow_schema()
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=fields)


class Segment(NamedTuple):
    """One golden file."""

    stream_id: int
    partition: int
    batches: list[Batch]

    def content(self) -> bytes:
        """The bytes that today's encoder writes."""
        head = schema.schema_message(self.stream_id, self.partition)
        return b"".join([head, *(batch.message() for batch in self.batches)])


_START_US = 1_700_000_000_000_000
_HEADERS = b"NATS/1.0\r\nContent-Type: text/plain\r\nPenstock-Key: k\r\n\r\n"


def _many() -> list[Batch]:
    batches = []
    base_offset = 0
    for number, count in enumerate((1, 7, 8, 9, 64, 100)):
        rows = range(base_offset, base_offset + count)
        columns = Columns(
            [b"flights.%s.%d" % ((b"EWR", b"JFK", b"LGA")[row % 3], row % 5) for row in rows],
            [b"N%05d" % (row * 37) if row % 4 else None for row in rows],
            [b'{"row":%d,"delay":%d}' % (row, row * 7919 % 120 - 20) for row in rows],
            None,
        )
        batches.append(Batch(columns, base_offset, _START_US + number, 1 + number // 3))
        base_offset += count
    return batches


_MIXED = Columns(
    ["größe.→.日本".encode(), b"a", b"a.b.c", b"$odd.!#%", "🦆".encode(), b"tombstone", b"empty", b"x" * 300],
    [None, b"", b"\x00\xff\xfe", b"key", None, b"key", b"\xc3", b"k" * 200],
    [b"plain", bytes(range(256)), b"\xff" * 9, b"\r\n", "text ✓".encode(), None, b"", b"v" * 700],
    [None, _HEADERS, None, b"NATS/1.0 100\r\n\r\n", b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n", None, None, _HEADERS],
)
_QUERY = bytes(range(1, 17))
_ONE = Columns([b"orders.eu"], None, [b"hello"], None)
_LAST_OFFSET = 2**63 - 2


def _compressed(compression: Compression) -> list[Batch]:
    """Plain ones between them, one buffer that is as it is, and one batch that is only marked."""
    *_, large = _many()
    noise = Columns([b"a.b"] * 9, None, [_noise(n) for n in range(9)], [_HEADERS * 9] * 9)
    batches = [
        large._replace(compression=compression),
        large,
        Batch(noise, 0, _START_US, 3, codec.BatchProducer(11, 2, 3), compression),
        Batch(_ONE, 0, _START_US, 3, None, compression),
        Batch(_ONE, 0, _START_US, 3),
    ]
    base_offset = 0
    for number, batch in enumerate(batches):
        batches[number] = batch._replace(base_offset=base_offset)
        base_offset += len(batch.columns.values)
    return batches


def _noise(number: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d.%d" % (number, part)).digest() for part in range(9))


SEGMENTS = {
    "empty": Segment(1, 0, []),
    "one": Segment(1, 0, [Batch(_ONE, 0, _START_US, 1)]),
    "many": Segment(42, 3, _many()),
    "mixed": Segment(0xABCDEF, 0, [Batch(_MIXED, 1_000, _START_US, 7)]),
    "producer": Segment(
        5,
        1,
        [
            Batch(_MIXED, 0, _START_US, 2, codec.BatchProducer(11, 2, 3)),
            Batch(_ONE, 8, _START_US + 1, 2, codec.BatchProducer(11, 2, 4, bytes(range(16)))),
        ],
    ),
    "runs": Segment(
        7,
        2,
        [
            Batch(_ONE, 0, _START_US, 2, codec.BatchProducer(0, 0, 9, _QUERY), flags=OF_RUN | ENDS_RUN),
            Batch(_MIXED, 1, _START_US, 2, codec.BatchProducer(0, 0, 10, _QUERY, 78), flags=OF_RUN),
            Batch(_ONE, 9, _START_US, 3),
            Batch(_ONE, 10, _START_US, 3, codec.BatchProducer(0, 1, 10, _QUERY, 78), flags=OF_RUN | ENDS_RUN),
            Batch(_ONE, 11, _START_US, 3, codec.BatchProducer(0, 0, 0, b"\xff" * 16, 2**63), flags=OF_RUN),
        ],
    ),
    "lz4": Segment(6, 0, _compressed(Compression.LZ4)),
    "zstd": Segment(6, 0, _compressed(Compression.ZSTD)),
    "least": Segment(0, 0, [Batch(_ONE, 0, -(2**63), 0)]),
    "largest": Segment(
        2**63 - 1,
        2**31 - 1,
        [
            Batch(
                _ONE,
                _LAST_OFFSET,
                2**63 - 1,
                2**32 - 1,
                codec.BatchProducer(2**64 - 1, 2**32 - 1, 2**64 - 1, b"\xff" * 16),
            )
        ],
    ),
}


def rows_as_json(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in a form that no Arrow library has a say in: binary values as base64."""
    columns = {
        "offset": table.column("offset").to_pylist(),
        "timestamp_us": table.column("timestamp").cast(pa.int64()).to_pylist(),
        "subject": table.column("subject").to_pylist(),
    }
    for name in ("key", "value", "headers"):
        values = table.column(name).to_pylist()
        columns[name] = [None if value is None else base64.b64encode(value).decode() for value in values]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def write_missing() -> list[Path]:
    """Write the golden files that are not there yet; returns them."""
    written = []
    for name, segment in SEGMENTS.items():
        path = FOLDER / f"format1-{name}.arrows"
        if path.exists():
            continue
        path.write_bytes(segment.content())
        with pa.ipc.open_stream(path.read_bytes()) as reader:
            rows = rows_as_json(reader.read_all())
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        path.with_suffix(".json").write_text(f"[\n{lines}\n]\n" if rows else "[]\n", encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for written_path in write_missing():
        print(written_path.name)
