"""Thrift and Frugal values as typed columns; what Apache thrift encodes is the oracle."""

from __future__ import annotations

import random
import struct as struct_module
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TCompactProtocol import CONTAINER_WRITE
from thrift.Thrift import TMessageType, TType

from penstock.hot.typed_columns import CELLS_PER_BYTE, FREE_CELLS
from penstock.idl.model import (
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    Field,
    ListOf,
    Literal,
    MapOf,
    Program,
    Reference,
    Requiredness,
    SetOf,
    StructKind,
    Typedef,
)
from penstock.schemas.decoding import Decoded, Reason, ValueFraming
from penstock.schemas.plans import EnumStyle, SchemaError
from penstock.schemas.thrift import ThriftProtocol, thrift_decoder, thrift_plan
from tests.typed_values import COLOR, Sample, contracts, program, protocol_of, scalar, struct, thrift_bytes, write

BOTH = st.sampled_from(ThriftProtocol)
POINT = struct("Point", Field(1, "x", scalar("i32")), Field(2, "y", scalar("i32")))
each_protocol = pytest.mark.parametrize("protocol", ThriftProtocol)


def decode(of: Program, type_: Any, values: list[bytes | None], **options: Any) -> Decoded:
    found = thrift_decoder(thrift_plan(of, type_), **options).decode(pa.array(values, pa.binary()))
    found.columns.validate(full=True)
    return found


def framed(sample: Sample, protocol: ThriftProtocol, headers: bytes = b"", name: str = "op") -> bytes:
    buffer, out = protocol_of(protocol)
    out.writeMessageBegin(name, TMessageType.CALL, 0)
    if sample.type == scalar("bool") and protocol is ThriftProtocol.COMPACT:
        out.state = CONTAINER_WRITE  # Python's library knows no booleans outside of structs and lists
    write(out, sample.program, sample.type, sample.value, None)
    message = struct_module.pack(">bi", 0, len(headers)) + headers + buffer.getvalue()
    return struct_module.pack(">i", len(message)) + message


def encoded(of: Program, name: str, value: Any, protocol: ThriftProtocol = ThriftProtocol.BINARY) -> bytes:
    return thrift_bytes(of, Reference(name), value, protocol, None)


def of_frame(found: Decoded, sample: Sample) -> Any:
    (row,) = found.columns.to_pylist()
    is_struct = isinstance(sample.expected, dict)
    return row if is_struct else row["value"]


@given(contracts(), BOTH, st.integers(0, 3))
def test_what_apache_thrift_writes_is_read(samples: list[Sample], protocol: ThriftProtocol, seed: int) -> None:
    (sample,) = samples
    found = decode(
        sample.program, sample.type, [framed(sample, protocol)], protocol=protocol, framing=ValueFraming.FRUGAL
    )
    assert found.refused.count == 0, found.refused.first
    assert of_frame(found, sample) == sample.expected
    if isinstance(sample.expected, dict):
        bare = thrift_bytes(sample.program, sample.type, sample.value, protocol, random.Random(seed))
        found = decode(sample.program, sample.type, [bare], protocol=protocol)
        assert found.columns.to_pylist() == [sample.expected]


@given(contracts(), BOTH)
def test_a_prefix_or_more_than_a_message_is_refused(samples: list[Sample], protocol: ThriftProtocol) -> None:
    (sample,) = samples
    whole = framed(sample, protocol)
    parts: list[bytes | None] = [whole[:end] for end in range(len(whole))]
    found = decode(sample.program, sample.type, parts, protocol=protocol, framing=ValueFraming.FRUGAL)
    assert found.refused.count == len(parts)
    assert found.columns.null_count == len(parts)
    bare = whole[4:]
    message = bare[5:]
    found = decode(
        sample.program,
        sample.type,
        [message, message + b"\0", *(message[:end] for end in range(len(message)))],
        protocol=protocol,
        framing=ValueFraming.MESSAGE,
    )
    assert found.refused.codes.to_pylist()[:2] == [0, Reason.TRAILING]
    assert found.refused.count == len(message) + 1


@given(contracts(), contracts(), BOTH)
def test_a_value_of_another_contract_is_null_or_read(
    samples: list[Sample], others: list[Sample], protocol: ThriftProtocol
) -> None:
    value = framed(samples[0], protocol)
    found = decode(others[0].program, others[0].type, [value], protocol=protocol, framing=ValueFraming.FRUGAL)
    assert len(found.columns) == 1


@each_protocol
def test_rows_stay_in_order_and_tombstones_are_null(protocol: ThriftProtocol) -> None:
    of = program(POINT)
    values = [encoded(of, "Point", {"x": n, "y": -n}, protocol) for n in range(3)]
    chunks = pa.chunked_array([pa.array([values[0], None, b"\7"], pa.binary()), pa.array([*values[1:], b""])])
    found = thrift_decoder(thrift_plan(of, "Point"), protocol).decode(chunks)
    assert found.columns.num_chunks == 2
    rows = [{"x": 0, "y": 0}, None, None, {"x": 1, "y": -1}, {"x": 2, "y": -2}, None]
    assert found.columns.to_pylist() == rows
    assert found.refused.count == 2
    assert found.refused.first == ((2, Reason.ENDS), (5, Reason.ENDS))
    assert found.refused.codes.to_pylist() == [0, 0, 1, 0, 0, 1]
    assert found.refused.reasons().to_pylist() == [None, None, Reason.ENDS.text, None, None, Reason.ENDS.text]
    table = found.table()
    assert table.column("x").to_pylist() == [0, None, None, 1, 2, None]
    assert table.schema == thrift_decoder(thrift_plan(of, "Point")).schema


def test_any_binary_type_and_slices_are_read() -> None:
    of = program(POINT)
    values = [encoded(of, "Point", {"x": n, "y": 7}) for n in range(20)]
    decoder = thrift_decoder(thrift_plan(of, "Point"))
    expected = [{"x": n, "y": 7} for n in range(11, 15)]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.binary(len(values[0]))):
        array = pa.array(values, pa.binary()).cast(kind) if kind != pa.binary(15) else pa.array(values, kind)
        assert decoder.decode(array.slice(11, 4)).columns.to_pylist() == expected
    nulls = pa.array([None, *values], pa.binary())
    assert decoder.decode(nulls.slice(12, 4)).columns.to_pylist() == expected
    assert decoder.decode(pa.nulls(2)).columns.to_pylist() == [None, None]
    assert decoder.decode(pa.array([], pa.binary())).columns.type == pa.struct(list(decoder.schema))
    assert decoder.decode(pa.chunked_array([], pa.binary())).table().num_rows == 0
    with pytest.raises(ValueError, match="int64 cannot be decoded"):
        decoder.decode(pa.array([1]))


def test_offsets_beyond_the_data_are_an_error() -> None:
    decoder = thrift_decoder(thrift_plan(program(POINT), "Point"))
    for row, offsets in enumerate(([0, 9, 8], [1, 5, 4], [-3, 0, 1])):
        buffers = [None, pa.py_buffer(struct_module.pack("<3i", *offsets)), pa.py_buffer(b"12345678")]
        with pytest.raises(ValueError, match=f"value {row % 2} of the array is from|[Oo]ffset"):
            decoder.decode(pa.Array.from_buffers(pa.binary(), 2, buffers))


def test_fields_of_other_types_are_missing() -> None:
    wide = program(
        POINT,
        struct(
            "Old",
            Field(1, "a", scalar("i64")),
            Field(2, "b", ListOf(ListOf(scalar("i64")))),
            Field(3, "c", SetOf(scalar("string"))),
            Field(4, "d", MapOf(scalar("string"), ListOf(Reference("Point")))),
            Field(5, "e", Reference("Point")),
            Field(6, "f", scalar("bool")),
            Field(7, "g", scalar("uuid")),
            Field(8, "h", scalar("double")),
            Field(9, "kept", scalar("i8")),
        ),
    )
    narrow = program(
        struct(
            "New",
            Field(1, "a", scalar("i32")),
            Field(2, "b", ListOf(ListOf(scalar("i32")))),
            Field(4, "d", MapOf(scalar("string"), ListOf(scalar("bool")))),
            Field(9, "kept", scalar("i8")),
        )
    )
    value = {
        "a": 1,
        "b": [[1], [], [2, 3]],
        "c": ["x"],
        "d": [("k", [{"x": 1}]), ("l", [])],
        "e": {"x": 1, "y": 2},
        "f": True,
        "g": uuid.UUID(int=5),
        "h": 0.5,
        "kept": 7,
    }
    for protocol in ThriftProtocol:
        found = decode(narrow, "New", [encoded(wide, "Old", value, protocol)], protocol=protocol)
        row: Any = {"a": None, "b": [None, [], None], "d": [("k", None), ("l", [])], "kept": 7}
        assert found.columns.to_pylist() == [row]


def test_of_a_field_that_comes_twice_the_last_counts() -> None:
    fields = [Field(1, "text", scalar("string")), Field(2, "points", ListOf(Reference("Point")))]
    of = program(POINT, struct("Once", *fields))
    one = encoded(of, "Once", {"text": "first", "points": [{"x": 1}, {"y": 2}]})
    other = encoded(of, "Once", {"text": "", "points": [{"y": 3}]})
    found = decode(of, "Once", [one[:-1] + other, one])
    assert found.columns.to_pylist() == [
        {"text": "", "points": [{"x": None, "y": 3}]},
        {"text": "first", "points": [{"x": 1, "y": None}, {"x": None, "y": 2}]},
    ]


def test_missing_fields_have_their_defaults() -> None:
    base = program(Constant("LIMIT", scalar("i16"), Literal(12)), COLOR, file="base.frugal")
    lists = ConstantList((Literal("a"), ConstantName("NAME")))
    fields = [
        Field(1, "b", scalar("bool"), default=Literal(True)),
        Field(2, "i", scalar("i16"), default=ConstantName("base.LIMIT")),
        Field(3, "d", scalar("double"), default=Literal(3)),
        Field(4, "s", scalar("string"), Requiredness.OPTIONAL, default=ConstantName("NAME")),
        Field(5, "e", Reference("base.Color"), default=ConstantName("base.Color.GREEN")),
        Field(6, "l", ListOf(scalar("string")), default=lists),
        Field(7, "m", MapOf(scalar("i32"), scalar("bool")), default=ConstantMap(((Literal(4), Literal(False)),))),
        Field(8, "p", Reference("Point"), default=ConstantMap(((ConstantName("y"), Literal(9)),))),
        Field(9, "u", scalar("uuid"), default=Literal("00000000-0000-4000-8000-0123456789ab")),
        Field(10, "r", Reference("Count"), Requiredness.REQUIRED, default=Literal(-1)),
        Field(11, "n", scalar("i64")),
        Field(12, "o", scalar("i64"), default=ConstantName("base.Color.DARK")),
    ]
    name = Constant("NAME", scalar("string"), Literal("naïve"))
    of = program(POINT, Typedef("Count", scalar("i64")), name, struct("D", *fields), includes={"base": base})
    expected = {
        "b": True,
        "i": 12,
        "d": 3.0,
        "s": "naïve",
        "e": "GREEN",
        "l": ["a", "naïve"],
        "m": [(4, False)],
        "p": {"x": None, "y": 9},
        "u": "00000000-0000-4000-8000-0123456789ab",
        "r": -1,
        "n": None,
        "o": -2,
    }
    for protocol in ThriftProtocol:
        found = decode(of, "D", [b"\0", encoded(of, "D", {"n": 3, "b": False}, protocol)], protocol=protocol)
        assert found.columns.to_pylist() == [expected, {**expected, "n": 3, "b": False}]


@each_protocol
def test_a_row_without_a_required_field_is_refused(protocol: ThriftProtocol) -> None:
    inner = struct("Inner", Field(1, "x", scalar("i32"), Requiredness.REQUIRED))
    of = program(inner, struct("Outer", Field(1, "all", ListOf(Reference("Inner"))), Field(2, "n", scalar("i8"))))
    good = encoded(of, "Outer", {"n": 1, "all": [{"x": 1}, {"x": 2}]}, protocol)
    bad = encoded(of, "Outer", {"n": 1, "all": [{"x": 1}, {}]}, protocol)
    found = decode(of, "Outer", [bad, good, bad, good], protocol=protocol)
    assert found.refused.first == ((0, Reason.MISSING), (2, Reason.MISSING))
    row = {"n": 1, "all": [{"x": 1}, {"x": 2}]}
    assert found.columns.to_pylist() == [None, row, None, row]


def test_enums_by_style() -> None:
    of = program(COLOR, struct("C", Field(1, "c", Reference("Color"))))
    values = pa.array([encoded(of, "C", {"c": n} if n else {}) for n in (1, 17, -2, 0, 17)], pa.binary())
    kinds = {EnumStyle.DICTIONARY: pa.dictionary(pa.int32(), pa.string()), EnumStyle.STRING: pa.string()}
    for style, kind in kinds.items():
        column = thrift_decoder(thrift_plan(of, "C", style)).decode(values).table().column("c")
        assert column.type == kind
        assert column.to_pylist() == ["RED", "17", "DARK", None, "17"]
    column = thrift_decoder(thrift_plan(of, "C", EnumStyle.NUMBER)).decode(values).table().column("c")
    assert column.type == pa.int32()
    assert column.to_pylist() == [1, 17, -2, None, 17]


def test_a_union_is_a_struct_in_which_one_field_is_set() -> None:
    fields = [Field(1, "a", scalar("i32")), Field(2, "b", scalar("string"), default=Literal("x"))]
    of = program(struct("U", *fields, kind=StructKind.UNION))
    found = decode(of, "U", [encoded(of, "U", {"a": 5}), encoded(of, "U", {"b": "y"}), b"\0"])
    assert found.columns.to_pylist() == [{"a": 5, "b": None}, {"a": None, "b": "y"}, {"a": None, "b": None}]


@each_protocol
def test_a_type_inside_itself_stays_encoded(protocol: ThriftProtocol) -> None:
    fields = [Field(1, "n", scalar("i32")), Field(2, "next", Reference("Node"), Requiredness.OPTIONAL)]
    of = program(struct("Node", *fields, Field(3, "all", ListOf(Reference("Node")))))
    inner = {"n": 2, "next": {"n": 3}}
    found = decode(
        of, "Node", [encoded(of, "Node", {"n": 1, "next": inner, "all": [inner, {}]}, protocol)], protocol=protocol
    )
    raw = encoded(of, "Node", inner, protocol)
    assert found.columns.to_pylist() == [{"n": 1, "next": raw, "all": [raw, b"\0"]}]
    assert decode(of, "Node", [raw], protocol=protocol).columns.to_pylist()[0]["n"] == 2


def test_frames_of_other_operations_versions_and_sizes_are_refused() -> None:
    of = program(POINT)
    sample = Sample(of, Reference("Point"), {"x": 1}, {"x": 1, "y": None})
    headers = struct_module.pack(">i", 4) + b"_cid" + struct_module.pack(">i", 2) + b"c1"
    for protocol in ThriftProtocol:
        good = framed(sample, protocol, headers, "Made")
        values = [good, framed(sample, protocol, headers, "Gone"), good[:4] + b"\1" + good[5:], good + b"\0"]
        found = decode(of, "Point", values, protocol=protocol, framing=ValueFraming.FRUGAL, name="Made")
        reasons = [0, Reason.NAME, Reason.FRAME, Reason.FRAME]
        assert found.refused.codes.to_pylist() == reasons
        assert found.columns.to_pylist() == [sample.expected, None, None, None]


def test_a_confluent_header_is_skipped() -> None:
    of = program(POINT)
    value = encoded(of, "Point", {"x": 1, "y": 2})
    values = [b"\0\0\0\0\7" + value, b"\1\0\0\0\7" + value, b"\0\0\0", value]
    found = decode(of, "Point", values, framing=ValueFraming.CONFLUENT)
    assert found.columns.to_pylist()[0] == {"x": 1, "y": 2}
    assert found.refused.codes.to_pylist() == [0, Reason.FRAME, Reason.FRAME, Reason.FRAME]


def test_text_that_is_not_utf8_is_refused() -> None:
    of = program(struct("T", Field(1, "t", scalar("string"))))
    head = struct_module.pack(">bh", TType.STRING, 1)
    bad = [
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"12345678\x80",
        b"\xf0\x8f\xbf\xbf",
    ]
    good = ["é", "\N{PILE OF POO}" * 5, "\ud7ff", "\ue000", "\U0010ffff", "x" * 8 + "é"]
    texts = bad + [text.encode() for text in good]
    values = [head + struct_module.pack(">i", len(text)) + text + b"\0" for text in texts]
    found = decode(of, "T", values)
    assert found.refused.codes.to_pylist() == [Reason.ENCODING] * len(bad) + [0] * len(good)
    assert found.table().column("t").to_pylist()[len(bad) :] == good


def test_sizes_that_no_message_has_are_refused_before_memory_is_taken() -> None:
    fields = [Field(1, "l", ListOf(scalar("bool"))), Field(2, "m", MapOf(scalar("i8"), scalar("i8")))]
    of = program(struct("B", *fields, Field(3, "t", scalar("string"))))
    for size, reason in ((2**31 - 1, Reason.ENDS), (-1, Reason.SIZE)):
        values = [
            struct_module.pack(">bhbi", TType.LIST, 1, TType.BOOL, size),
            struct_module.pack(">bhbbi", TType.MAP, 2, TType.BYTE, TType.BYTE, size),
            struct_module.pack(">bhi", TType.STRING, 3, size),
            struct_module.pack(">bhbi", TType.LIST, 9, TType.STRUCT, size),
            struct_module.pack(">bhi", TType.STRING, 9, size),
        ]
        assert decode(of, "B", [value + b"\0" for value in values]).refused.codes.to_pylist() == [reason] * 5


def test_a_value_of_many_more_cells_than_bytes_is_refused() -> None:
    wide = struct("Wide", *(Field(n, f"f{n}", scalar("i64")) for n in range(1, 1_001)))
    of = program(wide, struct("Bomb", Field(1, "all", ListOf(Reference("Wide")))))

    def bomb(count: int) -> bytes:
        return struct_module.pack(">bhbi", TType.LIST, 1, TType.STRUCT, count) + bytes(count + 1)

    allowed = FREE_CELLS // (1_001 - CELLS_PER_BYTE)
    found = decode(of, "Bomb", [bomb(allowed), bomb(2 * allowed), bomb(100_000)])
    assert found.refused.codes.to_pylist() == [0, Reason.EXPANDS, Reason.EXPANDS]


def test_long_defaults_count_as_cells() -> None:
    fields = [Field(1, "t", scalar("string"), default=Literal("x" * 1_000)), Field(2, "n", scalar("i64"))]
    of = program(struct("D", *fields), struct("All", Field(1, "all", ListOf(Reference("D")))))
    values = [encoded(of, "All", {"all": [{"n": 1}] * count}) for count in (50, 5_000)]
    assert decode(of, "All", values).refused.codes.to_pylist() == [0, Reason.EXPANDS]


@each_protocol
def test_a_field_that_comes_very_often_is_refused(protocol: ThriftProtocol) -> None:
    wide = struct("Wide", *(Field(n, f"f{n}", scalar("i64")) for n in range(1, 1_001)))
    of = program(wide, struct("Often", Field(1, "one", Reference("Wide"))))
    once = encoded(of, "Often", {"one": {}}, protocol)[:-1]
    if protocol is ThriftProtocol.COMPACT:
        once = b"\x0c\x02\x00"  # the number of the field is written out, not the step to it
    found = decode(of, "Often", [once * 50 + b"\0", once * 300 + b"\0"], protocol=protocol)
    assert found.refused.codes.to_pylist() == [0, Reason.EXPANDS]


def test_nesting_is_bounded_where_values_are_skipped() -> None:
    of = program(POINT)
    deep = struct_module.pack(">bh", TType.STRUCT, 9)
    values = [deep * depth + bytes(depth + 1) for depth in (1, 63, 64, 65, 100_000)]
    assert decode(of, "Point", values).refused.codes.to_pylist() == [0, 0, 0, Reason.DEEP, Reason.DEEP]
    lists = b"\x99" + b"\x19" * 100_000
    assert decode(of, "Point", [lists], protocol=ThriftProtocol.COMPACT).refused.count == 1


def test_compact_numbers_beyond_their_types_are_refused() -> None:
    of = program(struct("N", Field(1, "a", scalar("i16")), Field(2, "b", scalar("i32")), Field(3, "c", scalar("i64"))))

    def number(field: int, kind: int, varint: str) -> bytes:
        return bytes((field << 4 | kind,)) + bytes.fromhex(varint) + b"\0"

    values = [
        number(1, 4, "feff03"),
        number(1, 4, "808004"),
        number(2, 5, "feffffff0f"),
        number(2, 5, "8080808010"),
        number(3, 6, "ffffffffffffffffff01"),
        number(3, 6, "ffffffffffffffffff02"),
        number(3, 6, "ffffffffffffffffffff01"),
    ]
    found = decode(of, "N", values, protocol=ThriftProtocol.COMPACT)
    number_reason = Reason.NUMBER
    assert found.refused.codes.to_pylist() == [0, number_reason, 0, number_reason, 0, number_reason, number_reason]
    assert found.table().column("a")[0].as_py() == 2**15 - 1
    assert found.table().column("b")[2].as_py() == 2**31 - 1
    assert found.table().column("c")[4].as_py() == -(2**63)


def test_schemas_that_have_no_end_as_columns_are_refused() -> None:
    kinds = [
        struct(f"S{level}", *(Field(n, f"f{n}", Reference(f"S{level + 1}")) for n in range(1, 9)))
        for level in range(20)
    ]
    of = program(*kinds, struct("S20"))
    with pytest.raises(SchemaError, match="S0 has more than 4,096 columns"):
        thrift_plan(of, "S0")
    nested: Any = scalar("bool")
    for _ in range(40):
        nested = ListOf(nested)
    with pytest.raises(SchemaError, match="Deep has types nested more than 32 deep, at item"):
        thrift_plan(program(struct("Deep", Field(1, "all", nested))), "Deep")
    with pytest.raises(SchemaError, match=r"test\.frugal has no type 'Nothing'"):
        thrift_plan(of, "Nothing")
    with pytest.raises(SchemaError, match="has no type 'LIMIT'"):
        thrift_plan(program(Constant("LIMIT", scalar("i8"), Literal(1))), "LIMIT")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (scalar("i8"), Literal(128)),
        (scalar("i32"), Literal("x")),
        (ListOf(scalar("i32")), Literal(1)),
        (Reference("Color"), ConstantName("Color.BLUE")),
        (Reference("Point"), ConstantMap(((Literal("z"), Literal(1)),))),
        (scalar("uuid"), Literal("00")),
        (scalar("string"), Literal("x" * 70_000)),
    ],
)
def test_a_default_that_does_not_fit_is_an_error_of_the_schema(kind: Any, value: Any) -> None:
    of = program(COLOR, POINT, struct("S", Field(1, "f", kind, default=value)))
    with pytest.raises(SchemaError, match=r"test\.frugal"):
        thrift_plan(of, "S")
