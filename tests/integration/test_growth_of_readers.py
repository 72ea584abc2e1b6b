"""Our own client while a stream grows: what moves is sent again, and a group that begins at the end misses nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import nats
import pytest
from nats.aio.msg import Msg

from penstock import Message, MessageNotFound, TimedOut, aio
from penstock.hot.keymap import KeyMap
from tests.broker_process import BrokerProcess
from tests.extent import each_change, needs_time


def moved_key(before: int, after: int) -> str:
    """One that goes to a partition which is added."""
    then, now = KeyMap((before,)), KeyMap((before, after))
    return next(
        key
        for key in (f"k{n}" for n in range(100))
        if then.partition_of(key.encode()) != now.partition_of(key.encode())
    )


async def first(messages: AsyncIterator[Message], count: int) -> list[bytes | None]:
    got: list[bytes | None] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            got.append((await anext(messages)).value)
    return got


@each_change
@pytest.mark.parametrize("by", ["token:2", "publisher"])
async def test_what_a_leader_refuses_while_its_key_moves_is_sent_again(
    broker: BrokerProcess, client: aio.Client, by: str
) -> None:
    name, key = f"again-{by[:3]}", moved_key(2, 4)
    subject, where = (f"{name}.*", f"{name}.{key}") if by == "token:2" else (name, name)
    given = None if by == "token:2" else key
    await client.create_stream(name, subject, partitions=2, partition_by=by)
    old = await client.publish(where, b"old", key=given)
    await client.alter_stream(name, partitions=4)
    # For a moment nobody answers: then it is sent again as well, and its id keeps it from being stored twice.
    new = await client.publish(where, b"new", key=given, headers={"Nats-Msg-Id": "new"}, retries=20)
    assert (old.partition < 2, new.partition >= 2) == (True, True)
    assert [one.value async for one in client.messages(name)] == [b"old", b"new"]


@needs_time
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "afterwards"])
async def test_a_group_that_begins_with_the_latest_gets_all_that_comes_then(
    broker: BrokerProcess, client: aio.Client, is_early: bool
) -> None:
    name, key = f"latest-{is_early}", moved_key(1, 2)
    await client.create_stream(name, f"{name}.*", partitions=1, partition_by="token:2")
    if not is_early:
        await client.alter_stream(name, partitions=2)
        await client.publish(f"{name}.{key}", b"before", headers={"Nats-Msg-Id": "before"}, retries=20)
    async with client.consumer(name, "g", start="latest", follow=True) as consumer:
        if is_early:
            await client.alter_stream(name, partitions=2)
        values = [b"%d" % number for number in range(5)]
        for number, value in enumerate(values):
            ack = await client.publish(f"{name}.{key}", value, headers={"Nats-Msg-Id": str(number)}, retries=20)
            assert ack.partition == 1
        assert await first(consumer.messages(), 5) == values


async def test_the_last_of_a_key_is_that_of_the_partition_where_it_is_now(
    broker: BrokerProcess, client: aio.Client
) -> None:
    key = moved_key(1, 3)
    await client.create_stream("lasts", "lasts", partitions=1)
    await client.publish("lasts", b"old", key=key)
    await client.alter_stream("lasts", partitions=3)
    await client.publish("lasts", b"new", key=key, headers={"Nats-Msg-Id": "new"}, retries=20)
    assert (await client.last("lasts", key=key)).value == b"new"
    assert (await client.last("lasts", key=key, partition=0)).value == b"old"
    with pytest.raises(MessageNotFound):
        await client.last("lasts", key="none")


async def test_a_client_that_knows_fewer_partitions_finds_the_last_one_of_all(
    broker: BrokerProcess, client: aio.Client
) -> None:
    key = moved_key(1, 3)
    await client.create_stream("known", "known", partitions=1)
    await client.publish("known", b"old", key=key)
    async with aio.connect(broker.client_address) as first, aio.connect(broker.client_address) as second:
        assert (await first.last("known", key=key)).value == b"old"
        with pytest.raises(MessageNotFound):
            await second.last("known", key="added")
        await client.alter_stream("known", partitions=3)
        await client.publish("known", b"new", key=key, headers={"Nats-Msg-Id": "new"}, retries=20)
        assert (await first.last("known", key=key)).value == b"new"
        added = await client.publish("known", b"3", key="added", headers={"Nats-Msg-Id": "3"}, retries=20)
        assert (await second.last("known", key="added")).offset == added.offset
        await client.delete_stream("known")
        await client.create_stream("known", "known", partitions=2)
        with pytest.raises(MessageNotFound):
            await first.last("known", key=key)


@needs_time
async def test_a_command_that_follows_a_stream_of_one_partition_shows_those_that_are_added(
    broker: BrokerProcess, client: aio.Client
) -> None:
    key = moved_key(1, 2)
    await client.create_stream("followed", "followed.*", partitions=1, partition_by="token:2")
    await client.publish(f"followed.{key}", b"old")
    program = "from penstock.cli import main; main()"
    command = [sys.executable, "-c", program, "read", "followed", "--follow", "--limit", "2"]
    process = await asyncio.create_subprocess_exec(
        *command, "--server", broker.client_address, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            first_line = json.loads(await process.stdout.readline())
            await client.alter_stream("followed", partitions=2)
            new = await client.publish(f"followed.{key}", b"new", headers={"Nats-Msg-Id": "new"}, retries=20)
            assert new.partition == 1
            second_line = json.loads(await process.stdout.readline())
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
    assert (first_line["value"], second_line["value"]) == ("old", "new")


async def test_rows_are_staged_and_published_in_a_partition_that_was_added(
    broker: BrokerProcess, client: aio.Client
) -> None:
    key, rows = moved_key(2, 4), [{"value": b"v"}]
    await client.create_stream("staged-on", "staged-on", partitions=2)
    query = uuid4()
    one = await client.staging.stage("staged-on", rows, partition=1)
    await client.staging.publish("staged-on", [one], query_id=query, batch_id=0, partition=1)
    async with await broker.client() as another:
        await another.alter_stream("staged-on", partitions=4)
    place = (await client.publish("staged-on", b"first", key=key, retries=20, headers={"Nats-Msg-Id": "1"})).partition
    assert place >= 2
    two = await client.staging.stage("staged-on", [{"key": key.encode(), "value": b"v"}], partition=place)
    await client.staging.publish("staged-on", [two], query_id=query, batch_id=1, partition=place)
    assert [one.value async for one in client.messages("staged-on", partition=place)] == [b"first", b"v"]


@needs_time
async def test_what_was_refused_once_is_not_denied_where_a_later_try_may_be_stored(
    broker: BrokerProcess, client: aio.Client
) -> None:
    refusal = {"error": {"code": 503, "err_code": 10008, "description": "moves"}, "stream": "s", "reason": "key_moving"}
    connection = await nats.connect(broker.nats_url)
    tries = 0

    async def leader(message: Msg) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await message.respond(json.dumps(refusal).encode())

    try:
        await connection.subscribe("scripted", cb=leader)
        await connection.flush()
        with pytest.raises(TimedOut, match="whether it is stored is unknown"):
            await client.publish("scripted", b"v", timeout=2.0)
    finally:
        await connection.close()
    assert tries == 2
