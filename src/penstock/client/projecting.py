"""What a reader asks a broker for: whole batches, or of them only some columns, or some subjects.

Rules: whole batches cost the broker next to nothing, and their reader a look at every byte. So a reader that wants all
columns of all rows asks for those. One that does not want the values, which are the bulk, names its columns. One that
wants the values on some subjects names these, as long as few rows are on them: what share that is, each answer shows.
A broker that is older, or has too many such fetches, is asked for whole batches, and the rest is done here.

| wanted                      | asked for                                                                           |
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
from penstock.client.filters import Filter
from penstock.messages import FetchResponse

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT_SHARE_MAX = 0.5
"""Of the rows: where more of them match, whole batches are cheaper than to have the broker copy the rows."""

_REFUSED = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.OVERLOADED)


class Asked(NamedTuple):
    """What a fetch asked for beside its offset. `columns` begins with `offset`, by which the answer is checked."""

    columns: tuple[str, ...]
    subjects: tuple[str, ...] | None


class Asking:
    """What is asked for of one partition, fetch by fetch. `columns`, `where`: what its reader wants."""

    def __init__(self, columns: Sequence[str] | None, where: Filter | None) -> None:
        wanted = COLUMNS if columns is None else columns
        subjects = None
        if where is not None:
            subjects = where.subjects
            wanted = (*wanted, *where.columns)
        self._asked = Asked(tuple(dict.fromkeys(("offset", *wanted))), subjects)
        self._has_values = "value" in self._asked.columns
        self._share = 0.0
        self._refused_epoch: LeaderEpoch | None = None  # of what was read last when a broker was too old for it

    def next(self, leader_epoch: LeaderEpoch) -> Asked | None:
        """What to ask for, where that is the epoch of what was read last; None: whole batches."""
        if self._refused_epoch == leader_epoch:
            return None
        if not self._has_values:
            return self._asked
        return self._asked if self._asked.subjects is not None and self._share <= SUBJECT_SHARE_MAX else None

    def is_refused(self, error: RemoteError, leader_epoch: LeaderEpoch) -> bool:
        """Whether that says only that whole batches are to be asked for now."""
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            self._refused_epoch = leader_epoch
        return error.code in _REFUSED

    def matched(self, rows: int, of_rows: int) -> None:
        """Of so many rows that were looked at, here or by the broker, so many match."""
        self._share = rows / max(1, of_rows)


def batches_of(
    raw: bytes | memoryview, response: FetchResponse, asked: Asked, wanted: tuple[int, int], *, source: str
) -> Iterator[pa.RecordBatch]:
    """The rows of an answer, in the columns that were asked for; all of them in `wanted`, none of the batches empty.

    CorruptionError if it is anything else.
    """
    start, end = wanted[0], min(wanted[1], response.end_offset)
    for batch in projecting.from_stream(raw, response.raw_crc, projecting.schema_of(asked.columns), source=source):
        offsets = batch.column(0)
        projecting.check_offsets(offsets, (start, end), source=source)
        start = offsets[-1].as_py() + 1
        yield batch
