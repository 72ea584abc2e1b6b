"""Patterns on a column say what `matches` says of each subject."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import matches
from penstock.batch.subject_patterns import SubjectPatterns
from tests.work import lines_run

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


def test_each_pattern_is_an_expression_of_its_own() -> None:
    """One expression for all of them has RE2 run out of states: these would cost five times as much."""
    wanted = ["s." + ".".join("*" * (100 - number)) + f".z{number}" for number in range(64)]
    found = SubjectPatterns([*wanted, "*.a", "s.a"])
    assert (len(found._named), len(found._open)) == (64, 1)
    assert not any("|" in one for one in (*found._named, *found._open))


def test_many_subjects_cost_no_lines_of_python() -> None:
    def cost(count: int) -> int:
        column = pa.array([f"sensors.{number}.temperature" for number in range(count)], pa.utf8())
        patterns = SubjectPatterns(["sensors.*.temperature", "sensors.77.>"])
        assert pa.compute.sum(patterns.mask(column)).as_py() == count
        return lines_run(lambda: patterns.mask(column))

    cost(1)  # imports
    assert cost(20_000) == cost(20)
