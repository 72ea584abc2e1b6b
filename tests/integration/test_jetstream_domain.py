"""Clients of a JetStream domain, with a real nats-server."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest
from nats.errors import NoRespondersError

from penstock import aio
from tests.broker_process import running_broker
from tests.extent import each_change


@each_change
@pytest.mark.parametrize("api", ["domain", "off"])
async def test_values_of_a_bucket_that_are_published_behind_the_prefix_are_stored(tmp_path: Path, api: str) -> None:
    """nats.go puts them on `$JS.<domain>.API.$KV.<bucket>.<key>`; they keep their order with those on `$KV.…`."""
    with running_broker(tmp_path, "--jetstream-api", api, "--jetstream-domain", "hub") as broker:
        async with aio.connect(broker.client_address) as client:
            await client.create_stream("KV_b", "$KV.b.>")
            connection = await nats.connect(broker.nats_url)
            try:
                if api == "off":
                    with pytest.raises(NoRespondersError):
                        await connection.request("$JS.hub.API.$KV.b.k", b"", timeout=10)
                    return
                sent = []
                for number in range(200):
                    subject = f"$KV.b.k{number % 3}"
                    await connection.publish(subject if number % 2 else f"$JS.hub.API.{subject}", b"%d" % number)
                    sent.append((subject, b"%d" % number))
                ack = await connection.request("$JS.hub.API.$KV.b.last", b"end", timeout=10)
                assert json.loads(ack.data) | {"seq": 201, "domain": "hub"} == json.loads(ack.data)
                info = await connection.request("$JS.hub.API.STREAM.INFO.KV_b", b"", timeout=10)
                assert json.loads(info.data)["domain"] == "hub"
            finally:
                await connection.close()
            stored = [(message.subject, message.value) async for message in client.messages("KV_b")]
            assert stored == [*sent, ("$KV.b.last", b"end")]
