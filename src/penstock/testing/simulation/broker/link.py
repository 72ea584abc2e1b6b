"""A broker's NATS connection with the real session: connects, subscribes everything, reconnects.

Rules: as in the real link. The link is up after the PONG that follows its SUBs. All subscriptions are repeated after
every reconnect. Messages may arrive before the link is up. Output without a connection is dropped: publishers retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from penstock.hot.message_group import MessageGroup
from penstock.ingest.nats import (
    BarrierReached,
    NatsSession,
    NatsSessionState,
    SessionClosed,
    SessionEvent,
    SessionReady,
    SubscriptionRefused,
)
from penstock.node.step import Barrier, NatsAnswers, Subscribe, Unsubscribe
from penstock.testing.simulation import nats
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.scheduler import Timer


class LinkOwner(Protocol):
    """Receives the events of the link."""

    def groups_received(self, groups: Mapping[int, MessageGroup]) -> None:
        """Take the messages of one read."""

    def link_up(self) -> None:
        """nats-server has every subscription."""

    def link_lost(self, proven_ms: int, reason: str) -> None:
        """The connection was lost; everything published until `proven_ms` has been received."""

    def barrier_reached(self, token: int) -> None:
        """nats-server has processed all earlier commands."""

    def subscription_refused(self, sid: int | None, reason: str) -> None:
        """nats-server has refused a subscription."""

    def event(self, call: Callable[[], None]) -> None:
        """Run `call` as an event of the broker; deferred while it is paused."""

    def now_ms(self) -> int:
        """Return the time of the broker's own clock."""

    def after_ms(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """Schedule `call` in true time."""


class NatsLinkModel:
    """The NATS link of one broker. Call `start` first and `stop` last."""

    def __init__(
        self, name: str, owner: LinkOwner, network: Network, server: nats.NatsServerModel, random: Random
    ) -> None:
        self.is_up = False
        self._name = name
        self._owner = owner
        self._network = network
        self._server = server
        self._random = random
        self._wanted: dict[int, tuple[str, str | None]] = {}
        self._session: NatsSession | None = None
        self._connection: SimConnection | None = None
        self._rest = b""
        self._barriers: dict[int, int | None] = {}  # the session's token → the node's; None: the link's own
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

    @property
    def connection(self) -> SimConnection | None:
        """The current connection, or None."""
        return self._connection

    @property
    def proven_ms(self) -> int | None:
        """Time up to which all published messages have been received; None: the link is down."""
        return self._session.proven_ms if self._session is not None and self.is_up else None

    # Commands of the node

    def take(self, command: Subscribe | Unsubscribe | Barrier) -> None:
        """Carry out one NATS command of a step."""
        match command:
            case Subscribe(sid, subject, queue):
                assert sid not in self._wanted
                self._wanted[sid] = subject, queue
                if self._is_ready:
                    self._ready.subscribe(sid, subject, queue)
            case Unsubscribe(sid):
                self._wanted.pop(sid, None)
                if self._is_ready:
                    self._ready.unsubscribe(sid)
            case Barrier(token):
                if self._is_ready:
                    self._barriers[self._ready.barrier()] = token

    def answer(self, answers: Sequence[NatsAnswers]) -> None:
        """Send answers to publishers."""
        if self._is_ready:
            self.write(b"".join([one.commands for one in answers]))

    def drain(self, token: int) -> bool:
        """End all subscriptions; `barrier_reached(token)` follows. Return False without a connection."""
        for sid in list(self._wanted):
            self.take(Unsubscribe(sid))
        if not self._is_ready:
            return False
        self._barriers[self._ready.barrier()] = token
        self.send_output()
        return True

    @property
    def _is_ready(self) -> bool:
        return self._session is not None and self._session.state is NatsSessionState.READY

    @property
    def _ready(self) -> NatsSession:
        assert self._session is not None
        return self._session

    def send_output(self) -> None:
        """Send the session's pending output."""
        if self._session is not None and (output := self._session.take_output()):
            self.write(output)

    def write(self, data: bytes) -> None:
        """Send protocol bytes."""
        if (connection := self._connection) is not None and data:
            connection.send(lambda: self._server.receive(connection, data))

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
        now_ms = self._owner.now_ms()
        session = self._session = NatsSession(name=self._name, version="1", now_ms=now_ms)
        self._rest = b""
        self._barriers.clear()
        self._server.greet(connection, lambda data: self._owner.event(lambda: self._receive(session, data)))
        self._set_timer(session)

    def _receive(self, session: NatsSession, data: bytes) -> None:
        if session is not self._session:
            return
        buffer = self._rest + data if self._rest else data
        received = session.receive(buffer, 0, len(buffer), self._owner.now_ms())
        self._rest = buffer[received.position :]
        if received.groups:
            self._owner.groups_received(received.groups)
        for event in received.events:
            self._event(event)
        self.send_output()

    def _event(self, event: SessionEvent) -> None:
        if isinstance(event, SessionReady):
            for sid, (subject, queue) in self._wanted.items():
                self._ready.subscribe(sid, subject, queue)
            self._barriers[self._ready.barrier()] = None
        elif isinstance(event, BarrierReached):
            token = self._barriers.pop(event.token)
            if token is not None:
                self._owner.barrier_reached(token)
            else:
                self.is_up = True
                self._owner.link_up()
        elif isinstance(event, SubscriptionRefused):
            self._owner.subscription_refused(event.sid, event.reason)
        elif isinstance(event, SessionClosed):
            assert "protocol" not in event.reason, event.reason  # the model server speaks the protocol correctly
            if self._connection is not None:
                self._connection.close(by_source=True)
            self._down(event.reason)

    def _lost(self) -> None:
        if not self._stopped:
            self._owner.event(lambda: self._down("the connection broke"))

    def _down(self, reason: str) -> None:
        if self._session is None or self._stopped:
            return
        proven_ms = self._session.proven_ms
        self._session = self._connection = None
        self._barriers.clear()
        if self.is_up:
            self.is_up = False
            self._owner.link_lost(proven_ms, reason)
        self._again()

    def _again(self) -> None:
        self._timer = self._owner.after_ms(250 + int(self._random.random() * 750), self.start)

    def _set_timer(self, session: NatsSession) -> None:
        delay_ms = max(1, session.next_tick_ms - self._owner.now_ms())
        self._timer = self._owner.after_ms(delay_ms, lambda: self._owner.event(lambda: self._tick(session)))

    def _tick(self, session: NatsSession) -> None:
        if session is not self._session:
            return
        for event in session.tick(self._owner.now_ms()):
            self._event(event)
        self.send_output()
        if session is self._session:
            self._set_timer(session)
