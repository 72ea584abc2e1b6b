"""Choose what to fetch: whole batches, or only some columns or subjects (projection by the broker).

Rules: whole batches cost the broker almost nothing, but their reader must process every byte. So a reader of all
columns and rows fetches whole batches. A reader that does not need the values, which are most of the bytes, names its
columns. A reader of the values on some subjects names those, as long as few rows match, which each answer shows.
If a broker is too old, or has too many such fetches, the reader fetches whole batches and selects the rows itself.

| wanted                      | fetched                                                                             |
|-----------------------------|-------------------------------------------------------------------------------------|
| all columns, all rows       | whole batches                                                                       |
| columns without `value`     | these and `offset`, and the subject pattern, if there is one                        |
| columns with `value`        | whole batches                                                                       |
| the same, on some subjects  | the columns and the pattern, unless more than SUBJECT_SHARE_MAX of the rows match   |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch
from penstock.batch import projecting
from penstock.client.checks import COLUMNS
from penstock.client.read.filters import Filter
from penstock.messages import FetchResponse

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT_SHARE_MAX = 0.5
"""Share of matching rows above which whole batches are cheaper than having the broker copy the rows."""

_REFUSED = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.OVERLOADED)


class FetchedColumns(NamedTuple):
    """The projection of one fetch. `columns` begins with `offset`, which is used to verify the answer."""

    columns: tuple[str, ...]
    subjects: tuple[str, ...] | None


class ProjectedFetches:
    """Chooses the projection of each fetch of one partition. `columns`, `where`: what the reader wants."""

    def __init__(self, columns: Sequence[str] | None, where: Filter | None) -> None:
        wanted = COLUMNS if columns is None else columns
        subjects = None
        if where is not None:
            subjects = where.subjects
            wanted = (*wanted, *where.columns)
        self._asked = FetchedColumns(tuple(dict.fromkeys(("offset", *wanted))), subjects)
        self._has_values = "value" in self._asked.columns
        self._share = 0.0
        self._refused_epoch: LeaderEpoch | None = None  # of the last row read when a broker was too old

    def next(self, leader_epoch: LeaderEpoch) -> FetchedColumns | None:
        """Return the projection of the next fetch; None: whole batches. `leader_epoch`: that of the last row read."""
        if self._refused_epoch == leader_epoch:
            return None
        if not self._has_values:
            return self._asked
        return self._asked if self._asked.subjects is not None and self._share <= SUBJECT_SHARE_MAX else None

    def is_refused(self, error: RemoteError, leader_epoch: LeaderEpoch) -> bool:
        """True if the error only means that whole batches must be fetched now."""
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            self._refused_epoch = leader_epoch
        return error.code in _REFUSED

    def matched(self, rows: int, of_rows: int) -> None:
        """Record how many of the rows examined, here or by the broker, match."""
        self._share = rows / max(1, of_rows)


def batches_of(
    raw: bytes | memoryview, response: FetchResponse, asked: FetchedColumns, wanted: tuple[int, int], *, source: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a projected answer in the requested columns; all lie in `wanted`, no batch is empty.

    CorruptionError if the answer is anything else.
    """
    start, end = wanted[0], min(wanted[1], response.end_offset)
    for batch in projecting.from_stream(raw, response.raw_crc, projecting.schema_of(asked.columns), source=source):
        offsets = batch.column(0)
        projecting.check_offsets(offsets, (start, end), source=source)
        start = offsets[-1].as_py() + 1
        yield batch
