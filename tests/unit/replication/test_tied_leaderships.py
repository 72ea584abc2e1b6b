"""The leaderships of a partition and of its companion log: one ISR, for which one of them proposes."""

from __future__ import annotations

from typing import Any

from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability
from penstock.base.ids import PartitionKey
from penstock.replication.leader import CommitTerms, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from tests.unit.replication.model_metadata import Partition

LAG_US = 10_000_000
LIVE: Any = {1: 11, 2: 12, 3: 13}
NOTHING = LogEndsAtStart(0, 0, 0, 0)
TERMS = CommitTerms(Durability.AUTO, 2, LAG_US // 1_000, companions=(CompanionKind.MARKS,))
MARKS_TERMS = CommitTerms(Durability.FSYNC, 2, LAG_US // 1_000)


class Tied:
    """A partition and its companion, led by broker 1 in epoch 5."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), *, eligible: tuple[int, ...] = ()) -> None:
        self.agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        self.state = Partition((1, 2, 3), isr, 1, 5, 1, eligible)
        self.data = Leadership(PartitionKey(7, 0), 1, self.state, LIVE, NOTHING, TERMS, self.agenda, 0)  # type: ignore[arg-type]
        self.marks: Leadership | None = None

    def begin(self, ends: LogEndsAtStart = NOTHING) -> Leadership:
        """The companion's log is open."""
        self.marks = self.companion(8, CompanionKind.MARKS, MARKS_TERMS, ends)
        return self.marks

    def companion(
        self, stream_id: int, kind: CompanionKind, terms: CommitTerms, ends: LogEndsAtStart = NOTHING
    ) -> Leadership:
        """A companion's log is open."""
        key: Any = PartitionKey(stream_id, 0)  # type: ignore[arg-type]
        return Leadership(key, 1, self.state, LIVE, ends, terms, self.agenda, 0, self.data, kind=kind)  # type: ignore[arg-type]

    def wanted(self, now_us: int = 0) -> list[int] | None:
        """The ISR that is proposed."""
        for one in self.agenda.take_wishes(10):
            assert one is self.data, "only the partition's leadership proposes"
            if (change := one.proposal(now_us)) is not None:
                return [member.broker_id for member in change.isr]
        return None


def fetches(leadership: Leadership, broker: int, end: int, now_us: int = 0) -> bool:
    return leadership.fetched(broker, LIVE[broker], end, end, now_us)


def test_a_follower_joins_once_it_may_join_in_both() -> None:
    tied = Tied(isr=(1, 2))
    marks = tied.begin()
    for broker in (2, 3):
        fetches(tied.data, broker, 0)
    assert tied.wanted() is None, "it has not fetched the companion"
    fetches(marks, 3, 0)
    assert tied.wanted() == [1, 2, 3]


def test_a_follower_joins_that_was_ready_in_the_companion_first() -> None:
    tied = Tied(isr=(1, 2))
    fetches(tied.begin(), 3, 0)
    assert tied.wanted() is None
    fetches(tied.data, 3, 0)
    assert tied.wanted() == [1, 2, 3]


def test_no_follower_joins_before_the_companion_is_led() -> None:
    tied = Tied(isr=(1, 2))
    fetches(tied.data, 3, 0)
    assert tied.wanted() is None
    assert tied.data.lacks_companion
    fetches(tied.begin(), 3, 0)
    assert tied.wanted() == [1, 2, 3]


def test_a_follower_that_is_late_in_the_companion_leaves() -> None:
    tied = Tied()
    marks = tied.begin()
    for broker in (2, 3):
        fetches(tied.data, broker, 0)
    fetches(marks, 2, 0)
    marks.appended(1, 0)
    marks.flushed(1)
    fetches(marks, 2, 1, LAG_US)
    for one in tied.agenda.due(LAG_US + 1):
        one.tick(LAG_US + 1)
    assert tied.wanted(LAG_US + 1) == [1, 2]


def test_a_follower_whose_companion_takes_nothing_leaves_at_once_and_joins_again_once_it_does() -> None:
    tied = Tied()
    marks = tied.begin()
    for broker in (2, 3):
        fetches(tied.data, broker, 0)
        fetches(marks, broker, 0)
    marks.impeded(3, LIVE[3])  # type: ignore[arg-type]
    assert tied.wanted() == [1, 2]
    tied.state = Partition((1, 2, 3), (1, 2), 1, 5, 2)
    tied.data.image(tied.state, LIVE, 1)  # type: ignore[arg-type]
    fetches(marks, 3, 0, 2)
    assert tied.wanted(2) == [1, 2, 3], "nothing more comes of the messages' log"


def test_marks_wait_for_the_members_of_a_proposal() -> None:
    tied = Tied(isr=(1, 2))
    marks = tied.begin()
    for one in (tied.data, marks):
        fetches(one, 2, 0)
        fetches(one, 3, 0)
    assert tied.wanted() == [1, 2, 3]
    marks.appended(1, 0)
    marks.flushed(1)
    assert not fetches(marks, 2, 1), "broker 3 may be in the ISR by now"
    assert fetches(marks, 3, 1)
    assert marks.committed_end == 1


def test_a_refused_proposal_frees_both() -> None:
    tied = Tied(isr=(1, 2))
    marks = tied.begin()
    for one in (tied.data, marks):
        fetches(one, 2, 0)
        fetches(one, 3, 0)
    (asking,) = tied.agenda.take_wishes(10)
    change = asking.proposal(0)
    assert change is not None
    marks.appended(1, 0)
    marks.flushed(1)
    fetches(marks, 2, 1)
    assert tied.data.refused(change, 0)
    assert marks.committed_end == 1


def test_an_image_reaches_both() -> None:
    tied = Tied()
    marks = tied.begin()
    fetches(marks, 2, 0)
    marks.appended(1, 0)
    marks.flushed(1)
    fetches(marks, 2, 1)
    assert marks.committed_end == 0
    assert tied.data.image(Partition((1, 2, 3), (1, 2), 1, 5, 2), LIVE, 1)  # type: ignore[arg-type]
    assert marks.isr == (1, 2)
    assert marks.committed_end == 1


def test_a_leader_has_rivals_until_its_disk_has_both() -> None:
    tied = Tied(isr=(1, 2), eligible=(3,))
    for broker in (2,):
        fetches(tied.data, broker, 0)
    tied.data.flushed(0)
    assert tied.wanted() is None, "its companion is not open"
    marks = tied.begin(LogEndsAtStart(0, 0, 0, 3))
    tied.data.flushed(0)
    assert tied.wanted() is None
    marks.flushed(3)
    (asking,) = tied.agenda.take_wishes(10)
    change = asking.proposal(0)
    assert change is not None
    assert change.commits_resumed


def test_a_companion_that_is_led_no_more_lets_nobody_join() -> None:
    tied = Tied(isr=(1, 2))
    marks = tied.begin()
    fetches(tied.data, 3, 0)
    marks.end()
    assert tied.data.tied() == (tied.data,)
    fetches(tied.data, 3, 0)
    assert tied.wanted() is None


def test_a_leader_resumes_as_soon_as_its_companion_is_led_with_all_on_disk() -> None:
    """Nothing more happens in either log: it would have waited for the next check of late followers."""
    tied = Tied(isr=(1, 2), eligible=(3,))
    tied.begin(LogEndsAtStart(0, 3, 3, 3))
    (asking,) = tied.agenda.take_wishes(10)
    change = asking.proposal(0)
    assert change is not None
    assert change.commits_resumed


CONSUMERS_TERMS = CommitTerms(Durability.AUTO, 2, LAG_US // 1_000)
BOTH = CommitTerms(Durability.AUTO, 2, LAG_US // 1_000, companions=(CompanionKind.MARKS, CompanionKind.CONSUMERS))


def test_a_follower_joins_once_it_may_join_in_all_of_several_companions() -> None:
    tied = Tied(isr=(1, 2))
    tied.data.reconfigured(BOTH)
    marks = tied.begin()
    fetches(tied.data, 3, 0)
    fetches(marks, 3, 0)
    assert tied.wanted() is None, "the log of consumers is not led yet"
    assert tied.data.lacks_companion
    assert not tied.data.lacks_marks, "readers wait for marks alone"
    consumers = tied.companion(9, CompanionKind.CONSUMERS, CONSUMERS_TERMS)
    assert tied.data.tied() == (tied.data, marks, consumers)
    assert tied.data.marks is marks
    assert tied.wanted() is None
    fetches(consumers, 3, 0)
    assert tied.wanted() == [1, 2, 3]


def test_a_follower_that_is_late_with_the_consumers_leaves() -> None:
    tied = Tied()
    tied.data.reconfigured(BOTH)
    consumers = tied.companion(9, CompanionKind.CONSUMERS, CONSUMERS_TERMS)
    marks = tied.begin()
    for one in (tied.data, marks, consumers):
        for broker in (2, 3):
            fetches(one, broker, 0)
    consumers.appended(1, 0)
    fetches(consumers, 2, 1, LAG_US)
    for one in (tied.data, marks):
        for broker in (2, 3):
            fetches(one, broker, 0, LAG_US)
    consumers.tick(LAG_US + 1)
    assert tied.wanted(LAG_US + 1) == [1, 2]


def test_one_of_several_companions_ends() -> None:
    tied = Tied()
    tied.data.reconfigured(BOTH)
    consumers = tied.companion(9, CompanionKind.CONSUMERS, CONSUMERS_TERMS)
    marks = tied.begin()
    marks.end()
    assert tied.data.companions == (consumers,)
    assert tied.data.marks is None
    assert tied.data.lacks_marks
