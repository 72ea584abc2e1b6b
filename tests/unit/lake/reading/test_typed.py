"""Typed columns of streams: which versions they are of, names, rows of other versions."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import ConfigError
from penstock.base.ids import StreamId, TimestampUs
from penstock.lake.reading.typed import Typed, TypedColumns, newer_than, typed_by
from penstock.schemas.kinds import Schema, SchemaKind, text_of_arrow
from penstock.schemas.registry import SchemaVersion, StreamSchemas
from penstock.schemas.registry import Typed as Pattern
from penstock.schemas.report import DecodeReport


def json_schema(**properties: str) -> Schema:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return Schema(SchemaKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": kinds}))


ONE = json_schema(a="integer")
TWO = json_schema(a="integer", b="string")


def schemas(stream: str, *versions: Schema, subject: str = "s") -> StreamSchemas:
    found = [
        SchemaVersion(Pattern(subject), number, schema, schema.hash(), TimestampUs(0))
        for number, schema in enumerate(versions, 1)
    ]
    return StreamSchemas(stream, StreamId(1), tuple(found))


def rows(*values: bytes | None, hashes: tuple[str | None, ...] = ()) -> pa.RecordBatch:
    blocks = [one and f"NATS/1.0\r\nPenstock-Schema: {one}\r\n\r\n".encode() for one in hashes or [None] * len(values)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(values)), pa.int64()),
            pa.array(["s"] * len(values)),
            pa.array(values, pa.binary()),
            pa.array(blocks, pa.binary()),
        ],
        ["offset", "subject", "value", "headers"],
    )


def decoded(typed: Typed, batch: pa.RecordBatch, stream: str = "one") -> tuple[list[dict[str, Any]], DecodeReport]:
    report = DecodeReport()
    return TypedColumns(typed).decode(stream, batch, report).to_pylist(), report


def test_pinned_columns_stay_and_rows_of_any_version_get_them() -> None:
    typed = typed_by([schemas("one", ONE, TWO)], pins={"one": {"s": 1}})
    value = b'{"a": 1, "b": "x"}'
    found, report = decoded(typed, rows(value, value, value, hashes=(None, TWO.hash(), "0" * 64)))
    assert found == [{"a": 1, "decode_error": None}] * 3
    assert report.refused == {}
    assert newer_than(typed, [schemas("one", ONE, TWO)]) == {"one": {"s": 2}}
    assert newer_than(typed_by([schemas("one", ONE, TWO)]), [schemas("one", ONE, TWO)]) == {}


def test_values_of_avro_that_an_unknown_version_wrote_are_refused() -> None:
    avro = Schema(
        SchemaKind.AVRO, json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]})
    )
    found, report = decoded(typed_by([schemas("one", avro)]), rows(b"\x02", b"\x02", hashes=(avro.hash(), "0" * 64)))
    assert [row["a"] for row in found] == [1, None]
    assert report.refused_rows == 1


def test_a_stream_that_came_later_has_nulls_and_a_reason_and_tombstones_have_none() -> None:
    found, report = decoded(typed_by([schemas("one", ONE)]), rows(b"x", None, b"y"), "other")
    assert [row["decode_error"] for row in found] == ["no schema for this subject", None, "no schema for this subject"]
    assert report.refused_rows == 2


def test_no_name_is_that_of_another_column_in_any_case() -> None:
    fields = [
        ("Offset", pa.int8()),
        ("data_offset", pa.int8()),
        ("topic", pa.int8()),
        ("a", pa.int8()),
        ("A", pa.int8()),
    ]
    schema = Schema(SchemaKind.ARROW, text_of_arrow(pa.schema(fields)))
    names = TypedColumns(typed_by([schemas("one", schema)])).schema.names
    assert names == ["data_Offset", "data_data_offset", "data_topic", "a", "data_A", "decode_error"]


def test_streams_are_read_together_if_their_columns_are_the_same() -> None:
    both = typed_by([schemas("one", ONE), schemas("other", ONE)])
    assert decoded(both, rows(b'{"a": 1}'), "other")[0] == [{"a": 1, "decode_error": None}]
    for wrong, mistake in (
        ([schemas("one", ONE), schemas("other", TWO)], "one and other have different typed columns"),
        ([schemas("one"), schemas("other")], "stream one has no schemas; .*\n.*stream other has no schemas"),
    ):
        with pytest.raises(ConfigError) as error:
            typed_by(wrong)
        assert all(part.strip(".*") in str(error.value) for part in mistake.split("\n"))
    with pytest.raises(ConfigError, match="stream one has no version 3 for s"):
        typed_by([schemas("one", ONE)], pins={"one": {"s": 3}})
