"""Log → lake: `penstock.spark.archive` copies streams into a table of Parquet files, each message once.

Rules: the table says how far it goes, in the commit that adds the rows (`lake`). A batch is a range of offsets of each
partition, from there on; it is read and written by the same tasks, and no row goes through Java. Whatever is killed,
whenever: the next run asks the table, and goes on. Spark's checkpoints have no part in it, so none can be lost.

| step                                  | killed behind it, the next run                                  |
|---------------------------------------|-----------------------------------------------------------------|
| plan: from the table's ends on        | plans anew                                                      |
| tasks write files                     | writes others; these are part of nothing                        |
| commit: files and ends                | goes on behind them                                             |
| the group, and what may be deleted    | says both again                                                 |
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from penstock.base import limits
from penstock.base.errors import OperationalError, PenstockError
from penstock.client.blocking import Client
from penstock.client.errors import StreamNotFound
from penstock.client.values import LATEST
from penstock.messages import StreamInfo
from penstock.spark import brokers, fetching, lake
from penstock.spark.agreement import check_held, checked_cluster
from penstock.spark.archive_plan import Plan, decoded, open_table, plan_of
from penstock.spark.decoding import COLUMNS, DATA, rejects_schema, with_json, write_avro, write_json
from penstock.spark.jobs import BatchDone, Pace, Report, no_report, session_of, without_pandas_warning
from penstock.spark.lake import About, Commit, LakeFile, Table
from penstock.spark.lake_files import LakeWriter, Writing, empty_file, told_files
from penstock.spark.naming import loss_named
from penstock.spark.places import Earliest, Key, Position
from penstock.spark.planning import (
    Chosen,
    DataLossError,
    Piece,
    choose,
    cut,
    find,
    is_selected,
    lag_of,
    log_starts_of,
    passed_over,
    piece_of,
    row_bytes,
    share,
    warn,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_TOLD = "file string"
_CHOOSE_S = 10.0  # streams that match a pattern are looked for so often


class Archived(NamedTuple):
    """What a run has done: messages, files and batches, and where the archive ends in each partition.

    `name`: by which the brokers know it; the group `archive-NAME` shows how far it is. `rejected`: messages whose
    values could not be decoded; they are in the archive without `data`, and with reasons in its folder `_rejects`.
    """

    rows: int
    files: int
    batches: int
    ends: Mapping[Key, int]
    name: str = ""
    rejected: int = 0


def archive(
    stream: str,
    to: str | Path,
    *,
    format: str = "parquet",  # noqa: A002 (Spark's word)
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    servers: str = "",
    once: bool = True,
    name: str = "",
    max_batch: int = limits.ARCHIVE_BATCH_ROWS_DEFAULT,
    min_batch: int = 1,
    max_delay_s: float = 300.0,
    trigger_s: float = 60.0,
    file_bytes: int = limits.LAKE_FILE_BYTES_DEFAULT,
    fail_on_data_loss: bool = True,
    decode: str = "",
    schema: str = "",
    report: Report = no_report,
) -> Archived:
    """Copy streams into the folder `to`, each message once, by the UTC date of its timestamp and by stream.

    `stream`: a name, several with commas between, or a pattern as `orders-*`. A run goes on where the last one ended,
    also if that was killed.

    `format`: "parquet", "delta" or "iceberg". `once`: end when all is archived that is there now; else go on until
    interrupted, with a batch every `trigger_s` seconds at most, of `min_batch` messages at least, unless those wait for
    `max_delay_s`; streams that come to match, and partitions that are added, are archived from their beginning. A batch
    is of `max_batch` messages at most, files of about `file_bytes`. The group `archive-NAME` shows how far it is; the
    first run fixes `name`, up to 64 letters, digits, `.`, `-` and `_`, and makes one of the folder's name and an id, if
    none is given.

    `decode`: "json" or "avro" adds the column `data`, a struct that the value was decoded to. `schema` is DDL for JSON
    (not given: inferred from the first messages), an Avro schema for Avro; the first run fixes both. Values that cannot
    be decoded have no `data`, and a row with the reason in another table of the same format, in the folder `_rejects`;
    `Archived.rejected` and each `BatchDone.rejected` count them, and a warning says so once in a run.

    ConfigError; DataLossError: messages are gone from the log that were not archived, and `fail_on_data_loss` is set;
    or the log was cut below the archive's end, or began anew, whatever is set; OvertakenError:
    another job writes the same archive; OperationalError: with `once`, also if a partition's leader does not answer.
    """
    plan = plan_of(
        stream, to, format=format, servers=servers, name=name, max_batch=max_batch, min_batch=min_batch,
        max_delay_s=max_delay_s, trigger_s=trigger_s, file_bytes=file_bytes, fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    with loss_named():
        # What can be known without Spark is known before it starts, which takes a while.
        _choose(plan)
        if plan.root.exists():
            with lake.locked(plan.root):
                pass
        session = session_of(spark, f"archive {stream}")
        plan = decoded(session, plan, decode, schema)
        rejects = None
        if plan.decode:
            rejects = lake.open_table(plan.root / lake.REJECTS, plan.format, rejects_schema())
        return ArchiveJob(session, plan, open_table(plan), rejects).run(once=once, report=report)


def _choose(plan: Plan) -> Chosen:
    source = plan.source
    client = brokers.client(source.servers, source.timeout_s)
    return choose(client, source.selection, source.timeout_s, may_lack=not source.fail_on_data_loss)


class ArchiveJob:
    """One run of an archive. `table` is that of the plan's folder; `rejects`: for values that cannot be decoded."""

    def __init__(self, spark: SparkSession, plan: Plan, table: Table, rejects: Table | None = None) -> None:
        self._spark = spark
        self._plan = plan
        self._table = table
        self._rejects = rejects
        self._name = plan.name
        self._chosen_s = 0.0
        self._told_ends: dict[str, dict[int, Position]] = {}
        self._log_starts: dict[Key, int] = {}
        self._agreed: dict[Key, tuple[Position, int]] = {}  # what the log was found to hold, under which leader

    def run(self, *, once: bool, report: Report = no_report) -> Archived:
        """See `archive`."""
        with lake.locked(self._plan.root):
            return self._run(once, report)

    def _run(self, once: bool, report: Report) -> Archived:
        plan = self._plan
        chosen = self._choose()
        self._table.finish()
        if self._rejects is not None:
            self._rejects.finish()
        begins = self._begin(chosen)
        until = self._log_ends(chosen, wait=True) if once else None
        self._check_agrees(chosen, begins, until)
        if self._rejects is not None:
            self._check_agrees(chosen, self._rejects.ends(begins), until)
        self._tell(begins)
        pace = Pace(plan.trigger_s, plan.rows_min, plan.delay_s)
        rows = files = batches = rejected = 0
        while True:
            if not once:
                chosen, begins = self._chosen_again(chosen, begins)
            log_ends = self._log_ends(chosen) if until is None else until
            self._check_agrees(chosen, begins, log_ends)
            waiting = {key: max(0, end.offset - begins[key].offset) for key, end in log_ends.items()}
            count = sum(waiting.values())
            if once and not count:
                offsets = {key: at.offset for key, at in begins.items()}
                return Archived(rows, files, batches, offsets, self._name, rejected)
            if not (once or pace.is_due(count)):
                time.sleep(limits.ARCHIVE_LOOK_S)
                continue
            pace.begin()
            started_s = time.monotonic()
            ends = dict(begins)
            for key, more in share(waiting, plan.rows_max).items():
                if more:
                    ends[key] = Position(begins[key].offset + more, log_ends[key].leader_epoch)
            made, bad = self._done(chosen, begins, ends)
            self._say_rejected(bad, rejected)
            rejected += bad
            self._table.commit(Commit(tuple(made), begins, ends))
            lag = lag_of(ends, self._log_starts, log_ends)
            begins = ends
            self._tell(begins)
            batches += 1
            files += len(made)
            rows += lake.covered(made)
            size = sum(one.size_bytes for one in made)
            seconds = time.monotonic() - started_s
            told = None if self._rejects is None else bad
            report(BatchDone(batches, lake.covered(made), size, seconds, lag, told))

    # Where it begins and ends

    def _client(self) -> Client:
        return brokers.client(self._plan.source.servers, self._plan.source.timeout_s)

    def _choose(self) -> Chosen:
        self._chosen_s = time.monotonic()
        return _choose(self._plan)

    def _chosen_again(self, chosen: Chosen, begins: dict[Key, Position]) -> tuple[Chosen, dict[Key, Position]]:
        """The streams that are there by now, and where each goes on: a new one at its beginning."""
        if time.monotonic() - self._chosen_s < _CHOOSE_S:
            return chosen, begins
        now = self._choose()
        for name in sorted(chosen.streams.keys() - now.streams.keys()):
            text = f"stream {name} was deleted while it was being archived"
            passed_over(text, fail=self._plan.source.fail_on_data_loss)
        if now.keys == chosen.keys and now.stream_ids == chosen.stream_ids:
            return now, begins
        return now, self._begin(now)

    def _begin(self, chosen: Chosen) -> dict[Key, Position]:
        """Where each partition goes on: where the table ends, or where the log began when it was first archived."""
        plan = self._plan
        about = lake.read_about(plan.root)
        ids = dict(about.stream_ids) if about else {}
        known = about.cluster if about else ""
        what, timeout_s = f"the archive in {plan.root}", plan.source.timeout_s
        cluster = checked_cluster(self._client(), known, what, "archive elsewhere", timeout_s)
        for name, number in chosen.stream_ids.items():
            if ids.get(name, number) != number:
                text = f"stream {name} was deleted and made anew since it was archived in {plan.root}"
                raise DataLossError(f"{text}; archive the new one elsewhere")
        for name in sorted(ids.keys() - chosen.streams.keys()):
            if is_selected(name, plan.source.selection):
                warn(f"stream {name} was deleted: what it had behind its archive's end was not archived")
        starts = dict(about.starts) if about else {}
        new = Chosen(chosen.streams, tuple(key for key in chosen.keys if key not in starts))
        starts |= find(self._client(), new, Earliest(), plan.source)
        self._name = (about.name if about else "") or plan.name  # another job may have been first
        now = About(plan.format, ids | chosen.stream_ids, starts, plan.decode, plan.schema, self._name, cluster)
        if now != about:
            lake.write_about(plan.root, now)
        return {key: starts[key] for key in chosen.keys} | self._table.ends(chosen.keys)

    def _log_ends(self, chosen: Chosen, *, wait: bool = False) -> dict[Key, Position]:
        """How far each partition can be read; one whose leader does not answer is left out, or waited for.

        OperationalError: it has not answered in time.
        """
        ends = {}
        for name in chosen.streams:
            info = self._stream(chosen, name)
            if wait:
                info = self._answered(chosen, info)
            for one in info.partitions:
                key = Key(name, int(one.partition))
                if one.committed_end is not None and key in chosen.keys:
                    ends[key] = Position(int(one.committed_end), int(one.leader_epoch))
        return ends

    def _answered(self, chosen: Chosen, info: StreamInfo) -> StreamInfo:
        """The stream, once the leaders of all its partitions that are archived have answered."""
        silent = _silent(chosen, info)
        for number in silent:
            try:
                self._client().offsets(info, LATEST, partition=number, timeout=self._plan.source.timeout_s)
            except PenstockError as error:
                text = f"the leader of stream {info.name}, partition {number}, does not answer"
                raise OperationalError(f"{text}, and what it has cannot be archived: {error}") from error
        if not silent:
            return info
        info = self._stream(chosen, info.name)
        if silent := _silent(chosen, info):
            text = f"the leader of stream {info.name}, partition {silent[0]}, does not answer"
            raise OperationalError(f"{text}, and what it has cannot be archived")
        return info

    def _check_agrees(
        self, chosen: Chosen, known: Mapping[Key, Position], log_ends: Mapping[Key, Position] | None = None
    ) -> None:
        """DataLossError: the log does not hold what was archived. A partition that cannot be read now is not asked."""
        if log_ends is None:
            log_ends = self._log_ends(chosen)
        for key, at in known.items():
            if (end := log_ends.get(key)) is None or self._agreed.get(key) == (at, end.leader_epoch):
                continue
            if end.leader_epoch != at.leader_epoch or end.offset < at.offset:
                info = self._stream(chosen, key.stream)
                check_held(self._client(), info, key, at, self._plan.source.timeout_s)
            self._agreed[key] = (at, end.leader_epoch)

    def _stream(self, chosen: Chosen, name: str) -> StreamInfo:
        try:
            info = self._client().stream(name, timeout=self._plan.source.timeout_s)
        except StreamNotFound as error:
            raise DataLossError(f"stream {name} was deleted while it was being archived") from error
        if info.stream_id != chosen.streams[name].stream_id:
            raise DataLossError(f"stream {name} was deleted and made anew while it was being archived")
        self._log_starts |= log_starts_of(info)
        return info

    # A batch

    def _write(
        self,
        chosen: Chosen,
        begins: Mapping[Key, Position],
        ends: Mapping[Key, Position],
        rejects_from: Mapping[Key, Position],
    ) -> list[LakeFile]:
        plan = self._plan
        pieces = []
        for key, end in ends.items():
            if end.offset > begins[key].offset:
                info = self._stream(chosen, key.stream)
                piece = piece_of(info, key, begins[key], end, fail=plan.source.fail_on_data_loss)
                pieces += [piece] if piece else []
        sizes = row_bytes(chosen)
        tasks = packed(cut(pieces, sizes, None, None), sizes, plan.file_bytes)
        if not tasks:
            return []
        with without_pandas_warning(), self._as_data_loss(chosen, ends):
            return [LakeFile.of_json(json.loads(row.file)) for row in self._told(tasks, rejects_from).collect()]

    def _told(self, tasks: list[list[Piece]], rejects_from: Mapping[Key, Position]) -> DataFrame:
        """What has the tasks do it."""
        plan, source = self._plan, self._plan.source
        rows = Writing(str(plan.root), plan.format == "parquet", plan.format == "iceberg", plan.file_bytes)
        how = fetching.Fetching(source.servers, COLUMNS, (), source.fail_on_data_loss, source.timeout_s)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        if not plan.decode:
            return numbers.mapInArrow(partial(write_task, tasks, how, rows), _TOLD)
        rejects = rows._replace(root=str(plan.root / lake.REJECTS), is_rejects=True)
        reject_from = {(key.stream, key.partition): begin.offset for key, begin in rejects_from.items()}
        if plan.decode == "avro":
            write = partial(write_avro, tasks, how, rows, rejects, reject_from, plan.schema)
            return numbers.mapInArrow(write, _TOLD)
        source_rows = self._spark.read.format("penstock").options(**self._range_options(tasks)).load()
        found = with_json(source_rows.select(*COLUMNS), plan.schema).coalesce(len(tasks))
        return found.mapInArrow(partial(write_json, rows, rejects, reject_from), _TOLD)

    def _range_options(self, tasks: Sequence[Sequence[Piece]]) -> dict[str, str]:
        """The ranges of these tasks for `format("penstock")`."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for piece in (piece for task in tasks for piece in task):
            key = str(piece.partition)
            starts.setdefault(piece.stream, {}).setdefault(key, piece.start)
            ends.setdefault(piece.stream, {})[key] = piece.end
        return {
            "servers": ",".join(self._plan.source.servers),
            "assign": json.dumps({name: sorted(map(int, found)) for name, found in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
            "failOnDataLoss": str(self._plan.source.fail_on_data_loss).lower(),
        }

    def _say_rejected(self, bad: int, before: int) -> None:
        """Once in a run: values are missing in columns where somebody will look for them."""
        if bad and not before:
            text = f"{bad} values of a batch of {self._plan.stream} could not be decoded, and have no {DATA}"
            warn(f"{text}: they and the reasons are in {self._plan.root / lake.REJECTS}")

    def _done(
        self, chosen: Chosen, begins: Mapping[Key, Position], ends: Mapping[Key, Position]
    ) -> tuple[list[LakeFile], int]:
        """Write a batch; its files, and how many values were rejected.

        These are committed first: from where their table ends on, so each is there once.
        """
        known = {} if self._rejects is None else self._rejects.ends(begins)
        from_there = {key: _further(begin, known.get(key, begin)) for key, begin in begins.items()}
        made = self._write(chosen, begins, ends, from_there)
        self._check_agrees(chosen, ends)  # else it may have been cut while it was read
        if self._rejects is None:
            return made, 0
        up_to = {key: _further(end, from_there[key]) for key, end in ends.items()}
        rejects = [one for one in made if one.is_rejects]
        self._rejects.commit(Commit((*self._first_rejects(rejects, ends), *rejects), from_there, up_to))
        return [one for one in made if not one.is_rejects], lake.covered(rejects)

    def _first_rejects(self, rejects: Sequence[LakeFile], ends: Mapping[Key, Position]) -> list[LakeFile]:
        """A file without rows, where Parquet files are all that says which columns the rejects have, and there is none.

        The other formats have a schema in the table.
        """
        assert self._rejects is not None
        if self._plan.format != "parquet" or rejects or self._rejects.files():
            return []
        writing = Writing(str(self._plan.root / lake.REJECTS), True, False, self._plan.file_bytes, True)
        return [empty_file(writing, rejects_schema(), min(ends).stream)]

    @contextmanager
    def _as_data_loss(self, chosen: Chosen, ends: Mapping[Key, Position]) -> Iterator[None]:
        """Says that the log was cut, if that is why a task has failed."""
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException:
            self._check_agrees(chosen, ends)
            raise

    # What is told to the brokers

    def _tell(self, ends: Mapping[Key, Position]) -> None:
        """How far the archive is. It may fail: the table is what counts, and the next batch says it again."""
        client, timeout_s = self._client(), self._plan.source.timeout_s
        for name in sorted({key.stream for key in ends}):
            told_before = self._told_ends.get(name, {})
            places = {key.partition: end for key, end in ends.items() if key.stream == name}
            places = {number: end for number, end in places.items() if told_before.get(number) != end}
            if not places:
                continue
            try:
                offsets = {number: end.offset for number, end in places.items()}
                client.groups.commit(group_of(self._name), name, offsets, timeout=timeout_s)
                report_archived(client, name, places, self._name, timeout_s)
                self._told_ends[name] = told_before | places
            except PenstockError as error:
                _log.warning("the brokers do not know how far the archive of %s is: %s", name, error)


def group_of(name: str) -> str:
    """The group that shows how far an archive is."""
    return f"archive-{name}"


def report_archived(
    client: Client, stream: str, ends: Mapping[int, Position], archive_name: str, timeout_s: float
) -> None:
    """Say up to where a stream is archived: what may be deleted of one that is kept until it is.

    With the archive's own epoch: the log may have been cut since that was read.
    """
    for partition, end in ends.items():
        epoch = end.leader_epoch or None
        client.report_archived(
            stream, partition, end.offset, archive=archive_name, leader_epoch=epoch, timeout=timeout_s
        )


def _further(one: Position, other: Position) -> Position:
    return other if other.offset > one.offset else one


def _silent(chosen: Chosen, info: StreamInfo) -> list[int]:
    """The partitions that are archived and whose leader does not answer."""
    wanted = {key.partition for key in chosen.keys if key.stream == info.name}
    return [int(one.partition) for one in info.partitions if one.committed_end is None and one.partition in wanted]


def packed(pieces: Sequence[Piece], sizes: Mapping[Key, float], file_bytes: int) -> list[list[Piece]]:
    """Tasks: small pieces of several partitions are done by one, so that their rows come into one file."""
    tasks: list[list[Piece]] = []
    room = 0.0
    for piece in pieces:
        size = (piece.end - piece.start) * sizes.get(Key(piece.stream, piece.partition), 0.0)
        if not tasks or size > room:
            tasks.append([])
            room = float(file_bytes)
        tasks[-1].append(piece)
        room -= size
    return tasks


def write_task(
    tasks: Sequence[Sequence[Piece]], how: fetching.Fetching, writing: Writing, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: fetch the ranges that its number names, and write them; gives the files as JSON."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            writer = LakeWriter(writing)
            for piece in tasks[number]:
                for rows in fetching.read(how, piece):
                    writer.add(rows)
            yield told_files(writer.finish())
