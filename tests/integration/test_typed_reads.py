"""Typed columns of streams with schemas, from a real broker: tables, batches, commands, SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock import aio, frugal
from penstock.broker.supervision.child import ReadyLine, serving
from penstock.idl.model import Reference
from penstock.idl.python.load import load_text
from penstock.schemas.decoding import Reason
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import StreamSchemas
from penstock.schemas.report import DecodeReport
from penstock.schemas.thrift import ThriftProtocol
from tests.cli_app import app
from tests.extent import each_change
from tests.typed_values import thrift_bytes

pytestmark = each_change

Run = Callable[..., Result]
ORDER = """
enum State { OPEN = 1, PAID = 2 }
struct Order { 1: required i64 id, 2: State state, 3: map<string, i32> items, 4: binary proof }
"""
SCHEMA = Schema(SchemaKind.FRUGAL, ORDER, type_name="Order")
LOG = ["offset", "timestamp", "subject", "key", "headers"]
TYPED = ["id", "state", "items", "proof", "decode_error"]
ENDS = "the bytes end within a value"


def order(number: int) -> bytes:
    value = {"id": number, "state": 1 + number % 2, "items": [("cup", number)], "proof": b"\xff"}
    return thrift_bytes(SCHEMA.contract()[0], Reference("Order"), value, ThriftProtocol.BINARY, None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadyLine]:
    with serving(tmp_path_factory.mktemp("data"), "--listen", "127.0.0.1:0", "--nats-port", "0") as ready:
        with penstock.connect(ready.client) as client:
            client.create_stream("orders", "orders.>")
            client.create_stream("split", "split.>", partitions=2, partition_by="key", compact=True)
            client.create_stream("bare", "bare")
            client.register_schema("orders", SCHEMA, subject="orders.made.*")
            client.register_schema("split", SCHEMA)
            rows: list[dict[str, Any]] = [
                {"subject": f"orders.made.{one % 2}", "value": order(one)} for one in range(1000)
            ]
            client.append("orders", [*rows, {"subject": "orders.made.0", "value": b"\x0a"}])
            client.append(
                "orders", [{"subject": "orders.lost", "value": b"?"}, {"subject": "orders.lost", "value": None}]
            )
            for one in range(10):
                client.publish("split.a", order(one), key=f"key-{one}")
        yield ready


@pytest.fixture
def client(broker: ReadyLine) -> Iterator[penstock.Client]:
    with penstock.connect(broker.client) as client:
        yield client


@pytest.fixture
def run(broker: ReadyLine) -> Run:
    def invoke(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, args, env={"PENSTOCK_SERVER": broker.client})
        assert result.exit_code == code, (args, result.output, result.exception)
        return result

    return invoke


def test_a_table_has_typed_columns_and_reasons(client: penstock.Client) -> None:
    with pytest.warns(penstock.DecodeWarning, match=r"1 of 1,003 values not decoded: .*offset 1000") as caught:
        table = client.to_table("orders", decode="schema")
    assert table.column_names == [*LOG, *TYPED]
    assert table.column("id").to_pylist() == [*range(1000), None, None, None]
    assert table.column("state").to_pylist()[:3] == ["OPEN", "PAID", "OPEN"]
    assert table.column("decode_error").to_pylist()[999:] == [None, ENDS, "no schema for this subject", None]
    warning = caught[0].message
    assert isinstance(warning, penstock.DecodeWarning)
    assert isinstance(warning.report, DecodeReport)
    assert (warning.report.decoded, warning.report.versions) == (1000, {("orders.made.*", 1): 1000})
    with pytest.warns(penstock.DecodeWarning):
        assert client.to_table("orders", columns=["value", "offset"], decode=True).column_names == ["offset", *TYPED]


def test_a_consumer_has_the_same_columns_and_goes_on_where_it_was(client: penstock.Client) -> None:
    schemas = client.schemas("orders")
    for decode in (True, "schema", schemas):
        group = f"typed-{type(decode).__name__}"
        with client.consumer("orders", group, decode=decode, batch_rows_max=600) as consumer:
            first = consumer.next_batch()
            assert first is not None
            assert first.schema.names == [*LOG, *TYPED]
            assert first.column("id").to_pylist() == [*range(600)]
            assert consumer.next_batch() is not None  # so the first is done
            consumer.commit({0: 600})
        with client.consumer("orders", group, decode=decode, columns=["value", "subject"]) as consumer:
            rest = pa.Table.from_batches(consumer)
        assert rest.column_names == ["subject", *TYPED]
        assert rest.column("id").to_pylist() == [*range(600, 1000), None, None, None]
        assert rest.column("decode_error").to_pylist()[-4:] == [None, ENDS, "no schema for this subject", None]


async def test_a_consumer_of_asyncio_decodes_too(broker: ReadyLine) -> None:
    async with await aio.connect(broker.client) as client, client.consumer("split", "typed", decode=True) as consumer:
        rows = [row async for batch in consumer for row in batch.select(["id", "decode_error"]).to_pylist()]
    assert sorted(row["id"] for row in rows) == [*range(10)]
    assert {row["decode_error"] for row in rows} == {None}


def test_a_consumer_refuses_what_it_cannot_decode(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match="by schemas only"):
        client.consumer("orders", "g", decode="json")  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="decode is 'yes'"):
        client.consumer("orders", "g", decode="yes")  # type: ignore[typeddict-item]
    with pytest.raises(SchemaError), client.consumer("bare", "g", decode=True):
        pass
    with pytest.raises(ValueError, match="decode needs the column 'value'"):
        client.consumer("orders", "g", decode=True, columns=["offset"]).next_batch()
    with (
        client.consumer("orders", "g", decode=True) as consumer,
        pytest.raises(ValueError, match="iterate over the consumer's batches"),
    ):
        next(consumer.messages())


def test_pandas_polars_and_duckdb_take_them(client: penstock.Client) -> None:
    duckdb = pytest.importorskip("duckdb")
    made = penstock.Filter(subject="orders.made.1")
    frame = client.to_pandas("orders", where=made, decode="schema")
    assert (frame["id"].sum(), set(frame["state"])) == (250_000, {"PAID"})
    polars = client.to_polars("orders", where=made, decode="schema")
    assert polars["state"].unique().to_list() == ["PAID"]
    typed = client.to_table("orders", where=made, decode="schema")
    assert duckdb.sql("SELECT state, sum(id) FROM typed GROUP BY 1").fetchall() == [("PAID", 250_000)]
    assert typed.column("state").type == pa.dictionary(pa.int32(), pa.string())


async def test_batches_of_both_clients_are_decoded(client: penstock.Client, broker: ReadyLine) -> None:
    schemas = client.schemas("orders")
    for decode in (True, "schema", schemas):
        first = next(client.read("orders", decode=decode, columns=["offset", "value"]))  # type: ignore[arg-type]
        assert first.schema.names == ["offset", *TYPED]
    assert sum(batch.num_rows for batch in client.read("split", decode=True)) == 10
    async with await aio.connect(broker.client) as other:
        found = [batch async for batch in other.read("orders", decode=True, limit=5)]
        assert pa.Table.from_batches(found).column("id").to_pylist() == [0, 1, 2, 3, 4]
        assert (await other.to_table("split", decode=True)).column("partition").null_count == 0
        with pytest.raises(ValueError, match="by schemas only"):
            await anext(other.read("orders", decode="json"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decode is 'avro'"):
        client.to_table("orders", decode="avro")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="json"):
        client.to_table("orders", json=True)  # type: ignore[call-arg]
    with pytest.raises(SchemaError, match="'bare' has no schemas"):
        client.to_table("bare", decode=True)
    with pytest.raises(SchemaError, match=r"has no schemas for orders\.lost"):
        client.to_table("orders", where=penstock.Filter(subject="orders.lost"), decode=True)


def test_the_table_of_the_latest_messages_takes_schemas(client: penstock.Client) -> None:
    with client.table("split", partition=0) as latest:
        ids = latest.to_table(decode=client.schemas("split")).column("id").to_pylist()
        assert ids == [message.value[10] for message in latest.values() if message.value is not None]
        with pytest.raises(ValueError, match=r"Client.schemas"):
            latest.to_table(decode="schema")  # type: ignore[arg-type]


def test_read_prints_objects_and_writes_columns(run: Run, tmp_path: Path) -> None:
    printed = run("read", "orders", "--decode", "schema", "-o", "json", "--from", "999")
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    assert rows[0]["value"] == {"id": 999, "state": "PAID", "items": {"cup": 999}, "proof": "/w=="}
    assert [row.get("decode_error") for row in rows] == [None, ENDS, "no schema for this subject", None]
    assert [row["value"] for row in rows[1:]] == ["\n", "?", None]
    assert f"1 of 4 values not decoded: {ENDS} (first: offset 1000; near byte 0 of 1)" in printed.stderr
    path = tmp_path / "orders.parquet"
    assert "not decoded" in run("read", "orders", "--decode", "schema", "--output", str(path)).stderr
    assert pq.read_table(path).column_names == [*LOG, *TYPED]
    csv = run("read", "orders", "--decode", "schema", "-o", "csv", "-n", "1").stdout.splitlines()
    assert csv[0].split(",")[-5:] == [f'"{name}"' for name in TYPED] or csv[0].endswith(",".join(TYPED))
    assert '"{""cup"":0}"' in csv[1]
    table = run("read", "orders", "--decode", "schema", "-o", "table", "-n", "2").stdout
    assert "state" in table.splitlines()[0]
    assert "PAID" in table
    assert "has no schemas" in run("read", "bare", "--decode", "schema", code=1).stderr


def test_tail_prints_objects(run: Run) -> None:
    printed = run("tail", "split", "--no-follow", "-n", "3", "--decode", "schema", "-o", "json")
    values = [json.loads(line)["value"] for line in printed.stdout.splitlines()]
    assert [value["items"] for value in values] == [{"cup": value["id"]} for value in values]
    assert len(values) == 3


def test_sql_has_typed_columns(run: Run) -> None:
    def rows(query: str) -> list[Any]:
        found = run("sql", query, "--decode", "schema", "-o", "json")
        return [json.loads(line) for line in found.stdout.splitlines()]

    assert rows("SELECT state, sum(id) AS n FROM orders WHERE id < 10 GROUP BY ALL ORDER BY 1") == [
        {"state": "OPEN", "n": 20},
        {"state": "PAID", "n": 25},
    ]
    assert rows(
        "SELECT count(*) AS n, decode_error AS why FROM orders WHERE decode_error IS NOT NULL GROUP BY 2 ORDER BY 2"
    ) == [{"n": 1, "why": "no schema for this subject"}, {"n": 1, "why": ENDS}]
    assert rows("SELECT items['cup'] AS cups FROM orders WHERE state = 'PAID' AND \"offset\" < 4 ORDER BY 1") == [
        {"cups": 1},
        {"cups": 3},
    ]
    assert rows("SELECT count(*) AS n FROM split WHERE partition >= 0 AND id >= 0") == [{"n": 10}]
    assert "has no schemas" in run("sql", "SELECT * FROM bare", "--decode", "schema", code=1).stderr


async def test_a_native_event_names_the_schema_that_it_was_written_by(broker: ReadyLine) -> None:
    """A forced version cannot read old events: they are decoded by the version that their publisher names."""
    contract = "struct Sale {{ 1: {} id }} scope Sales {{ Made: Sale }}"
    first, second = (contract.format(kind) for kind in ("i64", "string"))
    made = "frugal.Sales.Made"
    async with aio.connect(broker.client) as client:
        await client.create_stream("sales", "frugal.Sales.*")
        for text, value, force in ((first, 7, False), (second, "eight", True)):
            loaded = load_text(text)
            (version,) = await client.register_contract("sales", text, force=force)
            provider = frugal.ScopeProvider(client=client, framing="native")
            await loaded.SalesPublisher(provider, stream="sales").publish_made(frugal.Context(), loaded.Sale(id=value))
            assert version.typed.subject == made
        table = await client.to_table("sales", decode="schema")
        schemas = await client.schemas("sales")
        hashes = [one.hash for one in schemas.versions]
        for schema_hash, block in zip(hashes, table["headers"].to_pylist(), strict=True):
            assert f"Penstock-Schema: {schema_hash}".encode() in block
        assert table["id"].to_pylist() == ["7", "eight"]
        before = StreamSchemas("sales", schemas.stream_id, schemas.versions[:1])
        with pytest.warns(penstock.DecodeWarning, match="no version of the header's hash"):
            old = await client.to_table("sales", decode=before)
        assert old["id"].to_pylist() == [7, None]
        assert old["decode_error"].to_pylist() == [None, Reason.VERSION.text]
