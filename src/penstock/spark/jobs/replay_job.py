"""The job `replay`: lake → log. Appends the rows of an archive to a stream again, each exactly once.

Rules: only committed files of the archive are replayed. Before anything is written, the plan is recorded in
`replay.json`: the offset range of each partition, and the number of batches. A batch is written with the replay's id
and its own number, and the stream's leaders deduplicate by the two (`penstock.spark.writing.sink`). So the same call
resumes a run that was killed at any point, and writes nothing twice. Rows of one partition of the archive are written
in offset order. This keeps the order of each key, except for a key that moved to an added partition: each batch has a
part of every partition, so with several batches its later rows may be written first.

| `replay.json`         | content                                                                              |
|-----------------------|--------------------------------------------------------------------------------------|
| query_id, stream_id   | id of the replay, and id of the stream                                               |
| ranges, batches       | offset range of each partition, and number of batches                                |
| first, done           | number of the first batch, and number of batches that are done                       |
| where, subject        | arguments of the run; another run must have the same                                 |
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.access import Operation
from penstock.base import limits
from penstock.base.errors import ConfigError, CorruptionError, OperationalError
from penstock.lake.progress import BatchDone, Report, no_report
from penstock.lake.reading import permissions
from penstock.lake.reading.divergence import checked_cluster
from penstock.lake.tables.folder import OWN, OvertakenError, held, locked, write_durably
from penstock.lake.tables.formats import open_table
from penstock.lake.tables.manifest import read_about
from penstock.lake.tables.table import LakeFile
from penstock.spark import brokers
from penstock.spark.jobs.parameter_names import options_named
from penstock.spark.options.options import sink_options
from penstock.spark.runtime.sessions import session_of
from penstock.spark.writing.rows import CASE_SENSITIVE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED = ("value", "partition", "offset")
TAKEN = ("key", "value", "subject", "headers")


class ReplaySpan(NamedTuple):
    """Offsets `[start, end)` of one partition of the archive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Note:
    """Plan and progress of a replay: the content of `replay.json`."""

    query_id: str
    stream: str
    stream_id: int
    ranges: tuple[ReplaySpan, ...] = ()
    batches: int = 0
    first: int = 0
    done: int = 0
    where: str = ""
    subject: str = ""
    cluster: str = ""  # cluster id of the stream
    is_begun: bool = True  # rows of the replay may be in the stream

    @property
    def rows(self) -> int:
        """Number of offsets in the plan, written or not; the archive may lack some."""
        return sum(one.end - one.start for one in self.ranges)

    def spans(self, number: int) -> list[ReplaySpan]:
        """Return the offset ranges of batch `number` of this plan."""
        out = []
        for one in self.ranges:
            rows = one.end - one.start
            start = one.start + rows * number // self.batches
            end = one.start + rows * (number + 1) // self.batches
            if start < end:
                out.append(one._replace(start=start, end=end))
        return out


class Replayed(NamedTuple):
    """Result of a run of `replay`: number of batches written, and of the offsets that they cover."""

    batches: int
    rows: int


def replay(
    path: str | os.PathLike[str],
    to: str,
    *,
    servers: str = "",
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    rate: int | None = None,
    where: str = "",
    subject: str = "",
    max_batch: int = limits.REPLAY_BATCH_ROWS_DEFAULT,
    checkpoint: str | os.PathLike[str] | None = None,
    invalid_headers: str = "fail",
    report: Report = no_report,
) -> Replayed:
    """Append the rows of an archive, in the folder `path`, to the stream `to`: each once, even if runs are killed.

    `path` is an archive, a Delta table, or a folder of Parquet files, with the columns `value`, `partition`, `offset`,
    and optionally `key`, `subject`, `headers`, `topic`, `timestamp`; `where` is a condition in SQL on any of them. The
    key decides the partition, as for every message. Rows of one key keep their order; if the key moved to an added
    partition, only within one batch. `subject` replaces the subjects of the rows. `rate`: messages per second at most,
    averaged over some seconds; a batch has at most `max_batch` messages.

    A replay covers the rows that the archive holds at the first run; a run after its end continues with newer rows.
    `checkpoint`: folder of the replay's progress; default: a folder in `path`, named after the stream.
    `invalid_headers`: "fail", or "drop" to leave out headers that NATS cannot carry, because of their name or because
    of line ends or zero bytes in their value; "drop" also resumes a replay that failed at such a header.

    Raise ConfigError if `path`, `to` or another argument is invalid; StreamNotFound or NotAuthorized if the stream does
    not exist or the user has no permission to append; OvertakenError if another replay uses the checkpoint;
    OperationalError if PySpark or Java is missing or the progress cannot be written; PySparkException if a batch fails.
    """
    root = _root(path, to, rate, max_batch)
    given = {"stream": to, "servers": servers, "invalidHeaders": invalid_headers}
    with options_named({"stream": "to", "invalidHeaders": "invalid_headers"}):
        options = sink_options(given)
    client = brokers.client(options.servers, options.timeout_s)
    info = permissions.there(client, Operation.APPEND, to, options.timeout_s)
    session = session_of(spark, f"replay {to}")
    rows = _rows(session, root, where)
    notes = Path(checkpoint).absolute() if checkpoint else root / "_penstock" / f"replay-{to}"
    cluster = client.cluster_id(timeout=options.timeout_s)
    new = Note(
        str(uuid.uuid4()),
        to,
        int(info.stream_id),
        where=where,
        subject=subject,
        cluster=cluster,
        is_begun=False,
    )
    with held(notes / "LOCK", f"another replay with the checkpoint {notes} is running"):
        note = _read(notes) or new
        checked_cluster(client, note.cluster, f"the note in {notes}", "give another checkpoint", options.timeout_s)
        if (note.stream, note.stream_id) != (to, int(info.stream_id)):
            raise ConfigError(
                [f"{notes} is of another stream, or of {to} before it was made anew; give another checkpoint"]
            )
        if (note.where, note.subject) != (where, subject):
            if note.is_begun:
                raise ConfigError([f"where, subject: they are not as when {notes} was begun; give another checkpoint"])
            note = new  # the earlier run failed before it published anything
        if note.done == note.batches:
            note = _planned(rows, note, min(max_batch, rate * limits.REPLAY_BURST_S if rate else max_batch))
            _write(notes, note)
        # The stream's own subject may differ by partition, and the sink sets it for rows without a subject.
        own = "" if subject == info.subject else subject
        writer_options = {name: text for name, text in given.items() if text}
        return _replay(rows, note, notes, writer_options, rate, report, own)


def _root(path: str | os.PathLike[str], to: str, rate: int | None, max_batch: int) -> Path:
    mistakes = []
    if "://" in os.fspath(path):
        mistakes.append(f"path: {path} is no folder; mount it where the driver and all workers see it by the same path")
    elif not Path(path).is_dir():
        mistakes.append(f"path: there is no folder {path}")
    if not to:
        mistakes.append("to: it is missing; to which stream?")
    mistakes += [
        f"{name}: it is {one}; give 1 or more"
        for name, one in (("rate", rate), ("max_batch", max_batch))
        if one is not None and one < 1
    ]
    if mistakes:
        raise ConfigError(mistakes)
    return Path(path).absolute()


def _rows(spark: SparkSession, root: Path, where: str) -> DataFrame:
    """Return all rows of the archive, `topic` as text. Raise ConfigError for missing columns or an invalid `where`."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    try:
        # Some files may be newer than the plan: the plan's offset ranges decide which rows are replayed.
        files = _files(root)
        if files == []:
            raise ConfigError([f"path: {root} has no files yet"])
        reader = spark.read.option("basePath", str(root))
        rows = reader.parquet(str(root)) if files is None else reader.parquet(*files)
        there = names_of(spark, rows.columns)
        if missing := [name for name in NEEDED if name not in there]:
            raise ConfigError([f"path: {root} has no column {missing[0]}; it has {', '.join(rows.columns)}"])
        topic = f.col("topic").cast("string") if "topic" in there else f.lit("")
        found = rows.withColumn("topic", topic)
        return found.where(where) if where else found
    except (AnalysisException, ParseException) as error:
        raise ConfigError([f"path, where: {str(error).splitlines()[0]}"]) from error


def names_of(spark: SparkSession, columns: Sequence[str]) -> set[str]:
    """Return the names of these columns, in lower case unless Spark's names are case-sensitive."""
    is_case_sensitive = spark.conf.get(CASE_SENSITIVE, "false") == "true"
    return set(columns) if is_case_sensitive else {name.lower() for name in columns}


def _files(root: Path) -> list[str] | None:
    """Return the files of the table in a folder; None if there is no table: then all Parquet files are read."""
    if (about := read_about(root)) is not None:
        return [str(root / one.path) for one in _archived(root, about.format)]
    if (root / "_delta_log").is_dir():
        from deltalake import DeltaTable

        return list(DeltaTable(str(root)).file_uris())
    return None


def _archived(root: Path, format_: str) -> list[LakeFile]:
    """Return the files of an archive, once all have their final paths. Raise OvertakenError after REPLAY_MOVES_S."""
    archived = open_table(root, format_, None)
    give_up_s = time.monotonic() + limits.REPLAY_MOVES_S
    while True:
        files = archived.files()
        if not any(one.path.startswith(f"{OWN}/") for one in files):
            return files
        # A running job will move these committed files, or a killed job has left them.
        try:
            with locked(root):
                archived.finish()
        except OvertakenError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(limits.JOB_POLL_S)


def _planned(rows: DataFrame, before: Note, batch_rows: int) -> Note:
    """Return the next plan of a replay: the rows after the ranges of `before`."""
    from pyspark.sql import functions as f

    done = {(one.topic, one.partition): one.end for one in before.ranges}
    found = rows.groupBy("topic", "partition").agg(
        f.min("offset").alias("start"), f.max("offset").alias("last"), f.count("*").alias("rows")
    )
    ranges, total = [], 0
    for one in found.collect():
        start = max(one.start, done.get((one.topic, one.partition), 0))
        ranges.append(ReplaySpan(one.topic, one.partition, start, max(start, one["last"] + 1)))
        total += one["rows"] if start == one.start else ranges[-1].end - start
    kept = [ReplaySpan(*key, end, end) for key, end in done.items() if key not in {one[:2] for one in ranges}]
    is_more = any(one.start < one.end for one in ranges)
    batches = max(1, -(-total // batch_rows)) if is_more else 0
    first = before.first + before.batches
    return replace(before, ranges=tuple(sorted(ranges + kept)), batches=batches, first=first, done=0)


def _replay(
    rows: DataFrame,
    note: Note,
    notes: Path,
    writer_options: dict[str, str],
    rate: int | None,
    report: Report,
    subject: str,
) -> Replayed:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    from penstock.spark.writing.sink import has_failed_in_task

    there = names_of(rows.sparkSession, rows.columns)
    taken = [f.col(name) for name in TAKEN if name in there and not (name == "subject" and note.subject)]
    columns = [*taken, *([f.lit(subject).alias("subject")] if subject else [])]
    begun_s, count = time.monotonic(), 0
    started, left = note.done, note.rows
    for number in range(started):
        left -= sum(one.end - one.start for one in note.spans(number))
    for number in range(note.done, note.batches):
        batch_s = time.monotonic()
        spans = note.spans(number)
        batch = rows.where(_within(spans)).orderBy("topic", "partition", "offset")
        numbered = {"txnAppId": note.query_id, "txnVersion": str(note.first + number)}
        writer = batch.select(*columns).write.format("penstock").options(**writer_options, **numbered)
        if not note.is_begun:
            note = replace(note, is_begun=True)
            _write(notes, note)
        try:
            writer.mode("append").save()
        except PySparkException as error:
            if note.first == number == 0 and has_failed_in_task(str(error)):
                _write(notes, replace(note, is_begun=False))
            raise
        note = replace(note, done=number + 1)
        _write(notes, note)
        written = sum(one.end - one.start for one in spans)
        count += written
        left -= written
        report(BatchDone(number + 1 - started, written, 0, time.monotonic() - batch_s, left))
        if rate:
            time.sleep(max(0.0, begun_s + count / rate - time.monotonic()))
    return Replayed(note.done - started, count)


def _within(spans: Sequence[ReplaySpan]) -> Column:
    from pyspark.sql import functions as f

    found = f.lit(False)
    for one in spans:
        of_partition = (f.col("topic") == one.topic) & (f.col("partition") == one.partition)
        found = found | (of_partition & (f.col("offset") >= one.start) & (f.col("offset") < one.end))
    return found


def _read(folder: Path) -> Note | None:
    file = folder / "replay.json"
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        ranges = tuple(ReplaySpan(*one) for one in found.pop("ranges"))
        return Note(**found, ranges=ranges)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(str(file), 0, "the progress of a replay", f"{error}") from None


def _write(folder: Path, note: Note) -> None:
    try:
        write_durably(folder / "replay.json", json.dumps(asdict(note)).encode())
    except OSError as error:
        raise OperationalError(f"cannot record the progress of the replay in {folder}: {error}") from error
