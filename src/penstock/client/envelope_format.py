"""A message in an envelope, and the ack of one: Liftbridge's protobuf behind a header of 8 or 12 bytes.

Rules: pure, no NATS connection here. The bytes are Google's protobuf library's to write and to read (the extra
`protobuf` brings it); it is imported when the first message is put in an envelope. `hot/envelope.py` draws the header;
`envelope.proto` beside this file says the same as the tables below, for publishers in other languages. A test holds
them against each other.

Theory: classes are made from a description when they are needed. Code that protoc generates works with the library of
its own and of the next version only.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from crc32c import crc32c

from penstock.base import limits
from penstock.base.extras import how_to_install
from penstock.client.values import TOMBSTONE_HEADER, Envelope

COOKIE = bytes.fromhex("b90e43b4")
_MESSAGE_HEADER = COOKIE + bytes((0, 8, 0, 0))
_MESSAGE_HEADER_WITH_CRC = COOKIE + bytes((0, 12, 1, 0))
_ACK_HEADER = COOKIE + bytes((0, 8, 0, 1))
_PACKAGE = "penstock.envelope"

# What a publisher and a reader of acks need, by number: name and type.
MESSAGE_FIELDS = {
    1: ("offset", "optional int64"),
    2: ("key", "bytes"),
    3: ("value", "bytes"),
    4: ("timestamp", "int64"),
    5: ("stream", "string"),
    6: ("partition", "int32"),
    7: ("subject", "string"),
    8: ("reply_subject", "string"),
    9: ("headers", "map<string, bytes>"),
    10: ("ack_inbox", "string"),
    11: ("correlation_id", "string"),
    12: ("ack_policy", "AckPolicy"),
}
ACK_FIELDS = {
    1: ("stream", "string"),
    2: ("partition_subject", "string"),
    3: ("msg_subject", "string"),
    4: ("offset", "int64"),
    5: ("ack_inbox", "string"),
    6: ("correlation_id", "string"),
    7: ("ack_policy", "AckPolicy"),
    8: ("reception_timestamp", "int64"),
    9: ("commit_timestamp", "int64"),
    10: ("ack_error", "Error"),
    1000: ("got_partition", "int32"),
    1001: ("got_leader_epoch", "int64"),
    1002: ("got_replicas", "int32"),
    1003: ("got_fsynced", "bool"),
    1004: ("error_body", "bytes"),
}
POLICIES = {"leader": 0, "all": 1, "none": 2}
ERRORS = {0: "OK", 1: "UNKNOWN", 2: "INCORRECT_OFFSET", 3: "TOO_LARGE", 4: "ENCRYPTION"}


def enveloped(
    value: bytes | None, key: bytes | None, headers: Mapping[str, str], ack: str, envelope: Envelope
) -> bytes:
    """The payload of a NATS message that holds all this; value None is a tombstone. ImportError without protobuf."""
    message = message_class()()
    if value is None:
        message.headers[TOMBSTONE_HEADER] = b"1"
    else:
        message.value = value
    if key is not None:
        message.key = key
    for name, text in headers.items():
        message.headers[name] = text.encode()
    if envelope.correlation_id:
        message.correlation_id = envelope.correlation_id
    if envelope.expected_offset is not None:
        message.offset = envelope.expected_offset
    message.ack_policy = POLICIES[ack]
    body: bytes = message.SerializeToString(deterministic=True)
    if envelope.crc:
        return _MESSAGE_HEADER_WITH_CRC + struct.pack(">I", crc32c(body)) + body
    return _MESSAGE_HEADER + body


def ack_in(data: bytes) -> Any:
    """The `Ack` in an envelope; None if it is none. ImportError without protobuf."""
    if not data.startswith(_ACK_HEADER):
        return None
    found = ack_class()()
    from google.protobuf.message import DecodeError

    try:
        found.ParseFromString(data[len(_ACK_HEADER) :])
    except DecodeError:
        return None
    return found


def check_envelope(envelope: Envelope) -> None:
    """ValueError or TypeError for what a broker would refuse."""
    if not isinstance(envelope, Envelope):
        raise TypeError(f"envelope is {envelope!r}; give a penstock.Envelope")
    size = len(envelope.correlation_id.encode())
    if size > limits.CORRELATION_ID_BYTES_MAX:
        raise ValueError(f"the correlation id has {size} bytes; the limit is {limits.CORRELATION_ID_BYTES_MAX}")
    if envelope.expected_offset is not None and not 0 <= envelope.expected_offset < 2**63:
        raise ValueError(f"expected_offset is {envelope.expected_offset}; an offset is 0 or more, and below 2^63")


def message_class() -> Any:
    """Protobuf's class of `Message`."""
    return _classes()[0]


def ack_class() -> Any:
    """Protobuf's class of `Ack`."""
    return _classes()[1]


@cache
def _classes() -> tuple[Any, Any]:
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise ImportError(f"an envelope takes protobuf, which is not installed: {how_to_install('protobuf')}")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="penstock/envelope.proto", package=_PACKAGE, syntax="proto3")
    policy = file.enum_type.add(name="AckPolicy")
    for name, number in POLICIES.items():
        policy.value.add(name=name.upper(), number=number)
    message = file.message_type.add(name="Message")
    entry = message.nested_type.add(name="HeadersEntry")
    entry.options.map_entry = True
    _describe(entry, {1: ("key", "string"), 2: ("value", "bytes")})
    _describe(message, MESSAGE_FIELDS)
    ack = file.message_type.add(name="Ack")
    error = ack.enum_type.add(name="Error")
    for number, name in ERRORS.items():
        error.value.add(name=name, number=number)
    _describe(ack, ACK_FIELDS)
    pool = descriptor_pool.DescriptorPool()  # of its own: whatever else this process knows by these names
    pool.Add(file)
    found = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in ("Message", "Ack")
    ]
    return found[0], found[1]


def _describe(target: Any, fields: Mapping[int, tuple[str, str]]) -> None:
    """Put the fields of a table into a description of a message."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    types = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}  # as descriptor.proto numbers them
    for number, (name, kind) in fields.items():
        field = target.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
        kind_name = kind.removeprefix("optional ")
        if kind_name != kind:  # its absence can be told from 0
            field.proto3_optional = True
            field.oneof_index = len(target.oneof_decl)
            target.oneof_decl.add(name=f"_{name}")
        if kind_name in types:
            field.type = types[kind_name]
        elif kind_name.startswith("map<"):
            field.type, field.label = Field.TYPE_MESSAGE, Field.LABEL_REPEATED
            field.type_name = f".{_PACKAGE}.Message.HeadersEntry"
        else:
            field.type = Field.TYPE_ENUM
            field.type_name = f".{_PACKAGE}.{'Ack.Error' if kind_name == 'Error' else kind_name}"
