"""Hidden rows of the partitions on this broker: the fold of each partition's marks, and the leader's new marks.

After a loss that the guarantees allow (a power loss with `durability` `os`, an unclean election) other rows may have
the offsets of hidden ones. The first mark of a later leader epoch tells them apart (`earlier_end`); until there is one,
each replica's data log does, by its leader epochs (`Log.hide`).

Rules: the committed rows of a companion log are marks (`penstock.live`), whose kind is the row's key. They are folded
in their order, on the leader and on followers alike, and the partition gets the result at once: what it shows next is
without these rows. A follower shows nothing until it has committed what the leader had committed when it made the last
mark: before, it would hide a message of a key and not show yet the later one that is the reason. A mark that is not
understood, or is no mark, makes the replica refuse reads: it could hide rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.live.live_rows import LiveRows
from penstock.live.marks import HideReason, HideRows, MadeUnder, UnknownMarkError, decode, encode
from penstock.live.row_set import RowSet
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import CompanionRow

Rows = list[tuple[bytes, bytes | None]]
"""Keys and values of a companion log's rows."""


class HiddenRows:
    """The consumer of all companion logs of one broker."""

    def __init__(self, partitions: Mapping[PartitionKey, Partition]) -> None:
        self._partitions = partitions
        self._folds: dict[PartitionKey, LiveRows] = {}
        self._ends: dict[PartitionKey, int] = {}  # end offsets of the folded marks

    # Consumer of companion logs

    def take(self, key: PartitionKey, rows: Sequence[CompanionRow], end: int) -> None:
        """Fold the next committed marks of a partition."""
        fold = self._folds.setdefault(key, LiveRows())
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
        self._ends[key] = end
        self._show(key, fold)

    def reset(self, key: PartitionKey) -> None:
        """Forget a partition's marks: its companion log was cut, or has gone; the first mark comes next."""
        self._folds.pop(key, None)
        self._ends.pop(key, None)
        if (partition := self._partitions.get(key)) is not None:
            partition.folded_end = 0

    def opened(self, partition: Partition) -> None:
        """Hide the rows of a log that was opened, possibly after its companion log."""
        if (fold := self._folds.get(partition.key)) is not None:
            self._show(partition.key, fold)

    def start_raised(self, partition: Partition) -> None:
        """Forget what was hidden below the log start offset."""
        if (fold := self._folds.get(partition.key)) is not None:
            fold.start_raised(partition.log.log_start)
            self._show(partition.key, fold)

    def _show(self, key: PartitionKey, fold: LiveRows) -> None:
        if (partition := self._partitions.get(key)) is not None:
            partition.hide(
                fold.hidden,
                fold.secure,
                marked_epoch=fold.leader_epoch,
                refusal=fold.refusal,
                folded_end=self._ends.get(key, 0),
                log_end=fold.log_end,
            )

    # New marks

    def marks(self, partition: Partition, named: RowSet, reason: HideReason, user: str, now: Now) -> Rows:
        """Return the rows for the companion log that hide the rows at these offsets.

        RemoteError overloaded: too many scattered rows are hidden already.
        """
        fold = self._folds.get(partition.key)
        if fold is not None and not fold.has_room:
            text = f"nothing was hidden: {fold.hidden.count} scattered messages of {partition.label} are hidden, and"
            more = f"their offsets take {limits.HIDDEN_ROWS_BYTES_MAX} bytes of memory; purge the beginning of the log"
            raise RemoteError(ErrorCode.OVERLOADED, f"{text} {more}")
        under = self._under(partition, named, now)
        hidden = HideRows(under, reason, named, user=user)
        rows: Rows = [(one.kind.encode(), encode(one)) for one in hidden.split()]
        if fold is not None and fold.is_snapshot_due:
            rows = [*((one.kind.encode(), encode(one)) for one in fold.snapshot(under)), *rows]
        return rows

    def _under(self, partition: Partition, named: RowSet, now: Now) -> MadeUnder:
        leadership, fold = partition.leadership, self._folds.get(partition.key)
        assert leadership is not None
        earlier_end = limits.OFFSET_MAX
        if fold is not None and fold.leader_epoch != leadership.leader_epoch:
            earlier_end = partition.log.epoch_end(fold.leader_epoch).start_offset
        return MadeUnder(
            leader_epoch=leadership.leader_epoch,
            log_end=max(partition.committed_end, named.end, 0 if fold is None else fold.hidden.end),
            earlier_end=earlier_end,
            at_us=now.wall_us,
        )

    def has(self, partition: Partition, offset: int) -> bool:
        """True if the row at an offset is hidden."""
        return partition.log.hidden is not None and offset in partition.log.hidden
