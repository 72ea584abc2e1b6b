"""A cluster with one partition, in memory: the real cores, a model of their logs, of the network and of the metadata.

Nothing happens by itself: whoever drives it says which message comes next, who hears of the next image, which disk
works and how far the clock goes. After every event it is checked that

- what was committed once stays what it is, and a new leader has all of it;
- whoever is in the ISR by the metadata has all that is committed;
- what a broker shows as committed is that, and it never shows less of it than before;
- a look-up that is answered under a lease shows all that was committed.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from penstock.base.config import Durability
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.replication.leader import CommitTerms
from tests.unit.replication.model_broker import METADATA, Broker
from tests.unit.replication.model_metadata import Metadata


class Violation(AssertionError):  # noqa: N818
    """What must never happen has happened."""


class Cluster:
    """Brokers 1 to N, and all that is between them."""

    def __init__(
        self,
        count: int = 3,
        *,
        min_isr: int = 2,
        durability: Durability = Durability.AUTO,
        seed: int = 0,
        catch_up_bytes_per_s: int = 10**9,
    ) -> None:
        self.now_us = 1_000_000
        self.chance = random.Random(seed)
        self.terms = CommitTerms(durability, min_isr)
        self.catch_up_bytes_per_s = catch_up_bytes_per_s
        self.values = 0
        self.metadata = Metadata(range(1, count + 1))
        self.queues: dict[tuple[int, int], deque[Any]] = {}
        self.apart: set[frozenset[int]] = set()  # no connection between these
        self.ghosts: list[tuple[int, int, Any]] = []  # what comes late, from connections that are gone
        self.ledger: dict[int, tuple[int, int]] = {}  # all that was ever committed
        self.queries = 0  # answered look-ups
        self.is_unclean = False  # an unclean election may have lost something
        self.unclean_cuts: list[int] = []  # by whom
        self.brokers = {number: Broker(number, self) for number in range(1, count + 1)}
        for broker in self.brokers.values():
            broker.start(clean=True)
        self.settle()

    # The network

    def send(self, sender: int, receiver: int, message: Any) -> None:
        if frozenset((sender, receiver)) not in self.apart:
            self.queues.setdefault((sender, receiver), deque()).append(message)
        elif message[0] == "lease":
            self.brokers[sender].held.refused(BrokerId(receiver), message[1], self.now_us)
        elif message[0] in ("fetch", "progress"):
            error = RemoteError(ErrorCode.BROKER_UNAVAILABLE, "no connection")
            self.queues.setdefault((receiver, sender), deque()).append(("answer", message[1], error, ()))

    def disconnect(self, one: int, other: int, *, keep_ghosts: bool = False) -> None:
        """The connection breaks: what is on its way is lost, or comes late."""
        for sender, receiver in ((one, other), (other, one)):
            lost = self.queues.pop((sender, receiver), deque())
            if keep_ghosts:
                self.ghosts += [(sender, receiver, message) for message in lost if message[0] in ("fetch", "progress")]
            broker = self.brokers.get(receiver)
            if broker is not None and broker.is_up:
                if sender in broker.fetchers:
                    broker.fetchers[sender].lost(self.now_us)
                if (asked_us := broker.held._asked_us.get(BrokerId(sender))) is not None:
                    broker.held.refused(BrokerId(sender), asked_us, self.now_us)
                session = broker.sessions._sessions.get(BrokerId(sender))
                if session is not None and session.caller is not None:
                    broker.sessions.callers_disconnected([session.caller])

    def part(self, one: int, other: int) -> None:
        """From now on the two do not reach each other."""
        self.disconnect(one, other)
        self.apart.add(frozenset((one, other)))

    def deliver(self, sender: int, receiver: int) -> bool:
        """The next message between the two, if there is one."""
        queue = self.queues.get((sender, receiver))
        if not queue:
            return False
        self.handle(sender, receiver, queue.popleft())
        return True

    def handle(self, sender: int, receiver: int, message: Any) -> None:
        if receiver == METADATA:
            _, number, (incarnation, changes), _ = message
            results = tuple(self.metadata.change(sender, incarnation, change) for change in changes)
            self.check_members()
            self.send(METADATA, sender, ("changed", number, results, ()))
        elif self.brokers[receiver].is_up:
            self.brokers[receiver].receive(sender, message)
        self.pump()

    # Brokers, time

    def stop(self, number: int, *, lose_power: bool = False) -> None:
        for other in (METADATA, *self.brokers):
            self.disconnect(number, other)
        self.brokers[number].stop(lose_power=lose_power)
        self.pump()

    def up(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.is_up]

    def pump(self) -> None:
        for broker in self.up():
            broker.pump()
        self.check_shown()

    def settle(self) -> None:
        """Deliver all that is on its way, and let disks work, until nothing moves but the clock."""
        for _ in range(2_000):
            moved = [broker.hear() for broker in self.up()]
            self.pump()
            moved += [self.deliver(*pair) for pair in list(self.queues)]
            for broker in self.up():
                if broker.cutting is not None:
                    broker.cut()
                    moved.append(True)
                if broker.looking:
                    broker.look()
                    moved.append(True)
            self.pump()
            if not any(moved):
                return
        raise Violation("it never comes to rest")

    def advance(self, ms: int) -> None:
        """Let time pass, from one deadline to the next."""
        end_us = self.now_us + ms * 1_000
        for _ in range(20_000):
            self.settle()
            due = [at_us for broker in self.up() if (at_us := broker.next_deadline_us) is not None]
            at_us = min(due, default=end_us)
            if at_us >= end_us:
                break
            self.now_us = max(at_us, self.now_us + 1)
            self.tick()
        else:
            raise Violation("its deadlines do not move")
        self.now_us = end_us
        self.tick()
        self.settle()

    def tick(self) -> None:
        for broker in self.up():
            broker.tick()
        self.pump()

    # What must never happen

    def check_commit(self, leader: Broker) -> None:
        if self.is_unclean:
            return
        contents, truth = leader.log.contents(), self.metadata.now.partition
        epoch = leader.leadership.leader_epoch if leader.leadership is not None else 0
        for offset in range(len(self.ledger), leader.committed_end):
            self.ledger[offset] = contents[offset]
            for number in truth.isr if epoch == truth.leader_epoch else ():
                member = self.brokers[number]
                if not member.has_lost and member.log.contents().get(offset) != contents[offset]:
                    raise Violation(f"{offset} is committed, but {number}, who is in sync, does not have it")
            holders = [b for b in self.brokers.values() if b.log.contents().get(offset) == contents[offset]]
            if self.terms.durability is Durability.OS and len(holders) < self.terms.min_isr:  # nobody has lost power
                raise Violation(f"{offset} is committed, but only {len(holders)} have it")
        self.check_shown()

    def check_query(self, leader: Broker) -> None:
        self.queries += 1
        if not self.is_unclean and leader.committed_end < len(self.ledger):
            text = f"{leader.number} answers a look-up with {leader.committed_end}"
            raise Violation(f"{text}, and {len(self.ledger)} were committed before")

    def check_members(self) -> None:
        """Whoever may lead has all that was committed."""
        for number in () if self.is_unclean else self.metadata.now.partition.isr:
            member = self.brokers[number]
            contents = member.log.contents()
            for offset, written in self.ledger.items():
                if not member.has_lost and offset >= member.log.log_start and contents.get(offset) != written:
                    raise Violation(f"{number} is in sync, but does not have {offset}, which was committed")

    def check_new_leader(self, leader: Broker) -> None:
        epoch = leader.image.partition.leader_epoch
        if self.is_unclean or epoch != self.metadata.now.partition.leader_epoch:
            return
        contents = leader.log.contents()
        for offset, written in self.ledger.items():
            if offset >= leader.log.log_start and contents.get(offset) != written:
                raise Violation(f"{leader.number} leads epoch {epoch} without {offset}, which was committed")

    def check_shown(self) -> None:
        if self.is_unclean:
            return
        for broker in self.up():
            if broker.committed_end < broker.shown_end:
                raise Violation(f"{broker.number} shows {broker.committed_end}, and has shown {broker.shown_end}")
            broker.shown_end = broker.committed_end
            for offset, written in broker.log.contents().items():
                if offset < broker.committed_end and self.ledger.get(offset) != written:
                    found = self.ledger.get(offset)
                    raise Violation(f"{broker.number} shows {written} at {offset}, but {found} was committed")

    def note_unclean_cut(self, broker: Broker) -> None:
        self.unclean_cuts.append(broker.number)
        if not self.is_unclean:
            raise Violation(f"{broker.number} cuts what was committed")

    def check_agreement(self) -> None:
        """All are well and have talked: they hold the same, all of it is committed, and all are in sync."""
        truth = self.metadata.now.partition
        leader = self.brokers[truth.leader or 0]
        ours = leader.log.contents()
        for broker in self.brokers.values():
            theirs = broker.log.contents()
            start = max(leader.log.log_start, broker.log.log_start)
            if any(ours[offset] != theirs.get(offset) for offset in range(start, leader.committed_end)):
                raise Violation(f"{broker.number} does not hold what its leader {leader.number} holds")
            if broker.committed_end != leader.committed_end:
                raise Violation(f"{broker.number} shows {broker.committed_end}, its leader {leader.committed_end}")
        if leader.committed_end != leader.log.log_end:
            raise Violation(f"of {leader.log.log_end} only {leader.committed_end} are committed")
        if set(truth.isr) != set(self.brokers):
            raise Violation(f"in sync are only {truth.isr}")
