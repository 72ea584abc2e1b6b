"""This broker's standing in the cluster: registered, heard of, and asking the metadata leader.

Rules: a broker leads and follows only in a run that the metadata leader has given a number (an incarnation). A start
asks for one; so does a broker that was taken for dead while it lived, once it hears of that. What registered it may be
lost on the way back, so it just asks again: a later number takes the place of the one before. Heartbeats say that it
lives, how much of the metadata it has applied, and whom it cannot reach; news of that go out at once. Once none was
answered for a session, counted from when it was sent, the broker may have been fenced: it is `is_heard` no more. An
answer counts once all is applied here that was committed when it was given: that may tell of a successor, and whose
disk hangs is answered all the same, and hears nothing of it. A broker that cannot save the metadata, and so does not
hear who leads, says nothing: others are to take its place.

    new ──ask──▶ registering ──the image has this run──▶ registered ──the image has another, or it was fenced──▶ new
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

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
from penstock.node.observer import Place
from penstock.node.runs import Runs
from penstock.node.settings import Settings

Ask = Callable[[Request, Callable[[Response | RemoteError], None]], None]
"""Asks the metadata leader, wherever it is."""

_HEARTBEAT_US = limits.HEARTBEAT_MS * 1_000
_RETRY_US = limits.HEARTBEAT_RETRY_MS * 1_000
_NOT_ASKED = frozenset({ErrorCode.NOT_METADATA_LEADER, ErrorCode.STOPPING})  # said by whoever does not lead
_SESSION_US = limits.SESSION_MS * 1_000
_ANSWER_US = limits.SESSION_MS * 1_000  # whoever was asked and has not answered by then may lead no more


class Beats(NamedTuple):
    """The heartbeats of one run of a process, by number."""

    sent: int = 0
    confirmed: int = 0  # the last that is answered, and of which all is applied here that was committed by then


class _Answered(NamedTuple):
    """A heartbeat, and up to where all must be applied for its answer to count."""

    number: int
    sent_us: int
    committed_index: int


class Standing:
    """One broker's standing. `tick` at least once in HEARTBEAT_MS."""

    def __init__(
        self,
        who: RegisterBrokerRequest,
        ask: Ask,
        *,
        applied: Callable[[], int],
        unreachable: Callable[[], tuple[UnreachableLeader, ...]],
        resigned: Callable[[], tuple[ResignedLeadership, ...]],
        log_ends: Callable[[], tuple[LogEnd, ...]],
        is_lost: Callable[[], bool],
        has_nats: Callable[[], bool],
        changed: Callable[[], None],
        has_keys: bool = False,
    ) -> None:
        """`is_lost`: this broker does not hear what the others agree on; it cannot save it."""
        self.incarnation: Incarnation | None = None  # of the run in which it leads and follows
        self.refusal = ""  # why the metadata leader did not register it
        self._who = who
        self._ask = ask
        self._applied = applied
        self._unreachable = unreachable
        self._resigned = resigned
        self._log_ends = log_ends
        self._is_lost = is_lost
        self._has_nats = has_nats
        self._has_keys = has_keys
        self._changed = changed  # the image is to be looked at again
        self._granted = 0  # the number that was answered
        self._asked_us: int | None = None  # to be registered, and not answered yet
        self._next_us = 0
        self._retry_us = _RETRY_US
        self.answered_us = -1  # when the heartbeat was sent that a metadata leader has answered last
        self._heard_us = 0  # … and of which all that it then knew of is applied here
        self._beats = Beats()
        self._answered: deque[_Answered] = deque(maxlen=limits.HEARTBEATS_ANSWERED_MAX)  # and does not count yet
        self._is_leaving = False

    @property
    def broker_id(self) -> BrokerId:
        """Whose."""
        return self._who.broker_id

    def image(self, state: BrokerState | None) -> bool:
        """What the image says of this broker; whether a run of it has begun, or ended."""
        incarnation = None
        if state is not None and state.is_live and state.incarnation == self._granted:
            incarnation = state.incarnation
        if incarnation == self.incarnation:
            return False
        self.incarnation = incarnation
        if incarnation is not None:
            # From here on only the process itself could lose what it wrote, and then it would not ask.
            self._who = msgspec.structs.replace(self._who, clean_stop=True, run_before=incarnation)
        self._next_us = 0
        return True

    @property
    def whole_since(self) -> Incarnation | None:
        """The run since which nothing that this broker wrote can have been lost; None: that is not known."""
        return Incarnation(self._who.run_before) if self._who.clean_stop and self._who.run_before else None

    def is_heard(self, now: Now) -> bool:
        """Whether nobody can have been given its place unless followers reported it: its session goes on."""
        return self.unheard_us is None or now.elapsed_us < self.unheard_us

    @property
    def is_leaving(self) -> bool:
        """Whether others were, or are about to be, told that this broker stops."""
        return self._is_leaving

    def leave(self) -> None:
        """The broker is about to stop: it is not registered again."""
        self._is_leaving = True

    def end(self) -> None:
        """The broker cannot go on: the run in which it led and followed is over, and there is no other."""
        self._is_leaving = True
        self._granted = 0
        self.incarnation = None

    def hurry(self) -> None:
        """There are news: the next heartbeat is due now."""
        self._next_us = 0
        self._retry_us = _RETRY_US

    def retry(self, now: Now) -> None:
        """Whoever was asked has been elected just now, and can answer in a moment; with a full disk not so soon."""
        self._next_us = min(self._next_us, now.elapsed_us + self._retry_us)
        self._retry_us = min(2 * self._retry_us, _HEARTBEAT_US)

    def tick(self, now: Now) -> None:
        """Register, or say that the broker lives, if it is time for that."""
        if now.elapsed_us < self._next_us:
            return
        self._next_us = now.elapsed_us + _HEARTBEAT_US
        if self._is_lost():
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
            applied_index=self._applied(),
            unreachable=self._unreachable(),
            resigned=self._resigned(),
            has_nats=self._has_nats(),
            has_keys=self._has_keys,
            log_ends=self._log_ends(),
        )
        self._ask(request, done)

    @property
    def next_deadline_us(self) -> int:
        """When `tick` has something to do."""
        return self._next_us

    @property
    def unheard_us(self) -> int | None:
        """When it is heard no more, unless it is answered before; None: it has no place that it could lose."""
        if self.incarnation is None:
            return None
        self._count_answers()
        return self._heard_us + _SESSION_US

    @property
    def confirmed_us(self) -> int | None:
        """When that was asked of which all that had been decided by then is applied here; None: it has no place."""
        unheard_us = self.unheard_us
        return None if unheard_us is None else unheard_us - _SESSION_US

    @property
    def beats(self) -> Beats:
        """Its heartbeats so far."""
        self._count_answers()
        return self._beats

    def _count_later(self, answered: _Answered) -> None:
        """An answer counts once all that was committed by then is applied; of several that wait for the same, one."""
        if self._answered and self._answered[-1].committed_index == answered.committed_index:
            answered = max(answered, self._answered.pop())
        self._answered.append(answered)

    def _count_answers(self) -> None:
        if not self._answered:  # as nearly always
            return
        applied = self._applied()
        while self._answered and self._answered[0].committed_index <= applied:
            number, sent_us, _ = self._answered.popleft()
            self._heard_us = max(self._heard_us, sent_us)
            self._beats = self._beats._replace(confirmed=max(number, self._beats.confirmed))


def registration(settings: Settings, runs: Runs, stopped: Incarnation | None, begins: Place) -> RegisterBrokerRequest:
    """How a start asks to be registered; its metadata ends at `begins`, and run `stopped` stopped cleanly before it."""
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
