"""A broker's connection to NATS, with the real session: connects, subscribes everything, connects again.

Rules: those of the real link. It is up once the PONG behind its SUBs has come; what is subscribed is subscribed again
after every reconnect; messages may come before it is up. What it cannot write is dropped: publishers ask again.
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
from penstock.sim import nats
from penstock.sim.network import Connection, Network
from penstock.sim.scheduler import Timer


class LinkOwner(Protocol):
    """Who hears what the link brings."""

    def groups_received(self, groups: Mapping[int, MessageGroup]) -> None:
        """Messages, of one read."""

    def link_up(self) -> None:
        """Everything is subscribed."""

    def link_lost(self, proven_ms: int, reason: str) -> None:
        """The connection is gone; what was published until `proven_ms` has been received."""

    def barrier_reached(self, token: int) -> None:
        """NATS has done what came before it."""

    def subscription_refused(self, sid: int | None, reason: str) -> None:
        """NATS does not let the broker subscribe."""

    def event(self, call: Callable[[], None]) -> None:
        """Have `call` done as an event of the broker: later, if it is paused."""

    def now_ms(self) -> int:
        """By the broker's own clock."""

    def after_ms(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """Call later, by true time."""


class Link:
    """One broker's link. `start` first; `stop` at its end."""

    def __init__(self, name: str, owner: LinkOwner, network: Network, server: nats.NatsServer, random: Random) -> None:
        self.is_up = False
        self._name = name
        self._owner = owner
        self._network = network
        self._server = server
        self._random = random
        self._wanted: dict[int, tuple[str, str | None]] = {}
        self._session: NatsSession | None = None
        self._connection: Connection | None = None
        self._rest = b""
        self._barriers: dict[int, int | None] = {}  # the session's token → the node's; None: the link's own
        self._stopped = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Connect."""
        self._network.connect(self._name, nats.NAME, self._connected, self._lost)

    def stop(self) -> None:
        """Close; nothing more is said to the owner."""
        self._stopped = True
        if self._connection is not None:
            self._connection.close(by_source=True)
        self._session = self._connection = None
        if self._timer is not None:
            self._timer.cancel()

    @property
    def connection(self) -> Connection | None:
        """The connection, while there is one."""
        return self._connection

    @property
    def proven_ms(self) -> int | None:
        """What was published until then has been received; None: the link is down."""
        return self._session.proven_ms if self._session is not None and self.is_up else None

    # What the node wants

    def take(self, command: Subscribe | Unsubscribe | Barrier) -> None:
        """One command of a step."""
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
        """Tell publishers."""
        if self._is_ready:
            self.write(b"".join([one.commands for one in answers]))

    def drain(self, token: int) -> bool:
        """End all subscriptions; `barrier_reached(token)` follows. False if there is no connection."""
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
        """Write what the session wants to say."""
        if self._session is not None and (output := self._session.take_output()):
            self.write(output)

    def write(self, data: bytes) -> None:
        """Write ready-made protocol."""
        if (connection := self._connection) is not None and data:
            connection.send(lambda: self._server.receive(connection, data))

    # What the network brings

    def _connected(self, connection: Connection | None) -> None:
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
            assert "protocol" not in event.reason, event.reason  # the model speaks it
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
