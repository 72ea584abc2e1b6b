"""The barrier of a NATS connection, against a server that notes the order of what comes."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

from penstock.frugal.nats_barrier import reach

INFO = b'INFO {"server_id":"x","version":"2.11.0","proto":1,"headers":true,"max_payload":1048576}\r\n'


async def test_a_subscription_reaches_the_server_before_the_last_ping() -> None:
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while line := await reader.readline():
            lines.append(line.split()[0])
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Client()
    await connection.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
    lines.clear()
    await connection.subscribe("shop")
    await reach(connection)
    assert lines.index(b"SUB") < len(lines) - 1
    assert lines[-1] == b"PING"
    await connection.close()
    server.close()
    await server.wait_closed()
