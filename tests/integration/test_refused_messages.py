"""What a publisher on a real nats-server cannot have: it is told so, and nothing of it is stored."""

from __future__ import annotations

import socket

import pytest
from nats.js.errors import APIError

from penstock import aio
from tests.broker_process import BrokerProcess
from tests.integration.publishers import connected_to

ASKING = [
    "Nats-Batch-Id",
    "Nats-Incr",
    "Nats-Schedule",
    "Nats-Required-Api-Level",
    "Nats-Expected-Last-Subject-Sequence-Subject",
]


async def test_headers_that_ask_for_what_is_not_done(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("asking", "asking")
    async with connected_to(broker.nats_url) as connection:
        js = connection.jetstream()
        for name in ASKING:
            with pytest.raises(APIError, match=name) as refused:
                await js.publish("asking", b"no", headers={name: "1"})
            assert refused.value.err_code == 10003
        with pytest.raises(APIError) as wrong:
            await js.publish("asking", b"no", headers={"Nats-Expected-Last-Sequence": "0" * 19 + "09"})
        assert wrong.value.err_code == 10071
        assert (await js.publish("asking", b"yes", headers={"Nats-Stream": "elsewhere", "Nats-Sequence": "7"})).seq == 1
    assert [message.value async for message in client.messages("asking")] == [b"yes"]


async def test_subjects_that_the_socket_would_refuse(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("literal", "literal.>")
    host, _, port = broker.nats_url.removeprefix("nats://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB heard 1\r\n')
        for subject in (b"literal.*", b"literal.>", b"literal.\x07", b"literal." + b"x" * 1_100, b"literal.good"):
            raw.sendall(b"PUB %s heard 1\r\nx\r\n" % subject)
        received = b""
        while received.count(b"MSG heard 1 ") < 5:
            part = raw.recv(65_536)
            assert part, received
            received += part
    assert received.count(b'"err_code":10003') == 4
    assert [message.subject async for message in client.messages("literal")] == ["literal.good"]
    assert (await client.stream("literal")).partitions[0].dropped == {"refused": 4}
