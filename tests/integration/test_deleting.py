"""`client.delete`, `client.purge_subject`, their commands: what is answered as gone stays gone, whoever is killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.base.errors import ErrorCode
from tests.broker_process import eventually, running_broker
from tests.cli_app import app
from tests.extent import each_change, extent, needs_time
from tests.integration.clusters import running_cluster

ROUNDS = extent(2, 6)


async def offsets_of(client: aio.Client, stream: str, **options: int) -> list[int]:
    return [message.offset async for message in client.messages(stream, **options)]


@needs_time
async def test_what_was_answered_as_deleted_is_gone_when_its_leader_is_killed_at_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3, segment_bytes=8_192)
        left: list[int] = []
        end = 0
        for number in range(ROUNDS):
            leader = await cluster.leader_of("orders")
            async with cluster.client(leader % 3 + 1) as client:
                for value in range(40):
                    await client.publish(f"orders.{value % 4}", b"." * 700)
                left += range(end, end + 40)
                end += 40
                gone = [end - 2, end - 11, end - 40]
                assert (await client.delete("orders", gone)).deleted == 3
                left = [offset for offset in left if offset not in gone]
                if number % 2:
                    (purged,) = await client.purge_subject("orders", "orders.3", keep=2)
                    assert purged.messages > 0
                    of_subject = [offset for offset in left if offset % 4 == 3]
                    left = [offset for offset in left if offset not in of_subject[:-2]]
                cluster.brokers[leader].kill()
                assert await offsets_of(client, "orders") == left
                with pytest.raises(penstock.MessageNotFound):
                    await client.get("orders", gone[0])
            cluster.brokers[leader].launch()
            await cluster.in_sync("orders", {1, 2, 3}, leader % 3 + 1)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start()
        await cluster.all_live()
        async with cluster.client(1) as client:
            assert await offsets_of(client, "orders") == left


@needs_time
async def test_a_killed_broker_shows_no_deleted_message_and_the_commands_say_what_they_did(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>", segment_bytes=4_096)
            for number in range(20):
                await client.publish(f"orders.{number % 2}", b"%d" % number)
                (live,) = await client.live_rows("orders")
                assert live is not None
                assert (live.rows, live.first_offset, live.last_offset, live.deleted) == (number + 1, 0, number, 0)
            run = CliRunner()
            options = ["--server", broker.client_address]
            done = run.invoke(app, ["stream", "delete-message", "orders", "3", "99", "--yes", *options])
            assert done.exit_code == 0, done.output
            assert "1 message deleted" in done.output
            assert "no message at 99" in done.output
            (live,) = await client.live_rows("orders")
            assert live is not None
            assert (live.rows, live.first_offset, live.last_offset, live.deleted) == (19, 0, 19, 1)
            done = run.invoke(app, ["stream", "show", "orders", *options])
            assert "19, 1 deleted between them" in done.output
            done = run.invoke(app, ["stream", "delete-message", "orders", "3", "--yes", "--json", *options])
            assert json.loads(done.output) == {"deleted": 0, "already_deleted": 1, "missing": []}
            done = run.invoke(app, ["stream", "purge", "orders", "--subject", "orders.0", "--dry-run", *options])
            assert "10 messages on orders.0 would go" in done.output
            done = run.invoke(
                app, ["stream", "purge", "orders", "--subject", "orders.0", "--keep", "1", "--yes", *options]
            )
            assert done.exit_code == 0, done.output
            assert "9 messages on orders.0 gone" in done.output
            left = [1, 5, 7, 9, 11, 13, 15, 17, 18, 19]
            assert await offsets_of(client, "orders") == left
            broker.restart()
        async with await broker.client() as after:
            assert await offsets_of(after, "orders") == left
            with pytest.raises(penstock.MessageNotFound):
                await after.get("orders", 3)
            assert (await after.delete("orders", 3)).already_deleted == 1
            with pytest.raises(penstock.MessageNotFound):
                await after.delete("orders", 4_000)


def files_with(folder: Path, *texts: bytes) -> list[str]:
    """The files under a folder that hold one of these texts; one that goes meanwhile is looked for again."""
    while True:
        try:
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            return [str(path) for path in paths if any(text in path.read_bytes() for text in texts)]
        except FileNotFoundError:
            continue


def secret_of(number: int) -> tuple[bytes, ...]:
    """Subject, key, value and header of a message, which stand nowhere else."""
    return tuple(b"%s-of-%04d-end" % (what, number) for what in (b"subject", b"key", b"value", b"header"))


async def publish_secret(client: aio.Client, number: int) -> None:
    subject, key, value, header = (one.decode() for one in secret_of(number))
    await client.publish(f"orders.{subject}", value.encode(), key=key, headers={"X-Secret": header})


async def read_until(client: aio.Client, ended: asyncio.Event, gone: set[int]) -> int:
    """Read the stream again and again; count the passes. No pass shows a deleted message."""
    passes = 0
    while not ended.is_set() or not passes:
        deleted = set(gone)
        assert not deleted.intersection(await offsets_of(client, "orders"))
        passes += 1
    return passes


@needs_time
@pytest.mark.parametrize("options", [{}, {"compact": True}, {"compression": "zstd"}])
async def test_no_file_of_any_broker_holds_what_was_deleted_securely(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client, cluster.client(2) as reader:
            await client.create_stream("orders", "orders.>", replicas=3, segment_bytes=16_384, **options)
            for number in range(60):
                await publish_secret(client, number)
            gone: set[int] = set()
            ended = asyncio.Event()
            reading = asyncio.ensure_future(read_until(reader, ended, gone))
            wanted = [0, 7, 30, 58, 59]  # the last ones are in the active segment
            states: list[penstock.Erasure] = []
            done = await client.delete("orders", wanted, secure=True, progress=states.append)
            gone |= set(wanted)
            assert done.deleted == len(wanted)
            assert done.erasure == states[-1] == penstock.Erasure(0, erased=(1, 2, 3))
            for number in wanted:
                assert files_with(tmp_path, *secret_of(number)) == []
            (purged,) = await client.purge_subject("orders", "orders.subject-of-0011-end", secure=True)
            assert purged.erasure is not None
            assert (purged.messages, purged.erasure.erased) == (1, (1, 2, 3))
            assert files_with(tmp_path, *secret_of(11)) == []
            ended.set()
            assert await reading
            left = [number for number in range(60) if number not in (*wanted, 11)]
            assert await offsets_of(client, "orders") == left

            # One is away: it is named, and erases when it is back.
            away = (await cluster.leader_of("orders")) % 3 + 1
            cluster.brokers[away].kill()
            done = await client.delete("orders", [20, 21], secure=True)
            assert done.erasure == penstock.Erasure(0, tuple(sorted({1, 2, 3} - {away})), (), (away,))
            assert files_with(tmp_path / f"broker-{away}", *secret_of(20))
            cluster.brokers[away].launch()
            await cluster.in_sync("orders", {1, 2, 3}, away % 3 + 1)
            done = await client.delete("orders", [20, 21], secure=True)
            assert (done.already_deleted, done.erasure) == (2, penstock.Erasure(0, (1, 2, 3)))
            assert files_with(tmp_path, *secret_of(20), *secret_of(21)) == []


@needs_time
async def test_brokers_that_are_killed_while_they_erase_go_on_when_they_are_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3, segment_bytes=16_384)
            for number in range(60):
                await publish_secret(client, number)
            wanted = list(range(0, 60, 9))
            asked = asyncio.ensure_future(client.delete("orders", wanted, secure=True))
            await eventually(lambda: is_deleted(client, 0), "it is deleted")
        for broker in cluster.brokers.values():
            broker.kill()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        cluster.start()
        await cluster.all_live()
        async with cluster.client(1) as client:
            await cluster.in_sync("orders", {1, 2, 3}, 1)
            done = await client.delete("orders", wanted, secure=True)
            assert (done.deleted, done.erasure) == (0, penstock.Erasure(0, (1, 2, 3)))
            for number in wanted:
                assert files_with(tmp_path, *secret_of(number)) == []


async def is_deleted(client: aio.Client, offset: int) -> bool:
    try:
        await client.get("orders", offset)
    except penstock.MessageNotFound:
        return True
    return False


@each_change
async def test_the_commands_erase_and_say_on_which_brokers(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
            for number in range(3):
                await publish_secret(client, number)
        run = CliRunner()
        options = ["--server", broker.client_address]
        done = await asyncio.to_thread(
            run.invoke, app, ["stream", "delete-message", "orders", "1", "--secure", "--yes", *options]
        )
        assert done.exit_code == 0, done.output
        assert "1 message deleted, and erased on broker 1" in done.output
        assert files_with(tmp_path / "data", *secret_of(1)) == []
        purge = ["stream", "purge", "orders", "--subject", ">", "--secure", "--yes", "--json", *options]
        done = await asyncio.to_thread(run.invoke, app, purge)
        told = json.loads(done.stdout.splitlines()[-1])
        assert told == {"partition": 0, "messages": 2, "before": 3, "erased": [1], "absent": []}
        assert files_with(tmp_path / "data", *secret_of(0), *secret_of(2)) == []


@each_change
async def test_a_full_stream_refuses_until_a_deletion_makes_room_and_so_it_is_after_a_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>", max_messages=5, discard="new")
            await client.create_stream("latest", "latest.>", max_messages=5)
            for number in range(5):
                await client.publish("orders.a", b"%d" % number)
            with pytest.raises(penstock.PenstockError, match="maximum messages exceeded") as refused:
                await client.publish("orders.a", b"5")
            assert refused.value.code == ErrorCode.STREAM_FULL  # type: ignore[attr-defined]
            await client.delete("orders", 2)
            assert (await client.publish("orders.a", b"6")).offset == 5
            for number in range(12):
                await client.publish("latest.a", b"%d" % number)
                assert await offsets_of(client, "latest") == list(range(max(0, number - 4), number + 1))
            await client.delete("latest", [9, 10])
        broker.restart()
        async with await broker.client() as after:
            assert await offsets_of(after, "orders") == [0, 1, 3, 4, 5]
            with pytest.raises(penstock.PenstockError, match="maximum messages exceeded"):
                await after.publish("orders.a", b"7")
            assert await offsets_of(after, "latest") == [7, 8, 11]
            await after.publish("latest.a", b"12")
            assert await offsets_of(after, "latest") == [7, 8, 11, 12]
            await after.alter_stream("latest", deny_purge=True)
            with pytest.raises(penstock.ReadOnly, match="deny_purge is set, for ever"):
                await after.truncate_stream("latest", 12)
