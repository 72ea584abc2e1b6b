"""Promises between brokers, and the leaderships that they bind; the model tries the rules together (`test_model`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given as given_examples
from hypothesis import settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.ids import BrokerId, PartitionKey
from penstock.replication.leader import CommitTerms, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.replication.lease import GivenPromises, HeldPromises
from tests.extent import examples
from tests.unit.replication.model_metadata import Partition

LEASE_US = limits.LEADER_LEASE_MS * 1_000
COUNTED_US = LEASE_US - LEASE_US // limits.LEASE_MARGIN
LATER_US = 10 * LEASE_US  # when promises of an earlier process are over
ONE, TWO, THREE = map(BrokerId, (1, 2, 3))
LIVE: Any = {1: 11, 2: 12, 3: 13}


class Known(NamedTuple):
    """A broker in the metadata."""

    is_live: bool = True
    clean_stop: bool = False


def given() -> GivenPromises:
    """The promises of a broker that gave one to broker 1."""
    promises = GivenPromises(0)
    promises.give(ONE, LATER_US)
    return promises


@pytest.mark.parametrize(
    ("known", "binds"),
    [
        (Known(), True),
        (Known(is_live=False), True),  # fenced: it may be alive, and not know it
        (Known(is_live=False, clean_stop=True), False),  # it has stopped by itself
        (Known(clean_stop=True), True),  # it did before it was started this time
        (None, False),
    ],
)
def test_a_promise_binds_while_its_holder_may_lead_by_old_metadata(known: Known | None, binds: bool) -> None:
    brokers = {} if known is None else {ONE: known}
    found = given().binding([ONE, TWO], brokers, LATER_US + 1)
    assert found == ({ONE: LATER_US + LEASE_US} if binds else {})


def test_a_promise_is_over_after_its_time() -> None:
    brokers = {ONE: Known()}
    assert given().binding([ONE], brokers, LATER_US + LEASE_US - 1)
    assert not given().binding([ONE], brokers, LATER_US + LEASE_US)
    assert not given().binding([TWO], {ONE: Known(), TWO: Known()}, LATER_US)


def test_a_process_that_starts_may_have_promised_before() -> None:
    promises = GivenPromises(5)
    brokers = {ONE: Known(), TWO: Known(is_live=False, clean_stop=True)}
    assert promises.binding([ONE, TWO], brokers, 6) == {ONE: LEASE_US + 5}
    assert promises.binding([ONE], brokers, LEASE_US + 5) == {}


def held(index: int = 7, asked_us: int = 0) -> HeldPromises:
    """The promise of broker 2, which had applied `index`."""
    promises = HeldPromises()
    promises.asked(TWO, asked_us)
    promises.promised(TWO, asked_us, LEASE_US, index)
    return promises


def test_a_promise_counts_from_the_request_and_less_than_it_lasts() -> None:
    promises = held(asked_us=100)
    assert promises.cover([TWO], 7, 100 + COUNTED_US - 1)
    assert not promises.cover([TWO], 7, 100 + COUNTED_US)
    assert COUNTED_US < LEASE_US


def test_all_that_may_lead_next_must_have_promised() -> None:
    assert not held().cover([TWO, THREE], 7, 1)
    assert HeldPromises().cover([], 0, 1)


def test_a_promise_counts_only_with_the_metadata_that_its_giver_had() -> None:
    assert not held(index=8).cover([TWO], 7, 1)
    assert held(index=8).cover([TWO], 8, 1)


def test_a_promise_by_newer_metadata_does_not_end_the_one_before() -> None:
    promises = held(index=7)
    later_us = LEASE_US // 2
    promises.asked(TWO, later_us)
    promises.promised(TWO, later_us, LEASE_US, 8)
    assert promises.cover([TWO], 7, later_us + 1)
    assert promises.cover([TWO], 7, COUNTED_US - 1)
    assert not promises.cover([TWO], 7, COUNTED_US)
    assert promises.cover([TWO], 8, later_us + COUNTED_US - 1)
    assert not promises.cover([TWO], 6, later_us + 1)


def test_a_longer_promise_than_this_version_knows_is_cut() -> None:
    promises = HeldPromises()
    promises.asked(TWO, 0)
    promises.promised(TWO, 0, 1 << 60, 7)
    assert not promises.cover([TWO], 7, COUNTED_US)


def test_it_is_asked_once_and_again_when_half_is_over() -> None:
    promises = HeldPromises()
    assert promises.to_ask([TWO], 0) == [TWO]
    promises.asked(TWO, 0)
    assert promises.to_ask([TWO], 1) == []
    promises.promised(TWO, 0, LEASE_US, 7)
    half_us = COUNTED_US - LEASE_US // 2
    assert promises.to_ask([TWO], half_us) == []
    assert promises.to_ask([TWO], half_us + 1) == [TWO]


def test_who_refuses_is_not_asked_again_at_once() -> None:
    promises = HeldPromises()
    assert not promises.was_refused(TWO, 0)
    promises.asked(TWO, 5)
    promises.refused(TWO, 5, 6)
    assert promises.was_refused(TWO, 6 + LEASE_US - 1)
    assert promises.to_ask([TWO], 7) == []
    assert promises.to_ask([TWO], 6 + LEASE_US) == [TWO]


@given_examples(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "promise", "refuse", "clear"]), st.sampled_from([ONE, TWO]), st.integers(0, 2)
        ),
        max_size=12,
    ),
    st.integers(0, 2),
)
@settings(max_examples=examples(150), deadline=None)
def test_until_the_lease_is_renewed_or_over_nothing_has_to_be_looked_at(
    acts: list[tuple[str, BrokerId, int]], index: int
) -> None:
    promises, asked, now_us = HeldPromises(), dict[BrokerId, int](), LATER_US
    for what, broker, number in acts:
        now_us += number * LEASE_US // 5
        match what:
            case "ask":
                asked.setdefault(broker, now_us)
                promises.asked(broker, asked[broker])
            case "promise" if broker in asked:
                promises.promised(broker, asked.pop(broker), LEASE_US, number)
            case "refuse" if broker in asked:
                promises.refused(broker, asked.pop(broker), now_us)
            case "clear":
                promises.clear()
                asked.clear()
    until_us = promises.covered_until((ONE, TWO), index)
    for at_us in range(now_us, min(until_us, now_us + 2 * LEASE_US), LEASE_US // 50):
        assert promises.cover((ONE, TWO), index, at_us)
        assert not promises.to_ask((ONE, TWO), at_us)


def test_a_lease_that_was_given_just_now_is_not_looked_at_before_half_of_it_is_over() -> None:
    assert held(asked_us=LATER_US).covered_until((TWO,), 7) == LATER_US + COUNTED_US - LEASE_US // 2
    assert held(asked_us=LATER_US).covered_until((TWO,), 6) == 0
    assert held(asked_us=LATER_US).covered_until((TWO, THREE), 7) == 0


def test_what_was_said_to_an_earlier_incarnation_is_void() -> None:
    promises = held()
    promises.asked(THREE, 0)
    promises.clear()
    promises.promised(THREE, 0, LEASE_US, 7)
    promises.refused(TWO, 0, 1)
    assert not promises.cover([TWO], 7, 1)
    assert not promises.cover([THREE], 7, 1)
    assert promises.to_ask([TWO, THREE], 1) == [TWO, THREE]


# Leaderships that are bound


def leads(promised: dict[BrokerId, int], *, isr: tuple[int, ...] = (2, 3), **state: Any) -> tuple[Any, Leadership]:
    """Broker 2 leads with 10 messages, as the successor of broker 1."""
    agenda: Any = LeadershipTimers()
    partition = Partition((1, 2, 3), isr, 2, 6, 1, **state)
    ends, terms = LogEndsAtStart(0, 4, 10, 10), CommitTerms(Durability.AUTO, 2, 10_000)
    key = PartitionKey(7, 0)
    leadership = Leadership(key, TWO, partition, LIVE, ends, terms, agenda, 0, promised=promised)  # type: ignore[arg-type]
    return agenda, leadership


def fetches(leadership: Leadership, broker: int) -> bool:
    return leadership.fetched(BrokerId(broker), LIVE[broker], 10, 10, 5)


def tick(agenda: Any, now_us: int) -> bool:
    return sum(one.tick(now_us) for one in agenda.due(now_us)) > 0


def test_a_bound_leadership_commits_once_the_promise_is_over() -> None:
    agenda, leadership = leads({ONE: 100})
    assert leadership.is_bound
    assert not fetches(leadership, 3)
    assert leadership.committed_end == 4
    assert not tick(agenda, 99)
    assert tick(agenda, 100)
    assert (leadership.committed_end, leadership.is_bound) == (10, False)


def test_without_a_promise_it_commits_at_once() -> None:
    _, leadership = leads({})
    assert not leadership.is_bound
    assert fetches(leadership, 3)


def test_all_promises_must_be_over() -> None:
    agenda, leadership = leads({ONE: 100, THREE: 200}, isr=(2, 1))
    fetches(leadership, 1)  # knows the new epoch
    assert leadership.is_bound
    tick(agenda, 100)
    assert leadership.is_bound
    assert tick(agenda, 200)


def test_who_fetches_in_the_new_epoch_leads_no_longer() -> None:
    _, leadership = leads({ONE: 100})
    fetches(leadership, 3)
    assert leadership.committed_end == 4
    assert fetches(leadership, 1)
    assert leadership.committed_end == 10


def test_no_replica_joins_while_a_promise_binds() -> None:
    """It could lead next, and has perhaps promised nothing."""
    agenda, leadership = leads({ONE: 100}, isr=(2, 1))
    fetches(leadership, 3)
    assert leadership.proposal(50) is None
    tick(agenda, 100)
    change = leadership.proposal(100)
    assert change is not None
    assert {member.broker_id for member in change.isr} == {1, 2, 3}


def test_its_rivals_give_way_while_a_promise_binds() -> None:
    """So the metadata leader's answer costs no time after it."""
    _, leadership = leads({ONE: 100}, eligible=(1,))
    fetches(leadership, 3)
    change = leadership.proposal(50)
    assert change is not None
    assert change.commits_resumed
    assert {member.broker_id for member in change.isr} == {2, 3}


def test_a_companion_log_is_bound_with_its_partition() -> None:
    agenda, target = leads({ONE: 100})
    key = PartitionKey(-7, 0)
    state: Any = Partition((1, 2, 3), (2, 3), 2, 6, 1)
    ends, terms = LogEndsAtStart(0, 0, 3, 3), CommitTerms(Durability.AUTO, 2, 10_000)
    marks = Leadership(key, TWO, state, LIVE, ends, terms, agenda, 0, target)
    assert marks.is_bound
    assert not marks.fetched(THREE, LIVE[3], 3, 3, 5)
    assert tick(agenda, 100)
    assert marks.committed_end == 3


def test_its_successors_are_those_that_may_have_all_that_was_acked() -> None:
    _, leadership = leads({}, isr=(2, 3), eligible=(1,))
    assert leadership.successors == {1, 3}
    _, alone = leads({}, isr=(2,))
    assert alone.successors == frozenset()
    _, proposing = leads({}, isr=(2, 3))
    fetches(proposing, 3)
    fetches(proposing, 1)
    assert proposing.proposal(6) is not None
    assert proposing.successors == {1, 3}
    _, unsure = leads({}, isr=(2,), unsure=(3,))
    assert unsure.successors == {3}
