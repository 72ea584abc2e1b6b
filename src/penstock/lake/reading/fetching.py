"""Fetches one range of one partition from the brokers as Arrow batches.

Rules: only the requested columns and subjects are fetched. A range whose first messages were deleted from the log is an
error, unless `fail_on_data_loss` is False. Typed columns are built here, where the rows arrive; what they are made from
is fetched only if one of them is requested. Rows that did not decode are counted in a warning for each range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from penstock.base.errors import RemoteError
from penstock.client.blocking.client import Client
from penstock.client.bulk.ranges import LogRange, read_range
from penstock.client.errors import LogTruncated, OffsetOutOfRange, StreamChanged
from penstock.client.link.read_from import FOLLOWERS
from penstock.client.read.filters import Filter
from penstock.lake.reading.columns import RowOrigin, arrow_schema, lake_batch, log_columns
from penstock.lake.reading.data_loss import PARAMETER_ADVICE, DataLossError, check_there, passed_over, warn
from penstock.lake.reading.pieces import Piece
from penstock.lake.reading.positions import Key
from penstock.lake.reading.typed import NEEDED, Typed, TypedColumns
from penstock.schemas.report import DecodeReport


class Fetching(NamedTuple):
    """Parameters of a fetch, the same for all pieces of a query or a batch. `columns`: also those of `typed`."""

    columns: tuple[str, ...]
    subjects: tuple[str, ...]
    fail_on_data_loss: bool
    timeout_s: float
    advice: str = PARAMETER_ADVICE  # of a DataLossError
    typed: Typed | None = None


def read(client: Client, how: Fetching, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece in the schema of `arrow_schema`. Raise DataLossError, or an error of the client."""
    place = RowOrigin(piece.stream, piece.partition)
    if how.typed is not None and (typed := TypedColumns(how.typed)).names_in(how.columns):
        yield from _typed(client, how, piece, typed)
        return
    schema = arrow_schema(how.columns)
    for batch in _rows(client, how, piece, log_columns(how.columns)):
        yield lake_batch(batch, schema, place)


def _typed(client: Client, how: Fetching, piece: Piece, typed: TypedColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece with typed columns, and warn at its end of those that did not decode."""
    report = DecodeReport()
    place = RowOrigin(piece.stream, piece.partition)
    plain = [name for name in how.columns if name not in typed.schema.names]
    schema = arrow_schema(plain)
    for batch in _rows(client, how, piece, list(dict.fromkeys(["offset", *NEEDED, *log_columns(plain)]))):
        made = typed.decode(piece.stream, batch, report)
        yield typed.together(lake_batch(batch, schema, place), made, how.columns)
    say_refused(report, f"stream {piece.stream}, partition {piece.partition}")


def say_refused(report: DecodeReport, where: str) -> None:
    """Warn of values that did not decode."""
    if sentences := report.sentences():
        warn(f"{where}: {'; '.join(sentences)}")


def _rows(client: Client, how: Fetching, piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    info = client.stream(piece.stream, timeout=how.timeout_s)
    key = Key(piece.stream, piece.partition)
    if int(info.stream_id) != piece.stream_id:
        raise DataLossError(f"stream {piece.stream} was deleted and made anew while it was being read")
    where = Filter(subject=how.subjects) if how.subjects else None
    what = LogRange(info, piece.partition, piece.start, piece.end, piece.leader_epoch or None, read_from=FOLLOWERS)
    has_begun = False
    while True:
        try:
            for batch in read_range(client, what, columns=columns, where=where, timeout=how.timeout_s):
                has_begun = True
                yield batch
            return
        except (OffsetOutOfRange, LogTruncated, StreamChanged) as error:
            if has_begun or isinstance(error, StreamChanged):
                # After its first rows an attempt cannot change its range. A stream created again has other messages.
                raise DataLossError(f"{key.stream}, partition {key.partition}: {error}") from error
            start = _where_it_goes_on(key, what, error, how)
            if start >= what.end:
                return
            what = what._replace(start=start, leader_epoch=None)


def _where_it_goes_on(key: Key, what: LogRange, error: RemoteError, how: Fetching) -> int:
    """Return the offset to continue at; the end of the range if nothing is left. Raise DataLossError, or warn."""
    fail, advice = how.fail_on_data_loss, how.advice
    start = check_there(key, what.start, int(error.details["log_start"]), fail=fail, advice=advice)
    if start == what.start:
        passed_over(str(error), fail=fail, advice=advice)
        if what.leader_epoch is None or int(error.details["committed_end"]) < what.end:
            return what.end  # the log holds nothing of the range
    return start
