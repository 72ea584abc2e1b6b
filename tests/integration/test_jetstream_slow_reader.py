"""A client that takes 1 MB/s behind a full log: nats-server never cuts it off, and it delays nobody."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tests.broker_process import running_broker, running_nats
from tests.extent import needs_time
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected, said
from tests.ports import free_ports

S = 1_000_000_000  # ns
TIMEOUT_S = 30
MESSAGES = 60
MESSAGE_BYTES = 900_000
BYTES_PER_S = 1_000_000
SLOW_S = 20  # without a bound of bytes ahead nats-server cuts it off after 15 s
FLOW = b"$JS.FC."


class SlowClient:
    """A NATS client with a socket of its own, which reads at a pace and answers flow-control messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB inbox.slow 1\r\nPING\r\n')
        self._tail = b""
        self.taken_bytes = 0
        self.answered = 0

    async def read(self, for_s: float) -> None:
        """Read for some time. AssertionError: nats-server has closed the connection."""
        begun_s = time.monotonic()
        while (spent_s := time.monotonic() - begun_s) < for_s:
            if self.taken_bytes > spent_s * BYTES_PER_S:
                await asyncio.sleep(self.taken_bytes / BYTES_PER_S - spent_s)  # the pace that is tried
                continue
            data = await asyncio.wait_for(self._reader.read(50_000), TIMEOUT_S)
            assert data, f"cut off after {self.taken_bytes} bytes"
            self.taken_bytes += len(data)
            self._answer(self._tail + data)

    def _answer(self, data: bytes) -> None:
        while (begin := data.find(FLOW)) >= 0 and (end := data.find(b" ", begin)) >= 0:
            self._writer.write(b"PUB %b 0\r\n\r\n" % data[begin:end])
            self.answered += 1
            data = data[end:]
        self._tail = data[-200:]
        if b"PING\r\n" in data:
            self._writer.write(b"PONG\r\n")

    def close(self) -> None:
        self._writer.close()


async def consumer(connection: Any, name: str, inbox: str) -> None:
    config = {
        "name": name, "deliver_subject": inbox, "flow_control": True, "idle_heartbeat": 5 * S,
        "inactive_threshold": 300 * S,
    }  # fmt: skip
    made = await said(connection, f"CONSUMER.CREATE.S.{name}", json.dumps({"stream_name": "S", "config": config}))
    assert "error" not in made, made


@needs_time
async def test_a_slow_reader_is_never_cut_off_and_delays_nobody(tmp_path: Path) -> None:
    (leaf_port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}\n') as server:
        leaf = {"PENSTOCK_NATS_LEAF": f"nats://127.0.0.1:{leaf_port}"}
        with running_broker(
            tmp_path / "data", *api_options("--jetstream-rights", "manage"), nats=server.url, environment=leaf
        ) as broker:
            async with connected(broker.nats_url) as connection:
                await delivering(connection)
                await said(connection, "STREAM.CREATE.S", '{"name":"S","subjects":["s.>"]}')
                for _ in range(MESSAGES):
                    await connection.request("s.x", bytes(MESSAGE_BYTES), timeout=TIMEOUT_S)
                slow = SlowClient(*await asyncio.open_connection("127.0.0.1", server.port, limit=65_536))
                await consumer(connection, "slow", "inbox.slow")
                reading = asyncio.create_task(slow.read(SLOW_S))
                got = asyncio.Queue[int]()

                async def take(message: Any) -> None:
                    if message.reply.startswith("$JS.FC."):
                        await connection.publish(message.reply)
                    elif message.data:
                        got.put_nowait(len(message.data))

                await connection.subscribe("inbox.fast", cb=take)
                await consumer(connection, "fast", "inbox.fast")
                async with asyncio.timeout(TIMEOUT_S):
                    sizes = [await got.get() for _ in range(MESSAGES)]
                assert sizes == [MESSAGE_BYTES] * MESSAGES
                assert slow.taken_bytes < MESSAGES * MESSAGE_BYTES // 2  # the fast one did not wait for it
                await reading
                assert slow.taken_bytes > BYTES_PER_S * SLOW_S * 3 // 4
                assert slow.answered > 1
                slow.close()
