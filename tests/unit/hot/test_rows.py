"""Numbers written into a message lie within it; what is checked of rows is in tests/property/test_rows.py."""

from __future__ import annotations

import struct

import pytest

from penstock.hot import rows


def test_numbers_are_written_where_they_belong() -> None:
    message = bytearray(b"\xff" * 40)
    rows.put_numbers(message, 8, 2**62, 1, 3)
    assert message == b"\xff" * 8 + struct.pack("<3q", 2**62, 2**62 + 1, 2**62 + 2) + b"\xff" * 8
    rows.put_numbers(message, 0, -5, 0, 5)
    assert message == struct.pack("<5q", *[-5] * 5)
    rows.put_numbers(message, 40, 1, 1, 0)
    assert len(message) == 40


@pytest.mark.parametrize(("at", "count"), [(-8, 1), (0, 6), (33, 1), (40, 1), (48, 0), (0, -1), (8, 2**60), (2**62, 1)])
def test_numbers_outside_of_a_message_are_refused(at: int, count: int) -> None:
    message = bytearray(40)
    with pytest.raises(IndexError):
        rows.put_numbers(message, at, 1, 1, count)
    assert message == bytes(40)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_copy_is_the_callers(kind: type) -> None:
    data = bytes(range(256)) * 5
    copy = rows.copied(kind(data))
    assert copy == data
    copy[0] = 1
    assert data[0] == 0
