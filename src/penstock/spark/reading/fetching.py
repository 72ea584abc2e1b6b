"""In a task: fetches one range of one partition, with the client of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.lake.reading import fetching
from penstock.lake.reading.pieces import Piece
from penstock.lake.reading.typed import Typed
from penstock.spark import brokers
from penstock.spark.options.options import LOSS_ADVICE, SourceOptions


class Fetching(NamedTuple):
    """Parameters of a fetch, the same for all tasks of a query: the brokers, and what is fetched from them."""

    servers: tuple[str, ...]
    what: fetching.Fetching


def fetching_of(
    options: SourceOptions, columns: Sequence[str], advice: str = LOSS_ADVICE, typed: Typed | None = None
) -> Fetching:
    """Return the fetch parameters of a query's tasks."""
    subjects = options.selection.subjects
    what = fetching.Fetching(tuple(columns), subjects, options.fail_on_data_loss, options.timeout_s, advice, typed)
    return Fetching(options.servers, what)


def read(how: Fetching, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece in Spark's schema. Raise DataLossError, or an error of the client."""
    return fetching.read(brokers.client(how.servers, how.what.timeout_s), how.what, piece)
