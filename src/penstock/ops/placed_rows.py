"""Shared by restore, copy and import: rows are put at their original offsets, and compared afterwards.

Rules: retention and compaction of the target are off until all rows are put and compared; see `limits_off`. The
comparison uses the checksums that replicas are verified with: those that the leader computes, and those of the
source's rows.

Rows whose time is in the future, because a clock was ahead when they were stored, keep it, or get the current time
(`FutureTimes`). A run that continues an interrupted one uses the same time as the interrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError, PenstockError
from penstock.base.ids import PartitionId
from penstock.base.units import counted, format_duration_ms, parse_duration_ms, utc_text

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
_RETENTION = {"max_age_ms": 1, "max_messages": 2, "max_bytes": 4}  # → its bit in the mark of `suspended`
_COMPACT = 8
_SUSPENDED = 1 << 52  # more than any stream reaches, and twice that is still a valid limit
_MARK, _MARK_SHIFT = 0x15E, 44  # highest bits of a marked `compaction_lag_ms`: more than 100,000 years
_FLAG_BITS = 4
_LAG_MS_MAX = (1 << (_MARK_SHIFT - _FLAG_BITS)) - 1  # 34 years; more is lowered to it, and only after a killed run

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
    """Return `config` with retention and compaction off, from which `resumed` finds its limits again.

    The limits are in the config of the target itself, so that they survive a run that is killed: each is increased by
    2^52. `compaction_lag_ms` is the mark: it says which fields were changed, and has the lag. Without limits nothing is
    changed. A limit of 2^52 or more deletes nothing, and stays.
    """
    flags, lag_ms = _mark(config) or (0, min(config.compaction_lag_ms, _LAG_MS_MAX))
    changes: dict[str, Any] = {}
    for field, flag in _RETENTION.items():
        if (value := getattr(config, field)) is not None and value < _SUSPENDED:
            changes[field] = value + _SUSPENDED
            flags |= flag
    if config.compact:
        changes["compact"] = False
        flags |= _COMPACT
    if changes:
        changes["compaction_lag_ms"] = (((_MARK << (_MARK_SHIFT - _FLAG_BITS)) | lag_ms) << _FLAG_BITS) | flags
    return msgspec.structs.replace(config, **changes)


def resumed(config: StreamConfig, likely: StreamConfig | None = None) -> StreamConfig:
    """Return `config` with the limits that `suspended` has turned off, if it has; those of `likely` if it is that.

    Someone may have altered the mark away meanwhile: then limits are known as suspended only by `likely`.
    """
    if (mark := _mark(config)) is None:
        return config if likely is None else _unmarked(config, likely)
    flags, lag_ms = mark
    changes: dict[str, Any] = {"compaction_lag_ms": lag_ms}
    for field, flag in _RETENTION.items():
        if (value := getattr(config, field)) is not None and flags & flag and value > _SUSPENDED:
            changes[field] = value - _SUSPENDED
    if flags & _COMPACT:
        changes["compact"] = True
    if likely is not None and not limit_changes(suspended(likely), config):
        changes["compaction_lag_ms"] = likely.compaction_lag_ms
    return msgspec.structs.replace(config, **changes)


def _unmarked(config: StreamConfig, likely: StreamConfig) -> StreamConfig:
    changes = {
        field: limit
        for field in _RETENTION
        if (limit := getattr(likely, field)) is not None and getattr(config, field) == limit + _SUSPENDED
    }
    if changes:
        changes["compact"] = likely.compact
    return msgspec.structs.replace(config, **changes)


def is_suspended(config: StreamConfig) -> bool:
    """True if `suspended` has turned off limits: a run is under way, or was killed."""
    return _mark(config) is not None


def _mark(config: StreamConfig) -> tuple[int, int] | None:
    """Return flags and `compaction_lag_ms` of a suspended config; None for others."""
    value = config.compaction_lag_ms
    if value >> _MARK_SHIFT != _MARK:
        return None
    return value & ((1 << _FLAG_BITS) - 1), (value >> _FLAG_BITS) & _LAG_MS_MAX


def suspended_note(config: StreamConfig) -> str | None:
    """Return a note about limits that are off, with the command that sets them; None if none are suspended."""
    if not is_suspended(config):
        return None
    wanted, flags = resumed(config), []
    if wanted.max_age_ms is not None:
        flags.append(f"--max-age {_duration_text(wanted.max_age_ms)}")
    if wanted.max_messages is not None:
        flags.append(f"--max-messages {wanted.max_messages}")
    if wanted.max_bytes is not None:
        flags.append(f"--max-bytes {wanted.max_bytes}")
    if wanted.compact:
        flags.append("--compact yes")
    flags.append(f"--compaction-lag {_duration_text(wanted.compaction_lag_ms)}")
    text = f"note: stream {config.name} has its limits off, because a copy or restore into it is not complete"
    return f"{text}: run that again, or `penstock stream alter {config.name} {' '.join(flags)}`"


def _duration_text(duration_ms: int) -> str:
    """Return an exact text without spaces."""
    text = format_duration_ms(duration_ms)
    return text if " " not in text and parse_duration_ms(text) == duration_ms else f"{duration_ms}ms"


@contextmanager
def limits_off(
    client: Client, info: StreamInfo, wanted: StreamConfig, timeout_s: float, progress: Progress
) -> Iterator[None]:
    """Suspend retention and compaction of stream `info` meanwhile; then it gets those of `wanted`.

    After a failure it gets those that it had; what was suspended before stays so, and a note says that. What someone
    else alters meanwhile stays.
    """
    had, off = info.config, suspended(info.config)
    if changes := limit_changes(had, off):
        client.alter_stream(info, timeout=timeout_s, **changes)
    after = had
    try:
        yield
        after = wanted
        _put_back(client, info, off, wanted, timeout_s)
    except BaseException:
        with suppress(PenstockError):
            if after is had:
                _put_back(client, info, off, had, timeout_s)
                off = had
        if note := suspended_note(off):
            progress.note(note)
        raise


def _put_back(client: Client, info: StreamInfo, off: StreamConfig, wanted: StreamConfig, timeout_s: float) -> None:
    """Alter the limits from `off` to `wanted`, except those that someone else has altered since."""
    if not (changes := limit_changes(off, wanted)):
        return
    now = client.stream(info.name, timeout=timeout_s)
    if now.stream_id != info.stream_id:
        return  # it was deleted, and this is another one
    if changes := {
        field: value for field, value in changes.items() if getattr(now.config, field) == getattr(off, field)
    }:
        client.alter_stream(info, timeout=timeout_s, **changes)


def limit_changes(before: StreamConfig, after: StreamConfig) -> dict[str, Any]:
    """Return the fields of retention and compaction that differ, with their values in `after`."""
    fields = (*NO_LIMITS, "compaction_lag_ms")
    return {field: getattr(after, field) for field in fields if getattr(before, field) != getattr(after, field)}


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
    client: Client, info: StreamInfo, partition: int, expected: RangeSums, begin: int, end: int, *, what: str
) -> int:
    """Return the count of expected rows in `[begin, end)`. Raise OperationalError if the partition has other rows."""
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
    if wanted != found:
        differs = min(one for one in {*wanted, *found} if wanted.get(one) != found.get(one))
        raise OperationalError(f"stream {info.name} differs from {what} from offset {differs} on")
    return count
