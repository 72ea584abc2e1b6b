"""Reading what is there: `spark.read.format("penstock")`.

Rules: the ends are fixed when Spark plans, once for all tasks. Spark hands filters over only where its switch
`spark.sql.python.filterPushdown.enabled` is on; those on offset, time, partition and subject then decide what is
fetched, and Spark looks at each row again all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import datasource as spark_api
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.access import Operation
from penstock.client.values import EARLIEST
from penstock.spark import brokers, fetching, rights
from penstock.spark.history import History, LakeTask, Wanted, read_files
from penstock.spark.options import SourceOptions
from penstock.spark.places import Earliest, Key, Moment, Position
from penstock.spark.planning import Chosen, Piece, check_there, choose, cut, find, ordered, row_bytes
from penstock.spark.pushed import Pushed

_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # where moments are as they seem


class Task(InputPartition):
    """What Spark hands to a task, and shows in its own log: a range, and nothing else."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(tuple(piece))

    @property
    def piece(self) -> Piece:
        """The range."""
        return Piece(*self.value)


def fetching_of(options: SourceOptions, columns: Sequence[str], subjects: Sequence[str]) -> fetching.Fetching:
    """How the tasks of a query read."""
    return fetching.Fetching(
        servers=options.servers,
        columns=tuple(columns),
        subjects=tuple(subjects),
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_s=options.timeout_s,
    )


class _Pushing:
    """`pushFilters` of one reader.

    Where its switch is off, Spark refuses a reader that has a `pushFilters` of its own, and a source cannot see the
    switch. It looks at `__func__` for that: here it finds the one that every reader has.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, pushed: Pushed) -> None:
        self._pushed = pushed

    def __call__(self, filters: list[spark_api.Filter]) -> Iterable[spark_api.Filter]:
        for one in filters:
            self._pushed.take(one)
        return filters  # Spark looks at each row again


class BatchReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._pushed = Pushed()
        self._subjects: tuple[str, ...] | None = options.selection.subjects
        self.pushFilters = _Pushing(self._pushed)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        """One for each piece; a single empty one where there is nothing to read."""
        options = self._options
        self._subjects = self._pushed.subjects_of(options.selection.subjects)
        client = brokers.client(options.servers, options.timeout_s)
        chosen = choose(client, options.selection, options.timeout_s)
        if self._subjects is not None:
            rights.check(client, Operation.READ, chosen.streams, options.timeout_s, self._subjects)
        history = History(options.archive, chosen, client, options.timeout_s) if options.archive else None
        starts = find(client, chosen, options.start or Earliest(), options)
        ends = find(client, chosen, options.end, options, otherwise=-1)
        archived: list[Wanted] = []
        wanted = self._ranges(chosen, starts, ends, history, archived) if self._subjects is not None else ()
        pieces = list(wanted)
        found = ordered(cut(pieces, row_bytes(chosen), options.partitions_min, options.records_max))
        tasks: list[InputPartition] = [*(history.tasks(archived) if history else ()), *map(Task, found)]
        return tasks or [Task(Piece("", 0, 0, 0, 0))]

    def _ranges(
        self,
        chosen: Chosen,
        starts: dict[Key, Position],
        ends: dict[Key, Position],
        history: History | None,
        archived: list[Wanted],
    ) -> Iterator[Piece]:
        """What the brokers give; what the history's archive gives comes into `archived`."""
        options = self._options
        client = brokers.client(options.servers, options.timeout_s)
        bounds_ms = (_milliseconds(self._pushed.since, 0), _milliseconds(self._pushed.until, 1))
        since, until = (
            None if at_ms is None else find(client, chosen, Moment(at_ms, {}, True), options) for at_ms in bounds_ms
        )
        for key in chosen.keys:
            if not self._pushed.wants(key):
                continue
            info = chosen.streams[key.stream]
            log_start = client.offsets(info, EARLIEST, partition=key.partition, timeout=options.timeout_s).log_start
            (start, epoch), stored_since = starts[key], None
            if history is not None:
                start, stored_since = history.begin_of(options.start or Earliest(), key, start, log_start)
            bounds = [ends[key].offset, self._pushed.end]
            start = max(start, self._pushed.start)
            if since is not None and (history is None or since[key].offset > log_start):
                start = max(start, since[key].offset)
            if until is not None:
                bounds.append(until[key].offset)
            end = min(one for one in bounds if one is not None)
            if history is not None and start < end:
                stored_until = history.until_of(options.end, key, ends[key].offset, log_start)
                wanted = Wanted(key, start, end, stored_since, stored_until)
                found, (start, epoch) = history.split(wanted, epoch)
                archived += [found] if found else []
            if start < end:
                start = check_there(key, start, log_start, fail=options.fail_on_data_loss)
            if start < end:
                which = (key.stream, chosen.stream_ids[key.stream], key.partition)
                yield Piece(*which, start, end, epoch, ends[key].leader_epoch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        if isinstance(partition, LakeTask):
            return read_files(self._columns, partition, self._subjects or ())
        assert isinstance(partition, Task)
        piece = partition.piece
        if piece.start >= piece.end:
            return iter(())
        return fetching.read(fetching_of(self._options, self._columns, self._subjects or ()), piece)


def _milliseconds(moment: datetime | None, more: int) -> int | None:
    """Of a bound, and `more`, for an end is one that some message may still be within; None: it bounds nothing."""
    if moment is None or not _FIRST <= moment <= _LAST:
        return None
    return int(moment.timestamp() * 1_000) + more
