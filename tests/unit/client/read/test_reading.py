"""What a reader asks for, and what it makes of the answers: each row once, or an error that says why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.batch import codec
from penstock.client.errors import CorruptRange
from penstock.client.read import batches
from penstock.client.read.filters import Filter
from penstock.client.read.reading import _FetchSize
from penstock.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Request,
    StatusRequest,
)
from tests.extent import each_change
from tests.fake_broker import Answer, Cut, FakeBroker, FakeStream, columns
from tests.groups import encoded


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await aio.connect(broker.address) as client:
        yield client


def batch(start: int, end: int, *, leader_epoch: int = 1) -> bytes:
    rows = columns(*(b"%d" % offset for offset in range(start, end)))
    return bytes(encoded(rows, base_offset=start, timestamp_us=1, leader_epoch=leader_epoch))


def stream_of(broker: FakeBroker, *batches: bytes) -> FakeStream:
    stream = broker.create("a")
    stream.batches += batches
    stream.end = codec.read_header(batches[-1]).end_offset
    broker.fetch_bytes = 1  # one batch an answer
    return stream


def changed(response: FetchResponse, **fields: object) -> FetchResponse:
    return FetchResponse(**({name: getattr(response, name) for name in response.__struct_fields__} | fields))


async def offsets_read(client: aio.Client, *args: object, **options: object) -> list[int]:
    found = client.read("a", *args, **options)  # type: ignore[arg-type]
    return [offset async for batch in found for offset in batch.column("offset").to_pylist()]


def epochs_asked(broker: FakeBroker) -> list[tuple[int, int | None]]:
    return [(request.offset, request.leader_epoch) for request in broker.requests if isinstance(request, FetchRequest)]


async def test_large_answers_come_whole_and_small_ones_after_them_at_once(
    broker: FakeBroker, client: aio.Client
) -> None:
    """Of a large one the kernel wakes us for a MiB at a time; the last bytes of it, and all of the next, are fewer."""
    large = encoded(columns(*[bytes(100_000)] * 32), base_offset=0, timestamp_us=1, leader_epoch=1)
    assert len(large) > 3 * limits.RECEIVE_AT_ONCE_BYTES
    stream_of(broker, bytes(large), batch(32, 34), batch(34, 35))
    assert await offsets_read(client) == list(range(35))


@each_change
async def test_an_answer_on_its_way_shows_that_the_broker_lives(broker: FakeBroker, client: aio.Client) -> None:
    """Also where so little of it has come since that it woke nobody up; a broker that falls silent is still found."""
    large = encoded(columns(*[bytes(100_000)] * 32), base_offset=0, timestamp_us=1, leader_epoch=1)
    stream_of(broker, bytes(large))
    broker.answer_bytes_max = 2 * limits.RECEIVE_AT_ONCE_BYTES + limits.RECEIVE_AT_ONCE_BYTES // 2

    async def silent(request: Request) -> Answer | None:
        if isinstance(request, StatusRequest):
            await asyncio.Event().wait()
        return None

    broker.intercept = silent
    await client.stream("a")
    reading = asyncio.create_task(offsets_read(client))
    for _ in range(2):  # the second finds what the first left unread
        with pytest.raises(penstock.TimedOut):
            await client.status(timeout=0.2)
    assert broker.connections == 1
    for _ in range(3):  # nothing more comes
        with pytest.raises((penstock.TimedOut, penstock.Unavailable)):
            await client.status(timeout=0.2)
    assert broker.connections > 1
    reading.cancel()


async def test_a_short_range_is_asked_for_in_few_bytes(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 10_000))
    await offsets_read(client, end=1)
    await offsets_read(client)
    few, many = [request.bytes_max for request in broker.requests if isinstance(request, FetchRequest)]
    assert (few, many) == (limits.READ_FETCH_BYTES_MIN, limits.READ_FETCH_BYTES_FIRST)


@pytest.mark.parametrize(
    ("bytes_per_s", "asked"),
    [
        (10**9, limits.READ_FETCH_BYTES_MAX),
        (10_000_000, 2_500_000),
        (500_000, limits.READ_FETCH_BYTES_MIN),
        (1, limits.READ_FETCH_BYTES_MIN),
    ],
)
def test_so_much_is_asked_for_as_comes_in_a_moment(bytes_per_s: float, asked: int) -> None:
    size = _FetchSize()
    size.took(1_000_000 / bytes_per_s, 1_000_000)
    assert size.bytes_for(2**63, 1) == pytest.approx(asked, rel=0.01)
    assert size.bytes_for(1, 1) == limits.READ_FETCH_BYTES_MIN


async def test_batches_beyond_the_committed_end_are_damage(broker: FakeBroker, client: aio.Client) -> None:
    """Their rows would be cut off, and the next fetch would go on behind them."""
    stream_of(broker, batch(0, 5), batch(5, 10))

    async def short(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker.handle(request)
        assert isinstance(response, FetchResponse)
        return changed(response, committed_end=2), raw

    broker.intercept = short
    with pytest.raises(CorruptionError, match="batches up to the committed end, 2"):
        await offsets_read(client)


async def test_rows_of_a_batch_that_begins_below_are_not_delivered_twice(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream = stream_of(broker, batch(0, 10), batch(10, 20))

    async def merge(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest) and request.offset == 10:
            stream.batches[:] = [batch(0, 20)]  # as a compaction would
        return None

    broker.intercept = merge
    assert await offsets_read(client) == list(range(20))
    assert await offsets_read(client, 5, end=15) == list(range(5, 15))


async def test_each_fetch_names_the_epoch_of_the_row_before_it(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 5, leader_epoch=1), batch(5, 9, leader_epoch=3), batch(9, 12, leader_epoch=4))

    async def leader_seven(request: Request) -> Answer | None:
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsResponse(offset=0, log_start=0, committed_end=12, leader_epoch=7), b""
        if isinstance(request, FetchRequest):
            response, raw = await broker.handle(request)
            assert isinstance(response, FetchResponse)
            return changed(response, leader_epoch=7), raw
        return None

    broker.intercept = leader_seven
    assert await offsets_read(client) == list(range(12))
    assert epochs_asked(broker) == [(0, 7), (5, 1), (9, 3)]
    broker.requests.clear()
    broker.fetch_bytes = 10**6  # several batches in one answer: the last one counts
    broker.streams["a"].batches.append(batch(12, 13, leader_epoch=5))
    broker.streams["a"].end = 13
    assert await offsets_read(client) == list(range(12))
    assert epochs_asked(broker) == [(0, 7)]


async def test_a_hole_is_passed_under_the_epoch_of_the_leader_who_says_so(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream_of(broker, batch(0, 5), batch(9, 12))

    async def hole(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest) and request.offset == 5:
            response, _ = await broker.handle(request)
            assert isinstance(response, FetchResponse)
            return changed(response, base_offset=5, end_offset=9, leader_epoch=6), b""
        return None

    broker.intercept = hole
    assert await offsets_read(client) == [0, 1, 2, 3, 4, 9, 10, 11]
    assert epochs_asked(broker) == [(0, 1), (5, 1), (9, 6)]


async def test_a_reconnect_does_not_forget_the_epoch(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 5, leader_epoch=2), batch(5, 9, leader_epoch=2))
    cuts = iter([True, False])

    async def cut(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest) and request.offset == 5 and next(cuts):
            raise Cut
        return None

    broker.intercept = cut
    assert await offsets_read(client) == list(range(9))
    assert epochs_asked(broker) == [(0, 1), (5, 2), (5, 2)]
    assert broker.connections == 2


async def test_a_log_that_lost_what_was_read_is_an_error_behind_the_good_rows(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream_of(broker, batch(0, 5), batch(5, 9))

    async def truncated(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest) and request.offset == 5:
            details = {"offset": 5, "end_offset": 3, "log_start": 1, "committed_end": 20, "odd": [{"": None}]}
            raise RemoteError(ErrorCode.LOG_TRUNCATED, "cut; read on from 3", **details)
        return None

    broker.intercept = truncated
    reader = client.messages("a", follow=True)
    assert [(await anext(reader)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(penstock.LogTruncated, match="read on from 3") as caught:
        await anext(reader)
    assert caught.value.details["end_offset"] == 3
    assert caught.value.code == "log_truncated"


async def test_damage_in_a_later_answer_is_told_behind_the_rows_of_the_earlier_ones(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream = stream_of(broker, batch(0, 5), batch(5, 9))

    async def damage(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest) or request.offset != 5:
            return None
        return (await broker.handle(request))[0], stream.batches[1][:-8]

    broker.intercept = damage
    reader = client.messages("a")
    assert [(await anext(reader)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(penstock.CorruptionError):
        await anext(reader)


async def test_both_ends_of_a_range_come_from_one_leader(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 5), batch(5, 9))
    answers = iter([(0, 1), (3, 2), (0, 2), (7, 2)])  # the broker starts anew between the first two

    async def places(request: Request) -> Answer | None:
        if not isinstance(request, ListOffsetsRequest):
            return None
        offset, epoch = next(answers)
        return ListOffsetsResponse(offset=offset, log_start=0, committed_end=9, leader_epoch=epoch), b""

    broker.intercept = places
    assert await offsets_read(client, datetime.fromtimestamp(0, UTC), end=datetime.fromtimestamp(9, UTC)) == [*range(7)]
    assert epochs_asked(broker)[0] == (0, 2)


async def test_a_broker_that_answers_at_once_with_nothing_is_not_asked_in_a_storm(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream_of(broker, batch(0, 5))

    async def nothing(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, _ = await broker.handle(request)
        assert isinstance(response, FetchResponse)
        return changed(response, base_offset=0, end_offset=0), b""

    broker.intercept = nothing
    async with asyncio.timeout(10):
        with pytest.raises(penstock.TimedOut, match="nothing from offset 0"):
            await offsets_read(client, timeout=0.35)
    assert 2 <= len(epochs_asked(broker)) <= 5


# Partitions that are added


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_POLL_S", 0.01)


@pytest.mark.usefixtures("looks_often")
async def test_who_follows_reads_partitions_that_are_added_in_the_order_of_keys(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream = broker.create("a")
    stream.append(columns(b"0"))
    async with asyncio.timeout(30):
        reading = client.messages("a", follow=True)
        assert await anext(reading) == await client.get("a", 0)
        stream.grow(3)
        stream.append(columns(b"1"))
        stream.mark()
        for number, one in enumerate(stream.added, 2):
            one.append(columns(b"%d" % number, b"%d" % number))
        async with broker.appended:
            broker.appended.notify_all()
        found = [await anext(reading) for _ in range(5)]
        assert (found[0].partition, found[0].offset) == (0, 1)
        assert sorted((one.partition, one.offset, one.value) for one in found[1:]) == [
            (1, 0, b"2"), (1, 1, b"2"), (2, 0, b"3"), (2, 1, b"3")
        ]  # fmt: skip
        stream.grow(4)
        stream.mark()
        await broker.append(stream.added[2], columns(b"4"))
        assert (await anext(reading)).partition == 3
        await broker.append(stream, columns(b"5"))
        assert (await anext(reading)).offset == 2
        await reading.aclose()


@pytest.mark.usefixtures("looks_often")
async def test_batches_say_which_partition_once_there_are_several(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(b"0"))
    async with asyncio.timeout(30):
        reading = client.read("a", follow=True)
        said = [batches.partition_of(await anext(reading))]
        stream.grow(2)
        stream.mark()
        await broker.append(stream.added[0], columns(b"1"))
        said.append(batches.partition_of(await anext(reading)))
        await broker.append(stream, columns(b"2"))
        said.append(batches.partition_of(await anext(reading)))
        await reading.aclose()
    assert said == [None, 1, 0]


@pytest.mark.usefixtures("looks_often")
async def test_a_new_partition_is_read_though_the_filter_lets_nothing_through_of_the_older_one(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream = broker.create("a", ">")
    stream.append(columns(b"0", subject=b"c"))
    stream.append(columns(b"1", b"1", b"1", subject=b"b"))
    async with asyncio.timeout(30):
        reading = client.messages("a", follow=True, where=Filter(subject="c"))
        assert (await anext(reading)).value == b"0"
        stream.grow(2)
        await broker.append(stream, columns(b"2", subject=b"b"))
        stream.mark()
        stream.added[0].append(columns(b"3", subject=b"c"))
        assert (await anext(reading)).value == b"3"
        await reading.aclose()


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("options", [{"partition": 0}, {"end": 3}])
async def test_who_names_a_partition_or_an_end_in_it_reads_no_other(
    broker: FakeBroker, client: aio.Client, options: dict[str, int]
) -> None:
    stream = broker.create("a")
    stream.append(columns(b"0"))
    async with asyncio.timeout(30):
        reading = client.messages("a", follow=True, **options)  # type: ignore[arg-type]
        assert (await anext(reading)).offset == 0
        stream.grow(2)
        stream.mark()
        stream.added[0].append(columns(b"new"))
        for _ in range(5):
            await client.stream("a")
        await broker.append(stream, columns(b"1", b"2"))
        assert [(await anext(reading)).offset for _ in range(2)] == [1, 2]
        await reading.aclose()
    assert {one.partition for one in broker.requests if isinstance(one, FetchRequest)} == {0}


@pytest.mark.usefixtures("looks_often")
async def test_a_new_partition_that_nobody_leads_yet_is_asked_for_again(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(b"0"))
    silences = iter(range(2))

    async def led_later(request: Request) -> Answer | None:
        if isinstance(request, ListOffsetsRequest) and request.partition and next(silences, None) is not None:
            await asyncio.Event().wait()
        return None

    broker.intercept = led_later
    async with asyncio.timeout(30):
        reading = client.messages("a", follow=True, timeout=0.2)
        assert (await anext(reading)).partition == 0
        stream.grow(2)
        stream.mark()
        stream.added[0].append(columns(b"1"))
        assert (await anext(reading)).partition == 1
        await reading.aclose()
    assert next(silences, None) is None


@pytest.mark.usefixtures("looks_often")
async def test_why_a_new_partition_cannot_be_read_is_told(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(b"0"))

    async def fails(request: Request) -> Answer | None:
        if isinstance(request, ListOffsetsRequest) and request.partition:
            raise RemoteError(ErrorCode.STORAGE_FAILED, "its log cannot be opened")
        return None

    broker.intercept = fails
    async with asyncio.timeout(30):
        reading = client.messages("a", follow=True, timeout=0.2)
        assert (await anext(reading)).partition == 0
        stream.grow(2)
        stream.mark()
        with pytest.raises(penstock.StorageFailed, match="cannot be opened"):
            await anext(reading)


async def test_a_range_that_is_being_repaired_is_waited_for(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 3))
    waits: list[type] = []

    async def intercept(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest | ListOffsetsRequest):
            return None
        waits.append(type(request))
        if waits.count(type(request)) < 3:
            raise RemoteError(ErrorCode.CORRUPT_RANGE, "damaged", repairing=True)
        return None

    broker.intercept = intercept
    assert await offsets_read(client, start=datetime.fromtimestamp(0, UTC)) == [0, 1, 2]
    assert waits == [ListOffsetsRequest] * 3 + [FetchRequest] * 3


@pytest.mark.parametrize(
    ("details", "timeout"), [({"repairing": True}, 0.03), ({}, 60)], ids=["not repaired in time", "lost"]
)
async def test_a_range_that_is_not_repaired_is_told(
    broker: FakeBroker, client: aio.Client, details: dict[str, object], timeout: float
) -> None:
    stream_of(broker, batch(0, 3))
    asked = []

    async def intercept(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest | ListOffsetsRequest):
            return None
        asked.append(type(request))
        raise RemoteError(ErrorCode.CORRUPT_RANGE, "damaged", **details)

    broker.intercept = intercept
    with pytest.raises(CorruptRange, match="damaged"):
        await offsets_read(client, timeout=timeout)
    assert details or asked == [ListOffsetsRequest], "what is lost is told at once"
