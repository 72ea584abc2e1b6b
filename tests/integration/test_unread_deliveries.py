"""Clients that subscribe, pull, and never read: whoever reads after them is delivered all."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig

from tests.broker_process import eventually, running_broker
from tests.extent import each_change
from tests.integration.test_attacked_consumers import TIMEOUT_S, idle, stream_of
from tests.integration.test_jetstream_streams import api_options, connected

COUNT = 80
VALUE = b"x" * 100_000  # all are more than what sockets and the first window of flow control take
CONFIGS: dict[str, dict[str, Any]] = {
    "pushed": {"deliver_subject": "to.pushed", "deliver_group": "g"},
    "flow": {"deliver_subject": "to.flow", "flow_control": True, "idle_heartbeat": 1},
    "pulled": {},
}


async def unread(url: str, *commands: bytes) -> asyncio.StreamWriter:
    """Connect a client that never reads."""
    host, port = url.removeprefix("nats://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    writer.write(b'CONNECT {"verbose":false}\r\n' + b"".join(command + b"\r\n" for command in commands))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


async def take(connection: Any, done: set[int], message: Any) -> None:
    """Ack a delivery, or answer what flow control asks, as clients do."""
    headers = message.headers or {}
    if "Status" not in headers:
        await message.ack()
        done.add(message.metadata.sequence.stream)
    elif reply := message.reply or headers.get("Nats-Consumer-Stalled", ""):
        await connection.publish(reply, b"")


async def pull(connection: Any, done: set[int]) -> None:
    """Fetch until all came."""
    bound = await connection.jetstream().pull_subscribe_bind("pulled", "unread")
    while len(done) < COUNT:
        with suppress(TimeoutError, nats.errors.Error):
            for message in await bound.fetch(10, timeout=2):
                await take(connection, done, message)


@each_change
async def test_whoever_reads_after_clients_that_never_read_gets_all(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options("--jetstream-rights", "manage")) as broker:
        async with stream_of(broker, "unread") as (_, js), connected(broker.nats_url) as reading:
            for name, more in CONFIGS.items():
                config = ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=1, **more)
                await js.add_consumer("unread", config)
            body = json.dumps({"batch": 100_000, "expires": 60 * 10**9, "idle_heartbeat": 10**8}).encode()
            request = b"PUB $JS.API.CONSUMER.MSG.NEXT.unread.pulled in %d\r\n%s" % (len(body), body)
            writers = [
                await unread(broker.nats_url, b"SUB to.pushed g 1"),
                await unread(broker.nats_url, b"SUB to.flow 1"),
                await unread(broker.nats_url, b"SUB in 1", *[request] * 10),
            ]
            for _ in range(COUNT):
                await js.publish("unread.1", VALUE, timeout=TIMEOUT_S)
            for writer in writers:
                writer.transport.abort()
            done: dict[str, set[int]] = {name: set() for name in CONFIGS}
            await reading.subscribe("to.pushed", queue="g", cb=partial(take, reading, done["pushed"]))
            await reading.subscribe("to.flow", cb=partial(take, reading, done["flow"]))
            async with asyncio.timeout(90):
                await pull(reading, done["pulled"])

            async def all_came() -> bool:
                return all(len(one) == COUNT for one in done.values())

            await eventually(all_came, "all came to all", 60)
            for name in CONFIGS:
                await idle(js, "unread", name)
        assert broker.stop() == 0
        assert "Traceback" not in broker.said
