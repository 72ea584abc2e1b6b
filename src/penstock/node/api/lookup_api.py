"""Get and list-offsets requests: from the request to the query, and from its result to the answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, StreamId, TimestampUs
from penstock.base.subjects import are_plain, subject_mistake
from penstock.messages import (
    FindMessagesRequest,
    FindMessagesResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
    LiveRowsInfo,
)
from penstock.metadata import feature_versions
from penstock.metadata.feature_levels import SUBJECT_INDEX
from penstock.node.api.last_rows import KeptLasts, LastRows
from penstock.node.api.message_search import FindMessages, plain_lasts
from penstock.node.api.row_decisions import RowDecisions
from penstock.node.context import Context
from penstock.node.partition.log_queries import FindOffset, GetMessage, ListSubjects, Query, QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.replicas.leader_leases import LeaderLeases
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.stream_lifecycle import deleted_error
from penstock.node.security.access import Authorization, Call

_Query = TypeVar("_Query", GetMessage, FindOffset, ListSubjects, FindMessages)


class LookupApi:
    """Runs clients' queries."""

    def __init__(
        self,
        context: Context,
        decisions: RowDecisions,
        leases: LeaderLeases,
        *,
        stopping: RemoteError,
    ) -> None:
        self._decisions = decisions
        self._leases = leases
        self._outbox = context.outbox
        self._context = context
        self._format_version = context.settings.format_version
        self._stopping = stopping
        self._is_stopped = False
        self._executor = QueryExecutor(
            context.outbox, running_max=limits.QUERIES_RUNNING_MAX, waiting_max=limits.QUERIES_WAITING_MAX
        )
        self._last_rows = LastRows()
        self._open: set[Hashable] = set()  # callers without an answer

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        gone = self._open.intersection(callers)
        self._open -= gone
        self._executor.callers_disconnected(gone)

    def stop(self) -> None:
        """Cancel all queries because the broker is about to stop. May be called twice."""
        self._is_stopped = True
        self._executor.stop(self._stopping)

    def ask_get(self, find: PartitionLookup, call: Call, request: GetRequest) -> None:
        """Find the partition and call `get`. The last message of a key or subject is known only to the leader."""
        is_known = request.offset is not None and not request.is_latest  # any replica that shows it may answer
        partition = (find.held if is_known else find.readable)(request.stream_id, request.partition)
        if is_known and request.offset is not None and request.offset < partition.visible_end:
            self._when_decided(call, partition, lambda later: self.get(later, partition, request))
        else:
            self._when_latest(call, partition, lambda later: self.get(later, partition, request))

    def ask_offsets(self, find: PartitionLookup, call: Call, request: ListOffsetsRequest) -> None:
        """Find the led partition and call `list_offsets`; without counts while it is unknown which rows are hidden."""
        partition = find.led(request.stream_id, request.partition)
        if request.counts_rows or request.rows_from is not None:
            try:
                find.readable(request.stream_id, request.partition)
            except RemoteError:
                request = msgspec.structs.replace(request, counts_rows=False, rows_from=None)
        self._when_latest(call, partition, lambda later: self.list_offsets(later, partition, request))

    def _when_latest(
        self, call: Call, partition: Partition, go_on: Callable[[Call], None], *, is_of_lasts: bool = False
    ) -> None:
        """Go on once no other broker can have acked what this leader lacks, and the leader shows all that it has.

        `is_of_lasts`: only the last messages of subjects matter, which may be known before.
        """
        call = call.without_raw()

        def confirmed(later: Call) -> None:
            if is_of_lasts and partition.lasts_end >= partition.committed_end:
                go_on(later)
            else:
                self._when_decided(later, partition, go_on)

        self._leases.confirm(call, partition, self._going_on(call, confirmed))

    def _when_decided(self, call: Call, partition: Partition, go_on: Callable[[Call], None]) -> None:
        """Go on once the leader shows all that is committed now: what was acked before must be found."""
        if partition.needs_decisions:
            call = call.without_raw()
            self._decisions.when_decided(call, partition, self._going_on(call, go_on))
        else:
            go_on(call)

    def _going_on(self, call: Call, go_on: Callable[[Call], None]) -> Callable[[RemoteError | None], None]:
        """Return a callback that goes on, or answers with the error."""

        def done(error: RemoteError | None) -> None:
            try:
                if error is not None:
                    raise error
                go_on(call)
            except RemoteError as refusal:
                self._outbox.reply(call.caller, refusal)

        return done

    def ask_subjects(self, find: PartitionLookup, call: Call, request: ListSubjectsRequest) -> None:
        """Find the led partition and call `list_subjects`."""
        partition = find.readable(request.stream_id, request.partition)
        self._when_latest(call, partition, lambda later: self.list_subjects(later, partition, request))

    def get(self, call: Call, partition: Partition, request: GetRequest) -> None:
        """Return one message. Raise RemoteError (not_yet) until this replica knows the latest high watermark."""
        if (request.key is None) == (request.offset is None and request.subject is None):
            raise RemoteError(ErrorCode.BAD_REQUEST, "get: give one of offset, key and subject, or offset and subject")

        epoch = partition.leader_epoch  # of the result: the leader may change before the disk answers

        def ask() -> GetMessage:
            if request.offset is None or request.is_latest or request.offset >= partition.visible_end:
                partition.require_high_watermark()
            return GetMessage(
                partition.live_view(),
                partition.visible_end,
                offset=request.offset,
                key=request.key,
                subject=request.subject,
                is_indexed=self._context.image.has_feature(SUBJECT_INDEX),
            )

        def answer(query: GetMessage) -> None:
            response = GetResponse(
                offset=Offset(query.found_offset),
                log_start=Offset(partition.log_start),
                committed_end=Offset(partition.visible_end),
                format_version=self._format_version,
                leader_epoch=epoch,
                partitions=len(partition.stream.partitions),
            )
            self._outbox.reply(call.caller, response, query.data, looked_bytes=_searched_bytes(query))

        self._ask(call, partition, request, ask, answer)

    def list_offsets(self, call: Call, partition: Partition, request: ListOffsetsRequest) -> None:
        """Return the offset at a position. Raise RemoteError (not_yet) until a new leader knows the high watermark."""
        partition.require_high_watermark()
        epoch = partition.leader_epoch

        def ask() -> FindOffset:
            offset = {"earliest": partition.log_start, "latest": partition.visible_end}.get(str(request.at))
            timestamp_us = request.at if isinstance(request.at, int) else None
            return FindOffset(
                partition.live_view(),
                partition.visible_end,
                offset=offset,
                timestamp_us=timestamp_us,
                counts_rows=request.counts_rows,
                rows_from=request.rows_from,
            )

        def answer(query: FindOffset) -> None:
            response = ListOffsetsResponse(
                offset=Offset(query.offset),
                timestamp_us=None if query.timestamp_us is None else TimestampUs(query.timestamp_us),
                log_start=Offset(partition.log_start),
                committed_end=Offset(partition.visible_end),
                leader_epoch=epoch,
                live=None if query.live is None else LiveRowsInfo(**query.live._asdict()),
                rows=query.rows,
            )
            self._outbox.reply(call.caller, response)

        self._ask(call, partition, request, ask, answer)

    def list_subjects(self, call: Call, partition: Partition, request: ListSubjectsRequest) -> None:
        """Return subjects, or a count. RemoteError bad_request, not_yet; unsupported_version below level 0.4."""
        self._check_subjects(request, "list_subjects")
        partition.require_high_watermark()
        epoch = partition.leader_epoch
        end = partition.visible_end

        def answer(query: ListSubjects) -> None:
            response = ListSubjectsResponse(
                subjects=query.subjects,
                messages=query.messages,
                subject_count=query.subject_count,
                end_offset=Offset(query.end_offset),
                log_start=Offset(partition.log_start),
                committed_end=Offset(end),
                leader_epoch=epoch,
            )
            self._outbox.reply(call.caller, response, looked_bytes=query.looked_bytes)

        self._ask(call, partition, request, lambda: ListSubjects(partition.live_view(), end, request), answer)

    def ask_messages(self, find: PartitionLookup, call: Call, request: FindMessagesRequest) -> None:
        """Find the led partition and call `find_messages`."""
        partition = find.readable(request.stream_id, request.partition)
        is_plain = plain_lasts(request) is not None
        self._when_latest(
            call, partition, lambda later: self.find_messages(later, partition, request), is_of_lasts=is_plain
        )

    def kept_lasts(self, find: PartitionLookup, auth: Authorization, stream_id: StreamId) -> KeptLasts | None:
        """Return the last messages of subjects that are in memory, to be answered now.

        None: the caller may not read all of the stream, they are not certain now, or nothing is kept.
        """
        try:
            auth.check(FindMessagesRequest(stream_id=stream_id, subjects=(">",), which="last_of_each"))
            partition = find.readable(stream_id, 0)
            partition.require_high_watermark()
        except RemoteError:
            return None
        is_known = partition.lasts_end >= partition.committed_end
        if not is_known or partition.visible.applied.refusal or not self._leases.is_certain(partition):
            return None
        kept = self._last_rows.kept(partition)
        if kept is None or not auth.is_open:  # the rights of a user may end with time
            return kept
        return kept._replace(until_us=self._leases.certain_until(partition))

    def find_lasts(self, kept: KeptLasts, names: Sequence[bytes]) -> KeptLasts:
        """Look up plain subjects that `kept`, which holds now, is not certain of; see `LastRows.find`."""
        return self._last_rows.find(kept, names)

    def find_messages(self, call: Call, partition: Partition, request: FindMessagesRequest) -> None:
        """Return messages by subject. RemoteError bad_request, not_yet; unsupported_version below level 0.4."""
        self._check_subjects(request, "find_messages")
        if request.which == "at" and request.subjects != (">",):
            raise RemoteError(ErrorCode.BAD_REQUEST, "find_messages: offsets are found on all subjects: leave them out")
        partition.require_high_watermark()
        subjects = plain_lasts(request)
        epoch = partition.leader_epoch
        end = partition.visible_end if subjects is None else partition.lasts_end

        def ask() -> FindMessages:
            known = None if subjects is None else self._last_rows.known(partition, subjects, end)
            return FindMessages(partition.live_view(), end, request, known)

        def answer(query: FindMessages) -> None:
            if query.known is not None:
                self._last_rows.keep(partition, query.known.lasts, query.end, query.fresh)
            response = FindMessagesResponse(
                begin=Offset(query.begin),
                end_offset=Offset(query.end),
                next_offset=Offset(query.next_offset),
                subjects=query.subjects,
                messages=query.messages,
                log_start=Offset(partition.log_start),
                committed_end=Offset(end),
                format_version=self._format_version,
                leader_epoch=epoch,
            )
            self._outbox.reply(call.caller, response, query.data or None, looked_bytes=_searched_bytes(query))

        self._ask(call, partition, request, ask, answer)

    def _check_subjects(self, request: ListSubjectsRequest | FindMessagesRequest, what: str) -> None:
        if not are_plain([subject.encode(errors="replace") for subject in request.subjects]):
            for subject in request.subjects:
                if (mistake := subject_mistake(subject, wildcards=True)) is not None:
                    raise RemoteError(ErrorCode.BAD_REQUEST, f"{what}: {mistake}")
        if (error := feature_versions.missing(self._context.image, SUBJECT_INDEX)) is not None:
            raise error

    def _ask(
        self,
        call: Call,
        partition: Partition,
        request: GetRequest | ListOffsetsRequest | ListSubjectsRequest | FindMessagesRequest,
        ask: Callable[[], _Query],
        answer: Callable[[_Query], None],
    ) -> None:
        """Run a query in a disk thread; again, if retention meanwhile removed what it was to read.

        The answer takes the permissions of its moment: a rule may be dropped, or the session be over, while it waits.
        """
        caller = call.caller
        log_start = partition.log_start
        query = ask()

        def done(error: Exception | None) -> None:
            if caller not in self._open:
                return
            again = error is not None and partition.log_start > log_start
            if again and not self._is_stopped and partition.when_idle is None:
                try:
                    self._ask(call, partition, request, ask, answer)
                except RemoteError as overloaded:
                    error = overloaded
                else:
                    return
            self._open.discard(caller)
            if error is None:
                try:
                    call.authorize()
                except RemoteError as refusal:
                    self._outbox.reply(caller, refusal)
                else:
                    answer(query)
            elif self._is_stopped or isinstance(error, QueryGivenUpError):
                self._outbox.reply(caller, self._stopping)
            elif partition.when_idle is not None:
                self._outbox.reply(caller, deleted_error(partition.stream))
            else:
                told = partition.read_error(error)
                if told.code == ErrorCode.MESSAGE_NOT_FOUND:
                    told.details["partitions"] = len(partition.stream.partitions)
                self._outbox.reply(caller, told, looked_bytes=_searched_bytes(query))

        self._open.add(caller)
        try:
            self._executor.ask(caller, query, done, call.auth.who)
        except BaseException:
            self._open.discard(caller)
            raise


def _searched_bytes(query: Query) -> int:
    """Bytes that count against the client's rate: those of a search; a single message counts by its own size."""
    return query.looked_bytes if query.is_search else 0
