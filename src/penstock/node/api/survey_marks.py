"""Hides what the surveys of led logs find, by marks: rows that compaction or expiry removes, on all replicas alike.

Rules: the cleaner of a partition's leader finds rows that go (`Log.found`, `commitlog.Deciding`), and this part writes
marks for them to the companion log, which the first such marks of a stream have created. One mark is under way for a
partition, and the next one is made once it is committed and applied here; so a large pass takes its turn with other
marks, and a leadership that ends leaves only whole marks, each of which is right by itself: it names committed rows
that a later committed row replaces, or that have expired. The next leader surveys anew. Segments change later: each
replica's `Eraser` follows the marks.

    found → companion log there → piece marked → committed, applied → next piece … → decided: the pass ends
                                        └─ refused: decided, not hidden; surveyed again after a growing wait
"""

from __future__ import annotations

from collections import deque
from functools import partial

from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import FoundHidden, Survey
from penstock.live.marks import HideReason
from penstock.live.row_set import RowSet
from penstock.messages import AddCompanionRequest, AppendResponse, Response
from penstock.node.api.internal_log import Rows
from penstock.node.api.row_decisions import AppendToCompanion
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.replicas.hidden_rows import HiddenRows
from penstock.replication.leader import Leadership


class _Pending:
    """Rows that one survey has found, and the pieces of them that are not marked yet."""

    __slots__ = ("found", "is_writing", "leadership", "pieces", "rows")

    def __init__(self, found: FoundHidden, leadership: Leadership) -> None:
        self.found = found
        self.leadership = leadership
        self.pieces: deque[RowSet] = deque(found.pieces)
        self.rows: deque[tuple[bytes, bytes | None]] = deque()  # marks of the present piece; a snapshot may come first
        self.is_writing = False

    @property
    def reason(self) -> HideReason:
        return HideReason.COMPACTION if isinstance(self.found.survey, Survey) else HideReason.EXPIRY


class SurveyMarks:
    """Marks for what surveys have found; one survey of each partition led here at most."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        hidden: HiddenRows,
        upkeep: LogMaintenance,
        *,
        write: AppendToCompanion,
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._cluster = cluster
        self._hidden = hidden
        self._upkeep = upkeep
        self._write = write
        self._pending: dict[Partition, _Pending] = {}

    def surveyed(self, partition: Partition) -> None:
        """Begin to hide what a survey of this log has found."""
        found, leadership = partition.log.found, partition.leadership
        if found is None:
            return
        if leadership is None:
            self._decided(partition, found, "this broker leads it no more")
            return
        self._pending[partition] = _Pending(found, leadership)
        self._go_on(partition)

    def tick(self) -> None:
        """Go on with what waits for a companion log."""
        for partition in list(self._pending):
            self._go_on(partition)

    def ended(self, partition: Partition) -> None:
        """Drop what was found in a partition that is no longer led here, or is gone."""
        if (pending := self._pending.pop(partition, None)) is not None and partition.when_idle is None:
            self._decided(partition, pending.found, "")

    def _go_on(self, partition: Partition) -> None:
        pending = self._pending[partition]
        if pending.is_writing:
            return
        if partition.log.found is not pending.found:  # the config has changed, or the log was cut
            del self._pending[partition]
            return
        if not partition.stream.has_marks:
            pending.is_writing = True
            request = AddCompanionRequest(stream_id=partition.key.stream_id)
            self._cluster.link.ask(request, partial(self._companion_added, partition, pending))
            return
        try:
            self._write_next(partition, pending)
        except RemoteError as refusal:
            if refusal.code != ErrorCode.NOT_YET:  # else the companion begins to lead, and the next tick tries again
                self._fail(partition, pending, refusal.message)

    def _companion_added(self, partition: Partition, pending: _Pending, response: Response | RemoteError) -> None:
        pending.is_writing = False
        if isinstance(response, RemoteError):
            self._fail(partition, pending, response.message)

    def _write_next(self, partition: Partition, pending: _Pending) -> None:
        if not pending.rows and pending.pieces:
            piece = pending.pieces[0]
            pending.rows.extend(self._hidden.marks(partition, (piece,), pending.reason, "", self._context.now))
            pending.pieces.popleft()
        rows: Rows = [pending.rows[0]]
        pending.is_writing = True
        try:
            self._write(partition, rows, partial(self._written, partition, pending))
        except RemoteError:
            pending.is_writing = False
            raise

    def _written(self, partition: Partition, pending: _Pending, answer: AppendResponse | RemoteError) -> None:
        pending.is_writing = False
        if self._pending.get(partition) is not pending:
            return
        if isinstance(answer, RemoteError):
            self._fail(partition, pending, answer.message)
            return
        pending.rows.popleft()
        if pending.rows or pending.pieces:
            self._go_on(partition)
        else:
            del self._pending[partition]
            self._decided(partition, pending.found, "", is_hidden=True)

    def _fail(self, partition: Partition, pending: _Pending, reason: str) -> None:
        if self._pending.get(partition) is pending:
            del self._pending[partition]
            self._decided(partition, pending.found, reason)

    def _decided(self, partition: Partition, found: FoundHidden, reason: str, *, is_hidden: bool = False) -> None:
        partition.log.decided(found, self._context.now.wall_us, is_hidden=is_hidden)
        partition.unmarked = ""
        if reason:
            what = "superseded" if isinstance(found.survey, Survey) else "expired"
            partition.unmarked = f"{found.rows.count} {what} messages stay for now: {reason}"
            partition.tell(partition.unmarked, self._outbox)
        self._upkeep.touch(partition)
