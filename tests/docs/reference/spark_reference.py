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
The table lasts as long as Spark's catalog: in memory, as by default, until the session ends.
It needs PySpark 4.2 or newer, below 5, and Java 17 or newer: `pip install '.[spark,java]'` in Penstock's folder \
([tutorial](../tutorial/spark.md), [workers of a cluster](../how-to/spark-cluster.md))."""

_FETCHED = """## What is fetched

Only the options decide what the brokers send: Spark drops later what `select`, `where`, `count` or `limit` do not need.

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

_FROZEN = """`spark.sql.python.filterPushdown.enabled` makes no difference: this source accepts no filters, since \
Spark 4.2 and 4.3 keep them for the next query on the same DataFrame, view or table, which then lacks rows \
without an error.

## A DataFrame is a snapshot

A DataFrame's first action fixes its ranges, also of its temporary views: to see new messages, `load()` again.
Once retention has deleted messages of a range, it fails.
A table of SQL (`CREATE TABLE … USING penstock`) is planned with each statement.

A DataFrame that a streaming query joins is planned once, when the query starts.
For up-to-date look-ups, load inside `foreachBatch`:

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
Its default name has an id that the checkpoint keeps: `group` in the JSON of \
`query.lastProgress["sources"][0]["endOffset"]`; with a checkpoint of an earlier Penstock it is `spark`.
Groups do not expire: the lag of an abandoned checkpoint's group grows, for alerts, too.
`penstock group show NAME` shows the time of its last commit, and `penstock group delete NAME` deletes it."""

_COLUMNS = """## Columns

All may be null for Spark; names, not case-sensitive, and types are Kafka's where they mean the same.
With the option `decode`, [typed columns and `decode_error`](../how-to/typed-events-in-spark.md#columns) follow.

| column | type | what |
|---|---|---|"""

_OPTIONS = """## Options of a reader

Names are not case-sensitive; unknown ones are errors, reported together.

| option | default | meaning |
|---|---|---|"""

_SINK = """## Options of a writer

[Write from Spark](../how-to/write-from-spark.md) says which columns a result has, and what is written exactly once.
These options are as for a reader: SHARED.

| option | default | meaning |
|---|---|---|"""

_CALLS = """## Python

Each job is a command, too: [`penstock pipeline`](cli.md#penstock-pipeline)."""


def spark_reference() -> str:
    from penstock import spark
    from penstock.lake.reading import columns
    from penstock.spark.options import where
    from penstock.spark.options.options import SINK_OPTIONS, SOURCE_OPTIONS

    meanings = re.findall(r"^\| (`.*?`) +\| (.*?) +\|$", columns.__doc__ or "", flags=re.MULTILINE)
    rows = [
        f"| `{name}` | `{columns.COLUMNS[name].ddl}` | {meaning} |"
        for names, meaning in meanings
        for name in re.findall(r"`(\w+)`", names)
    ]
    conditions = re.findall(r"^\| `.*?` +\| .*? +\| .*? +\|$", where.__doc__ or "", flags=re.MULTILINE)
    fetched = [re.sub(" +", " ", one) for one in conditions]
    options = [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SOURCE_OPTIONS]
    same = set(options)
    written = {one.name: f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SINK_OPTIONS}
    sink = [row for row in written.values() if row not in same]
    shared = ", ".join(f"`{name}`" for name, row in written.items() if row in same)
    jobs = [getattr(spark, name) for name in spark.__all__]
    calls = [call_text(f"penstock.spark.{one.__name__}", one) for one in jobs if not isinstance(one, type)]
    writer = [_SINK.replace("SHARED", shared), *sink]
    tables = [[_COLUMNS, *rows], [_OPTIONS, *options], [_FETCHED, *fetched], [_FROZEN], [_GROUP], writer]
    parts = [_HEAD, _MADE, *map("\n".join, tables), _CALLS, *calls]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
