"""Patterns on a column say what `matches` says of each subject."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pyarrow.compute
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import matches
from penstock.batch.subject_patterns import SubjectPatterns

TOKENS = st.sampled_from(["a", "b", "a+b", "(c", "é", "$SYS", "_INBOX", "[^.]", "\\z"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(TOKENS | st.just("*"), min_size=1, max_size=4))
    if draw(st.booleans()):
        tokens[-1] = ">"
    return ".".join(tokens)


@given(st.lists(patterns(), min_size=1, max_size=3), st.lists(st.none() | SUBJECTS, max_size=8))
def test_a_row_matches_as_its_subject_does(wanted: list[str], subjects: list[str | None]) -> None:
    found = SubjectPatterns(wanted).mask(pa.array(subjects, pa.utf8()))
    expected = [one is not None and any(matches(pattern, one) for pattern in wanted) for one in subjects]
    assert found.to_pylist() == expected


def test_a_part_of_a_column_is_looked_at_by_itself() -> None:
    column = pa.array(["a", "b.c", "b"], pa.utf8()).slice(1)
    assert SubjectPatterns(["b.*"]).mask(column).to_pylist() == [True, False]


def test_many_patterns_cost_no_more_than_each_of_them_by_itself() -> None:
    """Put into one expression, these cost five times as much: RE2 runs out of states."""
    chance = random.Random(1)
    subjects = ["s." + ".".join(chance.choices("ab", k=100)) for _ in range(2_000)]
    column = pa.array(subjects, pa.utf8())
    wanted = ["s." + ".".join("*" * (100 - number)) + f".z{number}" for number in range(64)]

    def cost(patterns: list[str]) -> float:
        found = SubjectPatterns(patterns)
        began = time.process_time()
        found.mask(column)
        return time.process_time() - began

    each = sum(cost([one]) for one in wanted)
    assert min(cost(wanted) for _ in range(3)) < 2.5 * each


def test_many_subjects_cost_in_proportion_and_no_more() -> None:
    """Nothing is kept for each subject there ever was: ten times as many different ones, about ten times the work."""

    def cost(count: int) -> float:
        column = pa.array([f"sensors.{number}.temperature" for number in range(count)], pa.utf8())
        patterns = SubjectPatterns(["sensors.*.temperature", "sensors.77.>"])
        began = time.process_time()
        assert pa.compute.sum(patterns.mask(column)).as_py() == count
        return time.process_time() - began

    assert min(cost(200_000) for _ in range(3)) < 30 * min(cost(20_000) for _ in range(3))
