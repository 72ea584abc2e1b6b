"""The broker's socket in bad company: garbage, silence, greed. The others are served as if nothing were."""

from __future__ import annotations

import asyncio
import random
import struct

import msgspec
import pytest

from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, StreamId
from penstock.messages import APIS, Api, ErrorBody, FetchRequest, MetadataRequest, StatusRequest
from penstock.wire import Frame, encode_head, encode_request
from tests.broker_process import BrokerProcess, eventually
from tests.extent import each_change, needs_time
from tests.integration.raw_client import HELLO, RawClient, raw_client


class _ErrorAnswer(msgspec.Struct):
    error: ErrorBody | None = None


def _error(frame: Frame | None) -> ErrorBody:
    assert frame is not None
    answer = msgspec.msgpack.decode(frame.body, type=_ErrorAnswer)
    assert answer.error is not None, frame
    return answer.error


def _frame(frame_bytes: int, api: int, version: int, correlation_id: int, body_bytes: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IHHII", frame_bytes, api, version, correlation_id, body_bytes) + rest


_TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
_WRONG_TYPES = msgspec.msgpack.encode({"client_name": 3})

BEFORE_HELLO = {
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", ErrorCode.TOO_LARGE),
    "tls": (_TLS_HELLO, ErrorCode.TOO_LARGE),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", ErrorCode.TOO_LARGE),
    "zeros": (bytes(64), ErrorCode.BAD_FRAME),
    "shorter than its head": (_frame(11, 1, 1, 1, 0), ErrorCode.BAD_FRAME),
    "over the limit before hello": (_frame(limits.HELLO_BYTES_MAX + 1, 1, 1, 1, 10), ErrorCode.TOO_LARGE),
    "the largest length": (b"\xff" * 16, ErrorCode.TOO_LARGE),
    "a body beyond its frame": (_frame(20, 1, 1, 1, 2**32 - 1, bytes(8)), ErrorCode.BAD_FRAME),
    "no hello": (encode_request(MetadataRequest(), 7), ErrorCode.BAD_REQUEST),
    "a hello that is no message": (encode_head(Api.HELLO, 1, 7, b"\xc1\xc1\xc1", 0), ErrorCode.BAD_REQUEST),
    "a hello of wrong types": (
        encode_head(Api.HELLO, 1, 7, msgspec.msgpack.encode({"client_name": 3}), 0),
        "bad_request",
    ),
    "a hello of another version": (encode_head(Api.HELLO, 9, 7, HELLO[16:], 0), ErrorCode.UNSUPPORTED_VERSION),
}

AFTER_HELLO = {
    "over the limit": (_frame(2**31, 2, 1, 7, 10), ErrorCode.TOO_LARGE),
    "a body over the limit": (_frame(2**21 + 12, 2, 1, 7, 2**21), ErrorCode.TOO_LARGE),
    "http": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.TOO_LARGE),
    "a body beyond its frame": (_frame(12, 2, 1, 7, 1), ErrorCode.BAD_FRAME),
}


@each_change
@pytest.mark.parametrize("what", BEFORE_HELLO)
async def test_a_stranger_is_told_what_is_wrong_and_closed(
    broker: BrokerProcess, client: aio.Client, what: str
) -> None:
    sent, code = BEFORE_HELLO[what]
    async with raw_client(broker.client_address) as stranger:
        stranger.send(sent)
        assert _error(await stranger.frame()).code == code
        assert await stranger.is_closed()
    assert (await client.status()).connections >= 1


@pytest.mark.parametrize("what", AFTER_HELLO)
async def test_a_broken_frame_ends_only_its_own_connection(
    broker: BrokerProcess, client: aio.Client, what: str
) -> None:
    sent, code = AFTER_HELLO[what]
    async with raw_client(broker.client_address) as stranger:
        await stranger.hello()
        stranger.ask(StatusRequest(), 5)
        stranger.send(sent)
        answer = await stranger.frame()
        assert answer is not None
        assert answer.correlation_id in (0, 5)
        error = answer if answer.correlation_id == 0 else await stranger.frame()
        assert _error(error).code == code
        assert await stranger.is_closed()
    assert (await client.status()).connections >= 1


async def test_random_bytes_and_cut_frames_do_no_harm(broker: BrokerProcess, client: aio.Client) -> None:
    rng = random.Random(20_260_102)
    whole = encode_request(MetadataRequest(), 9)
    for number in range(300):
        async with raw_client(broker.client_address) as stranger:
            if number % 3 == 0:
                stranger.send(rng.randbytes(rng.randrange(1, 2_000)))
            else:
                stranger.send(HELLO if number % 3 == 1 else b"")
                damaged = bytearray(whole)
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                stranger.send(bytes(damaged[: rng.randrange(len(damaged) + 1)]))
            await stranger.writer.drain()
    status = await eventually(lambda: _only_ours(client), "the strangers are gone")
    assert status
    assert broker.open_files() < 60


async def _only_ours(client: aio.Client) -> bool:
    return (await client.status()).connections == 1


async def test_requests_that_cannot_be_read_do_not_end_the_connection(broker: BrokerProcess) -> None:
    async with raw_client(broker.client_address) as stranger:
        await stranger.hello()
        stranger.send(encode_head(999, 1, 2, b"\x80", 0))
        stranger.send(encode_head(Api.FETCH, 77, 3, b"\x80", 0))
        stranger.send(encode_head(Api.FETCH, 1, 4, b"\x80", 0))
        stranger.send(encode_head(Api.FETCH, 1, 5, msgspec.msgpack.encode({"stream_id": 1, "offset": -1}), 0))
        stranger.ask(FetchRequest(stream_id=StreamId(10**9), offset=Offset(0)), 6)
        stranger.ask(StatusRequest(), 7)
        errors = {}
        for _ in range(5):
            frame = await stranger.frame()
            assert frame is not None
            errors[frame.correlation_id] = _error(frame)
        assert {number: error.code for number, error in errors.items()} == {
            2: "unsupported_version",
            3: "unsupported_version",
            4: "bad_request",
            5: "bad_request",
            6: "stream_not_found",
        }
        assert errors[3].details["version_max"] == APIS[Api.FETCH].version_max
        assert "offset" in errors[5].message
        last = await stranger.frame()
        assert last is not None
        assert last.correlation_id == 7


async def test_a_correlation_id_that_is_in_use_ends_the_connection(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("reuse", "reuse")
    async with raw_client(broker.client_address) as stranger:
        await stranger.hello()
        stranger.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), wait_ms_max=30_000), 3)
        stranger.ask(StatusRequest(), 3)
        error = _error(await stranger.frame())
        assert error.code == "bad_frame"
        assert "correlation id 3 is in use" in error.message
        assert await stranger.is_closed()
    async with raw_client(broker.client_address) as stranger:  # once it is answered, it can be used again
        await stranger.hello()
        for _ in range(3):
            stranger.ask(StatusRequest(), 3)
            frame = await stranger.frame()
            assert frame is not None
            assert frame.correlation_id == 3


async def test_a_long_poll_holds_nothing_up(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("poll", "poll")
    async with raw_client(broker.client_address) as one:
        await one.hello()
        for number in range(2, 12):
            one.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), wait_ms_max=60_000), number)
        for number in range(100, 300):
            one.ask(StatusRequest(), number)
        answered = []
        for _ in range(200):
            frame = await one.frame()
            assert frame is not None
            answered.append(frame.correlation_id)
        assert sorted(answered) == list(range(100, 300))
        ack = await client.publish("poll", b"wakes them")
        assert ack is not None
        woken = []
        for _ in range(10):
            frame = await one.frame()
            assert frame is not None
            assert frame.api == Api.FETCH
            assert b"wakes them" in bytes(frame.raw)
            woken.append(frame.correlation_id)
        assert woken == list(range(2, 12))  # first come, first served


@each_change
async def test_thousands_of_bad_requests_behind_a_full_connection(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("behind", "behind")
    polls = limits.IN_FLIGHT_REQUESTS_MAX
    async with raw_client(broker.client_address) as greedy, raw_client(broker.client_address) as modest:
        await greedy.hello()
        await modest.hello()
        for number in range(polls):
            greedy.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), wait_ms_max=60_000), 1_000 + number)
        for number in range(20_000):
            greedy.send(encode_head(999, 1, 10_000 + number, b"\x80", 0))
        modest.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), wait_ms_max=60_000), 5)

        async def is_full() -> bool:
            return (await client.status()).requests_in_flight >= polls + 1

        await eventually(is_full, "all long polls are parked")
        assert await client.publish("behind", b"go") is not None
        frame = await modest.frame()
        assert frame is not None
        assert frame.correlation_id == 5
        answered = set()
        for _ in range(polls + 20_000):
            frame = await greedy.frame()
            assert frame is not None
            answered.add(frame.correlation_id)
        assert answered == {*range(1_000, 1_000 + polls), *range(10_000, 30_000)}


@each_change
async def test_two_hundred_connections_at_once(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("crowd", "crowd")
    for number in range(10):
        await client.publish("crowd", b"%d" % number)

    async def one(number: int) -> None:
        async with await broker.client(f"client {number}") as own:
            values = [message.value async for message in own.messages(info)]
            assert values == [b"%d" % value for value in range(10)]
            arrived.append(number)
            if len(arrived) == 200:
                all_there.set()
            await asyncio.wait_for(seen.wait(), 20)

    arrived: list[int] = []
    all_there, seen = asyncio.Event(), asyncio.Event()
    crowd = asyncio.gather(*map(one, range(200)))
    await asyncio.wait_for(all_there.wait(), 20)
    assert (await client.status()).connections == 201
    seen.set()
    await crowd
    await eventually(lambda: _only_ours(client), "all of them are gone")


async def _fill(client: aio.Client, name: str, size_bytes: int) -> StreamId:
    info = await client.create_stream(name, name)
    rows = [{"value": bytes(1_000_000)}] * 8
    for _ in range(size_bytes // 8_000_000):
        await client.append(info, rows)
    return info.stream_id


@needs_time
async def test_a_client_that_asks_for_gigabytes_and_reads_nothing_costs_no_memory(
    broker: BrokerProcess, client: aio.Client
) -> None:
    stream_id = await _fill(client, "greed", 64_000_000)
    before_bytes = broker.memory_bytes()
    async with raw_client(broker.client_address) as one, raw_client(broker.client_address) as other:
        for greedy in (one, other):
            await greedy.hello()
            for number in range(64):  # 64 × 64 MB = 4 GB for each of them
                greedy.ask(FetchRequest(stream_id=stream_id, offset=Offset(0), bytes_max=64_000_000), 10 + number)
        rows = 0
        async for batch in client.read("greed"):  # another client reads it all, undisturbed
            rows += batch.num_rows
        assert rows == 64
        assert (await client.publish("greed", b"and so do writers")) is not None
        assert broker.memory_bytes() < before_bytes + (32 << 20)
        assert await _bytes_of(one, 40) > 2_000_000_000  # when it reads at last, it gets all that it asked for


async def _bytes_of(greedy: RawClient, frames: int) -> int:
    total = 0
    for number in range(frames):
        frame = await greedy.frame()
        assert frame is not None
        assert frame.correlation_id == 10 + number
        total += len(frame.raw)
    return total


@needs_time
async def test_a_client_that_asks_often_and_reads_nothing_does_not_take_all_files(
    broker: BrokerProcess, client: aio.Client
) -> None:
    info = await client.create_stream("files", "files")
    await client.append(info, [{"value": bytes(5_000)}])
    async with raw_client(broker.client_address) as greedy:
        await greedy.hello()
        for number in range(30_000):
            greedy.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0)), 10 + number)
        await client.status()
        for _ in range(20):
            assert (await client.get(info, 0)).value == bytes(5_000)
            assert broker.open_files() < 400
        answered = set()
        for _ in range(30_000):
            frame = await greedy.frame()
            assert frame is not None
            answered.add(frame.correlation_id)
            assert len(frame.raw) > 5_000
        assert answered == set(range(10, 30_010))  # in any order
