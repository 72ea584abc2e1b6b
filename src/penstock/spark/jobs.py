"""What Penstock's jobs have in common: what they tell while they run, and how they wait."""

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
"""Spark's properties of a thread or a task that works for a query; no documentation of Spark promises them."""

WARNING = "Penstock warns: "
"""Begins a line on stderr that people should see, whichever of Spark's processes writes it."""


class BatchDone(NamedTuple):
    """One batch of a job is durable."""

    number: int  # of this run, from 1 on
    rows: int
    size_bytes: int  # of the files that were written; 0: it wrote none
    seconds: float
    lag: int  # messages that the log holds and the job has not done; -1: not known
    rejected: int | None = None  # of the rows: values that could not be decoded; None: the job decodes none


Report = Callable[[BatchDone], None]


def no_report(done: BatchDone) -> None:
    """Tell nobody."""


class Pace:
    """When the next batch of a job is due that goes on for ever: at most one in so long, and of enough rows."""

    def __init__(self, trigger_s: float, rows_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic):
        self._trigger_s = trigger_s
        self._rows_min = rows_min
        self._delay_s = delay_s
        self._clock = clock
        self._last_s = -trigger_s - delay_s + clock()  # the first is due at once
        self._waiting_since_s: float | None = None

    def is_due(self, rows: int) -> bool:
        """Whether so many rows that wait are to be done now."""
        now_s = self._clock()
        if not rows:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        is_enough = rows >= self._rows_min or now_s - self._waiting_since_s >= self._delay_s
        return is_enough and now_s - self._last_s >= self._trigger_s

    def begin(self) -> None:
        """A batch begins."""
        self._last_s = self._clock()
        self._waiting_since_s = None


def session_of(spark: SparkSession | Callable[[], SparkSession] | None, name: str) -> SparkSession:
    """The session for a job: the one it is given, or the one that is started now that the job is known to be possible.

    OperationalError: there is no PySpark, or no Java.
    """
    from penstock.spark.sessions import session

    if spark is None:
        return session(name=f"penstock {name}")
    return spark() if callable(spark) else spark


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect, which is no driver: that is another process, maybe elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism_of(spark: SparkSession) -> int:
    """How many tasks run at the same time. A client of Spark Connect can only ask how many a range is divided into."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    return spark.range(limits.CONNECT_TASKS_MAX).selectExpr("spark_partition_id() AS task").distinct().count()


def query_id_of(told: str | None) -> str:
    """The id of a streaming query, as the property QUERY_ID has it. OperationalError: Spark does not tell it."""
    if not told:
        raise _not_told(QUERY_ID, told)
    return told


def batch_id_of(told: str | None) -> int:
    """The number of a batch of it, as the property BATCH_ID has it. OperationalError: Spark does not tell it."""
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
    """PySpark warns of pandas 3 when a function takes Arrow batches, although pandas has no part in it then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
