"""Typed columns of `format("penstock")`: by the registered schemas, in batches, queries and tables of SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import penstock
from penstock.base.errors import ConfigError
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from tests.broker_process import BrokerProcess
from tests.extent import needs_time

PLACED = {"type": "object", "properties": {"order": {"type": "integer"}, "city": {"type": "string"}}}
PLACED_2 = {"type": "object", "properties": {**PLACED["properties"], "amount": {"type": "number"}}}  # type: ignore[dict-item]
CONTRACT = """
enum State { OPEN = 1, GONE = 2 }
struct Order { 1: i64 id, 2: State state, 3: map<string, i32> counts, 4: list<list<double>> grid }
struct Gone { 1: i64 id, 2: string why }
scope Orders prefix shop.{city} { placed: Order, gone: Gone }
"""


def json_schema(found: dict[str, Any]) -> Schema:
    return Schema(SchemaKind.JSON_SCHEMA, json.dumps(found))


def frugal(name: str) -> Schema:
    return Schema(SchemaKind.FRUGAL, CONTRACT, (), name)


def reading(spark: SparkSession, broker: BrokerProcess, stream: str, **options: str) -> DataFrame:
    given = {"servers": broker.client_address, "stream": stream, "decode": "schema", **options}
    return spark.read.format("penstock").options(**given).load()


def value(found: dict[str, Any]) -> bytes:
    return json.dumps(found).encode()


def tuples(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows.orderBy("offset").select(*columns).collect()]


def placed_stream(client: penstock.Client, name: str) -> None:
    client.create_stream(name, name)
    client.register_schema(name, json_schema(PLACED))


def orders(*numbers: int, **more: Any) -> Sequence[dict[str, Any]]:
    return [{"value": value({"order": number, "city": "Oslo", **more})} for number in numbers]


def test_the_fields_of_one_type_are_columns_and_what_does_not_decode_says_why(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    placed_stream(client, "typed-one")
    client.append("typed-one", [*orders(1), {"value": b"{torn"}, {"value": None, "key": b"k"}])
    rows = reading(spark, broker, "typed-one")
    assert rows.columns[-3:] == ["order", "city", "decode_error"]
    assert rows.columns[:3] == ["key", "value", "topic"]
    assert tuples(rows, "order", "city", "decode_error") == [
        (1, "Oslo", None),
        (None, None, "it is not JSON"),
        (None, None, None),
    ]
    assert rows.where("order = 1 AND offset < 2").count() == 1
    assert rows.where("decode_error IS NOT NULL").select("value").collect()[0][0] == b"{torn"


def test_columns_and_a_narrow_schema_select_typed_columns(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    placed_stream(client, "typed-some")
    client.append("typed-some", orders(1, 2))
    some = reading(spark, broker, "typed-some", columns="CITY, offset")
    assert (some.columns, tuples(some, "city")) == (["city", "offset"], [("Oslo",), ("Oslo",)])
    given = {"servers": broker.client_address, "stream": "typed-some", "decode": "schema"}
    narrow = spark.read.format("penstock").options(**given).schema("Order BIGINT, `offset` BIGINT").load()
    assert [tuple(row) for row in narrow.orderBy("offset").collect()] == [(1, 0), (2, 1)]
    with pytest.raises(Exception, match="order: it is of type bigint, not string; cast it after reading"):
        spark.read.format("penstock").options(**given).schema("order STRING").load().collect()
    with pytest.raises(Exception, match=r"there is no column 'town'; there are key, .*, order, city, decode_error"):
        reading(spark, broker, "typed-some", columns="town")


def test_a_stream_without_schemas_is_refused(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    client.create_stream("typed-none", "typed-none")
    with pytest.raises(Exception, match="stream typed-none has no schemas; `penstock schema register` adds one"):
        reading(spark, broker, "typed-none")


@needs_time
def test_two_types_of_a_stream_are_struct_columns_in_old_and_native_frames(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    client.create_stream("typed-two", "frugal.shop.>")
    for name in ("placed", "gone"):
        subject = f"frugal.shop.*.Orders.{name}"
        client.register_schema(
            "typed-two", frugal(f"Orders.{name}"), subject=subject, message=name, framing=ValueFraming.FRUGAL
        )
    placed = (
        b"\x0a\x00\x01" + (7).to_bytes(8, "big") + b"\x08\x00\x02\x00\x00\x00\x02"  # id, state
        b"\x0d\x00\x03\x0b\x08\x00\x00\x00\x01\x00\x00\x00\x01a\x00\x00\x00\x05"  # counts
        b"\x0f\x00\x04\x0f\x00\x00\x00\x01\x04\x00\x00\x00\x01\x3f\xf8" + bytes(6) + b"\x00"  # grid
    )
    gone = b"\x0a\x00\x01" + (8).to_bytes(8, "big") + b"\x0b\x00\x02\x00\x00\x00\x04sold\x00"
    headers = {"Frugal-Operation": "gone", "Content-Type": "application/vnd.apache.thrift.binary"}
    client.append(
        "typed-two",
        [
            {"subject": "frugal.shop.oslo.Orders.placed", "value": framed("placed", placed)},
            {"subject": "frugal.shop.oslo.Orders.gone", "value": gone, "headers": headers},
            {"subject": "frugal.shop.oslo.Orders.gone", "value": b"\x00\x00\x00\x02xx"},
            {"subject": "frugal.shop.other", "value": b"x"},
        ],
    )
    rows = reading(spark, broker, "typed-two")
    found = tuples(rows, "Order.id", "Order.state", "Order.counts", "Order.grid", "Gone.id", "Gone.why", "decode_error")
    assert found == [
        (7, "GONE", {"a": 5}, [[1.5]], None, None, None),
        (None, None, None, None, 8, "sold", None),
        (*[None] * 6, "the bytes end within a value"),
        (*[None] * 6, "no schema for this subject"),
    ]
    only = reading(spark, broker, "typed-two", subject="frugal.shop.*.Orders.gone")
    assert tuples(only, "id", "why", "decode_error")[0] == (8, "sold", None)


def framed(operation: str, payload: bytes) -> bytes:
    """Return a message of a scope in a frame of Frugal, version 0."""
    headers = b"".join(
        len(part).to_bytes(4, "big") + part for part in (b"_cid", b"c1", b"_opid", b"7", b"_timeout", b"5000")
    )
    begin = b"\x80\x01\x00\x01" + len(operation).to_bytes(4, "big") + operation.encode() + bytes(4)
    body = b"\x00" + len(headers).to_bytes(4, "big") + headers + begin + payload
    return len(body).to_bytes(4, "big") + body


@needs_time
def test_every_arrow_type_comes_to_spark_and_back_from_parquet(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "there", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "many", "type": {"type": "array", "items": {"type": "map", "values": "float"}}},
        {"name": "Offset", "type": "boolean"},
        {"name": "none", "type": "null"},
    ]
    schema = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "All", "fields": fields}))
    client.create_stream("typed-all", "typed-all")
    client.register_schema("typed-all", schema)
    one = b"\x02" + b"\x06" + b"\xd0\x0f" + b"\x08" + b"\x04\x01\x00" + b"ab"
    one += b"\x02\x02\x02k" + b"\x00\x00\x80\x3f" + b"\x00\x00" + b"\x01"
    client.append("typed-all", [{"value": one}, {"value": b"\x02"}])
    rows = reading(spark, broker, "typed-all")
    names = ["day", "clock", "at", "there", "price", "mark", "many", "data_Offset", "none"]
    assert rows.columns[-10:] == [*names, "decode_error"]
    assert tuples(rows, "decode_error") == [(None,), ("the bytes end within a value",)]
    texts = ["string(day)", "clock", "unix_millis(at)", "string(there)", "string(price)", "mark", "many[0]['k']"]
    wanted = ("1970-01-02", 3, 1000, "1970-01-01 00:00:00.000004", "2.56", b"ab", 1.0, True, None)
    read = rows.where("offset = 0").selectExpr(*texts, "data_Offset", "none").collect()
    assert [tuple(row) for row in read] == [wanted]
    rows.write.parquet(str(tmp_path / "out"))
    back = spark.read.parquet(str(tmp_path / "out")).where("offset = 0").selectExpr(*texts, "data_Offset", "none")
    assert [tuple(row) for row in back.collect()] == [wanted]


@needs_time
def test_a_table_of_sql_keeps_the_columns_that_it_was_created_with(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    placed_stream(client, "typed-sql")
    client.append("typed-sql", orders(1))
    spark.sql(
        f"CREATE TABLE typed_orders USING penstock OPTIONS (stream 'typed-sql', servers '{broker.client_address}', "
        "decode 'schema')"
    )
    try:
        client.register_schema("typed-sql", json_schema(PLACED_2))
        client.append("typed-sql", orders(2, amount=2.5))
        assert [tuple(row) for row in spark.sql("SELECT order, city FROM typed_orders ORDER BY offset").collect()] == [
            (1, "Oslo"),
            (2, "Oslo"),
        ]
        assert "amount" not in spark.table("typed_orders").columns
    finally:
        spark.sql("DROP TABLE typed_orders")
    assert tuples(reading(spark, broker, "typed-sql"), "order", "amount") == [(1, None), (2, 2.5)]
    pinned = reading(spark, broker, "typed-sql", schemaVersions='{"typed-sql": {"typed-sql": 1}}')
    assert "amount" not in pinned.columns
    with pytest.raises(Exception, match="schemaVersions: stream typed-sql has no version 7 for typed-sql"):
        reading(spark, broker, "typed-sql", schemaVersions='{"typed-sql": {"typed-sql": 7}}')


# Queries


class Query:
    """A streaming query that is run again and again, as a scheduled job is."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, stream: str, folder: Path) -> None:
        self._spark = spark
        self._options = {"servers": broker.client_address, "stream": stream, "startingOffsets": "earliest"}
        self._folder = folder

    def run(self, schema: StructType | None = None, **options: str) -> list[str]:
        """Run the query on what there is, and return its columns."""
        reader = self._spark.readStream.format("penstock").options(**{**self._options, "decode": "schema", **options})
        rows = (reader if schema is None else reader.schema(schema)).load()
        query = (
            rows.writeStream.format("json")
            .option("checkpointLocation", self.checkpoint)
            .option("path", str(self._folder / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.lastProgress is not None
        self.progress = query.lastProgress
        return rows.columns

    @property
    def checkpoint(self) -> str:
        return str(self._folder / "checkpoint")

    def written(self) -> list[dict[str, Any]]:
        """Return the rows that all runs have written."""
        texts = [file.read_text().splitlines() for file in (self._folder / "out").glob("*.json")]
        return sorted((json.loads(line) for text in texts for line in text), key=lambda row: int(row["offset"]))


@needs_time
def test_a_query_that_goes_on_keeps_the_versions_of_its_checkpoint(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    placed_stream(client, "typed-query")
    client.append("typed-query", orders(1))
    query = Query(spark, broker, "typed-query", tmp_path)
    assert "amount" not in query.run(checkpointLocation=query.checkpoint)
    client.register_schema("typed-query", json_schema(PLACED_2))
    client.append("typed-query", orders(2, amount=2.5))
    with pytest.raises(Exception, match=r"began with the columns of .*give the reader the option checkpointLocation"):
        query.run()
    assert "amount" not in query.run(checkpointLocation=query.checkpoint)
    assert [(row.get("order"), row.get("amount")) for row in query.written()] == [(1, None), (2, None)]
    noted = json.loads(query.progress["sources"][0]["endOffset"])["typed-query"]
    assert noted["schemas"] == {"typed-query": 1}
    client.append("typed-query", orders(3, amount=3.5))
    assert "amount" in query.run(schemaVersions="newest")
    client.append("typed-query", orders(4, amount=4.5))
    assert "amount" in query.run(checkpointLocation=query.checkpoint)
    assert [(row["order"], row.get("amount")) for row in query.written()] == [(1, None), (2, None), (3, 3.5), (4, 4.5)]


@needs_time
def test_a_version_that_is_registered_during_a_query_is_told_in_its_progress(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    placed_stream(client, "typed-live")
    rows = reading(spark, broker, "typed-live")
    assert "amount" not in rows.columns
    newer = client.register_schema("typed-live", json_schema(PLACED_2))
    client.append("typed-live", orders(1, amount=1.5))
    client.append("typed-live", [{**orders(2, amount=2.5)[0], "headers": {"Penstock-Schema": newer.hash}}])
    assert tuples(rows, "order", "decode_error") == [(1, None), (2, None)]
    query = Query(spark, broker, "typed-live", tmp_path)
    query.run(schemaVersions='{"typed-live": {"typed-live": 1}}')
    told = json.loads(query.progress["sources"][0]["latestOffset"])["typed-live"]
    assert told["newer_schemas"] == {"typed-live": 2}


def test_options_of_decoding_that_cannot_be_are_refused() -> None:
    from penstock.spark.options.options import source_options

    for options, mistake in (
        ({"decode": "json"}, "decode: it is 'json'; there is schema; of JSON without a schema, use from_json"),
        ({"schemaVersions": "newest"}, "schemaVersions: nothing is decoded by them; give decode, too"),
        ({"decode": "schema", "schemaVersions": "[]"}, r"schemaVersions: '\[\]' is no JSON object"),
        ({"decode": "schema", "schemaVersions": '{"s": {"s": 0}}'}, "schemaVersions: .* is not a version for each"),
    ):
        with pytest.raises(ConfigError, match=mistake):
            source_options({"stream": "s", **options})
