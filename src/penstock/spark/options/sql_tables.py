"""Streams as tables of SQL: `CREATE TABLE orders USING penstock OPTIONS (stream 'orders')`.

Rules: Spark 4.3 passes a table's options to a Python source only when the table is created; later it passes only the
columns. Spark keeps the metadata of a column, so the first column holds the options in its metadata `penstock`. With
typed columns the versions of their schemas are among them: a table keeps the columns that it was created with. Options
hold no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.lake.reading.columns import arrow_schema

_OF_TABLE = "option."
"""Prefix of a table's options among its properties. Spark passes each option with and without the prefix."""
_METADATA = "penstock"


def is_table(options: Mapping[str, str]) -> bool:
    """True if a table is being created."""
    return any(name.lower().startswith(_OF_TABLE) for name in options)


def table_schema(names: Sequence[str], options: Mapping[str, str]) -> StructType:
    """Return the schema of these columns, with the table's options in the metadata of the first one."""
    return with_options(from_arrow_schema(arrow_schema(names)), options, {})


def with_options(schema: StructType, options: Mapping[str, str], pinned: Mapping[str, str]) -> StructType:
    """Return a schema with the table's options in the metadata of its first column; `pinned`: instead of the user's."""
    kept = {name[len(_OF_TABLE) :]: text for name, text in options.items() if name.lower().startswith(_OF_TABLE)}
    kept = {name: text for name, text in kept.items() if name.lower() not in {one.lower() for one in pinned}} | dict(
        pinned
    )
    schema.fields[0].metadata = {_METADATA: json.dumps(kept, sort_keys=True)}
    return schema


def options_with(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return a reader's options merged with those of its table; the reader's own take precedence."""
    given = {name.lower() for name in options}
    for field in schema.fields:
        if (text := (field.metadata or {}).get(_METADATA)) is not None:
            of_table = json.loads(text)
            return {**{name: one for name, one in of_table.items() if name.lower() not in given}, **options}
    return dict(options)
