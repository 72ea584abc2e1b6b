"""Reads Delta tables as the docs do.

Not with `DeltaTable.to_pyarrow_table`: its threads may still run when the process ends, which aborts then,
about every third time.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def delta_rows(table: Path | str | DeltaTable) -> pa.Table:
    """All rows of a Delta table, or of one version of it, in no order."""
    found = table if isinstance(table, DeltaTable) else DeltaTable(table)
    return pa.table(QueryBuilder().register("t", found).execute("SELECT * FROM t").read_all())
