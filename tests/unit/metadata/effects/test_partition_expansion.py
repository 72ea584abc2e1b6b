"""Partitions are added, and marks say where the keys end that left older ones."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.metadata.commands import AddPartitions, Command, CreateStream, MarkKeys, SetIntake, StartBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.partition_expansion import check_growth
from penstock.metadata.image import ClusterImage, CommandOutcome, KeyBoundary, StreamState
from penstock.metadata.persistence.snapshot import decode_image, encode_image

ORDERS = StreamConfig(name="orders", subject="orders.*", partitions=2, partition_by="token:2")
RANGES = StreamConfig(name="orders", subject="orders.*", partitions=2, partition_by="range:2", range_bounds=("m",))
STREAM = StreamId(1)
ONE = (BrokerId(1),)


def made(config: StreamConfig = ORDERS) -> ClusterImage:
    return after(ClusterImage(), CreateStream(config=config, created_us=7))


def after(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


def refused(image: ClusterImage, command: Command) -> str:
    _, outcome = apply(image, image.index + 1, command)
    assert isinstance(outcome, RemoteError), outcome
    return str(outcome.code)


def add(before: int, count: int, **more: Any) -> AddPartitions:
    return AddPartitions(stream_id=STREAM, before=before, assignments=(ONE,) * count, **more)


def mark(partitions: int, partition: int, end_offset: int, leader_epoch: int = 1) -> MarkKeys:
    return MarkKeys(
        stream_id=STREAM,
        partitions=partitions,
        partition=PartitionId(partition),
        leader_epoch=LeaderEpoch(leader_epoch),
        end_offset=Offset(end_offset),
        marked_us=1_000 + end_offset,
    )


def orders(image: ClusterImage) -> StreamState:
    return image.by_name("orders")


def test_partitions_are_added_behind_those_that_there_are() -> None:
    before = made()
    image = after(before, add(2, 3))
    state = orders(image)
    assert (len(state.partitions), state.config.partitions, state.counts) == (5, 5, (2, 5))
    assert state.partitions[:2] == orders(before).partitions
    assert image.loads[BrokerId(1)].preferred == 5
    assert state.is_moving
    image = after(image, mark(5, 1, 7), mark(5, 0, 3))
    assert orders(image).marks == (
        KeyBoundary(5, PartitionId(0), Offset(3), LeaderEpoch(1), 1_003),
        KeyBoundary(5, PartitionId(1), Offset(7), LeaderEpoch(1), 1_007),
    )  # fmt: skip
    assert not orders(image).is_moving
    image = after(image, add(5, 1))
    assert orders(image).counts == (2, 5, 6)
    assert decode_image(encode_image(image)) == image


def test_only_where_there_are_as_many_as_was_known_and_all_keys_have_their_places() -> None:
    image = made()
    assert refused(image, add(1, 1)) == ErrorCode.STREAM_CHANGED
    image = after(image, add(2, 1), mark(3, 0, 0))
    assert refused(image, add(3, 1)) == ErrorCode.NOT_YET
    image = after(image, mark(3, 1, 0))
    assert refused(image, AddPartitions(stream_id=STREAM, before=3, assignments=())) == ErrorCode.BAD_REQUEST
    assert len(orders(after(image, add(3, 1))).partitions) == 4
    sealed = after(image, SetIntake(stream_id=STREAM, intake=Intake.SEALED, since_us=9))
    assert refused(sealed, add(3, 1)) == ErrorCode.READ_ONLY


def test_a_mark_is_of_this_epoch_and_of_a_partition_that_keys_left() -> None:
    image = after(made(), add(2, 2))
    assert refused(image, mark(4, 0, 5, leader_epoch=2)) == ErrorCode.UNKNOWN_EPOCH
    assert refused(image, mark(3, 0, 5)) == ErrorCode.BAD_REQUEST
    assert refused(image, mark(2, 0, 5)) == ErrorCode.BAD_REQUEST
    assert refused(image, mark(4, 2, 5)) == ErrorCode.BAD_REQUEST
    image = after(image, mark(4, 0, 5))
    again = after(image, mark(4, 0, 9), mark(4, 0, 4))  # of the same epoch the first counts: the leader has just one
    assert orders(again).marks == orders(image).marks
    image = after(image, StartBroker(started_us=1))
    assert refused(image, mark(4, 0, 5)) == ErrorCode.FENCED_EPOCH
    assert orders(after(image, mark(4, 0, 9, 2))).marks == orders(image).marks
    (lower,) = orders(after(image, mark(4, 0, 4, 2))).marks  # its log ends earlier by now
    assert (lower.end_offset, lower.leader_epoch) == (4, 2)


def test_where_chance_parts_messages_nothing_moves() -> None:
    image = after(made(StreamConfig(name="orders", subject="o", partitions=2, partition_by="group")), add(2, 1))
    assert not orders(image).moves_keys
    assert refused(image, mark(3, 0, 5)) == ErrorCode.BAD_REQUEST
    assert len(orders(after(image, add(3, 1))).partitions) == 4


def test_ranges_are_split_by_new_bounds() -> None:
    image = after(made(RANGES), add(2, 2, range_bounds=("d", "s")))
    assert orders(image).config.range_bounds == ("m", "d", "s")


@pytest.mark.parametrize(
    ("config", "changes", "text"),
    [
        (ORDERS, {"partitions": 1}, "none can be taken away"),
        (ORDERS, {"partitions": limits.STREAM_PARTITIONS_MAX + 1}, "is not between 1 and"),
        (ORDERS, {"partitions": "3"}, "expected `int`"),
        (ORDERS, {"partitions": 3, "max_bytes": 5}, "max_bytes: partitions are added by themselves"),
        (ORDERS, {"partitions": 3, "partitons": 4}, "partitons: a stream has no such field; did you mean partitions?"),
        (ORDERS, {"partitions": 3, "": 1}, ": a stream has no such field"),
        (ORDERS, {"partitions": 3, "range_bounds": ["a", "b"]}, "range_bounds: only partition_by 'range'"),
        (RANGES, {"partitions": 3}, "range_bounds: say where the 1 new ones begin, behind m"),
        (RANGES, {"partitions": 4, "range_bounds": ["m", "p"]}, "2 are given; 4 partitions have 3"),
        (RANGES, {"range_bounds": ["d", "m"]}, "those that there are stay, in their order"),
        (RANGES, {"range_bounds": ["m", "m"]}, "two ranges begin with the same key"),
        (
            StreamConfig(name="orders", subject="o", partitions=2, partition_by="mapped"), {"partitions": 3},
            "nats-server finds the partition",
        ),
        (StreamConfig(name="orders", subject="o.>"), {"partitions": 3}, "create it with partition_by="),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_it_is_proposed(
    config: StreamConfig, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(RemoteError, match=re.escape(text)) as caught:
        check_growth(made(config), orders(made(config)), changes)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_bounds_alone_say_how_many_and_as_many_as_there_are_is_no_change() -> None:
    assert check_growth(made(RANGES), orders(made(RANGES)), {"range_bounds": ["m", "d"]}).partitions == 3
    image = after(made(), add(2, 1))
    state = orders(image)
    assert check_growth(image, state, {"partitions": 3}) == state.config  # said again, while keys move
    with pytest.raises(RemoteError, match="partition 0 has not handed over its keys yet"):
        check_growth(image, state, {"partitions": 4})


def test_not_more_often_than_a_map_can_say() -> None:
    image = made(StreamConfig(name="orders", subject="o", partitions=1, partition_by="group"))
    for count in range(1, limits.KEY_MAP_VERSIONS_MAX):
        image = after(image, add(count, 1))
    with pytest.raises(RemoteError, match="partitions were added 15 times, which is the limit"):
        check_growth(image, orders(image), {"partitions": limits.KEY_MAP_VERSIONS_MAX + 1})
    assert decode_image(encode_image(image)) == image


def test_an_image_that_says_nothing_of_this_is_as_older_versions_read_it() -> None:
    image = made()
    assert msgspec.msgpack.decode(encode_image(image))[0] == 1
    assert msgspec.msgpack.decode(encode_image(after(image, add(2, 1))))[0] == 2


@pytest.mark.parametrize(
    ("counts", "marks"),
    [
        ([3], []), ([2, 3, 2], []), ([0, 3], []), ([2, 4], []), ([3, 3], []), ([1] * 20, []),
        ([2, 3], [[4, 0, 1, 1, 9]]), ([2, 3], [[3, 2, 1, 1, 9]]), ([2, 3], [[3, 0, -1, 1, 9]]),
        ([2, 3], [[3, 0, 1, 0, 9]]), ([2, 3], [[3, 0, 1, 1, -1]]), ([2, 3], [[3, 0, 1, 1, 2**63]]),
        ([2, 3], [[3, 1, 1, 1, 9], [3, 0, 1, 1, 9]]), ([2, 3], [[3, 0, 1, 1, 9], [3, 0, 1, 1, 9]]),
    ],
)  # fmt: skip
def test_a_snapshot_of_what_cannot_be_is_refused(counts: list[int], marks: list[Any]) -> None:
    fields = msgspec.msgpack.decode(encode_image(after(made(), add(2, 1))))
    stream = fields[4][0]
    assert stream[8] == [2, 3]
    decode_image(msgspec.msgpack.encode(fields))
    stream[8], stream[9] = counts, marks
    with pytest.raises(RemoteError, match="invalid snapshot"):
        decode_image(msgspec.msgpack.encode(fields))
