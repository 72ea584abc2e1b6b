"""What Google's protobuf library writes is found in envelopes, and it reads our acks: both sides agree to the byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import envelope_format
from penstock.client.envelope_format import ACK_FIELDS, ERRORS, MESSAGE_FIELDS, POLICIES, ack_class, message_class
from penstock.hot import envelope, envelope_acks
from tests.envelopes import ACK_HEADER, enveloped

pytest.importorskip("google.protobuf")

PROTO = Path(envelope_format.__file__).with_name("envelope.proto")
TEXT = st.text(max_size=20)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.integers(-(2**63), 2**63 - 1),
        "key": st.binary(max_size=20),
        "value": st.binary(max_size=40),
        "timestamp": st.integers(-(2**63), 2**63 - 1),
        "partition": st.integers(-(2**31), 2**31 - 1),
        **dict.fromkeys(("stream", "subject", "reply_subject", "ack_inbox", "correlation_id"), TEXT),
        "headers": st.dictionaries(TEXT, st.binary(max_size=9), max_size=4),
        "ack_policy": st.integers(0, 2),
    },
)


@given(MESSAGES)
def test_what_the_library_writes_is_found(fields: dict[str, Any]) -> None:
    data = enveloped(message_class()(**fields).SerializeToString())
    found = envelope.parse(data, 0, len(data))
    assert found is not None
    assert found.offset == fields.get("offset", -1)
    assert (found.timestamp, found.partition) == (fields.get("timestamp", 0), fields.get("partition", 0))
    assert found.ack_policy == fields.get("ack_policy", 0)
    for name in ("key", "value", "stream", "subject", "ack_inbox", "correlation_id"):
        wanted = fields.get(name, b"")
        begin, end = getattr(found, name), getattr(found, f"{name}_end")
        assert (b"" if begin < 0 else data[begin:end]) == (wanted.encode() if isinstance(wanted, str) else wanted)
    places = [found.headers[at : at + 4] for at in range(0, len(found.headers), 4)]
    entries = {data[name:name_end].decode(): data[begin:end] for name, name_end, begin, end in places}
    assert entries == fields.get("headers", {})


@given(st.binary(max_size=40))
def test_what_we_take_for_an_envelope_the_library_takes_too(body: bytes) -> None:
    data = enveloped(body)
    if envelope.parse(data, 0, len(data)) is not None:
        message_class()().ParseFromString(body)


@given(
    st.tuples(TEXT, TEXT, TEXT, TEXT),
    st.integers(0, 2**53),
    st.integers(0, 2**50),
    st.integers(0, 2),
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**53), st.integers(0, 99), st.booleans()),
)
def test_our_acks_are_the_bytes_of_the_library(
    texts: tuple[str, str, str, str], offset: int, timestamp_us: int, policy: int, got: tuple[int, int, int, bool]
) -> None:
    stream, partition_subject, subject, correlation = texts
    record = record_of("_INBOX.a", subject, correlation, policy)
    head = envelope_acks.head(stream.encode(), partition_subject.encode())
    ack = ack_class()(
        stream=stream, partition_subject=partition_subject, msg_subject=subject, offset=offset, ack_inbox="_INBOX.a",
        correlation_id=correlation, ack_policy=policy, reception_timestamp=timestamp_us * 1_000, got_partition=got[0],
        got_leader_epoch=got[1], got_replicas=got[2], got_fsynced=got[3],
    )  # fmt: skip
    found = payload(envelope_acks.acks(record, head, offset, timestamp_us, envelope_acks.standing_tail(*got)))
    parsed = envelope_format.ack_in(found)
    assert parsed == ack
    if stream and partition_subject and subject:
        assert found == ACK_HEADER + ack.SerializeToString()
    refusal = payload(envelope_acks.refusals(record, head, envelope_acks.error_tail(2, b'{"error":1}')))
    parsed = envelope_format.ack_in(refusal)
    assert (parsed.ack_error, parsed.error_body, parsed.offset) == (2, b'{"error":1}', 0)


def record_of(target: str, subject: str, correlation: str, policy: int) -> bytes:
    """The record of one who waits, put together as `envelope_acks` draws it."""
    parts = [target.encode(), subject.encode(), correlation.encode()]
    sizes = b"".join(len(part).to_bytes(4, "little") for part in parts)
    return bytes(4) + sizes + bytes([0, 1, policy, 0]) + b"".join(parts)


def payload(command: bytes) -> bytes:
    return command.partition(b"\r\n")[2][:-2]


def test_the_proto_file_says_the_same_as_the_tables() -> None:
    text = re.sub(r"//.*", "", PROTO.read_text())
    blocks = dict(re.findall(r"^message (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL))
    for name, fields in (("Message", MESSAGE_FIELDS), ("Ack", ACK_FIELDS)):
        body = re.sub(r"enum \w+ \{.*?\}", "", blocks[name], flags=re.DOTALL)
        found = re.findall(r"^\s*([\w ]+|map<[^>]*>) (\w+) = (\d+);", body, re.MULTILINE)
        assert {int(number): (field, kind.strip()) for kind, field, number in found} == fields
    found = re.findall(r"enum (\w+) \{(.*?)\}", text, re.DOTALL)
    enums = {name: dict(re.findall(r"(\w+) = (\d+);", body)) for name, body in found}
    assert {name.lower(): int(number) for name, number in enums["AckPolicy"].items()} == POLICIES
    assert {int(number): name for name, number in enums["Error"].items()} == ERRORS


def test_an_older_liftbridge_ack_is_read_too() -> None:
    """As Liftbridge 1.9 writes it: nothing above field 10."""
    plain = bytes.fromhex("0a016f12016f1a016f202a320163500a")[:-2]
    found = envelope_format.ack_in(ACK_HEADER + plain)
    assert (found.stream, found.offset, found.correlation_id) == ("o", 42, "c")
    assert envelope_format.ack_in(b"{}") is None
    assert envelope_format.ack_in(ACK_HEADER + b"\xff") is None
