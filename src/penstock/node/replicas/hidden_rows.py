"""Hidden rows of the partitions on this broker: the fold of each partition's marks, and the leader's new marks.

After a loss that the guarantees allow (a power loss with `durability` `os`, an unclean election) other rows may have
the offsets of hidden ones. The first mark of a later leader epoch tells them apart (`earlier_end`); until there is one,
each replica's data log does, by its leader epochs (`Log.hide`).

Rules: the committed rows of a companion log are marks (`penstock.live`), whose kind is the row's key. They are folded
in their order, in a disk thread, on the leader and on followers alike, and the partition gets the result at once: what
it shows next is without these rows. A follower shows nothing until it has committed what the leader had committed when
it made the last mark: before, it would hide a message of a key and not show yet the later one that is the reason. A
mark that is not understood, or is no mark, makes the replica refuse reads: it could hide rows.

A decision, by a limit by subject or a rollup, hides rows because of later ones, up to its `decided_end`. Where these
are not known to be committed yet, as on a follower whose data log is behind, the result waits for them: a subject whose
last message is not shown yet must not lose the one before. Of those that wait, the first one and the newest are kept.

Where the first marks were removed from the companion log, the fold begins with later ones. Nothing of it is shown, and
nothing told as erased, until a snapshot has given it the marks that it lacks (`LiveRows.is_whole`). An unclean election
may lose that snapshot, too: a leader that has read all that is left goes on without these marks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.live.live_rows import LiveRows
from penstock.live.marks import (
    Decided,
    HideReason,
    HideRows,
    MadeUnder,
    Mark,
    Snapshot,
    UnknownMarkError,
    decode,
    encode,
)
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.partition.visible_rows import AppliedMarks
from penstock.node.replicas.companions import CompanionRow
from penstock.node.replicas.staged_retention import StagedRetention

Rows = list[tuple[bytes, bytes | None]]
"""Keys and values of a companion log's rows."""

_LIMIT = tuple(HideReason).index(HideReason.LIMIT)


class _Result(NamedTuple):
    """Result of the marks before `marks_end`, an offset of the companion log."""

    marks_end: int
    hidden: RowSet
    secure: RowSet
    leader_epoch: int
    decided_end: int
    limit: int
    log_end: int  # up to which the data log has to be committed beside them
    others: int  # rows that were hidden, but not by a limit: any of them may be the last one of its subject
    was_narrower: bool  # see `LiveRows`


@dataclass(slots=True)
class _Fold:
    """The marks of one partition."""

    live: LiveRows = field(default_factory=LiveRows)
    end: int = 0  # all rows of the companion log before it were taken
    waiting: list[_Result] = field(default_factory=list)  # for rows to be committed here: the first one and the newest
    others: int = 0  # of the result that is shown

    def result(self) -> _Result:
        live = self.live
        others = sum(live.counts) - live.counts[_LIMIT]
        return _Result(
            self.end, live.hidden, live.secure, live.leader_epoch, live.decided_end, live.limit, live.log_end, others,
            live.was_narrower,
        )  # fmt: skip


class Decision(NamedTuple):
    """A leader's decision on the rows before `end`: by a limit by subject (0: none), rollups and interest or not."""

    end: int
    hidden: RowSet
    pieces: Sequence[RowSet]  # the same, split for marks
    limit: int
    rollups: bool
    is_rollup: bool  # a rollup hides more of these rows than the limit
    interest: bool = False
    is_unwanted: bool = False  # no consumer wants some of these rows


class Erasure(NamedTuple):
    """State of the erasing of a partition's secure rows on this broker: of all that marks below `erased_end` in the
    companion log name nothing is left. Of the others, files may hold `messages`; `waits_for`: why.
    """

    erased_end: int
    messages: int = 0
    waits_for: str = ""


@dataclass(slots=True, eq=False)
class _Step:
    """Secure rows, and the end of the marks that name them."""

    end: int
    rows: RowSet
    staged_end: int | None = None  # of the rows that were staged for the partition by then; None: not looked up yet


class _Owed:
    """Secure rows that are not erased yet, as the fold had them one after the other."""

    __slots__ = ("end", "erased_end", "steps")

    def __init__(self) -> None:
        self.end = 0  # of the companion log, as far as it is folded
        self.erased_end = 0
        self.steps: deque[_Step] = deque()

    def add(self, end: int, rows: RowSet) -> None:
        """Add a step; with too many of them, the last two become one."""
        if len(self.steps) >= limits.ERASURE_STEPS_MAX:
            self.steps.pop()
        self.steps.append(_Step(end, rows))


def _folded(live: LiveRows, rows: Sequence[CompanionRow]) -> LiveRows:
    for row in rows:
        value = row.value or b""
        try:
            mark = decode((row.key or b"").decode("utf-8", "replace"), value)
        except UnknownMarkError as error:
            live.take_unknown(error, row.offset)
        except CorruptionError as error:
            live.take_unknown(UnknownMarkError(f"the mark at offset {row.offset} is none: {error}"), row.offset)
        else:
            live.take(mark, len(value))
    return live


class HiddenRows:
    """The consumer of all companion logs of one broker. `touch` has the files of a partition looked after; `staged`:
    rows that are staged for the partitions here.
    """

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        events: PartitionEvents,
        touch: Callable[[Partition], None],
        staged: StagedRetention,
    ) -> None:
        self._staged = staged
        self._partitions = partitions
        self._events = events
        self._touch = touch
        self._folds: dict[PartitionKey, _Fold] = {}
        self._owed: dict[PartitionKey, _Owed] = {}
        self.grown: dict[PartitionKey, None] = {}  # partitions with new marks; `MarkSnapshots` empties it

    # Consumer of companion logs

    def applying(self, key: PartitionKey) -> Callable[[Sequence[CompanionRow]], LiveRows]:
        """Return what folds the next committed marks of a partition, in a disk thread, for `take`."""
        fold = self._folds.get(key)
        return partial(_folded, LiveRows() if fold is None else fold.live.copy())

    def take(self, key: PartitionKey, live: LiveRows, end: int) -> None:
        """Take the fold of the committed marks of a partition up to `end`."""
        fold = self._folds.setdefault(key, _Fold())
        before = fold.live
        live.start_raised(before.log_start, before.files_start)  # it may have risen meanwhile
        fold.live, fold.end = live, end
        self._accept_loss(key, fold)
        if live.is_whole:
            owed = self._owed.setdefault(key, _Owed())
            owed.end = end
            if live.secure and not (before.is_whole and live.secure is before.secure):
                owed.add(end, live.secure)
        self.grown[key] = None
        self._show(key, fold)

    def reset(self, key: PartitionKey, begin: int) -> None:
        """Forget a partition's marks: its companion log was cut, begins later, or has gone; the mark at offset `begin`
        comes next.
        """
        self._folds.pop(key, None)
        self._owed.pop(key, None)
        if begin:
            self._folds[key] = _Fold(LiveRows(begin), begin)
        if (partition := self._partitions.get(key)) is not None:
            partition.visible.shown_marks, partition.visible.known_marks = 0, begin

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition's marks: its companion log has gone from this broker."""
        self.reset(key, 0)
        self.grown.pop(key, None)

    def opened(self, partition: Partition) -> None:
        """Hide the rows of a log that was opened, possibly after its companion log."""
        if (fold := self._folds.get(partition.key)) is not None:
            owed = self._owed.get(partition.key)
            if fold.live.secure and owed is not None:  # its files may be others: from a repair
                owed.erased_end = 0
                owed.add(owed.end, fold.live.secure)
            self._show(partition.key, fold)

    def start_raised(self, partition: Partition) -> None:
        """Forget what was hidden below the log start offset."""
        if (fold := self._folds.get(partition.key)) is not None:
            fold.live.start_raised(partition.log.log_start, partition.log.files_start)
            self._show(partition.key, fold)

    def committed(self, partition: Partition) -> None:
        """Show what has waited for rows that are committed now, or are known to be lost."""
        fold = self._folds.get(partition.key)
        if fold is not None and self._accept_loss(partition.key, fold):
            self._owed.setdefault(partition.key, _Owed()).end = fold.end
            self._show(partition.key, fold)
        elif fold is not None and fold.waiting:
            self._show_waiting(partition, fold)

    def _accept_loss(self, key: PartitionKey, fold: _Fold) -> bool:
        """Go on without marks that no replica of the ISR has. Return True if it lacked some until now."""
        partition = self._partitions.get(key)
        leadership = None if partition is None else partition.leadership
        marks = None if leadership is None else leadership.marks
        if fold.live.is_whole or fold.live.refusal or marks is None or not marks.knows_latest:
            return False
        if fold.end < marks.epoch_start:
            return False  # it is being read
        fold.live.accept_loss()
        self.grown[key] = None
        return True

    def _show(self, key: PartitionKey, fold: _Fold) -> None:
        if (partition := self._partitions.get(key)) is None:
            return
        partition.visible.known_marks = fold.end
        if fold.live.is_whole:
            fold.waiting[1:] = [fold.result()]
            self._show_waiting(partition, fold)

    def _show_waiting(self, partition: Partition, fold: _Fold) -> None:
        live = fold.live
        while fold.waiting:
            result = fold.waiting[0]
            decided_end = min(result.decided_end, partition.marked_end(result.leader_epoch))
            if decided_end > partition.committed_end and not live.refusal:
                break
            del fold.waiting[0]
            partition.visible.shown_marks = result.marks_end
            was_decided = partition.is_sealed_decided
            # What came after its erasure is blank, and hidden already, though the result of that mark waits.
            hidden = result.hidden | live.secure if fold.waiting else result.hidden
            marks = AppliedMarks(
                hidden,
                result.secure,
                result.leader_epoch,
                live.refusal,
                result.decided_end,
                result.limit,
                hides_others=result.others > 0 or result.was_narrower,
                log_end=result.log_end,
            )
            partition.hide(marks, keeps_lasts=result.others == fold.others)
            fold.others = result.others
            may_survey = partition.is_sealed_decided and not was_decided  # the cleaner has waited for that
            if result.secure or partition.pushed_out is not None or may_survey:
                self._touch(partition)
        if partition.needs_decisions:
            self._events.add(PartitionEventKind.SHOWN, partition)

    # Erasing

    def has_marks(self, partition: Partition) -> bool:
        """True if marks of the partition are known here: without any, nothing is known to be erased."""
        return partition.key in self._owed

    def erasure(self, partition: Partition) -> Erasure:
        """Return how far the secure rows of a partition are erased on this broker."""
        if (owed := self._owed.get(partition.key)) is None:
            return Erasure(0, 0, "it does not know yet what to erase" if partition.stream.has_marks else "")
        while owed.steps:
            step = owed.steps[0]
            # A leader lacks nothing: what marks name behind its log was lost.
            end = limits.OFFSET_MAX if partition.leadership is None else partition.log.log_end
            if (left := partition.log.unerased(step.rows.between(0, end))) is not None:
                all_left = partition.log.unerased(owed.steps[-1].rows.between(0, end)) or left
                return Erasure(owed.erased_end, all_left.rows, left.waits_for)
            if waits_for := self._copies(partition, step):
                return Erasure(owed.erased_end, 0, waits_for)
            owed.steps.popleft()
            owed.erased_end = step.end
        owed.erased_end = owed.end
        return Erasure(owed.erased_end)

    def _copies(self, partition: Partition, step: _Step) -> str:
        """Return what it waits for that no staged copy of the rows is left here; empty if none is."""
        try:
            copies = self._staged.copies(partition.key)
        except KeyError:
            return "the log of rows staged for exactly-once writes, which may hold copies, is being opened"
        if copies is None:
            return ""
        if step.staged_end is None:
            step.staged_end = copies.log.log_end
        if copies.log.files_start >= step.staged_end and copies.log.unerased(NONE) is None:
            return ""
        self._staged.hasten(copies, step.staged_end)
        minutes = limits.STAGED_KEEP_MS // 60_000
        text = f"rows staged for exactly-once writes may be copies: they go {minutes} minutes after they are published"
        return f"{text}, or a day after they were staged"

    # New marks

    def marks(
        self,
        partition: Partition,
        pieces: Sequence[RowSet],
        reason: HideReason,
        user: str,
        now: Now,
        *,
        is_secure: bool = False,
    ) -> Rows:
        """Return the rows for the companion log that hide the rows at these offsets, which were split for marks.

        RemoteError overloaded: too many scattered rows are hidden already; not_yet: the marks are being read.
        """
        fold = self._whole_fold(partition)
        if fold is not None and not fold.live.has_room:
            raise RemoteError(ErrorCode.OVERLOADED, f"nothing was hidden: {self._no_room(partition, fold)}")
        under = self._under(partition, pieces[-1], now)
        marks: Iterable[Mark] = (HideRows(under, reason, one, is_secure=is_secure, user=user) for one in pieces)
        if (pushed := partition.pushed_out) is not None:
            # Fewer messages are left now than the limit keeps: the next leader must not show these in their place.
            marks = chain((HideRows(under, HideReason.LIMIT, RowSet.of_runs([pushed])),), marks)
        return _rows(marks)

    def decision(self, partition: Partition, decided: Decision, now: Now) -> Rows:
        """Return the rows that hide what a decision found, and say up to where it goes.

        RemoteError overloaded: as `marks`.
        """
        fold, hidden = self._whole_fold(partition) or _Fold(), decided.hidden
        if hidden and not fold.live.has_room_for(hidden):
            text = "a limit by subject or a rollup cannot take effect, and later messages are not shown"
            raise RemoteError(ErrorCode.OVERLOADED, f"{text}: {self._no_room(partition, fold)}")
        # What is committed later says nothing about these rows: a follower need not have it to show the result.
        under = replace(self._under(partition, hidden, now), log_end=max(decided.end, hidden.end))
        last = replace(
            under,
            decided_end=decided.end,
            limit=decided.limit,
            rollups=decided.rollups,
            interest=decided.interest,
        )
        # A stream that no longer drops what is unwanted says so: what comes from now on stays if it does so again.
        end: tuple[Mark, ...] = (Decided(last),) if fold.live.interest and not decided.interest else ()
        if not hidden:
            return _rows((Decided(last),))
        # A reason that is no limit says that some of these rows may be the last ones of their subjects.
        others = HideReason.ROLLUP if decided.is_rollup else HideReason.UNWANTED
        reason = others if decided.is_rollup or decided.is_unwanted else HideReason.LIMIT
        marks = [HideRows(under, reason, one) for one in decided.pieces]
        # The newest rows are hidden together with the end up to which is decided: no subject loses its last message.
        marks[-1] = replace(marks[-1], under=last)
        return _rows((*marks, *end))

    def end_of_interest(self, partition: Partition, now: Now) -> Rows:
        """Return the row that says that what no consumer wants is shown from now on. RemoteError as `marks`."""
        self._whole_fold(partition)
        return _rows((Decided(self._under(partition, NONE, now)),))

    def is_snapshot_due(self, partition: Partition, marks_max: int) -> bool:
        """True if a snapshot of a partition's marks shall be written, after `marks_max` of them at the latest."""
        fold = self._folds.get(partition.key)
        return fold is not None and fold.live.is_snapshot_due(marks_max)

    def snapshot(self, partition: Partition, now: Now) -> Iterator[Snapshot]:
        """Return the parts of a snapshot of what is applied now; any thread may have them made."""
        fold = self._folds[partition.key]
        return fold.live.snapshot(self._under(partition, NONE, now), fold.end)

    def removable_end(self, key: PartitionKey) -> int:
        """Return the end of the marks, in the companion log, that two committed snapshots hold."""
        fold = self._folds.get(key)
        return 0 if fold is None else fold.live.removable_end

    def decided(self, partition: Partition, limit: int, *, rollups: bool) -> int:
        """Return up to where the messages of a partition led here are decided on by these rules, or stricter ones.

        0 if by none: all is decided anew.
        """
        fold = self._folds.get(partition.key)
        if fold is None or not fold.live.covers(limit, rollups=rollups):
            return 0
        return min(fold.live.decided_end, partition.log.marked_end(fold.live.leader_epoch))

    def has_rollups(self, partition: Partition) -> bool:
        """True if rollups have been decided on in this partition."""
        fold = self._folds.get(partition.key)
        return fold is not None and fold.live.rollups

    def has_interest(self, partition: Partition) -> bool:
        """True if what no consumer wanted has been hidden in this partition until now."""
        fold = self._folds.get(partition.key)
        return fold is not None and fold.live.interest

    def has_others(self, partition: Partition) -> bool:
        """True if rows were hidden that no limit by subject hides."""
        fold = self._folds.get(partition.key)
        return fold is not None and fold.result().others > 0

    def _no_room(self, partition: Partition, fold: _Fold) -> str:
        text = f"{fold.live.hidden.count} scattered messages of {partition.label} are hidden, and their offsets take"
        return f"{text} {limits.HIDDEN_ROWS_BYTES_MAX} bytes of memory; purge the beginning of the log"

    def _whole_fold(self, partition: Partition) -> _Fold | None:
        """Return the fold of all marks of earlier leaders: a mark made without some of them would cut off their rows.

        RemoteError not_yet: they are being read.
        """
        fold = self._folds.get(partition.key)
        if not partition.knows_hidden or (fold is not None and not fold.live.is_whole):
            text = f"what is hidden in {partition.label} is being read; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was hidden: {text}")
        return fold

    def _under(self, partition: Partition, named: RowSet, now: Now) -> MadeUnder:
        leadership, fold = partition.leadership, self._folds.get(partition.key)
        assert leadership is not None
        earlier_end = limits.OFFSET_MAX
        if fold is not None and fold.live.leader_epoch != leadership.leader_epoch:
            earlier_end = partition.log.epoch_end(fold.live.leader_epoch).start_offset
        return MadeUnder(
            leader_epoch=leadership.leader_epoch,
            log_end=max(partition.committed_end, named.end, 0 if fold is None else fold.live.hidden.end),
            earlier_end=earlier_end,
            at_us=now.wall_us,
        )

    def marks_end(self, partition: Partition) -> int:
        """Return up to which offset of its companion log the marks of a partition are applied."""
        owed = self._owed.get(partition.key)
        return 0 if owed is None else owed.end

    def are_secure(self, partition: Partition, rows: RowSet) -> bool:
        """True if the rows are among those to be erased at once."""
        fold = self._folds.get(partition.key)
        return fold is not None and rows.is_within(fold.live.secure)

    def has(self, partition: Partition, offset: int) -> bool:
        """True if the row at an offset is hidden."""
        return partition.log.hidden is not None and offset in partition.log.hidden


def _rows(marks: Iterable[Mark]) -> Rows:
    return [(one.kind.encode(), encode(one)) for one in marks]
