"""Common parts of Penstock's Spark jobs: progress reports, pace, sessions, and the ids of streaming queries."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties that Spark sets for threads and tasks of a streaming query. Spark does not document them."""

WARNING = "Penstock warns: "
"""Prefix of warnings on stderr, to find them among the output of Spark's processes."""


class BatchDone(NamedTuple):
    """Progress report of a job: one batch is durable."""

    number: int  # in this run, from 1
    rows: int
    size_bytes: int  # of the written files; 0 if the job writes none
    seconds: float
    lag: int  # messages in the log that the job has not processed; -1: not known
    rejected: int | None = None  # rows whose value could not be decoded; None: the job decodes none


Report = Callable[[BatchDone], None]


def no_report(done: BatchDone) -> None:
    """Ignore the progress of a job."""


class Pace:
    """Paces the batches of a continuous job: at most one every `trigger_s` seconds, each with enough rows.

    A batch has enough rows if it has `rows_min`, or if its rows have waited for `delay_s` seconds.
    """

    def __init__(self, trigger_s: float, rows_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic):
        self._trigger_s = trigger_s
        self._rows_min = rows_min
        self._delay_s = delay_s
        self._clock = clock
        self._last_s = -trigger_s - delay_s + clock()  # the first batch is due at once
        self._waiting_since_s: float | None = None

    def is_due(self, rows: int) -> bool:
        """True if a batch is due while `rows` rows wait."""
        now_s = self._clock()
        if not rows:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        is_enough = rows >= self._rows_min or now_s - self._waiting_since_s >= self._delay_s
        return is_enough and now_s - self._last_s >= self._trigger_s

    def begin(self) -> None:
        """Record that a batch begins."""
        self._last_s = self._clock()
        self._waiting_since_s = None


def session_of(spark: SparkSession | Callable[[], SparkSession] | None, name: str) -> SparkSession:
    """Return the given session, or start one. Raise OperationalError if PySpark or Java is missing.

    A job calls it after all checks that need no Spark, because starting Spark takes seconds.
    """
    from penstock.spark.sessions import session

    if spark is None:
        return session(name=f"penstock {name}")
    return spark() if callable(spark) else spark


def is_connect(spark: SparkSession) -> bool:
    """True if a session is a client of Spark Connect: its driver is another process, perhaps on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of parallel tasks; with Spark Connect, the number of tasks into which Spark splits a range."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    return spark.range(limits.CONNECT_TASKS_MAX).selectExpr("spark_partition_id() AS task").distinct().count()


def query_id_of(told: str | None) -> str:
    """Return the id of a streaming query from QUERY_ID's value. Raise OperationalError if Spark did not set it."""
    if not told:
        raise _not_told(QUERY_ID, told)
    return told


def batch_id_of(told: str | None) -> int:
    """Return the number of a batch from BATCH_ID's value. Raise OperationalError if Spark did not set it."""
    if told is None or not (told.isascii() and told.isdigit()):
        raise _not_told(BATCH_ID, told)
    return int(told)


def _not_told(name: str, told: str | None) -> OperationalError:
    import pyspark

    what = f"Spark's property {name} is {told!r}: without it no row can be written exactly once, and none was written"
    hint = "write from a streaming query, with a PySpark that Penstock is tested with, or with df.write in foreachBatch"
    return OperationalError(f"{what}. This is PySpark {pyspark.__version__}; {hint}")


@contextmanager
def without_pandas_warning() -> Iterator[None]:
    """Suppress PySpark's warning about pandas 3: functions on Arrow batches do not use pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
