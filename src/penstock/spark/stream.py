"""Reading what comes: `spark.readStream.format("penstock")`.

Rules: Spark keeps the offsets, in its checkpoint, and plans a batch again as it was planned before. `latestOffset`
waits for messages rather than to be asked twenty times a second. What a query has done is also committed as a group of
its own, so that whoever looks at the brokers sees how far it is; nothing depends on it. A partition that was added is
read from its beginning, with the next batch; what is in one batch has no order across partitions.

| Spark asks                      | answered with                                                          |
|---------------------------------|------------------------------------------------------------------------|
| `initialOffset`                 | where a query begins that has no checkpoint                            |
| `latestOffset`                  | where the next batch ends: within the limits, and once there is enough |
| `prepareForTriggerAvailableNow` | from then on nothing beyond what is there now                          |
| `partitions`                    | the ranges between two offsets, in pieces                              |
| `commit`                        | the group's offsets                                                    |
| `reportLatestOffset`            | where the log ends, for the lag that Spark reports                     |
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.access import Operation
from penstock.base.errors import PenstockError
from penstock.base.ids import LeaderEpoch
from penstock.client.blocking import Client
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.client.ranges import agreed_end
from penstock.client.wait_for_data import wait_for_more
from penstock.messages import StreamInfo
from penstock.spark import brokers, fetching, rights
from penstock.spark.agreement import checked_cluster
from penstock.spark.batch import Task, fetching_of
from penstock.spark.columns import as_announced
from penstock.spark.history import History, LakeTask, Wanted, read_files
from penstock.spark.options import SourceOptions
from penstock.spark.places import LOG_STARTS, Earliest, Key, Latest, Position, Positions, Where
from penstock.spark.planning import (
    Chosen,
    choose,
    cut,
    find,
    is_selected,
    log_starts_of,
    ordered,
    passed_over,
    piece_of,
    row_bytes,
    share,
)

_log = logging.getLogger(__name__)

WAIT_S = 3.0
"""`latestOffset` waits so long for a message: longer would hold up a query that is being stopped."""
OLD_GROUP = "spark"
"""That of each query that began before checkpoints had a group, and whose options name none."""
_GROUP_ID_BYTES = 4
_POLL_S = 1.0  # one long poll: what is left of it when another partition had news is soon gone
_CHOOSE_S = 10.0  # streams that match a pattern are looked for so often


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. One object lives as long as its query; the tasks have copies of it, for `read` alone."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self._options = options
        self._names = tuple(names or columns)  # of the columns, as the user gave them
        self._fetching = fetching_of(options, columns)
        self._tells_group = options.group != ""
        self._last_batch_s = time.monotonic()
        self._available: Positions | None = None  # with Trigger.AvailableNow: where the query ends
        self._chosen: Chosen | None = None
        self._chosen_s = 0.0
        self._said_gone: set[str] = set()
        self._cluster = ""
        self._agreed: dict[Key, tuple[Position, LeaderEpoch]] = {}  # what was found to be right, under which leader

    # Where batches begin and end

    def initialOffset(self) -> dict[str, Any]:
        """Of a query without a checkpoint."""
        chosen = self._choose(now=True)
        where = self._options.start or Latest()
        places = find(self._client(), chosen, where, self._options, otherwise=-1)
        if self._options.archive:
            places = self._with_archive(chosen, where, places)
        cluster = self._client().cluster_id(timeout=self._options.timeout_s)
        group = new_group() if self._options.group is None else ""
        return Positions(chosen.stream_ids, places, cluster=cluster, group=group).to_json()

    def _with_archive(self, chosen: Chosen, where: Where, places: Mapping[Key, Position]) -> dict[Key, Position]:
        """Where a query begins that reads what was archived, too. What is older than a time it gets whole."""
        history = History(self._options.archive, chosen, self._client(), self._options.timeout_s)
        out = {}
        for key, place in places.items():
            log_start = int(chosen.streams[key.stream].partitions[key.partition].log_start or 0)
            offset, _ = history.begin_of(where, key, place.offset, log_start)
            out[key] = place._replace(offset=offset)
        return out

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxOffsetsPerTrigger` says."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads."""
        chosen = self._choose(now=True)
        self._available = Positions(chosen.stream_ids, find(self._client(), chosen, Latest(), self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the batch from `start` on ends; `start` itself: there is nothing to do."""
        begin = Positions.of_json(start)
        self._cluster = self._checked_cluster(begin)
        give_up_s = time.monotonic() + WAIT_S
        while True:
            ends = self._ends()
            end = self._next_end(begin, ends, limit)
            if end is not None:
                self._last_batch_s = time.monotonic()
                return end.to_json()
            if self._available is not None or time.monotonic() >= give_up_s:
                return start
            where = {(ends.stream_ids[key.stream], key.partition): at.offset for key, at in ends.positions.items()}
            wait_for_more(self._client(), where, _POLL_S)

    def _next_end(self, begin: Positions, ends: Positions, limit: ReadLimit) -> Positions | None:
        streams = self._choose().streams  # with AvailableNow, some of the ends' may be gone by now
        positions = {key: at for key, at in ends.positions.items() if key.stream in streams}
        ends = ends._replace(positions=positions)
        gone = frozenset(begin.stream_ids.keys() - ends.stream_ids.keys())
        for name in sorted(gone - begin.gone - self._said_gone):
            self._say_gone(name)
        known = {key: self._begin(begin, key, ends.stream_ids[key.stream]) for key in ends.positions}
        for key, end in ends.positions.items():
            if end.offset < known[key].offset or end.leader_epoch != known[key].leader_epoch:
                known[key] = self._check_cut(key, known[key], LeaderEpoch(end.leader_epoch))
        waiting = {key: max(0, end.offset - known[key].offset) for key, end in ends.positions.items()}
        count = sum(waiting.values())
        if not count or (self._available is None and self._is_too_little(count)):
            return None
        if isinstance(limit, ReadMaxRows):
            waiting = share(waiting, limit.max_rows)
        # What is not reached now keeps the epoch that it had: the same place must be the same text.
        positions = {
            key: Position(known[key].offset + rows, ends.positions[key].leader_epoch) if rows else known[key]
            for key, rows in waiting.items()
        }
        begins = {
            key: known[key].offset
            for key in positions
            if begin.of(key, ends.stream_ids[key.stream]) != known[key] and waiting[key]
        }
        stream_ids = {**begin.stream_ids, **ends.stream_ids}
        # A partition whose leader does not answer, and a stream that is gone, stay where they are.
        kept = {key: at for key, at in begin.positions.items() if begin.of(key, stream_ids[key.stream]) is not None}
        return Positions(stream_ids, {**kept, **positions}, begins, self._cluster, gone, begin.group)

    def _say_gone(self, name: str) -> None:
        """DataLossError: a stream that was read is not there any more; a broker's list may be older than that."""
        try:
            self._client().stream(name, timeout=self._options.timeout_s)
        except StreamNotFound:
            passed_over(f"stream {name} was deleted since it was read last", fail=self._options.fail_on_data_loss)
        else:
            if is_selected(name, self._options.selection):
                return
            text = f"stream {name}, which this query has read, is not among those that it is to read"
            passed_over(text, fail=self._options.fail_on_data_loss)
        self._said_gone.add(name)

    def _checked_cluster(self, begin: Positions) -> str:
        what, instead = "the checkpoint of this query", "begin with another checkpointLocation"
        return checked_cluster(self._client(), begin.cluster, what, instead, self._options.timeout_s)

    def _check_cut(self, key: Key, known: Position, now: LeaderEpoch) -> Position:
        """Where a partition goes on whose leader is another one by now, or knows of less than was read.

        DataLossError: what was read is not in the log any more.
        """
        if not known.leader_epoch or self._agreed.get(key) == (known, now):
            return known
        info = self._choose().streams[key.stream]
        end = agreed_end(
            self._client(), info, key.partition, known.offset, known.leader_epoch, timeout=self._options.timeout_s
        )
        if end == known.offset:
            self._agreed[key] = (known, now)
            return known
        passed_over(
            f"messages {end} to {known.offset - 1} of stream {key.stream}, partition {key.partition}, were read and "
            "are not in the log any more: it was cut, or began anew",
            fail=self._options.fail_on_data_loss,
        )
        return Position(end)

    def _is_too_little(self, count: int) -> bool:
        wanted = self._options.min_offsets
        if wanted is None or count >= wanted:
            return False
        return time.monotonic() - self._last_batch_s < self._options.max_delay_s

    def _ends(self) -> Positions:
        """Where each partition ends: now, or when a query that takes what is there began."""
        if self._available is not None:
            return self._available
        chosen = self._choose()
        streams = self._streams_now(chosen.stream_ids)
        if any(_is_another(info, chosen.streams[name]) for name, info in streams.items()):
            chosen = self._choose(now=True)
        ends = {}
        for key in chosen.keys:
            if key.stream not in streams or key.partition >= len(streams[key.stream].partitions):
                continue  # it is gone, or was added since
            one = streams[key.stream].partitions[key.partition]
            if one.committed_end is not None:  # else its leader does not answer: nothing is new there
                ends[key] = Position(int(one.committed_end), int(one.leader_epoch))
        return Positions({name: int(info.stream_id) for name, info in streams.items()}, ends)

    def _streams_now(self, names: Iterable[str]) -> dict[str, StreamInfo]:
        """Those that are still there. DataLossError: one is not."""
        found = {}
        for name in names:
            try:
                found[name] = self._client().stream(name, timeout=self._options.timeout_s)
            except StreamNotFound:
                self._chosen = None
                passed_over(f"stream {name} was deleted while it was being read", fail=self._options.fail_on_data_loss)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the log begins and ends, whatever the limits; for metrics."""
        try:
            ends = self._ends()
            streams = self._streams_now(ends.stream_ids)
        except PenstockError as error:
            _log.warning("cannot say how far behind the query is: %s", error)
            return None
        told = ends.to_json()
        if not self._options.archive:  # else what is gone from the log is still to be read, from there
            for name, info in streams.items():
                told[name][LOG_STARTS] = {str(key.partition): start for key, start in log_starts_of(info).items()}
        return told

    def _begin(self, begin: Positions, key: Key, stream_id: int) -> Position:
        """Where a partition is read from. One that is new is read from its beginning.

        DataLossError: the name is that of another stream by now.
        """
        if (found := begin.of(key, stream_id)) is not None:
            return found
        if begin.stream_ids.get(key.stream, stream_id) != stream_id:
            text = f"stream {key.stream} was deleted and made anew since this query has read it last"
            hint = "; another checkpointLocation begins anew, too"
            passed_over(text, fail=self._options.fail_on_data_loss, hint=hint)
        one = Chosen({key.stream: self._choose().streams[key.stream]}, (key,))
        earliest = find(self._client(), one, Earliest(), self._options)
        return (self._with_archive(one, Earliest(), earliest) if self._options.archive else earliest)[key]

    # What is read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets, in pieces."""
        begin, finish = Positions.of_json(start), Positions.of_json(end)
        self._checked_cluster(finish)
        options = self._options
        firsts = {key: _first(begin, finish, key) for key in finish.positions}
        moved = [key for key, last in finish.positions.items() if firsts[key].offset < last.offset]
        streams = self._streams_now({key.stream for key in moved})
        there = Chosen(streams, tuple(key for key in moved if key.stream in streams))
        history = History(options.archive, there, self._client(), options.timeout_s) if options.archive else None
        pieces, archived = [], []
        for key in there.keys:  # a stream that is not there may be passed over
            info, first, last = streams[key.stream], firsts[key], finish.positions[key]
            if int(info.stream_id) != finish.stream_ids[key.stream]:
                text = f"stream {key.stream} was deleted and made anew before a batch of it was read"
                passed_over(text, fail=options.fail_on_data_loss)
                continue
            if history is not None:
                part, first = history.split(Wanted(key, first.offset, last.offset), first.leader_epoch)
                archived += [part] if part else []
            piece = piece_of(info, key, first, last, fail=options.fail_on_data_loss)
            pieces += [piece] if piece else []
        tasks = ordered(cut(pieces, row_bytes(there), options.partitions_min, options.records_max))
        return [*(history.tasks(archived) if history else ()), *map(Task, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece: in a task."""
        return as_announced(self._read(partition), self._names)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeTask):
            return read_files(self._fetching.columns, partition, self._fetching.subjects)
        assert isinstance(partition, Task)
        return fetching.read(self._fetching, partition.piece)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: say so to whoever looks at groups. It may fail: the checkpoint is what counts."""
        if not self._tells_group:
            return
        done = Positions.of_json(end)
        group = self._options.group or done.group or OLD_GROUP
        for name in done.stream_ids:
            offsets = {key.partition: place.offset for key, place in done.positions.items() if key.stream == name}
            try:
                self._client().groups.commit(group, name, offsets, timeout=self._options.timeout_s)
            except PenstockError as error:
                _log.warning("group %s does not show how far the query is in %s: %s", group, name, error)
                if isinstance(error, NotAuthorized):  # once is enough
                    self._tells_group = False

    # Which streams

    def _client(self) -> Client:
        return brokers.client(self._options.servers, self._options.timeout_s)

    def _choose(self, *, now: bool = False) -> Chosen:
        is_old = time.monotonic() - self._chosen_s >= _CHOOSE_S
        if self._chosen is None or now or is_old:
            may_lack = not self._options.fail_on_data_loss
            selection, timeout_s = self._options.selection, self._options.timeout_s
            chosen = choose(self._client(), selection, timeout_s, may_lack=may_lack)
            if self._chosen is None:
                rights.check(self._client(), Operation.READ, chosen.streams, timeout_s, selection.subjects)
            self._chosen = chosen
            self._chosen_s = time.monotonic()
        return self._chosen


def new_group() -> str:
    """A group for one query."""
    return f"spark-{secrets.token_hex(_GROUP_ID_BYTES)}"


def _is_another(info: StreamInfo, known: StreamInfo) -> bool:
    """Whether it is not the stream that was chosen, or has other partitions by now."""
    return info.stream_id != known.stream_id or len(info.partitions) != len(known.partitions)


def _first(begin: Positions, finish: Positions, key: Key) -> Position:
    """Where a batch begins in a partition."""
    if (said := finish.begins.get(key)) is not None:
        return Position(said)
    return begin.of(key, finish.stream_ids[key.stream]) or finish.positions[key]
