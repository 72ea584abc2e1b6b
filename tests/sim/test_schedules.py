"""Schedules under faults, with clocks that step by an hour: each message is sent once, and not before its time.

| invariant                                                                      | checked                     |
|--------------------------------------------------------------------------------|-----------------------------|
| a message is at one offset                                                      | by what is read, and at the end |
| it is not before its time, by the clock of the leader that has sent it          | by what is read             |
| once all is mended and all is due, what was acked and not replaced was sent     | at the end                  |
| no schedule is left then                                                        | at the end                  |
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

import pytest

import penstock.aio
from penstock.testing import Cluster
from penstock.testing.simulation.scheduler import START_US
from tests.extent import each_change, needs_time
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import first_error

SCHEDULES = 60
SUBJECTS = 8
DELAYS_S = (-60, 0, 1, 3, 8, 20)
HOUR_US = 3_600_000_000
WAITS = 20


class Sent(NamedTuple):
    """A message that was sent: its timestamp, and the time of its schedule."""

    timestamp_us: int
    due_us: int


class Delays:
    """Programs that delay messages, and one that reads all. The value of a message is its number and its time."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed, brokers=3, faults=True, every_s=2.0, limit_s=20_000.0)
        self.random = Random(seed)
        self.last: dict[str, bytes] = {}  # the last schedule of each subject that was acked
        self.doubtful: set[str] = set()  # subjects with one that may have been stored
        self.places: dict[bytes, set[int]] = {}
        self.sent: dict[bytes, Sent] = {}
        self.count = 0

    async def delay(self) -> None:
        own = self.count = self.count + 1
        async with penstock.aio.connect(timeout=60) as client:
            for number in range(SCHEDULES):
                subject = f"jobs.s{own}-{self.random.randrange(SUBJECTS)}-{number // 20}"
                due_us = START_US + int((self.cluster.now_s + self.random.choice(DELAYS_S)) * 1_000_000)
                value = b"%d-%d %d" % (own, number, due_us)
                at = datetime.fromtimestamp(due_us / 1_000_000, UTC).isoformat()
                headers = {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": "jobs.sent"}
                is_certain = subject not in self.doubtful
                self.doubtful.add(subject)  # this program may be killed meanwhile
                with contextlib.suppress(penstock.PenstockError):
                    await client.publish(subject, value, headers=headers, timeout=5)
                    self.last[subject] = value
                    if is_certain:
                        self.doubtful.discard(subject)
                await asyncio.sleep(self.random.random())

    async def follow(self) -> None:
        async with (
            penstock.aio.connect(timeout=60) as client,
            client.consumer("jobs", "readers", follow=True, session=5.0) as consumer,
        ):
            async for message in consumer.messages():
                self.take(message)

    def take(self, message: Any) -> None:
        if message.subject == "jobs.sent":
            assert message.headers["Nats-Schedule-Next"] == "purge"
            self.places.setdefault(message.value, set()).add(message.offset)
            self.sent[message.value] = Sent(message.timestamp_us, int(message.value.split()[1]))

    async def step_clocks(self) -> None:
        while True:
            await asyncio.sleep(10 * self.random.random())
            broker = self.random.choice(list(self.cluster._brokers.values()))
            broker.clock.step(self.random.choice((-HOUR_US, HOUR_US)))

    async def main(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            options: dict[str, Any] = {"allow_rollup": True, "allow_message_schedules": True, "dedup_window_ms": None}
            await client.create_stream("jobs", "jobs.*", timeout=60, **options)
        self.cluster.start(self.follow, "reader")
        stepping = asyncio.ensure_future(self.step_clocks())
        for writer in [self.cluster.start(self.delay, f"writer-{number}") for number in range(2)]:
            await writer.finished()
        stepping.cancel()
        await self.cluster.settle()
        for broker in self.cluster._brokers.values():  # whichever way they went: all is due now
            broker.clock.step(10**6 * HOUR_US // 1_000)
        async with penstock.aio.connect(timeout=60) as client:
            for _ in range(WAITS):
                await asyncio.sleep(30)
                left = [message async for message in client.messages("jobs")]
                if all(message.subject == "jobs.sent" for message in left):
                    break
        self.check(left)

    def check(self, left: list[Any]) -> None:
        for message in left:
            self.take(message)
        assert all(len(one) == 1 for one in self.places.values()), "a message was sent twice"
        early = {value: one for value, one in self.sent.items() if one.timestamp_us < one.due_us}
        assert not early, f"sent before their time: {early}"
        lost = [
            value for subject, value in self.last.items() if subject not in self.doubtful and value not in self.sent
        ]
        assert not lost, f"{lost} were not sent"
        assert {message.subject for message in left} == {"jobs.sent"}, "a schedule is left"
        assert len(self.sent) > SCHEDULES // 2


def error_of(seed: int) -> str:
    delays = Delays(seed)
    try:
        delays.cluster.run(delays.main())
    except Exception as error:  # noqa: BLE001 (whatever the planted mistake leads to)
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=each_change), *(pytest.param(n, marks=needs_time) for n in range(3, 9))]
)
def test_each_message_is_sent_once_and_not_before_its_time(seed: int) -> None:
    delays = Delays(seed)
    delays.cluster.run(delays.main())
    assert " 0 faults" not in delays.cluster.summary()


@needs_time
@pytest.mark.parametrize("mutant", [mutant.name for mutant in mutants.MUTANTS_OF_SCHEDULES])
def test_a_planted_mistake_is_found(mutant: str) -> None:
    assert first_error(mutant, error_of, ((seed,) for seed in range(1, 7))).startswith("AssertionError: ")
