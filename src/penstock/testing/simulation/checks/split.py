"""Model of partitioned streams: the partition and the order of each message that the publisher does not place itself.

Rules: A message is partitioned by its key or by a token of its subject (its `by`). If leaders choose, the message is in
the partition of its `by` and in no other. In a queue group it is in exactly one. A publisher that waits until a message
is acked or given up before it sends the next numbers the messages of each `by`; they are stored in that order, because
one leader stores them and NATS keeps the order. After partitions were added, a message may be in the partition that had
its key before or in the one that has it since; all messages in an older partition precede those in a newer one.

| `partition_by` | a message is partitioned by               | its partition                     |
|----------------|-------------------------------------------|-----------------------------------|
| `key`          | its key; without one, its subject         | that of the hash                  |
| `token:3`      | the third token of its subject            | the same                          |
| `range`        | its key; without one, its subject         | that of the range                 |
| `range:3`      | the third token of its subject            | the same                          |
| `group`        | nothing                                   | that of the member that got it    |
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from penstock.base.config import StreamConfig
from penstock.base.partitioning import PartitionBy
from penstock.hot.keymap import KeyMap, key_map_of

_KEYS_EACH = 8  # keys in use for each partition, at most
_KEYS = 400  # number of all keys


class _Belongs(NamedTuple):
    """The `by` of a message and its number at its publisher, from 1; 0: the publisher does not wait."""

    by: bytes
    number: int


class SplitModel:
    """One stream. `mistake` checks a message that was acked or read at an offset."""

    def __init__(self, config: StreamConfig) -> None:
        how = config.split
        self.is_by_leaders = how.is_by_leaders
        self.by_token = how.token > 0
        self._counts: tuple[int, ...] = ()  # partition counts over time, as requested
        self._maps: list[KeyMap] = []  # newest first; empty: a queue group decides
        self._sent: dict[bytes, _Belongs] = {}  # by message name
        self._places: dict[bytes, tuple[int, int]] = {}  # message name → partition and offset
        self._lines: dict[bytes, list[tuple[tuple[int, int], int]]] = {}  # `by` → (place, number), in order
        self.grows(config)

    @staticmethod
    def of(config: StreamConfig) -> SplitModel | None:
        """Return the model of a stream; None: publishers choose the partition."""
        how = config.split
        return SplitModel(config) if how.is_by_leaders or how.how is PartitionBy.GROUP else None

    def grows(self, config: StreamConfig) -> None:
        """The stream may have this number of partitions from now on."""
        if self._counts[-1:] == (config.partitions,):
            return
        self._counts += (config.partitions,)
        if self.is_by_leaders:
            self._maps.insert(0, key_map_of(config, self._counts))

    def partition_of(self, by: bytes) -> int | None:
        """Return the current partition for `by`; None: any."""
        return self._maps[0].partition_of(by) if self._maps else None

    def partitions_of(self, by: bytes) -> frozenset[int]:
        """Return all partitions that have ever been right for `by`; empty: any."""
        return frozenset(one.partition_of(by) for one in self._maps)

    def keys_of(self, partition: int) -> list[bytes]:
        """Return some values of `by` that belong to the partition."""
        found: list[bytes] = []
        for number in range(_KEYS):
            key = b"k%02d" % number
            if len(found) == _KEYS_EACH:
                break
            if self.partition_of(key) in (None, partition):
                found.append(key)
        return found

    def sends(self, name: bytes, by: bytes, number: int = 0) -> None:
        """Register a message before it is sent."""
        self._sent[name] = _Belongs(by, number)

    def mistake(self, partition: int, offset: int, name: bytes) -> str:
        """Return what is wrong with a message at this place; empty if nothing is."""
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
        here = (partition, offset)  # a key only ever moves to an added partition
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
        """Forget what lay at or above `end`, after a permitted loss: new messages come there."""
        for name in [name for name, place in self._places.items() if place[0] == partition and place[1] >= end]:
            del self._places[name]
        for line in self._lines.values():
            line[:] = [one for one in line if one[0][0] != partition or one[0][1] < end]


def _text(place: tuple[int, int]) -> str:
    return f"offset {place[1]} of partition {place[0]}"
