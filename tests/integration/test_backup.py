"""`penstock backup`, `verify` and `restore` with real brokers: row by row, under load, after damage, after kill -9."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import penstock
from penstock import Credentials, aio
from penstock.access import Quotas
from penstock.access.nkeys import NkeyClient
from penstock.client.users import nkey_credential, password_credential, rule, token_credential
from penstock.ops.backup import files as backup_files
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_process import command, ended, launched
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster

TIMEOUT_S = 60
NKEY_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else


class Two(NamedTuple):
    """A broker that is backed up, and another one that gets it."""

    old: BrokerProcess
    new: BrokerProcess
    here: aio.Client
    there: aio.Client

    async def backup(self, folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
        return await command(self.old.client_address, "backup", str(folder), *arguments, code=code)

    async def restore(self, folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
        return await command(self.new.client_address, "restore", str(folder), *arguments, code=code)


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[Two]:
    with running_broker(folder / "old") as old, running_broker(folder / "new") as new:
        async with await old.client() as here, await new.client() as there:
            yield Two(old, new, here, there)


async def rows_of(client: aio.Client, stream: str) -> list[tuple[object, ...]]:
    """All of them, partition by partition: they are read in turn, whoever answers first."""
    rows = (await client.to_table(stream)).to_pylist()
    rows.sort(key=lambda one: (one.get("partition", 0), one["offset"]))
    return [tuple(one.values()) for one in rows]


async def verify(folder: Path, *, code: int = 0) -> tuple[str, str]:
    return await command("127.0.0.1:1", "verify", str(folder), code=code)  # no broker is there


def row(number: int, *, key: str | None = None, value: str | None = "") -> dict[str, object]:
    return {"subject": f"orders.{number % 5}", "key": key, "value": f"{number}" if value == "" else value}


@each_change
async def test_rows_offsets_times_and_groups_come_back(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there = pair.here, pair.there
        await here.create_stream("orders", "orders.*", max_age_ms=10**9, dedup_window_ms=60_000)
        await here.create_stream("parted", "parted.>", partitions=3, partition_by="key")
        await here.publish("orders.1", b"with headers", key="k", headers={"Nats-Msg-Id": "one", "Colour": "red"})
        await here.append("orders", [row(n, key=f"k{n % 7}", value=None if n % 11 == 0 else "") for n in range(500)])
        for number in range(90):
            await here.publish("parted.x", b"%d" % number, key=f"k{number}")
        await here.groups.commit("billing", "orders", {0: 321})
        await here.truncate_stream("orders", 40)
        said, _ = await pair.backup(tmp_path / "backup")
        assert re.search(r"orders +461", said)
        assert said.endswith("has 551 rows more, of 2 streams\n")
        said, _ = await verify(tmp_path / "backup")
        assert "Sound: a backup of 551 rows." in said
        said, errors = await pair.restore(tmp_path / "backup")
        assert re.search(r"orders +461 +1 +0 +open", said), (said, errors)
        for stream in ("orders", "parted"):
            assert await rows_of(there, stream) == await rows_of(here, stream)
        info = await there.stream("orders")
        assert (info.intake, info.config.max_age_ms, info.partitions[0].log_start) == ("open", 10**9, 40)
        assert [one.offset for one in await there.groups.offsets("billing", "orders")] == [321]
        # It goes on where it was: the next offset, and what it knows of ids.
        again = await there.publish("orders.1", b"", headers={"Nats-Msg-Id": "new"})
        assert again.offset == 501
        same = await there.stream("parted")
        assert [one.committed_end for one in same.partitions] == [
            one.committed_end for one in (await here.stream("parted")).partitions
        ]


@needs_time
async def test_the_files_are_plain_arrow(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        await pair.here.create_stream("orders", "orders.*")
        await pair.here.append("orders", [row(n) for n in range(100)])
        await pair.backup(tmp_path / "backup")
        (file,) = (tmp_path / "backup").glob("streams/*-orders/0/*.arrows")
        with pa.ipc.open_stream(file) as reader:
            assert reader.read_all().column("value").to_pylist() == [b"%d" % n for n in range(100)]
        manifest = json.loads((tmp_path / "backup" / "penstock-backup.json").read_text())
        assert (manifest["format"], manifest["streams"][0]["config"]["subject"]) == (1, "orders.*")
        assert "access" in manifest


@needs_time
async def test_gaps_of_compaction_and_tombstones_come_back(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here = pair.here
        config = {"compact": True, "segment_bytes": 4_096, "compression": "zstd", "dedup_window_ms": None}
        await here.create_stream("table", "orders.*", **config)  # type: ignore[arg-type]
        for begin in range(0, 600, 20):
            numbers = range(begin, begin + 20)
            rows = [row(n, key=f"k{n % 9}", value=None if n % 9 == 3 and n > 300 else f"{n}" * 20) for n in numbers]
            await here.append("table", rows)

        async def is_compacted() -> bool:
            return len(await rows_of(here, "table")) < 300

        await eventually(is_compacted, "the cleaner has been there")
        await pair.backup(tmp_path / "backup")
        kept = await rows_of(here, "table")
        offsets = [one[0] for one in kept]
        assert offsets[-1] == 599
        assert len(offsets) < 600
        await pair.restore(tmp_path / "backup")
        restored = {one[0]: one for one in await rows_of(pair.there, "table")}
        # What either cleaner takes out meanwhile is superseded; what is last of its key is never taken.
        assert all(restored[one[0]] == one for one in kept if one[0] in restored)
        assert {one[0] for one in kept[-9:]} <= restored.keys()
        assert (await pair.there.stream("table")).config.compact


def partition_of(folder: Path) -> dict[str, Any]:
    """What the manifest says of the only partition there is."""
    return json.loads((folder / "penstock-backup.json").read_text())["streams"][0]["partitions"][0]


@needs_time
async def test_a_second_run_adds_only_what_has_come_since(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, folder = pair.here, tmp_path / "backup"
        await here.create_stream("orders", "orders.*")
        stop = asyncio.Event()

        async def load() -> None:
            number = 0
            while not stop.is_set():
                await here.append("orders", [row(n) for n in range(number, number + 50)])
                number += 50

        loading = asyncio.create_task(load())
        for _ in range(4):
            await pair.backup(folder)
            files = sorted(folder.glob("streams/*-orders/0/*.arrows"))
        stop.set()
        await loading
        assert len(files) > 1
        before = {file: file.read_bytes() for file in files}
        had = sum(one["rows"] for one in partition_of(folder)["files"])
        said = json.loads((await pair.backup(folder, "--json"))[0])
        assert said["rows"] == (await here.offsets("orders", "latest")).offset - had
        assert {file: file.read_bytes() for file in files} == before, "what is there is never changed"
        assert json.loads((await pair.backup(folder, "--json"))[0])["rows"] == 0
        await verify(folder)
        await pair.restore(folder)
        assert await rows_of(pair.there, "orders") == await rows_of(here, "orders")


@needs_time
async def test_what_is_killed_goes_on(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there, folder = pair.here, pair.there, tmp_path / "backup"
        await here.create_stream("first", "first")
        await here.append("first", [{"subject": "first", "value": b"1"}])
        await here.create_stream("orders", "orders.*")
        for begin in range(0, 200_000, 10_000):
            await here.append("orders", [row(n, value=f"{n}" * 20) for n in range(begin, begin + 10_000)])
        with launched(pair.old.client_address, "backup", str(folder)):

            async def has_begun() -> bool:
                return any(folder.glob("streams/*/0/*"))

            await eventually(has_begun, "the first file is there, or a part of it")
        await pair.backup(folder)
        await verify(folder)
        assert not list(folder.glob("**/*.part"))
        with launched(pair.new.client_address, "restore", str(folder)):

            async def is_in_the_midst() -> bool:
                try:
                    return (await there.offsets("orders", "latest")).offset > 0
                except (penstock.StreamNotFound, penstock.StorageFailed):
                    return False

            await eventually(is_in_the_midst, "some rows are there")
        assert (await there.offsets("orders", "latest")).offset < 200_000, "it was killed in the midst"
        assert (await there.stream("first")).intake == "open"
        assert (await there.stream("orders")).config.suspend_deletion == "copying"
        said, _ = await command(pair.new.client_address, "status")
        assert "Deletion is suspended in orders: " in said
        await pair.restore(folder)
        for name in ("first", "orders"):
            assert not (await there.stream(name)).config.is_deletion_suspended
            assert await rows_of(there, name) == await rows_of(here, name)


@needs_time
async def test_a_restore_goes_on_where_some_streams_take_messages_already(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there, folder = pair.here, pair.there, tmp_path / "backup"
        await here.create_stream("empty", "empty")
        await here.create_stream("orders", "orders.*")
        await here.create_stream("sealed", "sealed.*")
        await here.create_stream("table", "table.*", compact=True)
        for name in ("orders", "sealed", "table"):
            rows = [{**row(n, key=f"k{n % 7}"), "subject": f"{name}.x"} for n in range(200)]
            await here.append(name, rows)
        await here.seal_stream("sealed")
        await pair.backup(folder)
        for name in ("empty", "orders", "sealed", "table"):
            await pair.restore(folder, "--stream", name)  # as far as one that is killed has come
        await there.append("orders", [row(n) for n in range(3)])
        await there.truncate_stream("orders", 50, partition=0)
        await there.delete_stream("sealed")
        before = await rows_of(there, "orders")
        said, errors = await pair.restore(folder)
        assert re.search(r"sealed +200 +0 +0 +sealed", said)
        assert "stream orders is open, and has only the last rows of the backup" in errors
        for name in ("empty", "table"):
            assert f"stream {name} is open, and already has all rows of the backup: it is left as it is" in errors
        assert await rows_of(there, "orders") == before
        assert await rows_of(there, "sealed") == await rows_of(here, "sealed")
        said, errors = await pair.restore(folder)
        assert (said, errors.count("left as it is")) == ("", 4)


@needs_time
@pytest.mark.parametrize("compact", [False, True])
async def test_another_stream_of_that_name_is_not_taken_for_a_restored_one(tmp_path: Path, *, compact: bool) -> None:
    async with two(tmp_path) as pair:
        folder = tmp_path / "backup"
        for client in (pair.here, pair.there):
            await client.create_stream("orders", "orders.*", compact=compact)
            await client.append("orders", [row(n, key=f"k{n}") for n in range(20)])
        await pair.backup(folder)
        _, errors = await pair.restore(folder, code=1)  # alike, but for the times
        assert "exists, is open, and does not hold this backup; it was not changed" in errors


@needs_time
async def test_what_max_age_deletes_at_once_of_an_old_backup_is_told_and_can_be_kept(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        await pair.here.create_stream("orders", "orders.*", partitions=2, partition_by="key")
        for number in range(20):
            await pair.here.publish(f"orders.{number}", b"x", key=f"k{number}")
        await pair.backup(tmp_path / "backup")
        manifest = tmp_path / "backup" / "penstock-backup.json"
        said = json.loads(manifest.read_text())
        said["streams"][0]["config"]["max_age_ms"] = 1  # every row is older
        manifest.write_text(json.dumps(said))
        _, errors = await pair.restore(tmp_path / "backup", "--as", "kept", "--stream", "orders", "--without-max-age")
        assert "stream kept now has no max_age, so it keeps all messages; it was 1ms" in errors
        assert (await pair.there.stream("kept")).config.max_age_ms is None
        assert len(await rows_of(pair.there, "kept")) == 20
        _, errors = await pair.restore(tmp_path / "backup")
        assert "stream orders keeps messages for 1ms, and 20 offsets of the backup are older" in errors

        async def is_empty(stream: str = "orders") -> bool:
            parts = (await pair.there.stream(stream)).partitions
            return all(one.log_start == one.committed_end for one in parts)

        await eventually(is_empty, "retention has deleted what is too old")
        assert (await pair.there.stream("orders")).config.max_age_ms == 1
        # Another run finds nothing to do, also where the first one has left the stream paused.
        said_again, errors = await pair.restore(tmp_path / "backup")
        assert said_again == ""
        assert (
            "stream orders is open, and goes as far as the backup, but its limits have deleted the backup's rows"
            in (errors)
        )
        await pair.restore(tmp_path / "backup", "--stream", "orders", "--as", "paused")

        await eventually(lambda: is_empty("paused"), "retention has deleted them there, too")
        said_again, _ = await pair.restore(tmp_path / "backup", "--stream", "orders", "--as", "paused")
        assert re.search(r"paused +0 +0 +0 +paused", said_again)
        # A sealed stream keeps all that it has, whatever its limits are.
        said["streams"][0]["intake"] = "sealed"
        manifest.write_text(json.dumps(said))
        await pair.there.delete_stream("orders")
        _, errors = await pair.restore(tmp_path / "backup")
        assert "stream orders gets no max_age: its source is sealed" in errors
        info = await pair.there.stream("orders")
        assert (info.intake, info.config.max_age_ms) == ("sealed", None)
        assert len(await rows_of(pair.there, "orders")) == 20


@needs_time
async def test_what_went_since_by_its_limits_is_no_mistake_of_a_restored_stream_and_what_was_purged_is(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as pair:
        here, there, folder = pair.here, pair.there, tmp_path / "backup"
        await here.create_stream("rolled", "rolled.*", allow_rollup=True)
        await here.create_stream("counted", "counted.*", max_messages=10)
        await here.create_stream("kept", "kept.*", max_messages=1_000, max_age_ms=10**9)
        for name in ("rolled", "counted", "kept"):
            await here.append(name, [{"subject": f"{name}.x", "value": "v"}] * 9)
        await pair.backup(folder)
        await pair.restore(folder)
        await there.append("counted", [{"subject": "counted.x", "value": "v"}] * 20)
        await there.publish("rolled.x", b"v", headers={"Nats-Rollup": "all"})

        async def are_gone() -> bool:
            infos = [await there.stream(name) for name in ("rolled", "counted")]
            return [one.partitions[0].log_start for one in infos] == [9, 19]

        await eventually(are_gone, "the rollup and retention have done it")
        said, errors = await pair.restore(folder)
        assert (said, errors.count("but its limits have deleted the backup's rows")) == ("", 2)
        assert "stream kept is open, and already has all rows of the backup" in errors
        await there.truncate_stream("kept", 4)
        _, errors = await pair.restore(folder)
        assert "has only the last rows of the backup: the earlier ones were deleted" in errors
        await there.truncate_stream("kept", 9)
        _, errors = await pair.restore(folder, code=1)
        assert "stream kept exists, is open, and does not hold this backup; it was not changed" in (errors)


@each_change
@pytest.mark.parametrize("before", [4, 9])
async def test_a_restored_stream_that_was_paused_and_purged_is_not_taken_for_whole(tmp_path: Path, before: int) -> None:
    async with two(tmp_path) as pair:
        await pair.here.create_stream("kept", "kept.*", max_messages=1_000, max_age_ms=10**9)
        await pair.here.append("kept", [{"subject": "kept.x", "value": "v"}] * 9)
        await pair.backup(tmp_path / "backup")
        await pair.restore(tmp_path / "backup", "--paused")
        await pair.there.truncate_stream("kept", before)
        _, errors = await pair.restore(tmp_path / "backup", code=1)
        assert f"stream kept begins at offset {before}, and the backup at 0: the earlier rows were purged" in errors
        assert (await pair.there.stream("kept")).intake == "paused"


@needs_time
async def test_damage_is_told_with_file_and_position_and_is_not_restored(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        folder = tmp_path / "backup"
        await pair.here.create_stream("orders", "orders.*")
        for begin in range(0, 300, 100):
            await pair.here.append("orders", [row(n) for n in range(begin, begin + 100)])
        await pair.backup(folder)
        (file,) = folder.glob("streams/*-orders/0/*.arrows")
        whole = file.read_bytes()
        place = len(whole) // 2
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        said, errors = await verify(folder, code=1)
        assert "damaged" in said
        found = re.search(rf"{re.escape(str(file))}: at byte (\d+)", errors)
        assert found is not None
        assert 568 < int(found[1]) <= place, "the batch that holds it"
        _, errors = await pair.restore(folder, code=1)
        assert str(file) in errors
        assert await pair.there.streams() == [], "nothing of a damaged backup is left behind"
        for damaged in (whole[:-1], whole[: len(whole) - 200], whole + b"x"):
            file.write_bytes(damaged)
            _, errors = await verify(folder, code=1)
            assert f"{len(whole)} bytes" in errors or "at byte" in errors
        file.unlink()
        _, errors = await verify(folder, code=1)
        assert "found none" in errors
        file.write_bytes(whole)
        await verify(folder)
        await pair.restore(folder)
        assert await rows_of(pair.there, "orders") == await rows_of(pair.here, "orders")


@needs_time
async def test_nothing_is_mixed(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there, folder = pair.here, pair.there, tmp_path / "backup"
        await here.create_stream("orders", "orders.*")
        await here.append("orders", [row(n) for n in range(10)])
        await pair.backup(folder)
        await there.create_stream("orders", "orders.*")
        await there.append("orders", [row(n) for n in range(3)])
        _, errors = await pair.restore(folder, code=1)
        assert "exists, is open, and does not hold this backup" in errors
        await there.pause_stream("orders")
        _, errors = await pair.restore(folder, code=1)
        assert "has other rows than" in errors
        assert len(await rows_of(there, "orders")) == 3
        said, errors = await pair.restore(folder, "--stream", "orders", "--as", "monday")
        assert re.search(r"monday +10 +0 +0 +paused", said)
        assert "penstock stream resume monday" in errors
        assert await rows_of(there, "monday") == await rows_of(here, "orders")
        _, errors = await pair.restore(folder, "--stream", "payments", code=1)
        assert "has no stream payments; it has orders" in errors
        _, errors = await pair.restore(tmp_path, code=1)
        assert "is no backup" in errors
        _, errors = await pair.backup(tmp_path, code=1)
        assert "is not empty, and no backup" in errors
        _, errors = await command(pair.new.client_address, "backup", str(folder), code=1)
        assert "is a backup of cluster" in errors


@needs_time
async def test_empty_partitions_keep_where_they_are(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there, folder = pair.here, pair.there, tmp_path / "backup"
        await here.create_stream("orders", "orders", partitions=2)
        await here.create_stream("new", "new")
        await here.append("orders", [{"value": b"x"}] * 7, partition=0)
        await here.groups.commit("g", "orders", {0: 7})
        await here.truncate_stream("orders", 7, partition=0)
        await here.seal_stream("new")
        await pair.backup(folder)
        await pair.restore(folder)
        info = await there.stream("orders")
        assert [(one.log_start, one.committed_end) for one in info.partitions] == [(7, 7), (0, 0)]
        assert [one.offset for one in await there.groups.offsets("g", "orders")] == [7, None]
        assert (await there.stream("new")).intake == "sealed"
        assert (await there.append("orders", [{"value": b"next"}], partition=0))[0].base_offset == 7


@needs_time
async def test_a_stream_that_was_made_anew_is_another_one_in_the_backup(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, folder = pair.here, tmp_path / "backup"
        await here.create_stream("orders", "orders.*")
        await here.append("orders", [row(n) for n in range(10)])
        await pair.backup(folder)
        await here.delete_stream("orders")
        await here.create_stream("orders", "orders.*")
        await here.append("orders", [row(n) for n in range(100, 103)])
        await pair.backup(folder)
        assert len(list(folder.glob("streams/*-orders"))) == 2
        await pair.restore(folder)
        assert [one[4] for one in await rows_of(pair.there, "orders")] == [b"100", b"101", b"102"]


@needs_time
async def test_three_brokers_are_backed_up_while_a_leader_changes_and_restored_into_one(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with running_cluster(tmp_path) as cluster, running_broker(tmp_path / "new") as new:
        await cluster.all_live()
        async with cluster.client(1) as client, await new.client() as there:
            await client.create_stream("orders", "orders.*", replicas=3)
            await client.append("orders", [row(n) for n in range(1_000)])
            servers = ",".join(one.client_address for one in cluster.brokers.values())
            await command(servers, "backup", str(folder))
            leader = await cluster.leader_of("orders")
            cluster.brokers[leader].kill()
            async with cluster.client(leader % 3 + 1) as other:
                await other.append("orders", [row(n) for n in range(1_000, 1_500)], timeout=30)
                await command(servers, "backup", str(folder), "--timeout", "30s")
                with launched(new.client_address, "restore", str(folder)) as running:
                    _, errors = await ended(running)
                assert "orders had 3 replicas; there are 1 brokers: it gets 1" in errors
                assert await rows_of(there, "orders") == await rows_of(other, "orders")


@contextmanager
def guarded(folder: Path) -> Iterator[BrokerProcess]:
    """A broker that has everybody log in."""
    with running_broker(folder, "--auth") as broker:
        broker.credentials = Credentials.parsed((folder / "admin.credentials").read_text())
        yield broker


async def as_admin(broker: BrokerProcess, *arguments: str, code: int = 0) -> tuple[str, str]:
    file = str(broker.data_dir / "admin.credentials")
    return await command(broker.client_address, "--credentials", file, *arguments, code=code)


@needs_time
async def test_users_go_on_as_they_were_with_all_their_secrets(tmp_path: Path) -> None:
    folder, token, gone = tmp_path / "backup", token_credential("bob"), token_credential("bob")
    with guarded(tmp_path / "old") as old, guarded(tmp_path / "new") as new:
        async with await old.client() as here:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)])
            nkey = nkey_credential(NkeyClient(NKEY_SEED, "").public_key)
            await here.users.create(
                "bob",
                *(password_credential("a password"), token, gone, nkey),
                rules=[rule("read", stream="orders"), rule("commit_offsets", stream="orders", group="b*")],
                quotas=Quotas(1 << 20, None, 7, 3),
            )
            await here.users.change_rules(add=[rule("read", stream="public-*")])
            await as_admin(old, "backup", str(folder))
            (first,) = folder.glob("users/*.json")
            await here.users.alter("bob", drop=[gone.credential.credential_id])
            said, _ = await as_admin(old, "backup", str(folder))
            kept = {one.name: one for one in await here.users.export()}
        (file,) = folder.glob("users/*.json")
        assert file != first, "what was revoked is not kept"
        assert gone.credential.credential_id not in file.read_text()
        assert "a password" not in file.read_text()
        said, _ = await verify(folder)
        assert "and of 3 users" in said

        said, _ = await as_admin(new, "restore", str(folder))
        async with await new.client() as there:
            assert [one.name for one in await there.users.export()] == ["admin"], "only where that is asked for"
            before = await there.users.export()
            await there.delete_stream("orders")
            said, errors = await as_admin(new, "restore", str(folder), "--users")
            assert "2 users made: *, bob\n" in errors
            assert "user admin exists, and is unchanged" in errors
            made = {one.name: one for one in await there.users.export()}
            assert made["admin"] == before[0]
        assert made.keys() == kept.keys() == {"*", "admin", "bob"}
        for name in ("*", "bob"):
            assert (made[name].rules, made[name].quotas) == (kept[name].rules, kept[name].quotas)
        assert token.token is not None
        for shown in (
            Credentials.password("bob", "a password"),
            Credentials.token(token.token),
            Credentials.nkey(NKEY_SEED),
        ):
            async with aio.connect(new.client_address, credentials=shown) as bob:
                assert (await bob.get("orders", 0)).value == b"1"
                with pytest.raises(penstock.NotAuthorized):
                    await bob.append("orders", [row(2)])
        assert gone.token is not None
        with pytest.raises(penstock.Unauthenticated):
            async with aio.connect(new.client_address, credentials=Credentials.token(gone.token)):
                pass


@needs_time
async def test_users_are_backed_up_and_restored_where_there_are_no_streams(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with guarded(tmp_path / "old") as old, guarded(tmp_path / "new") as new:
        async with await old.client() as here, await new.client() as there:
            await here.users.create("bob", password_credential("a password"), quotas=Quotas(streams_max=3))
            said, errors = await as_admin(old, "backup", str(folder))
            assert "there are no streams, and 2 users" in said, errors
            assert "Sound: a backup of 0 rows, and of 2 users" in (await verify(folder))[0]
            _, errors = await as_admin(new, "restore", str(folder), code=1)
            assert f"{folder} has no streams: --users-only makes the users that it has" in errors
            said, errors = await as_admin(new, "restore", str(folder), "--users-only")
            assert ("1 user made" in errors, said) == (True, "")
            assert {one.name: one.quotas.streams_max for one in await there.users.export()} == {"admin": None, "bob": 3}

            await here.create_stream("orders", "orders.>")
            await here.users.create("eve", password_credential("a password"))
            await as_admin(old, "backup", str(folder))
            said, errors = await as_admin(new, "restore", str(folder), "--users-only", "--json")
            made = {"admin": False, "bob": False, "eve": True}
            assert {one["user"]: one["made"] for one in map(json.loads, said.splitlines())} == made
            assert [one for one in await there.streams() if not one.config.is_internal] == []
            for more in (("--stream", "orders"), ("--paused",), ("--replicas", "1")):
                _, errors = await as_admin(new, "restore", str(folder), "--users-only", *more, code=2)
                assert f"--users-only makes no streams, so {more[0]} has no meaning" in errors


@needs_time
async def test_what_is_not_in_the_folder_of_a_backup_is_not_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "backup", tmp_path / "outside"
    with guarded(tmp_path / "old") as old:
        async with await old.client() as here:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)])
        await as_admin(old, "backup", str(folder))
        manifest, outside_sha = folder / "penstock-backup.json", hashlib.sha256(b"a secret").hexdigest()
        whole = manifest.read_text()
        outside.write_bytes(b"a secret")
        (rows,) = (one.relative_to(folder).as_posix() for one in folder.glob("streams/*/0/*.arrows"))
        (users,) = (one.relative_to(folder).as_posix() for one in folder.glob("users/*.json"))
        (folder / "link").symlink_to(outside)
        (folder / "linked").symlink_to(tmp_path)
        for path in (rows, users):
            for leads_to in ("../outside", "streams/../../outside", str(outside), "link", "linked/outside", ""):
                manifest.write_text(whole.replace(json.dumps(path), json.dumps(leads_to)))
                said = [await verify(folder, code=1)]
                said += [
                    await as_admin(old, *one, code=1) for one in (("backup", str(folder)), ("restore", str(folder)))
                ]
                for _, errors in said:
                    assert f"{manifest} names a path that is not in its folder: {leads_to!r}" in errors, errors
                    assert outside_sha not in errors
        manifest.write_text(whole.replace('"name": "orders"', '"name": "../../../orders"', 1))
        _, errors = await as_admin(old, "backup", str(folder), code=1)
        assert "names a path that is not in its folder: '../../../orders'" in errors
        # It may itself be somewhere else.
        manifest.write_text(whole)
        (tmp_path / "elsewhere").symlink_to(folder)
        await verify(tmp_path / "elsewhere")


@needs_time
async def test_a_run_that_has_waited_goes_by_what_the_one_before_has_written(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with running_broker(tmp_path / "old") as old:
        async with await old.client() as here:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)])
            await command(old.client_address, "backup", str(folder))
            with backup_files.alone(folder):
                _, errors = await command(old.client_address, "backup", str(folder), code=1)
                assert "another backup into" in errors
                # It has looked at nothing before it had the folder for itself.
                manifest = folder / backup_files.MANIFEST
                kept = manifest.read_text()
                manifest.write_text("{}")
                _, errors = await command(old.client_address, "backup", str(folder), code=1)
                assert "another backup into" in errors
                manifest.write_text(kept)


@each_change
async def test_where_there_are_neither_streams_nor_users_nothing_is_backed_up(tmp_path: Path) -> None:
    with running_broker(tmp_path / "old") as old:
        _, errors = await command(old.client_address, "backup", str(tmp_path / "backup"), code=1)
        assert "there are neither streams nor users yet: nothing is to be backed up" in errors


@needs_time
async def test_users_are_not_restored_where_nobody_logs_in_nor_out_of_a_damaged_file(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with guarded(tmp_path / "old") as old, running_broker(tmp_path / "new") as new:
        async with await old.client() as here:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)])
        await as_admin(old, "backup", str(tmp_path / "one"), "--stream", "orders")
        _, errors = await command(new.client_address, "restore", str(tmp_path / "one"), "--users", code=1)
        assert "has no users" in errors
        await as_admin(old, "backup", str(folder))
        _, errors = await command(new.client_address, "restore", str(folder), "--users", code=1)
        assert "its first user has to be an administrator" in errors
        (file,) = folder.glob("users/*.json")
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b'"admin"', b'"admim"', 1))
        said, errors = await verify(folder, code=1)
        assert str(file) in errors
        assert "Sound" not in said
        _, errors = await as_admin(old, "restore", str(folder), "--users", code=1)
        assert str(file) in errors
        async with await new.client() as there:
            assert await there.streams() == [], "all that is refused is refused before anything comes"
        async with await old.client() as here:
            assert [one.name for one in await here.users.export()] == ["admin"]


@needs_time
async def test_administrators_are_made_where_somebody_says_so_and_of_a_damaged_backup_nobody_is(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with guarded(tmp_path / "old") as old, guarded(tmp_path / "new") as new:
        async with await old.client() as here, await new.client() as there:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)] * 3)
            await here.users.create("bob", password_credential("a password"))
            await here.users.create("eve", password_credential("a password"), rules=[rule("admin")])
            await as_admin(old, "backup", str(folder))
            (file,) = folder.glob("streams/*-orders/0/*.arrows")
            whole = file.read_bytes()
            file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])

            async def users() -> list[str]:
                assert [one.name for one in await there.streams() if not one.config.is_internal] == []
                return [one.name for one in await there.users.export()]

            _, errors = await as_admin(new, "restore", str(folder), "--users", "--yes", code=1)
            assert str(file) in errors
            assert await users() == ["admin"], "of a damaged backup nothing is left behind"
            file.write_bytes(whole)
            for which in ("--users", "--users-only"):
                _, errors = await as_admin(new, "restore", str(folder), which, code=1)
                assert f"Make eve of {folder} an administrator of this cluster? [y/N]" in errors
                assert "stdin is not interactive; pass --yes" in errors
                assert await users() == ["admin"]
            # What is there, and is something else, is found before anybody is made, too.
            await there.create_stream("orders", "orders.>")
            await there.append("orders", [row(2)])
            await there.pause_stream("orders")
            _, errors = await as_admin(new, "restore", str(folder), "--users", "--yes", code=1)
            assert "has other rows than" in errors
            await there.delete_stream("orders")
            assert await users() == ["admin"]
            _, errors = await as_admin(new, "restore", str(folder), "--users", "--yes")
            assert "2 users made: bob, eve (administrator)\n" in errors
            assert [one.name for one in await there.users.export()] == ["admin", "bob", "eve"]
            _, errors = await as_admin(new, "restore", str(folder), "--users-only")
            assert "[y/N]" not in errors, "all are there"


@pytest.mark.parametrize("umask", [0o000, *(pytest.param(mask, marks=needs_time) for mask in (0o077, 0o277))])
async def test_a_backup_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "backup"
    with guarded(tmp_path / "old") as old:
        async with await old.client() as here:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [row(1)])
        before = os.umask(umask)
        try:
            await as_admin(old, "backup", str(folder))
        finally:
            os.umask(before)
        found = [folder, *folder.rglob("*")]
        assert {stat.S_IMODE(one.stat().st_mode) for one in found if one.is_dir()} == {0o700}
        assert {stat.S_IMODE(one.stat().st_mode) for one in found if one.is_file()} == {0o600}
        assert len([one for one in found if one.is_file()]) == 3
        folder.chmod(0o755)
        _, errors = await as_admin(old, "backup", str(folder))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert "warning" not in errors


@needs_time
async def test_it_is_said_where_what_is_encrypted_is_plain_in_a_backup(tmp_path: Path) -> None:
    keys = tmp_path / "penstock.keys"
    await command("127.0.0.1:1", "keys", "new", "--file", str(keys))
    with running_broker(tmp_path / "old", "--encryption-keys-file", str(keys)) as old:
        async with await old.client() as here:
            await here.create_stream("patients", "patients", encryption="aes-256-gcm")
            await here.create_stream("orders", "orders.*")
            await here.append("patients", [{"value": b"Ada Lovelace"}])
        _, errors = await command(old.client_address, "backup", str(tmp_path / "backup"))
    assert errors.count("warning") == 1
    assert "warning: stream patients is encrypted on the disks of brokers; in a backup it is plain" in errors
    (file,) = tmp_path.glob("backup/streams/*-patients/0/*.arrows")
    assert b"Ada Lovelace" in file.read_bytes()
