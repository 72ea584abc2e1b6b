"""Message ids of a log's deduplication window, with their offsets, to detect duplicates.

Rules: ids are kept in the order of their offsets, and leave in that order: expired ones (`expire`), the oldest at the
limit, those of truncated messages (`forget_below`), and from the other end those that were not written after all
(`cut`). For a repeated id the latest offset counts. So the known ids are a function of the log and the time,
independent of when they were loaded.

    add 7, 8 ─▶ stamp: written at 12:00 up to 9        not written ─▶ cut 7
                  ╰─ expire 12:02 ─▶ 7, 8 are unknown

Ids of other partitions of the stream, whose keys moved here, are kept beside them (`RemoteMessageIds`): see
`penstock.node.replicas.remote_dedup`. The limit covers both together; those from elsewhere, which are older, are
evicted first.

Memory: an id of up to 64 bytes is kept as it is, a longer one as its BLAKE2b digest with a byte before it, which is
longer than any of the others: two different ids never collide. That is some 250 bytes an id.
"""

from __future__ import annotations

from array import array
from collections import deque
from hashlib import blake2b

_KEPT_BYTES_MAX = 64
_LONG = b"\0"
_int = int


class RemoteMessageIds:
    """Recent ids in other partitions, with their offsets. `forgotten` counts as in `MessageIds`."""

    __slots__ = ("_ids_max", "_order", "_places", "forgotten")

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._places: dict[bytes, tuple[int, int]] = {}  # partition and offset
        self._order: deque[tuple[int, bytes, tuple[int, int]]] = deque()  # with their timestamps, which rise
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._order)

    def gather(self, partition: int, found: list[tuple[int, int, bytes]]) -> None:
        """Add a partition's ids: offset, timestamp and key of each. May run in another thread."""
        order = [(timestamp_us, key, (partition, offset)) for offset, timestamp_us, key in found]
        order += self._order
        order.sort()
        kept = order[max(0, len(order) - self._ids_max) :]
        self.forgotten += len(order) - len(kept)
        self._order = deque(kept)
        self._places = {key: place for _, key, place in kept}

    def find(self, data: bytes, begin: int, end: int) -> tuple[int, int] | None:
        """Return partition and offset of the latest message with the id data[begin:end]."""
        return self._places.get(key_of(data, begin, end))

    def expire(self, before_us: int) -> None:
        """Remove ids written before that time."""
        while self._order and self._order[0][0] < before_us:
            self._forget_first()

    def shrink(self, count: int) -> None:
        """Evict the oldest ids beyond `count`."""
        while len(self._order) > count:
            self._forget_first()
            self.forgotten += 1

    def forget_below(self, partition: int, start: int) -> None:
        """Remove that partition's ids below the offset `start`, which is truncated."""
        kept = [one for one in self._order if one[2][0] != partition or one[2][1] >= start]
        if len(kept) < len(self._order):
            self._order = deque(kept)
            self._places = {key: place for _, key, place in kept}

    def _forget_first(self) -> None:
        _, key, place = self._order.popleft()
        if self._places.get(key) is place:
            del self._places[key]


class MessageIds:
    """The ids of one log. `forgotten` counts the ids that were evicted at the limit."""

    __slots__ = ("_ends", "_ids_max", "_last", "_last_offset", "_offsets", "_order", "_places", "_times_us",
                 "_written", "_written_offset", "elsewhere", "forgotten")  # fmt: skip

    def __init__(self, ids_max: int) -> None:
        self._ids_max = ids_max
        self._offsets: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()  # all ids, in the order of their offsets
        self._places: deque[int] = deque()  # these offsets
        self._ends: deque[int] = deque()  # ids below this offset …
        self._times_us: deque[int] = deque()  # … were written at that time
        self._last = b""  # the latest id, even if it has expired
        self._last_offset = -1
        self._written = b""  # the same, of what is confirmed written
        self._written_offset = -1
        self.elsewhere: RemoteMessageIds | None = None
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._order) + (0 if self.elsewhere is None else len(self.elsewhere))

    def know(self, elsewhere: RemoteMessageIds) -> None:
        """Set the ids that other partitions have."""
        elsewhere.shrink(max(0, self._ids_max - len(self._order)))
        self.forgotten += elsewhere.forgotten
        elsewhere.forgotten = 0
        self.elsewhere = elsewhere if len(elsewhere) else None

    def find(self, data: bytes, begin: int, end: int) -> int:
        """Return the offset of the message with the id data[begin:end], or -1."""
        offset = self._offsets.get(key_of(data, begin, end))
        return -1 if offset is None else offset

    def find_elsewhere(self, data: bytes, begin: int, end: int) -> tuple[int, int] | None:
        """Return partition and offset of the message with the id data[begin:end], if another partition has it."""
        return None if self.elsewhere is None else self.elsewhere.find(data, begin, end)

    def is_of(self, offset: int, data: bytes, begin: int, end: int) -> bool:
        """True if the last message, which is at `offset`, has the id data[begin:end]."""
        return self._last_offset == offset and self._last == key_of(data, begin, end)

    def add(self, data: bytes, begin: int, end: int, offset: int) -> None:
        """Record the id data[begin:end] of the message at `offset`, after all others; `stamp` or `cut` must follow."""
        self._add(key_of(data, begin, end), offset)

    def _add(self, key: bytes, offset: int) -> None:
        if self.elsewhere is not None and len(self._order) + len(self.elsewhere) >= self._ids_max:
            self.elsewhere.shrink(max(0, self._ids_max - len(self._order) - 1))
            self.forgotten += self.elsewhere.forgotten
            self.elsewhere.forgotten = 0
        if len(self._order) >= self._ids_max:
            self._forget_first()
            self.forgotten += 1
            while self._ends and self._places and self._ends[0] <= self._places[0]:
                self._ends.popleft()
                self._times_us.popleft()
        self._offsets[key] = offset
        self._order.append(key)
        self._places.append(offset)
        self._last = key
        self._last_offset = offset

    def stamp(self, timestamp_us: int, end: int) -> None:
        """Confirm that the ids below `end` are written, with this timestamp."""
        if self._last_offset < end:
            self._written = self._last
            self._written_offset = self._last_offset
        if self._ends and self._times_us[-1] == timestamp_us:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._times_us.append(timestamp_us)

    def note(self, found: list[tuple[int, bytes]], base_offset: int, timestamp_us: int) -> None:
        """Record the ids of a batch written after all others, as `Rows.message_ids` finds them."""
        for row, key in found:
            self._add(key, base_offset + row)
            self.stamp(timestamp_us, base_offset + row + 1)

    def note_before(
        self, found: list[tuple[int, bytes]], offsets: array[int], timestamps_us: array[int], start: int
    ) -> None:
        """Record the ids of a batch before all others; its rows below `start` are removed."""
        for row, key in reversed(found):
            offset = offsets[row]
            if offset < start or self.is_full:
                break
            if self._last_offset < 0:
                self._last = self._written = key
                self._last_offset = self._written_offset = offset
            if key not in self._offsets:
                self._offsets[key] = offset
            self._order.appendleft(key)
            self._places.appendleft(offset)
            timestamp_us = timestamps_us[row]
            if not (self._ends and self._times_us[0] == timestamp_us):
                self._ends.appendleft(offset + 1)
                self._times_us.appendleft(timestamp_us)

    @property
    def is_full(self) -> bool:
        """True if the next id evicts the oldest."""
        return len(self._order) >= self._ids_max

    def expire(self, before_us: int) -> None:
        """Remove ids written before that time."""
        while self._ends and self._times_us[0] < before_us:
            end = self._ends.popleft()
            self._times_us.popleft()
            while self._places and self._places[0] < end:
                self._forget_first()
        if self.elsewhere is not None:
            self.elsewhere.expire(before_us)
            if not len(self.elsewhere):
                self.elsewhere = None

    def _forget_first(self) -> None:
        key = self._order.popleft()
        if self._offsets.get(key) == self._places.popleft():
            del self._offsets[key]

    def forget_below(self, start: int) -> None:
        """Remove the ids of messages below the offset `start`, which are truncated."""
        while self._places and self._places[0] < start:
            self._forget_first()
        while self._ends and self._ends[0] <= start:
            self._ends.popleft()
            self._times_us.popleft()
        if self._last_offset < start:
            self._last = b""
            self._last_offset = -1
        if self._written_offset < start:
            self._written = b""
            self._written_offset = -1

    def forget_elsewhere(self, partition: int, start: int) -> None:
        """Remove another partition's ids below the offset `start`, which is truncated."""
        if self.elsewhere is not None:
            self.elsewhere.forget_below(partition, start)
            if not len(self.elsewhere):
                self.elsewhere = None

    def cut(self, end: int) -> None:
        """Undo: the ids from the offset `end` on were not written."""
        while self._places and self._places[-1] >= end:
            key = self._order.pop()
            if self._offsets.get(key) == self._places.pop():
                del self._offsets[key]
        if self._last_offset >= end:
            self._last = self._written  # it may have expired from the others
            self._last_offset = self._written_offset
            if self._places and self._places[-1] > self._last_offset:
                self._last = self._order[-1]
                self._last_offset = self._places[-1]


def key_of(data: bytes, begin: _int, end: _int) -> bytes:
    """Return the key under which the id data[begin:end] is kept."""
    if end - begin <= _KEPT_BYTES_MAX:
        return data[begin:end]
    return _LONG + blake2b(data[begin:end]).digest()
