"""Changes of ISRs: many in one request, one request under way, and what becomes of answers."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.ids import PartitionKey
from penstock.messages import IsrResult
from penstock.replication.isr_proposals import IsrProposer
from penstock.replication.leader import CommitTerms, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from tests.unit.replication.model_metadata import Partition

TIMEOUT_US = limits.ISR_CHANGE_TIMEOUT_MS * 1_000


def joining(count: int) -> tuple[IsrProposer, list[Leadership]]:
    """Partitions of which broker 2 has all, and wants to be in sync."""
    agenda: LeadershipTimers[Leadership] = LeadershipTimers()
    live, terms = {1: 11, 2: 12}, CommitTerms(Durability.OS, 1)
    led = [
        Leadership(
            PartitionKey(n, 0), 1, Partition((1, 2), (1,), 1, 3, 1), live, LogEndsAtStart(0, 0, 0, 0), terms, agenda, 0
        )
        for n in range(1, count + 1)
    ]
    for leadership in led:
        leadership.fetched(2, 12, 0, 0, 0)
    return IsrProposer(agenda), led


def test_all_that_is_wanted_goes_into_one_request() -> None:
    proposer, _ = joining(3)
    batch = proposer.request(0)
    assert batch is not None
    assert [change.stream_id for change in batch.changes] == [1, 2, 3]
    assert proposer.request(0) is None


def test_each_change_has_an_answer_of_its_own() -> None:
    proposer, led = joining(2)
    batch = proposer.request(0)
    assert batch is not None
    moved = proposer.answered(batch.number, (IsrResult(2), IsrResult(0, "version_conflict")), 1)
    assert moved == []
    assert [leadership._under_way for leadership in led] == [None, None]
    assert [bool(leadership._unsettled) for leadership in led] == [True, False]


def test_a_refusal_lets_commits_go_on() -> None:
    proposer, led = joining(1)
    batch = proposer.request(0)
    led[0].appended(4, 1)
    assert led[0].committed_end == 0
    assert batch is not None
    assert proposer.answered(batch.number, (IsrResult(0, "stale_incarnation"),), 2) == led
    assert led[0].committed_end == 4


def test_no_answer_in_time_an_answer_that_does_not_fit_and_a_late_one_say_nothing() -> None:
    proposer, led = joining(2)
    batch = proposer.request(0)
    assert batch is not None
    proposer.tick(TIMEOUT_US - 1)
    assert proposer.next_deadline_us == TIMEOUT_US
    proposer.tick(TIMEOUT_US)
    assert proposer.next_deadline_us is None
    assert proposer.answered(batch.number, (IsrResult(0, "no"), IsrResult(0, "no")), TIMEOUT_US) == []
    assert all(leadership._unsettled for leadership in led)


def test_an_answer_of_another_length_counts_as_lost() -> None:
    proposer, led = joining(2)
    batch = proposer.request(0)
    assert batch is not None
    assert proposer.answered(batch.number, (IsrResult(0, "no"),), 1) == []
    assert all(leadership._unsettled for leadership in led)
    for leadership in led:
        leadership.tick(limits.ISR_RETRY_MS * 1_000 + 2)
    again = proposer.request(limits.ISR_RETRY_MS * 1_000 + 2)
    assert again is not None
    assert again.number != batch.number


def test_what_does_not_fit_one_request_goes_into_the_next() -> None:
    proposer, _ = joining(limits.ISR_CHANGES_PER_COMMAND_MAX + 1)
    batch = proposer.request(0)
    assert batch is not None
    assert len(batch.changes) == limits.ISR_CHANGES_PER_COMMAND_MAX
    proposer.answered(batch.number, tuple(IsrResult(2) for _ in batch.changes), 1)
    rest = proposer.request(1)
    assert rest is not None
    assert len(rest.changes) == 1


def test_a_leadership_that_is_over_asks_for_nothing_again() -> None:
    proposer, led = joining(2)
    batch = proposer.request(0)
    assert batch is not None
    led[0].end()
    assert proposer.answered(batch.number, (IsrResult(0, "fenced_epoch"), IsrResult(0, "fenced_epoch")), 1) == []
    agenda = led[0]._agenda
    for leadership in agenda.due(limits.ISR_RETRY_MS * 1_000 + 1):
        leadership.tick(limits.ISR_RETRY_MS * 1_000 + 1)
    again = proposer.request(limits.ISR_RETRY_MS * 1_000 + 1)
    assert again is not None
    assert [change.stream_id for change in again.changes] == [2]
