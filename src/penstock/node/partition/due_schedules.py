"""Finds the schedules of a led log whose time has come, in a disk thread, and makes the messages that they send.

Rules: only what is committed, decided on and shown is a schedule, so one whose message is in the log is none any more.
It is sent if it is the last message of its subject, whatever has become of later ones. Schedules are rollups of their
subjects, so only batches that may have rollups are read, each once when it is new and again when the first schedule of
its block of offsets is due, unless that is noted (`expiry_blocks`). A round reads and sends a bounded amount, and says
that it was cut. Nothing is known after a restart or in another leadership, so all is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch import codec
from penstock.batch.codec import Buffer
from penstock.batch.header import MAY_ROLL_UP, BatchHeader
from penstock.commitlog import LogView, SubjectQueries, rows_at
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import HeaderRequests
from penstock.ingest.schedules import (
    REFUSALS,
    Schedule,
    ScheduleRules,
    due_us_of,
    fields_of,
    is_plain,
    parsed,
    refusal,
    sent_headers,
)
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.expiry_blocks import Block, ExpiryBlocks, Nearest, NextRows
from penstock.node.partition.log_queries import Query

if TYPE_CHECKING:
    import pyarrow as pa

_LINE = b"\r\nNats-Schedule:"


class Content(NamedTuple):
    """The parts of a message beside its subject."""

    key: bytes | None
    value: bytes | None
    headers: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of it in memory, about, and in the log."""
        return len(self.key or b"") + len(self.value or b"") + len(self.headers)


class DueMessage(NamedTuple):
    """A message to send: the offset and the subject of its schedule, and the content."""

    offset: int
    scheduler: bytes
    schedule: Schedule
    content: Content


class ScheduledBatch(NamedTuple):
    """A batch of messages to append, and what its headers ask for."""

    data: bytearray
    asked: HeaderRequests


class FindDue(Query):
    """Reads what is new in a log below `end`, and finds the schedules that are due: `due`, by offset, and `batch` of
    what they send. Call `settle` once that is written.

    `view`: what readers are shown, to the end of the log, `log_end`. `void`: schedules that are not sent, in this and
    later rounds: something came on their subjects, or what is stored there cannot be sent, such as one whose target the
    stream has no more, which `unsent` tells.
    """

    def __init__(
        self, view: LogView, blocks: ExpiryBlocks, end: int, now_us: int, rules: ScheduleRules, void: RowSet
    ) -> None:
        super().__init__(view)
        self.log_end = view.log_end
        self.due: list[DueMessage] = []
        self.batch: ScheduledBatch | None = None  # of all `due`, made here as that takes long
        self.is_cut = False  # there is more to read, or to send
        self.unsent = ""
        self._blocks, self._end, self._now_us, self._rules = blocks, end, now_us, rules
        self.void = void
        self._hidden = (view.hidden or NONE) | void
        self._bytes_max = limits.SCHEDULES_BYTES_AT_ONCE
        self._size_bytes = 0  # of the content of `due`
        self._looked_at: list[tuple[Block, NextRows]] = []
        self._void: list[int] = []

    def run(self) -> None:
        """Raise RemoteError, CorruptionError, OSError or QueryGivenUpError."""
        self._learn()
        self._bytes_max += self.looked_bytes  # new rows must not keep old ones from being sent
        for block in self._blocks.due(self._now_us, self._view.log_start):
            if self._is_full() or self.looked_bytes >= self._bytes_max:
                self.is_cut = True
                break
            next_rows = self._take_noted(block) or self._take(block)
            if next_rows is None:
                self.is_cut = True  # the next round skips what is hidden by then
                break
            self._looked_at.append((block, next_rows))
        self.due = self._fitting(self._take_sources(self._current()))
        self.void |= RowSet.of(sorted(self._void))
        if self.due:
            self.batch = scheduled_batch(self.due)

    def settle(self) -> None:
        """Note when the blocks that were looked at are due next: what was found is sent."""
        for block, next_rows in self._looked_at:
            self._blocks.looked(block.begin, next_rows)
        self._blocks.settle()

    def _is_full(self) -> bool:
        return len(self.due) >= limits.SCHEDULED_ROWS_AT_ONCE or self._size_bytes >= limits.SCHEDULED_BYTES_AT_ONCE

    # New schedules

    def _learn(self) -> None:
        """Read when the schedules behind `known_end` are due."""
        blocks = self._blocks
        begin = max(blocks.known_end, self._view.log_start)
        end = min(self._end, begin + limits.SCHEDULES_OFFSETS_AT_ONCE)
        self.is_cut = end < self._end
        for header, data in self._batches_past_damage(begin, end, self._wants):
            rows = self._rows(header, data, begin, end)
            if dues_us := [due_us for due_us in self._dues_us(rows) if due_us]:
                blocks.add(header.base_offset, min(header.end_offset, end), min(dues_us), header.size_bytes)
            blocks.known_end = min(header.end_offset, end)
            if self.looked_bytes >= self._bytes_max and blocks.known_end < self._end:
                self.is_cut = True
                return
        blocks.known_end = max(end, blocks.known_end)

    def _wants(self, header: BatchHeader) -> bool:
        self._looked(0)
        return bool(header.flags & MAY_ROLL_UP) and self._hidden.first_absent(header.base_offset) < header.end_offset

    def _rows(self, header: BatchHeader, data: Buffer, begin: int, end: int) -> pa.RecordBatch:
        """Return the live rows of a batch that may be schedules."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = codec.check_rows(data, header=header)
        offsets = rows.column("offset")
        is_here = pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end))
        has_line = pc.fill_null(pc.match_substring(rows.column("headers").cast(pa.binary()), _LINE), fill_value=False)
        return rows.filter(pc.and_(is_here, has_line))

    def _dues_us(self, rows: pa.RecordBatch) -> list[int]:
        """Return the times of these rows, 0 of what is no live schedule."""
        found = []
        for offset, block in zip(rows.column("offset").to_pylist(), rows.column("headers").to_pylist(), strict=True):
            found.append(0 if offset in self._hidden else due_us_of(block))
        return found

    # Schedules that are due

    def _take_noted(self, block: Block) -> NextRows | None:
        """Take what is due of a block, if that is noted; return what is next. None: the block is to be read."""
        next_rows = block.next_rows
        over = None if next_rows is None else next_rows.over(self._now_us)
        if next_rows is None or over is None:
            return None
        offsets = [one for one in over if one >= self._view.log_start and one not in self._hidden]
        if len(offsets) > min(limits.EXPIRY_PICKED_ROWS_MAX, limits.SCHEDULED_ROWS_AT_ONCE - len(self.due)):
            return None
        taken = len(self.due)
        for found in rows_at(self._view, offsets, self._looked):
            if found is not None and found.row.subject is not None and found.row.headers is not None:
                row = found.row
                self._add(row.offset, found.row.subject, Content(row.key, row.value, found.row.headers))
        if self._size_bytes > limits.SCHEDULED_BYTES_AT_ONCE and taken:
            del self.due[taken:]  # they are too large for what there is, and have a round of their own
            return None
        return next_rows.after(self._now_us)

    def _add(self, offset: int, scheduler: bytes, content: Content) -> None:
        fields = fields_of(content.headers)
        schedule = parsed(fields)
        if not isinstance(schedule, Schedule) or schedule.due_us > self._now_us:
            return
        if verdict := refusal(schedule, fields, scheduler, self._rules):
            self._void.append(offset)
            self.unsent = f"the schedule at offset {offset} is not sent: {self._why(verdict, schedule)}"
            return
        self.due.append(DueMessage(offset, scheduler, schedule, content))
        self._size_bytes += content.size_bytes

    def _why(self, verdict: int, schedule: Schedule) -> str:
        """Return why a stored schedule cannot be sent."""
        for subject in filter(None, (schedule.target, schedule.source)):
            if is_plain(subject) and not self._rules.stores(subject):
                return f"{subject.decode()!r} is no subject of the stream any more"
        return REFUSALS[verdict][1] if verdict in REFUSALS else "the stream allows no Nats-TTL any more"

    def _take(self, block: Block) -> NextRows | None:
        """Take what is due of a block; return what is next. None: the round is full."""
        import pyarrow as pa
        import pyarrow.compute as pc

        begin, end = max(block.begin, self._view.log_start), block.end
        nearest = Nearest(self._blocks.next_rows_max)
        for header, data in self._batches_past_damage(begin, end, self._wants):
            rows = self._rows(header, data, begin, end)
            dues_us = pa.array(self._dues_us(rows), pa.int64())
            is_later = pc.greater(dues_us, self._now_us)
            nearest.add(dues_us.filter(is_later), rows.column("offset").filter(is_later))
            rows = rows.filter(pc.and_(pc.greater(dues_us, 0), pc.invert(is_later)))
            columns = (rows.column(name).to_pylist() for name in ("offset", "subject", "key", "value", "headers"))
            for offset, subject, key, value, headers in zip(*columns, strict=True):
                if self._is_full():
                    return None
                self._add(offset, subject.encode(), Content(key, value, headers))
        return nearest.finish()

    def _current(self) -> list[DueMessage]:
        """Return those of `due` that are the last messages of their subjects, by offset."""
        if not self.due:
            return []
        queries = SubjectQueries(self._view.as_stored(), self.log_end, self._looked)
        lasts = queries.last_of_many([one.scheduler for one in self.due])
        found = []
        for one, last in sorted(zip(self.due, lasts, strict=True)):
            if last == one.offset:
                found.append(one)
            else:
                self._void.append(one.offset)
        return found

    def _take_sources(self, due: list[DueMessage]) -> list[DueMessage]:
        """Give these the content of the last messages on their sources, where there are any; without those that are
        sent in a later round, as what a round reads is bounded.
        """
        sources = sorted({one.schedule.source for one in due if one.schedule.source})
        if not sources:
            return due
        lasts = SubjectQueries(self._view, self._end, self._looked).last_of_many(sources)
        by_offset = {last: source for source, last in zip(sources, lasts, strict=True) if last >= self._view.log_start}
        contents: dict[bytes, Content] = {}
        read_bytes = 0
        for offset, found in zip(sorted(by_offset), rows_at(self._view, sorted(by_offset), self._looked), strict=False):
            source = by_offset.pop(offset)
            if found is not None and found.row.subject is not None:
                row = found.row
                contents[source] = Content(row.key, row.value, row.headers or b"NATS/1.0\r\n\r\n")
                read_bytes += contents[source].size_bytes
                if read_bytes >= limits.SCHEDULED_BYTES_AT_ONCE:
                    break
        later = {*by_offset.values()}
        return self._first([_with_source(one, contents) for one in due if one.schedule.source not in later], len(due))

    def _first(self, due: list[DueMessage], count: int) -> list[DueMessage]:
        """Return those that one batch takes; the others, of `count` in all, are found again once these are hidden."""
        sizes = accumulate(one.content.size_bytes for one in due)
        taken = [one for one, end in zip(due, sizes, strict=True) if end <= limits.SCHEDULED_BYTES_AT_ONCE] or due[:1]
        if len(taken) < count:
            self.is_cut = True
            self._looked_at = []
        return taken

    def _fitting(self, due: list[DueMessage]) -> list[DueMessage]:
        """Return these with the headers that they are sent with; without those that are too large then."""
        found = []
        for one in due:
            key, value, block = one.content
            headers = sent_headers(block, one.scheduler, one.schedule, self._rules.headers_max(value))
            if headers is not None:
                found.append(one._replace(content=Content(key, value, headers)))
            else:
                self._void.append(one.offset)
                most = f"it would be over the stream's limit of {self._rules.message_bytes_max} bytes"
                self.unsent = f"the schedule at offset {one.offset} is not sent: {most}"
        return found


def _with_source(message: DueMessage, contents: Mapping[bytes, Content]) -> DueMessage:
    content = contents.get(message.schedule.source)
    return message if content is None else message._replace(content=content)


def scheduled_batch(messages: Sequence[DueMessage]) -> ScheduledBatch:
    """Return the batch of what schedules send, in the order of these."""
    group = MessageGroup.of(
        [one.schedule.target for one in messages],
        [one.content.value for one in messages],
        keys=[one.content.key for one in messages],
        headers=[one.content.headers for one in messages],
    )
    data = codec.encode(group, 0, len(messages), base_offset=0, timestamp_us=0, leader_epoch=0)[0]
    has_ttls = any(one.schedule.ttl for one in messages)
    return ScheduledBatch(data, HeaderRequests([], has_ttls=has_ttls, has_rollups=True, rollup_row=-1, is_bad=False))
