"""What happens to a world: a profile and a stream of mishaps, drawn from the seed; then peace, and it must work again.

The mishaps aim where Raft is delicate: leaders lose their power or their majority with entries that few have, votes
are cast while disks are slow, memberships change while leaders do, snapshots meet logs that are ahead of them or beside
them, and clients read from whoever believes to lead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random

from penstock.base.errors import RemoteError
from penstock.raft import RaftMembership
from penstock.raft.leader import Leader
from tests.sim.raft.broker import Broker
from tests.sim.raft.checks import check
from tests.sim.raft.world import Profile, World

STEP_MS = 25
STORM_MS = 12_000
PEACE_MS_MAX = 60_000
IDS = tuple(range(1, 8))


@dataclass(frozen=True, slots=True)
class Result:
    """How a seed went."""

    trace: str
    acks: int
    reads: int
    counts: Counter[str]


def profile_of(random: Random) -> Profile:
    """How bad a world is."""
    return Profile(
        voters=random.choice((1, 2, 3, 3, 3, 4, 4, 5, 5)),
        drop=random.choice((0.0, 0.0, 0.02, 0.1)),
        double=random.choice((0.0, 0.05, 0.2)),
        delay_ms=random.choice((5, 30, 30, 150, 300)),
        slow_disks=random.random() < 0.3,
        breaks_snapshots=random.choice((0.0, 0.5, 0.8)),
        forgets=random.random() < 0.4,
        raft={
            "append_entries_max": random.choice((1, 1, 2, 3, 64)),
            "in_flight_max": random.choice((1, 2, 16)),
            "snapshot_chunk_bytes": random.choice((7, 64, 1024)),
            "kept_entries_max": random.choice((0, 0, 2, 10)),
            "apply_bytes_max": random.choice((1, 50, 10_000)),
            "uncommitted_bytes_max": random.choice((500, 100_000)),
        },
    )


class Storm:
    """One world and its mishaps."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed * 2 + 1)
        self.world = World(seed, profile_of(self.random))
        self.values = 0
        self.is_over = False
        self.deposed: int | None = None  # a leader that changed the membership alone
        self.is_busy = self.random.choice((0.1, 0.3, 0.8))
        self.is_rough = self.random.choice((0.02, 0.06, 0.12))
        self.changes_members = self.random.choice((0.0, 0.02, 0.08))
        self.compacts = self.random.choice((0.01, 0.05, 0.15))
        if self.world.profile.forgets:
            self.changes_members = 0.0  # a cluster that forgets a change may be two
        self.mishaps = (
            (4, self.heal),
            (3, self.split),
            (3, self.isolate_leader),
            (2, self.leave_leader_one),
            (2, self.cut_one_way),
            (3, self.crash_one),
            (3, self.crash_leader),
            (3, self.crash_in_operation),
            (1, self.crash_all),
            (6, self.start_one),
            (2, self.transfer),
            (1, self.campaign),
            (4, self.change_alone),
            (1, self.fill_disk),
            (2, self.change_disk),
        )
        if self.world.profile.forgets:
            self.mishaps += ((3, self.set_back), (9, self.set_back_majority))

    def run(self) -> Result:
        """The storm, then peace."""
        world = self.world
        while world.now_ms < STORM_MS:
            world.run_until(world.now_ms + STEP_MS)
            self.clients()
            if self.random.random() < self.is_rough:
                weights = [weight for weight, _ in self.mishaps]
                self.random.choices(self.mishaps, weights)[0][1]()
            if self.random.random() < self.changes_members:
                self.change_members()
            self.change_early()
            self.quarrel()
            if self.random.random() < self.compacts and world.up():
                broker = self.random.choice(world.up())
                world.guarded(broker.id, broker.compact)
        self.is_over = True
        self.peace()
        return Result(world.trace, world.checks.acks, world.checks.reads, world.counts)

    # Clients

    def clients(self) -> None:
        """Propose and read, here and there."""
        for broker in self.world.up():
            if self.random.random() < self.is_busy:
                for _ in range(self.random.choice((1, 1, 1, 4))):
                    self.propose(broker)
            if self.random.random() < self.is_busy / 2:
                self.read(broker)

    def propose(self, broker: Broker) -> None:
        """A value of its own."""
        self.values += 1
        value = b"v%d" % self.values
        if broker.raft.is_leader:
            broker.ask(lambda: broker.propose(value))

    def read(self, broker: Broker) -> None:
        """It must see what was acked by now."""
        self.values += 1
        context, must_see_index = b"r%d" % self.values, self.world.checks.seen_index
        broker.ask(lambda: broker.read(context, must_see_index))

    # Mishaps

    def heal(self) -> None:
        """All can talk to all."""
        self.world.cut.clear()

    def _separate(self, side: list[int]) -> None:
        ids = sorted(self.world.brokers)
        self.world.cut = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}

    def split(self) -> None:
        """Two groups, with a hole here and there."""
        ids = sorted(self.world.brokers)
        self._separate(self.random.sample(ids, self.random.randint(1, len(ids))))
        self.world.cut = {pair for pair in sorted(self.world.cut) if self.random.random() < 0.95}

    def isolate_leader(self) -> None:
        """It goes on for a while, and proposes what nobody gets."""
        leader = self.world.leader()
        if leader is not None:
            self._separate([leader.id])
            for _ in range(self.random.randrange(4)):
                self.propose(leader)

    def leave_leader_one(self) -> None:
        """It reaches one other broker."""
        leader = self.world.leader()
        others = [broker for broker in self.world.up() if broker is not leader]
        if leader is not None and others:
            self._separate([leader.id, self.random.choice(others).id])
            for _ in range(self.random.randrange(4)):
                self.propose(leader)

    def cut_one_way(self) -> None:
        """One hears, but is not heard; or the other way round."""
        ids = sorted(self.world.brokers)
        one = self.random.choice(ids)
        is_deaf = self.random.random() < 0.5
        self.world.cut |= {(other, one) if is_deaf else (one, other) for other in ids if other != one}

    def crash_one(self) -> None:
        """Anybody."""
        if self.world.up():
            self.world.crash(self.random.choice(self.world.up()).id)

    def crash_leader(self) -> None:
        """With what it has just been told."""
        leader = self.world.leader()
        if leader is not None:
            for _ in range(self.random.randrange(3)):
                self.propose(leader)
            if leader.is_up:
                self.world.crash(leader.id)

    def crash_in_operation(self) -> None:
        """At one of the next operations of a disk."""
        if self.world.up():
            broker = self.random.choice(self.world.up())
            broker.operations_left = self.random.randrange(12)
            if self.random.random() < 0.5:
                self.world.guarded(broker.id, broker.compact)

    def crash_all(self) -> None:
        """The power of the house; it comes back for some."""
        for broker in self.world.up():
            self.world.crash(broker.id)
        for broker_id in sorted(self.world.brokers):
            if self.random.random() < 0.7:
                self.world.start(broker_id)

    def start_one(self) -> None:
        """One that is down."""
        down = [broker_id for broker_id in sorted(self.world.brokers) if not self.world.brokers[broker_id].is_up]
        if down:
            self.world.start(self.random.choice(down))

    def transfer(self) -> None:
        """The leader hands over."""
        leader = self.world.leader()
        if leader is not None:
            to = self.random.choice(leader.raft.membership.voters)

            def hand_over() -> None:
                if leader.raft.is_leader and to in leader.raft.membership.voters:
                    leader.raft.transfer(to)
                    self.world.count("transfers")

            leader.ask(hand_over)

    def campaign(self) -> None:
        """Somebody stands for election for no reason."""
        if self.world.up():
            broker = self.random.choice(self.world.up())
            broker.ask(broker.raft.campaign)

    def fill_disk(self) -> None:
        """For a while."""
        if self.world.up():
            broker = self.random.choice(self.world.up())
            broker.is_disk_full = True
            self.world.after(self.random.randrange(1_000), lambda: setattr(broker, "is_disk_full", False))

    def change_disk(self) -> None:
        """A disk becomes slow, or quick again."""
        broker = self.world.brokers[self.random.choice(sorted(self.world.brokers))]
        quick, slow = ((0, 2), (1, 4)), ((20, 60), (100, 600))
        broker.save_ms = self.random.choice(quick + slow if self.world.profile.slow_disks else quick)

    def set_back(self) -> None:
        """A disk becomes what it was some time ago."""
        broker = self.random.choice([*self.world.brokers.values()])
        broker.copy_disk()
        self.world.after(self.random.randrange(3_000), partial(self._set_back, broker))

    def set_back_majority(self) -> None:
        """Those with whom the leader agreed on something forget it, and can elect without it."""
        leader = self.world.leader()
        if leader is None:
            return
        others = [broker for broker in self.world.up() if broker is not leader]
        those = self.random.sample(others, min(len(others), len(self.world.brokers) // 2))
        for broker in those:
            broker.copy_disk()
        self._separate([leader.id, *(broker.id for broker in those)])
        for _ in range(self.random.randrange(1, 4)):
            self.propose(leader)

        def forget() -> None:
            if self.is_over:
                return
            self._separate([leader.id])
            for broker in those:
                self._set_back(broker)

        self.world.after(self.random.randrange(100, 1_500), forget)

    def _set_back(self, broker: Broker) -> None:
        if self.is_over:
            return
        if broker.is_up:
            self.world.crash(broker.id)
        broker.set_back()
        self.world.count("set back")
        self.world.start(broker.id)

    # Membership

    def change_members(self) -> None:
        """One change, or two at once, by whoever believes to lead."""
        leaders = [broker for broker in self.world.up() if broker.raft.is_leader]
        if leaders:
            leader = self.random.choice(leaders)
            for _ in range(self.random.choice((1, 1, 2))):
                leader.ask(lambda: self._change(leader))

    def change_early(self) -> None:
        """By who was elected just now, before anything else is committed."""
        for broker in self.world.up():
            role = broker.raft.role
            is_new = isinstance(role, Leader) and not role.has_committed
            if is_new and self.changes_members and self.random.random() < 0.3:
                self.world.count("early changes")
                broker.ask(partial(self._change, broker))

    def change_alone(self) -> None:
        """A leader that changes the membership, and then reaches nobody but whom it just added or took out."""
        leader = self.world.leader()
        if leader is None or not self.changes_members:
            return
        before = leader.raft.membership
        leader.ask(lambda: self._change(leader))
        after = leader.raft.membership
        changed = sorted(set(before.voters + before.learners) ^ set(after.voters + after.learners))
        self._separate([leader.id, *changed[:1]])
        self.deposed = leader.id

    def quarrel(self) -> None:
        """The next leader removes that one before it has committed anything, and each of them keeps some of the rest.

        Without the guard against it, two majorities that share nobody can follow from one of four voters.
        """
        leader = self.world.leader()
        if self.deposed is None or leader is None or leader.id == self.deposed:
            return
        deposed, self.deposed = self.deposed, None
        membership = leader.raft.membership
        others = [voter for voter in membership.voters if voter not in (leader.id, deposed)]
        if deposed in membership.voters and others:
            voters = tuple(voter for voter in membership.voters if voter != deposed)
            leader.ask(partial(self._propose_change, leader, RaftMembership(voters, membership.learners)))
            self._separate([leader.id, *others[: len(voters) // 2]])

    def _change(self, leader: Broker) -> None:
        if not leader.is_up:
            return
        voters, learners = list(leader.raft.membership.voters), list(leader.raft.membership.learners)
        broker_id = self.random.choice(IDS)
        if broker_id in learners and len(voters) < 5:
            learners.remove(broker_id)
            voters.append(broker_id)
        elif broker_id in learners:
            learners.remove(broker_id)
        elif broker_id in voters:
            voters.remove(broker_id)
            if self.random.random() < 0.5:
                learners.append(broker_id)
        elif self.random.random() < 0.5:
            voters.append(broker_id)
        else:
            learners.append(broker_id)
        if not self._propose_change(leader, RaftMembership(tuple(sorted(voters)), tuple(sorted(learners)))):
            return
        if broker_id not in self.world.brokers:
            self.world.add(broker_id, None)

    def _propose_change(self, leader: Broker, membership: RaftMembership) -> bool:
        try:
            leader.raft.propose_change(membership)
        except RemoteError:
            self.world.count("refused changes")
            return False
        self.world.count("changes")
        return True

    # Peace

    def peace(self) -> None:
        """Everything works again; so must the cluster, and nothing that was acked may be missing."""
        world = self.world
        world.profile.drop = world.profile.double = world.profile.breaks_snapshots = 0.0
        world.profile.delay_ms = 10
        world.cut.clear()
        for broker_id, broker in sorted(world.brokers.items()):
            broker.is_disk_full, broker.operations_left, broker.save_ms = False, None, (1, 4)
            if not broker.is_up:
                world.start(broker_id)
        end_ms = world.now_ms + PEACE_MS_MAX
        if world.checks.has_forgotten:
            self._peace_of_the_forgetful(end_ms)
            return
        asked_index: int | None = None
        while not (asked_index is not None and self._has_converged(asked_index)):
            check(world.now_ms < end_ms, "it does not work again")
            world.run_until(world.now_ms + 500)
            leader = world.leader()
            if leader is not None and (asked_index is None or len(world.checks.committed) < asked_index):
                self.propose(leader)
                asked_index = leader.raft.log.last_index
        seen_index = world.checks.seen_index
        check(len(world.checks.committed) >= seen_index, "what was acked is gone")

    def _peace_of_the_forgetful(self, end_ms: int) -> None:
        """Who has committed something else than the leader says so; the others work, if they are a majority."""
        world = self.world
        while world.now_ms < end_ms:
            world.run_until(world.now_ms + 500)
            contradicted = [broker for broker in world.brokers.values() if broker.raft.contradiction is not None]
            leader = world.leader()
            if 2 * len(contradicted) >= len(world.brokers):
                world.count("majorities that contradict")
                return
            others = [broker for broker in world.brokers.values() if broker not in contradicted]
            if leader is not None and all(broker.raft.applied == leader.raft.log.last_index for broker in others):
                same = all(broker.application.digest == leader.application.digest for broker in others)
                check(same, "who has committed something else does not say so")
                return
        check(holds=False, text="it does not work again, after somebody has forgotten something")

    def _has_converged(self, asked_index: int) -> bool:
        leader = self.world.leader()
        if leader is None or len(self.world.checks.committed) < asked_index:
            return False
        members = [self.world.brokers[broker_id] for broker_id in IDS if broker_id in leader.raft.membership]
        return all(
            broker.raft.applied == leader.raft.applied >= asked_index
            and broker.application.digest == leader.application.digest
            for broker in members
        )


def run_seed(seed: int) -> Result:
    """One world; ViolationError, or any other error, if something is wrong."""
    return Storm(seed).run()
