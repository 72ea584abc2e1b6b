"""Messages that a clock which was ahead has dated in the future: told, kept by a restore, or given the time of now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base.config import StreamConfig
from penstock.batch.schema import arrow_schema
from penstock.client.bulk.placing import Placer, create_paused
from tests.broker_process import BrokerProcess
from tests.cli_process import command, launched
from tests.extent import each_change, needs_time

YEAR_US = 365 * 86_400_000_000
NOW_US = 1_790_000_000_000_000
FUTURE_US = NOW_US + 40 * YEAR_US


def dated(begin: int, end: int, first_us: int) -> pa.RecordBatch:
    """Rows with these offsets, a microsecond apart."""
    count = end - begin
    columns = {
        "offset": list(range(begin, end)),
        "timestamp": list(range(first_us, first_us + count)),
        "subject": ["orders.x"] * count,
        "key": [None] * count,
        "value": [b"%d" % number for number in range(begin, end)],
        "headers": [None] * count,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name]).cast(field.type) for field in arrow_schema()], schema=arrow_schema()
    )


def make(broker: BrokerProcess, name: str, *parts: pa.RecordBatch) -> None:
    """A stream that takes messages, with these rows."""
    with penstock.connect(broker.client_address) as client:
        info = create_paused(client, StreamConfig(name=name, subject="orders.>"))
        placer = Placer(client, info)
        for part in parts:
            placer.put(part, may_be_ahead=True)


async def dated_in_the_future(broker: BrokerProcess) -> str:
    """What `penstock doctor` says of the times of messages; its exit code tells of other things, too."""
    with launched(broker.client_address, "doctor", "--json") as running:
        said, _ = await asyncio.to_thread(running.communicate, timeout=60)
    (text,) = [one["found"] for one in json.loads(said)["findings"] if one["check"] == "message times"]
    return str(text)


@pytest.fixture(autouse=True)
async def without_streams(client: aio.Client) -> AsyncIterator[None]:
    """The broker is one for all tests, and their streams have one subject."""
    yield
    for info in [one for one in await client.streams() if not one.name.startswith("__")]:
        await client.delete_stream(info)


async def values_and_times(client: aio.Client, stream: str) -> list[tuple[int, bytes, int]]:
    table = await client.to_table(stream)
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    return list(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), times, strict=True))


@needs_time
async def test_the_steps_of_the_page(broker: BrokerProcess, client: aio.Client, tmp_path: Path) -> None:
    make(broker, "orders", dated(0, 50, NOW_US - 10 * YEAR_US), dated(50, 60, FUTURE_US))
    await client.resume_stream("orders")
    await client.groups.commit("billing", "orders", {0: 55})
    ack = await client.publish("orders.x", b"60")
    assert (await values_and_times(client, "orders"))[-1] == (ack.offset, b"60", FUTURE_US + 9)
    assert "orders: its last message is dated" in await dated_in_the_future(broker)
    before = await values_and_times(client, "orders")
    address, backup = broker.client_address, str(tmp_path / "backup")
    await command(address, "backup", backup, "--stream", "orders")
    await command(address, "stream", "pause", "orders")
    await command(address, "backup", backup, "--stream", "orders")
    await command(address, "stream", "delete", "orders", "--yes")
    _, errors = await command(address, "restore", backup, "--stream", "orders", "--future-times", "now")
    assert "11 rows of stream orders got the current time: they had times up to 2066" in errors
    _, errors = await command(address, "restore", backup, "--stream", "orders", code=1)
    assert "if it was begun with --future-times now, give that again" in errors
    await command(address, "stream", "resume", "orders")
    after = await values_and_times(client, "orders")
    assert [one[:2] for one in after] == [one[:2] for one in before]
    assert [one[2] for one in after[:50]] == [one[2] for one in before[:50]]
    (given_us,) = {one[2] for one in after[50:]}
    await client.publish("orders.x", b"61")
    last_us = (await values_and_times(client, "orders"))[-1][2]
    assert given_us < last_us < given_us + YEAR_US
    assert [one.offset for one in await client.groups.offsets("billing", "orders")] == [55]
    assert await dated_in_the_future(broker) == "no message is dated in the future"
    # Once more, of a stream that takes messages: it is there already.
    _, errors = await command(address, "restore", backup, "--stream", "orders", "--future-times", "now")
    assert "already has all rows of the backup" in errors


@each_change
async def test_a_restore_keeps_what_the_backup_holds_and_says_so(
    broker: BrokerProcess, client: aio.Client, tmp_path: Path
) -> None:
    make(broker, "orders", dated(0, 20, FUTURE_US))
    before = await values_and_times(client, "orders")
    address, backup = broker.client_address, str(tmp_path / "backup")
    await command(address, "backup", backup)
    _, errors = await command(address, "restore", backup, "--stream", "orders", "--as", "again")
    assert "20 rows of stream again have times in the future, up to 2066" in errors
    assert "docs/how-to/clock-ahead.md" in errors
    assert await values_and_times(client, "again") == before


@needs_time
@pytest.mark.parametrize("half", [5, 15])
async def test_a_restore_that_was_interrupted_goes_on_with_the_time_that_it_gave(
    broker: BrokerProcess, client: aio.Client, tmp_path: Path, half: int
) -> None:
    rows = [dated(0, 10, NOW_US - YEAR_US), dated(10, 20, FUTURE_US)]
    make(broker, "orders", *rows)
    address, backup = broker.client_address, str(tmp_path / "backup")
    await command(address, "backup", backup)
    given_us = NOW_US - 7
    first = [rows[0].slice(0, half)] + ([dated(10, half, given_us - 4)] if half > 10 else [])
    if half > 10:
        number = first[1].schema.get_field_index("timestamp")
        field = first[1].schema.field(number)
        same = pa.array([given_us] * first[1].num_rows).cast(field.type)
        first[1] = first[1].set_column(number, field, same)
    make(broker, "again", *first)
    arguments = ("--stream", "orders", "--as", "again", "--future-times", "now")
    await command(address, "restore", backup, *arguments)
    after = await values_and_times(client, "again")
    assert [one[:2] for one in after] == [one[:2] for one in await values_and_times(client, "orders")]
    assert len({one[2] for one in after[10:]}) == 1
    if half > 10:
        assert after[-1][2] == given_us


@needs_time
async def test_a_copy_gives_the_time_of_now_or_keeps_it(broker: BrokerProcess, client: aio.Client) -> None:
    make(broker, "orders", dated(0, 10, NOW_US - YEAR_US), dated(10, 20, FUTURE_US))
    address, before = broker.client_address, await values_and_times(client, "orders")
    said, errors = await command(address, "stream", "copy", "orders", "kept")
    assert said.startswith("copied 20 rows")
    assert "10 rows of stream kept have times in the future" in errors
    assert await values_and_times(client, "kept") == before
    _, errors = await command(address, "stream", "copy", "orders", "now", "--future-times", "now")
    assert "10 rows of stream now got the current time" in errors
    (given_us,) = {one[2] for one in (await values_and_times(client, "now"))[10:]}
    with penstock.connect(address) as blocking:
        Placer(blocking, blocking.stream("orders")).put(dated(20, 25, FUTURE_US + 100), may_be_ahead=True)
    said, _ = await command(address, "stream", "copy", "orders", "now", "--future-times", "now", "--json")
    assert json.loads(said)["rows"] == 5
    assert {one[2] for one in (await values_and_times(client, "now"))[10:]} == {given_us}
    _, errors = await command(address, "stream", "copy", "orders", "now", code=1)
    assert "if it was begun with --future-times now, give that again" in errors
