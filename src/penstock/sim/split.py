"""Streams whose messages find their partitions by themselves: which one that is, and in which order they lie there.

Rules: what a message belongs by is the key that is stored with it, or a token of its subject. Where the leaders choose,
it is in the partition of that, and in no other. Where chance does, it is in one. A publisher that waits, before it
sends on, until a message is acked or given up counts what it sends of each key: so it lies, for only its leader stores
it, and NATS keeps the order.

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
from itertools import count
from typing import Any, NamedTuple

from penstock.base.config import StreamConfig
from penstock.base.partitioning import PartitionBy
from penstock.hot.keymap import KeyMap

PARTITIONS = 3
_TOKEN = 3  # of `<stream>.<generation>.<token>`
_KEYS_EACH = 8  # in use, of each partition
_BOUNDS = ("k16", "k08")  # in any order: the last partition lies in the middle
WAYS: tuple[dict[str, Any], ...] = (
    {"partition_by": "key"},
    {"partition_by": f"token:{_TOKEN}"},
    {"partition_by": "range", "range_bounds": _BOUNDS},
    {"partition_by": f"range:{_TOKEN}", "range_bounds": _BOUNDS},
    {"partition_by": "group"},
)
"""What the config of such a stream says, one of which a run has."""


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
        bounds = [bound.encode() for bound in config.range_bounds] or None
        self._map = KeyMap((config.partitions,), bounds) if how.is_by_leaders else None
        self._sent: dict[bytes, _Belongs] = {}  # by what a message is known by
        self._places: dict[bytes, tuple[int, int]] = {}  # where it is: partition and offset
        self._lines: dict[tuple[int, bytes], list[tuple[int, int]]] = {}  # offset and number, of what was waited for

    @staticmethod
    def of(config: StreamConfig) -> Split | None:
        """None: publishers choose."""
        how = config.split
        return Split(config) if how.is_by_leaders or how.how is PartitionBy.GROUP else None

    def partition_of(self, by: bytes) -> int | None:
        """The only one where what belongs by that may be; None: any."""
        return None if self._map is None else self._map.partition_of(by)

    def keys_of(self, partition: int) -> list[bytes]:
        """Some of what messages of that partition belong by."""
        found: list[bytes] = []
        for number in count():
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
        if (wanted := self.partition_of(belongs.by)) not in (None, partition):
            return f"it belongs by {belongs.by!r}, so into partition {wanted}"
        place = self._places.setdefault(name, (partition, offset))
        if place[0] != partition:
            return f"it is in partition {place[0]} too, at offset {place[1]}"
        self._places[name] = partition, offset
        if not belongs.number:
            return ""
        line = self._lines.setdefault((partition, belongs.by), [])
        at = bisect_left(line, (offset, 0))
        before, behind = line[at - 1 : at] if at else [], line[at : at + 1]
        for other, number in before:
            if number > belongs.number:
                return f"number {belongs.number} of {belongs.by!r} lies behind number {number}, at offset {other}"
        for other, number in behind:
            if number < belongs.number:
                return f"number {belongs.number} of {belongs.by!r} lies before number {number}, at offset {other}"
        insort(line, (offset, belongs.number))
        return ""

    def cut(self, partition: int, end: int) -> None:
        """What lay behind `end` there was lost, as it may: what comes there is new."""
        for name in [name for name, place in self._places.items() if place[0] == partition and place[1] >= end]:
            del self._places[name]
        for key, line in self._lines.items():
            if key[0] == partition:
                del line[bisect_left(line, (end, 0)) :]
