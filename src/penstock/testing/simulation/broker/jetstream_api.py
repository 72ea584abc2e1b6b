"""JetStream's API at one simulated broker: its gateway and its leaf connection, for one run.

Rules: as in the real driver. The gateway's requests to the node are answered in a later step; what it decides is part
of the node's steps; readers go on in turns of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from penstock.hot.message_group import MessageGroup
from penstock.jetstream.api import jetstream_gateway
from penstock.jetstream.gateway import ACK_GROUP, GATEWAY_GROUP, Gateway
from penstock.node.node import Node
from penstock.node.step import NatsAnswers
from penstock.testing.simulation.broker.leaf import LeafLinkModel, LeafOwner
from penstock.testing.simulation.nats import NatsServerModel
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.scheduler import Clock

DOMAIN = "penstock"
PREFIXES = (f"$JS.{DOMAIN}.API.", "$JS.API.")
_PAYLOAD_MAX = 8 << 20  # of the model server
_TURN_US = 200  # longest time until readers have their next turn


class JetStreamApi:
    """The API of one run of a broker."""

    def __init__(
        self,
        name: str,
        run: int,
        node: Node,
        owner: LeafOwner,
        clock: Clock,
        network: Network,
        server: NatsServerModel,
    ) -> None:
        random = Random(f"{name} leaf of run {run}")  # noqa: S311 (nothing secret)
        self.leaf = LeafLinkModel(
            name, owner, network, server, node.outbox, random, self._interest_lost, self._interest_known
        )
        self._clock = clock
        self._network = network
        self._random = random
        self._is_turn_due = False
        names = count(1)
        self.gateway: Gateway = jetstream_gateway(
            node,
            prefixes=PREFIXES,
            deliveries=self.leaf,
            new_name=lambda: f"{name}r{run}n{next(names)}",
            unsent_bytes=lambda: 0,
            domain=DOMAIN,
        )

    @staticmethod
    def has(answers: NatsAnswers) -> bool:
        """True if these are answers of the API, not acks."""
        return answers.sid == GATEWAY_GROUP

    def received(self, groups: dict[int, MessageGroup]) -> None:
        """Take acks and requests out of the messages of one read."""
        if (acks := groups.pop(ACK_GROUP, None)) is not None:
            self.gateway.acks_received(acks, self._clock.now())
        if (calls := groups.pop(GATEWAY_GROUP, None)) is not None:
            self.gateway.messages_received(calls, self._clock.now())

    def link_up(self) -> None:
        self.gateway.connected(_PAYLOAD_MAX, False, self._clock.now())

    def tick(self) -> None:
        self.gateway.tick(self._clock.now())

    def plan_turn(self, event: Callable[[Callable[[], None]], None]) -> None:
        """Have readers go on in a moment, as `event`, if any of them can."""
        if self.gateway.has_next_turn and not self._is_turn_due:
            self._is_turn_due = True
            self._network.scheduler.after(int(self._random.random() * _TURN_US), lambda: event(self._turn))

    def _turn(self) -> None:
        self._is_turn_due = False
        self.gateway.turn(self._clock.now())

    def _interest_lost(self, subjects: Sequence[bytes]) -> None:
        self.gateway.interest_lost(subjects, self._clock.now())

    def _interest_known(self) -> None:
        self.gateway.interest_known(self._clock.now())
