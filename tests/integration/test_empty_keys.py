"""An empty key is no key, whichever way a message comes in; and compaction leaves such messages alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base.config import StreamConfig
from penstock.batch.schema import arrow_schema
from penstock.client.bulk.placing import Placer, create_paused
from tests.broker_process import BrokerProcess
from tests.cli_process import command
from tests.envelopes import enveloped, message
from tests.extent import each_change
from tests.integration.publishers import connected_to

VALUES = [b"1", b"2", b"3"]
ROWS = [{"key": b"", "value": value} for value in VALUES]


async def over_nats(broker: BrokerProcess, name: str, header: str | None, *, in_envelope: bool = False) -> None:
    async with connected_to(broker.nats_url) as connection:
        for value in VALUES:
            data = enveloped(message({"key": b"", "value": value, "ack_policy": 1})) if in_envelope else value
            await connection.request(name, data, timeout=60, headers=None if header is None else {header: ""})


async def by_header(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    await over_nats(broker, name, "Penstock-Key")


async def by_encoded_header(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    await over_nats(broker, name, "Penstock-Key-Base64")


async def by_envelope(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    await over_nats(broker, name, None, in_envelope=True)


async def by_header_where_keys_decide(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True, partitions=3, partition_by="key")
    await over_nats(broker, name, "Penstock-Key")


async def by_append(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    await client.append(name, ROWS)


async def by_append_where_keys_decide(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    info = await client.create_stream(name, name, compact=True, partitions=3, partition_by="key")
    table = pa.table({"key": [b""] * 3, "value": VALUES, "subject": [name] * 3})
    (partition,) = set(penstock.partitions_of(table, info).to_pylist())
    await client.append(info, table, partition=partition)


async def by_producer(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    await client.producer(name).append(ROWS)


async def by_staging(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await client.create_stream(name, name, compact=True)
    staged = await client.staging.stage(name, ROWS)
    await client.staging.publish(name, [staged], query_id=uuid4(), batch_id=0)


async def by_relay(broker: BrokerProcess, client: aio.Client, name: str) -> None:
    await by_append(broker, client, f"{name}-source")
    await client.create_stream(name, name, compact=True)
    await command(broker.client_address, "relay", f"{name}-source", "--to", name)


Way = Callable[[BrokerProcess, aio.Client, str], Awaitable[None]]
WAYS = [by_header, by_encoded_header, by_envelope, by_header_where_keys_decide, by_append, by_append_where_keys_decide,
        by_producer, by_staging, by_relay]  # fmt: skip


@each_change
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_it_is_stored_without_a_key(broker: BrokerProcess, client: aio.Client, way: Way) -> None:
    name = way.__name__.replace("_", "-")
    await way(broker, client, name)
    found = [(one.key, one.value) async for one in client.messages(name)]
    assert found == [(None, value) for value in VALUES]


async def test_who_says_so_himself_is_refused(client: aio.Client) -> None:
    await client.create_stream("said", "said", compact=True)
    with pytest.raises(ValueError, match="an empty key cannot be published; None means no key"):
        await client.publish("said", b"v", key=b"")


async def test_a_copy_or_a_restore_of_an_older_log_has_the_same_rows(broker: BrokerProcess, client: aio.Client) -> None:
    columns = [[0, 1, 2], [1, 2, 3], ["placed"] * 3, [b""] * 3, VALUES, [None] * 3]
    rows = [pa.array(column, field.type) for column, field in zip(columns, arrow_schema(), strict=True)]
    with penstock.connect(broker.client_address) as other:
        info = create_paused(other, StreamConfig(name="placed", subject="placed", compact=True))
        Placer(other, info).put(pa.RecordBatch.from_arrays(rows, schema=arrow_schema()))
    assert [(one.key, one.value) async for one in client.messages("placed")] == [(b"", value) for value in VALUES]
