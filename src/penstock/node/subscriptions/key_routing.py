"""Assigns messages to partitions if several partitions of a stream receive the same subject, or keys have moved.

Rules: messages of partitions led elsewhere are stored by those leaders. A message whose key is moving to an added
partition is refused by one broker at a time, and only by one that knows that no broker has stored it: by the leader of
the partition that the key leaves, until it proposes its mark; then by none; then by the leader of the new partition,
once it has all marks and has passed a barrier, until it takes the key. In between no broker answers, as during a leader
election.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.base.ids import PartitionId
from penstock.base.partitioning import PartitionBy
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.hot.message_group import MessageGroup
from penstock.hot.split_by_key import split_by_key
from penstock.ingest import acks
from penstock.metadata.image import StreamState
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import KEY_ELSEWHERE, KEY_MOVING
from penstock.node.step import Outbox
from penstock.node.subscriptions.subscriptions import SharedSubscription

Shares = Iterator[tuple[Partition, MessageGroup]]


class _MovingKeys(NamedTuple):
    """The partitions that some keys came from."""

    key_map: KeyMap  # as it was before
    # by old partition: the one that refuses its messages; if missing, this broker does not refuse them
    refusers: dict[int, Partition]


class _Parting(NamedTuple):
    """The split of a channel's messages, computed once per set of taking members."""

    key_map: KeyMap
    token: int
    takers: dict[PartitionId, Partition]
    wanted: bytes
    moving: dict[int, _MovingKeys]  # by the new partition of the keys, which does not take them yet


def route_by_key(channel: SharedSubscription[Partition], group: MessageGroup, outbox: Outbox) -> Shares:
    """Yield the messages of each partition that takes them."""
    parting = channel.note
    if not isinstance(parting, _Parting):
        parting = channel.note = _parting(channel)
    shares = split_by_key(group, parting.key_map, parting.token, parting.wanted)
    for number, partition in parting.takers.items():
        if (share := shares[number]) is not None and number not in parting.moving:
            yield partition, share
    for place, moving in parting.moving.items():
        if (share := shares[place]) is not None:
            _turn_away(share, moving, parting.token, outbox)


def _parting(channel: SharedSubscription[Partition]) -> _Parting:
    stream = next(iter(channel.members)).stream
    key_map = key_map_of(stream.config, stream.counts)
    takers = {one.key.partition: one for one, takes in channel.members.items() if takes}
    moving = _moving_keys(stream, takers) if stream.moves_keys else {}
    wanted = bytes(number in takers or number in moving for number in range(key_map.partitions))
    return _Parting(key_map, stream.config.split.token, takers, wanted, moving)


def _moving_keys(stream: StreamState, takers: dict[PartitionId, Partition]) -> dict[int, _MovingKeys]:
    """Return what to refuse here, by the keys' new partition, which does not take them yet or is led elsewhere."""
    moving = {}
    for back, (before, after) in enumerate(reversed(list(pairwise(stream.counts))), 1):
        marked = stream.marked(after)
        leaving: dict[int, Partition] = {
            int(number): one
            for number, one in takers.items()
            if number < before and one.keys is not None and one.keys.is_open and not one.keys.is_silent
        }
        for number in range(before, after):
            goes_to = takers.get(PartitionId(number))
            is_closed = goes_to is not None and goes_to.keys is not None and not goes_to.keys.is_open
            if not is_closed and (goes_to is not None or back > 1):
                continue
            refusers: dict[int, Partition] = {}
            if goes_to is not None and goes_to.keys is not None and goes_to.keys.refuses:
                refusers = dict.fromkeys(marked, goes_to)
            if back == 1:
                refusers.update(leaving)
            if is_closed or refusers:
                moving[number] = _MovingKeys(key_map_of(stream.config, stream.counts, -back), refusers)
    return moving


def _turn_away(share: MessageGroup, moving: _MovingKeys, token: int, outbox: Outbox) -> None:
    wanted = bytes(number in moving.refusers for number in range(moving.key_map.partitions))
    parts = split_by_key(share, moving.key_map, token, wanted)
    for number, refuser in moving.refusers.items():
        if (part := parts[number]) is not None:
            refuser.turn_away(part, acks.key_moving(), KEY_MOVING, outbox.step)


def owned_messages(partition: Partition, group: MessageGroup, outbox: Outbox) -> Shares:
    """Yield a partition's messages from its own subject: those without a key, and those whose key belongs to it."""
    keys, stream, number = partition.keys, partition.stream, partition.key.partition
    if keys is None or stream.config.split.how is not PartitionBy.PUBLISHER:
        yield partition, group
        return
    key_map = keys.key_map
    count = key_map.partitions
    kept = bytearray(count + 1)
    kept[number] = kept[count] = 1
    shares = split_by_key(group, key_map, 0, bytes(kept), number if keys.is_open else count)
    mine, keyless = shares[number], shares[count]
    left = group.count + len(group.too_large)
    if keyless is not None:
        left -= keyless.count + len(keyless.too_large)
        yield partition, keyless
    if mine is not None:
        left -= mine.count + len(mine.too_large)
        if keys.is_open:
            yield partition, mine
        else:
            partition.turn_away(mine, acks.key_moving(), KEY_MOVING, outbox.step)
    if left:
        _tell_elsewhere(partition, key_map, group, outbox)


def _tell_elsewhere(partition: Partition, key_map: KeyMap, group: MessageGroup, outbox: Outbox) -> None:
    """Refuse messages that belong to other partitions, naming the right subject."""
    config, count = partition.stream.config, key_map.partitions
    others = bytearray(b"\1" * count + b"\0")
    others[partition.key.partition] = 0
    for place, share in enumerate(split_by_key(group, key_map, 0, bytes(others), count)):
        if share is not None:
            error = acks.key_elsewhere(place, config.subject_of(place))
            partition.turn_away(share, error, KEY_ELSEWHERE, outbox.step)
