"""Find the whole frames in a buffer of NATS protocol, server to client.

Rules: only whole frames are taken; the rest stays for the next call. Every size is bounded before it is used. Bytes
that are not NATS protocol raise ProtocolError with their position: the connection is then unusable. Nothing that a
*publisher* controls (subject, reply subject, sizes, headers, payload) raises, or any publisher could cut the connection
of all. A malformed message whose size is readable is skipped and counted.

| frame                                                               | becomes                             |
|---------------------------------------------------------------------|-------------------------------------|
| `MSG subject sid [reply] size␍␊` payload `␍␊`                       | one row in the group of its sid:    |
|                                                                     | of the lower GROUP_BITS bits of it  |
| `HMSG subject sid [reply] header-size total-size␍␊` … `␍␊`          | one row; `size` counts the headers  |
| either of them, with a size over NATS_FRAME_BYTES_MAX               | an entry in the group's `too_large` |
| either of them, with another line that ends with a size             | skipped, and counted in `skipped`   |
| either of them, with a longer line than NATS_CONTROL_LINE_BYTES_MAX | the same                            |
| any other line up to `␍␊`                                           | one entry in `lines`, in order      |

Possible values, by the writers of nats-server (`msgHeader` in its client.go is the only one for messages to clients):

| part    | possible values                                                                                   |
|---------|---------------------------------------------------------------------------------------------------|
| subject | any byte but space, tab and LF; through MQTT in older versions any byte but space                 |
|         | with spaces for events of an account whose name has some (`$SYS.ACCOUNT.my account.CONNECT`)      |
| sid     | as the broker chose it                                                                            |
| reply   | absent; as the subject; empty (two spaces) in what nats-server publishes itself: message traces,  |
|         | service latency, advisories, system events. An empty one counts as absent                         |
| sizes   | as the publisher wrote them: 1 to 9 digits, with leading zeros                                    |
| length  | 4 KiB from a client (`max_control_line`), 16 times that or more from a leaf node, 128 KiB by MQTT |

So a malformed line is split at the spaces after the verb, the subject and the sid, and it ends only after them: a
subject cannot forge the end of a line, or a frame.

A reply subject that cannot be answered counts as absent, and in `unanswerable`: nats-server closes the connection if an
answer's control line is over `max_control_line` (a leaf node may send longer ones), and also, if it reads the line in
two parts, if there is a CR in it.

A message that is too large is reported as soon as its line (and headers) are there; its payload is skipped piece by
piece as it comes, so that it needs no memory: nats-server may accept larger messages than any stream does. Nothing is
copied out: rows are positions in one immutable copy of the read (see `group`).

Subscriptions whose ids agree in the lower GROUP_BITS bits are those of one partition, or of several that share them:
their messages are one group, so that what a publisher sent on several subjects of a stream keeps its order.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.hot import memory
from penstock.hot.message_group import MessageGroup, TooLarge

GROUP_BITS = 32
"""Bits of a subscription id that name the group of its messages; those above number the group's subscriptions."""

_GROUP_MASK = (1 << GROUP_BITS) - 1
_EXCERPT_BYTES = 40
_SIZE_DIGITS_MAX = len(str(limits.NATS_PAYLOAD_BYTES_MAX))
_SID_DIGITS_MAX = 18
_LINE_BYTES_MAX = limits.NATS_CONTROL_LINE_BYTES_MAX
_FRAME_BYTES_MAX = limits.NATS_FRAME_BYTES_MAX
_PAYLOAD_BYTES_MAX = limits.NATS_PAYLOAD_BYTES_MAX
_HEADERS_BYTES_MAX = limits.HEADER_BLOCK_BYTES_MAX
_REPLY_BYTES_MAX = limits.NATS_REPLY_BYTES_MAX

# Negative `skip_bytes` within the line of a skipped message: the number of its spaces still to come, negated, - 1.
_IN_SUBJECT = -3
_IN_REST = -1
_LINE_REST_BYTES = 1 + _SIZE_DIGITS_MAX + 1  # bytes of the rest to keep: a space, the size, CR

_LF = 0x0A
_CR = 0x0D
_SPACE = 0x20
_ZERO = 0x30
_LINE_END = b"\r\n"
_MSG = b"MSG "
_HMSG = b"HMSG "


class ProtocolError(OperationalError):
    """Bytes that are not NATS protocol; `position` counts from the beginning of the scanned range."""

    def __init__(self, reason: str, position: int, excerpt: bytes) -> None:
        super().__init__(f"not NATS protocol: {reason} at byte {position}: {excerpt[:_EXCERPT_BYTES]!r}")
        self.reason = reason
        self.position = position


class Frames:
    """Result of a scan: `groups`, and other `lines` without their CR LF, in order.

    `groups`: by the lower GROUP_BITS bits of the subscription id.
    `needed_bytes`: bytes needed from the returned position on before another scan can find more (0 = any).
    `skip_bytes`, in and out: bytes from the position on (the CR LF included) that end a skipped message; negative: its
    line has not ended. `skipped`: number of malformed messages; `skipped_line` is the beginning of the first one's
    line. `unanswerable`: number of messages with a reply subject that nats-server would not let the broker answer.
    """

    __slots__ = ("groups", "lines", "needed_bytes", "skip_bytes", "skipped", "skipped_line", "unanswerable")

    def __init__(self, skip_bytes: int = 0) -> None:
        self.groups: dict[int, MessageGroup] = {}
        self.lines: list[bytes] = []
        self.needed_bytes = 0
        self.skip_bytes = skip_bytes
        self.skipped = 0
        self.skipped_line = b""
        self.unanswerable = 0


def scan(buffer: bytes | bytearray | memoryview, start: int, end: int, sink: Frames) -> int:
    """Take the whole frames of buffer[start:end] into `sink`; return the position after the last one.

    Raise ProtocolError; `sink` then holds the frames before the error.
    """
    return start + _scan(memory.part(buffer, start, end), sink)


def _scan(data: bytes, sink: Frames) -> int:
    text = data
    data_end = len(data)
    last_group = 0  # no subscription is in it
    group: MessageGroup | None = None
    position = _skip(data, 0, sink) if sink.skip_bytes else 0
    while not sink.skip_bytes:
        line_limit = min(position + _LINE_BYTES_MAX, data_end)
        line_end = 1 + memory.find_byte(text, _CR, position, line_limit)  # nearly all lines have no other CR
        has_cr = not 0 < line_end < line_limit or text[line_end] != _LF
        if has_cr:
            line_end = memory.find(text, position, line_limit, _LINE_END, 0, 2)
            line_end += line_end >= 0
        if memory.begins(text, position, data_end, _MSG):
            has_headers = False
        elif memory.begins(text, position, data_end, _HMSG):
            has_headers = True
        else:
            if not _takes_line(data, position, line_end, sink):
                return position
            position = line_end + 1
            continue
        subject = position + len(_MSG) + has_headers
        if has_cr and line_end < 0:
            if data_end - position < _LINE_BYTES_MAX:
                return position
            position = _skip_strange(data, position, subject, sink)
            continue
        subject_end, reply, reply_end, number, header_size, size = _fields(data, subject, line_end, has_headers)
        if size < 0:
            position = _skip_strange(data, position, subject, sink)
            continue
        payload = line_end + 1
        value = payload + header_size
        value_end = payload + size
        kept_end = value_end + 2
        if size > _FRAME_BYTES_MAX:
            kept_end = min(value, payload + _HEADERS_BYTES_MAX)
        if kept_end > data_end:
            sink.needed_bytes = kept_end - position
            return position
        if (has_cr or reply_end - reply > _REPLY_BYTES_MAX) and not _is_answerable(data, reply, reply_end):
            reply = reply_end = -1
            sink.unanswerable += 1
        number &= _GROUP_MASK
        if group is None or number != last_group:
            group = _group(data, number, sink)
            last_group = number
        if size > _FRAME_BYTES_MAX:
            block = data[payload:kept_end] if has_headers else None
            told = data[reply:reply_end] if reply >= 0 else None
            group.too_large.append(TooLarge(data[subject:subject_end], told, block, size))
            sink.skip_bytes = value_end + 2 - kept_end
            position = _skip(data, kept_end, sink)
            continue
        if text[value_end] != _CR or text[value_end + 1] != _LF:
            raise ProtocolError("payload without CR LF", position, data[value_end:kept_end])
        headers, headers_end = (payload if has_headers else -1), (value if has_headers else -1)
        group.add(subject, subject_end, reply, reply_end, headers, headers_end, value, value_end, -1, -1, -1, -1)
        position = kept_end
    return position


def _fields(data: bytes, subject: int, line_end: int, has_headers: bool) -> tuple[int, int, int, int, int, int]:
    """Parse a message's line from its subject on.

    Return the end of the subject, begin and end of the reply subject (-1: none), the subscription id, the size of the
    headers (0 in MSG), and the total size (-1: the line is malformed).
    """
    reply = reply_end = -1
    if not cython.compiled:
        # Fewer, larger steps: each step of plain Python costs as much as a whole C loop.
        fields = data[subject:line_end].split(b" ")
        count = len(fields) - has_headers
        size_digits, sid_digits = fields[-1], fields[1] if count > 2 else b""  # the line's CR still follows the size
        is_size = len(size_digits) <= _SIZE_DIGITS_MAX + 1 and size_digits[:-1].isdigit()
        is_sid = sid_digits.isdigit() and sid_digits[0] != _ZERO and len(sid_digits) <= _SID_DIGITS_MAX
        if not is_size or not is_sid or count > 4 or not fields[0]:
            return 0, -1, -1, 0, 0, -1
        size = int(size_digits)
        header_size = memory.number(fields[-2], 0, len(fields[-2]), _SIZE_DIGITS_MAX) if has_headers else 0
        if not 0 <= header_size <= size <= _PAYLOAD_BYTES_MAX:
            return 0, -1, -1, 0, 0, -1
        subject_end = subject + len(fields[0])
        if count == 4 and fields[2]:
            reply = subject_end + 2 + len(sid_digits)
            reply_end = reply + len(fields[2])
        return subject_end, reply, reply_end, int(sid_digits), header_size, size
    text = data
    # The begin of each field, after the space before it; 0 if missing.
    sid = 1 + memory.find_byte(text, _SPACE, subject, line_end)
    second = 1 + memory.find_byte(text, _SPACE, sid, line_end) if sid else 0
    third = 1 + memory.find_byte(text, _SPACE, second, line_end) if second else 0
    fourth = 1 + memory.find_byte(text, _SPACE, third, line_end) if third and has_headers else 0
    if subject == sid - 1 or not (third if has_headers else second):
        return 0, -1, -1, 0, 0, -1
    digits = fourth or third or second
    size = memory.number(text, digits, line_end - 1, _SIZE_DIGITS_MAX)
    header_size = 0
    if has_headers:
        header_size = memory.number(text, third if fourth else second, digits - 1, _SIZE_DIGITS_MAX)
    number = 0 if text[sid] == _ZERO else memory.number(text, sid, second - 1, _SID_DIGITS_MAX)
    if not 0 <= header_size <= size <= _PAYLOAD_BYTES_MAX or number <= 0:
        return 0, -1, -1, 0, 0, -1
    if (fourth or (third and not has_headers)) and second < third - 1:
        reply, reply_end = second, third - 1
    return sid - 1, reply, reply_end, number, header_size, size


def _is_answerable(data: bytes, reply: int, reply_end: int) -> bool:
    return reply_end - reply <= _REPLY_BYTES_MAX and memory.find_byte(data, _CR, reply, reply_end) < 0


def _takes_line(data: bytes, position: int, line_end: int, sink: Frames) -> bool:
    """Take a line that is no message's; return False if it is incomplete."""
    if data.find(b"\n", position, position + _LINE_BYTES_MAX) != line_end:
        raise ProtocolError("line without CR LF", position, data[position:])
    if line_end >= 0:
        sink.lines.append(data[position : line_end - 1])
    elif len(data) - position >= _LINE_BYTES_MAX:
        raise ProtocolError(f"no end of line within {_LINE_BYTES_MAX} bytes", position, data[position:])
    return line_end >= 0


def _skip_strange(data: bytes, position: int, subject: int, sink: Frames) -> int:
    """Begin to skip the message at `position`, whose line is malformed or too long."""
    sink.skipped += 1
    if sink.skipped == 1:
        sink.skipped_line = data[position : position + _EXCERPT_BYTES].partition(b"\r")[0]  # without its payload
    sink.skip_bytes = _IN_SUBJECT
    return _skip(data, subject, sink)


def _skip(data: bytes, position: int, sink: Frames) -> int:
    """Skip the available part of a message; its final CR LF once both bytes are there."""
    if sink.skip_bytes < 0:
        position = _skip_line(data, position, sink)
        if sink.skip_bytes < 0:
            return position
    rest = len(data) - position
    if rest < sink.skip_bytes:
        taken = min(rest, sink.skip_bytes - 2)
        sink.skip_bytes -= taken
        sink.needed_bytes = 2 if sink.skip_bytes == 2 else 0
        return position + taken
    end = position + sink.skip_bytes
    if data[end - 2 : end] != b"\r\n":
        raise ProtocolError("payload without CR LF", position, data[end - 2 : end])
    sink.skip_bytes = 0
    return end


def _skip_line(data: bytes, position: int, sink: Frames) -> int:
    """Skip the available part of a message's line; at its end, set `skip_bytes` from its size."""
    while sink.skip_bytes < _IN_REST:
        position = 1 + data.find(b" ", position)
        if not position:
            return len(data)
        sink.skip_bytes += 1
    line_end = data.find(b"\n", position)
    if line_end < 0:
        return max(position, len(data) - _LINE_REST_BYTES)
    digits = max(position, 1 + data.rfind(b" ", position, line_end))
    size = -1
    if line_end > digits and data[line_end - 1] == _CR:
        size = memory.number(data, digits, line_end - 1, _SIZE_DIGITS_MAX)
    if not 0 <= size <= _PAYLOAD_BYTES_MAX:
        raise ProtocolError("a message without a size", position, data[position:line_end])
    sink.skip_bytes = size + 2
    return line_end + 1


def _group(data: bytes, sid: int, sink: Frames) -> MessageGroup:
    group = sink.groups.get(sid)
    if group is None:
        group = sink.groups[sid] = MessageGroup(data)
    return group
