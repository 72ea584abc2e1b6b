"""Offsets of consumer groups: stored in `__offsets`, served from memory by the leader of the group's partition there.

Rules: `InternalLog` keeps the state of each leadership. A commit is answered once its row is committed, like an append;
if the leadership ends first, the client learns that the outcome is unknown, and commits again. An offset beyond the end
of its log is refused (`commit_bounds`). Offsets are told under a leader lease (`leader_leases`): a deposed leader lacks
what its successor has committed, and tells none.

The number of offsets is bounded: a commit that would exceed OFFSETS_KEPT_MAX is refused, and so is one of a user whose
share is used up (`FairShares`; the row names the user, so that every leader can count). Commits under way count. A
leader writes tombstones for offsets in deleted streams once it has read the log, or when it has no room. A deleted
group makes room as soon as its tombstones are committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId, TimestampUs
from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import OFFSETS_STREAM, GroupPosition, OffsetKey, encode_key, encode_value
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    AppendResponse,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupStream,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    Response,
)
from penstock.metadata.image import ClusterImage
from penstock.node.api.commit_bounds import CommitBounds
from penstock.node.api.group_members import GroupMembers
from penstock.node.api.internal_log import InternalLog, InternalStream, Kept, Write
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.internal_streams import offsets_config
from penstock.node.partition.partition import Partition
from penstock.node.replicas.leader_leases import LeaderLeases
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call


class _Coordinator:
    """Knowledge of the leadership of a partition of `__offsets` besides its rows."""

    def __init__(self, kept: Kept[CommittedOffsets], members: GroupMembers) -> None:
        self.kept = kept
        self.members = members
        self.begun: set[OffsetKey] = set()  # places with a row under way: an initial position for them is ignored
        self.swept_at = -1  # image index of the last search for offsets in deleted streams

    @property
    def offsets(self) -> CommittedOffsets:
        return self.kept.state


class GroupOffsets:
    """Serves all partitions of `__offsets` that this broker leads."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        find: PartitionLookup,
        bounds: CommitBounds,
        leases: LeaderLeases,
        *,
        write: Write,
    ) -> None:
        """`write` appends one batch to a partition led here."""
        self._bounds, self._leases = bounds, leases
        self._outbox = context.outbox
        self._cluster = cluster
        self._find = find
        stream = InternalStream(offsets_config(context.settings.internal_encryption), "offsets")
        self._log = InternalLog(context, cluster, find, stream, CommittedOffsets, write)
        self._coordinators: dict[PartitionKey, _Coordinator] = {}
        self.handlers: dict[type, Callable[[Call, Any], None]] = {
            OffsetsStreamRequest: self._stream,
            CommitOffsetsRequest: self._commit,
            FetchOffsetsRequest: self._fetch,
            ListGroupsRequest: self._list,
            GroupHeartbeatRequest: self._heartbeat,
        }

    @property
    def _image(self) -> ClusterImage:
        return self._cluster.image

    # The stream

    def _stream(self, call: Call, request: OffsetsStreamRequest) -> None:
        self._log.create(call, request.timeout_ms, lambda found: OffsetsStreamResponse(stream=found))

    # Requests

    def _commit(self, call: Call, request: CommitOffsetsRequest) -> None:
        asker, sharer = call.auth.asker, call.auth.sharer
        self._checked(request, call.now, asker)
        for one in request.offsets:
            if one.offset is not None:
                self._check_there(one.stream_id, one.partition)

        def judged(refusal: RemoteError | None, later: Now) -> None:
            try:
                if refusal is not None:
                    raise refusal
                call.authorize()
                self._commit_judged(call.caller, request, later, asker, sharer)
            except RemoteError as error:
                self._outbox.reply(call.caller, error)

        self._bounds.judge(request.offsets, judged, sharer)

    def _checked(self, request: CommitOffsetsRequest, now: Now, asker: str) -> tuple[Partition, _Coordinator]:
        """Return the partition of `__offsets` for the group. Raise RemoteError if the member may not commit now."""
        partition = self._of_group(request.stream_id, request.partition, request.group)
        kept = self._known(partition)
        kept.members.check_commit(request, now.elapsed_us, asker)
        return partition, kept

    def _commit_judged(self, caller: Hashable, request: CommitOffsetsRequest, now: Now, asker: str, by: str) -> None:
        """Commit offsets that lie within their logs. Leaders may have been asked meanwhile, so check the rest again."""
        partition, kept = self._checked(request, now, asker)
        rows, places, added = [], list[OffsetKey](), 0
        for one in request.offsets:
            place = OffsetKey(request.group, one.stream_id, one.partition)
            if one.is_begin and (place in kept.offsets or place in kept.begun):
                continue
            places.append(place)
            if one.offset is not None:
                self._check_there(one.stream_id, one.partition)
                added += place not in kept.offsets
                value = encode_value(GroupPosition(one.offset, one.leader_epoch, one.metadata, by))
            rows.append((encode_key(place), None if one.offset is None else value))
        shares = kept.offsets.shares
        if added and not shares.fits(by, added, limits.OFFSETS_KEPT_MAX):
            self._sweep(partition, kept)
            text = f"of offsets in {partition.label} {shares.refused(by, limits.OFFSETS_KEPT_MAX)}"
            raise RemoteError(ErrorCode.TOO_LARGE, f"nothing was committed: {text}; delete groups that are not used")
        if not rows:
            self._outbox.reply(caller, CommitOffsetsResponse(committed_us=TimestampUs(now.wall_us)))
            return

        kept.begun.update(places)
        shares.add(by, added)

        def heard(response: Response | RemoteError) -> None:
            kept.begun.difference_update(places)  # committed ones are among the offsets
            if isinstance(response, AppendResponse):
                self._outbox.reply(caller, CommitOffsetsResponse(committed_us=response.timestamp_us))
            else:
                self._outbox.reply(caller, response)

        self._log.append(partition, kept.kept, rows, heard, lambda: shares.remove(by, added))

    def _fetch(self, call: Call, request: FetchOffsetsRequest) -> None:
        call, partition = call.without_raw(), self._of_group(request.stream_id, request.partition, request.group)
        self._confirmed(call, partition, lambda: self._tell(call, self._known(partition), request))

    def _confirmed(self, call: Call, partition: Partition, go_on: Callable[[], None]) -> None:
        """Go on once no other broker can have committed what this leader lacks. Raise as `_known`."""
        self._known(partition)  # it is read meanwhile

        def done(error: RemoteError | None) -> None:
            try:
                if error is not None:
                    raise error
                call.authorize()  # a rule or the login may have gone while it waited
                go_on()
            except RemoteError as refusal:
                self._outbox.reply(call.caller, refusal)

        self._leases.confirm(call, partition, done)

    def _tell(self, call: Call, kept: _Coordinator, request: FetchOffsetsRequest) -> None:
        found = kept.offsets.of(request.group, request.of_stream_id)
        by = None if call.auth.is_free or call.auth.may_monitor else call.auth.asker
        members = kept.members.having(request.group, request.of_stream_id, call.now.elapsed_us, by)
        offsets = tuple(
            CommittedOffset(
                partition=PartitionId(number),
                offset=Offset(one.position.offset),
                leader_epoch=None if one.position.leader_epoch is None else LeaderEpoch(one.position.leader_epoch),
                metadata=one.position.metadata,
                committed_us=TimestampUs(one.committed_us),
            )
            for number, one in sorted(found.items())
        )
        self._outbox.reply(call.caller, FetchOffsetsResponse(offsets=offsets, members=members))

    def _heartbeat(self, call: Call, request: GroupHeartbeatRequest) -> None:
        kept = self._known(self._of_group(request.stream_id, request.partition, request.group))
        if not request.is_leaving:
            for stream_id in request.stream_ids:
                self._check_there(stream_id, 0)
        by, sharer = call.auth.asker, call.auth.sharer
        self._outbox.reply(call.caller, kept.members.heartbeat(request, call.now, by, sharer, call.origin))

    def _list(self, call: Call, request: ListGroupsRequest) -> None:
        call, partition = call.without_raw(), self._log.led(request.stream_id, request.partition)
        self._confirmed(call, partition, lambda: self._tell_groups(call, self._known(partition), request))

    def _tell_groups(self, call: Call, kept: _Coordinator, request: ListGroupsRequest) -> None:
        after = (request.after_group, int(request.after_stream_id))
        found = kept.offsets.page(after, limits.GROUP_STREAMS_PER_ANSWER_MAX)
        groups = tuple(
            GroupStream(
                group=group,
                stream_id=StreamId(stream_id),
                partitions=count,
                members=kept.members.count(group, stream_id, call.now.elapsed_us),
            )
            for group, stream_id, count in found
            if call.auth.may_see_group(self._image.streams.get(StreamId(stream_id)), group)
        )
        self._outbox.reply(call.caller, ListGroupsResponse(groups=groups))

    def _of_group(self, stream_id: int, number: int, group: str) -> Partition:
        partition = self._log.led(stream_id, number)
        wanted = partition_of(group.encode(), len(partition.stream.partitions))
        if number != wanted:
            text = f"the offsets of group {group!r} are in partition {wanted} of {OFFSETS_STREAM!r}, not in {number}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return partition

    def _check_there(self, stream_id: StreamId, number: int) -> None:
        image = self._image
        if stream_id > image.index:
            text = f"this broker does not know stream {stream_id} yet; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        image.partition(stream_id, number)

    def _partitions_of(self, stream_id: int) -> int:
        state = self._image.streams.get(StreamId(stream_id))
        return 0 if state is None else len(state.partitions)

    def _readable(self, offsets: CommittedOffsets, group: str, stream_id: int) -> int:
        """Return how many partitions of a stream a group may read.

        Added partitions follow once the group has read the older ones up to their marks, so that it reads each key in
        order.
        """
        state = self._image.streams.get(StreamId(stream_id))
        if state is None or not state.moves_keys:
            return self._partitions_of(stream_id)
        committed = offsets.of(group, stream_id)
        count = state.counts[0]
        for before, after in pairwise(state.counts):
            marks = state.marked(after)
            if len(marks) < before:
                break
            if any(n not in committed or committed[n].position.offset < marks[n].end_offset for n in range(before)):
                break
            count = after
        return count

    # State of the leaderships

    def _known(self, partition: Partition) -> _Coordinator:
        """Return the state of a partition's leadership. Raise RemoteError: not_yet, or why the log cannot be read."""
        kept = self._log.known(partition)
        found = self._coordinators.get(partition.key)
        if found is None or found.kept is not kept:
            members = GroupMembers(
                kept.state,
                kept.leadership.leader_epoch,
                lambda rows, heard: self._log.append(partition, kept, rows, heard),
                self._partitions_of,
                lambda group, stream_id: self._readable(kept.state, group, stream_id),
            )
            found = self._coordinators[partition.key] = _Coordinator(kept, members)
        if found.swept_at < 0:
            self._sweep(partition, found)
        return found

    def known(self) -> list[CommittedOffsets]:
        """Return the offsets of all partitions led here; logs that are not in memory are being read."""
        found: list[CommittedOffsets] = []
        stream_id = self._image.names.get(OFFSETS_STREAM)
        state = None if stream_id is None else self._image.streams.get(stream_id)
        if state is None or not state.config.is_internal:
            return found
        for number, placed in enumerate(state.partitions):
            if placed.leader is None:
                continue
            with contextlib.suppress(RemoteError):  # led by another broker, or being read
                offsets = self._known(self._find.led(state.stream_id, number)).offsets
                found.append(offsets)
        return found

    def ended(self, partition: Partition) -> None:
        """Drop the state of a partition no longer led here."""
        self._log.ended(partition)
        self._coordinators.pop(partition.key, None)

    def stop(self) -> None:
        """Cancel reads because the broker stops."""
        self._log.stop()

    def _sweep(self, partition: Partition, kept: _Coordinator) -> None:
        """Write tombstones for offsets in deleted streams.

        Nothing is searched if the image has not changed since the last time: a client may repeat a refused commit at
        any rate.
        """
        image = self._image
        if kept.swept_at == image.index:
            return

        def is_gone(stream_id: int) -> bool:
            return stream_id <= image.index and StreamId(stream_id) not in image.streams

        places = kept.offsets.left_over(is_gone, limits.OFFSETS_PER_COMMIT_MAX)
        kept.swept_at = image.index if len(places) < limits.OFFSETS_PER_COMMIT_MAX else 0  # 0: there may be more

        def heard(response: Response | RemoteError) -> None:
            if isinstance(response, RemoteError):
                kept.swept_at = 0  # they are still there

        if places:
            self._log.append(partition, kept.kept, [(encode_key(place), None) for place in places], heard)
