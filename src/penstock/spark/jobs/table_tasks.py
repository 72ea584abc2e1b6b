"""In the tasks of the job `table`: finds the latest row of each key, and writes the table's files.

Rules: a table is divided into buckets by the hash of the key. One task gets all new rows of a bucket, reads the
bucket's files, and writes the bucket to a file with a new name; the driver's commit decides which files are part of the
table. So only names and counts pass through the driver, and a task that runs twice does no harm. The arguments of a
task are plain data. No Python runs per row.

The latest row of a key has the highest (timestamp, partition, offset). Timestamps never decrease within a partition, so
if all messages of a key are in one partition, the latest has the highest offset. If partitions were added to a stream,
keys moved only to added ones: a row there is later than every row of the key in the older partitions, even if the
clocks of their leaders differ.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch.keys import have_key
from penstock.lake.reading.columns import arrow_schema, ddl_of
from penstock.lake.reading.pieces import Piece
from penstock.spark.reading import fetching
from penstock.vfs.real import sync_folder_if_possible

COLUMNS = ("key", "value", "subject", "partition", "offset", "timestamp")
"""The columns of a table, without the bucket."""

BUCKET = "bucket"
"""Name of the column with the number of a row's bucket."""

SCHEMA = arrow_schema(COLUMNS)

DDL = ddl_of(COLUMNS)

WRITTEN_DDL = "bucket INT, path STRING, size BIGINT, rows BIGINT, stats STRING"
"""Columns of a task's result, one row per written bucket; `path` is empty if the bucket has no rows left."""

_WRITTEN = pa.schema(
    [
        pa.field(BUCKET, pa.int32()),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("stats", pa.string()),
    ]
)
_ROW_GROUP_ROWS = 131_072


class Rewriting(NamedTuple):
    """Parameters of the tasks of a batch: the table's folder, the files of each bucket, and `counts` of `latest`."""

    root: str
    files: tuple[tuple[int, tuple[str, ...]], ...]
    counts: tuple[int, ...] = ()


class Gathered:
    """Buffers rows, and reduces them to the latest row of each key when the buffer is full. `counts`: see `latest`."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts = counts
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._bytes_kept = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the buffer."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes

    @property
    def is_full(self) -> bool:
        """True if enough rows were added since the last `shrink`."""
        return self._bytes >= self._bytes_kept + limits.TABLE_BYTES_WAITING_MAX

    def shrink(self) -> pa.Table:
        """Reduce the buffer to the latest row of each key, and return these rows."""
        rows = latest(pa.Table.from_batches(self._waiting, SCHEMA), self._counts)
        self._waiting = rows.to_batches()
        self._bytes = self._bytes_kept = rows.nbytes
        return rows


def read_latest(
    tasks: Sequence[Sequence[Piece]],
    how: fetching.Fetching,
    counts: tuple[int, ...],
    time_zone: str,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key in the ranges of the given task numbers, or in large parts of the ranges.

    Timestamps are converted to the session's time zone, because Spark accepts no other.
    """
    schema = SCHEMA.set(SCHEMA.get_field_index("timestamp"), pa.field("timestamp", pa.timestamp("us", time_zone)))
    for rows in _latest_rows(tasks, how, counts, numbers):
        yield rows.cast(schema)


def _latest_rows(
    tasks: Sequence[Sequence[Piece]],
    how: fetching.Fetching,
    counts: tuple[int, ...],
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    gathered = Gathered(counts)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for piece in tasks[number]:
                for rows in fetching.read(how, piece):
                    gathered.add(rows.filter(have_key(rows.column("key"))))
                    if gathered.is_full and gathered.shrink().nbytes > limits.TABLE_BYTES_WAITING_MAX // 2:
                        yield from _pieces(gathered)
                        gathered = Gathered(counts)
    yield from _pieces(gathered)


def _pieces(gathered: Gathered) -> Iterator[pa.RecordBatch]:
    return iter(gathered.shrink().to_batches(max_chunksize=limits.READ_BATCH_ROWS_DEFAULT))


def rewrite(what: Rewriting, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge a task's rows into their buckets; yield one row of `WRITTEN_DDL` for each bucket that changed."""
    buckets: dict[int, Gathered] = {}
    for batch in batches:
        numbers, rows = batch.column(BUCKET), batch.select(COLUMNS).cast(SCHEMA)
        found = pc.unique(numbers).to_pylist()  # usually one: Spark has a task for each bucket
        for bucket in found:
            gathered = buckets.setdefault(bucket, Gathered(what.counts))
            gathered.add(rows if len(found) == 1 else rows.filter(pc.equal(numbers, bucket)))
            if gathered.is_full:
                gathered.shrink()
    files = dict(what.files)
    for bucket in sorted(buckets):
        written = _rewrite_one(what, bucket, files.get(bucket, ()), buckets.pop(bucket).shrink())
        if written is not None:
            yield pa.RecordBatch.from_pylist([written], schema=_WRITTEN)


def _read(file: Path) -> pa.Table:
    """Read a file of the table. Raise CorruptionError if it is invalid or a page's checksum is wrong."""
    try:
        return parquet.read_table(file, schema=SCHEMA, partitioning=None, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an I/O error of the operating system: the content may be valid
        raise CorruptionError(str(file), 0, "a Parquet file of a table", str(error)[:200]) from None


def _rewrite_one(what: Rewriting, bucket: int, files: tuple[str, ...], updates: pa.Table) -> dict[str, Any] | None:
    root = Path(what.root)
    current = [_read(root / path) for path in files]
    there = sum(one.num_rows for one in current)
    together = pa.concat_tables([*current, updates])
    chosen = latest_indices(together, what.counts)
    if not np.any(chosen >= there):
        return None  # no update is later than the bucket's rows
    rows = together.take(pa.array(chosen))
    rows = rows.filter(pc.is_valid(rows.column("value")))
    if not rows.num_rows:
        return {BUCKET: bucket, "path": "", "size": 0, "rows": 0, "stats": ""}
    path = f"{BUCKET}={bucket}/part-{uuid.uuid4().hex}.zstd.parquet"
    size = _write(root / path, rows)
    sync_folder_if_possible((root / path).parent)
    sync_folder_if_possible(root)  # the entry of a new bucket's folder
    return {BUCKET: bucket, "path": path, "size": size, "rows": rows.num_rows, "stats": _stats(rows)}


def _write(file: Path, rows: pa.Table) -> int:
    """Write a file, sync it to disk, and return its size in bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as sink:
        parquet.write_table(
            rows,
            sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=["subject", "partition"],
            row_group_size=_ROW_GROUP_ROWS,
            write_statistics=["offset", "timestamp", "partition"],
            write_page_checksum=True,
        )
        sink.flush()
        os.fsync(sink.fileno())
        return sink.tell()


def _stats(rows: pa.Table) -> str:
    """Return a file's statistics as JSON for Delta's log; readers use them to skip files."""
    names = ("partition", "offset")
    bounds = {name: pc.min_max(rows.column(name)).as_py() for name in names}
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": {name: bounds[name]["min"] for name in names},
            "maxValues": {name: bounds[name]["max"] for name in names},
            "nullCount": dict.fromkeys(names, 0),
        }
    )


def latest(rows: pa.Table, counts: tuple[int, ...] = ()) -> pa.Table:
    """Return the latest row of each key, including tombstones.

    `counts`: the stream's numbers of partitions, ascending, if keys have moved to added partitions.
    """
    return rows.take(pa.array(latest_indices(rows, counts)))


def latest_indices(rows: pa.Table, counts: tuple[int, ...] = ()) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the index in `rows` of the latest row of each key."""
    order = _order(rows, counts)
    keys = rows.select(["key"])
    if order is None:
        ranks = np.arange(rows.num_rows, dtype=np.int64)
    else:
        ranks = np.empty(rows.num_rows, dtype=np.int64)
        ranks[order] = np.arange(rows.num_rows, dtype=np.int64)
    last = keys.append_column("rank", pa.array(ranks)).group_by("key", use_threads=False).aggregate([("rank", "max")])
    found: np.ndarray[Any, np.dtype[np.int64]] = last.column("rank_max").to_numpy()
    return found if order is None else order[found]


def _order(rows: pa.Table, counts: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the indices of the rows from the earliest to the latest; None if the rows are in this order already."""
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    if not len(offsets):
        return None
    if np.all(partitions == partitions[0]):
        if np.all(offsets[1:] > offsets[:-1]):
            return None
        return np.argsort(offsets, kind="stable")
    times = rows.column("timestamp").cast(pa.int64()).to_numpy()
    added = np.searchsorted(counts, partitions, side="right")  # number of the enlargement that added each one
    order: np.ndarray[Any, np.dtype[np.int64]] = np.lexsort((offsets, partitions, times, added))
    return order
