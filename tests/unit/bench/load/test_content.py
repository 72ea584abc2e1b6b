"""Is what came back what was sent? A tampered log must not pass."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.load.content import Content, Tally, difference

SENT = [b"one", b"two", b"three", b""]


def content(values: list[bytes], *, ordered: bool = True) -> Content:
    tally = Tally()
    tally.add(values)
    return tally.content(ordered=ordered)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([b"one", b"two", b"three"], "4 messages were acked, 3 came back"),
        ([*SENT, b""], "5 came back"),
        ([b"one", b"two", b"thre", b""], "10 came back"),
        ([b"one", b"two", b"thrEe", b""], "another checksum"),
        ([b"one", b"one", b"three", b""], "another checksum"),
        ([b"onet", b"wo", b"three", b""], "another checksum"),
        ([b"two", b"one", b"three", b""], "another order"),
    ],
)
def test_a_tampered_log_is_found_out(found: list[bytes], said: str) -> None:
    reason = difference(content(SENT), content(found))
    assert reason is not None
    assert said in reason


def test_the_same_is_the_same_in_any_order_where_none_is_promised() -> None:
    assert difference(content(SENT), content(SENT)) is None
    assert difference(content(SENT, ordered=False), content(SENT[::-1], ordered=False)) is None


def test_a_consumer_that_took_only_the_chain_is_compared_by_it() -> None:
    joined = b"".join(SENT)
    measured = Content(len(SENT), len(joined), None, crc32c(joined))
    assert difference(content(SENT), measured) is None
    assert difference(content([b"eno", *SENT[1:]]), measured) is not None


@given(st.lists(st.binary(max_size=50), max_size=20), st.data())
def test_any_flipped_bit_is_found(values: list[bytes], data: st.DataObject) -> None:
    if not any(values):
        return
    number = data.draw(st.sampled_from([index for index, value in enumerate(values) if value]))
    bit = data.draw(st.integers(0, 8 * len(values[number]) - 1))
    flipped = bytearray(values[number])
    flipped[bit // 8] ^= 1 << bit % 8
    found = [*values[:number], bytes(flipped), *values[number + 1 :]]
    assert difference(content(values), content(found)) is not None


def test_values_may_come_in_pieces() -> None:
    tally = Tally()
    tally.add(SENT[:1])
    tally.add(memoryview(value) for value in SENT[1:])
    assert tally.content() == content(SENT)
    assert tally.messages == 4
