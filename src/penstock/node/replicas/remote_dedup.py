"""Message ids of older partitions, for deduplication in a partition that was added to its stream.

Rules: the leader of an older partition answers, from its log and in pages, with the committed ids below the offset
where the keys end that left it. The pages are requested, one partition after the other and in this broker as over the
wire, while messages with ids wait; no id counts as known before all partitions have answered. The wait has a time-out:
then the messages are refused, and the next message has all ids requested again, as after a log that cannot be read
(`node.partition.dedup`).

    first message with an id ─▶ own log read ─────────────────────────────╮
                         ╰────▶ partition 0: page, page ─▶ 1: page ─▶ … ──┴─▶ known, messages go on

Memory is bounded: besides one partition's pages, no more ids are kept of all partitions than of the own log. Few pages
are read at once and few wait: further requests are refused as `overloaded`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import ge

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, PartitionKey, TimestampUs
from penstock.batch import codec
from penstock.batch.header import MAY_HOLD_IDS, BatchHeader
from penstock.commitlog import LogView
from penstock.hot.message_ids import RemoteMessageIds
from penstock.ingest.dedup import Dedup
from penstock.messages import KnownId, MessageIdsRequest, MessageIdsResponse, Response
from penstock.node.context import Context
from penstock.node.partition.leader_hints import no_leader_error
from penstock.node.partition.log_queries import Query, QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error, partition_label
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import InternalCaller, Lane
from penstock.node.subscriptions.ingest_backlog import IngestBacklog

_WAIT_US = limits.MESSAGE_IDS_WAIT_MS * 1_000
_STOPPING = RemoteError(ErrorCode.STOPPING, "the broker is stopping; ask again in a moment")


class ReadIdPage(Query):
    """Read one page: ids of messages below `end` and no older than `since_us`, newest first.

    `end_offset`: where the next page ends; None: there are no more.
    """

    def __init__(self, view: LogView, since_us: int, end: int) -> None:
        super().__init__(view)
        self._since_us = since_us
        self._end = min(end, view.log_end)
        self._batches_seen = 0
        self.ids: list[KnownId] = []
        self.end_offset: int | None = None

    def run(self) -> None:
        """RemoteError corrupt_range, OSError, QueryGivenUpError."""
        view, end = self._view, self._end
        if end <= view.log_start:
            return
        start = max(view.log_start, view.offset_at(self._since_us, end=end))
        size_bytes = 0
        for header, data in view.batches(start, end, reverse=True, wants=self._wants):
            if not self._is_wanted:
                raise QueryGivenUpError
            if not self._take(data, start):
                self.end_offset = int(self.ids[-1].offset)
                return
            size_bytes += len(data)
            is_enough = size_bytes >= limits.MESSAGE_IDS_READ_BYTES_MAX
            if is_enough or self._batches_seen >= limits.MESSAGE_IDS_READ_BATCHES_MAX:
                self.end_offset = header.base_offset if header.base_offset > start else None
                return

    def _wants(self, header: BatchHeader) -> bool:
        self._batches_seen += 1
        return bool(header.flags & MAY_HOLD_IDS) or self._batches_seen >= limits.MESSAGE_IDS_READ_BATCHES_MAX

    def _take(self, data: codec.Buffer, start: int) -> bool:
        """Add the ids of a batch to the page; return False if not all of them fit."""
        offsets, timestamps_us = codec.offsets(data), codec.timestamps(data)
        for row, key in reversed(codec.check_values(data).asked().ids):
            if start <= offsets[row] < self._end and timestamps_us[row] >= self._since_us:
                if len(self.ids) >= limits.MESSAGE_IDS_PER_ANSWER_MAX:
                    return False
                self.ids.append(KnownId(Offset(offsets[row]), TimestampUs(timestamps_us[row]), key))
        return True


@dataclass(slots=True, eq=False)
class _Asking:
    """Requests for one partition that was added to its stream."""

    partition: Partition
    dedup: Dedup
    left: list[tuple[int, int]]  # older partitions, each with the offset below which its ids are still missing
    found: RemoteMessageIds
    request: MessageIdsRequest | None = None  # not answered yet
    deadline_us: int = 0  # of the request, elapsed
    page: list[KnownId] = field(default_factory=list)  # of the last partition in `left`
    is_waited_for: bool = False  # messages wait already


class RemoteDedup:
    """Requests and answers of one broker."""

    def __init__(
        self,
        context: Context,
        peers: PeerClient,
        partitions: Mapping[PartitionKey, Partition],
        backlog: IngestBacklog,
    ) -> None:
        self._outbox = context.outbox
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._partitions = partitions
        self._context = context
        self._backlog = backlog
        self._askings: dict[Partition, _Asking] = {}
        self._executor = QueryExecutor(
            context.outbox, running_max=limits.MESSAGE_IDS_RUNNING_MAX, waiting_max=limits.MESSAGE_IDS_WAITING_MAX
        )
        self._open: set[Hashable] = set()  # callers without an answer

    # Requests to other leaders

    def request_missing(self, partition: Partition) -> bool:
        """Request the ids that a partition with waiting messages lacks; return True if that failed at once."""
        dedup, asking = partition.dedup, self._askings.get(partition)
        if dedup is None or not dedup.donors or not dedup.is_reading or (asking and asking.dedup is dedup):
            return False
        asking = _Asking(partition, dedup, sorted(dedup.donors.items(), reverse=True), RemoteMessageIds(dedup.ids_max))
        self._askings[partition] = asking
        self._ask(asking)
        asking.is_waited_for = True
        return bool(dedup.failure)

    def tick(self, now_us: int) -> None:
        """Fail the requests at their deadline; `now_us` is elapsed time."""
        for asking in [one for one in self._askings.values() if one.request and one.deadline_us <= now_us]:
            self._fail(asking, f"its leader has not answered for {limits.MESSAGE_IDS_WAIT_MS / 1_000:g} s")

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` has something to do."""
        return min((one.deadline_us for one in self._askings.values() if one.request), default=None)

    def _is_over(self, asking: _Asking) -> bool:
        """True if the request is obsolete: the partition has a new leadership, other marks or another window."""
        is_over = asking.partition.dedup is not asking.dedup or bool(asking.dedup.failure)
        if is_over:
            self._end(asking)
        return is_over

    def _end(self, asking: _Asking) -> None:
        asking.request = None
        if self._askings.get(asking.partition) is asking:
            del self._askings[asking.partition]

    def _ask(self, asking: _Asking) -> None:
        """Request the next page, or finish."""
        if self._is_over(asking):
            return
        if not asking.left:
            self._end(asking)
            asking.dedup.known_elsewhere(asking.found)
            self._backlog.may_go_on = True
            return
        number, end = asking.left[-1]
        # `stream` of the partition itself is updated only for its own leaders.
        stream = self._context.image.streams.get(asking.partition.key.stream_id)
        if stream is None or (state := stream.partitions[number]).leader is None:
            self._fail(asking, "it has no leader now")
            return
        request = MessageIdsRequest(
            stream_id=asking.partition.key.stream_id,
            partition=PartitionId(number),
            leader_epoch=state.leader_epoch,
            since_us=TimestampUs(asking.dedup.since_us),
            end_offset=Offset(end),
        )
        asking.request = request
        asking.deadline_us = self._context.now.elapsed_us + _WAIT_US
        answered = partial(self._answered, asking, request)
        if state.leader == self._broker_id:
            self._ask_here(request, answered)
        else:
            self._peers.send(state.leader, request, done=lambda response, _: answered(response))

    def _ask_here(self, request: MessageIdsRequest, answered: Callable[[Response | RemoteError], None]) -> None:
        partition = self._partitions.get(PartitionKey(request.stream_id, request.partition))
        try:
            if partition is None:
                raise RemoteError(ErrorCode.STORAGE_FAILED, "its log cannot be used")
            self._serve(InternalCaller(answered), partition, request)
        except RemoteError as error:
            answered(error)

    def _answered(self, asking: _Asking, request: MessageIdsRequest, response: Response | RemoteError) -> None:
        if asking.request is not request or self._is_over(asking):
            return
        asking.request = None
        if isinstance(response, RemoteError):
            self._fail(asking, str(response))
            return
        end = request.end_offset
        if not isinstance(response, MessageIdsResponse) or not _is_page_of(response, end):
            self._fail(asking, "its leader's answer is invalid")
            return
        asking.page += response.ids
        if response.end_offset is not None and len(asking.page) < asking.dedup.ids_max:
            asking.left[-1] = request.partition, response.end_offset
            self._ask(asking)
        else:
            self._gather(asking)

    def _gather(self, asking: _Asking) -> None:
        """Merge the ids of one partition into the others'; in a disk thread, as there may be many."""
        number, _ = asking.left[-1]
        found, page = asking.found, asking.page

        def run() -> None:
            found.gather(number, [(one.offset, one.timestamp_us, one.key) for one in page])

        def done(error: Exception | None) -> None:
            assert error is None, error
            asking.left.pop()
            asking.page = []
            self._ask(asking)

        self._outbox.work(Lane.READ, run, done)

    def _fail(self, asking: _Asking, why: str) -> None:
        if self._is_over(asking):
            return
        where = partition_label(asking.partition.stream, asking.left[-1][0])
        asking.dedup.failure = f"cannot get the message ids of {where}, from where keys have moved: {why}"
        self._end(asking)
        if asking.is_waited_for:
            self._backlog.may_go_on = True

    # Requests by other leaders

    def serve(self, find: PartitionLookup, call: Call, request: MessageIdsRequest) -> None:
        """Answer the leader of a partition that was added.

        RemoteError as from `PartitionLookup.led`; unknown_epoch, not_yet, overloaded.
        """
        self._serve(call.caller, find.led(request.stream_id, request.partition), request)

    def _serve(self, caller: Hashable, partition: Partition, request: MessageIdsRequest) -> None:
        if (refusal := no_leader_error(self._context.image, partition)) is not None:
            raise refusal
        if partition.leadership is None:
            raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} is not led now; ask again in a moment")
        if request.leader_epoch > partition.leader_epoch:  # this log may lack what the next leader has committed
            text = f"{partition.label} is led here in epoch {partition.leader_epoch}, not in {request.leader_epoch}"
            raise RemoteError(ErrorCode.UNKNOWN_EPOCH, text)
        partition.require_high_watermark()
        page = ReadIdPage(partition.view(), request.since_us, min(request.end_offset, partition.committed_end))

        def done(error: Exception | None) -> None:
            if caller not in self._open:
                return
            self._open.discard(caller)
            response: Response | RemoteError
            if isinstance(error, QueryGivenUpError):
                response = _STOPPING
            elif error is not None:
                response = as_remote_error(error)
            else:
                end = None if page.end_offset is None else Offset(page.end_offset)
                response = MessageIdsResponse(ids=tuple(page.ids), end_offset=end)
            self._outbox.step.reply(caller, response)

        self._executor.ask(caller, page, done)
        self._open.add(caller)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Drop the requests of callers that have disconnected."""
        gone = self._open.intersection(callers)
        self._open -= gone
        self._executor.callers_disconnected(gone)

    def stop(self) -> None:
        """Answer all requests: the broker is about to stop. May be called twice."""
        self._executor.stop(_STOPPING)


def _is_page_of(response: MessageIdsResponse, end: int) -> bool:
    """True if the page lies below `end`, is ordered backwards, and ends below `end`."""
    offsets = [one.offset for one in response.ids]
    goes_back = all(map(ge, offsets, offsets[1:]))
    lowest = offsets[-1] if offsets else end
    return (
        goes_back
        and max(offsets, default=-1) < end
        and (response.end_offset is None or (response.end_offset < end and response.end_offset <= lowest))
    )
