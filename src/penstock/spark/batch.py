"""Reading what is there: `spark.read.format("penstock")`.

Rules: the ends are fixed when Spark plans, once for all tasks, and Spark plans once: a DataFrame stays what the log
held at its first action. Options alone say what is read. Filters are left to Spark: in PySpark 4.2 and 4.3 a filter
that a source takes stays with the relation, and the next query that uses it gets those rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.access import Operation
from penstock.base.errors import ConfigError
from penstock.client.blocking import Client
from penstock.client.values import EARLIEST
from penstock.messages import StreamInfo
from penstock.spark import brokers, fetching, rights
from penstock.spark.columns import as_announced
from penstock.spark.history import History, LakeTask, Wanted, read_files
from penstock.spark.options import SourceOptions
from penstock.spark.places import Earliest, Key, Position
from penstock.spark.planning import Chosen, Piece, check_there, choose, cut, find, ordered, row_bytes


class Task(InputPartition):
    """What Spark hands to a task, and shows in its own log: a range, and nothing else."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(tuple(piece))

    @property
    def piece(self) -> Piece:
        """The range."""
        return Piece(*self.value)


def fetching_of(options: SourceOptions, columns: Sequence[str]) -> fetching.Fetching:
    """How the tasks of a query read."""
    return fetching.Fetching(
        servers=options.servers,
        columns=tuple(columns),
        subjects=options.selection.subjects,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_s=options.timeout_s,
    )


class BatchReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self._options = options
        self._names = tuple(names or columns)  # of the columns, as the user gave them
        self._fetching = fetching_of(options, columns)

    def partitions(self) -> list[InputPartition]:
        """One for each piece; a single empty one where there is nothing to read."""
        options = self._options
        client = brokers.client(options.servers, options.timeout_s)
        chosen = choose(client, options.selection, options.timeout_s)
        rights.check(client, Operation.READ, chosen.streams, options.timeout_s, options.selection.subjects)
        history = History(options.archive, chosen, client, options.timeout_s) if options.archive else None
        starts = find(client, chosen, options.start or Earliest(), options)
        ends = find(client, chosen, options.end, options, otherwise=-1)
        archived: list[Wanted] = []
        pieces: list[Piece] = []
        for key in _keys(chosen, options.where.partitions):
            in_files, in_log = self._parts(client, chosen, key, starts[key], ends[key], history)
            archived += [in_files] if in_files else []
            pieces += [in_log] if in_log else []
        found = ordered(cut(pieces, row_bytes(chosen), options.partitions_min, options.records_max))
        tasks: list[InputPartition] = [*(history.tasks(archived) if history else ()), *map(Task, found)]
        return tasks or [Task(Piece("", 0, 0, 0, 0))]

    def _parts(
        self, client: Client, chosen: Chosen, key: Key, first: Position, last: Position, history: History | None
    ) -> tuple[Wanted | None, Piece | None]:
        """What is read of a partition from the archive, and what from the brokers."""
        options, where = self._options, self._options.where
        info = chosen.streams[key.stream]
        log_start = client.offsets(info, EARLIEST, partition=key.partition, timeout=options.timeout_s).log_start
        begin, end = self._stored_within(client, info, key, log_start)
        end = min(one for one in (last.offset, where.end, end) if one is not None)
        start, epoch, found = max(first.offset, where.start, begin), first.leader_epoch, None
        if history is not None:
            opened, since_us = history.begin_of(options.start or Earliest(), key, first.offset, log_start)
            until_us = history.until_of(options.end, key, last.offset, log_start)
            start = max(opened, where.start, begin)
            if start < end:
                wanted = Wanted(key, start, end, since_us, until_us).stored(where.since, where.until)
                found, (start, epoch) = history.split(wanted, epoch)
        if start < end:
            start = check_there(key, start, log_start, fail=options.fail_on_data_loss)
        if start >= end:
            return found, None
        return found, Piece(key.stream, int(info.stream_id), key.partition, start, end, epoch, last.leader_epoch)

    def _stored_within(self, client: Client, info: StreamInfo, key: Key, log_start: int) -> tuple[int, int | None]:
        """Between which offsets the log holds the times of `where`; what was archived may have earlier ones."""
        where, timeout_s = self._options.where, self._options.timeout_s
        begin, end = 0, None
        if where.since is not None:
            found = client.offsets(info, where.since, partition=key.partition, timeout=timeout_s).offset
            begin = found if found > log_start else 0
        if where.until is not None:
            end = client.offsets(info, where.until, partition=key.partition, timeout=timeout_s).offset
        return begin, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        return as_announced(self._read(partition), self._names)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeTask):
            return read_files(self._fetching.columns, partition, self._fetching.subjects)
        assert isinstance(partition, Task)
        piece = partition.piece
        return fetching.read(self._fetching, piece) if piece.start < piece.end else iter(())


def _keys(chosen: Chosen, partitions: frozenset[int] | None) -> list[Key]:
    """The partitions that are read. ConfigError: no stream has one that was asked for."""
    if partitions is None:
        return list(chosen.keys)
    if missing := sorted(partitions - {key.partition for key in chosen.keys}):
        raise ConfigError([f"where: no stream that is read has a partition {missing[0]}"])
    return [key for key in chosen.keys if key.partition in partitions]
