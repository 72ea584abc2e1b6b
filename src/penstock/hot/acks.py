"""Write the PubAcks of a whole batch at once.

Rules: waiting publishers are kept as one text: the reply subject of each row, followed by a space, empty for a row
without one; no reply subject contains a space. So a pending ack holds no other memory of the socket read. A reply
subject under `$JS.ACK.` belongs to a JetStream consumer, which takes `+ACK` for an ack and no JSON: with JSON it would
redeliver.

    PUB _INBOX.a 92␍␊{"stream":"orders","seq":43,"offset":42,"partition":0,…}␍␊
    PUB $JS.ACK.orders.bridge.1.43.1.1700000000000000000.0 4␍␊+ACK␍␊
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import envelope_acks, memory, places, subjects
from penstock.hot.classification import RefusedMessage
from penstock.hot.message_group import MessageGroup

_SPACE = 0x20
_PUB = b"PUB "
_LINE_END = b"\r\n"
_OFFSET = b',"offset":'
_JETSTREAM_BODY = b" %d\r\n%b\r\n" % (len(subjects.JETSTREAM_ACKED), subjects.JETSTREAM_ACKED)
_DIGITS_MAX = 20  # of 64 bits
_LENGTH_DIGITS_MAX = 10  # of 32 bits
_int = int


def waiting(group: MessageGroup, start: int, end: int, is_early: bool) -> bytes:
    """Return the reply subjects of the rows [start, end); `is_early`: those acked once written. b"" if none."""
    if not 0 <= start <= end <= group.count:
        raise IndexError(f"rows {start} to {end} of {group.count}")
    place = places.EARLY if is_early else places.REPLY
    numbers = group.numbers
    if not cython.compiled:
        data = group.data
        begins = numbers[start * places.STRIDE + place : end * places.STRIDE : places.STRIDE]
        ends = numbers[start * places.STRIDE + place + 1 : end * places.STRIDE : places.STRIDE]
        # Both are -1 without a reply subject, which slices nothing.
        found = b" ".join([data[begin:stop] for begin, stop in zip(begins, ends, strict=True)])
        return found + b" " if len(found) >= max(end - start, 1) else b""
    size = 0
    for row in range(start, end):
        at = row * places.STRIDE + place
        size += numbers[at + 1] - numbers[at]
    if size == 0:
        return b""
    size += end - start
    text = memory.new_text(size)
    out = memory.inside(text)
    source = group.data
    position = 0
    for row in range(start, end):
        at = row * places.STRIDE + place
        if numbers[at] >= 0:
            memory.put(out, position, source, numbers[at], numbers[at + 1])
            position += numbers[at + 1] - numbers[at]
        out[position] = _SPACE
        position += 1
    return text


def waiting_count(replies: bytes) -> int:
    """Return the number of rows with a reply subject."""
    if not cython.compiled:
        return sum(map(bool, replies.split(b" ")[:-1]))
    text = replies
    count = begin = 0
    end = memory.find_byte(text, _SPACE, 0, len(replies))
    while end >= 0:
        if end > begin:
            count += 1
        begin = end + 1
        end = memory.find_byte(text, _SPACE, begin, len(replies))
    return count


def pubacks(stream: bytes, replies: bytes, base_offset: int, tail: bytes) -> bytes:
    """Return `PUB` commands that ack rows from `base_offset` on.

    `tail` is the part of the body after the offset. `stream` needs no escaping in JSON.
    """
    head = b'{"stream":"' + stream + b'","seq":'
    if not cython.compiled:
        acks = []
        for offset, reply in enumerate(replies.split(b" ")[:-1], base_offset):
            if reply and subjects.is_jetstream_ack(reply, 0, len(reply)):
                acks.append(_PUB + reply + _JETSTREAM_BODY)
            elif reply:
                body = b'%s%d,"offset":%d%s' % (head, offset + 1, offset, tail)
                acks.append(b"PUB %s %d\r\n%s\r\n" % (reply, len(body), body))
        return b"".join(acks)
    body_bytes = len(head) + len(_OFFSET) + len(tail)
    room = 4 + 1 + _LENGTH_DIGITS_MAX + 2 + body_bytes + 2 * _DIGITS_MAX + 2
    message = memory.new(len(replies) + waiting_count(replies) * room)
    out = message
    text = replies
    head_text = head
    tail_text = tail
    offset_text = _OFFSET
    pub_text = _PUB
    line_end = _LINE_END
    jetstream_body = _JETSTREAM_BODY
    at = 0
    begin = 0
    offset = base_offset
    end = memory.find_byte(text, _SPACE, 0, len(replies))
    while end >= 0:
        if end > begin:
            memory.put(out, at, pub_text, 0, 4)
            memory.put(out, at + 4, text, begin, end)
            at += 4 + end - begin
            if subjects.is_jetstream_ack(text, begin, end):
                memory.put(out, at, jetstream_body, 0, len(_JETSTREAM_BODY))
                at += len(_JETSTREAM_BODY)
            else:
                out[at] = _SPACE
                size = body_bytes + memory.decimal_digits(offset) + memory.decimal_digits(offset + 1)
                at = memory.put_decimal(out, at + 1, size)
                memory.put(out, at, line_end, 0, 2)
                memory.put(out, at + 2, head_text, 0, len(head))
                at = memory.put_decimal(out, at + 2 + len(head), offset + 1)
                memory.put(out, at, offset_text, 0, len(_OFFSET))
                at = memory.put_decimal(out, at + len(_OFFSET), offset)
                memory.put(out, at, tail_text, 0, len(tail))
                memory.put(out, at + len(tail), line_end, 0, 2)
                at += len(tail) + 2
        begin = end + 1
        offset += 1
        end = memory.find_byte(text, _SPACE, begin, len(replies))
    return memory.part(message, 0, at)


def waiting_again(group: MessageGroup, found: list[RefusedMessage], begin: _int, end: _int) -> tuple[bytes, bytes]:
    """Collect the duplicates of `found` whose first message is in [begin, end) and that want an ack.

    Return their reply subjects, each followed by a space, and the offsets of the first messages, 8 bytes each.
    """
    replies = []
    offsets = array("q")
    numbers = group.numbers
    for one in found:
        if one.is_answered and one.enveloped is None and begin <= one.number < end:
            at = one.row * places.STRIDE + places.REPLY
            replies.append(group.data[numbers[at] : numbers[at + 1]])
            offsets.append(one.number)
    replies.append(b"")
    return b" ".join(replies), offsets.tobytes()


def pubacks_again(stream: bytes, replies: bytes, offsets: bytes, tail: bytes) -> bytes:
    """Return `PUB` commands that ack these duplicates; `replies` and `offsets` are from `waiting_again`."""
    if len(replies) < len(offsets) // 8:
        raise ValueError(f"{len(replies)} bytes of reply subjects for {len(offsets) // 8} offsets")
    out = []
    for offset, reply in zip(memoryview(offsets).cast("q"), replies.split(b" "), strict=False):
        if subjects.is_jetstream_ack(reply, 0, len(reply)):
            out.append(_PUB + reply + _JETSTREAM_BODY)
            continue
        body = b'{"stream":"%b","seq":%d,"duplicate":true,"offset":%d%b' % (stream, offset + 1, offset, tail)
        out.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body))
    return b"".join(out)


def enveloped_again(found: list[RefusedMessage], begin: _int, end: _int) -> list[tuple[bytes, int]]:
    """Return such duplicates that came in an envelope: their records (see `envelope_acks`), and the offsets."""
    return [(one.enveloped, one.number) for one in found if one.enveloped is not None and begin <= one.number < end]


def enveloped_pubacks_again(found: list[tuple[bytes, int]], head: bytes, timestamp_us: _int, tail: bytes) -> bytes:
    """Return `PUB` commands that ack enveloped duplicates as the first was acked."""
    return b"".join([envelope_acks.acks(record, head, offset, timestamp_us, tail) for record, offset in found])
