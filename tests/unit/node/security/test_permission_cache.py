"""What rules come to is what they say, however many there are, and is not decided again while they stay."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.access import Operation, Rule
from penstock.access.rules import rule_mistake, scope
from penstock.groups.rows import OFFSETS_STREAM
from penstock.messages import OffsetsStreamRequest, OffsetsStreamResponse, SchemasStreamRequest, SchemasStreamResponse
from penstock.node.security.permission_cache import PermissionCache
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.unit.node.harness import Broker

NAMES = {"orders": "orders.>", "orders-eu": "eu.*", "x": "x"}
PATTERNS = ("", "orders", "ord*", "orders-*", "*", "x", OFFSETS_STREAM, "__*")
SUBJECTS = ("", ">", "orders.>", "orders.eu", "*.eu", "eu.a", "eu.>", "x")
ALL = [
    Rule(*parts)
    for parts in product(
        [one for one in Operation if one not in (Operation.ADMIN, Operation.MONITOR)], PATTERNS, SUBJECTS
    )
]
RULES = st.sampled_from([rule for rule in ALL if rule_mistake(rule) is None])


def started() -> Broker:
    broker = Broker().start()
    for name, subject in NAMES.items():
        broker.create(name, subject)
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    return broker


BROKER = started()
IMAGE = BROKER.node.image


@given(st.lists(RULES, max_size=6), st.lists(RULES, max_size=3))
def test_what_is_kept_is_what_the_rules_say(own: list[Rule], of_all: list[Rule]) -> None:
    judge = PermissionCache(tuple(own), tuple(of_all))
    seen = []
    for state in IMAGE.streams.values():
        scopes = {one: scope((*own, *of_all), one, state.name, state.config.subjects) for one in Operation}
        assert {one: judge.scope(one, state) for one in Operation} == scopes
        assert {one: judge.scope(one, state) for one in Operation} == scopes  # now from what is kept
        has_groups = any(one.operation in (Operation.READ, Operation.COMMIT_OFFSETS) for one in (*own, *of_all))
        of_use = {OFFSETS_STREAM: has_groups, SCHEMAS_STREAM: bool(own or of_all)}
        if any(scopes.values()) or of_use.get(state.name):
            seen.append(state.name)
        assert judge.sees(state) == (state.name in seen)
    assert judge.seen_names(IMAGE, sorted(IMAGE.names)) == sorted(seen)


def test_rules_that_stay_are_judged_by_what_is_known() -> None:
    own, of_all = (Rule(Operation.READ, stream="orders"),), ()
    judge = PermissionCache(own, of_all)
    assert judge.goes_by(own, of_all)
    assert not judge.goes_by((Rule(Operation.READ, stream="x"),), of_all)
    assert not judge.goes_by(own, own)


def test_names_that_are_new_are_seen() -> None:
    broker = started()
    judge = PermissionCache((Rule(Operation.READ, subject=">"),), ())
    image = broker.node.image
    assert judge.seen_names(image, sorted(image.names)) == [OFFSETS_STREAM, SCHEMAS_STREAM, "orders", "orders-eu", "x"]
    broker.create("later")
    image = broker.node.image
    assert judge.seen_names(image, sorted(image.names)) == [
        OFFSETS_STREAM,
        SCHEMAS_STREAM,
        "later",
        "orders",
        "orders-eu",
        "x",
    ]
