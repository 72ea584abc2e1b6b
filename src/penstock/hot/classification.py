"""Admission checks per message: which messages of a group become rows.

Rules: rows keep the order of the wire. A message that is not stored is counted here, or returned with its verdict, for
`refusals` to answer. The order of the checks is JetStream's. A message with a known id is a duplicate, returned with
the offset of the first; the id of a message that becomes a row is known from then on.

| verdict         | the message                                                | number                 |
|-----------------|------------------------------------------------------------|------------------------|
| UNSUPPORTED     | has a request header that this version does not know       |                        |
| BAD_ACK         | asks for an ack level that does not exist                  |                        |
| WRONG_SEQUENCE  | expects another last sequence, overall or of its subject   | the last sequence      |
| TOO_LARGE       | is over the stream's max_message_bytes                     | its bytes              |
| HEADERS_LARGE   | is over the limit of headers                               | bytes of its headers   |
| BAD_SUBJECT     | has a subject that the socket API would refuse             |                        |
| BAD_BASE64      | has a key that is not base64                               |                        |
| KEY_LARGE       | has a key over the limit                                   | bytes of its key       |
| WRONG_LAST_ID   | expects another id of the last message                     |                        |
| UNTRACKED       | expects an id in a stream without deduplication            |                        |
| UNKNOWN_LAST    | expects a sequence of its subject that cannot be known     |                        |
| NO_SEQUENCE     | names another subject, and expects no last sequence of it  |                        |
| BAD_EXPECTED    | names no other subject whose last sequence can be expected |                        |
| NO_SCHEDULES …  | is no schedule that can be taken: see `ingest.schedules`   |                        |
| BAD_TTL         | has an invalid time to live                                |                        |
| TTL_DISABLED    | has a time to live, and the stream does not allow it       |                        |
| BAD_ROLLUP      | has an invalid rollup                                      |                        |
| ROLLUP_DISABLED | has a rollup, and the stream does not allow it             |                        |
| BAD_TOMBSTONE   | is a tombstone with a value, or has an invalid mark        |                        |
| COMPETING       | needs one log's state, in a group of competing streams     |                        |
| MISTYPED        | has a value that does not fit the schema of its subject    | its mark in `mistyped` |
| FULL_ROWS       | would exceed the limit in messages                         |                        |
| FULL_BYTES      | would exceed the limit in bytes                            |                        |
| FULL_SUBJECT    | is on a subject that has as many messages as it may        |                        |
| NO_BATCHES      | is of an atomic batch, and the stream does not allow any   |                        |
| BATCH_OUTSIDE   | names an atomic batch in its envelope                      |                        |
| BATCH_LAST_ID   | is of an atomic batch, and expects a last message id       |                        |
| BATCH_SEQUENCE  | expects a sequence that its own batch has changed          |                        |
| NO_COUNTERS     | increments a counter                                       |                        |
| BAD_INCR        | increments a counter by what is no number                  |                        |
| NO_FAST_BATCHES | is of a fast batch, as its reply subject says              |                        |
| CLOSED          | came while nothing is stored                               |                        |
| ELSEWHERE       | is a duplicate of a message in another partition           | sequence of the first  |

Messages in an envelope are checked as if they had come without one. Headers take precedence over the envelope; its
expected offset is checked like an expected sequence, and it has verdicts of its own in `unwrap`. Their pending acks are
kept apart, in the `enveloped` of the rows.

A delivery of a JetStream consumer (reply subject under `$JS.ACK.`) is acked to JetStream, once it is as durable as the
stream promises: an ack that it asks for by header or envelope was for its first publisher, who is not waiting. Its
expectations do not count either: JetStream checked them when it stored the message, and they refer to its sequences.

A JetStream consumer's control messages are no rows: an idle heartbeat and a flow control request have the status 100 in
the first line of their headers, and no payload. A flow control request is answered at once, with an empty message on
its reply subject: otherwise the consumer stalls, and names that subject in its heartbeats. A header may name a subject
of any length, and nats-server closes the connection over a line that is too long: a subject of more than
FLOW_CONTROL_SUBJECT_BYTES_MAX bytes in a header is not answered. Backpressure on the consumer comes from the limit of
memory in flight: at the limit the broker reads nothing, and so answers nothing.
"""

from __future__ import annotations

from operator import sub
from typing import Any

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.subjects import are_plain
from penstock.hot import envelope, envelope_acks, lifetimes, memory, places, subjects, unwrap
from penstock.hot.headers import HeaderFields
from penstock.hot.message_group import MessageGroup
from penstock.hot.message_ids import MessageIds
from penstock.hot.subject_table import SubjectTable
from penstock.hot.unwrap import OpenedEnvelopes

UNSUPPORTED = 1
BAD_ACK = 2
WRONG_SEQUENCE = 3
TOO_LARGE = 4
HEADERS_LARGE = 5
BAD_SUBJECT = 6
BAD_BASE64 = 7
KEY_LARGE = 8
CLOSED = 9
# 10 to 13 are verdicts of `unwrap`.
WRONG_LAST_ID = 14
UNTRACKED = 15
UNKNOWN_LAST = 16
BAD_TTL = 17
TTL_DISABLED = 18
BAD_ROLLUP = 19
ROLLUP_DISABLED = 20
BAD_TOMBSTONE = 21
COMPETING = 22
ELSEWHERE = 23
MISTYPED = 24
FULL_ROWS = 25
FULL_BYTES = 26
FULL_SUBJECT = 27
NO_SEQUENCE = 28
BAD_EXPECTED = 29
NO_SCHEDULES = 30
BAD_SCHEDULE = 31
CRON_SCHEDULE = 32
BAD_TARGET = 33
BAD_SCHEDULE_TTL = 34
BAD_SCHEDULE_ROLLUP = 35
BAD_SOURCE = 36
BAD_SCHEDULER = 37
BAD_TIME_ZONE = 38
NO_BATCHES = 39
BATCH_OUTSIDE = 40
BATCH_LAST_ID = 41
BATCH_SEQUENCE = 42
NO_COUNTERS = 43
BAD_INCR = 44
NO_FAST_BATCHES = 45
SCHEDULE_LARGE = 46
LAST = SCHEDULE_LARGE

REFUSES_BATCHES = 0
TAKES_BATCHES = 1  # apart from this group, in which there is none
IS_BATCH = 2  # this group is one: all of it is stored, or nothing

_DUPLICATE = -1
_UNDECIDED = -2
_UNREAD = -4
_UNCHECKED = -5
_INVALID = lifetimes.INVALID
_OF_SUBJECT = lifetimes.OF_SUBJECT
_OF_ALL = lifetimes.OF_ALL

_LEVEL_ALL = unwrap.ALL
_LEVEL_NONE = unwrap.NONE
_LEVEL_LEADER = unwrap.LEADER
_LEVEL_UNKNOWN = -1

_SUBJECT_TABLE_MAX = limits.SUBJECT_TABLE_MAX
_ROW_BYTES = limits.ROW_BYTES
_HEADER_BLOCK_BYTES_MAX = limits.HEADER_BLOCK_BYTES_MAX
_KEY_BYTES_MAX = limits.KEY_BYTES_MAX
_COOKIE_BYTE = envelope.COOKIE[0]
_ZERO = 0x30
_PLUS = 0x2B
_MINUS = 0x2D
_NONE = b"none"
_LEADER = b"leader"
_ALL = b"all"
_ONE = b"1"
_STATUS = 8  # position of the status in the first line of a header block, `NATS/1.0 STATUS TEXT`
_SPACE = 0x20
_CR = 0x0D
_CONTROL = b"NATS/1.0 100"
_FLOW_CONTROL = b"$JS.FC."
_STALLED = b"\r\nNats-Consumer-Stalled:"
_FLOW_CONTROL_SUBJECT_BYTES_MAX = limits.FLOW_CONTROL_SUBJECT_BYTES_MAX
_CRLF = b"\r\n"
_PUB = b"PUB "
_NOTHING = b" 0\r\n\r\n"
_FAST = b".$FI"  # end of the reply subject of a message of a fast batch
_REFUSES_BATCHES = REFUSES_BATCHES
_IS_BATCH = IS_BATCH


class RefusedMessage:
    """A message that is not stored: its row in the group, its verdict, and if its reply subject gets an answer.

    `enveloped` is the ack record of an enveloped message that gets an answer; see `envelope_acks`. `partition`: that of
    the first message, for ELSEWHERE.
    """

    __slots__ = ("enveloped", "is_answered", "number", "partition", "row", "verdict")

    row: int
    verdict: int
    number: int
    partition: int
    is_answered: bool
    enveloped: bytes | None


class Classified:
    """A checked group: the rows to store, the refused messages, and counts of the rest.

    `group` is the input without envelopes: `refused`, `duplicates`, `elsewhere` name rows of it. The latter two are
    stored already: here at the offset that is their number, or in another partition. `has_ids`, `has_ttls`,
    `has_rollups`: some of the rows may have message ids, times to live, subject rollups. `undelivered`: those of
    `refused` that a JetStream consumer delivers: they are not answered, so it redelivers them. `controls`: the number
    of JetStream heartbeats and flow control requests. `misaddressed`: the first rows that name another stream and ask
    for an ack. `flow_replies`: the answers to the latter, as NATS commands, or
    None. `rollup_row`: the last row that rolls up the whole partition, or -1. With `needs_ids`, `needs_lasts` or
    `needs_schedules` nothing is decided: the caller must first load the log's message ids, or search the last offsets
    of the subjects `unknown`, and count the messages of those of `uncounted`, or check what concerns schedules.
    """

    __slots__ = ("_batches", "_counted_from", "_fields", "_found_counts", "_found_lasts", "_has_envelopes", "_ids",
                 "_is_added", "_key", "_key_end", "_lasts", "_lasts_before", "_log_start", "_mistyped", "_noted",
                 "_number", "_opened", "_partition", "_refuses_subjects", "_room_bytes", "_room_rows", "_schedules",
                 "_subject_max", "_tracks_ids", "allows_rollups", "allows_ttls", "competes", "controls", "duplicates",
                 "elsewhere", "flow_replies", "group", "has_ids", "has_rollups", "has_ttls", "is_only",
                 "misaddressed", "needs_ids", "needs_lasts", "needs_schedules", "other_stream", "refused",
                 "reserved", "rollup_row", "rows", "uncounted", "undelivered", "unknown")  # fmt: skip

    _opened: Any  # None if `_has_envelopes` is False

    def __init__(
        self,
        group: MessageGroup,
        rows: MessageGroup,
        opened: OpenedEnvelopes | None,
        ids: MessageIds | None,
        tracks_ids: bool,
        lasts: SubjectTable | None,
        log_start: int,
    ) -> None:
        self.group = group
        self.rows = rows
        self._opened = opened
        self._has_envelopes = opened is not None
        self._ids = ids
        self._tracks_ids = tracks_ids
        self._lasts = lasts
        self._log_start = log_start
        self._found_lasts: dict[bytes, int] | None = None
        self._is_added = False
        self._mistyped: bytes | None = None
        self._schedules: bytes | None = None  # verdicts on what concerns schedules, of all messages
        self._room_rows = self._room_bytes = -1  # for further rows; -1: any number
        self._subject_max = 0  # number of messages from `_counted_from` on that a subject may have; 0: any
        self._counted_from = 0
        self._refuses_subjects = False  # what a subject may not have is refused; else it takes the place of another
        self._found_counts: dict[bytes, int] | None = None
        self._lasts_before: SubjectTable | None = None  # what has been `_lasts` until a rollup of all
        self._noted = 0  # number of rows that `lasts` includes
        self.needs_lasts = self.needs_schedules = False
        self.unknown: list[bytes] = []
        self.uncounted: list[bytes] = []
        self.duplicates: list[RefusedMessage] = []
        self.elsewhere: list[RefusedMessage] = []
        self.has_ids = self.has_ttls = self.has_rollups = self.needs_ids = False
        self.allows_ttls = self.allows_rollups = self.competes = self.is_only = False
        self.refused: list[RefusedMessage] = []
        self.undelivered: list[RefusedMessage] = []
        self.misaddressed: list[int] = []
        self.other_stream = self.reserved = self.controls = 0
        self.flow_replies: bytearray | None = None
        self.rollup_row = self._key = self._key_end = -1  # the latter two: of the last row checked
        self._number = self._partition = 0  # of the present verdict
        self._batches = _REFUSES_BATCHES

    def take(
        self,
        name: bytes,
        acks_replies: bool,
        message_bytes_max: int,
        skips_reserved: bool,
        log_end: int,
        is_closed: bool,
        acks_envelopes: bool,
    ) -> None:
        """Check each message by itself; see `classify` and `close`."""
        group = self.group
        out = self.rows
        self._fields = fields = HeaderFields()
        text = group.data
        numbers = group.numbers
        looks_at_subjects = is_closed or cython.compiled or not are_plain([*map(group.subject, range(group.count))])
        for row in range(group.count):
            at = row * places.STRIDE
            subject = numbers[at + places.SUBJECT]
            subject_end = numbers[at + places.SUBJECT + 1]
            if skips_reserved and subjects.is_reserved(text, subject, subject_end):
                self.reserved += 1
                continue
            headers = numbers[at + places.HEADERS]
            headers_end = numbers[at + places.HEADERS + 1]
            reply = numbers[at + places.REPLY]
            reply_end = numbers[at + places.REPLY + 1]
            if _has_status(text, headers, headers_end) and self._is_control(row, acks_replies):
                self.controls += 1
                continue
            is_delivery = subjects.is_jetstream_ack(text, reply, reply_end)
            self._read_fields(headers, headers_end, is_delivery)
            if fields.stream >= 0 and self._is_for_another(text, name):
                self.other_stream += 1
                if len(self.misaddressed) < limits.MISADDRESSED_ANSWERED_MAX and reply >= 0 and fields.ack < 0:
                    self.misaddressed.append(row)
                continue
            in_envelope = self._has_envelopes and not is_delivery and self._opened.holds(row)
            level = _LEVEL_ALL if fields.ack < 0 and not in_envelope else self._level(text, row)
            if not (acks_envelopes if in_envelope else acks_replies) or level == _LEVEL_NONE:
                reply = reply_end = -1
            value = numbers[at + places.VALUE]
            value_end = numbers[at + places.VALUE + 1]
            if is_closed:
                verdict = CLOSED
            elif _is_of_fast_batch(text, numbers[at + places.REPLY], numbers[at + places.REPLY + 1]):
                verdict = NO_FAST_BATCHES
            else:
                verdict = self._of_fields(text, row, level, log_end + out.count)
            if verdict == 0:
                verdict = self._of_sizes(row, value_end - value, headers_end - headers, message_bytes_max)
            if verdict == 0 and looks_at_subjects and not subjects.is_plain(text, subject, subject_end):
                verdict = BAD_SUBJECT
            if verdict == 0:
                verdict = self._of_key(group.data, row)
            if verdict == 0 and fields.tombstone >= 0:
                verdict = self._of_tombstone(text, value_end - value)
            if verdict == 0 and self._mistyped is not None:
                verdict = self._of_value(row)
            if verdict == 0 and self._refuses_subjects and (fields.rollup < 0 or fields.rollup_end == fields.rollup):
                verdict = self._of_subject_limit(text, row, log_end + out.count)
            if verdict == 0 and (self._room_rows >= 0 or self._room_bytes >= 0):
                size_bytes = subject_end - subject + headers_end - headers + value_end - value
                verdict = self._of_room(text, row, log_end + out.count, size_bytes)
            if verdict != 0:
                self._turn_away(row, verdict, reply, reply_end)
                continue
            early = early_end = -1
            if reply >= 0 and in_envelope:
                if out.enveloped is None:
                    out.enveloped = bytearray()
                self._keep(out.enveloped, out.count, row, reply, reply_end, level == _LEVEL_LEADER)
                reply = reply_end = -1
            elif reply >= 0 and level == _LEVEL_LEADER:
                early, early_end = reply, reply_end
                reply = reply_end = -1
            self._keep_asked(group.data, log_end + out.count)
            if fields.tombstone >= 0 and fields.tombstone_end > fields.tombstone:
                value = value_end = -1
            out.add(
                subject, subject_end, reply, reply_end, headers, headers_end, value, value_end,
                self._key, self._key_end, early, early_end,
            )  # fmt: skip
            if fields.rollup >= 0 and self._subject_max > 1 and self._lasts is not None:
                self._count_again(group.data, subject, subject_end, log_end)

    def _is_control(self, row: int, answers: bool) -> bool:
        """True if a message with a status is a consumer's control message; with `answers`, record the answer to it."""
        group = self.group
        text = group.data
        at = row * places.STRIDE
        headers, headers_end = group.numbers[at + places.HEADERS], group.numbers[at + places.HEADERS + 1]
        reply, reply_end = group.numbers[at + places.REPLY], group.numbers[at + places.REPLY + 1]
        status_end = headers + len(_CONTROL)
        if (
            group.numbers[at + places.VALUE] != group.numbers[at + places.VALUE + 1]
            or not memory.begins(text, headers, headers_end, _CONTROL)
            or status_end >= headers_end
            or (text[status_end] != _SPACE and text[status_end] != _CR)
        ):
            return False
        if reply >= 0:
            if not _is_flow_control(text, reply, reply_end):
                return False
        else:
            reply = memory.find(text, headers, headers_end, _STALLED, 0, len(_STALLED))
            if reply >= 0:
                reply += len(_STALLED)
                while reply < headers_end and text[reply] == _SPACE:
                    reply += 1
                reply_end = memory.find(text, reply, headers_end, _CRLF, 0, len(_CRLF))
                if reply_end > reply + _FLOW_CONTROL_SUBJECT_BYTES_MAX:  # NATS bounds a reply subject, but not a header
                    reply_end = reply
        if answers and 0 <= reply < reply_end and _is_flow_control(text, reply, reply_end):
            out = self.flow_replies
            if out is None:
                out = self.flow_replies = bytearray()
            memory.append(out, _PUB, 0, len(_PUB))
            memory.append(out, text, reply, reply_end)
            memory.append(out, _NOTHING, 0, len(_NOTHING))
        return True

    def _read_fields(self, headers: int, headers_end: int, is_delivery: bool) -> None:
        """Read the header block of one message; -1: it has none."""
        if headers < 0:
            self._fields.clear()
        else:
            self._fields.read(self.group.data, headers, headers_end)
            if is_delivery:
                self._fields.forget_publisher()

    def _is_for_another(self, text: bytes, name: bytes) -> bool:
        """True if the expected stream has another name; an empty one matches any, as in JetStream."""
        fields = self._fields
        return fields.stream_end > fields.stream and not memory.equals(text, fields.stream, fields.stream_end, name)

    def _of_tombstone(self, text: bytes, value_bytes: int) -> int:
        """Check a tombstone mark: an empty one counts as none; ignoring an invalid one would keep a deleted key."""
        fields = self._fields
        if fields.tombstone_end == fields.tombstone:
            return 0
        says_so = memory.equals(text, fields.tombstone, fields.tombstone_end, _ONE)
        return 0 if says_so and value_bytes == 0 else BAD_TOMBSTONE

    def _of_value(self, row: int) -> int:
        """Return a verdict if the message's value is marked; a tombstone has none."""
        fields = self._fields
        if self._mistyped is None or (fields.tombstone >= 0 and fields.tombstone_end > fields.tombstone):
            return 0
        self._number = self._mistyped[row]
        return MISTYPED if self._number > 0 else 0

    def _of_room(self, text: bytes, row: int, offset: int, size_bytes: int) -> int:
        """Return a verdict if a row does not fit into the log; else it takes room. `size_bytes`: without its key.

        A message on a subject that has as many as it may takes the place of another.
        """
        grows = self._room_rows >= 0
        if grows and self._subject_max > 0:
            at_limit = self._at_limit(text, row, offset)
            if at_limit < 0:
                return _UNREAD if at_limit == _UNREAD else UNKNOWN_LAST
            grows = at_limit == 0
        if grows and self._room_rows == 0:
            return FULL_ROWS
        if self._room_bytes >= 0:
            size_bytes += self._key_end - self._key + _ROW_BYTES
            if size_bytes > self._room_bytes:
                return FULL_BYTES
            self._room_bytes -= size_bytes
        if grows:
            self._room_rows -= 1
        return 0

    def _level(self, text: bytes, row: int) -> int:
        """Return the ack level of a message, from a header or from its envelope."""
        fields = self._fields
        if fields.ack < 0:
            policy: int = self._opened.policy(row)
            return policy
        if memory.equals(text, fields.ack, fields.ack_end, _ALL):
            return _LEVEL_ALL
        if memory.equals(text, fields.ack, fields.ack_end, _LEADER):
            return _LEVEL_LEADER
        return _LEVEL_NONE if memory.equals(text, fields.ack, fields.ack_end, _NONE) else _LEVEL_UNKNOWN

    def _of_fields(self, text: bytes, row: int, level: int, last_sequence: int) -> int:
        fields = self._fields
        verdict: int = self._opened.verdict(row) if self._has_envelopes else 0
        if verdict > 0:
            return verdict
        if fields.unsupported:
            return UNSUPPORTED
        if fields.batch_end > fields.batch >= 0 and self._batches != _IS_BATCH:
            return NO_BATCHES if self._batches == _REFUSES_BATCHES else BATCH_OUTSIDE
        if fields.incr_end > fields.incr >= 0:  # an empty one counts as none, as in JetStream
            return NO_COUNTERS if _is_number(text, fields.incr, fields.incr_end) else BAD_INCR
        if level == _LEVEL_UNKNOWN:
            return BAD_ACK
        if self.competes and self._asks_the_log(row):
            return COMPETING
        if fields.ttl >= 0 and fields.ttl_end > fields.ttl:  # an empty one counts as none, as in JetStream
            verdict = self._of_ttl(text)
            if verdict != 0:
                return verdict
        if fields.subject_sequence >= 0 and fields.subject_sequence_end > fields.subject_sequence:
            verdict = self._of_subject(text, row, last_sequence)
            if verdict != 0:
                return verdict
        elif fields.other_subject >= 0 and fields.other_subject_end > fields.other_subject:
            return NO_SEQUENCE
        expects = fields.sequence >= 0 and fields.sequence_end > fields.sequence
        if (expects and not _says(text, fields.sequence, fields.sequence_end, last_sequence)) or (
            # the last message's sequence is the next offset
            self._has_envelopes and not self._opened.is_expected_at(row, last_sequence)
        ):
            self._number = last_sequence
            return WRONG_SEQUENCE
        if expects and self._batches == _IS_BATCH and self.rows.count > 0:
            return BATCH_SEQUENCE
        verdict = self._of_ids(self.group.data, last_sequence) if fields.id >= 0 or fields.last_id >= 0 else 0
        if verdict == 0 and (fields.is_schedule or fields.ends_schedule):
            verdict = self._of_schedule(row)
        return self._of_rollup(text) if verdict == 0 and fields.rollup >= 0 else verdict

    def _of_schedule(self, row: int) -> int:
        """Return the verdict on a message with headers of JetStream's scheduler."""
        if self._has_envelopes and self._opened.holds(row):
            return UNSUPPORTED if self._fields.is_schedule else 0
        return _UNCHECKED if self._schedules is None else self._schedules[row]

    def _asks_the_log(self, row: int) -> bool:
        """True if the verdict depends on the messages before this one."""
        fields = self._fields
        return (
            fields.id_end > fields.id >= 0
            or fields.last_id_end > fields.last_id >= 0
            or fields.sequence_end > fields.sequence >= 0
            or fields.subject_sequence_end > fields.subject_sequence >= 0
            or (self._has_envelopes and self._opened.expects(row))
        )

    def _of_ttl(self, text: bytes) -> int:
        """Check the message's time to live."""
        found = lifetimes.ttl_s(text, self._fields.ttl, self._fields.ttl_end)
        if found == _INVALID:
            return BAD_TTL
        if found != 0 and not self.allows_ttls:
            return TTL_DISABLED
        self.has_ttls = self.has_ttls or found > 0
        return 0

    def _of_rollup(self, text: bytes) -> int:
        """Check the message's rollup."""
        fields = self._fields
        if fields.rollup_end == fields.rollup:
            return 0  # an empty one counts as none, as in JetStream
        if not self.allows_rollups:
            return ROLLUP_DISABLED
        return BAD_ROLLUP if lifetimes.rollup(text, fields.rollup, fields.rollup_end) == _INVALID else 0

    def _turn_away(self, row: int, verdict: int, reply: int, reply_end: int) -> None:
        """Record a message that does not become a row."""
        if verdict == _UNDECIDED:
            self.needs_ids = True
        elif verdict == _UNREAD:
            self.needs_lasts = True
        elif verdict == _UNCHECKED:
            self.needs_schedules = True
        elif verdict == _DUPLICATE:
            self.duplicates.append(self._refused(row, verdict, reply, reply_end))
        elif verdict == ELSEWHERE:
            self.elsewhere.append(self._refused(row, verdict, reply, reply_end))
        else:
            one = self._refused(row, verdict, reply, reply_end)
            self.refused.append(one)
            if subjects.is_jetstream_ack(self.group.data, reply, reply_end):
                self.undelivered.append(one)

    def _of_subject(self, text: bytes, row: int, offset: int) -> int:
        """Check the expected last sequence of the message's subject, or of the one it names; `offset` would be its own.

        An empty expectation counts as none, as in JetStream. Another partition may have the last message on another
        subject.
        """
        fields = self._fields
        at = row * places.STRIDE + places.SUBJECT
        subject, subject_end = self.group.numbers[at], self.group.numbers[at + 1]
        if fields.other_subject >= 0 and fields.other_subject_end > fields.other_subject:
            subject, subject_end = fields.other_subject, fields.other_subject_end
            if not self.is_only or not subjects.is_plain(text, subject, subject_end):
                return BAD_EXPECTED
        last = self._last(text, subject, subject_end, offset)
        if last == _UNREAD:
            return _UNREAD
        if last < -1:
            return UNKNOWN_LAST
        if last < self._log_start and self._is_added:
            return UNKNOWN_LAST
        if self._batches == _IS_BATCH and last >= offset - self.rows.count:
            return BATCH_SEQUENCE
        self._number = last + 1 if last >= self._log_start else 0
        return 0 if _says(text, fields.subject_sequence, fields.subject_sequence_end, self._number) else WRONG_SEQUENCE

    def _of_subject_limit(self, text: bytes, row: int, offset: int) -> int:
        """Return a verdict if the message's subject has as many messages as it may; `offset` would be its own.

        A rollup is not asked about: it takes the place of those.
        """
        at_limit = self._at_limit(text, row, offset)
        if at_limit < 0:
            return _UNREAD if at_limit == _UNREAD else UNKNOWN_LAST
        return FULL_SUBJECT if at_limit > 0 else 0

    def _at_limit(self, text: bytes, row: int, offset: int) -> int:
        """Return 1 if the message's subject has as many messages below `offset` as it may, else 0.

        -2: the search for them failed; _UNREAD: they are to be searched first.
        """
        if self._subject_max == 1:
            at = row * places.STRIDE + places.SUBJECT
            last = self._last(text, self.group.numbers[at], self.group.numbers[at + 1], offset)
            if last == _UNREAD or last < -1:
                return _UNREAD if last == _UNREAD else -2
            return 1 if last >= self._counted_from else 0
        if self._lasts is None:
            return _UNREAD
        self.note_rows(offset - self.rows.count)
        group = self.group
        at = row * places.STRIDE + places.SUBJECT
        subject, subject_end = group.numbers[at], group.numbers[at + 1]
        number = self._lasts.count(group.data, subject, subject_end)
        if number < 0:
            number = -1 - number
            if self._lasts.known_from > self._counted_from and number < self._subject_max:
                name = memory.copied(text, subject, subject_end)
                if self._found_counts is None or name not in self._found_counts:
                    self.uncounted.append(name)
                    return _UNREAD
                below = self._found_counts[name]
                if below < 0:
                    return -2
                self._lasts.complete(group.data, subject, subject_end, below)
                number += below
        return 1 if number >= self._subject_max else 0

    def _count_again(self, data: bytes, subject: int, subject_end: int, log_end: int) -> None:
        """Count the messages of a subject from its rollup on, which is the last row."""
        fields = self._fields
        if lifetimes.rollup(data, fields.rollup, fields.rollup_end) == _OF_SUBJECT:
            assert self._lasts is not None
            self.note_rows(log_end)
            self._lasts.restart(data, subject, subject_end)

    def _last(self, text: bytes, subject: int, subject_end: int, offset: int) -> int:
        """Return the last offset of a subject below `offset`; below the log start: there is no message.

        -2: the search for it failed; _UNREAD: it is to be searched first.
        """
        if self._lasts is None:
            return _UNREAD
        self.note_rows(offset - self.rows.count)
        last = self._lasts.find(self.group.data, subject, subject_end)
        if last < 0 and self._lasts.known_from > self._log_start and self._lasts_before is None:
            name = memory.copied(text, subject, subject_end)
            if self._found_lasts is None or name not in self._found_lasts:
                self.unknown.append(name)
                return _UNREAD
            last = self._found_lasts[name]
        return last

    def note_rows(self, log_end: int) -> None:
        """Add the rows so far to `lasts`; the log ends at `log_end` before them."""
        if self._lasts is not None and self._noted < self.rows.count:
            self._lasts.note(self.rows, self._noted, self.rows.count, log_end)
            self._noted = self.rows.count

    def _of_ids(self, data: bytes, offset: int) -> int:
        """Check a message that would be at `offset` for a duplicate id, and its expected id of the message before."""
        fields = self._fields
        has_id = fields.id >= 0 and fields.id_end > fields.id
        expects_id = fields.last_id >= 0 and fields.last_id_end > fields.last_id  # an empty one counts as none
        if expects_id and self._batches == _IS_BATCH:
            return BATCH_LAST_ID
        if not self._tracks_ids:
            return UNTRACKED if expects_id else 0
        if self._ids is None:
            return _UNDECIDED if has_id or expects_id else 0
        if has_id:
            self._number = self._ids.find(data, fields.id, fields.id_end)
            if self._number >= 0:
                return _DUPLICATE
            place = self._ids.find_elsewhere(data, fields.id, fields.id_end)
            if place is not None:
                self._partition, self._number = place[0], place[1] + 1
                return ELSEWHERE
            self._number = 0  # reset: other verdicts have no number
        if expects_id and not self._ids.is_of(offset - 1, data, fields.last_id, fields.last_id_end):
            return WRONG_LAST_ID
        return 0

    def _keep_asked(self, data: bytes, offset: int) -> None:
        """Record what the row with this offset asks for: rollup, message id."""
        fields = self._fields
        self.has_rollups = self.has_rollups or (fields.ends_schedule and self.allows_rollups)
        if fields.rollup >= 0:
            found = lifetimes.rollup(data, fields.rollup, fields.rollup_end)
            self.has_rollups = self.has_rollups or found == _OF_SUBJECT
            if found == _OF_ALL:
                self.rollup_row = self.rows.count
                self._counted_from = offset
                if self._subject_max > 1 and self._lasts is not None:
                    self._count_all_again(offset)
        if fields.id >= 0 and fields.id_end > fields.id:
            self.has_ids = True
            if self._ids is not None:
                self._ids.add(data, fields.id, fields.id_end, offset)

    def _count_all_again(self, offset: int) -> None:
        """Count all messages from a rollup on, which would be at that offset: there is none before it any more."""
        assert self._lasts is not None
        self.note_rows(offset - self.rows.count)
        if self._lasts_before is None:
            self._lasts_before = self._lasts
        self._lasts = SubjectTable(_SUBJECT_TABLE_MAX, offset, self._lasts._budget, True)  # noqa: SLF001

    def lasts_since_rollup(self) -> SubjectTable | None:
        """Return a table of what there is from the last rollup of all on; None: that of before goes on."""
        return None if self._lasts_before is None else self._lasts

    def take_back(self, log_end: int) -> None:
        """Undo: nothing was decided, and the rows are not stored."""
        if self._ids is not None:
            self._ids.cut(log_end)
        lasts = self._lasts if self._lasts_before is None else self._lasts_before
        if lasts is not None:
            lasts.take_back()

    def _of_sizes(self, row: int, value_bytes: int, header_bytes: int, message_bytes_max: int) -> int:
        self._number = value_bytes + header_bytes
        if self._has_envelopes:
            self._number += self._opened.key_end(row) - self._opened.key(row)  # an envelope's key is in no header
        if self._number > message_bytes_max:
            return TOO_LARGE
        self._number = header_bytes
        return HEADERS_LARGE if header_bytes > _HEADER_BLOCK_BYTES_MAX else 0

    def _of_key(self, data: bytes, row: int) -> int:
        """Keep the key, if there is one; return a verdict if it is invalid."""
        fields = self._fields
        self._key = self._key_end = -1
        if fields.key >= 0:
            begin = self.rows.keep_key(data, fields.key, fields.key_end)
        elif fields.encoded_key >= 0:
            begin = self.rows.keep_encoded_key(data, fields.encoded_key, fields.encoded_key_end)
            if begin < 0:
                return BAD_BASE64
        elif self._has_envelopes and self._opened.key(row) >= 0:
            begin = self.rows.keep_key(data, self._opened.key(row), self._opened.key_end(row))
        else:
            return 0
        self._key, self._key_end = begin, self.rows.key_bytes()
        self._number = self._key_end - begin
        return KEY_LARGE if self._number > _KEY_BYTES_MAX else 0

    def _keep(self, out: bytearray, kept_row: int, row: int, reply: int, reply_end: int, is_early: bool) -> None:
        """Append the enveloped message's ack record to `out`, as of row `kept_row`."""
        group = self.group
        opened = self._opened
        at = row * places.STRIDE + places.SUBJECT
        envelope_acks.keep(
            out, kept_row, group.data, reply, reply_end, group.numbers[at], group.numbers[at + 1],
            opened.correlation(row), opened.correlation_end(row), is_early, opened.goes_to_inbox(row),
            opened.policy(row),
        )  # fmt: skip

    def _refused(self, row: int, verdict: int, reply: int, reply_end: int) -> RefusedMessage:
        one = RefusedMessage.__new__(RefusedMessage)  # without a call into the interpreter when compiled
        one.row = row
        one.verdict = verdict
        one.number = self._number
        one.partition = self._partition
        one.is_answered = reply >= 0
        one.enveloped = None
        if (
            reply >= 0
            and self._has_envelopes
            and self._opened.holds(row)
            and not subjects.is_jetstream_ack(self.group.data, reply, reply_end)
        ):
            record = bytearray()
            self._keep(record, 0, row, reply, reply_end, False)
            one.enveloped = bytes(record)
        return one


def _all_pass(group: MessageGroup, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """Fast path: True if all messages of the group become rows unchanged, as in most groups; then nothing is copied."""
    if not cython.compiled:
        return _all_pass_plain(group, acks_replies, message_bytes_max, skips_reserved)
    text = group.data
    numbers = group.numbers
    for row in range(group.count):
        at = row * places.STRIDE
        size = numbers[at + places.VALUE + 1] - numbers[at + places.VALUE]
        if (
            numbers[at + places.HEADERS] >= 0
            or size > message_bytes_max
            or (numbers[at + places.REPLY] >= 0 and not acks_replies)
            or _is_of_fast_batch(text, numbers[at + places.REPLY], numbers[at + places.REPLY + 1])
            or (size > 0 and text[numbers[at + places.VALUE]] == _COOKIE_BYTE)  # perhaps an envelope
        ):
            return False
        subject = numbers[at + places.SUBJECT]
        subject_end = numbers[at + places.SUBJECT + 1]
        if not subjects.is_plain(text, subject, subject_end):
            return False
        if skips_reserved and subjects.is_reserved(text, subject, subject_end):
            return False
    return True


def _all_pass_plain(group: MessageGroup, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """Return True if the columns and the subjects alone show that all messages become rows unchanged.

    False settles nothing: with an envelope's cookie anywhere, or a stream that keeps no replies or skips reserved
    subjects, `classify` looks at each message.
    """
    if cython.compiled:
        raise NotImplementedError
    numbers = group.numbers
    if (
        envelope.COOKIE in group.data
        or _FAST in group.data
        or not acks_replies
        or skips_reserved
        or max(numbers[places.HEADERS :: places.STRIDE], default=-1) >= 0
    ):
        return False
    sizes = map(sub, numbers[places.VALUE + 1 :: places.STRIDE], numbers[places.VALUE :: places.STRIDE])
    if max(sizes, default=0) > message_bytes_max:
        return False
    begins = numbers[places.SUBJECT :: places.STRIDE]
    ends = numbers[places.SUBJECT + 1 :: places.STRIDE]
    return are_plain([group.data[begin:end] for begin, end in zip(begins, ends, strict=True)])


def classify(
    group: MessageGroup,
    name: bytes,
    acks_replies: bool,
    message_bytes_max: int,
    skips_reserved: bool,
    log_end: int,
    acks_envelopes: bool,
    ids: MessageIds | None,
    tracks_ids: bool,
    lasts: SubjectTable | None,
    log_start: int,
    allows_ttls: bool = False,
    allows_rollups: bool = False,
    competes: bool = False,
    mistyped: bytes | None = None,
    found_lasts: dict[bytes, int] | None = None,
    is_added: bool = False,
    room_rows: int = -1,
    room_bytes: int = -1,
    subject_max: int = 0,
    counted_from: int = 0,
    refuses_subjects: bool = False,
    found_counts: dict[bytes, int] | None = None,
    is_only: bool = True,
    schedules: bytes | None = None,
    batches: int = REFUSES_BATCHES,
) -> Classified:
    """Check `group` for a log from `log_start` to `log_end`, of a stream with this name and these rules.

    `ids` are the log's message ids; None: not loaded yet, or without `tracks_ids` unused. `lasts` are the last offsets
    of its subjects; None: not kept, because no message has needed them. The rows are added to both. `found_lasts`: what
    a search below `lasts` has found; -1: no message, -2: it failed. `is_added`: an older partition may have messages on
    subjects that have none here. `mistyped`: a byte for each message, 0 if its value, without an envelope, fits; None:
    all fit. IndexError: it has another length.
    `room_rows`, `room_bytes`: no more is stored, in the order of arrival, where each row takes ROW_BYTES beside its
    content; -1: any number. `subject_max`: how many messages from `counted_from` on a subject may have, 0: any number.
    A message beyond that is refused with `refuses_subjects`, else it takes the place of another, and needs no room for
    a row. `found_counts`: what was counted below `lasts`; -2: that failed. `is_only`: there is no other partition.
    `schedules`: a verdict for each message, of which those with headers of JetStream's scheduler count; None: they are
    to be checked first. IndexError: it has another length.
    `batches`: REFUSES_BATCHES, TAKES_BATCHES or IS_BATCH; of a batch nothing is added if a message is no row.
    """
    has_room = (room_rows < 0 or group.count <= room_rows) and (
        room_bytes < 0 or len(group.data) + _ROW_BYTES * group.count <= room_bytes
    )
    if (
        mistyped is None
        and has_room
        and not refuses_subjects
        and _all_pass(group, acks_replies, message_bytes_max, skips_reserved)
    ):
        out = Classified(group, group, None, None, False, lasts, log_start)
        out.note_rows(log_end)
        return out
    opened = unwrap.unwrap(group)
    if opened is not None:
        group = opened.group
    out = Classified(group, MessageGroup(group.data), opened, ids, tracks_ids, lasts, log_start)
    out.allows_ttls, out.allows_rollups, out.competes, out.is_only = allows_ttls, allows_rollups, competes, is_only
    out._found_lasts, out._is_added = found_lasts, is_added  # noqa: SLF001 (of its own module)
    if mistyped is not None and len(mistyped) != group.count:
        raise IndexError(f"{len(mistyped)} marks for {group.count} messages")
    if schedules is not None and len(schedules) != group.count:
        raise IndexError(f"{len(schedules)} verdicts for {group.count} messages")
    out._schedules = schedules  # noqa: SLF001
    out._mistyped = mistyped  # noqa: SLF001 (of its own module)
    out._room_rows = -1 if group.count <= room_rows else room_rows  # noqa: SLF001
    out._room_bytes = room_bytes  # noqa: SLF001
    out._subject_max, out._counted_from = subject_max, counted_from  # noqa: SLF001
    out._refuses_subjects, out._found_counts = refuses_subjects, found_counts  # noqa: SLF001
    out._batches = batches  # noqa: SLF001
    out.take(name, acks_replies, message_bytes_max, skips_reserved, log_end, False, acks_envelopes)
    out.note_rows(log_end)
    has_missing = batches == _IS_BATCH and out.rows.count < group.count
    if out.needs_ids or out.needs_lasts or out.needs_schedules or has_missing:
        out.take_back(log_end)
    return out


def close(
    group: MessageGroup, name: bytes, acks_replies: bool, skips_reserved: bool, acks_envelopes: bool
) -> Classified:
    """Refuse all messages for this stream as CLOSED, without further checks."""
    opened = unwrap.unwrap(group)
    if opened is not None:
        group = opened.group
    out = Classified(group, MessageGroup(group.data), opened, None, False, None, 0)
    out.take(name, acks_replies, 0, skips_reserved, 0, True, acks_envelopes)
    return out


def _has_status(text: bytes, begin: int, end: int) -> bool:
    """True if the first line of the header block text[begin:end] has a status; begin -1: there is no block."""
    return begin >= 0 and end - begin > _STATUS and text[begin + _STATUS] == _SPACE


def _is_flow_control(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is a subject on which JetStream expects the answer to a flow control request."""
    return memory.begins(text, begin, end, _FLOW_CONTROL) and subjects.is_plain(text, begin, end)


def _is_of_fast_batch(text: bytes, begin: int, end: int) -> bool:
    """True if the reply subject text[begin:end] is one of JetStream's fast batches; begin -1: there is none."""
    # Numbers, no names: this is asked for every message.
    if end - begin <= 4 or text[end - 1] != 0x49:
        return False
    return memory.begins(text, end - 4, end, _FAST)


def _is_number(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is an integer in decimal digits, with or without a sign."""
    if text[begin] == _PLUS or text[begin] == _MINUS:
        begin += 1
    if begin == end:
        return False
    for at in range(begin, end):  # noqa: SIM110 (a generator is no C loop)
        if not _ZERO <= text[at] < _ZERO + 10:
            return False
    return True


def _says(text: bytes, begin: int, end: int, wanted: int) -> bool:
    """True if the decimal digits text[begin:end] equal `wanted`, leading zeros allowed."""
    if begin == end:
        return False
    while end > begin:
        end -= 1
        if text[end] != _ZERO + wanted % 10:
            return False
        wanted //= 10
    return wanted == 0
