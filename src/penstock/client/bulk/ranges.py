"""Read a bounded offset range of one partition, for programs that split a log among many readers, such as Spark's
tasks.

Rules: the program that splits a log has queried its range; if it passes the leader epoch on, the readers need not query
again. Batches have at least RANGE_BATCH_ROWS_MIN rows, except the last one, however small the log's batches and the
fetches are, because each batch has a fixed cost in the Python or Java code that follows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset
from penstock.client import aio
from penstock.client.blocking import client as blocking
from penstock.client.checks import wanted_columns
from penstock.client.errors import LogTruncated, OffsetOutOfRange
from penstock.client.link.read_from import LEADER, ReadFrom
from penstock.client.read.batches import OffsetRange
from penstock.client.read.filters import Filter
from penstock.client.read.reading import Reader, ReadPlan, answers, find_place, out_of_range, partition_number
from penstock.messages import FetchRequest, FetchResponse, StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa


class LogRange(NamedTuple):
    """The offsets `[start, end)` of one partition, all committed when the range was made.

    `leader_epoch`: that of the leader that reported the range, so that a reader detects a later truncation; None: each
    reader queries it first, and detects truncations from then on.
    """

    stream: StreamInfo
    partition: int
    start: int
    end: int
    leader_epoch: int | None = None
    read_from: ReadFrom = LEADER  # `FOLLOWERS` relieves the leader


class Joining:
    """Joins small batches by copying; large ones are passed through."""

    def __init__(self, rows_min: int, rows_max: int) -> None:
        if not 1 <= rows_min <= rows_max:
            raise ValueError(f"batches are to have {rows_min} rows at least and {rows_max} at most")
        self._rows_min = rows_min
        self._rows_max = rows_max
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch; yield the batches that are now complete."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows < self._rows_min and self._bytes < limits.RANGE_BATCH_BYTES_MAX:
            return
        joined = self._joined()
        for start in range(0, joined.num_rows, self._rows_max):
            part = joined.slice(start, self._rows_max)
            if start and part.num_rows < self._rows_min:
                yield from self.add(part)
            else:
                yield part

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows."""
        if self._waiting:
            yield self._joined()

    def _joined(self) -> pa.RecordBatch:
        import pyarrow as pa

        waiting, self._waiting = self._waiting, []
        self._rows = self._bytes = 0
        return waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def read_range(
    client: blocking.Client,
    what: LogRange,
    *,
    columns: Sequence[str] | None = None,
    where: Filter | None = None,
    batch_rows_min: int = limits.RANGE_BATCH_ROWS_MIN,
    batch_rows_max: int = limits.READ_BATCH_ROWS_DEFAULT,
    timeout: float = 10.0,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a range in order; errors as for `Client.read`. Batches have at least `batch_rows_min` rows.

    Exceptions are the last batch, and batches of more than RANGE_BATCH_BYTES_MAX (64 MiB).
    """
    joining = Joining(batch_rows_min, batch_rows_max)
    inner = client._client  # noqa: SLF001 (the same client's asyncio API)
    source = answers(lambda: _reader(inner, what, columns, where, batch_rows_max, timeout))
    for batch in client._thread.iterate(source):  # noqa: SLF001 (the same)
        yield from joining.add(batch)
    yield from joining.end()


def agreed_end(
    client: blocking.Client, stream: StreamInfo, partition: int, offset: int, leader_epoch: int, *, timeout: float
) -> int:
    """Return the offset up to which the log agrees with a reader that has read everything before `offset`.

    `leader_epoch`: that of the leader that served the rows. The result is `offset`, unless the log was truncated below
    it or began anew; other rows may have the same offsets since.
    """
    inner = client._client  # noqa: SLF001 (the same client's asyncio API)
    request = FetchRequest(
        stream_id=stream.stream_id,
        partition=partition_number(stream, partition),
        offset=Offset(offset),
        bytes_max=1,
        leader_epoch=LeaderEpoch(leader_epoch),
        columns=("offset",),
    )
    try:
        client._thread.run(inner._link.call(request, FetchResponse, timeout_s=timeout))  # noqa: SLF001
    except LogTruncated as error:
        return min(offset, int(error.details["end_offset"]))
    except OffsetOutOfRange as error:
        return min(offset, int(error.details["committed_end"]))
    return offset


async def read_range_async(
    client: aio.Client,
    what: LogRange,
    *,
    columns: Sequence[str] | None = None,
    where: Filter | None = None,
    batch_rows_min: int = limits.RANGE_BATCH_ROWS_MIN,
    batch_rows_max: int = limits.READ_BATCH_ROWS_DEFAULT,
    timeout: float = 10.0,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the rows of a range like `read_range`, for asyncio."""
    joining = Joining(batch_rows_min, batch_rows_max)
    async with await _reader(client, what, columns, where, batch_rows_max, timeout) as reader:
        while (found := await reader.next_batches()) is not None:
            for batch in found:
                for joined in joining.add(batch):
                    yield joined
    for joined in joining.end():
        yield joined


async def _reader(
    client: aio.Client,
    what: LogRange,
    columns: Sequence[str] | None,
    where: Filter | None,
    batch_rows_max: int,
    timeout_s: float,
) -> Reader:
    link = client._link  # noqa: SLF001 (the same client)
    link.learn(what.stream)
    stream, number = what.stream, partition_number(what.stream, what.partition)
    epoch = what.leader_epoch
    if epoch is None:
        place = await find_place(link, stream.stream_id, number, what.start, timeout_s)
        if what.end > place.committed_end:
            raise out_of_range(what.end, place.log_start, place.committed_end)
        epoch = place.leader_epoch
    bounds = OffsetRange(what.start, what.end)
    plan = ReadPlan(stream.stream_id, stream.name, number, bounds, LeaderEpoch(epoch), False, False)
    return Reader(
        link,
        [plan],
        batch_rows_max=batch_rows_max,
        columns=wanted_columns(columns),
        timeout_s=timeout_s,
        where=where,
        read_from=what.read_from,
    )
