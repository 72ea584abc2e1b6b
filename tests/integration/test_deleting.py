"""`client.delete`, `client.purge_subject`, their commands: what is answered as gone stays gone, whoever is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.base.errors import ErrorCode
from tests.broker_process import running_broker
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


@each_change
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
