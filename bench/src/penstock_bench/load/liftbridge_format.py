"""Liftbridge's encoding: its envelope around a NATS payload, and the few protobuf messages of the benchmark.

Rules: The bytes before a value depend only on its size and the ack inbox, and no bytes follow it, so that a message is
encoded once and its value is a slice of it. A received length is checked against the end before use: invalid bytes
raise ValueError.

Theory: Liftbridge also stores a message without the envelope, but never acks it, so every message has one. A protobuf
field is a number and a kind in one varint, then a varint, or a length and as many bytes; the order of fields is free.

| byte | envelope                                                    |
|------|-------------------------------------------------------------|
| 0    | `B9 0E 43 B4`                                               |
| 4    | version, 0                                                  |
| 5    | length of the header: 8, or 12 with a CRC-32C at byte 8     |
| 6    | flags: 1 if there is a CRC                                  |
| 7    | kind: 0 a message, 1 an ack                                 |
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_bench.load.frames import Dialect

_MAGIC = b"\xb9\x0e\x43\xb4\x00"
_MESSAGE = _MAGIC + b"\x08\x00\x00"
_HEADER_BYTES = 8
_HEADER_WITH_CRC_BYTES = 12
_ACK_KIND = 1
_VARINT_BYTES_MAX = 10

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_BYTES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}

_MESSAGE_VALUE = 3
_MESSAGE_ACK_INBOX = 10
_ACK_STREAM = 1
_ACK_ERROR = 10
_EARLIEST = 2
_STOP_AT_LATEST = 2


def before_value(ack_inbox: str, size: int) -> bytes:
    """Return the bytes before a value of `size` bytes, acked on `ack_inbox` after the leader's write (default)."""
    return _MESSAGE + _text(_MESSAGE_ACK_INBOX, ack_inbox) + _tag(_MESSAGE_VALUE, _BYTES) + _varint(size)


def is_ack(payload: bytes) -> bool:
    """True if the payload is the ack of a stored message."""
    if len(payload) < _HEADER_BYTES or not payload.startswith(_MAGIC) or payload[7] != _ACK_KIND:
        return False
    header_bytes = payload[5]
    if header_bytes not in (_HEADER_BYTES, _HEADER_WITH_CRC_BYTES):
        return False
    try:
        found = dict(fields(payload[header_bytes:]))
    except ValueError:
        return False
    return bool(found.get(_ACK_STREAM)) and not found.get(_ACK_ERROR)


DIALECT = Dialect(before_value, is_ack)
"""The dialect for the generator."""


def create_stream(name: str, subject: str) -> bytes:
    """Encode a CreateStreamRequest: one partition, one replica."""
    return _text(1, subject) + _text(2, name) + _number(4, 1) + _number(5, 1)


def delete_stream(name: str) -> bytes:
    """Encode a DeleteStreamRequest."""
    return _text(1, name)


def subscribe(stream: str) -> bytes:
    """Encode a SubscribeRequest: partition 0, from the first to the currently last message."""
    return _text(1, stream) + _number(3, _EARLIEST) + _number(8, _STOP_AT_LATEST)


def value_of(message: bytes) -> bytes:
    """Return the value of a Message; empty if it has no such field. Raise ValueError for invalid bytes."""
    value = dict(fields(message)).get(_MESSAGE_VALUE, b"")
    if not isinstance(value, bytes):
        raise ValueError("the value of a message is no bytes")
    return value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message by number. Raise ValueError if it is truncated or a kind is unknown."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _read_varint(message, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"protobuf has no fields of kind {kind}")
        if size > len(message) - at:
            raise ValueError("a field of a protobuf message ends behind its message")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of a protobuf message has no end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _text(number: int, text: str) -> bytes:
    data = text.encode()
    return _tag(number, _BYTES) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value)
