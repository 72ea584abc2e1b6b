"""What a leadership knows of one follower."""

from __future__ import annotations

from penstock.base.ids import BrokerId, Incarnation
from penstock.replication.follower_progress import FollowerProgress


def test_an_empty_log_does_not_keep_up_until_it_has_reached_what_was_there() -> None:
    follower = FollowerProgress(BrokerId(2), Incarnation(1), 0)
    follower.reached(0, 1_000, 10)
    assert not follower.keeps_up(10), "commits would wait for what is far behind"
    follower.reached(900, 1_100, 20)
    assert not follower.keeps_up(20)
    follower.reached(1_000, 1_200, 30)
    assert follower.keeps_up(30)
