"""Which messages of a group become rows: every check that can be made without a word to anybody.

Rules: rows keep the order of the wire. A message that is not stored is counted here, or handed back with its
verdict, for `refusals` to answer. The order of the checks is JetStream's.

| verdict         | the message                                                | number                 |
|-----------------|------------------------------------------------------------|------------------------|
| UNSUPPORTED     | has a header that asks for what this version does not know |                        |
| BAD_ACK         | asks for an ack level that does not exist                  |                        |
| WRONG_SEQUENCE  | expects another last sequence                              | the last sequence      |
| TOO_LARGE       | is over the stream's max_message_bytes                     | its bytes              |
| HEADERS_LARGE   | has more headers than anybody may                          | bytes of its headers   |
| BAD_SUBJECT     | is on a subject that the socket would refuse               |                        |
| BAD_BASE64      | has a key that is not base64                               |                        |
| KEY_LARGE       | has a key over the limit                                   | bytes of its key       |
| CLOSED          | came while nothing is stored                               |                        |
"""

from __future__ import annotations

from operator import sub

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.subjects import are_plain
from penstock.hot import memory, places, subjects
from penstock.hot.group import Group
from penstock.hot.headers import Fields

UNSUPPORTED = 1
BAD_ACK = 2
WRONG_SEQUENCE = 3
TOO_LARGE = 4
HEADERS_LARGE = 5
BAD_SUBJECT = 6
BAD_BASE64 = 7
KEY_LARGE = 8
CLOSED = 9

_HEADER_BLOCK_BYTES_MAX = limits.HEADER_BLOCK_BYTES_MAX
_KEY_BYTES_MAX = limits.KEY_BYTES_MAX
_ZERO = 0x30
_NONE = b"none"
_LEADER = b"leader"
_ALL = b"all"
_ONE = b"1"


class Refused:
    """One message that is not stored: its row in the group, why, and whether its reply subject is to hear it."""

    __slots__ = ("is_answered", "number", "row", "verdict")

    row: int
    verdict: int
    number: int
    is_answered: bool


class Sorted:
    """What became of a group: the rows to store, who is refused, and how many are not meant for this stream."""

    __slots__ = ("_fields", "_key", "_key_end", "_number", "other_stream", "refused", "reserved", "rows")

    def __init__(self, rows: Group) -> None:
        self.rows = rows
        self.refused: list[Refused] = []
        self.other_stream = 0
        self.reserved = 0
        self._key = self._key_end = -1  # of the row that was looked at last
        self._number = 0  # that goes with its verdict

    def take(
        self,
        group: Group,
        name: bytes,
        acks_replies: bool,
        message_bytes_max: int,
        skips_reserved: bool,
        log_end: int,
        is_closed: bool,
    ) -> None:
        """Look at each message by itself; see `sort` and `close`."""
        out = self.rows
        self._fields = fields = Fields()
        text = group.data
        numbers = group.numbers
        looks_at_subjects = (
            cython.compiled or is_closed or not are_plain([group.subject(row) for row in range(group.count)])
        )
        for row in range(group.count):
            at = row * places.STRIDE
            subject = numbers[at + places.SUBJECT]
            subject_end = numbers[at + places.SUBJECT + 1]
            if skips_reserved and subjects.is_reserved(text, subject, subject_end):
                self.reserved += 1
                continue
            headers = numbers[at + places.HEADERS]
            headers_end = numbers[at + places.HEADERS + 1]
            if headers < 0:
                fields.clear()
            else:
                fields.read(group.data, headers, headers_end)
            if fields.stream >= 0 and not memory.equals(text, fields.stream, fields.stream_end, name):
                self.other_stream += 1
                continue
            reply = numbers[at + places.REPLY]
            reply_end = numbers[at + places.REPLY + 1]
            if not acks_replies or (fields.ack >= 0 and memory.equals(text, fields.ack, fields.ack_end, _NONE)):
                reply = reply_end = -1
            value = numbers[at + places.VALUE]
            value_end = numbers[at + places.VALUE + 1]
            verdict = CLOSED if is_closed else self._of_fields(text, log_end + out.count)
            if verdict == 0:
                verdict = self._of_sizes(value_end - value, headers_end - headers, message_bytes_max)
            if verdict == 0 and looks_at_subjects and not subjects.is_plain(text, subject, subject_end):
                verdict = BAD_SUBJECT
            if verdict == 0:
                verdict = self._of_key(group.data)
            if verdict != 0:
                self.refused.append(_refused(row, verdict, self._number, reply >= 0))
                continue
            early = early_end = -1
            if reply >= 0 and fields.ack >= 0 and memory.equals(text, fields.ack, fields.ack_end, _LEADER):
                early, early_end = reply, reply_end
                reply = reply_end = -1
            is_marked = fields.tombstone >= 0 and memory.equals(text, fields.tombstone, fields.tombstone_end, _ONE)
            if is_marked and value == value_end:
                value = value_end = -1
            out.add(
                subject, subject_end, reply, reply_end, headers, headers_end, value, value_end,
                self._key, self._key_end, early, early_end,
            )  # fmt: skip

    def _of_fields(self, text: bytes, last_sequence: int) -> int:
        fields = self._fields
        if fields.unsupported:
            return UNSUPPORTED
        if fields.ack >= 0 and not _is_level(text, fields.ack, fields.ack_end):
            return BAD_ACK
        if fields.sequence >= 0 and not _says(text, fields.sequence, fields.sequence_end, last_sequence):
            self._number = last_sequence
            return WRONG_SEQUENCE
        return 0

    def _of_sizes(self, value_bytes: int, header_bytes: int, message_bytes_max: int) -> int:
        self._number = value_bytes + header_bytes
        if self._number > message_bytes_max:
            return TOO_LARGE
        self._number = header_bytes
        return HEADERS_LARGE if header_bytes > _HEADER_BLOCK_BYTES_MAX else 0

    def _of_key(self, data: bytes) -> int:
        """Keep the key, if there is one; a verdict if it cannot be."""
        fields = self._fields
        self._key = self._key_end = -1
        if fields.key >= 0:
            begin = self.rows.keep_key(data, fields.key, fields.key_end)
        elif fields.encoded_key >= 0:
            begin = self.rows.keep_encoded_key(data, fields.encoded_key, fields.encoded_key_end)
            if begin < 0:
                return BAD_BASE64
        else:
            return 0
        self._key, self._key_end = begin, self.rows.key_bytes()
        self._number = self._key_end - begin
        return KEY_LARGE if self._number > _KEY_BYTES_MAX else 0


def sort(
    group: Group, name: bytes, acks_replies: bool, message_bytes_max: int, skips_reserved: bool, log_end: int
) -> Sorted:
    """The rows of `group` for a log that ends at `log_end`, of a stream with this name and these rules."""
    if _all_pass(group, acks_replies, message_bytes_max, skips_reserved):
        return Sorted(group)
    out = Sorted(Group(group.data))
    out.take(group, name, acks_replies, message_bytes_max, skips_reserved, log_end, False)
    return out


def close(group: Group, name: bytes, acks_replies: bool, skips_reserved: bool) -> Sorted:
    """No rows: whatever of `group` is meant for this stream is refused unseen, as CLOSED."""
    out = Sorted(Group(group.data))
    out.take(group, name, acks_replies, 0, skips_reserved, 0, True)
    return out


def _refused(row: int, verdict: int, number: int, is_answered: bool) -> Refused:
    one = Refused.__new__(Refused)  # past the interpreter, where it is compiled
    one.row = row
    one.verdict = verdict
    one.number = number
    one.is_answered = is_answered
    return one


def _all_pass(group: Group, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """Whether all messages become rows as they are."""
    if not cython.compiled:
        return _all_pass_plain(group, acks_replies, message_bytes_max, skips_reserved)
    text = group.data
    numbers = group.numbers
    for row in range(group.count):
        at = row * places.STRIDE
        if (
            numbers[at + places.HEADERS] >= 0
            or numbers[at + places.VALUE + 1] - numbers[at + places.VALUE] > message_bytes_max
            or (numbers[at + places.REPLY] >= 0 and not acks_replies)
        ):
            return False
        subject = numbers[at + places.SUBJECT]
        subject_end = numbers[at + places.SUBJECT + 1]
        if not subjects.is_plain(text, subject, subject_end):
            return False
        if skips_reserved and subjects.is_reserved(text, subject, subject_end):
            return False
    return True


def _all_pass_plain(group: Group, acks_replies: bool, message_bytes_max: int, skips_reserved: bool) -> bool:
    """The same with loops in C only, as far as plain Python has any."""
    if cython.compiled:
        raise NotImplementedError
    numbers = group.numbers
    if not acks_replies or skips_reserved or max(numbers[places.HEADERS :: places.STRIDE], default=-1) >= 0:
        return False
    sizes = map(sub, numbers[places.VALUE + 1 :: places.STRIDE], numbers[places.VALUE :: places.STRIDE])
    if max(sizes, default=0) > message_bytes_max:
        return False
    begins = numbers[places.SUBJECT :: places.STRIDE]
    ends = numbers[places.SUBJECT + 1 :: places.STRIDE]
    return are_plain([group.data[begin:end] for begin, end in zip(begins, ends, strict=True)])


def _is_level(text: bytes, begin: int, end: int) -> bool:
    return (
        memory.equals(text, begin, end, _ALL)
        or memory.equals(text, begin, end, _NONE)
        or memory.equals(text, begin, end, _LEADER)
    )


def _says(text: bytes, begin: int, end: int, wanted: int) -> bool:
    """Whether the decimal digits text[begin:end] say `wanted`, however many zeros stand before it."""
    if begin == end:
        return False
    while end > begin:
        end -= 1
        if text[end] != _ZERO + wanted % 10:
            return False
        wanted //= 10
    return wanted == 0
