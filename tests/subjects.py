"""Subject indexes for tests: written from rows, and logs whose messages have chosen subjects."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.batch import codec
from penstock.commitlog import Log
from penstock.commitlog.subjects import reading, writing
from penstock.commitlog.subjects.layout import SegmentIdentity
from penstock.commitlog.subjects.reading import SubjectIndex
from penstock.commitlog.subjects.summing import SubjectSum
from penstock.vfs import File
from penstock.vfs.memory import MemoryVfs
from tests.groups import Columns, encoded

BASE = 5_000_000_000
"""Base offset of the segment whose index `written` writes."""


def rows_on(subjects: Sequence[str | None], base_offset: int = BASE) -> pa.RecordBatch:
    """Return rows of a log with offset and subject."""
    offsets = pa.array(range(base_offset, base_offset + len(subjects)), pa.int64())
    return pa.record_batch({"offset": offsets, "subject": pa.array(subjects, pa.utf8())})


def written(subjects: Sequence[str], path: str = "x.subjects") -> File:
    """Write the index of a segment with one row for each of these subjects."""
    total = SubjectSum()
    total.add(rows_on(subjects))
    file = MemoryVfs().open(path, create=True)
    identity = SegmentIdentity(2, 7, 1, 0xC0FFEE, BASE, BASE + len(subjects), 123_456)
    for _ in writing.write(file, total, identity):
        pass
    return file


def opened(file: File) -> SubjectIndex:
    return SubjectIndex(file, reading.read_trailer(file))


def append_on(log: Log, subjects: Sequence[str], size_bytes: int = 40) -> list[tuple[int, str]]:
    """Append one batch with a message on each of these subjects; return offsets and subjects."""
    base = log.log_end
    columns = Columns([one.encode() for one in subjects], None, [b"." * size_bytes] * len(subjects), None)
    place = {"base_offset": base, "timestamp_us": log.last_timestamp_us, "leader_epoch": max(1, log.leader_epoch)}
    data = bytes(encoded(columns, **place))
    log.append(data, codec.read_header(data))
    return [(base + row, subject) for row, subject in enumerate(subjects)]
