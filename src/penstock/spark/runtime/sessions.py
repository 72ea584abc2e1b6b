"""Spark sessions for Penstock's jobs, on this machine or on a cluster.

Rules: the user's Spark configuration takes precedence. Only missing settings are added: Java, the Python of this
process, a quiet log, the time zone UTC, page checksums of Parquet; and the loopback address, if Spark is local.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.spark.runtime import java
from penstock.spark.runtime.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.log.level": "ERROR",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # of archives; other files have none
}

_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Settings of a local Spark, so that other machines cannot connect to it."""


def session(
    master: str | None = None, *, name: str = "penstock", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the existing Spark session, or start one on `master`.

    `master`: Spark's master URL; default: that of Spark's configuration, else all cores of this machine. `config`:
    additions to Spark's configuration. Raise OperationalError if PySpark (4.2 or newer, below 5) or Java (17 or newer)
    is missing.
    """
    check_versions()
    java.use()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The settings of spark-submit and spark-defaults.conf are known only after Java has started with `wanted`.
    wanted = SparkConf(loadDefaults=False).setAll(list((config or {}).items()))
    SparkContext._ensure_initialized(conf=wanted)  # noqa: SLF001
    given = SparkConf()
    builder = SparkSession.builder.appName(name)
    place = master or given.get("spark.master", LOCAL) or LOCAL
    builder = builder.master(place)
    defaults = {**_DEFAULTS, **(_LOOPBACK if place.startswith("local") else {})}
    for key, value in {**defaults, **(config or {})}.items():
        if key in (config or {}) or not given.contains(key):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def session_of(spark: SparkSession | Callable[[], SparkSession] | None, name: str) -> SparkSession:
    """Return the given session, or start one. Raise OperationalError if PySpark or Java is missing.

    A job calls it after all checks that need no Spark, because starting Spark takes seconds.
    """
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


@contextmanager
def without_pandas_warning() -> Iterator[None]:
    """Suppress PySpark's warning about pandas 3: functions on Arrow batches do not use pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
