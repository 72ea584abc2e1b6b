"""Damaged values become the columns that other libraries make of them, or are refused as these refuse them.

Apache thrift, Google's protobuf, fastavro and Python's json are the oracles. A value that is taken must be taken by the
library, whole and equal. One that is refused must be refused by it, too, or for a reason in which it is known to be
more lenient. The explanation of a refusal comes from the same reader: there is one for each, and none for a value that
is taken.

| library       | takes                                                                                           |
|---------------|-------------------------------------------------------------------------------------------------|
| Apache thrift | compact numbers beyond their type, types that do not exist in what is skipped or has no elements |
| fastavro      | numbers beyond their type, negative ones of branches and symbols, any size of a block in bytes   |
| json          | half of a surrogate pair                                                                        |
"""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from penstock.idl.model import Enum, Field, ListOf, MapOf, Program, Reference, Requiredness, Scalar, SetOf, Type
from penstock.schemas.avro import avro_decoder, avro_plan
from penstock.schemas.decoding import Decoder, Reason, ValueFraming
from penstock.schemas.explaining import explained
from penstock.schemas.json_values import json_decoder, json_plan
from penstock.schemas.protobuf import protobuf_decoder, protobuf_plan
from penstock.schemas.thrift import ThriftProtocol, thrift_decoder, thrift_plan
from tests import typed_values
from tests.typed_values import COLOR, COLORS, program, protocol_of, scalar, thrift_bytes, thrift_type
from tests.unit.schemas import test_json_values, test_protobuf

PIECES = st.sampled_from(
    [b"\xff" * 9 + b"\x01", b"\x80", b"\x7f\xff\xff\xff", b"\0", b"\x01", b"\x0c", b'"', b"{", b"e9"]
)
REFUSED = object()


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw a value with some bytes changed, or a value as it is."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 3)))
        part = bytes(data[begin:end])
        data[begin:end] = draw(st.sampled_from([b"", part * 2, part[::-1]]) | st.binary(max_size=2) | PIECES)
    return bytes(data)


def found_in(decoder: Decoder, value: bytes) -> tuple[Any, Reason | None]:
    """Return the row of a value that stands between others, or the reason for which it is refused."""
    values = pa.array([value, None, value], pa.binary())
    found = decoder.decode(values)
    assert decoder.reasons(values).equals(found.refused.codes.combine_chunks())
    found.columns.validate(full=True)
    first, none, again = found.columns.to_pylist()
    assert none is None
    assert exact(first) == exact(again)
    code = found.refused.codes[0].as_py()
    why = explained(decoder, value)
    assert (why != "") == (code != 0)
    assert len(why) <= 250
    return (first, None) if code == 0 else (REFUSED, Reason(code))


def exact(value: Any) -> Any:
    """Return a value of which equal ones have the same bits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    return [exact(each) for each in value] if isinstance(value, list | tuple) else value


BEGINS = st.sampled_from([b"", bytes(5), b"\x80\x01\0\1", b"\x82\x21\0"])
FRAMED = [
    *(
        thrift_decoder(thrift_plan(program(typed_values.struct("T")), "T"), protocol, framing, name)
        for protocol in ThriftProtocol
        for framing in ValueFraming
        for name in ("", "o")
    ),
    protobuf_decoder(protobuf_plan(test_protobuf.PROGRAM, "All"), ValueFraming.CONFLUENT),
    avro_decoder(avro_plan('"string"'), ValueFraming.CONFLUENT),
    json_decoder(json_plan(pa.schema([("x", pa.int8())])), ValueFraming.CONFLUENT),
]


@given(
    st.sampled_from(FRAMED), st.binary(max_size=30), st.sampled_from([b"", bytes(5), b"\x80\x01\0\1", b"\x82\x21\0"])
)
def test_any_bytes_in_frames_are_explained_or_taken(decoder: Decoder, value: bytes, begin: bytes) -> None:
    code = decoder.decode(pa.array([begin + value], pa.binary())).refused.codes[0].as_py()
    why = explained(decoder, begin + value)
    assert why or code in (0, Reason.FRAME)
    assert not why or code


# Protobuf


@given(test_protobuf.MESSAGES, st.data())
def test_damaged_protobuf(message: dict[str, Any], data: st.DataObject) -> None:
    value = data.draw(damaged(test_protobuf.ALL_CLASS(**message).SerializeToString()))
    decoder = protobuf_decoder(protobuf_plan(test_protobuf.PROGRAM, "All"))
    row, reason = found_in(decoder, value)
    try:
        parsed = test_protobuf.ALL_CLASS.FromString(value)
    except DecodeError:
        assert reason is not None
        return
    assert reason is None
    again, _ = found_in(decoder, parsed.SerializeToString())
    for name in ("by_name", "by_number"):  # of a key that comes twice the library keeps the last value
        row[name], again[name] = dict(row[name]), dict(again[name])
    assert exact(row) == exact(again)


# Avro

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "array", "items": ["null", "string", "int"]}},
        {"name": "m", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "b", "type": ["boolean", "null"]},
        {"name": "l", "type": "long"},
        {"name": "r", "type": {"type": "array", "items": {"type": "record", "name": "I", "fields": [
            {"name": "x", "type": "float"}, {"name": "y", "type": "bytes"}]}}},
    ],
}  # fmt: skip
PARSED = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
AVRO_VALUES = st.fixed_dictionaries(
    {
        "e": st.sampled_from("AB"),
        "a": st.lists(st.none() | st.text(max_size=3) | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "m": st.dictionaries(st.text(max_size=2), st.none() | st.floats(), max_size=2),
        "f": st.binary(min_size=2, max_size=2),
        "b": st.none() | st.booleans(),
        "l": st.integers(-(2**63), 2**63 - 1),
        "r": st.lists(
            st.fixed_dictionaries({"x": st.floats(width=32), "y": st.binary(max_size=3)}),
            max_size=2,
        ),
    }
)
AVRO_LENIENT = (Reason.NUMBER, Reason.SIZE, Reason.ENDS, Reason.EXPANDS)


@given(AVRO_VALUES, st.data())
def test_damaged_avro(value: dict[str, Any], data: st.DataObject) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED, value)
    text = data.draw(damaged(out.getvalue()))
    row, reason = found_in(avro_decoder(avro_plan(json.dumps(AVRO))), text)
    if reason in AVRO_LENIENT:
        return
    source = io.BytesIO(text)
    try:
        expected: Any = fastavro.schemaless_reader(source, PARSED)
    except Exception:  # noqa: BLE001 (it raises whatever comes)
        assert reason is not None
        return
    if source.read():
        assert reason is not None
        return
    assert reason is None
    branches = {str: "string", int: "int"}
    expected["a"] = [
        None if one is None else {"string": None, "int": None, branches[type(one)]: one} for one in expected["a"]
    ]
    row["m"] = dict(row["m"])
    assert exact(row) == exact(expected)


# JSON

JSON = pa.schema(
    [
        ("t", pa.string()),
        ("l", pa.list_(pa.int8())),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("s", pa.struct([("b", pa.bool_()), ("u", pa.uint64())])),
    ]
)
JSON_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "t": st.none() | st.text(max_size=4),
        "l": st.lists(st.none() | st.integers(-128, 127), max_size=3),
        "m": st.dictionaries(test_json_values.TEXTS, st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        "s": st.fixed_dictionaries({"b": st.booleans(), "u": st.integers(0, 2**64 - 1)}),
        "more": st.recursive(st.none() | st.booleans() | st.integers(), lambda inner: st.lists(inner, max_size=2)),
    },
)


class Number(str):
    """The text of a number."""

    __slots__ = ()


class NameTwiceError(Exception):
    """A name comes twice in an object: the last one counts, but each must fit."""


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise NameTwiceError
    return made


def no_constant(text: str) -> Any:
    raise ValueError(text)


def typed(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Python's json in a column. ValueError, OverflowError: it does not fit."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [typed(each, kind.value_type) for each in value]
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {key: typed(each, kind.item_type) for key, each in value.items()}
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_string(kind) and type(value) is str:
        return value
    if isinstance(value, Number) and pa.types.is_floating(kind) and not math.isinf(float(value)):
        return float(value)
    if isinstance(value, Number) and pa.types.is_integer(kind):
        whole = test_json_values.exact(value)
        low, high = (-128, 128) if kind == pa.int8() else (0, 2**64)
        if whole is not None and low <= whole < high:
            return whole
    raise ValueError(value)


@given(JSON_VALUES, st.booleans(), st.data())
def test_damaged_json(value: dict[str, Any], is_ascii: bool, data: st.DataObject) -> None:
    written = json.dumps(value, ensure_ascii=is_ascii).encode(errors="replace")
    text = data.draw(damaged(written))
    row, reason = found_in(json_decoder(json_plan(JSON)), text)
    try:
        parsed = json.loads(
            text.decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=no_constant,
            object_pairs_hook=members,
        )
        if not isinstance(parsed, dict):
            raise ValueError(parsed)
        expected = typed(parsed, pa.struct(list(JSON)))
        json.dumps(parsed, ensure_ascii=False).encode()
    except NameTwiceError:
        return
    except (ValueError, OverflowError, RecursionError):
        assert reason is not None
        return
    assert reason is None
    if row["m"] is not None:
        row["m"] = dict(row["m"])
    assert exact(row) == exact(expected)


# Thrift

INNER = typed_values.struct("Inner", Field(1, "n", scalar("i16")), Field(2, "t", scalar("string")))
THRIFT = program(
    COLOR,
    INNER,
    typed_values.struct(
        "T",
        Field(1, "flag", scalar("bool")),
        Field(2, "small", scalar("i8")),
        Field(3, "whole", scalar("i32"), Requiredness.REQUIRED),
        Field(4, "long", scalar("i64")),
        Field(5, "real", scalar("double")),
        Field(6, "text", scalar("string")),
        Field(7, "bytes", scalar("binary")),
        Field(8, "color", Reference("Color")),
        Field(9, "inner", Reference("Inner")),
        Field(20, "all", ListOf(Reference("Inner"))),
        Field(21, "flags", SetOf(scalar("bool"))),
        Field(22, "by", MapOf(scalar("i32"), scalar("string"))),
    ),
)
READS = {
    TType.BOOL: "readBool",
    TType.BYTE: "readByte",
    TType.I16: "readI16",
    TType.I32: "readI32",
    TType.I64: "readI64",
    TType.DOUBLE: "readDouble",
}


class OtherElementsError(Exception):
    """Elements of a list, set or map are of another type than the contract says."""


def read(protocol: Any, of: Program, type_: Type) -> Any:
    """Read a value by Apache thrift's protocol, as its generated code does. OtherElementsError."""
    _, what = of.resolve(type_)
    if isinstance(what, Scalar):
        if what.kind == "string":
            return protocol.readBinary().decode()
        if what.kind == "binary":
            return protocol.readBinary()
        return getattr(protocol, READS[thrift_type(of, type_)])()
    if isinstance(what, Enum):
        number = protocol.readI32()
        return COLORS.get(number, str(number))
    if isinstance(what, ListOf | SetOf):
        kind, size = protocol.readListBegin() if isinstance(what, ListOf) else protocol.readSetBegin()
        if size and kind != thrift_type(of, what.element):
            raise OtherElementsError
        items = [read(protocol, of, what.element) for _ in range(size)]
        _ = protocol.readListEnd() if isinstance(what, ListOf) else protocol.readSetEnd()
        return items
    if isinstance(what, MapOf):
        key, value, size = protocol.readMapBegin()
        if size and (key, value) != (thrift_type(of, what.key), thrift_type(of, what.value)):
            raise OtherElementsError
        pairs = [(read(protocol, of, what.key), read(protocol, of, what.value)) for _ in range(size)]
        protocol.readMapEnd()
        return pairs
    fields = {field.id: field for field in what.fields}
    made: Any = dict.fromkeys(field.name for field in what.fields)
    protocol.readStructBegin()
    while True:
        _, kind, number = protocol.readFieldBegin()
        if kind == TType.STOP:
            break
        field = fields.get(number)
        if field is None or kind != thrift_type(of, field.type):
            protocol.skip(kind)
        else:
            made[field.name] = read(protocol, of, field.type)
        protocol.readFieldEnd()
    protocol.readStructEnd()
    if any(field.requiredness is Requiredness.REQUIRED and made[field.name] is None for field in what.fields):
        raise ValueError("a required field is missing")
    return made


THRIFT_LENIENT = (Reason.NUMBER, Reason.SIZE, Reason.EXPANDS, Reason.WIRE_TYPE, Reason.DEEP)


@given(typed_values.values(THRIFT, Reference("T")), st.sampled_from(ThriftProtocol), st.data())
def test_damaged_thrift(made: tuple[Any, Any], name: ThriftProtocol, data: st.DataObject) -> None:
    text = data.draw(damaged(thrift_bytes(THRIFT, Reference("T"), made[0], name, None)))
    row, reason = found_in(thrift_decoder(thrift_plan(THRIFT, "T"), name), text)
    if reason in THRIFT_LENIENT:
        return
    _, written = protocol_of(name)
    transport = TMemoryBuffer(text)
    protocol = type(written)(transport)
    protocol.readString = protocol.readBinary  # for what is skipped, which may be either
    try:
        expected = read(protocol, THRIFT, Reference("T"))
    except OtherElementsError:  # elements of another type: the rule of what becomes of them is ours
        return
    except Exception:  # noqa: BLE001 (it raises whatever comes)
        assert reason is not None
        return
    if transport.read(1):
        assert reason is not None
        return
    assert reason is None
    assert exact(row) == exact(expected)
