"""The job `table`: the latest message of each key of a stream, as a Delta table that is kept up to date.

Rules: each commit of the table also records the end offset and the leader epoch of each partition. After any crash the
next run reads them from the table and continues, unless the log has lost messages that the table holds, because no
merge can remove those. Spark's checkpoints are not used. A tombstone deletes its key; messages without a key are
skipped. An added partition is read only after the table has all messages that the older partitions hold of the keys
that moved, so that no older message of a key is merged after the key's tombstone.

Theory: a merge that rewrites the touched files, like Delta's own MERGE. But one task merges each bucket of keys, and
gets all new rows of that bucket. So all cores work, and the driver handles only names of files.

| by       | step                                                                                    |
|----------|-----------------------------------------------------------------------------------------|
| driver   | plan a range of offsets of each partition, from the table's ends                        |
| task     | fetch ranges, and keep the latest row of each key (`table_tasks.read_latest`)           |
| shuffle  | move each row to the task of its bucket: `pmod(xxhash64(key), buckets)`                 |
| task     | merge the new rows of a bucket with its file into a new file (`table_tasks.rewrite`)    |
| driver   | commit: new files in place of the old ones, and the end of each partition               |
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace as replaced

from penstock.base import limits
from penstock.base.errors import ConfigError, OperationalError, PenstockError
from penstock.base.extras import how_to_install
from penstock.base.ids import Offset, PartitionId
from penstock.base.partitioning import PartitionBy
from penstock.client.blocking.client import Client
from penstock.client.read.reading import readable
from penstock.lake.progress import BatchDone, Pace, Report, no_report
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.divergence import check_held, checked_cluster
from penstock.lake.reading.pieces import Piece, cut, lag_of, log_starts_of, piece_of, row_bytes, share
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen, choose
from penstock.lake.tables.folder import OvertakenError, other_in
from penstock.lake.tables.manifest import read_about
from penstock.messages import StreamInfo
from penstock.spark import brokers
from penstock.spark.jobs import table_tasks
from penstock.spark.jobs.parameter_names import options_named
from penstock.spark.options.options import SourceOptions, source_options
from penstock.spark.options.positions import Earliest, Offsets
from penstock.spark.reading import fetching
from penstock.spark.reading.planning import find
from penstock.spark.runtime.sessions import parallelism_of, session_of, without_pandas_warning

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_KIND = "penstock table"
_GROUP_ID_BYTES = 4
_EPOCH = "/epoch"  # suffix of a partition's application id in Delta's log, for the leader epoch of its end


class TableManifest(NamedTuple):
    """Identity of a table, stored in its description; a run with another identity is refused."""

    stream: str
    stream_id: int
    buckets: int
    as_of: str = ""
    cluster: str = ""
    group: str = ""  # consumer group of its progress; empty in tables older than this field: `group_of_folder`

    def to_text(self) -> str:
        """Return the text of the table's description."""
        return json.dumps({"kind": _KIND, **self._asdict()}, sort_keys=True)

    @classmethod
    def of_text(cls, text: str | None) -> TableManifest | None:
        """Parse a description; None if this job did not create the table."""
        try:
            found = json.loads(text or "")
            found = {"cluster": "", "group": "", **found}
            return cls(**{name: found[name] for name in cls._fields}) if found["kind"] == _KIND else None
        except (ValueError, KeyError, TypeError):
            return None


class Upkeep(NamedTuple):
    """Result of a run of `table`: batches and messages merged, and the number of keys in the table."""

    batches: int
    rows: int
    keys: int


@dataclass(frozen=True)
class _Plan:
    root: Path
    source: SourceOptions
    rows_max: int
    trigger_s: float
    history_hours: int
    buckets: int
    as_of: str


def table(
    stream: str,
    to: str | os.PathLike[str],
    *,
    servers: str = "",
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    once: bool = True,
    as_of: int | str | None = None,
    buckets: int = limits.TABLE_BUCKETS_DEFAULT,
    max_batch: int = limits.TABLE_BATCH_ROWS_DEFAULT,
    trigger_s: float = 10.0,
    history_hours: int = 24,
    fail_on_data_loss: bool = True,
    report: Report = no_report,
) -> Upkeep:
    """Keep a Delta table in the folder `to` up to date with the latest message of each key of `stream`.

    Columns: key, value, subject, partition, offset, timestamp. `once`: merge the messages that are in the log at the
    start, then end; else run until interrupted, with a batch every `trigger_s` seconds at most. Each batch, of
    `max_batch` messages at most, is a version of the table. Versions of the last `history_hours` hours can be read;
    older files are deleted. The committed offsets of the group `table-FOLDER-ID` are the table's progress; the first
    run chooses the id, and the table stores it. `buckets`: the number of files of a new table, and so of parallel merge
    tasks; each task holds its whole file in memory. The number is fixed when the table is created.

    Keys that move to added partitions stay in order. If publishers themselves put messages of one key into several
    partitions, a message that is older than the key's tombstone and in another partition can bring the key back,
    because the table does not store tombstones.

    `as_of` makes a table of the past: of the messages before that offset (a number, for a stream with one partition, or
    JSON such as `{"orders": {"0": 23, "1": 17}}`), or of those stored before that time (`2026-11-20T10:00:00Z`, or
    milliseconds since 1970 as text). It is computed from the log, which must still hold all of them: a version of the
    table cannot replace it, because versions end at arbitrary offsets.

    Raise ConfigError if an argument is invalid, `to` holds something else, or the log lacks messages for `as_of`;
    DataLossError if messages were deleted from the log before they were merged and `fail_on_data_loss` is set, or, in
    any case, if the log has lost messages that the table holds; OvertakenError if another job changes the table;
    OperationalError if `deltalake`, PySpark or Java is missing.
    """
    plan = _plan(stream, to, servers, as_of, buckets, max_batch, trigger_s, history_hours, fail_on_data_loss)
    _check_installed()
    choose(brokers.client(plan.source.servers, plan.source.timeout_s), plan.source.selection, plan.source.timeout_s)
    session = session_of(spark, f"table {stream}")
    return _Job(session, plan).run(once=once or bool(plan.as_of), report=report)


def _plan(
    stream: str,
    to: str | os.PathLike[str],
    servers: str,
    as_of: int | str | None,
    buckets: int,
    max_batch: int,
    trigger_s: float,
    history_hours: int,
    fail_on_data_loss: bool,
) -> _Plan:
    mistakes = []
    if not 1 <= buckets <= limits.TABLE_BUCKETS_MAX:
        mistakes.append(f"buckets: it is {buckets}; give 1 to {limits.TABLE_BUCKETS_MAX}")
    if max_batch < 1:
        mistakes.append(f"max_batch: it is {max_batch}; give 1 or more")
    if history_hours < 0:
        mistakes.append(f"history_hours: it is {history_hours}; give 0 or more")
    if isinstance(as_of, int) and as_of < 0:
        mistakes.append(f"as_of: it is {as_of}; offsets count from 0")
    if "://" in os.fspath(to):
        mistakes.append(f"to: {to} is no folder; mount it where the driver and all workers see it by the same path")
    options = {"stream": stream, "servers": servers, "failOnDataLoss": str(fail_on_data_loss).lower()}
    if isinstance(as_of, int) or (as_of or "").lstrip().startswith("{"):
        options["endingOffsets"] = json.dumps({stream: {"0": as_of}}) if isinstance(as_of, int) else str(as_of)
    elif as_of:
        options["endingTimestamp"] = as_of
    try:
        with options_named({"endingOffsets": "as_of", "endingTimestamp": "as_of"}):
            source = source_options(options)
    except ConfigError as error:
        raise ConfigError(mistakes + error.mistakes) from None
    if mistakes:
        raise ConfigError(mistakes)
    return _Plan(
        root=Path(to).absolute(),
        source=replace(source, columns=table_tasks.COLUMNS),
        rows_max=max_batch,
        trigger_s=trigger_s,
        history_hours=history_hours,
        buckets=buckets,
        as_of="" if as_of is None else str(as_of),
    )


def _check_installed() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        text = f"tables are kept with the package deltalake, which is not installed: {how_to_install('lake')}"
        raise OperationalError(text) from None


class _Job:
    """One run of `table`."""

    def __init__(self, spark: SparkSession, plan: _Plan) -> None:
        self._spark = spark
        self._parallelism = parallelism_of(spark)
        self._plan = plan
        self._chosen = self._choose()
        self._is_warned = False
        (self._info,) = self._chosen.streams.values()
        cluster = self._client().cluster_id(timeout=plan.source.timeout_s)
        group = "" if plan.as_of else new_group(plan.root)
        self._about = TableManifest(
            self._info.name, int(self._info.stream_id), plan.buckets, plan.as_of, cluster, group
        )

    def run(self, *, once: bool, report: Report) -> Upkeep:
        plan = self._plan
        until = self._until() if plan.as_of else self._log_ends() if once else None
        begins = self._begins()
        pace = Pace(plan.trigger_s, 1, 0.0)
        batches = rows = 0
        while True:
            self._info = self._stream()
            ends = until or self._log_ends()
            begins = self._with_added(begins, ends)
            ends = {key: end for key, end in ends.items() if key in begins}
            begins = self._agreed(begins, ends)
            waiting = {key: max(0, end.offset - begins[key].offset) for key, end in ends.items()}
            count = sum(waiting.values())
            if once and not count:
                return Upkeep(batches, rows, self._keys())
            if not (once or pace.is_due(count)):
                time.sleep(limits.JOB_POLL_S)
                continue
            pace.begin()
            started_s = time.monotonic()
            taken = share(waiting, plan.rows_max)
            done = {
                key: Position(begin.offset + taken[key], ends[key].leader_epoch) if taken.get(key) else begin
                for key, begin in begins.items()
            }
            size, merged = self._merge(begins, done)
            begins = done
            batches += 1
            rows += merged
            if not plan.as_of:
                self._tell(begins)
            if batches % limits.TABLE_VACUUM_BATCHES == 0:
                self._vacuum()
            lag = lag_of(done, log_starts_of(self._info), ends)
            report(BatchDone(batches, merged, size, time.monotonic() - started_s, lag))

    # Reading

    def _client(self) -> Client:
        return brokers.client(self._plan.source.servers, self._plan.source.timeout_s)

    def _choose(self) -> Chosen:
        chosen = choose(self._client(), self._plan.source.selection, self._plan.source.timeout_s)
        if len(chosen.streams) != 1:
            raise ConfigError([f"stream: a table is of one stream, not of {', '.join(sorted(chosen.streams))}"])
        return chosen

    def _stream(self) -> StreamInfo:
        info = self._client().stream(self._info.name, timeout=self._plan.source.timeout_s)
        if info.stream_id != self._info.stream_id:
            raise DataLossError(f"stream {info.name} was deleted and made anew while it was being read")
        return info

    def _log_ends(self) -> dict[Key, Position]:
        """Return the high watermarks (`committed_end`), without partitions whose leader does not answer."""
        return {
            Key(self._info.name, int(one.partition)): Position(int(one.committed_end), int(one.leader_epoch))
            for one in self._info.partitions
            if one.committed_end is not None
        }

    def _with_added(self, begins: dict[Key, Position], ends: Mapping[Key, Position]) -> dict[Key, Position]:
        """Return `begins` with the starts of the added partitions that can be merged now."""
        info = _marked_within(self._info, ends) if self._plan.as_of else self._info
        while new := [key for key in self._ready(info, begins) if key in ends and key not in begins]:
            begins = begins | self._earliest(new)
        return begins

    @staticmethod
    def _ready(info: StreamInfo, begins: Mapping[Key, Position]) -> list[Key]:
        count = readable(info, {PartitionId(key.partition): at.offset for key, at in begins.items()})
        return _keys_of(info)[:count]

    def _earliest(self, keys: Sequence[Key]) -> dict[Key, Position]:
        chosen = Chosen({self._info.name: self._info}, tuple(keys))
        return find(self._client(), chosen, Earliest(), self._plan.source)

    def _agreed(self, begins: Mapping[Key, Position], ends: Mapping[Key, Position]) -> dict[Key, Position]:
        """Return `begins` with present leader epochs. Raise DataLossError if the log has lost messages of the table."""
        out = dict(begins)
        for key, end in ends.items():
            begin = begins[key]
            if end.offset >= begin.offset and end.leader_epoch == begin.leader_epoch:
                continue
            check_held(
                self._client(), self._stream(), key, begin, self._plan.source.timeout_s,
                where_it_is="in the table", instead="keep another table",
            )  # fmt: skip
            if end.offset >= begin.offset:
                out[key] = Position(begin.offset, end.leader_epoch)
        return out

    def _until(self) -> dict[Key, Position]:
        """Return the ends for `as_of`. Raise ConfigError if the log no longer holds all messages before them."""
        name, keys = self._info.name, self._chosen.keys
        if len(keys) > 1 and isinstance(self._plan.source.end, Offsets) and self._plan.as_of.isdigit():
            text = f"{name} has {len(keys)} partitions; give a time, or JSON with an offset for each"
            raise ConfigError([f"as_of: {text}"])
        if self._info.config.compact:
            raise ConfigError([f"as_of: stream {name} is compacted: its log has not all that was replaced"])
        starts = find(self._client(), self._chosen, Earliest(), self._plan.source)
        if gone := [key for key, at in starts.items() if at.offset]:
            raise ConfigError(
                [f"as_of: the first messages of {name}, partition {gone[0].partition}, are gone from the log"]
            )
        return find(self._client(), self._chosen, self._plan.source.end, self._plan.source, otherwise=-1)

    # The table

    def _open(self) -> DeltaTable:
        """Open the table; create it if missing. Raise ConfigError if the folder holds something else."""
        from deltalake import DeltaTable

        place, ours = str(self._plan.root), self._about
        if not DeltaTable.is_deltatable(place):
            if read_about(self._plan.root) is not None or other_in(self._plan.root):
                raise ConfigError([f"to: {place} holds something else; give a folder of its own"])
            name = f"latest of {ours.stream}"
            by = [table_tasks.BUCKET]
            DeltaTable.create(place, _schema(), mode="ignore", partition_by=by, name=name, description=ours.to_text())
        found = DeltaTable(place)
        about = TableManifest.of_text(found.metadata().description)
        if about is None:
            raise ConfigError([f"{place} holds a Delta table that is not of this kind; give another folder"])
        what, timeout_s = f"the table in {place}", self._plan.source.timeout_s
        checked_cluster(self._client(), about.cluster, what, "keep another table", timeout_s)
        if about._replace(buckets=ours.buckets, cluster=ours.cluster, group=ours.group) != ours:
            when = f" as of {about.as_of}" if about.as_of else " as it is now" if ours.as_of else ""
            is_anew = about.stream == ours.stream and about.stream_id != ours.stream_id
            again = ", of before it was deleted and made anew" if is_anew else ""
            raise ConfigError([f"{place} holds the table of stream {about.stream}{when}{again}; give another folder"])
        self._about = about  # buckets and group are fixed when the table is created
        return found

    def _begins(self) -> dict[Key, Position]:
        """Return the next positions: the table's ends, or log start offsets; without added partitions."""
        ends = self._ends(self._open())
        return self._earliest([key for key in self._ready(self._info, {}) if key not in ends]) | ends

    def _ends(self, found: DeltaTable) -> dict[Key, Position]:
        out = {}
        for key in _keys_of(self._info):
            end = found.transaction_version(self._name(key))
            if end is not None:
                out[key] = Position(end, found.transaction_version(self._name(key) + _EPOCH) or 0)
        return out

    def _name(self, key: Key) -> str:
        """Return the application id in Delta's log; its version is the end offset of a partition."""
        return f"penstock/{self._about.stream_id}/{key.partition}"

    def _keys(self) -> int:
        return sum(self._open().get_add_actions(flatten=True).column("num_records").to_pylist())

    def _merge(self, begins: Mapping[Key, Position], ends: Mapping[Key, Position]) -> tuple[int, int]:
        """Merge one batch; return the size of its files in bytes, and its number of offsets."""
        from pyspark.sql import functions as f

        tasks = self._tasks(begins, ends)
        found = self._open()
        if any(key not in begins or begins[key].offset != end.offset for key, end in self._ends(found).items()):
            raise OvertakenError(f"{self._plan.root}: another job has changed the table")
        source = self._plan.source
        how = fetching.fetching_of(source, table_tasks.COLUMNS)
        self._warn_of_large(found)
        by_group = self._info.config.split.how is PartitionBy.GROUP  # with GROUP a key's messages are in any partition
        counts = () if by_group else self._info.counts
        what = table_tasks.Rewriting(str(self._plan.root), _files(found), counts)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        bucket = f.pmod(f.xxhash64(f.col("key")), f.lit(self._about.buckets)).cast("int")
        with without_pandas_warning():
            time_zone = self._spark.conf.get("spark.sql.session.timeZone") or "UTC"
            read = functools.partial(table_tasks.read_latest, tasks, how, counts, time_zone)
            new = numbers.mapInArrow(read, table_tasks.DDL)
            placed = new.withColumn(table_tasks.BUCKET, bucket).repartitionById(
                self._about.buckets, f.col(table_tasks.BUCKET)
            )
            written = placed.mapInArrow(functools.partial(table_tasks.rewrite, what), table_tasks.WRITTEN_DDL).collect()
        self._commit(found, written, ends)
        rows = sum(piece.end - piece.start for pieces in tasks for piece in pieces)
        return sum(int(one.size) for one in written), rows

    def _warn_of_large(self, found: DeltaTable) -> None:
        """Warn once if a bucket is large, because the task that rewrites a bucket holds it in memory."""
        largest = max(found.get_add_actions(flatten=True).column("size_bytes").to_pylist(), default=0)
        if self._is_warned or largest < limits.TABLE_BUCKET_BYTES_WARN:
            return
        self._is_warned = True
        text = f"a bucket of {self._plan.root} has {largest} bytes, and a task that merges it holds its rows in memory"
        hint = f"make another table with more buckets than {self._about.buckets}, or give Spark's workers more memory"
        _log.warning("%s: %s", text, hint)

    def _tasks(self, begins: Mapping[Key, Position], ends: Mapping[Key, Position]) -> list[list[Piece]]:
        """Split the ranges into few, large tasks: a task passes on only the latest row of each key."""
        info = self._stream()
        pieces = []
        for key, end in ends.items():
            piece = piece_of(info, key, begins[key], end, fail=self._plan.source.fail_on_data_loss)
            pieces += [piece] if piece else []
        wanted = 2 * self._parallelism
        found = cut(pieces, row_bytes(Chosen({info.name: info}, ())), wanted, None)
        return _shared(found, wanted) or [[]]

    def _commit(self, found: DeltaTable, written: Sequence[Any], ends: Mapping[Key, Position]) -> None:
        """Commit files and ends atomically. Raise OvertakenError if another job has changed the table."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        moved = [
            transaction
            for key, end in ends.items()
            for transaction in (
                Transaction(self._name(key), end.offset),
                Transaction(self._name(key) + _EPOCH, end.leader_epoch),
            )
        ]
        commit = CommitProperties(app_transactions=moved, max_commit_retries=0)
        by = [table_tasks.BUCKET]
        filters = [(table_tasks.BUCKET, "in", [str(one.bucket) for one in written])]
        try:
            if written:
                found.create_write_transaction(
                    _additions(written), "overwrite", _schema(), by, filters, commit_properties=commit
                )
            else:
                found.create_write_transaction([], "append", _schema(), by, commit_properties=commit)
        except CommitFailedError as error:
            raise OvertakenError(f"{self._plan.root}: another job has changed the table: {error}") from error

    def _vacuum(self) -> None:
        hours = self._plan.history_hours
        self._open().vacuum(hours, dry_run=False, enforce_retention_duration=False)

    def _tell(self, ends: Mapping[Key, Position]) -> None:
        """Commit the table's progress for its consumer group. Only log a failure: the table's own ends decide."""
        name = self._about.group or group_of_folder(self._plan.root)
        offsets = {key.partition: end.offset for key, end in ends.items()}
        try:
            self._client().groups.commit(name, self._info.name, offsets, timeout=self._plan.source.timeout_s)
        except PenstockError as error:
            _log.warning("group %s: the progress of the table was not committed: %s", name, error)


def group_of_folder(root: Path) -> str:
    """Return the consumer group of a table whose description has none. Folders of the same name share it."""
    return ("table-" + re.sub(r"[^A-Za-z0-9_-]+", "-", root.name))[: limits.GROUP_NAME_CHARS_MAX]


def new_group(root: Path) -> str:
    """Return a new table's consumer group: the folder's name and an id, as other folders may have the same name."""
    mark = secrets.token_hex(_GROUP_ID_BYTES)
    return f"{group_of_folder(root)[: limits.GROUP_NAME_CHARS_MAX - len(mark) - 1]}-{mark}"


def _keys_of(info: StreamInfo) -> list[Key]:
    return [Key(info.name, int(one.partition)) for one in info.partitions]


def _marked_within(info: StreamInfo, ends: Mapping[Key, Position]) -> StreamInfo:
    """Return the stream with its key boundaries limited to these ends, because later messages are never merged."""
    marks = []
    for one in info.key_marks:
        end = ends.get(Key(info.name, int(one.partition)))
        marks.append(one if end is None else replaced(one, end_offset=Offset(min(one.end_offset, end.offset))))
    return replaced(info, key_marks=tuple(marks))


def _shared(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Distribute pieces over at most `count` tasks, in order."""
    tasks = min(count, len(pieces))
    bounds = [len(pieces) * number // tasks for number in range(tasks + 1)] if tasks else []
    return [list(pieces[start:end]) for start, end in pairwise(bounds)]


def _schema() -> Any:
    import pyarrow as pa

    return table_tasks.SCHEMA.append(pa.field(table_tasks.BUCKET, pa.int32()))


def _files(found: DeltaTable) -> tuple[tuple[int, tuple[str, ...]], ...]:
    files: dict[int, list[str]] = {}
    actions = found.get_add_actions(flatten=True)
    buckets, paths = actions.column(f"partition.{table_tasks.BUCKET}").to_pylist(), actions.column("path").to_pylist()
    for bucket, path in zip(buckets, paths, strict=True):
        files.setdefault(int(bucket), []).append(path)
    return tuple((bucket, tuple(some)) for bucket, some in sorted(files.items()))


def _additions(written: Sequence[Any]) -> list[Any]:
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1_000)
    return [
        AddAction(one.path, one.size, {table_tasks.BUCKET: str(one.bucket)}, now_ms, True, one.stats)
        for one in written
        if one.path
    ]
