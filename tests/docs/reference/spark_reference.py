"""Generates docs/reference/spark.md: options and columns of `format("penstock")` from their tables, and the jobs."""

from __future__ import annotations

import re

from tests.docs.reference.python_reference import call_text

_MADE = "<!-- Made by `python -m tests.docs.reference docs/reference`; change the code, not this file. -->"

_HEAD = """# Spark: format("penstock"), its columns, options and functions

```python
from penstock.spark import read, session

spark = session()
orders = read(spark, "orders", where={"subject": "orders.eu.>", "partition": 0}, columns=["offset", "value"])
same = spark.read.format("penstock").options(stream="orders", where='{"subject": "orders.eu.>", "partition": 0}').load()
```

`spark.read` reads the messages so far, `spark.readStream` also new ones; in SQL, for reading, it is
`CREATE TABLE orders USING penstock OPTIONS (stream 'orders')`, without columns: the option `columns` names some.
The table exists as long as Spark's catalog: if that is in memory, as by default, until the session ends.
It needs PySpark 4.2 or newer, below 5, and Java 17 or newer: `pip install '.[spark,java]'` in Penstock's folder.
[The tutorial](../tutorial/spark.md) begins from nothing.
[On a cluster](../how-to/spark-cluster.md) says what workers need."""

_FETCHED = """## What is fetched

Only the options decide what the brokers send.
Later operations on the DataFrame, such as `select`, `where`, `count` or `limit`, do not change that: all \
rows and columns of the options are fetched, and Spark drops those that it does not need.

| to fetch        | use                                                                                       |
|-----------------|-------------------------------------------------------------------------------------------|
| some columns    | `columns`, or a narrow `.schema()`: without `value` it is often a small part of the bytes |
| some subjects   | `subject`, `subjects`, or `where` with `subject`                                          |
| some partitions | `assign`, or `where` with `partition`                                                     |
| from one place to another | `startingOffsets` and `endingOffsets`, or their times: it is an error if messages from \
there on are gone |
| a range, as far as the log holds it | `where` with `offset` or `timestamp` |

`where` is JSON, or in Python the argument of [`penstock.spark.read`](#penstocksparkread), and takes conditions on \
these columns:

| column | condition | what is saved |
|---|---|---|"""

_FROZEN = """Spark's setting `spark.sql.python.filterPushdown.enabled` makes no difference to this source, and \
`penstock.spark.session` leaves it alone.
If it is on, Spark 4.2 and 4.3 keep the filters that a source accepts for the next query on the same DataFrame, \
view or table, which then lacks rows without an error; so this source accepts none.

## A DataFrame is a snapshot

The ranges of a DataFrame are fixed by its first action: messages published later are not in it, nor in a \
temporary view of it.
To see new messages, `load()` again; once retention has deleted messages of a range, an old DataFrame fails.
A table of SQL (`CREATE TABLE … USING penstock`) is planned with each statement.

The same holds for a DataFrame that a streaming query joins: it is planned once, when the query starts, and never \
changes.
For look-ups that are up to date, load inside `foreachBatch`:

```python
from penstock.spark import read, session

spark = session()


def enrich(batch, batch_id):
    customers = read(batch.sparkSession, "customers", columns=["key", "value"])  # as they are now
    batch.join(customers, "key").write.mode("append").parquet("enriched")


orders = spark.readStream.format("penstock").option("stream", "orders").load().select("key", "offset")
query = orders.writeStream.foreachBatch(enrich).option("checkpointLocation", "checkpoints/enriched").start()
query.awaitTermination()
```"""

_GROUP = """## Progress of a query

A streaming query commits the end offsets of its batches as a consumer group, for `penstock group list` and for alerts \
on lag; Spark's checkpoint alone decides where the query continues.
Without the option `group` its name is `spark-` and an id that the checkpoint keeps, so that each query has its own: \
the JSON of `query.lastProgress["sources"][0]["endOffset"]` has it as `group`.
A query whose checkpoint is of an earlier Penstock continues as the group `spark`.
Groups do not expire: an abandoned checkpoint leaves its group behind, whose lag grows, for alerts, too.
`penstock group show NAME` shows the time of its last commit, and `penstock group delete NAME` deletes it."""

_COLUMNS = """## Columns

All may be null for Spark; their names and types are Kafka's where they mean the same.
A `.schema()` of some of them, in any order, or the option `columns` has only those fetched.
Their names are known in any case, as Spark resolves names.

| column | type | what |
|---|---|---|"""

_OPTIONS = """## Options of a reader

Names are not case-sensitive.
An unknown name is an error, and all errors are reported together.

| option | default | meaning |
|---|---|---|"""

_SINK = """## Options of a writer

[Write from Spark](../how-to/write-from-spark.md) says which columns a result has, and what is written exactly once.

| option | default | meaning |
|---|---|---|"""

_CALLS = """## Python

Each job is a command, too: [`penstock pipeline`](cli.md#penstock-pipeline)."""


def spark_reference() -> str:
    from penstock import spark
    from penstock.spark import columns, where
    from penstock.spark.options import SINK_OPTIONS, SOURCE_OPTIONS

    meanings = re.findall(r"^\| (`.*?`) +\| (.*?) +\|$", columns.__doc__ or "", flags=re.MULTILINE)
    rows = [
        f"| `{name}` | `{columns.COLUMNS[name].ddl}` | {meaning} |"
        for names, meaning in meanings
        for name in re.findall(r"`(\w+)`", names)
    ]
    conditions = re.findall(r"^\| `.*?` +\| .*? +\| .*? +\|$", where.__doc__ or "", flags=re.MULTILINE)
    fetched = [re.sub(" +", " ", one) for one in conditions]
    options = [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SOURCE_OPTIONS]
    sink = [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SINK_OPTIONS]
    jobs = [getattr(spark, name) for name in spark.__all__]
    calls = [call_text(f"penstock.spark.{one.__name__}", one) for one in jobs if not isinstance(one, type)]
    tables = [[_COLUMNS, *rows], [_OPTIONS, *options], [_FETCHED, *fetched], [_FROZEN], [_GROUP], [_SINK, *sink]]
    parts = [_HEAD, _MADE, *map("\n".join, tables), _CALLS, *calls]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
