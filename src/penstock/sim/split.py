"""Streams whose messages find their partitions by themselves: which one that is, and in which order they lie there.

Rules: what a message belongs by is the key that is stored with it, or a token of its subject. Where the leaders choose,
it is in the partition of that, and in no other. Where chance does, it is in one. A publisher that waits, before it
sends on, until a message is acked or given up counts what it sends of each key: so it lies, for only its leader stores
it, and NATS keeps the order. Where partitions were added, it may be in the one that had its key before, or in the one
that has it since; and all in an older one comes before what is in a newer.

| `partition_by` | what a message belongs by                 | where it is                       |
|----------------|-------------------------------------------|-----------------------------------|
| `key`          | its key; without one, its subject         | in the partition of the hash      |
| `token:3`      | the third token of its subject            | the same                          |
| `range`        | its key; without one, its subject         | in the partition of the range     |
| `range:3`      | the third token of its subject            | the same                          |
| `group`        | nothing                                   | in one, whichever it was given to |
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.partitioning import PartitionBy
from penstock.hot.keymap import KeyMap, key_map_of

PARTITIONS = 3
_TOKEN = 3  # of `<stream>.<generation>.<token>`
_KEYS_EACH = 8  # in use, of each partition, at most
_KEYS = 400  # that there are
_BOUNDS = ("k16", "k08")  # in any order: the last partition lies in the middle
WAYS: tuple[dict[str, Any], ...] = (
    {"partition_by": "key"},
    {"partition_by": f"token:{_TOKEN}"},
    {"partition_by": "range", "range_bounds": _BOUNDS},
    {"partition_by": f"range:{_TOKEN}", "range_bounds": _BOUNDS},
    {"partition_by": "group"},
)
"""What the config of such a stream says, one of which a run has."""


_MORE_BOUNDS = ("k04", "k12", "k20", "k24", "k02", "k28")  # of those that are added: each splits a range


def grown(config: StreamConfig, more: int) -> StreamConfig:
    """The config of such a stream with so many partitions more."""
    bounds = config.range_bounds
    if bounds:
        bounds += _MORE_BOUNDS[len(bounds) - len(_BOUNDS) :][:more]
    return msgspec.structs.replace(config, partitions=config.partitions + more, range_bounds=bounds)


class _Belongs(NamedTuple):
    """What a message belongs by, and which one of its publisher it is, from 1; 0: of one that does not wait."""

    by: bytes
    number: int


class Split:
    """One stream. `mistake` tells what is wrong with a message that is acked, or seen, at an offset."""

    def __init__(self, config: StreamConfig) -> None:
        how = config.split
        self.is_by_leaders = how.is_by_leaders
        self.by_token = how.token > 0
        self._counts: tuple[int, ...] = ()  # how many partitions it had, as far as that was asked for
        self._maps: list[KeyMap] = []  # the last one first; none: publishers are given to any
        self._sent: dict[bytes, _Belongs] = {}  # by what a message is known by
        self._places: dict[bytes, tuple[int, int]] = {}  # where it is: partition and offset
        self._lines: dict[bytes, list[tuple[tuple[int, int], int]]] = {}  # place and number, of what was waited for
        self.grows(config)

    @staticmethod
    def of(config: StreamConfig) -> Split | None:
        """None: publishers choose."""
        how = config.split
        return Split(config) if how.is_by_leaders or how.how is PartitionBy.GROUP else None

    def grows(self, config: StreamConfig) -> None:
        """It may have so many partitions from now on."""
        if self._counts[-1:] == (config.partitions,):
            return
        self._counts += (config.partitions,)
        if self.is_by_leaders:
            self._maps.insert(0, key_map_of(config, self._counts))

    def partition_of(self, by: bytes) -> int | None:
        """Where what belongs by that is to be; None: anywhere."""
        return self._maps[0].partition_of(by) if self._maps else None

    def partitions_of(self, by: bytes) -> frozenset[int]:
        """Where what belongs by that may be, whenever it was sent; none: anywhere."""
        return frozenset(one.partition_of(by) for one in self._maps)

    def keys_of(self, partition: int) -> list[bytes]:
        """Some of what messages of that partition belong by."""
        found: list[bytes] = []
        for number in range(_KEYS):
            key = b"k%02d" % number
            if len(found) == _KEYS_EACH:
                break
            if self.partition_of(key) in (None, partition):
                found.append(key)
        return found

    def sends(self, name: bytes, by: bytes, number: int = 0) -> None:
        """A publisher is about to send this."""
        self._sent[name] = _Belongs(by, number)

    def mistake(self, partition: int, offset: int, name: bytes) -> str:
        """A message is there, and promised; empty if nothing is wrong with that."""
        belongs = self._sent[name]
        if (wanted := self.partitions_of(belongs.by)) and partition not in wanted:
            return f"it belongs by {belongs.by!r}, so into partition {' or '.join(map(str, sorted(wanted)))}"
        place = self._places.setdefault(name, (partition, offset))
        if place[0] != partition:
            return f"it is in partition {place[0]} too, at offset {place[1]}"
        self._places[name] = partition, offset
        if not belongs.number:
            return ""
        line = self._lines.setdefault(belongs.by, [])
        here = (partition, offset)  # a key only ever moves to a partition that was added
        at = bisect_left(line, (here, 0))
        before, behind = line[at - 1 : at] if at else [], line[at : at + 1]
        for other, number in before:
            if number > belongs.number:
                return f"number {belongs.number} of {belongs.by!r} lies behind number {number}, at {_text(other)}"
        for other, number in behind:
            if number < belongs.number:
                return f"number {belongs.number} of {belongs.by!r} lies before number {number}, at {_text(other)}"
        insort(line, (here, belongs.number))
        return ""

    def cut(self, partition: int, end: int) -> None:
        """What lay behind `end` there was lost, as it may: what comes there is new."""
        for name in [name for name, place in self._places.items() if place[0] == partition and place[1] >= end]:
            del self._places[name]
        for line in self._lines.values():
            line[:] = [one for one in line if one[0][0] != partition or one[0][1] < end]


def _text(place: tuple[int, int]) -> str:
    return f"offset {place[1]} of partition {place[0]}"
