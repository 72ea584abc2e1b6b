"""Finds the messages of a led log whose time to live (TTL) is over, in a disk thread, and knows when the next ones go.

Rules: only rows that are committed, and decided on where a limit by subject or rollups hide others, may expire: a row
hides what it replaces before it goes itself. The log is looked at in blocks of offsets, of which the least expiry is
remembered (`expiry_blocks`): each row is read once when it is new, and again when the first row of its block expires,
unless that is noted. Nothing is known after a restart or in another leadership, so all is read again; of batches
without a TTL only the header. One round reads, and finds, a bounded amount, and says that it was cut.

    log   ░░░░░ hidden ░░░░░│ block: 12:00:07 │ block: 12:00:09 │ no TTL │ block: 12:01:00 │ not read yet │ not decided
                                                                                    known_end ─╯              end ─╯

With delete markers (`marker_reason`), a subject whose last message expires gets one, unless that message is a marker
itself. A round finds EXPIRED_SUBJECT_ROWS_AT_ONCE rows at most then, and the subjects of which nothing is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec, masking
from penstock.batch.codec import LAYOUT, Buffer
from penstock.batch.header import MAY_EXPIRE, BatchHeader
from penstock.commitlog import FoundRows, LogView, SubjectQueries, rows_at, subject_rows
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows, HeaderRequests
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.expiry_blocks import Block, ExpiryBlocks, Nearest, NextRows
from penstock.node.partition.log_queries import Query

if TYPE_CHECKING:
    import pyarrow as pa

_S_US = 1_000_000
_MARKER_LINES = r"\r\nNats-Marker-Reason:|\r\nKV-Operation: *PURGE\r\n"
"""A message with one of these is a delete marker, as nats-server decides it. Some clients write no space."""
_is_marker = re.compile(_MARKER_LINES.encode()).search


class ExpiryRules(NamedTuple):
    """Rules by which the messages of a stream expire. Times in µs; 0: there is none."""

    longest_us: int = 0  # no message lives longer, unless it is never to expire
    shortest_us: int = 0  # no time to live of a message is shorter
    marker_us: int = 0  # time to live of a delete marker
    keeps_one: bool = False  # readers are shown one message of each subject at most
    ids_us: int = 0  # message ids count for so long

    @classmethod
    def of(cls, config: StreamConfig) -> ExpiryRules:
        """Return the rules of a stream. Its retention removes old messages, unless they may leave markers."""
        marker_us = config.marker_ttl_ms * 1_000
        if not marker_us:
            return cls()
        keeps_one = config.subject_limit == 1
        # As nats-server: a message that goes before an older marker of its subject does would leave none.
        shortest_us = 0 if keeps_one else marker_us
        ids_us = (config.dedup_window_ms or 0) * 1_000
        return cls((config.max_age_ms or 0) * 1_000, shortest_us, marker_us, keeps_one, ids_us)


class FindExpired(Query):
    """Reads what is new in a log below `end`, and finds what expires now: `found` is to be hidden, `pieces` is the same
    split for marks. Then call `settle`, once it is hidden.

    `view`: what readers are shown, to the end of the log. `emptied`: subjects that have no other message below
    `log_end`, and need a delete marker, with the offset of the last one that expires. `ids_from`: the message ids from
    there on count, so the log start stays below.
    """

    def __init__(self, view: LogView, blocks: ExpiryBlocks, end: int, now_us: int, rules: ExpiryRules) -> None:
        super().__init__(view)
        self.log_end = view.log_end
        self.ids_from = view.log_start
        self.found = NONE
        self.pieces: list[RowSet] = []
        self.emptied: dict[bytes, int] = {}
        self.markers: Markers | None = None  # of all `emptied`, made here as that takes long
        self.is_cut = False  # there is more to read, or to hide
        self._blocks = blocks
        self._end = end
        self._now_us = now_us
        self._rules = rules
        self._hidden = view.hidden or NONE
        self._rows = FoundRows(view.hidden)
        self._bytes_max = limits.EXPIRED_BYTES_AT_ONCE
        self._count = 0  # of the rows found
        self._looked_at: list[tuple[Block, NextRows]] = []
        # by subject: offset of its last row that expires, and whether that row is a marker
        self._lasts: dict[bytes, tuple[int, bool]] = {}

    def run(self) -> None:
        """Raise RemoteError, CorruptionError, OSError or QueryGivenUpError."""
        self._learn()
        self._bytes_max += self.looked_bytes  # new rows must not keep old ones from going
        for block in self._blocks.due(self._now_us, self._view.log_start):
            if self._has_enough():
                self.is_cut = True
                break
            next_rows = self._expire_noted(block) or self._expire(block)
            if next_rows is None:
                self.is_cut = True  # the next round skips what is hidden by then
                break
            self._looked_at.append((block, next_rows))
        self.found = self._rows.finish()
        self.pieces = self.found.split(limits.SURVEY_MARK_BYTES_MAX)
        if self._lasts:
            self.emptied = {subject: self._lasts[subject][0] for subject in self._emptied()}
        if self.emptied:
            self.markers = markers([*self.emptied], self._rules.marker_us)
        if self._rules.longest_us:
            self._find_ids()

    def _find_ids(self) -> None:
        """Find from where on message ids count: a later leader reads them from the log start on."""
        try:
            self.ids_from = self._view.offset_at(self._now_us - self._rules.ids_us, end=self.log_end)
        except RemoteError as error:
            if error.code != ErrorCode.CORRUPT_RANGE:
                raise

    def settle(self) -> None:
        """Note when the blocks that were looked at are due next: what was found is hidden."""
        for block, next_rows in self._looked_at:
            self._blocks.looked(block.begin, next_rows)
        self._blocks.settle()

    @property
    def _rows_max(self) -> int:
        return limits.EXPIRED_SUBJECT_ROWS_AT_ONCE if self._rules.marker_us else limits.EXPIRED_ROWS_AT_ONCE

    def _has_enough(self) -> bool:
        return self._count >= self._rows_max or self.looked_bytes >= self._bytes_max

    # New rows

    def _learn(self) -> None:
        """Read when the rows behind `known_end` expire."""
        blocks, rules = self._blocks, self._rules
        begin = max(blocks.known_end, self._view.log_start)
        end = min(self._end, begin + limits.EXPIRY_OFFSETS_AT_ONCE)
        self.is_cut = end < self._end

        def wants(header: BatchHeader) -> bool:
            self._looked(0)
            if header.flags & MAY_EXPIRE or self._rows.may_have_gaps(header):
                return True
            if rules.longest_us:
                due_us = header.min_timestamp_us + rules.longest_us
                blocks.add(header.base_offset, min(header.end_offset, end), due_us, header.size_bytes)
            return False

        for header, data in self._batches_past_damage(begin, end, wants):
            rows = codec.check_rows(data)
            self._rows.add_gaps(header, rows.column("offset"))
            if (due_us := self._expiries(header, data, rows)[1]) is not None:
                blocks.add(header.base_offset, min(header.end_offset, end), due_us, header.size_bytes)
            blocks.known_end = min(header.end_offset, end)
            if self.looked_bytes >= self._bytes_max and blocks.known_end < self._end:
                self.is_cut = True
                return
        blocks.known_end = max(end, blocks.known_end)

    def _expiries(self, header: BatchHeader, data: Buffer, rows: pa.RecordBatch) -> tuple[pa.Int64Array, int | None]:
        """Return when each row expires, 0 for never, and the least of those of rows that are not hidden."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rules = self._rules
        lifetimes = BatchRows(data, LAYOUT).lifetimes_us(0, rules.shortest_us, rules.longest_us)
        lifetimes_us = pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(lifetimes)])
        is_mortal = pc.greater(lifetimes_us, 0)
        if (shown := masking.shown(rows.column("offset"), self._hidden)) is not None:
            is_mortal = pc.and_(is_mortal, shown)
        expiries_us = pc.if_else(is_mortal, pc.add(rows.column("timestamp").cast(pa.int64()), lifetimes_us), 0)
        return expiries_us, pc.min(expiries_us.filter(is_mortal)).as_py()

    # Rows that expire

    def _expire_noted(self, block: Block) -> NextRows | None:
        """Find the rows of a block that expire now, if all of them are noted; return the next ones.

        None: the block is to be read. Rows whose subjects are asked for are read one by one.
        """
        next_rows = block.next_rows
        over = None if next_rows is None else next_rows.over(self._now_us)
        if next_rows is None or over is None:
            return None
        offsets = [one for one in over if one >= self._view.log_start and one not in self._hidden]
        needs_subjects = bool(self._rules.marker_us)
        if len(offsets) > self._rows_max - self._count or (
            needs_subjects and (len(offsets) > limits.EXPIRY_PICKED_ROWS_MAX or not self._pick(offsets))
        ):
            return None
        self._count += len(offsets)
        self._rows.add(_int64(offsets))
        return next_rows.after(self._now_us)

    def _pick(self, offsets: list[int]) -> bool:
        """Note the subjects of some rows. Return False if some of them are damaged."""
        try:
            for found in rows_at(self._view.hiding(self._hidden), offsets, self._looked):
                if found is not None and (subject := found.row.subject) is not None:
                    is_marker = _is_marker(found.row.headers or b"") is not None
                    self._lasts[subject] = found.row.offset, is_marker
        except RemoteError as error:
            if error.code != ErrorCode.CORRUPT_RANGE:
                raise
            return False
        return True

    def _expire(self, block: Block) -> NextRows | None:
        """Find the rows of a block that expire now; return the next ones. None: the round is full."""
        import pyarrow.compute as pc

        begin, end = max(block.begin, self._view.log_start), block.end
        nearest = Nearest(self._blocks.next_rows_max)

        def wants(header: BatchHeader) -> bool:
            self._looked(0)
            if not (self._rules.longest_us or header.flags & MAY_EXPIRE):
                return False
            return self._hidden.first_absent(header.base_offset) < header.end_offset

        for header, data in self._batches_past_damage(begin, end, wants):
            rows = codec.check_rows(data)
            expiries_us, least_us = self._expiries(header, data, rows)
            if least_us is None:
                continue
            offsets = rows.column("offset")
            is_here = pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end))
            is_later = pc.and_(is_here, pc.greater(expiries_us, self._now_us))
            nearest.add(expiries_us.filter(is_later), offsets.filter(is_later))
            is_over = pc.and_(is_here, pc.and_(pc.greater(expiries_us, 0), pc.less_equal(expiries_us, self._now_us)))
            room = self._rows_max - self._count
            gone = rows.filter(is_over).slice(0, room)
            if gone.num_rows:
                self._count += gone.num_rows
                self._rows.add(gone.column("offset"))
                if self._rules.marker_us:
                    self._note_lasts(gone)
            if gone.num_rows == room:
                return None
        return nearest.finish()

    def _note_lasts(self, gone: pa.RecordBatch) -> None:
        """Note the subjects of some rows: EXPIRED_SUBJECT_ROWS_AT_ONCE at most in a round."""
        import pyarrow as pa
        import pyarrow.compute as pc

        blocks = gone.column("headers").cast(pa.binary())
        is_marker = pc.match_substring_regex(blocks, _MARKER_LINES)
        columns = (gone.column("subject"), gone.column("offset"), pc.fill_null(is_marker, fill_value=False))
        for subject, offset, marker in zip(*(column.to_pylist() for column in columns), strict=True):
            self._lasts[subject.encode()] = offset, marker

    def _emptied(self) -> list[bytes]:
        wanted = [subject for subject, (_, is_marker) in self._lasts.items() if not is_marker]
        if not wanted:
            return []
        if self._rules.keeps_one:  # what is decided on has no other message of the subject
            newer = self._newer()
            return [one for one in wanted if one not in newer]
        left = self._view.hiding(self._hidden | self.found)
        lasts = SubjectQueries(left, self.log_end, self._looked).last_of_many(wanted)
        return [subject for subject, last in zip(wanted, lasts, strict=True) if last < 0]

    def _newer(self) -> set[bytes]:
        """Return which of the subjects have a message that is not decided on yet."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pa.array([one.decode() for one in self._lasts], pa.utf8())
        newer: set[bytes] = set()
        for rows, size_bytes in subject_rows(self._view, self._end, self.log_end):
            self._looked(size_bytes)
            here = rows.column(1).filter(pc.is_in(rows.column(1), value_set=names))
            newer.update(map(str.encode, pc.unique(here).to_pylist()))
        return newer


class Markers(NamedTuple):
    """A batch of delete markers to append, and what its headers ask for."""

    data: bytearray
    asked: HeaderRequests


def markers(subjects: Sequence[bytes], ttl_us: int) -> Markers:
    """Return delete markers, byte for byte those of nats-server: each replaces what is left of its subject."""
    text = f"Nats-Marker-Reason: MaxAge\r\nNats-TTL: {go_duration(ttl_us // _S_US)}\r\nNats-Rollup: sub\r\n"
    block, nothing = f"NATS/1.0\r\n{text}\r\n".encode(), [b""] * len(subjects)
    group = MessageGroup.of(subjects, nothing, headers=[block] * len(subjects))
    data = codec.encode(group, 0, len(subjects), base_offset=0, timestamp_us=0, leader_epoch=0)[0]
    return Markers(data, HeaderRequests([], has_ttls=True, has_rollups=True, rollup_row=-1, is_bad=False))


def _int64(numbers: list[int]) -> pa.Int64Array:
    import pyarrow as pa

    return pa.array(numbers, pa.int64())


def go_duration(seconds: int) -> str:
    """Write whole seconds as Go's `time.Duration.String` does: `1h0m5s`."""
    hours, minutes = seconds // 3_600, seconds // 60 % 60
    text = f"{seconds % 60}s"
    if seconds >= 60:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
