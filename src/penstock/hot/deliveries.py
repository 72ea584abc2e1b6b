"""Write rows as deliveries to JetStream consumers without acks: frames for a leaf connection to nats-server.

Rules: one decoded batch (`DecodedRows`) serves all cursors; each row is copied once, to its place in a frame. A cursor
never passes a row that it wants without delivering it: it stops before, and says why. Every bound of `DecodedRows` is
checked when it is made.

    LMSG <inbox> $JS.ACK.<stream>.<consumer>.1.<seq>.<delivered>.<ns>.<pending>@<subject> <bytes>␍␊<value>␍␊
    HMSG <inbox> <the same, with headers> <bytes of the headers> <bytes of all>␍␊<headers><value>␍␊

nats-server shows the client what is behind `@` as the subject, and the rest as the reply subject. For a queue group the
inbox is followed by `+`, and the reply subject by the group.
"""

from __future__ import annotations

from penstock.hot import load, memory, subjects

TOOK_ALL = 0
EXHAUSTED = 1  # no messages left of the request
NO_ROOM = 2  # enough bytes are on the way to the inbox
TOO_LARGE = 3  # the next message is larger than what the request has left
TOO_EARLY = 4  # the next message is due later (replay at the original pace)
FULL = 5  # enough frames at once
LOW = 6  # it took all, and its room is nearly used up

_TOOK_ALL = 0  # the same for compiled code
_EXHAUSTED = 1
_NO_ROOM = 2
_TOO_LARGE = 3
_TOO_EARLY = 4
_FULL = 5
_LOW = 6

_HEADERS_BEGIN = b"NATS/1.0\r\n"
_HEADERS_END = b"\r\n\r\n"
_SIZE_HEADER = b"Nats-Msg-Size: "
_LMSG = b"LMSG "
_HMSG = b"HMSG "
_LINE_END = b"\r\n"
_NEVER = 2**63 - 1
UNLIMITED = _NEVER
_int = int


class DecodedRows:
    """The rows of one batch, in order of their offsets; they are all that there is in [begin_offset, end_offset).

    `skipped`: one byte for each row, not 0 if it is deleted by now; empty: none is.
    """

    __slots__ = (
        "begin_offset", "count", "end_offset", "header_ends", "headers", "offsets", "skipped", "subject_ends",
        "subjects", "times", "value_ends", "values",
    )  # fmt: skip

    def __init__(
        self,
        begin_offset: _int,
        end_offset: _int,
        offsets: bytes,
        times: bytes,
        subject_ends: bytes,
        subjects: bytes,
        value_ends: bytes,
        values: bytes,
        header_ends: bytes,
        headers: bytes,
    ) -> None:
        """Columns as in Arrow: int64 offsets and timestamps (µs), int32 value offsets, and the values end to end.

        ValueError: they do not fit together. `header_ends` is empty if no row has headers.
        """
        count = len(offsets) // 8
        if len(offsets) != 8 * count or len(times) != 8 * count or not count:
            raise ValueError(f"{len(offsets)} bytes of offsets and {len(times)} of timestamps")
        _check(subject_ends, len(subjects), count)
        _check(value_ends, len(values), count)
        if header_ends:
            _check(header_ends, len(headers), count)
        self.begin_offset = begin_offset
        self.end_offset = end_offset
        self.count = count
        self.offsets = offsets
        self.times = times
        self.subject_ends = subject_ends
        self.subjects = subjects
        self.value_ends = value_ends
        self.values = values
        self.header_ends = header_ends
        self.headers = headers
        self.skipped = b""

    def size_bytes(self) -> int:
        """Bytes that it holds in memory."""
        return len(self.values) + len(self.headers) + len(self.subjects) + 28 * self.count

    def skip(self, skipped: bytes) -> None:
        """Say which rows are deleted by now."""
        if skipped and len(skipped) != self.count:
            raise ValueError(f"{len(skipped)} marks for {self.count} rows")
        self.skipped = skipped

    def row_of(self, offset: _int) -> _int:
        """Return the first row at or behind an offset; the number of rows if there is none."""
        offsets = load.int64s(self.offsets, 0, self.count)
        low = 0
        high = self.count
        while low < high:
            middle = (low + high) >> 1
            if offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low


def _check(ends: bytes, size: _int, count: _int) -> None:
    """Raise ValueError unless these are the bounds of `count` values within `size` bytes."""
    if len(ends) != 4 * (count + 1):
        raise ValueError(f"{len(ends)} bytes of value offsets for {count} rows")
    found = load.int32s(memoryview(ends), 0, count + 1)
    if found[0] < 0 or found[count] > size or load.falls(found, count + 1):
        raise ValueError(f"value offsets are not in order within {size} bytes")


class Filter:
    """Which subjects some cursors want; without patterns: all. `seen`: matching rows that its owner has counted."""

    __slots__ = ("patterns", "seen")

    def __init__(self, patterns: list[bytes]) -> None:
        self.patterns = list(patterns)
        for one in self.patterns:
            if b".." in b".%b." % one:
                raise ValueError(f"{one!r} has an empty token")
        self.seen = 0

    def count(self, rows: DecodedRows, offset: _int) -> _int:
        """Return the number of matching rows from an offset on that are not deleted."""
        found = 0
        skipped = rows.skipped
        is_masked = len(rows.skipped) > 0
        ends = load.int32s(memoryview(rows.subject_ends), 0, rows.count + 1)
        for row in range(rows.row_of(offset), rows.count):
            if is_masked and skipped[row]:
                continue
            if self.covers(rows.subjects, ends[row], ends[row + 1]):
                found += 1
        return found

    def covers(self, text: bytes, begin: _int, end: _int) -> bool:
        """True if the subject text[begin:end] matches."""
        if not self.patterns:
            return True
        for one in self.patterns:
            pattern = one
            if subjects.covers(pattern, len(one), text, begin, end):
                return True
        return False


class Cursor:
    """Position of one consumer, its inbox, and its limits for what it is sent next.

    `pending` counts the messages that it wants, from `next_offset` on, less those that its filter has `seen`.
    `wanted`: offsets, in order, of all that it wants below `resume_offset` (the last of each subject), 8 bytes each.
    """

    __slots__ = (
        "bytes_left", "delivered", "delivered_us", "due_us", "filter", "head", "headers_only", "last_offset", "last_us",
        "low_room", "messages_left", "next_offset", "payload_max", "pending", "prefix", "resume_offset", "room", "stop",
        "tail", "wanted", "wanted_at", "wanted_count",
    )  # fmt: skip

    def __init__(self, wanted: Filter, prefix: bytes, next_offset: _int) -> None:
        """`prefix`: of the reply subjects, up to the delivery count and its dot."""
        self.filter = wanted
        self.prefix = prefix
        self.head = b""
        self.tail = b" "
        self.next_offset = next_offset
        self.last_offset = next_offset - 1  # of the last delivered message
        self.last_us = 0  # its timestamp
        self.delivered = 0
        self.delivered_us = 0  # elapsed time of the last delivery
        self.pending = 0
        self.messages_left = 0
        self.bytes_left = _NEVER  # of a request with a limit
        self.room = 0  # bytes of frames that may be sent now
        self.low_room = 0
        self.due_us = _NEVER  # timestamp up to which messages are due
        self.headers_only = False
        self.payload_max = _NEVER  # of nats-server: without its value a larger message gets through
        self.wanted = b""
        self.wanted_at = 0
        self.wanted_count = 0
        self.resume_offset = 0
        self.stop = _TOOK_ALL

    def want(self, wanted: bytes, resume_offset: _int) -> None:
        """Deliver only these offsets below `resume_offset`, and from there on what the filter says."""
        if len(wanted) % 8:
            raise ValueError("offsets have 8 bytes")
        self.wanted = wanted
        self.wanted_at = 0
        self.wanted_count = len(wanted) // 8
        self.resume_offset = resume_offset

    def next_wanted(self) -> _int:
        """Return the offset at which the next wanted message may be."""
        if self.next_offset >= self.resume_offset:
            return self.next_offset
        offsets = load.int64s(self.wanted, 0, self.wanted_count)
        while self.wanted_at < self.wanted_count and offsets[self.wanted_at] < self.next_offset:
            self.wanted_at += 1
        return offsets[self.wanted_at] if self.wanted_at < self.wanted_count else self.resume_offset

    def to(self, inbox: bytes, group: bytes) -> None:
        """Send to this inbox; `group`: to one member of that queue group, if it is not empty."""
        self.head = b"%b + " % inbox if group else b"%b " % inbox
        self.tail = b" %b " % group if group else b" "

    def fill(self, rows: DecodedRows, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        """Append frames of the rows from `next_offset` on; return why it stopped."""
        self.stop = self._fill(rows, out, bytes_max, now_us)
        return self.stop

    def _fill(self, rows: DecodedRows, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        if rows.begin_offset > self.next_offset:
            raise IndexError(f"rows from {rows.begin_offset} on for a cursor at {self.next_offset}")
        count = rows.count
        offsets = load.int64s(rows.offsets, 0, count)
        times = load.int64s(rows.times, 0, count)
        subject_ends = load.int32s(memoryview(rows.subject_ends), 0, count + 1)
        value_ends = load.int32s(memoryview(rows.value_ends), 0, count + 1)
        has_headers = len(rows.header_ends) > 0
        header_ends = load.int32s(memoryview(rows.header_ends), 0, count + 1) if has_headers else value_ends
        subject_text = rows.subjects
        value_text = rows.values
        header_text = rows.headers
        skipped = rows.skipped
        is_masked = len(rows.skipped) > 0
        head = self.head
        tail = self.tail
        prefix = self.prefix
        lmsg = _LMSG
        hmsg = _HMSG
        line_end = _LINE_END
        headers_begin = _HEADERS_BEGIN
        size_header = _SIZE_HEADER
        row = rows.row_of(self.next_offset)
        while row < count:
            offset = offsets[row]
            if offset < self.resume_offset:
                self.next_offset = offset
                if self.next_wanted() > offset:
                    row += 1
                    self.next_offset = offset + 1
                    continue
            elif not self.filter.covers(subject_text, subject_ends[row], subject_ends[row + 1]):
                row += 1
                self.next_offset = offset + 1
                continue
            if is_masked and skipped[row]:
                row += 1
                self.next_offset = offset + 1
                continue
            if self.messages_left <= 0:
                return _EXHAUSTED
            if self.room <= 0:
                return _NO_ROOM
            time_us = times[row]
            if time_us > self.due_us:
                return _TOO_EARLY
            subject_begin = subject_ends[row]
            subject_size = subject_ends[row + 1] - subject_begin
            value_begin = value_ends[row]
            value_size = value_ends[row + 1] - value_begin
            header_begin = header_size = 0
            if has_headers:
                header_begin = header_ends[row]
                header_size = header_ends[row + 1] - header_begin
                if header_size and not _is_block(header_text, header_begin, header_begin + header_size):
                    header_size = 0
            block_size = header_size
            told_size = value_size
            is_cut = self.headers_only or header_size + value_size > self.payload_max
            if is_cut:
                block_size = (header_size - 2 if header_size else len(_HEADERS_BEGIN)) + len(_SIZE_HEADER)
                block_size += memory.decimal_digits(value_size) + 4
                value_size = 0
            pending = self.pending + self.filter.seen - 1
            if pending < 0:
                pending = 0
            reply_size = (
                len(self.prefix) + memory.decimal_digits(offset + 1) + memory.decimal_digits(self.delivered + 1)
            )
            reply_size += memory.decimal_digits(1000 * time_us) + memory.decimal_digits(pending) + 3
            size = subject_size + reply_size + block_size + value_size
            if size > self.bytes_left:
                return _TOO_LARGE
            need = 5 + len(self.head) + reply_size + 1 + subject_size + len(self.tail)
            if block_size:
                need += memory.decimal_digits(block_size) + 1
            need += memory.decimal_digits(block_size + value_size) + 2 + block_size + value_size + 2
            if len(out) and len(out) + need > bytes_max:
                return _FULL
            at = memory.widen(out, need)
            target = out
            if block_size:
                memory.put(target, at, hmsg, 0, 5)
            else:
                memory.put(target, at, lmsg, 0, 5)
            at += 5
            memory.put(target, at, head, 0, len(self.head))
            at += len(self.head)
            memory.put(target, at, prefix, 0, len(self.prefix))
            at = memory.put_decimal(target, at + len(self.prefix), offset + 1)
            target[at] = 46
            at = memory.put_decimal(target, at + 1, self.delivered + 1)
            target[at] = 46
            at = memory.put_decimal(target, at + 1, 1000 * time_us)
            target[at] = 46
            at = memory.put_decimal(target, at + 1, pending)
            target[at] = 64
            memory.put(target, at + 1, subject_text, subject_begin, subject_begin + subject_size)
            at += 1 + subject_size
            memory.put(target, at, tail, 0, len(self.tail))
            at += len(self.tail)
            if block_size:
                at = memory.put_decimal(target, at, block_size)
                target[at] = 32
                at += 1
            at = memory.put_decimal(target, at, block_size + value_size)
            memory.put(target, at, line_end, 0, 2)
            at += 2
            if is_cut:
                if header_size:
                    memory.put(target, at, header_text, header_begin, header_begin + header_size - 2)
                    at += header_size - 2
                else:
                    memory.put(target, at, headers_begin, 0, len(_HEADERS_BEGIN))
                    at += len(_HEADERS_BEGIN)
                memory.put(target, at, size_header, 0, len(_SIZE_HEADER))
                at = memory.put_decimal(target, at + len(_SIZE_HEADER), told_size)
                memory.put(target, at, line_end, 0, 2)
                memory.put(target, at + 2, line_end, 0, 2)
                at += 4
            else:
                memory.put(target, at, header_text, header_begin, header_begin + header_size)
                at += header_size
            memory.put(target, at, value_text, value_begin, value_begin + value_size)
            at += value_size
            memory.put(target, at, line_end, 0, 2)
            row += 1
            self.next_offset = offset + 1
            self.last_offset = offset
            self.last_us = time_us
            self.delivered += 1
            self.delivered_us = now_us
            self.pending -= 1
            self.messages_left -= 1
            self.room -= need
            if self.bytes_left != _NEVER:
                self.bytes_left -= size
                if self.bytes_left == 0:
                    self.messages_left = 0
        self.next_offset = max(self.next_offset, rows.end_offset)
        if self.messages_left <= 0:
            return _EXHAUSTED
        return _LOW if self.room < self.low_room else _TOOK_ALL


def _is_block(text: bytes, begin: _int, end: _int) -> bool:
    """True if text[begin:end] may be a header block of NATS: clients that append over the socket may send any bytes."""
    if end - begin < len(_HEADERS_BEGIN) + 2 or not memory.begins(text, begin, end, _HEADERS_BEGIN):
        return False
    return memory.equals(text, end - 4, end, _HEADERS_END)


def deliver(
    cursors: list[Cursor],
    first: _int,
    rows: DecodedRows,
    out: bytearray,
    bytes_max: _int,
    now_us: _int,
    stopped: list[Cursor],
) -> _int:
    """Append frames of the rows for the cursors from number `first` on; return the number of the first one not served.

    Those that stop before the end, or that have little room left, are added to `stopped`.
    """
    number = first
    total = len(cursors)
    while number < total and len(out) < bytes_max:
        cursor = cursors[number]
        number += 1
        if cursor.fill(rows, out, bytes_max, now_us) != _TOOK_ALL:
            stopped.append(cursor)
    return number
