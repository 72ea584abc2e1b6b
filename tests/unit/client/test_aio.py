"""The asyncio client against a fake broker on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock
import penstock.aio
from penstock import aio
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.client.read.reading import Reader, plan
from penstock.messages import (
    AppendRequest,
    BrokerLimits,
    DeleteStreamRequest,
    FetchRequest,
    FetchResponse,
    GetRequest,
    HelloRequest,
    MetadataRequest,
    Request,
    StatusRequest,
)
from tests.extent import each_change
from tests.fake_broker import Answer, Cut, FakeBroker, columns
from tests.groups import Columns


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await penstock.aio.connect(broker.address) as client:
        yield client


def fill(broker: FakeBroker, batches: int, rows: int = 10, name: str = "a"):
    stream = broker.create(name)
    for number in range(batches):
        stream.append(columns(*(b"%d" % (number * rows + row) for row in range(rows))))
    return stream


async def offsets_read(client: aio.Client, *args, **options) -> list[int]:
    return [offset async for batch in client.read(*args, **options) for offset in batch.column("offset").to_pylist()]


# Connecting


async def test_no_broker_is_reported_at_once_with_what_to_do() -> None:
    async with FakeBroker() as broker:
        address = broker.address
    with pytest.raises(penstock.Unavailable, match="penstock serve") as caught:
        await penstock.aio.connect(address, timeout=60)
    assert isinstance(caught.value, ConnectionError)


async def test_the_server_is_named_by_the_environment(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", broker.address)
    async with await penstock.aio.connect() as client:
        assert client.server == broker.address
        assert (await client.status()).broker_version == "fake"


async def test_a_client_can_be_awaited_or_used_in_a_with_statement(broker: FakeBroker) -> None:
    async with penstock.aio.connect(broker.address) as client:
        assert (await client.status()).broker_version == "fake"
    with pytest.raises(penstock.Unavailable, match="the client is closed"):
        await client.status()
    client = await penstock.aio.connect(broker.address)
    await client.close()


async def test_a_server_is_text_and_a_time_out_is_some_time() -> None:
    with pytest.raises(TypeError, match="the server is an int; give 'HOST:PORT'"):
        await penstock.aio.connect(7422)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the time-out is 0 s"):
        penstock.connect(timeout=0)


@pytest.mark.parametrize("server", [":7422", "http://host:1", "host:port", "host:70000", "[::1", "user@host:1"])
async def test_an_address_that_cannot_be_is_a_value_error(server: str) -> None:
    with pytest.raises(ValueError, match="server"):
        await penstock.aio.connect(server)


async def test_what_was_damaged_on_its_way_is_asked_again(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, 1)
    broker.damaged_answers = 1
    assert [info.name for info in await client.streams()] == ["a"]
    assert broker.connections == 2
    broker.damaged_answers = 2  # not even the first answer of the next connection comes through
    assert (await client.status()).broker_version == "fake"
    assert broker.connections == 4
    stream = await client.stream("a")
    broker.damaged_answers = 1
    with pytest.raises(penstock.OutcomeUnknown, match="damaged on its way"):
        await client.append(stream, [{"value": b"x"}])


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b'INFO {"server_id":"X"}\r\n', "this is a NATS server, and no broker: 127.0.0.1:[0-9]+; .* usually 7422"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server listens at 127.0.0.1:[0-9]+: .* usually 7422"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak Penstock's protocol"),
    ],
)
async def test_something_else_listens_there(greeting: bytes, said: str) -> None:
    ended = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(penstock.Unavailable, match=said):
            await penstock.aio.connect(f"{host}:{port}")
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_broker_that_accepts_and_says_nothing_times_out(broker: FakeBroker) -> None:
    never = asyncio.Event()

    async def silent(request: Request) -> Answer | None:
        await never.wait()
        return None

    broker.intercept = silent
    with pytest.raises(penstock.TimedOut) as caught:
        await penstock.aio.connect(broker.address, timeout=0.05)
    assert isinstance(caught.value, TimeoutError)


# Streams


async def test_a_stream_from_creation_to_deletion(client: aio.Client) -> None:
    created = await client.create_stream("orders", "orders.>", max_age_ms=5000, durability="os")
    assert (created.name, created.subject, created.config.max_age_ms) == ("orders", "orders.>", 5000)
    assert await client.create_stream("orders", "orders.>", max_age_ms=5000, durability="os") == created
    with pytest.raises(penstock.StreamExists):
        await client.create_stream("orders", "other")
    assert [info.name for info in await client.streams_for("orders.eu")] == ["orders"]
    assert await client.streams_for("x") == []
    altered = await client.alter_stream("orders", max_age_ms=None)
    assert altered.config.max_age_ms is None
    assert await client.stream("orders") == altered
    await client.delete_stream("orders")
    with pytest.raises(penstock.StreamNotFound, match="'orders'"):
        await client.stream("orders")
    with pytest.raises(penstock.StreamNotFound):
        await client.delete_stream("orders")


async def test_every_mistake_of_a_config_is_told_before_anything_is_sent(
    broker: FakeBroker, client: aio.Client
) -> None:
    with pytest.raises(penstock.InvalidConfig) as caught:
        await client.create_stream("or ders", "orders..x", segment_bytes=1)
    assert all(word in str(caught.value) for word in ("name:", "subject:", "segment_bytes:"))
    with pytest.raises(penstock.InvalidConfig, match="there is no such field; did you mean max_age_ms"):
        await client.create_stream("orders", "orders", max_age=5)  # type: ignore[call-arg]
    with pytest.raises(penstock.InvalidConfig) as caught:
        await client.create_stream("orders", "orders", max_age_ms="7d", max_bytes=1.5)
    assert caught.value.details["mistakes"] == [
        "max_age_ms: expected `int | None`, got `str`",
        "max_bytes: expected `int | None`, got `float`",
    ]
    with pytest.raises(penstock.InvalidConfig, match="durability: it is one of 'auto', 'fsync', 'os'"):
        await client.create_stream("orders", "orders", durability="sometimes")
    with pytest.raises(penstock.InvalidConfig, match="partition_by: 'colour' is not one of publisher"):
        await client.create_stream("orders", "orders", partition_by="colour")
    assert [type(request) for request in broker.requests] == [HelloRequest]


async def test_streams_come_in_pages(broker: FakeBroker, client: aio.Client) -> None:
    for number in range(2_500):
        broker.create(f"s{number:04}")
    assert [info.name for info in await client.streams()] == sorted(broker.streams)
    assert sum(isinstance(request, MetadataRequest) for request in broker.requests) == 3


async def test_a_lost_answer_to_a_deletion_is_not_an_error_the_second_time(
    broker: FakeBroker, client: aio.Client
) -> None:
    broker.create("a")

    async def once(request: Request) -> Answer | None:
        if isinstance(request, DeleteStreamRequest) and "a" in broker.streams:
            await broker.handle(request)
            raise Cut
        return None

    broker.intercept = once
    await client.delete_stream("a")
    assert broker.streams == {}


# Reading


async def test_all_rows_in_order_with_small_batches_put_together(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=300)
    broker.fetch_bytes = 100 * len(stream.batches[0])
    found = [batch async for batch in client.read("a")]
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(3000))
    assert [value for batch in found for value in batch.column("value").to_pylist()] == [
        b"%d" % number for number in range(3000)
    ]
    assert len(found) <= 5
    assert found[0].schema.names == ["offset", "timestamp", "subject", "key", "value", "headers"]


async def test_rows_outside_the_range_are_dropped(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=5)
    assert await offsets_read(client, "a", 13, end=37) == list(range(13, 37))
    assert await offsets_read(client, "a", 13, end=14) == [13]
    assert await offsets_read(client, "a", 20, end=20) == []
    assert await offsets_read(client, "a", 48, end=1_000) == [48, 49]
    assert await offsets_read(client, "a", penstock.LATEST) == []
    assert await offsets_read(client, "a", 50) == []


async def test_rows_below_log_start_are_dropped(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=3).log_start = 7
    assert await offsets_read(client, "a") == list(range(7, 30))


async def test_large_batches_are_cut_to_the_rows_asked_for(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=2, rows=25)
    assert [batch.num_rows async for batch in client.read("a", batch_rows_max=10)] == [10, 10, 5, 10, 10, 5]


async def test_an_offset_that_does_not_exist_tells_which_do(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=3).log_start = 5
    for start in (4, 31):
        with pytest.raises(penstock.OffsetOutOfRange, match="holds 5 up to") as caught:
            await offsets_read(client, "a", start)
        assert caught.value.details == {"offset": start, "log_start": 5, "committed_end": 30}


async def test_places_in_the_log(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=3)  # at 2, 3 and 4 s after 1970
    second = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=3)
    assert await offsets_read(client, "a", second) == list(range(10, 30))
    assert await offsets_read(client, "a", end=second) == list(range(10))
    assert await client.offsets("a", second) == (10, second, 0, 30)
    assert await client.offsets("a", penstock.EARLIEST) == (0, None, 0, 30)
    assert await client.offsets("a", penstock.LATEST) == (30, None, 0, 30)
    assert (await client.offsets("a", timedelta(seconds=30))).offset == 30
    assert (await client.offsets("a", timedelta(days=40_000))).offset == 0
    with pytest.raises(ValueError, match="time zone"):
        await client.offsets("a", datetime(2020, 1, 1))  # noqa: DTZ001
    assert (await client.offsets("a", "earliest")).offset == 0
    assert (await client.offsets("a", "latest")).offset == 30
    with pytest.raises(ValueError, match="'middle' is no place in the log"):
        await client.offsets("a", "middle")
    with pytest.raises(ValueError, match="is negative: it says how long ago"):
        await client.offsets("a", timedelta(seconds=-1))
    with pytest.raises(TypeError, match="no place in the log"):
        await client.offsets("a", 1.5)  # type: ignore[arg-type]


async def test_following_yields_what_is_appended_later(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=1)
    reader = client.read("a", 8, follow=True)
    async with asyncio.timeout(5):
        assert (await anext(reader)).column("offset").to_pylist() == [8, 9]
        waiting = asyncio.create_task(anext(reader))
        await broker.append(stream, columns(b"new"))
        assert (await waiting).column("value").to_pylist() == [b"new"]
    await reader.aclose()


async def test_following_up_to_an_offset_ends_there(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=1)
    async with asyncio.timeout(5):
        reading = asyncio.create_task(offsets_read(client, "a", 5, end=12, follow=True))
        await broker.append(stream, columns(b"x", b"y", b"z"))
        assert await reading == list(range(5, 12))
    with pytest.raises(ValueError, match="only at an offset"):
        await offsets_read(client, "a", end=datetime.now(UTC), follow=True)


async def test_the_next_fetches_are_on_their_way_while_the_caller_works(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=50)
    broker.fetch_bytes = len(stream.batches[0])
    fetched = asyncio.Semaphore(0)

    async def count(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest):
            fetched.release()
        return None

    broker.intercept = count
    reader = client.read("a")
    async with asyncio.timeout(5):
        assert (await anext(reader)).num_rows == 10
        for _ in range(3):
            await fetched.acquire()
        rest = [batch.num_rows async for batch in reader]
    assert sum(rest) == 490
    # And never more than the limit ahead: the task that fetches ends with the reader.
    assert not [task for task in asyncio.all_tasks() if "_fetch_ahead" in repr(task)]


async def test_leaving_a_reader_early_ends_its_task(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=1)
    reader = client.read("a", follow=True)
    await anext(reader)
    assert [task for task in asyncio.all_tasks() if "_fetch_ahead" in repr(task)]
    await reader.aclose()
    assert not [task for task in asyncio.all_tasks() if "_fetch_ahead" in repr(task)]


async def test_columns_are_chosen_and_checked(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=1)
    assert [batch.schema.names async for batch in client.read("a", columns=["value", "offset"])] == [
        ["value", "offset"]
    ]
    with pytest.raises(ValueError, match="colour"):
        await offsets_read(client, "a", columns=["colour"])


async def test_messages_one_by_one(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    rows = columns(b"v", None, b"", subject="zürich".encode(), keys=[b"k", b"\xff", None])
    stream.append(rows._replace(headers=[b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: x\r\n\r\n", None, b"garbage"]))
    first, second, third = [message async for message in client.messages("a")]
    assert (first.offset, first.subject, first.key, first.value) == (0, "zürich", b"k", b"v")
    assert first.timestamp == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert (first.headers["A"], first.headers.get_all("A"), dict(first.headers)) == (
        "1",
        ["1", "2"],
        {"A": "1", "B": "x"},
    )
    assert (second.is_tombstone, second.key, len(second.headers)) == (True, b"\xff", 0)
    assert (third.is_tombstone, third.value, dict(third.headers)) == (False, b"", {})
    assert await client.get("a", 1) == second
    assert await client.last("a", key="k") == first
    assert await client.last("a", subject="zürich") == third
    with pytest.raises(penstock.MessageNotFound):
        await client.last("a", key=b"none")
    with pytest.raises(ValueError, match="either"):
        await client.last("a")


async def test_a_pattern_is_no_subject_whose_last_message_is_found(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a").append(columns(b"v", subject=b"r.eu"))
    for pattern in ("r.*", "r.>", "*", ">"):
        with pytest.raises(ValueError, match=r"is a pattern, and this takes a plain subject; read\(where=Filter"):
            await client.last("a", subject=pattern)
    for bad, said in (("", "the subject is empty"), ("r..eu", "an empty token"), ("r eu", "white space")):
        with pytest.raises(ValueError, match=said):
            await client.last("a", subject=bad)
    assert (await client.last("a", subject="r.eu")).value == b"v"
    with pytest.raises(penstock.MessageNotFound):
        await client.last("a", subject="r.e*")  # a star within a token is none


@pytest.mark.parametrize("which", [{"offset": 1}, {"key": "other"}, {"subject": "else.where"}])
async def test_another_message_than_the_one_asked_for_is_damage(
    broker: FakeBroker, client: aio.Client, which: dict[str, Any]
) -> None:
    broker.create("a").append(columns(b"v", b"w", keys=[b"k", b"other"]))

    async def mistaken(request: Request) -> Answer | None:
        if not isinstance(request, GetRequest):
            return None
        return await broker.handle(GetRequest(stream_id=request.stream_id, offset=0))

    broker.intercept = mistaken
    with pytest.raises(CorruptionError, match=f"the message with {next(iter(which))}"):
        await (client.get("a", 1) if "offset" in which else client.last("a", **which))


async def test_tables(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=3)
    table = await client.to_table("a", 5, columns=["offset", "value"])
    assert table.to_pydict()["offset"] == list(range(5, 30))
    assert (await client.to_table("a", penstock.LATEST)).num_rows == 0
    assert len(await client.to_pandas("a")) == 30
    assert (await client.to_polars("a", end=3)).get_column("offset").to_list() == [0, 1, 2]


# Trouble


@pytest.mark.parametrize("position", [0, 20, 100, 300, 500, 700, -1])
async def test_one_flipped_bit_anywhere_is_found_before_anybody_sees_the_rows(
    broker: FakeBroker, client: aio.Client, position: int
) -> None:
    stream = fill(broker, batches=2)
    damaged = bytearray(stream.batches[1])
    damaged[position] ^= 0x10

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        return response, raw[: -len(damaged)] + damaged

    broker.intercept = damage
    with pytest.raises(CorruptionError, match=r"for stream a from offset \d+ on: at byte"):
        await offsets_read(client, "a")


async def test_what_was_damaged_on_its_way_is_asked_for_again(broker: FakeBroker, client: aio.Client) -> None:
    """And so is what lies damaged in the broker's file: as a projection, for which the broker reads and checks it."""
    stream = fill(broker, batches=3)
    damaged = bytearray(stream.batches[1])
    damaged[-100] ^= 0x10
    again = []

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        if request.columns is not None:
            again.append((request.offset, request.end))
            return response, raw
        return response, raw.replace(stream.batches[1], bytes(damaged))

    broker.intercept = damage
    assert await offsets_read(client, "a") == list(range(30))
    assert again == [(10, 30)]


async def test_what_is_asked_for_again_is_filtered_by_subject_too(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    for subject in (b"s", b"s", b"t"):
        stream.append(columns(*[b"v"] * 10, subject=subject))
    damaged = bytearray(stream.batches[1])
    damaged[-100] ^= 0x10
    subjects: list[object] = []

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        if request.subjects is not None:
            raise RemoteError(ErrorCode.OVERLOADED, "too many projections")  # the reader fetches whole batches then
        response, raw = await broker.handle(request)
        if request.columns is not None:
            subjects.append(request.subjects)
            return response, raw
        return response, raw.replace(stream.batches[1], bytes(damaged))

    broker.intercept = damage
    assert await offsets_read(client, "a", where=penstock.Filter(subject="s")) == list(range(20))
    assert subjects == [None]


@pytest.mark.parametrize("answer", ["no rows", "repaired", "behind"])
async def test_what_is_asked_for_again(broker: FakeBroker, client: aio.Client, answer: str) -> None:
    """The rest may have expired meanwhile, a new leader may not know the high watermark yet; and of what lies behind
    the end of the read nothing is asked.
    """
    stream = fill(broker, batches=3)
    damaged = bytearray(stream.batches[2])
    damaged[-100] ^= 0x10
    again = []

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        assert isinstance(response, FetchResponse)
        if request.columns is None:
            return response, raw.replace(stream.batches[2], bytes(damaged))
        again.append(request.offset)
        if answer == "no rows":
            return msgspec.structs.replace(response, raw_crc=None), b""
        if len(again) == 1:
            ends = {"base_offset": request.offset, "end_offset": request.offset, "committed_end": request.offset}
            return msgspec.structs.replace(response, raw_crc=None, **ends), b""
        return response, raw

    broker.intercept = damage
    end = 15 if answer == "behind" else None
    rows = {"no rows": 20, "repaired": 30, "behind": 15}[answer]
    assert await offsets_read(client, "a", end=end) == list(range(rows))
    assert len(again) == {"no rows": 1, "repaired": 2, "behind": 0}[answer]


@pytest.mark.parametrize("timeout", [0.5, 0.75, 1.0])
async def test_a_range_that_is_not_repaired_in_time_is_told_as_corrupt(
    broker: FakeBroker, client: aio.Client, timeout: float
) -> None:
    stream = fill(broker, batches=3)
    damaged = bytearray(stream.batches[1])
    damaged[-100] ^= 0x10

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        if request.columns is not None:
            raise RemoteError(ErrorCode.CORRUPT_RANGE, "damaged", repairing=True)
        response, raw = await broker.handle(request)
        return response, raw.replace(stream.batches[1], bytes(damaged))

    broker.intercept = damage
    with pytest.raises(penstock.CorruptRange):
        await offsets_read(client, "a", timeout=timeout)


async def test_a_table_is_no_further_than_a_corrupt_batch(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=3)
    damaged = bytearray(stream.batches[1])
    damaged[-100] ^= 0x10

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        if request.columns is not None:
            raise RemoteError(ErrorCode.STREAM_CHANGED, "nobody answers that")
        response, raw = await broker.handle(request)
        return response, raw.replace(stream.batches[1], bytes(damaged))

    info = await client.stream("a")
    link = client._link
    what = await plan(link, info, PartitionId(0), penstock.EARLIEST, None, follow=False, timeout_s=5.0)
    broker.intercept = damage
    async with Reader(link, [what], batch_rows_max=100, columns=None, timeout_s=5.0) as reader:
        found = await reader.next_batches()
        assert found is not None
        assert sum(batch.num_rows for batch in found) == 10
        assert reader.covered_ends == {0: 10}
        with pytest.raises(penstock.StreamChanged):
            await reader.next_batches()
        assert reader.covered_ends == {0: 10}


async def test_holes_and_overlaps_between_batches_are_found(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=3)
    wrong = {
        "hole": stream.batches[0] + stream.batches[2],
        "twice": stream.batches[0] + stream.batches[0],
        "short": stream.batches[0] + stream.batches[1],
        "cut": b"".join(stream.batches)[:-8],
        "nothing": b"\0" * 5_000,
    }
    for raw in wrong.values():

        async def answer(request: Request, raw: bytes = raw) -> Answer | None:
            if not isinstance(request, FetchRequest):
                return None
            return (await broker.handle(request))[0], raw

        broker.intercept = answer
        with pytest.raises(CorruptionError):
            await offsets_read(client, "a")


async def test_a_broker_that_answers_a_fetch_with_other_offsets_is_not_believed(
    broker: FakeBroker, client: aio.Client
) -> None:
    fill(broker, batches=3)

    async def answer(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        assert isinstance(response, FetchResponse)
        low = {"base_offset": 0, "end_offset": 5}
        fields = {name: getattr(response, name) for name in response.__struct_fields__}
        return FetchResponse(**(fields | low)), raw

    broker.intercept = answer
    with pytest.raises(CorruptionError, match="batches from offset 20"):
        await offsets_read(client, "a", 20)


async def test_a_newer_format_is_refused(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=1)

    async def newer(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        fields = {name: getattr(response, name) for name in response.__struct_fields__}
        return FetchResponse(**(fields | {"format_version": 2})), raw

    broker.intercept = newer
    with pytest.raises(RemoteError, match="upgrade") as caught:
        await offsets_read(client, "a")
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


async def test_only_what_is_wanted_comes(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    for number in range(4):
        keys: list[bytes | None] = [b"k", None, b"j"]
        headers: list[bytes | None] = [b"NATS/1.0\r\nA: %d\r\n\r\n" % number, None, None]
        stream.append(Columns([b"s"] * 3, keys, [b"%d" % number] * 3, headers))
    wanted = penstock.Filter(key="k", headers={"A": "2"})
    (batch,) = [batch async for batch in client.read("a", where=wanted, columns=["value"])]
    assert batch.to_pylist() == [{"value": b"2"}]
    assert [message.offset async for message in client.messages("a", where=penstock.Filter(key=b"j"))] == [2, 5, 8, 11]
    assert [batch async for batch in client.read("a", where=penstock.Filter(subject="other"))] == []

    def blocking() -> list[int]:
        with penstock.connect(broker.address) as other:
            return [message.offset for message in other.messages("a", where=wanted)]

    assert await asyncio.to_thread(blocking) == [6]


async def test_a_read_goes_on_where_it_was_when_connections_break(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=60)
    broker.fetch_bytes = 5 * len(stream.batches[0])
    chance = random.Random(7)

    async def sometimes(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest) and chance.random() < 0.4:
            raise Cut
        return None

    broker.intercept = sometimes
    assert await offsets_read(client, "a") == list(range(600))
    assert broker.connections > 1


async def test_a_broker_that_goes_and_comes_back_is_found_again(broker: FakeBroker, client: aio.Client) -> None:
    port = int(broker.address.rpartition(":")[2])
    await broker.stop()
    waiting = asyncio.create_task(client.status(timeout=20))
    await broker.start(port)
    assert (await waiting).broker_id == 1


async def test_a_broker_that_does_not_come_back_is_told_at_the_time_out(broker: FakeBroker, client: aio.Client) -> None:
    await broker.stop()
    with pytest.raises((penstock.Unavailable, penstock.TimedOut)):
        await client.status(timeout=0.2)


async def test_a_broker_that_accepts_and_says_nothing_is_left_for_another_attempt(
    broker: FakeBroker, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.link.link._ATTEMPT_S_MAX", 0.05)
    never = asyncio.Event()
    hellos = 0

    async def silent_twice(request: Request) -> Answer | None:
        nonlocal hellos
        if isinstance(request, HelloRequest):
            hellos += 1
            if hellos <= 2:
                await never.wait()
        return None

    broker.intercept = silent_twice
    broker.cut_connections()
    assert (await client.status(timeout=20)).broker_id == 1
    assert hellos >= 3  # more where the machine is slower than the attempts


async def test_large_appends_at_once_wait_for_the_socket_one_by_one(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a")
    rows = [{"value": bytes(1_000_000)}]
    calls = [asyncio.create_task(client.append("a", rows)) for _ in range(40)]
    await client.status()
    connection = await client._link._connections.at(broker.address, 0.0)
    assert connection._transport is not None
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, connection._transport.get_write_buffer_size())
        await asyncio.wait(calls, timeout=0.001, return_when=asyncio.FIRST_COMPLETED)
    assert sorted(call.result()[0].base_offset for call in calls) == list(range(40))
    assert most < 3_000_000


async def test_a_call_times_out_and_the_next_one_works(broker: FakeBroker, client: aio.Client) -> None:
    release = asyncio.Event()

    async def hold(request: Request) -> Answer | None:
        if isinstance(request, StatusRequest) and not release.is_set():
            await release.wait()
        return None

    broker.intercept = hold
    with pytest.raises(penstock.TimedOut, match="status"):
        await client.status(timeout=0.05)
    release.set()
    assert (await client.status()).broker_id == 1


async def test_a_broker_that_stops_is_asked_again(broker: FakeBroker, client: aio.Client) -> None:
    refused = 0

    async def stopping(request: Request) -> Answer | None:
        nonlocal refused
        if isinstance(request, StatusRequest) and refused < 2:
            refused += 1
            raise RemoteError(ErrorCode.STOPPING, "stopping")
        return None

    broker.intercept = stopping
    assert (await client.status()).broker_id == 1
    assert refused == 2


@each_change
async def test_many_calls_share_one_connection_and_a_long_poll_blocks_none(
    broker: FakeBroker, client: aio.Client
) -> None:
    fill(broker, batches=1)
    reader = client.read("a", 10, follow=True)
    waiting = asyncio.create_task(anext(reader))
    answers = await asyncio.gather(*(client.get("a", number % 10) for number in range(1_000)))
    assert [message.offset for message in answers] == [number % 10 for number in range(1_000)]
    assert broker.connections == 1
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_cancelled_call_leaves_the_connection_in_order(broker: FakeBroker, client: aio.Client) -> None:
    seen, release = asyncio.Event(), asyncio.Event()

    async def hold(request: Request) -> Answer | None:
        if isinstance(request, StatusRequest):
            seen.set()
            await release.wait()
        return None

    broker.intercept = hold
    call = asyncio.create_task(client.status())
    await seen.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()
    assert (await client.status()).broker_id == 1
    assert broker.connections == 1


async def test_closing_ends_what_waits(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=1)
    fetching = asyncio.Event()

    async def tell(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest):
            fetching.set()
        return None

    broker.intercept = tell
    waiting = asyncio.create_task(offsets_read(client, "a", 10, follow=True))
    await asyncio.wait_for(fetching.wait(), 5)
    await client.close()
    with pytest.raises(penstock.Unavailable, match="closed"):
        await waiting
    with pytest.raises(penstock.Unavailable, match="closed"):
        await client.status()
    await client.close()


async def test_a_stream_made_again_is_found_by_name_but_not_by_its_old_info(
    broker: FakeBroker, client: aio.Client
) -> None:
    fill(broker, batches=1)
    old = await client.stream("a")
    assert (await client.get("a", 3)).offset == 3
    fill(broker, batches=2)
    assert (await client.get("a", 15)).offset == 15
    assert (await client.append("a", [{"value": b"x"}]))[0].base_offset == 20
    with pytest.raises(penstock.StreamChanged):
        await client.get(old, 3)
    with pytest.raises(penstock.StreamChanged):
        await client.append(old, [{"value": b"x"}])
    del broker.streams["a"]
    with pytest.raises(penstock.StreamNotFound):
        await client.get("a", 3)


async def test_a_reader_that_retention_overtakes_is_told(broker: FakeBroker, client: aio.Client) -> None:
    stream = fill(broker, batches=20)
    broker.fetch_bytes = len(stream.batches[0])
    reader = client.read("a")
    await anext(reader)
    stream.log_start = 180
    with pytest.raises(penstock.OffsetOutOfRange) as caught:
        async for _ in reader:
            pass
    assert caught.value.details["log_start"] == 180


# Appending


async def test_rows_arrive_as_they_were_given(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a", "s.>")
    rows = [
        {"subject": "s.1", "key": "k", "value": "text", "headers": {"A": ["1", "2"], "B": "3"}},
        {"subject": "s.2", "key": None, "value": None},
        {"subject": "s.3", "key": b"\xff", "value": b""},
    ]
    (result,) = await client.append("a", rows)
    assert (result.base_offset, result.end_offset, result.fsynced) == (0, 3, True)
    first, second, third = [message async for message in client.messages("a")]
    assert (first.subject, first.key, first.value) == ("s.1", b"k", b"text")
    assert first.headers.get_all("A") == ["1", "2"]
    assert (second.key, second.value, third.key, third.value) == (None, None, b"\xff", b"")
    assert first.timestamp == result.timestamp


async def test_what_was_read_can_be_appended_elsewhere(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=2)
    broker.create("b")
    async for batch in client.read("a", 3, end=14):
        await client.append("b", batch)
    assert (await client.to_table("b")).column("value") == (await client.to_table("a", 3, end=14)).column("value")


async def test_a_large_append_is_split_and_a_row_too_large_is_refused() -> None:
    async with (
        FakeBroker(limits=BrokerLimits(append_bytes_max=200_000)) as broker,
        await penstock.aio.connect(broker.address) as client,
    ):
        broker.create("a")
        values = [bytes([number % 256]) * 1_000 for number in range(1_000)]
        results = await client.append("a", pa.table({"value": values}))
        assert len(results) > 5
        assert [result.base_offset for result in results[1:]] == [result.end_offset for result in results[:-1]]
        assert max(len(raw) for raw in broker.raws) <= 200_000
        assert (await client.to_table("a")).column("value").to_pylist() == values
        with pytest.raises(RemoteError, match="one row needs") as caught:
            await client.append("a", [{"value": b"ok"}, {"value": bytes(300_000)}])
        assert caught.value.code == ErrorCode.TOO_LARGE
        assert len(caught.value.details["appended"]) == 1


async def test_an_append_whose_answer_is_lost_is_not_repeated(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a")

    async def lose(request: Request) -> Answer | None:
        if isinstance(request, AppendRequest):
            raise Cut
        return None

    broker.intercept = lose
    with pytest.raises(penstock.OutcomeUnknown, match="append"):
        await client.append("a", [{"value": b"x"}])
    assert sum(isinstance(request, AppendRequest) for request in broker.requests) == 1


async def test_a_refused_get_has_its_own_class(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=1)

    async def refuse(request: Request) -> Answer | None:
        if isinstance(request, GetRequest):
            raise RemoteError(ErrorCode.CORRUPT_RANGE, "damaged", base_offset=0, end_offset=10)
        return None

    broker.intercept = refuse
    with pytest.raises(penstock.CorruptRange) as caught:
        await client.get("a", 3)
    assert caught.value.details == {"base_offset": 0, "end_offset": 10}


async def test_clients_and_consumers_are_shown_in_short(broker: FakeBroker) -> None:
    fill(broker, batches=1)
    client = await penstock.aio.connect(broker.address, nats="nats://ann:SECRET@127.0.0.1:1")
    assert repr(client) == f"Client('{broker.address}')"
    consumer = client.consumer("<a>", "g")
    assert repr(consumer) == "Consumer('<a>', group='g', positions={})"
    assert "<td>&lt;a&gt;</td>" in consumer._repr_html_()
    asked = len(broker.requests)
    assert broker.address in client._repr_html_()
    assert "SECRET" not in client._repr_html_() + repr(client)
    streams: Any = await client.streams()
    assert "<td>s</td>" in streams._repr_html_()
    asked = len(broker.requests)
    await client.close()
    assert repr(client) == f"Client('{broker.address}', closed)"
    assert "closed" in client._repr_html_()
    assert len(broker.requests) == asked


async def test_a_limit_ends_a_read(broker: FakeBroker, client: aio.Client) -> None:
    fill(broker, batches=3)
    assert await offsets_read(client, "a", limit=0) == []
    assert await offsets_read(client, "a", 5, limit=12) == list(range(5, 17))
    assert await offsets_read(client, "a", limit=100) == list(range(30))
    async with asyncio.timeout(5):  # it does not wait for more
        assert await offsets_read(client, "a", 28, follow=True, limit=2) == [28, 29]
    assert [one.offset async for one in client.messages("a", limit=3, where=penstock.Filter(subject="s"))] == [0, 1, 2]
    for wrong, kind in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(kind, match="limit"):
            await offsets_read(client, "a", limit=wrong)
