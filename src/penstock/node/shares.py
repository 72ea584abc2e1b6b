"""What of a subject is whose, where several partitions of a stream hear all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.base.ids import PartitionId
from penstock.hot.group import Group
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.hot.shares import split
from penstock.node.partition import Partition
from penstock.node.subscriptions import Channel


class _Parting(NamedTuple):
    """How a channel is parted, worked out once for each set of those who take what comes."""

    key_map: KeyMap
    token: int
    takers: dict[PartitionId, Partition]
    wanted: bytes


def parted(channel: Channel[Partition], group: Group) -> Iterator[tuple[Partition, Group]]:
    """The messages of each partition that takes what comes; what is nobody's here is stored by another broker."""
    parting = channel.note
    if not isinstance(parting, _Parting):
        parting = channel.note = _parting(channel)
    shares = split(group, parting.key_map, parting.token, parting.wanted)
    for number, partition in parting.takers.items():
        if (share := shares[number]) is not None:
            yield partition, share


def _parting(channel: Channel[Partition]) -> _Parting:
    config = next(iter(channel.members)).stream.config
    key_map = key_map_of(config)
    takers = {one.key.partition: one for one, takes in channel.members.items() if takes}
    wanted = bytes(number in takers for number in range(key_map.partitions))
    return _Parting(key_map, config.split.token, takers, wanted)
