"""Arguments as programs have them: numpy's numbers and times, infinite time-outs, and what is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock import aio
from penstock.base import limits
from penstock.client.blocking import client as blocking
from penstock.client.checks import place_of, seconds_of
from penstock.client.columns import to_table
from penstock.client.errors import InvalidConfig
from penstock.client.places import LATEST, LastMessages
from penstock.client.publish.publishing import Publisher
from penstock.client.read.filters import Filter
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
        (date(2025, 1, 2), datetime(2025, 1, 2, tzinfo=UTC)),
        ("latest", LATEST),
        ("5m ago", timedelta(minutes=5)),
        (7, 7),
        (-7, LastMessages(7)),
        (np.int64(-7), LastMessages(7)),
        ("-7", LastMessages(7)),
        (None, None),
    ],
)
def test_a_place_is_taken_as_numpy_and_pandas_have_it(given: Any, place: Any) -> None:
    assert place_of(given) == place


def test_a_missing_time_is_no_place() -> None:
    with pytest.raises(ValueError, match="not a time"):
        place_of(np.datetime64("NaT"))


async def test_the_last_offsets_are_counted_from_the_end(client: aio.Client) -> None:
    async def read(*place: Any, **options: Any) -> list[int]:
        return [one.offset async for one in client.messages("a", *place, **options)]

    assert await read(-3) == await read("-3") == await read(LastMessages(3)) == [7, 8, 9]
    assert await read(-30) == list(range(10))
    assert await read("-0") == []
    assert await read(6, end=-2) == [6, 7]
    assert (await client.offsets("a", -3)).offset == 7


async def test_the_last_offsets_are_no_fixed_place(client: aio.Client) -> None:
    with pytest.raises(ValueError, match="-3 changes with each new message: give an end of the log, an offset"):
        await client.truncate_stream("a", -3)
    with pytest.raises(ValueError, match="-3 changes with each new message"):
        await client.groups.reset("g", "a", "-3")
    with pytest.raises(ValueError, match="-3 changes with each new message"):
        client.consumer("a", "g", start=-3)


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


async def test_truths_of_a_config_are_truths(client: aio.Client) -> None:
    made = await client.create_stream("new", "new", compact=np.bool_(True))
    assert made.config.compact is True
    altered = await client.alter_stream("new", compact=np.bool_(False))
    assert altered.config.compact is False


async def test_durations_of_a_config_are_milliseconds(broker: FakeBroker, client: aio.Client) -> None:
    for call in (
        lambda: client.create_stream("new", "new", max_age_ms=timedelta(minutes=1)),
        lambda: client.alter_stream("a", max_age_ms=timedelta(minutes=1)),
    ):
        with pytest.raises(InvalidConfig, match="max_age_ms: it is a timedelta; give milliseconds, here 60000"):
            await call()
    with pytest.raises(InvalidConfig, match="range_bounds: expected `list`, got `int`"):
        await client.create_stream("new", "new", range_bounds=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda client, number: client.get("a", number),
        lambda client, number: client.delete("a", number),
        lambda client, number: client.delete("a", [1, number]),
        lambda client, number: client.purge_subject("a", "a", before=number),
        lambda client, number: client.purge_subject("a", "a", keep=number),
        lambda client, number: client.to_table("a", start=number),
    ],
)
@pytest.mark.parametrize("number", [2**63, 2**64])
async def test_a_number_beyond_64_bits_is_refused_by_name(
    client: aio.Client, call: Callable[[aio.Client, int], Awaitable[object]], number: int
) -> None:
    with pytest.raises(ValueError, match=rf"the (offset|keep) {number} is beyond 9223372036854775807, the most"):
        await call(client, number)
    assert (await client.get("a", 1)).offset == 1, "the connection serves on"


async def test_arguments_of_deletions_and_lists_are_told_by_name(client: aio.Client) -> None:
    offsets: Any
    for offsets in (1.5, "7", None, [1, 1.5]):
        with pytest.raises(TypeError, match=r"the offset .* is .*; give an int"):
            await client.delete("a", offsets)
    for after in (None, 5):
        with pytest.raises(TypeError, match=r"after is .*; give a subject"):
            await client.subjects("a", after=after)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="metadata: keys and values are str, and the key 'b' has the value 1"):
        await client.create_stream("new", "new", metadata={"a": "x", "b": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidConfig, match=r"^subject: 'a.x' is given twice"):
        await client.create_stream("new", ["a.x", "a.x"])


@pytest.mark.parametrize("subject", [5, ["a", "b"], None])
async def test_a_subject_to_purge_is_one_str(client: aio.Client, subject: Any) -> None:
    with pytest.raises(TypeError, match=r"the subject .*; give one as str"):
        await client.purge_subject("a", subject)


READS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "where": ({"where": "x"}, TypeError, r"where is a str; give a Filter, such as Filter\(key=…\)"),
    "columns": ({"columns": ["value", "value"]}, ValueError, "columns are .*; give each once"),
    "rows": ({"batch_rows_max": "7"}, TypeError, "batch_rows_max '7' is a str; give an int"),
    "start": ({"start": timedelta.max}, ValueError, "longer ago than the year 1; EARLIEST is the beginning"),
    "numpy": ({"start": np.timedelta64(2**62, "s")}, ValueError, "is no place in the log: it is beyond the years"),
}


@pytest.mark.parametrize("which", READS)
async def test_what_a_read_cannot_take_is_told_by_name(client: aio.Client, which: str) -> None:
    options, kind, said = READS[which]
    with pytest.raises(kind, match=said):
        async for _ in client.read("a", **options):
            pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"session": "10s"}, "session is a str; give seconds, such as 10"),
        ({"session": timedelta(seconds=10)}, "session is a timedelta; give seconds"),
        ({"checkpoint_interval": None}, "checkpoint_interval is a NoneType; give seconds"),
        ({"batch_rows_max": 1.5}, "batch_rows_max 1.5 is a float; give an int"),
    ],
)
def test_what_a_consumer_cannot_take_is_told_by_name(client: aio.Client, options: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        client.consumer("a", "g", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": 5}, "the key is an int; give bytes or str"),
        ({"headers": "x"}, "headers is a str; give a dict of str, with None for any value"),
        ({"subject": 5}, "the subject is an int; give a pattern, or several in a list"),
    ],
)
def test_what_a_filter_cannot_take_is_told_by_name(options: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Filter(**options)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (
            {"credentials": ("ann", "SECRET")},
            TypeError,
            r"credentials is a tuple; .*Credentials\.token\(…\)",
        ),
        ({"server": []}, ValueError, "no server is given; give HOST:PORT"),
        ({"nats": []}, ValueError, r"nats is \[\]: no server is given"),
        ({"nats": 4222}, TypeError, "nats is an int; give 'nats://HOST:PORT'"),
    ],
)
@pytest.mark.parametrize("connect", [aio.connect, blocking.connect])
def test_what_connecting_cannot_take_is_told_by_name(
    connect: Callable[..., Any], options: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        connect(**{"server": "127.0.0.1:1", **options})
    assert "SECRET" not in str(caught.value)


async def test_retries_are_a_number() -> None:
    publisher, retries = Publisher(["nats://127.0.0.1:1"], "test", {}), "3"
    with pytest.raises(TypeError, match="the number of retries '3' is a str; give an int"):
        await publisher.publish(publisher.future(), "a", b"x", None, timeout_s=1.0, retries=retries)  # type: ignore[arg-type]


async def test_what_has_connections_says_that_another_process_makes_its_own(client: aio.Client) -> None:
    blocked = (blocking.Client, blocking.Producer, blocking.Table, blocking.Consumer)
    made = (client, aio.connect("127.0.0.1:1"), client.producer("a"), client.consumer("a", "g"))
    for one in (*made, *map(object.__new__, blocked)):
        for away in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=rf"{type(one).__name__} cannot be pickled or copied: .*connect\(…\)"):
                away(one)


async def test_numbers_of_a_config_are_numbers(broker: FakeBroker, client: aio.Client) -> None:
    made = await client.create_stream("new", "new", partitions=np.int64(1), max_age_ms=np.uint32(60_000))
    assert (made.config.max_age_ms, type(made.config.max_age_ms)) == (60_000, int)
    altered = await client.alter_stream("new", max_messages=np.int64(5), max_age_ms=None)
    assert (altered.config.max_messages, altered.config.max_age_ms) == (5, None)
    with pytest.raises(InvalidConfig, match="max_messages: expected `int \\| None`, got `bool`"):
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
