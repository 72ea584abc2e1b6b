"""Penstock's own streams get replicas as brokers join: one by one, and none is missed when it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeVar

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, StreamId
from penstock.base.subjects import AUDIT_STREAM
from penstock.groups.rows import OFFSETS_STREAM
from penstock.messages import (
    CommitOffsetsResponse,
    FetchOffsetsResponse,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    Request,
    Response,
)
from penstock.metadata.commands import AddReplicas, AlterStream, Command, CreateStream, FenceBroker, RegisterBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, CommandOutcome, StreamState
from penstock.metadata.placement import place_more
from penstock.node.controller.audit import audit_config
from penstock.node.controller.replica_expansion import next_step
from penstock.node.partition.internal_streams import staged_config
from tests.extent import each_change
from tests.unit.node.api.test_offsets import NUMBER, commit_of, fetch_of, fill
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers

R = TypeVar("R", bound=Response)


def offsets(brokers: Brokers) -> StreamState:
    """As the metadata leader has it."""
    state: StreamState = brokers.leader.image.by_name(OFFSETS_STREAM)
    return state


def copies(brokers: Brokers) -> tuple[set[int], set[int], int | None]:
    """How many hold each partition, how many of those are in sync, and how many have to be."""
    state = offsets(brokers)
    held, in_sync = ({len(getattr(one, name)) for one in state.partitions} for name in ("replicas", "isr"))
    return held, in_sync, state.config.min_isr


@pytest.fixture
def brokers() -> Brokers:
    """One broker, with a group that is somewhere."""
    alone = Brokers(1)
    alone.run(2_000)
    broker = alone[1]
    broker.create("orders", subject="orders")
    alone.run(500)
    fill(alone, "orders")
    caller = broker.request(OffsetsStreamRequest())
    alone.run(500)
    broker.answer(caller, OffsetsStreamResponse)
    commit(alone, 5)
    return alone


def told(brokers: Brokers, make: Callable[[Broker], Request], kind: type[R]) -> R:
    """The answer of whoever leads where the group is, once it has read that."""
    for _ in range(10):
        leader = offsets(brokers).partitions[NUMBER].leader
        assert leader is not None
        caller = brokers.members[leader].request(make(brokers.members[leader]))
        brokers.run(500)
        response = brokers.members[leader].replies[caller].response
        if not isinstance(response, RemoteError):
            break
    assert isinstance(response, kind), response
    return response


def commit(brokers: Brokers, offset: int) -> None:
    told(brokers, lambda leader: commit_of(leader, offset), CommitOffsetsResponse)


def committed(brokers: Brokers) -> int | None:
    return told(brokers, fetch_of, FetchOffsetsResponse).offsets[0].offset


@each_change
def test_where_groups_are_gets_as_many_copies_as_brokers_up_to_three(brokers: Brokers) -> None:
    assert copies(brokers) == ({1}, {1}, 1)
    brokers.start(2)
    brokers.run(10_000)
    assert copies(brokers) == ({2}, {2}, 1)
    brokers.start(3)
    brokers.run(10_000)
    assert copies(brokers) == ({3}, {3}, 2)
    brokers.start(4)
    brokers.run(10_000)
    assert copies(brokers) == ({3}, {3}, 2)
    commit(brokers, 6)
    brokers.kill(1)
    brokers.run(10_000)
    assert copies(brokers) == ({3}, {2}, 2)
    assert committed(brokers) == 6


# When there is a next step


class Ready:
    """All brokers of an image that are there, and nothing is encrypted."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def brokers(self) -> frozenset[BrokerId]:
        return frozenset(self._image.brokers)

    def ready(self, config: StreamConfig) -> frozenset[BrokerId]:
        return self._image.live_brokers()

    def more(self, state: StreamState, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...] | None:
        return place_more(self._image, state.partitions, Random(1), ready)


def applied(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


def image_of(*versions: str, config: StreamConfig | None = None) -> ClusterImage:
    """Brokers of these versions, from 1 on, and a stream that the first of them made when it was alone."""
    made = CreateStream(config=config or audit_config(), created_us=7, assignments=((BrokerId(1),),))
    joined = [
        RegisterBroker(
            broker_id=BrokerId(number),
            data_dir_id=f"disk-{number}",
            address=f"h:{number}",
            rack=None,
            broker_version=version,
            clean_stop=False,
            registered_us=7,
        )
        for number, version in enumerate(versions, 1)
    ]
    return applied(ClusterImage(), joined[0], made, *joined[1:])


def in_sync(image: ClusterImage, *isr: int) -> ClusterImage:
    state = image.by_name(AUDIT_STREAM)
    partitions = tuple(msgspec.structs.replace(one, isr=tuple(map(BrokerId, isr))) for one in state.partitions)
    return replace(image, streams=image.streams.with_item(state.stream_id, state.with_partitions(partitions)))


def step(image: ClusterImage) -> AddReplicas | AlterStream | None:
    return next_step(image, Ready(image))


def test_a_replica_is_added_only_when_those_that_are_there_are_in_sync() -> None:
    image = image_of("0.2.0", "0.2.0", "0.2.0")
    first = step(image)
    assert isinstance(first, AddReplicas)
    image = applied(image, first)
    assert step(image) is None
    image = in_sync(image, *first.assignments[0])
    second = step(image)
    assert isinstance(second, AddReplicas)
    assert {*second.assignments[0]} == {1, 2, 3}
    image = in_sync(applied(image, second), *second.assignments[0])
    last = step(image)
    assert last == AlterStream(stream_id=image.names[AUDIT_STREAM], changes={"min_isr": 2})
    assert step(applied(image, last)) is None  # type: ignore[arg-type]


def test_who_is_away_is_not_waited_for() -> None:
    image = image_of("0.2.0", "0.2.0", "0.2.0")
    first = step(image)
    assert isinstance(first, AddReplicas)
    _, added = first.assignments[0]
    (other,) = {2, 3} - {added}
    away = applied(image, first, FenceBroker(broker_id=added, incarnation=image.brokers[added].incarnation))
    second = step(away)
    assert isinstance(second, AddReplicas)
    assert second.assignments == ((1, added, other),)


@pytest.mark.parametrize(
    "image",
    [
        image_of("0.2.0"),
        image_of("0.2.0", "0.1.0"),
        image_of("0.2.0", "0.2.0", config=StreamConfig(name="orders", subject="orders", replicas=1)),
        image_of(
            "0.2.0",
            "0.2.0",
            config=staged_config(StreamId(9), StreamConfig(name="a", subject="a", replicas=1, min_isr=1)),
        ),
    ],
    ids=["alone", "an earlier version is there", "a user's", "staged"],
)
def test_nothing_is_to_be_done(image: ClusterImage) -> None:
    assert step(image) is None
