"""The registry of schemas on real brokers: by both clients, through restarts, failovers and compaction, and rights."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.client import aio as aio_client
from penstock.client.users import password_credential, rule
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_app import app
from tests.extent import each_change
from tests.integration.clusters import running_cluster
from tests.integration.publishers import connected_to
from tests.protobuf_contracts import descriptor_set

CONTRACT = """
include "base.frugal"
struct Order { 1: required i64 id, 2: optional base.Money price }
struct Gone { 1: required i64 id }
scope Orders prefix shop.{region} { Placed: Order, Cancelled: Gone }
scope Stock { Counted: i64 }
"""
BASE = "struct Money { 1: i64 cents }"
PASSWORD = "a long enough password"


def avro(*fields: str) -> Schema:
    listed = ",".join(f'{{"name":"{name}","type":"long","default":0}}' for name in fields)
    return Schema(SchemaKind.AVRO, f'{{"type":"record","name":"Order","fields":[{listed}]}}')


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One of the test's own: `__schemas` outlives the streams of a test."""
    with running_broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    (tmp_path / "base.frugal").write_text(BASE)
    path = tmp_path / "orders.frugal"
    path.write_text(CONTRACT)
    return path


async def test_a_schema_is_registered_once_listed_and_forgotten(client: aio.Client) -> None:
    await client.create_stream("orders", "orders.>")
    assert (await client.schemas("orders")).versions == ()
    assert [one.name for one in await client.streams()] == ["orders"]  # listing creates nothing
    checked = await client.register_schema("orders", avro("id"), check_only=True)
    assert (checked.number, checked.is_new, (await client.schemas("orders")).versions) == (1, True, ())
    first = await client.register_schema("orders", avro("id"))
    assert (first.number, first.is_new, first.typed.subject, first.by) == (1, True, "orders.>", "")
    again = await client.register_schema("orders", avro("id"))
    assert (again.number, again.is_new) == (1, False)
    second = await client.register_schema("orders", avro("id", "price"))
    kept = await client.schemas("orders")
    assert kept.versions == (first, second)
    assert [each.schema for each in kept.versions] == [avro("id"), avro("id", "price")]
    with pytest.raises(penstock.RemoteError, match=r"has no schemas for 'x'; it has some for 'orders.>'") as refused:
        await client.forget_schema("orders", "x")
    assert refused.value.code == "schema_not_found"
    assert await client.forget_schema("orders", "orders.>") == 2
    assert (await client.schemas("orders")).versions == ()


async def test_an_incompatible_schema_is_refused_unless_it_is_forced(client: aio.Client) -> None:
    await client.create_stream("orders", "orders.>")
    await client.register_schema("orders", avro("id"))
    changed = Schema(SchemaKind.AVRO, avro("id").text.replace("long", "string").replace("0", '""'))
    with pytest.raises(penstock.IncompatibleSchema, match=r"version 1: .*force it") as refused:
        await client.register_schema("orders", changed)
    assert refused.value.details["reasons"]
    with pytest.raises(penstock.IncompatibleSchema, match="framing was 'bare', and is 'confluent'"):
        await client.register_schema("orders", avro("id"), framing="confluent")
    forced = await client.register_schema("orders", changed, force=True)
    assert (forced.number, forced.is_forced) == (2, True)
    with pytest.raises(penstock.InvalidSchema, match="no JSON"):
        await client.register_schema("orders", Schema(SchemaKind.AVRO, "{"), force=True)


async def test_the_scopes_of_a_contract_are_registered_together(client: aio.Client, contract: Path) -> None:
    await client.create_stream("orders", "frugal.shop.>")
    found = await client.register_contract("orders", contract)
    assert [(each.typed.subject, each.typed.message, each.schema.type_name) for each in found] == [
        ("frugal.shop.*.Orders.Placed", "Placed", "Orders.Placed"),
        ("frugal.shop.*.Orders.Cancelled", "Cancelled", "Orders.Cancelled"),
    ]
    assert {each.typed.framing for each in found} == {ValueFraming.FRUGAL}
    kept = await client.schemas("orders")
    assert sorted(kept.newest()) == sorted(each.typed.subject for each in found)
    placed = kept.newest()["frugal.shop.*.Orders.Placed"]
    assert placed.schema.closure == (("base.frugal", BASE),)
    assert placed.schema.arrow_schema().names == ["id", "price"]
    with pytest.raises(penstock.InvalidSchema, match=r"stores 'frugal.shop.>'"):
        await client.register_contract("orders", contract, ["Stock.Counted"])
    with pytest.raises(penstock.InvalidSchema, match=r"no operation 'Stock.Lost'"):
        await client.register_contract("orders", contract, ["Stock.Lost"])
    (one,) = await client.register_contract("orders", contract, ["Orders.Placed"])
    assert (one.number, one.is_new) == (1, False)
    contract.write_text(CONTRACT.replace("2: optional base.Money price", "2: optional string price"))
    with pytest.raises(penstock.IncompatibleSchema, match=r"Orders.Placed: version 1: Order.price"):
        await client.register_contract("orders", contract)


def test_the_blocking_client_has_the_same_calls(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        version = client.register_schema("orders", avro("id"), subject="orders.eu.>")
        assert client.schemas("orders").versions == (version,)
        assert client.forget_schema("orders", "orders.eu.>") == 1


async def test_schemas_survive_a_restart_and_end_with_their_stream(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with aio.connect(broker.client_address) as client:
            await client.create_stream("orders", "orders.>")
            await client.create_stream("others", "others.>")
            for number in range(3):
                await client.register_schema("orders", avro(*"abc"[: number + 1]))
            kept = await client.register_schema("others", avro("id"))
        broker.restart()
        async with aio.connect(broker.client_address) as client:
            assert [each.number for each in (await client.schemas("orders")).versions] == [1, 2, 3]
            await client.delete_stream("orders")
            await client.create_stream("orders", "orders.>")
            assert (await client.schemas("orders")).versions == ()
            assert (await client.schemas("others")).versions == (kept,)

            async def is_swept() -> bool:
                return len(await _latest(client)) == 2  # the text and the version of `others`

            await eventually(is_swept, "the rows of the deleted stream are deleted")


async def _latest(client: aio.Client) -> list[penstock.Message]:
    """The rows of `__schemas` that are not deleted."""
    latest = {}
    async for message in client.messages(SCHEMAS_STREAM):
        latest[message.key] = message
    return [message for message in latest.values() if message.value is not None]


@each_change
async def test_no_acked_version_is_lost_in_a_failover(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            await client.register_schema("orders", avro("a"))
            info = await client.stream(SCHEMAS_STREAM)
            (part,) = info.partitions
            assert len(part.replicas) == 3
            assert part.leader_id is not None
            cluster.brokers[part.leader_id].kill()
            second = await client.register_schema("orders", avro("a", "b"), timeout=30)
            assert second.number == 2
            assert [each.number for each in (await client.schemas("orders", timeout=30)).versions] == [1, 2]


async def test_rights(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with aio.connect(broker.client_address) as admin:
            await admin.create_stream("orders", "orders.>")
            await admin.users.create("root", password_credential(PASSWORD), rules=[rule("admin")])
        async with _login(broker, "root") as admin:
            for name, *operations in (
                ("writer", "register"),
                ("owner", "register", "alter"),
                ("reader", "read"),
                ("other",),
            ):
                rules = [rule(one, stream="orders") for one in operations]  # type: ignore[arg-type]
                await admin.users.create(name, password_credential(PASSWORD), rules=rules)
        async with _login(broker, "writer") as writer:
            version = await writer.register_schema("orders", avro("id"))
            assert version.by == "writer"
            assert (await writer.schemas("orders")).versions == (version,)
            with pytest.raises(penstock.NotAuthorized, match="may not alter on stream 'orders'"):
                await writer.register_schema("orders", avro("id"), force=True)
            with pytest.raises(penstock.NotAuthorized, match="may not alter"):
                await writer.forget_schema("orders", "orders.>")
        async with _login(broker, "reader") as reader:
            assert (await reader.schemas("orders")).versions == (version,)
            with pytest.raises(penstock.NotAuthorized, match="may not register"):
                await reader.register_schema("orders", avro("id"))
        async with _login(broker, "other") as other:
            with pytest.raises(penstock.StreamNotFound):
                await other.schemas("orders")
        async with _login(broker, "owner") as owner:
            assert await owner.forget_schema("orders", "orders.>") == 1


def _login(broker: BrokerProcess, user: str) -> aio_client.Connecting:
    return aio.connect(broker.client_address, credentials=penstock.Credentials.password(user, PASSWORD))


class Commands:
    """Runs commands against one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._server = broker.client_address

    def __call__(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--server", self._server, "schema", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return " ".join(result.output.split())


def test_the_commands(broker: BrokerProcess, tmp_path: Path, contract: Path) -> None:
    schema = Commands(broker)
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.create_stream("events", "frugal.>")
    assert "has no schemas" in schema("list", "orders")
    file = tmp_path / "order.avsc"
    file.write_text(avro("id").text)
    assert "version 1 would be registered" in schema("register", "orders", str(file), "--check")
    assert "version 1 is registered" in schema("register", "orders", str(file))
    assert "has this schema already: version 1" in schema("register", "orders", str(file))
    file.write_text(avro("id").text.replace("long", "string").replace("0", '""'))
    assert "and string in the other" in schema("register", "orders", str(file), "--check", code=1)
    forced = json.loads(schema("register", "orders", str(file), "--force", "--json"))
    assert (forced["version"], forced["forced"], forced["kind"], forced["by"]) == (2, True, "avro", None)
    assert "those of the others need theirs, also those" in schema("register", "orders", str(file))
    file.write_text("{")
    assert "no JSON" in schema("register", "orders", str(file), code=2)
    assert "2 (forced) avro Order bare" in schema("list", "orders")
    assert len(schema("list", "orders", "--json").split("} {")) == 2
    assert "int64" in schema("show", "orders", "orders.>", "--version", "1", "--columns")
    assert '"name":"Order"' in schema("show", "orders")
    assert "has no schema for x" in schema("show", "orders", "x", code=1)
    again = tmp_path / "again" / "order.avsc"
    again.parent.mkdir()
    schema("show", "orders", "orders.>", "--version", "1", "--output", str(again))
    assert again.read_text() == avro("id").text
    assert "forgotten: 2 versions" in schema("forget", "orders", "orders.>", "--yes")


def test_the_commands_take_contracts_and_arrow_files(broker: BrokerProcess, tmp_path: Path, contract: Path) -> None:
    schema = Commands(broker)
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.create_stream("events", "frugal.>")
    assert schema("register", "events", str(contract)).count("version 1 is registered") == 3
    shown = json.loads(schema("show", "events", "frugal.shop.*.Orders.Placed", "--json"))
    assert shown["columns"] == [
        {"name": "id", "type": "int64"},
        {"name": "price", "type": "struct<cents: int64>"},
    ]
    assert "several patterns: give one of frugal.Stock.Counted, " in schema("show", "events", code=1)
    assert "orders has no schemas" in schema("show", "orders", code=1)
    copy = tmp_path / "again" / "orders.frugal"
    schema("show", "events", "frugal.Stock.Counted", "--output", str(copy))
    assert (copy.parent / "base.frugal").read_text() == BASE
    contract.write_text("struct")
    assert "mistakes" in schema("register", "events", str(contract), code=2)
    arrow = tmp_path / "x.arrow"
    arrow.write_bytes(pa.schema([("id", pa.int64())]).serialize().to_pybytes())
    assert "registered" in schema("register", "orders", str(arrow), "--subject", "orders.arrow")
    assert schema("show", "orders") == "id: int64"
    assert schema("show", "orders", "--raw") == base64.b64encode(arrow.read_bytes()).decode()


def test_a_message_of_protobuf_is_shown_in_its_language(broker: BrokerProcess, tmp_path: Path) -> None:
    schema = Commands(broker)
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set("message Order { string id = 1; optional int64 cents = 2 }"))
    schema("register", "orders", str(file), "--type", "shop.Order")
    assert schema("show", "orders") == "message shop.Order { string id = 1; optional int64 cents = 2; }"
    kept = base64.b64encode(file.read_bytes()).decode()
    assert schema("show", "orders", "--raw") == kept
    assert json.loads(schema("show", "orders", "--json"))["text"] == kept


@each_change
async def test_a_publisher_is_told_that_its_value_does_not_fit(broker: BrokerProcess) -> None:
    async with aio.connect(broker.client_address) as client, connected_to(broker.nats_url) as connection:
        await client.create_stream("orders", "orders.>", schema_check="refuse")
        await client.register_schema(
            "orders", Schema(SchemaKind.JSON_SCHEMA, '{"properties":{"id":{"type":"integer"}}}')
        )

        async def is_checked() -> bool:
            answer = await connection.request("orders.a", b'{"id":"one"}', timeout=10)
            told = b"the value does not fit its schema: it does not have the form"
            return told in answer.data and b"(id: a whole number is expected, a string is found)" in answer.data

        await eventually(is_checked, "a value that does not fit is refused")
        assert b'"seq":' in (await connection.request("orders.a", b'{"id":1}', timeout=10)).data
        rows = [{"subject": "orders.a", "value": one} for one in (b'{"id":1}', b'{"id":"one"}')]
        with pytest.raises(penstock.RemoteError, match=r"row 1, on 'orders\.a', does not fit its schema") as refused:
            await client.append("orders", rows)
        assert "(id: a whole number is expected, a string is found)" in str(refused.value)
        assert refused.value.code == "schema_mismatch"
        wide = Schema(SchemaKind.JSON_SCHEMA, '{"properties":{"id":{"type":"integer"},"note":{"type":"string"}}}')
        headers = {"Penstock-Schema": wide.hash()}
        with pytest.raises(penstock.RemoteError, match="register that version first") as unknown:
            await client.publish("orders.a", b'{"id":1}', headers=headers)
        assert unknown.value.code == "schema_mismatch"
        with pytest.raises(penstock.RemoteError, match="register that version first"):
            await client.append("orders", [{"subject": "orders.a", "value": b"{}", "headers": headers}])
        await client.register_schema("orders", wide)
        await client.publish("orders.a", b'{"id":1}', headers=headers)
        await client.append("orders", [{"subject": "orders.a", "value": b"{}", "headers": headers}])
        await client.alter_stream("orders", schema_check="no")
        assert b'"seq":' in (await connection.request("orders.a", b'{"id":"one"}', timeout=10)).data
