"""Readers that do not want all: what they ask for, and that nothing but it comes out, whatever the broker sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch
from penstock.batch import projecting
from penstock.client.read.projecting import SUBJECT_SHARE_MAX, ProjectedFetches
from penstock.hot.crc import crc32c
from penstock.messages import ApiVersions, FetchRequest, FetchResponse, Request, api_versions
from tests.fake_broker import Answer, FakeBroker, FakeStream, columns
from tests.groups import Columns
from tests.unit.client.read.test_reading import batch, changed, stream_of

OLD = tuple(ApiVersions(api=one.api, version_min=1, version_max=1) for one in api_versions())
EPOCH = LeaderEpoch(1)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await aio.connect(broker.address) as client:
        yield client


def fetches(broker: FakeBroker) -> list[FetchRequest]:
    return [request for request in broker.requests if isinstance(request, FetchRequest)]


def on_subjects(broker: FakeBroker) -> FakeStream:
    """Ten batches of four rows, of which one is on the subject `s.rare`."""
    stream = broker.create("a", "s.>")
    for number in range(10):
        subjects = [b"s.often"] * 3 + [b"s.rare"]
        values = [b"%d" % (4 * number + row) for row in range(4)]
        stream.append(Columns(subjects, [None] * 4, values, [None] * 4))
    return stream


async def test_columns_without_values_are_asked_for_by_name(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 3), batch(3, 5, leader_epoch=2), batch(5, 9, leader_epoch=2))
    table = await client.to_table("a", 1, end=7, columns=["subject", "timestamp"])
    assert table.column_names == ["subject", "timestamp"]
    assert table.num_rows == 6
    assert [(one.offset, one.leader_epoch, one.columns, one.end) for one in fetches(broker)] == [
        (1, 1, ("offset", "subject", "timestamp"), 7),
        (3, 1, ("offset", "subject", "timestamp"), 7),
        (5, 2, ("offset", "subject", "timestamp"), 7),
    ]


async def test_values_are_read_in_whole_batches(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 3))
    assert (await client.to_table("a", columns=["value"])).to_pylist() == [{"value": b"%d" % n} for n in range(3)]
    assert [one.is_projected for one in fetches(broker)] == [False]


async def test_a_batch_is_no_larger_than_was_asked_for(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 7))
    found = client.read("a", columns=["offset"], batch_rows_max=3)
    assert [one.column("offset").to_pylist() async for one in found] == [[0, 1, 2], [3, 4, 5], [6]]


async def test_an_older_broker_is_asked_for_whole_batches() -> None:
    async with FakeBroker(api_versions=OLD) as broker, await aio.connect(broker.address) as client:
        stream_of(broker, batch(0, 3), batch(3, 5))
        table = await client.to_table("a", columns=["offset"])
        assert table.column("offset").to_pylist() == list(range(5))
        assert [one.is_projected for one in fetches(broker)] == [False, False]


async def test_a_broker_that_has_too_many_of_them_is_asked_for_whole_batches(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream_of(broker, batch(0, 3), batch(3, 5))
    refused = 0

    async def refuse_one(request: Request) -> Answer | None:
        nonlocal refused
        if isinstance(request, FetchRequest) and request.is_projected and not refused:
            refused += 1
            raise RemoteError(ErrorCode.OVERLOADED, "too many")
        return None

    broker.intercept = refuse_one
    assert (await client.to_table("a", columns=["offset"])).column("offset").to_pylist() == list(range(5))
    assert [one.is_projected for one in fetches(broker)] == [True, False, True]


async def test_a_rare_subject_is_left_to_the_broker(broker: FakeBroker, client: aio.Client) -> None:
    on_subjects(broker)
    wanted = penstock.Filter(subject="s.rare")
    found = [message.offset async for message in client.messages("a", where=wanted)]
    assert found == list(range(3, 40, 4))
    assert {one.subjects for one in fetches(broker)} == {("s.rare",)}
    assert [one async for one in client.read("a", where=penstock.Filter(subject="s.none"), columns=["offset"])] == []


async def test_a_subject_that_most_are_on_is_read_in_whole_batches(broker: FakeBroker, client: aio.Client) -> None:
    broker.fetch_bytes = len(on_subjects(broker).batches[0])
    reading = client.messages("a", where=penstock.Filter(subject="s.often"))
    found = [message.offset async for message in reading]
    assert found == [offset for offset in range(40) if offset % 4 != 3]
    asked = [one.is_projected for one in fetches(broker)]
    assert asked[0]
    assert not all(asked)


def test_what_is_asked_for_follows_the_share_that_matches() -> None:
    asking = ProjectedFetches(None, penstock.Filter(subject="a.*", key="k", headers={"H": None}))
    asked = asking.next(EPOCH)
    assert asked is not None
    assert asked.subjects == ("a.*",)
    asking.matched(int(SUBJECT_SHARE_MAX * 100) + 1, 100)
    assert asking.next(EPOCH) is None
    asking.matched(1, 100)
    assert asking.next(EPOCH) == asked
    narrow = ProjectedFetches(["offset"], penstock.Filter(subject="a.*", key="k", headers={"H": None}))
    narrow.matched(100, 100)
    asked = narrow.next(EPOCH)
    assert asked is not None
    assert asked.columns == ("offset", "key", "headers")


def test_a_broker_is_too_old_until_another_leads() -> None:
    asking = ProjectedFetches(["offset"], None)
    assert asking.is_refused(RemoteError(ErrorCode.UNSUPPORTED_VERSION, ""), EPOCH)
    assert asking.next(EPOCH) is None
    assert asking.next(LeaderEpoch(2)) is not None
    assert not asking.is_refused(RemoteError(ErrorCode.LOG_TRUNCATED, ""), EPOCH)


def answer_of(*offsets: int, schema: pa.Schema | None = None) -> tuple[bytes, int]:
    schema = projecting.schema_of(["offset"]) if schema is None else schema
    return projecting.to_stream([pa.record_batch([pa.array(offsets, schema.types[0])], schema=schema)], schema)


def _flipped(raw: bytes, crc: int) -> tuple[bytes, int]:
    return raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:], crc


def _null(raw: bytes, crc: int) -> tuple[bytes, int]:
    return answer_of(0, None, 2)  # type: ignore[arg-type]


HOSTILE: dict[str, Callable[[bytes, int], tuple[bytes, int]]] = {
    "a bit": _flipped,
    "cut": lambda raw, crc: (raw[:-60], crc32c(raw[:-60])),
    "no stream": lambda raw, crc: (b"\xff" * 40, crc32c(b"\xff" * 40)),
    "another column": lambda raw, crc: answer_of(0, 1, 2, schema=pa.schema([pa.field("offset", pa.int32())])),
    "backwards": lambda raw, crc: answer_of(2, 1, 0),
    "twice": lambda raw, crc: answer_of(0, 0, 1),
    "beyond": lambda raw, crc: answer_of(1, 2, 3),
    "null": _null,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
async def test_what_was_not_asked_for_is_damage(
    broker: FakeBroker, client: aio.Client, change: Callable[[bytes, int], tuple[bytes, int]]
) -> None:
    stream_of(broker, batch(0, 3))

    async def another(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker._fetch(request)
        assert isinstance(response, FetchResponse)
        assert response.raw_crc is not None
        raw, crc = change(raw, response.raw_crc)
        return changed(response, raw_crc=crc), raw

    broker.intercept = another
    with pytest.raises(CorruptionError):
        await client.to_table("a", columns=["offset"])


async def test_an_answer_without_a_checksum_is_damage(broker: FakeBroker, client: aio.Client) -> None:
    stream_of(broker, batch(0, 3))

    async def unsummed(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        response, raw = await broker._fetch(request)
        assert isinstance(response, FetchResponse)
        return changed(response, raw_crc=None), raw

    broker.intercept = unsummed
    with pytest.raises(CorruptionError):
        await client.to_table("a", columns=["offset"])


async def test_following_wakes_up_for_rows_that_match(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    found: list[dict[str, Any]] = []

    async def follow() -> None:
        async for one in client.read("a", end=2, follow=True, columns=["subject"]):
            found.extend(one.to_pylist())

    task = asyncio.create_task(follow())
    for value in (b"1", b"2"):
        async with broker.appended:
            stream.append(columns(value))
            broker.appended.notify_all()
    await task
    assert len(found) == 2
