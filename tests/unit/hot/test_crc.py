"""CRC-32C: known answers, and the gap that stands for the checksum's own digits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.crc import crc32c, crc32c_with_gap


def slow_crc32c(data: bytes) -> int:
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4, and the check value of the polynomial
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_answers(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected == slow_crc32c(data)


@given(data=st.binary(max_size=200), split=st.integers(0, 200))
def test_it_is_the_definition_in_one_piece_or_two(data: bytes, split: int) -> None:
    assert crc32c(data) == crc32c(data[split:], crc32c(data[:split])) == slow_crc32c(data)


@given(before=st.binary(max_size=100), digits=st.binary(min_size=8, max_size=8), after=st.binary(max_size=100))
def test_the_gap_counts_as_zero_digits(before: bytes, digits: bytes, after: bytes) -> None:
    expected = slow_crc32c(before + b"00000000" + after)
    for kind in (bytes, bytearray, memoryview):
        assert crc32c_with_gap(kind(before + digits + after), len(before)) == expected
