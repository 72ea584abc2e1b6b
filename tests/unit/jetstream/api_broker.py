"""Brokers with the gateway for JetStream's API, without sockets: the node's harness, and NATS's part of the API.

Rules: nobody else serves the API unless `others` has an answer for a probe. What the gateway publishes is in `answers`,
by reply subject.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable
from itertools import count
from typing import Any, Self

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.jetstream.api import jetstream_gateway
from penstock.jetstream.consumer_requests import ask_consumers
from penstock.jetstream.gateway import ACK_GROUP, ALL_RIGHTS, GATEWAY_GROUP, ApiRights
from penstock.jetstream.node_access import GatewayCaller
from penstock.messages import AskConsumersRequest, PassApiCallsRequest, PassApiCallsResponse, Request
from penstock.metadata.api_decisions import ApiDecision
from penstock.node.step import Payload, PeerRequest, Reply, Step
from penstock.vfs.memory import MemoryVfs
from tests.groups import Message, group_of
from tests.unit.jetstream.leafs import FakeLeaf
from tests.unit.node.harness import Broker, _read
from tests.unit.node.members import Asked, Brokers, Member

PREFIXES = ("$JS.here.API.", "$JS.API.")
_COMMAND = re.compile(rb"(?:PUB (\S+) (\d+)|HPUB (\S+) (?:(\S+) )?(\d+) (\d+))\r\n")
NO_RESPONDERS = (b"NATS/1.0 503\r\n\r\n", b"")


class WithApi(Broker):
    """One node, its gateway, and their driver."""

    def make_gateway(
        self, rights: ApiRights = ALL_RIGHTS, has_jetstream: bool = False, prefixes: tuple[str, ...] = PREFIXES
    ) -> None:
        """Make the gateway; `prefixes` are those that the broker's settings allow."""
        self.leaf = FakeLeaf()
        self.unsent_bytes = 0
        names = count(1)
        self.gateway = jetstream_gateway(
            self.node,
            prefixes=prefixes,
            deliveries=self.leaf,
            new_name=lambda: f"reader{next(names)}",
            unsent_bytes=lambda: self.unsent_bytes,
            domain="here",
            rights=rights,
        )
        self.published: list[bytes] = []  # all of it, as it is sent
        self.answers: dict[str, bytes] = {}
        self.blocks: dict[str, bytes] = {}  # header blocks of answers
        # header block and payload of who answers a probe; None: nobody does, and nothing is said
        self.others: tuple[bytes | None, bytes] | None = NO_RESPONDERS
        self.probes: list[tuple[str, str]] = []  # subject, and where the answer goes
        self.has_jetstream = has_jetstream

    def _pass_on(self, caller: Hashable, request: Request, raw: bytes) -> None:
        """As the driver: the gateway answers requests for consumers."""
        if not isinstance(request, AskConsumersRequest):
            super()._pass_on(caller, request, raw)
            return
        try:
            call = self.node.authorized(caller, request, raw, self.clock.now, self.who, self.origin)
        except RemoteError as refusal:
            self.node.outbox.reply(caller, refusal)
        else:
            ask_consumers(self.gateway, call)

    def connect_api(self) -> None:
        """The connection to NATS is up: the gateway finds out who else serves the API."""
        self.gateway.connected(1 << 20, self.has_jetstream, self.clock.now)
        self.gateway_tick(1)
        self.gateway_tick(1)

    def turn(self) -> None:
        """As the driver: a decision of the cluster is acted on at once."""
        super().turn()
        while self.gateway.has_news and self.node.cluster_id:
            self.gateway.tick(self.clock.now)
            super().turn()

    def interest_known(self) -> None:
        """nats-server has told the leaf connection of all interest, if that was asked for."""
        if self.leaf.is_asked:
            self.leaf.is_asked = False
            self.gateway.interest_known(self.clock.now)

    def gateway_tick(self, advance_ms: float = 0) -> None:
        self.clock.advance_ms(advance_ms)
        self.gateway.tick(self.clock.now)
        self.turn()

    def do(self, step: Step) -> None:
        ours = [one for one in step.publish if one.sid == GATEWAY_GROUP]
        step.publish = [one for one in step.publish if one.sid != GATEWAY_GROUP]
        super().do(step)
        self.published += [one.commands for one in ours]
        for one in ours:
            self._published(one.commands)

    def _published(self, commands: bytes) -> None:
        while commands:
            found = _COMMAND.match(commands)
            assert found is not None, commands
            end = found.end() + int(found[2] or found[6])
            assert commands[end : end + 2] == b"\r\n"
            self._publish_one(found, commands[found.end() : end])
            commands = commands[end + 2 :]

    def _publish_one(self, found: re.Match[bytes], body: bytes) -> None:
        if found[1] is not None:
            self.answers[found[1].decode()] = body
            return
        head = int(found[5])
        if found[4] is not None:  # a request: the gateway only asks who serves a prefix
            self.probes.append((found[3].decode(), found[4].decode()))
            if self.others is not None:
                self.deliver([(found[4], None, *self.others)])
        else:
            self.answers[found[3].decode()] = body[head:]
            self.blocks[found[3].decode()] = body[:head]

    def _reply(self, reply: Reply) -> None:
        if not isinstance(reply.caller, GatewayCaller):
            super()._reply(reply)
            return
        payload: Payload = reply.payload
        if isinstance(payload, tuple):
            payload = b"".join(map(_read, payload))
        elif payload is not None:
            payload = _read(payload)
        self.gateway.answered(reply.caller, reply.response, payload)

    def take_calls(self, calls: list[Message]) -> None:
        """One read with these requests, all of which are taken: the gateway gets as many turns as it wants."""
        self.gateway.messages_received(group_of(calls), self.clock.now)
        while self.gateway.has_next_turn:
            self.gateway.turn(self.clock.now)

    def deliver(self, messages: list[Message]) -> None:
        asked = [
            message
            for message in messages
            for sid, pattern in self.nats.subscriptions.items()
            if sid & GATEWAY_GROUP == GATEWAY_GROUP and _matches(pattern, message[0].decode(errors="replace"))
        ]
        acks = [
            message
            for message in messages
            for sid, pattern in self.nats.subscriptions.items()
            if sid & GATEWAY_GROUP == ACK_GROUP and _matches(pattern, message[0].decode(errors="replace"))
        ]
        if acks:
            self.gateway.acks_received(group_of(acks), self.clock.now)
        if asked:
            self.take_calls(asked)
        if len(asked) + len(acks) < len(messages):
            super().deliver(messages)
        self.turn()

    def call(self, operation: str, request: Any = b"", *, headers: bytes | None = None, waits_ms: int = 2_000) -> Any:
        """Return the answer to an API request within `waits_ms`, or None; `request`: bytes, or what becomes JSON."""
        payload = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.answers.pop("_INBOX.caller", None)
        self.deliver([(f"$JS.API.{operation}".encode(), b"_INBOX.caller", headers, payload)])
        for _ in range(0, waits_ms, 100):
            if not self.gateway.under_way:
                break
            self.tick(100)
            self.gateway_tick()
        answer = self.answers.pop("_INBOX.caller", None)
        return json.loads(answer) if answer else None

    @property
    def served(self) -> list[str]:
        """The API subjects that are subscribed."""
        return [one for one in self.nats.subscriptions.values() if one.startswith("$JS.")]


class ApiBroker(WithApi):
    """A broker that is alone."""

    def __init__(
        self, *args: Any, rights: ApiRights = ALL_RIGHTS, has_jetstream: bool = False, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.make_gateway(rights, has_jetstream)

    def start(self) -> Self:
        super().start()
        self.connect_api()
        return self


class ApiMember(WithApi, Member):
    """A broker of a cluster. `prefixes` is empty where `jetstream_api` is off."""

    brokers: ApiBrokers

    def __init__(self, brokers: ApiBrokers, broker_id: int, disk: str, memory: MemoryVfs | None = None) -> None:
        super().__init__(brokers, broker_id, disk, memory)
        self.make_gateway(brokers.rights, prefixes=brokers.prefixes.get(broker_id, PREFIXES))
        self.others = brokers.others.get(broker_id, NO_RESPONDERS)
        self.has_jetstream = broker_id in brokers.with_jetstream

    def start(self) -> Self:
        super().start()
        self.connect_api()
        return self

    def tick_node(self) -> None:
        super().tick_node()
        self.gateway.tick(self.clock.now)

    def turn(self) -> None:
        """As the driver: the gateway gets its turns between those of the node."""
        super().turn()
        while self.gateway.has_next_turn or self.leaf.is_due:
            self.gateway.turn(self.clock.now)
            if self.leaf.is_due:
                self.interest_known()
            super().turn()

    def decision(self, prefix: str = "$JS.API.") -> ApiDecision | None:
        """Return the cluster's decision, as this broker knows it."""
        found: ApiDecision | None = self.image.api(prefix)
        return found

    def answers_calls(self, prefix: str = "$JS.API.") -> bool:
        """True if it answers a call that NATS gives to it now."""
        self.answers.pop("_INBOX.caller", None)
        probe = b"NATS/1.0\r\nPenstock-Probe: 1\r\n\r\n"  # waits for no metadata leader
        group = group_of([(f"{prefix}INFO".encode(), b"_INBOX.caller", probe, b"")])
        self.gateway.messages_received(group, self.clock.now)
        self.turn()
        return "_INBOX.caller" in self.answers


class ApiBrokers(Brokers):
    """A cluster whose brokers are made with these settings, and meet these other services."""

    def __init__(self, *ids: int, **settings: Any) -> None:
        self.prefixes: dict[int, tuple[str, ...]] = settings.pop("prefixes", {})
        self.others: dict[int, tuple[bytes | None, bytes] | None] = settings.pop("others", {})
        self.with_jetstream: set[int] = settings.pop("with_jetstream", set())
        self.rights: ApiRights = settings.pop("rights", ALL_RIGHTS)
        self.asked: Counter[type[Request]] = Counter()  # of one broker by another
        self.stopping: set[BrokerId] = set()  # they take no requests of others any more
        super().__init__(*ids, **settings)

    def _ask(self, sender: BrokerId, request: PeerRequest) -> None:
        self.asked[type(request.request)] += 1
        super()._ask(sender, request)

    def _take(self, to: Member, caller: Asked, request: PeerRequest) -> None:
        if not isinstance(request.request, PassApiCallsRequest):
            super()._take(to, caller, request)
            return
        assert isinstance(to, ApiMember)  # as the driver
        if to.broker_id in self.stopping:
            to.node.outbox.reply(caller, RemoteError(ErrorCode.STOPPING, "the broker is stopping"))
        else:
            to.gateway.passed_on(request.payload, self.clock.now)
            to.node.outbox.reply(caller, PassApiCallsResponse())

    def start(self, broker_id: int, memory: MemoryVfs | None = None, disk: str = "") -> ApiMember:
        made = ApiMember(self, broker_id, disk or f"disk-{broker_id}", memory)
        self.join_again(made)
        return made

    def __getitem__(self, broker_id: int) -> ApiMember:
        found = self.members[BrokerId(broker_id)]
        assert isinstance(found, ApiMember)
        return found

    @property
    def all(self) -> list[ApiMember]:
        """The brokers, by id."""
        return [self[one] for one in sorted(self.members)]

    def serving(self, prefix: str = "$JS.API.") -> list[int]:
        """Return the brokers that serve a prefix."""
        return [int(one.broker_id) for one in self.all if f"{prefix}>" in one.served]


def _matches(pattern: str, subject: str) -> bool:
    return subject == pattern or (pattern.endswith(".>") and subject.startswith(pattern[:-1]))
