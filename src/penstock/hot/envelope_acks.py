"""Write Liftbridge acks for messages that came in an envelope: those of a whole batch at once.

Rules: pending acks are records end to end, each with every part of the ack that is known when the row is written, and
nothing else of the message. Records are made in this module; their sizes are checked all the same.

| bytes of a record | content                                                               |
|-------------------|-----------------------------------------------------------------------|
| 4                 | the row                                                               |
| 4, 4, 4           | bytes of what follows: target, subject, correlation                   |
| 1                 | 1: ack as soon as the row is written                                  |
| 1                 | 1: the target is the message's ack inbox                              |
| 2                 | the ack policy; 0                                                     |
| …                 | target subject of the ack, subject of the message, its correlation id |

The ack: cookie `b90e43b4`, version 0, 8 bytes of header, flags 0, type 1; then protobuf `Ack`, fields in order and
zeros omitted, as any protobuf library writes it. Fields from 1000 on are Penstock's; other readers skip them.

| field | type   | content                                                                        |
|-------|--------|--------------------------------------------------------------------------------|
| 1, 2  | string | stream; subject of its partition: the `head`, the same for all                 |
| 3     | string | subject of the message                                                         |
| 4     | int64  | offset; absent in a refusal                                                    |
| 5, 6  | string | ack inbox, correlation id, as the message gave them                            |
| 7     | enum   | ack policy                                                                     |
| 8     | int64  | when the row was written, in ns; absent in a refusal                           |
| 10    | enum   | the error; this and what follows are the `tail`                                |
| 1000… |        | partition, leader epoch, replicas, fsynced; or the JetStream error body (1004) |
"""

from __future__ import annotations

from penstock.hot import load, memory
from penstock.hot.message_group import MessageGroup

OK = 0
UNKNOWN = 1
INCORRECT_OFFSET = 2
TOO_LARGE = 3

_HEAD_BYTES = 20
_EARLY = 16
_TO_INBOX = 17
_POLICY = 18
_SPACE = 0x20
_PUB = b"PUB "
_LINE_END = b"\r\n"
_HEADER = bytes.fromhex("b90e43b400080001")
_STREAM = 0x0A  # tags: field << 3 | wire type
_PARTITION_SUBJECT = 0x12
_MSG_SUBJECT = 0x1A
_OFFSET = 0x20
_ACK_INBOX = 0x2A
_CORRELATION_ID = 0x32
_ACK_POLICY = 0x38
_RECEPTION = 0x40
_ACK_ERROR = 0x50
_PARTITION = bytes.fromhex("c03e")  # 1000, a number, and so on
_LEADER_EPOCH = bytes.fromhex("c83e")
_REPLICAS = bytes.fromhex("d03e")
_FSYNCED = bytes.fromhex("d83e")
_ERROR_BODY = bytes.fromhex("e23e")  # 1004, text
_NS_PER_US = 1_000
_int = int


class EnvelopeWaiter:
    """A cursor over records; see the table above."""

    __slots__ = ("correlation", "is_early", "next", "policy", "row", "subject", "target", "to_inbox")

    def __init__(self) -> None:
        self.row = self.target = self.subject = self.correlation = self.next = 0
        self.is_early = self.to_inbox = False
        self.policy = 0

    def read(self, text: bytes, at: int, end: int) -> None:
        """Read the record at `at`. Raise IndexError if it is incomplete."""
        if at < 0 or end - at < _HEAD_BYTES:
            raise IndexError(f"{end - at} bytes are no record")
        self.row = load.uint32(text, at)
        self.target = at + _HEAD_BYTES
        self.subject = self.target + load.uint32(text, at + 4)
        self.correlation = self.subject + load.uint32(text, at + 8)
        self.next = self.correlation + load.uint32(text, at + 12)
        self.is_early = text[at + _EARLY] != 0
        self.to_inbox = text[at + _TO_INBOX] != 0
        self.policy = text[at + _POLICY]
        if self.next > end:
            raise IndexError(f"a record ends at {self.next} of {end} bytes")


def keep(
    out: bytearray,
    row: int,
    text: bytes,
    target: int,
    target_end: int,
    subject: int,
    subject_end: int,
    correlation: int,
    correlation_end: int,
    is_early: bool,
    to_inbox: bool,
    policy: int,
) -> None:
    """Append a record to `out`. The caller has checked that the parts lie within `text`."""
    at = memory.widen(out, _HEAD_BYTES + target_end - target + subject_end - subject + correlation_end - correlation)
    head = out
    memory.put_int32(head, at, row)
    memory.put_int32(head, at + 4, target_end - target)
    memory.put_int32(head, at + 8, subject_end - subject)
    memory.put_int32(head, at + 12, correlation_end - correlation)
    head[at + _EARLY] = 1 if is_early else 0
    head[at + _TO_INBOX] = 1 if to_inbox else 0
    head[at + _POLICY] = policy
    head[at + _POLICY + 1] = 0
    at += _HEAD_BYTES
    memory.put(head, at, text, target, target_end)
    at += target_end - target
    memory.put(head, at, text, subject, subject_end)
    at += subject_end - subject
    if correlation >= 0:
        memory.put(head, at, text, correlation, correlation_end)


def waiting(group: MessageGroup, start: int, end: int, is_early: bool) -> bytes:
    """Return the records of the rows [start, end), numbered from `start`; `is_early`: those acked once written."""
    if not 0 <= start <= end <= group.count:
        raise IndexError(f"rows {start} to {end} of {group.count}")
    if group.enveloped is None:
        return b""
    kept = bytes(group.enveloped)
    text = kept
    out = bytearray()
    one = EnvelopeWaiter()
    at = 0
    while at < len(kept):
        one.read(text, at, len(kept))
        if start <= one.row < end and one.is_early == is_early:
            place = len(out)
            memory.append(out, text, at, one.next)
            target = out
            memory.put_int32(target, place, one.row - start)
        at = one.next
    return bytes(out)


def waiting_count(records: bytes) -> int:
    """Return the number of records."""
    text = records
    one = EnvelopeWaiter()
    count = at = 0
    while at < len(records):
        one.read(text, at, len(records))
        at = one.next
        count += 1
    return count


def acks(records: bytes, head: bytes, base_offset: int, timestamp_us: int, tail: bytes) -> bytes:
    """Return `PUB` commands that ack rows from `base_offset` on, which were written at `timestamp_us`."""
    if base_offset < 0 or timestamp_us < 0:
        raise ValueError(f"offset {base_offset}, {timestamp_us} us")
    out = bytearray()
    text = records
    one = EnvelopeWaiter()
    at = 0
    while at < len(records):
        one.read(text, at, len(records))
        _put(out, text, one, head, base_offset + one.row, timestamp_us * _NS_PER_US, tail)
        at = one.next
    return bytes(out)


def error_tail(error: int, body: bytes) -> bytes:
    """Return the end of a refusal: Liftbridge's error code, and JetStream's error body with the details."""
    return bytes((_ACK_ERROR, error)) + _ERROR_BODY + _varint(len(body)) + body


def head(stream: bytes, partition_subject: bytes) -> bytes:
    """Return the common beginning of all acks of a partition."""
    return b"%c%b%b%c%b%b" % (
        _STREAM, _varint(len(stream)), stream, _PARTITION_SUBJECT, _varint(len(partition_subject)), partition_subject
    )  # fmt: skip


def standing_tail(partition: int, leader_epoch: int, replicas: int, fsynced: bool) -> bytes:
    """Return the end of a positive ack: partition, leader epoch and durability."""
    got = ((_PARTITION, partition), (_LEADER_EPOCH, leader_epoch), (_REPLICAS, replicas), (_FSYNCED, fsynced))
    return b"".join([tag + _varint(number) for tag, number in got if number])


def _varint(value: int) -> bytes:
    out = bytearray(_varint_bytes(value))
    _put_varint(out, 0, value)
    return bytes(out)


def refusals(records: bytes, head: bytes, tail: bytes) -> bytes:
    """Return `PUB` commands that send the same error, in `tail`, to all of `records`."""
    out = bytearray()
    text = records
    one = EnvelopeWaiter()
    at = 0
    while at < len(records):
        one.read(text, at, len(records))
        _put(out, text, one, head, 0, 0, tail)
        at = one.next
    return bytes(out)


def _put(
    out: bytearray, text: bytes, one: EnvelopeWaiter, head: bytes, offset: int, reception_ns: int, tail: bytes
) -> None:
    """Append one command to `out`; a number that is 0 is omitted."""
    target_bytes = one.subject - one.target
    subject_bytes = one.correlation - one.subject
    correlation_bytes = one.next - one.correlation
    size = len(_HEADER) + len(head) + len(tail) + 1 + _varint_bytes(subject_bytes) + subject_bytes
    if offset:
        size += 1 + _varint_bytes(offset)
    if one.to_inbox:
        size += 1 + _varint_bytes(target_bytes) + target_bytes
    if correlation_bytes:
        size += 1 + _varint_bytes(correlation_bytes) + correlation_bytes
    if one.policy:
        size += 1 + _varint_bytes(one.policy)
    if reception_ns:
        size += 1 + _varint_bytes(reception_ns)
    at = memory.widen(out, 4 + target_bytes + 1 + memory.decimal_digits(size) + 2 + size + 2)
    target = out
    pub_text = _PUB
    line_end = _LINE_END
    header = _HEADER
    head_text = head
    tail_text = tail
    memory.put(target, at, pub_text, 0, 4)
    memory.put(target, at + 4, text, one.target, one.subject)
    at += 4 + target_bytes
    target[at] = _SPACE
    at = memory.put_decimal(target, at + 1, size)
    memory.put(target, at, line_end, 0, 2)
    memory.put(target, at + 2, header, 0, len(_HEADER))
    at += 2 + len(_HEADER)
    memory.put(target, at, head_text, 0, len(head))
    at = _put_bytes(target, at + len(head), _MSG_SUBJECT, text, one.subject, one.correlation)
    if offset:
        at = _put_number(target, at, _OFFSET, offset)
    if one.to_inbox:
        at = _put_bytes(target, at, _ACK_INBOX, text, one.target, one.subject)
    if correlation_bytes:
        at = _put_bytes(target, at, _CORRELATION_ID, text, one.correlation, one.next)
    if one.policy:
        at = _put_number(target, at, _ACK_POLICY, one.policy)
    if reception_ns:
        at = _put_number(target, at, _RECEPTION, reception_ns)
    memory.put(target, at, tail_text, 0, len(tail))
    memory.put(target, at + len(tail), line_end, 0, 2)


def _put_number(target: bytearray, at: int, tag: int, value: int) -> int:
    """Write a number field; return its end."""
    target[at] = tag
    return _put_varint(target, at + 1, value)


def _put_bytes(target: bytearray, at: int, tag: int, text: bytes, begin: int, end: int) -> int:
    """Write a text field; return its end."""
    target[at] = tag
    at = _put_varint(target, at + 1, end - begin)
    memory.put(target, at, text, begin, end)
    return at + end - begin


def _put_varint(target: bytearray, at: int, value: int) -> int:
    """Write a non-negative number, 7 bits per byte, lowest first; return its end."""
    while value >= 0x80:
        target[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    target[at] = value
    return at + 1


def _varint_bytes(value: int) -> int:
    """Return the number of bytes that `_put_varint` writes."""
    count = 1
    while value >= 0x80:
        value >>= 7
        count += 1
    return count
