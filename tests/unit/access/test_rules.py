"""What rules allow: patterns of names and subjects against plain lists of what they match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.rules import Operation, Rule, Scope, name_matches, refused_subject, rule_mistake, scope
from penstock.base.subjects import is_within, matches

READ_ORDERS = Rule(Operation.READ, stream="orders")
TOKENS = st.sampled_from(["a", "b", "*", ">"])


def patterns() -> st.SearchStrategy[str]:
    return st.lists(TOKENS, min_size=1, max_size=4).map(lambda tokens: ".".join(_ended(tokens)))


def _ended(tokens: list[str]) -> list[str]:
    return tokens[: tokens.index(">") + 1] if ">" in tokens else tokens


def subjects() -> list[str]:
    names = ["a", "b", "c"]
    one = [[name] for name in names]
    two = [[*first, name] for first in one for name in names]
    three = [[*first, name] for first in two for name in names]
    four = [[*first, name] for first in three for name in names]
    return [".".join(tokens) for tokens in (*one, *two, *three, *four, *[[*first, "c"] for first in four])]


@given(patterns(), patterns())
def test_a_pattern_is_within_another_if_all_that_it_matches_does(inner, outer) -> None:
    matched = [subject for subject in subjects() if matches(inner, subject)]
    assert is_within(inner, outer) is all(matches(outer, subject) for subject in matched)


@given(st.lists(patterns(), max_size=3), st.lists(st.sampled_from(subjects()), max_size=5))
def test_rows_on_other_subjects_are_found(allowed, rows) -> None:
    first = next((row for row in rows if not any(matches(pattern, row) for pattern in allowed)), None)
    assert refused_subject(rows, tuple(allowed)) == first


@pytest.mark.parametrize(
    ("pattern", "name", "does_match"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders-*", "orders-eu", True),
        ("orders-*", "orders", False),
        ("*", "orders", True),
        ("*", "__offsets", False),
        ("__*", "__offsets", False),
        ("__offsets", "__offsets", True),
    ],
)
def test_names(pattern, name, does_match) -> None:
    assert name_matches(pattern, name) is does_match


def test_what_no_rule_allows_is_denied() -> None:
    assert not scope((), Operation.READ, "orders", ("orders.>",))
    assert not scope((READ_ORDERS,), Operation.APPEND, "orders", ("orders.>",))
    assert not scope((READ_ORDERS,), Operation.READ, "prices", ("prices",))
    assert scope((READ_ORDERS,), Operation.READ, "orders", ("orders.>",)).is_all


@pytest.mark.parametrize("operation", list(Operation))
def test_an_administrator_may_do_everything(operation) -> None:
    assert scope((Rule(Operation.ADMIN),), operation, "__offsets", "$PENSTOCK.offsets").is_all


def test_a_rule_about_subjects_allows_what_is_on_them_only() -> None:
    rules = (Rule(Operation.READ, subject="orders.eu.>"),)
    assert scope(rules, Operation.READ, "s", ("orders.eu.*",)).is_all
    part = scope(rules, Operation.READ, "s", ("orders.>",))
    assert part == Scope(subjects=("orders.eu.>",))
    assert part.covers(("orders.eu.a",))
    assert not part.covers(("orders.eu.a", "orders.us.b"))
    assert not part.covers(None)
    assert not part.covers(())
    assert not scope(rules, Operation.READ, "s", ("prices.>",))


def test_a_wildcard_does_not_reach_what_is_kept_for_others() -> None:
    rules = (Rule(Operation.READ, subject=">"),)
    assert scope(rules, Operation.READ, "s", ("orders.>",)).is_all
    for subject in ("$PENSTOCK.offsets", "_INBOX.x", "$JS.x"):
        assert not scope(rules, Operation.READ, "__offsets", (subject,))


def test_groups() -> None:
    rules = (Rule(Operation.COMMIT_OFFSETS, stream="orders", group="billing-*"),)
    assert scope(rules, Operation.COMMIT_OFFSETS, "orders", ("o",), group="billing-1").is_all
    assert not scope(rules, Operation.COMMIT_OFFSETS, "orders", ("o",), group="shipping")
    assert scope(rules, Operation.COMMIT_OFFSETS, "orders", ("o",)).is_all  # for some group


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Operation.READ),
        Rule(Operation.CREATE, stream="orders-*"),
        Rule(Operation.READ, stream="a", subject="b"),
        Rule(Operation.READ, stream="a", group="g"),
        Rule(Operation.READ, stream="a*b"),
        Rule(Operation.READ, stream="a b"),
        Rule(Operation.READ, stream="a" * 129),
        Rule(Operation.READ, subject="a..b"),
        Rule(Operation.READ, subject="a.>.b"),
        Rule(Operation.ADMIN, stream="a"),
        Rule(Operation.COMMIT_OFFSETS, stream="a", group=""),
        Rule(Operation.COMMIT_OFFSETS, subject="a", group="g*x"),
        Rule(Operation.READ, stream="orders.>"),
        Rule(Operation.READ, stream="or/ders*"),
    ],
)
def test_what_cannot_be_a_rule(rule) -> None:
    assert rule_mistake(rule) is not None


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Operation.ADMIN),
        Rule(Operation.READ, stream="*"),
        Rule(Operation.CREATE, subject="orders.>"),
        Rule(Operation.APPEND, subject="orders.*.>"),
        Rule(Operation.COMMIT_OFFSETS, subject=">", group="billing"),
    ],
)
def test_what_can(rule) -> None:
    assert rule_mistake(rule) is None
    assert str(rule)


def test_rules_about_subjects_cover_a_stream_that_has_them_all_and_no_other() -> None:
    orders, prices = Rule(Operation.READ, subject="orders.>"), Rule(Operation.READ, subject="prices")
    both = ("orders.eu", "prices")
    assert scope((orders, prices), Operation.READ, "s", both).is_all
    for rule in (orders, prices):
        part = scope((rule,), Operation.READ, "s", both)
        assert part == Scope(subjects=(rule.subject,))
    assert not scope((Rule(Operation.READ, subject=">"),), Operation.READ, "s", ("orders", "$JS.EVENT.x")).is_all
