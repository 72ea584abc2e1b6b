"""Retention `workqueue` and `interest` under faults, with a driver in the place of consumers: it calls what acks call.

| invariant                                                                                     | checked          |
|-----------------------------------------------------------------------------------------------|------------------|
| a message whose removal was told is not read from a leader any more                           | at each read     |
| a message that nobody asked to remove is there                                                | at the end       |
| a message that no consumer wants is never read                                                | at each read     |
| a message that is published after its consumer was made is kept, at each later leader, too     | at the end       |
| with all consumed, and no message id that counts, nothing is left on the disk                  | at the end       |
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

import penstock.aio
from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.testing import Cluster
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from tests.extent import each_change, needs_time
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import first_error

JOBS = 40
EVENTS = 40
SUBJECTS = ("a", "b", "c")  # nobody wants the last one
READS = 25


class Driver:
    """One stream, and what stands for its consumers. `shown`: offsets that readers may still get."""

    def __init__(self, seed: int, retention: str) -> None:
        self.cluster = Cluster(seed, brokers=3, faults=True, every_s=2.0)
        self.random = Random(seed)
        self.retention = retention
        self.stream_id = 0
        self.published: dict[int, str] = {}  # offset → subject, of what was acked
        self.asked: set[int] = set()
        self.gone: set[int] = set()
        self.is_over = False
        self.reads = 0

    def led(self) -> tuple[SimBroker, inspector.PartitionLook] | None:
        """The broker that leads the stream, as far as the metadata say."""
        broker_id = self.cluster.leader(self.name) if self.stream_id else None
        broker = None if broker_id is None else self.cluster._brokers[broker_id]
        if broker is None or broker.node is None:
            return None
        look = inspector.partition(broker.node, self.stream_id, 0)
        return (broker, look) if look is not None and look.is_leader else None

    @property
    def name(self) -> str:
        return self.retention

    async def create(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            made = await client.create_stream(
                self.name, f"{self.name}.*", timeout=60, retention=self.retention, segment_bytes=4096,
                dedup_window_ms=1_000,
            )  # fmt: skip
            self.stream_id = int(made.stream_id)

    async def publish(self, subjects: list[str], pause_s: float) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            for number, subject in enumerate(subjects):
                try:
                    ack = await client.publish(f"{self.name}.{subject}", b"%d" % number, timeout=5)
                    self.published[ack.offset] = subject
                except penstock.PenstockError:
                    self.asked.update(range(max(self.published, default=0)))  # nothing is known of this one
                await asyncio.sleep(self.random.random() * pause_s)

    def consume(self, broker: SimBroker, look: inspector.PartitionLook, offsets: list[int]) -> None:
        def done(error: RemoteError | None) -> None:
            if error is None:
                self.gone.update(offsets)

        assert broker.node is not None
        try:
            self.asked.update(offsets)
            inspector.consume(broker.node, look, offsets, done)
        except RemoteError:
            return

    async def work(self) -> None:
        """Ack some of what is shown, again and again; a leader is asked that may be deposed already."""
        while not self.is_over:
            await asyncio.sleep(self.random.random() / 2)
            for broker in [one for one in self.cluster._brokers.values() if one.node is not None]:
                node = broker.node
                look = None if node is None else inspector.partition(node, self.stream_id, 0)
                if node is None or look is None or not look.is_leader:
                    continue
                shown = inspector.shown_offsets(node, look)
                if shown and (offsets := [one for one in shown if self.random.random() < 0.3]):
                    broker.event(partial(self.consume, broker, look, offsets))

    async def read(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            for _ in range(READS):
                await asyncio.sleep(self.random.random() * 2)
                gone = set(self.gone)
                try:
                    found = {message.offset: message async for message in client.messages(self.name, timeout=5)}
                except penstock.PenstockError:
                    continue
                self.reads += 1
                assert not gone & found.keys(), f"{sorted(gone & found.keys())} were removed before, and are read"
                self.check_read({message.subject.rpartition(".")[2] for message in found.values()})

    def check_read(self, subjects: set[str]) -> None:
        """Check the subjects of a read."""

    async def main(self) -> None:
        """Run the whole story."""
        raise NotImplementedError

    async def left(self) -> set[int]:
        async with penstock.aio.connect(timeout=60) as client:
            return {message.offset async for message in client.messages(self.name)}


class Queue(Driver):
    """Jobs, which workers take."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "workqueue")

    async def main(self) -> None:
        await self.create()
        programs = [self.cluster.start(partial(self.publish, ["job"] * JOBS, 1.0), f"writer-{n}") for n in range(2)]
        programs.append(self.cluster.start(self.read, "reader"))
        worker = asyncio.ensure_future(self.work())
        for program in programs:
            await program.finished()
        self.is_over = True
        await worker
        await self.cluster.settle()
        left = await self.left()
        assert not left & self.gone
        assert {one for one in self.published if one not in self.asked} <= left
        assert self.reads
        assert self.gone
        await self.empty()

    async def empty(self) -> None:
        """Take all that is left: then the log start follows, and the files go."""
        for _ in range(60):
            await asyncio.sleep(1)
            if (found := self.led()) is None:
                continue
            broker, look = found
            assert broker.node is not None
            if offsets := inspector.shown_offsets(broker.node, look):
                broker.event(partial(self.consume, broker, look, offsets))
            elif look.log_start == look.committed_end:
                return
        raise AssertionError(f"{self.led()} still has messages that were removed")


class Events(Driver):
    """Events, which consumers want by their subjects: those of `wants`, told to each leader."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "interest")
        self.wants: list[str] = []
        self.made: dict[str, int] = {}  # by subject: behind which offset all are kept
        self.told: set[tuple[int, int, int, int]] = set()

    def tell(self, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Tell a leader the filters, and note which consumers are made once it has settled what it was hiding."""
        assert broker.node is not None
        wants, key = list(self.wants), PartitionKey(StreamId(self.stream_id), PartitionId(0))

        def done(error: RemoteError | None) -> None:
            for one in wants if error is None else ():
                self.made.setdefault(one, max(self.published, default=-1) + 1)

        try:
            broker.node.tell_interest(key, [f"{self.name}.{one}" for one in wants])
            broker.node.when_consumed(key, done)
        except RemoteError:
            return
        self.told.add((broker.broker_id, broker.run, look.leader_epoch, len(wants)))

    async def drive(self) -> None:
        """Have consumers come, and be known to each leader."""
        rounds = 0
        while not self.is_over:
            await asyncio.sleep(0.5)
            rounds += 1
            if rounds in (10, 25):
                self.wants.append(SUBJECTS[len(self.wants)])
            for broker in list(self.cluster._brokers.values()):
                look = None if broker.node is None else inspector.partition(broker.node, self.stream_id, 0)
                if look is not None and look.is_leader:
                    place = broker.broker_id, broker.run, look.leader_epoch, len(self.wants)
                    if place not in self.told:
                        broker.event(partial(self.tell, broker, look))

    async def add_log(self) -> None:
        """A log of consumers: from then on no leader decides before it was told."""
        added: list[RemoteError | None] = []

        while None not in added:
            await asyncio.sleep(0.5)
            if (found := self.led()) is not None and (node := found[0].node) is not None:
                found[0].event(partial(node.add_consumer_log, StreamId(self.stream_id), added.append))

    async def main(self) -> None:
        await self.create()
        await self.add_log()
        subjects = [self.random.choice(SUBJECTS) for _ in range(EVENTS)]
        programs = [self.cluster.start(partial(self.publish, subjects, 1.0), f"writer-{n}") for n in range(2)]
        programs.append(self.cluster.start(self.read, "reader"))
        driver = asyncio.ensure_future(self.drive())
        for program in programs:
            await program.finished()
        self.is_over = True
        await driver
        await self.cluster.settle()
        left: set[int] = set()
        for _ in range(20):
            await asyncio.sleep(1)
            if (found := self.led()) is not None:
                found[0].event(partial(self.tell, *found))
            left = await self.left()
        kept = {one for one, subject in self.published.items() if one >= self.made.get(subject, 1 << 60)}
        assert kept <= left, f"{sorted(kept - left)} were published behind the creation of their consumers"
        assert not [one for one in left if self.published.get(one) == SUBJECTS[-1]]
        assert kept

    def check_read(self, subjects: set[str]) -> None:
        assert SUBJECTS[-1] not in subjects, "a message that nobody wants was read"


KINDS = {"workqueue": Queue, "interest": Events}


def error_of(kind: str, seed: int) -> str:
    driver = KINDS[kind](seed)
    try:
        driver.cluster.run(driver.main())
    except Exception as error:  # noqa: BLE001 (whatever the planted mistake leads to)
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seed", [pytest.param(1, marks=each_change), *(pytest.param(n, marks=needs_time) for n in (2, 3))]
)
def test_what_is_removed_stays_so_and_nothing_else_goes(kind: str, seed: int) -> None:
    driver = KINDS[kind](seed)
    driver.cluster.run(driver.main())
    assert " 0 faults" not in driver.cluster.summary()


@needs_time
@pytest.mark.parametrize(
    ("mutant", "kind"),
    list(zip((one.name for one in mutants.MUTANTS_OF_RETENTION), ("workqueue", "interest", "interest"), strict=True)),
)
def test_a_planted_mistake_is_found(mutant: str, kind: str) -> None:
    error = first_error(mutant, error_of, ((kind, seed) for seed in range(1, 4)))
    assert "AssertionError: " in error  # the reader's, or that of the end
