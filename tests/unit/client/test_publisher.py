"""The publisher's NATS connection, against a server made of bytes: it ends with its client, whenever that ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nats.errors import Error as NatsError

import penstock
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import Publisher, ended_by_cancel, first_connection
from penstock.client.values import encode_headers
from penstock.ops.jetstream.source import JetStream
from penstock.ops.relay.nats_output import NatsOutput
from tests.extent import each_change
from tests.nats_servers import silent_server

INFO = b'INFO {"server_id":"X","version":"2.10.0","max_payload":1000,"headers":true}\r\n'
PONG = b"PONG\r\n"
REFUSED = b"-ERR 'Authorization Violation'\r\n"


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
        publishing = asyncio.create_task(publisher.publish(publisher.future(), "s", b"x", None, timeout_s=9.0))
        await accepted.wait()
        await publisher.close()
        greet.set()
        with pytest.raises(penstock.Unavailable, match="closed"):
            await publishing
        await ended.wait()
        with pytest.raises(penstock.Unavailable, match="closed"):
            await publisher.publish(publisher.future(), "s", b"x", None, timeout_s=9.0)


async def test_a_connection_that_is_made_when_its_loop_ends_is_closed() -> None:
    """The loop's end cancels every task, so the one that makes the connection is cancelled while it closes it, too."""
    async with silent_server() as (url, connections):
        publisher = Publisher([url], "test", {})
        before = asyncio.all_tasks()
        publishing = asyncio.create_task(publisher.publish(publisher.future(), "s", b"x", None, timeout_s=9.0))
        reader = await connections.get()
        while running := asyncio.all_tasks() - before:
            for task in running:
                task.cancel()
            await asyncio.sleep(0)
        assert publishing.cancelled()
        assert await reader.read() == b""
        await publisher.close()


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
            await publisher.publish(publisher.future(), "s", b"x", None, timeout_s=9.0)
        await publisher.close()


@contextlib.asynccontextmanager
async def nats_server(*answers: bytes | None) -> AsyncIterator[tuple[str, list[asyncio.Task[None]]]]:
    """The URL of a server that answers the first PING of each connection with the next of these, the last one again and
    again; None: it resets the connection. And the connections that were made.
    """
    connections: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = answers[min(len(connections), len(answers) - 1)]
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        writer.write(INFO)
        if answer is None:
            await reader.readline()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return
        while (line := await reader.readline()) and line != b"PING\r\n":
            pass
        writer.write(answer)
        while answer == PONG and (line := await reader.readline()):
            if line == b"PING\r\n":
                writer.write(PONG)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"nats://{host}:{port}", connections
        await asyncio.gather(*connections, return_exceptions=True)  # the client has gone


async def _published(*urls: str, timeout_s: float = 60.0, **options: object) -> None:
    publisher = Publisher(urls, "test", {"reconnect_time_wait": 0.01, **options})
    try:
        await publisher.publish(publisher.future(), "s", b"x", None, timeout_s=timeout_s)
    finally:
        await publisher.close()


@each_change
@pytest.mark.parametrize("headers", [None, {"A": "b"}, {"Colour": "gr\u00fcn", "Penstock-Key": "k" * 300}])
async def test_headers_count_towards_the_size_that_nats_takes(headers: dict[str, str] | None) -> None:
    """A server closes the connection over a message that is larger, and with it go the acks of all other messages."""
    block = encode_headers(headers) or b""
    async with asyncio.timeout(10), nats_server(PONG) as (url, _):
        publisher = Publisher([url], "test", {})
        with pytest.raises(penstock.RemoteError, match=r"has 1001 bytes.*takes at most 1000") as caught:
            await publisher.publish(publisher.future(), "s", bytes(1001 - len(block)), headers, timeout_s=9.0)
        assert caught.value.code == "too_large"
        with pytest.raises(penstock.RemoteError, match="has 1001 bytes"):
            await publisher.publish_without_ack("s", bytes(1001 - len(block)), headers, timeout_s=9.0)
        future = publisher.future()
        await publisher.publish(future, "s", bytes(1000 - len(block)), headers, timeout_s=9.0)
        assert not future.done()
        await publisher.close()


async def _relayed(*urls: str) -> None:
    output = NatsOutput(urls, 60.0)
    try:
        await output.open({"reconnect_time_wait": 0.01})
    finally:
        await output.close()


async def _imported(*urls: str) -> None:
    js = JetStream(urls, None, 60.0)
    try:
        await js.open({"reconnect_time_wait": 0.01})
    finally:
        await js.close()


@pytest.mark.parametrize("connect", [_published, _relayed, _imported])
async def test_a_login_that_every_server_refuses_is_told_at_once(connect: Callable[..., Awaitable[None]]) -> None:
    async with asyncio.timeout(10), nats_server(REFUSED) as (one, at_one), nats_server(REFUSED) as (other, at_other):
        with pytest.raises(penstock.Unavailable, match=r"asks for a login that it did not get \(.*Authorization Viol"):
            await connect(one, other)
    assert (len(at_one), len(at_other)) == (1, 1)


@pytest.mark.parametrize("connect", [_published, _relayed, _imported])
async def test_a_refusal_is_told_though_a_reset_came_before_it(connect: Callable[..., Awaitable[None]]) -> None:
    """A server that closes a connection with unread bytes resets it, and what it said may be lost."""
    async with asyncio.timeout(10), nats_server(None, REFUSED) as (url, connections):
        with pytest.raises(penstock.Unavailable, match="asks for a login"):
            await connect(url)
    assert len(connections) == 2


@pytest.mark.parametrize("connect", [_relayed, _imported])
async def test_a_server_that_refuses_the_login_does_not_hide_one_that_takes_it(
    connect: Callable[..., Awaitable[None]],
) -> None:
    async with asyncio.timeout(10), nats_server(REFUSED) as (one, _), nats_server(PONG) as (other, connections):
        await connect(one, other)
    assert len(connections) == 1


async def test_a_server_that_is_not_reached_is_waited_for_beside_one_that_refuses() -> None:
    async with asyncio.timeout(10), nats_server(REFUSED) as (one, at_one), nats_server(None) as (other, at_other):
        with pytest.raises(penstock.Unavailable, match="asks for a login"):
            await _published(one, other, timeout_s=0.5)
    assert len(at_one) > 1
    assert len(at_other) > 1


async def test_a_login_that_is_refused_later_is_told_and_raises_nothing() -> None:
    told: list[str] = []

    async def tell(error: Exception) -> None:
        told.append(str(error))

    class Kept(StrictNatsClient):
        """nats-py, whose error callback can be called here: by itself it leaves a transport open where that happens."""

        async def connect(self, *args: Any, **options: Any) -> None:
            self.failed = options["error_cb"]
            await super().connect(*args, **options)

    connection = Kept()
    async with asyncio.timeout(10), nats_server(PONG) as (url, _):
        await first_connection(connection, [url], error_cb=tell)
        await connection.failed(NatsError("nats: 'Authorization Violation'"))
        await connection.close()
    assert told == ["nats: 'Authorization Violation'"]


async def test_without_an_error_callback_a_refused_login_is_told_all_the_same() -> None:
    connection = StrictNatsClient()
    async with asyncio.timeout(10), nats_server(REFUSED) as (url, _):
        with pytest.raises(penstock.Unavailable, match="asks for a login"):
            await first_connection(connection, [url], error_cb=None)
        await connection.close()


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
