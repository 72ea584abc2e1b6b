"""Values of generated classes on the wire: the bytes of Apache thrift's own generated code.

GOLDEN is what classes of Apache's compiler 0.17 write with thrift 0.25, its Python and its C code alike, for
wire.frugal without `uuid`, which that compiler does not know.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from penstock.frugal.codecs import BINARY, COMPACT, JSON, Codec, struct_spec
from penstock.frugal.errors import CodecError
from penstock.frugal.structs import FrozenMap
from penstock.idl.python.load import load

CODECS: dict[str, Codec] = {"binary": BINARY, "compact": COMPACT}

GOLDEN = {
    ("full", "binary"): (
        "080001000000070f00030c00000002080001000000010d00040b0c00000000080006000000040b0007000000000e00080800"
        "0000000f00090d0000000002000a0004000b000000000000000003000c0006000d00000a000e00000000000000000e00100c"
        "000000000d00110c0b000000000e00120f000000000d00130e08000000000b00280000000000080001000000020f00030c00"
        "0000000d00040b0c00000000080006000000040b0007000000000e000808000000000f00090d0000000002000a0004000b00"
        "0000000000000003000c0006000d00000a000e00000000000000000e00100c000000000d00110c0b000000000e00120f0000"
        "00000d00130e08000000000b002800000000000d00040b0c0000000100000002c3a9080001000000030d00040b0c00000000"
        "080006000000010b0007000000000e000808000000000f00090d0000000002000a0004000b000000000000000003000c0006"
        "000d00000a000e00000000000000000e00100c000000000d00110c0b000000000e00120f000000000d00130e08000000000b"
        "00280000000000080006000000010b00070000000200ff0e00080800000001000000050f00090d00000002080e0000000100"
        "0000010b000000010000000161080e0000000002000a0104000bbfe000000000000003000c8006000d80000a000e7fffffff"
        "ffffffff0c000f0b00020000000174000e00100c000000010800010000000108000200000002000d00110c0b000000010800"
        "0100000003080002000000040000000001700e00120f00000001080000000200000001000000020d00130e08000000010800"
        "00000100000009000000040b002800000003656e6400"
    ),
    ("full", "compact"): (
        "150e292c15023b00250818001a05190b121700000000000000001300140016002a0c1b001a091b00085000001504290c1b00"
        "250818001a05190b121700000000000000001300140016002a0c1b001a091b00085000001b018c02c3a915063b0025021800"
        "1a05190b121700000000000000001300140016002a0c1b001a091b00085000002502180200ff1a150a192b015a0218016100"
        "1117000000000000e0bf138014ffff0316feffffffffffffffff011c280174001a1c15021504001b01c8150615080001701a"
        "192502041b01a5151208085003656e6400"
    ),
    ("failed", "binary"): "0b0001000000026e6f080002000000010f00050b0000000200000001610000000000",
    ("failed", "compact"): "18026e6f1502392801610000",
    ("value", "binary"): (
        "0c0004080001000000050d00040b0c00000000080006000000040b0007000000000e000808000000000f00090d0000000002"
        "000a0004000b000000000000000003000c0006000d00000a000e00000000000000000e00100c000000000d00110c0b000000"
        "000e00120f000000000d00130e08000000000b0028000000000000"
    ),
    ("value", "compact"): "4c150a3b00250818001a05190b121700000000000000001300140016002a0c1b001a091b000850000000",
    ("args", "binary"): "080001000000030c00030a0001ffffffffffffffff0000",
    ("args", "compact"): "15062c16010000",
    ("result", "binary"): (
        "0c0000080001000000010d00040b0c00000000080006000000040b0007000000000e000808000000000f00090d0000000002"
        "000a0004000b000000000000000003000c0006000d00000a000e00000000000000000e00100c000000000d00110c0b000000"
        "000e00120f000000000d00130e08000000000b0028000000000000"
    ),
    ("result", "compact"): "0c0015023b00250818001a05190b121700000000000000001300140016002a0c1b001a091b000850000000",
    ("refused", "binary"): "0c00010b00010000000172080002000000040f00050b000000000000",
    ("refused", "compact"): "1c180172150839080000",
}


@pytest.fixture(scope="module")
def wire() -> ModuleType:
    return load(Path(__file__).parent / "wire.frugal")


def _values(wire: ModuleType) -> dict[str, Any]:
    arguments, result = wire.Trees.methods["get"].arguments, wire.Trees.methods["get"].result
    full = wire.Tree(
        v=7,
        kids=[wire.Tree(v=1), wire.Tree(v=2, kids=[])],
        named={"é": wire.Tree(v=3, color=wire.Color.RED)},
        color=wire.Color.RED,
        raw=b"\x00\xff",
        numbers={5},
        deep=[{1: {"a"}}, {}],
        flag=True,
        weight=-0.5,
        tiny=-128,
        short=-32768,
        large=2**63 - 1,
        value=wire.Value(text="t"),
        points={wire.Point(x=1, y=2)},
        labels={wire.Point(x=3, y=4): "p"},
        paths={(1, 2)},
        colors={frozenset({9}): wire.Color.BLUE},
        far="end",
    )
    return {
        "full": full,
        "failed": wire.Failed(reason="no", color=1, notes=["a", ""]),
        "value": wire.Value(tree=wire.Tree(v=5)),
        "args": arguments(v=3, value=wire.Value(number=-1)),
        "result": result(success=wire.Tree(v=1)),
        "refused": result(failed=wire.Failed(reason="r", color=4)),
    }


@pytest.mark.parametrize(("name", "codec"), GOLDEN)
def test_bytes_are_those_of_apache(wire: ModuleType, name: str, codec: str) -> None:
    value = _values(wire)[name]
    spec = struct_spec(type(value))
    assert CODECS[codec].encode_bare(spec, value).hex() == GOLDEN[name, codec]
    decoded = CODECS[codec].decode_bare(bytes.fromhex(GOLDEN[name, codec]), spec)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize("codec", [BINARY, COMPACT, JSON], ids=lambda each: each.name)
def test_round_trip_of_uuids_and_maps_in_sets(wire: ModuleType, codec: Codec) -> None:
    one, other = UUID(int=1), UUID("12345678-1234-5678-1234-567812345678")
    value = wire.Marked(id=one, others={other}, maps={FrozenMap({"a": wire.Color.RED})})
    if codec is not JSON:  # which has no form for keys that are maps
        value.places = {FrozenMap({wire.Point(x=1): 1, wire.Point(x=2): 2}): 3}
    data = codec.encode_bare(struct_spec(wire.Marked), value)
    assert codec.decode_bare(data, struct_spec(wire.Marked)) == value
    assert codec is JSON or one.bytes in data


def test_numbers_of_enums_become_members_unless_unknown(wire: ModuleType) -> None:
    tree = wire.Tree(v=1, color=1, colors={frozenset({1}): 4, frozenset({2}): 99})
    spec = struct_spec(wire.Tree)
    for each in (tree, BINARY.decode_bare(BINARY.encode_bare(spec, tree), spec)):
        assert each.color is wire.Color.RED
        assert each.colors[frozenset({1})] is wire.Color.BLUE
        assert (each.colors[frozenset({2})], type(each.colors[frozenset({2})])) == (99, int)


@pytest.mark.parametrize("codec", [BINARY, COMPACT, JSON], ids=lambda each: each.name)
def test_a_required_field_that_is_missing(wire: ModuleType, codec: Codec) -> None:
    empty = codec.encode_bare(struct_spec(wire.Point), wire.Point())
    for kind, missing in ((wire.Tree, "Tree.v"), (wire.Failed, "Failed.reason")):
        # Fields 1 and 2 of a point are 0: of a Failed, 1 is no text, so it is skipped.
        data = {"json": b"{}"}.get(codec.name, b"\0") if kind is wire.Tree else empty
        with pytest.raises(CodecError, match=rf"^{missing}: (the required field is missing|it is \w+ in the bytes)"):
            codec.decode_bare(data, struct_spec(kind))


@pytest.mark.parametrize("codec", [BINARY, COMPACT, JSON], ids=lambda each: each.name)
def test_a_union_has_exactly_one_field(wire: ModuleType, codec: Codec) -> None:
    with pytest.raises(ValueError, match="the union Value has no field; give exactly one of number, text, tree"):
        wire.Value()
    with pytest.raises(ValueError, match="the union Value has the fields number, text; give"):
        wire.Value(number=1, text="")
    assert wire.Value(text="").which == "text"
    with pytest.raises(AttributeError):
        wire.Value(text="").number = 1
    # What has the bytes of a union with two fields, or none: a point, and an empty struct.
    spec = struct_spec(wire.Value)
    two = {"binary": "0a000100000000000000010b00020000000000", "compact": "16021801" + "61" + "00"}.get(codec.name)
    data = b'{"1":{"i64":1},"2":{"str":""}}' if two is None else bytes.fromhex(two)
    with pytest.raises(CodecError, match="the union Value has the fields number, text"):
        codec.decode_bare(data, spec)
    with pytest.raises(CodecError, match="the union Value has no field"):
        codec.decode_bare(b"{}" if two is None else b"\0", spec)


def test_fields_that_are_unknown_or_of_another_type_are_skipped(wire: ModuleType) -> None:
    data = bytes.fromhex("0b0001000000016108000200000009" + "0800ff00000001" + "00")
    assert BINARY.decode_bare(data, struct_spec(wire.Point)) == wire.Point(y=9)
