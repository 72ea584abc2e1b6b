"""What a term names, and how terms follow each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.raft.terms import DRAWS, ROUND_MAX, names, next_term, round_of, term_text
from penstock.raft.values import BROKER_ID_MAX, NUMBER_MAX
from tests.extent import each_change

ids = st.integers(1, BROKER_ID_MAX)
draws = st.integers(0, DRAWS - 1)
made = st.builds(next_term, st.integers(0, ROUND_MAX - 1), ids, draws)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (0x_00000006_0003_A71E, "6 of broker 3 (a71e)"),
        (0x_3FFFFFFF_FFFF_0000, f"{ROUND_MAX} of broker 65535 (0000)"),
        (17, "17"),  # of a data directory from before
        (0, "0"),
    ],
)
def test_for_people(term: int, text: str) -> None:
    assert term_text(term) == text


def test_what_it_is_made_of() -> None:
    assert next_term(0x_00000005_0007_FFFF, 3, 0xA71E) == 0x_00000006_0003_A71E
    assert next_term(5, 3, 0xA71E) == 0x_00000006_0003_A71E


@given(made, ids, draws)
def test_the_next_one_is_later_and_fits(term: int, candidate: int, draw: int) -> None:
    if round_of(term) == ROUND_MAX:
        return
    later = next_term(term, candidate, draw)
    assert term < later <= NUMBER_MAX
    assert round_of(later) == round_of(term) + 1
    assert names(later, candidate)


@given(st.integers(0, 2**30 - 2), ids, draws)
def test_one_from_before_goes_on_and_names_nobody(term: int, candidate: int, draw: int) -> None:
    later = next_term(term, candidate, draw)
    assert later > term
    assert round_of(later) == term + 1
    assert not names(term, candidate)


@each_change
@given(st.integers(1, 2**16 - 1), st.integers(1, 2**16 - 1), st.integers(0, ROUND_MAX - 1), draws, draws)
def test_no_two_brokers_share_one(one: int, other: int, term: int, draw: int, other_draw: int) -> None:
    if one != other:
        assert next_term(term, one, draw) != next_term(term, other, other_draw)
        assert not names(next_term(term, one, draw), other)
