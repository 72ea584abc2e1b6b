"""Arguments as programs have them: numpy's numbers and times, infinite time-outs, and what is refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock import aio
from penstock.base import limits
from penstock.client import blocking
from penstock.client.checks import place_of, seconds_of
from penstock.client.columns import to_table
from penstock.client.errors import InvalidConfig
from penstock.messages import CreateStreamRequest, GetRequest, ListOffsetsRequest
from tests.fake_broker import FakeBroker, columns


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        broker.create("a").append(columns(*(b"%d" % number for number in range(10))))
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await aio.connect(broker.address) as client:
        yield client


MOMENT = datetime(2025, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (np.int64(5), 5),
        (np.uint8(5), 5),
        (np.datetime64("2025-01-02T03:04:05.678"), MOMENT),
        (np.datetime64("2025-01-02T03:04:05.678", "ns"), MOMENT),
        (pd.Series([MOMENT]).to_numpy()[0], MOMENT),
        (pd.Series([MOMENT]).dt.tz_convert("Asia/Tokyo").array[0], MOMENT),
        (np.datetime64("2025-01-02", "D"), datetime(2025, 1, 2, tzinfo=UTC)),
        (np.timedelta64(90, "s"), timedelta(seconds=90)),
        (MOMENT, MOMENT),
        ("latest", "latest"),
        (7, 7),
        (None, None),
    ],
)
def test_a_place_is_taken_as_numpy_and_pandas_have_it(given: Any, place: Any) -> None:
    assert place_of(given) == place


def test_a_missing_time_is_no_place() -> None:
    with pytest.raises(ValueError, match="not a time"):
        place_of(np.datetime64("NaT"))


async def test_offsets_out_of_a_data_frame_are_offsets(broker: FakeBroker, client: aio.Client) -> None:
    frame = await client.to_pandas("a")
    offset = frame["offset"].iloc[-3]
    assert isinstance(offset, np.int64)
    read = [one.offset async for one in client.messages("a", offset, end=np.int64(9), partition=np.int64(0))]
    assert read == [7, 8]
    assert (await client.get("a", offset, partition=np.int32(0))).value == b"7"
    assert (await client.offsets("a", offset)).offset == 7
    asked = [one for one in broker.requests if isinstance(one, GetRequest | ListOffsetsRequest)]
    assert asked
    await client.offsets("a", np.datetime64(MOMENT.replace(tzinfo=None)))
    assert broker.requests[-1].at == round(MOMENT.timestamp() * 1_000_000)  # type: ignore[attr-defined]


async def test_numbers_of_a_config_are_numbers(broker: FakeBroker, client: aio.Client) -> None:
    made = await client.create_stream("new", "new", partitions=np.int64(1), max_age_ms=np.uint32(60_000))
    assert (made.config.max_age_ms, type(made.config.max_age_ms)) == (60_000, int)
    altered = await client.alter_stream("new", max_messages=np.int64(5), max_age_ms=None)
    assert (altered.config.max_messages, altered.config.max_age_ms) == (5, None)
    with pytest.raises(InvalidConfig, match="max_messages: expected `int \\| null`, got `bool`"):
        await client.create_stream("another", "another", max_messages=True)


@pytest.mark.parametrize("offset", [True, 1.5, "7", None])
async def test_what_is_no_offset_is_told_by_its_kind(client: aio.Client, offset: Any) -> None:
    with pytest.raises(TypeError, match=f"the offset {offset!r} is a.* {type(offset).__name__}; give an int"):
        await client.get("a", offset)


EVERY_CALL: dict[str, Callable[[aio.Client, Any], Awaitable[Any]]] = {
    "status": lambda client, timeout: client.status(timeout=timeout),
    "streams": lambda client, timeout: client.streams(timeout=timeout),
    "create": lambda client, timeout: client.create_stream("new", "new", timeout=timeout),
    "offsets": lambda client, timeout: client.offsets("a", 3, timeout=timeout),
    "get": lambda client, timeout: client.get("a", 3, timeout=timeout),
    "to_table": lambda client, timeout: client.to_table("a", timeout=timeout),
    "append": lambda client, timeout: client.append("a", [{"value": b"x"}], timeout=timeout),
}


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**18])
@pytest.mark.parametrize("call", EVERY_CALL)
async def test_an_infinite_time_out_waits_for_as_long_as_it_takes(
    broker: FakeBroker, client: aio.Client, call: str, timeout: float
) -> None:
    await EVERY_CALL[call](client, timeout)
    for request in broker.requests:
        if isinstance(request, CreateStreamRequest):
            assert 0 < request.timeout_ms <= limits.CLIENT_TIMEOUT_S_MAX * 1_000


@pytest.mark.parametrize(("timeout", "kind"), [(None, TypeError), ("5", TypeError), (float("nan"), ValueError)])
@pytest.mark.parametrize("call", EVERY_CALL)
async def test_a_time_out_that_is_none_is_refused_by_its_name(
    client: aio.Client, call: str, timeout: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"timeout is .*float\('inf'\)"):
        await EVERY_CALL[call](client, timeout)


def test_connecting_checks_its_time_out() -> None:
    with pytest.raises(TypeError, match="timeout is None"):
        blocking.connect("127.0.0.1:1", timeout=None)  # type: ignore[arg-type]
    assert seconds_of(3) == 3.0


def test_an_unknown_column_is_named_before_a_wrong_type() -> None:
    with pytest.raises(ValueError, match="unknown columns price; an append takes subject, key, value, headers"):
        to_table([{"value": b"1", "price": 1.5}], stream_subject="s")
    with pytest.raises(ValueError, match="unknown columns 7;"):
        to_table([{7: b"1"}], stream_subject="s")
