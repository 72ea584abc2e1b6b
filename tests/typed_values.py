"""Contracts, values of their types, and what they are as columns, for the tests of decoders.

`contracts()` draws a type and a value of it; `thrift_bytes` has Apache thrift encode it.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from penstock.idl.model import (
    Document,
    Enum,
    EnumValue,
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
)
from penstock.schemas.thrift import ThriftProtocol

TYPES = {
    ScalarKind.BOOL: (TType.BOOL, "writeBool", st.booleans()),
    ScalarKind.I8: (TType.BYTE, "writeByte", st.integers(-(2**7), 2**7 - 1)),
    ScalarKind.I16: (TType.I16, "writeI16", st.integers(-(2**15), 2**15 - 1)),
    ScalarKind.I32: (TType.I32, "writeI32", st.integers(-(2**31), 2**31 - 1)),
    ScalarKind.I64: (TType.I64, "writeI64", st.integers(-(2**63), 2**63 - 1)),
    ScalarKind.DOUBLE: (TType.DOUBLE, "writeDouble", st.floats(allow_nan=False)),
    ScalarKind.STRING: (TType.STRING, "writeString", st.text(max_size=9)),
    ScalarKind.BINARY: (TType.STRING, "writeBinary", st.binary(max_size=9)),
    ScalarKind.UUID: (TType.UUID, "writeUuid", st.uuids()),
}
COLOR = Enum("Color", (EnumValue("RED", 1), EnumValue("GREEN", 5), EnumValue("DARK", -2)))
COLORS = {each.number: each.name for each in COLOR.values}
SCALARS = st.sampled_from([*map(Scalar, TYPES), Reference("Color")])


def program(*definitions: Any, file: str = "test.frugal", includes: dict[str, Program] | None = None) -> Program:
    """Return a linked program of some definitions."""
    return Program(Document(file, definitions=definitions), includes or {})


def scalar(kind: str) -> Scalar:
    return Scalar(ScalarKind(kind))


def struct(name: str, *fields: Field, kind: StructKind = StructKind.STRUCT) -> Struct:
    return Struct(name, kind, fields)


@dataclass(frozen=True)
class Sample:
    """A type of a program, a value of it, and what the column has: structs are dicts, maps lists of pairs."""

    program: Program
    type: Type
    value: Any
    expected: Any


@st.composite
def types(draw: st.DrawFn, structs: list[Struct], depth: int) -> Type:
    """Draw a type; its structs are added to `structs`."""
    kind = draw(st.sampled_from(["scalar"] * 3 + ["list", "set", "map", "struct"])) if depth else "scalar"
    if kind == "scalar":
        one: Type = draw(SCALARS)
        return one
    if kind == "list":
        return ListOf(draw(types(structs, depth - 1)))
    if kind == "set":
        return SetOf(draw(types(structs, depth - 1)))
    if kind == "map":
        return MapOf(draw(types(structs, depth - 1)), draw(types(structs, depth - 1)))
    ids = draw(st.lists(st.integers(-3, 40) | st.integers(-(2**15), 2**15 - 1), unique=True, max_size=5))
    made = [
        Field(number, f"f{place}", draw(types(structs, depth - 1)), draw(st.sampled_from(Requiredness)))
        for place, number in enumerate(ids)
    ]
    kinds = st.sampled_from([StructKind.STRUCT, StructKind.EXCEPTION])
    structs.append(Struct(f"S{len(structs)}", draw(kinds), tuple(made)))
    return Reference(structs[-1].name)


@st.composite
def values(draw: st.DrawFn, of: Program, type_: Type) -> tuple[Any, Any]:
    """Draw a value to encode, and what it is in a column."""
    _, what = of.resolve(type_)
    if isinstance(what, Scalar):
        value = draw(TYPES[what.kind][2])
        return value, str(value) if isinstance(value, uuid.UUID) else value
    if isinstance(what, Enum):
        number = draw(st.sampled_from([*COLORS, 0, 17, -(2**31)]))
        return number, COLORS.get(number, str(number))
    if isinstance(what, ListOf | SetOf):
        items = [draw(values(of, what.element)) for _ in range(draw(st.integers(0, 3)))]
        return [value for value, _ in items], [expected for _, expected in items]
    if isinstance(what, MapOf):
        pairs = [(draw(values(of, what.key)), draw(values(of, what.value))) for _ in range(draw(st.integers(0, 3)))]
        return [(key[0], each[0]) for key, each in pairs], [(key[1], each[1]) for key, each in pairs]
    present, expected = {}, dict[str, Any]()
    for field in what.fields:
        expected[field.name] = None
        if field.requiredness is Requiredness.REQUIRED or draw(st.booleans()):
            present[field.name], expected[field.name] = draw(values(of, field.type))
    return present, expected


@st.composite
def contracts(draw: st.DrawFn, count: int = 1) -> list[Sample]:
    """Draw a type and `count` values of it."""
    structs: list[Struct] = []
    type_ = draw(types(structs, 3))
    of = program(COLOR, *structs)
    return [Sample(of, type_, *draw(values(of, type_))) for _ in range(count)]


def protocol_of(name: ThriftProtocol) -> tuple[TMemoryBuffer, Any]:
    """Return a buffer and Apache thrift's protocol on it."""
    buffer = TMemoryBuffer()
    return buffer, (TCompactProtocol if name is ThriftProtocol.COMPACT else TBinaryProtocol)(buffer)


def thrift_bytes(of: Program, type_: Type, value: Any, name: ThriftProtocol, shuffle: random.Random | None) -> bytes:
    """Encode a value by Apache thrift; `shuffle` puts fields out of order."""
    buffer, protocol = protocol_of(name)
    write(protocol, of, type_, value, shuffle)
    return buffer.getvalue()


def thrift_type(of: Program, type_: Type) -> int:
    """Return Thrift's number of a type."""
    _, what = of.resolve(type_)
    if isinstance(what, Scalar):
        return TYPES[what.kind][0]
    kinds = {Enum: TType.I32, ListOf: TType.LIST, SetOf: TType.SET, MapOf: TType.MAP, Struct: TType.STRUCT}
    return kinds[type(what)]


def write(protocol: Any, of: Program, type_: Type, value: Any, shuffle: random.Random | None) -> None:
    """Write a value to one of Apache thrift's protocols."""
    _, what = of.resolve(type_)
    if isinstance(what, Scalar):
        getattr(protocol, TYPES[what.kind][1])(value)
    elif isinstance(what, Enum):
        protocol.writeI32(value)
    elif isinstance(what, ListOf | SetOf):
        begin = protocol.writeListBegin if isinstance(what, ListOf) else protocol.writeSetBegin
        begin(thrift_type(of, what.element), len(value))
        for item in value:
            write(protocol, of, what.element, item, shuffle)
        (protocol.writeListEnd if isinstance(what, ListOf) else protocol.writeSetEnd)()
    elif isinstance(what, MapOf):
        protocol.writeMapBegin(thrift_type(of, what.key), thrift_type(of, what.value), len(value))
        for key, each in value:
            write(protocol, of, what.key, key, shuffle)
            write(protocol, of, what.value, each, shuffle)
        protocol.writeMapEnd()
    else:
        fields = [field for field in what.fields if field.name in value]
        if shuffle is not None:
            shuffle.shuffle(fields)
        protocol.writeStructBegin(what.name)
        for field in fields:
            protocol.writeFieldBegin(field.name, thrift_type(of, field.type), field.id)
            write(protocol, of, field.type, value[field.name], shuffle)
            protocol.writeFieldEnd()
        protocol.writeFieldStop()
        protocol.writeStructEnd()
