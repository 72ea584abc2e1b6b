"""History: an archive and the log read as one stream, without gaps and duplicates.

Rules: each partition is read from the archive up to the archive's end offset, and from the log from there on; later
compaction of the log does not affect archived messages. A gap between the two is an error, unless `failOnDataLoss` is
false. If the log was truncated below the archive's end or restarted empty, the archive is not of this log: that is
always an error. Only the driver reads the table; a task gets files and the offsets to read.

    archive   [start ················ end)
    log                      [log_start ··········· committed_end)
    read      ◀── files ────────────▶◀── brokers ────────────▶
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from penstock.base.errors import ConfigError, CorruptionError
from penstock.client.blocking.client import Client
from penstock.client.read.filters import Filter
from penstock.client.values import microseconds_of
from penstock.lake.reading.columns import LOG_APPEND_TIME, arrow_schema, header_blocks
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.divergence import checked_cluster, held_end
from penstock.lake.reading.fetching import Fetching, say_refused
from penstock.lake.reading.pieces import PIECE_BYTES
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen
from penstock.lake.reading.typed import NEEDED, TypedColumns
from penstock.lake.tables.formats import open_table
from penstock.lake.tables.manifest import read_about
from penstock.lake.tables.table import LakeFile, Range
from penstock.schemas.report import DecodeReport
from penstock.spark.options.positions import EARLIEST_OFFSET, Boundary, Earliest, Moment, Offsets


class Wanted(NamedTuple):
    """The rows to read from an archive: offsets `[start, end)` of a partition, optionally limited by timestamps."""

    key: Key
    start: int
    end: int
    since_us: int | None = None
    until_us: int | None = None

    def stored(self, since: datetime | None, until: datetime | None) -> Wanted:
        """Return the rows of this selection with timestamps in `[since, until)`; None: no bound."""
        begins = [self.since_us, None if since is None else microseconds_of(since)]
        ends = [self.until_us, None if until is None else microseconds_of(until)]
        return self._replace(
            since_us=max((one for one in begins if one is not None), default=None),
            until_us=min((one for one in ends if one is not None), default=None),
        )


class FilePiece(NamedTuple):
    """The rows to read from one file."""

    path: str
    topic: str
    wanted: tuple[tuple[Range, int | None, int | None], ...]  # offsets, since_us, until_us


class LakeTask(InputPartition):
    """The files that Spark passes to a task."""

    def __init__(self, pieces: Iterable[FilePiece]) -> None:
        super().__init__(tuple(tuple(one) for one in pieces))

    @property
    def pieces(self) -> list[FilePiece]:
        """Files of the task."""
        return [FilePiece(path, topic, wanted) for path, topic, wanted in self.value]


class History:
    """The ranges that an archive holds of some streams.

    Raise ConfigError if the folder has no archive, DataLossError if it is of another cluster or of other streams.
    """

    def __init__(self, path: str, chosen: Chosen, client: Client, timeout_s: float) -> None:
        self._chosen, self._client, self._timeout_s = chosen, client, timeout_s
        self._root = Path(path).absolute()
        about = read_about(self._root)
        if about is None:
            raise ConfigError([f"archive: not found in {self._root}; `penstock archive` makes one"])
        checked_cluster(client, about.cluster, f"the archive in {self._root}", "read one of them by itself", timeout_s)
        for name, number in chosen.stream_ids.items():
            if about.stream_ids.get(name, number) != number:
                text = f"stream {name} was deleted and made anew since it was archived in {self._root}"
                raise DataLossError(f"{text}; read one of them by itself")
        self._table = open_table(self._root, about.format, None)
        keys = [key for key in chosen.keys if key in about.starts]
        self._places = {key: about.starts[key] for key in keys} | self._table.ends(keys)
        self.starts: Mapping[Key, int] = {key: about.starts[key].offset for key in keys}
        self.ends: Mapping[Key, int] = {key: at.offset for key, at in self._places.items()}

    def begin(self, key: Key, log_start: int) -> int:
        """Return the first offset that the archive or the log holds."""
        return min(log_start, self.starts.get(key, log_start))

    def begin_of(self, where: Boundary, key: Key, found: int, log_start: int) -> tuple[int, int | None]:
        """Return (offset, since_us) of the start in archive and log; `found`: the start in the log alone."""
        if found > log_start or not _is_open(where, key):
            return found, None
        since_ms = _moment_ms(where, key)
        return self.begin(key, log_start), None if since_ms is None else since_ms * 1_000

    @staticmethod
    def until_of(where: Boundary, key: Key, found: int, log_start: int) -> int | None:
        """Return the end time in microseconds if it is not after the log start, else None. `found`: end in the log."""
        until_ms = _moment_ms(where, key)
        return None if until_ms is None or found > log_start else until_ms * 1_000

    def split(self, wanted: Wanted, leader_epoch: int) -> tuple[Wanted | None, Position]:
        """Return (the part to read from the archive, the position from which to read the rest in the log).

        `leader_epoch`: of the start of `wanted`. Raise DataLossError if the log was truncated below the archive's end.
        """
        key = wanted.key
        end = min(wanted.end, self.ends.get(key, 0))
        if key not in self.starts or not self.starts[key] <= wanted.start < end:
            return None, Position(wanted.start, leader_epoch)
        at = self._places[key]
        held = held_end(self._client, self._chosen.streams[key.stream], key, at, self._timeout_s)
        if held < wanted.end and held < at.offset:
            text = f"stream {key.stream}, partition {key.partition}: the log was cut at {held}, or began anew, since"
            raise DataLossError(f"{text} it was archived up to {at.offset} in {self._root}; read one of them by itself")
        return wanted._replace(end=end), Position(end, at.leader_epoch or leader_epoch)

    def tasks(self, wanted: Iterable[Wanted]) -> list[LakeTask]:
        """Group the files with wanted rows into tasks of about PIECE_BYTES."""
        of_topic: dict[str, list[Wanted]] = {}
        for one in wanted:
            of_topic.setdefault(one.key.stream, []).append(one)
        if not of_topic:
            return []
        tasks: list[list[FilePiece]] = []
        room = 0
        for file in sorted(self._table.files(of_topic), key=lambda one: (one.topic, one.date, one.path)):
            if not (parts := tuple(_parts(file, of_topic[file.topic]))):
                continue
            if not tasks or file.size_bytes > room:
                tasks.append([])
                room = PIECE_BYTES
            tasks[-1].append(FilePiece(str(self._root / file.path), file.topic, parts))
            room -= file.size_bytes
        return [LakeTask(one) for one in tasks]


def _is_open(where: Boundary, key: Key) -> bool:
    """True if the start is "earliest" or a time: then it may be before the log start offset."""
    if isinstance(where, Offsets):
        return where.offsets.get(key.stream, {}).get(key.partition, EARLIEST_OFFSET) == EARLIEST_OFFSET
    return isinstance(where, Earliest | Moment)


def _moment_ms(where: Boundary, key: Key) -> int | None:
    if not isinstance(where, Moment):
        return None
    return where.all_ms if where.all_ms is not None else where.each_ms.get(key.stream, {}).get(key.partition)


def _parts(file: LakeFile, wanted: Iterable[Wanted]) -> Iterator[tuple[Range, int | None, int | None]]:
    for one in wanted:
        for held in file.ranges:
            if held.partition == one.key.partition and held.start < one.end and one.start < held.end:
                yield Range(held.partition, one.start, one.end), one.since_us, one.until_us


# In a task


def read_files(how: Fetching, task: LakeTask) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a task's files in Spark's schema, with typed columns if some are requested.

    Their values are decoded here, whatever the archive has decoded them to. Raise DataLossError if a file was deleted,
    CorruptionError if it is invalid or a page's checksum is wrong.
    """
    if how.typed is None or not (typed := TypedColumns(how.typed)).names_in(how.columns):
        for _, rows in _of_files(how.columns, task, how.subjects):
            yield rows
        return
    report = DecodeReport()
    needed = dict.fromkeys(["offset", *NEEDED, *[name for name in how.columns if name not in typed.schema.names]])
    for topic, rows in _of_files(tuple(needed), task, how.subjects):
        blocks = header_blocks(rows.column("headers"))
        log = pa.RecordBatch.from_arrays(
            [rows.column("offset"), rows.column("subject"), rows.column("value"), blocks],
            ["offset", "subject", "value", "headers"],
        )
        yield typed.together(rows, typed.decode(topic, log, report), how.columns)
    say_refused(report, "archived messages")


def _of_files(
    columns: tuple[str, ...], task: LakeTask, subjects: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the wanted rows of a task's files, each with its stream; empty `subjects`: rows on all subjects.

    Raise DataLossError if a file was deleted, CorruptionError if it is invalid or a page's checksum is wrong.
    """
    for piece in task.pieces:
        try:
            with pq.ParquetFile(piece.path, page_checksum_verification=True) as file:
                for number in range(file.metadata.num_row_groups):
                    if _may_hold(file, number, piece):
                        for rows in _rows(file, number, piece, columns, subjects):
                            yield piece.topic, rows
        except FileNotFoundError:
            raise DataLossError(f"{piece.path} is missing, although the archive's table names it") from None
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an I/O error of the operating system: the content may be valid
            raise CorruptionError(piece.path, 0, "a Parquet file of an archive", str(error)[:200]) from None


def _may_hold(file: pq.ParquetFile, number: int, piece: FilePiece) -> bool:
    group = file.metadata.row_group(number)
    found = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in ("offset", "partition"):
            if column.statistics is None or not column.statistics.has_min_max:
                return True
            found[column.path_in_schema] = column.statistics.min, column.statistics.max
    (first, last), (low, high) = found["partition"], found["offset"]
    return any(first <= part.partition <= last and part.start <= high and low < part.end for part, _, _ in piece.wanted)


def _rows(
    file: pq.ParquetFile, number: int, piece: FilePiece, columns: tuple[str, ...], subjects: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    names = file.schema_arrow.names
    needed = {"partition", "offset", *columns, *(("subject",) if subjects else ())}
    if any(since is not None or until is not None for _, since, until in piece.wanted):
        needed.add("timestamp")
    rows = file.read_row_group(number, columns=[name for name in names if name in needed])
    kept = _kept(rows, piece)
    if not kept.all():
        rows = rows.filter(pa.array(kept))
    schema = arrow_schema(columns)
    constant = {
        "topic": pa.scalar(piece.topic, pa.string()),
        "timestampType": pa.scalar(LOG_APPEND_TIME, pa.int32()),
    }
    for batch in rows.to_batches():
        found = Filter(subject=subjects).rows(batch) if subjects else batch
        if found.num_rows:
            arrays = [
                found.column(field.name).cast(field.type)
                if field.name in names and field.name != "topic"
                else pa.repeat(constant[field.name], found.num_rows)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kept(rows: pa.Table, piece: FilePiece) -> np.ndarray:
    partitions, offsets = np.asarray(rows.column("partition")), np.asarray(rows.column("offset"))
    kept = np.zeros(rows.num_rows, dtype=bool)
    for part, since, until in piece.wanted:
        one = (partitions == part.partition) & (offsets >= part.start) & (offsets < part.end)
        if since is not None or until is not None:
            times = np.asarray(rows.column("timestamp").cast(pa.int64()))
            one &= (since is None or times >= since) & (until is None or times < until)
        kept |= one
    return kept
