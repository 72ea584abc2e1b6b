"""The text of docs/reference/spark.md: options and columns of `format("penstock")` from their tables, and the jobs."""

from __future__ import annotations

import re

from penstock.cli.python_reference import call_text

_MADE = "<!-- Made by `python -m penstock.cli.reference docs/reference`; change the code, not this file. -->"

_HEAD = """# Spark

```python
from penstock.spark import session

spark = session()
orders = spark.read.format("penstock").option("stream", "orders").load()
```

`spark.read` reads what is there, `spark.readStream` what comes; in SQL, for reading, it is
`CREATE TABLE orders USING penstock OPTIONS (stream 'orders')`, without columns: the option `columns` names some.
It needs PySpark 4.2 or newer and Java 17 or newer: `pip install "penstock[spark,java]"`.
[The tutorial](../tutorial/spark.md) begins from nothing.
[On a cluster](../how-to/spark-cluster.md) says what workers need."""

_COLUMNS = """## Columns

All may be null for Spark; their names and types are Kafka's where they mean the same.
A `.schema()` of some of them, in any order, or the option `columns` has only those fetched.

| column | type | what |
|---|---|---|"""

_OPTIONS = """## Options of a reader

Upper and lower case are the same.
A name that there is not is refused, and all mistakes are told together.

| option | default | meaning |
|---|---|---|"""

_SINK = """## Options of a writer

[Write from Spark](../how-to/write-from-spark.md) says which columns a result has, and what is there once.

| option | default | meaning |
|---|---|---|"""

_CALLS = """## Python

Each job is a command, too: [`penstock pipeline`](cli.md#penstock-pipeline)."""


def spark_reference() -> str:
    """See the module."""
    from penstock import spark
    from penstock.spark import columns
    from penstock.spark.options import SINK_OPTIONS, SOURCE_OPTIONS

    meanings = re.findall(r"^\| (`.*?`) +\| (.*?) +\|$", columns.__doc__ or "", flags=re.MULTILINE)
    rows = [
        f"| `{name}` | `{columns.COLUMNS[name].ddl}` | {meaning} |"
        for names, meaning in meanings
        for name in re.findall(r"`(\w+)`", names)
    ]
    options = [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SOURCE_OPTIONS]
    sink = [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in SINK_OPTIONS]
    jobs = [getattr(spark, name) for name in spark.__all__]
    calls = [call_text(f"penstock.spark.{one.__name__}", one) for one in jobs if not isinstance(one, type)]
    tables = [[_COLUMNS, *rows], [_OPTIONS, *options], [_SINK, *sink]]
    parts = [_HEAD, _MADE, *map("\n".join, tables), _CALLS, *calls]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
