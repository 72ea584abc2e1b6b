"""Write rows as deliveries to JetStream consumers: frames for a leaf connection to nats-server.

Rules: one decoded batch (`DecodedRows`) serves all cursors; each row is copied once, to its place in a frame. A cursor
never passes a row that it wants without delivering it: it stops before, and says why. Every bound of `DecodedRows` is
checked when it is made.

    LMSG <inbox> $JS.ACK.<stream>.<consumer>.<count>.<seq>.<delivered>.<ns>.<pending>@<subject> <bytes>␍␊<value>␍␊
    HMSG <inbox> <the same, with headers> <bytes of the headers> <bytes of all>␍␊<headers><value>␍␊

nats-server shows the client what is behind `@` as the subject, and the rest as the reply subject. For queue groups the
inbox is followed by `+`, and the reply subject by the groups.

Waiting pull requests are served in turn, one message each, as nats-server does: so clients that share a consumer get
equal shares. A request that has all it asked for, or too little room for the next message, leaves the queue.

    pulls: A B C ──A gets a row──▶ B C A ──B gets its last row──▶ C A      finished: B

A consumer with acks has a table of its pending messages (`Cursor.attach`): each delivery is entered there, and its
frame has the count of deliveries, and a token in the last three digits of the nanoseconds, for timestamps are in µs.
In an order by key, a message whose key is pending is passed, and parked in the table.
"""

from __future__ import annotations

from collections import deque

from penstock.hot import cells, keyhash, load, memory, subjects
from penstock.hot.pending import PendingTable

TOO_LARGE_HEADER = b"Penstock-Too-Large: max_payload\r\n"
"""Header of a message that comes without its value, because nats-server takes none of its size."""

TOOK_ALL = 0
EXHAUSTED = 1  # no request waits any more, or no messages are left of those it may send
NO_ROOM = 2  # enough bytes are on the way to the inbox
TOO_EARLY = 3  # the next message is due later (replay at the original pace)
FULL = 4  # enough frames at once
LOW = 5  # it took all, and its room is nearly used up, or a request is finished
PENDING_FULL = 6  # as many messages are in hand, or parked, as may be

_TOOK_ALL = 0  # the same for compiled code
_EXHAUSTED = 1
_NO_ROOM = 2
_TOO_EARLY = 3
_FULL = 4
_LOW = 5
_PENDING_FULL = 6

_ORDER_KEY = 1  # of the table's messages
_ORDER_SUBJECT = 2
_ORDER_TOKEN_FIRST = 3
_HASH_MASK = 0x7FFF_FFFF
_DOT = 0x2E

_HEADERS_BEGIN = b"NATS/1.0\r\n"
_HEADERS_END = b"\r\n\r\n"
_SIZE_HEADER = b"Nats-Msg-Size: "
_LARGE_HEADER = TOO_LARGE_HEADER  # the same for compiled code
_LMSG = b"LMSG "
_HMSG = b"HMSG "
_LINE_END = b"\r\n"
_NEVER = 2**63 - 1
UNLIMITED = _NEVER
_int = int


class Texts:
    """The texts of one column, as in Arrow: end to end, with their int32 value offsets. Every bound is checked here."""

    __slots__ = ("bounds", "count", "held", "size_bytes", "text")

    def __init__(self, ends: bytes, text: bytes | memoryview) -> None:
        """Raise ValueError unless `ends` are bounds of texts within `text`, which never changes and is not copied."""
        if len(ends) % 4 or len(ends) < 8:
            raise ValueError(f"{len(ends)} bytes of value offsets")
        self.held = (ends, text)  # compiled, `bounds` and `text` are pointers into them
        self.count = len(ends) // 4 - 1
        self.size_bytes = len(ends) + len(text)
        self.bounds = load.int32s(memoryview(ends), 0, self.count + 1)
        self.text = cells.bytes_of(memoryview(text))
        if self.bounds[0] < 0 or self.bounds[self.count] > len(text) or load.falls(self.bounds, self.count + 1):
            raise ValueError(f"value offsets are not in order within {len(text)} bytes")

    def size(self, row: _int) -> _int:
        """Return the bytes of one text."""
        return self.bounds[row + 1] - self.bounds[row]


class DecodedRows:
    """The rows of one batch, in order of their offsets; they are all that there is from `begin_offset` to the last.

    `skipped`: one byte for each row, not 0 if it is deleted by now; empty: none is. `delivered` counts frames, and
    `cut` those without their value, because of its size.
    """

    __slots__ = (
        "begin_offset", "count", "cut", "delivered", "end_offset", "has_headers", "has_keys", "headers", "held", "keys",
        "numbers", "offsets", "skipped", "subjects", "times", "values",
    )  # fmt: skip

    def __init__(
        self,
        begin_offset: _int,
        offsets: bytes,
        times: bytes,
        subjects: Texts,
        values: Texts,
        headers: Texts | None,
        keys: Texts | None = None,
    ) -> None:
        """`offsets` and `times` (µs) are int64; no headers: no row has any. ValueError: they do not fit together.

        `keys` are for consumers with an order by key alone: without them, and if it is empty, a row has none.
        """
        count = len(offsets) // 8
        if len(offsets) != 8 * count or len(times) != 8 * count or not count:
            raise ValueError(f"{len(offsets)} bytes of offsets and {len(times)} of timestamps")
        if subjects.count != count or values.count != count or (headers is not None and headers.count != count):
            raise ValueError(f"columns of {subjects.count} and {values.count} texts for {8 * count} bytes of offsets")
        if keys is not None and keys.count != count:
            raise ValueError(f"{keys.count} keys for {count} rows")
        self.begin_offset = begin_offset
        self.count = count
        self.offsets = offsets
        self.held = times  # compiled, `numbers` and `times` are pointers
        self.numbers = load.int64s(offsets, 0, count)
        self.times = load.int64s(times, 0, count)
        self.end_offset = self.numbers[count - 1] + 1
        self.subjects = subjects
        self.values = values
        self.has_headers = headers is not None
        self.headers = values if headers is None else headers
        self.has_keys = keys is not None
        self.keys = values if keys is None else keys
        self.skipped = b""
        self.delivered = 0
        self.cut = 0

    def size_bytes(self) -> int:
        """Bytes that it holds in memory."""
        size = self.headers.size_bytes if self.has_headers else 0
        if self.has_keys:
            size += self.keys.size_bytes
        return self.subjects.size_bytes + self.values.size_bytes + size + 16 * self.count

    def skip(self, skipped: bytes) -> None:
        """Say which rows are deleted by now."""
        if skipped and len(skipped) != self.count:
            raise ValueError(f"{len(skipped)} marks for {self.count} rows")
        self.skipped = skipped

    def is_skipped(self, row: _int) -> bool:
        """True if the row is deleted by now."""
        marks = self.skipped
        return len(self.skipped) > 0 and marks[row] != 0

    def row_of(self, offset: _int) -> _int:
        """Return the first row at or behind an offset; the number of rows if there is none."""
        low = 0
        high = self.count
        while low < high:
            middle = (low + high) >> 1
            if self.numbers[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def key_hash(self, row: _int, order: _int) -> _int:
        """Return the hash of what a row is ordered by, as `consumers.config` numbers the orders; 0: by nothing."""
        if order == _ORDER_KEY:
            return _hash(self.keys.text, self.keys.bounds[row], self.keys.bounds[row + 1]) if self.has_keys else 0
        text = self.subjects.text
        begin = self.subjects.bounds[row]
        end = self.subjects.bounds[row + 1]
        if order == _ORDER_SUBJECT:
            return _hash(text, begin, end)
        left = order - _ORDER_TOKEN_FIRST
        dot = memory.find_byte(text, _DOT, begin, end)
        while left > 0 and dot >= 0:
            begin = dot + 1
            dot = memory.find_byte(text, _DOT, begin, end)
            left -= 1
        if left > 0:
            return 0
        return _hash(text, begin, end if dot < 0 else dot)

    def block_size(self, row: _int) -> _int:
        """Return the bytes of its header block; 0 if it has none, or none that NATS would take."""
        if not self.has_headers:
            return 0
        headers = self.headers
        size = headers.size(row)
        is_block = size and _is_block(headers.text, headers.bounds[row], headers.bounds[row + 1])
        return size if is_block else 0


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
        for row in range(rows.row_of(offset), rows.count):
            if not rows.is_skipped(row) and self.covers(rows.subjects, row):
                found += 1
        return found

    def covers(self, texts: Texts, row: _int) -> bool:
        """True if the subject of that row matches."""
        if not self.patterns:
            return True
        for one in self.patterns:
            pattern = one
            if subjects.covers(pattern, len(one), texts.text, texts.bounds[row], texts.bounds[row + 1]):
                return True
        return False


class Pull:
    """A pull request: its inbox, and what it may still get. The deliver subject of a push consumer is one without end.

    `batch`: messages left, as it was asked for; 0 and less: one. `bytes_left`: 0: no limit. `is_too_small`: the next
    message is larger than what is left. Times are elapsed µs; `beat_us`: of the last heartbeat, message or its arrival.
    """

    __slots__ = (
        "batch", "beat_us", "bytes_left", "delivered", "expires_us", "has_limit", "head", "heartbeat_us", "inbox",
        "is_too_small", "no_wait", "received_us", "tail",
    )  # fmt: skip

    def __init__(self, inbox: bytes, groups: bytes, batch: _int, received_us: _int) -> None:
        """`groups`: to one member of each of these queue groups, separated by spaces, and to all outside of groups."""
        self.inbox = inbox
        self.head = b"%b + " % inbox if groups else b"%b " % inbox
        self.tail = b" %b " % groups if groups else b" "
        self.batch = batch
        self.bytes_left = 0
        self.has_limit = False  # of bytes
        self.no_wait = False
        self.expires_us = _NEVER
        self.heartbeat_us = 0  # interval; 0: none
        self.received_us = received_us
        self.beat_us = received_us
        self.delivered = 0
        self.is_too_small = False

    def due_us(self) -> int:
        """When something is to be done for it; UNLIMITED: never."""
        if self.heartbeat_us == 0:
            return self.expires_us
        return min(self.expires_us, self.beat_us + self.heartbeat_us)

    def _takes(self, size: _int) -> bool:
        """True if a message of this size, as JetStream counts it, is within its limit."""
        return not self.has_limit or size <= self.bytes_left

    def _took(self, size: _int, now_us: _int) -> bool:
        """Count a message; return if it has all that it asked for."""
        self.delivered += 1
        self.beat_us = now_us
        self.batch = max(1, self.batch) - 1
        if self.has_limit:
            self.bytes_left -= size
            if self.bytes_left == 0:
                self.batch = 0
        return self.batch == 0


class Cursor:
    """Position of one consumer, the requests that wait, and its limits for what is sent next.

    `pending` counts the messages that it wants, from `next_offset` on, less those that its filter has `seen`.
    `wanted`: offsets, in order, of all that it wants below `resume_offset` (the last of each subject), 8 bytes each.
    `pulls`: in the order in which they are served. `finished`: those that have left it, for the caller to take.
    """

    __slots__ = (
        "again", "count", "current", "delivered", "delivered_us", "due_us", "filter", "finished", "headers_only",
        "is_again", "is_blocked", "last_offset", "last_us", "low_room", "messages_left", "next_offset", "out_end",
        "payload_max", "pending", "prefix", "pulls", "resume_offset", "room", "stop", "table", "token", "wanted",
        "wanted_at", "wanted_count",
    )  # fmt: skip

    def __init__(self, wanted: Filter, prefix: bytes, next_offset: _int) -> None:
        """`prefix`: of the reply subjects, up to the delivery count and its dot."""
        self.filter = wanted
        self.prefix = prefix
        self.pulls: deque[Pull] = deque()
        self.finished: list[Pull] = []
        self.current: Pull | None = None  # the first one of `pulls`
        self.next_offset = next_offset
        self.last_offset = next_offset - 1  # the highest that was delivered
        self.last_us = 0  # its timestamp
        self.delivered = 0
        self.delivered_us = 0  # elapsed time of the last delivery
        self.pending = 0
        self.messages_left = _NEVER
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
        self.out_end = 0  # of the frames in the memory that is being filled
        self.table: PendingTable | None = None
        self.is_again = False  # messages are delivered again, and no new ones
        self.is_blocked = False  # one of them only, by max_ack_pending
        self.again = -1  # index in the table of the last one
        self.count = 0  # of deliveries of this message, as it is told; 0: `prefix` has it
        self.token = 0

    def want(self, wanted: bytes, resume_offset: _int) -> None:
        """Deliver only these offsets below `resume_offset`, and from there on what the filter says."""
        if len(wanted) % 8:
            raise ValueError("offsets have 8 bytes")
        self.wanted = wanted
        self.wanted_at = 0
        self.wanted_count = len(wanted) // 8
        self.resume_offset = resume_offset

    def attach(self, table: PendingTable, prefix: bytes) -> None:
        """Enter each delivery in a table from now on, and go on at its position: the consumer has acks.

        `prefix`: of the reply subjects, up to the consumer's name and its dot: the delivery count is written behind it.
        """
        self.table = table
        self.prefix = prefix
        self.next_offset = table.next_offset
        self.last_offset = self.next_offset - 1
        self.delivered = table.delivered

    def next_wanted(self) -> _int:
        """Return the offset at which the next wanted message may be."""
        if self.next_offset >= self.resume_offset:
            return self.next_offset
        offsets = load.int64s(self.wanted, 0, self.wanted_count)
        while self.wanted_at < self.wanted_count and offsets[self.wanted_at] < self.next_offset:
            self.wanted_at += 1
        return offsets[self.wanted_at] if self.wanted_at < self.wanted_count else self.resume_offset

    def fill(self, rows: DecodedRows, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        """Append frames of the rows from `next_offset` on; return why it stopped."""
        self.is_again = False
        self.stop = self._fill(rows, out, bytes_max, now_us)
        return self.stop

    def fill_again(self, rows: DecodedRows, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        """Append frames of those rows that are ready to be delivered again, or at last; return why it stopped.

        An offset of the batch that has no row, or whose row is deleted, leaves the table. Where `fill` goes on is left
        as it is.
        """
        table = self.table
        if table is None:
            raise ValueError("a consumer without acks delivers nothing again")
        self.is_again = True
        self.is_blocked = False
        self.again = table.lower_bound(rows.begin_offset) - 1
        stop = self._fill(rows, out, bytes_max, now_us)
        self.is_again = False
        return _PENDING_FULL if self.is_blocked and stop in (_TOOK_ALL, _LOW) else stop

    def _fill(self, rows: DecodedRows, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        if rows.begin_offset > self.next_offset and not self.is_again:
            raise IndexError(f"rows from {rows.begin_offset} on for a cursor at {self.next_offset}")
        self.current = self.pulls[0] if self.pulls else None
        self.out_end = len(out)
        row = self._next_row(rows, rows.row_of(self.next_offset))
        stop = _TOOK_ALL
        while row < rows.count and stop == _TOOK_ALL:
            stop = self._send(rows, row, out, bytes_max, now_us)
            if stop == _TOOK_ALL:
                row = self._next_row(rows, row + 1)
        if self.out_end < len(out):
            memory.cut(out, self.out_end)
        if stop == _TOOK_ALL and not self.is_again:
            self.next_offset = max(self.next_offset, rows.end_offset)
        if self.table is not None:
            self.table.pass_to(self.next_offset)
        if stop != _TOOK_ALL:
            return stop
        if self.messages_left <= 0 or self.current is None:
            return _EXHAUSTED
        return _LOW if self.room < self.low_room or self.finished else _TOOK_ALL

    def _drop(self) -> None:
        """The first request leaves the queue."""
        self.finished.append(self.pulls.popleft())
        self.current = self.pulls[0] if self.pulls else None

    def _next_row(self, rows: DecodedRows, row: _int) -> _int:
        """Pass the rows that it does not want; return the number of the next one, or of rows."""
        if self.is_again:
            return self._next_again(rows)
        while row < rows.count:
            offset = rows.numbers[row]
            if offset < self.resume_offset:
                self.next_offset = offset
                is_wanted = self.next_wanted() == offset
            else:
                is_wanted = self.filter.covers(rows.subjects, row)
            if is_wanted and not rows.is_skipped(row):
                return row
            self.next_offset = offset + 1
            row += 1
        return row

    def _send(self, rows: DecodedRows, row: _int, out: bytearray, bytes_max: _int, now_us: _int) -> int:
        """Append the frame of one row, within all limits; return why not."""
        if self.messages_left <= 0:
            return _EXHAUSTED
        if self.room <= 0:
            return _NO_ROOM
        if rows.times[row] > self.due_us and not self.is_again:
            return _TOO_EARLY
        if self.table is not None:
            if self.current is None:
                return _EXHAUSTED
            if self._parks(rows, row):
                return _TOOK_ALL
            if not self.is_again and self.table.has_no_room():
                return _PENDING_FULL
            self._number(rows, row)
        block_size = rows.block_size(row)
        value_size = rows.values.size(row)
        kept_size = block_size
        is_large = block_size + value_size > self.payload_max and not self.headers_only
        is_cut = is_large or self.headers_only
        if is_cut:
            block_size = _cut_size(kept_size, value_size, is_large)
            if block_size > self.payload_max:
                kept_size = 0
                block_size = _cut_size(0, value_size, is_large)
            value_size = 0
        pending = max(0, self.pending + self.filter.seen - 1) if self.table is None else self._pending_behind()
        reply_size = self._reply_size(rows, row, pending)
        size = reply_size + rows.subjects.size(row) + block_size + value_size
        while self.current is not None and not self.current._takes(size):  # noqa: SLF001
            self.current.is_too_small = True
            self._drop()
        pull = self.current
        if pull is None:
            return _EXHAUSTED
        need = 5 + len(pull.head) + reply_size + 1 + rows.subjects.size(row) + len(pull.tail)
        if block_size:
            need += memory.decimal_digits(block_size) + 1
        need += memory.decimal_digits(block_size + value_size) + 2 + block_size + value_size + 2
        at = self.out_end
        if at and at + need > bytes_max:
            return _FULL
        if at + need > len(out):
            self._widen(out, need, rows.count - row, bytes_max)
        self.out_end = at + need
        target = out
        at = self._put_line(target, at, rows, row, pending, block_size, block_size + value_size)
        if is_cut:
            at = _put_cut_block(target, at, rows, row, kept_size, is_large)
            rows.cut += is_large
        else:
            at = _put_text(target, at, rows.headers, row, block_size)
            at = _put_text(target, at, rows.values, row, value_size)
        memory.put(target, at, _LINE_END, 0, 2)
        self._sent(rows, row, need, now_us)
        if pull._took(size, now_us):  # noqa: SLF001
            self._drop()
        elif len(self.pulls) > 1:
            self.pulls.rotate(-1)
            self.current = self.pulls[0]
        return _TOOK_ALL

    def _widen(self, out: bytearray, need: _int, rows_left: _int, bytes_max: _int) -> None:
        """Make room for a frame, and for as many more of its size as may follow: each move would copy all before it."""
        pull = self.current
        assert pull is not None
        count = min(rows_left, self.messages_left)
        if len(self.pulls) == 1:
            count = min(count, max(1, pull.batch))
        memory.widen(out, self.out_end + max(need, min(need * count, bytes_max - self.out_end)) - len(out))

    def _reply_size(self, rows: DecodedRows, row: _int, pending: _int) -> int:
        """Return the bytes of the reply subject before its `@`."""
        size = len(self.prefix) + memory.decimal_digits(rows.numbers[row] + 1)
        size += memory.decimal_digits(self.delivered + 1) + memory.decimal_digits(1000 * rows.times[row] + self.token)
        if self.count:
            size += memory.decimal_digits(self.count) + 1
        return size + memory.decimal_digits(pending) + 3

    def _put_line(
        self, target: bytearray, at: _int, rows: DecodedRows, row: _int, pending: _int, block_size: _int, size: _int
    ) -> int:
        """Write the line of a frame for the first request; return its end."""
        pull = self.current
        assert pull is not None
        if block_size:
            memory.put(target, at, _HMSG, 0, 5)
        else:
            memory.put(target, at, _LMSG, 0, 5)
        memory.put(target, at + 5, pull.head, 0, len(pull.head))
        at += 5 + len(pull.head)
        memory.put(target, at, self.prefix, 0, len(self.prefix))
        at += len(self.prefix)
        if self.count:
            at = memory.put_decimal(target, at, self.count)
            target[at] = 46
            at += 1
        at = memory.put_decimal(target, at, rows.numbers[row] + 1)
        target[at] = 46
        at = memory.put_decimal(target, at + 1, self.delivered + 1)
        target[at] = 46
        at = memory.put_decimal(target, at + 1, 1000 * rows.times[row] + self.token)
        target[at] = 46
        at = memory.put_decimal(target, at + 1, pending)
        target[at] = 64
        at = _put_text(target, at + 1, rows.subjects, row, rows.subjects.size(row))
        memory.put(target, at, pull.tail, 0, len(pull.tail))
        at += len(pull.tail)
        if block_size:
            at = memory.put_decimal(target, at, block_size)
            target[at] = 32
            at += 1
        at = memory.put_decimal(target, at, size)
        memory.put(target, at, _LINE_END, 0, 2)
        return at + 2

    def _sent(self, rows: DecodedRows, row: _int, frame_size: _int, now_us: _int) -> None:
        """Go on behind a row whose frame is written."""
        rows.delivered += 1
        self.delivered += 1
        self.delivered_us = now_us
        self.messages_left -= 1
        self.room -= frame_size
        if not self.is_again:
            self.last_offset = rows.numbers[row]
            self.last_us = rows.times[row]
            self.next_offset = self.last_offset + 1
            self.pending -= 1
        elif rows.numbers[row] > self.last_offset:  # it was parked
            self.last_offset = rows.numbers[row]
        if self.table is not None:
            self._enter(rows, row, now_us)

    # With a table.

    def _next_again(self, rows: DecodedRows) -> _int:
        """Return the number of the next row that is ready to be delivered again; the number of rows: there is none."""
        table = self.table
        assert table is not None
        index = table.next_ready(self.again + 1)
        while index >= 0:
            offset = table.offsets[index]
            if offset >= rows.end_offset:
                break
            row = rows.row_of(offset)
            if row == rows.count or rows.numbers[row] != offset or rows.is_skipped(row):
                table.give_up(offset)
                index = table.next_ready(table.lower_bound(offset))
            elif table.deliveries_at(index) == 0 and table.ack_pending - table.ended >= table.pending_max:
                self.is_blocked = True  # those behind it may be counted already: they go out, or nothing would go on
                index = table.next_ready(index + 1)
            else:
                self.again = index
                return row
        return rows.count

    def _parks(self, rows: DecodedRows, row: _int) -> bool:
        """Pass a new message whose key is pending, and park it; False: it is another one, or there is no room."""
        table = self.table
        assert table is not None
        if self.is_again or not table.is_ordered or table.has_no_room():
            return False
        key_hash = rows.key_hash(row, table.order)
        if not table.is_busy(key_hash):
            return False
        table.park(rows.numbers[row], key_hash)
        self.next_offset = rows.numbers[row] + 1
        self.pending -= 1
        return True

    def _number(self, rows: DecodedRows, row: _int) -> None:
        """Set what the frame tells of this delivery."""
        table = self.table
        assert table is not None
        self.count = table.deliveries_at(self.again) + 1 if self.is_again else 1
        self.token = table.token(rows.numbers[row] + 1, self.delivered + 1)

    def _pending_behind(self) -> int:
        """Return how many messages will be undelivered behind this one."""
        table = self.table
        assert table is not None
        pending = self.pending + self.filter.seen + table.parked
        if not self.is_again or table.deliveries_at(self.again) == 0:
            pending -= 1
        return max(0, pending)

    def _enter(self, rows: DecodedRows, row: _int, now_us: _int) -> None:
        """Enter the delivery of a row in the table."""
        table = self.table
        assert table is not None
        if self.is_again:
            table.deliver_again(self.again, now_us)
        else:
            table.deliver(rows.numbers[row], rows.key_hash(row, table.order) if table.is_ordered else 0, now_us)


def _hash(text: bytes, begin: _int, end: _int) -> _int:
    """Return the hash of a key, 31 bits and not 0; 0: it is empty, which is none."""
    if begin == end:
        return 0
    value = keyhash.hash_of(text, begin, end) & _HASH_MASK
    return value if value else 1


def _cut_size(kept_size: _int, value_size: _int, is_large: bool) -> _int:
    """Return the bytes of a header block that tells the size of the value, which is left out."""
    size = kept_size - 2 if kept_size else len(_HEADERS_BEGIN)
    if is_large:
        size += len(_LARGE_HEADER)
    return size + len(_SIZE_HEADER) + memory.decimal_digits(value_size) + 4


def _put_cut_block(target: bytearray, at: _int, rows: DecodedRows, row: _int, kept_size: _int, is_large: bool) -> _int:
    """Write the header block that tells the size of the value; return its end. `kept_size`: of its own headers."""
    if kept_size:
        at = _put_text(target, at, rows.headers, row, kept_size - 2)
    else:
        memory.put(target, at, _HEADERS_BEGIN, 0, len(_HEADERS_BEGIN))
        at += len(_HEADERS_BEGIN)
    if is_large:
        memory.put(target, at, _LARGE_HEADER, 0, len(_LARGE_HEADER))
        at += len(_LARGE_HEADER)
    memory.put(target, at, _SIZE_HEADER, 0, len(_SIZE_HEADER))
    at = memory.put_decimal(target, at + len(_SIZE_HEADER), rows.values.size(row))
    memory.put(target, at, _LINE_END, 0, 2)
    memory.put(target, at + 2, _LINE_END, 0, 2)
    return at + 4


def _put_text(target: bytearray, at: _int, texts: Texts, row: _int, size: _int) -> _int:
    """Write the first `size` bytes of a text; return their end."""
    memory.put(target, at, texts.text, texts.bounds[row], texts.bounds[row] + size)
    return at + size


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

    Those that stop before the end, have little room left or a request that is finished, are added to `stopped`.
    """
    number = first
    total = len(cursors)
    while number < total and len(out) < bytes_max:
        cursor = cursors[number]
        number += 1
        if cursor.fill(rows, out, bytes_max, now_us) != _TOOK_ALL:
            stopped.append(cursor)
    return number
