"""Readers of encoded values, compiled and plain, say the same of any bytes, and neither reads beyond them."""

from __future__ import annotations

import json
from functools import cache
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot import cells, thrift_columns
from penstock.idl.model import ConstantList, Field, ListOf, Literal, MapOf, Reference, Requiredness, SetOf
from penstock.schemas.avro import avro_plan
from penstock.schemas.json_values import JSON_TEXT, json_plan
from penstock.schemas.plans import Node, Plan
from penstock.schemas.protobuf import protobuf_plan
from penstock.schemas.thrift import thrift_plan
from tests import hot_modes
from tests.typed_values import COLOR, program, scalar, struct

ENCODINGS = ("binary", "compact", "frugal", "protobuf", "avro", "json")
LEAF = struct("Leaf", Field(1, "n", scalar("i32"), Requiredness.REQUIRED), Field(2, "t", scalar("string")))
FIELDS = (
    Field(1, "flag", scalar("bool"), default=Literal(True)),
    Field(2, "small", scalar("i8")),
    Field(3, "short", scalar("i16")),
    Field(4, "whole", scalar("i32")),
    Field(5, "long", scalar("i64")),
    Field(6, "real", scalar("double")),
    Field(7, "text", scalar("string")),
    Field(8, "bytes", scalar("binary")),
    Field(9, "id", scalar("uuid")),
    Field(10, "color", Reference("Color")),
    Field(11, "all", ListOf(Reference("Leaf"))),
    Field(12, "flags", SetOf(scalar("bool"))),
    Field(13, "by_name", MapOf(scalar("string"), ListOf(scalar("i64"))), default=None),
    Field(14, "leaf", Reference("Leaf")),
    Field(15, "next", Reference("Tree")),
    Field(-7, "words", ListOf(scalar("string")), default=ConstantList((Literal("a"), Literal("b")))),
)
PROTOBUF = (
    Field(1, "n", scalar("i32"), encoding="sint32"),
    Field(2, "t", scalar("string")),
    Field(3, "all", ListOf(scalar("u64"))),
    Field(4, "by", MapOf(scalar("string"), Reference("Leaf"))),
    Field(5, "leaf", Reference("Leaf")),
    Field(6, "next", Reference("Message")),
    Field(7, "fixed", ListOf(scalar("i32")), encoding="sfixed32"),
    Field(8, "real", scalar("double")),
    Field(9, "leaves", ListOf(Reference("Leaf"))),
)
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "array", "items": ["null", "string", "int"]}},
        {"name": "m", "type": {"type": "map", "values": ["null", "R"]}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "n", "type": {"type": "array", "items": "null"}},
        {"name": "r", "type": ["double", "null"]},
        {"name": "b", "type": "boolean"},
    ],
}
JSON = pa.schema(
    [
        pa.field("a", pa.int8()),
        pa.field("b", pa.float32()),
        pa.field("c", pa.string()),
        pa.field("d", pa.timestamp("us")),
        pa.field("e", pa.list_(pa.struct([("a", pa.uint64()), ("é", pa.bool_())]))),
        pa.field("f", pa.map_(pa.string(), pa.float64())),
        pa.field("g", pa.string(), metadata=JSON_TEXT),
        pa.field("h", pa.date32()),
        pa.field("i", pa.int64()),
    ]
)


@cache
def plan(encoding: str) -> Plan:
    if encoding == "avro":
        return avro_plan(json.dumps(AVRO))
    if encoding == "json":
        return json_plan(JSON)
    if encoding == "protobuf":
        return protobuf_plan(program(LEAF, struct("Message", *PROTOBUF)), "Message")
    return thrift_plan(program(COLOR, LEAF, struct("Tree", *FIELDS)), "Tree")


def column_of(module: ModuleType, node: Node) -> Any:
    children = [column_of(module, child) for child in node.ordered]
    name = node.name.encode()
    return module.Column(node.kind, children, node.id, node.wire, node.flags, node.is_needed, node.filling, name)


def reader_of(load: Any, encoding: str) -> tuple[Any, Any]:
    """Return a column and its reader from the modules that `load` gives."""
    root = column_of(load("typed_columns"), plan(encoding).root)
    if encoding == "avro":
        return root, load("avro_columns").AvroReader(root)
    if encoding == "json":
        return root, load("json_columns").JsonReader(root)
    if encoding == "protobuf":
        return root, load("protobuf_columns").ProtobufReader(root)
    frame = thrift_columns.FRUGAL if encoding == "frugal" else thrift_columns.BARE
    return root, load("thrift_columns").ThriftReader(root, encoding == "compact", frame)


def found_by(load: Any, encoding: str, values: pa.Array) -> Any:
    root, reader = reader_of(load, encoding)
    validity, offsets, data = values.buffers()
    reasons = reader.read(
        None if validity is None else memoryview(validity).cast("B"),
        memoryview(offsets).cast("B"),
        memoryview(data).cast("B") if data is not None else memoryview(b""),
        values.offset,
        len(values),
    )
    return bytes(reasons), contents(root)


def contents(column: Any) -> Any:
    below = [contents(child) for child in column.children]
    nulls, valid = column.nulls(), bytes(column.validity())
    numbers, data = column.buffers()
    return column.count, nulls, valid, bytes(numbers), bytes(data[: column.data_size]), below


BYTE = st.integers(0, 255)
MARKS = st.sampled_from(
    [
        b"\x00",
        b"\x01",
        b"\x02",
        b"\x04",
        b"\x0b",
        b"\x0c",
        b"\x0f\0\x0b",
        b"\x0d",
        b"\x80",
        b"\xff",
        b"\0\0\0\1",
        b"\x12\x02",
    ]
)
TEXTS = st.sampled_from([b"\0\0\0\2ab", b"\2ab", b"\4ab", b"\xc3\xa9", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
HEADS = st.tuples(st.sampled_from([2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17]), st.integers(-8, 17)).map(
    lambda pair: bytes((pair[0],)) + pair[1].to_bytes(2, "big", signed=True)
)
MESSAGES = st.lists(MARKS | TEXTS | HEADS | BYTE.map(lambda one: bytes((one,))), max_size=24).map(b"".join)
FRAMES = MESSAGES.map(
    lambda rest: (len(rest) + 17).to_bytes(4, "big") + bytes(5) + b"\x80\x01\0\1\0\0\0\0\0\0\0\0" + rest
)
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "i", "\\u0061", "é", "x"]).map('"{}"'.format)
NUMBERS = st.from_regex(r"\A-?[0-9]{1,22}(\.[0-9]{1,4})?([eE]-?[0-9]{1,3})?\Z") | st.floats().map(str)
WORDS = st.sampled_from(
    ["null", "true", "false", "nul", "[]", "{}", '"\\ud83d\\ude00"', '"\\ud83d"', '"x\\n"', "", " "]
)
TIMES = st.datetimes().map(lambda time: f'"{time.isoformat()}Z"') | st.dates().map('"{}"'.format)
JSON_VALUES = st.recursive(
    NUMBERS | WORDS | TIMES | NAMES,
    lambda below: (
        st.lists(below, max_size=3).map(lambda made: f"[{','.join(made)}]")
        | st.lists(st.tuples(NAMES, below), max_size=4).map(
            lambda made: "{" + ", ".join(f"{name} :{value}" for name, value in made) + "}"
        )
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.tuples(NAMES, JSON_VALUES), max_size=4).map(
    lambda made: ("{" + ",".join(f"{name}:{value}" for name, value in made) + "}").encode()
)


@hot_modes.needs_compiled
@given(st.lists(OBJECTS, max_size=4), st.integers(0, 300), st.binary(max_size=2))
def test_both_read_the_same_json(objects: list[bytes], at: int, patch: bytes) -> None:
    values = pa.array([*objects, *(one[:at] + patch + one[at + 1 :] for one in objects)], pa.binary())
    if len(values):
        assert found_by(hot_modes.running, "json", values) == found_by(hot_modes.plain, "json", values)


@hot_modes.needs_compiled
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(st.lists(st.none() | MESSAGES | FRAMES | st.binary(max_size=60), max_size=4), st.integers(0, 3))
def test_both_read_the_same(encoding: str, messages: list[bytes | None], skipped: int) -> None:
    values = pa.array(messages, pa.binary())[skipped:]
    if len(values):
        compiled = found_by(hot_modes.running, encoding, values)
        assert compiled == found_by(hot_modes.plain, encoding, values)


def test_packed_bits_and_nulls() -> None:
    for load in (hot_modes.running, hot_modes.plain):
        for count in (0, 1, 7, 8, 9, 64, 67):
            column = load("typed_columns").Column(cells.BOOL, [])
            for _ in range(count):
                column.add_null()
            assert column.nulls() == count
            assert bytes(column.validity()) == bytes((count + 7) // 8)
