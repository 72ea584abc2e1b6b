"""Plans and decoders of Protobuf messages, from a linked contract whose fields have Protobuf's encodings.

Rules: `Field.encoding` says how a number is encoded where its type does not: "sint64", "fixed32"; of a map, that of the
key and that of the value, "map<sint32, fixed64>". A field of requiredness OPTIONAL has
presence: it is null if it does not come. One that is DEFAULT has none, as in proto3: it is zero or empty then, and a
message is null. Lists and maps that do not come are empty. Of the members of a `oneof` all are null but the last.

| encoding                                       | wire type | kind of the field's type          |
|------------------------------------------------|-----------|-----------------------------------|
| int32, int64, uint32, uint64, bool, enum, none | 0         | whole numbers, BOOL, an enum      |
| sint32, sint64                                 | 0, zigzag | I32, I64                          |
| fixed32, sfixed32, float                       | 5         | U32, I32, FLOAT                   |
| fixed64, sfixed64, double                      | 1         | U64, I64, DOUBLE                  |
| string, bytes, message                         | 2         | STRING, BINARY, a struct          |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.hot import cells, protobuf_columns
from penstock.hot.protobuf_columns import ProtobufReader
from penstock.hot.typed_columns import Column
from penstock.idl.model import (
    Enum,
    Field,
    ListOf,
    Literal,
    MapOf,
    Program,
    Requiredness,
    Scalar,
    ScalarKind,
    SetOf,
    Struct,
    StructKind,
    Type,
)
from penstock.schemas.constants import encoded
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.plans import Budget, EnumStyle, Node, Plan, SchemaError

_VARINT, _FIXED64, _SIZED, _FIXED32 = (
    protobuf_columns.VARINT,
    protobuf_columns.FIXED64,
    protobuf_columns.SIZED,
    protobuf_columns.FIXED32,
)
_SCALARS: dict[ScalarKind, tuple[int, int, pa.DataType]] = {
    ScalarKind.BOOL: (cells.BOOL, _VARINT, pa.bool_()),
    ScalarKind.I32: (cells.INT32, _VARINT, pa.int32()),
    ScalarKind.I64: (cells.INT64, _VARINT, pa.int64()),
    ScalarKind.U32: (cells.INT32, _VARINT, pa.uint32()),
    ScalarKind.U64: (cells.INT64, _VARINT, pa.uint64()),
    ScalarKind.FLOAT: (cells.FLOAT, _FIXED32, pa.float32()),
    ScalarKind.DOUBLE: (cells.DOUBLE, _FIXED64, pa.float64()),
    ScalarKind.STRING: (cells.TEXT, _SIZED, pa.string()),
    ScalarKind.BINARY: (cells.BINARY, _SIZED, pa.binary()),
}
_ENCODINGS = {
    "": (None, 0),
    "sint32": (cells.INT32, _VARINT),
    "sint64": (cells.INT64, _VARINT),
    "fixed32": (cells.INT32, _FIXED32),
    "sfixed32": (cells.INT32, _FIXED32),
    "fixed64": (cells.INT64, _FIXED64),
    "sfixed64": (cells.INT64, _FIXED64),
}
_PLAIN = frozenset(
    ("int32", "int64", "uint32", "uint64", "bool", "enum", "float", "double", "string", "bytes", "message")
)
_ZEROS = {ScalarKind.BOOL: Literal(False), ScalarKind.STRING: Literal(""), ScalarKind.BINARY: Literal("")}


def protobuf_plan(program: Program, name: str, enums: EnumStyle = EnumStyle.DICTIONARY) -> Plan:
    """Return the columns of a message of a linked program. SchemaError: no such message, or it has too many columns."""
    found = program.find(name)
    if found is None or not isinstance(found.definition, Struct):
        raise SchemaError(f"{program.document.file} has no message {name!r}")
    return Plan(_Making(enums, name).struct(found.program, found.definition, name, 0))


def protobuf_decoder(plan: Plan, framing: ValueFraming = ValueFraming.BARE) -> Decoder:
    """Return a decoder of messages, BARE or CONFLUENT."""
    if framing not in (ValueFraming.BARE, ValueFraming.CONFLUENT):
        raise SchemaError(f"Protobuf messages are not framed as {framing}")
    return Decoder(plan, partial(_reader, framing is ValueFraming.CONFLUENT))


def _reader(is_confluent: bool, root: Column) -> ProtobufReader:
    reader = ProtobufReader(root, is_confluent)
    reader.has_schema_id = is_confluent
    return reader


class _Making:
    """Makes the nodes of one plan."""

    def __init__(self, enums: EnumStyle, root: str) -> None:
        self._enums = enums
        self._budget = Budget(root)
        self._open: list[Struct] = []  # the messages around a type

    def struct(self, program: Program, struct: Struct, name: str, depth: int) -> Node:
        if any(struct is each for each in self._open):
            return Node(name, cells.RAW, pa.binary(), wire=_SIZED)
        self._open.append(struct)
        children = tuple(_with_oneofs(struct, list(self._fields(program, struct, depth))))
        self._open.pop()
        arrow = pa.struct([(child.name, child.type) for child in children])
        return Node(name, cells.STRUCT, arrow, children, wire=_SIZED)

    def _fields(self, program: Program, struct: Struct, depth: int) -> Iterator[Node]:
        for field in struct.fields:
            node = self._node(program, field.type, field.name, field.encoding, depth + 1)
            is_needed = field.requiredness is Requiredness.REQUIRED
            filling = None
            if field.default is not None:
                filling = encoded(program, field.type, field.default)
            elif field.requiredness is Requiredness.DEFAULT and struct.kind is not StructKind.UNION:
                filling = _zero(program, field)
            yield replace(node, id=field.id, is_needed=is_needed, filling=filling)

    def _node(self, program: Program, type_: Type, name: str, encoding: str, depth: int) -> Node:
        """Return the node of a type that stands in a program."""
        program, what = program.resolve(type_)
        self._budget.take(name, depth)
        if encoding == "group":
            raise SchemaError(f"{name}: groups are not decoded")
        if isinstance(what, Struct):
            return self.struct(program, what, name, depth)
        if isinstance(what, Enum):
            names = None if self._enums is EnumStyle.NUMBER else _first_names(what)
            return Node(name, cells.INT32, self._enums.type, wire=_VARINT, names=names)
        if isinstance(what, ListOf | SetOf):
            element = self._node(program, what.element, "item", encoding, depth + 1)
            if element.kind in (cells.LIST, cells.MAP):
                raise SchemaError(f"{name}: Protobuf has no lists of lists or maps")
            return Node(name, cells.LIST, pa.list_(pa.field("item", element.type)), (element,), wire=_SIZED)
        if isinstance(what, MapOf):
            return self._map(program, what, name, encoding, depth)
        return _scalar(what, name, encoding)

    def _map(self, program: Program, what: MapOf, name: str, encoding: str, depth: int) -> Node:
        of_key, _, of_value = encoding.removeprefix("map<").removesuffix(">").partition(", ")
        made = []
        for part, kind, code in (("key", what.key, of_key), ("value", what.value, of_value)):
            node = self._node(program, kind, part, code, depth + 1)
            made.append(replace(node, filling=_zero(program, Field(0, part, kind))))
        key, value = made
        if key.kind in (cells.LIST, cells.MAP, cells.STRUCT, cells.RAW) or value.kind in (cells.LIST, cells.MAP):
            raise SchemaError(f"{name}: Protobuf has no such map")
        return Node(name, cells.MAP, pa.map_(key.type, value.type), (key, value), wire=_SIZED)


def _with_oneofs(struct: Struct, nodes: list[Node]) -> Iterator[Node]:
    """Yield the nodes of a message's fields; each member of a `oneof` knows the first one's place by number."""
    places = {field.id: place for place, field in enumerate(sorted(struct.fields, key=lambda field: field.id))}
    firsts: dict[str, int] = {}
    for field, node in zip(struct.fields, nodes, strict=True):
        oneof = next((each.value for each in field.annotations if each.name == "oneof"), None)
        if oneof is None:
            yield node
        else:
            first = firsts.setdefault(oneof, places[field.id])
            yield replace(node, flags=node.flags | protobuf_columns.ONEOF * (first + 1))


def _scalar(what: Scalar, name: str, encoding: str) -> Node:
    if what.kind not in _SCALARS:
        raise SchemaError(f"{name}: Protobuf has no type {what.kind}")
    kind, wire, arrow = _SCALARS[what.kind]
    if encoding in _PLAIN:
        encoding = ""
    if encoding not in _ENCODINGS:
        raise SchemaError(f"{name}: Protobuf has no encoding {encoding!r}")
    wanted, other = _ENCODINGS[encoding]
    if wanted is not None and wanted != kind:
        raise SchemaError(f"{name}: a {what.kind} is not encoded as {encoding}")
    flags = protobuf_columns.ZIGZAG if encoding.startswith("sint") else 0
    return Node(name, kind, arrow, wire=wire if wanted is None else other, flags=flags)


def _zero(program: Program, field: Field) -> bytes | None:
    """Return what a field without presence is that does not come, encoded; None: null, or an empty list or map."""
    owner, what = program.resolve(field.type)
    if isinstance(what, Enum):
        return encoded(owner, Scalar(ScalarKind.I32), Literal(0))
    if not isinstance(what, Scalar) or what.kind not in _SCALARS:
        return None
    return encoded(owner, what, _ZEROS.get(what.kind, Literal(0)))


def _first_names(enum: Enum) -> dict[int, str]:
    """Return names by number: the first of those that `allow_alias` gives."""
    names: dict[int, str] = {}
    for each in enum.values:
        names.setdefault(each.number, each.name)
    return names
