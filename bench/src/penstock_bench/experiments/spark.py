"""`penstock bench spark`: cost of moving data between a stream and Spark, beside Parquet files of the same rows.

Rules: One log is made once, of messages of 300 bytes in batches as the cleaner leaves them, and its rows once as
Parquet files. All measures use the same Spark session on two cores and the same broker. Each measure has its turn in
each round; a first round, which loads and compiles code, does not count. CPU is that of all processes together: the
JVM, Python's workers, the broker, and this process. A ratio is taken within a round. The rows of every
measure are counted, when its clock has stopped, and compared with the expected number: those that are only read in the
first round, by reading once more, because counting them has a cost.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.limits import MERGED_ROWS_MAX, MIB
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from penstock.client.blocking import client as blocking
from penstock.lake.reading.columns import RowOrigin, default_columns, lake_batch
from penstock.lake.reading.columns import arrow_schema as spark_schema
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock_bench.experiments.data_dirs import FIRST_US, append, flush, made_in, new_log, started
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.machine.process_tree import ProcessTree

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 5_000_000
VALUE_BYTES = 300
ROUNDS = 3
MASTER = "local[2]"
_STREAM = "events"
_KEYS = 1_000_000
_SUBJECTS = 8
_FILE_ROWS = 625_000  # of one Parquet file
_SECONDS_A_MILLION = 22.0  # of one round, for the time estimate
_TIMEOUT_S = 60.0

TITLES: Mapping[str, str] = {
    "parquet": "Parquet read",
    "read": "stream read",
    "offsets": "stream read, offsets alone",
    "available": "stream read as a query, one batch",
    "copy": "Parquet copied to Parquet",
    "archive": "stream archived as Parquet",
    "sink": "Parquet written to a stream",
    "table": "table of the stream, the latest of each key",
}
"""The measures of a round and their titles."""


_DRAINED = ("parquet", "read", "offsets")  # measures whose rows are read and dropped
_GOALS = (
    ("read", "parquet", 1.7, 1.2),
    ("offsets", "read", 0.4, 0.2),
    ("available", "read", 1.3, 1.1),
    ("archive", "copy", 1.5, 1.0),
    ("sink", "copy", 3.0, 1.5),
)
"""The wanted ratios of the CPU times of two measures, at most: reach and stretch."""


def experiment(messages: int = MESSAGES, rounds: int | None = None) -> Experiment:
    """Return the experiment. Its disk space: the log, its Parquet files, the output of both, and staged rows."""
    rows = []
    for name, title in TITLES.items():
        rows += [
            Row(f"{name}-cpu", f"{title}: CPU a million", "s", "cpu_seconds", name),
            Row(f"{name}-s", f"{title}: time", "s", "seconds", name),
        ]
    for name, beside, reach, stretch in _GOALS:
        what = f"{TITLES[name]}, against: {TITLES[beside]} (CPU)"
        rows.append(Row(f"{name}-ratio", what, "×", "cpu_seconds", name, beside, reach, stretch))
    update = f"{TITLES['table']}: time of an update"
    rows.append(Row("table-update", update, "µs", "message_us", "table", "", 10.0, 3.3))
    return Experiment(
        systems=tuple(TITLES),
        titles=TITLES,
        begin=partial(_begin, messages=messages),
        rounds=rounds or ROUNDS,
        all_count=True,
        start_seconds=30.0,
        turn_seconds=messages / 1e6 * _SECONDS_A_MILLION / len(TITLES),
        bytes_needed=512 * MIB + 7 * messages * (VALUE_BYTES + 60),
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, messages: int) -> Iterator[Turn]:
    make(folder, messages)
    with turns(folder, messages) as turn:
        yield turn


def make(folder: Path, messages: int) -> None:
    """Make a data directory with the stream, and its rows as Parquet files."""
    import pyarrow.parquet as pq

    schema = spark_schema(default_columns(headers=False))
    lake = folder / "parquet"
    lake.mkdir(parents=True)
    with made_in(folder / "data") as (vfs, metadata):
        log = new_log(vfs, metadata, LogCreationMarkers(vfs), StreamConfig(name=_STREAM, subject=f"{_STREAM}.*"))
        writer, written = None, _FILE_ROWS
        for batch in _batches(messages):
            offset = log.log_end
            append(log, codec.encode_arrow(batch), FIRST_US + offset)
            if written >= _FILE_ROWS:
                if writer is not None:
                    writer.close()
                writer, written = pq.ParquetWriter(lake / f"part-{offset:012}.parquet", schema), 0
            assert writer is not None
            writer.write_batch(lake_batch(_as_stored(batch, offset), schema, RowOrigin(_STREAM, 0)))
            written += batch.num_rows
        if writer is not None:
            writer.close()
        flush(log)
        log.close()


def _batches(messages: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as a client appends them: hardly compressible text of many keys."""
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(1)
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)
    subjects = pa.array([f"{_STREAM}.{number}" for number in range(_SUBJECTS)])
    schema = arrow_schema()
    for first in range(0, messages, MERGED_ROWS_MAX):
        rows = min(MERGED_ROWS_MAX, messages - first)
        text = letters[chance.integers(0, 64, rows * VALUE_BYTES, dtype=np.uint8)].tobytes()
        ends = pa.py_buffer(np.arange(0, (rows + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32).tobytes())
        keys = pa.array(chance.integers(0, _KEYS, rows)).cast(pa.string()).cast(pa.binary())
        columns = {
            "subject": subjects.take(pa.array(chance.integers(0, _SUBJECTS, rows))),
            "key": keys,
            "value": pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(text)]),
            "headers": pa.nulls(rows, schema.field("headers").type),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _as_stored(batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    import pyarrow as pa

    offsets = pa.array(range(offset, offset + batch.num_rows), pa.int64())
    times = pa.repeat(pa.scalar(FIRST_US + offset, pa.int64()), batch.num_rows).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [offsets, times, *batch.columns], names=["offset", "timestamp", *batch.schema.names]
    )


@contextmanager
def turns(folder: Path, messages: int) -> Iterator[Turn]:
    """Start a broker and a Spark session; return the turn. Every measure is expected to have so many messages."""
    from penstock.spark import session

    with ProcessTree() as tree, started(folder / "data") as (ready, _):
        spark = session(MASTER, name="bench", config={"spark.ui.showConsoleProgress": "false"})
        measures = _Measures(spark, ready.client, folder)

        def turn(name: str, round_number: int) -> dict[str, float]:
            out = folder / f"turn-{name}-{round_number + 1}"
            cpu, began = tree.cpu_seconds(), time.perf_counter()
            measures.by_name[name](out)
            cpu_seconds, seconds = tree.cpu_seconds() - cpu, time.perf_counter() - began
            if name not in _DRAINED or round_number < 0:
                rows = measures.count(name, out)
                if rows != messages:
                    raise OperationalError(f"{TITLES[name]}: {rows:,} messages, of {messages:,}")
            shutil.rmtree(out, ignore_errors=True)
            million = messages / 1e6
            return {"cpu_seconds": cpu_seconds / million, "seconds": seconds, "message_us": seconds / million}

        try:
            yield turn
        finally:
            spark.stop()


class _Measures:
    """The measures, in one Spark session and on one broker. Each writes to the folder that it is given, or nothing."""

    def __init__(self, spark: SparkSession, server: str, folder: Path) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder
        self._rows = 0  # of the last measure that reports them itself
        self.by_name: Mapping[str, Callable[[Path], None]] = {
            "parquet": lambda _: self._drain(self._source("parquet")),
            "read": lambda _: self._drain(self._source("read")),
            "offsets": lambda _: self._drain(self._source("offsets")),
            "available": self._available,
            "copy": lambda out: self._parquet().write.parquet(str(out)),
            "archive": self._archive,
            "sink": self._sink,
            "table": self._table,
        }

    def count(self, name: str, out: Path) -> int:
        """Return the number of messages that the last run of the measure had."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        if name in _DRAINED:
            seen = Observation()
            self._drain(self._source(name).observe(seen, count(lit(1)).alias("rows")))
            return int(seen.get["rows"])
        return self._spark.read.parquet(str(out)).count() if name in ("copy", "archive") else self._rows

    def _source(self, name: str) -> DataFrame:
        if name == "parquet":
            return self._parquet()
        return self._stream(columns="offset") if name == "offsets" else self._stream()

    def _parquet(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "parquet"))

    def _stream(self, **options: str) -> DataFrame:
        return self._spark.read.format("penstock").options(servers=self._server, stream=_STREAM, **options).load()

    def _drain(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def _available(self, out: Path) -> None:
        query = (
            self._spark.readStream.format("penstock")
            .options(servers=self._server, stream=_STREAM, startingOffsets="earliest", group="")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(out))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self._rows = sum(one["numInputRows"] for one in query.recentProgress)

    def _archive(self, out: Path) -> None:
        from penstock.spark import archive

        archive(_STREAM, out, spark=self._spark, servers=self._server)

    def _table(self, out: Path) -> None:
        from penstock.spark import table

        self._rows = table(_STREAM, out, spark=self._spark, servers=self._server).rows

    def _sink(self, out: Path) -> None:
        name = out.name
        with blocking.connect(self._server, timeout=_TIMEOUT_S) as client:
            client.create_stream(name, f"{_STREAM}.*")
            rows = self._parquet().select("key", "value", "subject")
            rows.write.format("penstock").options(servers=self._server, stream=name).mode("append").save()
            self._rows = client.offsets(name, "latest").offset
            client.delete_stream(name)
