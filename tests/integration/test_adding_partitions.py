"""A stream gets more partitions while it is published to and read: three real brokers, plain JetStream publishers."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import nats
import nats.errors
import pytest
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError

from penstock import aio
from penstock.hot.keymap import KeyMap
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses

_KEYS = 24


async def _publish(url: str, subject: str, turns: int, grown: asyncio.Event, key: str | None) -> int:
    """Each key's numbers in order, each again until it is acked; how often one had to be sent again."""
    again = 0
    connection = await nats.connect(url)
    try:
        js = connection.jetstream(timeout=0.5)
        for turn in range(turns):
            if turn == turns // 3:
                grown.set()
            for number in range(_KEYS):
                headers = None if key is None else {"Penstock-Key": key.format(number)}
                for _ in range(200):
                    try:
                        await js.publish(subject.format(number), b"%d" % turn, headers=headers)
                    except (nats.errors.Error, APIError):
                        again += 1
                        await asyncio.sleep(0.01)
                        continue
                    break
                else:
                    raise AssertionError(f"{number} was never acked in turn {turn}")
    finally:
        await connection.close()
    return again


class _Seen:
    """What a group has read, by key, in its order."""

    def __init__(self) -> None:
        self.turns: dict[str, list[int]] = defaultdict(list)
        self.places: dict[str, list[int]] = defaultdict(list)
        self.ended: set[str] = set()  # of which the last was read

    async def read(self, client: aio.Client, stream: str, turns: int) -> None:
        async with client.consumer(stream, "readers", follow=True, checkpoint_interval=0.2) as consumer:
            messages = consumer.messages()
            while len(self.ended) < _KEYS:
                try:
                    async with asyncio.timeout(0.5):
                        message = await anext(messages)
                except TimeoutError:
                    messages = consumer.messages()
                    continue
                name = message.subject if message.key is None else message.key.decode()
                self.turns[name].append(int(message.value or b""))
                self.places[name].append(message.partition)
                if self.turns[name][-1] == turns - 1:
                    self.ended.add(name)


async def _followed(client: aio.Client, stream: str, turns: int) -> dict[str, list[int]]:
    """Each key's numbers as a reader that follows gets them."""
    found: dict[str, list[int]] = defaultdict(list)
    ended = set()
    async for message in client.messages(stream, follow=True):
        name = message.subject if message.key is None else message.key.decode()
        found[name].append(int(message.value or b""))
        if found[name][-1] == turns - 1:
            ended.add(name)
            if len(ended) == _KEYS:
                break
    return found


@needs_time
@pytest.mark.parametrize("split", ["token:2", "key"])
async def test_keys_move_in_order(cluster: ClusterProcesses, split: str) -> None:
    name, turns = f"growing-{split[:3]}", 60
    subject, key = ("g-tok.k{}", None) if split == "token:2" else ("g-key", "k{}")
    async with cluster.client(1) as client, cluster.client(2) as second:
        await client.create_stream(name, subject.replace("k{}", "*"), partitions=2, partition_by=split, replicas=3)
        grown, seen = asyncio.Event(), _Seen()
        publishing = asyncio.create_task(_publish(cluster.nats.url, subject, turns, grown, key))
        readers = [asyncio.create_task(seen.read(one, name, turns)) for one in (client, second)]
        following = asyncio.create_task(_followed(client, name, turns))
        table = await client.table(name)
        await grown.wait()
        info = await client.alter_stream(name, partitions=5)
        assert len(info.partitions) == 5
        await publishing
        async with asyncio.timeout(60):
            await asyncio.gather(*readers)
            followed = await following
            for one in (await client.stream(name)).partitions:
                if one.committed_end:
                    await table.wait_for(one.committed_end - 1, partition=int(one.partition))
        keys = {} if key is None else {f"k{number}": str(turns - 1).encode() for number in range(_KEYS)}
        assert {(message.key or b"").decode(): message.value for message in table.values()} == keys
        await table.close()
        before, after = KeyMap((2,)), KeyMap((2, 5))
        moved = 0
        for number in range(_KEYS):
            text = f"g-tok.k{number}" if key is None else f"k{number}"
            by = f"k{number}".encode()
            first, last = before.partition_of(by), after.partition_of(by)
            moved += first != last
            assert sorted(set(seen.places[text])) == sorted({first, last})
            assert list(dict.fromkeys(seen.turns[text])) == list(range(turns)), text  # in order; twice only if unacked
            assert seen.places[text] == sorted(seen.places[text])
            assert list(dict.fromkeys(followed[text])) == list(range(turns))
        assert 0 < moved < _KEYS
        info = await client.stream(name)
        assert not info.is_moving
        assert info.counts == (2, 5)


async def _acked(js: JetStreamContext, subject: str, turn: int) -> PubAck:
    """A message with an id, sent until it is acked."""
    for _ in range(200):
        try:
            return await js.publish(subject, b"%d" % turn, headers={"Nats-Msg-Id": f"{subject}-{turn}"})
        except (nats.errors.Error, APIError):
            await asyncio.sleep(0.01)
    raise AssertionError(f"turn {turn} of {subject} was never acked")


@needs_time
async def test_what_is_sent_twice_is_stored_once_while_keys_move(cluster: ClusterProcesses) -> None:
    name, turns, later, keys = "growing-ids", 45, 6, [f"k{number}" for number in range(12)]
    seqs: dict[tuple[str, int], int] = {}
    connection = await nats.connect(cluster.nats.url)
    js = connection.jetstream(timeout=0.5)
    try:
        async with cluster.client(1) as client:
            await client.create_stream(name, "g-ids.*", partitions=2, partition_by="token:2", replicas=3)
            for turn in range(turns + later):
                growing = asyncio.create_task(client.alter_stream(name, partitions=5)) if turn == turns // 2 else None
                for key in keys:
                    if turn < turns:
                        seqs[key, turn] = (await _acked(js, f"g-ids.{key}", turn)).seq
                    if turn >= later:  # again, as if its ack had been lost
                        ack = await _acked(js, f"g-ids.{key}", turn - later)
                        assert (ack.duplicate, ack.seq) == (True, seqs[key, turn - later]), (key, turn)
                if growing is not None:
                    assert len((await growing).partitions) == 5
            found = [one async for one in client.messages(name)]
    finally:
        await connection.close()
    before, after = KeyMap((2,)), KeyMap((2, 5))
    moved = [key for key in keys if before.partition_of(key.encode()) != after.partition_of(key.encode())]
    assert 0 < len(moved) < len(keys)
    for key in keys:
        of_key = [one for one in found if one.subject == f"g-ids.{key}"]
        of_key.sort(key=lambda one: (one.partition, one.offset))
        assert [int(one.value or b"") for one in of_key] == list(range(turns)), key
        assert [one.offset + 1 for one in of_key] == [seqs[key, turn] for turn in range(turns)]
        places = [before.partition_of(key.encode()), after.partition_of(key.encode())]
        assert list(dict.fromkeys(one.partition for one in of_key)) == list(dict.fromkeys(places))
