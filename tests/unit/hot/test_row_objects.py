"""Rows as objects: what is put in comes out, plain and compiled, and they can be copied and pickled."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.values import Message
from penstock.hot import row_objects
from tests import hot_modes

BYTES = st.none() | st.binary(max_size=20)
ROWS = st.lists(st.tuples(st.integers(), st.integers(), st.text(max_size=5), BYTES, BYTES, BYTES), max_size=20)
FIELDS = ("offset", "timestamp_us", "subject", "key", "value", "header_block")


@given(ROWS)
def test_each_row_holds_what_its_columns_say(wanted: list[tuple[object, ...]]) -> None:
    columns = [[row[number] for row in wanted] for number in range(6)]
    for module in (hot_modes.running("row_objects"), hot_modes.plain("row_objects")):
        found = module.rows(module.Row, 3, *columns)
        assert [tuple(getattr(row, name) for name in FIELDS) for row in found] == wanted
        assert {row.partition for row in found} <= {3}


def test_columns_of_different_lengths_are_an_error() -> None:
    for module in (hot_modes.running("row_objects"), hot_modes.plain("row_objects")):
        with pytest.raises(IndexError):
            module.rows(module.Row, 0, [1, 2], [1, 2], ["a", "b"], [None], [b"", b""], [None, None])


def test_a_message_made_of_columns_is_a_message() -> None:
    block = b"NATS/1.0\r\nA: 1\r\n\r\n"
    (made,) = row_objects.rows(Message, 2, [5], [6], ["s"], [b"k"], [b"v"], [block])
    assert type(made) is Message
    assert made == Message(5, 6, "s", b"k", b"v", block, partition=2)
    assert made.headers["A"] == "1"
    assert made.headers is made.headers  # parsed once
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (again, type(again), again.headers["A"]) == (made, Message, "1")
    with pytest.raises(AttributeError):
        made.other = 1  # type: ignore[attr-defined]
