"""Write the answers to JetStream's DIRECT.GET out of the rows of a batch: one HPUB for each message.

Rules: the batch was made here and is sound. The message's own header block comes first, as it was stored; then come the
headers that JetStream adds, in its order. A message that is too large for nats-server is answered with a status, since
a larger payload would cost the connection.

    HPUB _INBOX.a 139 144␍␊NATS/1.0␍␊Nats-Stream: orders␍␊Nats-Subject: orders.eu␍␊Nats-Sequence: 43␍␊
    Nats-Time-Stamp: 2023-11-14T22:13:20.5Z␍␊Nats-Num-Pending: 2␍␊Nats-Last-Sequence: 41␍␊␍␊hello␍␊
"""

from __future__ import annotations

from penstock.hot import load, memory
from penstock.hot.message import MessageLayout

_SUBJECT = 4  # buffers: validity, value offsets, bytes
_VALUE = 10
_HEADERS = 13
_OFFSETS = 1
_TIMESTAMPS = 3
_BUFFERS = 16
_DAY_US = 86_400_000_000
_ZERO = 0x30
_DASH = 0x2D
_COLON = 0x3A
_DOT = 0x2E
_TIME_BYTES = 27  # 2023-11-14T22:13:20.123456Z

_FIRST_LINE = b"NATS/1.0\r\n"
_STREAM = b"Nats-Stream: "
_SUBJECT_LINE = b"\r\nNats-Subject: "
_SEQUENCE = b"\r\nNats-Sequence: "
_TIME = b"\r\nNats-Time-Stamp: "
_PENDING = b"\r\nNats-Num-Pending: "
_LAST = b"\r\nNats-Last-Sequence: "
_END = b"\r\n\r\n"
_HPUB = b"HPUB "
_PUB = b"PUB "
_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_TOO_LARGE = b"NATS/1.0 413 Message Larger Than Max Payload\r\n\r\n"
_ADDED_BYTES = len(_FIRST_LINE + _STREAM + _SUBJECT_LINE + _SEQUENCE + _TIME + _END)
_ADDED_IN_BATCHES_BYTES = len(_PENDING + _LAST)
_ROOM_BYTES = 512  # for a row: names, numbers, time, command, and the status of one without a message
_int = int


def direct_answers(
    data: bytes,
    layout: MessageLayout,
    stream: bytes,
    replies: list[bytes],
    rows: list[int],
    pending: int,
    last: int,
    bytes_max: int,
    payload_max: int,
    has_headers: bool,
) -> tuple[bytes, int, int]:
    """Return HPUB commands that answer `replies[n]` with row `rows[n]`; -1: not found.

    `pending`: messages that follow the first one, in a batch read; -1: this is none. `last`: sequence of the message
    before. It ends behind the message with which `bytes_max` is reached. Also the number of answers, and their bytes as
    JetStream counts them: subjects, headers and values as stored. Without `has_headers`: PUB commands of the values.
    """
    count = load.int64s(data, layout.rows_position, 1)[0] if data else 0
    buffers = load.int64s(data, layout.buffers_position, 2 * _BUFFERS) if data else load.int64s(_NO_BUFFERS, 0, 32)
    body = len(layout.template)
    view = memoryview(data if data else _NO_BUFFERS)
    if not data:
        body = 0
    offsets = load.int64s_within(view, body + buffers[2 * _OFFSETS], max(count, 1))
    times = load.int64s_within(view, body + buffers[2 * _TIMESTAMPS], max(count, 1))
    subject_ends = load.int32s(view, body + buffers[2 * _SUBJECT + 2], count + 1)
    value_ends = load.int32s(view, body + buffers[2 * _VALUE + 2], count + 1)
    header_ends = load.int32s(view, body + buffers[2 * _HEADERS + 2], count + 1)
    subjects = body + buffers[2 * _SUBJECT + 4]
    values = body + buffers[2 * _VALUE + 4]
    headers = body + buffers[2 * _HEADERS + 4]
    size = 0
    for number in range(len(rows)):
        row = rows[number]
        if row >= count:
            raise IndexError(f"row {row} of {count}")
        size += _ROOM_BYTES + len(replies[number]) + len(stream)
        if row >= 0:
            size += (
                subject_ends[row + 1] - subject_ends[row]
                + value_ends[row + 1] - value_ends[row]
                + header_ends[row + 1] - header_ends[row]
            )  # fmt: skip
    message = memory.new(size)
    out = message
    text = data
    time_text = bytearray(_TIME_BYTES)
    time_out = time_text
    stream_text = stream
    stream_bytes = len(stream)
    not_found = _NOT_FOUND
    too_large = _TOO_LARGE
    at = sent = counted = 0
    for number in range(len(rows)):
        row = rows[number]
        reply = replies[number]
        reply_text = reply
        if row < 0:
            at = _put_status(out, at, reply_text, len(reply), not_found, len(_NOT_FOUND))
            sent += 1
            continue
        subject_bytes = subject_ends[row + 1] - subject_ends[row]
        value_bytes = value_ends[row + 1] - value_ends[row]
        own_bytes = header_ends[row + 1] - header_ends[row]
        sequence = offsets[row] + 1
        time_bytes = put_time(time_out, times[row])
        header_bytes = _ADDED_BYTES + stream_bytes + subject_bytes + memory.decimal_digits(sequence) + time_bytes
        if own_bytes > 2:
            header_bytes += own_bytes - 2 - len(_FIRST_LINE)
        if pending >= 0:
            header_bytes += _ADDED_IN_BATCHES_BYTES + memory.decimal_digits(pending) + memory.decimal_digits(last)
        if not has_headers:
            header_bytes = 0
        if header_bytes + value_bytes > payload_max:
            at = _put_status(out, at, reply_text, len(reply), too_large, len(_TOO_LARGE))
        else:
            at = _put_head(out, at, reply_text, len(reply), header_bytes, value_bytes)
            if has_headers:
                if own_bytes > 2:
                    at = _put(out, at, text, headers + header_ends[row], headers + header_ends[row] + own_bytes - 2)
                else:
                    at = _put(out, at, _FIRST_LINE, 0, len(_FIRST_LINE))
                at = _put(out, at, _STREAM, 0, len(_STREAM))
                at = _put(out, at, stream_text, 0, stream_bytes)
                at = _put(out, at, _SUBJECT_LINE, 0, len(_SUBJECT_LINE))
                at = _put(out, at, text, subjects + subject_ends[row], subjects + subject_ends[row] + subject_bytes)
                at = _put(out, at, _SEQUENCE, 0, len(_SEQUENCE))
                at = memory.put_decimal(out, at, sequence)
                at = _put(out, at, _TIME, 0, len(_TIME))
                at = _put(out, at, time_out, 0, time_bytes)
                if pending >= 0:
                    at = _put(out, at, _PENDING, 0, len(_PENDING))
                    at = memory.put_decimal(out, at, pending)
                    at = _put(out, at, _LAST, 0, len(_LAST))
                    at = memory.put_decimal(out, at, last)
                at = _put(out, at, _END, 0, 4)
            at = _put(out, at, text, values + value_ends[row], values + value_ends[row] + value_bytes)
            at = _put(out, at, _END, 0, 2)
        if pending > 0:
            pending -= 1
        last = sequence
        sent += 1
        counted += subject_bytes + value_bytes + own_bytes
        if counted >= bytes_max:
            break
    return memory.part(message, 0, at), sent, counted


_NO_BUFFERS = bytes(8 * 2 * _BUFFERS)
"""Of a batch without rows: all its buffers begin at 0."""


def put_time(out: bytearray, time_us: _int) -> int:
    """Write a time as JetStream does, RFC 3339 without zeros at the end, in UTC; return its number of bytes.

    Of years from 0 to 9999; others are clamped.
    """
    days = time_us // _DAY_US
    rest = time_us - days * _DAY_US
    days = min(max(days, -719_528), 2_932_896)
    # Civil date of a day count, by eras of 400 years that begin on 1 March (Howard Hinnant).
    days += 719_468
    era = days // 146_097
    of_era = days - era * 146_097
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    seconds = rest // 1_000_000
    rest -= seconds * 1_000_000
    _put_digits(out, 0, year, 4)
    out[4] = _DASH
    _put_digits(out, 5, month, 2)
    out[7] = _DASH
    _put_digits(out, 8, day, 2)
    out[10] = 0x54
    _put_digits(out, 11, seconds // 3_600, 2)
    out[13] = _COLON
    _put_digits(out, 14, seconds // 60 % 60, 2)
    out[16] = _COLON
    _put_digits(out, 17, seconds % 60, 2)
    at = 19
    if rest:
        out[19] = _DOT
        _put_digits(out, 20, rest, 6)
        at = 26
        while out[at - 1] == _ZERO:
            at -= 1
    out[at] = 0x5A
    return at + 1


def time_text(time_us: int) -> bytes:
    """Return a time as `put_time` writes it."""
    text = bytearray(_TIME_BYTES)
    return memory.part(text, 0, put_time(text, time_us))


def _put_digits(out: bytearray, at: _int, value: _int, digits: _int) -> None:
    for place in range(digits):
        out[at + digits - 1 - place] = _ZERO + value % 10
        value //= 10


def _put(out: bytearray, at: _int, text: bytes | bytearray, begin: _int, end: _int) -> int:
    memory.put(out, at, text, begin, end)
    return at + end - begin


def _put_head(out: bytearray, at: _int, reply: bytes, reply_bytes: _int, header_bytes: _int, value_bytes: _int) -> int:
    """Write the control line; without headers that of a PUB."""
    at = _put(out, at, _HPUB, 0, 5) if header_bytes else _put(out, at, _PUB, 0, 4)
    at = _put(out, at, reply, 0, reply_bytes)
    if header_bytes:
        at = _put(out, at, _PUB, 3, 4)  # a space
        at = memory.put_decimal(out, at, header_bytes)
    at = _put(out, at, _PUB, 3, 4)
    at = memory.put_decimal(out, at, header_bytes + value_bytes)
    return _put(out, at, _END, 0, 2)


def _put_status(out: bytearray, at: _int, reply: bytes, reply_bytes: _int, status: bytes, status_bytes: _int) -> int:
    at = _put_head(out, at, reply, reply_bytes, status_bytes, 0)
    at = _put(out, at, status, 0, status_bytes)
    return _put(out, at, _END, 0, 2)
