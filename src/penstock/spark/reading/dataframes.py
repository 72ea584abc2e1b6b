"""`penstock.spark.read`: a stream as a DataFrame, with conditions that limit which messages are fetched.

Rules: all mistakes are reported together, before Spark runs tasks. The DataFrame is that of `format("penstock")` with
options: later operations on it do not change which messages are fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.base.errors import ConfigError
from penstock.spark.options.options import source_options
from penstock.spark.options.where import Where, where_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    stream: str = "",
    *,
    where: Where | None = None,
    columns: Sequence[str] = (),
    servers: str = "",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return messages of streams as a DataFrame.

    `stream`: a name, several names separated by commas, or a pattern such as `orders-*`; if empty, all streams that
    store the condition's `subject`. `where` limits the messages that are fetched, by `offset`, `partition`, `subject`
    and `timestamp`; all conditions must hold. A range is (FROM, TO), and excludes TO; None: no bound. A timestamp is a
    datetime with a time zone, milliseconds since 1970 UTC, or text such as `2026-11-20T10:00:00Z`. `columns`: the
    columns to fetch; default: all but headers. `options`: other options of `format("penstock")`.

    The DataFrame is a snapshot of the log at its first action. Rows and columns that Spark drops later are fetched all
    the same. Raise ConfigError, with all mistakes, if an argument is invalid.
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    ours = {"stream": stream, "columns": ",".join(names), "servers": servers}
    given = dict(options or {}) | {name: text for name, text in ours.items() if text}
    if where:
        try:
            given["where"] = where_text(where)
        except ValueError as error:
            raise ConfigError([f"where: {error}"]) from None
    source_options(given)
    return spark.read.format("penstock").options(**given).load()
