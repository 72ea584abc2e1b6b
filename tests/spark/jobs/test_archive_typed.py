"""`--decode schema`: archives with typed columns by the registered schemas, on this machine and on Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import ops
from penstock.base.errors import ConfigError
from penstock.lake.tables.manifest import read_about
from penstock.ops.archive import ArchiveOptions
from penstock.schemas.as_json import schemas_of_json
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.spark import archive
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.jobs.test_archive_decoded import AVRO, ORDER, datum, rejected_in
from tests.spark.reading.test_typed import CONTRACT, PLACED, PLACED_2, framed, frugal, json_schema, orders

TYPED = ArchiveOptions(decode="schema")


def data_in(folder: Path) -> list[Any]:
    """Return the column `data`, null where a row has no value, by offset."""
    found = pl.scan_parquet(f"{folder}/date=*/*/*.parquet").select("offset", "data").sort("offset").collect()
    return [None if row["data"] is None or not any(map(is_set, row["data"].values())) else row["data"] for row in
            found.to_dicts()]  # fmt: skip


def is_set(value: Any) -> bool:
    return value is not None


@needs_time
def test_an_archive_keeps_its_columns_when_a_newer_version_is_registered(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, caplog: Any
) -> None:
    client.create_stream("kept", "kept")
    first = client.register_schema("kept", json_schema(PLACED))
    client.append("kept", [*orders(1), {"value": b"{torn"}, {"value": None, "key": b"k"}])
    done = ops.archive_stream(client, "kept", tmp_path, TYPED)
    assert (done.rows, done.rejected) == (3, 1)
    client.register_schema("kept", json_schema(PLACED_2))
    client.append("kept", orders(2, amount=2.5))
    done = archive("kept", tmp_path, spark=spark, servers=broker.client_address)
    assert (done.rows, done.rejected) == (1, 0)
    told = "stream kept: version 2 of the schema for kept is registered; the archive keeps the columns of version 1"
    assert told in caplog.text
    wanted = [{"order": 1, "city": "Oslo"}, None, None, {"order": 2, "city": "Oslo"}]
    assert data_in(tmp_path) == wanted
    assert rejected_in(tmp_path) == [(1, "it is not JSON")]
    about = read_about(tmp_path)
    assert about is not None
    assert about.decode == "schema"
    kept = schemas_of_json(about.schema)[0].versions
    assert [(each.number, each.hash) for each in kept] == [(1, first.hash)]
    client.forget_schema("kept", "kept")
    client.append("kept", orders(3))
    assert ops.archive_stream(client, "kept", tmp_path).rejected == 0
    assert data_in(tmp_path)[-1] == {"order": 3, "city": "Oslo"}
    given = {
        "servers": broker.client_address,
        "stream": "kept",
        "archive": str(tmp_path),
        "startingOffsets": "earliest",
    }
    client.register_schema("kept", json_schema(PLACED))
    rows = spark.read.format("penstock").options(**given, decode="schema").load()
    found = [tuple(row) for row in rows.orderBy("offset").select("order", "decode_error").collect()]
    assert found == [(1, None), (None, "it is not JSON"), (None, None), (2, None), (3, None)]


@needs_time
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_two_types_are_two_structs_in_every_format(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path, table_format: str
) -> None:
    stream = f"two-{table_format}"
    client.create_stream(stream, f"frugal.{table_format}.>")
    for name in ("placed", "gone"):
        subject = f"frugal.{table_format}.Orders.{name}"
        client.register_schema(
            stream, frugal(f"Orders.{name}"), subject=subject, message=name, framing=ValueFraming.FRUGAL
        )
    order = b"\x0a\x00\x01" + (7).to_bytes(8, "big") + b"\x08\x00\x02\x00\x00\x00\x02\x00"
    gone = b"\x0a\x00\x01" + (8).to_bytes(8, "big") + b"\x0b\x00\x02\x00\x00\x00\x04sold\x00"
    headers = {"Frugal-Operation": "gone", "Content-Type": "application/vnd.apache.thrift.binary"}
    client.append(
        stream,
        [
            {"subject": f"frugal.{table_format}.Orders.placed", "value": framed("placed", order)},
            {"subject": f"frugal.{table_format}.Orders.gone", "value": gone, "headers": headers},
        ],
    )
    done = ops.archive_stream(client, stream, tmp_path, TYPED._replace(format=table_format))
    assert (done.rows, done.rejected) == (2, 0)
    files = [one for one in tmp_path.rglob("*.parquet") if "_rejects" not in one.parts]
    rows = pl.concat([pl.read_parquet(one, hive_partitioning=False) for one in files]).sort("offset")
    first, second = rows["data"].to_list()
    assert (first["Order"]["id"], first["Order"]["state"], second["Gone"]) == (7, "GONE", {"id": 8, "why": "sold"})


@needs_time
def test_avro_of_the_registry_is_decoded_by_the_version_that_wrote_it(client: penstock.Client, tmp_path: Path) -> None:
    client.create_stream("avro-versions", "avro-versions")
    first = client.register_schema("avro-versions", Schema(SchemaKind.AVRO, AVRO))
    ops.archive_stream(client, "avro-versions", tmp_path, TYPED)
    with_default = {"name": "note", "type": "string", "default": ""}
    fields = [with_default, *ORDER["fields"]]
    second = client.register_schema("avro-versions", Schema(SchemaKind.AVRO, json.dumps({**ORDER, "fields": fields})))
    assert (first.number, second.number) == (1, 2)
    rows = [
        {"value": datum("Oslo", 1.0), "headers": {"Penstock-Schema": first.hash}},
        {"value": b"\x04hi" + datum("Bergen", 2.0), "headers": {"Penstock-Schema": second.hash}},
        {"value": datum("Moss", 3.0), "headers": {"Penstock-Schema": "0" * 64}},
    ]
    client.append("avro-versions", rows)
    done = ops.archive_stream(client, "avro-versions", tmp_path)
    assert (done.rows, done.rejected) == (3, 1)
    assert [row and (row["city"], row["amount"]) for row in data_in(tmp_path)] == [("Oslo", 1.0), ("Bergen", 2.0), None]
    assert rejected_in(tmp_path) == [(2, "the subject's schemas have no version of the header's hash")]


@needs_time
def test_streams_of_other_types_and_wrong_arguments_are_refused(client: penstock.Client, tmp_path: Path) -> None:
    for name in ("other-a", "other-b"):
        client.create_stream(name, name)
    with pytest.raises(ConfigError, match="stream other-a has no schemas"):
        ops.archive_stream(client, "other-a", tmp_path / "none", TYPED)
    client.register_schema("other-a", json_schema(PLACED))
    client.register_schema("other-b", Schema(SchemaKind.FRUGAL, CONTRACT, (), "Gone"))
    with pytest.raises(ConfigError, match="other-a and other-b have different typed columns; read each by itself"):
        ops.archive_stream(client, "other-*", tmp_path / "both", TYPED)
    with pytest.raises(ConfigError, match="with decode schema it is the registered ones; leave it out"):
        ops.archive_stream(client, "other-a", tmp_path / "given", TYPED._replace(schema="{}"))
    assert list(tmp_path.iterdir()) == []
