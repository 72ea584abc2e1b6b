"""Hostile clients of all kinds at once, and a hostile nats-server: a normal client is served, and nothing is lost.

Beside `test_socket`, `test_buffers` and `test_bad_input`, which look at each kind by itself and at what it is told.

| hostile                  | what it does                                                                           |
|--------------------------|----------------------------------------------------------------------------------------|
| half                     | frames of which a part comes, and no more; connections that say nothing                |
| garbage                  | random bytes, and the fuzzer's frames, again and again                                 |
| giant                    | lengths of 4 GB, and of the most that a broker takes, of which nothing comes           |
| slow                     | a hello byte by byte                                                                   |
| crowd                    | a thousand connections that come and go                                                |
| asking                   | requests of every kind with fields at their bounds and beyond                          |
| never reading            | answers that nobody takes                                                              |
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from penstock.base import limits
from penstock.base.ids import Offset
from penstock.messages import APIS, Api, FetchRequest, MetadataRequest
from penstock.wire import encode_head
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import extent, needs_time
from tests.fuzz.shapes import made_msgpack, maker_of
from tests.fuzz.targets import TARGETS
from tests.integration.between import Between
from tests.integration.publishers import connected_to
from tests.integration.raw_client import HELLO, RawClient, raw_client

SECONDS = extent(6, 60)
LATENCY_S_MAX = 10.0
"""Of one publish and one read, on a machine that does much else; a stall has no end."""

GROWTH_BYTES_MAX = 192 * limits.MIB
"""Buffers of requests and of answers, and a thousand connections."""

CROWD = 1_000
_APIS_LEFT_OUT = (Api.HELLO, Api.CREATE_STREAM, Api.DELETE_STREAM, Api.ALTER_STREAM, Api.SET_INTAKE, Api.TRUNCATE)
# What would make or end streams is for the fuzz target `node`; all others of brokers are refused of clients.

Hostile = Callable[[str, Random], Awaitable[None]]


@contextlib.asynccontextmanager
async def _connected(address: str) -> AsyncIterator[RawClient]:
    try:
        async with raw_client(address) as connection:
            yield connection
    except (OSError, TimeoutError, ConnectionError):
        pass  # it has been cut off, as it should be


async def half(address: str, chance: Random) -> None:
    """A part of a frame, and then nothing for a while."""
    async with _connected(address) as connection:
        whole = HELLO + encode_head(Api.METADATA, 1, 2, bytes(200), 0)
        connection.send(whole[: chance.randrange(len(whole))])
        await asyncio.sleep(chance.random())


async def garbage(address: str, chance: Random) -> None:
    """What the fuzzer makes, behind a hello or not."""
    async with _connected(address) as connection:
        connection.send((HELLO if chance.random() < 0.7 else b"") + TARGETS["frames"].make(chance))
        connection.send(chance.randbytes(chance.randrange(2_000)))
        await asyncio.wait_for(connection.reader.read(1_000), 1)


async def giant(address: str, chance: Random) -> None:
    """Lengths of which next to nothing comes."""
    async with _connected(address) as connection:
        await connection.hello()
        size = chance.choice((2**32 - 1, limits.APPEND_BYTES_MAX, limits.REQUEST_BODY_BYTES_MAX, 2**31))
        body_bytes = chance.choice((0, 10, size % 2**20))
        connection.send(struct.pack("<IHHII", size, Api.APPEND, 1, 7, body_bytes) + bytes(chance.randrange(40_000)))
        await asyncio.sleep(chance.random())


async def slow(address: str, chance: Random) -> None:
    """A hello, byte by byte."""
    async with _connected(address) as connection:
        for place in range(len(HELLO)):
            connection.send(HELLO[place : place + 1])
            await asyncio.sleep(0.05)


async def crowd(address: str, chance: Random) -> None:
    """Many connections at once, half of which say hello."""

    async def one(number: int) -> None:
        async with _connected(address) as connection:
            if number % 2:
                connection.send(HELLO)
            await asyncio.sleep(1)

    await asyncio.gather(*(one(number) for number in range(CROWD)))


async def asking(address: str, chance: Random) -> None:
    """Every kind of request, with fields at their bounds and beyond, and any raw part."""
    specs = [spec for spec in APIS.values() if spec.api not in _APIS_LEFT_OUT]
    async with _connected(address) as connection:
        await connection.hello()
        for number in range(50):
            spec = chance.choice(specs)
            body = made_msgpack(chance, maker_of(spec.request))
            raw = chance.randbytes(chance.choice((0, 0, 100, 30_000)))
            version = chance.randint(spec.version_min, spec.version_max)
            connection.send(encode_head(spec.api, version, 10 + number, body, len(raw)) + raw)
        await asyncio.wait_for(connection.reader.read(1_000_000), 1)
        await asyncio.sleep(chance.random() / 2)


async def never_reading(address: str, chance: Random) -> None:
    """Large answers, and many of them, that nobody takes."""
    async with _connected(address) as connection:
        await connection.hello()
        for number in range(limits.IN_FLIGHT_REQUESTS_MAX - 1):
            if number % 2:
                connection.ask(
                    FetchRequest(stream_id=2, offset=Offset(0), bytes_max=limits.FETCH_BYTES_MAX), 10 + number
                )
            else:
                connection.ask(MetadataRequest(), 10 + number)
        await asyncio.sleep(2)


HOSTILE: tuple[Hostile, ...] = (half, half, garbage, garbage, giant, slow, crowd, asking, asking, never_reading)


async def _again_and_again(hostile: Hostile, address: str, seed: int, stop: asyncio.Event) -> int:
    chance = Random(f"{hostile.__name__} {seed}")
    count = 0
    while not stop.is_set():
        with contextlib.suppress(
            TimeoutError, OSError, AssertionError
        ):  # the broker cut it off in the middle of a hello
            await hostile(address, chance)
        count += 1
    return count


@needs_time
async def test_hostile_clients_of_all_kinds_stall_nobody(tmp_path: Path) -> None:
    stop = asyncio.Event()
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            info = await client.create_stream("orders", "orders.>", acks="reply")
            await client.append(info, [{"subject": "orders.bulk", "value": bytes(100_000)}] * 40)
            js = connection.jetstream()
            for number in range(20):  # whatever is allocated once
                await js.publish("orders.before", b"%d" % number)
            before_bytes = broker.memory_bytes()
            address = broker.client_address
            running = [
                asyncio.create_task(_again_and_again(one, address, seed, stop)) for seed, one in enumerate(HOSTILE)
            ]
            latencies: list[float] = []
            values: list[bytes] = []
            offset, peak_bytes = 60, 0
            end_s = time.monotonic() + SECONDS
            while time.monotonic() < end_s:
                begin_s = time.monotonic()
                value = b"%d" % len(values)
                ack = await js.publish("orders.now", value, timeout=LATENCY_S_MAX)
                assert ack.seq == offset + 1
                assert (await client.get(info, offset)).value == value
                latencies.append(time.monotonic() - begin_s)
                values.append(value)
                offset += 1
                peak_bytes = max(peak_bytes, broker.memory_bytes())
            stop.set()
            counts = await asyncio.gather(*running)
            assert all(counts), dict(zip(HOSTILE, counts, strict=True))
            assert max(latencies) < LATENCY_S_MAX
            assert peak_bytes - before_bytes < GROWTH_BYTES_MAX, peak_bytes - before_bytes
            read = [message.value async for message in client.messages(info, 60)]
            assert read == values, "what was acked is there, once, in order"

            async def is_alone() -> bool:
                return (await client.status()).connections == 1

            await eventually(is_alone, "all of them are gone")
        assert broker.stop() == 0, broker.said
        assert "Traceback" not in broker.said, broker.said


class HostileRelay(Between):
    """Between a broker and its nats-server: passes all on, and now and then says something of its own to the broker."""

    def __init__(self, to_port: int, chance: Random) -> None:
        super().__init__(to_port)
        self.said = 0
        self._chance = chance

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = 20 + self._chance.randrange(60)  # lines of nats-server, before one of ours
        while line := await reader.readline():
            writer.write(line)
            whole -= 1
            if whole < 0:
                await self._say(writer)
                whole = self._chance.randrange(60)

    async def _say(self, writer: asyncio.StreamWriter) -> None:
        self.said += 1
        said = self._chance.choice(
            (
                TARGETS["nats_session"].make(self._chance)[1:],
                b"MSG orders.now 1 999999999999999999999999\r\n",
                b"MSG orders.now 1 67000000\r\nabc",
                b"HMSG orders.now 1 99 1\r\n",
                b"MSG " + b"x" * 70_000,
                b"INFO " + b"{" * 50_000 + b"\r\n",
                b"-ERR '" + b'"' * 60_000 + b"'\r\n",
                b"PONG\r\n" * 3,
                b"PING\r\n" * 10_000,
                self._chance.randbytes(1_000),
            )
        )
        for begin in range(0, len(said), 1_000):
            writer.write(said[begin : begin + 1_000])
            await writer.drain()


@needs_time
@pytest.mark.parametrize("seed", range(extent(1, 5)))
async def test_a_hostile_nats_server_takes_nothing_that_was_acked(tmp_path: Path, seed: int) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        async with HostileRelay(nats_server.port, Random(seed)) as relay:
            with running_broker(tmp_path / "data", nats=f"nats://127.0.0.1:{relay.port}") as broker:
                async with await broker.client() as client, connected_to(nats_server.url) as connection:
                    await _store_through(relay, broker, client, connection)
                assert broker.stop() == 0, broker.said
                assert "Traceback" not in broker.said, broker.said


async def _store_through(relay: HostileRelay, broker: BrokerProcess, client: object, connection: object) -> None:
    from nats.aio.client import Client as Nats

    from penstock import aio

    assert isinstance(client, aio.Client)
    assert isinstance(connection, Nats)
    info = await client.create_stream("orders", "orders.>")
    js = connection.jetstream()
    before_bytes = broker.memory_bytes()
    acked: dict[int, bytes] = {}
    end_s = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end_s or len(acked) < 20:
        assert time.monotonic() < end_s + 60, (len(acked), relay.said)
        value = b"value %d" % number
        number += 1
        try:
            ack = await js.publish("orders.now", value, timeout=1)
        except (NatsError, APIError, TimeoutError):
            continue  # no broker heard it, or its ack did not come through
        acked[ack.seq - 1] = value
        begin_s = time.monotonic()
        assert (await client.get(info, ack.seq - 1)).value == value
        assert time.monotonic() - begin_s < LATENCY_S_MAX, "who reads is served whatever NATS says"
    assert relay.said  # few: what it says seldom costs the connection now
    found = {message.offset: message.value async for message in client.messages(info)}
    assert {offset: found.get(offset) for offset in acked} == acked
    assert broker.memory_bytes() - before_bytes < GROWTH_BYTES_MAX
