"""Replicas are spread over brokers and racks, and leaders over brokers."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.commands import CreateStream, FenceBroker, RegisterBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage
from penstock.metadata.placement import place


def brokers(count: int, racks: str = "") -> ClusterImage:
    image = ClusterImage()
    for number in range(1, count + 1):
        command = RegisterBroker(
            broker_id=BrokerId(number),
            data_dir_id=f"disk{number}",
            address="h:1",
            rack=racks[number - 1] if racks else None,
            broker_version="1",
            clean_stop=True,
            registered_us=1,
        )
        image, _ = apply(image, number, command)
    return image


def with_streams(image: ClusterImage, count: int, partitions: int, replicas: int, chance: Random) -> ClusterImage:
    for number in range(count):
        config = StreamConfig(name=f"s{image.index}-{number}", subject="x", partitions=partitions)
        assignments = place(image, partitions, replicas, chance, image.live_brokers())
        command = CreateStream(config=config, created_us=1, assignments=assignments)
        image, _ = apply(image, image.index + 1, command)
    return image


def test_all_have_their_share() -> None:
    image = with_streams(brokers(5), 100, 3, 3, Random(1))
    assert {load.preferred for load in image.loads.values()} == {60}
    assert all(175 <= load.replicas <= 185 for load in image.loads.values())


def test_who_follows_a_leader_differs() -> None:
    """Else one broker would take all that another one leads when that dies."""
    image = with_streams(brokers(5), 200, 1, 2, Random(1))
    pairs = Counter(state.partitions[0].replicas for state in image.streams.values())
    assert len(pairs) == 20


def test_a_broker_that_joins_gets_more_until_it_has_as_much() -> None:
    image = with_streams(brokers(3), 30, 1, 1, Random(1))
    joined = brokers(4).brokers[BrokerId(4)]
    joined = msgspec.structs.replace(joined, incarnation=Incarnation(image.index))
    image = ClusterImage(image.index, image.streams, image.names, image.brokers.with_item(joined.broker_id, joined),
                         image.loads)  # fmt: skip
    image = with_streams(image, 10, 1, 1, Random(2))
    assert {broker_id: load.preferred for broker_id, load in image.loads.items()} == {1: 10, 2: 10, 3: 10, 4: 10}


@pytest.mark.parametrize(("racks", "replicas", "distinct"), [("aabb", 2, 2), ("aaab", 3, 2), ("aabc", 3, 3)])
def test_replicas_are_on_as_many_racks_as_there_are(racks: str, replicas: int, distinct: int) -> None:
    image = with_streams(brokers(4, racks), 50, 2, replicas, Random(1))
    for state in image.streams.values():
        for partition in state.partitions:
            assert len({racks[broker_id - 1] for broker_id in partition.replicas}) == distinct
            assert len(set(partition.replicas)) == replicas


def test_the_same_seed_places_alike() -> None:
    image = brokers(5)
    live = image.live_brokers()
    assert place(image, 9, 3, Random(7), live) == place(image, 9, 3, Random(7), live)
    assert place(image, 9, 3, Random(7), live) != place(image, 9, 3, Random(8), live)


def test_only_among_those_that_are_given() -> None:
    among = {BrokerId(2), BrokerId(3), BrokerId(9)}
    assert {*place(brokers(3), 1, 2, Random(1), among)[0]} == {2, 3}
    with pytest.raises(RemoteError, match="only 2 of 3") as caught:
        place(brokers(3), 1, 3, Random(1), among)
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_only_on_who_is_there() -> None:
    image, _ = apply(brokers(3), 4, FenceBroker(broker_id=BrokerId(2), incarnation=Incarnation(2)))
    everybody = frozenset(image.brokers)
    assert {*place(image, 1, 2, Random(1), everybody)[0]} == {1, 3}
    with pytest.raises(RemoteError, match="only 2 of 3") as caught:
        place(image, 1, 3, Random(1), everybody)
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_where_nobody_is_there_nothing_is_placed() -> None:
    with pytest.raises(RemoteError, match="but only 0 of 0 are there") as caught:
        place(ClusterImage(), 1, 0, Random(1), frozenset())
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
