"""One simulated broker: the node and its driver, on a seeded network and disk.

Rules: A step is carried out top to bottom, as the real driver does. Everything that happens to the broker goes
through `event`, so that a pause holds all of it back and a power cut in the middle of a decision ends the run there.
Events of an earlier run of the broker change nothing in a later one. As in the real driver, several events may reach
the node in one turn of the event loop before its decisions are carried out.

    down ──start──▶ runs ──stop──▶ stopping ──▶ down
     ▲               │ ◀──resume── paused ◀──pause──
     └─crash, power──┘
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import msgspec

from penstock.base.clock import Now
from penstock.base.errors import PenstockError
from penstock.base.ids import BrokerId
from penstock.commitlog.files.files import holds_messages
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.node_access import GatewayCaller
from penstock.messages import Request
from penstock.node.control.startup_conflicts import OLDER_COPY
from penstock.node.node import Node
from penstock.node.settings import Settings
from penstock.node.step import DiskWork, NatsAnswers, Step
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.connections import AccessChecks, BrokerConnections
from penstock.testing.simulation.broker.jetstream_api import JetStreamApi
from penstock.testing.simulation.broker.link import NatsLinkModel
from penstock.testing.simulation.broker.peers import Answer, PeerLinks
from penstock.testing.simulation.broker.wakeups import Wakes
from penstock.testing.simulation.disk import Disk, PowerCut
from penstock.testing.simulation.nats import NatsServerModel
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.scheduler import Call, Clock, Scheduler, Timer
from penstock.testing.simulation.trace import Trace
from penstock.vfs import Vfs
from penstock.vfs.keys import EncryptionKeys

_DRAIN_US = 1_000_000
_LEAVE_US = 3_000_000
_STOP_US = 8_000_000
_STOPPED = "stopped"
_DRAINED = -1  # token of the barrier that ends a drain
_RESTART_US = (300_000, 2_000_000)
_TURN_US = 3_000  # longest turn of the event loop; all events in it reach the node before its decisions are carried out
_TURNS = 0.3  # share of events that begin such a turn; the decisions of the others are carried out at once


def _wall_us(now: Now, then_ms: int) -> int:
    """Convert elapsed time to wall-clock time."""
    return now.wall_us - now.elapsed_us + then_ms * 1_000


def _encrypted(vfs: Vfs, name: str, run: int) -> Vfs | None:
    """Return the broker's `vfs` for encrypted streams in this run; None: the extra `encryption` is not installed.

    Keys are derived from the broker's name, so that a seed is deterministic.
    """
    try:
        from penstock.vfs.encrypted import EncryptedVfs  # needs `cryptography`, an extra
    except ImportError:
        return None
    chance = Random(f"{name} run {run} nonces")  # noqa: S311 (nothing secret)
    keys = EncryptionKeys([(f"of-{name.replace(' ', '-')}", name.encode().ljust(32, b".")[:32])])
    return EncryptedVfs(vfs, keys, holds_messages, chance.randbytes)


@dataclass(slots=True)
class Watchers:
    """Callbacks that observe a broker: after each turn, at the start of a run, at its end, and for its answers."""

    acted: Callable[[SimBroker], None]
    started: Callable[[SimBroker], None]
    ended: Callable[[SimBroker, bool], None]
    answered: Callable[[SimBroker, Sequence[NatsAnswers]], None]  # to publishers


@dataclass(slots=True)
class Surroundings:
    """The environment that all brokers of a run share."""

    scheduler: Scheduler
    network: Network
    nats: NatsServerModel
    trace: Trace
    watchers: Watchers
    counters: Counter[str] = field(default_factory=Counter)
    brokers: dict[str, SimBroker] = field(default_factory=dict)  # by name
    rights: AccessChecks | None = None  # None: no login is required
    serves_api: bool = False  # brokers serve JetStream's API

    def count(self, what: str, number: int = 1) -> None:
        """Add to a counter of the report."""
        self.counters[what] += number


class SimBroker:
    """Broker `broker_id`. Call `start` first."""

    def __init__(self, around: Surroundings, broker_id: int, random: Random, clock: Clock) -> None:
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.address = f"{self.name}:1"  # advertised to other brokers, and to NATS
        self.nats_urls: tuple[str, ...] = ()
        self.version = "1"  # of its next start
        self.clock = clock
        self.disk = Disk(around.scheduler, random)
        self.disk.died = self._died
        self.node: Node | None = None
        self.run = 0  # number of starts
        self.is_stopping = False
        self.wants_to_run = True
        self.doors = BrokerConnections(self, around)
        self._around = around
        self._random = random
        self._link: NatsLinkModel | None = None
        self._peers: PeerLinks | None = None
        self.api: JetStreamApi | None = None
        self._was_clean = False
        self._is_refused = False  # its disk is an older copy, so the operator replaces it with an empty one
        self.has_failed = False  # it cannot go on, and is about to end: it may not have applied what it has logged
        self._paused = False
        self._waiting: deque[Call] = deque()
        self._timer: Timer | None = None
        self._timer_us = 0
        # A generator of its own: the others draw what they would draw without it.
        self._turns = Random(f"{self.name} turns {random.getstate()[1][:8]}")  # noqa: S311 (nothing secret)
        self._turn_end: Timer | None = None  # None: no decision waits
        self._event_us = 0  # elapsed time at the last event, which is the node's time
        self._wakes = Wakes(self.name)
        self._drained: Call = lambda: None  # called when NATS has confirmed the end of the subscriptions

    # Life

    def start(self) -> None:
        """Begin a run if the broker is down. A start that fails is retried."""
        if self.node is not None or not self.wants_to_run:
            return
        self.disk.restore()
        self.run += 1
        node = Node(self.disk.vfs, self._settings(), self._random)
        self.node = node
        self.is_stopping = self.has_failed = False
        around = self._around
        self._link = NatsLinkModel(self.name, self, around.network, around.nats, self._random)
        self._peers = PeerLinks(
            self.name,
            node,
            self.clock,
            around.network,
            self._random,
            event=self.event,
            carry_out=self._carry_out,
            ask=self._ask_peer,
            are_proven=around.rights is not None,
        )
        if around.serves_api:
            self.api = JetStreamApi(self.name, self.run, node, self, self.clock, around.network, around.nats)
        try:
            step = node.start(self.clock.now())
        except (OSError, PenstockError) as error:
            self._trace(f"cannot start: {type(error).__name__}: {error}")
            around.count("failed starts")
            self._end("start failed")
            return
        except PowerCut:
            self._died()
            return
        self._trace(f"start run={self.run}")
        if self.run > 1 and not self._was_clean:
            around.count("unclean starts")
        around.watchers.started(self)
        self.event(lambda: self._begin(step))

    @property
    def data_dir_id(self) -> str:
        """Id of the data directory on the current disk."""
        return f"{self.name}-disk{self.disk.number}"

    @property
    def is_linked(self) -> bool:
        """True if nats-server has every subscription of this broker."""
        return self._link is not None and self._link.is_up

    def _settings(self) -> Settings:
        brokers, rights = self._around.brokers, self._around.rights
        voters = {BrokerId(one.broker_id): one.address for one in brokers.values()} if len(brokers) > 1 else {}
        return Settings(
            broker_id=BrokerId(self.broker_id),
            broker_version=self.version,
            cluster_id="sim",
            data_dir_id=self.data_dir_id,
            process=f"{self.name}-run-{self.run}",
            voters=voters,
            address=self.address,
            scrub_interval_ms=15_000,
            staged_keep_ms=500,
            marks_per_snapshot_max=8,
            encrypted=_encrypted(self.disk.vfs, self.name, self.run),
            nats_urls=self.nats_urls,
            proves_brokers=rights is not None,
            requires_login=rights is not None,
            first_user=rights.first_user if rights is not None else None,
        )

    def _begin(self, step: Step) -> None:
        self._do(step)
        assert self._link is not None
        self._link.start()
        if self.api is not None:
            self.api.leaf.start()
        self._around.network.listen(self.name, self.doors.accept)
        self._timer_us = 0

    def crash(self) -> None:
        """Kill the process; its written data stays."""
        if self.node is not None:
            self._around.count("process crashes")
            self._end("crash")

    def power_cut(self, after_changes: int = 0) -> None:
        """Cut the machine's power, now or after so many more changes of the disk."""
        if self.node is None:
            return
        if after_changes:
            self.disk.cut_power_after(after_changes)
        else:
            self.disk.power_off()
            self._died()

    def _died(self) -> None:
        self._around.count("power cuts")
        self._end("power cut")

    def _end(self, why: str) -> None:
        """End this run."""
        self._trace(f"ends: {why}")
        self._was_clean = why == _STOPPED
        if self._link is not None:
            self._link.stop()
        if self._peers is not None:
            self._peers.stop()
        if self.api is not None:
            self.api.leaf.stop()
            self.api = None
        self._around.network.listen(self.name, None)
        self._around.network.die(self.name)
        self.disk.forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cancel_turn_end()
        self.doors.clear()
        self._waiting.clear()
        self._paused = False
        node, self.node = self.node, None
        if node is not None:
            self._around.counters.update(inspector.counted(node))
            self._around.watchers.ended(self, self.disk.is_off or self._is_refused)
        if self._is_refused:
            self._is_refused = False
            self.disk.replace()
        low, high = _RESTART_US
        self._around.scheduler.after(low + int(self._random.random() * (high - low)), self.start)

    def pause(self) -> None:
        """Stop the process from being scheduled (SIGSTOP)."""
        if self.node is not None and not self._paused:
            self._trace("paused")
            self._around.count("pauses")
            self._paused = True

    def resume(self) -> None:
        """Continue the process and carry out the events that were held back."""
        if not self._paused:
            return
        self._paused = False
        self._trace(f"resumed, {len(self._waiting)} events waited")
        while self._waiting and not self._paused:
            self.event(self._waiting.popleft())

    # Events

    def event(self, call: Call) -> None:
        """Pass an event to the node, and carry out the steps that follow: now, or with the next events of its turn."""
        if self.node is None:
            return
        if self._paused:
            self._waiting.append(call)
            return
        self._event_us = self.clock.elapsed_us()
        try:
            call()
        except PowerCut:
            self._died()
            return
        if (rights := self._around.rights) is not None and self._is_running():
            rights.acted(self)  # before its answers, which are judged by the users that they were decided by
        if self._turn_end is not None:
            self._around.count("events in a turn with others")
        elif self._turns.random() < _TURNS:
            length_us = int(self._turns.random() * _TURN_US)
            self._turn_end = self._around.scheduler.after(length_us, self.end_turn)
        else:
            self.end_turn()

    def _is_running(self) -> bool:
        return self.node is not None

    def end_turn(self) -> None:
        """Carry out all decisions of this turn; a pause holds them back."""
        if self._paused:
            self._turn_end = None
            self._waiting.append(lambda: None)
            return
        try:
            self._carry_out()
        except PowerCut:
            self._died()
            return
        self._acted()

    def _carry_out(self) -> None:
        self._cancel_turn_end()
        while (step := self._step()) is not None:
            self._do(step)

    def _cancel_turn_end(self) -> None:
        if self._turn_end is not None:
            self._turn_end.cancel()
            self._turn_end = None

    def _step(self) -> Step | None:
        """Return the node's next step; None if the last one has ended the run."""
        return None if self.node is None else self.node.take()

    def _acted(self) -> None:
        if self.node is not None:
            wake_us = self.node.next_wake_us
            if self.api is not None:
                self.api.plan_turn(self.event)
                if (due_us := self.api.gateway.next_deadline_us) is not None:
                    wake_us = min(wake_us, due_us)
            self._set_timer(wake_us)
            self._around.watchers.acted(self)

    def groups_received(self, groups: Mapping[int, MessageGroup]) -> None:
        """Take the messages of one read of the NATS connection."""
        assert self.node is not None
        self._around.trace.add(self.name, "messages " + " ".join(f"{one}:{len(groups[one])}" for one in groups))
        if self.api is not None:
            groups = {**groups}
            self.api.received(groups)
        self.node.messages_received(groups, self.clock.now())

    def link_up(self) -> None:
        assert self.node is not None
        self._trace("nats up")
        if self.api is not None:
            self.api.link_up()
        self.node.nats_up()
        self._carry_out()  # at once: a barrier requested from now on comes after the node's own

    def link_lost(self, proven_ms: int, reason: str) -> None:
        assert self.node is not None
        self._trace(f"nats lost: {reason}")
        self._around.count("nats losses")
        now = self.clock.now()
        self.node.nats_lost(msgspec.structs.replace(now, wall_us=_wall_us(now, proven_ms)), reason)

    def barrier_reached(self, token: int) -> None:
        assert self.node is not None
        if token == _DRAINED:
            self._drained()
        else:
            self.node.barrier_reached(token, self.clock.now())

    def subscription_refused(self, sid: int | None, reason: str) -> None:
        assert self.node is not None
        self.node.subscription_refused(sid, reason, self.clock.now())

    def now_ms(self) -> int:
        """Return the broker's elapsed time."""
        return self.clock.elapsed_us() // 1_000

    def after_ms(self, delay_ms: int, call: Call) -> Timer:
        return self._around.scheduler.after(delay_ms * 1_000, call)

    # Requests

    def _ask_peer(self, name: str, connection: SimConnection, request: Request, raw: bytes, answer: Answer) -> None:
        self._around.brokers[name].doors.ask(connection, request, raw, answer)

    def ask(self, connection: SimConnection, request: Request, raw: bytes, answer: Answer) -> None:
        """Take a request from `connection`; `answer` is called at the other end."""
        self.doors.ask(connection, request, raw, answer)

    # Carrying out

    def _do(self, step: Step) -> None:
        assert self._link is not None
        assert self._peers is not None
        if step.publish:
            if acks := [one for one in step.publish if not JetStreamApi.has(one)]:
                self._around.watchers.answered(self, acks)
            self._link.answer(step.publish)
        if step.deliver and self.api is not None:
            self.api.leaf.carry_out(step.deliver)
        for reply in step.replies:
            if not isinstance(reply.caller, GatewayCaller):
                self.doors.reply(reply)
            elif self.api is not None:
                self.api.gateway.answered(reply.caller, reply.response, reply.payload)
        for request in step.peers:
            self._peers.send(request)
        for broker_id, address in step.peer_addresses:
            self._peers.address_changed(broker_id, address)
        for command in step.nats:
            self._link.take(command)
        if step.nats:
            self._link.send_output()
        for note in step.notes:
            note()
        for work in step.disk:
            self.disk.submit(work, self._back)
        for notice in step.notices:
            self._trace(notice)
        if step.failure:
            self._trace(f"cannot go on: {step.failure}")
            self.has_failed = True
            if OLDER_COPY in step.failure:
                assert self.disk.is_older, step.failure
                self._around.count("refused older copies")
                self._is_refused = True
            run = self.run
            self._around.scheduler.after(0, lambda: self.stop() if self.run == run else None)

    def _back(self, work: DiskWork, error: Exception | None) -> None:
        self.event(partial(self._told, work, error))

    def _told(self, work: DiskWork, error: Exception | None) -> None:
        assert self.node is not None
        self._around.trace.add(self.name, "disk" if error is None else f"disk: {error}")
        self.node.complete(work, error, self.clock.now())

    def _set_timer(self, wake_us: int) -> None:
        if self._timer is not None:
            if self._timer_us <= wake_us:
                return
            self._timer.cancel()
        self._timer_us = wake_us
        self._wakes.planned(wake_us, self._event_us)
        scheduler = self._around.scheduler
        at_us = max(self.clock.true_us(wake_us), scheduler.now_us + 1_000)
        self._timer = scheduler.at(at_us, partial(self.event, self._tick))

    def _tick(self) -> None:
        assert self.node is not None
        assert self._link is not None
        self._timer = None
        now, proven_ms = self.clock.now(), self._link.proven_ms
        self.node.tick(now, None if proven_ms is None else _wall_us(now, proven_ms))
        if self.api is not None:
            self.api.tick()

    # A clean stop

    def stop(self) -> None:
        """Stop cleanly (SIGTERM): hand over the metadata lead, drain NATS, hand over partitions, flush, end."""
        if self.node is None or self.is_stopping or self._paused:
            return
        self.is_stopping = True
        self._trace("stops")
        self._around.count("clean stops")
        node = self.node
        handed_over = self._once(_LEAVE_US, self._drain)
        self.event(lambda: node.hand_over(self.clock.now(), handed_over))

    def _once(self, timeout_us: int, call: Call) -> Call:
        """Return a callback that runs `call` once, as the next step of this stop; a time-out runs it, too."""
        node, run = self.node, self.run
        is_done: list[bool] = []

        def go_on() -> None:
            if self.run == run and self.node is node and not is_done:
                is_done.append(True)
                call()

        self._around.scheduler.after(timeout_us, lambda: self.event(go_on))
        return go_on

    def _drain(self) -> None:
        assert self._link is not None
        assert self.node is not None
        self.node.drain(self.clock.now())
        self._drained = self._once(_DRAIN_US if self._link.drain(_DRAINED) else 0, self._leave)

    def _leave(self) -> None:
        assert self.node is not None
        self.node.leave(self.clock.now(), self._once(_LEAVE_US, self._end_cleanly))

    def _end_cleanly(self) -> None:
        assert self.node is not None
        self.is_stopping = False  # `stop` may run again only in a later run
        if self.api is not None:
            self.api.gateway.shut_down()
        self.node.give_up_queries()
        self.node.before_stop()
        self._around.network.listen(self.name, None)
        self._wait_for_disk(self.run, self._around.scheduler.now_us + _STOP_US)

    def _wait_for_disk(self, run: int, until_us: int) -> None:
        def look() -> None:
            if self.run != run or self.node is None:
                return
            if self._around.scheduler.now_us > until_us:
                self._end("the disk did not answer")
            elif self.disk.open_count:
                self._wait_for_disk(run, until_us)
            else:
                self.event(self._close)

        self._around.scheduler.after(5_000, look)

    def _close(self) -> None:
        assert self.node is not None
        self._carry_out()
        self._do(self.node.stop(self.clock.now()))
        self._end(_STOPPED)

    def _trace(self, what: str) -> None:
        self._around.trace.add(self.name, what)
