"""Carries out the faults of a plan, and ends those that last for a while."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.testing.simulation import inspector, nats
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.planned_faults import AIMED, Ill, PlannedFault
from penstock.testing.simulation.scheduler import Call
from penstock.testing.simulation.targeted_faults import TargetedFaults

_DISK_CHANGES_MAX = 40
_CLOCK_STEP_US_MAX = 120_000_000
_KILLED_WITHIN_US = 300_000
_COPY_AGE_US_MAX = 3_000_000  # usually within the run that is killed: an older copy is refused
_REGISTERED_US = 6_000_000  # by then a crashed broker is usually registered again
_LAST_WITHIN_US = 4_000_000  # time in which the others stop
_HARM_TRIES = 400
_HARM_RETRY_US = 50_000
_FULL_AT_STOP_US = 8_000_000
_SET_BACK_TRIES = 10
_SET_BACK_RETRY_US = 500_000


class Faults:
    """Starts and ends faults. `damaged` is called with the path of a segment whose bytes were corrupted."""

    def __init__(
        self,
        around: Surroundings,
        brokers: Mapping[int, SimBroker],
        damaged: Callable[[SimBroker, str], None],
        is_needed: Callable[[SimBroker], bool],
        programs: Collection[str] = ("c1", "c2"),
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the faults of a run.

        Args:
            is_needed: True if only this broker surely has something that was promised.
            programs: The machines of the clients.
            publish: See `TargetedFaults`.
        """
        self.count = 0
        self.is_over = False
        self.aims = TargetedFaults(around, brokers, publish)
        self._around = around
        self._brokers = brokers
        self._damaged = damaged
        self._is_needed = is_needed
        self._programs = programs
        self._full_until_us: dict[int, int] = {}  # by broker
        self._emptied = 0  # the only broker that may lose its disk: a majority of voters keeps theirs

    def do(self, fault: PlannedFault) -> None:
        """Carry out one fault of the plan."""
        if self.is_over:
            return
        self.count += 1
        broker, ill = self._brokers[fault.broker_id], fault.ill
        seconds = fault.lasts_us / 1e6
        self._around.trace.add("fault", f"{ill} {broker.name} {seconds:.1f} s")
        self._around.count(f"fault: {ill}")
        if ill is Ill.CRASH:
            broker.crash()
        elif ill is Ill.POWER_CUT:
            broker.power_cut()
        elif ill is Ill.POWER_CUT_WITHIN:
            broker.power_cut(after_changes=1 + fault.number % _DISK_CHANGES_MAX)
        elif ill is Ill.ALL_LOSE_POWER:
            for one in self._brokers.values():
                one.power_cut()
        elif ill is Ill.CLEAN_RESTART:
            broker.stop()
        elif ill is Ill.CLOCK_STEP:
            broker.clock.step(fault.number % (2 * _CLOCK_STEP_US_MAX) - _CLOCK_STEP_US_MAX)
        elif ill is Ill.FLIPPED_BIT:
            if (path := broker.disk.harm_a_segment()) is not None:
                self._damaged(broker, path)
        elif ill is Ill.HARMED_INDEX:
            self._around.count("harmed subject indexes", broker.disk.harm_subject_indexes())
            if fault.number % 2:  # a broker knows what it has read of them
                broker.crash()
        elif ill is Ill.DAMAGED_END:
            self._damage_an_end(fault, broker)
        elif ill is Ill.EMPTY_DISK:
            self._take_disk(broker, broker.disk.replace)
        elif ill is Ill.OLDER_COPY:
            is_refused = bool(fault.number % 2)  # a later run registers, so the copy is refused
            if is_refused:
                self._around.scheduler.after(1, broker.crash)
            self._set_back(broker, fault.lasts_us + is_refused * _REGISTERED_US)
        elif ill is Ill.ALL_KILLED:
            self._kill_all(fault, broker)
        elif ill in AIMED:
            self.aims.arm(fault)
        else:
            self._for_a_while(fault, broker)

    def _damage_an_end(self, fault: PlannedFault, broker: SimBroker) -> None:
        """End a run, in some cases after those of the others, and corrupt the end of a log before or after that."""
        ends: tuple[Callable[[SimBroker], None], ...] = (
            SimBroker.crash,
            SimBroker.power_cut,
            SimBroker.stop,
            self._stop_when_full,
        )
        end = ends[fault.number % len(ends)]
        is_first, is_harmed_before = fault.number // 4 % 2, fault.number // 8 % 2
        if not is_first:
            for one in self._brokers.values():
                if one is not broker:
                    one.stop()
        run, tries = broker.run, _HARM_TRIES
        after = self._around.scheduler.after

        def harm() -> None:
            nonlocal tries
            if self.is_over or broker.run != run:
                return
            tries -= 1
            path = broker.disk.harm_an_end() if is_harmed_before or broker.node is None else None
            if path is not None:
                self._around.count("damaged ends")
                self._damaged(broker, path)
            if is_harmed_before and (path is not None or not tries):
                end(broker)
            elif path is None and tries:
                after(_HARM_RETRY_US, harm)

        def begin() -> None:
            if not is_harmed_before:
                end(broker)
            harm()

        after(1 if is_first else (fault.number >> 4) % _LAST_WITHIN_US, begin)

    def _stop_when_full(self, broker: SimBroker) -> None:
        """Stop cleanly while the disk has no room for logs."""
        broker.disk.refuses_logs = True
        broker.stop()
        self._around.scheduler.after(_FULL_AT_STOP_US, lambda: setattr(broker.disk, "refuses_logs", False))

    def _take_disk(self, broker: SimBroker, replace: Call) -> bool:
        """Replace the disk if the other brokers have all that it held: else that would be a legitimate loss."""
        others = [one for one in self._brokers.values() if one is not broker]
        # A broker that does not know the disk yet takes any disk for the first one, and lets it vote.
        is_known = all(
            one.node is not None and inspector.registered_disk(one.node, broker.broker_id) == broker.data_dir_id
            for one in others
        )
        if not is_known or self._emptied not in (0, broker.broker_id) or self._is_needed(broker):
            return False
        self._emptied = broker.broker_id
        self._around.count("replaced disks")
        if broker.node is None:  # no run ends here, and yet the data is lost
            self._around.watchers.ended(broker, True)
        broker.power_cut()
        replace()
        return True

    def _set_back(self, broker: SimBroker, after_us: int, then: Callable[[bool], None] = lambda _: None) -> None:
        """Copy the disk now and restore the copy later, as soon as no promise depends on what it lacks."""
        copy, number = broker.disk.copy(), broker.disk.number
        tries = _SET_BACK_TRIES

        def put() -> None:
            nonlocal tries
            if self.is_over or broker.disk.number != number:
                return
            tries -= 1
            is_put = self._has_no_say(broker) and self._take_disk(broker, lambda: broker.disk.set_back(copy))
            if is_put or not tries:
                then(is_put)
            else:
                self._around.scheduler.after(_SET_BACK_RETRY_US, put)

        self._around.scheduler.after(after_us, put)

    def _has_no_say(self, broker: SimBroker) -> bool:
        """True if all others have the same metadata log: no acknowledged entry depends on this broker."""
        nodes = [one.node for one in self._brokers.values() if one is not broker]
        if broker.node is None or None in nodes:
            return False
        own = inspector.logged(broker.node)
        return all(inspector.logged(node) == own for node in nodes if node is not None)

    def _kill_all(self, fault: PlannedFault, broker: SimBroker) -> None:
        """Kill all processes within a moment, that of `broker` first."""

        def kill(_is_put: bool = False) -> None:
            for number, one in enumerate(self._brokers.values()):
                after_us = 1 + (fault.number >> 3 * number) % 8 * _KILLED_WITHIN_US // 8
                self._around.scheduler.after(after_us, one.crash)

        kind = fault.number % 4
        if kind == 0 and len(self._brokers) > 1:
            self._set_back(broker, min(fault.lasts_us, _COPY_AGE_US_MAX), kill)
            return
        if kind == 1 and len(self._brokers) > 1:
            self._take_disk(broker, broker.disk.replace)
        kill()

    def _for_a_while(self, fault: PlannedFault, broker: SimBroker) -> None:
        around, ill = self._around, fault.ill
        after = around.scheduler.after
        if ill is Ill.PAUSE:
            broker.pause()
            after(fault.lasts_us, broker.resume)
        elif ill is Ill.SLOW_DISK:
            broker.disk.is_slow = True
            after(fault.lasts_us, lambda: setattr(broker.disk, "is_slow", False))
        elif ill in (Ill.FULL_DISK, Ill.LONG_FULL_DISK):
            self._fill(broker, fault.lasts_us)
        elif ill is Ill.HUNG_SYNC:
            after(fault.lasts_us, broker.disk.hang(only_one=bool(fault.number % 2)))
        elif ill is Ill.NATS_AWAY:
            for way in ((broker.name, nats.NAME), (nats.NAME, broker.name)):
                after(fault.lasts_us, around.network.block(*way))
        elif ill is Ill.FAILING_SYNC:
            broker.disk.syncs_to_fail = 1
            broker.disk.fails_any_sync = fault.number % 3 == 0
        elif ill is Ill.NATS_LOST:
            for connection in around.network.between(broker.name, nats.NAME):
                around.nats.cut(connection)
        elif ill is Ill.NATS_RESTART:
            around.nats.stop()
            after(fault.lasts_us, around.nats.start)
        elif ill is Ill.ACKS_LOST:
            around.nats.is_losing = True
            after(fault.lasts_us, lambda: setattr(around.nats, "is_losing", False))
        elif ill is Ill.SLOW_NETWORK:
            around.network.delay_us_range = (1_000, 100_000)
            after(fault.lasts_us, lambda: setattr(around.network, "delay_us_range", (50, 600)))
        else:
            self._on_the_network(fault, broker)

    def _fill(self, broker: SimBroker, lasts_us: int) -> None:
        """Fill the disk; it stays full until the last of its overlapping faults ends."""
        scheduler, full_until_us = self._around.scheduler, self._full_until_us
        until_us = max(full_until_us.get(broker.broker_id, 0), scheduler.now_us + lasts_us)
        full_until_us[broker.broker_id] = until_us
        broker.disk.is_full = True

        def empty() -> None:
            if scheduler.now_us >= full_until_us[broker.broker_id]:
                broker.disk.is_full = False

        scheduler.at(until_us, empty)

    def _on_the_network(self, fault: PlannedFault, broker: SimBroker) -> None:
        network = self._around.network
        others = [nats.NAME, *self._programs, *(one.name for one in self._brokers.values() if one is not broker)]
        other = others[fault.number % len(others)]
        if fault.ill is Ill.RESET:
            for connection in network.between(broker.name, other):
                connection.cut()
            return
        ways = [(broker.name, other), (other, broker.name)]
        if (which := fault.number // len(others) % 4) < 2:  # one direction
            del ways[which]
        elif which == 2:  # isolated from all
            ways = [way for one in others for way in ((broker.name, one), (one, broker.name))]
        for way in ways:
            self._around.scheduler.after(fault.lasts_us, network.block(*way))

    def heal(self) -> None:
        """End all faults at once."""
        self.is_over = True
        self.aims.heal()
        around = self._around
        around.network.heal()
        around.network.delay_us_range = (50, 600)
        around.nats.is_losing = False
        around.nats.start()
        for broker in self._brokers.values():
            broker.disk.heal()
            broker.resume()
