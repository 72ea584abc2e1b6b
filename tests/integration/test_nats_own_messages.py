"""Messages that nats-server publishes itself, and what leaf nodes and MQTT clients let others put into a control line.

Each of these has an empty reply subject, a line that is not understood, or a reply subject that cannot be answered. It
is stored like any other message where it can be; in no case it costs the connection, which all streams share.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from penstock import aio
from penstock.base import limits
from penstock.broker.driver import Driver
from penstock.broker.nats.link import LinkDown
from penstock.ingest.nats import MessagesSkipped, RepliesUnanswerable
from penstock.node.step import NatsAnswers
from penstock.vfs.real import RealVfs
from tests.broker_process import eventually
from tests.extent import each_change
from tests.integration.in_process import broker_in_process
from tests.nats_servers import TIMEOUT_S, RunningNats, listening, publishing, running_nats

_USERS = """
    ALICE: {{ users: [ {{user: alice, password: s}} ], {alice} }}
    BOB: {{ users: [ {{user: bob, password: s}} ], {bob} }}
    SYS: {{ users: [ {{user: sys, password: s}} ] }}
"""


def _accounts(*, alice: str = "", bob: str = "") -> str:
    return "accounts {" + _USERS.format(alice=alice, bob=bob) + "}\nsystem_account: SYS\n"


def _url(server: RunningNats, user: str) -> str:
    return server.url.replace("//", f"//{user}:s@" if user else "//")


@asynccontextmanager
async def _connected(server: RunningNats, user: str = "") -> AsyncIterator[Nats]:
    connection = await nats.connect(_url(server, user))
    try:
        yield connection
    finally:
        await connection.close()


async def _trace(server: RunningNats) -> None:
    async with _connected(server) as connection:
        await connection.publish("nobody", b"x", headers={"Nats-Trace-Dest": "own.trace"})
        await connection.publish("nobody", b"x", headers={"Nats-Trace-Dest": "own.trace", "Accept-Encoding": "snappy"})
        await connection.flush()


async def _sampled_trace(server: RunningNats) -> None:
    async with _connected(server, "alice") as connection:
        parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
        await connection.publish("nobody", b"x", headers={"traceparent": parent})
        await connection.flush()


async def _measured_request(server: RunningNats) -> None:
    async with _connected(server, "alice") as service, _connected(server, "bob") as client:

        async def answer(message: Msg) -> None:
            await message.respond(b"hi")

        await service.subscribe("echo", cb=answer)
        await service.flush()

        async def is_answered() -> bool:
            with suppress(nats.errors.TimeoutError):  # nats-server loses the answer of a measured service now and then
                return (await client.request("echo", b"x", timeout=2.0)).data == b"hi"
            return False

        await eventually(is_answered, "the service answers")


async def _other_client(server: RunningNats) -> None:
    async with _connected(server, "bob"):
        pass


async def _jetstream_call(server: RunningNats) -> None:
    async with _connected(server) as connection:
        await connection.request("$JS.API.INFO", b"", timeout=TIMEOUT_S)


@asynccontextmanager
async def _publishing(server: RunningNats, user: str) -> AsyncIterator[list[int]]:
    """Publishes on `other` all the time; the list holds what is acked. Every message must be."""
    stop = asyncio.Event()
    acked: list[int] = []

    async def publish() -> None:
        async with _connected(server, user) as connection:
            js = connection.jetstream()
            while not stop.is_set():
                acked.append((await js.publish("other", b"x", timeout=TIMEOUT_S)).seq)

    task = asyncio.create_task(publish())
    try:
        yield acked
    finally:
        stop.set()
        await task


def _has_lost_nothing(driver: Driver) -> bool:
    return driver.link.is_up and driver.reconnects == 0 and driver.link.last_failure == ""


@pytest.mark.parametrize(
    ("config", "user", "subject", "cause", "count"),
    [
        ("", "", "own.>", _trace, 2),
        (
            _accounts(alice='msg_trace: {dest: "own.traces", sampling: "100%"}'),
            "alice",
            "own.>",
            _sampled_trace,
            1,
        ),
        (
            _accounts(
                alice='exports: [ {service: "echo", latency: {sampling: 100, subject: "own.latency"}} ]',
                bob='imports: [ {service: {account: ALICE, subject: "echo"}} ]',
            ),
            "alice",
            "own.>",
            _measured_request,
            1,
        ),
        (_accounts(), "sys", "$SYS.ACCOUNT.>", _other_client, 2),
        ("jetstream {{ store_dir: {folder} }}", "", "$JS.EVENT.>", _jetstream_call, 1),
    ],
    ids=["trace header", "trace of an account", "service latency", "system events", "JetStream audit"],
)
async def test_what_nats_server_publishes_is_stored(
    tmp_path: Path,
    config: str,
    user: str,
    subject: str,
    cause: Callable[[RunningNats], Awaitable[None]],
    count: int,
) -> None:
    if "{folder}" in config:
        config = config.format(folder=json.dumps(str(tmp_path / "js")))
    async with (
        running_nats(tmp_path, config) as server,
        broker_in_process(RealVfs(tmp_path / "data"), _url(server, user)) as broker,
        await aio.connect(broker.address) as client,
    ):
        await client.create_stream("own", subject, acks="never")
        await client.create_stream("all", ">", acks="never")
        await client.create_stream("other", "other")
        async with _publishing(server, user) as acked:
            await cause(server)

            async def are_stored() -> bool:
                return ((await client.stream("own")).partitions[0].log_end or 0) >= count

            await eventually(are_stored, "what nats-server published is stored")
            had = len(acked)

            async def acks_on() -> bool:
                return len(acked) > had + 20

            await eventually(acks_on, "the other stream acks on")
        assert all(message.value for message in [message async for message in client.messages("own")])
        assert acked == list(range(1, len(acked) + 1))
        assert _has_lost_nothing(broker.driver)
        status = await client.status()
        assert (status.nats.gaps, status.nats.messages_skipped, status.nats.unanswerable) == ((), 0, 0)


@asynccontextmanager
async def _leaf(server: RunningNats) -> AsyncIterator[asyncio.StreamWriter]:
    """A leaf node that nats-server takes for one of ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.leaf_port)
    async with asyncio.timeout(TIMEOUT_S):
        await reader.readuntil(b"\r\n")
        writer.write(b'CONNECT {"name":"leaf","server_id":"LEAF","headers":true,"protocol":1}\r\nPING\r\n')
        await reader.readuntil(b"PONG\r\n")
    try:
        yield writer
    finally:
        writer.close()
        await writer.wait_closed()


async def test_what_a_leaf_node_sends_costs_nothing(tmp_path: Path) -> None:
    # A leaf node's line may be 16 times as long as that of a client, whose answers nats-server then refuses to read.
    async with (
        running_nats(tmp_path, "leafnodes { host: 127.0.0.1, port: -1 }") as server,
        listening(server.url) as one,
    ):
        one.link.subscribe(1, "l.>")
        await one.link.wait_barrier(5000)
        async with _leaf(server) as leaf:
            long = limits.NATS_CONTROL_LINE_BYTES_MAX - 100
            for reply in (b"r" * long, b"r" * limits.NATS_REPLY_BYTES_MAX, b"r"):
                leaf.write(b"LMSG l.a %b 000000001\r\nx\r\n" % reply)
                leaf.write(b"HMSG l.b %b 00012 13\r\nNATS/1.0\r\n\r\ny\r\n" % reply)
            leaf.write(b"LMSG l.c + r q 1\r\nz\r\nLMSG l.%b 1\r\nx\r\nLMSG l.last 0\r\n\r\n" % (b"s" * long))
            await leaf.drain()
            await one.until(lambda: one.rows.get(1, [(b"",)])[-1][0] == b"l.last")
        replies = [row[1] for row in one.rows[1]]
        assert replies[:6] == [None, None, *2 * [b"r" * limits.NATS_REPLY_BYTES_MAX], b"r", b"r"]
        refused = [event.count for event in one.events if isinstance(event, RepliesUnanswerable)]
        assert sum(refused) == 2
        # The longest reply subject that is kept can be answered.
        one.link.answer([NatsAnswers(1, b"PUB %b 99999\r\n%b\r\n" % (replies[2] or b"", bytes(99_999)))])
        await one.link.wait_barrier(5000)
        assert not [event for event in one.events if isinstance(event, (LinkDown, MessagesSkipped))]


async def test_a_reply_subject_with_a_carriage_return_is_not_answered(tmp_path: Path) -> None:
    # nats-server takes such a line amiss when it reads it in two parts: "Unknown Protocol Operation".
    async with running_nats(tmp_path) as server, publishing(server) as client, listening(server.url) as one:
        one.link.subscribe(1, "c")
        await one.link.wait_barrier(5000)
        client.write(b"PUB c re\rply 1\r\nx\r\nPUB c reply 1\r\ny\r\n")
        await one.until(lambda: len(one.rows.get(1, [])) == 2)
        assert [row[1] for row in one.rows[1]] == [None, b"reply"]
        assert [event.count for event in one.events if isinstance(event, RepliesUnanswerable)] == [1]


async def test_the_longest_subject_of_an_mqtt_client_is_skipped(tmp_path: Path) -> None:
    async with running_nats(tmp_path, _with_mqtt(tmp_path)) as server, listening(server.url) as one:
        one.link.subscribe(1, "m.>")
        await one.link.wait_barrier(5000)
        async with asyncio.timeout(TIMEOUT_S), _mqtt_client(server) as (_, writer):
            topics = [b"m/a", b"m/" + b"." * 65_500, b"m/last"]  # each dot becomes two bytes
            for topic in topics:
                writer.write(_mqtt(0x30, _text(topic) + b"x"))
            await one.until(lambda: one.rows.get(1, [(b"",)])[-1][0] == b"m.last")
        assert [row[0] for row in one.rows[1]] == [b"m.a", b"m.last"]
        assert [event.count for event in one.events if isinstance(event, MessagesSkipped)] == [1]
        assert not [event for event in one.events if isinstance(event, LinkDown)]


@each_change
async def test_the_puback_of_an_mqtt_client_says_nothing_of_a_stream(tmp_path: Path) -> None:
    async with (
        running_nats(tmp_path, _with_mqtt(tmp_path)) as server,
        broker_in_process(RealVfs(tmp_path / "data"), server.url) as broker,
        await aio.connect(broker.address) as client,
        _mqtt_client(server) as (reader, writer),
    ):
        await client.create_stream("own", "m.>")

        async def published(number: int) -> None:
            identifier = struct.pack(">H", number)
            writer.write(_mqtt(0x32, _text(b"m/a") + identifier + b"%d" % number))  # quality of service 1
            async with asyncio.timeout(TIMEOUT_S):
                assert await reader.readexactly(4) == _mqtt(0x40, identifier)

        async def stored(count: int) -> None:
            async def are_there() -> bool:
                return (await client.offsets("own", "latest")).offset == count

            await eventually(are_there, f"{count} messages are stored")

        await published(1)
        await stored(1)
        await client.pause_stream("own")
        await published(2)
        await client.resume_stream("own")
        await published(3)
        await stored(2)
        assert [(one.subject, one.value) async for one in client.messages("own")] == [("m.a", b"1"), ("m.a", b"3")]


def _with_mqtt(folder: Path) -> str:
    store = f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}"
    return f"server_name: one\n{store}\nmqtt {{ host: 127.0.0.1, port: -1 }}\n"


@asynccontextmanager
async def _mqtt_client(server: RunningNats) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One that is connected."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.mqtt_port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(_mqtt(0x10, b"\0\4MQTT\4\2\0\0" + _text(b"client")))
            assert (await reader.readexactly(4))[3] == 0
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _mqtt(kind: int, body: bytes) -> bytes:
    """One MQTT control packet."""
    head, size = bytes((kind,)), len(body)
    while size > 127:
        head += bytes((size & 127 | 128,))
        size >>= 7
    return head + bytes((size,)) + body


async def test_events_of_an_account_whose_name_has_spaces_are_skipped(tmp_path: Path) -> None:
    config = _accounts().replace("BOB:", '"bob and carol":')
    async with (
        running_nats(tmp_path, config) as server,
        broker_in_process(RealVfs(tmp_path / "data"), _url(server, "sys")) as broker,
        await aio.connect(broker.address) as client,
    ):
        await client.create_stream("own", "$SYS.ACCOUNT.>", acks="never")
        await _other_client(server)

        async def are_skipped() -> bool:
            return (await client.status()).nats.messages_skipped >= 2

        await eventually(are_skipped, "connect and disconnect")
        assert _has_lost_nothing(broker.driver)


@each_change
async def test_what_jetstream_republishes_is_stored_with_what_its_scheduler_says(tmp_path: Path) -> None:
    """It comes without a reply subject: what was refused would be lost, and nobody would hear of it."""
    async with (
        running_nats(tmp_path, f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}") as server,
        broker_in_process(RealVfs(tmp_path / "data"), server.url) as broker,
        await aio.connect(broker.address) as client,
        _connected(server) as connection,
    ):
        await client.create_stream("copies", "copies.>")
        config = {
            "name": "SOURCE", "subjects": ["at.>", "source.>"], "retention": "limits", "storage": "file",
            "num_replicas": 1, "allow_msg_schedules": True, "allow_msg_ttl": True,
            "republish": {"src": "source.>", "dest": "copies.>"},
        }  # fmt: skip
        made = await connection.request("$JS.API.STREAM.CREATE.SOURCE", json.dumps(config).encode())
        assert "error" not in json.loads(made.data), made.data
        headers = {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "source.planned"}
        await connection.jetstream().publish("at.one", b"planned", headers=headers)

        async def is_stored() -> bool:
            return (await client.offsets("copies", "latest")).offset == 1

        await eventually(is_stored, "what the scheduler has published")
        await connection.jetstream().publish("source.plain", b"plain", headers={"Nats-Msg-Id": "1"})

        async def are_stored() -> bool:
            return (await client.offsets("copies", "latest")).offset == 2

        await eventually(are_stored, "what a publisher has published")
        found = {one.value: (one.subject, dict(one.headers or {})) async for one in client.messages("copies")}
        assert found[b"planned"][0] == "copies.planned"
        assert found[b"planned"][1].items() >= {"Nats-Scheduler": "at.one", "Nats-Schedule-Next": "purge"}.items()
        assert found[b"plain"][1].items() >= {"Nats-Stream": "SOURCE", "Nats-Subject": "source.plain"}.items()
        assert (await client.stream("copies")).partitions[0].dropped == {}
