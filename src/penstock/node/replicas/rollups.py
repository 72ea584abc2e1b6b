"""Applies `Nats-Rollup: all`: such a message purges everything before it in its partition.

Rules: the partition's leader acts once the message is committed, not before: an uncommitted message may be truncated,
and must not have removed anything. From feature level 0.4 on a decision has hidden everything before it by then
(`node.api.row_decisions`), and the purge only raises the log start, so that whole segments are removed. The purge goes
through the metadata like a truncation (`node.replicas.truncations`), so it survives the leader, and all replicas begin
there. A partition has one request under way: of messages that arrive meanwhile the last one counts. A leadership may
end between the ack and its request, so each leadership begins with a backward search of the log for the last such
message. Of batches without the flag only the header is read.

| known                 | since                                       | action                                   |
|-----------------------|---------------------------------------------|------------------------------------------|
| there may be one      | the leadership began, or the disk was full  | search the log                           |
| the last one's offset | it was found, or has arrived                | once it is committed, request the purge  |
| there is none         | the purge is agreed, or none was found      |                                          |

A sealed stream is not purged, as with truncations, nor is a log that takes no appends. While deletion is suspended the
purge waits: a copy must get all rows of its source, also those before a rollup.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.batch.header import MAY_ROLL_UP_ALL, BatchHeader
from penstock.commitlog import LogState, LogView
from penstock.messages import Response, TruncateRequest
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import NO_ROLLUP, UNKNOWN_ROLLUP, Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.step import Lane
from penstock.replication.leader import Leadership

_RETRY_US = limits.ROLLUP_RETRY_MS * 1_000


class FindRollup:
    """Searches a log backwards for the last rollup message, in a disk thread."""

    def __init__(self, view: LogView) -> None:
        self.offset = NO_ROLLUP
        self.is_wanted = True
        self._view = view

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or QueryGivenUpError."""
        view = self._view
        for _, data in view.batches(view.log_start, view.log_end, reverse=True, wants=self._wants):
            row = codec.check_values(data).asked().rollup_row
            if row >= 0:
                self.offset = codec.offsets(data)[row]
                return

    def _wants(self, header: BatchHeader) -> bool:
        if not self.is_wanted:
            raise QueryGivenUpError
        return bool(header.flags & MAY_ROLL_UP_ALL)


class Rollups:
    """The rollups of all partitions led here."""

    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._outbox = context.outbox
        self._context = context
        self._cluster = cluster
        self._awaited: dict[Partition, int] = {}  # offset to be committed first, fixed because new ones may keep coming
        self._searches: dict[Partition, FindRollup] = {}
        self._asked: set[Partition] = set()
        self._retries: dict[Partition, int] = {}  # elapsed time of the next try

    def check(self, partition: Partition) -> None:
        """Check for work after a leadership began or more was committed."""
        leadership = partition.leadership
        is_busy = partition in self._searches or partition in self._asked or partition in self._retries
        if leadership is None or partition.when_idle is not None or partition.rollup_at == NO_ROLLUP or is_busy:
            return
        if partition.stream.intake is Intake.SEALED or partition.log.state is not LogState.WRITABLE:
            return
        if partition.stream.config.is_deletion_suspended:
            self._retry(partition)
            return
        if partition.rollup_at == UNKNOWN_ROLLUP:
            self._search(partition, leadership)
            return
        # Readers are shown what comes before a rollup until the rollup itself.
        shown_end = partition.visible_end
        if partition.stream.decides_rollups:
            shown_end = min(shown_end, partition.decided_end)
        at = self._awaited.setdefault(partition, partition.rollup_at)
        if at >= shown_end:
            return
        del self._awaited[partition]
        if partition.rollup_at < shown_end:
            at = partition.rollup_at
        if at > partition.log_start and _has_taken_effect(partition, at):
            self._ask(partition, leadership, at)
        else:
            self._settled(partition, at)

    def _settled(self, partition: Partition, at: int) -> None:
        """Handle a purge that is done or agreed; another message may have arrived meanwhile."""
        if partition.rollup_at == at:
            partition.rollup_at = NO_ROLLUP
        self.check(partition)

    def _search(self, partition: Partition, leadership: Leadership) -> None:
        search = self._searches[partition] = FindRollup(partition.view())

        def done(error: Exception | None) -> None:
            del self._searches[partition]
            if partition.leadership is not leadership or partition.when_idle is not None:
                self.check(partition)
                return
            if error is not None:
                if partition.visible_end == partition.committed_end:  # else decisions fail, too, and tell of it
                    partition.tell(f"cannot look for a rollup of all: {as_remote_error(error)}", self._outbox)
                self._retry(partition)
                return
            if partition.rollup_at == UNKNOWN_ROLLUP:
                partition.rollup_at = search.offset
            self.check(partition)

        self._outbox.work(Lane.QUERY, search.run, done)

    def _ask(self, partition: Partition, leadership: Leadership, at: int) -> None:
        self._asked.add(partition)

        def done(response: Response | RemoteError) -> None:
            self._asked.discard(partition)
            if partition.leadership is not leadership:
                self.check(partition)
            elif not isinstance(response, RemoteError) or response.code == ErrorCode.READ_ONLY:
                self._settled(partition, at)
            else:
                self._retry(partition)

        request = TruncateRequest(
            stream_id=partition.key.stream_id,
            partition=PartitionId(partition.key.partition),
            before=Offset(at),
            leader_epoch=leadership.leader_epoch,
        )
        self._cluster.link.administer(request, done, THE_BROKER)

    def _retry(self, partition: Partition) -> None:
        self._retries[partition] = self._context.now.elapsed_us + _RETRY_US

    def ended(self, partition: Partition) -> None:
        """Forget a partition no longer led here: the next leader continues."""
        self._awaited.pop(partition, None)
        self._retries.pop(partition, None)
        if (search := self._searches.get(partition)) is not None:
            search.is_wanted = False

    def tick(self, now_us: int) -> None:
        """Retry what is due; `now_us` is elapsed time."""
        if self._retries:
            for partition in [one for one, due_us in self._retries.items() if due_us <= now_us]:
                del self._retries[partition]
                self.check(partition)

    @property
    def next_deadline_us(self) -> int | None:
        return min(self._retries.values()) if self._retries else None


def _has_taken_effect(partition: Partition, at: int) -> bool:
    """True unless a decision has left rows before a rollup: it was hidden before it was decided on."""
    if not partition.stream.decides_rollups:
        return True
    hidden = partition.log.hidden
    return hidden is not None and hidden.first_absent(partition.log_start) >= at
