"""Append batches that this broker has built to a partition that it leads.

Rules: a batch is checked, and is our own copy (see `log_queries.CheckAppend`). Its caller is answered once it is
committed. A batch that brings its own offsets and timestamps is taken only by a paused stream, which gets no other
messages, and only if the log ends where the batch begins. Offsets and timestamps then rise as always, so readers,
followers and recovery find what they expect: gaps, as compaction makes them.
"""

from __future__ import annotations

from collections.abc import Hashable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.batch import codec
from penstock.batch.codec import LAYOUT, NOBODY, BatchProducer
from penstock.batch.header import MAY_ROLL_UP, BatchHeader, asked_flags
from penstock.commitlog import LogState
from penstock.hot.rows import BatchRows, HeaderRequests
from penstock.node.partition.in_flight import PendingBatch
from penstock.node.partition.log_queries import CheckAppend
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import CODES, not_appended
from penstock.node.partition.row_limit import RowLimit
from penstock.node.step import Step


def append(
    partition: Partition,
    caller: Hashable,
    message: bytearray,
    now: Now,
    step: Step,
    asked: HeaderRequests | None = None,
    producer: BatchProducer = NOBODY,
    flags: int = 0,
    *,
    are_rollups: bool = False,
) -> None:
    """Append our copy of a checked message, whole, whatever its message ids; answer `caller` once it is committed.

    `are_rollups`: all of its rows are rollups of their subjects, also if they are several.
    """
    if (closed := partition.unavailable_reason()) is not None:
        error, reason = closed
        step.reply(caller, RemoteError(CODES[reason], error.description))
        return
    if partition.refuses_new:
        count = codec.read_header(message).count
        if count == 1 and asked is not None:
            are_rollups = asked.has_rollups or asked.rollup_row >= 0
        full = partition.full_error(message, count, step, are_rollups=are_rollups)
        if full is not None:
            step.reply(caller, full)
            return
    base_offset = partition.log.log_end
    timestamp_us = partition.timestamp_us(now)
    header = codec.renumber(
        message,
        base_offset=base_offset,
        timestamp_us=timestamp_us,
        leader_epoch=partition.leader_epoch,
        flags=flags if asked is None else flags | asked_flags(asked),
        producer=producer,
    )
    if not _written(partition, caller, message, header, step):
        return
    if partition.producers is not None:
        partition.producers.appended(header)
    if partition.published is not None:
        partition.published.appended(header)
    if asked is not None and asked.ids and partition.dedup is not None:
        partition.dedup.appended(asked.ids, base_offset, timestamp_us)
    if asked is not None and asked.rollup_row >= 0:
        partition.rollup_at = base_offset + asked.rollup_row
    if header.flags & MAY_ROLL_UP:
        partition.rolled_up_end = header.end_offset
    for table in partition.newcomers:
        ends, text = BatchRows(message, LAYOUT).subjects()
        table.note_column(ends, text, header.count, base_offset)
        table.written()
    if partition.lasts is not None:
        partition.lasts.appended(message, base_offset)
        partition.keep_rows(message)
        if partition.lasts.table.counts and asked is not None and asked.has_rollups:
            partition.lasts = None  # what they replace is counted in it
    _wait(partition, caller, header, now, step)


def append_at(partition: Partition, caller: Hashable, check: CheckAppend, now: Now, step: Step) -> None:
    """Append a checked message with its own offsets and timestamps; answer `caller` once it is committed."""
    refusal = partition.append_at_refusal() or _misplaced(partition, check, now)
    refusal = refusal or partition.full_error(check.message, check.count, step)
    if refusal is not None:
        step.reply(caller, refusal)
        return
    asked = check.asked
    assert asked is not None
    header = codec.restamped(check.message, leader_epoch=partition.leader_epoch, flags=asked_flags(asked))
    if not _written(partition, caller, check.message, header, step):
        return
    if header.flags & MAY_ROLL_UP:
        partition.rolled_up_end = header.end_offset
    if asked.rollup_row >= 0:
        partition.rollup_at = codec.offsets(check.message)[asked.rollup_row]
    partition.newcomers = ()
    partition.dedup = partition.lasts = None  # rebuilt from the log, which has the offsets of the rows
    partition.row_limit = None if partition.row_limit is None else RowLimit(partition.stream.config)
    _wait(partition, caller, header, now, step)


def _misplaced(partition: Partition, check: CheckAppend, now: Now) -> RemoteError | None:
    """Return why a message cannot follow the last one in the log; None if it can."""
    header, log = codec.read_header(check.message), partition.log
    if header.base_offset != log.log_end:
        text = f"nothing was stored: the batch begins at offset {header.base_offset}, and {partition.label} ends at"
        return RemoteError(ErrorCode.OUT_OF_SEQUENCE, f"{text} {log.log_end}", log_end=log.log_end)
    if header.end_offset > limits.APPEND_AT_END_MAX:
        text = f"nothing was stored: offsets go up to {limits.APPEND_AT_END_MAX}, and the batch to {header.end_offset}"
        return RemoteError(ErrorCode.BAD_REQUEST, text)
    if header.min_timestamp_us < log.last_timestamp_us:
        text = (
            f"nothing was stored: the batch begins at {header.min_timestamp_us} µs, before what {partition.label} has"
        )
        return RemoteError(
            ErrorCode.BAD_REQUEST, f"{text}; times never go back", last_timestamp_us=log.last_timestamp_us
        )
    if header.max_timestamp_us > limits.APPEND_AT_TIME_US_MAX:
        text = f"nothing was stored: times go up to {limits.APPEND_AT_TIME_US_MAX} µs, and the batch to"
        return RemoteError(ErrorCode.BAD_REQUEST, f"{text} {header.max_timestamp_us}")
    if not check.may_be_ahead and header.max_timestamp_us > now.wall_us + limits.APPEND_AT_AHEAD_MS * 1_000:
        text = f"nothing was stored: the batch ends at {header.max_timestamp_us} µs, which is in the future"
        text = f"{text}; set may_be_ahead to allow that"
        return RemoteError(ErrorCode.BAD_REQUEST, text, now_us=now.wall_us)
    return None


def _written(partition: Partition, caller: Hashable, message: bytearray, header: BatchHeader, step: Step) -> bool:
    """Write the batch to the log; on failure answer `caller` and return False."""
    try:
        partition.log.append(message, header)
    except OperationalError as error:
        partition.note_refusal(error)
        step.reply(caller, not_appended(error, is_fenced=partition.log.state is LogState.FENCED))
        return False
    partition.impediment = ""
    return True


def _wait(partition: Partition, caller: Hashable, header: BatchHeader, now: Now, step: Step) -> None:
    """Register a written batch as in flight, so that `caller` is answered when it is committed."""
    partition.traffic.stored(header.count, header.size_bytes)
    assert partition.leadership is not None
    partition.leadership.appended(header.end_offset, now.elapsed_us)
    once, begin, end = False if header.producer_id else None, header.base_offset, header.end_offset
    partition.in_flight.add(
        PendingBatch(begin, end, header.size_bytes, header.max_timestamp_us, None, caller, once, now.elapsed_us)
    )
    partition.advance_high_watermark(step)
