"""Compares the messages that were read with those that were published: by Arrow, one batch and column at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import PenstockError
from penstock.cli.demo.flights import Messages


class Disagreement(PenstockError):  # noqa: N818
    """A message that was read differs from the published one, or two computed results differ."""


def header_block(key: str | None) -> bytes | None:
    """Return the header block that an unmodified nats-py sends for `Penstock-Key`."""
    return None if key is None else f"NATS/1.0\r\nPenstock-Key: {key}\r\n\r\n".encode()


class Expected:
    """The published messages, as columns of the log."""

    def __init__(self, messages: Messages) -> None:
        self.count = len(messages.values)
        self._columns = {
            "offset": pa.array(range(self.count), pa.int64()),
            "subject": pa.array(messages.subjects, pa.string()),
            "key": pa.array([None if key is None else key.encode() for key in messages.keys], pa.binary()),
            "value": pa.array(messages.values, pa.binary()),
            "headers": pa.array([header_block(key) for key in messages.keys], pa.binary()),
        }

    def checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield `batches` after comparing each. Raise Disagreement at a difference, or if messages are missing."""
        position = 0
        last: pa.Scalar | None = None
        for batch in batches:
            for name, column in self._columns.items():
                wanted = column.slice(position, batch.num_rows)
                if not batch.column(name).equals(wanted):
                    raise Disagreement(_difference(name, position, wanted, batch.column(name)))
            times = batch.column("timestamp")
            together = times if last is None else pa.concat_arrays([pa.array([last], times.type), times])
            if pc.any(pc.less(together.slice(1), together.slice(0, len(together) - 1))).as_py():
                raise Disagreement(f"a timestamp steps back between offsets {position} and {position + batch.num_rows}")
            last = times[-1]
            position += batch.num_rows
            yield batch
        if position != self.count:
            raise Disagreement(f"{self.count:,} messages were published and acked, but {position:,} came back")


def _difference(name: str, position: int, wanted: pa.Array, found: pa.Array) -> str:
    for row, (one, other) in enumerate(zip(wanted.to_pylist(), found.to_pylist(), strict=False)):
        if one != other:
            return f"{name} of message {position + row}: {one!r} was published, {other!r} came back"
    return f"more messages came back than were published: {position + len(found):,} of {position + len(wanted):,}"


class FlightRoute(NamedTuple):
    """Count and mean delay of the flights between two airports."""

    origin: str
    destination: str
    flights: int
    delay_min: float | None  # mean arrival delay in minutes; None if no flight has one


class FlightRoutes(NamedTuple):
    """The busiest and the most delayed routes."""

    busiest: list[FlightRoute]
    most_delayed: list[FlightRoute]


def routes_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the routes in the values: `origin`, `dest`, `flights`, `delay`; `delays` counts flights with a delay."""
    from pyarrow import json

    lines = pa.BufferReader(b"\n".join(value for batch in batches for value in batch.column("value").to_pylist()))
    schema = pa.schema([("origin", pa.string()), ("dest", pa.string()), ("arr_delay", pa.float64())])
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    flights = json.read_json(lines, parse_options=options)
    what = [("dest", "count"), ("arr_delay", "mean"), ("arr_delay", "count")]
    found = flights.group_by(["origin", "dest"]).aggregate(what)
    names = {"dest_count": "flights", "arr_delay_mean": "delay", "arr_delay_count": "delays"}
    return found.rename_columns([names.get(name, name) for name in found.column_names])


def busiest_of(routes: pa.Table, count: int) -> list[FlightRoute]:
    """Return the `count` routes with the most flights."""
    return _first(routes, "flights", count)


def most_delayed_of(routes: pa.Table, count: int, flights_min: int) -> list[FlightRoute]:
    """Return the `count` routes with the greatest mean delay, among those with `flights_min` known delays."""
    return _first(routes.filter(pc.greater_equal(routes["delays"], flights_min)), "delay", count)


def _first(routes: pa.Table, by: str, count: int) -> list[FlightRoute]:
    # Ties are ordered by name, so that Spark and Arrow give the same order.
    top = routes.sort_by([(by, "descending"), ("origin", "ascending"), ("dest", "ascending")]).slice(0, count)
    return [FlightRoute(row["origin"], row["dest"], row["flights"], row["delay"]) for row in top.to_pylist()]


def check_equal(what: str, one: tuple[str, list[FlightRoute]], other: tuple[str, list[FlightRoute]]) -> None:
    """Raise Disagreement with the first difference of two results; each is given as (name of its source, routes)."""
    (name, routes), (other_name, other_routes) = one, other
    for place, (route, other_route) in enumerate(zip(routes, other_routes, strict=False), 1):
        if route != other_route:
            raise Disagreement(f"{what}, place {place}: {name} has {tuple(route)}, {other_name} {tuple(other_route)}")
    if len(routes) != len(other_routes):
        raise Disagreement(f"{what}: {name} has {len(routes)} routes, {other_name} {len(other_routes)}")
