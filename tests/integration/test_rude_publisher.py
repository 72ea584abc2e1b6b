"""A publisher that never reads its acks: nats-server holds us up for it, and nobody else may suffer for that."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import nats

from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import needs_time

_GOOD_ACKS = 20
_CONNECT = b'CONNECT {"verbose":false,"headers":true}\r\nSUB _INBOX.rude 1\r\n'
_MESSAGE = b"PUB rude _INBOX.rude 1\r\nx\r\n"


async def _publish_and_never_read(port: int, stop: asyncio.Event) -> None:
    # A stream's reader takes 128 KiB of what comes, and leaves the rest to the kernel.
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_CONNECT)
    with contextlib.suppress(ConnectionError):  # in the end nats-server cuts it off
        while not stop.is_set():
            writer.write(_MESSAGE * 1_000)
            await writer.drain()
    writer.transport.abort()


@needs_time
async def test_a_publisher_that_never_reads_its_acks_harms_nobody_else(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("rude", "rude")
                await client.create_stream("good", "good")
                stop = asyncio.Event()
                rude = asyncio.create_task(_publish_and_never_read(nats_server.port, stop))
                assert nats_server.stderr is not None
                await asyncio.to_thread(nats_server.stderr.wait_for, "Producer was stalled")
                connection = await nats.connect(nats_server.url)
                js = connection.jetstream()
                for number in range(_GOOD_ACKS):
                    assert (await js.publish("good", b"", timeout=60)).seq == number + 1

                async def are_dropped() -> bool:
                    return (await client.status()).nats.answers_dropped > 0

                await eventually(are_dropped, "answers to the rude one are dropped")
                stop.set()
                await rude
                await connection.close()
                status = await client.status()
                assert status.nats.reconnects == 0
                assert status.nats.gaps == ()
                assert "some acks for rude are dropped" in broker.said
