"""Key-value buckets and object stores: of a cluster, with nats-py and nats.go; and a table that follows one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.js.api import ObjectStoreConfig
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    ObjectNotFoundError,
)

from penstock import aio
from tests.broker_process import DEADLINE_S, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_import_buckets import told
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected
from tests.nats_programs import by_go
from tests.ports import free_ports

HISTORY = 64
NOT_NOW = (nats.errors.TimeoutError, nats.errors.NoRespondersError, NoStreamResponseError, APIError)
"""No leader took it, or nobody knows."""


@each_change
async def test_a_table_follows_a_bucket(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options()) as broker:
        async with connected(broker.nats_url) as connection, aio.connect(broker.client_address) as client:
            await delivering(connection)
            js = connection.jetstream(timeout=DEADLINE_S)
            bucket = await js.create_key_value(bucket="b", history=5)
            for key in ("a", "b.x", "gone", "purged"):
                await bucket.put(key, b"1")
            await bucket.delete("gone")
            async with await client.table("KV_b") as table:
                assert {key: one.value for key, one in table.items()} == dict.fromkeys([b"a", b"b.x", b"purged"], b"1")
                changes = table.changes()
                await bucket.purge("purged")
                await bucket.update("a", b"2", last=1)
                # nats.go puts so, in a domain
                await connection.request("$JS.penstock.API.$KV.b.domain", b"3", timeout=10)
                seq = await bucket.put("gone", b"")
                await table.wait_for(seq - 1)
                assert {key: one.value for key, one in table.items()} == {
                    b"a": b"2", b"b.x": b"1", b"domain": b"3", b"gone": b""
                }  # fmt: skip
                assert sorted(table, key=lambda key: table[key].offset) == [
                    key.encode() for key in sorted(await bucket.keys(), key=["b.x", "a", "domain", "gone"].index)
                ]
                first = await anext(changes)
                assert (first.key, first.is_tombstone) == (b"purged", True)


@asynccontextmanager
async def three_brokers(folder: Path) -> AsyncIterator[tuple[ClusterProcesses, str]]:
    """Run a cluster that serves the API as the only one, and as a domain; yield it with the address of NATS."""
    (port,) = free_ports(1)
    with running_nats(folder / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(folder, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with connected(server.url) as connection:
                await delivering(connection)
            yield brokers, server.url
        finally:
            print(brokers.said)
            brokers.end()


class Puts:
    """Clients that put to keys of a bucket, get them, and count in one key, until they are stopped."""

    def __init__(self, bucket: Any, keys: int) -> None:
        self._bucket = bucket
        self._keys = [f"k.{number}" for number in range(keys)]
        self._is_stopped = False
        self.tried = dict.fromkeys(self._keys, 0)
        self.acked = dict.fromkeys(self._keys, 0)
        self.revisions: dict[int, tuple[str, int]] = {}  # key and value of each acked put
        self.gets = self.counted = self.unknown = 0

    async def run(self) -> None:
        """Run until `stop`."""
        async with asyncio.TaskGroup() as group:
            for key in self._keys:
                group.create_task(self._put(key))
                group.create_task(self._get(key))
            for _ in range(3):
                group.create_task(self._count())

    def stop(self) -> None:
        self._is_stopped = True

    async def _put(self, key: str) -> None:
        while not self._is_stopped and self.tried[key] < HISTORY:
            self.tried[key] += 1
            value = self.tried[key]
            try:
                revision = await self._bucket.put(key, b"%d" % value)
            except NOT_NOW:
                await asyncio.sleep(0.5)  # as no put is acked while there is no leader, the history holds them all
                continue
            self.acked[key] = value
            self.revisions[revision] = (key, value)
            await asyncio.sleep(0.1)

    async def _get(self, key: str) -> None:
        while not self._is_stopped:
            acked = self.acked[key]
            try:
                found = int((await self._bucket.get(key)).value)
            except KeyNotFoundError:
                found = 0
            except NOT_NOW:
                await asyncio.sleep(0.05)
                continue
            assert acked <= found <= self.tried[key], f"a stale value of {key}"
            self.gets += 1
            await asyncio.sleep(0.01)

    async def _count(self) -> None:
        """Add one, if nobody else has meanwhile."""
        while not self._is_stopped:
            try:
                entry = await self._bucket.get("count")
                await self._bucket.update("count", b"%d" % (int(entry.value) + 1), last=entry.revision)
            except KeyWrongLastSequenceError:
                continue
            except NOT_NOW:
                self.unknown += 1
                await asyncio.sleep(0.05)
            else:
                self.counted += 1


@needs_time
@pytest.mark.parametrize("domain", [None, "penstock"])
async def test_the_leader_of_a_bucket_is_killed(tmp_path: Path, domain: str | None) -> None:
    """No acked put is lost, no get is older than an ack before it, and of two updates of one revision one wins."""
    async with three_brokers(tmp_path) as (brokers, url), connected(url) as connection:
        bucket = await connection.jetstream(domain=domain, timeout=1).create_key_value(
            bucket="b", history=HISTORY, replicas=3
        )
        await bucket.put("count", b"0")
        puts = Puts(bucket, keys=8)
        running = asyncio.create_task(puts.run())
        try:
            await eventually(lambda: returned(running.done() or min(puts.acked.values()) >= 5), "puts are acked")
            killed = await brokers.leader_of("KV_b")
            brokers.brokers[killed].kill()
            before, gets = dict(puts.acked), puts.gets

            def goes_on() -> bool:
                return puts.gets >= gets + 50 and all(puts.acked[key] >= before[key] + 5 for key in before)

            await eventually(lambda: returned(running.done() or goes_on()), "puts and gets are answered again")
        finally:
            puts.stop()
            await running
        assert goes_on()
        asked = next(number for number in brokers.brokers if number != killed)
        assert await brokers.leader_of("KV_b", asked) != killed
        for revision, (key, value) in puts.revisions.items():
            assert (await bucket.get(key, revision=revision)).value == b"%d" % value
        count = int((await bucket.get("count")).value)
        assert puts.counted <= count <= puts.counted + puts.unknown
        watched = {entry.key: int(entry.value) for entry in await told(await bucket.watchall())}
        assert watched.pop("count") == count
        assert all(puts.acked[key] <= watched[key] <= puts.tried[key] for key in puts.acked)
        assert set(await bucket.keys()) == {*puts.acked, "count"}


async def returned(value: bool) -> bool:
    return value


@needs_time
async def test_objects_are_there_after_their_leader_was_killed(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as (brokers, url), connected(url) as connection:
        js = connection.jetstream()
        store = await js.create_object_store(bucket="o", config=ObjectStoreConfig(replicas=3))
        data = bytes(range(256)) * 8_000
        await store.put("big", data)
        await store.put("gone", data[:300_000])
        await store.delete("gone")
        killed = await brokers.leader_of("OBJ_o")
        brokers.brokers[killed].kill()

        async def reads() -> bool:
            try:
                return (await store.get("big")).data == data
            except (*NOT_NOW, ObjectNotFoundError):
                return False

        await eventually(reads, "the object is read from the next leader")
        assert [(one.name, one.size, one.deleted) for one in await store.list(ignore_deletes=True)] == [
            ("big", len(data), False)
        ]
        await store.put("next", b"n")
        assert (await store.get_info("next")).size == 1
        watcher = await store.watch()
        assert sorted(one.name for one in await told(watcher)) == ["big", "gone", "next"]
        await store.seal()
        with pytest.raises(APIError):
            await store.put("late", b"l")
        assert (await store.get("next")).data == b"n"


GO = """package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := nats.Connect(nats.DefaultURL)
	must(err)
	defer connection.Close()
	js, err := jetstream.NewWithDomain(connection, "penstock")
	must(err)

	bucket, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "g", History: 3, Replicas: 3})
	must(err)
	for number := range 20 {
		for key := range 5 {
			name, value := fmt.Sprintf("k.%d", key), fmt.Sprint(number)
			revision, err := bucket.PutString(ctx, name, value)
			must(err)
			entry, err := bucket.Get(ctx, name)
			must(err)
			if string(entry.Value()) != value || entry.Revision() != revision {
				log.Fatalf("%s is %s at %d, not %s at %d", name, entry.Value(), entry.Revision(), value, revision)
			}
		}
	}
	must(bucket.Delete(ctx, "k.0"))
	must(bucket.Purge(ctx, "k.1"))
	if _, err = bucket.Create(ctx, "k.2", nil); !errors.Is(err, jetstream.ErrKeyExists) {
		log.Fatal(err)
	}
	_, err = bucket.Create(ctx, "k.0", []byte("again"))
	must(err)
	history, err := bucket.History(ctx, "k.0")
	must(err)
	for _, entry := range history {
		fmt.Println(entry.Key(), entry.Operation(), string(entry.Value()))
	}
	must(bucket.Delete(ctx, "k.0"))
	keys, err := bucket.Keys(ctx)
	must(err)
	fmt.Println(keys)

	config := jetstream.ObjectStoreConfig{Bucket: "g", Replicas: 3}
	store, err := js.CreateOrUpdateObjectStore(ctx, config)
	must(err)
	config.Bucket = "h"
	other, err := js.CreateOrUpdateObjectStore(ctx, config)
	must(err)
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	info, err := store.PutBytes(ctx, "big", data)
	must(err)
	_, err = store.AddLink(ctx, "link", info)
	must(err)
	_, err = store.AddBucketLink(ctx, "others", other)
	must(err)
	linked, err := store.GetBytes(ctx, "link")
	must(err)
	_, err = store.PutString(ctx, "gone", "x")
	must(err)
	must(store.Delete(ctx, "gone"))
	must(store.UpdateMeta(ctx, "big", jetstream.ObjectMeta{Name: "large", Description: "d"}))
	info, err = store.GetInfo(ctx, "large")
	must(err)
	fmt.Println(bytes.Equal(linked, data), info.Size, info.Chunks, info.Description)
	watcher, err := store.Watch(ctx)
	must(err)
	seen := 0
	for info := range watcher.Updates() {
		if info == nil {
			break
		}
		seen++
	}
	must(watcher.Stop())
	list, err := store.List(ctx)
	must(err)
	fmt.Println(seen, len(list))
	must(other.Seal(ctx))
	_, err = other.PutString(ctx, "late", "x")
	fmt.Println(err != nil)
	must(js.DeleteKeyValue(ctx, "g"))
	must(js.DeleteObjectStore(ctx, "g"))
	must(js.DeleteObjectStore(ctx, "h"))
}

func must(err error) {
	if err != nil {
		log.Fatalf("%v", err)
	}
}
"""
"""Each call may be answered by any of the brokers."""


@needs_time
async def test_nats_go_uses_buckets_and_objects_of_a_cluster_by_domain(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    async with three_brokers(tmp_path) as (_, url):
        for _ in range(3):
            said = await asyncio.to_thread(by_go, GO, tmp_path / "program", url)
            assert said.splitlines() == [
                "k.0 KeyValuePutOp 19", "k.0 KeyValueDeleteOp ", "k.0 KeyValuePutOp again",
                "[k.2 k.3 k.4]", "true 1000000 8 d", "4 3", "true",
            ]  # fmt: skip
