"""The streaming reader: `spark.readStream.format("penstock")`.

Rules: Spark stores the offsets in its checkpoint, and replays a batch with the same offsets. `latestOffset` is a long
poll; otherwise Spark would call it twenty times a second. The end of each finished batch is also committed for a
consumer group, so that the brokers show the query's lag; nothing depends on it. The next batch reads an added partition
from its log start offset; messages of one batch have no order across partitions.

| call by Spark                   | result                                                                   |
|---------------------------------|--------------------------------------------------------------------------|
| `initialOffset`                 | start of a query without a checkpoint                                    |
| `latestOffset`                  | end of the next batch, within the limits, once there are enough messages |
| `prepareForTriggerAvailableNow` | fixes the present high watermarks as the query's end                     |
| `partitions`                    | the ranges between two offsets, in pieces                                |
| `commit`                        | commits the group's offsets                                              |
| `reportLatestOffset`            | the high watermarks, for the lag that Spark reports                      |
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
from penstock.client.blocking.client import Client
from penstock.client.bulk.ranges import agreed_end
from penstock.client.bulk.wait_for_data import wait_for_more
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.lake.reading import permissions
from penstock.lake.reading.columns import as_announced
from penstock.lake.reading.data_loss import passed_over, warn
from penstock.lake.reading.divergence import checked_cluster
from penstock.lake.reading.pieces import cut, log_starts_of, ordered, piece_of, row_bytes, share
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen, choose, is_selected
from penstock.lake.reading.typed import Typed, newer_than, registered
from penstock.messages import StreamInfo
from penstock.spark import brokers
from penstock.spark.options.options import LOSS_ADVICE, SourceOptions
from penstock.spark.options.positions import LOG_STARTS, NEWER_SCHEMAS, Boundary, Earliest, Latest, Positions
from penstock.spark.reading import fetching
from penstock.spark.reading.batch_reader import Task
from penstock.spark.reading.history import History, LakeTask, Wanted, read_files
from penstock.spark.reading.planning import find
from penstock.spark.reading.typed import check_versions_of

_log = logging.getLogger(__name__)

WAIT_S = 3.0
"""Longest wait of `latestOffset` in seconds; a longer one would delay the stop of a query."""
OLD_GROUP = "spark"
"""Consumer group of a query whose checkpoint is older than the field `group` and whose options name none."""
_GROUP_ID_BYTES = 4
_POLL_S = 1.0  # seconds of one long poll; short, because when one returns, those of other partitions stay open
_CHOOSE_S = 10.0  # interval between two look-ups of the streams that match a pattern


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query on the driver. Tasks have copies of it and call only `read`."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], names: Sequence[str] = (), typed: Typed | None = None
    ) -> None:
        self._options = options
        self._names = tuple(names or columns)  # the columns as the user wrote them
        self._fetching = fetching.fetching_of(options, columns, typed=typed)
        self._tells_group = options.group != ""
        self._last_batch_s = time.monotonic()
        self._available: Positions | None = None  # with Trigger.AvailableNow: the query's end
        self._chosen: Chosen | None = None
        self._chosen_s = 0.0
        self._said_gone: set[str] = set()
        self._cluster = ""
        self._typed = typed
        self._pins = {} if typed is None else typed.numbers()
        self._keeps_pins = typed is None  # checked against the checkpoint
        self._newer: dict[str, dict[str, int]] = {}  # versions of schemas that are newer than the query's
        self._agreed: dict[Key, tuple[Position, LeaderEpoch]] = {}  # last checked position, and the leader epoch then

    # Start and end of batches

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint."""
        chosen = self._choose(now=True)
        where = self._options.start or Latest()
        places = find(self._client(), chosen, where, self._options, otherwise=-1)
        if self._options.archive:
            places = self._with_archive(chosen, where, places)
        cluster = self._client().cluster_id(timeout=self._options.timeout_s)
        group = new_group() if self._options.group is None else ""
        return Positions(chosen.stream_ids, places, cluster=cluster, group=group, schemas=self._pins).to_json()

    def _with_archive(self, chosen: Chosen, where: Boundary, places: Mapping[Key, Position]) -> dict[Key, Position]:
        """Return the start of a query that also reads an archive. A start time does not limit archived messages."""
        history = History(self._options.archive, chosen, self._client(), self._options.timeout_s)
        out = {}
        for key, place in places.items():
            log_start = int(chosen.streams[key.stream].partitions[key.partition].log_start or 0)
            offset, _ = history.begin_of(where, key, place.offset, log_start)
            out[key] = place._replace(offset=offset)
        return out

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present high watermarks (`committed_end`) as the end of the query."""
        chosen = self._choose(now=True)
        self._available = Positions(chosen.stream_ids, find(self._client(), chosen, Latest(), self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`; `start` itself if there are too few messages."""
        begin = Positions.of_json(start)
        self._cluster = self._checked_cluster(begin)
        self._check_versions(begin)
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
        streams = self._choose().streams  # with AvailableNow, a stream may have been deleted since the ends were fixed
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
        # A partition without progress keeps its epoch, because equal positions must have equal text.
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
        # Partitions of deleted streams, and those whose leader does not answer, keep their position.
        kept = {key: at for key, at in begin.positions.items() if begin.of(key, stream_ids[key.stream]) is not None}
        return Positions(stream_ids, {**kept, **positions}, begins, self._cluster, gone, begin.group, self._pins)

    def _say_gone(self, name: str) -> None:
        """Raise DataLossError, or warn, if a stream of the query was deleted or no longer matches the selection."""
        try:
            self._client().stream(name, timeout=self._options.timeout_s)
        except StreamNotFound:
            passed_over(
                f"stream {name} was deleted since it was read last",
                fail=self._options.fail_on_data_loss,
                advice=LOSS_ADVICE,
            )
        else:
            if is_selected(name, self._options.selection):
                return
            text = f"stream {name}, which this query has read, is no longer among its streams"
            passed_over(text, fail=self._options.fail_on_data_loss, advice=LOSS_ADVICE)
        self._said_gone.add(name)

    def _checked_cluster(self, begin: Positions) -> str:
        what, instead = "the checkpoint of this query", "begin with another checkpointLocation"
        return checked_cluster(self._client(), begin.cluster, what, instead, self._options.timeout_s)

    def _check_versions(self, noted: Positions) -> None:
        """Raise ConfigError if the query would go on with other typed columns than it began with."""
        if not self._keeps_pins and self._typed is not None:
            check_versions_of(noted.schemas, self._typed, self._options.decode)
            self._keeps_pins = True

    def _check_cut(self, key: Key, known: Position, now: LeaderEpoch) -> Position:
        """Return the next position of a partition whose leader changed or whose high watermark is below the position.

        Raise DataLossError, or warn, if messages that were read are no longer in the log.
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
            advice=LOSS_ADVICE,
        )
        return Position(end)

    def _is_too_little(self, count: int) -> bool:
        wanted = self._options.min_offsets
        if wanted is None or count >= wanted:
            return False
        return time.monotonic() - self._last_batch_s < self._options.max_delay_s

    def _ends(self) -> Positions:
        """Return the high watermarks: the present ones, or with Trigger.AvailableNow the fixed ones."""
        if self._available is not None:
            return self._available
        chosen = self._choose()
        streams = self._streams_now(chosen.stream_ids)
        if any(_is_another(info, chosen.streams[name]) for name, info in streams.items()):
            chosen = self._choose(now=True)
        ends = {}
        for key in chosen.keys:
            if key.stream not in streams or key.partition >= len(streams[key.stream].partitions):
                continue  # deleted, or added after `streams` was read
            one = streams[key.stream].partitions[key.partition]
            if one.committed_end is not None:  # None: its leader does not answer
                ends[key] = Position(int(one.committed_end), int(one.leader_epoch))
        return Positions({name: int(info.stream_id) for name, info in streams.items()}, ends)

    def _streams_now(self, names: Iterable[str]) -> dict[str, StreamInfo]:
        """Return the streams that exist. Raise DataLossError, or warn, if one was deleted."""
        found = {}
        for name in names:
            try:
                found[name] = self._client().stream(name, timeout=self._options.timeout_s)
            except StreamNotFound:
                self._chosen = None
                passed_over(
                    f"stream {name} was deleted while it was being read",
                    fail=self._options.fail_on_data_loss,
                    advice=LOSS_ADVICE,
                )
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log start offsets and high watermarks, for metrics; None if they are unknown."""
        try:
            ends = self._ends()
            streams = self._streams_now(ends.stream_ids)
        except PenstockError as error:
            _log.warning("the lag of the query is not known: %s", error)
            return None
        told = ends.to_json()
        if not self._options.archive:  # with an archive, messages deleted from the log can still be read
            for name, info in streams.items():
                told[name][LOG_STARTS] = {str(key.partition): start for key, start in log_starts_of(info).items()}
        for name, newer in self._newer.items():
            if name in told:
                told[name][NEWER_SCHEMAS] = newer
        return told

    def _begin(self, begin: Positions, key: Key, stream_id: int) -> Position:
        """Return the next position of a partition.

        A partition that was added to a known stream begins at 0, that of a new stream at its log start offset. Raise
        DataLossError, or warn, if the stream was deleted and created again.
        """
        if (found := begin.of(key, stream_id)) is not None:
            return found
        if begin.stream_ids.get(key.stream) == stream_id and self._options.selection.assigned is None:
            return Position(0)
        if begin.stream_ids.get(key.stream, stream_id) != stream_id:
            text = f"stream {key.stream} was deleted and made anew since this query has read it last"
            advice = f"{LOSS_ADVICE}; another checkpointLocation begins anew, too"
            passed_over(text, fail=self._options.fail_on_data_loss, advice=advice)
        one = Chosen({key.stream: self._choose().streams[key.stream]}, (key,))
        earliest = find(self._client(), one, Earliest(), self._options)
        return (self._with_archive(one, Earliest(), earliest) if self._options.archive else earliest)[key]

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return tasks for the ranges between two offsets."""
        begin, finish = Positions.of_json(start), Positions.of_json(end)
        self._checked_cluster(finish)
        self._check_versions(finish)  # Spark replays the last batch before it asks for the next one
        options = self._options
        firsts = {key: _first(begin, finish, key) for key in finish.positions}
        moved = [key for key, last in finish.positions.items() if firsts[key].offset < last.offset]
        streams = self._streams_now({key.stream for key in moved})
        there = Chosen(streams, tuple(key for key in moved if key.stream in streams))
        history = History(options.archive, there, self._client(), options.timeout_s) if options.archive else None
        pieces, archived = [], []
        for key in there.keys:  # deleted streams are left out
            info, first, last = streams[key.stream], firsts[key], finish.positions[key]
            if int(info.stream_id) != finish.stream_ids[key.stream]:
                text = f"stream {key.stream} was deleted and made anew before a batch of it was read"
                passed_over(text, fail=options.fail_on_data_loss, advice=LOSS_ADVICE)
                continue
            if history is not None:
                part, first = history.split(Wanted(key, first.offset, last.offset), first.leader_epoch)
                archived += [part] if part else []
            piece = piece_of(info, key, first, last, fail=options.fail_on_data_loss, advice=LOSS_ADVICE)
            pieces += [piece] if piece else []
        tasks = ordered(cut(pieces, row_bytes(there), options.partitions_min, options.records_max))
        return [*(history.tasks(archived) if history else ()), *map(Task, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: yield the rows of one piece."""
        return as_announced(self._read(partition), self._names)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeTask):
            return read_files(self._fetching.what, partition)
        assert isinstance(partition, Task)
        return fetching.read(self._fetching, partition.piece)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a batch for the consumer group. Only log a failure: the checkpoint decides."""
        if not self._tells_group:
            return
        done = Positions.of_json(end)
        group = self._options.group or done.group or OLD_GROUP
        for name in done.stream_ids:
            offsets = {key.partition: place.offset for key, place in done.positions.items() if key.stream == name}
            try:
                self._client().groups.commit(group, name, offsets, timeout=self._options.timeout_s)
            except PenstockError as error:
                _log.warning("group %s: the progress of the query in %s was not committed: %s", group, name, error)
                if isinstance(error, NotAuthorized):  # later commits would fail, too
                    self._tells_group = False

    # Streams

    def _client(self) -> Client:
        return brokers.client(self._options.servers, self._options.timeout_s)

    def _choose(self, *, now: bool = False) -> Chosen:
        is_old = time.monotonic() - self._chosen_s >= _CHOOSE_S
        if self._chosen is None or now or is_old:
            may_lack = not self._options.fail_on_data_loss
            selection, timeout_s = self._options.selection, self._options.timeout_s
            chosen = choose(self._client(), selection, timeout_s, may_lack=may_lack)
            if self._chosen is None:
                permissions.check(self._client(), Operation.READ, chosen.streams, timeout_s, selection.subjects)
            self._chosen = chosen
            self._chosen_s = time.monotonic()
            self._look_for_newer_schemas()
        return self._chosen

    def _look_for_newer_schemas(self) -> None:
        """Warn once of each version that was registered since the query's columns were fixed."""
        if self._typed is None:
            return
        try:
            names = [name for name in self._pins if self._chosen is None or name in self._chosen.streams]
            now = registered(self._client(), names, self._options.timeout_s)
        except PenstockError as error:
            _log.warning("it is not known if the schemas have newer versions: %s", error)
            return
        newer = newer_than(self._typed, now)
        for name, numbers in newer.items():
            for subject, number in numbers.items():
                if self._newer.get(name, {}).get(subject) != number:
                    pinned = self._pins[name][subject]
                    warn(
                        f"stream {name}: version {number} of the schema for {subject} is registered; this query keeps "
                        f"the columns of version {pinned} until it is started with schemaVersions newest"
                    )
        self._newer = newer


def new_group() -> str:
    """Return a group name with a random id, for one query."""
    return f"spark-{secrets.token_hex(_GROUP_ID_BYTES)}"


def _is_another(info: StreamInfo, known: StreamInfo) -> bool:
    """True if the stream was created again, or its number of partitions changed."""
    return info.stream_id != known.stream_id or len(info.partitions) != len(known.partitions)


def _first(begin: Positions, finish: Positions, key: Key) -> Position:
    """Return a partition's begin of the batch that ends at `finish`."""
    if (said := finish.begins.get(key)) is not None:
        return Position(said)
    return begin.of(key, finish.stream_ids[key.stream]) or finish.positions[key]
