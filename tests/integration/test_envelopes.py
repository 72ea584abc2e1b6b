"""Envelopes through a real nats-server: from a publisher that knows Liftbridge and not us, and from our client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Nats

import penstock
from penstock import aio
from penstock.client.envelope_format import ack_class, ack_in, message_class
from tests.broker_process import BrokerProcess
from tests.envelopes import INCORRECT_OFFSET, enveloped
from tests.extent import each_change

pytest.importorskip("google.protobuf")
LEADER, ALL, NONE = range(3)


@pytest.fixture
async def publisher(broker: BrokerProcess) -> AsyncIterator[Nats]:
    connection = await nats.connect(broker.nats_url)
    yield connection
    await connection.close()


def written(**fields: Any) -> bytes:
    """An envelope as the protobuf library and Liftbridge's header make it."""
    return enveloped(message_class()(**fields).SerializeToString(), crc=fields.get("key") == b"with crc")


@each_change
async def test_an_unmodified_liftbridge_publisher_is_acked(
    broker: BrokerProcess, client: aio.Client, publisher: Nats
) -> None:
    await client.create_stream("lift", "lift.>", acks="envelope")
    inbox = publisher.new_inbox()
    acks = await publisher.subscribe(inbox)
    for number, policy in enumerate((LEADER, ALL, NONE, ALL)):
        fields = {"value": b"v%d" % number, "headers": {"N": b"%d" % number}, "correlation_id": f"c{number}"}
        key = b"with crc" if number % 2 else b"k"
        await publisher.publish("lift.a", written(key=key, ack_inbox=inbox, ack_policy=policy, **fields))
    got = {}
    for _ in range(3):
        ack = ack_in((await acks.next_msg(timeout=30)).data)
        got[ack.correlation_id] = ack
    assert {name: (ack.offset, ack.ack_policy) for name, ack in got.items()} == {
        "c0": (0, LEADER), "c1": (1, ALL), "c3": (3, ALL)
    }  # fmt: skip
    one = got["c3"]
    assert (one.stream, one.partition_subject, one.msg_subject) == ("lift", "lift.>", "lift.a")
    assert (one.ack_inbox, one.ack_error, one.got_fsynced) == (inbox, 0, True)
    assert one.reception_timestamp > 1_600_000_000 * 10**9
    stored = [message async for message in client.messages("lift")]
    assert [message.value for message in stored] == [b"v0", b"v1", b"v2", b"v3"]
    assert [message.key for message in stored] == [b"k", b"with crc"] * 2
    assert [message.headers["N"] for message in stored] == ["0", "1", "2", "3"]
    # The reply subject of a plain message is the application's; that of an envelope is taken where it has no inbox.
    await publisher.publish("lift.a", b"plain", reply=inbox)
    await publisher.publish("lift.a", written(value=b"last", correlation_id="last"), reply=inbox)
    assert ack_in((await acks.next_msg(timeout=30)).data).correlation_id == "last"
    assert (await client.stream("lift")).partitions[0].log_end == 6


async def test_hostile_envelopes_are_stored_or_refused_and_the_broker_stays_well(
    client: aio.Client, publisher: Nats
) -> None:
    await client.create_stream("hostile", "hostile")
    killer = bytes.fromhex("b90e43b400ff0000")
    inbox = publisher.new_inbox()
    replies = await publisher.subscribe(inbox)
    await publisher.publish("hostile", killer, reply=inbox)
    assert json.loads((await replies.next_msg(timeout=30)).data)["offset"] == 0
    for wrong in ("a b", "x" * 4_000, "$JS.API.STREAM.DELETE.hostile", "a\r\nPUB x 0\r\n", "*"):
        await publisher.publish("hostile", written(value=b"x", ack_inbox=wrong, correlation_id="c"), reply=inbox)
        ack = ack_in((await replies.next_msg(timeout=30)).data)
        assert (ack.ack_error, ack.correlation_id) == (1, "c")
        assert "ack_inbox" in json.loads(ack.error_body)["error"]["description"]
    await publisher.publish("hostile", written(value=b"x", headers={"A": b"1\r\nPenstock-Key: forged"}), reply=inbox)
    assert ack_in((await replies.next_msg(timeout=30)).data).ack_error == 1
    await publisher.publish("hostile", written(value=b"x", offset=7, correlation_id="c"), reply=inbox)
    refused = ack_in((await replies.next_msg(timeout=30)).data)
    assert refused.ack_error == INCORRECT_OFFSET
    await publisher.publish("hostile", written(value=b"next", offset=1, ack_policy=ALL), reply=inbox)
    assert ack_in((await replies.next_msg(timeout=30)).data).offset == 1
    values = [message.value async for message in client.messages("hostile")]
    assert values == [killer, b"next"]
    assert isinstance(refused, ack_class())


@each_change
async def test_the_client_publishes_in_envelopes(client: aio.Client) -> None:
    await client.create_stream("ours", "ours.>", acks="envelope")
    first = await client.publish(
        "ours.a", b"one", key=b"\x00", headers={"A": "ü"}, envelope=penstock.Envelope("c-1", expected_offset=0)
    )
    assert first == penstock.PubAck("ours", 0, 0, False, first.leader_epoch, 1, True, "c-1")
    with pytest.raises(penstock.RemoteError, match="wrong last sequence: 1") as refused:
        await client.publish("ours.a", b"late", envelope=penstock.Envelope(expected_offset=0))
    assert refused.value.code == "nats_10071"
    early = await client.publish("ours.a", b"two", ack="leader", envelope=penstock.Envelope(crc=True))
    assert early.offset == 1
    await client.publish("ours.a", None, key=b"\x00", ack="none", envelope=penstock.Envelope())
    everywhere = await client.publish_to_all("ours.b", b"four", envelope=penstock.Envelope("all"))
    assert everywhere["ours"][1] == 3
    many = [await client.publish_nowait("ours.c", b"%d" % n, envelope=penstock.Envelope(str(n))) for n in range(200)]
    acks = await asyncio.gather(*many)
    got = [(ack.offset, ack.correlation_id) for ack in acks if ack is not None]
    assert got == [(4 + n, str(n)) for n in range(200)]
    stored = [message async for message in client.messages("ours", 0, end=4)]
    assert [message.value for message in stored] == [b"one", b"two", None, b"four"]
    assert (stored[0].key, stored[0].headers["A"]) == (b"\x00", "ü")
    with pytest.raises(penstock.StreamNotFound):
        await client.publish("nobody.here", b"x", envelope=penstock.Envelope(), timeout=20)


async def test_partitions_name_themselves(client: aio.Client) -> None:
    await client.create_stream("parts", "parts", partitions=3, acks="envelope")
    acks = [await client.publish("parts", b"x", key=f"k{n}", envelope=penstock.Envelope()) for n in range(12)]
    assert {ack.partition for ack in acks} == {0, 1, 2}
