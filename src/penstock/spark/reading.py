"""`penstock.spark.read`: a stream as an ordinary DataFrame, of which no more is fetched than was asked for.

Rules: what is wrong is said here, before Spark has tasks; all mistakes are reported together. The DataFrame is that of
`format("penstock")` with options: whatever Spark is asked of it later, the same messages are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.base.errors import ConfigError
from penstock.spark.options import source_options
from penstock.spark.where import Where, where_text

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
    """Read messages of a stream, names with commas between, or a pattern as `orders-*`; without one: by `subject`.

    `where` says which messages, by `offset`, `partition`, `subject` and `timestamp`: others are not fetched. All
    conditions hold at once, and a range is (FROM, TO), without TO; None: no bound. A timestamp is a datetime with its
    zone, milliseconds since 1970, or text as `2026-11-20T10:00:00Z`. `columns`: those that are fetched; none: all but
    headers. `options` are others of `format("penstock")`.

    The DataFrame stays what the log held at its first action. What Spark filters and selects later is fetched all the
    same. ConfigError: a condition on another column, and every other mistake in what was given.
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
