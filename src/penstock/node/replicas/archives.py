"""Archives of a partition: how far they have copied it, and what retention may therefore delete.

Rules: an archive is a client that copies a stream elsewhere and reports how far it has come. It reports to the
partition's leader, which refuses offsets that are not committed; an accepted report goes through the metadata before it
counts, so it survives the leader, and the next leader knows it. With `retain = "until-archived"` the limits on age,
messages and bytes delete only what every archive of the stream has copied; nothing before one has reported. Compaction,
a message's time to live, a rollup and a truncation on request delete messages whether they are archived or not.

Theory: an offset identifies a message only together with a leader epoch. After an unclean election other messages may
stand where the archived ones were, so a report holds up to the end of its epoch, as a truncation does. What was
archived before such an election may be reported after it: an archive therefore says in which epoch it was told its end,
and the leader refuses a report that its own log contradicts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import ReportArchivedRequest, Response
from penstock.node.control.cluster import Cluster
from penstock.node.partition.divergence import check_agreement
from penstock.node.partition.internal_streams import users_own
from penstock.node.partition.partition import Partition
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import Outbox


class Archives:
    """Callers whose report is not yet committed."""

    def __init__(self, outbox: Outbox, cluster: Cluster) -> None:
        self._outbox = outbox
        self._cluster = cluster
        self._waiting: set[Hashable] = set()

    def ask(self, find: PartitionLookup, call: Call, request: ReportArchivedRequest) -> None:
        """Handle the request. RemoteError as `report` and `PartitionLookup.led`; read_only for internal streams."""
        self.report(call, users_own(find.led(request.stream_id, request.partition)), request)

    def report(self, call: Call, partition: Partition, request: ReportArchivedRequest) -> None:
        """Answer the caller once the report is committed.

        RemoteError not_leader, not_yet, offset_out_of_range, log_truncated.
        """
        if partition.leadership is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"{partition.label} is not led now; ask again in a moment")
        partition.require_high_watermark()
        if request.end_offset is not None and request.end_offset > partition.committed_end:
            text = f"no archive can have {partition.label} up to offset {request.end_offset}: it is committed up to"
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

        caller = call.caller
        self._waiting.add(caller)
        request = msgspec.structs.replace(request, leader_epoch=partition.leadership.leader_epoch)
        self._cluster.link.administer(request, done, THE_BROKER, call.authorize)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget callers that have disconnected."""
        self._waiting.difference_update(callers)
