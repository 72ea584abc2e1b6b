"""Ids of streaming queries and of their batches, from the properties that Spark sets for threads and tasks.

Rules: Spark does not document the properties. Without them no row can be written exactly once, so a missing one is an
error, and nothing is written.
"""

from __future__ import annotations

from penstock.base.errors import OperationalError

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def query_id_of(told: str | None) -> str:
    """Return the id of a streaming query from QUERY_ID's value. Raise OperationalError if Spark did not set it."""
    if not told:
        raise _not_told(QUERY_ID, told)
    return told


def batch_id_of(told: str | None) -> int:
    """Return the number of a batch from BATCH_ID's value. Raise OperationalError if Spark did not set it."""
    if told is None or not (told.isascii() and told.isdigit()):
        raise _not_told(BATCH_ID, told)
    return int(told)


def _not_told(name: str, told: str | None) -> OperationalError:
    import pyspark

    what = f"Spark's property {name} is {told!r}: without it no row can be written exactly once, and none was written"
    hint = "write from a streaming query, with a PySpark that Penstock is tested with, or with df.write in foreachBatch"
    return OperationalError(f"{what}. This is PySpark {pyspark.__version__}; {hint}")
