"""Acks of JetStream's clients: a whole read of them is applied to the tables of pending messages.

Rules: every bound of what a client sent is checked here. A row that asks for more than to change a table is left to the
caller, by its number.

    $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<ns>.<pending>
            ╰── a table's name ──╯                                                  ╰── its last three digits: the token

| payload        | ack of       |                                                          |
|----------------|--------------|----------------------------------------------------------|
| empty, `+ACK`  | ACK          | applied here                                             |
| `-NAK`         | NAK          | applied here; with a delay: left to the caller           |
| `+WPI`         | IN_PROGRESS  | applied here                                             |
| `+TERM`        | TERM         | applied here, unless the table tells terminated messages |
| another        |              | left to the caller                                       |
"""

from __future__ import annotations

from penstock.hot import memory, places
from penstock.hot.message_group import MessageGroup
from penstock.hot.pending import PendingTable

PREFIX = b"$JS.ACK."
_PREFIX = PREFIX
_PREFIX_BYTES = len(PREFIX)
_ACK_TEXT = b"+ACK"
_NAK_TEXT = b"-NAK"
_PROGRESS_TEXT = b"+WPI"
_TERM_TEXT = b"+TERM"
_ACK = 0
_NAK = 1
_IN_PROGRESS = 2
_TERM = 3
_OTHER = 4
_DOT = 0x2E
_DIGITS_MAX = 18
_NS_DIGITS_MAX = 20
_TOKEN_DIGITS = 3
_int = int


class AckSubject:
    """The parts of an ack's subject: where the table's name ends, and numbers. `offset` is the stream sequence - 1."""

    __slots__ = ("deliveries", "name_begin", "name_end", "offset", "sequence", "token")

    def __init__(self) -> None:
        self.name_begin = 0
        self.name_end = 0
        self.deliveries = 0
        self.offset = 0
        self.sequence = 0
        self.token = 0

    def parse(self, text: bytes, begin: _int, end: _int) -> bool:
        """Take the parts of text[begin:end], which the caller has checked to be in bounds; False: it is none."""
        if not memory.begins(text, begin, end, _PREFIX):
            return False
        self.name_begin = begin + _PREFIX_BYTES
        dot = memory.find_byte(text, _DOT, self.name_begin, end)
        if dot <= self.name_begin:
            return False
        at = dot + 1
        self.name_end = memory.find_byte(text, _DOT, at, end)
        if self.name_end <= at:
            return False
        at = self.name_end + 1
        dot = memory.find_byte(text, _DOT, at, end)
        if dot < 0:
            return False
        self.deliveries = memory.number(text, at, dot, _DIGITS_MAX)
        at = dot + 1
        dot = memory.find_byte(text, _DOT, at, end)
        if dot < 0:
            return False
        self.offset = memory.number(text, at, dot, _DIGITS_MAX) - 1
        at = dot + 1
        dot = memory.find_byte(text, _DOT, at, end)
        if dot < 0:
            return False
        self.sequence = memory.number(text, at, dot, _DIGITS_MAX)
        at = dot + 1
        dot = memory.find_byte(text, _DOT, at, end)
        if dot < 0 or dot - at > _NS_DIGITS_MAX:
            return False
        self.token = memory.number(text, max(at, dot - _TOKEN_DIGITS), dot, _DIGITS_MAX)
        if memory.number(text, dot + 1, end, _DIGITS_MAX) < 0:  # a tenth part would not be a number
            return False
        return self.deliveries >= 0 and self.offset >= 0 and self.sequence >= 0 and self.token >= 0


def ack_parts(subject: bytes) -> tuple[bytes, int, int, int, int] | None:
    """Parse an ack's subject: b"<stream>.<consumer>", deliveries, offset, consumer sequence, token. None: none."""
    found = AckSubject()
    if not found.parse(subject, 0, len(subject)):
        return None
    name = memory.part(subject, found.name_begin, found.name_end)
    return name, found.deliveries, found.offset, found.sequence, found.token


def apply_acks(
    group: MessageGroup,
    begin: _int,
    end: _int,
    tables: dict[bytes, PendingTable],
    now_us: _int,
    others: list[int],
) -> list[PendingTable]:
    """Apply the plain acks of rows [begin, end); return the tables that changed, each once.

    `tables`: by b"<stream>.<consumer>". The numbers of rows that ask for more are added to `others`, in order: acks
    with a reply subject, `-NAK` with a delay, `+NXT`, `+TERM` where the table tells terminated messages, no acks,
    and those of a consumer that is not in `tables`.
    """
    if not 0 <= begin <= end <= group.count:
        raise IndexError(f"rows {begin} to {end} of {group.count}")
    touched: list[PendingTable] = []
    found = AckSubject()
    text = group.data
    numbers = group.numbers
    name = b""
    table: PendingTable | None = None
    for row in range(begin, end):
        at = row * places.STRIDE
        kind = _OTHER
        if numbers[at + places.REPLY] < 0:
            kind = _kind(text, numbers[at + places.VALUE], numbers[at + places.VALUE + 1])
        if kind == _OTHER or not found.parse(text, numbers[at + places.SUBJECT], numbers[at + places.SUBJECT + 1]):
            others.append(row)
            continue
        if not memory.equals(text, found.name_begin, found.name_end, name):
            name = memory.copied(text, found.name_begin, found.name_end)
            table = tables.get(name)
        if table is None or (kind == _TERM and table.tells_terminated):
            others.append(row)
            continue
        if table.settle(kind, found.offset, found.sequence, found.token, 0, now_us) == 0 and not table.is_touched:
            table.is_touched = True
            touched.append(table)
    for table in touched:
        table.is_touched = False
    return touched


def _kind(text: bytes, begin: _int, end: _int) -> _int:
    """Return the kind of ack that text[begin:end] asks for; _OTHER: it asks for more, or is none. -1, -1: no value."""
    if begin == end or memory.equals(text, begin, end, _ACK_TEXT):
        return _ACK
    if memory.equals(text, begin, end, _NAK_TEXT):
        return _NAK
    if memory.equals(text, begin, end, _PROGRESS_TEXT):
        return _IN_PROGRESS
    return _TERM if memory.equals(text, begin, end, _TERM_TEXT) else _OTHER
