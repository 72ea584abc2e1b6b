"""What of a subject is whose, where several partitions of a stream hear all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.hot.group import Group
from penstock.hot.keymap import KeyMap
from penstock.hot.shares import split
from penstock.metadata.image import StreamState
from penstock.node.partition import Partition
from penstock.node.subscriptions import Channel


class _Parting(NamedTuple):
    """How a channel is parted, worked out once for each state of its stream."""

    state: StreamState
    key_map: KeyMap
    token: int


def parted(channel: Channel[Partition], group: Group) -> Iterator[tuple[Partition, Group]]:
    """The messages of each partition that takes what comes; what is nobody's here is stored by another broker."""
    state = next(iter(channel.members)).stream
    parting = channel.note
    if not isinstance(parting, _Parting) or parting.state is not state:
        config = state.config
        parting = channel.note = _Parting(state, key_map_of(state), config.split.token)
    takers = {one.key.partition: one for one, takes in channel.members.items() if takes}
    wanted = bytes([number in takers for number in range(parting.key_map.partitions)])
    for number, share in enumerate(split(group, parting.key_map, parting.token, wanted)):
        if share is not None:
            yield takers[number], share  # type: ignore[index]


def key_map_of(state: StreamState) -> KeyMap:
    """Which partition of a stream has which keys."""
    config = state.config
    bounds = [one.encode() for one in config.range_bounds] if config.range_bounds else None
    return KeyMap((len(state.partitions),), bounds)
