"""SIGTERM: quick, clean, and whoever was acked finds his message."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base.ids import Offset
from penstock.messages import FetchRequest
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.publishers import check_nothing_acked_is_lost, publishers
from tests.integration.raw_client import raw_client

STOP_S = 30.0


async def _stop(broker: BrokerProcess) -> None:
    started_s = time.monotonic()
    code = await asyncio.to_thread(broker.stop, STOP_S)
    assert code == 0, broker.said
    assert time.monotonic() - started_s < STOP_S
    assert "Traceback" not in broker.said, broker.said


@needs_time
async def test_a_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with publishers(nats_server.url, "stopped", 3, window=300, padding=b"z" * 300) as senders:
                async with await broker.client() as client:
                    await client.create_stream("stopped", "stopped.*")
                for number in range(4):
                    acked = sum(sender.acked_count for sender in senders)
                    stop = asyncio.Event()
                    tasks = [asyncio.create_task(sender.publish_until(stop)) for sender in senders]

                    async def is_busy(acked: int = acked) -> bool:
                        return sum(sender.acked_count for sender in senders) > acked + 1_000

                    await eventually(is_busy, "messages are acked")
                    await _stop(broker)
                    stop.set()
                    for sender in senders:
                        sender.forget_unacked()
                    await asyncio.gather(*tasks)
                    broker.listen = broker.client_address
                    broker.start()
                    async with await broker.client() as client:
                        await check_nothing_acked_is_lost(client, "stopped", senders)
                        gaps = (await client.status()).nats.gaps
                    assert gaps[-1].reason == "the broker was stopped", number


async def _append_for_ever(client: aio.Client, done: list[int]) -> None:
    rows = [{"value": b"x" * 1_000}] * 10
    while True:
        (result,) = await client.append("socket", rows, timeout=1.0)
        done.append(result.base_offset)


@needs_time
async def test_a_stop_while_clients_append_read_and_wait(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        clients = [await broker.client() for _ in range(8)]
        try:
            info = await clients[0].create_stream("socket", "socket")
            done: list[int] = []
            tasks = [asyncio.create_task(_append_for_ever(client, done)) for client in clients for _ in range(4)]
            follower = clients[0].read(info, follow=True, timeout=0.3)
            waiting = clients[1].read(info, penstock.LATEST, follow=True, timeout=0.3)
            assert (await anext(follower)).num_rows
            assert (await anext(waiting)).num_rows

            async def is_busy() -> bool:
                return len(done) > 200

            await eventually(is_busy, "appends are under way")
            await _stop(broker)
            outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
            kinds = {type(outcome) for outcome in outcomes}
            assert kinds <= {penstock.Unavailable, penstock.OutcomeUnknown, penstock.TimedOut}, outcomes
            # A reader that follows the log hears a clear end when the broker stays away.
            with pytest.raises((penstock.Unavailable, penstock.TimedOut)):
                await asyncio.wait_for(_read_on(follower), 20)
            broker.listen = broker.client_address
            broker.start()
            async with await broker.client() as client:
                offsets = (await client.to_table("socket", columns=["offset"])).column("offset").to_pylist()
            assert offsets == list(range(len(offsets)))
            assert all(base_offset + 10 <= len(offsets) for base_offset in done)
        finally:
            for client in clients:
                await client.close()


async def _read_on(source: AsyncIterator[pa.RecordBatch]) -> None:
    async for _ in source:
        pass


@needs_time
async def test_a_reader_goes_on_when_the_broker_is_back(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("on", "on")
                reader = client.messages("on", follow=True)
                for number in range(5):
                    await client.publish("on", b"%d" % number)
                assert [(await anext(reader)).value for _ in range(5)] == [b"%d" % number for number in range(5)]
                next_one = asyncio.ensure_future(anext(reader))
                await _stop(broker)
                broker.listen = broker.client_address
                broker.start()
                await eventually(lambda: _publish(client), "the broker takes messages again")
                assert (await asyncio.wait_for(next_one, 20)).offset == 5
                broker.restart()
                again = asyncio.ensure_future(anext(reader))
                await eventually(lambda: _publish(client), "the broker takes messages again")
                assert (await asyncio.wait_for(again, 20)).offset == 6
                await reader.aclose()


async def _publish(client: aio.Client) -> penstock.PubAck | None:
    try:
        return await client.publish("on", b"after", timeout=2.0)
    except (penstock.StreamNotFound, penstock.TimedOut):
        return None


@needs_time
async def test_clients_that_take_nothing_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client, raw_client(broker.client_address) as greedy:
            info = await client.create_stream("held", "held")
            await client.append(info, [{"value": bytes(1_000_000)}] * 30)
            await greedy.hello()
            for number in range(20):
                greedy.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), bytes_max=30_000_000), 10 + number)
            for number in range(20):
                request = FetchRequest(stream_id=info.stream_id, offset=Offset(30), wait_ms_max=60_000)
                greedy.ask(request, 50 + number)
            await client.status()
            await _stop(broker)


@needs_time
async def test_a_nats_server_that_hangs_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("hung", "hung")
                await client.publish("hung", b"stored")
                nats_server.signal(signal.SIGSTOP)
                await client.append("hung", [{"value": b"needs no NATS"}])
            await _stop(broker)
            nats_server.signal(signal.SIGCONT)
            broker.start()
            async with await broker.client() as client:
                assert [message.value async for message in client.messages("hung")] == [b"stored", b"needs no NATS"]


@each_change
async def test_a_second_signal_and_ctrl_c(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        broker.signal(signal.SIGINT)
        broker.logged("stopping")
        if broker.is_running:
            broker.signal(signal.SIGTERM)
        assert broker.wait(STOP_S) == 0
        assert "Traceback" not in broker.said


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = str(tmp_path / "notify")
        manager.bind(path)
        manager.settimeout(20)
        with running_broker(tmp_path / "data", environment={"NOTIFY_SOCKET": path}) as broker:
            said = manager.recv(4096).decode()
            assert said.splitlines()[0] == "READY=1"
            assert broker.client_address in said
            broker.signal(signal.SIGTERM)
            assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
            assert broker.wait(STOP_S) == 0
