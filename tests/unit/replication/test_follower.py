"""One partition that follows: each state and event, and what is done with the log."""

from __future__ import annotations

import pytest

from penstock.base.ids import PartitionKey
from penstock.messages import Divergence, ReplicaNews
from penstock.replication.follower import Following, FollowState, LogOrders, NewEnds
from tests.unit.replication.model_log import Batch, ModelLog


def log_of(*counts: int, epoch: int = 1, start: int = 0) -> ModelLog:
    log = ModelLog()
    log.reset(start)
    for count in counts:
        log.append(Batch(epoch, log.log_end, log.log_end + count, 10, (epoch,) * count))
    return log


def follows(log: ModelLog, *, epoch: int = 2, committed_end: int = 0, asked: bool = True) -> Following:
    following = Following(PartitionKey(7, 0), log, 1, epoch, committed_end=committed_end)
    if asked:
        following.position()
    return following


def news(epoch: int = 2, **fields) -> ReplicaNews:
    return ReplicaNews(7, 0, epoch, **fields)


def test_a_position_says_where_the_log_ends_and_in_which_epoch() -> None:
    log = log_of(2, 3)
    log.flushed_end = 2
    position = follows(log, asked=False).position()
    assert (position.leader_epoch, position.log_end, position.flushed_end, position.last_epoch) == (2, 5, 2, 1)


def test_batches_are_appended_once_for_each_time_it_was_named() -> None:
    following = follows(log_of())
    assert following.news(news(size_bytes=9)) == LogOrders(append=True)
    assert following.state is FollowState.FETCHING
    assert following.news(news(size_bytes=9)) == LogOrders()
    following.position()
    assert following.news(news(size_bytes=9)) == LogOrders(append=True)


def test_news_of_another_epoch_or_of_an_end_that_is_gone_say_nothing() -> None:
    following = follows(log_of(4))
    assert following.news(news(1, size_bytes=9)) == LogOrders()
    assert following.news(news(3, diverging=Divergence(1, 1))) == LogOrders()
    assert following.state is FollowState.RECONCILING
    unasked = follows(log_of(4), asked=False)
    assert unasked.news(news(committed_end=4)) == LogOrders()
    assert unasked.ends() == NewEnds()


def test_what_is_committed_is_what_the_leader_says_as_far_as_the_log_goes() -> None:
    log = log_of(2)
    following = follows(log)
    following.news(news(committed_end=9, size_bytes=9))
    log.append(Batch(2, 2, 5, 9, (2, 2, 2)))
    assert following.ends() == NewEnds(committed_end=5)
    assert following.ends() == NewEnds()
    following.news(news(committed_end=3))  # late, from before
    assert following.ends() == NewEnds()
    log.append(Batch(2, 5, 12, 9, (2,) * 7))
    assert following.ends() == NewEnds(committed_end=9)


def test_where_the_logs_diverge_it_cuts_and_names_itself_again() -> None:
    log = log_of(2, 2)
    following = follows(log, committed_end=1)
    orders = following.news(news(diverging=Divergence(1, 3), committed_end=4))
    assert orders == LogOrders(truncate=3)
    assert following.committed_end == 1  # not what the leader says of its own log
    assert not following.may_ask
    log.truncate(3)
    following.cut()
    assert following.state is FollowState.RECONCILING
    assert following.position().log_end == 2  # the batch's base


def test_it_says_when_it_cuts_what_was_committed() -> None:
    following = follows(log_of(2, 2), committed_end=4)
    assert following.news(news(diverging=Divergence(1, 2))) == LogOrders(truncate=2, cuts_committed=True)
    assert following.committed_end == 2


@pytest.mark.parametrize(
    ("log", "told", "reset"),
    [
        (log_of(4), news(replica_start=6), 6),  # retention was quicker
        (log_of(4), news(diverging=Divergence(0, 4), log_start=4), 4),  # what comes could not be appended to it
        (log_of(4, start=10), news(diverging=Divergence(0, 3), log_start=2), 2),  # it has nothing that could be kept
        (log_of(8), news(diverging=Divergence(0, 5), log_start=5), 5),  # below 5 nobody keeps anything
    ],
)
def test_it_begins_anew_where_nothing_can_be_kept(log: ModelLog, told: ReplicaNews, reset: int) -> None:
    following = follows(log)
    assert following.news(told) == LogOrders(reset=reset)
    assert following.state is FollowState.RESETTING
    assert following.committed_end == 0  # what it has still is not what the leader had there
    log.reset(reset)
    following.cut()
    assert following.committed_end == reset
    assert following.position().log_end == reset


def test_it_begins_anew_only_when_told_so() -> None:
    log = log_of(4)
    following = follows(log)
    assert following.news(news(log_start=6, committed_end=9)) == LogOrders()
    assert following.ends() == NewEnds(committed_end=4, log_start=4)
    assert following.news(news(replica_start=5)) == LogOrders(reset=5)
    assert follows(log_of(4)).news(news(replica_start=4)).error == "bad_request"  # it ends there
    assert follows(log_of(4), asked=False).news(news(replica_start=5)) == LogOrders()


def test_a_batch_that_holds_the_start_of_the_leader_is_taken_whole() -> None:
    log = log_of(start=4)
    following = follows(log)
    assert following.news(news(committed_end=9, log_start=6, size_bytes=9)) == LogOrders(append=True)
    log.append(Batch(2, 4, 9, 9, (2,) * 5))
    assert following.ends() == NewEnds(committed_end=9, log_start=6)


def test_a_divergence_that_cuts_nothing_is_a_mistake_of_the_leader() -> None:
    assert follows(log_of(4)).news(news(diverging=Divergence(1, 4))).error == "bad_request"


def test_merged_batches_are_taken_whole() -> None:
    log = log_of(2, 2)
    following = follows(log, committed_end=4)
    following.news(news(committed_end=4, size_bytes=9))
    assert following.overlaps(2) == LogOrders(truncate=2)
    assert follows(log_of(2, start=4)).overlaps(1) == LogOrders(reset=1)
    empty = follows(log_of(start=4), committed_end=4)
    assert empty.overlaps(1) == LogOrders(reset=1)  # it is all in the batches that came: no election was unclean


def test_the_start_of_the_leader_is_followed_up_to_what_is_committed() -> None:
    log = log_of(2, 2)
    following = follows(log)
    following.news(news(committed_end=2, log_start=3))
    assert following.ends() == NewEnds(committed_end=2, log_start=2)


def test_while_it_is_cut_another_leadership_may_begin_and_news_say_nothing() -> None:
    log = log_of(4)
    following = follows(log)
    following.news(news(diverging=Divergence(0, 0)))
    following.follow(3, 5)
    assert following.state is FollowState.TRUNCATING
    assert following.news(news(5, size_bytes=9)) == LogOrders()
    log.truncate(0)
    following.cut()
    assert following.position().leader_epoch == 5


def test_a_cut_that_failed_ends_it_until_the_log_is_mended() -> None:
    following = follows(log_of(4))
    following.news(news(diverging=Divergence(0, 0)))
    following.cut_failed()
    assert not following.may_ask
    following.follow(3, 5)
    assert following.state is FollowState.FAILED
    following.mended()
    assert following.may_ask


def test_an_error_is_handed_on_and_ends_what_was_asked() -> None:
    following = follows(log_of())
    assert following.news(news(error="unknown_epoch")) == LogOrders(error="unknown_epoch")
    assert following.news(news(size_bytes=9)) == LogOrders()
