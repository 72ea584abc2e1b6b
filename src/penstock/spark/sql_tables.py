"""Streams as tables of SQL: `CREATE TABLE orders USING penstock OPTIONS (stream 'orders')`.

Rules: what Spark 4.3 keeps of such a table are its columns; a source in Python hears of the table's options when it is
made, and never again. But what a column says of itself is kept: so the first column has the options with it, as the
metadata `penstock`. Options have no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.columns import arrow_schema

_OF_TABLE = "option."
"""How Spark has the options of a table among its properties: each once so, and once as it is."""
_METADATA = "penstock"


def is_table(options: Mapping[str, str]) -> bool:
    """Whether a table is being made."""
    return any(name.lower().startswith(_OF_TABLE) for name in options)


def table_schema(names: Sequence[str], options: Mapping[str, str]) -> StructType:
    """These columns, the first of which has the table's options with it."""
    schema = from_arrow_schema(arrow_schema(names))
    kept = {name[len(_OF_TABLE) :]: text for name, text in options.items() if name.lower().startswith(_OF_TABLE)}
    schema.fields[0].metadata = {_METADATA: json.dumps(kept, sort_keys=True)}
    return schema


def options_with(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """A reader's options, and those of the table whose columns it reads; its own count before those."""
    given = {name.lower() for name in options}
    for field in schema.fields:
        if (text := (field.metadata or {}).get(_METADATA)) is not None:
            of_table = json.loads(text)
            return {**{name: one for name, one in of_table.items() if name.lower() not in given}, **options}
    return dict(options)
