"""What all clients together make a broker hold is bounded; whoever keeps to the rules gets through."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.ids import Offset
from penstock.broker.socket_api.server import Server
from penstock.messages import Api, AppendRequest, FetchRequest, GetRequest
from penstock.vfs.real import RealVfs
from penstock.wire import encode_request
from tests.broker_process import eventually, running_nats
from tests.extent import each_change
from tests.integration.in_process import InProcess, MovedClock, broker_in_process
from tests.integration.raw_client import RawClient, raw_client, rows_message

BUFFER_BYTES = 8 * limits.MIB
LARGE_BYTES = BUFFER_BYTES * 3 // 4  # what the large ones may take of it


@asynccontextmanager
async def _small_broker(folder: Path, clock: MovedClock | None = None) -> AsyncIterator[tuple[InProcess, aio.Client]]:
    with running_nats(folder / "nats") as nats_server:
        async with broker_in_process(
            RealVfs(folder / "data"), nats_server.url, clock=clock, buffer_bytes_max=BUFFER_BYTES
        ) as broker:
            async with await aio.connect(broker.address) as client:
                yield broker, client
                assert broker.server.buffers.used <= BUFFER_BYTES


async def _until(broker: Server, used: int) -> None:
    async def is_so() -> bool:
        return broker.buffers.used == used

    try:
        await eventually(is_so, "the buffers hold as much as they should")
    except AssertionError as error:
        raise AssertionError(f"{error}: {used} bytes wanted, {broker.buffers.used} held") from None


@each_change
async def test_a_reader_of_a_memory_stream_that_takes_nothing_holds_nothing(tmp_path: Path) -> None:
    async with _small_broker(tmp_path) as (broker, client):
        values = [random.Random(number).randbytes(1_000_000) for number in range(16)]
        info = await client.create_stream("m", "m", storage="memory")
        for value in values:
            await client.append(info, [{"value": value}])
        async with raw_client(broker.address) as greedy:
            await greedy.hello()
            for number in range(2, 130):
                greedy.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), bytes_max=64 << 20), number)
            assert [message.value async for message in client.messages("m")] == values
            assert broker.server.buffers.used < 2 * limits.MIB
            for number in range(2, 10):
                frame = await greedy.frame()
                assert frame is not None
                assert frame.correlation_id == number
                assert all(value in bytes(frame.raw) for value in values[::5])
        await _until(broker.server, 0)
        assert broker.server.files.used == 0


async def _begin_append(client: RawClient, stream_id: int, raw: bytes) -> bytes:
    """Send the head and the first 100 kB of an append; returns what is still to be sent."""
    whole = encode_request(AppendRequest(stream_id=stream_id), 2, raw_bytes=len(raw)) + raw
    client.send(whole[:100_000])
    await client.writer.drain()
    return whole[100_000:]


async def test_unfinished_requests_wait_unread_for_room(tmp_path: Path) -> None:
    async with _small_broker(tmp_path) as (broker, client), AsyncExitStack() as stack:
        info = await client.create_stream("a", "a")
        raw = rows_message([random.Random(1).randbytes(2_500_000)], "a")
        senders = [await stack.enter_async_context(raw_client(broker.address)) for _ in range(20)]
        rests = []
        for sender in senders:
            await sender.hello()
            rests.append(await _begin_append(sender, info.stream_id, raw))
        fitting = LARGE_BYTES // len(raw)
        await _until(broker.server, fitting * len(raw))
        # Small requests, also such as come in pieces, are served meanwhile, and so are other appends.
        await client.append(info, [{"value": bytes(200_000)}], timeout=30)
        assert (await client.status()).connections == 21
        # One leaves, the others send the rest: all that wait get their turn.
        senders[0].writer.transport.abort()
        for sender, rest in zip(senders[1:], rests[1:], strict=True):
            sender.send(rest)
        frames = await asyncio.gather(*(sender.frame() for sender in senders[1:]))
        assert all(frame is not None and frame.api == Api.APPEND for frame in frames)
        assert (await client.offsets(info, penstock.LATEST)).offset == 20
        await _until(broker.server, 0)


async def test_whoever_waits_for_room_and_leaves_takes_none(tmp_path: Path) -> None:
    async with _small_broker(tmp_path) as (broker, client):
        info = await client.create_stream("a", "a")
        raw = rows_message([bytes(5_000_000)], "a")
        async with raw_client(broker.address) as holder, raw_client(broker.address) as heir:
            await holder.hello()
            rest = await _begin_append(holder, info.stream_id, raw)
            await _until(broker.server, len(raw))
            async with raw_client(broker.address) as waiting:
                await waiting.hello()
                await _begin_append(waiting, info.stream_id, raw)
                waiting.writer.write_eof()
                await heir.hello()
                heir_rest = await _begin_append(heir, info.stream_id, raw)
                await client.status()
            holder.send(rest)
            assert await holder.frame() is not None
            heir.send(heir_rest)
            assert await heir.frame() is not None
        await _until(broker.server, 0)


async def test_a_request_that_trickles_in_is_cut_off(tmp_path: Path) -> None:
    clock = MovedClock()
    async with _small_broker(tmp_path, clock) as (broker, client), raw_client(broker.address) as slow:
        info = await client.create_stream("a", "a")
        await slow.hello()
        raw = rows_message([bytes(2_500_000)], "a")
        rest = await _begin_append(slow, info.stream_id, raw)
        await _until(broker.server, len(raw))
        closed = asyncio.create_task(slow.is_closed())
        step_ms = limits.WRITE_STALL_MS_MAX - 5_000
        allowed_ms = limits.WRITE_STALL_MS_MAX + len(raw) * 1_000 // limits.TRANSFER_BYTES_PER_S_MIN
        steps = 0
        while not closed.done():
            steps += 1
            assert steps * step_ms < 2 * allowed_ms
            slow.send(rest[steps : steps + 1])
            clock.elapsed_us += step_ms * 1_000
            await client.status()
            await client.status()  # an event, after which the timer is set anew
            await asyncio.wait((closed,), timeout=0.05)
        assert (steps + 1) * step_ms >= allowed_ms, "not before its time"
        await _until(broker.server, 0)


@each_change
async def test_answers_beyond_the_buffers_are_refused_and_can_be_asked_again(tmp_path: Path) -> None:
    async with _small_broker(tmp_path) as (broker, client), AsyncExitStack() as stack:
        value = random.Random(1).randbytes(2_500_000)
        info = await client.create_stream("a", "a")
        await client.append(info, [{"value": value}])
        readers = [await stack.enter_async_context(_deaf_client(broker.address)) for _ in range(10)]
        for reader in readers:
            await reader.hello()
            for number in range(2, 6):
                reader.ask(GetRequest(stream_id=info.stream_id, offset=Offset(0)), number)

        async def is_refused() -> bool:
            try:
                await client.get(info, 0)
            except penstock.Overloaded:
                return True
            return False

        await eventually(is_refused, "the buffers are full of answers that nobody takes")
        assert broker.server.buffers.used <= BUFFER_BYTES
        codes = []
        for reader in readers:
            for _ in range(2, 6):
                frame = await reader.frame()
                assert frame is not None
                codes.append(msgspec.msgpack.decode(frame.body).get("error", {}).get("code"))
                assert codes[-1] is not None or value in bytes(frame.raw)
        assert set(codes) == {None, "overloaded"}
        assert (await client.get(info, 0)).value == value
        await _until(broker.server, 0)


@asynccontextmanager
async def _deaf_client(address: str) -> AsyncIterator[RawClient]:
    """Whose kernel takes as little as it can be told to before it is read from."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4_096)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_client_that_takes_an_answer_by_drops_is_cut_off(tmp_path: Path) -> None:
    clock = MovedClock()
    async with _small_broker(tmp_path, clock) as (broker, client), _deaf_client(broker.address) as slow:
        info = await client.create_stream("a", "a")
        await client.append(info, [{"value": bytes(5_900_000)}])
        await slow.hello()
        slow.ask(GetRequest(stream_id=info.stream_id, offset=Offset(0)), 2)

        async def is_held() -> bool:
            return broker.server.buffers.used > 5_900_000

        await eventually(is_held, "the answer is held in memory")

        drops = 0

        async def is_free() -> bool:
            nonlocal drops
            drops += 1
            await slow.reader.read(1_000)
            clock.elapsed_us += (limits.WRITE_STALL_MS_MAX - 5_000) * 1_000
            await client.status()
            return broker.server.buffers.used == 0

        await eventually(is_free, "it is cut off")
        assert drops < 20
        with contextlib.suppress(ConnectionError):  # which is an end as well
            while await slow.reader.read(1 << 20):
                pass
