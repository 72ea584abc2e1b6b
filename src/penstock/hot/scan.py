"""Find the whole frames in a buffer of NATS protocol, server to client.

Rules: only whole frames are taken; the rest stays for the next call. Every size is bounded before it is used. What is
not NATS protocol raises ProtocolError with its position: the connection is then of no more use. What a *publisher* can
choose (subject, reply subject, headers, payload) never raises, or any publisher could cut the connection of all.

| frame                                                           | becomes                             |
|-----------------------------------------------------------------|-------------------------------------|
| `MSG subject sid [reply] size␍␊` payload `␍␊`                    | one row in the group of its sid     |
| `HMSG subject sid [reply] header-size total-size␍␊` … `␍␊`       | one row; `size` counts the headers  |
| either of them, with a size over NATS_FRAME_BYTES_MAX           | an entry in the group's `too_large` |
| any other line up to `␍␊`                                       | one entry in `lines`, in order      |

nats-server writes exactly one space between fields and ends a line with CR LF; it lets a publisher put any byte but
space, tab and LF into a subject. So LF ends a line, one space parts fields, and a lone CR is a byte like others.
What is too large is reported as soon as its line (and headers) are there; its payload is skipped piece by piece as it
comes, so that it needs no memory: nats-server may take larger messages than any stream does.
Rows are cut out of one immutable copy of the buffer: a slice of `bytes` is one allocation, of a `bytearray` two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError

_CR = 13
_CRLF = b"\r\n"
_EXCERPT_BYTES = 40
_SIZE_DIGITS_MAX = len(str(limits.NATS_PAYLOAD_BYTES_MAX))
_SID_DIGITS_MAX = 18
_LINE_BYTES_MAX = limits.NATS_CONTROL_LINE_BYTES_MAX
_FRAME_BYTES_MAX = limits.NATS_FRAME_BYTES_MAX
_PAYLOAD_BYTES_MAX = limits.NATS_PAYLOAD_BYTES_MAX
_HEADERS_BYTES_MAX = limits.HEADER_BLOCK_BYTES_MAX


class ProtocolError(OperationalError):
    """Bytes that are not NATS protocol; `position` counts from the beginning of the scanned range."""

    def __init__(self, reason: str, position: int, excerpt: bytes) -> None:
        super().__init__(f"not NATS protocol: {reason} at byte {position}: {excerpt[:_EXCERPT_BYTES]!r}")
        self.reason = reason
        self.position = position


class TooLarge(NamedTuple):
    """A message whose payload was skipped. `size` counts payload and headers, in bytes.

    `headers` is the beginning of its header block, at most HEADER_BLOCK_BYTES_MAX bytes (None for a message without).
    """

    subject: bytes
    reply: bytes | None
    headers: bytes | None
    size: int


class Group:
    """The messages of one subscription, as columns of equal length, in the order in which they came.

    `headers` holds raw header blocks (None for a message without). `payload_bytes` is the sum of values and headers.
    `too_large` holds the messages beyond NATS_FRAME_BYTES_MAX, which are no rows.
    """

    __slots__ = ("headers", "payload_bytes", "replies", "subjects", "too_large", "values")

    def __init__(self) -> None:
        self.subjects: list[bytes] = []
        self.replies: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.values: list[bytes] = []
        self.too_large: list[TooLarge] = []
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self.values)


class Frames:
    """What one scan found: `groups` by subscription id, other `lines` without their CR LF, in order.

    `needed_bytes`: how many bytes must lie from the returned position on before another scan can find more (0 = any).
    `skip_bytes`, in and out: so many bytes from the position on (the CR LF among them) end a message that is too large.
    """

    __slots__ = ("groups", "lines", "needed_bytes", "skip_bytes")

    def __init__(self, skip_bytes: int = 0) -> None:
        self.groups: dict[int, Group] = {}
        self.lines: list[bytes] = []
        self.needed_bytes = 0
        self.skip_bytes = skip_bytes


def scan(buffer: bytes | bytearray | memoryview, start: int, end: int, sink: Frames) -> int:
    """Take the whole frames of buffer[start:end] into `sink`; returns the position after the last one.

    Raises ProtocolError; `sink` then holds the frames before the mistake.
    """
    try:
        return start + _scan(bytes(memoryview(buffer)[start:end]), sink)
    finally:
        for group in sink.groups.values():
            group.payload_bytes = _bytes_of(group.values) + _bytes_of(group.headers)


def _scan(data: bytes, sink: Frames) -> int:
    find = data.find
    data_end = len(data)
    last_sid = None  # not b"", which a hostile frame may bear
    position = _skip(data, 0, sink) if sink.skip_bytes else 0
    while not sink.skip_bytes:
        line_end = find(b"\n", position, position + _LINE_BYTES_MAX)
        if line_end < 0:
            if data_end - position >= _LINE_BYTES_MAX:
                raise ProtocolError(f"no end of line within {_LINE_BYTES_MAX} bytes", position, data[position:])
            return position
        fields = data[position:line_end].split(b" ")
        count = len(fields)
        operation = fields[0]
        header_size = -1
        reply = None
        if operation == b"MSG" and count == 5:
            _, subject, sid, reply, digits = fields
        elif operation == b"MSG" and count == 4:
            _, subject, sid, digits = fields
        elif operation == b"HMSG" and (count == 5 or count == 6):
            subject, sid, digits = fields[1], fields[2], fields[-1]
            reply = fields[3] if count == 6 else None
            header_size = _header_size(fields[-2], position)
        else:
            sink.lines.append(_other_line(data, position, line_end))
            position = line_end + 1
            continue
        # The last field still has the line's CR behind it.
        if digits[-1:] != b"\r" or not digits[:-1].isdigit() or len(digits) > _SIZE_DIGITS_MAX + 1:
            raise ProtocolError("bad size", position, data[position:line_end])
        size = int(digits)
        if size > _PAYLOAD_BYTES_MAX or header_size > size or not subject or reply == b"":
            raise ProtocolError("bad sizes or an empty subject", position, data[position:line_end])
        payload = line_end + 1
        value = payload + header_size if header_size >= 0 else payload
        value_end = payload + size
        kept_end = value_end + 2 if size <= _FRAME_BYTES_MAX else min(value, payload + _HEADERS_BYTES_MAX)
        if kept_end > data_end:
            sink.needed_bytes = kept_end - position
            return position
        if sid != last_sid:
            group = _group(sid, sink, position)
            last_sid = sid
        block = data[payload : min(value, kept_end)] if header_size >= 0 else None
        if size > _FRAME_BYTES_MAX:
            group.too_large.append(TooLarge(subject, reply, block, size))
            sink.skip_bytes = value_end + 2 - kept_end
            position = _skip(data, kept_end, sink)
            continue
        if data[value_end:kept_end] != _CRLF:
            raise ProtocolError("payload without CR LF", position, data[value_end:])
        group.subjects.append(subject)
        group.replies.append(reply)
        group.headers.append(block)
        group.values.append(data[value:value_end])
        position = kept_end
    return position


def _skip(data: bytes, position: int, sink: Frames) -> int:
    """Pass over what is there of a payload, and over its CR LF once both bytes are there."""
    rest = len(data) - position
    if rest < sink.skip_bytes:
        taken = min(rest, sink.skip_bytes - 2)
        sink.skip_bytes -= taken
        sink.needed_bytes = 2 if sink.skip_bytes == 2 else 0
        return position + taken
    end = position + sink.skip_bytes
    if data[end - 2 : end] != _CRLF:
        raise ProtocolError("payload without CR LF", position, data[end - 2 :])
    sink.skip_bytes = 0
    return end


def _header_size(digits: bytes, position: int) -> int:
    if not digits.isdigit() or len(digits) > _SIZE_DIGITS_MAX:
        raise ProtocolError("bad header size", position, digits)
    return int(digits)


def _other_line(data: bytes, position: int, line_end: int) -> bytes:
    if line_end == position or data[line_end - 1] != _CR:
        raise ProtocolError("line without CR LF", position, data[position:line_end])
    line = data[position : line_end - 1]
    if line.startswith((b"MSG", b"HMSG")):
        raise ProtocolError("wrong number of fields", position, line)
    return line


def _group(sid: bytes, sink: Frames, position: int) -> Group:
    if not sid.isdigit() or len(sid) > _SID_DIGITS_MAX or sid[:1] == b"0":
        raise ProtocolError("bad subscription id", position, sid)
    number = int(sid)
    group = sink.groups.get(number)
    if group is None:
        group = sink.groups[number] = Group()
    return group


def _bytes_of(values: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))
