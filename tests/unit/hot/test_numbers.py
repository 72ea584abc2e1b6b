"""Offsets and timestamps that are in order and where the header has them, compiled and plain."""

from __future__ import annotations

import struct

import pytest

from penstock.hot.numbers import NumberMistake
from tests import hot_modes

MODES = [pytest.param(hot_modes.running("numbers"), id="running"), pytest.param(hot_modes.plain("numbers"), id="plain")]
LARGEST = 2**63 - 1


def column(*numbers: int) -> memoryview:
    return memoryview(struct.pack(f"<{len(numbers)}q", *numbers))


@pytest.mark.parametrize("hot", MODES)
@pytest.mark.parametrize(
    ("offsets", "timestamps", "expected"),
    [
        ((5, 6, 7), (1, 1, 9), NumberMistake.NONE),
        ((5, 7, 9), (1, 9, 9), NumberMistake.NONE),
        ((4, 6, 7), (1, 1, 9), NumberMistake.OFFSETS),
        ((5, 6, 10), (1, 1, 9), NumberMistake.OFFSETS),
        ((5, 5, 7), (1, 1, 9), NumberMistake.OFFSETS),
        ((5, LARGEST, 7), (1, 1, 9), NumberMistake.OFFSETS),
        ((5, -LARGEST, 7), (1, 1, 9), NumberMistake.OFFSETS),
        ((5, 6, 7), (0, 1, 9), NumberMistake.TIMESTAMPS),
        ((5, 6, 7), (1, 1, 10), NumberMistake.TIMESTAMPS),
        ((5, 6, 7), (1, 8, 7), NumberMistake.TIMESTAMPS),
    ],
)
def test_a_mistake_is_found(
    hot, offsets: tuple[int, ...], timestamps: tuple[int, ...], expected: NumberMistake
) -> None:
    assert hot.number_mistake(column(*offsets), column(*timestamps), 5, 10, 1, 9) == expected


@pytest.mark.parametrize("hot", MODES)
def test_numbers_at_any_address_are_read(hot) -> None:
    for shift in range(8):
        moved = memoryview(bytes(shift) + bytes(column(5, 6, 7)))[shift:]
        assert hot.number_mistake(moved, moved, 5, 8, 5, 7) == NumberMistake.NONE


@pytest.mark.parametrize("hot", MODES)
def test_nothing_is_read_beyond_the_end(hot) -> None:
    for offsets, timestamps in ((column(), column()), (column(1, 2), column(1))):
        with pytest.raises(IndexError):
            hot.number_mistake(offsets, timestamps, 0, 10, 0, 10)
