"""A broker's connections to its peers: one to each, for its own requests; reconnected whenever it is lost.

Rules: as in the real driver. `peer_up` and `peer_lost` alternate for each peer. A request to a peer that is down is
dropped, and so is an answer that arrives after its connection was replaced. Unlike the real driver, a broker that
accepts a connection does not connect back at once: this gives more cases where only one of two brokers hears the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import API_OF_REQUEST, Request, Response
from penstock.messages.apis import is_asked_by_brokers
from penstock.node.node import Node
from penstock.node.step import PeerRequest
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.scheduler import Call, Clock

Answer = Callable[[Response | RemoteError, bytes], None]
Ask = Callable[[str, SimConnection, Request, bytes, Answer], None]
_RETRY_US = (100_000, 500_000)


class PeerLinks:
    """The peer connections of one run. `ask` delivers a request to the broker of that name."""

    def __init__(
        self,
        name: str,
        node: Node,
        clock: Clock,
        network: Network,
        random: Random,
        *,
        event: Callable[[Call], None],
        carry_out: Call,
        ask: Ask,
        are_proven: bool = False,
    ) -> None:
        """Create the links. `are_proven`: brokers have authenticated each other with their shared secret."""
        self._are_proven = are_proven
        self._name = name
        self._node = node
        self._clock = clock
        self._network = network
        self._random = random
        self._event = event
        self._carry_out = carry_out
        self._ask = ask
        self._names: dict[int, str] = {}  # peer → its machine
        self._up: dict[int, SimConnection] = {}
        self._is_over = False

    def stop(self) -> None:
        """End with the run."""
        self._is_over = True

    def address_changed(self, broker_id: int, address: str) -> None:
        """Set a peer's address; "": it is no peer any more."""
        name = address.partition(":")[0]
        if self._names.get(broker_id, "") == name:
            return
        if name:
            self._names[broker_id] = name
            self._connect(broker_id, name)
        else:
            del self._names[broker_id]
        if (connection := self._up.get(broker_id)) is not None:
            connection.close(by_source=True)
            self._lost(broker_id, connection)

    def send(self, request: PeerRequest) -> None:
        """Send a request to a peer; dropped if the peer is down."""
        assert is_asked_by_brokers(API_OF_REQUEST[type(request.request)].api), request
        to, token = request.to, request.token
        connection = self._up.get(to)
        if connection is None:
            return
        name = self._names[to]

        def answered(response: Response | RemoteError, raw: bytes) -> None:
            self._event(partial(take, response, raw))

        def take(response: Response | RemoteError, raw: bytes) -> None:
            if self._up.get(to) is connection:
                self._node.answered(to, token, response, raw, self._clock.now())

        connection.send(partial(self._ask, name, connection, request.request, request.payload, answered))

    def _connect(self, broker_id: int, name: str) -> None:
        if self._is_over or self._names.get(broker_id) != name or broker_id in self._up:
            return
        made: list[SimConnection] = []

        def lost() -> None:
            self._event(lambda: self._lost(broker_id, made[0]))

        def done(connection: SimConnection | None) -> None:
            if connection is None:
                self._later(broker_id, name)
                return
            made.append(connection)
            self._event(lambda: self._connected(broker_id, name, connection))

        self._network.connect(self._name, name, done, lost)

    def _connected(self, broker_id: int, name: str, connection: SimConnection) -> None:
        if self._is_over or self._names.get(broker_id) != name or broker_id in self._up or not connection.is_open:
            connection.close(by_source=True)
            self._later(broker_id, name)
            return
        self._carry_out()  # first: what was decided for an earlier connection is dropped together with that connection
        if self._names.get(broker_id) != name:
            connection.close(by_source=True)
            return
        self._up[broker_id] = connection
        self._node.peer_up(BrokerId(broker_id), self._clock.now(), is_proven=self._are_proven)

    def _lost(self, broker_id: int, connection: SimConnection) -> None:
        if self._up.get(broker_id) is not connection:
            return
        del self._up[broker_id]
        self._node.peer_lost(BrokerId(broker_id), self._clock.now())
        if (name := self._names.get(broker_id)) is not None:
            self._later(broker_id, name)

    def _later(self, broker_id: int, name: str) -> None:
        low, high = _RETRY_US
        wait_us = low + int(self._random.random() * (high - low))
        self._network.scheduler.after(wait_us, partial(self._connect, broker_id, name))
