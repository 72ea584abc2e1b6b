"""What programs of Penstock do with key-value buckets of nats-py."""

from __future__ import annotations

from pathlib import Path

from penstock import aio
from tests.broker_process import running_broker
from tests.extent import each_change
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected


@each_change
async def test_a_table_follows_a_bucket(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection, aio.connect(broker.client_address) as client:
            await delivering(connection)
            js = connection.jetstream()
            bucket = await js.create_key_value(bucket="b", history=5)
            for key in ("a", "b.x", "gone", "purged"):
                await bucket.put(key, b"1")
            await bucket.delete("gone")
            async with await client.table("KV_b") as table:
                assert {key: one.value for key, one in table.items()} == dict.fromkeys([b"a", b"b.x", b"purged"], b"1")
                changes = table.changes()
                await bucket.purge("purged")
                await bucket.update("a", b"2", last=1)
                # nats.go puts so, in a domain
                await connection.request("$JS.penstock.API.$KV.b.domain", b"3", timeout=10)
                seq = await bucket.put("gone", b"")
                await table.wait_for(seq - 1)
                assert {key: one.value for key, one in table.items()} == {
                    b"a": b"2", b"b.x": b"1", b"domain": b"3", b"gone": b""
                }  # fmt: skip
                assert sorted(table, key=lambda key: table[key].offset) == [
                    key.encode() for key in sorted(await bucket.keys(), key=["b.x", "a", "domain", "gone"].index)
                ]
                first = await anext(changes)
                assert (first.key, first.is_tombstone) == (b"purged", True)
