"""Rows of consumers with acks are written and read as they were."""

from __future__ import annotations

import pytest

from penstock.consumers.fold import stored_consumers
from penstock.consumers.state import ConsumerState
from penstock.hot.pending import NEVER
from tests.compat.golden_consumers import CONSUMERS, GOLDEN, ID, golden_bytes, read_rows

EVERYTHING = 10**6


def content(state: ConsumerState) -> object:
    table = state.table
    entries = [
        (*one[:5], one[5] if one[5] == NEVER else one[5] - table.origin_us) for one in table.entries(0, EVERYTHING)
    ]
    return state.config, state.told, table.next_offset, table.delivered, table.generation, table.clock_ms, entries


@pytest.mark.parametrize("name", CONSUMERS)
def test_written_as_it_was(name: str) -> None:
    assert golden_bytes()[f"consumer-{name}.txt"] == (GOLDEN / f"consumer-{name}.txt").read_bytes()


@pytest.mark.parametrize("name", CONSUMERS)
def test_read_as_what_it_was(name: str) -> None:
    """From the changes alone, and from the snapshot behind them."""
    state, _ = CONSUMERS[name]()
    expected = content(state)
    found = read_rows(name)
    for rows in (found[:-1], found):
        assert content(stored_consumers(dict(rows))[ID].take_over(77_000_123, 2**50)) == expected
