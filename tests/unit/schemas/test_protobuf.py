"""Protobuf messages as typed columns; Google's library is the oracle."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from penstock.idl.model import Enum, EnumValue, Field, ListOf, Literal, MapOf, Reference, Requiredness
from penstock.schemas.decoding import Decoded, Reason, ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import EnumStyle, SchemaError
from penstock.schemas.protobuf import protobuf_decoder, protobuf_plan
from tests.typed_values import program, scalar, struct

NUMBERS = {
    "int32": ("i32", st.integers(-(2**31), 2**31 - 1)),
    "sint32": ("i32", st.integers(-(2**31), 2**31 - 1)),
    "sfixed32": ("i32", st.integers(-(2**31), 2**31 - 1)),
    "int64": ("i64", st.integers(-(2**63), 2**63 - 1)),
    "sint64": ("i64", st.integers(-(2**63), 2**63 - 1)),
    "sfixed64": ("i64", st.integers(-(2**63), 2**63 - 1)),
    "uint32": ("u32", st.integers(0, 2**32 - 1)),
    "fixed32": ("u32", st.integers(0, 2**32 - 1)),
    "uint64": ("u64", st.integers(0, 2**64 - 1)),
    "fixed64": ("u64", st.integers(0, 2**64 - 1)),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "bool": ("bool", st.booleans()),
}
ALL = {**NUMBERS, "string": ("string", st.text(max_size=5)), "bytes": ("binary", st.binary(max_size=5))}
ZEROS = {"float": 0.0, "double": 0.0, "bool": False, "string": "", "bytes": b""}
COLOR = Enum("Color", (EnumValue("NONE", 0), EnumValue("RED", 1), EnumValue("ROUGE", 1), EnumValue("DARK", -2)))
INNER = struct("Inner", Field(1, "n", scalar("i32"), encoding="int32"), Field(2, "all", ListOf(scalar("string"))))

PROGRAM = program(
    COLOR,
    INNER,
    struct(
        "All",
        *(
            Field(10 + place, f"one_{name}", scalar(kind), encoding=name)
            for place, (name, (kind, _)) in enumerate(ALL.items())
        ),
        *(
            Field(40 + place, f"opt_{name}", scalar(kind), Requiredness.OPTIONAL, encoding=name)
            for place, (name, (kind, _)) in enumerate(ALL.items())
        ),
        *(
            Field(70 + place, f"all_{name}", ListOf(scalar(kind)), encoding=name)
            for place, (name, (kind, _)) in enumerate(ALL.items())
        ),
        Field(1, "inner", Reference("Inner")),
        Field(2, "inners", ListOf(Reference("Inner"))),
        Field(3, "color", Reference("Color")),
        Field(4, "colors", ListOf(Reference("Color"))),
        Field(5, "by_name", MapOf(scalar("string"), Reference("Inner"))),
        Field(6, "by_number", MapOf(scalar("i32"), scalar("u64")), encoding="map<sint32, fixed64>"),
        Field(536870911, "last", scalar("bool")),
    ),
)


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    """The same messages for Google's library, in proto3."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3", package="t")
    color = file.enum_type.add(name="Color")
    color.options.allow_alias = True
    for each in COLOR.values:
        color.value.add(name=each.name, number=each.number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=5, label=1)
    inner.field.add(name="all", number=2, type=9, label=3)
    every = file.message_type.add(name="All")
    kind = descriptor_pb2.FieldDescriptorProto.Type.Value
    for place, name in enumerate(ALL):
        number = kind(f"TYPE_{name.upper()}")
        every.field.add(name=f"one_{name}", number=10 + place, type=number, label=1)
        every.oneof_decl.add(name=f"_opt_{name}")
        every.field.add(
            name=f"opt_{name}", number=40 + place, type=number, label=1, proto3_optional=True, oneof_index=place
        )
        every.field.add(name=f"all_{name}", number=70 + place, type=number, label=3)
    every.field.add(name="inner", number=1, type=11, type_name=".t.Inner", label=1)
    every.field.add(name="inners", number=2, type=11, type_name=".t.Inner", label=3)
    every.field.add(name="color", number=3, type=14, type_name=".t.Color", label=1)
    every.field.add(name="colors", number=4, type=14, type_name=".t.Color", label=3)
    for number, name, entry, parts in (
        (5, "by_name", "ByNameEntry", ({"type": 9}, {"type": 11, "type_name": ".t.Inner"})),
        (6, "by_number", "ByNumberEntry", ({"type": 17}, {"type": 6})),
    ):
        pair = every.nested_type.add(name=entry)
        pair.options.map_entry = True
        for place, (part, of) in enumerate(zip(("key", "value"), parts, strict=True), 1):
            pair.field.add(name=part, number=place, label=1, **of)
        every.field.add(name=name, number=number, type=11, type_name=f".t.All.{entry}", label=3)
    every.field.add(name="last", number=536870911, type=8, label=1)
    return file


def message_class(name: str, file: descriptor_pb2.FileDescriptorProto | None = None) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file or descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))


ALL_CLASS = message_class("All")
INNERS = st.fixed_dictionaries({}, optional={"n": ALL["int32"][1], "all": st.lists(st.text(max_size=3), max_size=3)})
COLORS = st.sampled_from([0, 1, -2, 7])
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{f"one_{name}": values for name, (_, values) in ALL.items()},
        **{f"opt_{name}": values for name, (_, values) in ALL.items()},
        **{f"all_{name}": st.lists(values, max_size=3) for name, (_, values) in ALL.items()},
        "inner": INNERS,
        "inners": st.lists(INNERS, max_size=3),
        "color": COLORS,
        "colors": st.lists(COLORS, max_size=3),
        "by_name": st.dictionaries(st.text(max_size=3), INNERS, max_size=3),
        "by_number": st.dictionaries(ALL["sint32"][1], ALL["fixed64"][1], max_size=3),
        "last": st.booleans(),
    },
)


def inner_of(value: dict[str, Any]) -> dict[str, Any]:
    return {"n": 0, "all": [], **value}


def color_of(number: int) -> str:
    return {0: "NONE", 1: "RED", -2: "DARK"}.get(number, str(number))


def expected(message: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ALL:
        row[f"one_{name}"] = message.get(f"one_{name}", ZEROS.get(name, 0))
        row[f"opt_{name}"] = message.get(f"opt_{name}")
        row[f"all_{name}"] = message.get(f"all_{name}", [])
    row["inner"] = inner_of(message["inner"]) if "inner" in message else None
    row["inners"] = [inner_of(each) for each in message.get("inners", [])]
    row["color"] = color_of(message.get("color", 0))
    row["colors"] = [color_of(each) for each in message.get("colors", [])]
    row["by_name"] = {key: inner_of(each) for key, each in message.get("by_name", {}).items()}
    row["by_number"] = message.get("by_number", {})
    row["last"] = message.get("last", False)
    return row


def decode(values: list[bytes | None], name: str = "All", **options: Any) -> Decoded:
    found = protobuf_decoder(protobuf_plan(PROGRAM, name), **options).decode(pa.array(values, pa.binary()))
    found.columns.validate(full=True)
    return found


def rows(found: Decoded) -> list[Any]:
    made = found.columns.to_pylist()
    for row in made:
        if row is not None:
            row |= {name: dict(row[name]) for name in ("by_name", "by_number")}
    return made


@given(st.lists(MESSAGES, max_size=3))
def test_what_googles_library_writes_is_read(messages: list[dict[str, Any]]) -> None:
    found = decode([ALL_CLASS(**message).SerializeToString() for message in messages])
    assert found.refused.count == 0
    assert rows(found) == [expected(message) for message in messages]


@given(MESSAGES, MESSAGES)
def test_messages_end_to_end_are_merged(one: dict[str, Any], other: dict[str, Any]) -> None:
    joined = ALL_CLASS(**one).SerializeToString() + ALL_CLASS(**other).SerializeToString()
    merged = ALL_CLASS.FromString(joined)
    (row,) = rows(decode([joined]))
    assert row == rows(decode([merged.SerializeToString()]))[0]
    if "inner" in one and "inner" in other:
        assert row["inner"]["all"] == one["inner"].get("all", []) + other["inner"].get("all", [])


@given(MESSAGES)
def test_a_prefix_is_what_googles_library_takes_it_for(message: dict[str, Any]) -> None:
    whole = ALL_CLASS(**message).SerializeToString()
    parts: list[bytes | None] = [whole[:end] for end in range(len(whole))]
    codes = decode(parts).refused.codes.to_pylist()
    for part, code in zip(parts, codes, strict=True):
        try:
            ALL_CLASS.FromString(part)
        except Exception:  # noqa: BLE001 (DecodeError of any of its implementations)
            assert code
        else:
            assert not code


def test_numbers_are_packed_or_not_and_unknown_fields_are_skipped() -> None:
    mixed = bytes((70 << 3 & 127 | 128, 70 >> 4, 5)) + bytes((70 << 3 & 127 | 2 | 128, 70 >> 4, 2, 6, 7))
    unknown = bytes((9 << 3 | 3, 8 << 3, 1, 7 << 3 | 2, 1, 65, 9 << 3 | 4))  # a group
    (row,) = rows(decode([unknown + mixed + unknown]))
    assert row["all_int32"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x08", Reason.ENDS),
        (b"\x0a\x05ab", Reason.ENDS),
        (b"\x00\x01", Reason.WIRE_TYPE),
        (b"\x0c", Reason.WIRE_TYPE),
        (b"\x4b\x54", Reason.WIRE_TYPE),
        (b"\x4f", Reason.WIRE_TYPE),
        (b"\x0a\xff\xff\xff\xff\x7f", Reason.SIZE),
        (b"\x80" * 11, Reason.NUMBER),
        (b"\x4b" * 100, Reason.DEEP),
        (b"\x0a\x04\x12\x02\xff\xff", Reason.ENCODING),
    ],
)
def test_bad_bytes_are_refused(value: bytes, reason: Reason) -> None:
    found = decode([value, b""])
    assert found.refused.codes.to_pylist() == [reason, 0]
    assert rows(found) == [None, expected({})]


def test_a_message_inside_itself_stays_encoded_and_is_merged() -> None:
    fields = [
        Field(1, "n", scalar("i32")),
        Field(2, "next", Reference("Node")),
        Field(3, "all", ListOf(Reference("Node"))),
    ]
    of = program(struct("Node", *fields))
    decoder = protobuf_decoder(protobuf_plan(of, "Node"))
    value = b"\x08\x01" + b"\x12\x02\x08\x02" + b"\x12\x02\x08\x03" + b"\x1a\x00" + b"\x1a\x02\x08\x04"
    (row,) = decoder.decode(pa.array([value])).columns.to_pylist()
    assert row == {"n": 1, "next": b"\x08\x02\x08\x03", "all": [b"", b"\x08\x04"]}


def choices() -> descriptor_pb2.FileDescriptorProto:
    """A message with two `oneof`s, whose members are numbers, texts and messages."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3", package="t")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=5, label=1)
    inner.field.add(name="all", number=2, type=9, label=3)
    of = file.message_type.add(name="Choices")
    of.oneof_decl.add(name="first")
    of.oneof_decl.add(name="second")
    message = {"type": 11, "type_name": ".t.Inner"}
    for number, name, kind, oneof in (
        (9, "text", {"type": 9}, 0),
        (2, "inner", message, 0),
        (3, "plain", message, None),
        (4, "zigzag", {"type": 17}, 0),
        (5, "number", {"type": 5}, 1),
        (6, "other", message, 1),
        (7, "itself", {"type": 11, "type_name": ".t.Choices"}, 0),
        (8, "count", {"type": 5}, None),
    ):
        of.field.add(name=name, number=number, label=1, **kind, **({} if oneof is None else {"oneof_index": oneof}))
    return file


CHOICES = choices()
CHOICES_CLASS = message_class("Choices", CHOICES)
CHOICES_PARTS = st.one_of(
    st.fixed_dictionaries({"text": st.text(max_size=3)}),
    st.fixed_dictionaries({"zigzag": st.integers(-5, 5)}),
    st.fixed_dictionaries({"number": st.integers(-5, 5)}),
    st.fixed_dictionaries({"count": st.integers(-5, 5)}),
    *(st.fixed_dictionaries({name: INNERS}) for name in ("inner", "plain", "other")),
    st.fixed_dictionaries({"itself": st.fixed_dictionaries({"number": st.integers(-5, 5)})}),
).map(lambda message: CHOICES_CLASS(**message).SerializeToString())
BROKEN = st.sampled_from(
    [
        b"\x4a\x01\xff",  # text that is not UTF-8
        b"\x12\x03\x12\x01\xff",  # a message with such a text
        b"\x12\x02\x08\x05\x12\x01\x08",  # a message that is cut
        b"\x48\x05",  # a number in place of the text: an unknown field
        b"\x28",
    ]
)


@given(st.lists(CHOICES_PARTS | BROKEN, max_size=8))
def test_the_last_member_of_a_oneof_counts(parts: list[bytes]) -> None:
    text = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[CHOICES]).SerializeToString()).decode()
    decoder = Schema(SchemaKind.PROTOBUF, text, type_name="Choices").decoder()
    value = b"".join(parts)
    found = decoder.decode(pa.array([value, b"", value]))
    found.columns.validate(full=True)
    try:
        message = CHOICES_CLASS.FromString(value)
    except DecodeError:
        assert [code != 0 for code in found.refused.codes.to_pylist()] == [True, False, True]
        return
    assert found.refused.count == 0
    row, empty, again = found.columns.to_pylist()
    assert row == again
    assert empty == {**dict.fromkeys(row), "count": 0}
    expected: dict[str, Any] = {
        name: getattr(message, name) if message.HasField(name) else None for name in row if name != "count"
    }
    for name in ("inner", "plain", "other"):
        if expected[name] is not None:
            expected[name] = {"n": expected[name].n, "all": list(expected[name].all)}
    assert (row["itself"] is None) == (expected["itself"] is None)
    if row["itself"] is not None:
        row["itself"] = CHOICES_CLASS.FromString(row["itself"])
    assert row == {**expected, "count": message.count}


def varint(number: int) -> bytes:
    return bytes((number & 127 | 128, number >> 7))


def test_messages_that_are_merged_on_every_level_are_refused_in_time() -> None:
    levels = 24
    kinds = [struct(f"M{level}", Field(1, "m", Reference(f"M{level + 1}"))) for level in range(levels)]
    of = program(*kinds, struct(f"M{levels}", Field(1, "n", scalar("i32"))))
    decoder = protobuf_decoder(protobuf_plan(of, "M0"))
    plain = nested = bytes((8, 5))
    for _ in range(levels):
        plain = bytes((10, len(plain))) + plain
        nested = bytes((10, len(nested))) + nested + bytes((10, 0))
    found = decoder.decode(pa.array([nested, plain], pa.binary()))
    assert found.refused.codes.to_pylist() == [Reason.EXPANDS, 0]


def test_an_entry_of_a_map_with_its_value_very_often_is_refused() -> None:
    wide = struct("Wide", *(Field(n, f"f{n}", scalar("i64")) for n in range(1, 1_001)))
    of = program(wide, struct("M", Field(1, "by", MapOf(scalar("i32"), Reference("Wide")))))
    entries = [bytes((18, 0)) * count for count in (64, 300)]
    values = [b"\x0a" + varint(len(entry)) + entry for entry in entries]
    found = protobuf_decoder(protobuf_plan(of, "M")).decode(pa.array(values, pa.binary()))
    assert found.refused.codes.to_pylist() == [0, Reason.EXPANDS]


def test_many_messages_of_zeros_are_read() -> None:
    wide = struct("Wide", *(Field(n, f"f{n}", scalar("i64")) for n in range(1, 101)))
    of = program(wide, struct("M", Field(1, "all", ListOf(Reference("Wide")))))
    found = protobuf_decoder(protobuf_plan(of, "M")).decode(pa.array([bytes((10, 0)) * 5_000]))
    assert found.refused.codes.to_pylist() == [0]
    assert found.columns[0]["all"][4_999]["f100"].as_py() == 0


def test_confluent_indexes_are_skipped() -> None:
    message = ALL_CLASS(one_int32=5).SerializeToString()
    values = [b"\0\0\0\0\1" + indexes + message for indexes in (b"\0", b"\2\4", b"\4\2\2", b"\x7e")]
    found = decode(values, framing=ValueFraming.CONFLUENT)
    assert found.refused.codes.to_pylist() == [0, 0, 0, Reason.FRAME]
    assert [row and row["one_int32"] for row in rows(found)] == [5, 5, 5, None]


def test_a_required_field_and_a_default_of_proto2() -> None:
    fields = [
        Field(1, "n", scalar("i32"), Requiredness.REQUIRED),
        Field(2, "t", scalar("string"), Requiredness.OPTIONAL, default=Literal("x")),
    ]
    decoder = protobuf_decoder(protobuf_plan(program(struct("M", *fields)), "M"))
    found = decoder.decode(pa.array([b"\x08\x01", b"", b"\x08\x01\x12\x00"]))
    assert found.columns.to_pylist() == [{"n": 1, "t": "x"}, None, {"n": 1, "t": ""}]
    assert found.refused.first == ((1, Reason.MISSING),)


def test_schemas_that_protobuf_does_not_have() -> None:
    for kind, encoding in (
        (scalar("i16"), ""),
        (scalar("i32"), "fixed64"),
        (scalar("i32"), "huge"),
        (ListOf(ListOf(scalar("i32"))), ""),
        (MapOf(scalar("i32"), ListOf(scalar("i32"))), ""),
    ):
        with pytest.raises(SchemaError, match="f: "):
            protobuf_plan(program(struct("M", Field(1, "f", kind, encoding=encoding))), "M")
    with pytest.raises(SchemaError, match="no message 'Color'"):
        protobuf_plan(PROGRAM, "Color", EnumStyle.STRING)
    with pytest.raises(SchemaError, match="not framed"):
        protobuf_decoder(protobuf_plan(PROGRAM, "All"), ValueFraming.FRUGAL)
