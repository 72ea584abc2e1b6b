"""The job `replay`: lake → log. The rows of an archive are appended to a stream again, each once.

Rules: an archive's files are those that its table names: what a killed run has left beside them is not replayed. What
is to be replayed is planned once and noted before anything is written: from which to which offset of each
partition, in how many batches. A batch is written under the replay's id and its own number, by which the stream's
leaders know it (`sink`); so a run that was killed, wherever, is begun again by the same call, and writes nothing twice.
Rows of one partition of the archive are written in the order of their offsets, so the order of a key stays, unless it
moved to a partition that was added, and there are several batches: each has a part of every partition.

| note (`replay.json`) | what it says                                                                          |
|----------------------|---------------------------------------------------------------------------------------|
| query_id, stream_id  | under which id rows are written, and to which stream                                  |
| ranges, batches      | the offsets from the first on, and up to which, of each partition; in so many batches |
| first, done          | the number of the first batch, and how many are done                                  |
| where, subject       | what was asked for: another run must ask for the same                                 |
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.access import Operation
from penstock.base import limits
from penstock.base.errors import ConfigError, CorruptionError, OperationalError
from penstock.spark import brokers, rights
from penstock.spark.agreement import checked_cluster
from penstock.spark.jobs import BatchDone, Report, no_report, session_of
from penstock.spark.lake import OWN, LakeFile, OvertakenError, held, locked, open_table, read_about, write_durably
from penstock.spark.naming import options_named
from penstock.spark.options import sink_options
from penstock.spark.rows import CASE_SENSITIVE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED = ("value", "partition", "offset")
TAKEN = ("key", "value", "subject", "headers")


class Span(NamedTuple):
    """Offsets `[start, end)` of one partition of the archive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Note:
    """How far a replay is: what `replay.json` holds."""

    query_id: str
    stream: str
    stream_id: int
    ranges: tuple[Span, ...] = ()
    batches: int = 0
    first: int = 0
    done: int = 0
    where: str = ""
    subject: str = ""
    cluster: str = ""  # the stream's
    is_begun: bool = True  # something of it may be in the stream

    @property
    def rows(self) -> int:
        """All of this plan, done or not; some of the offsets may be holes."""
        return sum(one.end - one.start for one in self.ranges)

    def spans(self, number: int) -> list[Span]:
        """What batch `number` of this plan has of each partition."""
        out = []
        for one in self.ranges:
            rows = one.end - one.start
            start = one.start + rows * number // self.batches
            end = one.start + rows * (number + 1) // self.batches
            if start < end:
                out.append(one._replace(start=start, end=end))
        return out


class Replayed(NamedTuple):
    """What a run has done: batches and messages."""

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
    """Append the rows of an archive, in the folder `path`, to the stream `to`: each once, also if runs are killed.

    `path` has Parquet files, or is a Delta table, with the columns `value`, `partition`, `offset`, and, if there are
    such, `key`, `subject`, `headers`, `topic`, `timestamp`; `where` is a condition in SQL on any of them. A key decides
    the partition of the stream, as always; rows of one key keep their order, in one batch also if it moved to a
    partition that was added. `subject`: in place of the rows' own.
    `rate`: at most so many messages a second, on the average of some seconds; a batch is of `max_batch` at most.
    What is replayed is what is there when the first run begins; one that follows the end goes on with what came since.
    `checkpoint` is the folder of the note how far it is: if not given, inside of `path`, named as the stream.
    `invalid_headers`: "fail", or "drop" to leave out headers that NATS cannot carry, by their name or by line ends or
    bytes of zero in their value; a replay that was ended by one goes on with "drop".

    ConfigError: `path` or `to` cannot be used; OperationalError, and what the client raises.
    """
    root = _root(path, to, rate, max_batch)
    given = {"stream": to, "servers": servers, "invalidHeaders": invalid_headers}
    with options_named({"stream": "to", "invalidHeaders": "invalid_headers"}):
        options = sink_options(given)
    client = brokers.client(options.servers, options.timeout_s)
    info = rights.there(client, Operation.APPEND, to, options.timeout_s)
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
    with held(notes / "LOCK", f"another replay is at work that notes in {notes} how far it is"):
        note = _read(notes) or new
        checked_cluster(client, note.cluster, f"the note in {notes}", "give another checkpoint", options.timeout_s)
        if (note.stream, note.stream_id) != (to, int(info.stream_id)):
            raise ConfigError(
                [f"{notes} is of another stream, or of {to} before it was made anew; give another checkpoint"]
            )
        if (note.where, note.subject) != (where, subject):
            if note.is_begun:
                raise ConfigError([f"where, subject: they are not as when {notes} was begun; give another checkpoint"])
            note = new  # the run that noted it failed before anything was published
        if note.done == note.batches:
            note = _planned(rows, note, min(max_batch, rate * limits.REPLAY_BURST_S if rate else max_batch))
            _write(notes, note)
        # A stream's own subject is another one in each partition: where rows have none, the sink gives them that.
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
    """All rows of the archive, with `topic` as text. ConfigError: columns are missing, or the condition is wrong."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    try:
        # A table's files as they are now: what is replayed is fixed by offsets.
        files = _files(root)
        if files == []:
            raise ConfigError([f"path: nothing is in {root} yet"])
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
    """The names by which Spark finds these columns: in small letters, unless it tells names apart by their case."""
    is_case_sensitive = spark.conf.get(CASE_SENSITIVE, "false") == "true"
    return set(columns) if is_case_sensitive else {name.lower() for name in columns}


def _files(root: Path) -> list[str] | None:
    """Those that the table in a folder names; None: there is no table, and each Parquet file counts."""
    if (about := read_about(root)) is not None:
        return [str(root / one.path) for one in _archived(root, about.format)]
    if (root / "_delta_log").is_dir():
        from deltalake import DeltaTable

        return list(DeltaTable(str(root)).file_uris())
    return None


def _archived(root: Path, format_: str) -> list[LakeFile]:
    """The files of an archive, each where readers look for it. OperationalError."""
    archived = open_table(root, format_, None)
    give_up_s = time.monotonic() + limits.REPLAY_MOVES_S
    while True:
        files = archived.files()
        if not any(one.path.startswith(f"{OWN}/") for one in files):
            return files
        # Committed, and not moved yet: by a job that is at work, or by one that was killed.
        try:
            with locked(root):
                archived.finish()
        except OvertakenError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(limits.JOB_LOOK_S)


def _planned(rows: DataFrame, before: Note, batch_rows: int) -> Note:
    """The same replay with what is not in its plan yet."""
    from pyspark.sql import functions as f

    done = {(one.topic, one.partition): one.end for one in before.ranges}
    found = rows.groupBy("topic", "partition").agg(
        f.min("offset").alias("start"), f.max("offset").alias("last"), f.count("*").alias("rows")
    )
    ranges, total = [], 0
    for one in found.collect():
        start = max(one.start, done.get((one.topic, one.partition), 0))
        ranges.append(Span(one.topic, one.partition, start, max(start, one["last"] + 1)))
        total += one["rows"] if start == one.start else ranges[-1].end - start
    kept = [Span(*key, end, end) for key, end in done.items() if key not in {one[:2] for one in ranges}]
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
            if note.first == number == 0 and _is_of_a_task(str(error)):
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


def _is_of_a_task(trace: str) -> bool:
    """Whether a write failed in a task: then the driver has published nothing. By the frames of the sink's own code."""
    frames = re.findall(r'spark/sink\.py", line \d+, in (\w+)', trace)
    return "write" in frames and not {"commit", "_publish"} & set(frames)


def _within(spans: Sequence[Span]) -> Column:
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
        ranges = tuple(Span(*one) for one in found.pop("ranges"))
        return Note(**found, ranges=ranges)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(str(file), 0, "how far a replay is", f"{error}") from None


def _write(folder: Path, note: Note) -> None:
    try:
        write_durably(folder / "replay.json", json.dumps(asdict(note)).encode())
    except OSError as error:
        raise OperationalError(f"cannot note in {folder} how far the replay is: {error}") from error
