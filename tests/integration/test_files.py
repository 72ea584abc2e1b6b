"""How a fetch gets to its client: sendfile from the page cache, read ahead by a thread where it is cold."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.base import limits
from tests.broker_process import Lines, eventually, running_broker
from tests.extent import each_change
from tests.integration.publishers import connected_to

CHILD = str(Path(__file__).parent / "child")
MESSAGE_BYTES = 500_000
MESSAGES = 40


async def _fill(client: aio.Client, name: str) -> list[bytes]:
    rng = random.Random(7)
    values = [rng.randbytes(MESSAGE_BYTES) for _ in range(MESSAGES)]
    await client.create_stream(name, name, segment_bytes=8_000_000)
    for value in values:
        await client.append(name, [{"value": value}])
    return values


@contextmanager
def _traced(pid: int) -> Iterator[Lines]:
    """The sendfile calls of a process as strace(1) sees them."""
    command = ["strace", "-f", "-q", "-e", "trace=sendfile", "-p", str(pid)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tracer:
        assert tracer.stderr is not None
        lines = Lines(tracer.stderr)
        try:
            # It says nothing when it is attached; the kernel does.
            status = Path(f"/proc/{pid}/status")
            while f"TracerPid:\t{tracer.pid}\n" not in status.read_text():
                assert tracer.poll() is None, lines.text
            yield lines
        finally:
            tracer.terminate()
            tracer.wait()
            lines.close()


@each_change
async def test_fetches_go_out_with_sendfile(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    environment = {"PYTHONPATH": CHILD, "TEST_CALLS_FILE": str(calls)}
    with running_broker(tmp_path / "data", environment=environment) as broker:
        async with await broker.client() as client:
            values = await _fill(client, "sent")
            assert calls.read_bytes().count(b"s") == 0
            assert [message.value async for message in client.messages("sent")] == values
            sent = calls.read_bytes().count(b"s")
            assert sent >= MESSAGES * MESSAGE_BYTES / limits.SENDFILE_SLICE_BYTES  # in bounded slices


@each_change
@pytest.mark.skipif(shutil.which("strace") is None, reason="the kernel's own view of sendfile takes strace(1)")
async def test_the_kernel_sends_every_byte_from_the_file(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            values = await _fill(client, "sent")
            with _traced(broker.pid) as lines:
                assert [message.value async for message in client.messages("sent")] == values
            results = [line.rpartition("= ")[2].split()[0] for line in lines.text.splitlines() if "sendfile" in line]
            assert sum(int(result) for result in results if result.isdigit()) >= MESSAGES * MESSAGE_BYTES


@each_change
async def test_a_cold_file_is_read_by_a_thread_before_it_is_sent(tmp_path: Path) -> None:
    calls, cold = tmp_path / "calls", tmp_path / "cold"
    environment = {"PYTHONPATH": CHILD, "TEST_CALLS_FILE": str(calls), "TEST_COLD": str(cold)}
    with running_broker(tmp_path / "data", environment=environment) as broker:
        async with await broker.client() as client:
            values = await _fill(client, "cold")
            before = calls.read_bytes().count(b"a")
            cold.touch()
            assert [message.value async for message in client.messages("cold")] == values
            ahead = calls.read_bytes().count(b"a") - before
            slices = MESSAGES * MESSAGE_BYTES // limits.SENDFILE_SLICE_BYTES
            assert slices <= ahead <= 2 * slices + MESSAGES, "once for every slice, and not again when it is there"


@each_change
async def test_whoever_leaves_in_the_middle_of_a_cold_read_leaves_nothing_behind(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    with running_broker(tmp_path / "data", environment={"PYTHONPATH": CHILD, "TEST_COLD": str(cold)}) as broker:
        async with await broker.client() as client:
            values = await _fill(client, "cold")
            files = broker.open_files()
            cold.touch()
            for _ in range(20):
                async with await broker.client() as impatient:
                    async for _ in impatient.read("cold"):
                        break
            assert [message.value async for message in client.messages("cold")] == values

            async def all_closed() -> bool:
                return broker.open_files() <= files

            await eventually(all_closed, "every file and connection is given back")


@each_change
async def test_a_consumer_at_the_tail_causes_no_block_reads(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            await client.create_stream("tail", "tail")
            js = connection.jetstream()
            reader = client.messages("tail", follow=True)
            await js.publish("tail", b"first")
            assert (await anext(reader)).value == b"first"
            before = broker.io_counts()
            for round_number in range(20):
                futures = [await js.publish_async("tail", bytes(1_000)) for _ in range(500)]
                seen = [(await anext(reader)).offset for _ in futures]
                assert seen == list(range(1 + round_number * 500, 501 + round_number * 500))
                for future in futures:
                    await future
            await reader.aclose()
            after = broker.io_counts()
            figures = {name: after[name] - before[name] for name in after}
            print("10,000 messages of 1,000 bytes, followed at the tail:", figures)
            assert figures["read_bytes"] <= 8_192  # none of the 10 MB; ext4 may need one of its own block maps
            assert figures["wchar"] > 20_000_000  # once into the log, once out to the consumer


@each_change
async def test_more_clients_than_a_shell_usually_allows_files(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    with running_broker(tmp_path / "data", before_exec=few_files) as broker:
        clients = [await broker.client() for _ in range(150)]
        try:
            assert (await clients[-1].status()).connections == 150
            await clients[0].create_stream("many", "many")
            assert await clients[1].publish("many", b"x") == penstock.PubAck("many", 0, 0, False, 1, 1, True)
        finally:
            for client in clients:
                await client.close()
