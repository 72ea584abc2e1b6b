"""Appends from clients to partitions led here.

Rules: a disk thread checks a batch (`appends`), then it is compared with its producer's earlier batches (`producers`),
and then written, in request order. Other parts of the node that write batches use `append_to`, so that upkeep,
followers and readers are notified of every write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.batch.header import NO_RUN
from penstock.hot.rows import HeaderRequests
from penstock.messages import (
    AppendAtRequest,
    AppendAtResponse,
    AppendOnceRequest,
    AppendRequest,
    AppendResponse,
    ListProducersRequest,
    Request,
    Response,
    StageRequest,
    StageResponse,
)
from penstock.metadata.image import StreamState
from penstock.node.api.append_queue import AppendQueue
from penstock.node.api.internal_log import Rows, encoded_rows
from penstock.node.api.metadata_api import Handler
from penstock.node.api.partition_append import append, append_at
from penstock.node.api.producers import KnownProducers
from penstock.node.context import Context
from penstock.node.partition.internal_streams import target_of, users_own
from penstock.node.partition.leader_hints import no_leader_error
from penstock.node.partition.log_queries import CheckAppend, OwnKeys, RowRules
from penstock.node.partition.partition import Partition
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.replicas import Replicas
from penstock.node.security.access import Call
from penstock.node.step import InternalCaller

Appending = AppendRequest | AppendOnceRequest


class AppendApi:
    """All appends of one broker; `bytes_max` limits the bytes under way."""

    def __init__(self, context: Context, find: PartitionLookup, replicas: Replicas, counters: Counter[str]) -> None:
        self.appends = AppendQueue(
            context.outbox,
            context.settings.partition_in_flight_bytes_max,
            store=self._store,
            renew=self._renew,
            counters=counters,
        )
        self._counters = counters
        self._outbox = context.outbox
        self._find = find
        self._replicas = replicas
        self._context = context
        self._producers = KnownProducers(context, known=self.appends.go_on)
        self.handlers: Mapping[type[Request], Handler] = {
            AppendRequest: self._append,
            AppendOnceRequest: self._append,
            AppendAtRequest: self._append_at,
            StageRequest: self._stage,
            ListProducersRequest: partial(self._producers.tell, find),
        }

    def _append(self, call: Call, request: Appending) -> None:
        partition = users_own(self._find.led(request.stream_id, request.partition))
        allowed = call.auth.appended_subjects(partition.stream)
        rules = _rules_of(partition.stream, partition.key.partition)
        rules = rules._replace(allowed=allowed, values=partition.refusing_check())
        self.appends.add(call, partition.key, CheckAppend(call.raw, rules, _producer_of(request)))

    def _renew(self, key: PartitionKey, check: CheckAppend, arrived_us: int) -> bool:
        values = users_own(self._find.led(*key)).check_after(arrived_us, self._context.now)
        if values is not None:
            check.rules = check.rules._replace(values=values)
        return values is not None

    def _append_at(self, call: Call, request: AppendAtRequest) -> None:
        """Append rows to the named partition even if their keys belong to another since partitions were added."""
        partition = users_own(self._find.led(request.stream_id, request.partition))
        rules = RowRules.of(partition.stream.config, partition.key.partition)
        check = CheckAppend(call.raw, rules, keeps_numbers=True, may_be_ahead=request.may_be_ahead)
        self.appends.add(self._answered_with(AppendAtResponse, call), partition.key, check)

    def _stage(self, call: Call, request: StageRequest) -> None:
        """Store staged rows like any append; rows that the target stream would refuse are refused here."""
        partition = self._find.led(request.stream_id, request.partition)
        target = target_of(partition.stream)
        if target is None:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing is staged in stream {partition.stream.name!r}")
        of = partition.stream if request.is_plan else self._context.image.by_id(target)
        rules = _rules_of(of, partition.key.partition)
        if request.query_id == NO_RUN:
            raise RemoteError(ErrorCode.BAD_REQUEST, "nothing was staged: a query's id is not zero")
        by = NOBODY if request.query_id is None else BatchProducer(0, 0, request.batch_id, request.query_id)
        check = CheckAppend(call.raw, rules, by, is_staged=True)
        self.appends.add(self._answered_with(StageResponse, call), partition.key, check)

    def _answered_with(self, kind: type[AppendAtResponse | StageResponse], call: Call) -> Call:
        """Return the call, whose caller gets an AppendResponse as one of this kind, with the same fields."""
        caller = call.caller  # not `call`: that would keep the raw part until the commit

        def heard(response: Response | RemoteError) -> None:
            if isinstance(response, AppendResponse):
                response = kind(**msgspec.structs.asdict(response))
            self._outbox.reply(caller, response)

        return call._replace(caller=InternalCaller(heard))

    def _store(self, key: PartitionKey, call: Call, check: CheckAppend) -> bool:
        partition, caller = self._replicas.partitions[key], call.caller
        if (refusal := self.not_led(partition)) is not None:
            self._outbox.step.reply(caller, refusal)
            return True
        try:
            call.authorize()
            if isinstance(call.request, Appending):
                _check_same_subjects(call, partition, check)
        except RemoteError as error:
            self._outbox.step.reply(caller, error)
            return True
        try:
            if not self.is_ready(partition, check.message, partial(self.appends.go_on, key)):
                return False
        except RemoteError as error:
            self._outbox.step.reply(caller, error)
            return True
        if check.keeps_numbers:
            self._put(partition, lambda: append_at(partition, caller, check, self._context.now, self._outbox.step))
            return True
        is_new = self._producers.is_new(partition, caller, check)
        if is_new is not None and check.rules.values is not None:
            self._counters["schema_checked"] += check.count
        if is_new and (refusal := _not_its_own(partition, check)) is not None:
            self._outbox.step.reply(caller, refusal)
            return True
        if is_new:
            self.append_to(partition, caller, check.message, check.asked, check.producer)
        return is_new is not None

    def is_ready(self, partition: Partition, message: bytearray, go_on: Callable[[], None]) -> bool:
        """Return if it is known what a checked batch is judged by, limits and last messages of subjects.

        If not, it is read, and `go_on` is called then. RemoteError: it could not be read.
        """
        limit = partition.row_limit
        if limit is not None and limit.failure:
            why, limit.failure = limit.failure, ""  # the next one has them read again
            raise RemoteError(ErrorCode.STORAGE_FAILED, f"nothing was stored: {why}")
        if limit is not None and not limit.is_known:
            limit.waiting.append(go_on)
            partition.read_gaps(self._outbox.step)
            return False
        self._replicas.companions.note_unusable(partition)
        if partition.looks_up_subjects(message, self._outbox.step):
            assert partition.lasts is not None
            partition.lasts.waiting.append(go_on)
            return False
        return True

    def not_led(self, partition: Partition) -> RemoteError | None:
        """Return the error that names the leader; None if this broker leads."""
        return no_leader_error(self._context.image, partition)

    def append_to(
        self,
        partition: Partition,
        caller: Hashable,
        data: bytearray,
        asked: HeaderRequests | None = None,
        by: BatchProducer = NOBODY,
        flags: int = 0,
        *,
        are_rollups: bool = False,
    ) -> None:
        """Append the node's own batch to a partition led here; `caller` is answered once it is committed.

        `are_rollups`: all messages of a batch of several are rollups of their subjects.
        """
        step = self._outbox.step

        def write() -> None:
            append(partition, caller, data, self._context.now, step, asked, by, flags, are_rollups=are_rollups)

        self._put(partition, write)

    def append_to_companion(
        self, target: Partition, rows: Rows, done: Callable[[AppendResponse | RemoteError], None]
    ) -> None:
        """Append rows to the companion log of a partition led here.

        `done` is called with the answer once they are committed and the consumer of companion logs has them here, or
        with the reason why not. Raise RemoteError (not_yet, overloaded, too_large), with nothing done.
        """
        size_bytes = sum(len(key or b"") + len(value or b"") for key, value in rows)
        if len(rows) > limits.BATCH_ROWS_MAX or size_bytes > limits.BATCH_ROWS_BYTES_MAX:
            text = f"nothing was stored: {len(rows)} marks of {size_bytes} bytes at once are more than"
            most = f"{limits.BATCH_ROWS_MAX} of {limits.BATCH_ROWS_BYTES_MAX} bytes; send them in several requests"
            raise RemoteError(ErrorCode.TOO_LARGE, f"{text} {most}")
        companions = self._replicas.companions
        companion = companions.led(target)

        def written(response: Response | RemoteError) -> None:
            if not isinstance(response, AppendResponse):
                assert isinstance(response, RemoteError), response
                done(response)
                return
            answer = response
            companions.written(companion.key, answer.base_offset, rows)
            companions.when_passed(
                companion.key, answer.end_offset, lambda error: done(answer if error is None else error)
            )

        subject = companion.stream.config.subject.encode()
        self.append_to(companion, InternalCaller(written), encoded_rows(subject, rows))

    def _put(self, partition: Partition, write: Callable[[], None]) -> None:
        if not partition.leads:
            self._replicas.log_maintenance.lead(partition)
        committed_end = partition.committed_end
        write()
        self.written(partition, committed_end)

    def written(self, partition: Partition, committed_end: int) -> None:
        """Notify upkeep and followers of a write; `committed_end` is the value before it."""
        if partition.leadership is not None:
            self._replicas.leader_replication.appended(partition)
        self._replicas.log_maintenance.note_progress(partition, committed_end)


def _rules_of(stream: StreamState, partition: int) -> RowRules:
    return RowRules.of(stream.config, partition, OwnKeys.of(stream, partition))


def _not_its_own(partition: Partition, check: CheckAppend) -> RemoteError | None:
    """Return why a checked batch is refused while keys move; None if it is stored."""
    keys = partition.keys
    if keys is None:
        return None
    if check.rules.own is None or check.rules.own.key_map.partitions != len(partition.stream.partitions):
        text = f"nothing was stored: stream {partition.stream.name!r} has just got more partitions; ask again"
        return RemoteError(ErrorCode.KEY_ELSEWHERE, text)
    if not keys.is_open:
        text = f"nothing was stored: {partition.label} begins in a moment, once older ones have given up its keys"
        return RemoteError(ErrorCode.KEY_MOVING, text)
    return None


def _check_same_subjects(call: Call, partition: Partition, check: CheckAppend) -> None:
    """Raise RemoteError not_yet unless the caller may append on the subjects for which the rows were checked."""
    if call.auth.appended_subjects(partition.stream) != check.rules.allowed:
        text = "nothing was stored: the subjects on which you may append have just changed; ask again"
        raise RemoteError(ErrorCode.NOT_YET, text)


def _producer_of(request: Appending) -> BatchProducer:
    if isinstance(request, AppendRequest):
        return NOBODY
    return BatchProducer(request.producer_id, request.producer_epoch, request.sequence)
