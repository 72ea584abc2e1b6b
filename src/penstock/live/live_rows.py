"""Live rows: the fold of the committed marks of one partition.

Rules: the fold is a function of the marks, in order: replicas that took the same marks are equal. Hidden rows are never
shown again; what is cut is what no longer exists: rows that an election lost, whose offsets others get, and those below
the log start. Until a mark says so, the data log itself knows which rows a later leader wrote (`Log.hide`).
A snapshot, once all its parts are taken, holds all marks before its `marks_end`; later ones may stand before it: so it
adds to what is hidden, and takes nothing away. The marks before the `marks_end` of the last snapshot but one may be
removed (`removable_end`): with the last one alone, a replica that is late by a few marks would have to begin anew.

The first mark that is there may be a later one, at `begin`, as those before were removed. Then the fold says nothing
(`is_whole`) until it has taken a snapshot of all that it lacks, or its leader knows that there is none any more.

`interest` says that the leader has hidden what no consumer wanted; a `Decided` without it says that it does so no more.

`decided_end` belongs to `limit` and `rollups`, by which the leader has decided up to there. A stricter limit, or
rollups that had no effect before, are decided from the beginning of the log on, so they set the end back; a wider limit
leaves it, as what it allows was decided already.

After a mark that is not understood, `refusal` says why no row may be shown: more would be shown than should. A snapshot
that holds the mark lifts it, as its writer has understood it.

| event                                  | hidden rows                                   | by                       |
|----------------------------------------|-----------------------------------------------|--------------------------|
| a mark is committed                    | and the mark's                                | `take`                   |
| the first mark of a later leader epoch | those before its `earlier_end`, and the mark's| `take`                   |
| the log start rises                    | those from there on                           | `start_raised`           |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from operator import add

from penstock.base import limits
from penstock.live.marks import Decided, HideReason, HideRows, MadeUnder, Mark, Snapshot, TimeToLive, UnknownMarkError
from penstock.live.row_set import NONE, RowSet

_REASONS = tuple(HideReason)
_FEW_ROWS = 4
_SNAPSHOT_ROOM = limits.MARK_BYTES_MAX - 512  # beside all other fields


class LiveRows:
    """Hidden rows of one partition. `hidden` and `secure` are immutable sets: a view is the set itself."""

    __slots__ = (
        "_held_end", "_lacked_end", "_parts", "_since_bytes", "_since_marks", "counts", "decided_end", "expired",
        "files_start", "hidden", "interest", "is_whole", "leader_epoch", "limit", "log_end", "log_start", "refusal",
        "removable_end", "rollups", "secure", "was_narrower",
    )  # fmt: skip

    def __init__(self, begin: int = 0) -> None:
        """`begin`: offset in the companion log of the first mark that will be taken."""
        self.is_whole = not begin  # all marks were taken, or a snapshot of those before `begin`
        self.removable_end = 0  # offset in the companion log: the marks before it are not needed
        self.hidden = NONE
        self.secure = NONE  # of these, the ones whose bytes are to be erased at once
        self.counts = [0] * len(_REASONS)  # rows that were hidden, in the order of HideReason
        self.decided_end = 0
        self.limit = 0  # messages of each subject that stay before `decided_end`; 0: no limit was decided
        self.was_narrower = bool(begin)  # rows may be hidden by a narrower limit than `limit`
        self.rollups = False  # rollups before `decided_end` have taken effect
        self.interest = False  # what no consumer wanted is hidden
        self.leader_epoch = 0  # of the last mark
        self.log_end = 0  # of the same
        self.expired: tuple[int, int] | None = None  # time (µs) and offset of the last `TimeToLive`
        self.log_start = self.files_start = 0  # the first offset that a file may hold, at or below the log start
        self.refusal = ""  # why no row may be shown; empty: they may
        self._lacked_end = begin  # the next snapshot counts if it holds all marks before this offset
        self._held_end = 0  # `marks_end` of the last whole snapshot
        self._parts: list[Snapshot] = []  # of a snapshot that is not whole
        self._since_marks = self._since_bytes = 0  # since the last snapshot

    def copy(self) -> LiveRows:
        """Return a fold of its own with the same state."""
        found = LiveRows()
        for name in self.__slots__:
            setattr(found, name, getattr(self, name))
        found.counts, found._parts = [*self.counts], [*self._parts]
        return found

    def take(self, mark: Mark, size_bytes: int = 0) -> int:
        """Apply the next committed mark, of that many bytes; return how many rows it newly hides."""
        self._since_marks += 1
        self._since_bytes += size_bytes
        if mark.under.leader_epoch != self.leader_epoch:
            self._cut(mark.under.earlier_end)
            self.leader_epoch = mark.under.leader_epoch
            self.log_end = 0
            self._parts = []  # of a leader that did not finish it
        self.log_end = max(self.log_end, mark.under.log_end)
        match mark:
            case Snapshot():
                self._take_part(mark)
                return 0
            case HideRows():
                newly = self._hide(mark)
            case TimeToLive():
                self.expired, newly = (mark.at_us, mark.below), 0
            case Decided():
                newly, self.interest = 0, False  # until `_decide`
        self._decide(mark.under)
        return newly

    def _decide(self, under: MadeUnder) -> None:
        if self.covers(under.limit, rollups=under.rollups):
            self.decided_end = max(self.decided_end, under.decided_end)
        else:
            self.decided_end = under.decided_end
        self.interest |= under.interest
        if under.limit or under.rollups:
            self.was_narrower |= self.limit > 0 and not 0 < under.limit <= self.limit
            self.limit, self.rollups = under.limit, under.rollups

    def covers(self, limit: int, *, rollups: bool) -> bool:
        """True if what is decided need not be decided anew by this limit (0: none), with or without rollups."""
        return (not limit or 0 < self.limit <= limit) and (self.rollups or not rollups)

    def take_unknown(self, error: UnknownMarkError, offset: int) -> None:
        """Take a mark, at that offset, that cannot be understood: from now on no row may be shown."""
        self.refusal = str(error)
        self._lacked_end = max(self._lacked_end, offset + 1)

    def accept_loss(self) -> None:
        """Go on without the marks that were removed: no snapshot of them is left. One is due, for other replicas."""
        assert not self.refusal
        self.is_whole, self._since_marks = True, limits.OFFSET_MAX

    def _hide(self, mark: HideRows) -> int:
        rows = mark.rows.between(self.log_start, limits.OFFSET_MAX)
        # To count all that is hidden takes longer than to look up a few rows.
        is_small = rows.count <= _FEW_ROWS
        few = (offset for run in rows.runs() for offset in range(*run)) if is_small else ()
        before = sum(offset in self.hidden for offset in few) if is_small else self.hidden.count
        self.hidden |= rows
        if mark.is_secure:
            self.secure |= mark.rows.between(self.files_start, limits.OFFSET_MAX)
        newly = rows.count - before if is_small else self.hidden.count - before
        self.counts[_REASONS.index(mark.reason)] += newly
        return newly

    def _take_part(self, part: Snapshot) -> None:
        if part.part != len(self._parts) or (self._parts and self._parts[0].parts != part.parts):
            self._parts = []
            if part.part:
                return  # the begin of this snapshot was cut away: an earlier whole one, or marks, are still there
        lacks_marks = bool(self.refusal) or not self.is_whole
        # Else its rows are all hidden already: a union of large sets takes long.
        self._parts.append(part if lacks_marks else replace(part, rows=NONE, secure_rows=NONE))
        if len(self._parts) < part.parts:
            return
        parts, self._parts = self._parts, []
        if part.marks_end < self._lacked_end:
            return
        hidden = secure = NONE
        for one in parts:
            hidden |= one.rows
            secure |= one.secure_rows
        self.hidden |= hidden.between(self.log_start, limits.OFFSET_MAX)
        self.secure |= secure.between(self.files_start, limits.OFFSET_MAX)
        self.counts = list(map(max if self.is_whole else add, self.counts, part.counts))
        rules = self.limit, self.rollups
        if rules in ((0, False), (part.under.limit, part.under.rollups)):  # else a change has overtaken the snapshot
            self._decide(part.under)
        self.expired = max(self.expired or (0, 0), part.expired or (0, 0)) if self.expired or part.expired else None
        self.refusal, self.is_whole = "", True
        if part.marks_end > self._held_end:
            self.removable_end, self._held_end = self._held_end, part.marks_end
        self._since_marks = self._since_bytes = 0

    def _cut(self, end: int) -> None:
        self.hidden, self.secure = self.hidden.between(0, end), self.secure.between(0, end)
        self.decided_end = min(self.decided_end, end)

    def start_raised(self, log_start: int, files_start: int | None = None) -> None:
        """Forget the rows below the log start: they no longer exist. Those that are to be erased at once count until no
        file holds them: `files_start`, at or below the log start, is where the first file begins.
        """
        if log_start > self.log_start:
            self.log_start = log_start
            self.hidden = self.hidden.between(log_start, limits.OFFSET_MAX)
        files_start = log_start if files_start is None else files_start
        if files_start > self.files_start:
            self.files_start = files_start
            self.secure = self.secure.between(files_start, limits.OFFSET_MAX)

    def live_in(self, begin: int, end: int) -> int:
        """Return how many offsets of a range are not hidden. Where the log has gaps, it has fewer rows."""
        return max(0, end - begin) - self.hidden.count_in(begin, end)

    @property
    def size_bytes(self) -> int:
        """Memory that the sets take, in bytes, about."""
        return self.hidden.size_bytes + self.secure.size_bytes

    @property
    def has_room(self) -> bool:
        """True if a leader may hide more rows: beyond HIDDEN_ROWS_BYTES_MAX it has to refuse."""
        return self.size_bytes < limits.HIDDEN_ROWS_BYTES_MAX

    def has_room_for(self, rows: RowSet) -> bool:
        """True if a leader may hide these rows, too."""
        room = limits.HIDDEN_ROWS_BYTES_MAX - self.size_bytes
        return room > 0 and (rows.size_bytes < room or (self.hidden | rows).size_bytes < limits.HIDDEN_ROWS_BYTES_MAX)

    def is_snapshot_due(self, marks_max: int = limits.MARKS_PER_SNAPSHOT_MAX) -> bool:
        """True if a leader shall write a snapshot: the marks since the last one cost more to read than it would."""
        if self.refusal or not self.is_whole:
            return False
        if self._since_marks >= marks_max:
            return True
        return self._since_bytes >= max(limits.SNAPSHOT_AFTER_BYTES, self.size_bytes)

    def snapshot(self, under: MadeUnder, marks_end: int) -> Iterator[Snapshot]:
        """Return the parts of a snapshot of all that was taken by now, the marks before `marks_end`, each of at most
        MARK_BYTES_MAX bytes. They are made as they are asked for; another thread may do so.

        In a later leader epoch, rows from `under.earlier_end` on are left out: they are others by now.
        """
        assert self.is_whole
        assert not self.refusal
        end = limits.OFFSET_MAX if under.leader_epoch == self.leader_epoch else under.earlier_end
        # Of what is hidden all reasons were committed by then: a replica need not have more to show the result.
        log_end, decided_end = min(self.log_end, end), min(self.decided_end, end)
        under = replace(
            under,
            log_end=log_end,
            decided_end=decided_end,
            limit=self.limit,
            rollups=self.rollups,
            interest=self.interest,
        )
        whole = Snapshot(under, 0, 1, tuple(self.counts), self.expired, self.hidden, self.secure, marks_end)
        return _parts(whole, end)


def _parts(whole: Snapshot, end: int) -> Iterator[Snapshot]:
    """Yield the parts of a snapshot without the rows from `end` on."""
    rows = whole.rows.between(0, end).split(_SNAPSHOT_ROOM)
    secure_rows = whole.secure_rows.between(0, end).split(_SNAPSHOT_ROOM)
    pairs = list(chain(((one, NONE) for one in rows), ((NONE, one) for one in secure_rows))) or [(NONE, NONE)]
    assert len(pairs) <= limits.SNAPSHOT_PARTS_MAX, len(pairs)
    for number, (some, secure) in enumerate(pairs):
        yield replace(whole, part=number, parts=len(pairs), rows=some, secure_rows=secure)
