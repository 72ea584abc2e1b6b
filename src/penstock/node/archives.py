"""What archives have of a partition, and what retention may therefore let go.

Rules: an archive is whoever copies a stream elsewhere, and reports up to where it has done so. The partition's leader
is asked, and refuses what is not committed; what it agrees to goes through the metadata before it counts, so it
survives the leader, and whoever leads next knows it. With `retain = "until-archived"` the limits on age, messages and
bytes delete only what every archive of the stream has; before one has reported, nothing. What goes by compaction, by
its time to live, for a rollup, or because somebody truncates the stream, goes whether it is archived or not.

Theory: an offset names a message only together with a leader epoch. After an unclean election others may stand where
the archived ones were: so a report holds for what was written up to the end of its epoch, as a truncation does. And
what was archived before such an election may be reported after it: an archive says in which epoch it was told its end,
and the leader refuses what its own log does not hold as it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import msgspec

from penstock.base.clock import Now
from penstock.base.config import Retain
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import ReportArchivedRequest, Response
from penstock.node.divergence import check_agreement
from penstock.node.finding import Finder
from penstock.node.internal import users_own
from penstock.node.knowledge import check_knowledge
from penstock.node.partition import Partition
from penstock.node.step import Outbox

Administer = Callable[[ReportArchivedRequest, Callable[[Response | RemoteError], None]], None]


def archived_end(partition: Partition) -> int:
    """Up to where all archives of the stream have this log; 0: there is none, or one has not told of it."""
    found = partition.stream.archived_at(partition.key.partition)
    epoch_end = partition.log.epoch_end
    return min((min(one.end_offset, epoch_end(one.leader_epoch).start_offset) for one in found), default=0)


def removable_end(partition: Partition) -> int:
    """Up to where retention may let go."""
    if partition.stream.config.retain is Retain.LIMITS:
        return partition.committed_end
    return min(partition.committed_end, archived_end(partition))


class Archives:
    """Who waits for a report to be taken. `administer` has the metadata leader change what the cluster agrees on."""

    def __init__(self, outbox: Outbox, administer: Administer) -> None:
        self._outbox = outbox
        self._administer = administer
        self._waiting: set[Hashable] = set()

    def ask(
        self, find: Finder, caller: Hashable, request: ReportArchivedRequest, raw: bytes | memoryview, now: Now
    ) -> None:
        """As `report`. RemoteError as of `Finder.led`, and read_only for a stream of Penstock's own, too."""
        self.report(caller, users_own(find.led(request.stream_id, request.partition)), request)

    def report(self, caller: Hashable, partition: Partition, request: ReportArchivedRequest) -> None:
        """Answer `caller` once it is taken. RemoteError not_leader, not_yet, offset_out_of_range, log_truncated."""
        if partition.leadership is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"{partition.label} is not led now; ask again in a moment")
        check_knowledge(partition)
        if request.end_offset is not None and request.end_offset > partition.committed_end:
            text = f"nobody can have {partition.label} up to offset {request.end_offset}: it is committed up to"
            raise RemoteError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{text} {partition.committed_end}",
                log_start=partition.log_start,
                committed_end=partition.committed_end,
            )

        if request.end_offset is not None and request.archived_epoch is not None:
            check_agreement(partition, request.end_offset, request.archived_epoch)

        def done(response: Response | RemoteError) -> None:
            if caller in self._waiting:
                self._waiting.discard(caller)
                self._outbox.reply(caller, response)

        self._waiting.add(caller)
        self._administer(msgspec.structs.replace(request, leader_epoch=partition.leadership.leader_epoch), done)

    def gone(self, callers: Iterable[Hashable]) -> None:
        """Nobody waits for these answers."""
        self._waiting.difference_update(callers)
