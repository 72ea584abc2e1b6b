"""What `restore` and `stream copy` share: rows put where they were, and compared afterwards.

Rules: what would take rows away meanwhile is off until all is there and compared; see `LATER`. Rows are compared by the
checksums with which replicas are: those that the leader counts, and those of what was to come.

Rows whose time is in the future, because a clock was ahead when they were stored, keep it, or get the time of now
(`FutureTimes`). A run that goes on where an earlier one was interrupted gives the time that the earlier one gave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.ids import PartitionId
from penstock.cli import output
from penstock.cli.failure import say_note

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.base.config import StreamConfig
    from penstock.client.blocking import Client
    from penstock.client.placing import Placer
    from penstock.client.values import Message
    from penstock.commitlog.checksums import RangeSums
    from penstock.messages import StatusResponse, StreamInfo

PUT_TIMEOUT_S = 60.0
_PUT_BYTES = 4 << 20
LATER: dict[str, Any] = {"max_age_ms": None, "max_messages": None, "max_bytes": None, "compact": False}
"""Fields of a config as they are while rows come."""

Batches = Iterator[tuple["pa.RecordBatch", int]]
"""Rows, perhaps none, and up to where they go."""


_AHEAD_US = limits.APPEND_AT_AHEAD_MS * 1_000
_CLOCK_PAGE = "docs/how-to/clock-ahead.md"


class FutureTimes(StrEnum):
    """What rows get whose time is in the future."""

    KEEP = "keep"
    NOW = "now"


FutureTimesOption = Annotated[
    FutureTimes,
    typer.Option(
        "--future-times",
        help="Rows whose time is in the future, because a clock was ahead when they were stored: keep it, or give them "
        "the time of now.",
    ),
]


class RowTimes:
    """What one run does with times in the future, and how many it has seen."""

    def __init__(self, choice: FutureTimes, now_us: int) -> None:
        self._choice = choice
        self._now_us = now_us
        self._rows = 0
        self._last_us = 0

    @classmethod
    def of(cls, choice: FutureTimes, status: StatusResponse) -> RowTimes:
        """By the clock of the broker that has told its status."""
        return cls(choice, time.time_ns() // 1_000 if status.now_us is None else status.now_us)

    @property
    def are_changed(self) -> bool:
        """Whether rows may get another time than they have."""
        return self._choice is FutureTimes.NOW

    def latest_us(self, here_us: int | None = None, source_us: int | None = None) -> int | None:
        """The latest time that rows get; None: any.

        `here_us`, `source_us`: the time of the last row that an earlier run has put, and of the same row where it is
        from. If they differ, the earlier run gave it the time of then.
        """
        if self._choice is FutureTimes.KEEP:
            return None
        if here_us is None or source_us is None:
            return self._now_us
        return here_us if here_us < source_us else max(here_us, self._now_us)

    def are_alike(self, here_us: int, source_us: int) -> bool:
        """Whether a row with that time here may be the one with that time where it is from."""
        return here_us == source_us or (self._choice is FutureTimes.NOW and here_us < source_us)

    def hint(self, here_us: int, source_us: int) -> str:
        """What to add to an error about a row that is not alike, in time alone."""
        if here_us < source_us and source_us > self._now_us:
            return "; if it was begun with --future-times now, give that again"
        return ""

    def limited(self, batches: Batches, latest_us: int | None) -> Batches:
        """The same rows, with times no later than that."""
        if latest_us is None:
            yield from batches
            return
        for rows, end in batches:
            yield with_times_up_to(rows, latest_us), end

    def is_ahead(self, rows: pa.RecordBatch) -> bool:
        """Whether a broker takes them only if it is told that such times are meant."""
        import pyarrow.compute as pc

        return bool(rows.num_rows and pc.max(_as_us(rows)).as_py() > self._now_us + _AHEAD_US // 2)

    def count(self, rows: pa.RecordBatch) -> None:
        """Count those in the future, of rows that are about to be put."""
        import pyarrow.compute as pc

        limit_us = self._now_us + (_AHEAD_US if self._choice is FutureTimes.KEEP else 0)
        if ahead := pc.sum(pc.greater(_as_us(rows), limit_us)).as_py():
            self._rows += ahead
            self._last_us = max(self._last_us, pc.max(_as_us(rows)).as_py())

    def counted(self, batches: Batches) -> Batches:
        """The same; those in the future are counted as they go by."""
        for rows, end in batches:
            self.count(rows)
            yield rows, end

    def say(self, name: str) -> None:
        """Tell how many rows of stream `name` were in the future, if any."""
        from penstock.base.units import utc_text

        if not self._rows:
            return
        what = f"{output.counted(self._rows, 'row')} of stream {name}"
        if self._choice is FutureTimes.NOW:
            say_note(f"note: {what} got the time of now: they had times up to {utc_text(self._last_us)}")
        else:
            text = f"note: {what} have times in the future, up to {utc_text(self._last_us)}"
            say_note(f"{text}: {_CLOCK_PAGE} says what that means, and how to end it")


def with_times_up_to(rows: pa.RecordBatch, latest_us: int) -> pa.RecordBatch:
    """The same rows; those with a later time get this one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows or pc.max(_as_us(rows)).as_py() <= latest_us:
        return rows
    number = rows.schema.get_field_index("timestamp")
    field = rows.schema.field(number)
    times = pc.min_element_wise(_as_us(rows), pa.scalar(latest_us, pa.int64())).cast(field.type)
    return rows.set_column(number, field, times)


def _as_us(rows: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa

    return rows.column("timestamp").cast(pa.int64())


SEALED_NOTE = "note: stream {} gets no max_age: it is of a sealed stream, which keeps all that it has"


def later(config: StreamConfig, *, is_sealed: bool = False) -> dict[str, Any]:
    """What a stream with that config is to get once all is there: of a sealed one, of which nothing goes, nothing."""
    if is_sealed:
        return {}
    return {field: getattr(config, field) for field, value in LATER.items() if getattr(config, field) != value}


def put(placer: Placer, batches: Batches, tell: Callable[[int], None], times: RowTimes) -> None:
    """Put all of it; `tell` hears up to where it is there."""
    for rows, end in _joined(batches):
        placer.put(rows, end, may_be_ahead=times.is_ahead(rows))
        tell(end)


def _joined(batches: Batches) -> Batches:
    """Small batches put together: each is an append, which waits for the disk."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = size = end = 0
    for batch, covered in batches:
        end = covered
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if waiting and (size >= _PUT_BYTES or rows >= limits.BATCH_ROWS_MAX):
            yield pa.concat_batches(waiting), end
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting), end


def last_row(client: Client, info: StreamInfo, partition: int, placer: Placer, timeout: float) -> Message | None:
    """The last row of the placer's partition, behind which there may be a gap; None: it holds none."""
    last, end, width = None, placer.end, 1
    while last is None and placer.start < end:  # how wide the gap is nobody tells
        begin = max(placer.start, end - width)
        for last in client.messages(info, begin, end=end, partition=partition, timeout=timeout):  # noqa: B007
            pass
        end, width = begin, width * 16
    return last


def summed(batches: Batches, sums: RangeSums) -> Batches:
    """The same; their rows are counted in `sums` as they go by."""
    for rows, end in batches:
        if rows.num_rows:
            sums.add(rows)
        yield rows, end


def compare(
    client: Client, info: StreamInfo, partition: int, expected: RangeSums, begin: int, end: int, *, what: str
) -> int:
    """Whether a partition has just the rows that are expected in `[begin, end)`; how many. OperationalError: not so."""
    from penstock.client.verifying import Verifier

    wanted = {int(one.begin): (one.rows, one.crcs) for one in expected.finish()}
    count = sum(rows for rows, _ in wanted.values())
    if info.config.allow_message_ttl or info.config.allow_rollup or begin >= end:
        return count  # of the first two rows go by themselves
    rate, leader = limits.RESTORE_VERIFY_BYTES_PER_S, info.partitions[partition].leader_id
    verifier = Verifier(client, info, PartitionId(partition), rate=rate, timeout_s=PUT_TIMEOUT_S)
    verifier.measure()
    verifier.verify(lambda _: None, (begin, end))
    replica = next((one for one in verifier.replicas if leader in (None, one.broker_id)), verifier.replicas[0])
    if replica.failure:
        raise OperationalError(f"stream {info.name} cannot be compared with {what}: {replica.failure}")
    found = {int(one.begin): (one.rows, tuple(one.crcs)) for one in replica.sums.values() if one.rows}
    if wanted != found:
        differs = min(one for one in {*wanted, *found} if wanted.get(one) != found.get(one))
        raise OperationalError(f"stream {info.name} is not what {what} has, from offset {differs} on")
    return count
