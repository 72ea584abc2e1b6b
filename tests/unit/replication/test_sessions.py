"""The leader's side of fetches: who is answered when, with what, and who is refused."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.messages import (
    Divergence,
    FetchPosition,
    FlushedEnd,
    PartitionName,
    ReplicaFetchRequest,
    ReplicaNews,
    ReplicaProgressRequest,
)
from penstock.replication.leader import CommitTerms, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.replication.sessions import FetchAnswer, Sessions
from tests.unit.replication.model_log import Batch, ModelLog
from tests.unit.replication.model_metadata import Partition

MIB = limits.MIB
DELAY_US = limits.REPLICA_NEWS_DELAY_MS * 1_000
LIVE = {1: 11, 2: 12, 3: 13}


class Leader:
    """A broker that leads partitions 1, 2, … in epoch 5, with follower 2 in sync and 3 not."""

    def __init__(self, partitions: int = 1, *, isr: tuple[int, ...] = (1, 2), durability=Durability.OS) -> None:
        self.sessions = Sessions()
        self.logs: dict[int, ModelLog] = {}
        self.led: dict[int, Leadership] = {}
        self.now_us = 1_000
        terms = CommitTerms(durability, 1)
        for number in range(1, partitions + 1):
            log = self.logs[number] = ModelLog()
            state = Partition((1, 2, 3), isr, 1, 5, 1)
            key = PartitionKey(number, 0)
            self.led[number] = Leadership(key, 1, state, LIVE, LogEndsAtStart(0, 0, 0, 0), terms, LeadershipTimers(), 0)
            self.sessions.lead(self.led[number], log)

    def append(self, number: int, size: int = 100) -> None:
        log = self.logs[number]
        log.append(Batch(5, log.log_end, log.log_end + 1, size, (log.log_end,)))
        if self.led[number].appended(log.log_end, self.now_us):
            self.sessions.ends_moved(self.led[number], self.now_us)
        self.sessions.appended(self.led[number])

    def fetch(self, *ends: tuple[int, int], caller="c", broker=2, first=False, session=1, known=None, **fields):
        """Broker 2 names (partition, log end)s."""
        fields.setdefault("wait_ms_max", 500)
        changed = tuple(FetchPosition(number, 0, 5, end, end, 5 if end else 0) for number, end in ends)
        fields.setdefault("changed", changed)
        request = ReplicaFetchRequest(
            broker_id=broker, incarnation=LIVE[broker], session=session, is_first=first, **fields
        )
        return self.sessions.fetch(caller, request, LIVE[broker] if known is None else known, self.now_us)

    def answers(self) -> list[FetchAnswer]:
        return self.sessions.answers(self.now_us)

    def news(self) -> list[tuple[int, int]]:
        """(partition, bytes) of the one answer there is."""
        (answer,) = self.answers()
        assert sum(found.length for found in answer.found) == sum(n.size_bytes for n in answer.response.partitions)
        return [(news.stream_id, news.size_bytes) for news in answer.response.partitions]


def test_data_is_answered_at_once_and_only_once_until_named_again() -> None:
    leader = Leader()
    leader.append(1)
    leader.fetch((1, 0), first=True)
    assert leader.news() == [(1, 100)]
    leader.append(1)
    leader.fetch()
    assert leader.answers() == []
    leader.now_us += 500_000
    assert leader.news() == []
    leader.fetch((1, 1))
    assert leader.news() == [(1, 100)]


def test_a_fetch_with_nothing_new_waits_for_data_or_its_time() -> None:
    leader = Leader(2)
    leader.fetch((1, 0), (2, 0), first=True)
    assert leader.answers() == []
    assert leader.sessions.next_deadline_us == leader.now_us + 500_000
    leader.append(2)
    assert leader.news() == [(2, 100)]


def test_what_comes_in_one_step_goes_out_in_one_answer() -> None:
    leader = Leader(3)
    leader.fetch((1, 0), (2, 0), (3, 0), first=True)
    for number in (3, 1, 3, 2):
        leader.append(number)
    assert leader.news() == [(3, 200), (1, 100), (2, 100)]


def test_ends_wait_a_little_for_something_to_travel_with() -> None:
    leader = Leader(2)
    leader.append(1)
    leader.fetch((1, 0), (2, 0), first=True)
    leader.news()
    assert leader.fetch((1, 1)) == [leader.led[1]]  # committed by it
    assert leader.answers() == []
    assert leader.sessions.next_deadline_us == leader.now_us + DELAY_US
    leader.append(2)
    (answer,) = leader.answers()
    assert [(n.stream_id, n.size_bytes, n.committed_end) for n in answer.response.partitions] == [
        (2, 100, 0),
        (1, 0, 1),
    ]
    leader.fetch((2, 1))
    leader.now_us += DELAY_US
    (answer,) = leader.answers()
    assert [(n.stream_id, n.committed_end) for n in answer.response.partitions] == [(2, 1)]
    leader.fetch()
    assert leader.sessions.next_deadline_us == leader.now_us + 500_000  # nothing is told twice


def test_a_second_fetch_has_the_first_one_answered() -> None:
    leader = Leader(2)
    leader.fetch((1, 0), caller="a", first=True)
    leader.fetch((2, 0), caller="b")
    (answer,) = leader.answers()
    assert (answer.caller, answer.response.partitions) == ("a", ())
    leader.append(1)
    leader.append(2)
    (answer,) = leader.answers()
    assert answer.caller == "b"
    assert len(answer.response.partitions) == 2


def test_a_batch_of_any_size_gets_through_and_the_others_come_next() -> None:
    leader = Leader(3)
    for number in (1, 2, 3):
        leader.append(number, 60 * MIB)
    leader.fetch((1, 0), (2, 0), (3, 0), first=True)
    seen = [leader.news()]
    for _ in range(2):
        leader.fetch()
        seen.append(leader.news())
    assert seen == [[(1, 60 * MIB)], [(2, 60 * MIB)], [(3, 60 * MIB)]]


def test_whoever_has_much_does_not_keep_the_others_waiting() -> None:
    leader = Leader(9)
    for _ in range(400):
        leader.append(1, 100_000)
    for number in range(2, 10):
        leader.append(number, 1_000)
    leader.fetch(*((number, 0) for number in range(1, 10)), first=True)
    news = leader.news()
    assert [number for number, _ in news] == list(range(1, 10))
    assert sum(size for _, size in news) <= limits.REPLICA_FETCH_BYTES


def test_an_answer_has_so_many_pieces_and_the_rest_comes_next() -> None:
    count = limits.REPLICA_RANGES_MAX + 10
    leader = Leader(count)
    for number in range(1, count + 1):
        leader.append(number)
    leader.fetch(*((number, 0) for number in range(1, count + 1)), first=True)
    first = leader.news()
    leader.fetch()
    assert [number for number, _ in first + leader.news()] == list(range(1, count + 1))


def test_who_is_in_sync_goes_first_and_who_catches_up_has_a_share() -> None:
    leader = Leader(2, isr=(1,))
    leader.led[2].image(Partition((1, 2, 3), (1, 2), 1, 5, 2), LIVE, 0)
    for _ in range(100):
        leader.append(1, MIB)  # broker 2 catches up here,
        leader.append(2, MIB)  # and is in sync there
    leader.fetch((1, 0), (2, 0), first=True)
    assert leader.news() == [(2, 6 * MIB), (1, 2 * MIB)]


def test_who_catches_up_has_the_whole_answer_while_nobody_else_has_news() -> None:
    leader = Leader(2, isr=(1,))
    leader.led[2].image(Partition((1, 2, 3), (1, 2), 1, 5, 2), LIVE, 0)
    for _ in range(100):
        leader.append(1, MIB)
    leader.fetch((1, 0), (2, 0), first=True)
    assert leader.news() == [(1, 8 * MIB)]


def test_where_logs_diverge_the_fetch_says_where_and_counts_for_nothing() -> None:
    leader = Leader()
    leader.logs[1].append(Batch(3, 0, 4, 10, (0,) * 4))
    leader.led[1].appended(4, 0)
    position = FetchPosition(1, 0, 5, 9, 9, 4)
    assert leader.fetch(first=True, changed=(position,)) == []
    (answer,) = leader.answers()
    assert answer.response.partitions == (ReplicaNews(1, 0, 5, diverging=Divergence(3, 4)),)
    assert list(leader.led[1].lag().values()) == [None, None]


def test_below_the_start_a_follower_hears_where_to_begin() -> None:
    leader = Leader()
    for _ in range(4):
        leader.append(1)
    leader.led[1].committed_end = 4
    leader.logs[1].start_at(3)
    leader.led[1].log_start_raised(3)
    for _ in range(2):  # also when it asks the same again
        leader.fetch((1, 1), first=True, session=1)
        (answer,) = leader.answers()
        assert answer.response.partitions == (ReplicaNews(1, 0, 5, replica_start=3),)


def test_a_disk_thread_says_where_to_begin_and_the_batch_that_holds_the_start_comes_whole() -> None:
    leader = Leader()
    log, led = leader.logs[1], leader.led[1]
    for base in (0, 4, 8):
        log.append(Batch(5, base, base + 4, 100, (5,) * 4))
    led.appended(12, leader.now_us)
    led.committed_end = 12
    log.start_at(6)
    led.log_start_raised(6)
    log.is_cold = True
    leader.fetch((1, 2), first=True)
    (answer,) = leader.answers()
    assert answer.response.partitions == (ReplicaNews(1, 0, 5, committed_end=12, log_start=6, is_settled=True),)
    leader.fetch()
    (look,) = leader.sessions.lookups()
    with pytest.raises(RemoteError) as gone:
        log.range(look.offset, look.bytes_max)
    leader.sessions.found(look, gone.value)
    (answer,) = leader.answers()
    assert answer.response.partitions == (ReplicaNews(1, 0, 5, replica_start=4),)
    leader.fetch(changed=(FetchPosition(1, 0, 5, 4, 4, 0),))
    assert leader.answers() == []
    (look,) = leader.sessions.lookups()
    leader.sessions.found(look, log.range(look.offset, look.bytes_max))
    (answer,) = leader.answers()
    assert answer.response.partitions == (
        ReplicaNews(1, 0, 5, committed_end=12, log_start=6, size_bytes=200, is_settled=True),
    )


def test_an_error_that_does_not_say_where_to_begin_is_handed_on() -> None:
    leader = Leader()
    leader.append(1)
    leader.logs[1].is_cold = True
    leader.fetch((1, 0), first=True)
    leader.answers()
    (look,) = leader.sessions.lookups()
    leader.sessions.found(look, RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "it is gone", replica_start=0))
    (answer,) = leader.answers()
    assert answer.response.partitions == (ReplicaNews(1, 0, 5, error=ErrorCode.OFFSET_OUT_OF_RANGE),)


@pytest.mark.parametrize(
    ("position", "error"),
    [
        (FetchPosition(1, 0, 4, 0, 0, 0), ErrorCode.FENCED_EPOCH),
        (FetchPosition(1, 0, 6, 0, 0, 0), ErrorCode.UNKNOWN_EPOCH),
        (FetchPosition(9, 0, 6, 0, 0, 0), ErrorCode.NOT_LEADER),
    ],
)
def test_a_position_that_cannot_be_answered_gets_an_error_in_its_own_epoch(position, error) -> None:
    leader = Leader()
    leader.fetch(first=True, changed=(position,))
    (answer,) = leader.answers()
    news = answer.response.partitions[0]
    assert (news.error, news.leader_epoch) == (error, position.leader_epoch)


def test_what_is_not_in_memory_holds_up_nobody() -> None:
    leader = Leader(2)
    leader.append(1)
    leader.append(2)
    leader.logs[1].is_cold = True
    leader.fetch((1, 0), (2, 0), first=True)
    assert leader.news() == [(2, 100)]
    (look,) = leader.sessions.lookups()
    leader.fetch((2, 1))
    leader.append(1)  # asks no second time
    assert leader.answers() == []
    assert leader.sessions.lookups() == []
    leader.sessions.found(look, leader.logs[1].range(look.offset, look.bytes_max))
    assert leader.news()[0] == (1, 200)


def test_a_log_that_is_still_empty_is_told_again_what_is_committed() -> None:
    """It could not store what it got, and takes an answer without news for that of an empty log (`freshness`)."""
    leader = Leader(isr=(1,))
    leader.append(1)
    leader.fetch((1, 0), broker=3, first=True)
    assert leader.news() == [(1, 100)]
    leader.fetch((1, 0), broker=3)
    leader.now_us += 500_000
    (answer,) = leader.answers()
    told = [(n.stream_id, n.committed_end, n.size_bytes) for n in answer.response.partitions]
    assert told == [(1, 1, 0)], "a disk thread looks for the batch meanwhile"


def test_what_was_looked_up_for_another_position_is_not_used() -> None:
    leader = Leader()
    leader.append(1)
    leader.logs[1].is_cold = True
    leader.fetch((1, 0), first=True)
    leader.answers()
    (look,) = leader.sessions.lookups()
    leader.fetch((1, 0), first=True, session=2)
    leader.answers()
    leader.sessions.found(look, leader.logs[1].range(0, 9))
    assert all(answer.found == () for answer in leader.answers())
    (again,) = leader.sessions.lookups()
    leader.sessions.found(again, RemoteError(ErrorCode.CORRUPT_RANGE, "damaged"))
    (answer,) = leader.answers()
    assert answer.response.partitions[0].error == ErrorCode.CORRUPT_RANGE


def test_a_log_that_cannot_be_read_is_an_error_of_that_partition() -> None:
    leader = Leader(2)
    leader.append(1)
    leader.append(2)

    def damaged(offset, bytes_max):
        raise RemoteError(ErrorCode.CORRUPT_RANGE, "damaged")

    leader.logs[1].find = damaged  # type: ignore[method-assign]
    leader.fetch((1, 0), (2, 0), first=True)
    (answer,) = leader.answers()
    assert [(n.stream_id, n.error, n.size_bytes) for n in answer.response.partitions] == [
        (2, "", 100), (1, ErrorCode.CORRUPT_RANGE, 0),
    ]  # fmt: skip


class TestRefusals:
    def test_another_incarnation_than_the_image_has(self) -> None:
        leader = Leader()
        for known, code in ((13, ErrorCode.STALE_INCARNATION), (11, ErrorCode.UNKNOWN_EPOCH)):
            with pytest.raises(RemoteError) as raised:
                leader.fetch((1, 0), first=True, known=known)
            assert raised.value.code == code
        request = ReplicaFetchRequest(broker_id=2, incarnation=12, session=1, is_first=True)
        with pytest.raises(RemoteError, match="not known here yet"):
            leader.sessions.fetch("c", request, None, 0)

    def test_a_session_that_is_not_known_or_is_over(self) -> None:
        leader = Leader()
        with pytest.raises(RemoteError, match="unknown fetch session"):
            leader.fetch((1, 0))
        leader.fetch((1, 0), first=True, session=2)
        for late in ({"session": 1, "first": True}, {"session": 1}, {"session": 3}):
            with pytest.raises(RemoteError, match="unknown fetch session"):
                leader.fetch((1, 0), **late)

    def test_a_broker_that_was_fenced_hears_so(self) -> None:
        leader = Leader()
        leader.fetch((1, 0), caller="c", first=True)
        ((caller, error),) = leader.sessions.ended(2)
        assert (caller, error.code) == ("c", ErrorCode.STALE_INCARNATION)
        assert leader.sessions.ended(2) == []

    def test_who_waits_for_a_leadership_that_has_ended_hears_so(self) -> None:
        leader = Leader()
        leader.fetch((1, 0), first=True)
        leader.sessions.resign(PartitionKey(1, 0))
        (answer,) = leader.answers()
        assert answer.response.partitions[0].error == ErrorCode.FENCED_EPOCH


def test_what_is_forgotten_is_answered_no_more() -> None:
    leader = Leader(2)
    leader.fetch((1, 0), (2, 0), first=True)
    leader.append(1)
    leader.fetch(caller="d", forgotten=(PartitionName(1, 0), PartitionName(9, 0)), wait_ms_max=0)
    answers = leader.answers()
    assert [answer.caller for answer in answers] == ["c", "d"]
    leader.append(1)
    leader.fetch(wait_ms_max=0)
    assert leader.news() == []


def test_gone_callers_are_not_answered_and_their_session_goes_on() -> None:
    leader = Leader()
    leader.fetch((1, 0), first=True)
    leader.sessions.callers_disconnected(["c"])
    leader.append(1)
    assert leader.answers() == []
    leader.fetch(caller="d")
    assert leader.news() == [(1, 100)]


def test_progress_moves_the_committed_end_of_what_was_fetched() -> None:
    leader = Leader(durability=Durability.FSYNC)
    leader.append(1)
    leader.led[1].flushed(1)
    position = FetchPosition(1, 0, 5, 1, 0, 5)
    leader.fetch(first=True, changed=(position,))
    assert leader.led[1].committed_end == 0

    def told(epoch: int, session: int = 1) -> list[Leadership]:
        flushed = (FlushedEnd(1, 0, epoch, 1), FlushedEnd(9, 0, 5, 1))
        request = ReplicaProgressRequest(broker_id=2, incarnation=12, session=session, flushed=flushed)
        return leader.sessions.progress(request, 12, leader.now_us)

    assert told(4) == []
    with pytest.raises(RemoteError, match="unknown fetch session"):
        told(5, session=2)
    assert told(5) == [leader.led[1]]
    assert leader.led[1].committed_end == 1


def test_one_append_among_many_idle_partitions_looks_at_no_other() -> None:
    leader = Leader(500)
    leader.fetch(*((number, 0) for number in range(1, 501)), first=True)
    asked: list[int] = []

    def counting(number: int, log: ModelLog):
        def find(offset: int, bytes_max: int):
            asked.append(number)
            return log.range(offset, bytes_max)

        return find

    for number, log in leader.logs.items():
        log.find = counting(number, log)  # type: ignore[method-assign]
    leader.append(250)
    assert leader.news() == [(250, 100)]
    assert asked == [250]


def wanted(leadership: Leadership, now_us: int) -> tuple[int, ...]:
    """The ISR that it proposes, or the present one."""
    change = leadership.proposal(now_us)
    return leadership.isr if change is None else tuple(member.broker_id for member in change.isr)


def test_nobody_waits_for_a_follower_whose_log_takes_nothing() -> None:
    leader = Leader(2)
    leader.fetch((1, 0), (2, 0), first=True)
    leader.fetch(caller="d", impeded=(PartitionName(1, 0),))
    assert (wanted(leader.led[1], 2_000), wanted(leader.led[2], 2_000)) == ((1,), (1, 2))
    assert leader.led[1].impeded_followers == {2}


def test_it_counts_again_once_it_is_named_without_that() -> None:
    leader = Leader()
    name = (PartitionName(1, 0),)
    leader.fetch((1, 0), first=True, impeded=name)
    leader.fetch((1, 0), caller="d", impeded=name)
    assert leader.led[1].impeded_followers == {2}
    leader.fetch((1, 0), caller="e")
    assert wanted(leader.led[1], 2_000) == (1, 2)


def test_a_leadership_that_begins_knows_whose_logs_take_nothing() -> None:
    leader = Leader()
    leader.fetch((1, 0), first=True)
    leader.fetch(caller="d", impeded=(PartitionName(1, 0), PartitionName(7, 0)))
    state = Partition((1, 2, 3), (1, 2), 1, 6, 2)
    again = Leadership(
        PartitionKey(1, 0),
        1,
        state,
        LIVE,
        LogEndsAtStart(0, 0, 0, 0),
        CommitTerms(Durability.OS, 1),
        LeadershipTimers(),
        0,
    )
    leader.sessions.lead(again, leader.logs[1])
    assert wanted(again, 2_000) == (1,)
