"""Does what was read agree with what was published? Compared column by column, a batch at a time, by Arrow itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import PenstockError
from penstock.cli.flights import Messages


class Disagreement(PenstockError):  # noqa: N818
    """What came back is not what was published."""


def header_block(key: str | None) -> bytes | None:
    """The header block that an unmodified nats-py sends for `Penstock-Key`."""
    return None if key is None else f"NATS/1.0\r\nPenstock-Key: {key}\r\n\r\n".encode()


class Expected:
    """What was published, as the columns of the log."""

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
        """`batches`, each compared before it is passed on; Disagreement at a difference, or if some are missing."""
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


def busiest_routes(batches: Iterable[pa.RecordBatch], count: int) -> list[tuple[str, str, int, float]]:
    """(origin, destination, flights, mean minutes of delay on arrival) of the routes with most flights."""
    from pyarrow import json

    lines = pa.BufferReader(b"\n".join(value for batch in batches for value in batch.column("value").to_pylist()))
    schema = pa.schema([("origin", pa.string()), ("dest", pa.string()), ("arr_delay", pa.float64())])
    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    flights = json.read_json(lines, parse_options=options)
    routes = flights.group_by(["origin", "dest"]).aggregate([("dest", "count"), ("arr_delay", "mean")])
    order = [("dest_count", "descending"), ("origin", "ascending"), ("dest", "ascending")]
    top = routes.sort_by(order).slice(0, count)
    return [(row["origin"], row["dest"], row["dest_count"], row["arr_delay_mean"] or 0.0) for row in top.to_pylist()]
