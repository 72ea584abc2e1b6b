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

nats-server writes exactly one space between fields and ends a line with CR LF. What it publishes itself (message
traces, service latency, advisories, system events) has an empty reply subject, hence two spaces: no reply subject.
It lets a publisher put any byte but space, tab and LF into a subject. So LF ends a line, one space parts fields, and
a lone CR is a byte like others.
What is too large is reported as soon as its line (and headers) are there; its payload is skipped piece by piece as it
comes, so that it needs no memory: nats-server may take larger messages than any stream does.
Nothing is cut out: rows are positions in one immutable copy of what was read (see `group`).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.hot import memory
from penstock.hot.group import Group, TooLarge

_EXCERPT_BYTES = 40
_SIZE_DIGITS_MAX = len(str(limits.NATS_PAYLOAD_BYTES_MAX))
_SID_DIGITS_MAX = 18
_LINE_BYTES_MAX = limits.NATS_CONTROL_LINE_BYTES_MAX
_FRAME_BYTES_MAX = limits.NATS_FRAME_BYTES_MAX
_PAYLOAD_BYTES_MAX = limits.NATS_PAYLOAD_BYTES_MAX
_HEADERS_BYTES_MAX = limits.HEADER_BLOCK_BYTES_MAX

_LF = 0x0A
_CR = 0x0D
_SPACE = 0x20
_ZERO = 0x30
_MSG = b"MSG "
_HMSG = b"HMSG "


class ProtocolError(OperationalError):
    """Bytes that are not NATS protocol; `position` counts from the beginning of the scanned range."""

    def __init__(self, reason: str, position: int, excerpt: bytes) -> None:
        super().__init__(f"not NATS protocol: {reason} at byte {position}: {excerpt[:_EXCERPT_BYTES]!r}")
        self.reason = reason
        self.position = position


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
    return start + _scan(memory.part(buffer, start, end), sink)


def _scan(data: bytes, sink: Frames) -> int:
    text = data
    data_end = len(data)
    last_sid = 0  # which is nobody's
    group: Group | None = None
    position = _skip(data, 0, sink) if sink.skip_bytes else 0
    while not sink.skip_bytes:
        line_limit = position + _LINE_BYTES_MAX
        line_end = memory.find_byte(text, _LF, position, line_limit if line_limit < data_end else data_end)
        if line_end < 0:
            if data_end - position >= _LINE_BYTES_MAX:
                reason = f"no end of line within {_LINE_BYTES_MAX} bytes"
                raise ProtocolError(reason, position, data[position : position + _EXCERPT_BYTES])
            return position
        if memory.begins(text, position, line_end, _MSG):
            has_headers = False
        elif memory.begins(text, position, line_end, _HMSG):
            has_headers = True
        else:
            sink.lines.append(_other_line(data, position, line_end))
            position = line_end + 1
            continue
        subject = position + len(_MSG) + has_headers
        subject_end, reply, reply_end, number, header_size, size = _fields(
            data, position, subject, line_end, has_headers
        )
        payload = line_end + 1
        value = payload + header_size
        value_end = payload + size
        kept_end = value_end + 2
        if size > _FRAME_BYTES_MAX:
            kept_end = min(value, payload + _HEADERS_BYTES_MAX)
        if kept_end > data_end:
            sink.needed_bytes = kept_end - position
            return position
        if group is None or number != last_sid:
            if number <= 0:
                raise _mistake("bad subscription id", data, position, line_end)
            group = _group(data, number, sink)
            last_sid = number
        if size > _FRAME_BYTES_MAX:
            group.too_large.append(
                TooLarge(
                    data[subject:subject_end],
                    data[reply:reply_end] if reply >= 0 else None,
                    data[payload : min(value, kept_end)] if has_headers else None,
                    size,
                )
            )
            sink.skip_bytes = value_end + 2 - kept_end
            position = _skip(data, kept_end, sink)
            continue
        if text[value_end] != _CR or text[value_end + 1] != _LF:
            raise ProtocolError("payload without CR LF", position, data[value_end:kept_end])
        headers = headers_end = -1
        if has_headers:
            headers, headers_end = payload, value
        group.add(subject, subject_end, reply, reply_end, headers, headers_end, value, value_end, -1, -1, -1, -1)
        position = kept_end
    return position


def _fields(
    data: bytes, position: int, subject: int, line_end: int, has_headers: bool
) -> tuple[int, int, int, int, int, int]:
    """What stands in the line at `position` from its subject on.

    The end of the subject, begin and end of the reply subject (-1: none), the subscription id (below 1: none),
    the size of the headers (0 in MSG), that of all. ProtocolError.
    """
    if not cython.compiled:
        # In fewer, larger steps: each step of plain Python costs as much as a whole loop of C.
        fields = data[subject:line_end].split(b" ")
        count = len(fields) - has_headers
        if count < 3:
            raise _mistake("wrong number of fields", data, position, line_end)
        size_digits = fields[-1]  # the line's CR is still behind them
        is_size = count < 5 and len(size_digits) <= _SIZE_DIGITS_MAX + 1
        is_size = is_size and size_digits[-1:] == b"\r" and size_digits[:-1].isdigit()
        header_size = memory.number(fields[-2], 0, len(fields[-2]), _SIZE_DIGITS_MAX) if has_headers else 0
        if not is_size or header_size < 0:
            raise _mistake("bad size", data, position, line_end)
        size = int(size_digits)
        subject_end = subject + len(fields[0])
        sid_digits = fields[1]
        reply = reply_end = -1
        if count == 4 and fields[2]:
            reply = subject_end + 2 + len(sid_digits)
            reply_end = reply + len(fields[2])
        if size > _PAYLOAD_BYTES_MAX or header_size > size:
            raise _mistake("bad sizes", data, position, line_end)
        if subject == subject_end:
            raise _mistake("an empty subject", data, position, line_end)
        is_sid = sid_digits.isdigit() and sid_digits[0] != _ZERO and len(sid_digits) <= _SID_DIGITS_MAX
        return subject_end, reply, reply_end, int(sid_digits) if is_sid else -1, header_size, size
    text = data
    # Where each field begins, one behind the space before it; 0 where there is none.
    sid = 1 + memory.find_byte(text, _SPACE, subject, line_end)
    second = 1 + memory.find_byte(text, _SPACE, sid, line_end) if sid else 0
    third = 1 + memory.find_byte(text, _SPACE, second, line_end) if second else 0
    fourth = 1 + memory.find_byte(text, _SPACE, third, line_end) if third and has_headers else 0
    if not (third if has_headers else second):
        raise _mistake("wrong number of fields", data, position, line_end)
    digits = fourth or third or second
    size = memory.number(text, digits, line_end - 1, _SIZE_DIGITS_MAX) if text[line_end - 1] == _CR else -1
    header_size = 0
    if has_headers:
        header_size = memory.number(text, third if fourth else second, digits - 1, _SIZE_DIGITS_MAX)
    if size < 0 or header_size < 0:
        raise _mistake("bad size", data, position, line_end)
    reply = reply_end = -1
    if (fourth or (third and not has_headers)) and second < third - 1:
        reply, reply_end = second, third - 1
    if size > _PAYLOAD_BYTES_MAX or header_size > size:
        raise _mistake("bad sizes", data, position, line_end)
    if subject == sid - 1:
        raise _mistake("an empty subject", data, position, line_end)
    number = 0 if text[sid] == _ZERO else memory.number(text, sid, second - 1, _SID_DIGITS_MAX)
    return sid - 1, reply, reply_end, number, header_size, size


def _skip(data: bytes, position: int, sink: Frames) -> int:
    """Pass over what is there of a payload, and over its CR LF once both bytes are there."""
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


def _other_line(data: bytes, position: int, line_end: int) -> bytes:
    if line_end == position or data[line_end - 1] != _CR:
        raise _mistake("line without CR LF", data, position, line_end)
    line = data[position : line_end - 1]
    if line.startswith((b"MSG", b"HMSG")):
        raise _mistake("wrong number of fields", data, position, line_end)
    return line


def _mistake(reason: str, data: bytes, position: int, line_end: int) -> ProtocolError:
    return ProtocolError(reason, position, data[position:line_end])


def _group(data: bytes, sid: int, sink: Frames) -> Group:
    group = sink.groups.get(sid)
    if group is None:
        group = sink.groups[sid] = Group(data)
    return group
