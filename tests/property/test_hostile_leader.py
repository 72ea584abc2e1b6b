"""Whatever a leader answers, its follower goes on: nothing is raised but a refusal, and all is asked for again then."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.messages import Divergence, ReplicaFetchResponse, ReplicaNews
from penstock.replication.catch_up import CatchUpBudget
from penstock.replication.fetcher import Fetcher
from penstock.replication.follower import Following
from tests.extent import each_change, examples
from tests.unit.replication.model_log import Batch, ModelLog

EPOCH = 5
OFFSETS = st.one_of(st.integers(0, 12), st.sampled_from([2**31, 2**62]))
EPOCHS = st.sampled_from([0, 1, 4, EPOCH, EPOCH + 1, 2**31 - 1])
NEWS = st.builds(
    ReplicaNews,
    st.integers(0, 4),  # partitions 1 to 3 are followed
    st.integers(0, 1),
    EPOCHS,
    OFFSETS,
    OFFSETS,
    st.sampled_from([0, 0, 1, 100, 2**40]),
    st.none() | st.builds(Divergence, EPOCHS, OFFSETS),
    st.sampled_from(["", "", "", ErrorCode.NOT_LEADER, "never_heard_of"]),
    st.just(0) | OFFSETS,
)
ANSWERS = st.lists(st.tuples(st.lists(NEWS, max_size=5), st.booleans(), st.booleans()), max_size=6)


class Pair:
    """A follower of three partitions, and what it does as a node would."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.fetcher = Fetcher(2, 12, lambda: 1.0, CatchUpBudget(10**9))  # type: ignore[arg-type]
        self.followings = {}
        for number in (1, 2, 3):
            log = ModelLog()
            log.append(Batch(3, 0, 4, 100, (0,) * 4))
            following = Following(PartitionKey(number, 0), log, 1, EPOCH)  # type: ignore[arg-type]
            following.is_in_sync = number != 2
            self.followings[number] = following
            self.fetcher.follow(following)

    def ask(self) -> dict[int, list[int]]:
        """Which partitions each request names, a little later."""
        self.now_us += limits.REPLICA_RETRY_MS_MAX * 1_000
        asked: dict[int, list[int]] = {}
        while (sent := self.fetcher.request(self.now_us)) is not None:
            asked[sent.number] = [int(named.stream_id) for named in sent.request.changed]
        return asked

    def answer(self, number: int, news: tuple[ReplicaNews, ...], raw_bytes: int, *, is_taken: bool) -> None:
        try:
            deliveries = self.fetcher.answered(number, ReplicaFetchResponse(partitions=news), raw_bytes, self.now_us)
        except RemoteError as error:
            if error.code != ErrorCode.BAD_FRAME:
                raise
            return
        for delivery in deliveries:
            following, orders, log = delivery.following, delivery.orders, delivery.following.log
            assert isinstance(log, ModelLog)
            if orders.append and is_taken:
                log.append(Batch(EPOCH, log.log_end, log.log_end + 1, 100, (1,)))
                self.fetcher.proceed(following)
            elif orders.append:
                self.fetcher.stall(following, self.now_us)  # no batches
            elif orders.truncate is not None or orders.reset is not None:
                if orders.reset is not None:
                    log.reset(orders.reset)
                else:
                    assert orders.truncate is not None
                    log.truncate(orders.truncate)
                following.cut()
                self.fetcher.proceed(following)
            ends = following.ends()
            assert ends.committed_end is None or ends.committed_end <= log.log_end
            assert following.committed_end <= max(log.log_end, log.log_start)


@each_change
@given(ANSWERS)
@settings(max_examples=examples(300), deadline=None)
def test_nothing_that_a_leader_says_stops_its_follower(answers: list[tuple[list[ReplicaNews], bool, bool]]) -> None:
    pair = Pair()
    for said, is_sound, is_taken in answers:
        # More than an answer may hold does not come, whatever is said of it.
        raw_bytes = min(sum(one.size_bytes for one in said), limits.RESPONSE_BYTES_MAX) if is_sound else 7
        for number in pair.ask() or [99]:
            pair.answer(number, tuple(said), raw_bytes, is_taken=is_taken)
    pair.fetcher.lost(pair.now_us)
    named = {number for numbers in pair.ask().values() for number in numbers}
    assert named == {1, 2, 3}, "it asks for all of them again"
