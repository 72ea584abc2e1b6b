"""One leadership: what is committed, who is in sync, what an ack may say, and what it costs to have many."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.replication.leader import CommitStatus, CommitTerms, FollowerProgress, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from tests.unit.replication.model_metadata import Partition

LAG_US = 10_000_000
LIVE: Any = {1: 11, 2: 12, 3: 13}
WITHOUT_3: Any = {1: 11, 2: 12}
RESTARTED: Any = {**LIVE, 2: 22}
WITHOUT_1: Any = {2: 12, 3: 13}


def partition(isr=(1, 2, 3), version=1, replicas=(1, 2, 3), epoch=5) -> Partition:
    return Partition(replicas, isr, 1, epoch, version)


def leads(
    agenda=None,
    *,
    isr=(1, 2, 3),
    replicas=(1, 2, 3),
    durability=Durability.AUTO,
    min_isr=2,
    ends=(0, 0, 0, 0),
    live=None,
) -> Leadership:
    terms = CommitTerms(durability, min_isr, LAG_US // 1_000)
    state = partition(isr, replicas=replicas)
    return Leadership(
        PartitionKey(7, 0), 1, state, LIVE if live is None else live, LogEndsAtStart(*ends), terms,
        LeadershipTimers() if agenda is None else agenda, 0,
    )  # fmt: skip


def fetches(leadership: Leadership, broker: int, log_end: int, now_us: int = 0, flushed_end: int = 0) -> bool:
    return leadership.fetched(broker, LIVE[broker], log_end, flushed_end, now_us)


@pytest.mark.parametrize(
    ("durability", "isr", "committed_end"),
    [
        (Durability.AUTO, (1, 2, 3), 6),  # the least log end
        (Durability.OS, (1, 2, 3), 6),
        (Durability.FSYNC, (1, 2, 3), 2),  # the least flushed end
        (Durability.AUTO, (1, 2), 8),
        (Durability.AUTO, (1,), 4),  # its own disk only
        (Durability.OS, (1,), 10),
        (Durability.FSYNC, (1,), 4),
        (Durability.FSYNC, (1, 2), 3),
    ],
)
def test_what_counts_follows_from_durability_and_isr(durability, isr, committed_end) -> None:
    leadership = leads(isr=isr, durability=durability, min_isr=1)
    leadership.appended(10, 0)
    leadership.flushed(4)
    fetches(leadership, 2, 8, flushed_end=3)
    fetches(leadership, 3, 6, flushed_end=2)
    assert leadership.committed_end == committed_end


def test_one_replica_commits_what_is_on_its_disk() -> None:
    leadership = leads(isr=(1,), replicas=(1,), min_isr=1)
    assert not leadership.appended(5, 0)
    assert leadership.flushed(3)
    assert leadership.committed_end == 3
    assert leadership.commit_status(3) == CommitStatus(1, True)


def test_nothing_is_committed_before_every_member_has_fetched_in_this_epoch() -> None:
    leadership = leads(ends=(0, 4, 9, 9))
    fetches(leadership, 2, 9)
    assert leadership.committed_end == 4
    assert not leadership.knows_latest
    assert fetches(leadership, 3, 9)
    assert leadership.committed_end == 9
    assert leadership.knows_latest


def test_the_committed_end_never_goes_back() -> None:
    leadership = leads()
    leadership.appended(5, 0)
    fetches(leadership, 2, 5)
    assert fetches(leadership, 3, 5)
    assert not fetches(leadership, 3, 2)  # it has cut into a merged batch
    assert leadership.committed_end == 5


def test_below_min_isr_nothing_is_taken_or_committed() -> None:
    leadership = leads(isr=(1,), min_isr=2, ends=(0, 2, 2, 2))
    leadership.appended(4, 0)
    assert not leadership.accepts
    assert not leadership.flushed(4)
    assert leadership.committed_end == 2
    assert leadership.reconfigured(CommitTerms(Durability.AUTO, 1, LAG_US // 1_000))
    assert leadership.accepts
    assert leadership.committed_end == 4


def test_it_is_followed_once_all_in_sync_have_agreed_with_its_log_in_this_epoch() -> None:
    leadership = leads(isr=(1, 2), ends=(4, 4, 4, 4))
    assert leadership.committed_end == 4
    assert not leadership.is_followed
    fetches(leadership, 3, 4)  # who is not in sync does not lead next
    assert not leadership.is_followed
    fetches(leadership, 2, 4)
    assert leadership.is_followed


def test_below_min_isr_who_left_it_may_lead_next_and_need_not_have_agreed() -> None:
    assert leads(isr=(1,), min_isr=1).is_followed
    assert not leads(isr=(1,), min_isr=2).is_followed


def test_a_fetch_of_a_stranger_counts_for_nothing() -> None:
    leadership = leads(isr=(1, 2), replicas=(1, 2))
    leadership.appended(4, 0)
    assert not leadership.fetched(3, 13, 4, 4, 0)
    assert leadership.committed_end == 0


def test_progress_counts_only_of_what_the_follower_was_known_to_have() -> None:
    leadership = leads(isr=(1, 2), durability=Durability.FSYNC)
    leadership.appended(9, 0)
    leadership.flushed(9)
    assert not leadership.progressed(2, 12, 9, 0)  # it has not fetched
    fetches(leadership, 2, 5)
    assert not leadership.progressed(2, 99, 5, 0)  # another run
    assert leadership.progressed(2, 12, 9, 0)
    assert leadership.committed_end == 5


def test_an_ack_says_how_many_have_it_and_whether_all_those_on_disk() -> None:
    leadership = leads(isr=(1, 2))
    leadership.appended(4, 0)
    fetches(leadership, 2, 4, flushed_end=2)
    fetches(leadership, 3, 4, flushed_end=4)  # not in sync: it may be gone tomorrow
    assert leadership.commit_status(4) == CommitStatus(2, False)
    leadership.flushed(4)
    assert leadership.commit_status(4) == CommitStatus(2, False)
    leadership.progressed(2, 12, 4, 0)
    assert leadership.commit_status(4) == CommitStatus(2, True)


def test_a_log_that_has_failed_counts_only_up_to_its_disk() -> None:
    leadership = leads(isr=(1,), durability=Durability.OS, min_isr=1)
    leadership.failed()
    leadership.appended(4, 0)
    assert leadership.committed_end == 0
    assert leadership.flushed(2)
    assert leadership.committed_end == 2


class TestIsr:
    def test_who_lags_is_to_leave_after_a_while_and_not_before(self) -> None:
        agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        leadership = leads(agenda)
        for broker in (2, 3):
            fetches(leadership, broker, 0)
        leadership.appended(1, 1_000)
        fetches(leadership, 2, 1, 2_000)
        assert agenda.due(LAG_US - 1) == []
        for now_us in (LAG_US, LAG_US + 1_000, LAG_US + 1_001):
            for due in agenda.due(now_us):
                due.tick(now_us)
        assert agenda.take_wishes(9) == [leadership]
        change = leadership.proposal(LAG_US + 1_001)
        assert change is not None
        assert [(member.broker_id, member.incarnation) for member in change.isr] == [(1, 11), (2, 12)]
        assert (change.leader_epoch, change.version, change.commits_resumed) == (5, 1, True)

    def test_who_is_always_one_fetch_behind_a_flood_does_not_lag(self) -> None:
        leadership = leads(isr=(1, 2), replicas=(1, 2))
        for step in range(100):
            now_us = step * LAG_US // 20
            leadership.appended(10 * (step + 1), now_us)
            fetches(leadership, 2, 10 * step, now_us + 1)
            assert leadership.proposal(now_us + 2) is None

    def test_where_nothing_is_written_nobody_lags(self) -> None:
        agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        leadership = leads(agenda)
        for broker in (2, 3):
            fetches(leadership, broker, 0)
        for due in agenda.due(100 * LAG_US):
            due.tick(100 * LAG_US)
        assert not agenda.has_wishes
        assert agenda.next_deadline_us is None

    def test_who_is_fenced_is_to_leave_at_once(self) -> None:
        agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        leadership = leads(agenda)
        leadership.image(partition(), WITHOUT_3, 5)
        assert agenda.take_wishes(9) == [leadership]
        change = leadership.proposal(5)
        assert change is not None
        assert [member.broker_id for member in change.isr] == [1, 2]

    @pytest.mark.parametrize(
        ("log_end", "may_join"),
        [(3, False), (5, False), (8, False), (9, True)],
        ids=["below", "committed", "", "epoch"],
    )
    def test_who_joins_has_all_of_the_epochs_before(self, log_end, may_join) -> None:
        agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        leadership = leads(agenda, isr=(1, 2), ends=(0, 5, 9, 9))
        fetches(leadership, 3, log_end, flushed_end=log_end)
        assert (leadership.proposal(0) is not None) == may_join
        assert agenda.has_wishes == may_join

    def test_who_joins_has_synced_what_its_leader_had_when_it_came_so_far(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, ends=(0, 4, 4, 4))
        assert leadership.commit_status(4).fsynced
        fetches(leadership, 2, 4, flushed_end=3)
        assert leadership.proposal(0) is None
        assert not leadership.commit_status(4).fsynced
        leadership.appended(5, 0)
        leadership.flushed(5)
        fetches(leadership, 2, 5, flushed_end=4)
        assert leadership.proposal(0) is not None

    def test_who_comes_so_far_and_lags_has_to_come_so_far_again(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, ends=(0, 4, 4, 4))
        fetches(leadership, 2, 4, flushed_end=3)
        leadership.appended(5, 0)
        leadership.flushed(5)
        leadership.tick(10_000_001)
        assert leadership.commit_status(5).fsynced
        fetches(leadership, 2, 5, 10_000_002, flushed_end=4)
        assert leadership.proposal(10_000_002) is None

    def test_with_fsync_who_joins_has_it_on_disk(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, durability=Durability.FSYNC, ends=(0, 4, 4, 4))
        fetches(leadership, 2, 4, flushed_end=3)
        assert leadership.proposal(0) is None
        leadership.progressed(2, 12, 4, 0)
        assert leadership.commit_status(4).fsynced
        assert leadership.proposal(0) is not None

    def test_with_fsync_an_ack_does_not_look_at_who_is_about_to_join(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, durability=Durability.FSYNC, ends=(0, 4, 4, 4))
        fetches(leadership, 2, 4, flushed_end=4)
        leadership.appended(5, 0)
        leadership.flushed(5)
        assert leadership.committed_end == 5
        assert leadership.commit_status(5).fsynced

    def test_a_new_run_begins_with_nothing(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, ends=(0, 4, 4, 4))
        fetches(leadership, 2, 4)
        leadership.image(partition((1,)), RESTARTED, 0)
        assert leadership.lag() == {2: None, 3: None}
        assert leadership.proposal(0) is None

    def test_a_leader_that_is_not_live_by_the_image_proposes_nothing(self) -> None:
        leadership = leads(isr=(1,), min_isr=1, live=WITHOUT_1)
        fetches(leadership, 2, 0)
        assert leadership.proposal(0) is None


class TestProposals:
    """Broker 3 lags behind 2; the leader wants it out."""

    def shrinking(self, agenda=None, durability=Durability.OS, isr=(1, 2, 3)):
        leadership = leads(agenda, durability=durability, min_isr=1, isr=isr)
        for broker in (2, 3):
            fetches(leadership, broker, 0)
        leadership.appended(4, 0)
        fetches(leadership, 2, 4)
        leadership.tick(LAG_US + 1)
        change = leadership.proposal(LAG_US + 1)
        assert change is not None
        return leadership, change

    def test_one_is_under_way_at_a_time(self) -> None:
        leadership, _ = self.shrinking()
        assert leadership.proposal(LAG_US + 2) is None

    def test_until_the_image_says_so_both_isrs_count(self) -> None:
        leadership, change = self.shrinking()
        leadership.accepted(change, 2)
        assert leadership.committed_end == 0
        assert leadership.proposal(LAG_US * 2) is None  # the image will have it
        assert leadership.image(partition((1, 2), version=2), LIVE, LAG_US + 5)
        assert leadership.committed_end == 4

    def test_a_refused_one_is_asked_again_a_little_later(self) -> None:
        agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        leadership, change = self.shrinking(agenda)
        leadership.refused(change, LAG_US + 10)
        assert leadership.proposal(LAG_US + 11) is None
        assert agenda.next_deadline_us is not None
        assert leadership.proposal(LAG_US + 300_000) is not None

    def test_a_joining_replica_counts_from_the_proposal_on_and_not_after_a_refusal(self) -> None:
        leadership = leads(isr=(1, 2), durability=Durability.OS, min_isr=1)
        for broker in (2, 3):
            fetches(leadership, broker, 0)
        change = leadership.proposal(0)
        assert change is not None
        leadership.appended(4, 1)
        assert not fetches(leadership, 2, 4, 1)
        assert leadership.refused(change, 2)
        assert leadership.committed_end == 4

    def test_a_lost_one_counts_until_a_later_version_whatever_is_refused_afterwards(self) -> None:
        leadership = leads(isr=(1, 2), durability=Durability.OS, min_isr=1)
        for broker in (2, 3):
            fetches(leadership, broker, 0)
        first = leadership.proposal(0)
        assert first is not None
        leadership.lost(first, 1)
        leadership.appended(4, 1)
        fetches(leadership, 2, 4, 1)
        second = leadership.proposal(300_000)
        assert second is not None
        assert not leadership.refused(second, 300_001)
        assert leadership.committed_end == 0
        # Broker 3 goes: now the present ISR itself is proposed, so that the version rises.
        leadership.image(partition((1, 2)), WITHOUT_3, 300_002)
        third = leadership.proposal(600_000)
        assert third is not None
        assert [member.broker_id for member in third.isr] == [1, 2]
        assert leadership.image(partition((1, 2), version=2), WITHOUT_3, 600_001)
        assert leadership.committed_end == 4

    def test_an_answer_that_comes_after_the_image_changes_nothing(self) -> None:
        leadership, change = self.shrinking()
        leadership.image(partition((1, 2), version=2), LIVE, LAG_US + 5)
        assert not leadership.refused(change, LAG_US + 6)
        leadership.lost(change, LAG_US + 6)
        leadership.accepted(change, 9)
        fetches(leadership, 3, 4, LAG_US + 7)
        assert leadership.proposal(LAG_US + 8) is not None

    def test_with_auto_a_shrink_to_one_counts_the_own_disk_from_the_proposal_on(self) -> None:
        leadership = leads(isr=(1, 2), replicas=(1, 2), min_isr=1)
        fetches(leadership, 2, 0)
        leadership.appended(4, 0)
        assert not leadership.waits_for_own_disk
        assert leadership.proposal(LAG_US + 1) is not None
        assert leadership.waits_for_own_disk
        assert not fetches(leadership, 2, 4, LAG_US + 2)  # both have it, but soon one may be alone with it
        assert leadership.flushed(4)


class Flood:
    """Messages come to broker 1 every millisecond; broker 2 has all of them a little later, the disks later still."""

    BEHIND_MS, SYNCED_MS = 2, 6

    def __init__(self, isr: tuple[int, ...], durability: Durability) -> None:
        self.agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        self.leadership = leads(self.agenda, isr=isr, replicas=(1, 2), durability=durability, min_isr=1)
        self.now_ms = 0

    def end_at(self, at_ms: int) -> int:
        return max(0, at_ms) * 10

    def pass_ms(self, *, fetches_too: bool = True) -> list[Leadership]:
        """Gives who wants another ISR."""
        self.now_ms += 1
        now_ms, now_us, leadership = self.now_ms, self.now_ms * 1_000, self.leadership
        for due in self.agenda.due(now_us):
            due.tick(now_us)
        leadership.appended(self.end_at(now_ms), now_us)
        if now_ms % self.SYNCED_MS == 0:
            leadership.flushed(self.end_at(now_ms - self.SYNCED_MS))
        if fetches_too and now_ms % self.BEHIND_MS == 0:
            synced_ms = (now_ms - self.BEHIND_MS - 1) // self.SYNCED_MS * self.SYNCED_MS - self.SYNCED_MS
            fetches(leadership, 2, self.end_at(now_ms - self.BEHIND_MS), now_us, flushed_end=self.end_at(synced_ms))
        return self.agenda.take_wishes(9)

    def proposes(self) -> bool:
        """Whether a millisecond later another ISR is proposed."""
        return any(one.proposal(self.now_ms * 1_000) is not None for one in self.pass_ms())

    @property
    def uncommitted(self) -> int:
        return self.leadership.log_end - self.leadership.committed_end


@pytest.mark.parametrize("durability", Durability)
def test_who_keeps_up_stays_in_sync_though_it_never_has_all(durability) -> None:
    flood = Flood((1, 2), durability)
    assert not any(flood.proposes() for _ in range(LAG_US * 3 // 1_000))


@pytest.mark.parametrize("durability", Durability)
def test_who_keeps_up_joins_though_it_never_has_all(durability) -> None:
    flood = Flood((1,), durability)
    assert any(flood.proposes() for _ in range(1_000))
    assert flood.uncommitted < 500  # commits go on meanwhile


def test_commits_wait_for_who_keeps_up_and_fails_only_for_a_moment_and_not_soon_again() -> None:
    flood = Flood((1,), Durability.OS)
    stood_still_ms = 0
    for now_ms in range(LAG_US // 1_000 - 10):
        flood.pass_ms(fetches_too=now_ms % 3_000 < 6)
        stood_still_ms += flood.uncommitted > 100
    assert 0 < stood_still_ms <= limits.JOIN_AWAITED_MS


def test_an_idle_leadership_is_small_and_has_no_entry_in_the_agenda() -> None:
    agenda: LeadershipTimers[Leadership] = LeadershipTimers()
    state, terms = partition(), CommitTerms(Durability.AUTO, 2, LAG_US // 1_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        led = [
            Leadership(PartitionKey(7, n), 1, state, LIVE, LogEndsAtStart(0, 10**6, 10**6, 10**6), terms, agenda, 0)
            for n in range(1_000)
        ]
        for leadership in led:
            for broker in (2, 3):
                leadership.fetched(broker, LIVE[broker], 10**6, 10**6, 0)
        for leadership in agenda.due(LAG_US):
            leadership.tick(LAG_US)
        size_bytes = (tracemalloc.get_traced_memory()[0] - before) / len(led)
    finally:
        tracemalloc.stop()
    assert agenda.next_deadline_us is None
    assert not agenda.has_wishes
    assert size_bytes < 1_024


def test_who_appends_all_the_time_is_planned_once() -> None:
    agenda: LeadershipTimers[Leadership] = LeadershipTimers()
    leadership = leads(agenda)
    for step in range(1_000):
        leadership.appended(step + 1, step)
        for broker in (2, 3):
            fetches(leadership, broker, step + 1, step)
    assert len(agenda._heap) == 1


@pytest.mark.parametrize("durability", list(Durability))
def test_who_left_though_it_has_all_joins_again_where_nothing_more_comes(durability) -> None:
    """Its log takes something again before it is known that it has left; it has nothing more to fetch or to tell."""
    leadership = leads(durability=durability, ends=(0, 4, 4, 4))
    fetches(leadership, 2, 4, flushed_end=4)
    leadership.impeded(2, LIVE[2])
    change = leadership.proposal(0)
    assert change is not None
    fetches(leadership, 2, 4, flushed_end=4)
    leadership.image(partition(isr=(1, 3), version=2), LIVE, 0)
    leadership.accepted(change, 2)
    back = leadership.proposal(0)
    assert back is not None
    assert [member.broker_id for member in back.isr] == [1, 2, 3]


def test_who_left_joins_again_with_no_less_on_its_disk_than_the_leader_has_by_then() -> None:
    leadership = leads(isr=(1, 3), ends=(0, 4, 4, 4))
    fetches(leadership, 2, 4, flushed_end=4)
    leadership.image(partition(version=2), LIVE, 0)  # it is in sync, and says nothing for a while
    leadership.appended(9, 0)
    leadership.flushed(9)
    leadership.image(partition(isr=(1, 3), version=3), LIVE, 0)
    fetches(leadership, 2, 9, flushed_end=4)
    assert leadership.proposal(0) is None
    fetches(leadership, 2, 9, flushed_end=9)
    assert leadership.proposal(0) is not None


def test_an_empty_log_does_not_keep_up_until_it_has_reached_what_was_there() -> None:
    follower = FollowerProgress(BrokerId(2), Incarnation(1), 0)
    follower.reached(0, 1_000, 10)
    assert not follower.keeps_up(10), "commits would wait for what is far behind"
    follower.reached(900, 1_100, 20)
    assert not follower.keeps_up(20)
    follower.reached(1_000, 1_200, 30)
    assert follower.keeps_up(30)
