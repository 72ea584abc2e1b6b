"""A simulated cluster for a test: brokers and NATS on a seeded network, clock and disk, plus the user's programs.

Rules: the seed determines everything, including the randomness of programs. Only the code is real: the brokers' code is
Penstock's own, byte by byte from the socket to the disk, and so is the client's. After every turn of a broker the
guarantees are checked; a violation ends the run. At the end all faults are healed, the cluster settles, and acked
messages are read once more.

    brokers start ── the test's coroutine, with faults ── heal ── settle ── audit
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from types import FrameType
from typing import Any, TypeVar

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.client.link.addresses import DEFAULT_PORT, SERVER_VARIABLE
from penstock.hot.crc import crc32c
from penstock.messages import Request, Response
from penstock.testing.chance import simulated
from penstock.testing.connecting import ProgramPlace
from penstock.testing.errors import NotLiveError, StuckError, ViolationError
from penstock.testing.faults import Fault, Storm, chosen
from penstock.testing.nats_service import NatsService
from penstock.testing.program import Main, Program
from penstock.testing.promises import Promises
from penstock.testing.simulation import inspector, nats
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings, Watchers
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.nats import NatsServerModel, PublishedMessage
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.planned_faults import PlannedFault
from penstock.testing.simulation.scheduler import Clock, Scheduler
from penstock.testing.simulation.trace import Trace
from penstock.testing.socket_api import Heard, SocketApi
from penstock.testing.transport import Service
from penstock.testing.watchdog import watched
from penstock.testing.where import of_frame

T = TypeVar("T")
BROKERS_MAX = 9
TRACE_LINES = 2_000  # lines of the trace kept, at the end of a run
STORY_LINES = 200  # lines of the story kept
TEST = "test"
"""The machine on which the test's own coroutine runs."""
_NAMED_MAX = 20  # waiting programs named in an error
_SETTLE_S = 120.0
_STOP_S = 10.0
_LOOK_S = 0.05
_OPERATOR_US = 2_000_000
_SKEW_PPM_MAX = 200
_OFFSET_US_MAX = 5_000_000
_DAILY = ("asks", "hears", "disk", "messages")  # in the trace but not in the story


class Cluster:
    """A simulated cluster; call `run` once, with a coroutine.

    `brokers`: 1 to 9, each with its own disk. `faults`: names from `Fault` that may strike while the coroutine runs;
    True: all that the guarantees of durability `auto` cover; False: none. `every_s`: average simulated seconds between
    two faults. `limit_s`: simulated seconds within which the coroutine must end. `real_limit_s`: a program that
    computes or blocks for that many seconds of real time without an await ends the run; infinite: no limit. `show` is
    called with each line of the trace as it happens.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        brokers: int = 3,
        faults: bool | str | Iterable[str] = False,
        every_s: float = 4.0,
        limit_s: float = 3_600.0,
        real_limit_s: float = 60.0,
        show: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers is {brokers}; it can be 1 to {BROKERS_MAX}")
        if every_s <= 0 or limit_s <= 0:
            raise ValueError(f"every_s is {every_s:g}, limit_s {limit_s:g}; give both some time")
        if not real_limit_s > 0:
            raise ValueError(f"real_limit_s is {real_limit_s:g}; give it some time")
        self.seed = seed
        self.was_run = False
        self._kinds = chosen(faults)
        self._limit_s = limit_s
        self._real_limit_s = real_limit_s
        self._show = show
        self._lines: deque[str] = deque(maxlen=TRACE_LINES)
        self._story: deque[str] = deque(maxlen=STORY_LINES)
        self._struck: dict[str, int] = {}
        self._failure: BaseException | None = None
        scheduler = self._scheduler = Scheduler()
        self._trace = Trace(scheduler, self._shown)
        self._network = Network(scheduler, self._random("network"))
        self._brokers: dict[int, SimBroker] = {}
        self._promises = Promises(self._brokers, scheduler)
        self._nats = NatsServerModel(self._network, self._random("nats"), self._trace)
        self._nats.published = self._published
        self._nats.answered = self._promises.answered
        promises = self._promises
        watchers = Watchers(
            self._watched(promises.acted), self._watched(promises.started), promises.ended, lambda *_: None
        )
        self._around = Surroundings(scheduler, self._network, self._nats, self._trace, watchers)
        services: dict[str, Service] = {}
        skews = self._random("clocks")
        for broker_id in range(1, brokers + 1):
            clock = Clock(scheduler, _either_way(skews, _SKEW_PPM_MAX), _either_way(skews, _OFFSET_US_MAX))
            broker = SimBroker(self._around, broker_id, self._random(f"b{broker_id}"), clock)
            broker.address, broker.nats_urls = f"{broker.name}:{DEFAULT_PORT}", (nats.URL,)
            self._brokers[broker_id] = broker
            services[broker.name] = SocketApi(broker, self._took)
        self._around.brokers.update({broker.name: broker for broker in self._brokers.values()})
        services[nats.NAME] = NatsService(self._nats)
        self._place = ProgramPlace(self._network, self._trace, self._random("programs"), services, self._failed)
        self._programs: dict[str, Program] = {}
        self._faults = Faults(self._around, self._brokers, lambda *_: None, promises.is_needed, self._programs.keys())
        self._storm = Storm(scheduler, self._random("faults"), self._kinds, every_s, brokers, self._strike)

    def _random(self, what: str) -> Random:
        return Random(f"{self.seed} {what}")  # noqa: S311 (nothing secret)

    # Queries

    @property
    def servers(self) -> list[str]:
        """HOST:PORT of each broker, for `penstock.aio.connect`; during the run $PENSTOCK_SERVER contains them, too."""
        return [broker.address for broker in self._brokers.values()]

    @property
    def nats_url(self) -> str:
        """URL of the NATS server, for `nats.connect`; localhost:4222 reaches it as well."""
        return nats.URL

    @property
    def now_s(self) -> float:
        """Simulated seconds since the beginning."""
        return self._scheduler.now_us / 1_000_000

    @property
    def trace(self) -> list[str]:
        """The last TRACE_LINES (2,000) lines of the trace: microseconds, who, what."""
        return list(self._lines)

    @property
    def story(self) -> list[str]:
        """The last 200 lines of the trace about faults, the starts and ends of brokers and programs, and notes."""
        return list(self._story)

    @property
    def digest(self) -> str:
        """A hash of the whole trace: the same seed and code give the same hash on every machine."""
        return self._trace.digest()

    @property
    def brokers(self) -> dict[int, bool]:
        """The brokers by id; True if the broker's process is running."""
        return {broker_id: broker.node is not None for broker_id, broker in self._brokers.items()}

    def leader(self, stream: str, partition: int = 0) -> int | None:
        """Return the leader of a partition, as the brokers know it; None: no leader. KeyError: no such stream."""
        found = [
            (look.applied, state.partitions[partition].leader)
            for node in self._nodes()
            for state in inspector.streams(node)
            if state.name == stream and (look := inspector.standing(node))
        ]
        if not found:
            raise KeyError(stream)
        return max(found, key=lambda one: one[0])[1]

    def summary(self) -> str:
        """Return a one-line summary of the run, for debugging."""
        struck = ", ".join(f"{count} {name}" for name, count in sorted(self._struck.items()))
        runs = sum(program.runs for program in self._programs.values())
        return (
            f"seed {self.seed}: {self.now_s:.1f} simulated seconds, {sum(self._struck.values())} faults"
            f"{f' ({struck})' if struck else ''}, {self._promises.leader_changes} changes of leaders, "
            f"{self._promises.acks} acks, {runs} runs of {len(self._programs)} programs"
        )

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self._trace.add(TEST, text)

    # Actions

    def start(self, main: Main, name: str = "", *, restarts: bool = True) -> Program:
        """Start a program on its own machine: `main()` must return a new coroutine for each run.

        With `restarts`, the program is started again after a fault has killed it or after an error that faults can
        cause. ValueError: the name is taken.
        """
        given: object = main
        if not callable(given):
            _close(given)
            raise TypeError("give a coroutine function, `start(service)`: each run needs a coroutine of its own")
        name = name or getattr(main, "__name__", "") or f"program-{len(self._programs)}"
        if name in self._programs or name in self._place.services:
            raise ValueError(f"there is a machine named {name!r} already; give the program another name")
        program = self._programs[name] = Program(self._place, name, main, restarts=restarts)
        program.start()
        return program

    def kill(self, broker_id: int) -> None:
        """Kill a broker's process; it stays down until `restart`, `heal` or `settle`. Its files stay."""
        broker = self._brokers[broker_id]
        broker.wants_to_run = False
        self._by_hand("kill", broker.name)
        broker.crash()

    def power_cut(self, broker_id: int) -> None:
        """Cut a broker's power: like `kill`, and data not synced to its disk may be lost."""
        broker = self._brokers[broker_id]
        broker.wants_to_run = False
        self._by_hand("power", broker.name)
        broker.power_cut()

    def stop(self, broker_id: int) -> None:
        """Stop a broker cleanly, after it has handed over its leaderships; it stays down."""
        broker = self._brokers[broker_id]
        broker.wants_to_run = False
        self._by_hand("restart", broker.name)
        broker.stop()

    def restart(self, broker_id: int) -> None:
        """Start a broker that is down."""
        broker = self._brokers[broker_id]
        broker.wants_to_run = True
        broker.start()

    def partition(self, one: int | str, other: int | str | None = None, *, one_way: bool = False) -> None:
        """Block traffic between two machines, in both directions unless `one_way`, until `heal`; None: all other
        machines.

        A machine is a broker's id, "nats", "test", or the name of a program.
        """
        names = [self._machine(one), *([] if other is None else [self._machine(other)])]
        others = names[1:] or [name for name in self._machines() if name != names[0]]
        self._by_hand("partition", " ".join(names))
        for name in others:
            self._network.block(names[0], name)
            if not one_way:
                self._network.block(name, names[0])

    def slow_disk(self, broker_id: int) -> None:
        """Delay a broker's disk writes by up to two seconds, until `heal`."""
        self._by_hand("slow-disk", self._brokers[broker_id].name)
        self._brokers[broker_id].disk.is_slow = True

    def stop_nats(self) -> None:
        """Stop the NATS server and break its connections, until `heal`."""
        self._by_hand("nats-restart", nats.NAME)
        self._nats.stop()

    def heal(self) -> None:
        """Heal all faults: networks, disks, NATS, and brokers that are down. Random faults continue."""
        self._trace.add("fault", "all is mended")
        self._faults.heal()
        self._faults.is_over = False
        for broker_id in self._brokers:
            self.restart(broker_id)

    async def settle(self, timeout_s: float = _SETTLE_S) -> None:
        """End the random faults; wait until all brokers are up and all replicas are in sync. NotLiveError.

        Messages in flight during a fault may still arrive: consumers that follow read on until they have them.
        """
        self._mend()
        deadline_s = self.now_s + timeout_s
        while missing := self._unsettled():
            if self.now_s >= deadline_s:
                raise NotLiveError(f"not settled {timeout_s:g} simulated seconds after all was mended: {missing}")
            await asyncio.sleep(_LOOK_S)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster and return its result; then settle, and check the guarantees.

        Raises the coroutine's exceptions. ViolationError: Penstock has broken a guarantee. NotLiveError: the coroutine
        did not end within `limit_s`, or the cluster did not settle. ProgramError: a program failed. StuckError: a
        program blocked the simulation for `real_limit_s`.
        """
        if not inspect.iscoroutine(main):
            raise TypeError("give a coroutine, `run(main())`")
        if self.was_run:
            main.close()
            raise RuntimeError("this cluster has run already; make another one, with Cluster(seed)")
        self.was_run = True
        values: list[T] = []
        errors: list[BaseException] = []

        async def body() -> None:
            try:
                values.append(await main)
            except BaseException as error:  # noqa: BLE001 (raised again by `run`)
                errors.append(error)

        with (
            watched(self._real_limit_s, lambda: self._scheduler.events, self._stuck),
            simulated(self._scheduler, f"{self.seed} chance", {SERVER_VARIABLE: ",".join(self.servers)}),
        ):
            try:
                self._come_up()
                self.start(body, TEST, restarts=False)
                self._storm.begin()
                self._until(lambda: bool(values or errors), self._limit_s, self._waits)
                for error in errors:
                    raise error
                self._stop_programs()
                self._mend()
                self._until(lambda: not self._unsettled(), _SETTLE_S, lambda: f"not settled: {self._unsettled()}")
                self._promises.audit()
            finally:
                self._trace.add("end", self.summary())
                self._bury()
                main.close()
        if self._failure is not None:  # a stuck program, detected while the run was ending
            raise self._failure
        return values[0]

    # The run

    def _come_up(self) -> None:
        self._nats.start()
        for broker in self._brokers.values():
            broker.start()
        self._scheduler.after(_OPERATOR_US, self._operate)
        self._until(lambda: not self._unsettled(), _SETTLE_S, lambda: f"it did not come up: {self._unsettled()}")

    def _until(self, is_over: Callable[[], bool], limit_s: float, why: Callable[[], str]) -> None:
        def has_ended() -> bool:
            return self._failure is not None or is_over()

        scheduler = self._scheduler
        looked_us = scheduler.now_us
        if not has_ended():
            scheduler.run_until(looked_us + int(limit_s * 1_000_000), has_ended)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not is_over():
            raise NotLiveError(f"seed {self.seed}, after {limit_s:g} simulated seconds: {why()}")

    def _waits(self) -> str:
        """Return where the test and each unfinished program are waiting."""
        others = [one.standing() for name, one in self._programs.items() if name != TEST]
        told = [f"; {standing}" for standing in others if standing][:_NAMED_MAX]
        it = self._programs[TEST].standing().replace(TEST, "it", 1)
        return f"the test has not ended; {it} (give it more with limit_s){''.join(told)}"

    def _stuck(self, frame: FrameType) -> StuckError:
        """Record that a program blocks the simulation; this ends the run even if the program catches the error."""
        loop = asyncio.events._get_running_loop()  # noqa: SLF001 (also while a loop is being cleaned up)
        who = next((name for name, one in self._programs.items() if loop in one.loops), "the simulation itself")
        text = f"{who} has computed or blocked for {self._real_limit_s:g} s of real time, without an await"
        error = StuckError(f"seed {self.seed}: {text}, in {of_frame(frame)} (give it more with real_limit_s)")
        self._failed(error)
        return error

    def _stop_programs(self) -> None:
        for program in self._programs.values():
            program.stop()
        running = self._programs.values()
        self._scheduler.run_until(
            self._scheduler.now_us + int(_STOP_S * 1_000_000), lambda: not any(one.is_running for one in running)
        )
        for program in running:
            program.kill()

    def _bury(self) -> None:
        """Clean up the remains of all programs."""
        for program in self._programs.values():
            program.kill()
        for program in self._programs.values():
            for loop in program.loops:
                loop.bury()

    def _mend(self) -> None:
        self._storm.end()
        self.heal()
        self._faults.is_over = True

    def _unsettled(self) -> str:
        """Return what has not settled yet; empty: everything has."""
        for broker in self._brokers.values():
            if broker.node is None or not broker.is_linked:
                return f"{broker.name} is {'down' if broker.node is None else 'without NATS'}"
        for node in self._nodes():
            if len(inspector.live(node)) < len(self._brokers):
                return f"brokers {sorted(set(map(BrokerId, self._brokers)) - inspector.live(node))} are not registered"
            for state in inspector.streams(node):
                for number, partition in enumerate(state.partitions):
                    if partition.leader is None or set(partition.isr) != set(partition.replicas):
                        return f"{state.name} partition {number}: {partition.leader} leads, in sync {partition.isr}"
                    leader = self._brokers[partition.leader].node
                    look = None if leader is None else inspector.partition(leader, state.stream_id, number)
                    if look is None or not look.is_leader or look.committed_end < look.log_end:
                        return f"{state.name} partition {number}: broker {partition.leader} does not lead yet"
        return ""

    def _operate(self) -> None:
        """Act as the operator: restart brokers whose logs no longer accept messages."""
        for broker in self._brokers.values():
            if (node := broker.node) is not None and (
                inspector.failed(node)
                or inspector.standing(node).is_failing
                or any(look.is_failing for look in inspector.partitions(node))
            ):
                broker.stop()
        self._scheduler.after(_OPERATOR_US, self._operate)

    def _strike(self, kind: Fault, drawn: PlannedFault) -> None:
        if kind is Fault.PROGRAM:
            running = [one for name, one in self._programs.items() if name != TEST and one.is_running]
            if running:
                self._count(kind)
                running[drawn.number % len(running)].crash()
            return
        if kind is Fault.POWER and self._promises.is_needed(self._brokers[drawn.broker_id]):
            return
        self._count(kind)
        self._faults.do(drawn)

    def _count(self, kind: str) -> None:
        self._struck[str(kind)] = self._struck.get(str(kind), 0) + 1

    def _by_hand(self, kind: str, where: str) -> None:
        self._count(kind)
        self._trace.add("fault", f"{kind} {where}, by hand")

    def _nodes(self) -> Sequence[Any]:
        return [broker.node for broker in self._brokers.values() if broker.node is not None]

    def _machines(self) -> list[str]:
        return [*self._place.services, *self._programs]

    def _machine(self, which: int | str) -> str:
        name = f"b{which}" if isinstance(which, int) else which
        if name not in self._machines():
            raise ValueError(f"there is no machine {which!r}; there are {', '.join(self._machines())}")
        return name

    # Events

    def _shown(self, line: str) -> None:
        self._lines.append(line)
        _, who, what, *_ = line.split(" ", 3)
        if who != nats.NAME and what not in _DAILY:
            self._story.append(line)
        if self._show is not None:
            self._show(line)

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _watched(self, look: Callable[[SimBroker], None]) -> Callable[[SimBroker], None]:
        """Wrap a check so that its violation ends the run even if a program's own call triggered and would catch it."""

        def watch(broker: SimBroker) -> None:
            try:
                look(broker)
            except ViolationError as violation:
                self._failed(violation)
                raise

        return watch

    def _published(self, message: PublishedMessage) -> None:
        subject = message.subject.decode(errors="replace")
        self._trace.add(nats.NAME, f"{subject} {len(message.value)} bytes {crc32c(message.value):08x}")
        self._promises.published(message)

    def _took(self, connection: SimConnection, request: Request, raw: bytes) -> Heard:
        who, whom = connection.source, connection.target
        self._trace.add(who, f"asks {whom}: {type(request).__name__}")
        heard = self._promises.asked(request, raw)

        def told(response: Response | RemoteError, payload: bytes) -> None:
            what = response.code if isinstance(response, RemoteError) else type(response).__name__
            self._trace.add(who, f"hears from {whom}: {what}")
            heard(response, payload)

        return told


def _close(work: object) -> None:
    if inspect.iscoroutine(work):
        work.close()


def _either_way(random: Random, most: int) -> int:
    return int((2 * random.random() - 1) * most)
