"""MSG.GET and DIRECT.GET beside a real JetStream that stores the same messages: the same bytes, but for times."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nats
from nats.js.api import StreamConfig

from penstock import aio
from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster

TIMEOUT_S = 60
_HMSG = re.compile(rb"HMSG \S+ 1 (\d+) (\d+)\r\n")
_MSG = re.compile(rb"MSG \S+ 1 (\d+)\r\n")
_TIME = re.compile(rb'(Nats-Time-Stamp: |"time":")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d*[1-9])?Z')
_END = re.compile(rb"^NATS/1.0 (204|40[048]|41[23]|500|503)")
_INVALID_JSON = re.compile(rb'"description":"invalid JSON: .*?[^\\]"')


class RawNats:
    """A connection to nats-server that shows the bytes of messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = 0

    async def ask(
        self, subject: str, payload: bytes = b"", headers: bytes = b"", *, is_batch: bool = False
    ) -> list[bytes]:
        """Return the answers: header block and value of each, up to the end of a batch."""
        self._numbers += 1
        inbox = f"_INBOX.raw.{self._numbers}"
        size = len(headers) + len(payload)
        head = f"HPUB {subject} {inbox} {len(headers)} {size}" if headers else f"PUB {subject} {inbox} {size}"
        self._writer.write(f"SUB {inbox} 1\r\n{head}\r\n".encode() + headers + payload + b"\r\n")
        found: list[bytes] = []
        async with asyncio.timeout(TIMEOUT_S):
            while not found or (is_batch and not _END.match(found[-1])):
                found.append(await self._message())
        self._writer.write(b"UNSUB 1\r\n")
        return found

    async def _message(self) -> bytes:
        while True:
            line = await self._reader.readline()
            assert line
            assert not line.startswith(b"-ERR"), line
            if line == b"PING\r\n":
                self._writer.write(b"PONG\r\n")
            elif (found := _HMSG.match(line)) or (found := _MSG.match(line)):
                size = int(found[found.lastindex or 1])
                return (await self._reader.readexactly(size + 2))[:-2]


@asynccontextmanager
async def raw_nats(url: str) -> AsyncIterator[RawNats]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        await reader.readline()
        options: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
        }
        if parts.username:
            options |= {"user": parts.username, "pass": parts.password}
        writer.write(b"CONNECT %b\r\n" % json.dumps(options).encode())
        yield RawNats(reader, writer)
    finally:
        writer.close()


MESSAGES = [
    ("orders.eu", b"one", {}),
    ("orders.us", b"two", {"A": "b"}),
    ("orders.eu", b"", {}),
    ("orders.eu.paris", b"four", {"Nats-Msg-Id": "4", "C": "d, e"}),
    ("orders.us", b"five" * 100, {}),
    ("orders.eu", b"six\r\nPUB x 1\r\n", {}),
    ("orders.asia", b"deleted", {}),
    ("orders.eu.rome", b"eight", {}),
    ("orders.us", b"nine", {"A": "1"}),
    ("orders.asia", b"ten", {}),
    ("orders.asia", b"deleted", {}),
]
DELETED = (2, 7, 11)

OF_SUBJECTS = ["orders.eu", "orders.us", "orders.eu.*", "orders.>", "orders.none", "none", "orders.asia"]
DIRECT = [
    "",
    "{}",
    "no",
    '{"seq":1}',
    '{"seq":2}',
    '{"seq":3}',
    '{"seq":12}',
    '{"seq":0}',
    '{"seq":-1}',
    '{"seq":"1"}',
    '{"seq":4}',
    '{"seq":4,"no_hdr":true}',
    '{"seq":18446744073709551615}',
    '{"seq":18446744073709551616}',
    '{"last_by_subj":"orders.eu"}',
    '{"last_by_subj":"orders.*"}',
    '{"last_by_subj":"none"}',
    '{"seq":null,"last_by_subj":"orders.us"}',
    '{"last_by_subj":"orders.asia","no_hdr":true}',
    '{"last_by_subj":"orders..x"}',
    '{"unknown":1,"seq":1}',
    '{"SEQ":1}',
    '{"next_by_subj":"orders.us"}',
    '{"next_by_subj":"orders.us","seq":3}',
    '{"next_by_subj":"orders.us","seq":9}',
    '{"next_by_subj":"orders.us","seq":10}',
    '{"next_by_subj":"orders.eu.*","seq":2}',
    '{"next_by_subj":">","seq":7}',
    '{"seq":1,"last_by_subj":"orders.eu"}',
    '{"last_by_subj":"a","next_by_subj":"b"}',
    '{"last_by_subj":"a","batch":2}',
    '{"start_time":"TIME 3"}',
    '{"start_time":"TIME 3","seq":1}',
    '{"start_time":"2100-01-01T00:00:00Z"}',
    '{"start_time":"no"}',
    '{"start_time":"1999-01-01T00:00:00.123456789+02:00"}',
    '{"start_time":"TIME 5","next_by_subj":"orders.eu.>"}',
    '{"start_time":"TIME 2"}',
    '{"multi_last":["a"],"last_by_subj":"b"}',
    '{"multi_last":["a"],"next_by_subj":"b"}',
    '{"multi_last":["a"],"up_to_seq":1,"up_to_time":"TIME 3"}',
    '{"batch":3}',
    '{"max_bytes":3}',
    "[]",
    "1",
    '{"seq":1} x',
    '{"seq":1.5}',
]
BATCHES = [
    '{"seq":1,"batch":3}',
    '{"seq":1,"batch":100}',
    '{"seq":1,"batch":1}',
    '{"seq":7,"batch":2}',
    '{"seq":10,"batch":2}',
    '{"seq":11,"batch":2}',
    '{"seq":50,"batch":2}',
    '{"seq":1,"batch":-1}',
    '{"seq":1,"batch":4,"no_hdr":true}',
    '{"seq":1,"batch":9,"max_bytes":1}',
    '{"seq":1,"batch":9,"max_bytes":40}',
    '{"seq":1,"batch":9,"max_bytes":-5}',
    '{"next_by_subj":"orders.us","batch":9}',
    '{"next_by_subj":"orders.us","seq":6,"batch":9}',
    '{"next_by_subj":"orders.eu.>","batch":1}',
    '{"next_by_subj":"none","batch":2}',
    '{"start_time":"TIME 5","batch":3}',
    '{"start_time":"2100-01-01T00:00:00Z","batch":3}',
    '{"start_time":"TIME 5","next_by_subj":"orders.asia","batch":3}',
    '{"start_time":"TIME 1","batch":30}',
    '{"multi_last":["orders.eu","orders.us"]}',
    '{"multi_last":["orders.>"]}',
    '{"multi_last":[">"],"batch":2}',
    '{"multi_last":["none"]}',
    '{"multi_last":["orders.>","orders.eu"],"up_to_seq":5}',
    '{"multi_last":["orders.us"],"up_to_seq":1}',
    '{"multi_last":["orders.>"],"seq":8}',
    '{"multi_last":["orders.>"],"seq":80}',
    '{"multi_last":["orders.>"],"up_to_time":"TIME 6"}',
    '{"multi_last":["orders.>"],"up_to_time":"TIME 1"}',
    '{"multi_last":["orders.>"],"up_to_time":"2100-01-01T00:00:00Z"}',
    '{"multi_last":["orders.>"],"max_bytes":10}',
    '{"multi_last":["orders.>"],"no_hdr":true}',
    '{"multi_last":["orders.eu","none"],"batch":-3}',
    '{"multi_last":["orders.>"],"start_time":"TIME 6"}',
]
MSG_GET = [
    *(one for one in DIRECT if "multi" not in one),
    *('{"seq":1,"batch":1}', '{"seq":1,"max_bytes":1}', " {} "),
]


def normal(answers: list[bytes], prefix: str) -> list[bytes]:
    """The answers without what differs: times, the prefix of the API, Go's words for wrong JSON."""
    found = [_TIME.sub(rb"\1TIME", one).replace(prefix.encode(), b"API.") for one in answers]
    return [_INVALID_JSON.sub(b'"description":"invalid JSON"', one) for one in found]


@each_change
async def test_answers_are_those_of_jetstream(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", "--jetstream-api", "domain", nats=server.url) as broker,
    ):
        connection = await nats.connect(server.url)
        async with await broker.client() as client, raw_nats(server.url) as raw:
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="orders", subjects=["orders.>"], allow_direct=True))
            await js.add_stream(StreamConfig(name="closed", subjects=["closed"]))
            await client.create_stream("orders", "orders.>")
            for number, (subject, value, headers) in enumerate(MESSAGES):
                await connection.publish(subject, value, headers=headers or None)
                await connection.flush()
                await until_stored(js, client, number + 1)
            for seq in DELETED:
                await js.delete_msg("orders", seq)
            await client.delete("orders", [seq - 1 for seq in DELETED])
            different = []
            for subject, payload, headers, is_batch in requests():
                answers = []
                for prefix in ("$JS.API.", "$JS.penstock.API."):
                    text = payload
                    if (found := re.search(r"TIME (\d+)", payload)) is not None:
                        text = payload.replace(found[0], await time_of(raw, prefix, int(found[1])))
                    answers.append(
                        normal(await raw.ask(prefix + subject, text.encode(), headers, is_batch=is_batch), prefix)
                    )
                if answers[0] != answers[1]:
                    different.append(f"{subject} {payload} {headers!r}\n  {answers[0]}\n  {answers[1]}")
            assert not different, "\n".join(different)
        await connection.close()


@needs_time
async def test_a_get_sees_each_ack_whichever_broker_takes_it(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, "--jetstream-api", "domain") as cluster:
        await cluster.all_live()
        connection = await nats.connect(cluster.nats.url)
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>")
            js = connection.jetstream()

            async def publish_and_get(name: str) -> None:
                for number in range(100):
                    ack = await js.publish(f"orders.{name}", b"%d" % number, timeout=TIMEOUT_S)
                    found = await connection.request(
                        f"$JS.penstock.API.DIRECT.GET.orders.orders.{name}", b"", timeout=TIMEOUT_S
                    )
                    assert found.data == b"%d" % number
                    assert found.headers is not None
                    assert found.headers["Nats-Sequence"] == str(ack.seq)

            async with asyncio.TaskGroup() as tasks:
                for name in "abcd":
                    tasks.create_task(publish_and_get(name))
        await connection.close()


def requests() -> list[tuple[str, str, bytes, bool]]:
    """Subject behind the prefix, payload, headers, and if the answer is a batch."""
    level = b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n"
    return [
        *(("DIRECT.GET.orders", one, b"", False) for one in DIRECT),
        *(("DIRECT.GET.orders", one, b"", True) for one in BATCHES),
        *(("STREAM.MSG.GET.orders", one, b"", False) for one in MSG_GET),
        *((f"DIRECT.GET.orders.{one}", "", b"", False) for one in OF_SUBJECTS),
        ("DIRECT.GET.orders.orders.eu", '{"no_hdr":true}', b"", False),
        ("DIRECT.GET.orders.orders.eu", '{"seq":1}', b"", False),
        ("DIRECT.GET.orders.orders.eu", "no", b"", False),
        ("DIRECT.GET.orders.orders.eu", "{}", b"", False),
        ("DIRECT.GET.none", '{"seq":1}', b"", False),
        ("DIRECT.GET.none.orders.eu", "", b"", False),
        ("DIRECT.GET.closed", '{"seq":1}', b"", False),
        ("DIRECT.GET.closed.closed", "", b"", False),
        ("STREAM.MSG.GET.none", '{"seq":1}', b"", False),
        ("DIRECT.GET.orders", '{"seq":1}', level % b"1", False),
        ("DIRECT.GET.orders", '{"seq":1}', level % b"99", False),
        ("DIRECT.GET.orders.orders.eu", "", level % b"x", False),
    ]


async def time_of(raw: RawNats, prefix: str, seq: int) -> str:
    """The time of a message, as the system that stores it says."""
    (answer,) = await raw.ask(f"{prefix}DIRECT.GET.orders", b'{"seq":%d}' % seq)
    found = re.search(rb"Nats-Time-Stamp: (\S+)", answer)
    return "2000-01-01T00:00:00Z" if found is None else found[1].decode()


async def until_stored(js: nats.js.JetStreamContext, client: aio.Client, count: int) -> None:
    async def are_there() -> bool:
        return (await js.stream_info("orders")).state.last_seq >= count and (
            (await client.offsets("orders", "latest")).offset
        ) >= count

    await eventually(are_there, f"{count} messages are stored")
