"""Frames made beforehand, and what a server answered taken apart."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import OperationalError
from penstock_bench.load.frames import Pool, audit, scan, sent_content

ACK = b'{"stream":"a","seq":7}'


def msg(payload: bytes, subject: bytes = b"_INBOX.x") -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject, len(payload), payload)


def hmsg(headers: bytes, payload: bytes) -> bytes:
    sizes = (len(headers), len(headers) + len(payload))
    return b"HMSG _INBOX.x 1 %d %d\r\n%b%b\r\n" % (*sizes, headers, payload)


def test_a_pool_is_frames_of_one_length() -> None:
    pool = Pool("a.b", "_INBOX.x", 3, 4, seed=1, bytes_max=10_000)
    assert len(pool.frames) == 4 * pool.stride
    for number, value in enumerate(pool.values(4)):
        frame = pool.frames[number * pool.stride : (number + 1) * pool.stride]
        assert frame == b"PUB a.b _INBOX.x 3\r\n%b\r\n" % bytes(value)


def test_a_pool_that_would_be_too_large_repeats() -> None:
    pool = Pool("a", "r", 100, 1_000, seed=1, bytes_max=1_000)
    assert len(pool.frames) <= 1_000
    values = [bytes(value) for value in pool.values(2 * pool.count + 1)]
    assert values[pool.count] == values[0] == values[2 * pool.count]
    assert len(set(values)) == pool.count


def test_a_pool_has_at_least_one_frame() -> None:
    assert Pool("a", "r", 5_000, 10, seed=1, bytes_max=1).count == 1


def test_pools_with_one_seed_are_alike_and_with_another_are_not() -> None:
    one, same, other = (Pool("a", "r", 64, 3, seed=seed, bytes_max=1_000).frames for seed in (1, 1, 2))
    assert one == same != other


def test_content_of_one_publisher_is_in_order_and_of_several_is_not() -> None:
    pools = [Pool("a", "r", 16, 10, seed=seed, bytes_max=10_000) for seed in (1, 2)]
    alone = sent_content([(pools[0], 10)])
    assert alone.crc_chain == crc32c(b"".join(pools[0].values(10)))
    both = sent_content([(pools[0], 10), (pools[1], 5)])
    assert both.crc_chain is None
    assert (both.messages, both.value_bytes) == (15, 240)


@given(
    st.lists(
        st.one_of(
            st.builds(msg, st.binary(max_size=40)),
            st.builds(hmsg, st.binary(min_size=1, max_size=20), st.binary(max_size=20)),
        )
    ),
    st.data(),
)
def test_whole_frames_are_taken_and_the_rest_is_left(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cut = data.draw(st.integers(0, len(stream)))
    found = scan(stream[:cut], 0, cut)
    rest = scan(stream, found.end, len(stream))
    assert rest.end == len(stream)
    assert len(found.deliveries) + len(rest.deliveries) == len(parts)
    for part, delivery in zip(parts, [*found.deliveries, *rest.deliveries], strict=True):
        assert part.endswith(delivery.headers + delivery.payload + b"\r\n")


def test_subject_reply_and_lines_are_told() -> None:
    stream = b"PING\r\nMSG a 1 reply.to 2\r\nhi\r\n+OK\r\n"
    found = scan(stream, 0, len(stream))
    assert found.lines == [b"PING", b"+OK"]
    ((subject, reply, headers, payload),) = found.deliveries
    assert (subject, reply, headers, payload) == (b"a", b"reply.to", b"", b"hi")


@pytest.mark.parametrize(
    "stream",
    [b"MSG a 1 x\r\n", b"MSG a 1 2\r\nhello\r\n", b"HMSG a 1 5 2\r\nhi\r\n", b"MSG a\r\n", b"MSG a 1 -1\r\n\r\n\r\n"],
)
def test_what_is_not_the_protocol_is_an_error(stream: bytes) -> None:
    with pytest.raises(OperationalError):
        scan(stream, 0, len(stream))


@pytest.mark.parametrize(
    "answer",
    [
        msg(b'{"error":{"code":503,"err_code":10008,"description":"full"},"stream":"a","seq":0}'),
        msg(b'{"stream":"a"}'),
        msg(b"not json"),
        hmsg(b"NATS/1.0 503\r\n\r\n", b""),
        b"-ERR 'Slow Consumer'\r\n",
        b"MSG _INBOX.x 1 20\r\n{",
    ],
)
def test_an_answer_that_is_no_ack_is_told_apart(answer: bytes) -> None:
    stream = msg(ACK) + msg(ACK) + answer
    found = audit(stream, len(stream))
    assert (found.acks, found.errors) == (2, 1)
    assert found.first_error


def test_acks_alone_are_no_error() -> None:
    stream = b"PING\r\n" + msg(ACK) * 3
    assert audit(stream + b"behind the end", len(stream)) == (3, 0, "")
