"""Schemas as JSON: what was written is read, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import StreamId, TimestampUs
from penstock.schemas.as_json import schemas_of_json, schemas_to_json
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from penstock.schemas.thrift import ThriftProtocol

CONTRACT = Schema(SchemaKind.FRUGAL, 'include "b.frugal"\nstruct O { 1: i32 x }', (("b.frugal", "struct B {}"),), "O")


def schemas() -> StreamSchemas:
    typed = Typed("o.*.placed", "placed", ValueFraming.FRUGAL, ThriftProtocol.COMPACT)
    versions = (
        SchemaVersion(typed, 1, CONTRACT, CONTRACT.hash(), TimestampUs(5), "ann"),
        SchemaVersion(typed, 2, CONTRACT, CONTRACT.hash(), TimestampUs(6), is_forced=True),
    )
    return StreamSchemas("o", StreamId(7), versions)


def test_schemas_are_what_they_were_and_a_text_is_there_once() -> None:
    both = (schemas(), StreamSchemas("empty", StreamId(8), ()))
    text = schemas_to_json(both)
    assert schemas_of_json(text) == both
    assert len(json.loads(text)["texts"]) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("version",), 2),
        (("texts",), []),
        (("texts", 0, "kind"), "xml"),
        (("texts", 0, "text"), "struct O { 1: i64 x }"),
        (("texts", 0, "closure"), [["b.frugal"]]),
        (("streams", 0, "id"), "7"),
        (("streams", 0, "versions", 0, "text"), -1),
        (("streams", 0, "versions", 0, "number"), True),
        (("streams", 0, "versions", 0, "framing"), "none"),
        (("streams", 0, "versions", 0, "hash"), "0" * 64),
        (("streams", 0, "versions", 0, "subject"), None),
    ],
)
def test_other_json_is_refused(place: tuple[Any, ...], value: Any) -> None:
    found = json.loads(schemas_to_json([schemas()]))
    at = found
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    with pytest.raises(SchemaError, match="it is no JSON of schemas"):
        schemas_of_json(json.dumps(found))


@given(st.text(max_size=50) | st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(json.dumps))
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(SchemaError):
        schemas_of_json(text)
