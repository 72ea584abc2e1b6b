"""The data pipeline: Spark reads streams and writes them, through `format("penstock")`.

    from penstock.spark import read, session

    spark = session()
    read(spark, "orders", columns=["subject"]).groupBy("subject").count().show()

Where Penstock is installed beside PySpark (4.2 or newer, below 5), Spark finds the format by itself: it looks for
packages named `pyspark_*`. On a cluster whose machines have it from elsewhere, `register(spark)` says what it is.

| module                       | what it holds                                                          |
|------------------------------|------------------------------------------------------------------------|
| `source`                     | what Spark is handed: the readers and writers of `format("penstock")`  |
| `naming`                     | errors of jobs, in the words of their callers                          |
| `options`                    | their options, parsed once                                             |
| `reading`                    | `read`: a DataFrame of some messages and columns                       |
| `where`                      | the option `where`: conditions by which messages are not fetched       |
| `columns`                    | a stream's messages as the columns that Spark sees                     |
| `places`                     | where reading begins and ends, as offsets, and as JSON in a checkpoint |
| `planning`                   | which ranges of which partitions are read, and in how many pieces      |
| `batch`                      | reading what is there                                                  |
| `stream`                     | reading what comes                                                     |
| `fetching`                   | the task's part: one range of one partition as Arrow batches           |
| `java`                       | which Java Spark runs on                                               |
| `archiving`                  | log → lake: the job                                                    |
| `lake`                       | what an archive is made of, whatever its table format                  |
| `lake_files`                 | the task's part of it: rows become files                               |
| `history`                    | what is archived and what the log holds, as one stream                 |
| `lake_delta`, `lake_iceberg` | tables of these formats                                                |
| `lake_parquet`               | a table of plain Parquet files, each row once for all readers          |
| `decoding`                   | values as typed columns, and what is rejected                          |
| `auditing`                   | what passed, and whether an archive is equal to the log                |
| `jobs`                       | what jobs tell while they run, and when their next batch is due        |
| `table_job`                  | the job `table`: the latest message of each key, as a Delta table      |
| `latest`                     | the tasks' part of it: which row is the latest, and the table's files  |
| `run_job`                    | the job `run`: a user's own function over a stream                     |
| `replay_job`                 | the job `replay`: lake → log                                           |
| `delta_sink`                 | what it writes, as a Delta table                                       |
| `queries`                    | a streaming query from its start to its end, and why it failed         |
| `sql_tables`                 | streams as tables of SQL                                               |
| `sessions`                   | a Spark session for a laptop, or for `--master`                        |
| `versions`                   | which versions of PySpark and pyarrow work                             |
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
    from penstock.spark.sessions import register as register
    from penstock.spark.sessions import session as session
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
    "register": "penstock.spark.sessions",
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
    """Import a public name when it is first used: what needs no Spark does not load it."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
