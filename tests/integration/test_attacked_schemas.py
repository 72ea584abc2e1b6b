"""The registry and checked streams while their leaders are killed and stopped: numbers, texts and checks stay true."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import nats.errors
from nats.aio.client import Client as Nats

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.broker_process import DEADLINE_S, eventually
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.publishers import connected_to
from tests.integration.test_jetstream_push import bridge

STOPPED_S = 2 * limits.SESSION_MS / 1_000
CHANGE_S = 15.0
EVERY_S = 0.3
PATTERNS = ("orders.a.>", "orders.b.>")
NEVER_STORED = {ErrorCode.INCOMPATIBLE_SCHEMA, ErrorCode.INVALID_SCHEMA, ErrorCode.NOT_LEADER}
FITS, MISFITS = b'{"id": %d}', b'{"id": "no %d"}'


def schema(*more: str, kind: str = "integer") -> penstock.Schema:
    fields = "".join(f',"{name}":{{"type":"integer"}}' for name in more)
    text = f'{{"type":"object","properties":{{"id":{{"type":"{kind}"}}{fields}}},"required":["id"]}}'
    return penstock.Schema(penstock.SchemaKind.JSON_SCHEMA, text)


@dataclass
class Registrar:
    """Registers schemas of its own for one pattern, one after the other; some are not compatible."""

    name: str
    pattern: str
    acked: dict[int, str] = field(default_factory=dict)  # version → text
    sent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)

    async def run(self, client: aio.Client, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set() and len(self.acked) < limits.SCHEMA_VERSIONS_PER_SUBJECT_MAX // 2 - 1:
            number += 1
            kind = "string" if number % 3 == 0 else "integer"
            one = schema(f"{self.name}{number}", kind=kind)
            self.sent.add(one.text)
            try:
                found = await client.register_schema("orders", one, subject=self.pattern, timeout=CHANGE_S)
            except PenstockError as error:
                code = getattr(error, "code", type(error).__name__)
                self.errors[code] += 1
                if code in NEVER_STORED:
                    self.refused.add(one.text)
            else:
                assert found.schema.text == one.text
                assert self.acked.setdefault(found.number, one.text) == one.text
            await asyncio.sleep(EVERY_S)


class Publisher:
    """Publishes values that fit and values that do not, one after the other, without retries."""

    def __init__(self, connection: Nats, subject: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrongly_refused: list[bytes] = []
        self.stored: dict[bytes, bool] = {}  # acked value → fits
        self._connection = connection
        self._subject = subject

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            fits = number % 2 == 0
            value = (FITS if fits else MISFITS) % number
            try:
                answer = (await self._connection.request(self._subject, value, timeout=2.0)).data
            except nats.errors.Error as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.02)
                continue
            if b'"offset":' in answer:
                self.stored[value] = fits
                self.outcomes["fits" if fits else "misfits"] += 1
            elif b"does not fit" in answer:
                self.outcomes["refused"] += 1
                if fits:
                    self.wrongly_refused.append(value)
            else:
                self.outcomes[answer.decode()[:200]] += 1
                await asyncio.sleep(0.02)


async def has_versions(cluster: ClusterProcesses, wanted: dict[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """Wait until every broker, asked by itself, lists these versions; all have to list the same."""
    listed: list[dict[tuple[str, int], str]] = []

    async def look() -> bool:
        listed.clear()
        for number in cluster.brokers:
            try:
                async with cluster.client(number) as client:
                    found = await client.schemas("orders", timeout=5.0)
            except PenstockError:
                return False
            listed.append({(one.typed.subject, one.number): one.schema.text for one in found.versions})
        return all(one.items() >= wanted.items() for one in listed)

    await eventually(look, "every broker lists the acked versions")
    assert all(one == listed[0] for one in listed)
    return listed[0]


async def misfits_are_refused(connection: Nats, subject: str) -> None:
    async def look() -> bool:
        try:
            answer = await connection.request(subject, b'{"id": "no"}', timeout=2.0)
        except nats.errors.Error:
            return False
        return b"does not fit" in answer.data

    await eventually(look, "a value that does not fit is refused")


def check(registrars: list[Registrar], listed: dict[tuple[str, int], str]) -> None:
    """Check that acks, refusals and the list agree, and that numbers have no gap."""
    for pattern in PATTERNS:
        own = [one for one in registrars if one.pattern == pattern]
        numbers = {number: text for (subject, number), text in listed.items() if subject == pattern}
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        assert len(set(numbers.values())) == len(numbers)
        assert set(numbers.values()) <= {schema().text}.union(*(one.sent for one in own))
        assert not set(numbers.values()) & set().union(*(one.refused for one in own))
        assert all('"id":{"type":"integer"}' in text for text in numbers.values())
        for one in own:
            assert one.acked.items() <= numbers.items()
        acked = [number for one in own for number in one.acked]
        assert len(set(acked)) == len(acked)


async def kill_leader(cluster: ClusterProcesses, stream: str) -> None:
    leader = await leader_of(cluster, stream)
    cluster.brokers[leader].kill()
    await moved(cluster, stream, leader)
    cluster.brokers[leader].start()


async def stop_leader(cluster: ClusterProcesses, stream: str) -> None:
    """SIGSTOP until another broker leads, and a while longer; then it wakes up deposed."""
    leader = await leader_of(cluster, stream)
    cluster.brokers[leader].signal(signal.SIGSTOP)
    try:
        await moved(cluster, stream, leader)
        await asyncio.sleep(STOPPED_S)
    finally:
        cluster.brokers[leader].signal(signal.SIGCONT)


async def leader_of(cluster: ClusterProcesses, stream: str) -> int:
    async def look() -> int | None:
        for number in cluster.brokers:
            part = await cluster.partition(stream, number)
            if part is not None and part.leader_id is not None and len(part.isr) == len(cluster.brokers):
                return int(part.leader_id)
        return None

    return await eventually(look, f"{stream} has a leader, and all are in sync")


async def moved(cluster: ClusterProcesses, stream: str, before: int) -> None:
    async def look() -> bool:
        for number in cluster.brokers.keys() - {before}:
            part = await cluster.partition(stream, number)
            if part is not None and part.leader_id not in (None, before):
                return True
        return False

    await eventually(look, f"another broker than {before} leads {stream}")


@each_change
async def test_what_jetstream_delivers_and_does_not_fit_is_not_acked_until_its_stream_takes_it(tmp_path: Path) -> None:
    async with bridge(tmp_path) as there:
        await there.client.create_stream("copy", "copy", schema_check="refuse")
        await there.client.register_schema("copy", schema(), subject="source.>", force=True)
        await there.client.register_schema("copy", schema())
        await misfits_are_refused(there.js._nc, "copy")
        probes = len(await there.values())  # until the schema counted
        for value in (FITS % 1, MISFITS % 2, FITS % 3):
            await there.js.publish("source.a", value)
        await there.push(ack_wait_s=0.2)

        async def is_delivered_again() -> bool:
            info = await there.js.consumer_info("SOURCE", "bridge")
            return bool(info.num_redelivered) and info.num_ack_pending == 1

        await eventually(is_delivered_again, "the value that does not fit is delivered again, and the others are acked")
        assert (await there.values())[probes:] == [FITS % 1, FITS % 3]
        await there.client.alter_stream("copy", schema_check="count")
        await there.until_acked(3)
        assert set((await there.values())[probes:]) == {FITS % 1, MISFITS % 2, FITS % 3}


@needs_time
async def test_numbers_texts_and_checks_stay_true_while_leaders_are_killed_and_stopped(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        stop = asyncio.Event()
        async with (
            cluster.client(1) as first,
            cluster.client(2) as second,
            connected_to(cluster.nats.url) as connection,
        ):
            await first.create_stream("orders", "orders.>", replicas=3, schema_check="refuse")
            for pattern in PATTERNS:
                await first.register_schema("orders", schema(), subject=pattern)
            for pattern in PATTERNS:
                await misfits_are_refused(connection, pattern.replace(">", "x"))
            registrars = [
                Registrar(f"{where}{number}", pattern)
                for where, pattern in zip("ab", PATTERNS, strict=True)
                for number in range(2)
            ]
            publishers = [Publisher(connection, pattern.replace(">", str(n))) for n, pattern in enumerate(PATTERNS)]
            clients = (first, second)
            tasks = [
                *(asyncio.create_task(one.run(clients[n % 2], stop)) for n, one in enumerate(registrars)),
                *(asyncio.create_task(one.run(stop)) for one in publishers),
            ]
            try:
                for act, stream in (
                    (stop_leader, SCHEMAS_STREAM),
                    (kill_leader, SCHEMAS_STREAM),
                    (kill_leader, "orders"),
                    (stop_leader, "orders"),
                ):
                    await act(cluster, stream)
            finally:
                stop.set()
                await asyncio.wait(tasks, timeout=DEADLINE_S)
            await asyncio.gather(*tasks)
            print(*(one.errors for one in registrars), *(one.outcomes for one in publishers))
            acked = {(one.pattern, number): text for one in registrars for number, text in one.acked.items()}
            check(registrars, await has_versions(cluster, acked))
            assert all(len(one.acked) > 3 for one in registrars)
            for one in publishers:
                assert not one.wrongly_refused
                assert all(one.stored.values()), one.outcomes
                assert one.outcomes["fits"]
                assert one.outcomes["refused"]
            kept = [message.value async for message in first.messages("orders")]
            assert not [value for value in kept if b'"id": "no ' in (value or b"")]
            assert {value for one in publishers for value in one.stored} <= set(kept)
