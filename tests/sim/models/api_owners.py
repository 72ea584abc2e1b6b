"""JetStream's API beside another service: what each broker finds, and who serves.

Rules: `another` is the other service. It comes and goes, and only some brokers hear it, as those behind one of several
nats-servers. Brokers look for it and report, as the gateway does. Two things must hold, by real time:

- a decision that is replaced is acted on for at most API_LEASE_MS more, whatever becomes of brokers and network;
- a prefix is taken only if every broker that was live then had found that nobody else serves it, since it was asked.

A broker serves as the gateway does: by the decision that it has applied, and within its lease. That is looked at
whenever it acts, so a broker that is paused is judged when it wakes up, before it has read what waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.messages import ApiEvidence, ApiFinding, ReportApiRequest, Response
from penstock.metadata.api_decisions import ApiDecision, ApiState
from penstock.metadata.commands import DecideApi
from penstock.node.node import Node
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.scheduler import Scheduler

PREFIX = "$JS.API."
_LOOK_US = 500_000
_TAKE_US = 3_000_000
_SKEW = 1.001  # clocks run at rates that differ by less
_LEASE_US = int(limits.API_LEASE_MS * 1_000 * _SKEW)


class ApiOwners:
    """All brokers' part in JetStream's API, and what is promised of them."""

    def __init__(self, scheduler: Scheduler, brokers: Mapping[int, SimBroker], random: Random) -> None:
        self._scheduler = scheduler
        self._brokers = brokers
        self._random = random
        self.heard_by: frozenset[int] = frozenset()  # brokers that hear the other service
        self.served = 0  # how often a broker served
        self.taken = 0
        self.withdrawn = 0
        self._replaced_us: dict[int, int] = {}  # index of a decision → when it was replaced, as far as is known
        self._last: dict[int, int] = {}  # broker → index of its decision
        self._free: set[tuple[int, int, int]] = set()  # broker, its run in the metadata, `since`: it found nobody
        self._judged: set[int] = set()

    def start(self) -> None:
        """Begin: brokers look every now and then, and an operator takes back what was withdrawn."""
        for broker in self._brokers.values():
            self._scheduler.after(int(self._random.random() * _LOOK_US), lambda broker=broker: self._look(broker))  # type: ignore[misc]
        self._scheduler.after(_TAKE_US, self._take)

    def _look(self, broker: SimBroker) -> None:
        broker.event(lambda: self._report(broker))
        self._scheduler.after(int((0.5 + self._random.random()) * _LOOK_US), lambda: self._look(broker))

    def _report(self, broker: SimBroker) -> None:
        node = broker.node
        assert node is not None
        if (incarnation := node.incarnation) is None:
            return
        decision = node.image.api(PREFIX)
        since = 0 if decision is None else decision.since
        finding = ApiFinding.ANOTHER if broker.broker_id in self.heard_by else ApiFinding.NOBODY
        if finding is ApiFinding.NOBODY:
            self._free.add((broker.broker_id, incarnation, since))
        evidence = ApiEvidence(PREFIX, finding, since, "a JetStream answers there")
        request = ReportApiRequest(broker_id=node.broker_id, incarnation=incarnation, prefixes=(evidence,))
        node.ask_metadata_leader(request, _ignore)

    def _take(self) -> None:
        """Play the operator: propose at the metadata leader, if there is one, that the prefix is taken back."""
        for broker in self._brokers.values():
            node = broker.node
            decision = None if node is None else node.image.api(PREFIX)
            if node is None or decision is None or decision.state is not ApiState.WITHDRAWN:
                continue
            command = DecideApi(prefix=PREFIX, before=decision.index, state=ApiState.WAITING, decided_us=0)
            broker.event(lambda node=node, command=command: _propose(node, command))  # type: ignore[misc]
        self._scheduler.after(int((0.5 + self._random.random()) * _TAKE_US), self._take)

    def acted(self, broker: SimBroker) -> None:
        """Judge a broker that has acted. Raise ViolationError."""
        node, now_us = broker.node, self._scheduler.now_us
        assert node is not None
        decision = node.image.api(PREFIX)
        if decision is None:
            return
        self._note(node, decision, now_us)
        if decision.state is not ApiState.TAKEN or broker.clock.elapsed_us() >= node.api_lease_us:
            return
        self.served += 1
        replaced_us = self._replaced_us.get(decision.index)
        if replaced_us is not None and now_us - replaced_us > _LEASE_US:
            text = f"{broker.name} serves {PREFIX}> by decision {decision.index}, which was replaced"
            raise ViolationError(f"{text} {(now_us - replaced_us) / 1e6:.1f} s ago")

    def _note(self, node: Node, decision: ApiDecision, now_us: int) -> None:
        before = self._last.get(node.broker_id, 0)
        self._last[node.broker_id] = decision.index
        if before < decision.index:
            for index in set(self._last.values()) | {before}:
                if index < decision.index:
                    self._replaced_us.setdefault(index, now_us)
        if decision.index in self._judged:
            return
        self._judged.add(decision.index)
        self.withdrawn += decision.state is ApiState.WITHDRAWN
        if decision.state is ApiState.TAKEN:
            self.taken += 1
            self._check_evidence(node, decision)

    def _check_evidence(self, node: Node, decision: ApiDecision) -> None:
        if node.image.index != decision.index:
            return  # more was applied in the same turn: the live brokers of that moment are not known any more
        for one in node.image.brokers.values():
            if one.is_live and (one.broker_id, one.incarnation, decision.since) not in self._free:
                raise ViolationError(f"{PREFIX}> was taken without the evidence of broker {one.broker_id}")


def _propose(node: Node, command: DecideApi) -> None:
    quorum = node._cluster.quorum
    if quorum.is_leader:
        quorum.propose(command, _ignore)


def _ignore(response: Response | RemoteError | object) -> None:
    """Take an answer that tells nothing more."""
