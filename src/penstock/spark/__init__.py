"""The data pipeline: Spark reads and writes streams through `format("penstock")`, and jobs archive and replay them.

    from penstock.spark import read, session

    spark = session()
    read(spark, "orders", columns=["subject"]).groupBy("subject").count().show()

If Penstock is installed beside PySpark (4.2 or newer, below 5), Spark finds the format itself, because it imports
packages named `pyspark_*`. If the workers get Penstock in another way, call `register(spark)`.

| module        | content                                                                                  |
|---------------|------------------------------------------------------------------------------------------|
| `jobs`        | archive, audit, replay, run, table: a module each, and their progress reports            |
| `source`      | the data source: hands readers and writers of `format("penstock")` to Spark              |
| `reading`     | batch and streaming reader, planning, fetching; an archive and the log as one stream     |
| `writing`     | exactly-once writers to streams and to a Delta table; Spark's rows as rows of the log    |
| `options`     | options of readers and writers, positions and conditions, parsed once                    |
| `brokers`     | one client per process and cluster                                                       |
| `runtime`     | Java, versions of PySpark and pyarrow, sessions, garbage collection in workers           |

What needs no Spark is in `penstock.lake`: tables of archives, the loop that fills them, ranges and columns of logs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.lake.archiving.job import Archived as Archived
    from penstock.spark.jobs.archive_job import archive as archive
    from penstock.spark.jobs.audit_job import Audit as Audit
    from penstock.spark.jobs.audit_job import audit as audit
    from penstock.spark.jobs.replay_job import Replayed as Replayed
    from penstock.spark.jobs.replay_job import replay as replay
    from penstock.spark.jobs.run_job import Ran as Ran
    from penstock.spark.jobs.run_job import run as run
    from penstock.spark.jobs.table_job import Upkeep as Upkeep
    from penstock.spark.jobs.table_job import table as table
    from penstock.spark.options.where import Where as Where
    from penstock.spark.reading.dataframes import read as read
    from penstock.spark.runtime.sessions import session as session
    from penstock.spark.source import register as register

_MODULE_OF = {
    "Archived": "penstock.lake.archiving.job",
    "Ran": "penstock.spark.jobs.run_job",
    "Replayed": "penstock.spark.jobs.replay_job",
    "Upkeep": "penstock.spark.jobs.table_job",
    "Where": "penstock.spark.options.where",
    "archive": "penstock.spark.jobs.archive_job",
    "Audit": "penstock.spark.jobs.audit_job",
    "audit": "penstock.spark.jobs.audit_job",
    "read": "penstock.spark.reading.dataframes",
    "register": "penstock.spark.source",
    "replay": "penstock.spark.jobs.replay_job",
    "run": "penstock.spark.jobs.run_job",
    "session": "penstock.spark.runtime.sessions",
    "table": "penstock.spark.jobs.table_job",
}

__all__ = [
    "Archived",
    "Audit",
    "Ran",
    "Replayed",
    "Upkeep",
    "Where",
    "archive",
    "audit",
    "read",
    "register",
    "replay",
    "run",
    "session",
    "table",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package does not load PySpark."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
