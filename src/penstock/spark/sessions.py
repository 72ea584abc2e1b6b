"""Spark sessions for Penstock's jobs, on this machine or on a cluster.

Rules: the user's Spark configuration takes precedence. Only missing settings are added: Java, the Python of this
process, a quiet log, the time zone UTC, page checksums of Parquet; and the loopback address, if Spark is local.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark import java
from penstock.spark.versions import check_versions

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


def register(spark: SparkSession) -> None:
    """Register `format("penstock")` with a session. Required unless Penstock is installed beside PySpark."""
    from penstock.spark.source import DefaultSource

    spark.dataSource.register(DefaultSource)
