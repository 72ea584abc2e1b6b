"""Hidden rows of the partitions on this broker: the fold of each partition's marks, and the leader's new marks.

After a loss that the guarantees allow (a power loss with `durability` `os`, an unclean election) other rows may have
the offsets of hidden ones. The first mark of a later leader epoch tells them apart (`earlier_end`); until there is one,
each replica's data log does, by its leader epochs (`Log.hide`).

Rules: the committed rows of a companion log are marks (`penstock.live`), whose kind is the row's key. They are folded
in their order, on the leader and on followers alike, and the partition gets the result at once: what it shows next is
without these rows. A follower shows nothing until it has committed what the leader had committed when it made the last
mark: before, it would hide a message of a key and not show yet the later one that is the reason. A mark that is not
understood, or is no mark, makes the replica refuse reads: it could hide rows.

A mark of a limit by subject hides rows because of later ones, up to its `decided_end`. Where these are not known to be
committed yet, as on a follower whose data log is behind, the result waits for them: a subject whose last message is not
shown yet must not lose the one before. Of those that wait, the first one and the newest are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.live.live_rows import LiveRows
from penstock.live.marks import Decided, HideReason, HideRows, MadeUnder, Mark, UnknownMarkError, decode, encode
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
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
            self.end, live.hidden, live.secure, live.leader_epoch, live.decided_end, live.limit, live.log_end, others
        )


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

    # Consumer of companion logs

    def take(self, key: PartitionKey, rows: Sequence[CompanionRow], end: int) -> None:
        """Fold the next committed marks of a partition."""
        fold, owed = self._folds.setdefault(key, _Fold()), self._owed.setdefault(key, _Owed())
        live, fold.end = fold.live, end
        secure = live.secure
        for row in rows:
            value = row.value or b""
            try:
                mark = decode((row.key or b"").decode("utf-8", "replace"), value)
            except UnknownMarkError as error:
                live.take_unknown(error)
            except CorruptionError as error:
                live.take_unknown(UnknownMarkError(f"the mark at offset {row.offset} is none: {error}"))
            else:
                live.take(mark, len(value))
        owed.end = end
        if live.secure and live.secure is not secure:
            owed.add(end, live.secure)
        self._show(key, fold)

    def reset(self, key: PartitionKey) -> None:
        """Forget a partition's marks: its companion log was cut, or has gone; the first mark comes next."""
        self._folds.pop(key, None)
        self._owed.pop(key, None)
        if (partition := self._partitions.get(key)) is not None:
            partition.shown_marks = partition.known_marks = 0

    def opened(self, partition: Partition) -> None:
        """Hide the rows of a log that was opened, possibly after its companion log."""
        if (fold := self._folds.get(partition.key)) is not None:
            if fold.live.secure:  # its files may be others: from a repair
                owed = self._owed[partition.key]
                owed.erased_end = 0
                owed.add(owed.end, fold.live.secure)
            self._show(partition.key, fold)

    def start_raised(self, partition: Partition) -> None:
        """Forget what was hidden below the log start offset."""
        if (fold := self._folds.get(partition.key)) is not None:
            fold.live.start_raised(partition.log.log_start, partition.log.files_start)
            self._show(partition.key, fold)

    def committed(self, partition: Partition) -> None:
        """Show what has waited for rows that are committed now, or are known to be lost as this broker leads."""
        if (fold := self._folds.get(partition.key)) is not None and fold.waiting:
            self._show_waiting(partition, fold)

    def _show(self, key: PartitionKey, fold: _Fold) -> None:
        if (partition := self._partitions.get(key)) is None:
            return
        partition.known_marks = fold.end
        fold.waiting[1:] = [fold.result()]
        self._show_waiting(partition, fold)

    def _show_waiting(self, partition: Partition, fold: _Fold) -> None:
        live, log = fold.live, partition.log
        while fold.waiting:
            result = fold.waiting[0]
            decided_end = min(result.decided_end, log.marked_end(result.leader_epoch))
            leadership = partition.leadership
            if leadership is not None and leadership.leader_epoch > result.leader_epoch:
                # What was behind is lost, also while this log, without a message of the epoch, does not say so.
                decided_end = min(decided_end, leadership.epoch_start)
            if decided_end > partition.committed_end and not live.refusal:
                break
            del fold.waiting[0]
            partition.shown_marks = result.marks_end
            partition.hide(
                result.hidden,
                result.secure,
                marked_epoch=result.leader_epoch,
                refusal=live.refusal,
                decided_end=result.decided_end,
                limit=result.limit,
                keeps_lasts=result.others == fold.others,
                log_end=result.log_end,
            )
            fold.others = result.others
            if result.secure or partition.pushed_out is not None:
                self._touch(partition)
        if partition.is_limited:
            self._events.add(PartitionEventKind.SHOWN, partition)

    # Erasing

    def has_marks(self, partition: Partition) -> bool:
        """True if marks of the partition are known here: without any, nothing is known to be erased."""
        return partition.key in self._owed

    def erasure(self, partition: Partition) -> Erasure:
        """Return how far the secure rows of a partition are erased on this broker."""
        if (owed := self._owed.get(partition.key)) is None:
            return Erasure(0, 0, "it does not know yet what to erase" if partition.stream.has_companion else "")
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
        self, partition: Partition, named: RowSet, reason: HideReason, user: str, now: Now, *, is_secure: bool = False
    ) -> Rows:
        """Return the rows for the companion log that hide the rows at these offsets.

        RemoteError overloaded: too many scattered rows are hidden already.
        """
        fold = self._folds.get(partition.key)
        if fold is not None and not fold.live.has_room:
            raise RemoteError(ErrorCode.OVERLOADED, f"nothing was hidden: {self._no_room(partition, fold)}")
        under = self._under(partition, named, now)
        hidden = HideRows(under, reason, named, is_secure=is_secure, user=user)
        marks = hidden.split()
        if (pushed := partition.pushed_out) is not None:
            # Fewer messages are left now than the limit keeps: the next leader must not show these in their place.
            marks = chain((HideRows(under, HideReason.LIMIT, RowSet.of_runs([pushed])),), marks)
        return self._rows(fold, under, marks)

    def decision(self, partition: Partition, hidden: RowSet, decided_end: int, limit: int, now: Now) -> Rows:
        """Return the rows that hide what a limit by subject does not allow, before and by the rows at `decided_end`.

        RemoteError overloaded: as `marks`.
        """
        fold = self._folds.get(partition.key)
        if hidden and fold is not None and not fold.live.has_room:
            text = f"a limit of {limit} messages of each subject cannot be kept, and later messages are not shown"
            raise RemoteError(ErrorCode.OVERLOADED, f"{text}: {self._no_room(partition, fold)}")
        # What is committed later says nothing about these rows: a follower need not have it to show the result.
        under = replace(self._under(partition, hidden, now), log_end=decided_end, decided_end=decided_end, limit=limit)
        mark = HideRows(under, HideReason.LIMIT, hidden) if hidden else Decided(under)
        return self._rows(fold, under, (mark,))

    def decided(self, partition: Partition, limit: int) -> int:
        """Return up to where the messages of a partition led here are decided on by that limit, or a stricter one.

        0 if by none: it is decided anew.
        """
        fold = self._folds.get(partition.key)
        if fold is None or not 0 < fold.live.limit <= limit:
            return 0
        return min(fold.live.decided_end, partition.log.marked_end(fold.live.leader_epoch))

    def has_others(self, partition: Partition) -> bool:
        """True if rows were hidden that no limit by subject hides."""
        fold = self._folds.get(partition.key)
        return fold is not None and fold.result().others > 0

    def _no_room(self, partition: Partition, fold: _Fold) -> str:
        text = f"{fold.live.hidden.count} scattered messages of {partition.label} are hidden, and their offsets take"
        return f"{text} {limits.HIDDEN_ROWS_BYTES_MAX} bytes of memory; purge the beginning of the log"

    def _rows(self, fold: _Fold | None, under: MadeUnder, marks: Iterable[Mark]) -> Rows:
        parts = fold.live.snapshot(under) if fold is not None and fold.live.is_snapshot_due else ()
        return [(one.kind.encode(), encode(one)) for one in chain(parts, marks)]

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
        return fold is not None and (rows | fold.live.secure).count == fold.live.secure.count

    def has(self, partition: Partition, offset: int) -> bool:
        """True if the row at an offset is hidden."""
        return partition.log.hidden is not None and offset in partition.log.hidden
