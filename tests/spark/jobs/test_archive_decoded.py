"""`archive(decode=…)`: typed columns beside what was published, and a table of what could not be decoded."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import archived_types, avro_decoder, avro_type, parsed_avro, rejects_schema
from penstock.lake.archiving.plan import decoded, plan_of
from penstock.lake.progress import BatchDone
from penstock.lake.tables.formats import open_table
from penstock.lake.tables.table import Commit, LakeFile, Table
from penstock.spark import archive
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.jobs.test_archive import Killed, job_of, rows_of

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
AVRO = json.dumps(ORDER)


def datum(city: str, amount: float | None) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, ORDER, {"city": city, "amount": amount, "at": 0, "tags": ["a"]})
    return target.getvalue()


def found_in(folder: Path) -> list[dict[str, Any]]:
    columns = ["offset", "value", "data"]
    return pl.scan_parquet(f"{folder}/date=*/*/*.parquet").select(columns).sort("offset").collect().to_dicts()


def rejected_in(folder: Path) -> list[tuple[int, str]]:
    found = pl.scan_parquet(f"{folder}/_rejects/date=*/*/*.parquet").select("offset", "reason")
    return found.sort("offset").collect().rows()


@needs_time
def test_json_becomes_columns_and_what_is_none_is_rejected(
    client: penstock.Client,
    spark: SparkSession,
    broker: BrokerProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.create_stream("documents", "documents")
    texts = [b'{"city": "Oslo", "amount": 1.5}', b"{torn", None, b'{"city": "Bergen"}', b"\xff\xfe"]
    batches: list[BatchDone] = []
    options = {"spark": spark, "servers": broker.client_address, "report": batches.append}
    client.append("documents", [{"value": texts[0]}])
    first = archive("documents", tmp_path, decode="json", **options)
    assert (first.rows, first.rejected, [one.rejected for one in batches]) == (1, 0, [0])
    rejects = spark.read.parquet(str(tmp_path / "_rejects"))
    assert (rejects.count(), sorted(rejects.columns)) == (0, sorted([*rejects_schema().names, "date"]))
    assert "could not be decoded" not in caplog.text
    client.append("documents", [{"value": one} for one in texts[1:]])
    second = archive("documents", tmp_path, **options)
    assert (second.rows, second.rejected, [one.rejected for one in batches]) == (4, 2, [0, 2])
    told = "2 values of a batch of documents could not be decoded; their column data is null. "
    told += "The values and the reasons are in"
    assert f"{told} {tmp_path / '_rejects'}" in caplog.text
    client.append("documents", [{"value": b'{"city": 7, "amount": "much", "new": 1}'}])
    assert archive("documents", tmp_path, **options).rejected == 1
    found = found_in(tmp_path)
    assert [one["value"] for one in found][:5] == texts
    none = {"amount": None, "city": None}
    assert [one["data"] or none for one in found] == [
        {"amount": 1.5, "city": "Oslo"},
        none,
        none,
        {"amount": None, "city": "Bergen"},
        none,
        none,
    ]
    assert rejected_in(tmp_path) == [(at, "it is not JSON of the archive's schema") for at in (1, 4, 5)]
    with pytest.raises(ConfigError, match=r"decode: the first run of .* has fixed another one"):
        archive("documents", tmp_path, decode="avro", schema=AVRO, **options)


@needs_time
def test_times_in_json_are_the_same_in_sessions_of_any_time_zone(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """One without a zone is of UTC."""
    client.create_stream("times-in-json", "times-in-json")
    texts = [b'{"at": "2026-11-20 10:00:00"}', b'{"at": "2026-11-20T10:00:00+02:00", "all": ["2026-11-20T10:00:00Z"]}']
    zones = ("UTC", "Europe/Berlin")
    for zone in zones:
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        client.append("times-in-json", [{"value": one} for one in texts])
        schema = "at TIMESTAMP, all ARRAY<TIMESTAMP>"
        archive("times-in-json", tmp_path, decode="json", schema=schema, spark=session, servers=broker.client_address)
    ten, eight = (datetime(2026, 11, 20, hour, tzinfo=UTC) for hour in (10, 8))
    assert [one["data"] for one in found_in(tmp_path)] == [
        {"at": ten, "all": None},
        {"at": eight, "all": [ten]},
    ] * len(zones)


class RejectsThenDies:
    """The table of rows of a job that is killed when what it rejects is committed."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def ends(self, keys: Iterable[Any]) -> Any:
        return self._table.ends(keys)

    def finish(self) -> None:
        self._table.finish()

    def drop_staged(self) -> None:
        self._table.drop_staged()

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        return self._table.files(topics)

    def commit(self, commit: Commit) -> None:
        raise Killed


@needs_time
def test_what_was_rejected_is_there_once_though_a_job_was_killed(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("datums", "datums", partitions=2)
    for partition in range(2):
        client.append("datums", [{"value": datum("Oslo", 1.0)}, {"value": b"\x01"}], partition=partition)
    plan = plan_of(
        "datums",
        tmp_path,
        format="parquet",
        name="",
        max_batch=100,
        min_batch=1,
        max_delay_s=1,
        trigger_s=1,
        file_bytes=2**20,
        fail_on_data_loss=True,
    )
    plan = decoded(plan, "avro", AVRO, partial(archived_types, client, ["datums"], 10.0))
    rejects = open_table(tmp_path / "_rejects", "parquet", rejects_schema())
    with pytest.raises(Killed):
        job_of(spark, broker, plan, RejectsThenDies(plan.open_table()), rejects).run(once=True)
    for partition in range(2):
        client.append("datums", [{"value": b"\x01"}], partition=partition)
    archive("datums", tmp_path, spark=spark, servers=broker.client_address)
    assert rows_of(tmp_path) == [(partition, offset) for partition in range(2) for offset in range(3)]
    assert [at for at, _ in rejected_in(tmp_path)] == [1, 1, 2, 2]
    assert [one["data"]["city"] for one in found_in(tmp_path)[:2]] == ["Oslo", "Oslo"]


def test_avro_is_read_bare_and_as_single_objects() -> None:
    decode = avro_decoder(AVRO)
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(ORDER), "CRC-64-AVRO"))[::-1]
    values = [datum("Oslo", None), b"\xc3\x01" + mark + datum("Bergen", 2.0), None, b"", datum("x", 1.0) + b"y"]
    data, reasons = decode(pa.array(values, pa.binary()))
    assert [one and one["city"] for one in data.to_pylist()] == ["Oslo", "Bergen", None, None, None]
    assert [one is None for one in reasons.to_pylist()] == [True, True, True, False, False]
    assert reasons.to_pylist()[4] == "bytes follow the value"
    data, reasons = decode(pa.array([b"\xc3\x01" + mark + datum("Bergen", 2.0)] * 1_000, pa.binary()))
    assert (data[999]["city"].as_py(), reasons.null_count) == ("Bergen", 1_000)


def test_an_avro_schema_has_column_types_or_is_refused() -> None:
    assert avro_type(parsed_avro(AVRO)) == pa.struct(
        [
            ("city", pa.string()),
            ("amount", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    )
    with pytest.raises(ConfigError, match="has no column type"):
        avro_type(["string", "long"])
    for text in ("{", '"string"', '{"type": "recor", "name": "x"}', '{"type": "record", "name": "x"}', '{"not": "it"}'):
        with pytest.raises(ConfigError, match="schema: it is"):
            parsed_avro(text)
