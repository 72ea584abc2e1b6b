"""Plans and decoders of Thrift and Frugal values, binary and compact, from a linked contract.

Rules: a field is what Thrift's libraries make of it. One that is missing gets its default, or null; a row without a
required one is refused, as is one in which bytes follow the value. Fields that the contract does not have are skipped;
those of another type too, which are then missing. See `plans` for types.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial

import pyarrow as pa

from penstock.hot import cells, thrift_columns
from penstock.hot.thrift_columns import ThriftReader
from penstock.hot.typed_columns import Column
from penstock.idl.model import (
    Enum,
    Field,
    ListOf,
    MapOf,
    Program,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.schemas.constants import encoded
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.plans import VALUE, Budget, EnumStyle, Node, Plan, SchemaError


class ThriftProtocol(StrEnum):
    BINARY = "binary"
    COMPACT = "compact"


_SCALARS: dict[ScalarKind, tuple[int, int, pa.DataType]] = {
    ScalarKind.BOOL: (cells.BOOL, thrift_columns.BOOL, pa.bool_()),
    ScalarKind.I8: (cells.INT8, thrift_columns.I8, pa.int8()),
    ScalarKind.I16: (cells.INT16, thrift_columns.I16, pa.int16()),
    ScalarKind.I32: (cells.INT32, thrift_columns.I32, pa.int32()),
    ScalarKind.I64: (cells.INT64, thrift_columns.I64, pa.int64()),
    ScalarKind.DOUBLE: (cells.DOUBLE, thrift_columns.DOUBLE, pa.float64()),
    ScalarKind.STRING: (cells.TEXT, thrift_columns.TEXT, pa.string()),
    ScalarKind.BINARY: (cells.BINARY, thrift_columns.TEXT, pa.binary()),
    ScalarKind.UUID: (cells.UUID, thrift_columns.UUID, pa.string()),
}
_FRAMES = {
    ValueFraming.BARE: thrift_columns.BARE,
    ValueFraming.CONFLUENT: thrift_columns.BARE,
    ValueFraming.MESSAGE: thrift_columns.MESSAGE,
    ValueFraming.FRUGAL: thrift_columns.FRUGAL,
}


def thrift_plan(program: Program, type_: str | Type, enums: EnumStyle = EnumStyle.DICTIONARY) -> Plan:
    """Return the columns of a type of a linked program, given by name ("Order", "base.Order") or as the model has it.

    SchemaError: there is no such type, or it has too many columns.
    """
    if isinstance(type_, str):
        found = program.find(type_)
        if found is None or not isinstance(found.definition, Typedef | Enum | Struct):
            raise SchemaError(f"{program.document.file} has no type {type_!r}")
        type_ = Reference(type_)
    making = _Making(enums, type_.name if isinstance(type_, Reference) else "the type of the values")
    node = making.node(program, type_, VALUE, 0)
    if node.kind == cells.STRUCT:
        return Plan(node)
    return Plan(Node("", cells.STRUCT, pa.struct([(VALUE, node.type)]), (node,)), is_value=True)


def thrift_decoder(
    plan: Plan,
    protocol: ThriftProtocol = ThriftProtocol.BINARY,
    framing: ValueFraming = ValueFraming.BARE,
    name: str = "",
) -> Decoder:
    """Return a decoder of values in a protocol and framing; `name`: of the message (operation), any if empty."""
    is_compact = protocol is ThriftProtocol.COMPACT
    return Decoder(plan, partial(_reader, plan.is_value, is_compact, framing, name.encode()))


def _reader(is_value: bool, is_compact: bool, framing: ValueFraming, name: bytes, root: Column) -> ThriftReader:
    reader = ThriftReader(root, is_compact, _FRAMES[framing], name, is_value)
    reader.has_schema_id = framing is ValueFraming.CONFLUENT
    return reader


class _Making:
    """Makes the nodes of one plan."""

    def __init__(self, enums: EnumStyle, root: str) -> None:
        self._enums = enums
        self._budget = Budget(root)
        self._open: list[Struct] = []  # the structs around a type

    def node(self, program: Program, type_: Type, name: str, depth: int) -> Node:
        """Return the node of a type that stands in a program."""
        program, what = program.resolve(type_)
        self._budget.take(name, depth)
        if isinstance(what, Scalar):
            if what.kind not in _SCALARS:
                raise SchemaError(f"{name}: Thrift has no type {what.kind}")
            kind, wire, arrow = _SCALARS[what.kind]
            return Node(name, kind, arrow, wire=wire)
        if isinstance(what, Enum):
            names = None if self._enums is EnumStyle.NUMBER else {each.number: each.name for each in what.values}
            return Node(name, cells.INT32, self._enums.type, wire=thrift_columns.I32, names=names)
        if isinstance(what, MapOf):
            key = self.node(program, what.key, "key", depth + 1)
            value = self.node(program, what.value, "value", depth + 1)
            return Node(name, cells.MAP, pa.map_(key.type, value.type), (key, value), wire=thrift_columns.MAP)
        if isinstance(what, ListOf | SetOf):
            element = self.node(program, what.element, "item", depth + 1)
            wire = thrift_columns.LIST if isinstance(what, ListOf) else thrift_columns.SET
            return Node(name, cells.LIST, pa.list_(pa.field("item", element.type)), (element,), wire=wire)
        if any(what is each for each in self._open):
            return Node(name, cells.RAW, pa.binary(), wire=thrift_columns.STRUCT)
        self._open.append(what)
        children = tuple(self._fields(program, what, depth))
        self._open.pop()
        arrow = pa.struct([(child.name, child.type) for child in children])
        return Node(name, cells.STRUCT, arrow, children, wire=thrift_columns.STRUCT)

    def _fields(self, program: Program, struct: Struct, depth: int) -> Iterator[Node]:
        for field in struct.fields:
            node = self.node(program, field.type, field.name, depth + 1)
            is_needed = field.requiredness is Requiredness.REQUIRED and struct.kind is not StructKind.UNION
            yield Node(
                node.name,
                node.kind,
                node.type,
                node.children,
                field.id,
                node.wire,
                is_needed=is_needed,
                filling=_default(program, struct, field, node),
                names=node.names,
            )


def _default(program: Program, struct: Struct, field: Field, node: Node) -> bytes | None:
    """Return the default of a field, encoded; None: it has none. One of a recursive type stays null."""
    if field.default is None or struct.kind is StructKind.UNION or node.kind == cells.RAW:
        return None
    return encoded(program, field.type, field.default)
