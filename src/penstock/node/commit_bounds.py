"""Refuse offset commits beyond the high watermark (`committed_end`) of their partitions.

Rules: what a consumer has read is committed, so an honest offset is never refused. Each replica's `committed_end` is a
lower bound of the log's end: an offset up to it is right, whoever leads. Only the leader knows that an offset is beyond
the end, and only while it knows all that was ever told to be committed (`node.knowledge`): it is asked, in this broker
or over the wire, after the commit has come. An offset that nobody can judge now, because the leader is away, new or
mute, is taken: a group goes on through a failover.

| the offset is                              | the commit                            |
|--------------------------------------------|---------------------------------------|
| up to `committed_end` of the replica here  | is taken                              |
| beyond, and the leader says so             | is refused as `offset_out_of_range`   |
| beyond, and the leader has committed that  | is taken                              |
| beyond, and the leader does not know       | is taken                              |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import ListOffsetsRequest, ListOffsetsResponse, OffsetCommit, Response
from penstock.metadata.image import ClusterImage
from penstock.node.finding import Finder
from penstock.node.knowledge import check_knowledge
from penstock.node.peers import Peers
from penstock.node.wording import label

Judged = Callable[[RemoteError | None, Now], None]
"""Called with the refusal of a commit, or None; within `judge` where no other broker has to be asked."""


class _Judging:
    """One commit: how many leaders have not answered, and what was found first."""

    def __init__(self, judged: Judged, clock: Callable[[], Now], open_count: int) -> None:
        self._judged = judged
        self._clock = clock
        self._open_count = open_count
        self._error: RemoteError | None = None

    def heard(self, error: RemoteError | None) -> None:
        """Take the answer of one leader; None: the offset is taken."""
        self._open_count -= 1
        self._error = self._error or error
        if self._open_count == 0:
            self._judged(self._error, self._clock())


class CommitBounds:
    """Judges the commits that one broker is asked for."""

    def __init__(
        self,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        find: Finder,
        peers: Peers,
        clock: Callable[[], Now],
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._find = find
        self._peers = peers
        self._clock = clock

    def judge(self, offsets: Iterable[OffsetCommit], judged: Judged) -> None:
        """Tell `judged` whether one of them, whose partitions exist, is beyond the end of its log."""
        to_ask: list[tuple[OffsetCommit, BrokerId]] = []
        for one in offsets:
            if one.offset is None:
                continue
            replica = self._find.here(one.stream_id, one.partition)
            if replica is not None and one.offset <= replica.committed_end:
                continue
            leader = self._image().partition(one.stream_id, one.partition).leader
            if leader is not None and leader != self._broker_id:
                to_ask.append((one, leader))
            elif leader is not None and (error := self._here(one)) is not None:
                judged(error, self._clock())
                return
        judging = _Judging(judged, self._clock, len(to_ask) + 1)
        for one, leader in to_ask:
            request = ListOffsetsRequest(stream_id=one.stream_id, partition=one.partition, at="latest")
            self._peers.send(leader, request, done=partial(self._answered, one, judging))
        judging.heard(None)

    def _here(self, one: OffsetCommit) -> RemoteError | None:
        """Return the refusal of an offset in a partition that this broker leads; None: it is taken."""
        try:
            partition = self._find.led(one.stream_id, one.partition)
            check_knowledge(partition)
        except RemoteError:
            return None
        return self._refusal(one, partition.log_start, partition.committed_end)

    def _answered(
        self, one: OffsetCommit, judging: _Judging, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        error = None
        if isinstance(response, ListOffsetsResponse):
            error = self._refusal(one, response.log_start, response.committed_end)
        judging.heard(error)

    def _refusal(self, one: OffsetCommit, log_start: int, committed_end: int) -> RemoteError | None:
        assert one.offset is not None
        if one.offset <= committed_end:
            return None
        state = self._image().streams.get(one.stream_id)
        where = f"stream {one.stream_id}" if state is None else label(state, one.partition)
        text = (
            f"nothing was committed: offset {one.offset} is beyond the end of {where}, which holds the offsets from "
            f"{log_start} up to, but not including, {committed_end}"
        )
        details = {"log_start": log_start, "committed_end": committed_end}
        return RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, text, partition=one.partition, **details)
