"""Codecs: the bytes of Apache Thrift, round trips, and what hostile bytes give."""

import json
import math
import tracemalloc
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.transport.TTransport import TMemoryBuffer

from penstock.frugal.codecs import (
    BINARY,
    CODECS,
    COMPACT,
    JSON,
    NAME_BYTES_MAX,
    OBJECTS_MAX,
    ApplicationException,
    MessageHeader,
    MessageKind,
    WireType,
    find_codec,
    struct_spec,
)
from penstock.frugal.errors import CodecError
from penstock.frugal.json_protocol import JSON_OBJECTS_MAX
from tests import hot_modes
from tests.frugal_shop import NOTE, ORDER, PING, PLACE, Line, NotFound, Order, Tree

ALL = list(CODECS.values())
LINE = Line(article="té", count=-2, price=0.5)
GOLDEN = {
    "binary": "80010001 00000004 6c696e65 00000000"
    "0b0001 00000003 74c3a9 080002 fffffffe 040003 3fe0000000000000 080004 00000001 00",
    "compact": "8221 00 04 6c696e65"
    "18 03 74c3a9 15 03 17 000000000000e03f 15 02 00",
    "json": b'[1,"line",1,0,{"1":{"str":"t\xc3\xa9"},"2":{"i32":-2},"3":{"dbl":0.5},"4":{"i32":1}}]'.hex(),
}  # fmt: skip


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_golden_messages(codec):
    golden = bytes.fromhex(GOLDEN[codec.name])
    assert codec.encode("line", MessageKind.CALL, 0, struct_spec(Line), LINE) == golden
    header, start = codec.decode_header(golden)
    assert header == MessageHeader("line", MessageKind.CALL, 0)
    assert codec.decode_value(golden, start, struct_spec(Line)) == LINE


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@pytest.mark.parametrize("other", ALL, ids=CODECS)
def test_a_message_of_another_codec_is_told_by_its_name(codec, other):
    message = bytes.fromhex(GOLDEN[other.name])
    if codec is other:
        assert codec.decode_header(message)[0].name == "line"
        return
    with pytest.raises(CodecError) as refused:
        codec.decode_header(message)
    assert str(refused.value) == (
        f"the message is in Thrift's {other.name} protocol, and is read here as {codec.name}: "
        f"give both sides the same codec (here codec={other.name.upper()})"
    )


PROTOCOLS = {"binary": TBinaryProtocol, "compact": TCompactProtocol, "json": TJSONProtocol}


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@pytest.mark.parametrize("value", [ORDER, Order(), LINE], ids=["order", "empty", "line"])
def test_apache_thrift_writes_the_same_message(codec, value):
    """What its Python loops write, since the codec is its C code: names, structs, and the ends of both."""
    buffer = TMemoryBuffer()
    protocol = PROTOCOLS[codec.name](buffer)
    protocol.writeMessageBegin("line", MessageKind.REPLY, 9)
    protocol.writeStruct(value, type(value).thrift_spec)
    protocol.writeMessageEnd()
    written = buffer.getvalue()
    spec = struct_spec(type(value))
    ours = codec.encode("line", MessageKind.REPLY, 9, spec, value)
    if codec is JSON:  # a double has several forms
        assert json.loads(ours) == json.loads(written)
    else:
        assert ours == written
    header, start = codec.decode_header(written)
    assert header == MessageHeader("line", MessageKind.REPLY, 9)
    assert codec.decode_value(written, start, spec) == value


BARE = [
    ((WireType.BOOL, None), True),
    ((WireType.BOOL, None), False),
    ((WireType.BYTE, None), -128),
    ((WireType.I16, None), 32767),
    ((WireType.I32, None), -(2**31)),
    ((WireType.I64, None), 2**63 - 1),
    ((WireType.DOUBLE, None), -math.inf),
    ((WireType.STRING, "UTF8"), "ä"),
    ((WireType.STRING, "UTF8"), ""),
    ((WireType.STRING, "BINARY"), b"\xff\x00"),
    ((WireType.UUID, None), uuid.UUID(int=7)),
    ((WireType.LIST, (WireType.BOOL, None, False)), [True, False]),
    ((WireType.SET, (WireType.STRING, "UTF8", True)), frozenset({"a", "b"})),
    ((WireType.MAP, (WireType.I32, None, WireType.LIST, (WireType.DOUBLE, None, False), False)), {1: [0.5], -2: []}),
]


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@pytest.mark.parametrize(("spec", "value"), BARE)
def test_what_a_scope_publishes_need_not_be_a_struct(codec, spec, value):
    message = codec.encode("Op", MessageKind.CALL, 0, spec, value)
    assert codec.decode_value(message, codec.decode_header(message)[1], spec) == value
    bare = codec.encode_bare(spec, value)
    assert codec.decode_bare(bare, spec) == value
    for more in (b"\x01", b"\x00"):
        with pytest.raises(CodecError):
            codec.decode_bare(bare + more, spec)
    if not (codec is JSON and type(value) is int):  # -12 is a number, too
        with pytest.raises(CodecError):
            codec.decode_bare(bare[:-1], spec)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_bytes_behind_a_struct_are_refused(codec):
    message = codec.encode("line", MessageKind.CALL, 0, struct_spec(Line), LINE)
    start = codec.decode_header(message)[1]
    for more in (b"\0", b"x"):
        with pytest.raises(CodecError):
            codec.decode_bare(codec.encode_bare(struct_spec(Line), LINE) + more, struct_spec(Line))
        if codec is not JSON:  # there, it is no message at all
            with pytest.raises(CodecError, match="1 bytes follow the value"):
                codec.decode_value(message + more, start, struct_spec(Line))


def test_a_bare_bool_as_apache_thrift_writes_it():
    for value in (True, False):
        buffer = TMemoryBuffer()
        TBinaryProtocol(buffer).writeBool(value)
        assert BINARY.encode_bare((WireType.BOOL, None), value) == buffer.getvalue()
    assert COMPACT.encode_bare((WireType.BOOL, None), True) == b"\1"  # as in Go: Apache's Python refuses it
    assert COMPACT.encode_bare((WireType.BOOL, None), False) == b"\2"


def test_json_has_a_form_for_what_is_no_number():
    spec = (WireType.LIST, (WireType.DOUBLE, None, False))
    assert JSON.encode_bare(spec, [math.nan, math.inf, -math.inf]) == b'["dbl",3,"NaN","Infinity","-Infinity"]'
    assert math.isnan(JSON.decode_bare(b'["dbl",1,"NaN"]', spec)[0])


TEXTS = st.text(max_size=6)
TREES = st.recursive(
    st.builds(
        Tree,
        name=st.none() | TEXTS,
        identity=st.none() | st.uuids(),
        weights=st.none() | st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), max_size=3),
        flags=st.none() | st.lists(st.booleans(), max_size=20),
        texts=st.none() | st.sets(TEXTS, max_size=3),
    ),
    lambda inner: st.builds(
        Tree, children=st.lists(inner, max_size=3), by_name=st.none() | st.dictionaries(TEXTS, inner, max_size=2)
    ),
    max_leaves=6,
)
TREE = struct_spec(Tree)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@settings(max_examples=100, deadline=None)
@given(tree=TREES, kind=st.sampled_from(MessageKind), sequence=st.integers(-(2**31), 2**31 - 1), name=TEXTS)
def test_a_message_decodes_to_what_was_encoded(codec, tree, kind, sequence, name):
    message = codec.encode(name, kind, sequence, TREE, tree)
    header, start = codec.decode_header(message)
    assert header == MessageHeader(name, kind, sequence)
    assert codec.decode_value(message, start, TREE) == tree


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@settings(max_examples=400, deadline=None)
@given(tree=TREES, data=st.data())
def test_changed_bytes_are_a_value_or_a_codec_error(codec, tree, data):
    message = bytearray(codec.encode("tree", MessageKind.CALL, 0, TREE, tree))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    for changed in (bytes(message), bytes(message[:cut])):
        try:
            _, start = codec.decode_header(changed)
            value = codec.decode_value(changed, start, TREE)
        except CodecError:
            continue
        assert type(value) is Tree


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_a_value_or_a_codec_error(codec, data):
    for decode in (lambda: codec.decode_header(data), lambda: codec.decode_bare(data, TREE)):
        try:
            decode()
        except CodecError:
            continue


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (BINARY, "0f0002 0c 7fffffff"),  # a list of 2**31 - 1 structs
        (BINARY, "0f0002 0c 00ffffff"),  # of as many as memory has room for
        (COMPACT, "29 fc ffffff07"),
        (BINARY, "0f0002 0c 80000000"),  # of a negative number of them
        (BINARY, "0d0003 0b0c 7fffffff" + "00" * 60),  # a map of empty texts and empty structs
        (BINARY, "0d0063 0000 7fffffff" + "00" * 60),  # a map of nothing, in an unknown field
        (BINARY, "0d0063 0202 7fffffff" + "00" * 60),
        (BINARY, "0f0063 01 7fffffff" + "00" * 60),  # a list of void
        (BINARY, "0b0001 7fffffff 00"),
        (BINARY, "0b0001 80000001 00"),
        (COMPACT, "29 fc ffffffff07"),
        (COMPACT, "29 fc ffffffff0f"),
        (COMPACT, "3b ffffffff07 8c" + "00" * 60),
        (COMPACT, "18 ffffffff0f"),
        (COMPACT, "18 ffffffffffffffffff"),
        (JSON, b'{"2":{"lst":["rec",2147483647]}}'.hex()),
        (JSON, b'{"3":{"map":["str","rec",2147483647,{}]}}'.hex()),
    ],
)  # fmt: skip
def test_sizes_are_checked_against_what_is_left(codec, data):
    tracemalloc.start()
    with pytest.raises(CodecError):
        codec.decode_bare(bytes.fromhex(data), TREE)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


DEEP = 100_000


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (BINARY, bytes.fromhex("0f00020c00000001") * DEEP),  # trees in trees
        (BINARY, bytes.fromhex("0c0063") * DEEP),  # unknown structs in structs
        (BINARY, b"\x0f\x00\x63" + bytes.fromhex("0f00000001") * DEEP),  # unknown lists of lists
        (BINARY, b"\x0d\x00\x63" + bytes.fromhex("0d0d00000001") * DEEP),
        (COMPACT, bytes.fromhex("291c") * DEEP),
        (COMPACT, bytes.fromhex("fc") * DEEP),
        (COMPACT, b"\xf9" + bytes.fromhex("19") * DEEP),
        (JSON, b'{"2":{"lst":["rec",1,' * DEEP),
        (JSON, b'{"99":{"lst":' + b"[" * DEEP),
        (JSON, b'{"2":{"lst":["rec",1,' * 100 + b"{}" + b"]}}" * 100),
    ],
)
def test_depth_is_bounded(codec, data):
    with pytest.raises(CodecError):
        codec.decode_bare(data, TREE)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_a_value_that_is_too_deep_is_not_encoded(codec):
    tree = Tree()
    for _ in range(62):
        tree = Tree(children=[tree])
    assert codec.decode_bare(codec.encode_bare(TREE, tree), TREE) == tree
    for _ in range(3):
        tree = Tree(children=[tree])
    with pytest.raises(CodecError):
        codec.encode_bare(TREE, tree)


NO_UTF8 = [
    (BINARY, bytes.fromhex("0b000100000002c328 00"), TREE),
    (BINARY, bytes.fromhex("0e00070b00000001 00000001ff 00"), TREE),
    (BINARY, bytes.fromhex("0d00030b0c00000001 00000001ff00 00"), TREE),
    (BINARY, bytes.fromhex("0f00020c00000001 0b000100000001ff00 00"), TREE),
    (COMPACT, bytes.fromhex("1801ff00"), TREE),
    (COMPACT, bytes.fromhex("01ff"), (WireType.STRING, "UTF8")),
    (BINARY, bytes.fromhex("00000001ff"), (WireType.STRING, "UTF8")),
    (JSON, b'{"1":{"str":"\xff"}}', TREE),
    (JSON, b'{"1":{"str":"\\ud800"}}', TREE),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "data", "spec"), NO_UTF8)
def test_texts_are_utf8(codec, data, spec):
    with pytest.raises(CodecError, match=r"UTF-8|utf-8|truncated"):
        codec.decode_bare(data, spec)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_a_replacement_character_is_a_character(codec):
    tree = Tree(name="\ufffd", texts={"a\ufffd"}, by_name={"\ufffd": Tree(identity=uuid.UUID(int=2**128 - 1))})
    assert codec.decode_bare(codec.encode_bare(TREE, tree), TREE) == tree
    assert (
        codec.decode_bare(codec.encode_bare((WireType.STRING, "UTF8"), "\ufffd"), (WireType.STRING, "UTF8")) == "\ufffd"
    )


@dataclass(kw_only=True)
class Wider:
    """A later version of `Line`, with other types and more fields."""

    article: int = 0
    count: int = 0
    tree: Tree | None = None
    extra: dict[str, bool] | None = None

    thrift_spec: ClassVar[Any] = (
        None,
        (1, WireType.I64, "article", None, None),
        (2, WireType.I32, "count", None, None),
        None,
        None,
        (5, WireType.STRUCT, "tree", [Tree, Tree.thrift_spec], None),
        (6, WireType.MAP, "extra", (WireType.STRING, "UTF8", WireType.BOOL, None, False), None),
    )


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_unknown_fields_and_fields_of_another_type_are_skipped(codec):
    wider = Wider(article=5, count=6, tree=Tree(children=[Tree()], flags=[True]), extra={"a": True})
    read = codec.decode_bare(codec.encode_bare(struct_spec(Wider), wider), struct_spec(Line))
    assert read == Line(count=6)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@pytest.mark.parametrize(
    "line",
    [
        Line(count=2**31),
        Line(count="7"),
        Line(count=None, price="x"),
        Line(article=5),
        Line(article="\ud800"),
    ],
)
def test_a_value_that_does_not_fit_is_not_encoded(codec, line):
    with pytest.raises(CodecError):
        codec.encode_bare(struct_spec(Line), line)


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_a_container_of_another_kind_is_not_encoded(codec):
    with pytest.raises(CodecError):
        codec.encode_bare(struct_spec(Order), Order(notes=[1]))
    with pytest.raises(CodecError):
        codec.encode_bare(struct_spec(Order), None)


def test_elements_of_another_type_are_refused():
    list_of_texts = (WireType.LIST, (WireType.STRING, "UTF8", False))
    list_of_numbers = (WireType.LIST, (WireType.I32, None, False))
    for codec in ALL:
        with pytest.raises(CodecError):
            codec.decode_bare(codec.encode_bare(list_of_numbers, [1]), list_of_texts)


JSON_REFUSED = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"1":5}',
    b'{"1":{}}',
    b'{"1":{"str":"a","i32":5}}',
    b'{"1":{"xyz":5}}',
    b'{"1":{"str":5}}',
    b'{"4":{"uid":"x"}}',
    b'{"5":{"map":["i64","dbl",1,{"x":1}]}}',
    b'{"5":{"map":["i64","dbl",1,{"9223372036854775808":1}]}}',
    b'{"5":{"map":["i64","dbl",1,{"1":"x"}]}}',
    b'{"5":{"map":["i64","dbl",1,{"1":[]}]}}',
    b'{"5":{"map":["i64","dbl",2,{"1":1}]}}',
    b'{"5":{"map":["i64","i32",1,{"1":1}]}}',
    b'{"6":{"lst":["tf",true,1]}}',
    b'{"6":{"lst":["tf",1,"1"]}}',
    b'{"x":{"str":"a"}}',
]


@pytest.mark.parametrize("data", JSON_REFUSED)
def test_json_that_is_no_struct(data):
    with pytest.raises(CodecError):
        JSON.decode_bare(data, TREE)


def test_numbers_in_json_have_the_range_of_their_type():
    for wire_type, bits in ((WireType.BYTE, 8), (WireType.I16, 16), (WireType.I32, 32), (WireType.I64, 64)):
        assert JSON.decode_bare(str(2 ** (bits - 1) - 1).encode(), (wire_type, None)) == 2 ** (bits - 1) - 1
        for number in (str(2 ** (bits - 1)), "1.5", "1e2", '"1"', "9" * 5000):
            with pytest.raises(CodecError):
                JSON.decode_bare(number.encode(), (wire_type, None))


def test_binary_in_json_is_base64_with_padding_or_without():
    spec = (WireType.STRING, "BINARY")
    assert JSON.encode_bare(spec, b"\xff") == b'"/w=="'
    assert [JSON.decode_bare(text, spec) for text in (b'"/w=="', b'"/w"', b'""')] == [b"\xff", b"\xff", b""]
    with pytest.raises(CodecError, match="base64"):
        JSON.decode_bare(b'"/w!"', spec)


@pytest.mark.parametrize(
    ("codec", "data", "what"),
    [
        (BINARY, "", "ends in its header"),
        (BINARY, "80010001000000", "ends in its header"),
        (BINARY, "80020001 00000000 00000000", "no version"),
        (BINARY, "80010005 00000000 00000000", "kind 5"),
        (BINARY, "80010001 ffffffff 00000000", "the name has 4,294,967,295 bytes"),
        (BINARY, "80010001 00000009 00000000", "the name has 9 bytes, and 4 are left"),
        (BINARY, "80010001 00000001 ff 00000000", "no UTF-8"),
        (COMPACT, "", "ends in its header"),
        (COMPACT, "82", "ends in its header"),
        (COMPACT, "8222 00 00", "no version"),
        (COMPACT, "82e1 00 00", "kind 7"),
        (COMPACT, "8221 ffffffffff01 00", "more than 32 bits"),
        (COMPACT, "8221 ffffffff7f 00", "more than 32 bits"),
        (COMPACT, "8221 00 ffffffff0f", "the name has 4,294,967,295 bytes"),
        (JSON, b"[1]".hex(), "no message in JSON"),
        (JSON, b'[2,"a",1,0,{}]'.hex(), "version 2"),
        (JSON, b'[1,"a",9,0,{}]'.hex(), "kind 9"),
        (JSON, b'[1,"a",1,4294967296,{}]'.hex(), "sequence"),
        (JSON, b'[1,"a",1,0,{},0]'.hex(), "no message in JSON"),
    ],
)  # fmt: skip
def test_headers_that_are_none(codec, data, what):
    with pytest.raises(CodecError, match=what):
        codec.decode_header(bytes.fromhex(data))


def test_the_old_header_of_binary_is_read():
    header, start = BINARY.decode_header(bytes.fromhex("00000004 70696e67 01 00000003 00"))  # fmt: skip
    assert (header, start) == (MessageHeader("ping", MessageKind.CALL, 3), 13)


def test_json_with_spaces():
    data = b' [ 1 , "ping" , 1 , 0 , { "1" : { "str" : "]" } } ] \n'
    header, start = JSON.decode_header(data)
    assert header.name == "ping"
    assert JSON.decode_value(data, start, TREE) == Tree(name="]")


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_a_name_has_a_limit(codec):
    codec.encode("x" * NAME_BYTES_MAX, MessageKind.CALL, 0, TREE, Tree())
    with pytest.raises(CodecError, match="the name has"):
        codec.encode("x" * (NAME_BYTES_MAX + 1), MessageKind.CALL, 0, TREE, Tree())


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_arguments_results_and_exceptions(codec):
    assert PLACE.result is not None
    for value in (
        PING.arguments(),
        PLACE.arguments(order=ORDER, copies=2),
        PLACE.result(missing=NotFound(number=4, reason="gone")),
        NOTE.arguments(text="x"),
        ApplicationException("no", 6),
    ):
        spec = struct_spec(type(value))
        read = codec.decode_bare(codec.encode_bare(spec, value), spec)
        for each in spec[1][1]:
            if each is not None:
                assert getattr(read, each[2]) == getattr(value, each[2])


def test_a_codec_is_found_by_its_media_type():
    assert [find_codec(each.content_type) for each in ALL] == ALL
    assert find_codec("Application/VND.apache.thrift.json; charset=utf-8") is JSON
    assert find_codec("application/json") is None


CHILDREN = OBJECTS_MAX - 2  # with their list and the tree around it, they are the most


@pytest.mark.parametrize("codec", [BINARY, COMPACT], ids=lambda codec: codec.name)
def test_a_value_has_a_limit_of_structs_and_containers(codec):
    tree = Tree(children=[Tree()] * CHILDREN)
    encoded = codec.encode_bare(TREE, tree)
    assert len(codec.decode_bare(encoded, TREE).children) == CHILDREN
    one_more = encoded.replace(CHILDREN.to_bytes(4, "big"), (CHILDREN + 1).to_bytes(4, "big"), 1) + b"\0"
    if codec is COMPACT:
        one_more = bytes.fromhex("29fc") + varint(CHILDREN + 1) + b"\0" * (CHILDREN + 2)
    with pytest.raises(CodecError, match="more than 100,000 structs and containers"):
        codec.decode_bare(one_more, TREE)
    with pytest.raises(CodecError, match="more than 100,000 structs and containers"):
        codec.encode_bare(TREE, Tree(children=[Tree()] * (CHILDREN + 1)))


def varint(number):
    """Return a number of the compact protocol."""
    head = [number >> shift & 127 | 128 for shift in range(0, number.bit_length() - 7, 7)]
    return bytes((*head, number >> 7 * len(head)))


@pytest.mark.parametrize("codec", [BINARY, COMPACT], ids=lambda codec: codec.name)
def test_empty_structs_are_refused_before_one_is_made(codec):
    head = bytes.fromhex("0f00020c000ffff0") if codec is BINARY else bytes.fromhex("29fc") + varint(0xFFFF0)
    data = head + b"\0" * 0xFFFF1
    tracemalloc.start()
    with pytest.raises(CodecError, match="structs and containers"):
        codec.decode_bare(data, TREE)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_type_that_is_none_does_not_hide_what_follows():
    hidden = bytes.fromhex("0f0063 01 00000001 0f0002 0c") + CHILDREN.to_bytes(4, "big") + b"\0" * (CHILDREN + 1)
    with pytest.raises(CodecError, match="unknown type"):
        BINARY.decode_bare(hidden + b"\0" * 100, TREE)


@pytest.mark.parametrize("codec", [BINARY, COMPACT], ids=lambda codec: codec.name)
def test_many_numbers_and_texts_are_within_the_limit(codec):
    numbers = (WireType.LIST, (WireType.I64, None, False))
    assert codec.decode_bare(codec.encode_bare(numbers, [5] * 300_000), numbers) == [5] * 300_000


def test_json_has_a_limit_of_objects_and_arrays():
    count = JSON_OBJECTS_MAX - 3  # beside the tree, its field and its list

    def trees(count):
        return b'{"2":{"lst":["rec",%d%b]}}' % (count, b",{}" * count)

    assert len(JSON.decode_bare(trees(count), TREE).children) == count
    with pytest.raises(CodecError, match="more than 200,000 objects and arrays"):
        JSON.decode_bare(trees(count + 1), TREE)
    text = "{" * (JSON_OBJECTS_MAX + 1)
    assert JSON.decode_bare(JSON.encode_bare(TREE, Tree(name=text)), TREE).name == text


def count_objects(tree):
    """Count the structs and containers of a tree: what the walk over its bytes must find."""
    inner = [*(tree.children or ()), *(tree.by_name or {}).values()]
    own = [each for each in (tree.children, tree.by_name, tree.weights, tree.flags, tree.texts) if each is not None]
    return 1 + len(own) + sum(map(count_objects, inner))


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@pytest.mark.parametrize("codec", [BINARY, COMPACT], ids=lambda codec: codec.name)
@settings(max_examples=100, deadline=None)
@given(tree=TREES, data=st.data())
def test_objects_are_counted_without_making_them(mode, codec, tree, data):
    module = hot_modes.plain("thrift_objects") if mode == "plain" else hot_modes.running("thrift_objects")
    encoded = codec.encode_bare(TREE, tree)
    count, is_compact = count_objects(tree), codec is COMPACT
    assert module.find_excess(encoded, WireType.STRUCT, count, is_compact) == module.WITHIN
    assert module.find_excess(encoded, WireType.STRUCT, count - 1, is_compact) == module.EXCEEDS
    assert module.find_excess(encoded[:-1], WireType.STRUCT, count, is_compact) == module.UNREADABLE
    changed = bytearray(encoded)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    hostile = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    limit = data.draw(st.integers(0, 20))
    plain = hot_modes.plain("thrift_objects").find_excess(hostile, WireType.STRUCT, limit, is_compact)
    assert module.find_excess(hostile, WireType.STRUCT, limit, is_compact) == plain


def finder(mode, codec, only_texts):
    """Return `find_fault` for trees; hostile bytes must not end it otherwise."""
    load = hot_modes.plain if mode == "plain" else hot_modes.running
    shape = load("thrift_values").shape_of(*TREE)
    return lambda data: load("thrift_objects").find_fault(data, shape, codec is COMPACT, only_texts)


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@pytest.mark.parametrize("codec", [BINARY, COMPACT], ids=lambda codec: codec.name)
@settings(max_examples=100, deadline=None)
@given(tree=TREES, data=st.data())
def test_faults_are_found_without_making_anything(mode, codec, tree, data):
    find, find_text = finder(mode, codec, False), finder(mode, codec, True)
    encoded = codec.encode_bare(TREE, Tree(texts={"€"}, children=[tree]))
    assert (find(encoded), find_text(encoded)) == (None, None)
    no_text = encoded.replace("€".encode(), b"\xe2\x82A")
    assert find(no_text) == find_text(no_text)
    assert ": it is no UTF-8, at byte " in find(no_text)
    assert find(encoded[:-1]) == f": it does not end, at byte {len(encoded) - 1}"
    assert find_text(encoded[:-1]) is None
    changed = bytearray(encoded)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    hostile = bytes(changed)
    assert find(hostile) == finder("plain", codec, False)(hostile)
    assert find_text(hostile) == finder("plain", codec, True)(hostile)
