"""The world of the simulation: a clock, a network that loses, doubles, delays and cuts, and the brokers in it.

Everything that happens follows from the seed: one queue of events, in the order of their time and of their making; no
clock, no hash of a string, no order of a set. So a seed gives the same trace on every machine and every Python.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from penstock.raft import Message, RaftMembership, Snapshot, decode_message, encode_message
from tests.sim.raft.broker import Broker, PowerLoss
from tests.sim.raft.checks import Checks

TICK_MS = 50


@dataclass(slots=True)
class Profile:
    """How bad this world is."""

    voters: int = 3
    drop: float = 0.0
    double: float = 0.0
    delay_ms: int = 20
    slow_disks: bool = False
    breaks_snapshots: float = 0.0  # how often the power goes while one is put in place
    forgets: bool = False  # disks are set back to older copies
    raft: dict[str, int] = field(default_factory=dict)


class World:
    """Brokers, messages on their way, and the time."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.random = Random(seed)
        self.profile = profile
        self.now_ms = 0
        self.checks = Checks()
        self.counts: Counter[str] = Counter()
        self.brokers: dict[int, Broker] = {}
        self.cut: set[tuple[int, int]] = set()  # (from, to) between which nothing passes
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0
        self._trace = hashlib.sha256()
        voters = tuple(range(1, profile.voters + 1))
        self.bootstrap = Snapshot(0, 0, RaftMembership(voters), b"")
        for voter in voters:
            self.add(voter, self.bootstrap)

    @property
    def trace(self) -> str:
        """What happened so far, as a hash."""
        return self._trace.hexdigest()

    def count(self, what: str) -> None:
        """Once more."""
        self.counts[what] += 1

    # Time

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do it later."""
        self._made += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._made, action))

    def run_until(self, end_ms: int) -> None:
        """Let everything happen up to then."""
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = end_ms

    # Brokers

    def add(self, broker_id: int, bootstrap: Snapshot | None) -> None:
        """A broker with an empty disk; it joins if it has no bootstrap."""
        self.brokers[broker_id] = Broker(self, broker_id, bootstrap)
        self.start(broker_id)

    def start(self, broker_id: int) -> None:
        """Start a broker; its clock goes a little wrong."""
        broker = self.brokers[broker_id]
        broker.start()
        tick_ms = self.random.randint(TICK_MS - 8, TICK_MS + 8)
        run = broker.run

        def tick() -> None:
            if broker.is_up and broker.run == run:
                broker.tick()
                self.after(tick_ms, tick)

        self.after(self.random.randrange(tick_ms), tick)

    def crash(self, broker_id: int) -> None:
        """Cut the power of a broker."""
        self._note(f"crash {broker_id}")
        self.count("crashes")
        self.brokers[broker_id].crash()

    def guarded(self, broker_id: int, action: Callable[[], None]) -> None:
        """Do something with a broker that may lose its power at it."""
        try:
            action()
        except PowerLoss:
            self.crash(broker_id)

    def up(self) -> list[Broker]:
        """Those that run."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers) if self.brokers[broker_id].is_up]

    def leader(self) -> Broker | None:
        """Who leads in the latest term."""
        leaders = [broker for broker in self.up() if broker.raft.is_leader]
        return max(leaders, key=lambda broker: broker.raft.term) if leaders else None

    # The network

    def send(self, messages: Iterable[Message]) -> None:
        """Put messages on their way; some will not arrive, and some twice."""
        for message in messages:
            if self.random.random() < self.profile.drop:
                continue
            data = encode_message(message)
            copies = 2 if self.random.random() < self.profile.double else 1
            for _ in range(copies):
                self.after(1 + self.random.randrange(self.profile.delay_ms), self._delivery(message, data))

    def _delivery(self, message: Message, data: bytes) -> Callable[[], None]:
        sender, to = message.sender, message.to

        def deliver() -> None:
            broker = self.brokers.get(to)
            if broker is None or not broker.is_up or (sender, to) in self.cut:
                return
            self._trace.update(b"%d " % self.now_ms + data)
            self.count("messages")
            raft = broker.raft
            broker.ask(lambda: raft.step(decode_message(data)))

        return deliver

    def _note(self, text: str) -> None:
        self._trace.update(f"{self.now_ms} {text}\n".encode())
