"""Fingerprints of Avro schemas; fastavro is the oracle."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.avro_fingerprint import SINGLE_OBJECT, single_object_mark
from penstock.schemas.plans import SchemaError
from tests.unit.schemas.test_avro import schemas


def expected(schema: Any) -> bytes:
    form = fastavro.schema.to_parsing_canonical_form(schema)
    return SINGLE_OBJECT + bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO"))


@given(st.data())
def test_marks_are_those_of_fastavro(data: st.DataObject) -> None:
    schema, _ = data.draw(schemas([], 3))
    assert single_object_mark(json.dumps(schema)) == expected(schema)


def test_the_form_has_full_names_and_only_what_matters() -> None:
    leaf = {"type": "enum", "name": "Leaf", "symbols": ["A", "B"], "default": "A", "doc": "é"}
    schema = {
        "type": "record",
        "name": "Tree",
        "namespace": "a.b",
        "aliases": ["Old"],
        "fields": [
            {"name": "leaf", "type": leaf, "default": "A"},
            {"name": "other", "type": ["null", {"type": "fixed", "name": "c.F", "size": 3}], "order": "ignore"},
            {"name": "again", "type": "Leaf"},
            {"name": "far", "type": "c.F"},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "next", "type": ["null", "Tree"]},
            {"name": "all", "type": {"type": "map", "values": {"type": "array", "items": "a.b.Tree"}}},
        ],
    }
    assert single_object_mark(json.dumps(schema)) == expected(schema)
    # Of the specification's own tables, as other libraries have them.
    assert single_object_mark('"int"').hex() == "c301" + "8f5c393f1ad57572"
    assert single_object_mark('{"type": "int", "doc": "x"}') == single_object_mark('"int"')


@pytest.mark.parametrize("text", ["", "{}", "7", '{"type":"record","name":"R"}', "[" * 100_000])
def test_schemas_that_are_none(text: str) -> None:
    with pytest.raises(SchemaError):
        single_object_mark(text)
