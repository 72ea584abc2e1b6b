"""Refuse offset commits beyond the high watermark (`committed_end`) of their partitions.

Rules: consumers read only what is committed, so an honest offset is never refused. Each replica's `committed_end` is a
lower bound of the log's end: an offset up to it is right under any leader. Only the leader knows that an offset lies
beyond the end, and only while it knows the latest high watermark (`Partition.require_high_watermark`): it is asked, in
this broker or over the wire, after the commit has come. It may have been deposed without knowing: so the refusal of a
replicated partition waits until this broker's metadata, confirmed after the answer, still have that leader in that
epoch (`node.partition.deferred_refusals`). An offset that cannot be judged now, because the leader is away, new, mute
or has changed, is taken: a group goes on through a failover.

| the offset is                              | the commit                            |
|--------------------------------------------|---------------------------------------|
| up to `committed_end` of the local replica | is taken                              |
| beyond, and the confirmed leader says so   | is refused as `offset_out_of_range`   |
| beyond, and the leader has committed it    | is taken                              |
| beyond, and the leader does not know       | is taken                              |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, PartitionKey
from penstock.messages import ListOffsetsRequest, ListOffsetsResponse, OffsetCommit, Response
from penstock.node.context import Context
from penstock.node.partition.deferred_refusals import DeferredRefusals
from penstock.node.partition.partition_errors import partition_label
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.replicas.partition_lookup import PartitionLookup

Judged = Callable[[RemoteError | None, Now], None]
"""Called with the refusal of a commit, or None; within `judge` if no other broker has to be asked."""


class _Refusal(NamedTuple):
    """Refusal of one offset, by the leader of an epoch."""

    error: RemoteError
    key: PartitionKey
    leader: BrokerId
    leader_epoch: int
    is_certain: bool  # no other broker can lead


class _Judging:
    """One commit: how many leaders have not answered, and the first refusal. A `DeferredRefusal`."""

    def __init__(self, bounds: CommitBounds, judged: Judged, by: str, open_count: int) -> None:
        self._bounds = bounds
        self._judged = judged
        self._by = by
        self._open_count = open_count
        self._refusal: _Refusal | None = None

    def leader_answered(self, refusal: _Refusal | None) -> None:
        """Take the answer of one leader; None: the offset is taken."""
        self._open_count -= 1
        if self._refusal is None or (refusal is not None and refusal.is_certain and not self._refusal.is_certain):
            self._refusal = refusal
        if self._open_count == 0:
            if self._refusal is None or self._refusal.is_certain:
                self.settle(is_certain=True)
            else:
                self._bounds.refusals.doubt(self, self._by, self._bounds.now)

    def is_led(self) -> bool:
        """True if the refusing leader still leads in the same epoch."""
        return self._refusal is not None and self._bounds.is_led(self._refusal)

    def is_over(self) -> bool:
        """True if the partition has a newer epoch, or no longer exists."""
        return self._refusal is None or self._bounds.is_over(self._refusal)

    def settle(self, *, is_certain: bool) -> None:
        """Call back with the refusal, or with None."""
        error = self._refusal.error if self._refusal is not None and is_certain else None
        self._judged(error, self._bounds.now)


class _Waiting(NamedTuple):
    """An offset of a commit, for which a leader is asked."""

    offset: OffsetCommit
    judging: _Judging


class CommitBounds:
    """Judges the offset commits sent to this broker."""

    def __init__(self, context: Context, find: PartitionLookup, peers: PeerClient, refusals: DeferredRefusals) -> None:
        self._context = context
        self.refusals = refusals
        self._broker_id = context.settings.broker_id

        self._find = find
        self._peers = peers
        # Per leader: offsets that came after its pending request.
        self._asked: dict[tuple[BrokerId, PartitionKey], list[_Waiting]] = {}

    @property
    def now(self) -> Now:
        return self._context.now

    def judge(self, offsets: Iterable[OffsetCommit], judged: Judged, by: str) -> None:
        """Call `judged` with a refusal if one of the offsets is beyond the end of its log. The partitions must exist.

        `by`: the user that a delayed answer counts for (`Authorization.sharer`).
        """
        to_ask: list[tuple[OffsetCommit, BrokerId]] = []
        for one in offsets:
            if one.offset is None:
                continue
            replica = self._find.here(one.stream_id, one.partition)
            if replica is not None and one.offset <= replica.committed_end:
                continue
            leader = self._context.image.partition(one.stream_id, one.partition).leader
            if leader is not None and leader != self._broker_id:
                to_ask.append((one, leader))
            elif leader is not None and (refusal := self._here(one)) is not None:
                _Judging(self, judged, by, 1).leader_answered(refusal)
                return
        judging = _Judging(self, judged, by, len(to_ask) + 1)
        for one, leader in to_ask:
            place = leader, PartitionKey(one.stream_id, one.partition)
            later = self._asked.get(place)
            if later is None:
                self._ask(place, [_Waiting(one, judging)])
            elif len(later) < limits.DEFERRED_COMMIT_REFUSALS_MAX:
                later.append(_Waiting(one, judging))
            else:
                judging.leader_answered(None)
        judging.leader_answered(None)

    def _ask(self, place: tuple[BrokerId, PartitionKey], waiting: list[_Waiting]) -> None:
        """Ask a leader for the end of one log, for all these offsets. Offsets that come later need a later answer."""
        leader, (stream_id, partition) = place
        self._asked[place] = []
        request = ListOffsetsRequest(stream_id=stream_id, partition=partition, at="latest")
        self._peers.send(leader, request, done=partial(self._answered, place, waiting))

    def is_led(self, refusal: _Refusal) -> bool:
        """True if the refusing broker leads the partition in the same epoch."""
        return self._leader(refusal.key) == (refusal.leader, refusal.leader_epoch)

    def is_over(self, refusal: _Refusal) -> bool:
        """True if it never will again. It may have learned its epoch before this broker has."""
        led = self._leader(refusal.key)
        return led is None or led[1] > refusal.leader_epoch

    def _leader(self, key: PartitionKey) -> tuple[BrokerId | None, int] | None:
        """Return the leader and the epoch in this broker's image; None if the partition was deleted."""
        try:
            state = self._context.image.partition(*key)
        except RemoteError:
            return None
        return state.leader, state.leader_epoch

    def _here(self, one: OffsetCommit) -> _Refusal | None:
        """Return the refusal of an offset in a partition that this broker leads; None: it is taken."""
        try:
            partition = self._find.led(one.stream_id, one.partition)
            partition.require_high_watermark()
        except RemoteError:
            return None
        leader = self._broker_id, partition.leader_epoch
        return self._refusal(one, leader, partition.log_start, partition.committed_end)

    def _answered(
        self,
        place: tuple[BrokerId, PartitionKey],
        waiting: list[_Waiting],
        response: Response | RemoteError,
        raw: bytes | memoryview,
    ) -> None:
        if later := self._asked.pop(place):
            self._ask(place, later)
        for one, judging in waiting:
            refusal = None
            if isinstance(response, ListOffsetsResponse):
                said = response.log_start, response.committed_end
                refusal = self._refusal(one, (place[0], response.leader_epoch), *said)
            judging.leader_answered(refusal)

    def _refusal(
        self, one: OffsetCommit, leader: tuple[BrokerId, int], log_start: int, committed_end: int
    ) -> _Refusal | None:
        assert one.offset is not None
        if one.offset <= committed_end:
            return None
        state = self._context.image.streams.get(one.stream_id)
        where = f"stream {one.stream_id}" if state is None else partition_label(state, one.partition)
        text = (
            f"nothing was committed: offset {one.offset} is beyond the end of {where}, which holds the offsets from "
            f"{log_start} up to, but not including, {committed_end}"
        )
        details = {"log_start": log_start, "committed_end": committed_end}
        error = RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, text, partition=one.partition, **details)
        key = PartitionKey(one.stream_id, one.partition)
        is_certain = state is not None and len(state.partitions[one.partition].replicas) == 1
        return _Refusal(error, key, *leader, is_certain)
