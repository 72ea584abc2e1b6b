"""The publisher's NATS connection, against a server made of bytes: it ends with its client, whenever that ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

import penstock
from penstock.client.publishing import Publisher, ended_by_cancel

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


async def test_a_refused_inbox_is_seen_though_a_ping_overtakes_the_subscription() -> None:
    """The server says what it refuses only before its next PONG, as one may whose reads end between the two."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        refused = b""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"SUB "):
                    refused = line.split()[1]
                elif line == b"PING\r\n":
                    if refused:
                        writer.write(b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % refused)
                    writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        host, port = server.sockets[0].getsockname()
        publisher = Publisher([f"nats://{host}:{port}"], "test", {})
        with pytest.raises(penstock.Unavailable, match="nothing was published"):
            await publisher.publish("s", b"x", None, timeout_s=9.0)
        await publisher.close()


async def test_a_refusal_is_told_though_a_reset_comes_after_it() -> None:
    """A server that closes a connection with unread bytes resets it, and what it said may be lost the second time."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(INFO)
        if connections == 1:
            while await reader.readline() != b"PING\r\n":
                pass
            writer.write(b"-ERR 'Authorization Violation'\r\n")
            writer.close()
        else:
            await reader.readline()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        host, port = server.sockets[0].getsockname()
        publisher = Publisher([f"nats://{host}:{port}"], "test", {"reconnect_time_wait": 0.01})
        with pytest.raises(penstock.Unavailable, match="asks for a login"):
            await publisher.publish("s", b"x", None, timeout_s=0.5)
        await publisher.close()
    assert connections > 1


async def test_what_swallows_a_cancel_is_cancelled_again_and_what_comes_of_it_is_given_back() -> None:
    given_back: list[str] = []
    began = asyncio.Event()

    async def connect(swallowed: int, last: str) -> str:
        began.set()
        for _ in range(swallowed):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        if not last:
            await asyncio.Event().wait()
        return last

    async def give_back(connection: str) -> None:
        given_back.append(connection)

    for last in ("", "a connection"):
        began.clear()
        task = asyncio.ensure_future(ended_by_cancel(connect(3, last), give_back))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert given_back == ["a connection"]
    assert await ended_by_cancel(connect(0, "made"), give_back) == "made"
