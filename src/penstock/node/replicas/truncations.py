"""Truncation on request: raises a partition's log start offset, like Kafka's DeleteRecords.

Rules: the request goes to the partition's leader, which refuses offsets that are not committed. What it accepts goes
through the metadata before it counts: so it survives the leader, and the next leader's log begins there before it
serves anything. The answer is sent when the log here begins there, too, durably. With the metadata change the leader
forgets the message ids of removed messages, whether a client still waits or not (`Partition.reconfigure`), and the next
leader does not read them: after a purge the same messages can be published again.

    requested → measured → proposed → in the image → log_start moved → answered
                    └─ dry run: answered
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from penstock.access.handshake import Principal, sharer_of
from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import Offset
from penstock.commitlog import LiveCounts, LogState, TooManyRowsError, start_of_newest
from penstock.messages import Response, TruncateRequest, TruncateResponse
from penstock.metadata.effects.streams import purge_denied_text
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.internal_streams import users_own
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import Lane
from penstock.replication.leader import Leadership

_TIMEOUT_US = limits.TRUNCATION_TIMEOUT_MS * 1_000


@dataclass(slots=True, eq=False)
class _Asked:
    """A pending request."""

    call: Call
    partition: Partition
    leadership: Leadership
    request: TruncateRequest
    deadline_us: int
    before: int  # lower than the request's, if that keeps messages
    messages: int = 0  # to be removed
    size_bytes: int = 0
    is_agreed: bool = False  # the image has it, or will in a moment

    @property
    def is_done(self) -> bool:
        """True if the messages are removed here durably."""
        before, partition = self.before, self.partition
        return self.is_agreed and partition.truncated_end >= before and partition.log.log_start >= before

    @property
    def who(self) -> Principal | None:
        """The user who truncates, also through another broker: `__audit` names them."""
        who, request = self.call.auth.who, self.request
        return Principal(request.user, request.user_index) if request.user and who == THE_BROKER else who


class Truncations:
    """All pending truncations of one broker."""

    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._outbox = context.outbox
        self._context = context
        self._cluster = cluster
        self._waiting: dict[Hashable, _Asked] = {}

    def ask_for(self, find: PartitionLookup, call: Call, request: TruncateRequest) -> None:
        """Find the led partition and call `ask`. What is kept is known only to who knows which messages are hidden."""
        which = find.readable if request.keep else find.led
        self.ask(call, users_own(which(request.stream_id, request.partition)), request)

    def ask(self, call: Call, partition: Partition, request: TruncateRequest) -> None:
        """Answer the caller once it is done. Raise RemoteError: offset_out_of_range, not_yet, read_only, overloaded."""
        leadership = partition.leadership
        if leadership is None:  # the only replica may be unregistered, as on a full disk
            raise RemoteError(ErrorCode.NOT_LEADER, f"{partition.label} is not led now; ask again in a moment")
        self._check(call, partition, request)
        start = partition.log_start
        deadline_us = self._context.now.elapsed_us + _TIMEOUT_US
        asked = _Asked(call.without_raw(), partition, leadership, request, deadline_us, request.before)
        self._waiting[call.caller] = asked
        if request.before <= start:
            self._measured(asked, None)
            return
        view = partition.view().hiding(partition.log.hidden)

        def run() -> None:
            if request.keep:
                asked.before = start_of_newest(view, request.before, request.keep)
            asked.messages = asked.before - start
            asked.size_bytes = view.bytes_between(start, asked.before) if asked.messages else 0
            with contextlib.suppress(TooManyRowsError):  # the answer is in offsets then
                asked.messages = LiveCounts(view, asked.before).rows()

        self._outbox.work(Lane.READ, run, lambda error: self._measured(asked, error))

    def _check(self, call: Call, partition: Partition, request: TruncateRequest) -> None:
        partition.require_high_watermark()
        if partition.leadership is not None and partition.leadership.is_bound:  # an earlier leader may show more still
            text = f"the new leader of {partition.label} may not change it yet"
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was truncated: {text}; ask again in a moment")
        if request.before > partition.committed_end:
            raise RemoteError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"nothing was truncated: offset {request.before} is beyond what is committed; {partition.label} holds "
                f"the offsets from {partition.log_start} up to, but not including, {partition.committed_end}",
                log_start=partition.log_start,
                committed_end=partition.committed_end,
            )
        if request.keep and request.before > partition.visible_end:
            text = f"{partition.label}: which messages are left is known up to offset {partition.visible_end} so far"
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was truncated: {text}; ask again in a moment")
        if partition.log.state is not LogState.WRITABLE:
            text = f"nothing was truncated: the log of {partition.label} is {partition.log.state.value}; see its status"
            is_damaged = partition.log.state is LogState.READ_ONLY
            raise RemoteError(ErrorCode.READ_ONLY if is_damaged else ErrorCode.STORAGE_FAILED, text)
        if partition.stream.intake is Intake.SEALED:
            text = f"stream {partition.stream.name!r} is sealed: nothing of it goes, unless it is deleted as a whole"
            raise RemoteError(ErrorCode.READ_ONLY, text)
        if partition.stream.config.denies_purge:
            raise RemoteError(ErrorCode.READ_ONLY, purge_denied_text(partition.stream.name))
        shares = FairShares((sharer_of(one.call.auth.who), 1) for one in self._waiting.values())
        if not shares.fits(sharer_of(call.auth.who), 1, limits.TRUNCATIONS_WAITING_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too many truncations at once; wait for some to be answered")

    def _measured(self, asked: _Asked, error: Exception | None) -> None:
        if self._waiting.get(asked.call.caller) is not asked:
            return
        try:
            if error is not None:
                raise as_remote_error(error)
            asked.call.authorize()
        except RemoteError as refusal:
            self._answer(asked, refusal)
            return
        if asked.request.is_dry_run:
            self._answer(asked, None)
        elif asked.partition.truncated_end >= asked.before:  # an earlier request covers it
            asked.is_agreed = True
            self.answer_done()
        else:
            self._propose(asked)

    def _propose(self, asked: _Asked) -> None:
        def done(response: Response | RemoteError) -> None:
            if self._waiting.get(asked.call.caller) is not asked:
                return
            if isinstance(response, RemoteError):
                self._answer(asked, response)
            else:
                asked.is_agreed = True
                self.answer_done()

        request = asked.request
        self._cluster.link.administer(
            TruncateRequest(
                stream_id=request.stream_id,
                partition=request.partition,
                before=Offset(asked.before),
                leader_epoch=asked.leadership.leader_epoch,
            ),
            done,
            asked.who,
            asked.call.authorize,
        )

    def pending_end(self, partition: Partition) -> int:
        """Return the offset below which pending requests truncate a partition; 0: there is none."""
        pending = [one for one in self._waiting.values() if one.partition is partition and not one.request.is_dry_run]
        return max((one.before for one in pending), default=0)

    def answer_done(self) -> None:
        """Answer requests that are done, after a log start moved or the image changed."""
        if self._waiting:
            for asked in [one for one in self._waiting.values() if one.is_done]:
                self._answer(asked, None)

    def _answer(self, asked: _Asked, error: RemoteError | None) -> None:
        del self._waiting[asked.call.caller]
        if error is not None:
            self._outbox.reply(asked.call.caller, error)
            return
        response = TruncateResponse(
            log_start=Offset(max(asked.before, asked.partition.log_start)),
            messages=asked.messages,
            size_bytes=asked.size_bytes,
        )
        self._outbox.reply(asked.call.caller, response)

    def refuse(self, partition: Partition, error: RemoteError) -> None:
        """Fail a partition's requests, because it is no longer led here; they may still take effect."""
        for asked in [one for one in self._waiting.values() if one.partition is partition]:
            self._answer(asked, error)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        for caller in callers:
            self._waiting.pop(caller, None)

    def stop(self, error: RemoteError) -> None:
        """Fail all requests because the broker stops."""
        for asked in list(self._waiting.values()):
            self._answer(asked, error)

    def tick(self, now_us: int) -> None:
        """Fail requests that timed out."""
        if self._waiting:
            for asked in [one for one in self._waiting.values() if one.deadline_us <= now_us]:
                text = f"{asked.partition.label} was not truncated in time; it may be in a moment: ask again"
                self._answer(asked, RemoteError(ErrorCode.TIMED_OUT, text))

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run; None if never."""
        return min((asked.deadline_us for asked in self._waiting.values()), default=None) if self._waiting else None
