"""Shared by restore, copy and import: rows are put at their original offsets, and compared afterwards.

Rules: deletion in the target is suspended until all rows are put and compared; see `deletion_suspended`. The
comparison uses the checksums that replicas are verified with: those that the leader computes, and those of the
source's rows.

Rows whose time is in the future, because a clock was ahead when they were stored, keep it, or get the current time
(`FutureTimes`). A run that continues an interrupted one uses the same time as the interrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base import limits
from penstock.base.config import SuspendDeletion
from penstock.base.errors import OperationalError
from penstock.base.ids import PartitionId
from penstock.base.units import counted, utc_text

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.base.config import StreamConfig
    from penstock.client.blocking.client import Client
    from penstock.client.bulk.placing import Placer
    from penstock.client.values import Message
    from penstock.commitlog.verify.checksums import RangeSums
    from penstock.messages import StatusResponse, StreamInfo
    from penstock.ops.progress import Progress

PUT_TIMEOUT_S = 60.0
_PUT_BYTES = 4 << 20
NO_LIMITS: dict[str, Any] = {"max_age_ms": None, "max_messages": None, "max_bytes": None, "compact": False}
"""Config fields that delete rows, with their values where no row is deleted."""

Batches = Iterator[tuple["pa.RecordBatch", int]]
"""(rows, perhaps none; end offset that they cover), in order."""


_AHEAD_US = limits.APPEND_AT_AHEAD_MS * 1_000
_CLOCK_PAGE = "docs/how-to/clock-ahead.md"


class FutureTimes(StrEnum):
    """Handling of rows whose time is in the future: they keep it, or get the current time."""

    KEEP = "keep"
    NOW = "now"


class RowTimes:
    """Handles and counts rows with times in the future during one run."""

    def __init__(self, choice: FutureTimes, now_us: int) -> None:
        self._choice = choice
        self._now_us = now_us
        self._rows = 0
        self._last_us = 0

    @classmethod
    def of(cls, choice: FutureTimes, status: StatusResponse) -> RowTimes:
        """Use the clock of the broker that sent `status`; this machine's if an older broker does not report it."""
        return cls(choice, time.time_ns() // 1_000 if status.now_us is None else status.now_us)

    @property
    def are_changed(self) -> bool:
        """True if rows may get another time than they have."""
        return self._choice is FutureTimes.NOW

    def latest_us(self, here_us: int | None = None, source_us: int | None = None) -> int | None:
        """Return the upper limit of row times; None if there is none.

        `here_us` and `source_us` are the times of the last row that an earlier run has put, in the target and in the
        source. If they differ, the earlier run had replaced it by its own current time, and this run keeps that limit.
        """
        if self._choice is FutureTimes.KEEP:
            return None
        if here_us is None or source_us is None:
            return self._now_us
        return here_us if here_us < source_us else max(here_us, self._now_us)

    def are_alike(self, here_us: int, source_us: int) -> bool:
        """True if a row with time `here_us` in the target can be a copy of one with `source_us` in the source."""
        return here_us == source_us or (self._choice is FutureTimes.NOW and here_us < source_us)

    def hint(self, here_us: int, source_us: int) -> str:
        """Return a hint for the error text about rows that differ only in their time."""
        if here_us < source_us and source_us > self._now_us:
            return "; if it was begun with --future-times now, give that again"
        return ""

    def limited(self, batches: Batches, latest_us: int | None) -> Batches:
        """Yield the batches with times lowered to `latest_us`."""
        if latest_us is None:
            yield from batches
            return
        for rows, end in batches:
            yield with_times_up_to(rows, latest_us), end

    def is_ahead(self, rows: pa.RecordBatch) -> bool:
        """True if a broker accepts these times only with the flag `may_be_ahead`."""
        import pyarrow.compute as pc

        return bool(rows.num_rows and pc.max(_as_us(rows)).as_py() > self._now_us + _AHEAD_US // 2)

    def count(self, rows: pa.RecordBatch) -> None:
        """Count the rows with times in the future; called before rows are put."""
        import pyarrow.compute as pc

        limit_us = self._now_us + (_AHEAD_US if self._choice is FutureTimes.KEEP else 0)
        if ahead := pc.sum(pc.greater(_as_us(rows), limit_us)).as_py():
            self._rows += ahead
            self._last_us = max(self._last_us, pc.max(_as_us(rows)).as_py())

    def counted(self, batches: Batches) -> Batches:
        """Yield the batches and count their rows with times in the future."""
        for rows, end in batches:
            self.count(rows)
            yield rows, end

    def tell(self, progress: Progress, name: str) -> None:
        """Note how many rows of stream `name` had times in the future, if any."""
        if not self._rows:
            return
        what = f"{counted(self._rows, 'row')} of stream {name}"
        if self._choice is FutureTimes.NOW:
            progress.note(f"note: {what} got the current time: they had times up to {utc_text(self._last_us)}")
        else:
            text = f"note: {what} have times in the future, up to {utc_text(self._last_us)}"
            progress.note(f"{text}: {_CLOCK_PAGE} says what that means, and how to correct it")


def with_times_up_to(rows: pa.RecordBatch, latest_us: int) -> pa.RecordBatch:
    """Return the rows with later times lowered to `latest_us`."""
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


SEALED_NOTE = "note: stream {} gets no max_age: its source is sealed, and keeps all its messages"


def suspended(config: StreamConfig) -> StreamConfig:
    """Return `config` with deletion suspended by this run, or still by a user: those rows are to be kept everywhere."""
    if config.suspend_deletion is SuspendDeletion.YES:
        return config
    return msgspec.structs.replace(config, suspend_deletion=SuspendDeletion.COPYING)


def create_target(
    client: Client, config: StreamConfig, timeout_s: float, progress: Progress, *, source: str
) -> StreamInfo:
    """Create the stream to fill: paused, deletion suspended. A note says if a user wants that in `source`."""
    from penstock.client.bulk.placing import create_paused

    made = create_paused(client, suspended(config), timeout=timeout_s)
    if config.suspend_deletion is SuspendDeletion.YES:
        text = f"note: deletion stays suspended in stream {made.name}, as it is in {source}"
        progress.note(f"{text}: `penstock stream alter {made.name} --suspend-deletion no` resumes it")
    return made


def shown_config(config: StreamConfig) -> StreamConfig:
    """Return `config` for a stream without consumers yet: with retention `interest` it would show none of its rows."""
    if not config.drops_unwanted:
        return config
    return msgspec.structs.replace(config, retention=msgspec.UNSET, interest_of=msgspec.UNSET)


def restore_retention(client: Client, info: StreamInfo, config: StreamConfig, timeout_s: float) -> None:
    """Give a complete stream the retention of `config`, if `shown_config` left it out."""
    now = client.stream(info.name, timeout=timeout_s)
    if config.drops_unwanted and not now.config.drops_unwanted:
        retention, named = config.retention_policy, config.named_consumers
        if named:
            client.alter_stream(now, retention=retention, interest_of=named, timeout=timeout_s)
        else:
            client.alter_stream(now, retention=retention, timeout=timeout_s)


def unfinished_note(config: StreamConfig) -> str | None:
    """Return a note if a run into the stream is under way, or has not ended well; with the command to give it up."""
    if config.suspend_deletion is not SuspendDeletion.COPYING:
        return None
    text = f"note: deletion is suspended in stream {config.name}: a copy, restore or import into it is not complete"
    return f"{text}; run that again, or `penstock stream alter {config.name} --suspend-deletion no`"


@contextmanager
def unfinished_said(config: StreamConfig, progress: Progress) -> Iterator[None]:
    """After a failure, note that deletion stays suspended in the stream, if it is."""
    try:
        yield
    except BaseException:
        if note := unfinished_note(config):
            progress.note(note)
        raise


@contextmanager
def deletion_suspended(
    client: Client, info: StreamInfo, timeout_s: float, progress: Progress, **changes: Any
) -> Iterator[None]:
    """Suspend deletion in stream `info` meanwhile, and alter `changes`, which therefore delete nothing yet.

    After a failure it stays suspended until another run is complete, and a note says that. What a user has suspended,
    before or meanwhile, stays so.
    """
    from penstock.client.bulk.placing import alter_copied

    known = client.stream(info.name, timeout=timeout_s).config
    try:
        alter_copied(client, info, {**changes, "suspend_deletion": SuspendDeletion.COPYING}, timeout=timeout_s)
        known = suspended(known)
        yield
        alter_copied(client, info, {"suspend_deletion": SuspendDeletion.NO}, timeout=timeout_s)
    except BaseException:
        if note := unfinished_note(known):
            progress.note(note)
        raise


def put(placer: Placer, batches: Batches, tell: Callable[[int], None], times: RowTimes) -> None:
    """Put all batches; call `tell` with the end offset after each."""
    for rows, end in _joined(batches):
        placer.put(rows, end, may_be_ahead=times.is_ahead(rows))
        tell(end)


def _joined(batches: Batches) -> Batches:
    """Merge small batches, because each one put is an append that waits for an fsync."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = size = end = 0
    for batch, covered in batches:
        if batch.num_rows:
            # Not before: a gap at the end has no rows of its own, and belongs to the rows before it.
            if size >= _PUT_BYTES or rows >= limits.BATCH_ROWS_MAX:
                yield pa.concat_batches(waiting), end
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        end = covered
    if waiting:
        yield pa.concat_batches(waiting), end


def last_row(client: Client, info: StreamInfo, partition: int, placer: Placer, timeout: float) -> Message | None:
    """Return the partition's last row, which a gap may follow; None if it has no rows."""
    last, end, width = None, placer.end, 1
    while last is None and placer.start < end:  # the gap's width is unknown, so widen the range until a row is found
        begin = max(placer.start, end - width)
        for last in client.messages(info, begin, end=end, partition=partition, timeout=timeout):  # noqa: B007
            pass
        end, width = begin, width * 16
    return last


def summed(batches: Batches, sums: RangeSums) -> Batches:
    """Yield the batches and add their rows to `sums`."""
    for rows, end in batches:
        if rows.num_rows:
            sums.add(rows)
        yield rows, end


def compare(
    client: Client,
    info: StreamInfo,
    partition: int,
    expected: RangeSums,
    begin: int,
    end: int,
    *,
    what: str,
    may_lack: bool = False,
) -> int:
    """Return the count of expected rows in `[begin, end)`. Raise OperationalError if the partition has other rows.

    `may_lack`: it may have fewer, because of compaction; a range with as many rows as expected must have the same.
    """
    from penstock.client.bulk.verifying import Verifier

    wanted = {int(one.begin): (one.rows, one.crcs) for one in expected.finish()}
    count = sum(rows for rows, _ in wanted.values())
    if info.config.allow_message_ttl or info.config.allow_rollup or begin >= end:
        return count  # not comparable: with a TTL or rollups rows disappear by themselves
    rate, leader = limits.RESTORE_VERIFY_BYTES_PER_S, info.partitions[partition].leader_id
    verifier = Verifier(client, info, PartitionId(partition), rate=rate, timeout_s=PUT_TIMEOUT_S)
    verifier.measure()
    verifier.verify(lambda _: None, (begin, end))
    replica = next((one for one in verifier.replicas if leader in (None, one.broker_id)), verifier.replicas[0])
    if replica.failure:
        raise OperationalError(f"stream {info.name} cannot be compared with {what}: {replica.failure}")
    found = {int(one.begin): (one.rows, tuple(one.crcs)) for one in replica.sums.values() if one.rows}
    differs = {one for one in {*wanted, *found} if wanted.get(one) != found.get(one)}
    if may_lack:
        differs = {one for one in differs if one not in wanted or (one in found and found[one][0] >= wanted[one][0])}
    if differs:
        raise OperationalError(f"stream {info.name} differs from {what} from offset {min(differs)} on")
    return count
