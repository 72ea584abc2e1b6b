"""The latest row of each key, and the files that a table of them consists of: what the tasks of the job `table` do.

Rules: a table lies in buckets, by the hash of the key. A task has all that is new in a bucket, reads the files that the
bucket has, and writes the bucket anew under another name; which files count is decided by the driver's commit alone.
So nothing but names and counts goes through the driver, and a task that is run twice does no harm.
Everything a task is told is plain data. Nothing is done row by row in Python.

Which row of a key is the latest: the one with the highest (timestamp, partition, offset). Timestamps never decrease
within a partition, so where all messages of a key are in one partition, that is the one with the highest offset.
Of a stream that got more partitions, keys only ever moved to those that were added: a row there is later than any in
those that were there before, whatever the clocks of their leaders say.
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
from penstock.spark import fetching
from penstock.spark.columns import arrow_schema, ddl_of
from penstock.spark.planning import Piece
from penstock.vfs.real import sync_folder_if_possible

COLUMNS = ("key", "value", "subject", "partition", "offset", "timestamp")
"""What a table holds of a message."""

BUCKET = "bucket"
"""The column that says in which bucket a row is."""

SCHEMA = arrow_schema(COLUMNS)

DDL = ddl_of(COLUMNS)

WRITTEN_DDL = "bucket INT, path STRING, size BIGINT, rows BIGINT, stats STRING"
"""What a task says of the bucket that it has written; `path` is empty where nothing is left in it."""

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
    """What the tasks of a batch are told: where the table is, the files of each bucket, and of `latest` the counts."""

    root: str
    files: tuple[tuple[int, tuple[str, ...]], ...]
    counts: tuple[int, ...] = ()


class Gathered:
    """Rows, of which only the latest of each key are kept once there are too many. `counts` as in `latest`."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts = counts
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._bytes_kept = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep some more."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes

    @property
    def is_full(self) -> bool:
        """Whether it is worth while to look what is still the latest."""
        return self._bytes >= self._bytes_kept + limits.TABLE_BYTES_WAITING_MAX

    def shrink(self) -> pa.Table:
        """Keep the latest rows, and give them."""
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
    """The latest row of each key in the ranges that a task's number names, or in large parts of them.

    Spark takes only times in the session's time zone; those are the same moments.
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
    """Bring the buckets of a task's rows up to date; a row for each that is another now."""
    buckets: dict[int, Gathered] = {}
    for batch in batches:
        numbers, rows = batch.column(BUCKET), batch.select(COLUMNS).cast(SCHEMA)
        found = pc.unique(numbers).to_pylist()  # one, as a rule: Spark brings each to a task of its own
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
    """A file of the table. CorruptionError: it is not what was written."""
    try:
        return parquet.read_table(file, schema=SCHEMA, partitioning=None, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, or the system's, and not what is in the file
        raise CorruptionError(str(file), 0, "a Parquet file of a table", str(error)[:200]) from None


def _rewrite_one(what: Rewriting, bucket: int, files: tuple[str, ...], updates: pa.Table) -> dict[str, Any] | None:
    root = Path(what.root)
    current = [_read(root / path) for path in files]
    there = sum(one.num_rows for one in current)
    together = pa.concat_tables([*current, updates])
    chosen = latest_indices(together, what.counts)
    if not np.any(chosen >= there):
        return None  # nothing of it is newer than what is there
    rows = together.take(pa.array(chosen))
    rows = rows.filter(pc.is_valid(rows.column("value")))
    if not rows.num_rows:
        return {BUCKET: bucket, "path": "", "size": 0, "rows": 0, "stats": ""}
    path = f"{BUCKET}={bucket}/part-{uuid.uuid4().hex}.zstd.parquet"
    size = _write(root / path, rows)
    sync_folder_if_possible((root / path).parent)
    sync_folder_if_possible(root)  # the bucket's folder may be new
    return {BUCKET: bucket, "path": path, "size": size, "rows": rows.num_rows, "stats": _stats(rows)}


def _write(file: Path, rows: pa.Table) -> int:
    """Complete, and on the disk: the driver's commit may follow at once."""
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
    """What Delta's log keeps of a file, to pass over files that a query needs nothing of."""
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
    """The latest row of each key; tombstones, too.

    `counts`: how many partitions the stream had, one after the other, if keys have moved to those that were added.
    """
    return rows.take(pa.array(latest_indices(rows, counts)))


def latest_indices(rows: pa.Table, counts: tuple[int, ...] = ()) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in `rows` the latest row of each key is."""
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
    """The rows from the earliest to the latest; None: they lie so already."""
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    if not len(offsets):
        return None
    if np.all(partitions == partitions[0]):
        if np.all(offsets[1:] > offsets[:-1]):
            return None
        return np.argsort(offsets, kind="stable")
    times = rows.column("timestamp").cast(pa.int64()).to_numpy()
    added = np.searchsorted(counts, partitions, side="right")  # with which of the times that it got more
    order: np.ndarray[Any, np.dtype[np.int64]] = np.lexsort((offsets, partitions, times, added))
    return order
