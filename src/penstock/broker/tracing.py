"""Spans of traced messages (W3C Trace Context): one for each step on the way to their acks.

Rules: on the event loop, so nothing here blocks, and untraced messages cost one scan of their read's bytes. A message
is traced if its publisher has set the sampled flag; nothing is sampled here. Spans go to the exporter when the message
is acked, or cannot be acked any more. At most TRACES_OPEN_MAX are open.

    publisher's span
    └─ penstock.append       from the arrival of the read until the batch is written
       ├─ penstock.replicate until committed: the disk and the in-sync replicas have it, as the stream promises
       └─ penstock.ack       until the ack was handed to the connection; missing if the publisher wants no ack

A span that ends with an error belongs to a message that was not acked: it was not stored, or another broker leads now,
and may have it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import LeaderEpoch
from penstock.hot.message_group import MessageGroup
from penstock.hot.traces import are_possible, sampled
from penstock.node.partition.partition import Partition

_TRACED_PER_READ_MAX = 1_000  # per stream and read: so many block the event loop for some 10 ms
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class TraceSpan(NamedTuple):
    """A finished span. Times are µs since 1970 UTC."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    is_remote: bool  # the parent is the publisher's span
    begin_us: int
    end_us: int
    attributes: Mapping[str, str | int]
    error: str = ""


@dataclass(slots=True)
class _Trace:
    """One traced message."""

    partition: Partition
    leader_epoch: LeaderEpoch
    offset: int
    batch_rows: int
    trace_id: int
    parent_id: int
    is_awaited: bool  # the publisher waits for its ack
    begin_us: int
    written_us: int = 0
    committed_us: int = 0
    replicas: int = 0


class Tracing:
    """Traces messages. `export` takes spans and never blocks; `bits` returns that many random bits."""

    def __init__(
        self, export: Callable[[list[TraceSpan]], None], clock: Callable[[], Now], bits: Callable[[int], int]
    ) -> None:
        self.dropped = 0  # messages not traced because of TRACES_OPEN_MAX
        self._export = export
        self._clock = clock
        self._bits = bits
        self._data = b""  # of the last read; several groups share it
        self._may_have_some = False
        self._coming: list[_Trace] = []
        self._waiting: dict[Partition, deque[_Trace]] = {}  # written, ordered by offset
        self._committed: list[_Trace] = []
        self._open_count = 0

    def coming(self, partition: Partition, rows: MessageGroup, arrived_us: int) -> None:
        """Record the traced messages of a group before it is appended; see `Tracer`."""
        if rows.data is not self._data:
            self._data, self._may_have_some = rows.data, are_possible(rows.data)
        if not self._may_have_some:
            return
        now = self._clock()
        begin_us = now.wall_us - max(0, now.elapsed_us - arrived_us)
        log_end, count = partition.log.log_end, len(rows)
        for row, value in sampled(rows, _TRACED_PER_READ_MAX):
            if (found := _TRACEPARENT.fullmatch(value)) is None:
                continue
            if self._open_count >= limits.TRACES_OPEN_MAX:
                self.dropped += 1
                continue
            self._open_count += 1
            is_awaited = rows.reply(row) is not None or rows.early(row) is not None
            ids = int(found[1], 16), int(found[2], 16)
            trace = _Trace(partition, partition.leader_epoch, log_end + row, count, *ids, is_awaited, begin_us)
            self._coming.append(trace)

    def record(self) -> None:
        """Record what is written and what is committed; call before acks are sent."""
        if not self._open_count:
            return
        now_us = self._clock().wall_us
        for trace in self._coming:
            if trace.partition.log.log_end > trace.offset:
                trace.written_us = now_us
                self._waiting.setdefault(trace.partition, deque()).append(trace)
            else:
                self._lost(trace, now_us, "the log did not store it")
        self._coming.clear()
        for partition in list(self._waiting):
            self._look_at(partition, now_us)

    def _look_at(self, partition: Partition, now_us: int) -> None:
        traces, leadership = self._waiting[partition], partition.leadership
        while traces:
            trace = traces[0]
            if trace.offset < partition.committed_end:
                trace.committed_us = now_us
                trace.replicas = 0 if leadership is None else leadership.commit_status(trace.offset + 1).replicas
                self._committed.append(traces.popleft())
            elif leadership is None or leadership.leader_epoch != trace.leader_epoch or partition.when_idle is not None:
                self._lost(traces.popleft(), now_us, "this broker lost the leadership; another one may have it")
            elif now_us - trace.begin_us > limits.TRACE_OPEN_MS * 1_000:
                self._lost(traces.popleft(), now_us, "it was not committed in time")
            else:
                return
        del self._waiting[partition]

    def answered(self) -> None:
        """End the traces of committed messages: their acks are handed to the connection."""
        if not self._committed:
            return
        now_us = self._clock().wall_us
        for trace in self._committed:
            self._end(trace, trace.committed_us, now_us if trace.is_awaited else None)
        self._committed.clear()

    def stop(self) -> None:
        """End all open traces with an error."""
        now_us = self._clock().wall_us
        for trace in (*self._coming, *(one for traces in self._waiting.values() for one in traces)):
            self._lost(trace, now_us, "the broker was stopped")
        self._coming.clear()
        self._waiting.clear()

    def _lost(self, trace: _Trace, now_us: int, why: str) -> None:
        self._end(trace, now_us, None, why)

    def _end(self, trace: _Trace, committed_us: int, acked_us: int | None, error: str = "") -> None:
        self._open_count -= 1
        span_id = self._new_id()
        written_us = trace.written_us or committed_us

        def child(
            name: str, begin_us: int, end_us: int, attributes: Mapping[str, str | int], error: str = ""
        ) -> TraceSpan:
            return TraceSpan(name, trace.trace_id, self._new_id(), span_id, False, begin_us, end_us, attributes, error)

        is_written = bool(trace.written_us)
        of_append = (trace.trace_id, span_id, trace.parent_id, True, trace.begin_us, written_us)
        spans = [TraceSpan("penstock.append", *of_append, _attributes(trace), "" if is_written else error)]
        if is_written:
            in_sync = {"penstock.replicas": trace.replicas} if trace.replicas else {}
            spans.append(child("penstock.replicate", written_us, committed_us, in_sync, error))
        if acked_us is not None:
            spans.append(child("penstock.ack", committed_us, acked_us, {}))
        self._export(spans)

    def _new_id(self) -> int:
        return self._bits(64) or 1  # 0 means no span


def _attributes(trace: _Trace) -> dict[str, str | int]:
    return {
        "messaging.system": "penstock",
        "messaging.destination.name": trace.partition.stream.name,
        "messaging.destination.partition.id": str(trace.partition.key.partition),
        "messaging.batch.message_count": trace.batch_rows,
        "penstock.offset": trace.offset,
        "penstock.leader_epoch": int(trace.leader_epoch),
    }
