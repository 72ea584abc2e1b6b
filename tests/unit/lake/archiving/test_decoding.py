"""Avro as columns: every type that Avro has, values that do not fit, and schemas that no table can hold."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import avro_decoder, avro_type, parsed_avro, rows_schema
from penstock.lake.archiving.plan import Plan, decoded
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Selection
from penstock.lake.reading.typed import Typed
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.table import Commit

fastavro = pytest.importorskip("fastavro")


def schema_of(field: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": field}]})


def encoded(field: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema_of(field))), {"a": value})
    return out.getvalue()


def _no_types(first: str) -> tuple[str, Typed]:
    raise AssertionError(f"no registry is asked for an archive of Avro: {first}")


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


ID = uuid.UUID("6f0c91ab-0000-4000-8000-000000000001")
TIME = datetime.time(1, 2, 3, 4000)
LOCAL = datetime.datetime(2020, 1, 2, 3, 4, 5, 6000)  # noqa: DTZ001 (it has no zone)
UTC = LOCAL.replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        (logical("string", "uuid"), ID, str(ID)),
        (logical("int", "time-millis"), TIME, TIME),
        (logical("long", "time-micros"), TIME, TIME),
        (logical("long", "local-timestamp-millis"), LOCAL, LOCAL),
        (logical("long", "local-timestamp-micros"), LOCAL, LOCAL),
        (logical("long", "timestamp-millis"), UTC, UTC),
        (logical("long", "timestamp-micros"), UTC, UTC),
        (logical("long", "timestamp-nanos"), 5, 5),
        (logical("string", "date"), "no date", "no date"),
        (logical("bytes", "decimal", precision=5, scale=2), decimal.Decimal("1.23"), decimal.Decimal("1.23")),
        (["null", logical("string", "uuid")], ID, str(ID)),
        ({"type": "array", "items": logical("string", "uuid")}, [ID], [str(ID)]),
    ],
)
def test_logical_types_are_decoded(field: Any, value: Any, found: Any) -> None:
    data, reasons = avro_decoder(schema_of(field))(pa.array([encoded(field, value)]))
    assert reasons.to_pylist() == [None]
    assert data.to_pylist() == [{"a": found}]


@pytest.mark.parametrize(
    ("field", "written_as", "good", "bad"),
    [
        ("int", "long", 1, 2**40),
        (logical("bytes", "decimal", precision=5, scale=2), "bytes", b"\x01", b"\x7f" * 8),
    ],
)
def test_values_that_do_not_fit_are_rejected_and_the_others_are_not(
    field: Any, written_as: str, good: Any, bad: Any
) -> None:
    values = [encoded(written_as, good), encoded(written_as, bad), None, encoded(written_as, good)]
    data, reasons = avro_decoder(schema_of(field))(pa.array(values, pa.binary()))
    assert data.is_valid().to_pylist() == [True, False, False, True]
    assert reasons.is_valid().to_pylist() == [False, True, False, False]
    assert reasons[1].as_py() == "a number is larger than its type"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (logical("bytes", "decimal", precision=40, scale=2), "precision of a decimal is 40; give 1 to 38"),
        (logical("bytes", "decimal"), "precision of a decimal is None"),
        ({"type": "record", "name": "none", "fields": []}, "the record 'none' has no fields"),
        (["int", "string"], "has no column type; give one type, or one and null"),
        (["int"], "has no column type; give one type, or one and null"),
        (
            {"type": "fixed", "name": "f", "size": 17, "logicalType": "decimal", "precision": 5},
            "a decimal of 17 bytes; give up to 16",
        ),
    ],
)
def test_a_schema_without_columns_is_refused(field: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        avro_type(parsed_avro(schema_of(field)))


@pytest.mark.parametrize(
    ("table_format", "field"),
    [("delta", {"type": "array", "items": logical("int", "time-millis")}), ("iceberg", "null")],
)
def test_a_schema_that_the_format_lacks_is_refused_before_anything_is_made(
    tmp_path: Path, table_format: str, field: Any
) -> None:
    root = tmp_path / "lake"
    with pytest.raises(ConfigError, match=f"{table_format} has no column type for"):
        decoded(Plan(root, table_format, Selection(("orders",)), "lake"), "avro", schema_of(field), _no_types)
    assert not root.exists()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_format_has_the_columns_that_are_not_refused(tmp_path: Path, table_format: str) -> None:
    fields: list[Any] = ["boolean", "int", "long", "float", "double", "bytes", "string"]
    fields += [logical("string", "uuid"), logical("int", "date"), logical("bytes", "decimal", precision=38, scale=3)]
    fields += [logical("long", "timestamp-micros"), logical("long", "local-timestamp-micros")]
    fields += [{"type": "enum", "name": "e", "symbols": ["A"]}, {"type": "fixed", "name": "f", "size": 3}]
    fields += [{"type": "map", "values": "int"}, {"type": "array", "items": "int"}]
    fields += ["null"] if table_format != "iceberg" else []
    fields += [logical("int", "time-millis")] if table_format != "delta" else []
    columns = [{"name": f"f{number}", "type": field} for number, field in enumerate(fields)]
    schema = json.dumps({"type": "record", "name": "r", "fields": columns})
    plan = decoded(Plan(tmp_path, table_format, Selection(("orders",)), "lake"), "avro", schema, _no_types)
    table = open_table(tmp_path, table_format, rows_schema(plan.data))
    key = Key("orders", 0)
    table.commit(Commit((), {key: Position(0)}, {key: Position(1)}))
    assert table.ends([key]) == {key: Position(1)}
