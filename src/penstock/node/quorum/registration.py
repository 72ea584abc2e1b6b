"""Broker registration: this broker's session with the metadata leader, its heartbeats and its incarnation (KIP-903).

Rules: a broker leads and follows only under an incarnation, the number that the metadata leader gives to one run of it.
A broker registers at its start, and again when it learns that it was fenced while it lived. The answer may be lost, so
the broker just asks again; a later incarnation replaces the earlier one. Heartbeats report liveness, the applied
metadata index and unreachable leaders; new reports go out at once. If no heartbeat sent within the last session was
answered, the broker may have been fenced: `is_heard` is False. An answer counts only once this broker has applied
everything that was committed when the answer was given: that may name a new leader, and a broker whose disk hangs still
gets heartbeat answers but cannot apply the metadata they refer to. A broker that cannot save the metadata, and so
cannot learn who leads, sends no heartbeats: others are to take its place.

    new ──ask──▶ registering ──the image has this run──▶ registered ──the image has another, or it was fenced──▶ new
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LogEnd,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    Request,
    ResignedLeadership,
    Response,
    UnreachableLeader,
)
from penstock.metadata.image import BrokerState
from penstock.node.data_dir.process_history import ProcessHistory
from penstock.node.quorum.raft_listener import EntryPosition
from penstock.node.settings import Settings

Ask = Callable[[Request, Callable[[Response | RemoteError], None]], None]
"""Sends a request to the metadata leader, on this broker or another."""

_HEARTBEAT_US = limits.HEARTBEAT_MS * 1_000
_RETRY_US = limits.HEARTBEAT_RETRY_MS * 1_000
_NOT_ASKED = frozenset({ErrorCode.NOT_METADATA_LEADER, ErrorCode.STOPPING})  # answers of brokers that do not lead
_SESSION_US = limits.SESSION_MS * 1_000
_ANSWER_US = limits.SESSION_MS * 1_000  # if the broker asked has not answered by then, it may no longer lead


class MetadataProgress(Protocol):
    """The progress of this broker's metadata log."""

    @property
    def applied(self) -> int:
        """Index of the last entry applied here."""

    @property
    def missed(self) -> str:
        """Why this broker cannot save the metadata, and so cannot follow it; empty if it can."""


class HeartbeatReports(Protocol):
    """Reports of this broker's replicas for the metadata leader."""

    def unreachable(self) -> tuple[UnreachableLeader, ...]:
        """Return the leaders that do not answer."""

    def resigned(self) -> tuple[ResignedLeadership, ...]:
        """Return the leaderships that this broker holds and cannot serve."""

    def log_ends(self) -> tuple[LogEnd, ...]:
        """Return the log ends of partitions that the replica with the longest log is to lead."""

    def has_nats(self) -> bool:
        """True if this broker is connected to NATS."""


class HeartbeatNumbers(NamedTuple):
    """Heartbeat numbers of one process run."""

    sent: int = 0
    confirmed: int = 0  # last heartbeat that was answered and whose committed index at that time is applied here


class _Answered(NamedTuple):
    """An answered heartbeat, and the index that must be applied here before the answer counts."""

    number: int
    sent_us: int
    committed_index: int


class BrokerRegistration:
    """This broker's registration. Call `tick` at least once per HEARTBEAT_MS."""

    def __init__(
        self,
        who: RegisterBrokerRequest,
        ask: Ask,
        metadata: MetadataProgress,
        reports: HeartbeatReports,
        changed: Callable[[], None],
        *,
        has_keys: bool = False,
    ) -> None:
        """`has_keys`: this broker can store encrypted streams."""
        # the current one, under which it leads and follows; None if not registered
        self.incarnation: Incarnation | None = None
        self.refusal = ""  # why the metadata leader refused the registration
        self._who = who
        self._ask = ask
        self._metadata = metadata
        self._reports = reports
        self._has_keys = has_keys
        self._changed = changed  # makes the owner check the image again
        self._granted = 0  # incarnation in the last registration answer
        self._asked_us: int | None = None  # send time of the registration request under way
        self._next_us = 0
        self._retry_us = _RETRY_US
        self.answered_us = -1  # send time of the last heartbeat that a metadata leader answered
        self._heard_us = 0  # … and for which everything committed by then is applied here
        self._beats = HeartbeatNumbers()
        self._answered: deque[_Answered] = deque(maxlen=limits.HEARTBEATS_ANSWERED_MAX)  # answers that do not count yet
        self._is_leaving = False

    @property
    def broker_id(self) -> BrokerId:
        return self._who.broker_id

    def image(self, state: BrokerState | None) -> bool:
        """Apply the image's entry of this broker. Return True if an incarnation has begun or ended."""
        incarnation = None
        if state is not None and state.is_live and state.incarnation == self._granted:
            incarnation = state.incarnation
        if incarnation == self.incarnation:
            return False
        self.incarnation = incarnation
        if incarnation is not None:
            # From now on only this process could lose what it wrote, and after a crash it would not ask again.
            self._who = msgspec.structs.replace(self._who, clean_stop=True, run_before=incarnation)
        self._next_us = 0
        return True

    @property
    def whole_since(self) -> Incarnation | None:
        """Incarnation since which nothing this broker wrote can have been lost; None if unknown."""
        return Incarnation(self._who.run_before) if self._who.clean_stop and self._who.run_before else None

    def is_heard(self, now: Now) -> bool:
        """True if the session is alive: no other broker can have replaced this one unless followers reported it."""
        return self.unheard_us is None or now.elapsed_us < self.unheard_us

    @property
    def is_leaving(self) -> bool:
        """True if other brokers were told, or are about to be told, that this broker stops."""
        return self._is_leaving

    def leave(self) -> None:
        """Stop registering: the broker is about to stop."""
        self._is_leaving = True

    def end(self) -> None:
        """End the incarnation for good: the broker cannot go on."""
        self._is_leaving = True
        self._granted = 0
        self.incarnation = None

    def heartbeat_now(self) -> None:
        """Make the next heartbeat due now, because there is something to report."""
        self._next_us = 0
        self._retry_us = _RETRY_US

    def retry(self, now: Now) -> None:
        """Retry soon, with backoff: a new metadata leader can answer shortly, one with a full disk later."""
        self._next_us = min(self._next_us, now.elapsed_us + self._retry_us)
        self._retry_us = min(2 * self._retry_us, _HEARTBEAT_US)

    def tick(self, now: Now) -> None:
        """Send the registration or heartbeat that is due."""
        if now.elapsed_us < self._next_us:
            return
        self._next_us = now.elapsed_us + _HEARTBEAT_US
        if self._metadata.missed:
            return
        if self.incarnation is None:
            if not self._is_leaving:
                self._register(now.elapsed_us)
        else:
            self._beat(self.incarnation, now.elapsed_us)

    def _register(self, now_us: int) -> None:
        if self._asked_us is not None and now_us < self._asked_us + _ANSWER_US:
            return
        self._asked_us = now_us

        def done(response: Response | RemoteError) -> None:
            if self._asked_us == now_us:
                self._asked_us = None
            if not (isinstance(response, RemoteError) and response.code in _NOT_ASKED):
                self.refusal = response.message if isinstance(response, RemoteError) else ""
            if isinstance(response, RegisterBrokerResponse):
                self._granted = max(self._granted, response.incarnation)
                self._heard_us = max(self._heard_us, now_us)
                self._changed()

        self._ask(self._who, done)

    def _beat(self, incarnation: Incarnation, now_us: int) -> None:
        number = self._beats.sent + 1
        self._beats = self._beats._replace(sent=number)

        def done(response: Response | RemoteError) -> None:
            if isinstance(response, HeartbeatResponse):
                self.answered_us = now_us
                self._retry_us = _RETRY_US
                self._count_later(_Answered(number, now_us, response.committed_index))
            is_stale = isinstance(response, RemoteError) and response.code == ErrorCode.STALE_INCARNATION
            if is_stale and self._granted == incarnation:
                self._granted = 0  # the image may not know it yet
                self._changed()

        request = HeartbeatRequest(
            broker_id=self.broker_id,
            incarnation=incarnation,
            applied_index=self._metadata.applied,
            unreachable=self._reports.unreachable(),
            resigned=self._reports.resigned(),
            has_nats=self._reports.has_nats(),
            has_keys=self._has_keys,
            log_ends=self._reports.log_ends(),
        )
        self._ask(request, done)

    @property
    def next_deadline_us(self) -> int:
        """Time at which `tick` must run."""
        return self._next_us

    @property
    def unheard_us(self) -> int | None:
        """Elapsed time when the session expires unless an answer comes; None if this broker has no incarnation."""
        if self.incarnation is None:
            return None
        self._count_answers()
        return self._heard_us + _SESSION_US

    @property
    def confirmed_us(self) -> int | None:
        """Send time of the last heartbeat whose committed metadata is all applied here; None without an incarnation."""
        unheard_us = self.unheard_us
        return None if unheard_us is None else unheard_us - _SESSION_US

    @property
    def beats(self) -> HeartbeatNumbers:
        """Heartbeat numbers so far."""
        self._count_answers()
        return self._beats

    def _count_later(self, answered: _Answered) -> None:
        """Queue an answer until its committed index is applied; of several with the same index keep the latest."""
        if self._answered and self._answered[-1].committed_index == answered.committed_index:
            answered = max(answered, self._answered.pop())
        self._answered.append(answered)

    def _count_answers(self) -> None:
        if not self._answered:  # the usual case
            return
        applied = self._metadata.applied
        while self._answered and self._answered[0].committed_index <= applied:
            number, sent_us, _ = self._answered.popleft()
            self._heard_us = max(self._heard_us, sent_us)
            self._beats = self._beats._replace(confirmed=max(number, self._beats.confirmed))


def register_command(
    settings: Settings, runs: ProcessHistory, stopped: Incarnation | None, begins: EntryPosition
) -> RegisterBrokerRequest:
    """Return the registration request of a start. `begins`: end of its metadata log; run `stopped` stopped cleanly."""
    return RegisterBrokerRequest(
        broker_id=settings.broker_id,
        data_dir_id=settings.data_dir_id,
        address=settings.address,
        rack=settings.rack,
        broker_version=settings.broker_version,
        clean_stop=stopped is not None,
        run_before=stopped or 0,
        process=runs.process,
        runs=runs.names,
        log_index=begins.log_index,
        raft_term=begins.raft_term,
    )
