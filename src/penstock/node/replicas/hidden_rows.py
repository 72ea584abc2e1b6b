"""Hidden rows of the partitions on this broker: the fold of each partition's marks, and the leader's new marks.

After a loss that the guarantees allow (a power loss with `durability` `os`, an unclean election) other rows may have
the offsets of hidden ones. The first mark of a later leader epoch tells them apart (`earlier_end`); until there is one,
each replica's data log does, by its leader epochs (`Log.hide`).

Rules: the committed rows of a companion log are marks (`penstock.live`), whose kind is the row's key. They are folded
in their order, on the leader and on followers alike, and the partition gets the result at once: what it shows next is
without these rows. A mark that is not understood, or is no mark, makes the replica refuse reads: it could hide rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.live.live_rows import LiveRows
from penstock.live.marks import HideReason, HideRows, MadeUnder, UnknownMarkError, decode, encode
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import CompanionRow
from penstock.node.replicas.staged_retention import StagedRetention

Rows = list[tuple[bytes, bytes | None]]
"""Keys and values of a companion log's rows."""


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
        touch: Callable[[Partition], None],
        staged: StagedRetention,
    ) -> None:
        self._staged = staged
        self._partitions = partitions
        self._touch = touch
        self._folds: dict[PartitionKey, LiveRows] = {}
        self._owed: dict[PartitionKey, _Owed] = {}

    # Consumer of companion logs

    def take(self, key: PartitionKey, rows: Sequence[CompanionRow], end: int) -> None:
        """Fold the next committed marks of a partition."""
        fold, owed = self._folds.setdefault(key, LiveRows()), self._owed.setdefault(key, _Owed())
        secure = fold.secure
        for row in rows:
            value = row.value or b""
            try:
                mark = decode((row.key or b"").decode("utf-8", "replace"), value)
            except UnknownMarkError as error:
                fold.take_unknown(error)
            except CorruptionError as error:
                fold.take_unknown(UnknownMarkError(f"the mark at offset {row.offset} is none: {error}"))
            else:
                fold.take(mark, len(value))
        owed.end = end
        if fold.secure and fold.secure is not secure:
            owed.add(end, fold.secure)
        self._show(key, fold)

    def reset(self, key: PartitionKey) -> None:
        """Forget a partition's marks: its companion log was cut, or has gone; the first mark comes next."""
        self._folds.pop(key, None)
        self._owed.pop(key, None)

    def opened(self, partition: Partition) -> None:
        """Hide the rows of a log that was opened, possibly after its companion log."""
        if (fold := self._folds.get(partition.key)) is not None:
            if fold.secure:  # its files may be others: from a repair
                owed = self._owed[partition.key]
                owed.erased_end = 0
                owed.add(owed.end, fold.secure)
            self._show(partition.key, fold)

    def start_raised(self, partition: Partition) -> None:
        """Forget what was hidden below the log start offset."""
        if (fold := self._folds.get(partition.key)) is not None:
            fold.start_raised(partition.log.log_start, partition.log.files_start)
            self._show(partition.key, fold)

    def _show(self, key: PartitionKey, fold: LiveRows) -> None:
        if (partition := self._partitions.get(key)) is not None:
            partition.hide(fold.hidden, fold.secure, marked_epoch=fold.leader_epoch, refusal=fold.refusal)
            if fold.secure:
                self._touch(partition)

    # Erasing

    def erasure(self, partition: Partition) -> Erasure:
        """Return how far the secure rows of a partition are erased on this broker."""
        if (owed := self._owed.get(partition.key)) is None:
            return Erasure(0, 0, "it does not know yet what to erase" if partition.stream.has_companion else "")
        while owed.steps:
            step = owed.steps[0]
            if (left := partition.log.unerased(step.rows)) is not None:
                all_left = partition.log.unerased(owed.steps[-1].rows) or left
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
        if fold is not None and not fold.has_room:
            text = f"nothing was deleted: {fold.hidden.count} scattered messages of {partition.label} are deleted, and"
            more = f"their offsets take {limits.HIDDEN_ROWS_BYTES_MAX} bytes of memory; purge the beginning of the log"
            raise RemoteError(ErrorCode.OVERLOADED, f"{text} {more}")
        under = self._under(partition, now)
        hidden = HideRows(under, reason, named, is_secure=is_secure, user=user)
        rows: Rows = [(one.kind.encode(), encode(one)) for one in hidden.split()]
        if fold is not None and fold.is_snapshot_due:
            rows = [*((one.kind.encode(), encode(one)) for one in fold.snapshot(under)), *rows]
        return rows

    def _under(self, partition: Partition, now: Now) -> MadeUnder:
        leadership, fold = partition.leadership, self._folds.get(partition.key)
        assert leadership is not None
        earlier_end = limits.OFFSET_MAX
        if fold is not None and fold.leader_epoch != leadership.leader_epoch:
            earlier_end = partition.log.epoch_end(fold.leader_epoch).start_offset
        return MadeUnder(
            leader_epoch=leadership.leader_epoch,
            log_end=partition.log.log_end,
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
        return fold is not None and (rows | fold.secure).count == fold.secure.count

    def has(self, partition: Partition, offset: int) -> bool:
        """True if the row at an offset is hidden."""
        return partition.log.hidden is not None and offset in partition.log.hidden
