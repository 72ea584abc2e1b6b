"""Faults that wait for the moment at which replication or Raft is most sensitive to them.

Rules: A targeted fault (aim) is drawn from the seed as every fault, and armed at its time. It inspects a broker after
each of its events without changing anything, and strikes when its condition holds. It is given up after ARMED_US.

| aim                | waits until                               | and then                                            |
|--------------------|-------------------------------------------|-----------------------------------------------------|
| shrink in doubt    | a leader proposes an ISR without a        | the metadata leader crashes; if that is the leader  |
|                    | follower that was cut off from it         | itself, it is cut off from all                      |
| deposed and asked  | leaders have been asked for look-ups,     | its connections to the other brokers break, and it  |
|                    | and one does not lead the metadata        | does not hear of its successor; clients reach both  |
| join of a past run | a leader proposes to add a follower to    | the follower loses its power and restarts, cut off  |
|                    | the ISR                                   | from the leader; only then the proposal arrives     |
| changes cross      | a leader proposes to add a follower to    | the connection breaks, and the follower's disk has  |
|                    | the ISR                                   | no room for logs; the proposal arrives after the    |
|                    |                                           | leader has settled that the follower does not join  |
| vote, then restart | a broker votes while the metadata leader  | the voter crashes, its candidate is cut off, and    |
|                    | is cut off                                | the former leader can reach the others again        |
| uneven failover    | a follower has more than the next leader; | the followers' connections break, the leader        |
|                    | in half the cases its high watermark is   | crashes; in the other half of the cases the disk of |
|                    | also older than the leader's              | the follower, which must truncate, is slow          |
| deposed and back   | a leader, cut off from all but NATS, was  | the successor stops, so that the first leader       |
|                    | deposed and is in sync again              | probably leads again soon                           |
| joiner behind      | a broker leads a partition whose subject  | NATS output to the others is held back until one of |
|                    | others also receive, for partitions of    | them leads the partition with all its messages; the |
|                    | their own                                 | leader stops                                        |
| full and deposed   | a broker leads with others in sync, and   | its disk is full, for the metadata too, so that it  |
|                    | does not lead the metadata                | learns of no successor; NATS still reaches it       |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial

from penstock.base.ids import PartitionKey
from penstock.testing.simulation import inspector, nats
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.network import SimConnection
from penstock.testing.simulation.planned_faults import Ill, PlannedFault

ARMED_US = 25_000_000
LOOKED_UP = "times that all leaders were asked for a look-up"  # the counter
_STALLED_US = 1_900_000  # shorter than the leader's time-out for the proposal, and than its session
_CROSSED_US = 6_000_000  # time to be refused, to propose again, and to commit without the follower
_BURSTS = 12  # of messages
_BEHIND_US = 700_000  # publishing before the leader stops: NATS delivers it late
_DEAF_US = 1_900_000
_LOOK_UPS = 6  # some 90 ms of them
_FULL_US = 4_000_000  # longer than a session
_LAGGING_US = 14_000_000  # longer than a follower may lag
_Aim = Generator[None, SimBroker, None]


class TargetedFaults:
    """The armed aims. Call `acted` after every turn of a broker."""

    def __init__(self, around: Surroundings, brokers: Mapping[int, SimBroker], publish: Callable[[], None]) -> None:
        """`publish`: publishes one message to all partitions that share a subject."""
        self._publish = publish
        self._around = around
        self._brokers = brokers
        self._armed: list[_Aim] = []
        self._taken_until_us = 0  # time until which no other aim strikes at a join
        self._kinds: dict[Ill, Callable[[PlannedFault], _Aim]] = {
            Ill.SHRINK_IN_DOUBT: self._shrink_in_doubt,
            Ill.JOIN_OF_A_PAST_RUN: self._join_of_a_past_run,
            Ill.CHANGES_CROSS: self._changes_cross,
            Ill.VOTE_THEN_RESTART: self._vote_then_restart,
            Ill.UNEVEN_FAILOVER: self._uneven_failover,
            Ill.DEPOSED_AND_BACK: self._deposed_and_back,
            Ill.JOINER_BEHIND: self._joiner_behind,
            Ill.FULL_AND_DEPOSED: self._full_and_deposed,
            Ill.DEPOSED_AND_ASKED: self._deposed_and_asked,
        }

    def arm(self, fault: PlannedFault) -> None:
        """Arm an aim from now on."""
        aim = self._kinds[fault.ill](fault)
        next(aim)
        self._armed.append(aim)
        self._around.scheduler.after(ARMED_US, lambda: self._end(aim))

    def heal(self) -> None:
        """Disarm all."""
        self._armed.clear()

    def acted(self, broker: SimBroker) -> None:
        """Let the armed aims inspect a broker after its event."""
        if not self._armed or broker.node is None:
            return
        for aim in list(self._armed):
            try:
                aim.send(broker)
            except StopIteration:
                self._end(aim)

    def _end(self, aim: _Aim) -> None:
        if aim in self._armed:
            self._armed.remove(aim)

    # Strikes

    def _strike(self, fault: PlannedFault, text: str, *acts: Callable[[], None]) -> None:
        """Carry out the acts right after the inspected event."""
        self._around.trace.add("fault", f"{fault.ill}: {text}")
        self._around.count(f"struck: {fault.ill}")
        for act in acts:
            self._around.scheduler.after(1, act)

    def _cut_off(self, one: SimBroker, others: list[SimBroker], lasts_us: int) -> Callable[[], None]:
        """Block both directions between them for a while; return a callback that frees them earlier."""
        network = self._around.network
        ways = [way for other in others for way in ((one.name, other.name), (other.name, one.name))]
        blocks = [network.block(*way) for way in ways]

        def free() -> None:
            while blocks:
                blocks.pop()()

        self._around.scheduler.after(lasts_us, free)
        return free

    def _others(self, *but: SimBroker) -> list[SimBroker]:
        return [broker for broker in self._brokers.values() if broker not in but]

    def _metadata_leader(self, broker: SimBroker) -> SimBroker | None:
        assert broker.node is not None
        return self._brokers.get(inspector.metadata_leader(broker.node))

    # The aims

    def _shrink_in_doubt(self, fault: PlannedFault) -> _Aim:
        while True:
            leader = yield
            lead = self._lead_of(leader, fault, in_sync=3)
            metadata_leader = self._metadata_leader(leader)
            if lead is not None and metadata_leader is not None:
                break
        followers = [self._brokers[one] for one in lead.isr if one != leader.broker_id]
        lagging = next((one for one in followers if one is not metadata_leader), followers[0])
        self._cut_off(leader, [lagging], _LAGGING_US)
        while True:
            broker = yield
            now = self._lead(leader, lead.key) if broker is leader else None
            if now is not None and now.proposed and lagging.broker_id in set(now.isr) - now.proposed:
                break
        metadata_leader = self._metadata_leader(leader)
        if metadata_leader is None or metadata_leader is leader:
            self._strike(fault, f"{leader.name} is cut off")
            self._cut_off(leader, self._others(leader), 2_500_000)
        else:
            self._strike(fault, f"{metadata_leader.name} is gone", metadata_leader.crash)

    def _join_of_a_past_run(self, fault: PlannedFault) -> _Aim:
        found = None
        while found is None:
            leader = yield
            found = self._join(leader)
        joining, asked = found
        for connection in asked:
            connection.stall()
            self._around.scheduler.after(_STALLED_US, connection.go_on)
        self._lose(joining, leader, 200_000 + fault.number % 200_000)
        self._strike(fault, f"{joining.name} is to join")

    def _lose(self, joining: SimBroker, leader: SimBroker, after_us: int) -> None:
        """Cut the follower's power while its committed rows are unsynced; it restarts, cut off, before the proposal."""

        def cut() -> None:
            joining.disk.is_slow = False
            joining.power_cut()
            self._cut_off(joining, [leader], 3_000_000)

        joining.disk.is_slow = True
        self._around.scheduler.after(after_us, cut)
        self._around.scheduler.after(after_us + 100_000, joining.start)

    def _changes_cross(self, fault: PlannedFault) -> _Aim:
        found = None
        while found is None:
            leader = yield
            found = self._join(leader)
        joining, asked = found
        now_us = self._around.scheduler.now_us
        joining.disk.refuses_logs = True
        self._around.scheduler.after(_CROSSED_US, lambda: setattr(joining.disk, "refuses_logs", False))
        late_us = now_us + _CROSSED_US - 1_000_000 - fault.number % 500_000
        self._strike(
            fault,
            f"{joining.name} is to join, and finds no room",
            *(partial(connection.leave_half_open, late_us) for connection in asked),
        )

    def _join(self, leader: SimBroker) -> tuple[SimBroker, list[SimConnection]] | None:
        """Return the follower that is to join and the connections that carry the proposal to the metadata leader."""
        metadata_leader = None if leader.node is None else self._metadata_leader(leader)
        if metadata_leader in (None, leader):
            return None
        assert leader.node is not None
        assert metadata_leader is not None
        for lead in inspector.leads(leader.node):
            joining = self._brokers.get(min(lead.proposed.difference(lead.isr), default=0))
            now_us = self._around.scheduler.now_us
            if joining not in (None, metadata_leader) and now_us >= self._taken_until_us:
                assert joining is not None
                self._taken_until_us = now_us + _CROSSED_US  # one aim at a time
                between = self._around.network.between(leader.name, metadata_leader.name)
                return joining, [one for one in between if one.source == leader.name]
        return None

    def _vote_then_restart(self, fault: PlannedFault) -> _Aim:
        while True:
            before = yield
            if before.node is not None and inspector.standing(before.node).is_metadata_leader:
                break
        free = self._cut_off(before, self._others(before), 5_000_000)
        while True:
            voter = yield
            if voter is before or voter.node is None:
                continue
            elected = self._brokers.get(inspector.vote(voter.node))
            if elected not in (None, voter, before):
                break
        assert elected is not None
        self._strike(fault, f"{voter.name} has voted for {elected.name}", voter.crash, free)
        self._cut_off(elected, self._others(elected), 6_000_000)

    def _uneven_failover(self, fault: PlannedFault) -> _Aim:
        while True:
            leader = yield
            lead = self._lead_of(leader, fault, in_sync=3)
            if lead is not None:
                break
        heir, other = (self._brokers[one] for one in lead.replicas if one != leader.broker_id)
        wants_late_news = bool(fault.number // 16 % 2)
        if not wants_late_news:
            self._cut_off(leader, [heir], 2_000_000)
        while True:
            yield
            now = self._lead(leader, lead.key)
            if now is None or heir.node is None or other.node is None:
                return
            heirs, others = inspector.replica(heir.node, lead.key), inspector.replica(other.node, lead.key)
            if heirs is None or others is None or others.log_end <= heirs.log_end:
                continue
            if not wants_late_news or others.committed_end < now.committed_end:
                break
        for follower in (heir, other):
            for connection in self._around.network.between(leader.name, follower.name):
                connection.cut()  # lost batches keep the logs uneven; acks arrive
        self._strike(fault, f"{leader.name} is gone, {other.name} has more than {heir.name}", leader.crash)
        if not wants_late_news:
            other.disk.is_slow = True
            self._around.scheduler.after(9_000_000, lambda: setattr(other.disk, "is_slow", False))

    def _deposed_and_back(self, fault: PlannedFault) -> _Aim:
        while True:
            leader = yield
            lead = self._lead_of(leader, fault, in_sync=2)
            if lead is not None and self._metadata_leader(leader) not in (None, leader):
                break
        self._cut_off(leader, self._others(leader), 3_400_000 + fault.number % 1_000_000)
        while True:
            broker = yield
            if broker is not leader or leader.node is None:
                continue
            own = inspector.replica(leader.node, lead.key)
            if own is not None and own.follows and own.is_in_sync and own.leader_epoch > lead.leader_epoch:
                break
        assert own is not None
        successor = self._brokers[own.leader or 0]
        self._strike(fault, f"{leader.name} is back, {successor.name} stops", successor.stop)

    def _deposed_and_asked(self, fault: PlannedFault) -> _Aim:
        counters = self._around.counters
        enough = counters[LOOKED_UP] + _LOOK_UPS
        while True:
            leader = yield
            lead = self._lead_of(leader, fault, in_sync=3)
            if lead is None or counters[LOOKED_UP] < enough:
                continue
            if self._metadata_leader(leader) not in (None, leader):
                break
        others, network = self._others(leader), self._around.network
        for other in others:
            for connection in network.between(leader.name, other.name):
                connection.cut()
        self._cut_off(leader, others, 400_000 + fault.number % 3_000_000)
        self._strike(fault, f"{leader.name} answers look-ups, and does not hear of its successor")

    def _joiner_behind(self, fault: PlannedFault) -> _Aim:
        found = None
        while found is None:
            leader = yield
            found = self._shared(leader)
        keys, others = found
        frees = [self._around.network.block(nats.NAME, one.name) for one in others]

        def free() -> None:
            while frees:
                frees.pop()()

        self._around.scheduler.after(_DEAF_US, free)  # before a side gives up
        for number in range(_BURSTS):
            self._around.scheduler.after(_BEHIND_US * number // _BURSTS, self._publish)
        self._around.scheduler.after(_BEHIND_US, leader.stop)
        self._strike(fault, f"{leader.name} stops, and the others do not hear NATS")
        while True:
            successor = yield
            if successor in others and any(self._lead(successor, key) is not None for key in keys):
                break
        self._around.scheduler.after(1_000 + fault.number % 200_000, free)

    def _full_and_deposed(self, fault: PlannedFault) -> _Aim:
        while True:
            leader = yield
            lead = self._lead_of(leader, fault, in_sync=2)
            if lead is not None and self._metadata_leader(leader) not in (None, leader):
                break
        leader.disk.is_full = True
        self._around.scheduler.after(_FULL_US, lambda: setattr(leader.disk, "is_full", False))
        for number in range(_BURSTS):
            self._around.scheduler.after(_FULL_US * number // _BURSTS, self._publish)
        self._strike(fault, f"the disk of {leader.name} is full")

    def _shared(self, leader: SimBroker) -> tuple[list[PartitionKey], list[SimBroker]] | None:
        """Return the partitions led here whose subject the likely successors receive, too, and these successors."""
        if leader.node is None or leader.is_stopping:
            return None
        found: dict[PartitionKey, list[SimBroker]] = {}
        for lead in inspector.leads(leader.node):
            others = [self._brokers[one] for one in lead.isr if one != leader.broker_id]
            if hear := [one for one in others if one.node is not None and inspector.hears(one.node, lead.key)]:
                found[lead.key] = hear
        hear = [one for one in self._others(leader) if any(one in some for some in found.values())]
        return (list(found), hear) if found else None

    def _lead_of(self, broker: SimBroker, fault: PlannedFault, *, in_sync: int) -> inspector.Lead | None:
        """Return a partition that the broker leads with at least so many in sync."""
        if broker.node is None:
            return None
        fit = [lead for lead in inspector.leads(broker.node) if len(lead.isr) >= in_sync]
        return fit[fault.number % len(fit)] if fit else None

    @staticmethod
    def _lead(broker: SimBroker, key: PartitionKey) -> inspector.Lead | None:
        return None if broker.node is None else inspector.lead(broker.node, key)
