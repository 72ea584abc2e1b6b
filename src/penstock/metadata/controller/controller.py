"""Cluster controller: the metadata leader's decisions beyond leading the Raft group. Events and time in, a step out.

Rules:
- A controller runs on every broker and decides only after the node called `lead`, which it does once all entries of
  earlier terms are applied. Elsewhere it answers `not_metadata_leader`.
- It decides by the applied image, and changes nothing itself: every change is a command. Per kind and broker one
  command is in flight at a time; another request meanwhile waits, or is told to retry.
- Sessions, reports and waiting requests are in memory: a new metadata leader begins them anew, with the full session
  time for all brokers. Its own session never expires: it is alive, and if alone it sends itself no heartbeats.
- Leaderships and replicas are given to brokers that sent a heartbeat lately, in this term: the image may show a broker
  as live that is dead, or has lost its disk. A new metadata leader waits for that, RECENT_HEARTBEAT_MS at most.
- A request that changes something is answered once its command is applied, and then only if it is the entry that was
  proposed. A caller that is told to retry may do so: a change that was already made is found done.

| in flight    | proposed when                                                                                     |
|--------------|---------------------------------------------------------------------------------------------------|
| register, id | a broker asks for its registration                                                                |
| fence, id    | the broker's session timed out (`sessions`)                                                       |
| stop, id     | the broker asks to stop                                                                           |
| isr, id      | it asks for partitions that it leads; requests that wait become the next command                  |
| elect        | leaders are unreachable (`reachability`), have resigned, or preferred ones are back (`preferred`) |
| api, prefix  | brokers' reports lead to another decision who serves JetStream's API (`api_reports`)              |
| recover      | the longest log of a partition is known (`recoveries`)                                            |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base import limits
from penstock.base.addresses import is_address
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, PartitionKey
from penstock.messages import (
    ChangeIsrRequest,
    ChangeIsrResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IsrResult,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportApiRequest,
    ReportApiResponse,
    ResignedLeadership,
    Response,
    StopBrokerRequest,
    StopBrokerResponse,
)
from penstock.metadata import elections
from penstock.metadata.commands import (
    ChangeIsr,
    Election,
    ElectionReason,
    ElectLeaders,
    FenceBroker,
    RecoverPartitions,
    RegisterBroker,
    StopBroker,
)
from penstock.metadata.controller.api_reports import ApiReports
from penstock.metadata.controller.command_proposals import CommandProposals, Proposal
from penstock.metadata.controller.preferred import PreferredLeaders
from penstock.metadata.controller.reachability import ReachabilityReports
from penstock.metadata.controller.recoveries import Recoveries
from penstock.metadata.controller.sessions import BrokerSessions
from penstock.metadata.controller.subscription_refusals import SubscriptionRefusals
from penstock.metadata.disk_identity import may_have_run
from penstock.metadata.effects.brokers import check_level
from penstock.metadata.elections import ElectionRules
from penstock.metadata.feature_levels import JETSTREAM_API
from penstock.metadata.feature_versions import missing
from penstock.metadata.image import BrokerState, ClusterImage, CommandOutcome

_RIVAL_US = limits.DUPLICATE_PROCESS_MS * 1_000
_LATELY_US = limits.RECENT_HEARTBEAT_MS * 1_000


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Time-outs of the controller, in milliseconds."""

    session_ms: int = limits.SESSION_MS
    leader_report_window_ms: int = limits.LEADER_REPORT_WINDOW_MS
    preferred_leader_steady_ms: int = limits.PREFERRED_LEADER_STEADY_MS


class RaftContact(NamedTuple):
    """The Raft group's knowledge of a broker that asks to be registered."""

    acknowledged_index: int = 0  # its acknowledged index: what its disk must hold
    speaker: str | None = None  # the process that sent messages for it lately; None: none did


class ControllerAnswer(NamedTuple):
    """A response or an error for one caller."""

    caller: Hashable
    response: Response | RemoteError


@dataclass(slots=True)
class ControllerStep:
    """The node's work, top to bottom."""

    # 1. report the result of each with `proposed` or `not_proposed`
    propose: list[Proposal] = field(default_factory=list)
    answers: list[ControllerAnswer] = field(default_factory=list)  # 2.


class Controller:
    """One on each broker."""

    def __init__(self, broker_id: BrokerId, config: ControllerConfig, *, has_keys: bool = True) -> None:
        """`has_keys`: this broker can store encrypted streams."""
        self._broker_id = broker_id
        self._has_keys = has_keys
        self._sessions = BrokerSessions(config.session_ms * 1_000)
        self._reports = ReachabilityReports(config.leader_report_window_ms * 1_000)
        self._recoveries = Recoveries()
        self._apis = ApiReports()
        self._refusals = SubscriptionRefusals()
        self._preferred = PreferredLeaders(config.preferred_leader_steady_ms * 1_000)
        self._proposals = CommandProposals()
        self._isr_waiting: dict[BrokerId, deque[tuple[Hashable, ChangeIsrRequest]]] = {}
        # until the other brokers have reported
        self._stops_waiting: dict[BrokerId, tuple[Hashable, StopBrokerRequest]] = {}
        self._answers: list[ControllerAnswer] = []
        self._image = ClusterImage()
        self._raft_term = 0
        self._led_us = 0  # since when this broker is the metadata leader
        self._settled_us = 0  # by then the other brokers had time to send a heartbeat
        self._leader: BrokerId | None = None
        self.leads = False  # this broker is the metadata leader, as far as it knows

    # Leadership

    def lead(self, image: ClusterImage, raft_term: int, now: Now) -> None:
        """Become the metadata leader in that term; `image` includes all entries of earlier terms."""
        self.follow(self._broker_id)
        self.leads, self._image, self._raft_term = True, image, raft_term
        self._sessions.restart(image, now.elapsed_us)
        self._led_us = now.elapsed_us
        self._settled_us = now.elapsed_us + _LATELY_US
        self._reports.clear()
        self._recoveries.clear()
        self._apis.clear()
        self._preferred.clear()
        self._refusals.clear()

    def follow(self, leader: BrokerId | None) -> None:
        """Another broker is the metadata leader, or none is known; fail all waiting requests."""
        self.leads, self._leader = False, leader
        waiting, self._isr_waiting = self._isr_waiting, {}
        self._proposals.abandon(self._not_leader())
        stops, self._stops_waiting = self._stops_waiting, {}
        for caller, _ in (*(one for requests in waiting.values() for one in requests), *stops.values()):
            self._answer(caller, self._not_leader())

    def _not_leader(self) -> RemoteError:
        known = "no leader is known" if self._leader is None else f"broker {self._leader} is"
        text = f"broker {self._broker_id} is not the metadata leader; {known}; retry"
        return RemoteError(ErrorCode.NOT_METADATA_LEADER, text, leader=self._leader)

    def take(self) -> ControllerStep:
        """Return the decisions since the last call."""
        step = ControllerStep(self._proposals.new, self._answers)
        self._proposals.new, self._answers = [], []
        return step

    def proposed(self, number: int, index: int, raft_term: int) -> None:
        """The proposal is in the log at `index`."""
        self._proposals.proposed(number, index, raft_term)

    def not_proposed(self, number: int, error: RemoteError) -> None:
        """The Raft group refused the proposal."""
        self._proposals.not_proposed(number, error)

    def applied(
        self, index: int, raft_term: int, image: ClusterImage, outcome: CommandOutcome | RemoteError, now: Now
    ) -> None:
        """A command was applied, proposed by any broker."""
        if not self.leads:
            return
        before, self._image = self._image, image
        if image.brokers is not before.brokers:
            self._sessions.follow(image, now.elapsed_us)
        self._proposals.applied(index, raft_term, outcome)

    def behind(self, index: int) -> tuple[BrokerId, ...]:
        """Live brokers that have not reported yet that they applied the command at `index`."""
        return self._sessions.behind(index)

    def ready(self, now: Now) -> frozenset[BrokerId]:
        """Brokers that may get new replicas: live and heard of lately. Empty until that is known."""
        return self._heard(now) if self.leads and self._is_settled(now) else frozenset()

    def _heard(self, now: Now) -> frozenset[BrokerId]:
        live = self._image.live_brokers()
        return (self._sessions.heard_since(now.elapsed_us - _LATELY_US) | {self._broker_id}) & live

    def silent_us(self, now: Now) -> dict[BrokerId, int]:
        """Microseconds since the metadata leader heard of each live broker, 0 for itself; empty on other brokers."""
        return self._sessions.silent_us(now.elapsed_us) | {self._broker_id: 0} if self.leads else {}

    def without_nats(self) -> frozenset[BrokerId]:
        """Brokers without NATS, leaders of last resort."""
        return self._sessions.without_nats() if self.leads else frozenset()

    def without_keys(self) -> frozenset[BrokerId]:
        """Brokers that cannot store encrypted streams."""
        if not self.leads:
            return frozenset()
        # if alone, it sends itself no heartbeats
        own = frozenset() if self._has_keys else frozenset((self._broker_id,))
        return self._sessions.without_keys() | own

    def keys_unsaid(self) -> frozenset[BrokerId]:
        """Brokers that have not said yet if they can store encrypted streams."""
        return self._sessions.keys_unsaid() - {self._broker_id} if self.leads else frozenset()

    def _last(self, now: Now, ending: BrokerId | None = None) -> tuple[BrokerId, ...]:
        """Leaders of last resort: brokers that are silent or have no NATS."""
        return tuple(sorted({*self._silent(now, ending), *self._sessions.without_nats()} - {ending}))

    def _silent(self, now: Now, ending: BrokerId | None = None) -> tuple[BrokerId, ...]:
        return tuple(sorted(self._image.live_brokers() - self._heard(now) - {ending}))

    def _is_settled(self, now: Now) -> bool:
        return now.elapsed_us >= self._settled_us or not self._silent(now)

    def tick(self, now: Now) -> None:
        """Handle the passing of time; called at least several times per session time-out."""
        if not self.leads:
            return
        self._propose_stops(now)
        for broker_id, incarnation in self._sessions.silent(now.elapsed_us):
            if broker_id != self._broker_id and ("fence", broker_id) not in self._proposals:
                silent = self._last(now, broker_id)
                command = FenceBroker(broker_id=broker_id, incarnation=incarnation, silent=silent)
                self._proposals.begin(("fence", broker_id), command, _ignore)
        self._elect(self._reports.elections(self._image, now.elapsed_us), now)
        if ("elect",) not in self._proposals:
            self._elect(self._preferred_elections(now), now)
        self._recover(now)
        self.decide_apis(now)

    def _preferred_elections(self, now: Now) -> list[Election]:
        return self._preferred.elections(self._image, now.elapsed_us, self.without_nats(), self._refusals)

    def _elect(self, wanted: list[Election], now: Now, refused: Set[BrokerId] = frozenset()) -> None:
        """Propose these elections, unless some are in flight: their causes will ask for them again."""
        if wanted and ("elect",) not in self._proposals:
            elections_wanted = tuple(wanted[: limits.ELECTIONS_PER_COMMAND_MAX])
            command = ElectLeaders(elections=elections_wanted, silent=tuple(sorted({*self._last(now), *refused})))
            self._proposals.begin(("elect",), command, _ignore)

    def _recover(self, now: Now, among: Iterable[PartitionKey] | None = None) -> None:
        """Propose the recoveries that are due, `among` these partitions or all, unless some are in flight."""
        if not self._recoveries or ("recover",) in self._proposals:
            return
        if due := self._recoveries.due(self._image, now.elapsed_us, among):
            self._proposals.begin(
                ("recover",), RecoverPartitions(recoveries=tuple(due), silent=self._last(now)), _ignore
            )

    # Requests of brokers

    def heartbeat(self, caller: Hashable, request: HeartbeatRequest, committed_index: int, now: Now) -> None:
        """Answer a heartbeat at once. Error stale_incarnation: not live in that incarnation; register again."""
        if not self._may_answer(caller):
            return
        broker_id = request.broker_id
        try:
            self._image.live_run(broker_id, request.incarnation)
        except RemoteError as error:
            self._answer(caller, error)
            return
        said = {"has_nats": request.has_nats, "has_keys": request.has_keys}
        self._sessions.heartbeat(broker_id, request.applied_index, now.elapsed_us, **said)
        resignations = self._resignations(broker_id, request.resigned, now)
        if self._reports.replace_report(self._image, broker_id, request.unreachable, now.elapsed_us):
            resignations.setdefault(frozenset(), []).extend(self._reports.elections(self._image, now.elapsed_us))
        for refused, wanted in resignations.items():  # while one is in flight, only the first of them
            self._elect(wanted, now, refused)
        if request.log_ends:
            run = (broker_id, request.incarnation)
            self._recover(now, self._recoveries.add_log_ends(self._image, *run, request.log_ends, now.elapsed_us))
        self._propose_stops(now)
        response = HeartbeatResponse(
            metadata_leader=self._broker_id, raft_term=self._raft_term, committed_index=committed_index
        )
        self._answer(caller, response)

    def report_api(self, caller: Hashable, request: ReportApiRequest, now: Now) -> None:
        """Take a report on JetStream's API. Errors: stale_incarnation; unsupported_version below feature level 0.4."""
        if not self._may_answer(caller):
            return
        try:
            self._image.live_run(request.broker_id, request.incarnation)
            if (error := missing(self._image, JETSTREAM_API)) is not None:
                raise error
        except RemoteError as error:
            self._answer(caller, error)
            return
        self._apis.add(request, now)
        self._answer(caller, ReportApiResponse())
        self.decide_apis(now)

    def decide_apis(self, now: Now) -> None:
        """Propose the decisions on JetStream's API that are due, unless one on the same prefix is in flight."""
        if not self.leads:
            return
        for command in self._apis.due(self._image, self._heard(now), now):
            if ("api", command.prefix) not in self._proposals:
                self._proposals.begin(("api", command.prefix), command, _ignore)

    def _resignations(
        self, broker_id: BrokerId, resigned: Iterable[ResignedLeadership], now: Now
    ) -> dict[frozenset[BrokerId], list[Election]]:
        """Return the elections that are due to resignations, by the set of brokers whose subscriptions NATS refuses."""
        live = self._image.live_brokers() if resigned else frozenset()
        without_nats = self._sessions.without_nats()
        wanted: dict[frozenset[BrokerId], list[Election]] = {}
        for one in resigned:
            state = self._image.streams.get(one.stream_id)
            if state is None or one.partition >= len(state.partitions):
                continue
            partition = state.partitions[one.partition]
            if (partition.leader, partition.leader_epoch) != (broker_id, one.leader_epoch):
                continue
            rules = ElectionRules.of(state)
            key = PartitionKey(one.stream_id, one.partition)
            if one.is_refused:
                self._refusals.add(key, broker_id, now.elapsed_us)
            refused = self._refusals.of(key, now.elapsed_us)
            cannot_listen = without_nats | refused
            changed = elections.leader_changed(partition, live, rules, resigned=not one.is_whole, silent=cannot_listen)
            if changed is None or (one.is_whole and {broker_id, changed.leader} <= cannot_listen):
                continue  # the new leader could not listen either
            reason = ElectionReason.IMPEDED if one.is_whole else ElectionReason.RESIGNED
            election = Election(one.stream_id, one.partition, one.leader_epoch, reason)
            wanted.setdefault(refused, []).append(election)
        return wanted

    def register(
        self, caller: Hashable, request: RegisterBrokerRequest, now: Now, heard: RaftContact | None = None
    ) -> None:
        """Register a broker; answered with its incarnation.

        Errors: cluster_mismatch, bad_request, broker_unavailable, too_large, overloaded, unsupported_version. `heard`:
        what Raft knows of its disk and its process.
        """
        if not self._may_answer(caller):
            return
        if (refusal := self._registration_refused(request, heard or RaftContact(), now)) is not None:
            self._answer(caller, refusal)
            return
        if self._is_under_way(caller, ("register", request.broker_id)):
            return
        command = RegisterBroker(
            broker_id=request.broker_id,
            data_dir_id=request.data_dir_id,
            address=request.address,
            rack=request.rack,
            broker_version=request.broker_version,
            clean_stop=request.clean_stop,
            run_before=request.run_before,
            process=request.process,
            registered_us=now.wall_us,
        )

        def done(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._answer(caller, outcome)
            else:
                incarnation = self._image.brokers[request.broker_id].incarnation
                self._answer(caller, RegisterBrokerResponse(incarnation=incarnation))

        self._proposals.begin(("register", request.broker_id), command, done)

    def _registration_refused(self, request: RegisterBrokerRequest, heard: RaftContact, now: Now) -> RemoteError | None:
        for broker_id, broker in self._image.brokers.items():
            if broker.data_dir_id == request.data_dir_id and broker_id != request.broker_id:
                text = f"the data directory is that of broker {broker_id}; a new broker begins with an empty one"
                return RemoteError(ErrorCode.CLUSTER_MISMATCH, text, broker_id=int(broker_id))
        if request.address and not is_address(request.address):  # a single broker may have none
            return RemoteError(ErrorCode.BAD_REQUEST, f"{request.address!r} is no address (HOST:PORT) of a broker")
        try:
            check_level(self._image, request.broker_id, request.broker_version)
        except RemoteError as error:
            return error
        known = self._image.brokers.get(request.broker_id)
        if known is None and len(self._image.brokers) >= limits.BROKERS_MAX:
            return RemoteError(ErrorCode.TOO_LARGE, f"there are {limits.BROKERS_MAX} brokers already")
        if known is not None and known.data_dir_id == request.data_dir_id and known.process != request.process:
            if not may_have_run(known.process, request.runs):
                return _older_copy(request, "has run since on a newer copy of this data directory")
            if request.log_index is not None and request.log_index < heard.acknowledged_index:
                return _older_copy(request, "has acknowledged more of the metadata than this data directory holds")
        if known is not None and known.is_live and known.data_dir_id != request.data_dir_id:
            text = (
                f"broker {request.broker_id} is registered at {known.address} with another data directory; if that one "
                "is gone for good, retry once its session has timed out"
            )
            return RemoteError(ErrorCode.BROKER_UNAVAILABLE, text, broker_id=int(request.broker_id), taken=True)
        if known is not None and known.is_live and self._has_rival(known, request.process, heard.speaker, now):
            text = (
                f"broker {request.broker_id} is registered at {known.address} by another process; if that was killed, "
                "retry in a moment"
            )
            return RemoteError(ErrorCode.BROKER_UNAVAILABLE, text, broker_id=int(request.broker_id), taken=True)
        for broker_id, broker in self._image.brokers.items():
            if broker.is_live and broker.address == request.address and broker_id != request.broker_id:
                text = f"the address {request.address} is that of broker {broker_id}, which is live"
                return RemoteError(ErrorCode.BROKER_UNAVAILABLE, text, broker_id=int(broker_id), taken=True)
        return None

    def _has_rival(self, known: BrokerState, process: str, speaker: str | None, now: Now) -> bool:
        """True if the registered process may be alive: heard lately, or this metadata leader is too new to know."""
        if process == known.process or known.broker_id == self._broker_id:
            return False
        if speaker is not None:
            return speaker != process
        since_us = now.elapsed_us - _RIVAL_US
        return since_us < self._led_us or self._sessions.is_heard_since(known.broker_id, since_us)

    def stop_broker(self, caller: Hashable, request: StopBrokerRequest, now: Now) -> None:
        """Stop a broker; answered once its leaderships have moved. Error: stale_incarnation."""
        if not self._may_answer(caller):
            return
        known = self._image.brokers.get(request.broker_id)
        if known is not None and known.incarnation == request.incarnation and not known.is_live and known.clean_stop:
            self._answer(caller, StopBrokerResponse())  # the answer was lost
            return
        if self._is_under_way(caller, ("stop", request.broker_id)):
            return
        if (before := self._stops_waiting.pop(request.broker_id, None)) is not None:
            self._answer(
                before[0], RemoteError(ErrorCode.OVERLOADED, "replaced by a later request to stop this broker")
            )
        self._stops_waiting[request.broker_id] = (caller, request)
        self._propose_stops(now)

    def _propose_stops(self, now: Now) -> None:
        if self._stops_waiting and self._is_settled(now):
            stops, self._stops_waiting = self._stops_waiting, {}
            for caller, request in stops.values():
                self._propose_stop(caller, request, now)

    def _propose_stop(self, caller: Hashable, request: StopBrokerRequest, now: Now) -> None:
        silent = self._last(now, request.broker_id)
        command = StopBroker(broker_id=request.broker_id, incarnation=request.incarnation, silent=silent)

        def done(outcome: CommandOutcome | RemoteError) -> None:
            self._answer(caller, outcome if isinstance(outcome, RemoteError) else StopBrokerResponse())

        self._proposals.begin(("stop", request.broker_id), command, done)

    # Changes of ISRs

    def change_isr(self, caller: Hashable, request: ChangeIsrRequest) -> None:
        """Change ISRs; answered with the result of each change. Errors: stale_incarnation, overloaded."""
        if not self._may_answer(caller):
            return
        waiting = self._isr_waiting.setdefault(request.broker_id, deque())
        if len(waiting) >= limits.ISR_REQUESTS_WAITING_MAX:
            text = f"broker {request.broker_id} has {len(waiting)} ISR changes waiting; retry later"
            self._answer(caller, RemoteError(ErrorCode.OVERLOADED, text))
            return
        waiting.append((caller, request))
        self._propose_isr_changes(request.broker_id)

    def _propose_isr_changes(self, broker_id: BrokerId) -> None:
        """Propose all waiting changes of that broker in one command, as far as they fit."""
        key = ("isr", broker_id)
        waiting = self._isr_waiting.get(broker_id)
        if key in self._proposals or waiting is None:
            return
        if not waiting:
            del self._isr_waiting[broker_id]
            return
        incarnation = waiting[0][1].incarnation
        asked: list[tuple[Hashable, ChangeIsrRequest]] = []
        count = 0
        while waiting and waiting[0][1].incarnation == incarnation:
            count += len(waiting[0][1].changes)
            if asked and count > limits.ISR_CHANGES_PER_COMMAND_MAX:
                break
            asked.append(waiting.popleft())
        changes = tuple(change for _, request in asked for change in request.changes)

        def done(outcome: CommandOutcome | RemoteError) -> None:
            self._answer_isr_changes(asked, outcome)
            self._propose_isr_changes(broker_id)

        self._proposals.begin(key, ChangeIsr(broker_id=broker_id, incarnation=incarnation, changes=changes), done)

    def _answer_isr_changes(
        self, asked: list[tuple[Hashable, ChangeIsrRequest]], outcome: CommandOutcome | RemoteError
    ) -> None:
        position = 0
        for caller, request in asked:
            if isinstance(outcome, RemoteError):
                self._answer(caller, outcome)
                continue
            results = outcome.results[position : position + len(request.changes)]
            position += len(request.changes)
            self._answer(caller, ChangeIsrResponse(results=tuple(map(_isr_result, results))))

    def _is_under_way(self, caller: Hashable, key: tuple[str, BrokerId]) -> bool:
        if key in self._proposals:
            text = f"a request to {key[0]} broker {key[1]} is already in progress; retry"
            self._answer(caller, RemoteError(ErrorCode.OVERLOADED, text))
        return key in self._proposals

    def _may_answer(self, caller: Hashable) -> bool:
        if not self.leads:
            self._answer(caller, self._not_leader())
        return self.leads

    def _answer(self, caller: Hashable, response: Response | RemoteError) -> None:
        self._answers.append(ControllerAnswer(caller, response))


def _isr_result(result: int | RemoteError) -> IsrResult:
    if isinstance(result, RemoteError):
        return IsrResult(error=result.code, message=result.message)
    return IsrResult(version=result)


def _ignore(outcome: CommandOutcome | RemoteError) -> None:
    """Handle a result that no caller waits for: if the cause persists, it is found again."""


def _older_copy(request: RegisterBrokerRequest, reason: str) -> RemoteError:
    text = f"broker {request.broker_id} {reason}"
    return RemoteError(ErrorCode.CLUSTER_MISMATCH, text, broker_id=int(request.broker_id), older_copy=True)
