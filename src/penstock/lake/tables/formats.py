"""Opens the table of an archive in its format. Packages that a format needs are imported when a table is opened."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow as pa

from penstock.base.errors import ConfigError, OperationalError
from penstock.base.extras import how_to_install
from penstock.lake.tables.table import Table

FORMATS = ("parquet", "delta", "iceberg")


def open_table(root: Path, format: str, columns: pa.Schema | None) -> Table:  # noqa: A002 (Spark's word)
    """Return the table in a folder. `columns`: of its files, including `topic`; None: the table is only read.

    Raise ConfigError if the format is unknown, OperationalError if its package is not installed.
    """
    place = root
    if format == "parquet":
        from penstock.lake.tables.parquet import ParquetTable

        return ParquetTable(place)
    if format == "delta":
        _check_installed("deltalake", "Delta")
        from penstock.lake.tables.delta import DeltaLake

        return DeltaLake(place, columns)
    if format == "iceberg":
        _check_installed("pyiceberg", "Iceberg")
        from penstock.lake.tables.iceberg import IcebergLake

        return IcebergLake(place, columns)
    raise ConfigError([f"format: it is {format!r}; there are {', '.join(FORMATS)}"])


def _check_installed(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise OperationalError(f"{module} is not installed, which {what} needs: {how_to_install('lake')}")
