"""Observers in the metadata: placed beside replicas, altered, and without a say whatever happens to brokers."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionId, StreamId
from penstock.messages import IsrChange, IsrMember
from penstock.metadata.commands import (
    AlterStream,
    ChangeIsr,
    Command,
    CreateStream,
    FenceBroker,
    RegisterBroker,
    StopBroker,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.streams import altered_config, check_create, created_config
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState, loads_of
from penstock.metadata.persistence.snapshot import decode_image, encode_image
from penstock.metadata.placement import place, place_observers
from tests.unit.metadata.test_placement import brokers


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def after(image: ClusterImage, command: Command) -> tuple[ClusterImage, CommandOutcome | RemoteError]:
    return apply(image, image.index + 1, command)


def made(image: ClusterImage, replicas: tuple[int, ...], observers: tuple[int, ...], **fields: object) -> ClusterImage:
    config = StreamConfig(name="hot", subject="hot", observers=len(observers), **fields)  # type: ignore[arg-type]
    command = CreateStream(
        config=created_config(config, len(replicas)),
        created_us=1,
        assignments=(ids(*replicas),),
        observers=(ids(*observers),) if observers else (),
    )
    image, outcome = after(image, command)
    assert isinstance(outcome, CommandOutcome)
    return image


def hot(image: ClusterImage) -> PartitionState:
    return image.by_name("hot").partitions[0]


def alter(image: ClusterImage, count: int, observers: tuple[int, ...] | None) -> CreateStream | AlterStream:
    stream_id = image.by_name("hot").stream_id
    placed = None if observers is None else (ids(*observers),)
    return AlterStream(stream_id=stream_id, changes={"observers": count}, observers=placed)


def test_they_are_placed_beside_the_replicas_where_no_copy_is_yet() -> None:
    image = brokers(6, "aabbcc")
    for seed in range(20):
        (replicas,) = place(image, 1, 2, Random(seed), image.live_brokers())
        (observers,) = place_observers(image, [replicas], 2, Random(seed), image.live_brokers())
        assert set(observers).isdisjoint(replicas)
        racks = ["aabbcc"[one - 1] for one in (*replicas, *observers)]
        assert len(set(racks)) == 3, racks  # the first of them is on the rack that had none


def test_who_has_least_to_do_observes_and_who_observes_goes_on() -> None:
    image = made(brokers(4), (1,), (2,))
    (chosen,) = place_observers(image, [hot(image)], 2, Random(1), image.live_brokers())
    assert chosen[0] == 2
    assert chosen[1] in (3, 4)
    assert place_observers(image, [hot(image)], 0, Random(1), image.live_brokers()) == ((),)
    with pytest.raises(RemoteError, match="only 3 others are live") as refused:
        place_observers(image, [hot(image)], 4, Random(1), image.live_brokers())
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_too_few_brokers_are_a_clear_error() -> None:
    config = StreamConfig(name="hot", subject="hot", replicas=2, observers=2)
    for count, ready, code in ((3, 3, ErrorCode.NOT_ENOUGH_REPLICAS), (4, 3, ErrorCode.BROKER_UNAVAILABLE)):
        with pytest.raises(RemoteError, match="2 brokers beyond the 2 of `replicas`") as refused:
            check_create(ClusterImage(), config, brokers=count, ready=ready)
        assert refused.value.code == code
    assert check_create(ClusterImage(), config, brokers=4, ready=4) is None
    with pytest.raises(RemoteError, match="observers: 99 is not between 0 and 16"):
        altered_config(created_config(config, 2), {"observers": 99})


def test_they_come_and_go_by_alter_and_loads_and_snapshots_follow() -> None:
    image = made(brokers(4), (1, 2), ())
    version = hot(image).version
    for count, observers in ((2, (3, 4)), (1, (4,)), (0, ())):
        image, outcome = after(image, alter(image, count, observers))
        assert isinstance(outcome, CommandOutcome)
        assert hot(image).observers == ids(*observers)
        assert hot(image).version == (version := version + 1)
        assert hot(image).isr == ids(1, 2)
        assert image.loads == loads_of(image.streams.values())
        assert decode_image(encode_image(image)) == image


@pytest.mark.parametrize(("count", "observers"), [(1, (1,)), (1, (3, 4)), (2, (3, 3)), (1, None)])
def test_observers_that_cannot_be_are_refused(count: int, observers: tuple[int, ...] | None) -> None:
    image = made(brokers(4), (1, 2), ())
    image, outcome = after(image, alter(image, count, observers))
    assert isinstance(outcome, RemoteError)
    assert outcome.code == ErrorCode.BAD_REQUEST
    assert hot(image).observers == ()


def test_a_snapshot_in_which_an_observer_is_a_replica_is_refused() -> None:
    image = made(brokers(3), (1, 2), (3,))
    state = image.by_name("hot")
    wrong = state.with_partitions((PartitionState.made(ids(1, 2), None, ids(2)),))
    with pytest.raises(RemoteError, match="invalid snapshot"):
        decode_image(encode_image(image.with_placed(wrong)))


def test_they_never_lead_whoever_is_gone_and_however_they_return() -> None:
    image = made(brokers(3), (1,), (2, 3), allow_unclean_election=True)
    image, _ = after(image, FenceBroker(broker_id=BrokerId(1), incarnation=Incarnation(1)))
    assert hot(image).leader is None
    assert hot(image).observers == ids(2, 3)
    for number in (2, 3):
        image, _ = after(image, StopBroker(broker_id=BrokerId(number), incarnation=Incarnation(number)))
        back = RegisterBroker(
            broker_id=BrokerId(number), data_dir_id=f"disk{number}", address="h:1", rack=None, broker_version="1",
            clean_stop=True, registered_us=1,
        )  # fmt: skip
        image, _ = after(image, back)
        partition = hot(image)
        assert (partition.leader, partition.isr, partition.eligible, partition.unsure) == (None, ids(1), (), ())


def test_no_leader_has_one_join() -> None:
    image = made(brokers(3), (1, 2), (3,))
    members = (IsrMember(BrokerId(1), Incarnation(1)), IsrMember(BrokerId(3), Incarnation(3)))
    key = (StreamId(image.by_name("hot").stream_id), PartitionId(0))
    change = IsrChange(*key, LeaderEpoch(1), hot(image).version, members)
    image, outcome = after(image, ChangeIsr(broker_id=BrokerId(1), incarnation=Incarnation(1), changes=(change,)))
    assert isinstance(outcome, CommandOutcome)
    (refused,) = outcome.results
    assert isinstance(refused, RemoteError)
    assert hot(image).isr == ids(1, 2)
