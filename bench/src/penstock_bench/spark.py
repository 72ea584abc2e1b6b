"""`penstock bench spark`: cost of moving data between a stream and Spark, beside Parquet files of the same rows.

Rules: One log is made once, of messages of 300 bytes in batches as the cleaner leaves them, and its rows once as
Parquet files. All measures use the same Spark session on two cores and the same broker. Each measure has its turn in
each round; a first round, which loads and compiles code, does not count. CPU is that of all processes together: the
JVM, Python's workers, the broker, and this process. A ratio is taken within a round. The rows of the measures
`available`, `archive` and `sink` are counted and compared with the expected number.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.limits import MERGED_ROWS_MAX, MIB
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from penstock.client.blocking import client as blocking
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock.spark.columns import RowOrigin, default_columns, spark_batch
from penstock.spark.columns import arrow_schema as spark_schema
from penstock_bench.data_dirs import FIRST_US, append, flush, made_in, new_log, started
from penstock_bench.process_tree import ProcessTree
from penstock_bench.report import Figure
from penstock_bench.rounds import order_of

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

Said = Callable[[str], None]
"""Receives the name of every finished step."""


class SparkPlan(msgspec.Struct, frozen=True):
    """The messages and rounds to measure."""

    messages: int = MESSAGES
    rounds: int = ROUNDS

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return 1 + len(TITLES) * (self.rounds + 1)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return (self.rounds + 1) * self.messages / 1e6 * _SECONDS_A_MILLION + 30

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: the log, its Parquet files, the output of both, and staged rows."""
        return 512 * MIB + 7 * self.messages * (VALUE_BYTES + 60)


class Cost(NamedTuple):
    """The cost of one turn."""

    cpu_seconds: float
    seconds: float


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


class _Goal(NamedTuple):
    """The highest wanted ratio of the CPU times of measures `name` and `beside`."""

    name: str
    beside: str
    reach: float
    stretch: float


_GOALS = (
    _Goal("read", "parquet", 1.7, 1.2),
    _Goal("offsets", "read", 0.4, 0.2),
    _Goal("available", "read", 1.3, 1.1),
    _Goal("archive", "copy", 1.5, 1.0),
    _Goal("sink", "copy", 3.0, 1.5),
)


def make(folder: Path, plan: SparkPlan) -> None:
    """Make a data directory with the stream, and its rows as Parquet files."""
    import pyarrow.parquet as pq

    schema = spark_schema(default_columns(headers=False))
    lake = folder / "parquet"
    lake.mkdir(parents=True)
    with made_in(folder / "data") as (vfs, metadata):
        log = new_log(vfs, metadata, LogCreationMarkers(vfs), StreamConfig(name=_STREAM, subject=f"{_STREAM}.*"))
        writer, written = None, _FILE_ROWS
        for batch in _batches(plan.messages):
            offset = log.log_end
            append(log, codec.encode_arrow(batch), FIRST_US + offset)
            if written >= _FILE_ROWS:
                if writer is not None:
                    writer.close()
                writer, written = pq.ParquetWriter(lake / f"part-{offset:012}.parquet", schema), 0
            assert writer is not None
            writer.write_batch(spark_batch(_as_stored(batch, offset), schema, RowOrigin(_STREAM, 0)))
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
def _spark() -> Iterator[SparkSession]:
    from penstock.spark import session

    made = session(MASTER, name="bench", config={"spark.ui.showConsoleProgress": "false"})
    try:
        yield made
    finally:
        made.stop()


class _Turns:
    """The measures, in one Spark session and on one broker."""

    def __init__(self, spark: SparkSession, server: str, folder: Path, messages: int, tree: ProcessTree) -> None:
        self._tree = tree
        self._spark = spark
        self._server = server
        self._folder = folder
        self._messages = messages
        self._number = 0
        self._measures: Mapping[str, Callable[[Path], None]] = {
            "parquet": lambda _: self._drain(self._parquet()),
            "read": lambda _: self._drain(self._stream()),
            "offsets": lambda _: self._drain(self._stream(columns="offset")),
            "available": self._available,
            "copy": lambda out: self._parquet().write.parquet(str(out)),
            "archive": self._archive,
            "sink": self._sink,
            "table": self._table,
        }

    def measure(self, name: str) -> Cost:
        """Run one measure and return its cost."""
        self._number += 1
        out = self._folder / f"turn-{self._number}"
        cpu, began = self._tree.cpu_seconds(), time.perf_counter()
        self._measures[name](out)
        cost = Cost(self._tree.cpu_seconds() - cpu, time.perf_counter() - began)
        shutil.rmtree(out, ignore_errors=True)
        return cost

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
        read = sum(one["numInputRows"] for one in query.recentProgress)
        if read != self._messages:
            raise OperationalError(f"the query read {read:,} messages of {self._messages:,}")

    def _archive(self, out: Path) -> None:
        from penstock.spark import archive

        archive(_STREAM, out, spark=self._spark, servers=self._server)
        rows = self._spark.read.parquet(str(out)).count()
        if rows != self._messages:
            raise OperationalError(f"{rows:,} messages are in the archive, of {self._messages:,}")

    def _table(self, out: Path) -> None:
        from penstock.spark import table

        table(_STREAM, out, spark=self._spark, servers=self._server)

    def _sink(self, out: Path) -> None:
        name = out.name
        with blocking.connect(self._server, timeout=_TIMEOUT_S) as client:
            client.create_stream(name, f"{_STREAM}.*")
            rows = self._parquet().select("key", "value", "subject")
            rows.write.format("penstock").options(servers=self._server, stream=name).mode("append").save()
            stored = client.offsets(name, "latest").offset
            client.delete_stream(name)
        if stored != self._messages:
            raise OperationalError(f"{stored:,} messages are in the stream, of {self._messages:,}")


def run(plan: SparkPlan, folder: Path, said: Said) -> list[Figure]:
    """Run the whole plan."""
    make(folder, plan)
    said(f"{plan.messages:,} messages made")
    found: dict[str, list[Cost]] = {one: [] for one in TITLES}
    with ProcessTree() as tree, started(folder / "data") as (ready, _), _spark() as spark:
        turns = _Turns(spark, ready.client, folder, plan.messages, tree)
        for number in range(-1, plan.rounds):
            for name in order_of(list(TITLES), max(0, number)):
                cost = turns.measure(name)
                if number >= 0:
                    found[name].append(cost)
                said(TITLES[name])
    return _figures(plan, found)


def _figures(plan: SparkPlan, found: Mapping[str, list[Cost]]) -> list[Figure]:
    figures = []
    for name, costs in found.items():
        million = plan.messages / 1e6
        figures += [
            _median(f"{name}-cpu", f"{TITLES[name]}: CPU a million", "s", [one.cpu_seconds / million for one in costs]),
            _median(f"{name}-s", f"{TITLES[name]}: time", "s", [one.seconds for one in costs]),
        ]
    for goal in _GOALS:
        pairs = zip(found[goal.name], found[goal.beside], strict=True)
        ratios = [one.cpu_seconds / beside.cpu_seconds for one, beside in pairs]
        what = f"{TITLES[goal.name]}, against: {TITLES[goal.beside]} (CPU)"
        figure = _median(f"{goal.name}-ratio", what, "×", ratios)
        figures.append(msgspec.structs.replace(figure, reach=goal.reach, stretch=goal.stretch))
    update_us = [one.seconds / plan.messages * 1e6 for one in found["table"]]
    figure = _median("table-update", f"{TITLES['table']}: time of an update", "µs", update_us)
    figures.append(msgspec.structs.replace(figure, reach=10.0, stretch=3.3))
    return figures


def _median(name: str, what: str, unit: str, values: list[float]) -> Figure:
    return Figure(name, what, unit, statistics.median(values), low=min(values), high=max(values))
