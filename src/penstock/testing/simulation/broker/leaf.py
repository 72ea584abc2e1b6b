"""A broker's leaf connection with the real session: it delivers, and hears of the interest in inboxes.

Rules: as in the real link, but without a trial delivery: it is up after the PONG behind the snapshot of the interest.
Deliveries without a connection are dropped. What is lost with a connection is lost: readers' clients notice it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from penstock.ingest.interest import InterestTable
from penstock.ingest.leaf import LeafSession, delivery_mistake
from penstock.ingest.nats import BarrierReached, InterestLost, NatsSessionState, SessionClosed, SessionEvent
from penstock.node.step import Outbox
from penstock.testing.simulation import nats
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.scheduler import Call, Timer


class LeafOwner(Protocol):
    """Receives the events of the leaf connection."""

    def event(self, call: Call) -> None:
        """Run `call` as an event of the broker; deferred while it is paused."""

    def now_ms(self) -> int:
        """Return the time of the broker's own clock."""

    def after_ms(self, delay_ms: int, call: Call) -> Timer:
        """Schedule `call` in true time."""


class LeafLinkModel:
    """The leaf connection of one run of a broker, as readers use it (`Deliveries`). Call `start` first."""

    def __init__(
        self,
        name: str,
        owner: LeafOwner,
        network: Network,
        server: nats.NatsServerModel,
        outbox: Outbox,
        random: Random,
        interest_lost: Callable[[Sequence[bytes]], None],
        interest_known: Callable[[], None],
    ) -> None:
        self.interest = InterestTable()
        self._name = name
        self._owner = owner
        self._network = network
        self._server = server
        self._outbox = outbox
        self._random = random
        self._interest_lost = interest_lost
        self._interest_known = interest_known
        self._is_asked = False
        self._session: LeafSession | None = None
        self._connection: SimConnection | None = None
        self._rest = b""
        self._decided_us: deque[int] = deque()  # of what is to be delivered with the next steps
        self._stopped = False
        self._timer: Timer | None = None

    def start(self) -> None:
        self._network.connect(self._name, nats.NAME, self._connected, self._lost)

    def stop(self) -> None:
        """Close; the owner gets no more events."""
        self._stopped = True
        if self._connection is not None:
            self._connection.close(by_source=True)
        self._session = self._connection = None
        if self._timer is not None:
            self._timer.cancel()

    # What readers use

    @property
    def is_up(self) -> bool:
        return self._session is not None and self._session.state is NatsSessionState.READY

    @property
    def is_writable(self) -> bool:
        return self.is_up

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        return self.interest.has_interest(subject, queue)

    def groups(self, subject: bytes) -> bytes:
        return self.interest.groups(subject)

    def regrouped(self) -> list[bytes] | None:
        return self.interest.regrouped()

    def watch(self, subject: bytes) -> None:
        self.interest.watch(subject, self._owner.now_ms())

    def unwatch(self, subject: bytes) -> None:
        self.interest.unwatch(subject)

    def ask_interest(self) -> bool:
        if self._session is None or not self.is_up:
            return False
        self._is_asked = True
        self._session.barrier()
        self._write(self._session.take_output())
        return True

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        if self._session is None:
            return "there is no leaf connection"
        return delivery_mistake(self._session.info, subject, size_bytes)

    def deliver(self, frames: bytes | bytearray) -> None:
        self._outbox.step.deliver.append(bytes(frames))
        self._decided_us.append(self._network.scheduler.now_us)

    # What the broker does

    def carry_out(self, frames: Sequence[bytes | bytearray]) -> None:
        """Write what a step delivers."""
        for frame in frames:
            decided_us = self._decided_us.popleft()
            if self.is_up:
                self._write(bytes(frame), decided_us)

    def _write(self, data: bytes, decided_us: int = 0) -> None:
        if (connection := self._connection) is not None and data:
            connection.send(lambda: self._server.receive(connection, data, decided_us))

    # Events of the network

    def _connected(self, connection: SimConnection | None) -> None:
        if self._stopped:
            if connection is not None:
                connection.close(by_source=True)
            return
        if connection is None:
            self._again()
            return
        self._connection = connection
        session = self._session = LeafSession(self.interest, name=self._name, now_ms=self._owner.now_ms())
        self._rest = b""
        self._server.greet_leaf(connection, lambda data: self._owner.event(lambda: self._receive(session, data)))
        self._set_timer(session)

    def _receive(self, session: LeafSession, data: bytes) -> None:
        if session is not self._session:
            return
        buffer = self._rest + data if self._rest else data
        received = session.receive(buffer, 0, len(buffer), self._owner.now_ms())
        self._rest = buffer[received.position :]
        self._take(session, received.events)

    def _take(self, session: LeafSession, events: Sequence[SessionEvent]) -> None:
        for event in events:
            if isinstance(event, InterestLost):
                self._interest_lost(event.subjects)
            elif isinstance(event, BarrierReached):
                self._known()
            elif isinstance(event, SessionClosed):
                assert "protocol" not in event.reason, event.reason  # the model server speaks the protocol correctly
                if self._connection is not None:
                    self._connection.close(by_source=True)
                self._down()
        if session is self._session:
            self._write(session.take_output())

    def _lost(self) -> None:
        if not self._stopped:
            self._owner.event(self._down)

    def _down(self) -> None:
        if self._session is None or self._stopped:
            return
        self._session = self._connection = None
        self.interest.ended()
        self._known()
        self._again()

    def _known(self) -> None:
        if self._is_asked:
            self._is_asked = False
            self._interest_known()

    def _again(self) -> None:
        self._timer = self._owner.after_ms(250 + int(self._random.random() * 1_750), self.start)

    def _set_timer(self, session: LeafSession) -> None:
        delay_ms = max(1, session.next_tick_ms - self._owner.now_ms())
        self._timer = self._owner.after_ms(delay_ms, lambda: self._owner.event(lambda: self._tick(session)))

    def _tick(self, session: LeafSession) -> None:
        if session is not self._session:
            return
        self._take(session, session.tick(self._owner.now_ms()))
        if session is self._session:
            self._set_timer(session)
