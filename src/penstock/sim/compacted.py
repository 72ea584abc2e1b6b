"""What compaction may take from a partition, by all that was ever committed there: what a broker, or a reader, has.

Rules: a message without a key stays. Of each key the last one stays that is committed, unless that is a tombstone that
has stayed for `tombstone_retention` behind all that it ends. Where such a tombstone is gone, nothing older of its key
is there: but on a broker that came to its offset when others had let it go, for a replica that was away for so long
may keep what it has.

| a message is missing                 | that is as it must be if                                                      |
|--------------------------------------|-------------------------------------------------------------------------------|
| on a broker that has had it          | a later one of its key is there, and committed as that broker knows           |
| on a broker that never had it        | the same; or a later one of its key is committed, and there as soon as that   |
|                                      | broker knows so                                                               |
| on a broker, the last one of its key | it is a tombstone, and nothing older of its key is there; in this run of the  |
|                                      | broker that was so for `tombstone_retention` already, by its calendar         |
| to a reader                          | a later one of its key is committed; or it is a tombstone that a broker has   |
|                                      | let go                                                                        |

So a reader that has read all knows what was committed last of each key: it passes over the last one of none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """What counts of a message. `key` None: it has none."""

    key: bytes | None
    is_tombstone: bool


class Moment(NamedTuple):
    """By the calendar of a broker, which was set so many times."""

    wall_us: int
    steps: int


_NOBODY_KNOWS = Moment(0, -1)


class Seen(NamedTuple):
    """What a broker has from `begin` to `end`, of what is committed as it knows, as it was read just now."""

    log_start: int
    begin: int
    end: int
    rows: dict[int, Row]
    at: Moment


@dataclass(slots=True)
class Replica:
    """What was seen of one disk of one broker."""

    run: int = 0  # of the broker
    files: tuple[str, ...] | None = None  # that were written anew; None: all is to be read
    passed: int = 0  # up to where it was read
    rows: dict[int, Row] = field(default_factory=dict)
    offsets: dict[bytes, list[int]] = field(default_factory=dict)  # of each key, in order
    alone: dict[int, Moment] = field(default_factory=dict)  # tombstones with nothing older of their key: since when
    gone: set[int] = field(default_factory=set)  # tombstones that were let go
    lacked: set[int] = field(default_factory=set)  # tombstones that others had let go when it came so far
    awaited: dict[bytes, int] = field(default_factory=dict)  # what takes the place of others, and is not committed yet
    is_new: bool = True  # it was not seen in this run
    is_blind: bool = True  # nor since it could not be read, or was cut

    def begin(self, run: int, log_end: int) -> None:
        """It was started again, and has what comes before `log_end`."""
        self.run = run
        self.passed = min(self.passed, log_end)
        self.is_new = True
        self.alone.clear()
        self.lose_sight()

    def lose_sight(self) -> None:
        """It cannot be read: nobody knows what happens meanwhile."""
        self.files = None
        self.is_blind = True

    def cut(self, end: int) -> None:
        """What it has behind `end` may go."""
        self.passed = min(self.passed, end)
        for known in (self.gone, self.lacked):
            known.difference_update([offset for offset in known if offset >= end])
        self.alone = {offset: since for offset, since in self.alone.items() if offset < end}
        self.lose_sight()


class Compacted:
    """One partition. `know` what is committed; `compare` what a broker has, `passed_over` what a reader has not."""

    def __init__(self, retention_us: int) -> None:
        self.gone: set[int] = set()  # tombstones that some broker has let go
        self.taken = 0  # messages that brokers had, and have no more
        self._retention_us = retention_us
        self._rows: dict[int, Row] = {}
        self._offsets: dict[bytes, list[int]] = {}  # of each key, in order
        self._replicas: dict[tuple[int, int], Replica] = {}

    def know(self, offset: int, row: Row) -> None:
        """This is committed."""
        if offset not in self._rows:
            self._rows[offset] = row
            if row.key is not None:
                insort(self._offsets.setdefault(row.key, []), offset)

    def cut(self, end: int) -> None:
        """What lay behind `end` was lost, as it may: what comes there is new."""
        for offset in [offset for offset in self._rows if offset >= end]:
            row = self._rows.pop(offset)
            if row.key is not None:
                self._offsets[row.key].remove(offset)
        self.gone = {offset for offset in self.gone if offset < end}
        for replica in self._replicas.values():
            replica.cut(end)

    def replica(self, broker_id: int, disk: int) -> Replica:
        """What is known of that disk of the broker."""
        return self._replicas.setdefault((broker_id, disk), Replica())

    # Readers

    def passed_over(self, offsets: Iterable[int]) -> str:
        """Why a reader must not pass over these; empty if it may."""
        for offset in offsets:
            row = self._rows.get(offset)
            if row is None:
                continue  # nobody has seen it
            if row.key is None:
                return f"{offset} has no key, and is passed over"
            if offset == self._offsets[row.key][-1] and offset not in self.gone:
                return f"{offset} is the last of key {row.key!r}, and is passed over"
        return ""

    # Brokers

    def compare(self, replica: Replica, seen: Seen) -> str:
        """What is wrong with what a broker has; empty if nothing is."""
        self._take_in(replica, seen)
        keys: dict[bytes, None] = dict.fromkeys(replica.awaited)
        mistake = ""
        for offset in range(seen.begin, seen.end):
            row = self._rows.get(offset)
            if row is None:
                continue
            if row.key is not None:
                keys[row.key] = None
            elif offset not in replica.rows:
                mistake = mistake or f"{offset} has no key, and is gone"
        mistake = mistake or next(filter(None, (self._mistake(key, replica, seen) for key in keys)), "")
        replica.passed = seen.end
        replica.is_new = replica.is_blind = False
        return mistake

    def _take_in(self, replica: Replica, seen: Seen) -> None:
        if seen.begin > seen.log_start:
            replica.rows.update(seen.rows)
            for offset, row in seen.rows.items():
                if row.key is not None:
                    replica.offsets.setdefault(row.key, []).append(offset)
            return
        if not replica.is_blind:
            had = (offset for offset in replica.rows if seen.log_start <= offset < seen.end)
            self.taken += sum(offset not in seen.rows for offset in had)
        replica.rows = dict(seen.rows)
        replica.offsets = {}
        for offset, row in seen.rows.items():
            if row.key is not None:
                replica.offsets.setdefault(row.key, []).append(offset)

    def _mistake(self, key: bytes, replica: Replica, seen: Seen) -> str:
        known = _within(self._offsets.get(key, []), seen.log_start, seen.end)
        if not known:
            return ""
        last = known[-1]
        there = _within(replica.offsets.get(key, []), seen.log_start, seen.end)
        if there and there[-1] >= last:
            replica.awaited.pop(key, None)
            replica.gone.discard(last)
            if there == [last] and self._rows[last].is_tombstone:
                is_since_now = replica.is_new or not replica.is_blind
                replica.alone.setdefault(last, seen.at if is_since_now else _NOBODY_KNOWS)
            return ""
        if last in replica.lacked or self._awaits(key, last, replica, seen):
            return ""
        if not self._rows[last].is_tombstone:
            return f"{last} is the last of key {key!r}, and is gone"
        if last >= replica.passed and last in self.gone:
            replica.lacked.add(last)
            return ""
        if there:
            return f"{last}, the tombstone of key {key!r}, is gone, and {there[-1]} is there"
        return self._gone(last, replica, seen.at)

    def _awaits(self, key: bytes, last: int, replica: Replica, seen: Seen) -> bool:
        """Whether what was to come took its place, where the broker has it from."""
        later = self._offsets[key][-1]
        is_new = replica.is_blind or last >= replica.passed or replica.awaited.get(key, 0) >= seen.end
        if later >= seen.end and is_new:
            replica.awaited[key] = later
            return True
        replica.awaited.pop(key, None)
        return False

    def _gone(self, offset: int, replica: Replica, at: Moment) -> str:
        """A tombstone is, and all that it ended."""
        if offset in replica.gone:
            return ""
        replica.gone.add(offset)
        self.gone.add(offset)
        if replica.is_blind:
            return ""
        since = replica.alone.pop(offset, None)
        if since is None:
            return f"{offset}, a tombstone, is gone together with what it ended"
        if since.steps == at.steps and at.wall_us - since.wall_us < self._retention_us:
            after_s = (at.wall_us - since.wall_us) / 1e6
            return f"{offset}, a tombstone, is gone {after_s:.3f} s after what it ended"
        return ""


def _within(offsets: list[int], begin: int, end: int) -> list[int]:
    return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]
