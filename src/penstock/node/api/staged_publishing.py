"""Publishes staged rows: the leader of the target partition writes each piece of a run once, as one batch.

Rules: a piece is one batch of the log, and so is replicated, committed, truncated and recovered as a whole. A run is
thus present up to a whole piece, in order, and a new leader never finds half a piece. What is published is a function
of the log (`ingest.published`): a leadership reads it at the first request, keeps it current, and drops it at its end.
Requests for one partition are done one after the other; one whose rows are not here yet delays only its own query. A
piece that is already published is answered once it is committed, and only committed rows are assembled. The queues are
bounded.

    request ─▶ runs are known ─▶ is it new? ─▶ rows committed here ─▶ assembled ─▶ written ─▶ committed, answered
             (read from the log)      │      (waits for replication)  (disk thread)
                                      └────▶ answered with its place

The rows come from this broker's own replica of the staging stream, whichever broker leads that: see `internal_streams`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import LeaderEpoch, Offset, PartitionKey, TimestampUs
from penstock.base.turns import Turns
from penstock.batch.codec import BatchProducer
from penstock.batch.header import ENDS_RUN, NO_RUN, OF_RUN
from penstock.commitlog import LogState
from penstock.hot.rows import HeaderRequests
from penstock.ingest.producers import ProducerBatch
from penstock.ingest.published import PublishedRun, PublishedRuns, RunCollector, RunPiece
from penstock.messages import (
    AppendResponse,
    ListPublishedRequest,
    ListPublishedResponse,
    PublishStagedRequest,
    PublishStagedResponse,
    QueryInfo,
    Request,
    Response,
    StagedRange,
    StagedStreamRequest,
)
from penstock.node.api.metadata_api import Handler
from penstock.node.api.piece_assembly import AssemblePiece, check_size, staged_rows_lost
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.internal_streams import target_of, users_own
from penstock.node.partition.log_queries import MistypedError, RowRules, UnknownVersionError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error, outcome_unknown_text
from penstock.node.partition.reverse_log_scan import ReverseLogScan
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import InternalCaller, Lane

_NOT_HERE = (
    ErrorCode.STREAM_NOT_FOUND,
    ErrorCode.NOT_YET,
    ErrorCode.STORAGE_FAILED,
    ErrorCode.NO_ENCRYPTION_KEY,
    ErrorCode.NOT_LEADER,
)
"""Errors of a replica that is unknown, being opened, or failed."""
_WAIT_US = limits.PUBLISH_WAIT_MS * 1_000


class AppendTo(Protocol):
    """The type of `AppendApi.append_to`."""

    def __call__(
        self,
        partition: Partition,
        caller: Hashable,
        data: bytearray,
        asked: HeaderRequests | None,
        by: BatchProducer,
        flags: int,
    ) -> None:
        """Append one batch to a partition led here."""


@dataclass(slots=True, eq=False)
class _Publish:
    """A pending request."""

    call: Call
    user: str  # the user whose share it takes
    request: PublishStagedRequest
    piece: RunPiece
    arrived_us: int
    deadline_us: int
    assembled: AssemblePiece | None = None  # under way, or done
    error: Exception | None = None
    is_at_work: bool = False
    is_last_try: bool = False  # assembled again, with the schemas as they were after the request came
    is_waiting: bool = False  # its rows were not here at the last check


class StagedPublisher:
    """Publishes staged rows into the partitions led here."""

    def __init__(self, context: Context, cluster: Cluster, find: PartitionLookup, *, write: AppendTo) -> None:
        self._outbox = context.outbox
        self._cluster = cluster
        self._find = find
        self._context = context
        self._write = write
        self._queues: dict[PartitionKey, deque[_Publish]] = {}  # by target partition
        self._turns: dict[PartitionKey, _Publish] = {}  # of each queue, the request being assembled or written
        # staging replica → target partitions that wait for its rows
        self._waiting: dict[PartitionKey, set[PartitionKey]] = {}
        self._behind: set[PartitionKey] = set()  # target partitions of which a request awaits schemas
        self._to_assemble: Turns[PartitionKey] = Turns()  # target partitions that wait for a free worker
        self._at_work = 0
        self._shares = FairShares()  # shares of the places in all queues
        self.handlers: Mapping[type[Request], Handler] = {
            StagedStreamRequest: self._stream,
            PublishStagedRequest: self._publish,
            ListPublishedRequest: self._list,
        }

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def awaits_schemas(self) -> bool:
        """True while a request waits for a newer list of versions of schemas."""
        return bool(self._behind)

    # Requests

    def _stream(self, call: Call, request: StagedStreamRequest) -> None:
        self._cluster.administer(call, request)

    def _publish(self, call: Call, request: PublishStagedRequest) -> None:
        partition = users_own(self._find.led(request.stream_id, request.partition))
        if request.query_id == NO_RUN:
            raise RemoteError(ErrorCode.BAD_REQUEST, "nothing was published: a query's id is not zero")
        if request.plan is None and (request.piece or not request.is_last):
            text = "nothing was published: a run of several pieces has a plan, and each piece names it"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        check_size(request.staged)
        user = sharer_of(call.auth.who)
        if not self._shares.fits(user, 1, limits.PUBLISHES_WAITING_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too much is to be published at once; wait for some to be answered")
        plan = 0 if request.plan is None else request.plan + 1
        piece = RunPiece(request.query_id, request.batch_id, request.piece, plan)
        self._shares.add(user)
        self._queues.setdefault(partition.key, deque()).append(
            _Publish(call.without_raw(), user, request, piece, call.now.elapsed_us, call.now.elapsed_us + _WAIT_US)
        )
        self._go_on(partition.key)

    def _list(self, call: Call, request: ListPublishedRequest) -> None:
        partition = self._find.led(request.stream_id, request.partition)
        runs = partition.published or (None if partition.leadership is None else self._read(partition))
        if runs is None or runs.is_reading:
            text = f"what was published in {partition.label} is being read; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        if runs.failure:
            partition.published = None  # the next request reads them again
            raise RemoteError(ErrorCode.STORAGE_FAILED, runs.failure)
        now_us = partition.timestamp_us(call.now)
        found = runs.page(request.after_query_id, limits.PUBLISHED_PER_ANSWER_MAX, now_us)
        told = tuple(
            QueryInfo(
                query_id=query_id,
                batch_id=last.batch_id,
                pieces=last.pieces,
                is_complete=last.is_complete,
                last_offset=Offset(last.end_offset - 1),
                timestamp_us=TimestampUs(last.timestamp_us),
            )
            for query_id, last in found
        )
        self._outbox.reply(call.caller, ListPublishedResponse(queries=told))

    # Queues

    def _go_on(self, key: PartitionKey) -> None:
        """Do what is possible for a partition now."""
        while (publish := self._following(key)) is not None:
            queue = self._queues[key]
            try:
                is_done = self._step(key, publish)
            except RemoteError as error:
                self._outbox.reply(publish.call.caller, error)
                is_done = True
            if not is_done and not publish.is_waiting:
                return
            if is_done and self._queues.get(key) is queue:
                self._shares.remove(publish.user)
                self._turns.pop(key, None)
                queue.remove(publish)
                if not queue:
                    del self._queues[key]

    def _following(self, key: PartitionKey) -> _Publish | None:
        """Return the next request; None while one is at work, or all wait for rows."""
        if (publish := self._turns.get(key)) is not None:
            return None if publish.is_at_work else publish
        held = set()  # a query's batches are known by their numbers, so they must stay in order
        for publish in self._queues.get(key, ()):
            if not publish.is_waiting and publish.piece.query_id not in held:
                return publish
            held.add(publish.piece.query_id)
        return None

    def _step(self, key: PartitionKey, publish: _Publish) -> bool:
        """Advance a request. Return True if it is answered, or will be once committed. Raise RemoteError."""
        publish.call.authorize()
        partition = self._find.led(*key)
        if partition.leadership is None:
            raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} is not led now; ask again in a moment")
        runs = partition.published or self._read(partition)
        if runs.is_reading:
            return False
        if runs.failure:
            partition.published = None  # the next request reads them again
            raise RemoteError(ErrorCode.STORAGE_FAILED, f"nothing was published: {runs.failure}")
        last = runs.find(publish.piece, partition.timestamp_us(self._context.now))
        if last is not None:
            self._tell_again(partition, publish, last)
            return True
        if isinstance(publish.error, UnknownVersionError) and not publish.is_last_try:
            if partition.check_after(publish.arrived_us, self._context.now) is None:
                self._behind.add(key)
                return False
            publish.is_last_try, publish.assembled, publish.error = True, None, None
            self._turns.pop(key, None)  # its rows may be here no more, and then others take their turn
        if publish.assembled is None:
            publish.is_waiting = not self._is_staged(key, publish)
            if not publish.is_waiting:
                self._assemble(partition, publish)
            return False
        if publish.error is not None:
            partition.counters["schema_refused"] += isinstance(publish.error, MistypedError)
            raise as_remote_error(publish.error)
        if partition.value_check is not None:
            partition.counters["schema_checked"] += sum(
                one.end_offset - one.base_offset for one in publish.request.staged
            )
        self._store(partition, publish)
        return True

    def _read(self, partition: Partition) -> PublishedRuns:
        partition.published = runs = PublishedRuns()
        since_us = partition.timestamp_us(self._context.now) - limits.PUBLISHED_WINDOW_MS * 1_000
        work = ReverseLogScan(partition.view(), since_us, RunCollector(since_us))

        def done(error: Exception | None) -> None:
            if error is None:
                runs.known(work.found)
            else:
                runs.failure = f"what was published in the log cannot be read: {as_remote_error(error)}"
            self._go_on(partition.key)

        self._outbox.work(Lane.READ, work.run, done)
        return runs

    # Staged rows

    def _is_staged(self, key: PartitionKey, publish: _Publish) -> bool:
        """True if all rows are committed here; else the request waits. Raise RemoteError: staged_lost, not_yet."""
        request = publish.request
        replica = self._staged(request)
        for one in request.staged:
            _check_kept(replica, one)
        end = max(one.end_offset for one in request.staged)
        if replica.committed_end >= end:
            return True
        if self._context.now.elapsed_us >= publish.deadline_us:
            text = f"what is staged up to {end} is not committed here yet, but up to {replica.committed_end}"
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was published: {text}; ask again in a moment")
        self._waiting.setdefault(replica.key, set()).add(key)
        return False

    def _staged(self, request: PublishStagedRequest) -> Partition:
        try:
            replica = self._find.held(request.staged_stream_id, request.partition)
        except RemoteError as error:
            if error.code == ErrorCode.STREAM_CHANGED:
                raise staged_rows_lost(request.staged[0], "the stream that held it was deleted") from None
            if error.code in _NOT_HERE:
                raise RemoteError(ErrorCode.NOT_YET, f"nothing was published: {error.message}") from None
            raise
        if target_of(replica.stream) != request.stream_id:
            text = f"nothing was published: stream {replica.stream.name!r} does not hold what is staged for this one"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return replica

    def _assemble(self, partition: Partition, publish: _Publish) -> None:
        """Assemble a request's rows in a disk thread, when one is free. RemoteError not_yet."""
        key = partition.key
        if self._at_work >= limits.PUBLISHES_AT_WORK_MAX:
            if key not in self._to_assemble:
                self._to_assemble.put(publish.user, key)
            return
        request = publish.request
        config = self._cluster.image.by_id(request.stream_id).config
        rules = RowRules.of(config, request.partition)._replace(values=partition.refusing_check())
        view = self._staged(request).view()
        publish.assembled = work = AssemblePiece(view, request.staged, rules, publish.piece)
        publish.is_at_work = True
        self._turns[key] = publish
        self._at_work += 1

        def done(error: Exception | None) -> None:
            self._at_work -= 1
            publish.is_at_work = False
            publish.error = error
            self._go_on(key)
            while self._to_assemble and self._at_work < limits.PUBLISHES_AT_WORK_MAX:
                self._go_on(self._to_assemble.take())

        self._outbox.work(Lane.READ, work.run, done)

    def grown(self, partition: Partition) -> None:
        """Recheck requests that wait for rows of this partition: more is committed, or it was removed."""
        for key in self._waiting.pop(partition.key, ()):
            self._look_again(key)

    def _look_again(self, key: PartitionKey) -> None:
        for publish in self._queues.get(key, ()):
            publish.is_waiting = False
        self._go_on(key)

    # Answers

    def _store(self, partition: Partition, publish: _Publish) -> None:
        assert publish.assembled is not None
        piece, request = publish.piece, publish.request
        by = BatchProducer(0, piece.number, piece.batch_id, piece.query_id, piece.plan)
        flags = OF_RUN | (ENDS_RUN if request.is_last else 0)
        there = PublishedRun(piece.batch_id, piece.number + 1, request.is_last, piece.plan, 0, 0, 0)
        caller = InternalCaller(lambda response: self._tell(publish, there, response, duplicate=False))
        self._write(partition, caller, publish.assembled.message, publish.assembled.asked, by, flags)

    def _tell_again(self, partition: Partition, publish: _Publish, last: PublishedRun) -> None:
        if last.end_offset > partition.committed_end and partition.log.state is LogState.FENCED:
            self._outbox.reply(
                publish.call.caller, outcome_unknown_text(partition.log.fence_reason)
            )  # can no longer be committed here
            return
        partition.counters["duplicates"] += 1
        caller = InternalCaller(lambda response: self._tell(publish, last, response, duplicate=True))
        place = ProducerBatch(0, 0, last.base_offset, last.end_offset, last.timestamp_us)
        partition.append_again(caller, place, self._outbox.step)

    def _tell(
        self, publish: _Publish, there: PublishedRun, response: Response | RemoteError, *, duplicate: bool
    ) -> None:
        if not isinstance(response, AppendResponse):
            self._outbox.reply(publish.call.caller, response)
            return
        is_same = there.batch_id == publish.piece.batch_id
        has_place = is_same and there.pieces == publish.piece.number + 1
        self._outbox.reply(
            publish.call.caller,
            PublishStagedResponse(
                duplicate=duplicate,
                is_complete=there.is_complete if is_same else True,
                pieces=there.pieces if is_same else None,
                plan=Offset(there.plan - 1) if is_same and there.plan else None,
                base_offset=response.base_offset if has_place else None,
                end_offset=response.end_offset if has_place else None,
                leader_epoch=LeaderEpoch(response.leader_epoch),
                fsynced=response.fsynced,
            ),
        )

    # The end

    def refuse(self, key: PartitionKey, error: RemoteError) -> None:
        """Fail a partition's requests: its stream was deleted, or another broker leads."""
        self._turns.pop(key, None)
        for publish in self._queues.pop(key, ()):
            self._shares.remove(publish.user)
            self._outbox.reply(publish.call.caller, error)

    def stop(self, error: RemoteError) -> None:
        """Fail all requests because the broker stops."""
        for key in list(self._queues):
            self.refuse(key, error)

    def tick(self) -> None:
        """Recheck waiting requests, some of which may have timed out."""
        waiting, self._waiting = self._waiting, {}
        for keys in waiting.values():
            for key in keys:
                self._look_again(key)
        behind, self._behind = self._behind, set()
        for key in behind:
            self._go_on(key)


def _check_kept(replica: Partition, staged: StagedRange) -> None:
    """Raise RemoteError (staged_lost) if this log shows that those rows are not kept."""
    if staged.base_offset < replica.log_start:
        raise staged_rows_lost(staged, f"it has expired: what is staged begins at {replica.log_start}")
    log, leader_epoch = replica.log, staged.leader_epoch
    following = next((one for one in log.lineage if one.leader_epoch > leader_epoch), None)
    if following is not None and following.start_offset < staged.end_offset:
        raise staged_rows_lost(staged, f"that leader epoch ended at {following.start_offset}")
    leads = replica.leadership is not None and replica.leader_epoch >= leader_epoch
    if leads and log.log_end < staged.end_offset:
        raise staged_rows_lost(staged, f"what is staged ends at {log.log_end}")
