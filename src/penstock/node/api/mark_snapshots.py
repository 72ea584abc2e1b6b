"""Snapshots of the marks of partitions led here, and the removal of the marks that they hold.

Rules: after many marks the leader of a partition writes a snapshot of what it has applied to the companion log, part by
part: a part is made in a disk thread, and the next one once it is committed and applied here. Other marks may stand
between the parts. A leadership that ends in between leaves a snapshot that no replica takes. Once a snapshot is whole,
the log start offset of the companion log rises to the end of the marks that the snapshot before it holds: so all that
is removed is in two snapshots that the ISR has on its disks, and a replica that begins at the new start finds one of
them behind it. Followers raise their log start as that of any log (`replication.follower`). A start after a long life
reads two snapshots at most, twice the marks that make one due (`LiveRows.is_snapshot_due`), and what was written beside
the snapshots.

    marks applied → due → part made → written, committed, applied → next part … → whole: the log start rises
                            └─ refused, or no longer led: begun anew after the next mark
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.live.marks import Snapshot, encode
from penstock.messages import AppendResponse
from penstock.metadata.companions import marks_key
from penstock.node.api.row_decisions import AppendToCompanion
from penstock.node.context import Context
from penstock.node.partition.partition import Partition
from penstock.node.replicas.replicas import Replicas
from penstock.node.step import Lane
from penstock.replication.leader import Leadership


class _Writing:
    """A snapshot under way."""

    __slots__ = ("leadership", "parts", "row")

    def __init__(self, leadership: Leadership, parts: Iterator[Snapshot]) -> None:
        self.leadership = leadership
        self.parts = parts
        self.row: tuple[bytes, bytes] | None = None  # the next part; None: the last one was written

    def make(self) -> None:
        """Make the next part, in a disk thread."""
        part = next(self.parts, None)
        self.row = None if part is None else (part.kind.encode(), encode(part))


class MarkSnapshots:
    """Snapshots of all partitions led here: one of each at a time."""

    def __init__(self, context: Context, replicas: Replicas, *, write: AppendToCompanion) -> None:
        self._context, self._outbox = context, context.outbox
        self._partitions = replicas.partitions
        self._hidden, self._upkeep = replicas.hidden_rows, replicas.log_maintenance
        self._write = write
        self._writing: dict[Partition, _Writing] = {}
        self._queue: deque[tuple[Partition, _Writing]] = deque()  # whose next parts are to be made
        self._made_now = 0  # parts that disk threads make

    def tick(self) -> None:
        """Begin the snapshots that are due, and remove marks."""
        grown = self._hidden.grown
        for key in list(grown):
            del grown[key]
            partition = self._partitions.get(key)
            if partition is None or partition.leadership is None or partition.when_idle is not None:
                continue
            if not self._remove(partition) or not self._begin(partition):
                grown[key] = None

    def _begin(self, partition: Partition) -> bool:
        """Begin a snapshot if one is due. Return False if the caller must try again."""
        writing, leadership = self._writing.get(partition), partition.leadership
        assert leadership is not None
        if writing is not None and writing.leadership is leadership:
            return True
        if not self._hidden.is_snapshot_due(partition, self._context.settings.marks_per_snapshot_max):
            return True
        if not partition.knows_hidden:
            return False
        parts = self._hidden.snapshot(partition, self._context.now)
        writing = self._writing[partition] = _Writing(leadership, parts)
        self._make(partition, writing)
        return True

    def _make(self, partition: Partition, writing: _Writing) -> None:
        self._queue.append((partition, writing))
        self._make_more()

    def _make_more(self) -> None:
        while self._queue and self._made_now < limits.SNAPSHOTS_MADE_AT_ONCE:
            partition, writing = self._queue.popleft()
            self._made_now += 1
            self._outbox.work(Lane.READ, writing.make, partial(self._made, partition, writing))

    def _made(self, partition: Partition, writing: _Writing, error: Exception | None) -> None:
        self._made_now -= 1
        self._make_more()
        if error is not None:
            partition.tell(f"the marks of what is hidden cannot be summed up: {error}", self._outbox)
        row = writing.row
        if error is not None or partition.leadership is not writing.leadership or partition.when_idle is not None:
            self._end(partition, writing)
        elif row is None:
            self._end(partition, writing)
            self._hidden.grown[partition.key] = None  # marks may be removed now
        else:
            self._write_part(partition, writing, row)

    def _write_part(self, partition: Partition, writing: _Writing, row: tuple[bytes, bytes]) -> None:
        try:
            self._write(partition, [row], partial(self._written, partition, writing))
        except RemoteError:
            self._end(partition, writing)

    def _written(self, partition: Partition, writing: _Writing, answer: AppendResponse | RemoteError) -> None:
        if isinstance(answer, RemoteError) or self._writing.get(partition) is not writing:
            self._end(partition, writing)
        else:
            self._make(partition, writing)

    def _end(self, partition: Partition, writing: _Writing) -> None:
        if self._writing.get(partition) is writing:
            del self._writing[partition]

    def _remove(self, partition: Partition) -> bool:
        """Raise the log start of the companion log. Return False if the caller must try again."""
        end = self._hidden.removable_end(partition.key)
        companion = self._partitions.get(marks_key(partition.key))
        if companion is None or companion.leadership is None or end <= companion.log.log_start:
            return True
        return self._upkeep.give_up(companion, end)
