"""Which messages are traced, compiled and plain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.traces import are_possible
from tests import hot_modes

VALUE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


def block(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))


MODES = [
    pytest.param(hot_modes.plain, id="plain"),
    pytest.param(hot_modes.running, id="running"),
]


def found(mode, headers: list[bytes | None], limit: int = 100) -> list[tuple[int, bytes]]:
    group = mode("message_group").MessageGroup.of(
        [b"s"] * len(headers), [b"traceparent: " + VALUE + b"01"] * len(headers), headers=headers
    )
    return mode("traces").sampled(group, limit)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ((b"traceparent: " + VALUE + b"01",), True),
        ((b"Traceparent:" + VALUE + b"ff",), True),
        ((b"a: b", b"traceparent:    " + VALUE + b"0b", b"c: d"), True),
        ((b"x-traceparent: y", b"traceparent: " + VALUE + b"01"), True),
        ((b"traceparent: " + VALUE + b"00",), False),
        ((b"traceparent: " + VALUE + b"10",), False),
        ((b"TRACEPARENT: " + VALUE + b"01",), False),
        ((b"x-traceparent: " + VALUE + b"01",), False),
        ((b"a: traceparent: " + VALUE + b"01",), False),
        ((b"traceparent: " + VALUE[:-1],), False),
        ((b"traceparent:",), False),
        ((b"traceparent: " + VALUE + b"00", b"traceparent: " + VALUE + b"01"), False),  # the first counts
        ((), False),
    ],
)
def test_a_message_is_traced_if_its_header_says_so(mode, lines: tuple[bytes, ...], is_found: bool) -> None:
    traced = found(mode, [None, block(*lines), None])
    assert [row for row, _ in traced] == ([1] if is_found else [])
    for _, value in traced:
        assert value.startswith(VALUE)
        assert len(value) == 55


@pytest.mark.parametrize("mode", MODES)
def test_no_more_are_looked_for_than_are_wanted(mode) -> None:
    assert [row for row, _ in found(mode, [block(b"traceparent: " + VALUE + b"01")] * 5, 2)] == [0, 1]


PARTS = st.lists(st.sampled_from([b"traceparent:", b"\r\n", b"T", VALUE, b"01", b" ", b"x"]), max_size=8)


@hot_modes.needs_compiled
@given(st.lists(st.one_of(st.none(), PARTS), max_size=4))
def test_both_modes_find_the_same(headers: list[list[bytes] | None]) -> None:
    blocks = [None if parts is None else b"".join(parts) for parts in headers]
    assert found(hot_modes.plain, blocks) == found(hot_modes.running, blocks)


def test_one_look_tells_that_there_are_none() -> None:
    assert are_possible(block(b"Traceparent: x"))
    assert not are_possible(b"MSG a 1 2\r\nhi\r\n" * 100)
