"""Log → lake on Spark: `penstock.spark.archive` has Spark's tasks fetch and write the batches of an archive.

Rules: the loop is `penstock.lake.archiving.job`; Spark only carries out the tasks of a batch. No row passes through
Java, except to decode JSON. Spark's checkpoints are not used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import COLUMNS, archived_types, data_columns
from penstock.lake.archiving.job import Archived, ArchiveJob, check_unlocked, chosen_streams, rejects_of
from penstock.lake.archiving.plan import JsonDecoder, decoded, plan_of
from penstock.lake.archiving.tasks import Batch, write_task
from penstock.lake.progress import Report, no_report
from penstock.lake.reading.data_loss import PARAMETER_ADVICE
from penstock.lake.tables.data_files import told_files
from penstock.lake.tables.table import LakeFile
from penstock.spark import brokers
from penstock.spark.jobs.archive_json import data_type, inferred_json, with_json, write_json
from penstock.spark.options.options import SourceOptions, source_options
from penstock.spark.reading import fetching
from penstock.spark.runtime.sessions import session_of, without_pandas_warning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOLD = "file string"


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
    """Copy streams into the folder `to`, each message once, partitioned by the UTC date of its timestamp and by stream.

    `stream`: a name, several names separated by commas, or a pattern such as `orders-*`. A run continues where the last
    one ended, even if that one was killed.

    `format`: "parquet", "delta" or "iceberg". `once`: archive the messages that are in the log at the start, then end;
    else run until interrupted, with at most one batch every `trigger_s` seconds, and at least `min_batch` messages in a
    batch, unless messages have waited for `max_delay_s` seconds; new streams that match, and added partitions, are
    archived from their beginning. A batch has at most `max_batch` messages, a file about `file_bytes` bytes. The
    committed offsets of the group `archive-NAME` are the archive's progress. The first run fixes `name`: up to 64
    letters, digits, `.`, `-` and `_`; by default the folder's name and a random id.

    `decode`: "schema", "json" or "avro" adds the column `data`, a struct with the decoded value. With "schema" it is
    decoded by the registered schemas of the streams. `schema` is DDL for JSON (default: inferred from the first
    messages), an Avro schema for Avro; the first run fixes both. If a value cannot be
    decoded, its `data` is null, and a second table of the same format, in the folder `_rejects`, gets a row with the
    reason; `Archived.rejected` and `BatchDone.rejected` count such values, and the first ones of a run cause a warning.

    Raise ConfigError if an argument is invalid; DataLossError if messages were deleted from the log before they were
    archived and `fail_on_data_loss` is set, or, in any case, if the log was truncated below the archive's end or
    restarted empty, or the stream was deleted and created again; OvertakenError if another job writes the same archive;
    OperationalError if PySpark, Java or a package is missing or, with `once`, if a partition's leader does not answer.
    """
    also: Sequence[str] = ()
    source = None
    try:
        source = source_options(
            {"stream": stream, "servers": servers, "failOnDataLoss": str(fail_on_data_loss).lower()}
        )
    except ConfigError as error:
        also = [one for one in error.mistakes if not one.startswith("stream: ")]  # the plan names those
    plan = plan_of(
        stream, to, format=format, name=name, max_batch=max_batch, min_batch=min_batch, max_delay_s=max_delay_s,
        trigger_s=trigger_s, file_bytes=file_bytes, fail_on_data_loss=fail_on_data_loss, also=also,
    )  # fmt: skip
    assert source is not None
    # Check everything that needs no Spark before Spark starts, which takes seconds.
    client = brokers.client(source.servers, plan.timeout_s)
    there = chosen_streams(client, plan)
    check_unlocked(plan)
    types = partial(archived_types, client, list(there.streams), plan.timeout_s)
    session = session_of(spark, f"archive {stream}")
    runner = SparkRunner(session, source)
    plan = decoded(plan, decode, schema, types, JsonDecoder(runner.inferred_json, data_type))
    return ArchiveJob(client, plan, runner, plan.open_table(), rejects_of(plan)).run(once=once, report=report)


class SparkRunner:
    """Carries out the tasks of a batch on Spark. `source`: the streams of the archive, and their brokers."""

    def __init__(self, spark: SparkSession, source: SourceOptions) -> None:
        self._spark = spark
        self._source = source

    def inferred_json(self) -> str:
        """Infer the schema of the first messages, as DDL. Raise ConfigError if no value is a JSON object."""
        selection = self._source.selection
        streams = ",".join((*selection.names, *selection.globs))
        options = {"servers": ",".join(self._source.servers), "stream": streams, "columns": "value"}
        return inferred_json(self._spark.read.format("penstock").options(**options).load())

    def __call__(self, batch: Batch) -> list[LakeFile]:
        """Write the files of a batch. Raise PySparkException if a task fails."""
        with without_pandas_warning():
            return [LakeFile.of_json(json.loads(row.file)) for row in self._told(batch).collect()]

    def _told(self, batch: Batch) -> DataFrame:
        """Return a DataFrame; its `collect` has the tasks write the files, and returns a row of JSON for each file."""
        count = len(batch.tasks)
        if batch.decode != "json":
            columns = COLUMNS if batch.typed is None else data_columns(batch.typed)
            how = fetching.fetching_of(self._source, columns, PARAMETER_ADVICE, batch.typed)
            return self._spark.range(0, count, 1, count).mapInArrow(partial(write_tasks, batch, how), _TOLD)
        rows = self._spark.read.format("penstock").options(**self._range_options(batch)).load()
        found = with_json(rows.select(*COLUMNS), batch.schema).coalesce(count)
        return found.mapInArrow(partial(write_json, batch), _TOLD)

    def _range_options(self, batch: Batch) -> dict[str, str]:
        """Return the options of `format("penstock")` that read the ranges of a batch."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for piece in (piece for task in batch.tasks for piece in task):
            key = str(piece.partition)
            starts.setdefault(piece.stream, {}).setdefault(key, piece.start)
            ends.setdefault(piece.stream, {})[key] = piece.end
        return {
            "servers": ",".join(self._source.servers),
            "assign": json.dumps({name: sorted(map(int, found)) for name, found in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
            "failOnDataLoss": str(self._source.fail_on_data_loss).lower(),
        }


def write_tasks(batch: Batch, how: fetching.Fetching, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: carry out the tasks of the given numbers; yield the files as JSON."""
    for rows in numbers:
        for number in rows.column(0).to_pylist():
            yield told_files(write_task(batch, number, partial(fetching.read, how)))
