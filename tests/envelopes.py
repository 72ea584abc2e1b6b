"""Envelopes for tests, encoded and decoded by a minimal protobuf implementation, independent of the product's code."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from penstock.hot.crc import crc32c

COOKIE = bytes.fromhex("b90e43b4")
NUMBERS = {"offset": 1, "timestamp": 4, "partition": 6, "ack_policy": 12}
TEXTS = {"key": 2, "value": 3, "stream": 5, "subject": 7, "reply": 8, "ack_inbox": 10, "correlation_id": 11}


def varint(number: int) -> bytes:
    """Encode a protobuf varint; negative numbers as 64 bits."""
    number %= 2**64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def bytes_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def header_field(name: bytes, value: bytes) -> bytes:
    return bytes_field(9, bytes_field(1, name) + bytes_field(2, value))


def message(fields: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Encode a protobuf `Message`."""
    parts = [
        number_field(NUMBERS[name], value) if name in NUMBERS else bytes_field(TEXTS[name], value)
        for name, value in fields.items()
    ]
    return b"".join([*parts, *(header_field(name, value) for name, value in headers)])


def enveloped(body: bytes, *, crc: bool = False) -> bytes:
    if not crc:
        return COOKIE + bytes([0, 8, 0, 0]) + body
    return COOKIE + bytes([0, 12, 1, 0]) + struct.pack(">I", crc32c(body)) + body


ACK_NAMES = {
    1: "stream",
    2: "partition_subject",
    3: "msg_subject",
    4: "offset",
    5: "ack_inbox",
    6: "correlation_id",
    7: "ack_policy",
    8: "reception_timestamp",
    9: "commit_timestamp",
    10: "ack_error",
    1000: "got_partition",
    1001: "got_leader_epoch",
    1002: "got_replicas",
    1003: "got_fsynced",
    1004: "error_body",
}
ACK_HEADER = COOKIE + bytes([0, 8, 0, 1])
OK, UNKNOWN, INCORRECT_OFFSET, TOO_LARGE = range(4)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def ack_fields(data: bytes) -> dict[str, Any]:
    """Decode the fields of an ack by name, text as str. Each field must occur once, in ascending order."""
    assert data.startswith(ACK_HEADER), data
    found: dict[str, Any] = {}
    at, last = len(ACK_HEADER), 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        assert tag >> 3 > last, "fields out of order"
        last = tag >> 3
        number, at = _read_varint(data, at)
        if tag & 7 == 0:
            assert number, "a zero that is written"
            found[ACK_NAMES[last]] = number
        else:
            assert tag & 7 == 2
            assert at + number <= len(data)
            text = data[at : at + number]
            found[ACK_NAMES[last]] = text if last == 1004 else text.decode()
            at += number
    return found


def ack_body(data: bytes) -> dict[str, Any]:
    """Decode the fields of an ack, with those of the JetStream error in it."""
    found = ack_fields(data)
    return {**found, **json.loads(found["error_body"])} if "error_body" in found else found
