"""The main path with real processes: published by an unmodified nats-py, acked as by JetStream, read to the byte."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess
from tests.extent import HAS_TIME, each_change, extent


@pytest.fixture
async def publisher(broker: BrokerProcess) -> AsyncIterator[Nats]:
    connection = await nats.connect(broker.nats_url)
    yield connection
    await connection.close()


@pytest.fixture
def js(publisher: Nats) -> JetStreamContext:
    return publisher.jetstream()


async def _messages(client: aio.Client, stream: str) -> list[penstock.Message]:
    return [message async for message in client.messages(stream)]


async def _acks(publisher: Nats, subject: str, count: int, value: bytes = b"x", **headers: str) -> list[dict[str, Any]]:
    """The first `count` replies to one message, decoded, by the stream's name."""
    inbox = publisher.new_inbox()
    replies = await publisher.subscribe(inbox)
    await publisher.publish(
        subject, value, reply=inbox, headers={name.replace("_", "-"): text for name, text in headers.items()} or None
    )
    found = [json.loads((await replies.next_msg(timeout=30)).data) for _ in range(count)]
    await replies.unsubscribe()
    return sorted(found, key=lambda ack: str(ack["stream"]))


@each_change
async def test_an_unmodified_publisher_is_acked_and_every_byte_is_read_back(
    broker: BrokerProcess, client: aio.Client, js: JetStreamContext
) -> None:
    await client.create_stream("bytes", "bytes.>")
    binary = bytes(range(256)) * 40
    sent: list[tuple[str, bytes, dict[str, str] | None]] = [
        ("bytes.plain", b"hello", None),
        ("bytes.empty", b"", None),
        ("bytes.binary", binary, {"Penstock-Key": "N123"}),
        ("bytes.ünïcødé.日本", "größe".encode(), {"X-Own": "a b: c", "x-own": "other case"}),
        ("bytes.gone", b"", {"Penstock-Key": "N123", "Penstock-Tombstone": "1"}),
        ("bytes.large", random.Random(5).randbytes(3_000_000), None),
        ("bytes.crlf", b"\r\nMSG bytes.x 1 5\r\nhello\r\n", None),
    ]
    for offset, (subject, value, headers) in enumerate(sent):
        ack = await js.publish(subject, value, headers=headers)
        assert (ack.stream, ack.seq, ack.duplicate) == ("bytes", offset + 1, None)
    found = await _messages(client, "bytes")
    assert [message.offset for message in found] == list(range(len(sent)))
    assert [message.subject for message in found] == [subject for subject, _, _ in sent]
    assert [message.value for message in found] == [*(value for _, value, _ in sent[:4]), None, sent[5][1], sent[6][1]]
    assert [message.key for message in found] == [None, None, b"N123", None, b"N123", None, None]
    assert [message.is_tombstone for message in found].index(True) == 4
    assert found[3].headers["X-Own"] == "a b: c"
    assert found[3].headers["x-own"] == "other case"
    assert found[0].headers.raw is None
    assert found == sorted(found, key=lambda message: message.timestamp_us)
    with penstock.connect(broker.client_address) as blocking:
        assert list(blocking.messages("bytes")) == found
        table = blocking.to_table("bytes")
    assert table.column("value").to_pylist() == [message.value for message in found]
    assert (await client.get("bytes", 2)) == found[2]
    assert (await client.last("bytes", key="N123")) == found[4]
    assert (await client.last("bytes", subject="bytes.plain")) == found[0]


async def test_the_ack_says_what_was_got(client: aio.Client, publisher: Nats) -> None:
    await client.create_stream("said", "said")
    (ack,) = await _acks(publisher, "said", 1)
    assert ack == {
        "stream": "said", "seq": 1, "offset": 0, "partition": 0, "epoch": 1, "replicas": 1, "fsynced": True,
    }  # fmt: skip
    (ack,) = await _acks(publisher, "said", 1, Penstock_Ack="leader")
    assert (ack["offset"], ack["fsynced"]) == (1, False)
    await client.create_stream("cached", "cached", durability="os")
    (ack,) = await _acks(publisher, "cached", 1)
    assert (ack["offset"], ack["fsynced"]) == (0, False)


@each_change
async def test_a_window_of_async_publishes_keeps_its_order(client: aio.Client, js: JetStreamContext) -> None:
    await client.create_stream("window", "window.*")
    futures = [await js.publish_async(f"window.{number % 7}", b"%d" % number) for number in range(5_000)]
    acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 5_001))
    found = await _messages(client, "window")
    assert [(message.offset, message.subject, message.value) for message in found] == [
        (number, f"window.{number % 7}", b"%d" % number) for number in range(5_000)
    ]


async def test_each_publisher_keeps_its_order(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("order", "order.>")

    async def publish(name: int) -> None:
        connection = await nats.connect(broker.nats_url)
        js = connection.jetstream()
        futures = [await js.publish_async(f"order.{name}", b"%d" % number) for number in range(1_000)]
        acks = await asyncio.gather(*futures)
        assert [ack.seq for ack in acks] == sorted(ack.seq for ack in acks)
        await connection.close()

    await asyncio.gather(*map(publish, range(5)))
    found = await _messages(client, "order")
    assert [message.offset for message in found] == list(range(5_000))
    for name in range(5):
        own = [message.value for message in found if message.subject == f"order.{name}"]
        assert own == [b"%d" % number for number in range(1_000)]


async def test_streams_on_overlapping_subjects_each_get_their_copy_and_ack(
    client: aio.Client, publisher: Nats, js: JetStreamContext
) -> None:
    for name, subject in (("all", "lap.>"), ("star", "lap.*.AA"), ("one", "lap.JFK.AA"), ("twin", "lap.JFK.AA")):
        await client.create_stream(name, subject)
    await client.create_stream("quiet", "lap.>", acks="never")
    expected = {"lap.JFK.AA": ["all", "one", "star", "twin"], "lap.LGA.AA": ["all", "star"], "lap.x": ["all"]}
    for subject, streams in expected.items():
        acks = await _acks(publisher, subject, len(streams), subject.encode())
        assert [ack["stream"] for ack in acks] == streams
        found = [info.name for info in await client.streams_for(subject)]
        assert found == sorted([*streams, "quiet"])
    stored = {name: [message.subject for message in await _messages(client, name)] for name in ("all", "star", "one")}
    assert stored == {"all": list(expected), "star": ["lap.JFK.AA", "lap.LGA.AA"], "one": ["lap.JFK.AA"]}
    assert [message.value for message in await _messages(client, "twin")] == [b"lap.JFK.AA"]
    assert [message.subject for message in await _messages(client, "quiet")] == list(expected)
    by_name = await client.publish_to_all("lap.JFK.AA", b"again")
    assert {name: ack.offset for name, ack in by_name.items()} == {"all": 3, "star": 2, "one": 1, "twin": 1}
    # Named, only one of them answers, and only that one stores.
    own = await js.publish("lap.JFK.AA", b"for one", stream="one")
    assert (own.stream, own.seq) == ("one", 3)
    assert (await client.stream("twin")).partitions[0].log_end == 2


async def test_a_service_on_a_streams_subject_answers_its_requester(client: aio.Client, publisher: Nats) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"answer to " + message.data)

    for acks in ("never", "envelope"):
        await client.create_stream(f"served-{acks}", f"served.{acks}", acks=acks)
        service = await publisher.subscribe(f"served.{acks}", cb=answer)
        for number in range(50):
            reply = await publisher.request(f"served.{acks}", b"%d" % number, timeout=30)
            assert reply.data == b"answer to %d" % number
        await service.unsubscribe()
        reader = client.messages(f"served-{acks}", follow=True)
        stored = [(await anext(reader)).value for _ in range(50)]
        await reader.aclose()
        assert stored == [b"%d" % number for number in range(50)]


async def test_the_publisher_may_want_no_ack(client: aio.Client, publisher: Nats, js: JetStreamContext) -> None:
    await client.create_stream("silent", "silent")
    inbox = publisher.new_inbox()
    replies = await publisher.subscribe(inbox)
    await publisher.publish("silent", b"none", reply=inbox, headers={"Penstock-Ack": "none"})
    await publisher.publish("silent", b"all", reply=inbox)
    assert json.loads((await replies.next_msg(timeout=30)).data)["offset"] == 1
    await publisher.publish("silent", b"without a reply subject")
    assert (await js.publish("silent", b"last")).seq == 4
    assert replies.pending_msgs == 0
    with pytest.raises(APIError, match="Penstock-Ack") as refused:
        await js.publish("silent", b"", headers={"Penstock-Ack": "most"})
    assert refused.value.err_code == 10003
    values = [message.value for message in await _messages(client, "silent")]
    assert values == [b"none", b"all", b"without a reply subject", b"last"]


async def test_expectations_are_checked_and_refused_in_jetstreams_words(
    client: aio.Client, js: JetStreamContext
) -> None:
    await client.create_stream("expect", "expect", max_message_bytes=1_000)

    async def refusal(value: bytes = b"", **headers: str) -> int | None:
        with pytest.raises(APIError) as refused:
            await js.publish("expect", value, headers={name.replace("_", "-"): text for name, text in headers.items()})
        assert refused.value.stream is None or refused.value.stream == "expect"
        return refused.value.err_code

    assert (await js.publish("expect", b"1", headers={"Nats-Expected-Last-Sequence": "0"})).seq == 1
    assert (await js.publish("expect", b"2", headers={"Nats-Expected-Last-Sequence": "1"})).seq == 2
    assert await refusal(Nats_Expected_Last_Sequence="1") == 10071
    assert await refusal(Nats_Expected_Last_Sequence="two") == 10071
    assert await refusal(bytes(1_001)) == 10054
    assert await refusal(Nats_Rollup="all") == 10111
    assert await refusal(Nats_TTL="1h") == 10166
    assert await refusal(Penstock_Key_Base64="not base64!") == 10003
    await client.alter_stream("expect", max_message_bytes=1_000_000)
    assert await refusal(X_Large="x" * 70_000) == 10097
    assert await refusal(Nats_Expected_Stream="another") == 10060
    await client.create_stream("expect-too", "expect")
    with pytest.raises(nats.errors.TimeoutError):  # that one may have been meant
        await js.publish("expect", b"", stream="another", timeout=0.2)
    await client.delete_stream("expect-too")
    with pytest.raises(NoStreamResponseError):
        await js.publish("nobody.stores.this", b"")
    assert [message.value for message in await _messages(client, "expect")] == [b"1", b"2"]
    dropped = (await client.stream("expect")).partitions[0].dropped
    assert dropped == {"refused": 5, "unmet_expectation": 2, "other_stream": 2}


async def test_a_stream_on_everything_leaves_inboxes_and_system_subjects_alone(
    client: aio.Client, publisher: Nats
) -> None:
    await client.create_stream("everything", ">", acks="never")
    await client.create_stream("boxes", "_INBOX.mine.*", acks="never")
    for subject in ("_INBOX.mine.1", "$SYS.x", "$JS.API.INFO", "$PENSTOCK.x", "everything.else"):
        await publisher.publish(subject, subject.encode())
    await publisher.flush()
    reader = client.messages("everything", follow=True)
    subjects = [(await anext(reader)).subject]
    await reader.aclose()
    assert subjects == ["everything.else"]
    reader = client.messages("boxes", follow=True)
    assert (await anext(reader)).subject == "_INBOX.mine.1"
    await reader.aclose()
    assert (await client.stream("boxes")).partitions[0].log_end == 1
    await client.delete_stream("everything")


@each_change
async def test_what_is_published_straight_after_create_is_stored(client: aio.Client, js: JetStreamContext) -> None:
    count = extent(200 if HAS_TIME else 50, 1_000)
    for number in range(count):
        name = f"straight-{number}"
        await client.create_stream(name, f"straight.{number}", storage="memory" if number % 2 else "file")
        ack = await js.publish(f"straight.{number}", b"%d" % number, timeout=10)
        assert (ack.stream, ack.seq) == (name, 1), number
    for number in (0, 1, count - 2, count - 1):
        assert [message.value for message in await _messages(client, f"straight-{number}")] == [b"%d" % number]
    for number in range(count):
        await client.delete_stream(f"straight-{number}")
    assert not [info.name for info in await client.streams() if info.name.startswith("straight")]
