"""Append over the socket: from any table, beside NATS, and what the broker does not take."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pandas
import polars
import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.ids import StreamId
from penstock.batch import codec, layout
from penstock.batch.header import CRC_HEX_BYTES, CRC_POSITION
from penstock.hot.crc import crc32c_with_gap
from penstock.messages import AppendRequest, ErrorBody
from penstock.wire import decode_response, encode_request
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import each_change
from tests.groups import Columns, encoded
from tests.integration.publishers import connected_to
from tests.integration.raw_client import raw_client

ROWS = [
    {"subject": "rows.a", "key": "k1", "value": b"one", "headers": {"X-Name": "value"}},
    {"subject": "rows.b", "key": None, "value": b"", "headers": None},
    {"subject": "rows.ü", "key": b"\x00\xff", "value": None, "headers": None},
    {"subject": "rows.a", "key": "k1", "value": "größe", "headers": None},
]
BLOCK = b"NATS/1.0\r\nX-Name: value\r\n\r\n"
STORED = [
    ("rows.a", b"k1", b"one", BLOCK),
    ("rows.b", None, b"", None),
    ("rows.ü", b"\x00\xff", None, None),
    ("rows.a", b"k1", "größe".encode(), None),
]


def _table() -> pa.Table:
    names = ("subject", "key", "value", "headers")
    types = (pa.utf8(), pa.binary(), pa.binary(), pa.binary())
    return pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(names, zip(*STORED, strict=True), types, strict=True)
        }
    )


async def _stored(client: aio.Client, stream: str) -> list[tuple[str, bytes | None, bytes | None, bytes | None]]:
    found = [message async for message in client.messages(stream)]
    assert [message.offset for message in found] == list(range(len(found)))
    return [(message.subject, message.key, message.value, message.headers.raw) for message in found]


async def test_any_table_can_be_appended(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("rows", "rows.>")
    tables = (ROWS, _table(), _table().to_batches()[0], _table().to_pandas(), polars.from_arrow(_table()))
    for number, data in enumerate(tables):
        (result,) = await client.append("rows", data)
        assert (result.base_offset, result.end_offset, result.fsynced) == (4 * number, 4 * number + 4, True)
    assert await _stored(client, "rows") == STORED * 5
    with penstock.connect(broker.client_address) as blocking:
        blocking.append("rows", _table().slice(1, 2))
        frame = blocking.to_pandas("rows")
        assert isinstance(frame, pandas.DataFrame)
        assert isinstance(blocking.to_polars("rows"), polars.DataFrame)
        # What was read can be appended again as it is; it gets new offsets and timestamps.
        blocking.append("rows", frame)
    assert await _stored(client, "rows") == (STORED * 5 + STORED[1:3]) * 2


@each_change
async def test_a_large_table_goes_in_batches(client: aio.Client) -> None:
    await client.create_stream("big", "big")
    count = 3 * limits.BATCH_ROWS_MAX + 5
    table = pa.table({"value": pa.array([b"%d" % number for number in range(count)], pa.binary())})
    results = await client.append("big", table)
    assert [result.base_offset for result in results[1:]] == [result.end_offset for result in results[:-1]]
    assert results[-1].end_offset == count
    assert (await client.to_table("big", columns=["value"])).equals(table)


async def _keys_by_partition(client: aio.Client, stream: str) -> list[set[bytes | None]]:
    count = len((await client.stream(stream)).partitions)
    return [{one.key async for one in client.messages(stream, partition=number)} for number in range(count)]


@each_change
async def test_a_stream_made_anew_with_more_partitions_gets_each_row_where_it_belongs(
    broker: BrokerProcess, client: aio.Client
) -> None:
    """This client still knows the deleted stream, with another number of partitions."""
    rows = [{"key": f"k{number}", "value": b""} for number in range(40)]
    for before, now in ((1, 3), (3, 5), (5, 1)):
        await client.create_stream("anew", "anew", partitions=before)
        await client.append("anew", rows)
        async with await aio.connect(broker.client_address) as other:
            await other.delete_stream("anew")
            await other.create_stream("anew", "anew", partitions=now)
        await client.append("anew", rows)
        places = penstock.partitions_of(rows, now).to_pylist()
        expected = [{f"k{key}".encode() for key in range(40) if places[key] == number} for number in range(now)]
        assert await _keys_by_partition(client, "anew") == expected, (before, now)
        await client.delete_stream("anew")


@each_change
async def test_a_stream_that_was_looked_up_long_ago_is_looked_up_again(
    broker: BrokerProcess, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a key are taken by any partition, so no refusal tells of partitions that were added."""
    monkeypatch.setattr(limits, "PUBLISH_ROUTE_S", 0.0)
    await client.create_stream("aged", "aged", partitions=2)
    await client.append("aged", [{"value": b"0"}])
    async with await aio.connect(broker.client_address) as other:
        await other.alter_stream("aged", partitions=4)
    rows = [{"value": b"%d" % number} for number in range(100)]
    found = {one.partition: one.end_offset - one.base_offset for one in await client.append("aged", rows)}
    places = penstock.partitions_of(rows, await client.stream("aged")).to_pylist()
    assert found == {number: places.count(number) for number in range(4)}


@each_change
async def test_nothing_is_stored_if_one_partition_would_refuse_its_rows(client: aio.Client) -> None:
    await client.create_stream("whole", "whole.>", partitions=3, partition_by="key", max_message_bytes=1_000)
    good = [{"subject": "whole.a", "key": f"k{number}", "value": b""} for number in range(40)]
    for text, bad in (
        ("not one of this stream's", {"subject": "other.a", "key": "k1", "value": b""}),
        ("value and headers.* of 1001 bytes", {"subject": "whole.a", "key": "k1", "value": bytes(1_001)}),
        ("a key of", {"subject": "whole.a", "key": bytes(limits.KEY_BYTES_MAX + 1), "value": b""}),
    ):
        with pytest.raises(penstock.RemoteError, match=text) as refused:
            await client.append("whole", [*good, bad])
        assert "appended" not in refused.value.details
    assert await _keys_by_partition(client, "whole") == [set(), set(), set()]
    assert len(await client.append("whole", good)) == 3


async def test_rows_that_the_stream_does_not_take(client: aio.Client) -> None:
    await client.create_stream("picky", "picky.>")
    too_long = b"NATS/1.0\r\nA: %b\r\n\r\n" % bytes(limits.HEADER_BLOCK_BYTES_MAX)
    bad: dict[str, list[dict[str, object]]] = {
        "not one of this stream's": [{"subject": "other.a", "value": b""}],
        "wildcard": [{"subject": "picky.*", "value": b""}],
        "white space": [{"subject": "picky.a b", "value": b""}],
        "a key of": [{"subject": "picky.a", "value": b"", "key": bytes(limits.KEY_BYTES_MAX + 1)}],
        "a header block of": [{"subject": "picky.a", "value": b"", "headers": too_long}],
    }
    for text, rows in bad.items():
        with pytest.raises(penstock.RemoteError, match=text):
            await client.append("picky", [{"subject": "picky.good", "value": b"x"}, *rows])
    assert (await client.stream("picky")).partitions[0].log_end == 0


def _recrc(message: bytearray) -> bytes:
    message[CRC_POSITION : CRC_POSITION + CRC_HEX_BYTES] = b"%08x" % crc32c_with_gap(message, CRC_POSITION)
    return bytes(message)


def _message() -> bytearray:
    rows = Columns([b"raw.x"] * 8, [b"key"] * 8, [b"value %d" % number for number in range(8)], None)
    return encoded(rows, base_offset=0, timestamp_us=0, leader_epoch=0)


def _value_offsets(message: bytearray) -> int:
    """Where the offsets of the values begin."""
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    return layout.BODY_POSITION + places[2 * 11]


def _bad_messages() -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for name, row, value in (
        ("an offset far beyond the values", 3, 2**31 - 1),
        ("a negative offset", 3, -5),
        ("an offset before the one before it", 4, 1),
        ("the last offset too large", 8, 2**30),
        ("the first offset not zero", 0, 3),
    ):
        message = _message()
        struct.pack_into("<i", message, _value_offsets(message) + 4 * row, value)
        out[name] = _recrc(message)
    message = _message()
    message[message.index(b"raw.x")] = 0xFF
    out["a subject that is no text"] = _recrc(message)
    message = _message()
    message[-20] ^= 1
    out["a wrong checksum"] = bytes(message)
    for compression in (Compression.LZ4, Compression.ZSTD):
        large = encoded(Columns([b"raw.x"] * 999, None, [b"value"] * 999, None), base_offset=0, timestamp_us=0)
        out[f"a message compressed with {compression}"] = bytes(codec.compressed(large, compression)[0])
    out["half a message"] = bytes(_message()[:-64])
    out["two messages"] = bytes(_message() * 2)
    out["nothing"] = b""
    out["garbage"] = random.Random(3).randbytes(5_000)
    out["a plain Arrow message"] = bytes(pa.record_batch({"a": [1, 2]}).serialize())
    return out


async def test_a_message_that_would_kill_its_readers_is_refused(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("raw", "raw.>")
    async with raw_client(broker.client_address) as one:
        await one.hello()

        async def append(number: int, data: bytes, stream_id: StreamId = info.stream_id) -> ErrorBody | int:
            request = AppendRequest(stream_id=stream_id)
            one.send(encode_request(request, number, raw_bytes=len(data)))
            one.send(data)
            frame = await one.frame()
            assert frame is not None
            assert frame.correlation_id == number
            try:
                return decode_response(frame, AppendRequest).end_offset  # type: ignore[attr-defined,no-any-return]
            except penstock.RemoteError as error:
                return ErrorBody(code=error.code, message=error.message)

        for number, (what, data) in enumerate(_bad_messages().items()):
            answer = await append(10 + number, data)
            assert isinstance(answer, ErrorBody), what
            assert answer.code in ("corrupt_batch", "bad_request"), (what, answer)
            assert "nothing was stored" in answer.message, (what, answer)
            assert ("the appended batch is compressed" in answer.message) == ("compressed" in what), (what, answer)
        assert await append(90, bytes(_message())) == 8
    found = await _stored(client, "raw")
    assert [value for _, _, value, _ in found] == [b"value %d" % number for number in range(8)]


async def test_appends_and_publishes_share_one_log(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("shared", "shared.>")
    appenders, rounds = 4, 50

    async def append(name: int) -> None:
        async with await broker.client() as own:
            waiting = []
            for number in range(rounds):
                rows = [{"subject": f"shared.append.{name}", "value": b"%d" % (number * 10 + row)} for row in range(10)]
                waiting.append(asyncio.create_task(own.append("shared", rows)))
            results = [await task for task in waiting]
        starts = [result[0].base_offset for result in results]
        assert starts == sorted(starts), "appends of one connection keep their order"

    async def publish() -> None:
        async with connected_to(broker.nats_url) as connection:
            js = connection.jetstream()
            futures = [await js.publish_async("shared.nats", b"%d" % number) for number in range(2_000)]
            acks = await asyncio.gather(*futures)
            assert [ack.seq for ack in acks] == sorted({ack.seq for ack in acks})

    await asyncio.gather(publish(), *map(append, range(appenders)))
    found = await _stored(client, "shared")
    assert len(found) == 2_000 + appenders * rounds * 10
    for subject in ("shared.nats", *(f"shared.append.{name}" for name in range(appenders))):
        values = [value for own, _, value, _ in found if own == subject]
        assert values == [b"%d" % number for number in range(len(values))], subject


@each_change
async def test_too_many_appends_at_once_are_refused_not_kept(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--partition-in-flight-bytes", "1MiB") as small:
        async with await small.client() as client:
            await client.create_stream("over", "over")
            rows = [{"value": bytes(100_000)}] * 4
            tasks = [asyncio.create_task(client.append("over", rows)) for _ in range(50)]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert {type(error) for error in refused} == {penstock.Overloaded}
            stored = (await client.stream("over")).partitions[0].committed_end
            assert stored == 4 * (len(outcomes) - len(refused)) > 0
            assert (await client.append("over", rows))[0].base_offset == stored
            assert (await client.status()).in_flight_bytes == 0
