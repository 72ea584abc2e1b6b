"""A table of a stream, on fake brokers: it has what the log says last of each key, through whatever breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.batch import codec
from penstock.batch.thinning import Thinner
from penstock.hot.keymap import KeyMap
from penstock.messages import FetchRequest, MetadataRequest, Request
from tests.extent import extent
from tests.fake_broker import Answer, FakeBroker, FakeStream
from tests.groups import Columns

TOMBSTONE = b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n"
Row = tuple[bytes | None, bytes | None, bytes | None]  # key, value, headers


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker, asyncio.timeout(60):
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await penstock.aio.connect(broker.address) as client:
        yield client


def columns(*rows: Row) -> Columns:
    keys, values, headers = zip(*rows, strict=True)
    return Columns([b"s"] * len(rows), list(keys), list(values), list(headers))


def plain(key: bytes | None, value: bytes | None) -> Row:
    return key, value, None


def held(table: aio.Table) -> dict[bytes | None, bytes | None]:
    return {message.key: message.value for message in table.values()}


async def test_it_begins_with_all_that_is_there(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1"), plain(b"y", b"1"), plain(None, b"no key"), plain(b"x", b"2")))
    stream.append(columns(plain(b"z", b"1"), plain(b"y", None), (b"z", None, TOMBSTONE), plain(b"", b"")))
    async with await client.table("a") as table:
        assert held(table) == {b"x": b"2"}  # an empty key is none
        assert len(table) == 1
        found = table.get("x")
        assert found is not None
        assert (found.offset, found.value) == (3, b"2")
        assert table.get(b"y") is None
        assert [key in table for key in ("x", b"x", "", "y", b"z", "nobody")] == [
            True,
            True,
            False,
            False,
            False,
            False,
        ]


def of_bucket(*rows: tuple[bytes, bytes, str]) -> Columns:
    """Rows of the bucket b: key, value, header."""
    blocks = [f"NATS/1.0\r\n{header}\r\n\r\n".encode() if header else None for _, _, header in rows]
    return Columns([b"$KV.b.%b" % key for key, _, _ in rows], None, [value for _, value, _ in rows], blocks)


async def test_a_bucket_has_the_keys_of_its_clients(broker: FakeBroker, client: aio.Client) -> None:
    deletions = (
        "KV-Operation: DEL", "KV-Operation: PURGE", "Nats-Marker-Reason: MaxAge", "Nats-Marker-Reason: Purge",
        "Nats-Marker-Reason: Remove",
    )  # fmt: skip
    stream = broker.create("KV_b", "$KV.b.>")
    stream.append(of_bucket((b"a", b"1", ""), (b"eu.\xc3\xa9", b"1", ""), (b"a", b"2", "KV-Operation: PUT")))
    stream.append(of_bucket(*((b"k%d" % number, b"1", "") for number in range(len(deletions)))))
    stream.append(of_bucket((b"empty", b"", "KV-Operationx: DEL"), (b"back", b"", "KV-Operation: DEL")))
    async with await client.table("KV_b") as table:
        changes = table.changes()
        await broker.append(stream, of_bucket(*((b"k%d" % n, b"", one) for n, one in enumerate(deletions))))
        await broker.append(stream, of_bucket((b"back", b"3", "")))
        await table.wait_for(15)
        assert held(table) == {b"a": b"2", "eu.é".encode(): b"1", b"empty": b"", b"back": b"3"}
        found = table["eu.é"]
        assert (found.key, found.subject, found.headers) == ("eu.é".encode(), "$KV.b.eu.é", {})
        told = [await anext(changes) for _ in range(6)]
        assert [(one.key, one.is_tombstone) for one in told] == [
            *((b"k%d" % number, True) for number in range(5)), (b"back", False)
        ]  # fmt: skip
        assert told[0].headers == {"KV-Operation": "DEL"}


@pytest.mark.parametrize(("name", "subject"), [("KV_b", "$KV.c.>"), ("b", "$KV.b.>"), ("KV_b", "$KV.b.*")])
async def test_other_streams_are_no_buckets(broker: FakeBroker, client: aio.Client, name: str, subject: str) -> None:
    broker.create(name, subject).append(of_bucket((b"a", b"1", ""))._replace(keys=[b"key"]))
    async with await client.table(name) as table:
        assert held(table) == {b"key": b"1"}


async def test_it_is_a_mapping(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a").append(columns(plain(b"x", b"1"), plain(b"y", b"<2>"), plain(b"z", None)))
    async with await client.table("a") as table:
        assert isinstance(table, Mapping)
        assert [*table] == [*table.keys()] == [b"x", b"y"]
        assert table["x"] == table[b"x"] == table.get("x")
        assert table.items() >= {(b"x", table["x"])}
        assert [one.offset for one in table.values()] == [0, 1]
        assert dict(table) == table
        assert (table.get("z"), table.get("z", 7), 7 in table) == (None, 7, False)
        with pytest.raises(KeyError):
            table["z"]
        assert repr(table) == "Table('a', keys=2)"
        assert "<td>&lt;2&gt;</td>" in table._repr_html_()
    assert repr(table) == "Table('a', closed)"


def compact(stream: FakeStream, *kept: int) -> None:
    """Leave of what the log holds only the rows at these offsets."""
    thinner = Thinner(100, 10_000)
    left: list[bytes] = []
    for batch in stream.batches:
        header = codec.read_header(batch)
        keep = pa.array([offset in kept for offset in range(header.base_offset, header.end_offset)])
        left += [bytes(message.data) for message in thinner.add(batch, header, keep)]
    stream.batches = left + [bytes(message.data) for message in thinner.end()]
    assert not thinner.forced_keys


async def test_a_log_whose_last_rows_are_gone(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1"), plain(b"y", b"1"), plain(b"z", None)))
    compact(stream, 0, 1)
    async with asyncio.timeout(20), await client.table("a") as table:
        assert held(table) == {b"x": b"1", b"y": b"1"}
        await table.wait_for(2)


async def test_rows_that_go_before_the_table_comes_to_them(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    async with await client.table("a") as table:
        stream.append(columns(plain(b"x", b"1"), plain(b"x", b"2"), plain(b"z", None)))
        compact(stream, 1)
        async with broker.appended:
            broker.appended.notify_all()
        await table.wait_for(2)
        assert held(table) == {b"x": b"2"}
        await broker.append(stream, columns(plain(b"y", b"1")))
        await table.wait_for(3)
        assert held(table) == {b"x": b"2", b"y": b"1"}


async def test_what_was_read_up_to_a_gap_is_not_read_again(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1"), plain(b"x", b"2"), plain(b"z", None)))
    compact(stream, 1)
    async with asyncio.timeout(40), await client.table("a", timeout=0.2) as table:
        port = int(broker.address.rpartition(":")[2])
        await broker.stop()
        broker.requests.clear()
        stream.append(columns(plain(b"y", b"1")))
        await broker.start(port)
        await table.wait_for(3, timeout=30)
        assert next(one.offset for one in broker.requests if isinstance(one, FetchRequest)) == 3


async def test_an_empty_stream_is_an_empty_table(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a")
    async with await client.table("a") as table:
        assert (len(table), list(table)) == (0, [])


async def test_it_follows_the_log_and_tells_of_changes(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    async with await client.table("a") as table:
        changes = table.changes()
        await broker.append(stream, columns(plain(b"y", b"2"), plain(None, b"no key")))
        assert (await anext(changes)).key == b"y"
        await broker.append(stream, columns(plain(b"x", None), plain(b"y", b"3"), plain(b"y", b"4")))
        await table.wait_for(5)
        assert held(table) == {b"y": b"4"}
        assert [(one.key, one.value) for one in [await anext(changes), await anext(changes)]] == [
            (b"x", None),
            (b"y", b"4"),
        ]
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await table.close()
        with pytest.raises(StopAsyncIteration):
            await waiting


@pytest.mark.parametrize("what", ["table", "client"])
async def test_once_closed_it_tells_nothing_any_more(broker: FakeBroker, what: str) -> None:
    broker.create("a").append(columns(plain(b"x", b"1")))
    client = await penstock.aio.connect(broker.address)
    table = await client.table("a")
    assert "x" in table
    await (table if what == "table" else client).close()
    looks: tuple[Callable[[], object], ...] = (
        lambda: table.get("x"),
        lambda: "x" in table,
        lambda: len(table),
        lambda: list(table),
    )
    for look in looks:
        with pytest.raises(OperationalError, match=f"the {what} is closed"):
            look()
    with pytest.raises(OperationalError, match="closed"):
        await table.wait_for(1)
    await table.close()
    await client.close()


async def test_who_reads_changes_slowly_holds_the_latest_of_each_key(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    async with await client.table("a") as table:
        changes = table.changes()
        for number in range(20):
            await broker.append(stream, columns(plain(b"x", b"%d" % number), plain(b"y", b"%d" % number)))
        await table.wait_for(39)
        assert [(one.key, one.value) for one in [await anext(changes), await anext(changes)]] == [
            (b"x", b"19"),
            (b"y", b"19"),
        ]
        assert not changes.pending


async def test_it_waits_for_an_offset_no_longer_than_it_may(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a").append(columns(plain(b"x", b"1")))
    async with await client.table("a") as table:
        await table.wait_for(0)
        with pytest.raises(penstock.TimedOut, match="offset 1 of partition 0"):
            await table.wait_for(1, timeout=0.05)


async def test_an_outage_leaves_it_as_it_was(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    async with await client.table("a", timeout=0.2) as table:
        port = int(broker.address.rpartition(":")[2])
        await broker.stop()
        assert held(table) == {b"x": b"1"}
        stream.append(columns(plain(b"x", b"2")))
        await broker.start(port)
        await table.wait_for(1, timeout=30)
        assert held(table) == {b"x": b"2"}


async def test_what_is_lost_is_told_by_every_call(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    async with await client.table("a") as table:

        async def lost(request: Request) -> Answer | None:
            if isinstance(request, FetchRequest):
                raise RemoteError(ErrorCode.LOG_TRUNCATED, "cut", end_offset=0, log_start=0, committed_end=0)
            return None

        broker.intercept = lost
        broker.cut_connections()
        with pytest.raises(penstock.LogTruncated):
            await anext(table.changes())
        for call in (lambda: table.get("x"), lambda: len(table), lambda: list(table)):
            with pytest.raises(penstock.LogTruncated):
                call()


async def test_a_stream_that_is_not_there(client: aio.Client) -> None:
    with pytest.raises(penstock.StreamNotFound):
        await client.table("nothing")


@pytest.mark.parametrize("seed", range(extent(6, 40)))
async def test_it_is_what_a_dict_says(broker: FakeBroker, client: aio.Client, seed: int) -> None:
    chance = random.Random(seed)
    stream = broker.create("a")
    wanted: dict[bytes | None, bytes | None] = {}

    def some() -> Columns:
        rows = []
        for _ in range(chance.randint(1, 5)):
            key = chance.choice((None, b"", b"a", b"b", b"c"))
            value = chance.choice((None, b"", b"%d" % chance.randrange(1_000)))
            rows.append((key, value, TOMBSTONE if not value and chance.random() < 0.5 else None))
            if key and value is None:
                wanted.pop(key, None)
            elif key:
                wanted[key] = value
        return columns(*rows)

    for _ in range(chance.randrange(8)):
        stream.append(some())
    async with await client.table("a") as table:
        assert held(table) == wanted
        seen, changes = dict(wanted), table.changes()
        for _ in range(8):
            if chance.random() < 0.3:
                broker.cut_connections()
            await broker.append(stream, some())
            await table.wait_for(stream.end - 1)
            assert held(table) == wanted
        while changes.pending:
            message = await anext(changes)
            if message.is_tombstone:
                seen.pop(message.key, None)
            else:
                seen[message.key] = message.value
        assert seen == wanted


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_POLL_S", 0.01)


def partitions_asked(broker: FakeBroker) -> list[int]:
    asked = [int(request.partition) for request in broker.requests if isinstance(request, FetchRequest)]
    return list(dict.fromkeys(asked))


async def test_of_a_grown_stream_the_later_partition_counts(
    broker: FakeBroker, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a tombstone there, and also where the older partition answers late."""
    monkeypatch.setattr(limits, "PARTITIONS_POLL_S", 3_600.0)  # what is known suffices
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1"), plain(b"y", b"1"), plain(b"z", b"1")))
    stream.grow(2)
    stream.mark()
    stream.append(columns(plain(b"z", b"2")))
    stream.added[0].append(columns((b"x", None, TOMBSTONE), plain(b"y", b"2")))
    was_read = asyncio.Event()

    async def late(request: Request) -> Answer | None:
        if not isinstance(request, FetchRequest):
            return None
        if request.partition:
            was_read.set()
        elif not request.offset:
            try:
                async with asyncio.timeout(0.2):
                    await was_read.wait()
            except TimeoutError:
                pass
        return None

    broker.intercept = late
    async with await client.table("a") as table:
        assert held(table) == {b"y": b"2", b"z": b"2"}


@pytest.mark.usefixtures("looks_often")
async def test_partitions_that_are_added_are_followed(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    async with await client.table("a") as table:
        changes = table.changes()
        waiting = asyncio.ensure_future(table.wait_for(0, partition=2))
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.grow(3)
        stream.mark()
        await broker.append(stream.added[1], columns(plain(b"x", b"2")))
        await waiting
        assert (await anext(changes)).value == b"2"
        found = table.get("x")
        assert found is not None
        assert (found.partition, found.offset) == (2, 0)


@pytest.mark.usefixtures("looks_often")
async def test_a_new_partition_waits_for_what_the_older_ones_have_of_its_keys(
    broker: FakeBroker, client: aio.Client
) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    stream.grow(2)
    stream.added[0].append(columns(plain(None, b"no key")))
    seen = asyncio.Event()
    looks = 0

    async def count(request: Request) -> Answer | None:
        nonlocal looks
        looks += isinstance(request, MetadataRequest)
        if looks > 3:
            seen.set()
        return None

    broker.intercept = count
    making = asyncio.ensure_future(client.table("a"))
    await seen.wait()
    assert partitions_asked(broker) == [0]
    await broker.append(stream, columns(plain(b"x", b"2")))
    stream.mark()
    stream.added[0].append(columns(plain(b"x", b"3")))
    async with await making as table:
        await table.wait_for(1, partition=1)
        assert held(table) == {b"x": b"3"}


@pytest.mark.usefixtures("looks_often")
async def test_an_outage_leaves_it_with_the_partitions_that_it_has(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(plain(b"x", b"1")))
    async with await client.table("a", timeout=0.2) as table:
        stream.grow(3)
        stream.mark()
        await broker.append(stream.added[1], columns(plain(b"x", b"2")))
        await table.wait_for(0, partition=2)
        port = int(broker.address.rpartition(":")[2])
        await broker.stop()
        broker.requests.clear()
        stream.added[0].append(columns(plain(b"y", b"1")))
        stream.added[1].append(columns(plain(b"x", b"3")))
        await broker.start(port)
        await table.wait_for(0, partition=1, timeout=30)
        await table.wait_for(1, partition=2, timeout=30)
        assert held(table) == {b"x": b"3", b"y": b"1"}
        fetched = [(one.partition, one.offset) for one in broker.requests if isinstance(one, FetchRequest)]
        assert (2, 0) not in fetched


@pytest.mark.usefixtures("looks_often")
async def test_a_table_of_one_partition_stays_so(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.grow(2)
    stream.mark()
    async with await client.table("a", partition=1) as table:
        with pytest.raises(ValueError, match="not made of partition 0"):
            await table.wait_for(0)
        await broker.append(stream.added[0], columns(plain(b"x", b"1")))
        await table.wait_for(0, partition=1)
        assert partitions_asked(broker) == [1]


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("seed", range(extent(6, 40)))
async def test_it_is_what_a_dict_says_while_keys_move(broker: FakeBroker, client: aio.Client, seed: int) -> None:
    chance = random.Random(seed)
    stream = broker.create("a")
    wanted: dict[bytes, bytes] = {}
    told: dict[bytes, list[bytes | None]] = {}

    def store() -> None:
        keys = KeyMap(stream.counts or (1,))
        for _ in range(chance.randint(1, 12)):
            key = b"%d" % chance.randrange(12)
            value = chance.choice((None, b"%d" % chance.randrange(1_000_000)))
            row = (key, value, TOMBSTONE if value is None else None)
            stream.partitions[keys.partition_of(key)].append(columns(row))
            told.setdefault(key, []).append(value)
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value

    async def has_all(table: aio.Table) -> None:
        async with broker.appended:
            broker.appended.notify_all()
        for number, one in enumerate(stream.partitions):
            if one.end:
                await table.wait_for(one.end - 1, partition=number)
        assert held(table) == wanted

    def grow() -> None:
        stream.grow(len(stream.partitions) + chance.randint(1, 3))
        stream.mark()

    async def jittery(request: Request) -> Answer | None:
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        return None

    broker.intercept = jittery
    for _ in range(chance.randrange(4)):
        store()
        if chance.random() < 0.5:
            grow()
    store()
    async with await client.table("a") as table:
        await has_all(table)
        told.clear()
        changes = table.changes()
        for _ in range(6):
            if chance.random() < 0.3:
                broker.cut_connections()
            store()
            if chance.random() < 0.4:
                grow()
            store()
            await has_all(table)
            while changes.pending:
                message = await anext(changes)
                assert message.key is not None
                assert message.value in told[message.key]
                del told[message.key][: told[message.key].index(message.value) + 1]


def test_the_blocking_face(tmp_path: object) -> None:
    async def story() -> None:
        async with FakeBroker() as broker, asyncio.timeout(30):
            stream: FakeStream = broker.create("a")
            stream.append(columns(plain(b"x", b"1")))
            ready, seen = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def use() -> list[bytes | None]:
                with penstock.connect(broker.address) as client, client.table("a") as table:
                    assert len(table) == 1
                    assert "x" in table
                    assert b"y" not in table
                    changes = table.changes()
                    loop.call_soon_threadsafe(ready.set)
                    table.wait_for(1)
                    assert [message.value for message in table.values()] == [b"2"]
                    loop.call_soon_threadsafe(seen.set)
                    assert next(changes).value == b"2"
                    found = table.get("x")
                    table.close()
                    assert list(table.changes()) == []
                    with pytest.raises(OperationalError, match="the table is closed"):
                        table.get("x")
                    return [None if found is None else found.value]

            using = asyncio.ensure_future(asyncio.to_thread(use))
            await ready.wait()
            await broker.append(stream, columns(plain(b"x", b"2")))
            await seen.wait()
            assert await using == [b"2"]

    asyncio.run(story())
