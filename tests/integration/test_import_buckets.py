"""`penstock import` of key-value buckets and object stores: nats-py finds in Penstock what it found in JetStream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.js.errors import KeyDeletedError, KeyNotFoundError, NoKeysError, ObjectNotFoundError

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, running_broker, running_nats
from tests.cli_process import command, launched
from tests.extent import needs_time
from tests.ports import free_ports

TIMEOUT_S = 60
DOMAIN = "penstock"


class Servers(NamedTuple):
    """JetStream, Penstock as a domain beside it, and clients of each."""

    there: Any
    here: Any
    broker: BrokerProcess
    client: aio.Client

    async def run(self, *arguments: str, code: int = 0) -> str:
        return (await command(self.broker.client_address, "import", "--from-jetstream", *arguments, code=code))[0]


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[Servers]:
    (port,) = free_ports(1)
    config = f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}\n"
    config += f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n'
    options = ("--jetstream-api", "domain", "--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
    with (
        running_nats(folder / "nats", config) as server,
        running_broker(folder / "data", *options, nats=server.url) as broker,
    ):
        connection = await nats.connect(server.url, allow_reconnect=False)
        try:
            async with await broker.client() as client:
                yield Servers(connection.jetstream(), connection.jetstream(domain=DOMAIN), broker, client)
        finally:
            await connection.close()


async def told(watcher: Any) -> list[Any]:
    """Return what a watch begins with."""
    found = []
    while (entry := await watcher.updates(timeout=TIMEOUT_S)) is not None:
        found.append(entry)
    await watcher.stop()
    return found


async def begun(found: Callable[[], Awaitable[list[Any]]], looks: int) -> list[Any]:
    """Return what a new watch finds; look again, up to so often, while that is nothing.

    nats-server may answer about a new consumer before its first message: then nats-py takes the bucket for empty.
    """
    for _ in range(looks):
        with suppress(NoKeysError):
            if seen := await found():
                return seen
    return []


def entries(found: list[Any]) -> list[Any]:
    return [(one.key, one.revision, one.delta, one.value or b"", one.operation) for one in found]


async def bucket_seen(js: Any, keys: list[str], *, looks: int = 1) -> dict[str, Any]:
    """What a client sees of the bucket `b`."""
    bucket = await js.key_value("b")
    seen: dict[str, Any] = {}
    for key in keys:
        try:
            entry = await bucket.get(key)
            seen[f"get {key}"] = (entry.value, entry.revision)
        except KeyDeletedError as error:
            seen[f"get {key}"] = (error.op, error.entry.revision)
        except KeyNotFoundError:
            seen[f"get {key}"] = None
        seen[f"history {key}"] = entries(await begun(partial(bucket.history, key), looks))

    async def watched(**options: bool) -> list[Any]:
        return await told(await bucket.watchall(**options))

    seen["watch"] = entries(await begun(watched, looks))
    seen["watch with history"] = entries(await begun(partial(watched, include_history=True), looks))
    seen["keys"] = sorted(await begun(bucket.keys, looks))
    status = await bucket.status()
    seen["status"] = (status.values, status.history, status.ttl, status.stream_info.config.description)
    return seen | await stream_seen(js, "KV_b")


async def stream_seen(js: Any, name: str) -> dict[str, Any]:
    """The state of a stream, and each message of it."""
    state = (await js.stream_info(name, subjects_filter=">")).state
    messages = {}
    for seq in range(state.first_seq, state.last_seq + 1):
        try:
            message = await js.get_msg(name, seq)
        except nats.js.errors.NotFoundError:
            continue
        time = message.time.isoformat() if hasattr(message.time, "isoformat") else message.time
        messages[seq] = (message.subject, message.data or b"", message.headers, str(time)[:26])
    counts = (state.messages, state.first_seq, state.last_seq, state.num_deleted, state.subjects)
    return {"state": counts, "messages": messages}


async def objects_seen(js: Any, names: list[str], *, looks: int = 1) -> dict[str, Any]:
    """What a client sees of the object store `o`."""
    store = await js.object_store("o")
    seen: dict[str, Any] = {}
    for name in names:
        try:
            found = await store.get(name)
            seen[f"get {name}"] = (found.data, vars(found.info))
        except ObjectNotFoundError:
            seen[f"get {name}"] = None
    seen["list"] = sorted((one.name, one.size, one.deleted) for one in await store.list())

    async def watched() -> list[Any]:
        return await told(await store.watch(include_history=True))

    seen["watch"] = sorted((one.name, one.digest, one.deleted) for one in await begun(watched, looks))
    seen["status"] = (await store.status()).sealed
    return seen | await stream_seen(js, "OBJ_o")


LOOKS = 5  # at JetStream
KEYS = ["a", "b.x", "gone", "purged", "later", "back", "never"]


async def changed(js: Any) -> None:
    """Change the bucket and the store between two runs: also what the first run has brought."""
    bucket = await js.key_value("b")
    for number in range(4):
        await bucket.put("a", b"again %d" % number)
    await bucket.purge_deletes(olderthan=-1)  # the first run has brought these markers
    await bucket.purge("b.x")
    await bucket.put("back", b"1")
    await bucket.delete("back")
    await bucket.put("later", b"l")
    store = await js.object_store("o")
    await store.put("small", b"other")
    await store.delete("dead")
    await store.put("new", bytes(300_000))


async def filled(js: Any) -> None:
    bucket = await js.create_key_value(bucket="b", history=3, description="settings", ttl=86_400)
    for number in range(5):
        await bucket.put("a", b"%d" % number)
        await bucket.put("b.x", b"x%d" % number)
    await bucket.put("gone", b"1")
    await bucket.delete("gone")
    await bucket.put("purged", b"1")
    await bucket.purge("purged")
    await bucket.update("a", b"updated", last=(await bucket.get("a")).revision)
    store = await js.create_object_store(bucket="o", description="files")
    await store.put("big", bytes(range(256)) * 2_000)
    await store.put("small", b"small")
    await store.put("dead", bytes(300_000))
    await store.put("old", b"old")
    await store.delete("old")


@needs_time
@pytest.mark.parametrize("runs", [1, 2])
async def test_clients_find_what_they_found_in_jetstream(tmp_path: Path, runs: int) -> None:
    async with servers(tmp_path) as (there, here, broker, client):
        both = Servers(there, here, broker, client)
        await filled(there)
        if runs == 2:
            for name in ("KV_b", "OBJ_o"):
                await both.run(name)
            await changed(there)
        names = ["big", "small", "dead", "old", "new"]
        bucket, objects = await bucket_seen(there, KEYS, looks=LOOKS), await objects_seen(there, names, looks=LOOKS)
        for name in ("KV_b", "OBJ_o"):
            await both.run(name, "--cut-over", "--yes")
        assert await bucket_seen(here, KEYS) == bucket
        assert await objects_seen(here, names) == objects
        # and they go on
        entry = await (await here.key_value("b")).get("a")
        last = bucket["state"][2]
        revision = await (await there.key_value("b")).put("a", b"new")  # over NATS: Penstock stores it
        assert (entry.revision <= last, revision) == (True, last + 1)
        assert (await (await here.key_value("b")).get("a")).value == b"new"


@needs_time
async def test_a_sealed_object_store_is_sealed_here_too(tmp_path: Path) -> None:
    async with servers(tmp_path) as (there, here, broker, client):
        both = Servers(there, here, broker, client)
        await filled(there)
        await (await there.object_store("o")).seal()
        objects = await objects_seen(there, ["big", "small", "old"], looks=LOOKS)
        assert objects["status"] is True
        said = await both.run("OBJ_o", "--cut-over", "--yes")
        assert said.endswith("stream OBJ_o is sealed, as JetStream's stream OBJ_o is\n")
        assert await objects_seen(here, ["big", "small", "old"]) == objects
        await both.run("OBJ_o", "--cut-over", "--yes")  # there is nothing left to do
        assert (await client.stream("OBJ_o")).intake == "sealed"


@needs_time
async def test_messages_that_jetstream_deletes_between_two_runs_are_deleted(tmp_path: Path) -> None:
    async with servers(tmp_path) as (there, here, broker, client):
        both = Servers(there, here, broker, client)
        await there.add_stream(name="S", subjects=["s.*"])
        for number in range(20):
            await there.publish(f"s.{number % 3}", b"%d" % number)
        await both.run("S")
        for seq in (1, 2, 5, 9, 20):
            await there.delete_msg("S", seq)
        await there.purge_stream("S", subject="s.1", keep=2)
        await there.publish("s.9", b"later")
        seen = await stream_seen(there, "S")
        said, notes = await command(broker.client_address, "import", "--from-jetstream", "S")
        assert said.startswith("imported 1 message of S")
        assert "note: 5 messages deleted in S, as in JetStream since an earlier run\n" in notes
        assert await stream_seen(here, "S") == seen
        _, notes = await command(broker.client_address, "import", "--from-jetstream", "S")
        assert "deleted in" not in notes


@needs_time
async def test_the_import_of_a_bucket_that_is_killed_goes_on(tmp_path: Path) -> None:
    keys, puts = 30_000, 70_000
    async with servers(tmp_path) as (there, here, broker, client):
        bucket = await there.create_key_value(bucket="b", history=2)
        for begin in range(0, puts, 1_000):
            await asyncio.gather(*(bucket.put(f"k.{n * 7 % keys}", b"%d" % n) for n in range(begin, begin + 1_000)))
        for number in range(0, keys, 1_000):
            await bucket.delete(f"k.{number}")
        last_seq = (await there.stream_info("KV_b")).state.last_seq
        killed = 0
        for _ in range(3):
            with launched(broker.client_address, "import", "--from-jetstream", "KV_b"):
                before = await log_end(client)
                async with asyncio.timeout(TIMEOUT_S):
                    while await log_end(client) == before < last_seq:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.005)
            killed += await log_end(client) < last_seq
        assert killed, "once at least it was killed in the midst"
        await Servers(there, here, broker, client).run("KV_b")
        assert await watched(here) == await watched(there)


async def log_end(client: aio.Client) -> int:
    try:
        return int((await client.stream("KV_b")).partitions[0].log_end or 0)
    except penstock.StreamNotFound:
        return 0


async def watched(js: Any) -> list[Any]:
    return entries(await told(await (await js.key_value("b")).watchall(include_history=True)))
