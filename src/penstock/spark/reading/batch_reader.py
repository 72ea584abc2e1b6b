"""The batch reader: `spark.read.format("penstock")`.

Rules: Spark plans a DataFrame once, at its first action, and that fixes the ranges: a DataFrame is a snapshot. Only the
options decide which messages are read. Spark applies the filters: in PySpark 4.2 and 4.3 a filter that a source accepts
stays with the relation, so that the next query on the same DataFrame would lack rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.access import Operation
from penstock.base.errors import ConfigError
from penstock.client.blocking.client import Client
from penstock.client.values import EARLIEST
from penstock.lake.reading import permissions
from penstock.lake.reading.columns import as_announced
from penstock.lake.reading.data_loss import check_there
from penstock.lake.reading.pieces import Piece, cut, ordered, row_bytes
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen, choose
from penstock.lake.reading.typed import Typed
from penstock.messages import StreamInfo
from penstock.spark import brokers
from penstock.spark.options.options import LOSS_ADVICE, SourceOptions
from penstock.spark.options.positions import Earliest
from penstock.spark.reading import fetching
from penstock.spark.reading.history import History, LakeTask, Wanted, read_files
from penstock.spark.reading.planning import find


class Task(InputPartition):
    """The range that Spark passes to a task. Spark prints it in its log, so it holds no options."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(tuple(piece))

    @property
    def piece(self) -> Piece:
        """Range of the task."""
        return Piece(*self.value)


class BatchReader(DataSourceReader):
    """Plans the ranges on the driver, and reads them in the tasks. `names`: the columns as the user wrote them."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], names: Sequence[str] = (), typed: Typed | None = None
    ) -> None:
        self._options = options
        self._names = tuple(names or columns)
        self._fetching = fetching.fetching_of(options, columns, typed=typed)

    def partitions(self) -> list[InputPartition]:
        """Return one task for each piece; one empty task if there is nothing to read."""
        options = self._options
        client = brokers.client(options.servers, options.timeout_s)
        chosen = choose(client, options.selection, options.timeout_s)
        permissions.check(client, Operation.READ, chosen.streams, options.timeout_s, options.selection.subjects)
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
        """Return the part of a partition to read from the archive, and the part to read from the brokers."""
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
            start = check_there(key, start, log_start, fail=options.fail_on_data_loss, advice=LOSS_ADVICE)
        if start >= end:
            return found, None
        return found, Piece(key.stream, int(info.stream_id), key.partition, start, end, epoch, last.leader_epoch)

    def _stored_within(self, client: Client, info: StreamInfo, key: Key, log_start: int) -> tuple[int, int | None]:
        """Return the log's offsets for the times of `where`; a start of 0 includes archived messages below the log."""
        where, timeout_s = self._options.where, self._options.timeout_s
        begin, end = 0, None
        if where.since is not None:
            found = client.offsets(info, where.since, partition=key.partition, timeout=timeout_s).offset
            begin = found if found > log_start else 0
        if where.until is not None:
            end = client.offsets(info, where.until, partition=key.partition, timeout=timeout_s).offset
        return begin, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: yield the rows of one piece."""
        return as_announced(self._read(partition), self._names)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeTask):
            return read_files(self._fetching.what, partition)
        assert isinstance(partition, Task)
        piece = partition.piece
        return fetching.read(self._fetching, piece) if piece.start < piece.end else iter(())


def _keys(chosen: Chosen, partitions: frozenset[int] | None) -> list[Key]:
    """Return the chosen partitions whose number is in `partitions`. Raise ConfigError if no stream has one of them."""
    if partitions is None:
        return list(chosen.keys)
    if missing := sorted(partitions - {key.partition for key in chosen.keys}):
        raise ConfigError([f"where: no stream that is read has a partition {missing[0]}"])
    return [key for key in chosen.keys if key.partition in partitions]
