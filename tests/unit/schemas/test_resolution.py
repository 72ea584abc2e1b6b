"""Columns of a version of an Avro schema as those of another; fastavro's schema resolution is the oracle."""

from __future__ import annotations

import copy
import datetime
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.schemas.avro import avro_decoder, avro_plan
from penstock.schemas.plans import EnumStyle, SchemaError
from penstock.schemas.resolution import Resolution
from tests.unit.schemas.test_avro import schemas, written

WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}
UNION = ["null", "int", "string", "bytes", "boolean"]
ADDED: list[tuple[Any, Any]] = [
    ("int", 7),
    ("long", -(2**40)),
    ("double", 1),
    ("float", 1.5),
    ("boolean", True),
    ("null", None),
    ("string", "\u00e9"),
    ("bytes", "\u00ff\u0000"),
    (["null", "int"], None),
    (["int", "null"], -5),
    (["string", "null", "int"], "x"),
    (["null", "string", "int"], None),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "array", "items": "int"}, []),
    ({"type": "map", "values": ["null", "string"]}, {"a": "b", "c": None}),
    ({"type": "enum", "name": "Added", "symbols": ["X", "Y"]}, "Y"),
    ({"type": "fixed", "name": "Added", "size": 2}, "\u0001\u00fe"),
    (
        {
            "type": "record",
            "name": "Added",
            "fields": [
                {"name": "x", "type": "int", "default": 3},
                {"name": "y", "type": "string"},
                {"name": "z", "type": ["null", "bytes"], "default": None},
            ],
        },
        {"y": "q"},
    ),
    ({"type": "record", "name": "Added", "fields": []}, {}),
]


@st.composite
def evolved(draw: st.DrawFn, schema: Any, *, in_union: bool = False) -> Any:
    """Draw a reader's schema that takes all values of a writer's."""
    if not in_union and not isinstance(schema, list) and schema != "null" and draw(st.integers(0, 3)) == 0:
        inner = draw(evolved(schema, in_union=True))
        return draw(st.sampled_from([["null", inner], [inner, "null"]]))
    if isinstance(schema, str):
        if schema in UNION and not in_union and draw(st.integers(0, 3)) == 0:
            return list(draw(st.permutations(UNION)))
        return draw(st.sampled_from([schema, schema, *WIDER.get(schema, [])]))
    if isinstance(schema, list):
        if len(schema) > 2:
            return [*draw(st.permutations(schema)), *draw(st.sampled_from([[], ["double"]]))]
        (inner,) = [each for each in schema if each != "null"]
        return list(draw(st.permutations(["null", draw(evolved(inner, in_union=True))])))
    made = copy.deepcopy(schema)
    if schema["type"] == "array":
        made["items"] = draw(evolved(schema["items"]))
    elif schema["type"] == "map":
        made["values"] = draw(evolved(schema["values"]))
    elif schema["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from([*schema["symbols"], "D"]), min_size=1, unique=True))
        made |= {"symbols": symbols, "default": draw(st.sampled_from(symbols))}
    elif schema["type"] == "record":
        made["fields"] = draw(_fields(schema))
    return made


@st.composite
def _fields(draw: st.DrawFn, schema: Any) -> list[Any]:
    fields = []
    for field in schema["fields"]:
        how = draw(st.sampled_from(["kept", "kept", "renamed", "dropped"]))
        if how != "dropped":
            one: dict[str, Any] = {"name": field["name"], "type": draw(evolved(field["type"]))}
            if how == "renamed":
                one |= {"name": f"{field['name']}_new", "aliases": ["other", field["name"]]}
            fields.append(one)
    for place in range(draw(st.integers(0, 2))):
        kind, default = copy.deepcopy(draw(st.sampled_from(ADDED)))
        if isinstance(kind, dict) and "name" in kind:
            kind["name"] = f"{kind['name']}_{schema['name']}_{place}"
        fields.append({"name": f"added{place}", "type": kind, "default": default})
    return list(draw(st.permutations(fields)))


def column(schema: Any, value: Any) -> Any:
    """Return what fastavro's value, or a default as JSON, is in a column."""
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        if value is None or len(branches) == 1:
            return None if value is None else column(branches[0], value)
        kinds: dict[type, str] = {bool: "boolean", int: "int", str: "string", bytes: "bytes", float: "double"}
        return {**dict.fromkeys(branches), kinds[type(value)]: value}
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {
            field["name"]: column(field["type"], value.get(field["name"], field.get("default")))
            for field in schema["fields"]
        }
    if kind == "array":
        return [column(schema["items"], each) for each in value]
    if kind == "map":
        return [(key, column(schema["values"], each)) for key, each in value.items()]
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("latin-1")
    if kind == "float":
        return struct.unpack("f", struct.pack("f", value))[0]
    return value


def oracle(writer: Any, reader: Any, encoded: bytes) -> Any:
    parsed = [fastavro.parse_schema(json.loads(json.dumps(each))) for each in (writer, reader)]
    return column(reader, fastavro.schemaless_reader(io.BytesIO(encoded), *parsed))


def resolved(writer: Any, reader: Any, encoded: list[bytes], style: EnumStyle = EnumStyle.STRING) -> Any:
    """Return the rows in the reader's columns, and which of them are marked."""
    plans = [avro_plan(json.dumps(each), style) for each in (writer, reader)]
    found = avro_decoder(plans[0]).decode(pa.array([*encoded, None], pa.binary()))
    assert found.refused.count == 0
    columns, lost = Resolution(*plans).columns(found.columns)
    columns.validate(full=True)
    assert columns.type == pa.struct(list(plans[1].schema))
    assert all(each is None for each in (columns[-1].as_py() or {}).values())
    rows = columns.to_pylist()[:-1]
    return [row["value"] if row and plans[1].is_value else row for row in rows], lost


@given(st.data())
def test_columns_are_what_fastavro_makes_of_the_readers_schema(data: st.DataObject) -> None:
    writer, values = data.draw(schemas([], 3))
    reader = data.draw(evolved(writer))
    encoded = written(writer, *(value for value, _ in data.draw(st.lists(values, min_size=1, max_size=3))))
    rows, lost = resolved(writer, reader, encoded, data.draw(st.sampled_from([EnumStyle.STRING, EnumStyle.DICTIONARY])))
    assert lost is None
    try:
        expected = [oracle(writer, reader, each) for each in encoded]
    except UnicodeDecodeError:  # it took bytes for a string that stands before them in a union
        return
    assert blurred(rows) == blurred(expected)


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


@pytest.mark.parametrize("style", EnumStyle)
def test_symbols_are_found_by_name_and_others_are_the_default(style: EnumStyle) -> None:
    def enum(*symbols: str, **more: Any) -> dict[str, Any]:
        return {"type": "enum", "name": "E", "symbols": list(symbols), **more}

    old, new = enum("A", "B", "C"), enum("C", "X", "A", default="X")
    rows, lost = resolved(old, new, [b"\0", b"\2", b"\4"], style)
    assert rows == ([2, 1, 0] if style is EnumStyle.NUMBER else ["A", "X", "C"])
    assert lost is None
    rows, lost = resolved(old, enum("C", "A"), [b"\0", b"\2", b"\4"], style)
    assert rows == ([1, None, 0] if style is EnumStyle.NUMBER else ["A", None, "C"])
    assert lost.to_pylist() == [False, True, False, False]


def test_defaults_have_the_logical_type_of_their_field() -> None:
    new = record(
        field("n", "int"),
        field("day", {"type": "int", "logicalType": "date"}, default=1),
        field("price", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, default="\u0001\u0000"),
        field("none", "string"),
        field("next", ["null", "R"], default=None),
        field("all", {"type": "array", "items": "R"}, default=[{"n": 1}]),  # a record inside itself: not made
    )
    rows, lost = resolved(record(field("n", "int")), new, [b"\2"])
    day = datetime.date(1970, 1, 2)
    assert rows == [{"n": 1, "day": day, "price": Decimal("2.56"), "none": None, "next": None, "all": None}]
    assert lost is None


def test_a_text_of_bytes_that_are_none_is_lost_and_so_is_what_no_branch_takes() -> None:
    rows, lost = resolved("bytes", "string", [b"\2a", b"\2\xff"])
    assert rows == ["a", None]
    assert lost.to_pylist() == [False, True, False]
    rows, lost = resolved("string", ["int", "boolean", "null"], [b"\2a"])
    assert rows == [None]
    assert lost.to_pylist() == [True, False]
    rows, lost = resolved(["string", "int"], ["bytes", "string", "null", "long"], [b"\0\2a", b"\2\2"])
    assert rows == [{"bytes": None, "string": "a", "long": None}, {"bytes": None, "string": None, "long": 1}]
    assert lost is None


def test_unions_of_null_alone() -> None:
    for old, new, encoded, expected in (
        (["null"], "null", b"\0", None),
        ("null", ["null"], b"", None),
        (["null"], ["int", "null", "string"], b"\0", None),
        (["null"], ["null", "int"], b"\0", None),
    ):
        rows, lost = resolved(old, new, [encoded])
        assert (rows, lost) == ([expected], None)
    rows, lost = resolved(["int", "null"], ["null"], [b"\0\2", b"\2"])
    assert rows == [None, None]
    assert lost.to_pylist() == [True, False, False]
    wider = record(field("n", "int"), field("none", ["null"], default=None))
    assert resolved(record(field("n", "int")), wider, [b"\2"]) == ([{"n": 1, "none": None}], None)


def test_defaults_that_are_too_large_together_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = record(field("n", "int")), record(field("n", "int"), field("t", "string", default="x" * 900))
    assert resolved(old, new, [b"\2"] * 10)[1] is None
    monkeypatch.setattr(limits, "SCHEMA_DEFAULTS_BYTES_MAX", 9_000)
    rows, lost = resolved(old, new, [b"\2"] * 10)
    assert rows == [{"n": 1, "t": None}] * 10
    assert lost.to_pylist() == [True] * 10 + [False]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "1"),
        ("int", 2**31),
        ("int", True),
        ("string", None),
        ("bytes", "\u0100"),
        (["null", "int"], "x"),
        ({"type": "fixed", "name": "F", "size": 2}, "x"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, [1, None]),
        (record(field("a", "int"), name="I"), {}),
        ("string", "x" * 2_000),
    ],
)
def test_defaults_that_do_not_fit_are_refused(kind: Any, default: Any) -> None:
    with pytest.raises(SchemaError, match=r"^f: .*default"):
        avro_plan(json.dumps(record(field("f", kind, default=default))))


def test_defaults_of_a_schema_take_a_bounded_number_of_steps() -> None:
    """One of 82 KB took 15 seconds, in which no other schema was registered."""
    enums = [{"type": "enum", "name": f"E{place}", "symbols": ["A"]} for place in range(1000)]
    kind = {"type": "array", "items": [*enums, "int"]}
    with pytest.raises(SchemaError, match=r"^f: the defaults .* more than 200,000 steps"):
        avro_plan(json.dumps(record(field("f", kind, default=[0] * 300))))
    avro_plan(json.dumps(record(field("f", kind, default=[0] * 100))))


def test_a_default_that_does_not_fit_is_named_in_a_short_error() -> None:
    with pytest.raises(SchemaError) as told:
        avro_plan(json.dumps(record(field("f", "int", default=list(range(10_000))))))
    assert len(str(told.value)) < 500


def blurred(value: Any) -> Any:
    """Return a value in which a union's string and bytes are one: fastavro takes the first, Java its type's."""
    if isinstance(value, dict):
        made = {name: blurred(each) for name, each in value.items()}
        if "string" in made and "bytes" in made:
            text = made.pop("string")
            made["bytes"] = made["bytes"] if text is None else text.encode()
        return made
    return [blurred(each) for each in value] if isinstance(value, list | tuple) else value
