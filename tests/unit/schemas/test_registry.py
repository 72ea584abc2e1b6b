"""Schemas of a stream: which subjects have which type, and which versions are refused."""

from __future__ import annotations

import pytest

from penstock.base.ids import StreamId, TimestampUs
from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed, operations, overlapping


def version(subject: str, number: int, text: str = "struct P { 1: i32 x }") -> SchemaVersion:
    schema = Schema(SchemaKind.FRUGAL, text, type_name="P")
    return SchemaVersion(Typed(subject), number, schema, schema.hash(), TimestampUs(0))


def test_the_newest_version_by_pattern() -> None:
    kept = StreamSchemas("s", StreamId(1), (version("a.*", 1), version("a.*", 2), version("b.>", 1)))
    assert {subject: each.number for subject, each in kept.newest().items()} == {"a.*": 2, "b.>": 1}
    assert [each.typed.subject for each in kept.of_subjects(["b.c"]).versions] == ["b.>"]
    assert kept.of_subjects(["*.c"]) == kept.of_subjects(None) == kept


def test_patterns_do_not_overlap() -> None:
    assert overlapping("a.*", ["a.*", "b.>"]) is None
    assert overlapping("*.c", ["a.*", "b.>"]) == "a.*"


def test_operations_of_scopes() -> None:
    text = "struct P { } scope Moves prefix a.{region}.b { Moved: P, Gone: i64 } scope Bare { Made: P }"
    program = link("x.frugal", texts({"x.frugal": text}))
    assert operations(program) == [
        (Typed("frugal.a.*.b.Moves.Moved", "Moved", ValueFraming.FRUGAL), "Moves.Moved"),
        (Typed("frugal.a.*.b.Moves.Gone", "Gone", ValueFraming.FRUGAL), "Moves.Gone"),
        (Typed("frugal.Bare.Made", "Made", ValueFraming.FRUGAL), "Bare.Made"),
    ]
    with pytest.raises(SchemaError, match="no scopes"):
        operations(link("x.frugal", texts({"x.frugal": "struct P { }"})))
