"""Deletes single messages, and those of a subject, on request: the leader hides their rows by marks.

Rules: a disk thread finds the rows, so that an answer tells messages from offsets. Then the leader writes marks for
them to the companion log, which the first deletion of a stream has created, and answers once they are committed and
applied here: no later read of this leader, and none of any later leader, shows the rows. Only committed rows are
deleted: they cannot be truncated, nor written again at the same offset. A request without an answer may have been
carried out; repeated, it finds the rows gone. Secure deletions are answered in the same way: `Erasures` tells how far
the replicas have erased them.

A purge finds the delete markers, too, that take the place of what it would have hidden: it waits for those that are
written already, and what expires waits for pending requests (`may_hide`).

    requested → found → recorded for `__audit` → companion log there → marked → committed → answered
                  └─ dry run, or nothing found: answered
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import Offset
from penstock.base.subjects import AUDIT_STREAM
from penstock.commitlog import LogState
from penstock.live.marks import HideReason
from penstock.messages import (
    AddCompanionRequest,
    AppendResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    RecordDeletionRequest,
    Request,
    Response,
)
from penstock.metadata.companions import marks_key
from penstock.metadata.effects.streams import purge_denied_text
from penstock.metadata.feature_levels import DELETION
from penstock.metadata.feature_versions import missing
from penstock.node.api.metadata_api import Handler
from penstock.node.api.row_decisions import AppendToCompanion, RowDecisions
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.internal_streams import users_own
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.partition.row_search import FindOffsets, FindSubject, matches_any
from penstock.node.replicas.hidden_rows import HiddenRows
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.replication.leader import Leadership

_RANGES_MAX = limits.AUDITED_RANGES_MAX
_TIMEOUT_US = limits.DELETION_TIMEOUT_MS * 1_000
_ERASED_SUBJECT = "?"  # recorded in place of the subject of a secure purge, which is to leave all files


@dataclass(slots=True, eq=False)
class _Asked:
    """A pending request."""

    call: Call
    partition: Partition
    leadership: Leadership
    request: DeleteMessagesRequest | PurgeSubjectRequest
    deadline_us: int
    start: int
    query: FindOffsets | FindSubject
    awaits_companion: bool = False
    awaits_record: bool = False


class Deletions:
    """All pending deletions of one broker."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        find: PartitionLookup,
        hidden: HiddenRows,
        decisions: RowDecisions,
        *,
        write: AppendToCompanion,
        stopping: RemoteError,
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._cluster = cluster
        self._find = find
        self._hidden = hidden
        self._decisions = decisions
        self._write = write
        self._stopping = stopping
        self._waiting: dict[Hashable, _Asked] = {}
        self._executor = QueryExecutor(
            context.outbox, running_max=limits.DELETIONS_RUNNING_MAX, waiting_max=limits.DELETIONS_WAITING_MAX
        )
        self.handlers: Mapping[type[Request], Handler] = {
            DeleteMessagesRequest: self._ask,
            PurgeSubjectRequest: self._ask,
        }

    def _ask(self, call: Call, request: DeleteMessagesRequest | PurgeSubjectRequest) -> None:
        """Answer the caller once it is done. Raise RemoteError: not_leader, not_yet, read_only, overloaded, …"""
        partition = users_own(self._find.readable(request.stream_id, request.partition))
        leadership = partition.leadership
        if leadership is None:  # the only replica may be unregistered, as on a full disk
            raise RemoteError(ErrorCode.NOT_LEADER, f"{partition.label} is not led now; ask again in a moment")
        self._check(call, partition, request)
        call = call.without_raw()

        def decided(error: RemoteError | None) -> None:
            try:
                if error is not None:
                    raise error
                if partition.visible_end < partition.markers_end:  # markers were written meanwhile
                    self._decisions.when_decided(call, partition, decided, partition.markers_end)
                else:
                    self._search(call, partition, leadership, request)
            except RemoteError as refusal:
                self._outbox.reply(call.caller, refusal)

        self._decisions.when_decided(call, partition, decided, partition.markers_end)

    def may_hide(self, partition: Partition, lasts: Mapping[bytes, int]) -> bool:
        """True if a pending request may hide one of these messages, given by subject and offset."""
        pending = [one.request for one in self._waiting.values() if one.partition is partition]
        if not pending:
            return False
        purges = [one for one in pending if isinstance(one, PurgeSubjectRequest) and not one.is_dry_run]
        deletions = [one for one in pending if isinstance(one, DeleteMessagesRequest)]
        if any(not set(one.offsets).isdisjoint(lasts.values()) for one in deletions):
            return True
        return bool(purges) and matches_any([one.subject for one in purges], list(lasts))

    def _search(
        self,
        call: Call,
        partition: Partition,
        leadership: Leadership,
        request: DeleteMessagesRequest | PurgeSubjectRequest,
    ) -> None:
        """Search once a limit by subject has been applied to all that was acked: a deleted message still hid others."""
        deadline_us = self._context.now.elapsed_us + _TIMEOUT_US
        query = _query(partition, request)
        asked = _Asked(call, partition, leadership, request, deadline_us, _start(partition, request), query)
        self._executor.ask(call.caller, query, partial(self._searched, asked), call.auth.who)
        self._waiting[call.caller] = asked

    def _check(self, call: Call, partition: Partition, request: DeleteMessagesRequest | PurgeSubjectRequest) -> None:
        if (error := missing(self._context.image, DELETION)) is not None:
            raise error
        partition.require_high_watermark()
        if partition.log.state is not LogState.WRITABLE:
            text = f"nothing was deleted: the log of {partition.label} is {partition.log.state.value}; see its status"
            is_damaged = partition.log.state is LogState.READ_ONLY
            raise RemoteError(ErrorCode.READ_ONLY if is_damaged else ErrorCode.STORAGE_FAILED, text)
        if partition.stream.intake is Intake.SEALED:
            text = f"stream {partition.stream.name!r} is sealed: nothing of it goes, unless it is deleted as a whole"
            raise RemoteError(ErrorCode.READ_ONLY, text)
        if request.is_secure and partition.stream.config.is_deletion_suspended:
            text = (
                f"nothing was deleted: the deletion of stream {partition.stream.name!r} is suspended (suspend_deletion)"
            )
            raise RemoteError(ErrorCode.READ_ONLY, f"{text}; delete without `secure`, or set that to `no` first")
        config = partition.stream.config
        if isinstance(request, PurgeSubjectRequest) and config.denies_purge:
            raise RemoteError(ErrorCode.READ_ONLY, purge_denied_text(config.name))
        if isinstance(request, DeleteMessagesRequest) and config.denies_deletion:
            text = f"no message of stream {config.name!r} can be deleted: deny_delete is set, for ever"
            raise RemoteError(ErrorCode.READ_ONLY, text)
        shares = FairShares((sharer_of(one.call.auth.who), 1) for one in self._waiting.values())
        if not shares.fits(sharer_of(call.auth.who), 1, limits.DELETIONS_WAITING_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too many deletions at once; wait for some to be answered")

    def _searched(self, asked: _Asked, error: Exception | None) -> None:
        partition = asked.partition
        if self._waiting.get(asked.call.caller) is not asked:
            return
        if isinstance(error, QueryGivenUpError):
            self._answer(asked, self._stopping)
            return
        try:
            if partition.leadership is not asked.leadership or partition.when_idle is not None:
                text = f"nothing was deleted: {partition.label} has just changed its leader; ask again"
                raise RemoteError(ErrorCode.NOT_LEADER, text)
            if error is not None and _start(partition, asked.request) > asked.start:
                self._search_again(asked)
                return
            if error is not None:
                raise partition.read_error(error)
            asked.call.authorize()
        except RemoteError as refusal:
            self._answer(asked, refusal)
            return
        request, rows = asked.request, asked.query.rows
        is_done = not rows or (request.is_secure and self._hidden.are_secure(partition, rows))
        if _is_dry_run(request) or is_done:
            self._answer(asked, None)
        else:
            self._record(asked)

    def _record(self, asked: _Asked) -> None:
        """Record for `__audit` what a user deletes, before it is deleted: so no deletion is left out."""
        by, request = asked.call.auth.signature, asked.request
        if not by:
            self._mark(asked)
            return
        ranges = tuple((Offset(begin), Offset(end)) for begin, end in islice(asked.query.rows.runs(), _RANGES_MAX))
        purge = request if isinstance(request, PurgeSubjectRequest) else None
        record = RecordDeletionRequest(
            stream_id=asked.partition.key.stream_id,
            partition=asked.partition.key.partition,
            by=by,
            messages=len(asked.query.found),
            ranges=ranges,
            subject="" if purge is None else _ERASED_SUBJECT if purge.is_secure else purge.subject,
            keep=0 if purge is None else purge.keep,
            is_secure=request.is_secure,
        )
        asked.awaits_record = True
        self._cluster.link.ask(record, partial(self._recorded, asked))

    def _recorded(self, asked: _Asked, response: Response | RemoteError) -> None:
        if self._waiting.get(asked.call.caller) is not asked or not asked.awaits_record:
            return
        asked.awaits_record = False
        if isinstance(response, RemoteError):
            text = f"nothing was deleted: it could not be recorded for {AUDIT_STREAM}: {response.message}"
            self._answer(asked, RemoteError(response.code, text, **response.details))
        elif asked.partition.leadership is asked.leadership and asked.partition.when_idle is None:
            self._mark(asked)

    def _mark(self, asked: _Asked) -> None:
        """Write the marks; first have the companion log created, if there is none yet."""
        partition = asked.partition
        try:
            if not partition.stream.has_marks:
                self._await_companion(asked)
                return
            by = sharer_of(asked.call.auth.who)
            request = asked.request
            rows = self._hidden.marks(
                partition, asked.query.pieces, _reason(request), by, self._context.now, is_secure=request.is_secure
            )
            self._write(partition, rows, partial(self._marked, asked))
        except RemoteError as refusal:
            if refusal.code == ErrorCode.NOT_YET:
                asked.awaits_companion = True  # it is being opened, or begins to lead: the next tick tries again
            else:
                self._answer(asked, refusal)

    def _await_companion(self, asked: _Asked) -> None:
        asked.awaits_companion = True
        request = AddCompanionRequest(stream_id=asked.partition.key.stream_id)
        self._cluster.link.ask(request, partial(self._companion_added, asked))

    def _companion_added(self, asked: _Asked, response: Response | RemoteError) -> None:
        if isinstance(response, RemoteError) and self._waiting.get(asked.call.caller) is asked:
            self._answer(asked, response)

    def companion_led(self, companion: Partition) -> None:
        """Go on with the deletions that wait for this companion log."""
        for asked in list(self._waiting.values()):
            if asked.awaits_companion and marks_key(asked.partition.key) == companion.key:
                self._go_on(asked)

    def _go_on(self, asked: _Asked) -> None:
        if asked.partition.leadership is asked.leadership and asked.partition.stream.has_marks:
            asked.awaits_companion = False
            try:
                asked.call.authorize()  # a rule may have been dropped while it waited
            except RemoteError as refusal:
                self._answer(asked, refusal)
            else:
                self._mark(asked)

    def _search_again(self, asked: _Asked) -> None:
        """Search again: retention has removed what the query was to read."""
        asked.start = _start(asked.partition, asked.request)
        asked.query = _query(asked.partition, asked.request)
        self._executor.ask(asked.call.caller, asked.query, partial(self._searched, asked), asked.call.auth.who)

    def _marked(self, asked: _Asked, answer: AppendResponse | RemoteError) -> None:
        if self._waiting.get(asked.call.caller) is asked:
            self._answer(asked, answer if isinstance(answer, RemoteError) else None)

    def _answer(self, asked: _Asked, error: RemoteError | None) -> None:
        del self._waiting[asked.call.caller]
        if error is not None:
            self._outbox.reply(asked.call.caller, error)
            return
        request, query = asked.request, asked.query
        marks_end = Offset(self._hidden.marks_end(asked.partition))
        if isinstance(query, FindSubject):
            next_offset = None if query.next_offset is None else Offset(query.next_offset)
            purged = PurgeSubjectResponse(
                messages=query.deleted,
                before=Offset(query.before),
                next_offset=next_offset,
                keep=query.keep,
                marks_end=marks_end,
            )
            self._outbox.reply(asked.call.caller, purged)
            return
        assert isinstance(request, DeleteMessagesRequest)
        found, offsets = set(query.found), sorted(set(request.offsets))
        others = [offset for offset in offsets if offset not in found]
        missing = tuple(offset for offset in others if not self._hidden.has(asked.partition, offset))
        deleted = DeleteMessagesResponse(
            deleted=query.deleted,
            already_deleted=len(offsets) - query.deleted - len(missing),
            missing=missing,
            marks_end=marks_end,
            committed_end=Offset(asked.partition.visible_end),
        )
        self._outbox.reply(asked.call.caller, deleted)

    def refuse(self, partition: Partition, error: RemoteError) -> None:
        """Fail a partition's requests: it is no longer led here, or gone; they may still take effect."""
        for asked in [one for one in self._waiting.values() if one.partition is partition]:
            self._answer(asked, error)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        gone = self._waiting.keys() & set(callers)
        for caller in gone:
            del self._waiting[caller]
        self._executor.callers_disconnected(gone)

    def stop(self) -> None:
        """Fail all requests because the broker stops. May be called twice."""
        self._executor.callers_disconnected(self._waiting)  # they are answered here, once
        for asked in list(self._waiting.values()):
            self._answer(asked, self._stopping)

    def tick(self, now_us: int) -> None:
        """Go on with what waits for a companion log, and fail what has timed out; `now_us` is elapsed time."""
        for asked in [one for one in self._waiting.values() if one.awaits_companion]:
            self._go_on(asked)
        for asked in [one for one in self._waiting.values() if one.deadline_us <= now_us]:
            text = f"nothing is known of the deletion in {asked.partition.label} yet; it may be done in a moment"
            self._executor.callers_disconnected((asked.call.caller,))  # the search, if that is what took so long
            self._answer(asked, RemoteError(ErrorCode.TIMED_OUT, f"{text}: ask again"))


def _start(partition: Partition, request: DeleteMessagesRequest | PurgeSubjectRequest) -> int:
    """Return the first offset to search: what is to be erased may lie below the log start, in the first file."""
    return partition.log.files_start if request.is_secure else partition.log_start


def _query(partition: Partition, request: DeleteMessagesRequest | PurgeSubjectRequest) -> FindOffsets | FindSubject:
    end, view = partition.visible_end, partition.live_view()
    shown_start, view = view.log_start, view.starting_at(_start(partition, request))
    if isinstance(request, DeleteMessagesRequest):
        offsets = sorted(set(request.offsets))
        return FindOffsets(view, shown_start, end, offsets, is_secure=request.is_secure)
    before = end if request.before is None else min(request.before, end)
    subject, start, keep = request.subject, request.start, request.keep
    return FindSubject(view, shown_start, subject, start, before, keep, is_secure=request.is_secure)


def _is_dry_run(request: DeleteMessagesRequest | PurgeSubjectRequest) -> bool:
    return isinstance(request, PurgeSubjectRequest) and request.is_dry_run


def _reason(request: DeleteMessagesRequest | PurgeSubjectRequest) -> HideReason:
    return HideReason.DELETE if isinstance(request, DeleteMessagesRequest) else HideReason.PURGE
