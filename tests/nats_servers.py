"""Real nats-servers, publishers and a subscribed NatsLink, for integration tests."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.nats.connection import LinkTiming
from penstock.broker.nats.link import LinkEvent, LinkUp, NatsLink
from penstock.broker.nats.server import find_nats_server
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.hot.message_group import MessageGroup
from tests.groups import messages

TIMEOUT_S = 60
QUICK = LinkTiming(reconnect_ms_min=10, reconnect_ms_max=50, tls_first_ms=200)
Event = TypeVar("Event")
Row = tuple[bytes, bytes | None, bytes | None, bytes]


class RunningNats:
    """A nats-server for one test, which can be killed and started again on its port."""

    def __init__(self, folder: Path, config: str) -> None:
        self.port = 0
        self.leaf_port = self.mqtt_port = self.route_port = 0  # 0 without such a listener in the config
        self.process: asyncio.subprocess.Process | None = None
        self._config_file = folder / "server.conf"
        self._config_file.write_text(config)
        self._has_routes = "cluster {" in config
        self._log: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(str(find_nats_server()), "-c", str(self._config_file), "-a", "127.0.0.1", "-p", str(self.port or -1)),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        said = b""
        async with asyncio.timeout(TIMEOUT_S):
            while b"Server is ready" not in said or (self._has_routes and b"route connections" not in said):
                line = await self.process.stderr.readline()
                assert line, f"nats-server stopped: {said.decode()}"
                said += line
        ports = dict(re.findall(rb"Listening for (\w+) \w+ on \S*127\.0\.0\.1:(\d+)", said))
        self.port = int(ports[b"client"])
        self.leaf_port = int(ports.get(b"leafnode", 0))
        self.mqtt_port = int(ports.get(b"MQTT", 0))
        self.route_port = int(ports.get(b"route", 0))
        self._log = asyncio.create_task(self._drop_log())

    async def _drop_log(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        while await self.process.stderr.read(65536):
            pass

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self._log is not None:
            await self._log


@asynccontextmanager
async def running_nats(folder: Path, config: str = "") -> AsyncIterator[RunningNats]:
    """Run a nats-server with this config, on a free port, within the block."""
    server = RunningNats(folder, config)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


class Publisher:
    """A publisher whose `flush` proves that nats-server has everything; nats-py's can overtake buffered messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def publish(self, subject: str, value: bytes, *, reply: str = "", headers: bytes = b"") -> None:
        where = f"{subject} {reply}".strip().encode()
        if headers:
            self._writer.write(b"HPUB %b %d %d\r\n" % (where, len(headers), len(headers) + len(value)))
        else:
            self._writer.write(b"PUB %b %d\r\n" % (where, len(value)))
        self._writer.write(headers + value + b"\r\n")

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def flush(self) -> None:
        self._writer.write(b"PING\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            await self._reader.readuntil(b"PONG\r\n")


@asynccontextmanager
async def publishing(server: RunningNats) -> AsyncIterator[Publisher]:
    """Connect a publisher, without TLS and login."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    publisher = Publisher(reader, writer)
    await publisher.flush()
    try:
        yield publisher
    finally:
        writer.close()
        await writer.wait_closed()


class Listener:
    """A NatsLink that records all messages and events."""

    def __init__(self, urls: str, **options: Any) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.events: list[LinkEvent] = []
        self._changed = asyncio.Event()
        timing = options.pop("timing", QUICK)
        self.link = NatsLink(
            self,
            NatsAccess(parse_nats_urls(urls), **options),
            clock_us=lambda: time.time_ns() // 1000,
            random=random.Random(1).random,
            timing=timing,
        )

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        for sid, group in groups.items():
            self.rows.setdefault(sid, []).extend(messages(group))
        self._changed.set()

    def link_event(self, event: LinkEvent) -> None:
        self.events.append(event)
        self._changed.set()

    def values(self, sid: int) -> list[bytes]:
        return [row[3] for row in self.rows.get(sid, [])]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked after each message and event."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def event(self, kind: type[Event], after: int = 0) -> Event:
        """Wait for the first event of this kind from number `after` on."""

        def found() -> list[Event]:
            return [event for event in self.events[after:] if isinstance(event, kind)]

        await self.until(lambda: bool(found()))
        return found()[0]


@asynccontextmanager
async def listening(urls: str, *, wait_up: bool = True, **options: Any) -> AsyncIterator[Listener]:
    """Run a link within the block; at the end it must stop without an error."""
    listener = Listener(urls, **options)
    task = asyncio.create_task(listener.link.run())
    try:
        if wait_up:
            await listener.event(LinkUp)
        yield listener
    finally:
        await listener.link.stop(2000)
        async with asyncio.timeout(TIMEOUT_S):
            await task


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, asyncio.Queue[asyncio.StreamReader]]]:
    """The URL of a server that says nothing, and the connections that are made to it."""
    connections: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connections.put_nowait(reader)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT_S):
        host, port = server.sockets[0].getsockname()
        yield f"nats://{host}:{port}", connections
        for writer in writers:
            writer.close()
