"""The data pipeline: Spark reads and writes streams through `format("penstock")`, and jobs archive and replay them.

    from penstock.spark import read, session

    spark = session()
    read(spark, "orders", columns=["subject"]).groupBy("subject").count().show()

If Penstock is installed beside PySpark (4.2 or newer, below 5), Spark finds the format itself, because it imports
packages named `pyspark_*`. If the workers get Penstock in another way, call `register(spark)`.

| module       | content                                                                   |
|--------------|---------------------------------------------------------------------------|
| `source`     | the data source: readers and writers of `format("penstock")`              |
| `options`    | options of readers and writers, parsed once                               |
| `sessions`   | a Spark session for a laptop, or for `--master`                           |
| `versions`, `java` | supported versions of PySpark and pyarrow; the Java that Spark runs on |
| `brokers`    | one client per process and cluster                                        |
| `rights`     | permission checks on the driver                                           |
|              | *reading*                                                                 |
| `reading`    | `read`: a DataFrame of some messages and columns                          |
| `where`      | the option `where`: conditions that limit which messages are fetched      |
| `columns`    | messages as Spark's columns                                               |
| `places`     | start and end offsets, and their JSON in a checkpoint                     |
| `planning`   | ranges of partitions, split into pieces for tasks                         |
| `batch`, `stream` | batch reader, streaming reader                                       |
| `fetching`   | in a task: one range of one partition as Arrow batches                    |
| `agreement`  | detects that a log was truncated, or that it is of another cluster        |
| `sql_tables` | streams as tables of SQL                                                  |
|              | *writing*                                                                 |
| `sink`, `rows` | exactly-once writers; Spark's rows as rows of the log                   |
| `republish`  | publishes written rows also on NATS                                       |
|              | *jobs*                                                                    |
| `archiving`, `archive_plan` | the job `archive`: log → lake                              |
| `lake`, `lake_files` | the parts of an archive that do not depend on its table format    |
| `lake_delta`, `lake_iceberg`, `lake_parquet` | the table formats                         |
| `decoding`   | values as typed columns, and rejected values                              |
| `history`    | archive and log read as one stream                                        |
| `auditing`   | the job `audit`: gaps, duplicates, comparison of an archive with the log  |
| `table_job`, `latest` | the job `table`: the latest message of each key as a Delta table |
| `run_job`, `delta_sink` | the job `run`: a user's function over a stream, to a Delta table |
| `replay_job` | the job `replay`: lake → log                                              |
| `queries`    | runs and follows a job's streaming query                                  |
| `jobs`       | progress reports and pace of jobs                                         |
| `naming`     | errors with the parameters of a job instead of the source's options       |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.archiving import Archived as Archived
    from penstock.spark.archiving import archive as archive
    from penstock.spark.auditing import Audit as Audit
    from penstock.spark.auditing import audit as audit
    from penstock.spark.reading import read as read
    from penstock.spark.replay_job import Replayed as Replayed
    from penstock.spark.replay_job import replay as replay
    from penstock.spark.run_job import Ran as Ran
    from penstock.spark.run_job import run as run
    from penstock.spark.sessions import session as session
    from penstock.spark.source import register as register
    from penstock.spark.table_job import Upkeep as Upkeep
    from penstock.spark.table_job import table as table
    from penstock.spark.where import Where as Where

_MODULE_OF = {
    "Archived": "penstock.spark.archiving",
    "Ran": "penstock.spark.run_job",
    "Replayed": "penstock.spark.replay_job",
    "Upkeep": "penstock.spark.table_job",
    "Where": "penstock.spark.where",
    "archive": "penstock.spark.archiving",
    "Audit": "penstock.spark.auditing",
    "audit": "penstock.spark.auditing",
    "read": "penstock.spark.reading",
    "register": "penstock.spark.source",
    "replay": "penstock.spark.replay_job",
    "run": "penstock.spark.run_job",
    "session": "penstock.spark.sessions",
    "table": "penstock.spark.table_job",
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
