"""Liftbridge's bytes: beside what a server of version 1.9.0 sent, and beside what nobody should send."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.load import liftbridge_format as liftbridge
from penstock_bench.load.frames import Pool, audit

# What liftbridge 1.9.0 sent for a message that was published here: stream `s1`, subject `x.s1`, ack inbox `inb`.
ACK = bytes.fromhex("b90e43b400080001") + (
    b"\n\x02s1\x12\x04x.s1\x1a\x04x.s1 \x01*\x03inb"
    b"@\xd1\xb0\xbc\xad\xff\xe7\xfb\xf4\x18H\xf3\xbe\xfa\xb2\xff\xe7\xfb\xf4\x18"
)
MESSAGE = b"\x1a\x05hello \xac\xe8\xbb\xad\xff\xe7\xfb\xf4\x18*\x02s1:\x04x.s1J\x0f\n\x07subject\x12\x04x.s1"


def with_crc(ack: bytes) -> bytes:
    return ack[:5] + b"\x0c\x01\x01" + crc32c(ack[8:]).to_bytes(4, "big") + ack[8:]


def test_a_message_is_what_a_server_understands() -> None:
    assert liftbridge.before_value("inb", 300) == bytes.fromhex("b90e43b400080000") + b"R\x03inb\x1a\xac\x02"
    assert liftbridge.value_of(liftbridge.before_value("inb", 5)[8:] + b"hello") == b"hello"


def test_requests_are_what_a_server_understands() -> None:
    assert liftbridge.create_stream("s1", "x.s1") == b"\n\x04x.s1\x12\x02s1 \x01(\x01"
    assert liftbridge.subscribe("s1") == b"\n\x02s1\x18\x02@\x02"
    assert liftbridge.delete_stream("s1") == b"\n\x02s1"


@pytest.mark.parametrize("ack", [ACK, with_crc(ACK)], ids=["plain", "with a CRC"])
def test_an_ack_of_a_server_is_one(ack: bytes) -> None:
    assert liftbridge.is_ack(ack)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        ACK[:7],
        ACK[:8],  # an ack that names no stream
        ACK[:-1],
        ACK + b"\x50\x02",  # ackError: incorrect offset
        ACK[:7] + b"\x00" + ACK[8:],  # a message
        ACK[:4] + b"\x01" + ACK[5:],  # another version
        ACK[:5] + b"\xff" + ACK[6:],  # a header that ends behind its message
        b'{"stream":"s1","seq":1}',
        MESSAGE,
    ],
)
def test_what_is_no_ack_is_told_apart(answer: bytes) -> None:
    assert not liftbridge.is_ack(answer)
    stream = b"".join(b"MSG inb 1 %d\r\n%b\r\n" % (len(one), one) for one in (ACK, answer, ACK))
    found = audit(stream, len(stream), liftbridge.DIALECT)
    assert (found.acks, found.errors) == (2, 1)


def test_the_value_of_a_servers_message() -> None:
    assert liftbridge.value_of(MESSAGE) == b"hello"
    assert liftbridge.value_of(MESSAGE[7:]) == b""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\x1a\x05hell", "ends behind its message"),
        (b"\x1a", "has no end"),
        (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "has no end"),
        (b"\x19\x00\x00", "ends behind its message"),
        (b"\x1b", "of kind 3"),
        (b"\x18\x05", "no bytes"),
    ],
)
def test_a_message_that_is_damaged_is_refused(message: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        liftbridge.value_of(message)


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    assert liftbridge.is_ack(data) in (True, False)
    assert liftbridge.is_ack(ACK[:8] + data) in (True, False)
    try:
        found = list(liftbridge.fields(data))
    except ValueError:
        return
    assert sum(len(value) for _, value in found if isinstance(value, bytes)) <= len(data)


@given(st.text(max_size=200), st.binary(max_size=400))
def test_what_is_written_is_read(inbox: str, value: bytes) -> None:
    written = liftbridge.before_value(inbox, len(value)) + value
    assert dict(liftbridge.fields(written[8:])) == {10: inbox.encode(), 3: value}


def test_a_pool_of_it_holds_the_same_values_as_any_other() -> None:
    plain = Pool("a", "inb", 200, 3, seed=1, bytes_max=10_000)
    pool = Pool("a", "inb", 200, 3, seed=1, bytes_max=10_000, dialect=liftbridge.DIALECT)
    assert [bytes(value) for value in pool.values(3)] == [bytes(value) for value in plain.values(3)]
    head, _, rest = pool.frames[: pool.stride].partition(b"\r\n")
    assert head == b"PUB a %d" % (len(rest) - 2)
    assert rest == liftbridge.before_value("inb", 200) + bytes(next(pool.values(1))) + b"\r\n"
