"""Kinds of schemas: identity, limits, plans; which versions are compatible."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from typing import Any

import fastavro
import fastavro.utils
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock.idl.compatibility import Mode
from penstock.idl.model import Field, Reference
from penstock.schemas.compatibility import COMPARISONS_MAX, arrow_reads, avro_reads
from penstock.schemas.json_values import JSON_TEXT
from penstock.schemas.kinds import (
    CLOSURE_FILES_MAX,
    TEXT_BYTES_MAX,
    Schema,
    SchemaKind,
    arrow_of_text,
    compatible,
    text_of_arrow,
)
from penstock.schemas.plans import SchemaError
from penstock.schemas.thrift import ThriftProtocol
from tests import protobuf_contracts
from tests.typed_values import program, scalar, struct, thrift_bytes

PROGRAM = program(struct("Point", Field(1, "x", scalar("i32"))))


def avro(*fields: Any, **more: Any) -> dict[str, Any]:
    made = [{"name": name, "type": kind, **rest} for name, kind, rest in fields]
    return {"type": "record", "name": "R", "fields": made, **more}


def arrow(*fields: Any) -> pa.Schema:
    return pa.schema([pa.field(*each) if isinstance(each, tuple) else each for each in fields])


def test_an_arrow_schema_is_text_and_back() -> None:
    schema = pa.schema([pa.field("a", pa.list_(pa.int8()), False), pa.field("j", pa.string(), metadata=JSON_TEXT)])
    kept = Schema(SchemaKind.ARROW, text_of_arrow(schema))
    assert arrow_of_text(kept.text).equals(schema, check_metadata=True)
    assert kept.arrow_schema().names == ["a", "j"]
    assert kept.decoder().decode(pa.array([b'{"a":[1]}'])).columns.to_pylist() == [{"a": [1], "j": None}]
    latin = base64.b64encode(
        base64.b64decode(text_of_arrow(arrow(("na_me", pa.int8())))).replace(b"na_me", b"na\xefme")
    )
    for text in (latin.decode(), "", "!", "AAAA", text_of_arrow(schema)[:-40]):
        with pytest.raises(SchemaError, match="no Arrow schema"):
            arrow_of_text(text)


def test_each_kind_decodes() -> None:
    text = '{"type":"object","properties":{"x":{"type":"integer"}}}'
    assert Schema(SchemaKind.JSON_SCHEMA, text).decoder().decode(pa.array([b'{"x":1}'])).columns.to_pylist() == [
        {"x": 1}
    ]
    of_avro = Schema(SchemaKind.AVRO, json.dumps(avro(("x", "int", {}))))
    assert of_avro.decoder().decode(pa.array([b"\2"])).columns.to_pylist() == [{"x": 1}]
    contract = Schema(SchemaKind.FRUGAL, "struct Point { 1: i32 x }", type_name="Point")
    value = thrift_bytes(PROGRAM, Reference("Point"), {"x": 1}, ThriftProtocol.COMPACT, None)
    decoder = contract.decoder(protocol=ThriftProtocol.COMPACT)
    assert decoder.decode(pa.array([value])).columns.to_pylist() == [{"x": 1}]
    of_protobuf = Schema(SchemaKind.PROTOBUF, descriptor_set(x=5), type_name="Point")
    assert of_protobuf.decoder().decode(pa.array([b"\x08\x01"])).columns.to_pylist() == [{"x": 1}]


def test_the_hash_is_that_of_what_is_meant() -> None:
    one = Schema(SchemaKind.AVRO, '{"type": "fixed", "name": "F", "size": 4}')
    same = Schema(SchemaKind.AVRO, '{"name":"F","size":4,"type":"fixed"}')
    others = [
        Schema(SchemaKind.AVRO, '{"name":"F","size":5,"type":"fixed"}'),
        Schema(SchemaKind.JSON_SCHEMA, one.text),
        contract("struct Point { 1: i32 x }"),
        contract("struct Point { 1: i64 x }"),
    ]
    assert one.hash() == same.hash()
    assert len(one.hash()) == 64
    assert len({each.hash() for each in (one, *others)}) == 1 + len(others)
    point = contract("struct Point { 1: i32 x }").hash()
    assert point == contract("/** x */ struct Point { 1: i32 x } struct Other { }").hash()
    assert point == contract("struct Point { 1: i32 x } scope Moves { Moved: Point }", "Moves.Moved").hash()
    with pytest.raises(SchemaError, match="no JSON"):
        Schema(SchemaKind.AVRO, "{").hash()


def test_sizes_are_bounded() -> None:
    Schema(SchemaKind.FRUGAL, "x" * TEXT_BYTES_MAX)
    for arguments in (
        {"text": "é" * TEXT_BYTES_MAX},
        {"text": "", "closure": (("a", "x" * (TEXT_BYTES_MAX + 1)),)},
        {"text": "", "closure": tuple((str(n), "x" * TEXT_BYTES_MAX) for n in range(5))},
        {"text": "", "closure": tuple((str(n), "") for n in range(CLOSURE_FILES_MAX + 1))},
        {"text": "", "type_name": "x" * 2_000},
    ):
        with pytest.raises(SchemaError, match="too large"):
            Schema(SchemaKind.FRUGAL, **arguments)
    with pytest.raises(SchemaError, match="one name"):
        Schema(SchemaKind.FRUGAL, "", (("a", ""), ("a", "")))


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (arrow(("a", pa.int64())), arrow(("a", pa.int32())), None),
        (arrow(("a", pa.int32())), arrow(("a", pa.int64())), "a is int32, and int64 in the other"),
        (arrow(("a", pa.int64())), arrow(("a", pa.uint32())), None),
        (arrow(("a", pa.int32())), arrow(("a", pa.uint32())), "a is int32, and uint32 in the other"),
        (arrow(("a", pa.uint64())), arrow(("a", pa.int8())), "a is uint64, and int8 in the other"),
        (arrow(("a", pa.float64())), arrow(("a", pa.int32())), None),
        (arrow(("a", pa.float64())), arrow(("a", pa.int64())), "a is double, and int64 in the other"),
        (arrow(("a", pa.float64())), arrow(("a", pa.float32())), None),
        (arrow(("a", pa.float32())), arrow(("a", pa.float64())), "a is float, and double in the other"),
        (arrow(("a", pa.string())), arrow(("a", pa.timestamp("us", "UTC"))), None),
        (arrow(("a", pa.date32())), arrow(("a", pa.string())), "a is date32[day], and string in the other"),
        (arrow(("a", pa.timestamp("us"))), arrow(("a", pa.timestamp("ms"))), None),
        (
            arrow(("a", pa.timestamp("ms"))),
            arrow(("a", pa.timestamp("us"))),
            "a is timestamp[ms], and timestamp[us] in the other",
        ),
        (arrow(("a", pa.int8())), arrow(("a", pa.null())), None),
        (arrow(("a", pa.int8())), arrow(), None),
        (arrow(("a", pa.int8(), False)), arrow(), "a is needed, but the other does not have it"),
        (arrow(("a", pa.int8(), False)), arrow(("a", pa.int8())), "a is needed, but may be null in the other"),
        (arrow(), arrow(("a", pa.int8(), False)), None),
        (arrow(pa.field("a", pa.string(), metadata=JSON_TEXT)), arrow(("a", pa.list_(pa.int8()))), None),
        (
            arrow(("a", pa.string())),
            arrow(pa.field("a", pa.string(), metadata=JSON_TEXT)),
            "a is string, and any JSON in the other",
        ),
        (
            arrow(("a", pa.list_(pa.struct([("b", pa.int8())])))),
            arrow(("a", pa.list_(pa.struct([("b", pa.int16())])))),
            "a[].b is int8, and int16 in the other",
        ),
        (
            arrow(("a", pa.map_(pa.string(), pa.int8()))),
            arrow(("a", pa.map_(pa.string(), pa.bool_()))),
            "a{} is int8, and bool in the other",
        ),
        (arrow(("a", pa.map_(pa.string(), pa.int8()))), arrow(("a", pa.struct([("b", pa.int8())]))), None),
    ],
)
def test_what_a_reader_of_json_takes(reader: pa.Schema, writer: pa.Schema, reason: str | None) -> None:
    assert arrow_reads(reader, writer) == ([] if reason is None else [reason])


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
WRAPPED = {"type": {"type": "int"}}
AVRO_PAIRS: list[tuple[Any, Any, str | None]] = [
    ("long", "int", None),
    ("int", "long", "the value is int, and long in the other"),
    ("string", "bytes", None),
    ("double", "string", "the value is double, and string in the other"),
    (["null", "long"], "int", None),
    ("int", ["null", "int"], "the value is int, and null in the other"),
    (["null", "int"], ["int", "null"], None),
    (["null", "int"], ["int", "string"], "the value is string in the other, which no branch takes"),
    ({**ENUM, "symbols": ["B", "C", "A"]}, ENUM, None),
    (ENUM, {**ENUM, "symbols": ["A", "C"]}, "the value lacks C of the other's symbols"),
    ({**ENUM, "default": "A"}, {**ENUM, "symbols": ["A", "C"]}, None),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "x.F", "size": 4}, None),
    (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 5},
        "the value has 4 bytes, and 5 in the other",
    ),
    (avro(("a", "int", {})), avro(), "a has no default, and the other does not have it"),
    (avro(("a", "int", {"default": 1})), avro(), None),
    (avro(), avro(("a", "int", {})), None),
    (avro(("b", "int", {"aliases": ["a"]})), avro(("a", "int", {})), None),
    (
        avro(("a", avro(("b", "int", {}), name="I"), {})),
        avro(("a", avro(("b", "string", {}), name="I"), {})),
        "a.b is int, and string in the other",
    ),
    (avro(name="S", aliases=["R"]), avro(), None),
    (avro(name="S", namespace="y", aliases=["x.R", "R"]), avro(namespace="y"), None),
    (avro(name="S", aliases=["x.R"]), avro(), "the value is S, and R in the other"),
    (avro(name="S"), avro(), "the value is S, and R in the other"),
    (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        "the value[] is int, and long in the other",
    ),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, None),
    (NODE, NODE, None),
    (WRAPPED, "int", None),
]


@pytest.mark.parametrize(("reader", "writer", "reason"), AVRO_PAIRS)
def test_what_a_reader_of_avro_takes(reader: Any, writer: Any, reason: str | None) -> None:
    reader, writer = json.loads(json.dumps(reader)), json.loads(json.dumps(writer))
    assert avro_reads(reader, writer) == ([] if reason is None else [reason])


SAMPLED = [
    pair for pair in AVRO_PAIRS if pair[0] is not NODE and pair[:2] not in (("string", "bytes"), (WRAPPED, "int"))
]
"""Those that fastavro makes values of, which end, and which it takes schemas of."""


@pytest.mark.parametrize(("reader", "writer", "reason"), SAMPLED)
def test_fastavro_agrees(reader: Any, writer: Any, reason: str | None) -> None:
    of_writer, of_reader = (fastavro.parse_schema(json.loads(json.dumps(each))) for each in (writer, reader))
    refused = 0
    for value in fastavro.utils.generate_many(of_writer, 40):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, of_writer, value)
        out.seek(0)
        try:
            fastavro.schemaless_reader(out, of_writer, of_reader)
        except fastavro.read.SchemaResolutionError:
            refused += 1
    assert (refused == 0) == (reason is None)


def test_logical_types_of_avro_are_compared() -> None:
    def of(kind: str, **logical: Any) -> Schema:
        return Schema(SchemaKind.AVRO, json.dumps(avro(("a", {"type": kind, **logical}, {}))))

    money = of("bytes", logicalType="decimal", precision=9, scale=2)
    assert compatible(money, money) == []
    when = {"type": "long", "logicalType": "timestamp-millis"}

    def nullable(kind: Any) -> Schema:
        return Schema(SchemaKind.AVRO, json.dumps(avro(("a", ["null", kind], {"default": None}))))

    assert compatible(nullable(when), nullable(when)) == []
    assert compatible(nullable({"type": when}), nullable(when)) == []
    assert compatible(of("long", logicalType="timestamp-millis"), nullable(when), Mode.BACKWARD) == []
    assert compatible(nullable("long"), nullable(when)) != []
    assert compatible(of("string", logicalType="uuid"), of("string")) == []  # it changes no column
    assert compatible(money, of("bytes", logicalType="decimal", precision=9, scale=4)) != []
    assert compatible(of("long", logicalType="timestamp-millis"), of("long", logicalType="timestamp-micros")) != []
    assert compatible(of("long"), of("long", logicalType="timestamp-millis")) != []
    for symbols, more in ((["A", "A"], {}), (["A"], {"default": "B"})):
        with pytest.raises(SchemaError, match="symbol twice"):
            Schema(SchemaKind.AVRO, json.dumps({"type": "enum", "name": "E", "symbols": symbols, **more})).plan()


def test_modes() -> None:
    old = Schema(SchemaKind.AVRO, json.dumps(avro(("a", "int", {}))))
    new = Schema(SchemaKind.AVRO, json.dumps(avro(("a", "long", {}), ("b", "int", {"default": 0}))))
    reason = "the old schema cannot read new values: a is int, and long in the other"
    assert compatible(old, new, Mode.BACKWARD) == []
    assert compatible(old, new, Mode.FORWARD) == [reason]
    assert compatible(old, new) == [reason]
    assert compatible(new, new) == []
    arrows = [Schema(SchemaKind.ARROW, text_of_arrow(arrow(("a", kind)))) for kind in (pa.int8(), pa.int16())]
    assert compatible(*arrows) == ["the old schema cannot read new values: a is int8, and int16 in the other"]
    texts = [f'{{"properties":{{"a":{{"type":"{kind}"}}}}}}' for kind in ("integer", "boolean")]
    kinds = [Schema(SchemaKind.JSON_SCHEMA, text) for text in texts]
    assert len(compatible(*kinds)) == 2
    assert compatible(kinds[0], old) == ["the schema was json-schema, and is avro"]


def descriptor_set(**fields: int) -> str:
    """Return a descriptor set in base64, with the message Point: the kinds of its fields by name."""
    made = descriptor_pb2.FileDescriptorSet()
    file = made.file.add(name="point.proto", syntax="proto3")
    message = file.message_type.add(name="Point")
    for number, (name, kind) in enumerate(fields.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    return base64.b64encode(made.SerializeToString()).decode()


def contract(text: str, type_name: str = "Point", **closure: str) -> Schema:
    return Schema(SchemaKind.FRUGAL, text, tuple((f"{name}.frugal", each) for name, each in closure.items()), type_name)


def test_versions_of_a_contract_are_compared_by_what_the_type_is_made_of() -> None:
    old = contract("struct Point { 1: i32 x } struct Other { 1: i32 a }")
    assert compatible(old, contract("struct Point { 1: i32 x, 2: optional i32 y }")) == []  # Other is not reached
    (reason,) = compatible(old, contract("struct Point { 1: string x }"))
    assert reason.startswith("Point.x: ")
    assert compatible(old, contract("struct Dot { 1: i32 x }", "Dot")) == []  # the wire has no names of types
    included = contract('include "base.frugal" struct Point { 1: base.X x }', base="struct X { 1: i32 a }")
    changed = contract('include "base.frugal" struct Point { 1: base.X x }', base="struct X { 1: bool a }")
    assert compatible(included, included) == []
    assert "X.a" in " ".join(compatible(included, changed))
    numbers = [Schema(SchemaKind.PROTOBUF, descriptor_set(x=kind), type_name="Point") for kind in (5, 9)]
    assert compatible(numbers[0], numbers[0]) == []
    assert compatible(*numbers) != []


def test_a_type_may_be_that_of_an_operation() -> None:
    scoped = contract("struct Point { 1: i32 x } scope Moves { Moved: Point, Passed: list<i64> }", "Moves.Passed")
    assert scoped.plan().schema.names == ["value"]
    for name in ("Moves.Gone", "Moves", "Gone.Moved", "", ".", "Moves."):
        with pytest.raises(SchemaError, match="no type and no operation"):
            contract(scoped.text, name).plan()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (contract("struct Point { 1: i32 x"), "contract.frugal:1:"),
        (contract('include "base.frugal" struct Point { 1: i32 x }'), "base.frugal"),
        (contract('include "../up.frugal" struct Point { 1: i32 x }'), "up.frugal"),
        (Schema(SchemaKind.PROTOBUF, "!", type_name="Point"), "no descriptor set in base64"),
        (Schema(SchemaKind.PROTOBUF, "AAAA", type_name="Point"), "descriptor set has mistakes"),
        (Schema(SchemaKind.PROTOBUF, descriptor_set(x=5), type_name="Dot"), "no file of the descriptor set"),
    ],
)
def test_mistakes_of_contracts_are_told(schema: Schema, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema.plan()


def test_schemas_that_are_too_large_to_compare_are_refused() -> None:
    union = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(400)]
    other = [{"type": "fixed", "name": f"G{n}", "size": 1} for n in range(400)]
    assert len(union) * len(other) > COMPARISONS_MAX
    with pytest.raises(SchemaError, match="too large"):
        avro_reads(union, other)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from(["int", "record", "array", "N"]),
        lambda below: (
            st.lists(below, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "name",
                        "items",
                        "fields",
                        "symbols",
                        "size",
                        "values",
                        "$ref",
                        "properties",
                        "anyOf",
                        "aliases",
                        "required",
                        "additionalProperties",
                    ]
                ),
                below,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_what_is_no_schema_is_a_schema_error(text: Any) -> None:
    for kind in (SchemaKind.AVRO, SchemaKind.JSON_SCHEMA):
        schema = Schema(kind, json.dumps(text))
        with contextlib.suppress(SchemaError):
            assert compatible(schema, schema) == []


def message_of_protobuf(body: str, type_name: str = "shop.M") -> Schema:
    made = protobuf_contracts.descriptor_set(f"message M {{ {body} }}")
    return Schema(SchemaKind.PROTOBUF, base64.b64encode(made).decode(), type_name=type_name)


def test_a_message_of_protobuf_has_its_full_name_and_that_of_the_model() -> None:
    full, short = message_of_protobuf("int32 a = 1"), message_of_protobuf("int32 a = 1", "M")
    assert full.plan().schema.names == short.plan().schema.names == ["a"]
    assert full.hash() == short.hash()
    assert compatible(full, short) == compatible(short, full) == []
    with pytest.raises(SchemaError, match=r"has the message 'other\.M'"):
        message_of_protobuf("int32 a = 1", "other.M").plan()
    made = protobuf_contracts.descriptor_set("message M { int32 a = 1 } message N { int32 a = 1 }")
    named = [Schema(SchemaKind.PROTOBUF, base64.b64encode(made).decode(), type_name=f"shop.{name}") for name in "MN"]
    assert compatible(*named) == ["the type was 'shop.M', and is 'shop.N'"]


@pytest.mark.parametrize(
    ("new", "reasons"),
    [
        ("int32 a = 1; reserved 2; reserved b", []),
        ("int32 a = 1; string b = 2; repeated int64 c = 3", []),
        ("int32 a = 1", ["M.b: field 2 is removed; stored messages keep its bytes"]),
        ("choice: int32 a = 1; choice: string b = 2", ["M.a: field 1: oneof (none)", "M.b: field 2: oneof (none)"]),
    ],
)
def test_a_message_of_protobuf_loses_a_field_by_reserving_its_number(new: str, reasons: list[str]) -> None:
    pytest.importorskip("google.protobuf")
    old, changed = (message_of_protobuf(body) for body in ("int32 a = 1; string b = 2", new))
    found = compatible(old, changed)
    assert len(found) == len(reasons)
    assert all(each.startswith(reason) for each, reason in zip(found, reasons, strict=True)), found
