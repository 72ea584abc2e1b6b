"""Last messages of subjects that are kept in memory, and answers to JetStream's DIRECT.GET out of them.

Rules: what is kept of a subject is replaced when a message on it is written: `KeptRows.store` reads the batch. Of a
subject that no client asked for nothing is kept.

A group of API requests is sorted first: plain requests for the last message of a subject, by stream, and the rest.
Those of a stream are answered as far as what is kept is certain; the others have to be looked up. An answer is what
`direct_answers` writes for the same row. `last` is the offset that the leader's table of last offsets has.

| the table has                | kept is                                | the last message is    |
|------------------------------|----------------------------------------|------------------------|
| the subject, at an offset    | the message at that offset             | the one kept           |
| the subject, at an offset    | another one, or nothing                | at that offset         |
| not the subject              | a message, not older than the table    | the one kept, if any   |
| not the subject              | nothing, or something older            | not known              |

    $JS.API.DIRECT.GET.orders.orders.eu                               stream "orders", subject "orders.eu"
    $JS.API.DIRECT.GET.orders   {"last_by_subj":"orders.eu"}          the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.hot import load, memory, places
from penstock.hot.direct_answers import time_text
from penstock.hot.message import MessageLayout
from penstock.hot.message_group import MessageGroup
from penstock.hot.subject_table import SubjectTable

_DOT = 0x2E
_QUOTE = 0x22
_BACKSLASH = 0x5C
_BLANK = 0x20
_PLACES = 12  # bytes of a get: row, and where its subject begins and ends, as int32
_ROOM_BYTES = 128  # of an answer beside its reply subject, headers and value
_int = int
_PIECE_BYTES = 256 * 1024  # of answers that are sent as one
_ENTRY_BYTES = 700  # of a kept row beside the bytes of its message
_NODES = 6
_BUFFERS = 16
_OFFSETS = 1  # buffers
_TIMESTAMPS = 3
_FIRST = 4  # buffer of the first column of bytes, the subjects: validity, value offsets, bytes
_NUMBERS = 2  # columns before it
_NAME = b'{"last_by_subj":'
_NAME_END = b'"}'
_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_TOO_LARGE = b"NATS/1.0 413 Message Larger Than Max Payload\r\n\r\n"
_FIRST_LINE = b"NATS/1.0\r\n"
_HPUB = b"HPUB "
_SPACE = b" "
_LINE_END = b"\r\n"
_PUB = b"PUB "

_CERTAIN = 0
_AT = 1
_UNKNOWN = 2
CERTAIN, AT, UNKNOWN = _CERTAIN, _AT, _UNKNOWN
"""Results of `kept_state`: the kept row is the last message; it is where the table says; neither."""


class KeptRow:
    """The last message of a subject below `end`; offset -1: there is none."""

    __slots__ = (
        "_head", "end", "headers", "identity", "is_used", "key", "offset", "owner", "size_bytes", "subject",
        "timestamp_us", "value",
    )  # fmt: skip

    def __init__(self, owner: Any, identity: object, subject: bytes, end: int) -> None:
        """`owner`, `identity`: of the caller."""
        self.owner = owner
        self.identity = identity
        self.subject = subject
        self.end = end
        self.offset = -1
        self.timestamp_us = 0
        self.key: bytes | None = None
        self.value: bytes | None = None
        self.headers: bytes | None = None
        self.is_used = False  # since the caller looked last
        self.size_bytes = 0
        self._head: bytes | None = None

    def put(
        self, offset: _int, timestamp_us: _int, key: bytes | None, value: bytes | None, headers: bytes | None
    ) -> None:
        """Take the last message."""
        self.offset = offset
        self.timestamp_us = timestamp_us
        self.key = key
        self.value = value
        self.headers = headers
        self._head = None

    def head(self, stream: bytes) -> bytes:
        """Return the header block of the answer."""
        if self._head is None:
            own = b"" if self.headers is None else self.headers
            self._head = answer_head(stream, self.subject, own, self.offset + 1, self.timestamp_us)
        return self._head


class KeptRows:
    """Kept rows of several owners, of `bytes_max` at most: the oldest goes first, unless it was used meanwhile."""

    __slots__ = ("_bytes_max", "_of", "_order", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._of: dict[Any, dict[bytes, KeptRow]] = {}
        self._order: dict[KeptRow, None] = {}  # the first one is the next to go

    def of(self, owner: Any) -> dict[bytes, KeptRow] | None:
        """Return those of an owner by subject; None: there are none."""
        return self._of.get(owner)

    def keep(self, one: KeptRow) -> None:
        """Keep a row in the place of another one of its subject."""
        rows = self._of.get(one.owner)
        if rows is None:
            rows = self._of[one.owner] = {}
        before = rows.get(one.subject)
        if before is not None:
            self.drop(before)
            rows = self._of.setdefault(one.owner, rows)
        rows[one.subject] = one
        self._order[one] = None
        self._measure(one)
        self._evict()

    def drop(self, one: KeptRow) -> None:
        """Keep a row no longer."""
        del self._order[one]
        self.size_bytes -= one.size_bytes
        rows = self._of[one.owner]
        del rows[one.subject]
        if not rows:
            del self._of[one.owner]

    def store(self, owner: Any, identity: object, data: Any, layout: MessageLayout) -> None:
        """Replace what is kept of the subjects of a batch, which was written now behind all others."""
        rows = self._of.get(owner)
        if rows is None:
            return
        view = memoryview(data).cast("B")
        metadata = bytes(view[: len(layout.template)])
        body = len(layout.template)
        count = load.int64s(metadata, layout.rows_position, 1)[0]
        nodes = load.int64s(metadata, layout.nodes_position, 2 * _NODES)
        buffers = load.int64s(metadata, layout.buffers_position, 2 * _BUFFERS)
        offsets = load.int64s_within(view, body + buffers[2 * _OFFSETS], count)
        times = load.int64s_within(view, body + buffers[2 * _TIMESTAMPS], count)
        ends = load.int32s(view, body + buffers[2 * (_FIRST + 1)], count + 1)
        subjects = body + buffers[2 * (_FIRST + 2)]
        for row in range(count):
            begin = subjects + ends[row]
            size = ends[row + 1] - ends[row]
            one = rows.get(memory.part(view, begin, begin + size))
            if one is None:
                continue
            one.identity = identity
            one.end = offsets[row] + 1
            _take_row(one, view, body, nodes, buffers, count, row, offsets[row], times[row])
            self._measure(one)
        self._evict()

    def keep_rows(
        self,
        owner: Any,
        identity: object,
        end: _int,
        data: Any,
        layout: MessageLayout,
        wanted: list[int],
        names: list[bytes],
    ) -> None:
        """Keep rows of a verified batch: those at the `wanted` offsets, as far as they are there and on these subjects.

        `end`: no message below it is a later one of its subject. IndexError: the batch has no such layout.
        """
        view = memoryview(data).cast("B")
        metadata = memory.part(view, 0, len(layout.template))
        body = len(layout.template)
        count = load.int64s(metadata, layout.rows_position, 1)[0]
        nodes = load.int64s(metadata, layout.nodes_position, 2 * _NODES)
        buffers = load.int64s(metadata, layout.buffers_position, 2 * _BUFFERS)
        offsets = load.int64s_within(view, body + buffers[2 * _OFFSETS], count)
        times = load.int64s_within(view, body + buffers[2 * _TIMESTAMPS], count)
        ends = load.int32s(view, body + buffers[2 * (_FIRST + 1)], count + 1)
        subjects = body + buffers[2 * (_FIRST + 2)]
        if len(names) < len(wanted):
            raise IndexError(f"{len(names)} subjects of {len(wanted)} rows")
        for number in range(len(wanted)):
            offset = wanted[number]
            low, high = 0, count
            while low < high:
                row = (low + high) // 2
                if offsets[row] < offset:
                    low = row + 1
                else:
                    high = row
            if low == count or offsets[low] != offset:
                continue
            name = names[number]
            if memory.part(view, subjects + ends[low], subjects + ends[low + 1]) != name:
                continue
            one = KeptRow(owner, identity, name, end)
            _take_row(one, view, body, nodes, buffers, count, low, offset, times[low])
            self.keep(one)

    def _measure(self, one: KeptRow) -> None:
        size = _ENTRY_BYTES + len(one.subject)
        if one.key is not None:
            size += len(one.key)
        if one.value is not None:
            size += len(one.value)
        if one.headers is not None:
            size += 2 * len(one.headers)  # they are in the header block of an answer, too
        self.size_bytes += size - one.size_bytes
        one.size_bytes = size
        if size > self._bytes_max:
            self.drop(one)

    def _evict(self) -> None:
        while self.size_bytes > self._bytes_max:
            oldest = next(iter(self._order))
            if oldest.is_used:
                oldest.is_used = False
                del self._order[oldest]
                self._order[oldest] = None
            else:
                self.drop(oldest)


def _take_row(
    one: KeptRow,
    view: memoryview,
    body: _int,
    nodes: Sequence[int],
    buffers: Sequence[int],
    count: _int,
    row: _int,
    offset: _int,
    time_us: _int,
) -> None:
    """Have `one` take a row of a batch."""
    key, value, headers = None, None, None
    for column in range(1, 4):
        nulls = nodes[2 * (_NUMBERS + column) + 1]
        at = 2 * (_FIRST + 3 * column)
        if nulls == count:
            continue
        if nulls > 0:
            validity = memory.part(view, body + buffers[at] + (row >> 3), body + buffers[at] + (row >> 3) + 1)
            if not validity[0] >> (row & 7) & 1:
                continue
        bounds = load.int32s(view, body + buffers[at + 2], count + 1)
        place = body + buffers[at + 4]
        cell = memory.part(view, place + bounds[row], place + bounds[row + 1])
        if column == 1:
            key = cell
        elif column == 2:
            value = cell
        else:
            headers = cell
    one.put(offset, time_us, key, value, headers)


class SubjectGets:
    """Requests for the last messages of one stream's subjects, as places in their group's bytes."""

    __slots__ = ("count", "places", "stream")

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.count = 0
        self.places = bytearray()

    def row(self, number: int) -> int:
        """Return the row of a request."""
        if not 0 <= number < self.count:
            raise IndexError(f"request {number} of {self.count}")
        return load.uint32(self.places, _PLACES * number)

    def only(self, numbers: list[int]) -> SubjectGets:
        """Return some of the requests."""
        found = SubjectGets(self.stream)
        for number in numbers:
            if not 0 <= number < self.count:
                raise IndexError(f"request {number} of {self.count}")
            found.places += self.places[_PLACES * number : _PLACES * (number + 1)]
            found.count += 1
        return found

    def subject(self, group: MessageGroup, number: int) -> bytes:
        """Return the subject that a request is about."""
        if not 0 <= number < self.count:
            raise IndexError(f"request {number} of {self.count}")
        at = _PLACES * number
        return memory.part(group.data, load.uint32(self.places, at + 4), load.uint32(self.places, at + 8))


def answer_head(stream: bytes, subject: bytes, own: bytes, sequence: int, time_us: int) -> bytes:
    """Return the header block of the answer with a message; `own`: its own block, or nothing."""
    first = own[:-2] if len(own) > 2 else _FIRST_LINE
    lines = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n"
    return first + lines % (stream, subject, sequence, time_text(time_us))


def sort_gets(
    group: MessageGroup, begin: int, end: int, prefixes: list[bytes]
) -> tuple[dict[bytes, SubjectGets], list[int]]:
    """Sort rows [begin, end): the plain gets by stream, and the other rows. `prefixes`: such as $JS.API.DIRECT.GET."""
    found: dict[bytes, SubjectGets] = {}
    others: list[int] = []
    if not 0 <= begin <= end <= group.count:
        raise IndexError(f"rows {begin} to {end} of {group.count}")
    text = group.data
    numbers = group.numbers
    gets: SubjectGets | None = None
    for row in range(begin, end):
        at = row * places.STRIDE
        stream_begin = -1
        if numbers[at + places.REPLY] >= 0 and numbers[at + places.HEADERS] < 0:
            for prefix in prefixes:
                if memory.begins(text, numbers[at + places.SUBJECT], numbers[at + places.SUBJECT + 1], prefix):
                    stream_begin = numbers[at + places.SUBJECT] + len(prefix)
                    break
        subject_end = numbers[at + places.SUBJECT + 1]
        if stream_begin < 0 or stream_begin == subject_end:
            others.append(row)
            continue
        stream_end = memory.find_byte(text, _DOT, stream_begin, subject_end)
        value = numbers[at + places.VALUE]
        value_end = numbers[at + places.VALUE + 1]
        if stream_end >= 0:
            subject = stream_end + 1
            if value_end > value:
                subject = subject_end
        else:
            stream_end = subject_end
            subject = _named_subject(text, value, value_end)
            subject_end = value_end - 2
        if subject < 0 or subject >= subject_end or stream_end == stream_begin:
            others.append(row)
            continue
        if gets is None or not memory.equals(text, stream_begin, stream_end, gets.stream):
            stream = memory.copied(text, stream_begin, stream_end)
            gets = found.get(stream)
            if gets is None:
                gets = found[stream] = SubjectGets(stream)
        place = memory.widen(gets.places, _PLACES)
        target = gets.places
        memory.put_int32(target, place, row)
        memory.put_int32(target, place + 4, subject)
        memory.put_int32(target, place + 8, subject_end)
        gets.count += 1
    return found, others


def _named_subject(text: bytes, begin: _int, end: _int) -> int:
    """Return where the subject of a request {"last_by_subj":"…"} begins; its end is two bytes before. -1: another."""
    if begin < 0 or not memory.begins(text, begin, end, _NAME) or end - begin < len(_NAME) + 4:
        return -1
    at = begin + len(_NAME)
    if text[at] == _BLANK:
        at += 1
    if text[at] != _QUOTE or not memory.equals(text, end - 2, end, _NAME_END):
        return -1
    at += 1
    for place in range(at, end - 2):
        if text[place] < _BLANK or text[place] == _QUOTE or text[place] == _BACKSLASH:
            return -1
    return at


def kept_state(kept: KeptRow | None, last: int, known_from: int, identity: object) -> int:
    """Return what is known of the last message of a subject: see the table above."""
    if kept is not None and kept.identity is not identity:
        kept = None
    if last >= 0:
        return _CERTAIN if kept is not None and kept.offset == last else _AT
    return _CERTAIN if kept is not None and known_from <= kept.end else _UNKNOWN


def answer_kept(
    gets: SubjectGets,
    group: MessageGroup,
    kept: dict[bytes, KeptRow],
    table: SubjectTable,
    identity: object,
    begin: int,
    end: int,
    payload_max: int,
) -> tuple[list[bytes], list[int]]:
    """Answer the gets of which it is certain what the last message is; return the commands, and the other gets.

    `kept`: by subject. [begin, end): offsets of messages that readers are shown.
    """
    text = group.data
    numbers = group.numbers
    stream = gets.stream
    pieces: list[bytes] = []
    others: list[int] = []
    known_from = table.known_from
    message = memory.new(0)
    at = 0
    for number in range(gets.count):
        place = gets.places
        row = load.uint32(place, _PLACES * number)
        subject = load.uint32(place, _PLACES * number + 4)
        subject_end = load.uint32(place, _PLACES * number + 8)
        one = kept.get(memory.copied(text, subject, subject_end))
        if one is None:
            others.append(number)
            continue
        last = table.find(group.data, subject, subject_end)
        if last >= end or one.offset >= end or kept_state(one, last, known_from, identity) != _CERTAIN:
            others.append(number)
            continue
        one.is_used = True
        head, value = _NOT_FOUND, b""
        if one.offset >= begin:
            head, value = one.head(stream), b"" if one.value is None else one.value
            if len(head) + len(value) > payload_max:
                head, value = _TOO_LARGE, b""
        reply = numbers[row * places.STRIDE + places.REPLY]
        reply_end = numbers[row * places.STRIDE + places.REPLY + 1]
        size = _ROOM_BYTES + reply_end - reply + len(head) + len(value)
        if at + size > len(message):
            if at > 0:
                pieces.append(memory.part(message, 0, at))
            message = memory.new(max(size, min(size * (gets.count - number), _PIECE_BYTES)))
            at = 0
        out = message
        at = _put_answer(out, at, text, reply, reply_end, head, len(head), value, len(value))
    if at > 0:
        pieces.append(memory.part(message, 0, at))
    return pieces, others


def refuse_rows(
    group: MessageGroup,
    begin: int,
    end: int,
    prefixes: list[bytes],
    statuses: list[bytes],
    block: bytes,
    error: bytes,
    probe: bytes,
) -> tuple[bytes, list[int]]:
    """Return commands that refuse rows [begin, end): with the header block `block` where the subject begins with one of
    `statuses`, with the payload `error` where it begins with one of `prefixes`. Return also the rows that are not
    refused: others, those without a reply subject, and those with `probe` in their headers.
    """
    if not 0 <= begin <= end <= group.count:
        raise IndexError(f"rows {begin} to {end} of {group.count}")
    text = group.data
    numbers = group.numbers
    size = 0
    for row in range(begin, end):
        at = row * places.STRIDE + places.REPLY
        size += _ROOM_BYTES + len(block) + len(error) + numbers[at + 1] - numbers[at]
    message = memory.new(size)
    out = message
    written = 0
    others: list[int] = []
    for row in range(begin, end):
        at = row * places.STRIDE
        reply = numbers[at + places.REPLY]
        reply_end = numbers[at + places.REPLY + 1]
        headers = numbers[at + places.HEADERS]
        headers_end = numbers[at + places.HEADERS + 1]
        if reply < 0 or (headers >= 0 and memory.find(text, headers, headers_end, probe, 0, len(probe)) >= 0):
            others.append(row)
            continue
        subject = numbers[at + places.SUBJECT]
        subject_end = numbers[at + places.SUBJECT + 1]
        if _begins_with_one(text, subject, subject_end, statuses):
            written = _put_answer(out, written, text, reply, reply_end, block, len(block), error, 0)
        elif _begins_with_one(text, subject, subject_end, prefixes):
            written = _put_answer(out, written, text, reply, reply_end, block, 0, error, len(error))
        else:
            others.append(row)
    return memory.part(message, 0, written), others


def _begins_with_one(text: bytes, begin: _int, end: _int, wanted: list[bytes]) -> bool:
    for one in wanted:  # noqa: SIM110 (a loop in C)
        if memory.begins(text, begin, end, one):
            return True
    return False


def _put_answer(
    out: bytearray,
    at: _int,
    text: bytes,
    reply: _int,
    reply_end: _int,
    head: bytes,
    head_bytes: _int,
    value: bytes,
    value_bytes: _int,
) -> int:
    """Write a command; return its end."""
    at = _put(out, at, _HPUB, 0, 5) if head_bytes > 0 else _put(out, at, _PUB, 0, 4)
    at = _put(out, at, text, reply, reply_end)
    if head_bytes > 0:
        at = _put(out, at, _SPACE, 0, 1)
        at = memory.put_decimal(out, at, head_bytes)
    at = _put(out, at, _SPACE, 0, 1)
    at = memory.put_decimal(out, at, head_bytes + value_bytes)
    at = _put(out, at, _LINE_END, 0, 2)
    at = _put(out, at, head, 0, head_bytes)
    at = _put(out, at, value, 0, value_bytes)
    return _put(out, at, _LINE_END, 0, 2)


def _put(out: bytearray, at: _int, text: bytes, begin: _int, end: _int) -> int:
    memory.put(out, at, text, begin, end)
    return at + end - begin
