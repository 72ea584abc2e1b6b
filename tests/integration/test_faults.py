"""One socket or one file fails: that connection is closed, and everybody else is served as before."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.ids import Offset
from penstock.broker.driver import wall_clock
from penstock.messages import AppendRequest, CreateStreamRequest, FetchRequest
from penstock.node.step import Step
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.real import RealVfs
from penstock.wire import encode_request
from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.in_process import MovedClock, broker_in_process
from tests.integration.publishers import connected_to
from tests.integration.raw_client import RawClient, raw_client, rows_message

CHILD = str(Path(__file__).parent / "child")
END_S = 30.0  # after SIGTERM, whatever hangs

FAULTS = {
    "sendfile finds a bad sector": ("sendfile", errno.EIO),
    "sendfile finds no memory": ("sendfile", errno.ENOBUFS),
    "sendfile finds no way": ("sendfile", errno.EHOSTUNREACH),
    "send finds no network": ("send", errno.ENETUNREACH),
    "send finds no memory": ("send", errno.ENOMEM),
}


def _port(client: RawClient) -> int:
    return int(client.writer.get_extra_info("sockname")[1])


async def _everybody_else_is_served(client: aio.Client, nats_url: str) -> None:
    await client.append("b", [{"value": b"z"}], timeout=30)
    await client.create_stream("d", "d", timeout=30)
    await client.delete_stream("d", timeout=30)
    async with connected_to(nats_url) as connection:
        assert (await connection.jetstream().publish("b", b"from NATS", timeout=30)).stream == "b"
    assert (await client.status()).partitions_by_state == {"online": 3}


async def _pipeline(victim: RawClient, a: int, b: int) -> None:
    """A fetch, an append and a create in one write: decided in one turn, carried out in one step."""
    raw = rows_message([b"y"], "b")
    victim.send(
        encode_request(FetchRequest(stream_id=a, offset=Offset(0)), 2)
        + encode_request(AppendRequest(stream_id=b), 3, raw_bytes=len(raw))
        + raw
        + encode_request(CreateStreamRequest(config=StreamConfig(name="c", subject="c")), 4)
    )


@needs_time
@pytest.mark.parametrize("what", FAULTS)
async def test_an_answer_that_cannot_be_sent_ends_only_its_connection(tmp_path: Path, what: str) -> None:
    call, number = FAULTS[what]
    fails = tmp_path / "fails"
    environment = {"PYTHONPATH": CHILD, "TEST_SEND_FAILS": str(fails), "TEST_ONE_TURN": "1"}
    with running_broker(tmp_path / "data", environment=environment) as broker:
        async with await broker.client() as client, raw_client(broker.client_address) as victim:
            a, b = await client.create_stream("a", "a"), await client.create_stream("b", "b")
            await client.append(a, [{"value": b"x" * 1_000}])
            await victim.hello()
            fails.write_text(f"{call} {number} {_port(victim)}")
            await _pipeline(victim, a.stream_id, b.stream_id)
            assert await victim.is_closed()
            await eventually(lambda: _has(client, "c"), "the create of the victim is carried out")
            await _everybody_else_is_served(client, broker.nats_url)
        if number == errno.EIO:
            broker.logged(r"closing .*: cannot read streams/.*\.arrows: Input/output error")
        assert broker.stop() == 0, broker.said
        assert "Traceback" not in broker.said, broker.said


async def _has(client: aio.Client, name: str) -> bool:
    try:
        await client.stream(name)
    except penstock.StreamNotFound:
        return False
    return True


@each_change
async def test_a_cold_page_that_cannot_be_read_ends_only_its_connection(tmp_path: Path) -> None:
    cold, fails = tmp_path / "cold", tmp_path / "fails"
    environment = {"PYTHONPATH": CHILD, "TEST_COLD": str(cold), "TEST_READ_FAILS": str(fails), "TEST_ONE_TURN": "1"}
    with running_broker(tmp_path / "data", environment=environment) as broker:
        async with await broker.client() as client, raw_client(broker.client_address) as victim:
            a, b = await client.create_stream("a", "a"), await client.create_stream("b", "b")
            await client.append(a, [{"value": b"x" * 1_000}])
            await victim.hello()
            cold.touch()
            fails.touch()
            await _pipeline(victim, a.stream_id, b.stream_id)
            assert await victim.is_closed()
            await eventually(lambda: _has(client, "c"), "the create of the victim is carried out")
            fails.unlink()
            assert [message.value async for message in client.messages("a")] == [b"x" * 1_000]
            await _everybody_else_is_served(client, broker.nats_url)
        broker.logged(r"closing .*: cannot read streams/.*\.arrows: .*Input/output error")
        assert broker.stop() == 0, broker.said
        assert "Traceback" not in broker.said, broker.said


@each_change
async def test_a_segment_that_is_too_short_becomes_damage_that_is_told(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("a", "a")
            for _ in range(3):
                await client.append("a", [{"value": b"x" * 10_000}])
            (segment,) = (tmp_path / "data").glob("streams/*/0/*.arrows")
            os.truncate(segment, segment.stat().st_size - 15_000)
            with pytest.raises(penstock.CorruptRange) as raised:
                _ = [message async for message in client.messages("a", timeout=30)]
            assert raised.value.details["file"].endswith(segment.name)
            (partition,) = (await client.stream("a")).partitions
            assert partition.state == "read_only"
            assert partition.damage


async def test_a_segment_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    vfs = FaultyVfs(RealVfs(tmp_path / "data"))

    def no_reading(operation: FileOperation) -> FileFault | None:
        is_segment = operation.kind is FileOperationKind.OPEN and operation.path.endswith(".arrows")
        return FileFault(errno.EMFILE) if is_segment else None

    with running_nats(tmp_path / "nats") as nats_server:
        async with broker_in_process(vfs, nats_server.url) as broker, await aio.connect(broker.address) as client:
            await client.create_stream("a", "a")
            await client.append("a", [{"value": b"x"}])
            vfs.plan = no_reading
            with pytest.raises(penstock.StorageFailed):
                _ = [message async for message in client.messages("a", timeout=1)]
            assert broker.server.files.used == 0
            vfs.plan = lambda _: None
            assert [message.value async for message in client.messages("a")] == [b"x"]


async def test_a_step_that_says_why_nothing_can_go_on_ends_the_broker(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    vfs = RealVfs(tmp_path / "data")
    with running_nats(tmp_path / "nats") as nats_server:
        async with broker_in_process(vfs, nats_server.url, failed=failures.append) as broker:
            broker.driver.do(Step(failure="the metadata is gone"))
    assert [(type(one), str(one)) for one in failures] == [(OperationalError, "the metadata is gone")]


@each_change
async def test_idle_clients_leave_the_logs_their_files(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    with running_broker(tmp_path / "data", before_exec=few_files) as broker:
        async with await broker.client() as client:
            info = await client.create_stream("a", "a", segment_bytes=4_096)
            host, _, port = broker.client_address.rpartition(":")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(140)]
            try:
                # Those over the limit are told so as soon as others come; the last of them may yet say that they are
                # brokers. The others hear nothing.
                told = [await reader.read(1) for reader, _ in idle[64:-8]]
                assert all(told)
                assert (await client.status()).connections == 64 + 8
                for _ in range(5):
                    await client.append(info, [{"value": b"x" * 3_000}], timeout=30)
                await client.create_stream("b", "b", timeout=30)
                assert len([message async for message in client.messages("a")]) == 5
            finally:
                for _, writer in idle:
                    writer.transport.abort()
        assert "Too many open files" not in broker.said, broker.said


class _StoppedClock(MovedClock):
    """Nothing is done because time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self._now = wall_clock()

    def __call__(self) -> Now:
        return self._now


@each_change
async def test_a_stop_is_clean_without_its_checkpoints(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    vfs = FaultyVfs(RealVfs(tmp_path / "data"))

    def hang(operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.SYNC and operation.path.endswith("checkpoint"):
            hangs.set()
            goes_on.wait(60)
        return None

    with running_nats(tmp_path / "nats") as nats_server:
        try:
            async with broker_in_process(vfs, nats_server.url, clock=_StoppedClock(), stop_timeout_s=1.0) as broker:
                async with await aio.connect(broker.address) as client:
                    await client.create_stream("a", "a", durability="os")
                    await client.append("a", [{"value": b"x"}])
                vfs.plan = hang
            assert hangs.is_set()
            again = RealVfs(tmp_path / "data")
            async with broker_in_process(again, nats_server.url) as broker:
                async with await aio.connect(broker.address) as client:
                    assert [message.value async for message in client.messages("a")] == [b"x"]
        finally:
            goes_on.set()


@each_change
async def test_a_disk_that_hangs_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    vfs = FaultyVfs(RealVfs(tmp_path / "data"))

    def hang(operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.SYNC and operation.path.endswith(".arrows"):
            hangs.set()
            goes_on.wait(60)
        return None

    with running_nats(tmp_path / "nats") as nats_server:
        try:
            async with broker_in_process(vfs, nats_server.url, stop_timeout_s=1.0, stops_clean=False) as broker:
                async with await aio.connect(broker.address) as client:
                    await client.create_stream("hung", "hung")
                    vfs.plan = hang
                    append = asyncio.create_task(client.append("hung", [{"value": b"x"}], timeout=20))
                    assert await asyncio.to_thread(hangs.wait, 20)
                    assert not await broker.driver.stop(1.0)  # while the disk hangs still
                    # Nobody knows whether it is stored, and nobody says so.
                    with pytest.raises((penstock.OutcomeUnknown, penstock.TimedOut)):
                        await append
        finally:
            goes_on.set()


async def test_a_broker_that_is_suspended_while_it_stops_waits_for_its_disk_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM, SIGSTOP, SIGCONT: the clock has gone on by an hour, and neither the broker nor its disk has."""
    loop = asyncio.get_running_loop()
    hangs, goes_on = threading.Event(), threading.Event()
    vfs = FaultyVfs(RealVfs(tmp_path / "data"))

    def hang(operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.SYNC and operation.path.endswith(".arrows"):
            hangs.set()
            goes_on.wait(60)
        return None

    with running_nats(tmp_path / "nats") as nats_server:
        try:
            async with broker_in_process(vfs, nats_server.url, stop_timeout_s=30.0) as broker:
                async with await aio.connect(broker.address) as client:
                    await client.create_stream("held", "held")
                    vfs.plan = hang
                    append = asyncio.create_task(client.append("held", [{"value": b"x"}], timeout=20))
                    assert await asyncio.to_thread(hangs.wait, 20)
                    idle = broker.driver._threads.idle
                    real_time = loop.time

                    async def suspended() -> None:
                        monkeypatch.setattr(broker.driver._threads, "idle", idle)
                        monkeypatch.setattr(loop, "time", lambda: real_time() + 3_600)
                        loop.call_soon(goes_on.set)
                        await idle()

                    monkeypatch.setattr(broker.driver._threads, "idle", suspended)
                    assert await broker.driver.stop(30.0)
                    append.cancel()
        finally:
            goes_on.set()


@needs_time
async def test_a_process_ends_though_its_last_sync_hangs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    environment = {"PYTHONPATH": CHILD, "TEST_SYNC_GATE": str(gate)}
    with running_broker(tmp_path / "data", environment=environment) as broker:
        async with await broker.client() as client:
            await client.create_stream("hung", "hung", durability="os")
            with gate.open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                await client.append("hung", [{"value": b"x"}])
                broker.signal(signal.SIGTERM)
                assert await asyncio.to_thread(broker.wait, END_S) == 1
        assert "the process ends as it is" in broker.said or "the disk does not answer" in broker.said, broker.said
        broker.start()
        async with await broker.client() as client:
            assert [message.value async for message in client.messages("hung")] == [b"x"]
