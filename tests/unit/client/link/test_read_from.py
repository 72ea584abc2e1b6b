"""Whom a reader asks: spread evenly, near where that is wanted, away from who failed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, PartitionId, PartitionKey, StreamId
from penstock.client.link.cluster import ClusterView
from penstock.client.link.read_from import ReadFrom, ReplicaChoice
from penstock.messages import BrokerInfo, PartitionInfo, StreamInfo

KEY = PartitionKey(StreamId(7), PartitionId(0))
RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def view(seed: int = 1, **fields: object) -> ClusterView:
    made = ClusterView(["h:1"], Random(seed).random)
    brokers = [BrokerInfo(broker_id=BrokerId(one), address=f"h:{one}", rack=rack) for one, rack in RACKS.items()]
    made.learn_brokers(brokers, 0.0)
    part: dict[str, object] = {"replicas": (1, 4), "isr": (1,), "observers": (2, 3), "leader_id": 1, "leader": "h:1"}
    info = PartitionInfo(leader_epoch=LeaderEpoch(1), **{**part, **fields})  # type: ignore[arg-type]
    config = StreamConfig(name="s", subject="s")
    made.learn_stream(StreamInfo(stream_id=StreamId(7), config=config, partitions=(info,)), "h:1", 0.0)
    return made


def choice(which: str, rack: str | None = None, seed: int = 1, **fields: object) -> ReplicaChoice:
    return ReplicaChoice(view(seed, **fields), KEY, ReadFrom(which), rack)  # type: ignore[arg-type]


def test_by_default_the_leader_is_asked() -> None:
    assert choice("leader").address(0.0) is None


def test_a_thousand_readers_are_spread_evenly_and_who_is_not_in_sync_gets_none() -> None:
    found = Counter(choice("any", seed=seed).address(0.0) for seed in range(1_000))
    assert found.keys() == {None, "h:2", "h:3"}  # None: the leader
    assert all(280 < count < 390 for count in found.values()), found


def test_the_nearest_is_on_the_rack_and_where_there_is_none_any_does() -> None:
    assert {choice("nearest", "b", seed).address(0.0) for seed in range(50)} == {"h:2", "h:3"}
    assert {choice("nearest", "a", seed).address(0.0) for seed in range(50)} == {None}
    for rack in ("c", "unknown", None):
        assert {choice("nearest", rack, seed).address(0.0) for seed in range(50)} == {None, "h:2", "h:3"}


def test_followers_leave_the_leader_alone_while_there_are_others() -> None:
    assert {choice("followers", seed=seed).address(0.0) for seed in range(50)} == {"h:2", "h:3"}
    assert choice("followers", observers=()).address(0.0) is None


def test_a_reader_stays_until_it_is_refused_and_then_for_longer_each_time() -> None:
    chosen = choice("followers")
    first = chosen.address(0.0)
    assert all(chosen.address(now_s) == first for now_s in (1.0, 5.0, 20.0))
    chosen.failed(20.0)
    second = chosen.address(20.0)
    assert second != first
    assert second is not None
    chosen.failed(20.0)
    assert chosen.address(20.0) is None  # both have failed: the leader
    assert chosen.address(22.0) is not None
    for _ in range(10):
        chosen.address(100.0)
        chosen.failed(100.0)
    assert chosen.address(100.1) is None


def test_from_time_to_time_it_chooses_anew() -> None:
    chosen = choice("any")
    assert len({chosen.address(100.0 * number) for number in range(40)}) == 3


@pytest.mark.parametrize(("which", "staleness"), [("nearby", 1.0), ("any", 0.0), ("any", -1.0), ("any", 2.0**40)])
def test_what_cannot_be_wanted_is_refused(which: str, staleness: float) -> None:
    with pytest.raises(ValueError, match=r"read_from|max_staleness"):
        ReadFrom(which, staleness)  # type: ignore[arg-type]


def test_who_is_known_to_be_dead_is_not_asked() -> None:
    made = view()
    made.learn_brokers([BrokerInfo(broker_id=BrokerId(2), address="h:2", is_live=False)], 0.0)
    assert ReplicaChoice(made, KEY, ReadFrom("followers"), None).address(0.0) is None
