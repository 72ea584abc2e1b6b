"""One leader change after the other, with lost and late messages, lost power and slow disks; and that it would show.

Each seed is one run. With the rules as they are, none breaks what `model` checks, and in the end, when all are well,
all hold the same and all of it is committed. With any one of the rules broken, some seed breaks it.
"""

from __future__ import annotations

import random

import pytest

from penstock.base.config import Durability
from penstock.replication import follower, leader, lease, rules, sessions
from tests.extent import each_change
from tests.unit.replication.model import Cluster, Violation
from tests.unit.replication.model_broker import METADATA

STEPS = 400
CLOCK: list[Cluster] = [Cluster()]  # the cluster of the present run
SEEDS = 24
KINDS = (
    ("deliver", 130), ("hear", 40), ("append", 14), ("flush", 12), ("tick", 10), ("cut", 6), ("look", 6), ("drop", 1),
    ("ghost", 3), ("elect", 1), ("fence", 1), ("stop", 3), ("start", 12), ("retain", 1),
)  # fmt: skip


class Run:
    """One run of one seed."""

    kinds = KINDS

    def __init__(self, seed: int, durability: Durability) -> None:
        self.chance = random.Random(seed * 31 + list(Durability).index(durability))
        self.durability = durability
        min_isr = self.chance.choice((1, 2, 2))
        self.cluster = CLOCK[0] = Cluster(3, min_isr=min_isr, durability=durability, seed=seed)

    def run(self, steps: int = STEPS) -> Cluster:
        cluster, chance = self.cluster, self.chance
        names = [name for name, weight in self.kinds for _ in range(weight)]
        for _ in range(steps):
            getattr(self, chance.choice(names))()
            cluster.pump()
        self.heal()
        return cluster

    def heal(self) -> None:
        for number, broker in self.cluster.brokers.items():
            if not broker.is_up:
                broker.start(clean=False)
            self.cluster.brokers[number].log.is_cold = False
        self.cluster.advance(20_000)
        for _ in range(4):  # what waits for disks
            for broker in self.cluster.brokers.values():
                broker.flush()
            self.cluster.advance(2_000)
        self.cluster.check_agreement()

    def some_up(self):
        return self.chance.choice(self.cluster.up() or [None])

    def deliver(self) -> None:
        pairs = [pair for pair, queue in self.cluster.queues.items() if queue]
        if pairs:
            self.cluster.deliver(*self.chance.choice(sorted(pairs)))

    def hear(self) -> None:
        if (broker := self.some_up()) is not None:
            broker.hear()

    def append(self) -> None:
        for broker in self.cluster.up():
            if broker.leadership is not None:
                broker.append(self.chance.randint(1, 3), self.chance.choice((100, 100, 9_000_000)))

    def flush(self) -> None:
        if (broker := self.some_up()) is not None:
            broker.flush()

    def tick(self) -> None:
        self.cluster.now_us += self.chance.choice((1_000, 10_000, 10_000, 200_000, 200_000, 2_000_000, 11_000_000))
        self.cluster.tick()

    def cut(self) -> None:
        if (broker := self.some_up()) is not None and broker.cutting is not None:
            broker.cut()

    def look(self) -> None:
        if (broker := self.some_up()) is not None:
            broker.look()
            broker.log.is_cold = self.chance.random() < 0.3

    def drop(self) -> None:
        one, other = self.chance.sample((METADATA, 1, 2, 3), 2)
        self.cluster.disconnect(one, other, keep_ghosts=True)

    def ghost(self) -> None:
        ghosts = self.cluster.ghosts
        if ghosts:
            sender, receiver, message = ghosts.pop(self.chance.randrange(len(ghosts)))
            self.cluster.handle(sender, receiver, message)

    def elect(self) -> None:
        image = self.cluster.metadata.now
        others = [b for b in image.partition.isr if b in image.live and b != image.partition.leader]
        if others:
            self.cluster.metadata.elect(self.chance.choice(others))

    def fence(self) -> None:
        live = sorted(self.cluster.metadata.now.live)
        if live and not self.would_be_too_much(self.cluster.brokers[number := self.chance.choice(live)]):
            self.cluster.metadata.fence(number)

    def stop(self) -> None:
        broker = self.some_up()
        if broker is not None and not self.would_be_too_much(broker):
            may_lose_power = self.durability is not Durability.OS
            self.cluster.stop(broker.number, lose_power=may_lose_power and self.chance.random() < 0.5)

    def would_be_too_much(self, broker) -> bool:
        """What `auto` does not promise to survive: power lost at once wherever a message is."""
        if self.durability is not Durability.AUTO:
            return False
        others = [self.cluster.brokers[b] for b in self.cluster.metadata.now.partition.isr if b != broker.number]
        if not others:  # a node flushes at once when it has become the only one
            return broker.log.flushed_end < len(self.cluster.ledger)
        return not all(other.is_up and not other.has_lost for other in others)

    def start(self) -> None:
        down = [broker for broker in self.cluster.brokers.values() if not broker.is_up]
        if down:
            broker = self.chance.choice(down)
            broker.start(clean=False)

    def retain(self) -> None:
        for broker in self.cluster.up():
            if broker.leadership is not None and broker.committed_end > broker.log.log_start:
                log_end = min(broker.committed_end, broker.log.log_start + 8)  # also inside a batch
                broker.retain(self.chance.randint(broker.log.log_start, log_end))


class LookupRun(Run):
    """Many look-ups, and leaders that hear late of their successors, within the time that a lease lasts."""

    kinds = (
        ("deliver", 200), ("hear", 20), ("append", 20), ("flush", 10), ("moment", 40), ("tick", 1), ("cut", 20),
        ("depose", 4), ("wake", 6), ("fence", 1), ("stop", 2), ("start", 20), ("query", 60), ("drop", 4),
    )  # fmt: skip

    def moment(self) -> None:
        self.cluster.now_us += self.chance.choice((1_000, 5_000, 20_000, 60_000))
        self.cluster.tick()

    def hear(self) -> None:
        for broker in self.cluster.up():
            broker.hear()

    def depose(self) -> None:
        """The leader does not hear of its successor for a while."""
        image = self.cluster.metadata.now
        leader = image.partition.leader
        others = [b for b in image.partition.isr if b in image.live and b != leader]
        if others and leader is not None and self.cluster.brokers[leader].is_up:
            self.cluster.brokers[leader].is_deaf = True
            self.cluster.metadata.elect(self.chance.choice(others), instead=True)

    def wake(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.is_deaf = False

    def heal(self) -> None:
        self.wake()
        super().heal()

    def query(self) -> None:
        for broker in self.cluster.up():
            broker.query()


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_what_is_committed_is_never_lost(durability: Durability, first: int) -> None:
    committed = 0
    for seed in range(first, first + 8):
        try:
            committed += len(Run(seed, durability).run().ledger)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert committed > 100


def test_a_look_up_under_a_lease_shows_all_that_was_committed_before() -> None:
    queries = epochs = 0
    for seed in range(SEEDS):
        try:
            cluster = LookupRun(seed, Durability.OS).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        queries += cluster.queries
        epochs += cluster.metadata.now.partition.leader_epoch
    assert queries > 500
    assert epochs > 50


# Each rule, broken


def to_its_own_committed_end(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: a follower cuts to what it knows as committed, and nobody compares epochs."""
    follow = follower.Following.follow

    def cut_and_follow(self, *args) -> None:
        follow(self, *args)
        if self.log.log_start <= self.committed_end < self.log.log_end and self.may_ask:
            self.log.truncate(self.committed_end)

    patch.setattr(follower.Following, "follow", cut_and_follow)
    patch.setattr(rules, "divergence", by_the_end_alone)


def by_the_end_alone(last_epoch, log_end, log, log_start, leader_log_end):
    return rules.EpochEnd(0, leader_log_end) if log_end > leader_log_end else None


def without_reconciling(patch: pytest.MonkeyPatch) -> None:
    """Logs are compared by their ends alone."""
    patch.setattr(rules, "divergence", by_the_end_alone)
    patch.setattr(rules, "truncation_end", lambda leader, log: leader.end_offset)


def own_log_end_as_committed(patch: pytest.MonkeyPatch) -> None:
    """Fluss #673: a follower shows all it has."""
    patch.setattr(rules, "follower_committed_end", lambda leader_committed_end, log_end: log_end)


def without_those_that_are_proposed(patch: pytest.MonkeyPatch) -> None:
    """Commits wait for the ISR that the image has, and not for the one that may be in force already."""
    patch.setattr(rules, "must_have", lambda isr, proposed: frozenset(isr))


def only_those_that_are_proposed(patch: pytest.MonkeyPatch) -> None:
    """Commits wait for the smaller ISR, before it is in force."""
    patch.setattr(rules, "must_have", lambda isr, proposed: frozenset(min([isr, *proposed], key=len)))


def with_too_few_in_sync(patch: pytest.MonkeyPatch) -> None:
    """KIP-966: commits go on below `min_isr`."""
    patch.setattr(rules, "may_commit", lambda isr_size, min_isr: True)


def with_one_in_sync(patch: pytest.MonkeyPatch) -> None:
    """Commits wait for anybody in the ISR."""
    patch.setattr(rules, "must_have", lambda isr, proposed: frozenset(sorted(isr)[:1]))


def joins_at_once(patch: pytest.MonkeyPatch) -> None:
    """A follower joins the ISR as soon as it fetches."""
    patch.setattr(rules, "may_join", lambda reached, committed_end, epoch_start: reached is not None)


def joins_below_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """It need not have what was written before this epoch."""
    patch.setattr(rules, "may_join", lambda reached, committed_end, epoch_start: (reached or 0) >= committed_end)


def what_was_said_in_another_run(patch: pytest.MonkeyPatch) -> None:
    """KIP-903: what a broker had before it restarted counts after it, and it joins by that."""
    begin = leader.FollowerProgress.begin

    def keep(self, incarnation, now_us) -> None:
        names = ("log_end", "flushed_end", "joins_at")
        said = [getattr(self, name, None) for name in names]
        begin(self, incarnation, now_us)
        for name, value in zip(names, said, strict=True):
            setattr(self, name, value)

    patch.setattr(leader.FollowerProgress, "begin", keep)
    patch.setattr(sessions, "_check_incarnation", lambda asked, known: None)


def not_on_disk(patch: pytest.MonkeyPatch) -> None:
    """`fsync` and a sole member count what is only written."""
    patch.setattr(rules, "waits_for_own_disk", lambda durability, smallest_isr: False)
    patch.setattr(rules, "waits_for_all_disks", lambda durability: False)


def a_lost_answer_is_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """A proposal without an answer counts as refused."""
    patch.setattr(
        leader.Leadership, "lost", lambda self, change, now_us, retry_ms: self.refused(change, now_us) and None
    )


def without_a_lease(patch: pytest.MonkeyPatch) -> None:
    """Who takes itself for the leader answers look-ups."""
    patch.setattr(lease.HeldPromises, "cover", lambda self, successors, index, now_us: True)


def promises_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease.GivenPromises, "binding", lambda self, others, brokers, now_us: {})


def promises_count_from_their_receipt(patch: pytest.MonkeyPatch) -> None:
    promised = lease.HeldPromises.promised

    def later(self, broker_id, asked_us, lease_us, index) -> None:
        if self._asked_us.get(broker_id) == asked_us:
            self._asked_us[broker_id] = CLOCK[0].now_us
            promised(self, broker_id, CLOCK[0].now_us, lease_us, index)

    patch.setattr(lease.HeldPromises, "promised", later)


def promises_of_an_earlier_run_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    init = lease.GivenPromises.__init__
    patch.setattr(lease.GivenPromises, "__init__", lambda self, started_us: init(self, -lease._LEASE_US))


def a_promise_holds_for_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks which metadata the other broker had applied."""
    cover = lease.HeldPromises.cover
    patch.setattr(lease.HeldPromises, "cover", lambda self, ones, index, now_us: cover(self, ones, 1 << 40, now_us))


def some_promises_suffice(patch: pytest.MonkeyPatch) -> None:
    cover = lease.HeldPromises.cover
    patch.setattr(
        lease.HeldPromises, "cover", lambda self, ones, index, now_us: cover(self, sorted(ones)[:1], index, now_us)
    )


LEASE_MUTATIONS = (
    (without_a_lease, 0),
    (promises_are_not_kept, 0),
    (promises_count_from_their_receipt, 0),
    (promises_of_an_earlier_run_are_forgotten, 180),
    (a_promise_holds_for_what_has_begun, 0),
    (some_promises_suffice, 0),
)
"""The rule that is broken, and from which seed on it soon shows."""

MUTATIONS = (
    (to_its_own_committed_end, Durability.AUTO, 0),
    (without_reconciling, Durability.AUTO, 0),
    (own_log_end_as_committed, Durability.AUTO, 0),
    (without_those_that_are_proposed, Durability.OS, 0),
    (only_those_that_are_proposed, Durability.OS, 0),
    (with_too_few_in_sync, Durability.OS, 0),
    (with_one_in_sync, Durability.FSYNC, 0),
    (joins_at_once, Durability.AUTO, 0),
    (joins_below_the_epoch, Durability.AUTO, 0),
    (what_was_said_in_another_run, Durability.AUTO, 340),
    (not_on_disk, Durability.FSYNC, 0),
    (a_lost_answer_is_a_refusal, Durability.OS, 40),
)
"""The rule that is broken, and from which seed on it soon shows."""


@each_change
@pytest.mark.parametrize(
    ("mutation", "durability", "seed"), MUTATIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_rule_shows(mutation, durability: Durability, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation):
        run_all(range(seed, seed + 60), durability)


@each_change
@pytest.mark.parametrize(("mutation", "first"), LEASE_MUTATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_rule_of_the_lease_shows(mutation, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation, match="answers a look-up"):
        look_up_all(range(first, first + 60))


def look_up_all(seeds: range) -> None:
    for seed in seeds:
        LookupRun(seed, Durability.OS).run()


def run_all(seeds: range, durability: Durability) -> None:
    for seed in seeds:
        Run(seed, durability).run()
