"""A Spark session for Penstock's jobs: on this machine, or on a cluster.

Rules: what a user's Spark is configured with stays. Only what is missing is set: a Java, the Python that runs this, and
little noise.
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
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # those of archives; other files have none
}

_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Of a Spark that is all on this machine: nobody else is to reach it."""


def session(
    master: str | None = None, *, name: str = "penstock", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that is there, or one on `master`: else where Spark's configuration says, else on all cores here.

    `config` adds to Spark's configuration. OperationalError: there is no PySpark of 4.2 or newer, below 5, or no Java.
    """
    check_versions()
    java.use()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # What spark-submit and spark-defaults.conf say is known once Java runs, which is started with what is given here.
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
    """Tell a session of `format("penstock")`: where Spark's workers have Penstock, but not as an installed package."""
    from penstock.spark.source import DefaultSource

    spark.dataSource.register(DefaultSource)
