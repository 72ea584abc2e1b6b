"""What a publisher on a real nats-server cannot have: it is told so, and nothing of it is stored."""

from __future__ import annotations

import socket

import pytest
from nats.js.errors import APIError

from penstock import aio
from tests.broker_process import BrokerProcess
from tests.extent import each_change
from tests.integration.publishers import connected_to

ASKING = {
    "Nats-Incr": (10168, "message counters is disabled"),
    "Nats-Batch-Id": (10174, "atomic publish is disabled"),
}
"""Headers, with the error of each in a stream that does not allow them."""

SPACES = ["literal.a\u00a0b", "literal.\u3000", "literal.a\u2028b"]
"""White space beyond ASCII, which is a character like others for nats-server."""


@each_change
async def test_headers_that_ask_for_what_is_not_done(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("asking", "asking")
    async with connected_to(broker.nats_url) as connection:
        js = connection.jetstream()
        for name, (code, text) in ASKING.items():
            with pytest.raises(APIError, match=text) as refused:
                await js.publish("asking", b"no", headers={name: "1"})
            assert refused.value.err_code == code
        with pytest.raises(APIError) as wrong:
            await js.publish("asking", b"no", headers={"Nats-Expected-Last-Sequence": "0" * 19 + "09"})
        assert wrong.value.err_code == 10071
        told = {"Nats-Stream": "elsewhere", "Nats-Scheduler": "x.s", "Nats-Schedule-Next": "purge"}
        assert (await js.publish("asking", b"yes", headers=told)).seq == 1
        assert (await js.publish("asking", b"too", headers={"Nats-Required-Api-Level": "4"})).seq == 2
    assert [message.value async for message in client.messages("asking")] == [b"yes", b"too"]


async def test_subjects_that_the_socket_would_refuse(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("literal", "literal.>")
    host, _, port = broker.nats_url.removeprefix("nats://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB heard 1\r\n')
        bad = (b"literal.*", b"literal.>", b"literal.\x07", b"literal." + b"x" * 1_100, b"literal.caf\xe9")
        for subject in (*bad, *map(str.encode, SPACES), b"literal.good"):
            raw.sendall(b"PUB %s heard 1\r\nx\r\n" % subject)
        raw.sendall(b"PUB literal.caf\xe9 1\r\nx\r\nPUB literal.last heard 1\r\nx\r\n")
        received = b""
        while received.count(b"MSG heard 1 ") < len(bad) + len(SPACES) + 2:
            part = raw.recv(65_536)
            assert part, received
            received += part
    assert received.count(b'"err_code":10003') == len(bad)
    stored = [message.subject async for message in client.messages("literal")]
    assert stored == [*SPACES, "literal.good", "literal.last"]
    assert (await client.stream("literal")).partitions[0].dropped == {"refused": len(bad) + 1}
    broker.logged(r"literal.*refused 1 messages that asked for no ack.*on literal\.caf\\xe9: .* not valid UTF-8")
