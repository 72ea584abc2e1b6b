"""Leases of a few seconds that leave delete markers, under faults: a marker takes nothing that lives, and comes once.

| invariant                                                                             | checked           |
|---------------------------------------------------------------------------------------|-------------------|
| a marker comes behind messages of its key that are all over by its timestamp          | by what is acked  |
| between two markers of a key there is a message                                       | by what is read   |
| once all is mended and all times are over, only what lives for ever and markers are there | at the end    |
| a key whose last message has gone has a marker                                        | at the end        |
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple

import pytest

import penstock.aio
from penstock.testing import Cluster
from tests.extent import each_change, needs_time
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import first_error

KEYS = 6
LEASES = 60
TTLS_S = (2, 3, 6, 0)  # 0: for ever
MARKER_S = 36_000
WAITS = 20
S = 1_000_000


class Lease(NamedTuple):
    """What was acked, or read: a lease, or a marker (`ttl_s` None)."""

    key: str
    timestamp_us: int
    ttl_s: int | None

    def is_over(self, at_us: int) -> bool:
        return bool(self.ttl_s) and self.timestamp_us + (self.ttl_s or 0) * S <= at_us


class Leases:
    """Programs that take leases, and one that reads all."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed, brokers=3, faults=True, every_s=2.0)
        self.random = Random(seed)
        self.acked: dict[int, Lease] = {}
        self.read: dict[int, Lease] = {}
        self.doubtful: set[str] = set()  # keys with a message that may have been stored: others take their places
        self.generations = [0] * KEYS

    async def take(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            for _ in range(LEASES):
                number, ttl_s = self.random.randrange(KEYS), self.random.choice(TTLS_S)
                key = f"{number}-{self.generations[number]}"
                headers = {"Nats-TTL": str(ttl_s)} if ttl_s else {"Ever": "yes"}
                try:
                    ack = await client.publish(f"leases.{key}", b"%d" % ttl_s, headers=headers, timeout=5)
                    # Its timestamp is at most that of the message behind it, if no reader has seen it.
                    self.acked[ack.offset] = Lease(key, 0, ttl_s)
                except penstock.PenstockError:
                    self.doubtful.add(key)
                    self.generations[number] += 1
                await asyncio.sleep(self.random.random())

    async def follow(self) -> None:
        async with (
            penstock.aio.connect(timeout=60) as client,
            client.consumer("leases", "readers", follow=True, session=5.0) as consumer,
        ):
            async for message in consumer.messages():
                self.read[message.offset] = lease_of(message)

    async def main(self) -> None:
        async with penstock.aio.connect(timeout=60) as client:
            await client.create_stream(
                "leases", "leases.*", timeout=60, allow_message_ttl=True, allow_rollup=True, max_messages_per_subject=1,
                subject_delete_marker_ttl_ms=MARKER_S * 1_000, dedup_window_ms=None,
            )  # fmt: skip
        self.cluster.start(self.follow, "reader")
        for writer in [self.cluster.start(self.take, f"writer-{number}") for number in range(2)]:
            await writer.finished()
        await self.cluster.settle()
        async with penstock.aio.connect(timeout=60) as client:
            for _ in range(WAITS):  # the leader's clock may be behind that of an earlier one
                await asyncio.sleep(30)
                left = {message.offset: lease_of(message) async for message in client.messages("leases")}
                if not any(lease.ttl_s for lease in left.values()):
                    break
        self.check(left)

    def check(self, left: dict[int, Lease]) -> None:
        known = sorted((self.acked | self.read | left).items())
        for key in {lease.key for _, lease in known} - self.doubtful:
            before: list[Lease] = []
            for _, lease in [one for one in known if one[1].key == key]:
                if lease.ttl_s is not None:
                    before.append(lease)
                    continue
                assert before, f"{key}: two markers without a message between them"
                # With one message by key, the last one is what the marker has replaced.
                assert all(one.is_over(lease.timestamp_us) for one in before[-1:]), f"{key}: a marker took {before}"
                before = []
            here = [lease for lease in left.values() if lease.key == key]
            assert len(here) == 1, f"{key}: {here} are left"
            assert not here[0].ttl_s, f"{key}: {here} is over"
            if before:
                assert here[0].ttl_s == 0, f"{key}: {before} has gone without a marker"
        assert any(lease.ttl_s is None for _, lease in known), "there was no marker"


def lease_of(message: Any) -> Lease:
    is_marker = "Nats-Marker-Reason" in (message.headers or {})
    return Lease(message.subject.partition(".")[2], message.timestamp_us, None if is_marker else int(message.value))


def error_of(seed: int) -> str:
    leases = Leases(seed)
    try:
        leases.cluster.run(leases.main())
    except Exception as error:  # noqa: BLE001 (whatever the planted mistake leads to)
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=each_change), *(pytest.param(n, marks=needs_time) for n in range(3, 9))]
)
def test_a_marker_takes_nothing_that_lives_and_comes_once(seed: int) -> None:
    leases = Leases(seed)
    leases.cluster.run(leases.main())
    assert " 0 faults" not in leases.cluster.summary()


@needs_time
@pytest.mark.parametrize("mutant", [mutant.name for mutant in mutants.MUTANTS_OF_EXPIRY])
def test_a_planted_mistake_is_found(mutant: str) -> None:
    assert first_error(mutant, error_of, ((seed,) for seed in range(1, 4))).startswith("AssertionError: ")
