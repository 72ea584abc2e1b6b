"""Plans with everything in them, and readers of their values, compiled or plain, for tests of `hot`.

| encoding | plan                                             |
|----------|--------------------------------------------------|
| binary   | of a Thrift struct, `Tree`                       |
| compact  | the same                                         |
| frugal   | the same, in frames of the binary protocol       |
| protobuf | of a message, `Message`                          |
| avro     | of a record, `R`                                 |
| json     | of an Arrow schema                               |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pyarrow as pa

from penstock.hot import thrift_columns
from penstock.idl.model import Annotation, ConstantList, Field, ListOf, Literal, MapOf, Reference, Requiredness, SetOf
from penstock.schemas.avro import avro_plan
from penstock.schemas.json_values import JSON_TEXT, json_plan
from penstock.schemas.plans import Node, Plan
from penstock.schemas.protobuf import protobuf_plan
from penstock.schemas.thrift import thrift_plan
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
    Field(10, "one", scalar("i32"), encoding="sint32", annotations=(Annotation("oneof", "choice"),)),
    Field(11, "other", Reference("Leaf"), annotations=(Annotation("oneof", "choice"),)),
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
TREE = program(COLOR, LEAF, struct("Tree", *FIELDS))


@cache
def plan(encoding: str) -> Plan:
    if encoding == "avro":
        return avro_plan(json.dumps(AVRO))
    if encoding == "json":
        return json_plan(JSON)
    if encoding == "protobuf":
        return protobuf_plan(program(LEAF, struct("Message", *PROTOBUF)), "Message")
    return thrift_plan(TREE, "Tree")


def column_of(module: ModuleType, node: Node) -> Any:
    children = [column_of(module, child) for child in node.ordered]
    name = node.name.encode()
    return module.Column(node.kind, children, node.id, node.wire, node.flags, node.is_needed, node.filling, name)


def reader_of(load: Callable[[str], ModuleType], encoding: str) -> tuple[Any, Any]:
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


def found_by(load: Callable[[str], ModuleType], encoding: str, values: pa.Array) -> Any:
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
