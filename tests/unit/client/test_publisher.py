"""The publisher's NATS connection, against a server made of bytes: it ends with its client, whenever that ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import penstock
from penstock.client.publishing import Publisher

INFO = b'INFO {"server_id":"X","version":"2.10.0","max_payload":1000,"headers":true}\r\n'


async def test_a_connection_that_is_made_while_the_client_is_closed_is_given_back() -> None:
    accepted, greet, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await greet.wait()
        writer.write(INFO)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
        writer.close()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        host, port = server.sockets[0].getsockname()
        publisher = Publisher([f"nats://{host}:{port}"], "test", {})
        publishing = asyncio.create_task(publisher.publish("s", b"x", None, timeout_s=9.0))
        await accepted.wait()
        await publisher.close()
        greet.set()
        with pytest.raises(penstock.Unavailable, match="closed"):
            await publishing
        await ended.wait()
        with pytest.raises(penstock.Unavailable, match="closed"):
            await publisher.publish("s", b"x", None, timeout_s=9.0)
