"""`penstock import` from a real JetStream: every message where it was, also when it is killed; and the switch."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from nats.js.api import RetentionPolicy, StreamConfig, StreamSource

import penstock
from penstock import aio
from penstock.base.config import RetentionPolicy as RetentionHere
from penstock.base.config import StreamConfig as StreamConfigHere
from penstock.client.bulk.placing import create_paused
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_process import command, ended, launched
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses

TIMEOUT_S = 60


class Both(NamedTuple):
    """JetStream and Penstock beside it."""

    js: Any
    broker: BrokerProcess
    client: aio.Client

    async def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return await command(self.broker.client_address, "import", "--from-jetstream", *arguments, code=code)


@asynccontextmanager
async def both(folder: Path, more: str = "") -> AsyncIterator[Both]:
    config = f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}\n{more}"
    with running_nats(folder / "nats", config) as server, running_broker(folder / "data", nats=server.url) as broker:
        connection = await nats.connect(server.url)
        try:
            async with await broker.client() as client:
                yield Both(connection.jetstream(), broker, client)
        finally:
            await connection.close()


async def until_seq(js: Any, stream: str, seq: int) -> None:
    async def is_there() -> bool:
        return bool((await js.stream_info(stream)).state.last_seq >= seq)

    await eventually(is_there, f"JetStream's {stream} has sequence {seq}")


async def check_same(js: Any, client: aio.Client, source: str, name: str, seqs: list[int]) -> None:
    """Each message there is here, at its place, and no other one."""
    found = [message async for message in client.messages(name)]
    assert [one.offset + 1 for one in found] == seqs
    for here in found[:: max(1, len(found) // 200)]:
        there = await js.get_msg(source, here.offset + 1)
        assert (here.subject, here.value) == (there.subject, there.data or b"")
        assert dict(here.headers or {}) == (there.headers or {})
        assert here.timestamp_us == _microseconds(there.time)


def _microseconds(time: Any) -> int:
    return int(time.timestamp() * 1_000_000 + 0.5) if hasattr(time, "timestamp") else 0


async def filled(js: Any, count: int, *, name: str = "ORDERS", **config: Any) -> None:
    await js.add_stream(StreamConfig(name=name, subjects=["orders.>"], **config))
    for begin in range(0, count, 500):
        publishes = (
            js.publish(f"orders.{n % 7}", b"%d" % n, headers={"Nats-Msg-Id": f"id-{n}", "Colour": "red"})
            for n in range(begin, min(begin + 500, count))
        )
        await asyncio.gather(*publishes)


@needs_time
async def test_every_message_is_where_it_was_and_gaps_are_gaps(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 300, max_age=7 * 86_400, duplicate_window=60)
        for seq in (1, 2, 17, 18, 150, 299, 300):
            await js.delete_msg("ORDERS", seq)
        jetstream = Both(js, broker, client)
        said, errors = await jetstream.run("ORDERS", "--as", "orders")
        assert said == "imported 293 messages of ORDERS; orders has it up to 300\n"
        assert "orders is paused" in errors
        kept = [n for n in range(1, 301) if n not in (1, 2, 17, 18, 150, 299, 300)]
        await check_same(js, client, "ORDERS", "orders", kept)
        info = await client.stream("orders")
        assert (info.intake, info.subject, info.partitions[0].log_start) == ("paused", "orders.>", 2)
        assert (info.config.max_age_ms, info.config.dedup_window_ms) == (7 * 86_400_000, 60_000)
        with pytest.raises(penstock.MessageNotFound):
            await client.get("orders", 149)
        # What has come since is brought the next time, and only that.
        await js.publish("orders.x", b"later")
        said, _ = await jetstream.run("ORDERS", "--as", "orders", "--json")
        assert json.loads(said) == {
            "stream": "orders",
            "from": "ORDERS",
            "messages": 1,
            "last_sequence": 301,
            "is_cut_over": False,
            "skipped": 0,
            "consumers": 0,
        }
        await check_same(js, client, "ORDERS", "orders", [*kept, 301])
        said, _ = await jetstream.run("ORDERS", "--as", "orders")
        assert said.startswith("imported 0 messages")


@needs_time
async def test_an_import_that_is_killed_goes_on_and_nothing_comes_twice(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await js.add_stream(StreamConfig(name="MANY", subjects=["many.*"]))
        for begin in range(0, 60_000, 1_000):
            await asyncio.gather(*(js.publish(f"many.{n % 3}", b"%d" % n * 20) for n in range(begin, begin + 1_000)))
        killed = 0
        for _ in range(3):
            with launched(broker.client_address, "import", "--from-jetstream", "MANY", "--as", "many"):
                before = await _end(client)
                async with asyncio.timeout(TIMEOUT_S):
                    while await _end(client) == before < 60_000:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.01)
            if await _end(client) < 60_000:
                killed += 1
                assert (await client.stream("many")).config.suspend_deletion == "copying"
        assert killed, "once at least it was killed in the midst"
        broker.kill()
        broker.listen = broker.client_address
        broker.start()
        said, _ = await Both(js, broker, client).run("MANY", "--as", "many")
        assert said.endswith("many has it up to 60000\n")
        assert not (await client.stream("many")).config.is_deletion_suspended
        await check_same(js, client, "MANY", "many", list(range(1, 60_001)))


async def _end(client: aio.Client, name: str = "many") -> int:
    try:
        return (await client.offsets(name, "latest")).offset
    except (penstock.StreamNotFound, penstock.StorageFailed):  # not made yet, or being made
        return 0


@needs_time
async def test_the_switch_loses_nothing_of_publishers_that_wait_for_acks(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 200)
        acked: dict[int, int] = {}
        streams: set[str] = set()
        is_done = asyncio.Event()

        async def publish() -> None:
            number = 1_000
            while not (is_done.is_set() and "orders" in streams):
                headers = {"Nats-Msg-Id": f"id-{number}"}
                try:
                    ack = await js.publish("orders.live", b"%d" % number, headers=headers, timeout=2)
                except (nats.errors.Error, TimeoutError):
                    await asyncio.sleep(0.01)
                    continue
                streams.add(ack.stream)
                acked[number] = ack.seq
                number += 1

        publishing = asyncio.create_task(publish())
        with launched(
            broker.client_address, "import", "--from-jetstream", "ORDERS", "--as", "orders", "--cut-over", "--yes"
        ) as running:
            said, _ = await ended(running)
        is_done.set()
        async with asyncio.timeout(TIMEOUT_S):
            await publishing
        assert said.endswith("stream orders stores orders.> from now on\n")
        assert streams == {"ORDERS", "orders"}
        stored = {int(one.value or b""): one.offset + 1 async for one in client.messages("orders")}
        assert {number: stored[number] for number in acked} == acked, "every ack says where the message is"
        assert sorted(stored.values()) == list(range(1, len(stored) + 1)), "and none is there twice"
        # An id from before the switch is a duplicate here as well, with JetStream's sequence.
        again = await js.publish("orders.3", b"3", headers={"Nats-Msg-Id": "id-3"})
        assert (again.stream, again.seq, again.duplicate) == ("orders", 4, True)
        assert (await js.stream_info("ORDERS")).config.subjects == ["_moved_to_penstock.ORDERS"]


@needs_time
async def test_messages_that_a_consumer_would_take_are_left_where_they_are(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 50, retention=RetentionPolicy.WORK_QUEUE)
        await js.delete_msg("ORDERS", 10)
        said, errors = await Both(js, broker, client).run("ORDERS", "--as", "orders")
        assert said.startswith("imported 49 messages")
        assert "workqueue" not in errors
        assert (await client.stream("orders")).config.retention is RetentionHere.WORKQUEUE
        await check_same(js, client, "ORDERS", "orders", [n for n in range(1, 51) if n != 10])
        assert (await js.stream_info("ORDERS")).state.messages == 49


@needs_time
async def test_all_of_several_subjects_are_imported_or_one_is_chosen(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await js.add_stream(StreamConfig(name="TWO", subjects=["a.*", "b.*"]))
        for n in range(20):
            await js.publish(f"{'ab'[n % 2]}.x", b"%d" % n)
        jetstream = Both(js, broker, client)
        said, _ = await jetstream.run("TWO", "--as", "b", "--subject", "b.*")
        assert said == "imported 10 messages of TWO; b has it up to 20\n"
        await check_same(js, client, "TWO", "b", list(range(2, 21, 2)))
        _, errors = await jetstream.run("TWO", "--as", "b", "--subject", "b.*", "--cut-over", "--yes", code=2)
        assert "that is not all" in errors
        said, _ = await jetstream.run("TWO", "--as", "two", "--cut-over", "--yes")
        assert said.endswith("stream two stores a.*, b.* from now on\n")
        await check_same(js, client, "TWO", "two", list(range(1, 21)))
        ack = await js.publish("b.x", b"20", headers={"Nats-Expected-Stream": "two"})
        assert (ack.stream, ack.seq) == ("two", 21)
        _, errors = await jetstream.run("TWO", "--as", "two", "--cut-over", "--yes")
        assert "was complete before" in errors


@needs_time
async def test_what_cannot_be_imported_is_said(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 5)
        jetstream = Both(js, broker, client)
        _, errors = await jetstream.run("ORDRES", code=1)
        assert "has no such stream" in errors
        assert "there are ORDERS" in errors
        await client.create_stream("taken", "taken.>")
        _, errors = await jetstream.run("ORDERS", "--as", "taken", code=1)
        assert "exists, and is open: an import needs one that is paused" in errors
        await jetstream.run("ORDERS", "--as", "orders")
        await js.purge_stream("ORDERS")
        await js.delete_stream("ORDERS")
        await filled(js, 9)
        _, errors = await jetstream.run("ORDERS", "--as", "orders", code=1)
        assert "another message at sequence 5" in errors


@needs_time
async def test_an_empty_stream_begins_where_jetstream_would_go_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 12)
        await js.purge_stream("ORDERS")
        said, _ = await Both(js, broker, client).run("ORDERS", "--as", "orders", "--cut-over", "--yes")
        assert said.startswith("imported 0 messages of ORDERS; orders has it up to 12")
        ack = await js.publish("orders.x", b"13th")
        assert (ack.stream, ack.seq) == ("orders", 13)
        assert [one.offset async for one in client.messages("orders")] == [12]


@asynccontextmanager
async def apart(folder: Path, config: str, js_user: str = "", broker_user: str = "") -> AsyncIterator[tuple[Both, str]]:
    """JetStream and the broker on two nats-servers, or on one as different users; and the URL of JetStream."""
    store = f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}\n"
    with running_nats(folder / "nats", store + config) as server, running_nats(folder / "other") as other:
        url = server.url.replace("//", f"//{js_user}") if js_user else server.url
        at = server.url.replace("//", f"//{broker_user}") if broker_user else other.url
        with running_broker(folder / "data", nats=at) as broker:
            connection = await nats.connect(url)
            try:
                async with await broker.client() as client:
                    yield Both(connection.jetstream(), broker, client), url
            finally:
                await connection.close()


@needs_time
async def test_nothing_is_cut_over_where_the_broker_hears_nothing_of_it(tmp_path: Path) -> None:
    async with apart(tmp_path, "") as (jetstream, url):
        await filled(jetstream.js, 20)
        arguments = ("ORDERS", "--as", "orders", "--nats", url)
        _, errors = await jetstream.run(*arguments, "--cut-over", "--yes", code=1)
        assert f"messages published at {url} do not reach the broker at {jetstream.broker.client_address}" in errors
        assert "Nothing was changed" in errors
        assert await jetstream.client.streams() == [], "what it was tried with is gone, too"
        assert (await jetstream.js.stream_info("ORDERS")).config.subjects == ["orders.>"]
        assert (await jetstream.js.publish("orders.x", b"goes on")).stream == "ORDERS"
        said, _ = await jetstream.run(*arguments)
        assert said == "imported 21 messages of ORDERS; orders has it up to 21\n"


ACCOUNTS = """
accounts {
  JS { jetstream: enabled, users = [{user: js, password: p}] }
  APP { users = [{user: app, password: p}] }
}
"""
PERMISSIONS = """
accounts { JS { jetstream: enabled, users = [
  {user: js, password: p}
  {user: strict, password: p, permissions: {publish: ["$JS.API.>", "orders.>"]}}
  {user: app, password: p, permissions: {subscribe: [%s], publish: ["_INBOX.>"]}}
] } }
"""


@needs_time
async def test_an_account_of_its_own_is_another_nats(tmp_path: Path) -> None:
    async with apart(tmp_path, ACCOUNTS, "js:p@", "app:p@") as (jetstream, url):
        await filled(jetstream.js, 2)
        _, errors = await jetstream.run("ORDERS", "--nats", url, "--cut-over", "--yes", code=1)
        assert "do not reach the broker" in errors
        assert "js:p" not in errors
        assert (await jetstream.js.stream_info("ORDERS")).config.subjects == ["orders.>"]


@needs_time
async def test_who_may_not_try_is_told_which_permission_it_takes(tmp_path: Path) -> None:
    async with apart(tmp_path / "1", PERMISSIONS % '"orders.>"', "js:p@", "app:p@") as (jetstream, url):
        await filled(jetstream.js, 2)
        _, errors = await jetstream.run("ORDERS", "--nats", url, "--cut-over", "--yes", code=1)
        assert "allow them $PENSTOCK.import.> in NATS" in errors
        assert await jetstream.client.streams() == []
    subjects = '"orders.>", "$PENSTOCK.import.>"'
    async with apart(tmp_path / "2", PERMISSIONS % subjects, "js:p@", "app:p@") as (jetstream, url):
        await filled(jetstream.js, 2)
        strict = url.replace("js:p", "strict:p")
        _, errors = await jetstream.run("ORDERS", "--as", "o", "--nats", strict, "--cut-over", "--yes", code=1)
        assert "permissions violation for publish" in errors.lower()
        said, _ = await jetstream.run("ORDERS", "--as", "o", "--nats", url, "--cut-over", "--yes")
        assert said.endswith("stream o stores orders.> from now on\n")
        assert [one.name for one in await jetstream.client.streams()] == ["o"]


@needs_time
async def test_what_was_cut_over_can_be_copied_again_and_says_what_it_is(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 9)
        jetstream = Both(js, broker, client)
        switch = ("ORDERS", "--as", "orders", "--cut-over", "--yes")
        await jetstream.run(*switch)
        said, errors = await jetstream.run(*switch[:-1])  # asks nothing
        assert said == (
            "imported 0 messages of ORDERS; orders has it up to 9\nstream orders stores orders.> from now on\n"
        )
        assert "the cut-over of ORDERS was complete before; nothing was changed" in errors
        _, errors = await jetstream.run(*switch[:-2], code=1)
        assert "stream orders stores orders.> now, and nothing is left to import" in errors
        said, _ = await jetstream.run("ORDERS", "--as", "again")
        assert said == "imported 9 messages of ORDERS; again has it up to 9\n"
        assert (await client.stream("again")).subject == "orders.>"
        # As an earlier version, or a person, left it: which subject it had is noted nowhere.
        await js.update_stream(StreamConfig(name="ORDERS", subjects=["_moved_to_penstock.ORDERS"]))
        _, errors = await jetstream.run("ORDERS", "--as", "more", code=1)
        assert "give it with --subject" in errors
        with pytest.raises(penstock.StreamNotFound):
            await client.stream("more")
        said, _ = await jetstream.run("ORDERS", "--as", "more", "--subject", "orders.>")
        assert said == "imported 9 messages of ORDERS; more has it up to 9\n"


@needs_time
async def test_a_switch_that_failed_in_its_midst_goes_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 9)
        jetstream = Both(js, broker, client)
        await jetstream.run("ORDERS", "--as", "orders")
        await js.publish("orders.x", b"since")
        await js.update_stream(StreamConfig(name="ORDERS", subjects=["_moved_to_penstock.ORDERS"]))
        said, _ = await jetstream.run("ORDERS", "--as", "orders", "--cut-over", "--yes")
        assert said == (
            "imported 1 message of ORDERS; orders has it up to 10\nstream orders stores orders.> from now on\n"
        )
        assert (await js.publish("orders.x", b"here")).seq == 11


@needs_time
async def test_ctrl_c_says_how_far_it_came_and_how_to_go_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await js.add_stream(StreamConfig(name="MANY", subjects=["many.*"]))
        for begin in range(0, 60_000, 1_000):
            await asyncio.gather(*(js.publish(f"many.{n % 3}", b"%d" % n * 20) for n in range(begin, begin + 1_000)))
        interrupted = 0
        for name in ("one", "two", "three"):
            with launched(broker.client_address, "import", "--from-jetstream", "MANY", "--as", name) as running:
                async with asyncio.timeout(TIMEOUT_S):
                    while await _end(client, name) == 0:  # noqa: ASYNC110 (another process)
                        await asyncio.sleep(0.01)
                running.send_signal(signal.SIGINT)
                said, errors = await asyncio.to_thread(running.communicate, timeout=TIMEOUT_S)
            if not said:
                interrupted += 1
                assert running.returncode == 130, errors
                *notes, line = errors.splitlines()
                assert f"alter {name} --suspend-deletion no`" in " ".join(notes)
                assert re.fullmatch(rf"interrupted: {name} has it up to \d+; run it again to go on", line), errors
            await Both(js, broker, client).run("MANY", "--as", name)
            await check_same(js, client, "MANY", name, list(range(1, 60_001)))
            assert not (await client.stream(name)).config.is_deletion_suspended
        assert interrupted, "one of them at least was not through"


@needs_time
async def test_each_broker_of_a_cluster_has_to_hear_it(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with running_nats(tmp_path / "nats", config) as server, running_nats(tmp_path / "other") as other:
        cluster = ClusterProcesses(tmp_path, server, 3)
        try:
            third = cluster.brokers[3]
            third.arguments = [other.url if one == server.url else one for one in third.arguments]
            cluster.start()
            await cluster.all_live()
            connection = await nats.connect(server.url)
            js = connection.jetstream()
            await filled(js, 20)
            switch = ("import", "--from-jetstream", "ORDERS", "--as", "orders", "--nats", server.url, "--cut-over")
            for asked in (1, 3):
                address = cluster.brokers[asked].client_address
                _, errors = await command(address, *switch, "--yes", code=1)
                assert f"do not reach the broker at {third.client_address} (" in errors
            third.kill()
            third.arguments = [server.url if one == other.url else one for one in third.arguments]
            third.launch()
            await cluster.all_live()
            said, _ = await command(cluster.brokers[3].client_address, *switch, "--yes")
            assert said.endswith("stream orders stores orders.> from now on\n")
            async with cluster.client(1) as client:
                assert [one.name for one in await client.streams() if not one.config.is_internal] == ["orders"]
            assert (await js.publish("orders.x", b"here")).seq == 21
            await connection.close()
        finally:
            cluster.end()


@needs_time
async def test_messages_larger_than_one_pull_come_along(tmp_path: Path) -> None:
    async with both(tmp_path, "max_payload: 16MB") as there:
        js, broker, client = there
        await js.add_stream(name="LARGE", subjects=["large.>"])
        sizes = [10, 9 << 20, 10, (8 << 20) - 20, 10]
        for number, size in enumerate(sizes):
            await js.publish(f"large.{number}", bytes([number]) * size)
        out, errors = await Both(js, broker, client).run("LARGE", "--as", "large")
        assert "imported 5 messages" in out
        assert [len(message.value) async for message in client.messages("large")] == sizes
        limited = StreamConfigHere(name="small", subject="large.>", max_message_bytes=1_000)
        with penstock.connect(broker.client_address) as other:
            await asyncio.to_thread(create_paused, other, limited)
        _, errors = await Both(js, broker, client).run("LARGE", "--as", "small", code=1)
        assert "the message with sequence 2 cannot be stored: it has 9,437,184 bytes, and the limit is 1,000" in errors
        assert "penstock stream alter small --max-message-bytes" in errors
        assert (await client.offsets("small", "latest")).offset == 1, "what comes before it is there"


@needs_time
async def test_headers_without_an_effect_there_have_none_here(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await js.add_stream(StreamConfig(name="FROM", subjects=["f.>"], allow_rollup_hdrs=True, allow_msg_ttl=True))
        await js.add_stream(StreamConfig(name="PLAIN", subjects=["p.>"]))
        await js.add_stream(StreamConfig(name="COPY", mirror=StreamSource(name="FROM")))
        sent = [("f.1", {}), ("f.1", {"Nats-TTL": "1h"}), ("f.2", {}), ("f.3", {"Nats-TTL": "never"})]
        for subject, headers in sent:
            await js.publish(subject, b"v", headers=headers)
        await js.publish("f.2", b"v", headers={"Nats-Rollup": "sub"})
        await until_seq(js, "COPY", 5)
        run = Both(js, broker, client).run
        out, _ = await run("COPY", "--as", "copied", "--subject", "f.>")
        assert "imported " in out
        assert not (await client.stream("copied")).config.allow_message_ttl
        found = [(one.subject, dict(one.headers or {})) async for one in client.messages("copied")]
        there = [await js.get_msg("COPY", one.offset + 1) async for one in client.messages("copied")]
        assert found == [(one.subject, one.headers or {}) for one in there]
        assert ("f.1", {"Nats-TTL": "1h"}) in found
        assert found[-1] == ("f.2", {"Nats-Rollup": "sub"})
        assert "imported 0 messages" in (await run("COPY", "--as", "copied", "--subject", "f.>"))[0]


@needs_time
async def test_subjects_that_cannot_be_stored_are_named_and_passed_over(tmp_path: Path) -> None:
    async with both(tmp_path) as (js, broker, client):
        await js.add_stream(name="BYTES", subjects=["b.>"])
        host, _, port = broker.nats_url.removeprefix("nats://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as raw:
            raw.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
            for subject in (b"b.1", b"b.caf\xe9", "b.a\u00a0b".encode(), b"b.\xff", b"b.5"):
                raw.sendall(b"PUB %s 1\r\nx\r\n" % subject)
            raw.sendall(b"PING\r\n")
            received = b""
            while b"PONG" not in received:
                received += raw.recv(65_536)
        await until_seq(js, "BYTES", 5)
        run = Both(js, broker, client).run
        for _ in range(2):
            _, errors = await run("BYTES", "--as", "named", code=1)
            assert "the message with sequence 2 cannot be stored: its subject 'b.caf\\xe9' is not UTF-8" in errors
            assert "--skip-unstorable skips such messages" in errors
            assert [one.subject async for one in client.messages("named")] == ["b.1"]
        out, errors = await run("BYTES", "--as", "named", "--skip-unstorable", "--json")
        assert json.loads(out)["skipped"] == 2
        assert "sequence 4 is skipped: its subject 'b.\\xff' is not UTF-8" in errors
        found = [(one.offset + 1, one.subject) async for one in client.messages("named")]
        assert found == [(1, "b.1"), (3, "b.a\u00a0b"), (5, "b.5")]
