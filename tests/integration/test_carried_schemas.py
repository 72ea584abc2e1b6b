"""Schemas of streams through backup, restore and copy with real brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.schemas.kinds import Schema, SchemaKind
from tests.broker_process import BrokerProcess, eventually
from tests.cli_process import command
from tests.extent import needs_time
from tests.integration.test_backup import rows_of, two, verify

CONTRACT = """
struct Order { 1: required i64 id }
scope Orders prefix shop.{region} { Placed: Order, Cancelled: Order }
"""


def json_schema(kind: str) -> Schema:
    return Schema(SchemaKind.JSON_SCHEMA, json.dumps({"properties": {"id": {"type": kind}}}))


async def identities(client: aio.Client, stream: str) -> list[tuple[object, ...]]:
    kept = await client.schemas(stream)
    return [(one.typed, one.number, one.schema, one.hash, one.is_forced) for one in kept.versions]


async def _fill(client: aio.Client) -> None:
    """Create two streams with schemas, and rows that do not fit the newest ones, which `refuse` would not store."""
    await client.create_stream("orders", "orders.>")
    await client.append("orders", [{"subject": "orders.a", "value": one} for one in ('{"id":1}', '{"id":"x"}', "no")])
    await client.register_schema("orders", json_schema("string"))
    await client.register_schema("orders", json_schema("integer"), force=True)
    await client.register_schema("orders", json_schema("string"), force=True)  # version 1, on top again
    await client.alter_stream("orders", schema_check="refuse")
    await client.create_stream("events", "frugal.shop.>")
    await client.register_contract("events", CONTRACT)


@needs_time
async def test_schemas_come_back_with_all_versions_and_rows_are_not_checked(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        here, there = pair.here, pair.there
        await _fill(here)
        await pair.backup(folder)
        said, _ = await verify(folder)
        assert "Sound: a backup of 3 rows, of 5 schemas" in said
        before = sorted((folder / "schemas").iterdir())
        await pair.restore(folder, "--paused")
        for stream in ("orders", "events"):
            assert await identities(there, stream) == await identities(here, stream)
            assert await rows_of(there, stream) == await rows_of(here, stream)
        assert [one.is_forced for one in (await there.schemas("orders")).versions] == [False, True, True]
        assert (await there.stream("orders")).config.schema_check == "refuse"
        # What is new comes with the next run, of a paused stream; nothing comes twice.
        await here.register_schema("orders", json_schema("integer"), force=True)
        await pair.backup(folder)
        after = sorted((folder / "schemas").iterdir())
        assert (len(before), len(after), len(set(before) & set(after))) == (2, 2, 1)
        _, errors = await pair.restore(folder)
        assert "schemas" not in errors
        assert await identities(there, "orders") == await identities(here, "orders")
        assert len((await there.schemas("orders")).versions) == 4
        # A damaged file is found before anything is made of the backup.
        for path in after:
            path.write_bytes(b"{}")
        _, errors = await verify(folder, code=1)
        assert f"{after[0]}: at byte 0: expected a file with the SHA-256" in errors
        await pair.restore(folder, "--stream", "orders", "--as", "again", code=1)
        with pytest.raises(penstock.StreamNotFound):
            await there.stream("again")


@needs_time
async def test_a_copy_has_the_schemas_of_its_source(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        here, there, server = pair.here, pair.there, pair.old.client_address
        await _fill(here)
        for client, name, more in ((here, "same", ()), (there, "orders", ("--to-server", pair.new.client_address))):
            for _ in range(2):
                _, errors = await command(server, "stream", "copy", "orders", name, *more)
                assert "schemas" not in errors
                assert await identities(client, name) == await identities(here, "orders")
            assert await rows_of(client, name) == await rows_of(here, "orders")
        # A stream with other versions keeps them, and gets the rows.
        await there.create_stream("other", "orders.>")
        await there.register_schema("other", json_schema("boolean"))
        await there.pause_stream("other")
        _, errors = await command(server, "stream", "copy", "orders", "other", "--to-server", pair.new.client_address)
        assert "stream other does not get all schemas, for 1 pattern of subjects ('orders.>'): it has other" in errors
        assert [one.schema for one in (await there.schemas("other")).versions] == [json_schema("boolean")]
        assert await rows_of(there, "other") == await rows_of(here, "orders")


@needs_time
async def test_rows_of_copies_and_restores_are_not_checked(
    broker: BrokerProcess, client: aio.Client, tmp_path: Path
) -> None:
    misfit, server, folder = {"subject": "orders.a", "value": '{"id":"x"}'}, broker.client_address, tmp_path / "backup"
    restore = ("restore", str(folder), "--stream", "orders", "--as", "restored")

    async def carry() -> None:
        await command(server, "stream", "copy", "orders", "copied")
        await command(server, "backup", str(folder))
        await command(server, *restore)

    async def is_checked(stream: str) -> bool:
        try:
            await client.append(stream, [misfit])
        except penstock.RemoteError as error:
            return error.code == "schema_mismatch"
        return False

    await client.create_stream("orders", "orders.>", schema_check="refuse")
    await client.register_schema("orders", json_schema("integer"))
    await carry()
    # The leader has read schemas that were registered later, so it checks those streams, too.
    await client.create_stream("later", "orders.>", schema_check="refuse")
    await client.register_schema("later", json_schema("integer"))
    await eventually(lambda: is_checked("later"), "values of the later stream are checked")
    await client.alter_stream("orders", schema_check="no")
    await client.append("orders", [misfit] * 3)
    await carry()
    for stream in ("copied", "restored"):
        assert [row[0] for row in await rows_of(client, stream)] == [row[0] for row in await rows_of(client, "orders")]
        assert (await client.stream(stream)).config.schema_check == "refuse"
        await client.resume_stream(stream)
        await eventually(lambda name=stream: is_checked(name), "values of the stream are checked once it is open")  # type: ignore[misc]
