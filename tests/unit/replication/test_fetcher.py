"""What a follower's broker asks of a leader's: naming, back-off, throttle, sessions, and who is unreachable."""

from __future__ import annotations

from collections import deque

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.messages import Divergence, ReplicaFetchRequest, ReplicaFetchResponse, ReplicaNews
from penstock.replication.catch_up import CatchUpBudget
from penstock.replication.fetcher import Delivery, Fetcher
from penstock.replication.follower import Following
from tests.unit.replication.model_log import Batch, ModelLog

TIMEOUT_US = limits.REPLICA_FETCH_TIMEOUT_MS * 1_000
LOST = RemoteError(ErrorCode.BROKER_UNAVAILABLE, "no connection")


class Follower:
    """Broker 2, which follows partitions that broker 1 leads in epoch 5."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        in_sync: bool = True,
        bytes_per_s: int = 10**9,
        unsynced_bytes_max: int = 10**9,
    ) -> None:
        self.now_us = 1_000_000
        self.fetcher = Fetcher(2, 12, lambda: 1.0, CatchUpBudget(bytes_per_s, unsynced_bytes_max))
        self.followings = [Following(PartitionKey(number, 0), ModelLog(), 1, 5) for number in range(1, partitions + 1)]
        for following in self.followings:
            following.is_in_sync, following.tells_flushes = in_sync, True
            self.fetcher.follow(following)

    def request(self) -> tuple[int, ReplicaFetchRequest]:
        sent = self.fetcher.request(self.now_us)
        assert sent is not None
        return sent

    def answer(self, number: int, *news: ReplicaNews) -> list[Delivery]:
        raw_bytes = sum(one.size_bytes for one in news)
        return self.fetcher.answered(number, ReplicaFetchResponse(partitions=news), raw_bytes, self.now_us)

    def take(self, delivery: Delivery) -> None:
        """Append what came."""
        log = delivery.following.log
        assert isinstance(log, ModelLog)
        log.append(Batch(5, log.log_end, log.log_end + 1, delivery.position_end - delivery.position, (1,)))
        self.fetcher.proceed(delivery.following)


def data(number: int, size_bytes: int = 100) -> ReplicaNews:
    return ReplicaNews(number, 0, 5, size_bytes=size_bytes)


def named(request: ReplicaFetchRequest) -> list[tuple[int, int]]:
    return [(position.stream_id, position.log_end) for position in request.changed]


def test_the_first_request_names_all_and_the_next_only_what_has_changed() -> None:
    follower = Follower(3)
    number, request = follower.request()
    assert request.is_first
    assert named(request) == [(1, 0), (2, 0), (3, 0)]
    assert request.wait_ms_max == limits.REPLICA_FETCH_WAIT_MS
    assert follower.fetcher.request(follower.now_us) is None
    (delivery,) = follower.answer(number, data(2))
    follower.take(delivery)
    number, request = follower.request()
    assert (request.is_first, named(request), request.session) == (False, [(2, 1)], 1)
    follower.answer(number)
    assert named(follower.request()[1]) == []


def test_each_gets_its_own_part_of_the_batches() -> None:
    follower = Follower(3)
    number, _ = follower.request()
    deliveries = follower.answer(number, data(3, 10), ReplicaNews(1, 0, 5, committed_end=1), data(2, 20), data(9, 30))
    parts = [(one.following.key.stream_id, one.position, one.position_end) for one in deliveries]
    assert parts == [(3, 0, 10), (1, 10, 10), (2, 10, 30)]


def test_more_partitions_than_a_request_may_name_are_named_one_request_after_the_other() -> None:
    count = limits.REPLICA_NAMED_AT_ONCE + 5
    follower = Follower(count)
    number, request = follower.request()
    assert (len(request.changed), request.wait_ms_max) == (limits.REPLICA_NAMED_AT_ONCE, 0)
    _, second = follower.request()
    assert (len(second.changed), second.is_first) == (5, False)
    assert second.wait_ms_max > 0
    assert follower.fetcher.request(follower.now_us) is None
    assert follower.answer(number) == []


def test_what_is_to_be_followed_now_does_not_wait_for_the_poll_to_end() -> None:
    follower = Follower(1)
    follower.request()
    new = Following(PartitionKey(8, 0), ModelLog(), 1, 5)
    follower.fetcher.follow(new)
    assert named(follower.request()[1]) == [(8, 0)]
    follower.fetcher.follow(Following(PartitionKey(9, 0), ModelLog(), 1, 5))
    assert follower.fetcher.request(follower.now_us) is None  # two are under way


def test_what_is_forgotten_is_told_once() -> None:
    follower = Follower(2)
    number, _ = follower.request()
    follower.fetcher.forget(PartitionKey(1, 0))
    assert follower.answer(number, data(1)) == []
    _, request = follower.request()
    assert [name.stream_id for name in request.forgotten] == [1]
    follower.fetcher.forget(PartitionKey(2, 0))
    assert follower.fetcher.is_idle
    assert follower.fetcher.request(follower.now_us) is None


def test_what_keeps_a_partition_is_known_until_it_goes_on() -> None:
    follower = Follower(1)
    (following,) = follower.followings
    number, _ = follower.request()
    follower.answer(number, ReplicaNews(1, 0, 5, error="unknown_epoch"))
    assert following.trouble == "its leader, broker 1, refuses the replica fetch: unknown_epoch"
    follower.now_us += limits.REPLICA_RETRY_MS_MIN * 1_000
    number, _ = follower.request()
    (delivery,) = follower.answer(number, data(1))
    assert following.trouble == ""
    follower.fetcher.stall(following, follower.now_us, "its log takes nothing")
    assert following.trouble == "its log takes nothing"
    follower.take(delivery)
    assert following.trouble == ""


def test_after_an_error_a_partition_waits_longer_each_time_and_the_others_do_not() -> None:
    follower = Follower(2)
    number, _ = follower.request()
    waits_ms = []
    for _ in range(8):
        follower.answer(number, ReplicaNews(1, 0, 5, error="unknown_epoch"))
        number, request = follower.request()
        assert named(request) == []
        at_us = follower.fetcher.next_deadline_us(follower.now_us)
        assert at_us is not None
        waits_ms.append((at_us - follower.now_us) // 1_000)
        follower.answer(number)
        follower.now_us = at_us
        number, request = follower.request()
        assert named(request) == [(1, 0)]
    assert waits_ms == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]


def test_whatever_goes_wrong_with_a_request_begins_another_session() -> None:
    follower = Follower(2)
    number, _ = follower.request()
    follower.fetcher.failed(number, RemoteError(ErrorCode.UNKNOWN_SESSION, "no"), follower.now_us)
    assert follower.fetcher.request(follower.now_us) is None
    assert follower.fetcher.unreachable_since_us is None  # it has answered
    at_us = follower.fetcher.next_deadline_us(follower.now_us)
    assert at_us == follower.now_us + 50_000
    follower.now_us = at_us
    again, request = follower.request()
    assert (request.is_first, request.session, named(request)) == (True, 2, [(1, 0), (2, 0)])
    assert follower.answer(number, data(1)) == []  # late, of the session before
    assert len(follower.answer(again, data(1))) == 1


def test_a_leader_that_does_not_answer_is_unreachable_since_then() -> None:
    follower = Follower()
    follower.request()
    begun_us = follower.now_us
    assert not follower.fetcher.tick(begun_us + TIMEOUT_US - 1)
    follower.now_us = begun_us + TIMEOUT_US
    assert follower.fetcher.tick(follower.now_us)
    assert follower.fetcher.unreachable_since_us == follower.now_us
    for _ in range(3):
        at_us = follower.fetcher.next_deadline_us(follower.now_us)
        assert at_us is not None
        follower.now_us = at_us
        number, _ = follower.request()
        follower.fetcher.failed(number, LOST, follower.now_us)
    assert follower.fetcher.unreachable_since_us == begun_us + TIMEOUT_US
    follower.now_us += 1_000_000
    number, _ = follower.request()
    follower.answer(number)
    assert follower.fetcher.unreachable_since_us is None


def receive(follower: Follower, bytes_per_s: int, seconds: float) -> bool:
    """So much of answers comes, for so long; whether the leader is given up meanwhile."""
    for _ in range(int(seconds * 10)):
        follower.now_us += 100_000
        follower.fetcher.receiving(bytes_per_s // 10, follower.now_us)
        if follower.fetcher.tick(follower.now_us):
            return True
    return False


def test_a_leader_is_there_as_long_as_enough_of_its_answer_comes() -> None:
    follower = Follower()
    number, _ = follower.request()
    follower.fetcher.flushed(follower.followings[0])
    assert not receive(follower, 100_000, 80)
    follower.fetcher.follow(Following(PartitionKey(9, 0), ModelLog(), 1, 5))
    second, _ = follower.request()
    assert not receive(follower, 100_000, 80)
    assert follower.fetcher.unreachable_since_us is None
    assert len(follower.answer(number, data(1, 16_000_000))) == 1
    assert not follower.fetcher.tick(follower.now_us)  # what was asked meanwhile comes behind it
    follower.now_us += TIMEOUT_US - 1
    assert not follower.fetcher.tick(follower.now_us)
    assert follower.fetcher.next_deadline_us(follower.now_us) == follower.now_us + 1
    follower.answer(second)
    assert follower.fetcher.unreachable_since_us is None


def test_a_leader_of_whose_answer_too_little_comes_is_unreachable_soon() -> None:
    for bytes_per_s, longest_s in ((0, 1.5), (1_000, 1.6), (limits.TRANSFER_BYTES_PER_S_MIN // 2, 3.1)):
        follower = Follower()
        follower.request()
        begun_us = follower.now_us
        assert receive(follower, bytes_per_s, 60)
        assert follower.now_us - begun_us <= longest_s * 1_000_000
        assert follower.fetcher.unreachable_since_us == follower.now_us


def test_what_came_before_gives_a_leader_that_hangs_no_time() -> None:
    follower = Follower()
    follower.request()
    assert not receive(follower, 1_000_000_000, 1)
    begun_us = follower.now_us
    assert receive(follower, 0, 60)
    assert follower.now_us == begun_us + TIMEOUT_US


def test_a_slow_link_is_asked_for_as_much_as_comes_in_a_second() -> None:
    follower = Follower(in_sync=True)
    number, request = follower.request()
    sizes = [request.bytes_max]
    for _ in range(4):  # a link of 1 MB/s
        follower.fetcher.receiving(0, follower.now_us)
        assert not receive(follower, 1_000_000, request.bytes_max / 1_000_000)
        (delivery,) = follower.answer(number, data(1, request.bytes_max))
        follower.take(delivery)
        number, request = follower.request()
        sizes.append(request.bytes_max)
    assert sizes[0] == limits.REPLICA_FETCH_BYTES
    assert all(size <= 1_100_000 for size in sizes[1:]), sizes
    for _ in range(5):  # it is quick again
        follower.now_us += 10_000
        (delivery,) = follower.answer(number, data(1, request.bytes_max))
        follower.take(delivery)
        number, request = follower.request()
    assert request.bytes_max == limits.REPLICA_FETCH_BYTES


def test_a_leader_that_owes_too_many_answers_stays_unreachable() -> None:
    follower = Follower()
    follower.request()
    follower.now_us += TIMEOUT_US
    follower.fetcher.tick(follower.now_us)
    since_us = follower.now_us
    for code in (ErrorCode.OVERLOADED, ErrorCode.UNKNOWN_SESSION):
        follower.now_us += 1_000_000
        number, _ = follower.request()
        follower.fetcher.failed(number, RemoteError(code, "no"), follower.now_us)
        assert follower.fetcher.unreachable_since_us == (since_us if code == ErrorCode.OVERLOADED else None)


def test_a_lost_connection_ends_the_session_whether_something_was_asked_or_not() -> None:
    follower = Follower()
    number, _ = follower.request()
    follower.fetcher.lost(follower.now_us)
    assert follower.fetcher.unreachable_since_us == follower.now_us
    follower.now_us += 100_000
    number, _ = follower.request()
    follower.answer(number)
    follower.fetcher.lost(follower.now_us)
    assert follower.request()[1].is_first


def test_an_answer_that_contradicts_itself_is_refused_whole() -> None:
    follower = Follower()
    number, _ = follower.request()
    with pytest.raises(RemoteError) as raised:
        follower.fetcher.answered(number, ReplicaFetchResponse(partitions=(data(1),)), 99, follower.now_us)
    assert raised.value.code == ErrorCode.BAD_FRAME
    follower.now_us += 50_000
    assert follower.request()[1].is_first


def test_a_broker_that_was_registered_anew_begins_another_session_at_once() -> None:
    follower = Follower()
    follower.request()
    follower.fetcher.registered(13, follower.now_us)
    _, request = follower.request()
    assert (request.incarnation, request.is_first, request.session) == (13, True, 2)


def test_catching_up_keeps_to_its_rate_and_what_is_in_sync_does_not_wait() -> None:
    follower = Follower(2, in_sync=False, bytes_per_s=1_000_000)
    follower.fetcher.in_sync(follower.followings[1], True)
    number, _ = follower.request()
    for delivery in follower.answer(number, data(1, 1_250_000), data(2, 9_000_000)):
        follower.take(delivery)
    number, request = follower.request()
    assert named(request) == [(2, 1)]
    at_us = follower.fetcher.next_deadline_us(follower.now_us)
    assert at_us is not None
    assert (at_us - follower.now_us) // 1_000 == 1_000
    follower.now_us = at_us
    assert named(follower.request()[1]) == [(1, 1)]


def test_catching_up_waits_for_a_disk_that_is_slower_than_the_rate() -> None:
    follower = Follower(2, in_sync=False, unsynced_bytes_max=1_000)
    number, _ = follower.request()
    for delivery in follower.answer(number, data(1, 600), data(2, 600)):
        follower.take(delivery)
    for _ in range(3):
        number, request = follower.request()
        assert named(request) == []
        follower.answer(number)
        assert follower.fetcher.next_deadline_us(follower.now_us) is None  # it is not time that it waits for
    for following in follower.followings:
        assert isinstance(following.log, ModelLog)
        following.log.flush(0)
    follower.fetcher.flushed(follower.followings[1])
    assert named(follower.request()[1]) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("ends", ["forget", "in_sync", "impeded", "follow"])
def test_what_catches_up_no_more_holds_up_no_other(ends: str) -> None:
    follower = Follower(2, in_sync=False, unsynced_bytes_max=1_000)
    number, _ = follower.request()
    for delivery in follower.answer(number, data(1, 1_100), data(2, 100)):
        follower.take(delivery)
    number, request = follower.request()
    assert named(request) == []
    follower.answer(number)
    first, fetcher = follower.followings[0], follower.fetcher
    if ends == "forget":
        fetcher.forget(first.key)
    elif ends == "in_sync":
        fetcher.in_sync(first, True)
    elif ends == "impeded":
        fetcher.impeded(first)
    else:
        first.follow(1, 6)
        fetcher.follow(first)
    assert (2, 1) in named(follower.request()[1])


class Publishers:
    """They bring messages of `message_bytes` to a leader that has `lead` of them; its follower catches up."""

    def __init__(self, follower: Follower, *, lead: int, message_bytes: int) -> None:
        self.follower = follower
        self.leader_end = lead
        self.message_bytes = message_bytes
        self.came_bytes = 0
        self.epoch = 5
        self.asked: deque[tuple[int, bool]] = deque()

    @property
    def lag(self) -> int:
        return self.leader_end - self.follower.followings[0].log.log_end

    def round(self, messages: int, round_us: int = 10_000, messages_max: int = 2_000) -> None:
        """One round trip, in which so many come."""
        follower = self.follower
        follower.now_us += round_us
        self.leader_end += messages
        while (sent := follower.fetcher.request(follower.now_us)) is not None:
            self.asked.append((sent.number, bool(sent.request.changed)))
        number, is_named = self.asked.popleft()
        count = min(self.lag, messages_max) if is_named else 0
        news = ReplicaNews(1, 0, self.epoch, self.leader_end, size_bytes=count * self.message_bytes)
        for delivery in follower.answer(number, news):
            if delivery.orders.append:
                log = delivery.following.log
                assert isinstance(log, ModelLog)
                log.append(Batch(self.epoch, log.log_end, log.log_end + count, news.size_bytes, (1,) * count))
                self.came_bytes += news.size_bytes
                follower.fetcher.proceed(delivery.following)


@pytest.mark.parametrize("message_bytes", [1_000, 8_000])
def test_a_replica_catches_up_also_where_publishers_bring_more_than_its_rate(message_bytes: int) -> None:
    follower = Follower(in_sync=False, bytes_per_s=1_000_000)
    publishers = Publishers(follower, lead=20_000, message_bytes=message_bytes)
    rounds = 0
    while publishers.lag > 100:  # what comes in one round
        publishers.round(100)  # ten or eighty times the rate
        rounds += 1
        assert rounds < 400, f"it is {publishers.lag} behind"


def test_what_it_takes_beyond_twice_what_its_leader_gets_keeps_to_the_rate() -> None:
    follower = Follower(in_sync=False, bytes_per_s=1_000_000)
    publishers = Publishers(follower, lead=1_000_000, message_bytes=1_000)
    for _ in range(1_000):  # 10 s
        publishers.round(1)  # 100 kB/s
    assert 10_000_000 <= publishers.came_bytes <= 14_250_000  # 10 s of the rate, twice 1 MB, and one answer too many


def test_who_catches_up_with_a_leader_that_gets_nothing_keeps_to_the_rate() -> None:
    follower = Follower(in_sync=False, bytes_per_s=1_000_000)
    publishers = Publishers(follower, lead=1_000_000, message_bytes=1_000)
    for _ in range(1_000):
        publishers.round(0)
    assert 10_000_000 <= publishers.came_bytes <= 12_250_000


def test_who_has_all_says_so_though_others_have_used_up_the_rate() -> None:
    """Else it were behind again before it could join."""
    follower = Follower(2, in_sync=False, bytes_per_s=1_000_000)
    number, _ = follower.request()
    first = data(1, 9_000_000)
    for delivery in follower.answer(number, first, ReplicaNews(2, 0, 5, 1, size_bytes=100)):
        follower.take(delivery)
    number, request = follower.request()
    assert named(request) == [(2, 1)]


def test_another_leader_has_to_get_something_first() -> None:
    """Where its log ends is no news of what publishers bring."""
    follower = Follower(in_sync=False, bytes_per_s=1_000_000)
    publishers = Publishers(follower, lead=1_000, message_bytes=1_000)
    publishers.round(0)
    publishers.leader_end, publishers.epoch = 1_000_000, 6
    following = follower.followings[0]
    follower.fetcher.forget(following.key)
    following.follow(1, 6)
    follower.fetcher.follow(following)
    for _ in range(1_000):
        publishers.round(0)
    assert publishers.came_bytes <= 13_250_000


def test_who_joins_the_isr_waits_for_nothing_any_more() -> None:
    follower = Follower(1, in_sync=False, bytes_per_s=1_000)
    number, _ = follower.request()
    (delivery,) = follower.answer(number, data(1, 1_000_000))
    follower.take(delivery)
    follower.request()
    assert follower.fetcher.request(follower.now_us) is None
    follower.fetcher.in_sync(follower.followings[0], True)
    assert named(follower.request()[1]) == [(1, 1)]


def test_what_has_come_to_the_disk_is_told_beside_the_fetch_one_at_a_time() -> None:
    follower = Follower(2)
    number, _ = follower.request()
    for delivery in follower.answer(number, data(1), data(2)):
        follower.take(delivery)
    follower.request()
    for following in follower.followings:
        following.log.flush(0)  # type: ignore[attr-defined]
        follower.fetcher.flushed(following)
    told = follower.fetcher.progress()
    assert told is not None
    number, request = told
    assert [(one.stream_id, one.leader_epoch, one.flushed_end) for one in request.flushed] == [(1, 5, 1), (2, 5, 1)]
    follower.fetcher.flushed(follower.followings[0])
    assert follower.fetcher.progress() is None
    follower.fetcher.progress_answered(number)
    assert follower.fetcher.progress() is not None


def test_a_partition_whose_log_is_cut_is_named_again_when_that_is_done() -> None:
    follower = Follower()
    log = follower.followings[0].log
    assert isinstance(log, ModelLog)
    log.append(Batch(3, 0, 4, 10, (3,) * 4))
    number, _ = follower.request()
    (delivery,) = follower.answer(number, ReplicaNews(1, 0, 5, diverging=Divergence(0, 0)))
    assert delivery.orders.truncate == 0
    number, request = follower.request()
    assert named(request) == []
    log.truncate(0)
    follower.followings[0].cut()
    follower.fetcher.proceed(follower.followings[0])
    assert named(follower.request()[1]) == [(1, 0)]


def impeded(request: ReplicaFetchRequest) -> list[int]:
    return [name.stream_id for name in request.impeded]


def test_a_log_that_takes_nothing_is_told_at_once_and_with_each_naming_until_it_is_free() -> None:
    follower = Follower(2)
    number, _ = follower.request()
    follower.answer(number, data(1))
    first = follower.followings[0]
    waiting, _ = follower.request()  # waits at the leader
    follower.fetcher.impeded(first)
    follower.fetcher.stall(first, follower.now_us)
    number, request = follower.request()
    assert (named(request), impeded(request)) == ([], [1])
    follower.answer(waiting)
    follower.answer(number)
    follower.now_us += limits.REPLICA_RETRY_MS_MIN * 1_000
    number, request = follower.request()
    assert (named(request), impeded(request)) == ([(1, 0)], [1])
    follower.fetcher.lost(follower.now_us)  # a new session says all of it again
    follower.now_us += limits.REPLICA_RETRY_MS_MIN * 1_000
    number, request = follower.request()
    assert (sorted(named(request)), impeded(request)) == ([(1, 0), (2, 0)], [1])
    follower.fetcher.free(first)
    number, request = follower.request()
    assert (named(request), impeded(request)) == ([(1, 0)], [])


def test_who_follows_another_leader_takes_what_it_said_back() -> None:
    follower = Follower(2)
    follower.request()
    follower.fetcher.impeded(follower.followings[1])
    follower.request()
    follower.fetcher.forget(follower.followings[1].key)
    follower.fetcher.lost(follower.now_us)
    follower.now_us += limits.REPLICA_RETRY_MS_MIN * 1_000
    assert impeded(follower.request()[1]) == []
