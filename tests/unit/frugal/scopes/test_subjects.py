"""Subjects of scopes: as Frugal's, and nothing that a variable holds leaves the scope."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import matches
from penstock.frugal.contracts import ScopeType
from penstock.frugal.scopes.subjects import ScopeSubjects


def scope(prefix: str, *variables: str, name: str = "Events") -> ScopeSubjects:
    return ScopeSubjects(ScopeType(name, prefix, variables, {}))


def test_a_subject_is_that_of_frugals_generated_code() -> None:
    assert scope("foo.{user}", "user").published("EventCreated", ["ann"]) == "frugal.foo.ann.Events.EventCreated"
    assert scope("").published("Winner", []) == "frugal.Events.Winner"
    assert scope("a.b").published("Winner", []) == "frugal.a.b.Events.Winner"
    several = scope("{preamble}.{ramble}.{role}.{RID}", "preamble", "ramble", "role", "RID")
    assert several.published("EventCreated", ["foo", "bar", "x", "1"]) == "frugal.foo.bar.x.1.Events.EventCreated"
    assert scope("a.{b}", "b").published("Op", ["eu.north"]) == "frugal.a.eu.north.Events.Op"
    assert scope("100%.{b}", "b").published("Op", ["50%s"]) == "frugal.100%.50%s.Events.Op"


@pytest.mark.parametrize(
    "value", ["", " ", "a b", "a.", ".a", "a..b", "*", "a.*", ">", "a.>", "a\r\nPUB", "\0", "\ud800"]
)
def test_what_is_no_plain_token_is_not_published(value: str) -> None:
    with pytest.raises(ValueError, match="variable user of scope Events"):
        scope("foo.{user}", "user").published("EventCreated", [value])


@pytest.mark.parametrize("value", ["", "a b", "a.", ">", "a.>", "a\tb"])
def test_a_subscriber_may_give_a_star_and_no_more(value: str) -> None:
    subjects = scope("foo.{user}", "user")
    assert subjects.subscribed("EventCreated", ["*"]) == "frugal.foo.*.Events.EventCreated"
    assert subjects.subscribed("EventCreated", ["eu.*"]) == "frugal.foo.eu.*.Events.EventCreated"
    with pytest.raises(ValueError, match="variable user of scope Events"):
        subjects.subscribed("EventCreated", [value])


def test_a_subject_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variables of scope Events make no subject: .* limit is"):
        scope("{a}.{b}", "a", "b").published("Op", ["x" * 600, "y" * 600])


def test_the_wrong_number_or_type_of_variables_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"variable a of scope Events makes no subject: .* limit is"):
        scope("{a}.{b}", "a", "b").published("Op", ["x" * 3000, "y"])
    with pytest.raises(ValueError, match="scope Events has user, but 0 values were given"):
        scope("foo.{user}", "user").published("Op", [])
    with pytest.raises(ValueError, match="scope Events has no variables, but 1 values"):
        scope("foo").published("Op", ["x"])
    with pytest.raises(TypeError, match="the variable user of scope Events is 7"):
        scope("foo.{user}", "user").published("Op", [7])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("prefix", "variables"),
    [
        ("a.{b}", ()),
        ("a", ("b",)),
        ("{a}.{b}", ("b", "a")),
        ("a..b", ()),
        ("a b", ()),
        ("a.*", ()),
        ("a.x{b}", ()),
        (">", ()),
    ],
)
def test_a_prefix_that_makes_no_subject_is_refused(prefix: str, variables: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="scope Events: the prefix"):
        scope(prefix, *variables)


def test_variables_are_read_from_the_subject() -> None:
    subjects = scope("foo.{user}.x", "user")
    assert subjects.variables_of("frugal.foo.ann.x.Events.Op") == {"user": "ann"}
    assert subjects.variables_of("frugal.foo.ann.b.x.Events.Op") == {"user": "ann.b"}
    assert subjects.variables_of("frugal.foo") == {}
    two = scope("{a}.{b}", "a", "b")
    assert two.variables_of("frugal.1.2.Events.Op") == {"a": "1", "b": "2"}
    assert two.variables_of("frugal.1.2.3.Events.Op") == {}
    assert two.everything() == "frugal.*.*.Events.*"
    assert two.everything("Op") == "frugal.*.*.Events.Op"


TOKEN = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["*", ">", "a", "*a", "a>"])
VALUE = st.lists(TOKEN, min_size=1, max_size=3).map(".".join)


@given(VALUE, VALUE)
def test_whatever_is_published_is_in_the_scope_and_tells_its_variables(one: str, other: str) -> None:
    subjects = scope("pre.{one}.mid.{other}", "one", "other")
    try:
        subject = subjects.published("Op", [one, other])
    except ValueError:
        return
    assert matches("frugal.pre.>", subject)
    assert subject.endswith(".Events.Op")
    assert not {"*", ">", ""} & set(subject.split("."))
    if "." not in one + other:
        assert subjects.variables_of(subject) == {"one": one, "other": other}
        assert matches(subjects.subscribed("Op", ["*", "*"]), subject)


@given(VALUE)
def test_a_subscription_stays_in_the_scope(value: str) -> None:
    subjects = scope("pre.{one}", "one")
    try:
        pattern = subjects.subscribed("Op", [value])
    except ValueError:
        return
    assert ">" not in pattern.split(".")
    assert pattern.startswith("frugal.pre.")
    assert pattern.endswith(".Events.Op")
