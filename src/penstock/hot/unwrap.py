"""Unwrap envelopes: a group's messages as if they had come without one, and what the envelopes asked for.

Rules: the same messages row by row, in the same order. Only a group with an envelope is processed a second time; a
payload that is not an envelope to the last byte stays as it came. Values and ack inboxes stay in place; headers in an
envelope become a NATS header block, appended to the group's bytes, which are copied once for that. A header beside the
envelope comes first, and the first of a name counts. An envelope's request that cannot be met is a verdict of its own,
and the message is refused: it is never stored as if it had not asked.

| field of the envelope | becomes                                                                             |
|-----------------------|-------------------------------------------------------------------------------------|
| `value`               | the value; if missing, an empty one                                                 |
| `headers`             | lines of the header block, in order; of a repeated name the last value              |
| `ack_inbox`           | the row's REPLY, but for what JetStream delivers; else the message's reply subject is |
| `key`, `correlation_id`, `ack_policy`, `offset` | numbers here, for `classification`; an empty key is none  |
| anything else         | ignored: the broker sets it                                                         |

| verdict         | the envelope                                                                        |
|-----------------|-------------------------------------------------------------------------------------|
| BAD_INBOX       | names an ack inbox that is no plain subject, or one of the system's (`$…`)          |
| BAD_CORRELATION | has a correlation id over the limit; the refusal does not repeat it                 |
| BAD_POLICY      | has an ack policy that does not exist                                               |
| BAD_ENTRY       | has a header that cannot stand in a header block                                    |
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.hot import envelope, memory, places, subjects
from penstock.hot.envelope import Envelope
from penstock.hot.message_group import MessageGroup

BAD_INBOX = 10
BAD_CORRELATION = 11
BAD_POLICY = 12
BAD_ENTRY = 13

LEADER = 0
ALL = 1
NONE = 2

# Numbers per row in this module; parts have a begin and, one further, an end.
_VERDICT = 0  # -1: without an envelope
_POLICY = 1
_TO_INBOX = 2  # 1: the ack goes to an ack inbox
_EXPECTED = 3  # index into `expected`, or -1
_KEY = 4
_CORRELATION = 6
_VALUE = 8
_REPLY = 10
_HEADERS = 12
_STRIDE = 14

_CORRELATION_ID_BYTES_MAX = limits.CORRELATION_ID_BYTES_MAX
_COOKIE_BYTE = 0xB9
_HEADER_BYTES = envelope.HEADER_BYTES
_DOLLAR = 0x24
_COLON = 0x3A
_VERSION_LINE = b"NATS/1.0\r\n"
_LINE_END = b"\r\n"
_BLANK_LINE = b"\r\n\r\n"
_SEPARATOR = b": "


class OpenedEnvelopes:
    """A group without its envelopes, in `group`, and the envelopes' contents."""

    __slots__ = ("_blocks", "_came", "_numbers", "expected", "group")

    def __init__(self, came: MessageGroup) -> None:
        self.group = came
        self.expected: list[int] = []  # offsets
        self._came = came
        self._blocks = bytearray()  # header blocks, to be appended to the received bytes
        if not cython.compiled:
            self._numbers: list[int] = []

    def __dealloc__(self) -> None:
        if cython.compiled:
            memory.free_places(self._numbers)

    def open(self, first: int) -> bool:
        """Unwrap the rows from `first` on; return True if any came in an envelope."""
        came = self._came
        text = came.data
        size = came.count * _STRIDE
        if cython.compiled:
            self._numbers = memory.more_places(self._numbers, size)
            for at in range(size):
                self._numbers[at] = -1
        else:
            self._numbers = [-1] * size
        found = False
        for row in range(first, came.count):
            value = came.numbers[row * places.STRIDE + places.VALUE]
            value_end = came.numbers[row * places.STRIDE + places.VALUE + 1]
            if value_end - value >= _HEADER_BYTES and text[value] == _COOKIE_BYTE:
                one = envelope.parse(came.data, value, value_end)
                if one is not None:
                    self._note(row, one)
                    found = True
        if found:
            self._join()
        return found

    def _note(self, row: int, one: Envelope) -> None:
        """Record the envelope of one row."""
        numbers = self._numbers
        came = self._came
        text = came.data
        at = row * _STRIDE
        place = row * places.STRIDE
        verdict = 0
        reply = came.numbers[place + places.REPLY]
        reply_end = came.numbers[place + places.REPLY + 1]
        if one.ack_inbox_end > one.ack_inbox and not subjects.is_jetstream_ack(text, reply, reply_end):
            if text[one.ack_inbox] == _DOLLAR or not subjects.is_plain(text, one.ack_inbox, one.ack_inbox_end):
                verdict = BAD_INBOX
            else:
                reply = one.ack_inbox
                reply_end = one.ack_inbox_end
                numbers[at + _TO_INBOX] = 1
        numbers[at + _REPLY] = reply
        numbers[at + _REPLY + 1] = reply_end
        if one.correlation_id_end - one.correlation_id > _CORRELATION_ID_BYTES_MAX:
            verdict = verdict or BAD_CORRELATION
        elif one.correlation_id_end > one.correlation_id:
            numbers[at + _CORRELATION] = one.correlation_id
            numbers[at + _CORRELATION + 1] = one.correlation_id_end
        policy = one.ack_policy
        if policy < LEADER or policy > NONE:
            verdict = verdict or BAD_POLICY
            policy = LEADER  # the refusal is answered
        numbers[at + _POLICY] = policy
        if one.key_end > one.key:
            numbers[at + _KEY] = one.key
            numbers[at + _KEY + 1] = one.key_end
        value = came.numbers[place + places.VALUE]
        numbers[at + _VALUE] = one.value if one.value >= 0 else value
        numbers[at + _VALUE + 1] = one.value_end if one.value >= 0 else value
        if one.offset >= 0:
            numbers[at + _EXPECTED] = len(self.expected)
            self.expected.append(one.offset)
        if not self._merge(row, one):
            verdict = verdict or BAD_ENTRY
        numbers[at + _VERDICT] = verdict

    def _merge(self, row: int, one: Envelope) -> bool:
        """Record the row's header block; return False if a header of the envelope is invalid."""
        came = self._came
        data = came.data
        text = data
        numbers = self._numbers
        at = row * _STRIDE + _HEADERS
        headers = came.numbers[row * places.STRIDE + places.HEADERS]
        headers_end = came.numbers[row * places.STRIDE + places.HEADERS + 1]
        numbers[at] = headers
        numbers[at + 1] = headers_end
        positions = one.headers
        if not positions:
            return True
        entries: dict[bytes, bytes] = {}  # of a repeated name the last value counts, as in any protobuf map
        for place in range(0, len(positions), 4):
            begin = positions[place]
            end = positions[place + 1]
            value = positions[place + 2]
            value_end = positions[place + 3]
            if not _is_name(text, begin, end) or not _is_line(text, value, value_end):
                return False
            entries[data[begin:end]] = data[value:value_end]
        blocks = self._blocks
        numbers[at] = len(data) + len(blocks)
        blank = -1
        if headers < 0:
            blocks += _VERSION_LINE
        else:
            blank = memory.find(text, headers, headers_end, _BLANK_LINE, 0, 4)
            stop = blank + 2 if blank >= 0 else headers_end
            blocks += data[headers:stop]
            if blank < 0 and not (stop - headers >= 2 and memory.equals(text, stop - 2, stop, _LINE_END)):
                blocks += _LINE_END
        for name, content in entries.items():
            blocks += name
            blocks += _SEPARATOR
            blocks += content
            blocks += _LINE_END
        blocks += data[blank + 2 : headers_end] if blank >= 0 else _LINE_END
        numbers[at + 1] = len(data) + len(blocks)
        return True

    def _join(self) -> None:
        """Build the resulting group."""
        came = self._came
        numbers = self._numbers
        self.group = group = MessageGroup(came.data + self._blocks if self._blocks else came.data)
        for row in range(came.count):
            place = row * places.STRIDE
            at = row * _STRIDE
            subject = came.numbers[place + places.SUBJECT]
            subject_end = came.numbers[place + places.SUBJECT + 1]
            if numbers[at + _VERDICT] < 0:
                group.add(
                    subject, subject_end,
                    came.numbers[place + places.REPLY], came.numbers[place + places.REPLY + 1],
                    came.numbers[place + places.HEADERS], came.numbers[place + places.HEADERS + 1],
                    came.numbers[place + places.VALUE], came.numbers[place + places.VALUE + 1],
                    -1, -1, -1, -1,
                )  # fmt: skip
            else:
                group.add(
                    subject, subject_end, numbers[at + _REPLY], numbers[at + _REPLY + 1],
                    numbers[at + _HEADERS], numbers[at + _HEADERS + 1], numbers[at + _VALUE], numbers[at + _VALUE + 1],
                    -1, -1, -1, -1,
                )  # fmt: skip

    # Accessors for one row; the caller has checked its number.

    def holds(self, row: int) -> bool:
        """True if it came in an envelope."""
        return self._numbers[row * _STRIDE + _VERDICT] >= 0

    def verdict(self, row: int) -> int:
        """The verdict, or 0."""
        return self._numbers[row * _STRIDE + _VERDICT]

    def policy(self, row: int) -> int:
        """LEADER, ALL or NONE."""
        return self._numbers[row * _STRIDE + _POLICY]

    def goes_to_inbox(self, row: int) -> bool:
        """True if the ack goes to an ack inbox, in place of a reply subject."""
        return self._numbers[row * _STRIDE + _TO_INBOX] > 0

    def is_expected_at(self, row: int, offset: int) -> bool:
        """True if the publisher expects no offset, or this one."""
        place = self._numbers[row * _STRIDE + _EXPECTED]
        return place < 0 or self.expected[place] == offset

    def expects(self, row: int) -> bool:
        """True if the publisher expects an offset."""
        return self._numbers[row * _STRIDE + _EXPECTED] >= 0

    def key(self, row: int) -> int:
        """The begin of its key, or -1."""
        return self._numbers[row * _STRIDE + _KEY]

    def key_end(self, row: int) -> int:
        """The end of its key, or -1."""
        return self._numbers[row * _STRIDE + _KEY + 1]

    def correlation(self, row: int) -> int:
        """The begin of its correlation id, or -1."""
        return self._numbers[row * _STRIDE + _CORRELATION]

    def correlation_end(self, row: int) -> int:
        """The end of its correlation id, or -1."""
        return self._numbers[row * _STRIDE + _CORRELATION + 1]


def unwrap(group: MessageGroup) -> OpenedEnvelopes | None:
    """Return `group` without envelopes; None if it has none. For messages as received: without keys yet."""
    if not cython.compiled and envelope.COOKIE not in group.data:
        return None
    text = group.data
    numbers = group.numbers
    for row in range(group.count):
        at = row * places.STRIDE
        value = numbers[at + places.VALUE]
        if numbers[at + places.VALUE + 1] - value >= _HEADER_BYTES and text[value] == _COOKIE_BYTE:
            opened = OpenedEnvelopes(group)
            return opened if opened.open(row) else None
    return None


def _is_name(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is a valid header name: visible ASCII without colon, not empty."""
    for at in range(begin, end):
        if text[at] <= 0x20 or text[at] >= 0x7F or text[at] == _COLON:
            return False
    return end > begin


def _is_line(text: bytes, begin: int, end: int) -> bool:
    """True if text[begin:end] is a valid header value: no CR, LF or NUL, no surrounding space, which would be lost."""
    if end > begin and (text[begin] in (0x09, 0x20) or text[end - 1] in (0x09, 0x20)):
        return False
    for at in range(begin, end):  # noqa: SIM110 (a generator is no C loop)
        if text[at] in (0x00, 0x0A, 0x0D):
            return False
    return True
