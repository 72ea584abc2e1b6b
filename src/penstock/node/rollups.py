"""All before a message go for it, where it says so with `Nats-Rollup: all`: as if somebody had asked for it.

Rules: the partition's leader sees to it once the message is committed, not before: what is not may be cut off, and must
not have removed anything. It goes through the metadata as a truncation does (`node.truncations`), so it survives the
leader, and all replicas begin there. A partition has one request under way: of the messages that come meanwhile the
last one counts. A leader may end between the ack and its request, so a leadership begins with a search of the log for
the last such message, backwards. Of batches without the flag no more than the header is read.

| what is known         | since                                       | then                                     |
|-----------------------|---------------------------------------------|------------------------------------------|
| there may be one      | the leadership began, or the disk was full  | look for it in the log                   |
| where the last one is | it was found, or has come                   | once it is committed, ask for the rest   |
| there is none         | that is agreed, or none was found           |                                          |

Of a sealed stream nothing goes, as with truncations, nor of a log that takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.batch.header import MAY_ROLL_UP_ALL, BatchHeader
from penstock.commitlog import LogState, LogView
from penstock.messages import Response, TruncateRequest
from penstock.node.metadata_link import THE_BROKER
from penstock.node.partition import NO_ROLLUP, UNKNOWN_ROLLUP, Partition
from penstock.node.queries import QueryGivenUpError
from penstock.node.step import Lane, Outbox
from penstock.node.truncations import Administer
from penstock.node.wording import as_remote
from penstock.replication.leader import Leadership

_RETRY_US = limits.ROLLUP_RETRY_MS * 1_000


class FindRollup:
    """Look through a log, backwards, for the last message that all before it go for; in a disk thread."""

    def __init__(self, view: LogView) -> None:
        self.offset = NO_ROLLUP
        self.is_wanted = True
        self._view = view

    def run(self) -> None:
        """Find it; RemoteError corrupt_range, OSError, QueryGivenUpError."""
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
    """Those of all partitions that this broker leads. `administer` has the metadata leader change what the cluster
    agrees on.
    """

    def __init__(self, outbox: Outbox, clock: Callable[[], Now], administer: Administer) -> None:
        self._outbox = outbox
        self._clock = clock
        self._administer = administer
        self._awaited: dict[Partition, int] = {}  # which message is to be committed first: others may come without end
        self._searches: dict[Partition, FindRollup] = {}
        self._asked: set[Partition] = set()
        self._retries: dict[Partition, int] = {}  # when, in elapsed time

    def look(self, partition: Partition) -> None:
        """It is led here from now on, or more of it is committed: see whether something is to go."""
        leadership = partition.leadership
        is_busy = partition in self._searches or partition in self._asked or partition in self._retries
        if leadership is None or partition.when_idle is not None or partition.rollup_at == NO_ROLLUP or is_busy:
            return
        if partition.stream.intake is Intake.SEALED or partition.log.state is not LogState.WRITABLE:
            return
        if partition.rollup_at == UNKNOWN_ROLLUP:
            self._search(partition, leadership)
            return
        committed_end = partition.committed_end
        at = self._awaited.setdefault(partition, partition.rollup_at)
        if at >= committed_end:
            return
        del self._awaited[partition]
        if partition.rollup_at < committed_end:
            at = partition.rollup_at
        if at > partition.log_start:
            self._ask(partition, leadership, at)
        else:
            self._settled(partition, at)

    def _settled(self, partition: Partition, at: int) -> None:
        """Nothing is left of what comes before this one, or soon will be; another one may have come meanwhile."""
        if partition.rollup_at == at:
            partition.rollup_at = NO_ROLLUP
        self.look(partition)

    def _search(self, partition: Partition, leadership: Leadership) -> None:
        search = self._searches[partition] = FindRollup(partition.view())

        def done(error: Exception | None) -> None:
            del self._searches[partition]
            if partition.leadership is not leadership or partition.when_idle is not None:
                self.look(partition)
                return
            if error is not None:
                partition.tell(f"cannot look for a rollup of all: {as_remote(error)}", self._outbox)
                self._retry(partition)
                return
            if partition.rollup_at == UNKNOWN_ROLLUP:
                partition.rollup_at = search.offset
            self.look(partition)

        self._outbox.work(Lane.QUERY, search.run, done)

    def _ask(self, partition: Partition, leadership: Leadership, at: int) -> None:
        self._asked.add(partition)

        def done(response: Response | RemoteError) -> None:
            self._asked.discard(partition)
            if partition.leadership is not leadership:
                self.look(partition)
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
        self._administer(request, done, THE_BROKER)

    def _retry(self, partition: Partition) -> None:
        self._retries[partition] = self._clock().elapsed_us + _RETRY_US

    def ended(self, partition: Partition) -> None:
        """It is led here no more, or is gone: whoever leads next sees to it."""
        self._awaited.pop(partition, None)
        self._retries.pop(partition, None)
        if (search := self._searches.get(partition)) is not None:
            search.is_wanted = False

    def tick(self, now_us: int) -> None:
        """Try again, where it is time for that; `now_us` is elapsed time."""
        if self._retries:
            for partition in [one for one, due_us in self._retries.items() if due_us <= now_us]:
                del self._retries[partition]
                self.look(partition)

    @property
    def next_deadline_us(self) -> int | None:
        """When `tick` has something to do."""
        return min(self._retries.values()) if self._retries else None
