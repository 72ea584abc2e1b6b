"""What consumers need no more: single stories; see `tests/property/test_interest.py` for the model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.base.config import RetentionPolicy
from penstock.consumers.interest import Ask, Interest, workqueue_refusal
from penstock.live.row_set import RowSet


class Held:
    """A claim that the test sets."""

    def __init__(self, next_offset: int, *held: int) -> None:
        self.next_offset = next_offset
        self.rows = list(held)

    def holds(self, offset: int) -> bool:
        return offset in self.rows

    def held(self, begin: int, end: int) -> Sequence[int]:
        return [one for one in self.rows if begin <= one < end]


def runs(rows: RowSet) -> list[tuple[int, int]]:
    return list(rows.runs())


def interest(*claims: Held, filters: Sequence[tuple[str, ...]] = ()) -> Interest:
    found = Interest(RetentionPolicy.INTEREST, 0)
    for number, claim in enumerate(claims):
        found.join(f"n{number}", filters[number] if filters else (), claim)
    return found


def queue(*claims: tuple[str, Held]) -> Interest:
    found = Interest(RetentionPolicy.WORKQUEUE, 0)
    for filter_, claim in claims:
        found.join(filter_, (filter_,) if filter_ else (), claim)
    return found


def test_all_below_the_least_floor_goes_as_one_run() -> None:
    found = interest(Held(1_000_000, 999_990), Held(900_000))
    assert runs(found.take(2_000_000)) == [(0, 900_000)]
    assert runs(found.take(2_000_000)) == []


def test_a_held_message_goes_with_the_last_ack() -> None:
    first, second = Held(10, 4), Held(10, 4, 7)
    found = interest(first, second)
    assert runs(found.take(10)) == [(0, 4), (5, 7), (8, 10)]
    first.rows.remove(4)
    found.settled("n0", [4])
    assert runs(found.take(10)) == []
    second.rows.remove(4)
    found.settled("n1", [4])
    found.settled("n1", [4])
    assert runs(found.take(10)) == [(4, 5)]


def test_a_message_that_a_newcomer_is_yet_to_pass_stays_with_the_last_ack_of_the_others() -> None:
    first = Held(10, 4)
    found = interest(first)
    assert runs(found.take(10)) == [(0, 4), (5, 10)]
    newcomer = Held(0)
    found.join("new", (), newcomer)
    first.rows.remove(4)
    found.settled("n0", [4])
    assert runs(found.take(10)) == []
    newcomer.next_offset = 10
    assert runs(found.take(10)) == [(0, 10)]


def test_what_could_not_be_hidden_is_given_out_again() -> None:
    found = interest(Held(3))
    rows = found.take(10)
    found.give_back(rows)
    assert runs(found.take(10)) == [(0, 3)]


def test_rows_behind_what_is_shown_wait() -> None:
    found = queue(("", Held(9)))
    found.look()
    found.settled("", [8])
    assert runs(found.take(5)) == [(0, 5)]
    assert runs(found.take(9)) == [(8, 9)]


def test_with_the_last_consumer_all_goes_but_nothing_before_there_was_one() -> None:
    found = Interest(RetentionPolicy.INTEREST, 2)
    assert runs(found.take(10)) == []
    found.join("n", (), Held(5, 3))
    assert runs(found.take(10)) == [(2, 3), (4, 5)]
    found.leave("n")
    assert runs(found.take(10)) == [(3, 4), (5, 10)]


def test_a_consumer_that_leaves_takes_what_only_it_held() -> None:
    found = interest(Held(10, 3, 4), Held(10, 4))
    found.take(10)
    found.leave("n0")
    assert runs(found.take(10)) == [(3, 4)]


def test_a_resting_consumer_with_filters_is_asked_about_what_the_others_have_passed() -> None:
    found = interest(Held(20, 15), Held(5), filters=[(), ("b",)])
    assert runs(found.take(20)) == [(0, 5)]
    (ask,) = found.asks(20)
    assert ask == Ask(RowSet.of_runs([(5, 15), (16, 20)]), ("b",), if_matching=False)
    found.answered(ask, RowSet.of([6, 7]))
    assert runs(found.take(20)) == [(6, 8)]
    assert found.asks(20) == [], "what stays is not asked about again"
    found.join("n2", ("c",), Held(5))
    assert [one.filters for one in found.asks(20)] == [("b", "c")]


def test_an_answer_from_before_a_newcomer_changes_nothing() -> None:
    found = interest(Held(20), Held(5), filters=[(), ("b",)])
    found.take(20)
    (ask,) = found.asks(20)
    found.join("n2", ("c",), Held(5))
    found.answered(ask, ask.rows)
    assert runs(found.take(20)) == []


def test_nothing_is_asked_behind_a_consumer_that_wants_all() -> None:
    found = interest(Held(20), Held(5), Held(10), filters=[("a",), (), ("b",)])
    assert found.asks(20) == []


@pytest.mark.parametrize("is_told", [True, False])
def test_a_queue_loses_what_is_settled_and_nothing_else(is_told: bool) -> None:
    worker = Held(3, 0, 1, 2)
    found = queue(("a", worker))
    found.take(10)
    worker.rows.remove(1)
    if is_told:
        found.settled("a", [1])
        assert runs(found.take(10)) == [(1, 2)]
    found.leave("a")
    assert runs(found.take(10)) == []


def test_a_new_leader_of_a_queue_finds_what_was_settled_and_is_still_shown() -> None:
    found = queue(("", Held(6, 2, 4)))
    found.look()
    assert runs(found.take(10)) == [(0, 2), (3, 4), (5, 6)]
    found = queue(("a", Held(6, 2)), ("b", Held(3)))
    assert found.take(10) == RowSet.of([])
    first, second = found.asks(10)
    assert first == Ask(RowSet.of([0, 1, 3, 4, 5]), ("a",), if_matching=True)
    assert second.filters == ("b",)
    found.answered(first, RowSet.of([1, 3]))
    assert runs(found.take(10)) == [(1, 2), (3, 4)]


def test_a_queue_keeps_what_its_consumer_passed_by_other_filters() -> None:
    found = Interest(RetentionPolicy.WORKQUEUE, 0)
    found.join("n", (), Held(6, 5), since=4)
    assert runs(found.take(10)) == [(4, 5)]
    found.join("n", ("b",), Held(6), since=6)
    assert found.asks(10) == []


def test_the_filters_of_all() -> None:
    assert interest().filters == ()
    assert interest(Held(0), Held(0), filters=[("b", "a"), ("a",)]).filters == ("a", "b")
    assert interest(Held(0), Held(0), filters=[("b",), ()]).filters == (">",)


def test_what_is_below_a_raised_start_is_forgotten() -> None:
    found = interest(Held(10, 4))
    found.start_raised(6)
    assert runs(found.take(10)) == [(6, 10)]
    found.settled("n0", [4])
    assert runs(found.take(10)) == []


@pytest.mark.parametrize(
    ("others", "filters", "changes", "code"),
    [
        ({}, [], {}, None),
        ({}, ["a"], {"ack_policy": "none"}, 10084),
        ({}, ["a"], {"ack_policy": "none", "is_pull": False}, 10098),
        ({}, ["a"], {"ack_policy": "all"}, 10098),
        ({}, ["a"], {"deliver_policy": "new"}, 10101),
        ({"x": []}, [], {}, 10099),
        ({"x": ["a"]}, [], {}, 10099),
        ({"x": []}, ["a"], {}, 10100),
        ({"x": ["a.>"]}, ["b", "a.*.c"], {}, 10100),
        ({"x": ["a.b"], "y": ["c"]}, ["a.c"], {}, None),
        ({"n": ["a"]}, ["a.>"], {"exists": True}, None),
        ({"n": ["a"], "x": ["b"]}, ["a", "b"], {"exists": True}, 10100),
        ({"n": ["a"], "x": ["b"]}, [], {"exists": True}, 10100),
    ],
)
def test_consumers_of_a_queue_as_nats_server(
    others: dict[str, list[str]], filters: list[str], changes: dict[str, object], code: int | None
) -> None:
    asked = {"ack_policy": "explicit", "deliver_policy": "all", "is_pull": True, **changes}
    refusal = workqueue_refusal(others, "n", filters, **asked)  # type: ignore[arg-type]
    assert (None if refusal is None else refusal.err_code) == code


def test_what_came_for_a_consumer_that_never_was_goes_if_the_last_one_had_left() -> None:
    found = interest(Held(10))
    found.leave("n0")
    assert runs(found.take(10)) == [(0, 10)]
    found.join("new", ("a",), Held(0))
    assert runs(found.take(15)) == []
    found.abandon("new")
    assert runs(found.take(15)) == [(0, 15)], "those before 10 are hidden already"


def test_a_leader_that_has_never_seen_a_consumer_keeps_all_if_one_never_comes() -> None:
    found = interest()
    found.join("new", (), Held(0))
    found.abandon("new")
    assert runs(found.take(15)) == []
