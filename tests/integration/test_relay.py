"""`penstock relay` with a real broker and a real nats-server: what subscribers get, also when it is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg

from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_process import command, ended, launched
from tests.extent import each_change, needs_time

TIMEOUT_S = 60


async def relay(broker: BrokerProcess, *arguments: str, code: int = 0) -> tuple[str, str]:
    return await command(broker.client_address, "relay", *arguments, code=code)


def headers_of(message: Msg) -> dict[str, str]:
    return message.headers or {}


class Subscriber:
    """What came on a subject."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.messages: list[Msg] = []
        self._came = asyncio.Event()

    async def take(self, message: Msg) -> None:
        self.messages.append(message)
        self._came.set()

    async def until(self, count: int) -> list[Msg]:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        return self.messages

    async def all_so_far(self) -> list[Msg]:
        await self._connection.flush()
        return self.messages

    def offsets(self) -> list[int]:
        return [int(headers_of(one)["Penstock-Offset"]) for one in self.messages]


@asynccontextmanager
async def subscribed(url: str, subject: str) -> AsyncIterator[Subscriber]:
    connection = await nats.connect(url)
    try:
        subscriber = Subscriber(connection)
        await connection.subscribe(subject, cb=subscriber.take)
        await connection.flush()
        yield subscriber
    finally:
        await connection.close()


async def with_rows(client: aio.Client, name: str, count: int) -> None:
    await client.create_stream(name, f"{name}.*.*")
    rows = [{"subject": f"{name}.eu.{n % 3}", "value": f"{n}", "key": f"k{n % 5}"} for n in range(count)]
    await client.append(name, rows)


@needs_time
async def test_subscribers_get_what_is_stored_with_headers_that_say_where_from(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("orders", "orders.*.*")
    await client.publish("orders.eu.7", b"first", key="k", headers={"Colour": "red"})
    await client.append("orders", [{"subject": "orders.us.8", "value": "second"}])
    async with subscribed(broker.nats_url, "copies.>") as subscriber:
        said, errors = await relay(broker, "orders", "--to", "copies.{3}.{subject}")
        first, second = await subscriber.until(2)
    assert said.startswith("relayed 2 messages of stream orders to copies.{3}.{subject}, ")
    assert errors == ""
    assert (first.subject, first.data) == ("copies.7.orders.eu.7", b"first")
    stored = await client.get("orders", 0)
    moment = f"{stored.timestamp:%Y-%m-%dT%H:%M:%S.%f}Z"
    assert headers_of(first) == {
        "Colour": "red",
        "Penstock-Key": "k",
        "Penstock-Stream": "orders",
        "Penstock-Partition": "0",
        "Penstock-Offset": "0",
        "Penstock-Timestamp": moment,
    }
    assert (second.subject, second.data) == ("copies.8.orders.us.8", b"second")
    assert headers_of(second)["Penstock-Offset"] == "1"


@needs_time
async def test_a_range_and_a_rate(broker: BrokerProcess, client: aio.Client) -> None:
    await with_rows(client, "ranged", 100)
    async with subscribed(broker.nats_url, "fixed") as subscriber:
        began_s = time.monotonic()
        said, _ = await relay(
            broker, "ranged", "--to", "fixed", "--from", "10", "--until", "40", "--rate", "60/s", "--json"
        )
        took_s = time.monotonic() - began_s
        await subscriber.until(30)
        assert subscriber.offsets() == list(range(10, 40))
    told = json.loads(said)
    assert (told["stream"], told["messages"], told["ends"]) == ("ranged", 30, {"0": 40})
    assert took_s >= 0.45, "30 messages at 60 a second"


@each_change
async def test_all_partitions_are_relayed_each_in_its_order(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("parted", "parted.*", partitions=3, partition_by="key")
    for number in range(60):
        await client.publish("parted.x", b"%d" % number, key=f"k{number}")
    async with subscribed(broker.nats_url, "all.parted.>") as subscriber:
        await relay(broker, "parted", "--to", "all.{subject}")
        await subscriber.until(60)
    by_partition: dict[str, list[int]] = {}
    for one in subscriber.messages:
        headers = headers_of(one)
        by_partition.setdefault(headers["Penstock-Partition"], []).append(int(headers["Penstock-Offset"]))
    assert sorted(by_partition) == ["0", "1", "2"]
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())


@needs_time
async def test_a_loop_is_refused_and_other_streams_are_named(broker: BrokerProcess, client: aio.Client) -> None:
    await with_rows(client, "looping", 3)
    for target in ("looping.a.b", "looping.{2}.{3}", "{subject}"):
        said, errors = await relay(broker, "looping", "--to", target, code=2)
        assert said == ""
        assert "this would be an endless loop" in errors
    assert (await client.offsets("looping", "latest")).offset == 3
    await client.create_stream("catcher", "caught.>", acks="never")
    _, errors = await relay(broker, "looping", "--to", "caught.{3}")
    assert "stream catcher stores caught.>, and so messages that are relayed to caught.*" in errors

    async def are_stored() -> bool:
        return (await client.offsets("catcher", "latest")).offset == 3

    await eventually(are_stored, "what was relayed is stored by the other stream")
    _, errors = await relay(broker, "looping", "--to", "x.{4}", code=2)
    assert "has no token 4" in errors


@needs_time
async def test_a_group_goes_on_where_it_was_killed_and_misses_nothing(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await with_rows(client, "grouped", 5_000)
    arguments = ("grouped", "--to", "g.{subject}", "--group", "copies", "--follow", "--rate", "2000")
    async with subscribed(broker.nats_url, "g.>") as subscriber:
        with launched(broker.client_address, "relay", *arguments):
            await subscriber.until(500)
        before = len(await subscriber.all_so_far())
        assert before < 5_000, "it was killed in the midst"
        with launched(broker.client_address, "relay", *arguments[:-2]) as running:
            async with asyncio.timeout(TIMEOUT_S):
                while set(subscriber.offsets()) != set(range(5_000)):
                    await subscriber.until(len(subscriber.messages) + 1)
            await client.append("grouped", [{"subject": "grouped.eu.1", "value": "late"}])
            await subscriber.until(len(subscriber.messages) + 1)
            assert subscriber.messages[-1].data == b"late"
            running.send_signal(signal.SIGINT)
            await ended(running, 130)
        found = len(await subscriber.all_so_far())
        (place,) = await client.groups.offsets("copies", "grouped")
        assert place.offset is not None
        # The last message came here before the relay knew that NATS has it, and the signal may have been faster.
        assert place.offset in (5_000, 5_001), "what NATS had confirmed is committed when it ends"
        await relay(broker, "grouped", "--to", "g.{subject}", "--group", "copies")
        assert len(await subscriber.all_so_far()) == found + 5_001 - place.offset


@needs_time
async def test_what_nats_does_not_take_is_said_and_not_committed(tmp_path: Path) -> None:
    config = """
    max_payload: 4096
    authorization: { users: [
      { user: all, password: a }
      { user: some, password: b, permissions: { publish: { allow: ["ok.>", "$JS.>"] } } }
    ] }
    """
    with running_nats(tmp_path / "nats", config) as server:
        port = server.port
        with running_broker(tmp_path / "data", nats=f"nats://all:a@127.0.0.1:{port}") as broker:
            async with await broker.client() as client:
                await client.create_stream("strict", "strict")
                await client.append("strict", [{"value": b"small"}, {"value": b"x" * 4_000}])
                some = f"nats://some:b@127.0.0.1:{port}"
                _, errors = await relay(broker, "strict", "--to", "ok.a", "--nats", some, code=1)
                assert "the message at offset 1 has" in errors
                assert "nats-server takes 4,096 (its max_payload)" in errors
                arguments = ("strict", "--to", "no.a", "--nats", some, "--until", "1")
                _, errors = await relay(broker, *arguments, code=1)
                assert "refuses what is relayed" in errors
                assert "Permissions Violation" in errors or "permissions violation" in errors
                assert "b@" not in errors, "no password is shown"


@each_change
async def test_a_subject_that_comes_back_is_refused_whatever_the_nats_server_is_called(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as own,
        running_broker(tmp_path / "data", nats=own.url) as broker,
    ):
        async with await broker.client() as client:
            await with_rows(client, "same", 3)
            at = own.url.removeprefix("nats://")
            for here in (at, f"nats://u:p%40@{at}", at.replace("127.0.0.1", "localhost")):
                _, errors = await relay(broker, "same", "--to", "{subject}", "--nats", here, code=2)
                assert "endless loop" in errors


@needs_time
async def test_a_nats_server_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as own,
        running_nats(tmp_path / "other") as other,
        running_broker(tmp_path / "data", nats=own.url) as broker,
    ):
        async with await broker.client() as client:
            await with_rows(client, "restarted", 3_000)
            async with subscribed(other.url, "r") as subscriber:
                arguments = ("restarted", "--to", "r", "--nats", other.url, "--rate", "1000", "--timeout", "30s")
                with launched(broker.client_address, "relay", *arguments) as running:
                    await subscriber.until(200)
                    other.kill()
                    other.start()
                    said, _ = await ended(running)
                assert said.startswith("relayed 3,000 messages")


@needs_time
async def test_without_follow_it_goes_on_where_a_killed_one_was(broker: BrokerProcess, client: aio.Client) -> None:
    """The killed one is a member for its session; meanwhile nothing is over."""
    await with_rows(client, "resumed", 1_000)
    arguments = ("resumed", "--to", "r.{subject}", "--group", "r")
    async with subscribed(broker.nats_url, "r.>") as subscriber:
        with launched(broker.client_address, "relay", *arguments, "--rate", "100"):
            await subscriber.until(50)
        assert len(subscriber.messages) < 1_000
        out, _ = await relay(broker, *arguments)
        assert out.startswith("relayed ")
        await subscriber.all_so_far()
        assert set(subscriber.offsets()) == set(range(1_000))
        (place,) = await client.groups.offsets("r", "resumed")
        assert place.lag == 0


@needs_time
async def test_who_holds_what_is_left_is_told(broker: BrokerProcess, client: aio.Client) -> None:
    await with_rows(client, "held", 10)
    async with client.consumer("held", "h", follow=True, session=60.0) as owner:
        assert owner.positions == {0: 0}
        out, err = await relay(broker, "held", "--to", "h.{subject}", "--group", "h")
    assert out == ""
    assert "nothing was relayed: member " in err
    assert "of it reads partition 0, with 10 messages to go" in err


@needs_time
async def test_what_a_stream_refuses_ends_the_relay_and_is_not_committed(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("sessions", "sessions.>", allow_message_ttl=True, allow_rollup=True)
    await client.create_stream("copies", "kept.>", max_message_bytes=1_000)
    for number in range(10):
        headers = {"Nats-TTL": "1h"} if number == 4 else {"Nats-Rollup": "sub"} if number == 7 else None
        await client.publish(f"sessions.{number}", b"x" * (2_000 if number == 9 else 10), headers=headers)
    arguments = ("sessions", "--to", "kept.{subject}", "--group", "once")

    async def place() -> int | None:
        found = await client.groups.offsets("once", "sessions")
        return found[0].offset if found else None

    for offset, said, without in (
        (4, "per-message TTL is disabled (10166)", "Nats-TTL"),
        (7, "rollup not permitted (10111)", "Nats-TTL,Nats-Rollup"),
        (9, "message size exceeds maximum allowed", "Nats-*"),
    ):
        _, errors = await relay(broker, *arguments, code=1)
        assert f"stream copies refuses the message at offset {offset} of partition 0: {said}" in errors
        assert (await place() or 0) <= offset
        arguments = (*arguments[:5], "--without", without)
    await client.alter_stream("copies", max_message_bytes=10_000)
    said, _ = await relay(broker, *arguments)
    assert await place() == 10
    kept = {message.subject async for message in client.messages("copies")}
    assert kept == {f"kept.sessions.{number}" for number in range(10)}


@needs_time
async def test_duplicates_are_stored_already_and_told(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("once", "once.>")
    await client.create_stream("again", "again.>")
    for number in range(3):
        await client.publish(f"once.{number}", b"v", headers={"Nats-Msg-Id": f"id{number}"})
    said, _ = await relay(broker, "once", "--to", "again.{subject}", "--json")
    assert (json.loads(said)["messages"], json.loads(said)["duplicates"]) == (3, 0)
    _, errors = await relay(broker, "once", "--to", "again.{subject}")
    assert "3 messages acked as duplicates" in errors
    assert (await client.offsets("again", "latest")).offset == 3
    _, errors = await relay(broker, "once", "--to", "again.{subject}", "--without", "Nats-Msg-Id")
    assert "duplicates" not in errors
    assert (await client.offsets("again", "latest")).offset == 6


@needs_time
async def test_streams_of_jetstream_have_to_ack_as_well(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {tmp_path / 'store'} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
    ):
        async with await broker.client() as client:
            await client.create_stream("short", "short.>", allow_message_ttl=True)
            await client.publish("short.1", b"v")
            await client.publish("short.2", b"v", headers={"Nats-TTL": "1h"})
            await client.publish("short.3", b"v")
            connection = await nats.connect(server.url)
            js = connection.jetstream()
            await js.add_stream(name="J", subjects=["j.>"])
            _, errors = await relay(broker, "short", "--to", "j.{subject}", code=1)
            assert "stream J refuses the message at offset 1 of partition 0" in errors
            out, _ = await relay(broker, "short", "--to", "j.{subject}", "--without", "Nats-TTL", "--from", "1")
            assert out.startswith("relayed 2 messages")
            await connection.close()


async def test_a_stream_of_jetstream_that_acks_nothing_is_waited_for_by_nobody(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {tmp_path / 'store'} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
    ):
        async with await broker.client() as client:
            await with_rows(client, "some", 3)
            connection = await nats.connect(server.url)
            js = connection.jetstream()
            await js.add_stream(name="SILENT", subjects=["j.>"], no_ack=True)
            async with asyncio.timeout(TIMEOUT_S):
                out, _ = await relay(broker, "some", "--to", "j.{subject}")
            assert out.startswith("relayed 3 messages")
            assert (await js.stream_info("SILENT")).state.messages == 3
            await connection.close()


@needs_time
async def test_an_ack_that_never_comes_ends_the_relay(broker: BrokerProcess, client: aio.Client) -> None:
    await with_rows(client, "unacked", 3)
    async with subscribed(broker.nats_url, "u"):
        _, errors = await relay(broker, "unacked", "--to", "u", "--stored", "--timeout", "1s", code=1)
        assert "no stream has acked the message at offset 0" in errors
        out, _ = await relay(broker, "unacked", "--to", "u")
        assert out.startswith("relayed 3 messages")


@needs_time
async def test_a_stream_that_is_made_while_a_relay_follows_is_found(broker: BrokerProcess, client: aio.Client) -> None:
    await with_rows(client, "watched", 1)
    arguments = ("relay", "watched", "--to", "late.{subject}", "--group", "g", "--follow")
    async with subscribed(broker.nats_url, "late.>") as subscriber:
        with launched(broker.client_address, *arguments) as running:
            await subscriber.until(1)
            await client.create_stream("late", "late.>", max_message_bytes=100)

            async def ends() -> bool:  # each message is too large for the new stream
                await client.append("watched", [{"subject": "watched.eu.1", "value": "x" * 200}])
                return running.poll() is not None

            await eventually(ends, "the relay ends")
            _, errors = await ended(running, 1)
    assert "note: stream late stores late.>" in errors
    assert "stream late refuses the message at offset" in errors
