"""The latest committed offset of each group, stream and partition, built from rows in log order.

Rules: the state follows from the rows alone, so it is the same on every broker that reads them. Rows that this version
does not know change nothing. All offsets are kept: their number is limited before a row is written, not here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.base.fair_shares import FairShares
from penstock.groups.membership import Generation
from penstock.groups.rows import (
    GroupPosition,
    OffsetKey,
    decode_generation,
    decode_generation_key,
    decode_key,
    decode_value,
)


class StoredOffset(NamedTuple):
    """A position, and when it was committed (µs since 1970 UTC)."""

    position: GroupPosition
    committed_us: int


class CommittedOffsets:
    """The offsets and generations of one partition of `__offsets`."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, dict[int, StoredOffset]]] = {}
        self._count = 0
        self._pairs: list[tuple[str, int]] | None = None  # sorted groups and streams; None after a change
        self.shares = FairShares()  # committed offsets by user; the writer adds those under way
        self.generations: dict[str, Generation] = {}  # of the groups that have or had members

    def __len__(self) -> int:
        """Number of committed offsets."""
        return self._count

    def take(self, rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Apply the next rows of the log, each a key, value and timestamp."""
        for key, value, timestamp_us in rows:
            if (place := decode_key(key)) is None:
                self._take_generation(key, value)
                continue
            if value is None:
                self._forget(place)
            elif (position := decode_value(value)) is not None:
                self._keep(place, StoredOffset(position, timestamp_us))

    def _take_generation(self, key: bytes | None, value: bytes | None) -> None:
        if (group := decode_generation_key(key)) is None:
            return
        if value is None:
            self.generations.pop(group, None)
        elif (generation := decode_generation(value)) is not None:
            self.generations[group] = generation

    def _keep(self, place: OffsetKey, committed: StoredOffset) -> None:
        partitions = self._groups.setdefault(place.group, {}).setdefault(place.stream_id, {})
        if not partitions:
            self._pairs = None
        if (before := partitions.get(place.partition)) is None:
            self._count += 1
        else:
            self.shares.remove(before.position.by)
        self.shares.add(committed.position.by)
        partitions[place.partition] = committed

    def _forget(self, place: OffsetKey) -> None:
        streams = self._groups.get(place.group, {})
        partitions = streams.get(place.stream_id, {})
        if (before := partitions.pop(place.partition, None)) is None:
            return
        self.shares.remove(before.position.by)
        self._count -= 1
        if not partitions:
            self._pairs = None
            del streams[place.stream_id]
        if not streams:
            del self._groups[place.group]

    def __contains__(self, place: OffsetKey) -> bool:
        return place.partition in self.of(place.group, place.stream_id)

    def of(self, group: str, stream_id: int) -> dict[int, StoredOffset]:
        """Return a group's committed offsets of a stream, by partition; read-only."""
        return self._groups.get(group, {}).get(stream_id, {})

    @property
    def stream_count(self) -> int:
        """Number of pairs of a group and a stream with committed offsets."""
        return sum(map(len, self._groups.values()))

    def all(self) -> Iterator[tuple[str, int, dict[int, StoredOffset]]]:
        """Yield each group and stream with its offsets by partition; rows may be added meanwhile."""
        for group, streams in list(self._groups.items()):
            for stream_id, committed in list(streams.items()):
                yield group, stream_id, dict(committed)

    def page(self, after: tuple[str, int], size: int) -> list[tuple[str, int, int]]:
        """Return up to `size` groups and streams after that pair, in order, each with its number of offsets."""
        if self._pairs is None:
            self._pairs = sorted((group, stream_id) for group, streams in self._groups.items() for stream_id in streams)
        start = bisect_right(self._pairs, after)
        return [(group, one, len(self._groups[group][one])) for group, one in self._pairs[start : start + size]]

    def left_over(self, is_gone: Callable[[int], bool], count: int) -> list[OffsetKey]:
        """Return up to `count` places in deleted streams."""
        found: list[OffsetKey] = []
        for group, streams in self._groups.items():
            for stream_id, partitions in streams.items():
                if is_gone(stream_id):
                    found += [OffsetKey(group, stream_id, number) for number in partitions]
                    if len(found) >= count:
                        return found[:count]
        return found
