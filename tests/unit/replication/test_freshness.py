"""How old what a replica shows may be, against a model that knows when everything was committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.freshness import Freshness, LeaderNews


def followed(heard: LeaderNews, *, has_rivals: bool = False) -> Freshness:
    freshness = Freshness()
    freshness.has_rivals = has_rivals
    freshness.follow(heard)
    heard.begin(1)
    return freshness


def test_nothing_is_known_before_the_leader_has_told_of_it() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    heard.answered(1, 100, None, is_all=True)
    assert freshness.as_of_us is None
    freshness.leader_end_reported(5, 5, 200, is_settled=True)
    heard.answered(2, 200, None, is_all=True)
    assert freshness.as_of_us == 200
    heard.answered(3, 300, None, is_all=True)  # that nothing is said of it says that nothing is new
    assert freshness.as_of_us == 300


def test_an_empty_log_was_named_and_that_is_enough() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    freshness.named(2, 0)
    heard.answered(1, 100, None, is_all=True)
    assert freshness.as_of_us is None
    heard.answered(2, 200, None, is_all=True)
    assert freshness.as_of_us == 200


def test_an_answer_that_does_not_tell_all_moves_nothing() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    freshness.leader_end_reported(5, 5, 100, is_settled=True)
    heard.answered(1, 100, None, is_all=True)
    heard.answered(2, 200, None, is_all=False)
    assert freshness.as_of_us == 100


def test_who_lacks_what_it_was_told_of_is_as_old_as_what_it_shows() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    freshness.leader_end_reported(5, 5, 100, is_settled=True)
    heard.answered(1, 100, None, is_all=True)
    freshness.leader_end_reported(9, 5, 200, is_settled=True)
    heard.answered(2, 200, None, is_all=True)
    freshness.leader_end_reported(12, 5, 300, is_settled=True)
    heard.answered(3, 300, None, is_all=True)
    assert freshness.as_of_us == 100
    freshness.shown(9)
    assert freshness.as_of_us == 200
    freshness.shown(12)
    assert freshness.as_of_us == 300


def test_a_new_leader_that_may_know_less_than_the_last_one_counts_once_it_does_not() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    freshness.leader_end_reported(5, 9, 100, is_settled=False)
    heard.answered(1, 100, None, is_all=True)
    assert freshness.as_of_us is None
    freshness.leader_end_reported(12, 9, 200, is_settled=False)
    freshness.shown(12)
    heard.answered(2, 200, None, is_all=True)
    assert freshness.as_of_us is None
    freshness.leader_end_reported(14, 14, 300, is_settled=True)
    heard.answered(3, 300, None, is_all=True)
    assert freshness.as_of_us == 300


def test_where_others_may_lead_its_word_counts_up_to_when_it_was_confirmed() -> None:
    heard = LeaderNews()
    freshness = followed(heard, has_rivals=True)
    freshness.leader_end_reported(5, 5, 100, is_settled=True)
    heard.answered(1, 100, None, is_all=True)
    assert freshness.as_of_us is None
    heard.answered(2, 200, 150, is_all=True)
    assert freshness.as_of_us == 50
    heard.answered(3, 900, 850, is_all=True)  # cut off from the metadata
    assert freshness.as_of_us == 50


def test_what_was_known_stays_known_when_the_leader_is_lost() -> None:
    heard = LeaderNews()
    freshness = followed(heard)
    freshness.leader_end_reported(5, 5, 100, is_settled=True)
    heard.answered(1, 100, None, is_all=True)
    freshness.lose()
    heard.begin(2)
    heard.answered(7, 400, None, is_all=True)
    assert freshness.as_of_us == 100


EVENT = st.sampled_from(["commit", "answer", "partial", "fetch", "lose", "tick"])


@given(st.lists(st.tuples(EVENT, st.integers(1, 5)), max_size=80))
def test_all_that_was_committed_by_then_is_shown(events: list[tuple[str, int]]) -> None:
    """A leader that commits, answers (all, or only of others), is lost; a replica that shows what it has got so far."""
    heard = LeaderNews()
    freshness = followed(heard)
    now_us = committed = shown = told = session = number = 0
    session = 1
    history = [(0, 0)]  # when, and up to where
    for event, amount in events:
        now_us += amount
        if event == "commit":
            committed += amount
            history.append((now_us, committed))
        elif event in ("answer", "partial"):
            number += 1
            is_all = event == "answer"
            if is_all or amount > 3:
                told = committed
                freshness.leader_end_reported(told, shown, now_us, is_settled=True)
            heard.answered(number, now_us, None, is_all=is_all)
        elif event == "fetch":
            shown = max(shown, min(told, shown + amount))
            freshness.shown(shown)
        elif event == "lose":
            freshness.lose()
            session += 1
            heard.begin(session)
        as_of_us = freshness.as_of_us
        if as_of_us is not None:
            assert as_of_us <= now_us
            assert shown >= max(end for at_us, end in history if at_us < as_of_us or at_us == 0)
