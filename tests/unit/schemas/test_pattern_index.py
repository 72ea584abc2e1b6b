"""Subjects by patterns: as regular expressions and nats-server match them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.subjects import matches, overlap
from penstock.schemas.pattern_index import PatternIndex

_TOKENS = st.sampled_from(["a", "b", "é", "*"])
_PATTERNS = st.lists(
    st.builds(
        lambda tokens, rest: ".".join([*tokens, *rest]),
        st.lists(_TOKENS, min_size=1, max_size=3),
        st.sampled_from([(), (">",)]),
    ),
    min_size=1,
    max_size=6,
)
_SUBJECTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "é", "c", "*", ">", ""]), min_size=1, max_size=5).map(".".join)
)


def _regex(pattern: str) -> re.Pattern[str]:
    tokens = [{"*": "[^.]+", ">": ".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    return re.compile(r"(?s)\A" + r"\.".join(tokens) + r"\Z")


@given(_PATTERNS, _SUBJECTS)
def test_a_subject_has_the_pattern_that_it_matches(drawn: list[str], subjects: list[str]) -> None:
    patterns: list[str] = []
    for one in drawn:
        if not any(overlap(one, other) for other in patterns):
            patterns.append(one)
    index = PatternIndex(patterns)
    expected = [
        next((place for place, one in enumerate(patterns) if _regex(one).match(subject)), None) for subject in subjects
    ]
    encoded = [subject.encode() for subject in subjects]
    assert index.places(encoded) == expected
    assert index.places(encoded) == expected, "when they are known"
    for subject, place in zip(subjects, expected, strict=True):
        if not {"*", ">", ""} & set(subject.split(".")):
            assert [matches(one, subject) for one in patterns] == [place == each for each in range(len(patterns))]


def test_few_subjects_are_kept() -> None:
    index = PatternIndex(["a.*"])
    for begin in range(0, 3 * limits.SCHEMA_SUBJECTS_KEPT_MAX, 1_000):
        assert set(index.places([b"a.%d" % number for number in range(begin, begin + 1_000)])) == {0}
    many = [b"a.%d" % number for number in range(limits.SCHEMA_SUBJECTS_KEPT_MAX + 1)]
    assert index.places(many) == [0] * len(many)
    assert 0 < len(index._known) <= limits.SCHEMA_SUBJECTS_KEPT_MAX
