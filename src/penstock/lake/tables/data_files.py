"""In a task of an archive: writes rows to Parquet files, by day and stream, complete and synced to disk.

Rules: a file's name is used once. A task that runs again, or twice at the same time, writes other files; files without
a commit are not part of the table. A row group holds rows of one partition in offset order, so that its statistics
identify its range. No Python runs per row.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.lake.tables.folder import OWN, naming, sync_file, sync_up
from penstock.lake.tables.table import LakeFile, Range

_REPEATED = ["topic", "subject", "key", "reason"]
"""Columns with many repeated values; for other columns a dictionary would cost more than it saves."""
_FOUND_BY = ["topic", "partition", "offset", "timestamp"]


class Writing(NamedTuple):
    """Parameters of writing, the same for all tasks of a batch."""

    root: str
    is_staged: bool  # files have a temporary path until the driver moves them
    with_topic: bool  # the files have the column `topic`; else only the folder's name has it
    file_bytes: int
    is_rejects: bool = False


def staged(path: str) -> str:
    """Return the temporary path of a file, until its commit; it does not match `*.parquet`."""
    return f"{OWN}/staged/{path.rpartition('/')[2]}.part"


def folder_of(topic: str, date: str) -> str:
    """Return the Hive-style folder of a stream's rows of one day."""
    return f"date={date}/topic={quote(topic, safe='')}"


def place_of(how: Writing, path: str) -> Path:
    """Return where a file is until its commit."""
    return Path(how.root, staged(path) if how.is_staged else path)


def group_bytes(how: Writing) -> int:
    """Return the number of buffered bytes at which a row group is written."""
    return min(limits.LAKE_ROW_GROUP_BYTES, how.file_bytes // 4)


class LakeWriter:
    """Writes batches with Spark's columns, in offset order, to one file per stream and day at a time."""

    def __init__(self, how: Writing) -> None:
        self._how = how
        self._open: dict[tuple[str, int], _OpenFile] = {}
        self._done: list[LakeFile] = []

    def drop(self) -> None:
        """Delete all files: a task has failed, and no commit will have them."""
        for file in self._open.values():
            file.drop()
        for done in self._done:
            place_of(self._how, done.path).unlink(missing_ok=True)
        self._open, self._done = {}, []

    def add(self, rows: pa.RecordBatch) -> None:
        """Buffer rows, and write full row groups."""
        parts = -(-rows.nbytes // group_bytes(self._how))
        step = max(1, -(-rows.num_rows // max(1, parts)))  # so that a large batch does not exceed a file's size
        for start in range(0, rows.num_rows, step):
            self._add(rows.slice(start, step))

    def _add(self, rows: pa.RecordBatch) -> None:
        for topic, day, partition, part in _runs(rows):
            key = (topic, day)
            if (file := self._open.get(key)) is None:
                if len(self._open) >= limits.LAKE_FILES_OPEN_MAX:
                    self._close(next(iter(self._open)))
                file = self._open[key] = _OpenFile(self._how, topic, day, part)
            file.add(partition, part)
            while sum(one.waiting_bytes for one in self._open.values()) > limits.LAKE_TASK_BUFFER_BYTES:
                max(self._open.values(), key=lambda one: one.waiting_bytes).write()
            if file.size_bytes >= self._how.file_bytes:
                self._close(key)

    def finish(self) -> list[LakeFile]:
        """Close and return all files, synced to disk."""
        for key in list(self._open):
            self._close(key)
        return self._done

    def _close(self, key: tuple[str, int]) -> None:
        self._done.append(self._open[key].close())
        del self._open[key]


class _OpenFile:
    """A file that is being written."""

    def __init__(self, how: Writing, topic: str, day: int, first: pa.RecordBatch) -> None:
        self._topic = topic
        self._date = datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
        start = first.column("offset")[0].as_py() if first.num_rows else 0
        name = f"{start:020d}-{uuid.uuid4().hex}.parquet"
        self._path = f"{folder_of(topic, self._date)}/{name}"
        self._is_rejects = how.is_rejects
        self._root = Path(how.root)
        self._place = place_of(how, self._path)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        names = [name for name in first.schema.names if name != "topic" or how.with_topic]
        self._names = names
        self._schema = pa.schema([first.schema.field(name) for name in names])
        try:
            with naming(self._place):
                self._sink = pa.OSFile(str(self._place), "wb")
                self._writer = pq.ParquetWriter(
                    self._sink,
                    self._schema,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=[name for name in _REPEATED if name in names],
                    write_statistics=[name for name in _FOUND_BY if name in names],
                    write_page_checksum=True,
                )
        except OperationalError:
            self._place.unlink(missing_ok=True)
            raise
        self._group_bytes = group_bytes(how)
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._partition = -1
        self._end = 0
        self._ranges: dict[int, Range] = {}
        self._rows = 0

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""
        return int(self._sink.tell())

    def add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Add rows of one partition, in offset order."""
        offsets = rows.column("offset")
        start, end = offsets[0].as_py(), offsets[-1].as_py() + 1
        if partition != self._partition or start < self._end:
            self.write()
        self._partition, self._end = partition, end
        before = self._ranges.get(partition, Range(partition, start, end))
        self._ranges[partition] = Range(partition, min(start, before.start), max(end, before.end))
        self._waiting.append(rows.select(self._names))
        self.waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self.waiting_bytes >= self._group_bytes:
            self.write()

    def write(self) -> None:
        """Write the buffered rows as a row group."""
        if self._waiting:
            with naming(self._place):
                self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=2**31 - 1)
            self._waiting, self.waiting_bytes = [], 0

    def drop(self) -> None:
        """Delete the unfinished file."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False  # else it would try again when it is collected
        with suppress(OSError):
            self._sink.close()
        self._place.unlink(missing_ok=True)

    def close(self) -> LakeFile:
        """Close the file, sync it to disk, and return it."""
        self.write()
        with naming(self._place):
            self._writer.close()
            self._sink.close()
            sync_file(self._place)
            sync_up([self._place.parent], self._root)
        size = self._place.stat().st_size
        ranges = tuple(sorted(self._ranges.values()))
        return LakeFile(self._path, self._topic, self._date, self._rows, size, ranges, self._is_rejects)


def empty_file(how: Writing, schema: pa.Schema, topic: str) -> LakeFile:
    """Write a file without rows, under today's date, so that readers of the folder find the columns."""
    today = int(time.time()) // 86_400
    return _OpenFile(how, topic, today, pa.RecordBatch.from_pylist([], schema=schema)).close()


def told_files(files: Sequence[LakeFile]) -> pa.RecordBatch:
    """Return files as a batch with the column `file` of JSON, for the driver to collect."""
    return pa.RecordBatch.from_pydict({"file": pa.array([json.dumps(one.to_json()) for one in files], pa.string())})


def _runs(rows: pa.RecordBatch) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
    """Yield (stream, day, partition, rows) for each run of consecutive rows that share the three."""
    if not rows.num_rows:
        return
    topics = pc.dictionary_encode(rows.column("topic"))
    days = rows.column("timestamp").cast(pa.date32()).cast(pa.int32())
    columns = [days, rows.column("partition"), topics.indices]
    changes = reduce(pc.or_, (pc.not_equal(one[1:], one[:-1]) for one in columns))
    bounds = [0, *(before + 1 for before in pc.indices_nonzero(changes).to_pylist()), rows.num_rows]
    for start, end in pairwise(bounds):
        day, partition, code = (one[start].as_py() for one in columns)
        yield topics.dictionary[code].as_py(), day, partition, rows.slice(start, end - start)
