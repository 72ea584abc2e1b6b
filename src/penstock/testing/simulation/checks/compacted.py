"""Model of compaction for one partition: what a broker or a reader may lack of all that was ever committed.

Rules: A message without a key stays. Of each key the last committed message stays, unless it is a tombstone that has
stayed for `tombstone_retention` after the last older message of its key was removed. After such a tombstone is removed,
no older message of its key is there. A broker that reaches the tombstone's offset after others have removed it is
excused: a replica that was away for so long may keep what it has.

| a message is missing                 | permitted if                                                                  |
|--------------------------------------|-------------------------------------------------------------------------------|
| on a broker that had it              | a later one of its key is there, and that broker knows it to be committed     |
| on a broker that never had it        | the same; or a later one of its key is committed, and is there as soon as     |
|                                      | that broker knows so                                                          |
| on a broker, the last of its key     | it is a tombstone without older messages of its key, and in this run of the   |
|                                      | broker that was so for `tombstone_retention`, by its wall clock               |
| to a reader                          | a later one of its key is committed; or it is a tombstone that a broker has   |
|                                      | removed                                                                       |

Where marks say what is gone (ADR 89), a broker has the rows that it shows, brokers that have folded as many marks hide
the same rows, no row is gone that no mark hides, and the retention of tombstones is that of the leader's clock.

So a reader of the whole log knows the last committed message of each key: it misses the last one of none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base.limits import OFFSET_MAX
from penstock.live.row_set import NONE, RowSet


class CompactedRow(NamedTuple):
    """Key and tombstone flag of a message. `key` None: it has none."""

    key: bytes | None
    is_tombstone: bool


class Moment(NamedTuple):
    """A wall-clock time of a broker, and how often that clock had been set."""

    wall_us: int
    steps: int
    leader_epoch: int = 0  # in which the broker led then; 0: it did not


_NOBODY_KNOWS = Moment(0, -1)


class SeenRange(NamedTuple):
    """The committed rows that a broker has from `begin` to `end`, by its own high watermark, as just read."""

    log_start: int
    begin: int
    end: int
    rows: dict[int, CompactedRow]
    at: Moment
    hidden: RowSet | None = None  # rows that marks hide there, which `rows` lacks; None: that broker decides alone


@dataclass(slots=True)
class DiskCopy:
    """Observations of one disk of one broker."""

    run: int = 0  # of the broker
    files: tuple[object, ...] | None = None  # rewritten segments, and hidden rows; None: read everything again
    passed: int = 0  # end of what was read
    rows: dict[int, CompactedRow] = field(default_factory=dict)
    offsets: dict[bytes, list[int]] = field(default_factory=dict)  # of each key, in order
    alone: dict[int, Moment] = field(default_factory=dict)  # tombstone without older messages of its key → since when
    gone: set[int] = field(default_factory=set)  # removed tombstones
    lacked: set[int] = field(default_factory=set)  # tombstones that others had removed before this replica reached them
    awaited: dict[bytes, int] = field(default_factory=dict)  # key → replacement, not yet committed there
    is_new: bool = True  # not yet read in this run
    is_blind: bool = True  # not read since it was unreadable or truncated

    def begin(self, run: int, log_end: int) -> None:
        """Begin a new run, in which the replica has what comes before `log_end`."""
        self.run = run
        self.passed = min(self.passed, log_end)
        self.is_new = True
        self.alone.clear()
        self.lose_sight()

    def lose_sight(self) -> None:
        """Mark the replica as unreadable: changes from now on are not observed."""
        self.files = None
        self.is_blind = True

    def cut(self, end: int) -> None:
        """Forget what it has at or above `end`: that may be truncated."""
        self.passed = min(self.passed, end)
        for known in (self.gone, self.lacked):
            known.difference_update([offset for offset in known if offset >= end])
        self.alone = {offset: since for offset, since in self.alone.items() if offset < end}
        self.lose_sight()


class Compacted:
    """One partition. `know` registers a commit, `compare` checks a broker, `passed_over` checks a reader."""

    def __init__(self, retention_us: int) -> None:
        self.gone: set[int] = set()  # tombstones that a broker has removed
        self.was_alone = False  # brokers have decided alone: rows may be gone that no mark hides
        self._hidden: dict[int, tuple[int, RowSet]] = {}  # end of the folded marks → log start, and what they hide
        self._hidden_somewhere = NONE  # by the marks of any broker: its followers get these rows without them
        self.taken = 0  # messages that brokers had and have removed
        self._retention_us = retention_us
        self._rows: dict[int, CompactedRow] = {}
        self._offsets: dict[bytes, list[int]] = {}  # of each key, in order
        self._replicas: dict[tuple[int, int], DiskCopy] = {}

    def know(self, offset: int, row: CompactedRow) -> None:
        """Record a committed message."""
        if offset not in self._rows:
            self._rows[offset] = row
            if row.key is not None:
                insort(self._offsets.setdefault(row.key, []), offset)

    def cut(self, end: int) -> None:
        """Forget what lay at or above `end`, after a permitted loss: new messages come there."""
        for offset in [offset for offset in self._rows if offset >= end]:
            row = self._rows.pop(offset)
            if row.key is not None:
                self._offsets[row.key].remove(offset)
        self.gone = {offset for offset in self.gone if offset < end}
        self._hidden_somewhere = self._hidden_somewhere.between(0, end)
        for replica in self._replicas.values():
            replica.cut(end)

    def replica(self, broker_id: int, disk: int) -> DiskCopy:
        """Return the observations of that disk of the broker."""
        return self._replicas.setdefault((broker_id, disk), DiskCopy())

    # Readers

    def passed_over(self, offsets: Iterable[int]) -> str:
        """Return why a reader must not skip these offsets; empty if it may."""
        for offset in offsets:
            row = self._rows.get(offset)
            if row is None:
                continue  # its commit was never observed
            if row.key is None:
                return f"{offset} has no key, and is passed over"
            if offset == self._offsets[row.key][-1] and offset not in self.gone:
                return f"{offset} is the last of key {row.key!r}, and is passed over"
        return ""

    # Brokers

    def folded(self, log_start: int, end: int, hidden: RowSet) -> str:
        """Check that what the marks up to `end` hide is the same on all brokers; return what is wrong."""
        known_start, known = self._hidden.setdefault(end, (log_start, hidden))
        begin = max(log_start, known_start)
        if known.between(begin, OFFSET_MAX) == hidden.between(begin, OFFSET_MAX):
            return ""
        return f"the marks up to {end} hide {hidden!r} there, and {known!r} elsewhere"

    def _lost(self, seen: SeenRange) -> str:
        if seen.hidden is None:
            self.was_alone = True
        if self.was_alone or seen.hidden is None:
            return ""
        self._hidden_somewhere |= seen.hidden
        known = (offset for offset in range(seen.begin, seen.end) if offset in self._rows)
        lost = [offset for offset in known if offset not in seen.rows and offset not in self._hidden_somewhere]
        return f"{lost} are gone, and no mark hides them" if lost else ""

    def compare(self, replica: DiskCopy, seen: SeenRange) -> str:
        """Return what is wrong with a broker's rows; empty if nothing is."""
        self._take_in(replica, seen)
        keys: dict[bytes, None] = dict.fromkeys(replica.awaited)
        mistake = self._lost(seen)
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

    def _take_in(self, replica: DiskCopy, seen: SeenRange) -> None:
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

    def _mistake(self, key: bytes, replica: DiskCopy, seen: SeenRange) -> str:
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
        return self._gone(last, replica, seen)

    def _awaits(self, key: bytes, last: int, replica: DiskCopy, seen: SeenRange) -> bool:
        """True if a later message replaced `last` before the broker fetched it, and is not committed there yet."""
        later = self._offsets[key][-1]
        is_new = replica.is_blind or last >= replica.passed or replica.awaited.get(key, 0) >= seen.end
        if later >= seen.end and is_new:
            replica.awaited[key] = later
            return True
        replica.awaited.pop(key, None)
        return False

    def _gone(self, offset: int, replica: DiskCopy, seen: SeenRange) -> str:
        """Check the removal of a tombstone together with all older messages of its key."""
        if offset in replica.gone:
            return ""
        replica.gone.add(offset)
        self.gone.add(offset)
        if replica.is_blind:
            return ""
        since = replica.alone.pop(offset, None)
        leader_epoch = seen.at.leader_epoch
        if seen.hidden is not None and (since is None or since.leader_epoch != leader_epoch or not leader_epoch):
            return ""  # a leader before it has decided so; or one elsewhere, by its clock
        at = seen.at
        if since is None:
            return f"{offset}, a tombstone, is gone together with what it ended"
        if since.steps == at.steps and at.wall_us - since.wall_us < self._retention_us:
            after_s = (at.wall_us - since.wall_us) / 1e6
            return f"{offset}, a tombstone, is gone {after_s:.3f} s after what it ended"
        return ""


def _within(offsets: list[int], begin: int, end: int) -> list[int]:
    return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]
