"""One run of the simulator: a phase of faults, a phase in which everything must recover, and an audit.

Rules: The seed decides everything. While faults happen, only what a fault excuses may go wrong. After the faults have
stopped (in some runs: and nobody has done anything for longer than a follower may lag), every stream must accept
messages again and every consumer must reach the end within LIVENESS_US. Then all brokers lose power once more, and the
audit reads everything that was promised from the first message to the last.

    0 ──── faults and operations ──── end ── all faults end ── rest? ── live again ── power cut ── audit
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.groups.rows import SUBJECT
from penstock.metadata.companions import marks_key
from penstock.node.step import NatsAnswers
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings, Watchers
from penstock.testing.simulation.checks.agreement import Agreement
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.nats import NatsServerModel
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.scheduler import Clock, Scheduler
from penstock.testing.simulation.trace import Trace
from tests.sim.checks import alone, duplicates
from tests.sim.checks.growth import waits_for_stuck
from tests.sim.checks.observing import Observing
from tests.sim.checks.refusals import Refusals
from tests.sim.models.client_state import ConsumerModel, StreamGeneration
from tests.sim.models.clients import LATER_SLOTS, SLOTS, Clients
from tests.sim.models.optional_load import OptionalLoad
from tests.sim.models.streams import WAYS, encrypted_slots
from tests.sim.plan.plan import REST_US, Act, RunPlan

LIVENESS_US = 60_000_000
_READ_AGAIN_US = 500_000
OFFSETS_SUBJECT = SUBJECT.decode()
_TRY_US = 300_000
_CLIENTS = 2
_OPERATOR_US = 2_000_000
_SKEW_PPM_MAX = 200
_OFFSET_US_MAX = 5_000_000


class RunResult(NamedTuple):
    """The outcome of one run. `error` is empty if no violation was found."""

    seed: int
    digest: str
    error: str
    operations: int
    faults: int
    simulated_us: int
    counters: dict[str, int]


class World:
    """The run of one plan."""

    def __init__(self, plan: RunPlan, show: Callable[[str], None] | None = None) -> None:
        self._plan = plan
        self._scheduler = Scheduler()
        self._trace = Trace(self._scheduler, show)
        self._network = Network(self._scheduler, self._random("network"))
        self.brokers: dict[int, SimBroker] = {}
        self._read_again_us: dict[int, int] = {}  # corrupt history → time of the next read attempt
        self._agreement = Agreement(self.brokers)
        agreement = self._agreement
        self.checks = Checks(
            plan.brokers,
            agreement.cut,
            lambda: self._scheduler.now_us,
            agreement.has_committed,
            agreement.agreed_end,
            agreement.compacted,
        )
        self._observing = Observing(self.checks.histories)
        nats = NatsServerModel(self._network, self._random("nats"), self._trace)
        watchers = Watchers(self._acted, self._started, self._ended, self._answered)
        self._around = Surroundings(self._scheduler, self._network, nats, self._trace, watchers)
        self._refusals = Refusals(self._around, self.checks)
        skews = self._random("clocks")
        for broker_id in range(1, plan.brokers + 1):
            clock = Clock(self._scheduler, _either_way(skews, _SKEW_PPM_MAX), _either_way(skews, _OFFSET_US_MAX))
            self.brokers[broker_id] = SimBroker(self._around, broker_id, self._random(f"b{broker_id}"), clock)
        self._around.brokers.update({broker.name: broker for broker in self.brokers.values()})
        self._guests = OptionalLoad(plan, self._around, self.checks, self.brokers, self._random)
        self._around.rights = self._guests.rights
        programs = self._guests.programs(_CLIENTS)
        way = WAYS[int(self._random("split").random() * len(WAYS))]
        hidden = encrypted_slots(SLOTS, self._random("encryption"))
        self._clients = Clients(
            self._around, self.checks, self._refusals, programs, self._random("clients"), way, hidden, self._guests
        )
        self._faults = Faults(
            self._around, self.brokers, self._damaged, self._is_needed, publish=self._clients.publish_split
        )

    def _random(self, what: str) -> Random:
        return Random(f"{self._plan.seed} {what}")

    def run(self) -> RunResult:
        """Run the plan to its end."""
        error = ""
        try:
            self._run()
        except (ViolationError, AssertionError) as violation:
            error = f"{type(violation).__name__}: {violation}"
        except Exception as mistake:  # noqa: BLE001 (any error that the node raises is a finding)
            error = f"{type(mistake).__name__}: {mistake}"
        self._around.count("recovered logs", self.checks.recovered)
        self._around.count("elections", self._agreement.elections)
        self._around.count("isr changes", self.checks.isr_changes)
        self._around.count("truncations", self.checks.truncations)
        self._around.count("replicas shortened by damage", self.checks.shortened)
        self._around.count("duplicates that were looked up", self.checks.duplicates)
        compacted = [history.compacted for history in self.checks.histories.values() if history.compacted is not None]
        self._around.count("rows that compaction took", sum(one.taken for one in compacted))
        self._around.count("tombstones that went", sum(len(one.gone) for one in compacted))
        epochs = (len(history.leaders) for history in self.checks.histories.values())
        self._around.count("leader changes", sum(count - 1 for count in epochs if count))
        self._trace.add("end", error)
        return RunResult(
            self._plan.seed,
            self._trace.digest(),
            error,
            self._clients.operations,
            self._faults.count,
            self._scheduler.now_us,
            dict(sorted(self._around.counters.items())),
        )

    def _run(self) -> None:
        plan, scheduler = self._plan, self._scheduler
        self._around.nats.start()
        for broker in self.brokers.values():
            broker.start()
        for slot in range(SLOTS):
            if slot not in LATER_SLOTS or any(operation.slot == slot for operation in plan.operations):
                self._clients.create(slot)
        self._guests.start()
        for operation in plan.operations:
            scheduler.at(operation.at_us, lambda one=operation: self._clients.do(one))  # type: ignore[misc]
        for fault in plan.faults:
            scheduler.at(fault.at_us, lambda one=fault: self._faults.do(one))  # type: ignore[misc]
        self._watch_health()
        scheduler.run_until(plan.end_us)
        self._trace.add("world", "all is mended")
        self._faults.heal()
        for operation in plan.operations:
            if operation.act is Act.REST:
                scheduler.run_until(operation.at_us + REST_US)
        self._live_again()
        for broker in self.brokers.values():
            broker.power_cut()
        self._live_again()
        self._audit()
        self._clients.publishing.check()
        self._guests.check()

    # Events of brokers

    def _acted(self, broker: SimBroker) -> None:
        assert broker.node is not None
        standing = inspector.standing(broker.node)
        for history in self._observing.acted(broker, standing.applied):
            self._agreement.forget(history, broker)
            self._around.count("replicas given up")
        self._agreement.acted(broker, standing)
        for history, look in self.checks.acted(broker, standing):
            self._agreement.committed(history, broker, look)
        self._guests.acted(broker)
        self._faults.aims.acted(broker)

    def _started(self, broker: SimBroker) -> None:
        self.checks.started(broker)
        self._observing.started(broker)
        self._agreement.started(broker)

    def _ended(self, broker: SimBroker, by_power_loss: bool) -> None:
        self.checks.ended(broker, by_power_loss=by_power_loss)
        if self._guests.rights is not None:
            self._guests.rights.ended(broker)

    def _answered(self, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
        self._refusals.answered(broker, answers)
        alone.check(self.checks, broker, answers)
        duplicates.check(self.checks, broker, answers)

    def _damaged(self, broker: SimBroker, path: str) -> None:
        _, directory, partition, _ = path.split("/")
        self._trace.add("fault", f"{broker.name} {path} is damaged")
        subject = self.checks.subjects.get(int(directory.partition("-")[0]))
        if subject is None:
            return  # of a stream that was not opened again
        history = self.checks.of(subject, int(partition))
        disk = (broker.broker_id, broker.disk.number)
        history.damaged.add(disk)
        history.was_damaged.add(disk)
        history.harmed.setdefault(disk, set()).add(path)
        history.mended.discard(disk)
        if not self._others_with_all(history, broker):
            history.is_damaged = True

    def _is_needed(self, broker: SimBroker) -> bool:
        return any(
            not self._others_with_all(history, broker)
            for history in self.checks.histories.values()
            if not history.is_deleted
        )

    def _others_with_all(self, history: PartitionHistory, broker: SimBroker) -> set[int]:
        """Return the other ISR members that have lost no power since and have no corruption."""
        return set(history.isr) - history.unclean - self._damaged_of(history) - {broker.broker_id}

    def _damaged_of(self, history: PartitionHistory) -> set[int]:
        """Return the brokers whose log of this partition, or its companion's, is corrupt and not yet repaired."""
        companion = self._companion(history)
        return self._damaged_log(history) | (set() if companion is None else self._damaged_log(companion))

    def _companion(self, history: PartitionHistory) -> PartitionHistory | None:
        marked = None if self._guests.marking is None else self._guests.marking.companion(history)
        return marked or history.companion

    def _damaged_log(self, history: PartitionHistory) -> set[int]:
        there = {one for one, disk in history.damaged - history.mended if disk == self.brokers[one].disk.number}
        now_us = self._scheduler.now_us
        if not there or now_us < self._read_again_us.get(id(history), 0):
            return there
        self._read_again_us[id(history)] = now_us + _READ_AGAIN_US
        mended = {one for one in there if self._agreement.can_be_read(history, self.brokers[one])}
        history.mended |= {(one, self.brokers[one].disk.number) for one in mended}
        self._around.count("mended logs", len(mended))
        return there - mended

    def _is_stuck(self, history: PartitionHistory) -> bool:
        """True if corruption has left no sound ISR member, so the partition can neither commit nor be repaired."""
        damaged, companion = self._damaged_of(history), self._companion(history)
        if companion is not None and companion.is_damaged:
            return True
        return history.is_damaged or (bool(damaged) and damaged.issuperset(history.isr))

    def _awaits_stuck(self, generation: StreamGeneration, partition: int) -> bool:
        """True if an added partition takes no messages because of a stuck one that keys leave."""
        nodes = [one.node for one in self.brokers.values() if one.node is not None]
        newest = max(nodes, key=lambda node: inspector.standing(node).applied, default=None)
        if newest is None:
            return False
        states = [one for one in inspector.streams(newest) if one.stream_id == generation.stream_id]
        return any(
            waits_for_stuck(
                one, partition, lambda place: self._is_stuck(self.checks.of(generation.config.subject, place))
            )
            for one in states
        )

    @staticmethod
    def _looks(broker: SimBroker) -> list[inspector.PartitionLook]:
        return [] if broker.node is None else list(inspector.partitions(broker.node))

    def _watch_health(self) -> None:
        """Play the operator who restarts a broker whose logs have stopped accepting writes."""

        def look() -> None:
            for broker in self.brokers.values():
                if broker.node is None:
                    continue
                failed = inspector.failed(broker.node)
                fenced = sum(one.is_failing for one in self._looks(broker))
                if failed or fenced or inspector.standing(broker.node).is_failing:
                    self._around.count("failed logs", failed)
                    self._around.count("fenced logs", fenced)
                    broker.stop()
                if inspector.standing(broker.node).is_metadata_leader:
                    self._give_up_disks(broker)
            self._scheduler.after(_OPERATOR_US, look)

        self._scheduler.after(_OPERATOR_US, look)

    def _give_up_disks(self, broker: SimBroker) -> None:
        """Play the operator who allows an unclean election where only a lost or corrupt disk could lead."""
        assert broker.node is not None
        disks = {one.data_dir_id for one in self.brokers.values()}
        gone = {stream_id for stream_id, _, disk in inspector.awaited(broker.node) if disk not in disks}
        damaged = {
            stream_id
            for stream_id, number, counting in inspector.in_recovery(broker.node)
            if any(self._is_damaged_on(one, stream_id, number) for one in sorted(counting))
        }
        for stream_id in sorted(gone | damaged):
            if self.checks.subjects.get(stream_id) == OFFSETS_SUBJECT:
                self._around.count("unclean elections")
                self._clients.groups.allow_unclean_election()
            elif any(one.allow_unclean_election(stream_id) for one in (self._clients.publishing, self._guests)):
                self._around.count("unclean elections")
            elif (generation := self._clients.of(stream_id)) is not None:
                self._around.count("unclean elections")
                for number in range(generation.config.partitions):  # the setting holds for the whole stream from now on
                    history = self.checks.of(generation.config.subject, number)
                    for one in filter(None, (history, history.companion)):
                        one.is_damaged = one.is_given_up = True
                self._clients.allow_unclean_election(generation)

    def _is_damaged_on(self, broker_id: int, stream_id: int, number: int) -> bool:
        """True if that broker's log is corrupt: it cannot lead, and may be the longest."""
        node = self.brokers[broker_id].node
        if node is None:
            return False
        ids = (stream_id, marks_key(PartitionKey(StreamId(stream_id), PartitionId(number))).stream_id)
        looks = [inspector.partition(node, one, number) for one in ids]
        return any(one is not None and one.is_damaged for one in looks)

    # The end

    def _live_again(self) -> None:
        """Check that every partition accepts messages, every consumer reaches the end, and every earlier request has an
        answer, within LIVENESS_US.
        """
        began_us = self._scheduler.now_us
        # (slot, partition) → its history, and the number of its acks when this phase began.
        left: dict[tuple[int, int], tuple[PartitionHistory | None, int]] = {}
        for slot, generation in enumerate(self._clients.generations):
            if generation is None:
                continue
            left |= {(slot, partition): (None, 0) for partition in range(generation.config.partitions)}
        self._clients.groups.go_on()
        groups_wait = self._clients.groups.waits_for(self._is_stuck)
        drivers_wait = self._clients.publishing.waits_for(self._is_stuck)
        guests_wait = self._guests.waits_for(self._is_stuck)
        waiting = ""

        unmended = ""  # computed once in each turn, like `guests_wait`

        def try_all() -> None:
            nonlocal unmended, waiting
            unmended, waiting = self._unmended(), guests_wait() or self._unanswered(began_us)
            for slot, partition in list(left):
                generation = self._clients.generations[slot]
                if generation is None or not generation.stream_id:
                    continue
                history = self.checks.of(generation.config.subject, partition)
                consumers = self._clients.readers.consumers(generation, partition)
                begun, acks = left[slot, partition]
                if begun is not history:  # else the stream was recreated meanwhile
                    acks = history.acks
                    left[slot, partition] = (history, acks)
                can_be_read = not self._damaged_of(history) and all(map(_has_all, consumers))
                is_excused = self._is_stuck(history) or self._awaits_stuck(generation, partition)
                if is_excused or (history.acks > acks and can_be_read):
                    del left[slot, partition]
                    continue
                if history.acks == acks:
                    self._clients.publish(slot, partition)
                for consumer in consumers:
                    if not consumer.is_asking:
                        self._read_on(consumer)
            if not is_over():
                self._scheduler.after(_TRY_US, try_all)

        def is_over() -> bool:
            return not (left or unmended or waiting or groups_wait() or drivers_wait())

        self._scheduler.after(_TRY_US, try_all)
        self._scheduler.run_until(began_us + LIVENESS_US, is_over)
        if not is_over():
            slots = (f"s{slot}/{partition}" for slot, partition in left)
            which = ", ".join(filter(None, (*slots, unmended, waiting)))
            which = which or groups_wait() or drivers_wait()  # these begin once nothing else is left
            raise ViolationError(f"not live {LIVENESS_US // 1_000_000} s after all was mended: {which}")

    def _unanswered(self, until_us: int) -> str:
        return next(filter(None, (one.doors.unanswered(until_us) for one in self.brokers.values())), "")

    def _unmended(self) -> str:
        """Return a partition that has a corrupt replica and others that could repair it; empty if there is none."""
        for history in self.checks.histories.values():
            if not history.damaged or history.is_deleted or self._is_stuck(history):
                continue
            if damaged := self._damaged_of(history):
                return f"{history.name()} is not mended on {', '.join(f'b{one}' for one in sorted(damaged))}"
        return ""

    def _read_on(self, consumer: ConsumerModel) -> None:
        """Read to the end, unless an error interrupts."""
        position = consumer.position

        def then() -> None:
            if position < consumer.position < consumer.committed_end and not consumer.is_asking:
                self._read_on(consumer)

        self._clients.readers.fetch(consumer, 1_000_000, 0, then)

    def _audit(self) -> None:
        """Read everything once more."""
        auditors = []
        for generation in (*self._clients.generations, *self._guests.generations):
            if generation is None:
                continue
            for partition in range(generation.config.partitions):
                history = self.checks.of(generation.config.subject, partition)
                if not history.is_damaged and (not self._damaged_of(history) or self._sound(history)):
                    auditors.append(ConsumerModel(history, generation.stream_id))
        for auditor in auditors:
            self._audit_one(auditor)
        self._scheduler.run_until(
            self._scheduler.now_us + LIVENESS_US, lambda: all(auditor.is_over for auditor in auditors)
        )
        for auditor in auditors:
            if not auditor.is_over:
                self.checks.audited(auditor.history, auditor.log_start, auditor.position)
        if not all(auditor.is_over for auditor in auditors):
            raise ViolationError("the audit did not come to its end")

    def _audit_one(self, auditor: ConsumerModel) -> None:
        def then() -> None:
            end = max(auditor.committed_end, auditor.history.promised_end)  # a replica's high watermark may be late
            if (end and not auditor.committed_end) or auditor.position < end:  # added partitions may be empty
                self._scheduler.after(5_000, lambda: self._audit_one(auditor))
                return
            auditor.is_over = True
            self.checks.audited(auditor.history, auditor.log_start, auditor.position)

        if self._damaged_of(auditor.history):  # do not ask the leader: its log may be the corrupt one
            auditor.broker_id = self._sound(auditor.history)
        self._clients.readers.fetch(auditor, 1_000_000, 0, then)

    def _sound(self, history: PartitionHistory) -> int:
        """Return an ISR member without corruption; 0 if there is none."""
        return next((one for one in history.isr if one not in self._damaged_of(history)), 0)


def _has_all(consumer: ConsumerModel) -> bool:
    return consumer.is_over or consumer.position >= consumer.history.promised_end


def _either_way(random: Random, most: int) -> int:
    return int((2 * random.random() - 1) * most)
