"""Descriptor sets of Protobuf as programs of the same model; the sets are built by Google's own library."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.idl.mistakes import IdlError
from penstock.idl.model import (
    Annotation,
    ConstantName,
    Enum,
    EnumValue,
    Field,
    ListOf,
    Literal,
    MapOf,
    Method,
    Namespace,
    Reference,
    Requiredness,
    Reserved,
    Scalar,
    ScalarKind,
    Service,
    Struct,
)
from penstock.idl.protobuf import (
    IMPORT_DEPTH_MAX,
    SET_BYTES_MAX,
    SET_FILES_MAX,
    SET_MEMBERS_MAX,
    from_descriptor_set,
    include_name,
    json_name,
)
from penstock.idl.python.generate import generate

pytest.importorskip("google.protobuf")

OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
TYPES = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "group": 10, "message": 11, "bytes": 12, "uint32": 13, "enum": 14, "sfixed32": 15, "sfixed64": 16, "sint32": 17,
    "sint64": 18,
}  # fmt: skip


def file(name: str = "shop/orders.proto", package: str = "shop", syntax: str = "proto3", imports: Any = ()) -> Any:
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax, dependency=list(imports))


def add(message: Any, name: str, number: int, type_: str, label: int = OPTIONAL, **more: Any) -> Any:
    """Add a field; a type with a dot in front is that of a message."""
    if type_.startswith("."):
        return message.field.add(name=name, number=number, label=label, type=TYPES["message"], type_name=type_, **more)
    return message.field.add(name=name, number=number, label=label, type=TYPES[type_], **more)


def serialized(*files: Any) -> bytes:
    from google.protobuf import descriptor_pb2

    data: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return data


def mistakes(*files: Any) -> list[str]:
    with pytest.raises(IdlError) as caught:
        from_descriptor_set(serialized(*files))
    return [str(each) for each in caught.value.mistakes]


def struct(program: Any, name: str) -> Struct:
    found = program.find(name)
    assert found is not None
    assert isinstance(found.definition, Struct)
    return found.definition


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_scalars_and_their_encodings(syntax: str) -> None:
    proto = file(syntax=syntax)
    message = proto.message_type.add(name="All")
    names = [name for name in TYPES if name not in ("group", "message", "enum")]
    for number, name in enumerate(names, 1):
        add(message, f"f_{name}", number, name)
    fields = struct(from_descriptor_set(serialized(proto))["shop/orders.proto"], "All").fields
    kinds = {each.name: (each.type.kind, each.encoding) for each in fields if isinstance(each.type, Scalar)}
    assert {name.removeprefix("f_"): kind for name, kind in kinds.items()} == {
        "double": (ScalarKind.DOUBLE, ""), "float": (ScalarKind.FLOAT, ""),
        "int64": (ScalarKind.I64, ""), "sint64": (ScalarKind.I64, "sint64"), "sfixed64": (ScalarKind.I64, "sfixed64"),
        "int32": (ScalarKind.I32, ""), "sint32": (ScalarKind.I32, "sint32"), "sfixed32": (ScalarKind.I32, "sfixed32"),
        "uint64": (ScalarKind.U64, ""), "fixed64": (ScalarKind.U64, "fixed64"),
        "uint32": (ScalarKind.U32, ""), "fixed32": (ScalarKind.U32, "fixed32"),
        "bool": (ScalarKind.BOOL, ""), "string": (ScalarKind.STRING, ""), "bytes": (ScalarKind.BINARY, ""),
    }  # fmt: skip
    expected = Requiredness.OPTIONAL if syntax == "proto2" else Requiredness.DEFAULT
    assert {each.requiredness for each in fields} == {expected}
    assert [each.id for each in fields] == list(range(1, len(names) + 1))


def test_presence_lists_and_maps() -> None:
    proto = file()
    message = proto.message_type.add(name="M")
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, "sint32")
    add(entry, "value", 2, ".shop.M")
    plain = message.nested_type.add(name="PlainEntry")
    plain.options.map_entry = True
    add(plain, "key", 1, "string")
    add(plain, "value", 2, "int64")
    message.oneof_decl.add(name="choice")
    message.oneof_decl.add(name="_maybe")
    add(message, "plain", 1, "int32")
    add(message, "maybe", 2, "int32", proto3_optional=True, oneof_index=1)
    add(message, "self", 3, ".shop.M")
    add(message, "left", 4, "string", oneof_index=0)
    add(message, "right", 5, ".shop.M", oneof_index=0)
    add(message, "many", 6, "sint64", REPEATED)
    add(message, "loose", 7, "int32", REPEATED).options.packed = False
    add(message, "counts", 8, ".shop.M.CountsEntry", REPEATED)
    add(message, "by_name", 9, ".shop.M.PlainEntry", REPEATED)
    add(message, "old", 10, "bool").options.deprecated = True
    program = from_descriptor_set(serialized(proto))["shop/orders.proto"]
    itself = Reference("M")
    optional, default = Requiredness.OPTIONAL, Requiredness.DEFAULT
    assert struct(program, "M").fields == (
        Field(1, "plain", Scalar(ScalarKind.I32)),
        Field(2, "maybe", Scalar(ScalarKind.I32), optional),
        Field(3, "self", itself, optional),
        Field(4, "left", Scalar(ScalarKind.STRING), optional, annotations=(Annotation("oneof", "choice"),)),
        Field(5, "right", itself, optional, annotations=(Annotation("oneof", "choice"),)),
        Field(6, "many", ListOf(Scalar(ScalarKind.I64)), default, encoding="sint64"),
        Field(7, "loose", ListOf(Scalar(ScalarKind.I32)), default, annotations=(Annotation("packed", "false"),)),
        Field(8, "counts", MapOf(Scalar(ScalarKind.I32), itself), default, encoding="map<sint32, M>"),
        Field(9, "by_name", MapOf(Scalar(ScalarKind.STRING), Scalar(ScalarKind.I64))),
        Field(10, "old", Scalar(ScalarKind.BOOL), annotations=(Annotation("deprecated"),)),
    )
    assert [each.name for each in program.document.definitions] == ["M"]  # entries of maps are no types


def test_what_only_proto2_has() -> None:
    proto = file(syntax="proto2")
    color = proto.enum_type.add(name="Color")
    color.value.add(name="RED", number=1)
    color.value.add(name="BLUE", number=-2)
    message = proto.message_type.add(name="Old")
    group = message.nested_type.add(name="Part")
    add(group, "x", 1, "int32")
    add(message, "must", 1, "int32", REQUIRED)
    add(message, "number", 2, "sint64", default_value="-5")
    add(message, "text", 3, "string", default_value='a"b')
    add(message, "data", 4, "bytes", default_value="a\\001")
    add(message, "yes", 5, "bool", default_value="true")
    add(message, "far", 6, "double", default_value="-inf")
    add(message, "color", 7, "enum", type_name=".shop.Color", default_value="BLUE")
    add(message, "part", 8, "group", REPEATED, type_name=".shop.Old.Part")
    add(message, "loose", 9, "int32", REPEATED)
    fields = struct(from_descriptor_set(serialized(proto))["shop/orders.proto"], "Old").fields
    assert fields[0].requiredness is Requiredness.REQUIRED
    assert [each.default for each in fields] == [
        None, Literal(-5), Literal('a"b'), Literal("a\x01"), Literal(True), Literal(-math.inf),
        ConstantName("Color.BLUE"), None, None,
    ]  # fmt: skip
    assert (fields[7].type, fields[7].encoding) == (ListOf(Reference("Old_Part")), "group")
    assert fields[8].annotations == (Annotation("packed", "false"),)


def test_editions_are_read_by_their_features() -> None:
    from google.protobuf import descriptor_pb2

    features = descriptor_pb2.FeatureSet
    proto = file(syntax="editions")
    proto.edition = descriptor_pb2.EDITION_2023
    message = proto.message_type.add(name="M")
    add(message, "plain", 1, "int32")
    add(message, "implicit", 2, "int32").options.features.field_presence = features.IMPLICIT
    add(message, "must", 3, "int32").options.features.field_presence = features.LEGACY_REQUIRED
    add(message, "part", 4, ".shop.M").options.features.message_encoding = features.DELIMITED
    add(message, "loose", 5, "int32", REPEATED).options.features.repeated_field_encoding = features.EXPANDED
    fields = struct(from_descriptor_set(serialized(proto))["shop/orders.proto"], "M").fields
    assert [(each.requiredness, each.encoding, each.annotations) for each in fields] == [
        (Requiredness.OPTIONAL, "", ()),
        (Requiredness.DEFAULT, "", ()),
        (Requiredness.REQUIRED, "", ()),
        (Requiredness.OPTIONAL, "group", ()),
        (Requiredness.DEFAULT, "", (Annotation("packed", "false"),)),
    ]


def test_names_of_nested_and_imported_types() -> None:
    base = file("shop/base.proto", "shop.base")
    outer = base.message_type.add(name="Outer")
    inner = outer.nested_type.add(name="Inner")
    kind = inner.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    middle = file("middle.proto", "", imports=["shop/base.proto"])
    middle.public_dependency.append(0)
    orders = file(imports=["middle.proto"])
    message = orders.message_type.add(name="Order")
    add(message, "inner", 1, ".shop.base.Outer.Inner")
    add(message, "kind", 2, "enum", type_name=".shop.base.Outer.Inner.Kind")
    programs = from_descriptor_set(serialized(orders, middle, base))
    assert list(programs) == ["shop/base.proto", "middle.proto", "shop/orders.proto"]  # imported ones first
    program = programs["shop/orders.proto"]
    assert [each.type for each in struct(program, "Order").fields] == [
        Reference("shop.base.Outer_Inner"),
        Reference("shop.base.Outer_Inner_Kind"),
    ]
    owner, type_ = program.resolve(struct(program, "Order").fields[1].type)
    assert owner is programs["shop/base.proto"]
    assert type_ == Enum(
        "Outer_Inner_Kind",
        (EnumValue("NONE", 0),),
        annotations=(Annotation("protobuf.name", "shop.base.Outer.Inner.Kind"),),
        reserved=Reserved(),
    )
    assert program.find_value("shop.base.Outer_Inner_Kind.NONE") is not None
    assert program.document.namespaces == (Namespace("*", "shop"),)
    assert programs["middle.proto"].document.namespaces == ()
    assert struct(program, "Order").annotations == (Annotation("protobuf.name", "shop.Order"),)


def test_services() -> None:
    proto = file()
    proto.message_type.add(name="Request")
    proto.message_type.add(name="Answer")
    service = proto.service.add(name="Orders")
    service.method.add(name="Place", input_type=".shop.Request", output_type=".shop.Answer")
    find = service.method.add(name="Find", input_type=".shop.Request", output_type=".shop.Request")
    find.options.idempotency_level = 1
    find.options.deprecated = True
    found = from_descriptor_set(serialized(proto))["shop/orders.proto"].find("Orders")
    assert found is not None
    request = Field(1, "request", Reference("Request"))
    assert found.definition == Service(
        "Orders",
        None,
        (
            Method("Place", Reference("Answer"), (request,)),
            Method(
                "Find",
                Reference("Request"),
                (request,),
                annotations=(Annotation("deprecated"), Annotation("idempotent")),
            ),
        ),
        annotations=(Annotation("protobuf.name", "shop.Orders"),),
    )


def test_methods_that_stream_are_read_and_no_code_is_made_of_them() -> None:
    proto = file()
    proto.message_type.add(name="M")
    service = proto.service.add(name="S")
    for name, client, server in (
        ("One", False, False),
        ("Up", True, False),
        ("Down", False, True),
        ("Both", True, True),
    ):
        types = {"input_type": ".shop.M", "output_type": ".shop.M"}
        service.method.add(name=name, client_streaming=client, server_streaming=server, **types)
    program = from_descriptor_set(serialized(proto))["shop/orders.proto"]
    (declared,) = program.document.services
    assert [each.streaming.value for each in declared.methods] == ["none", "client", "server", "both"]
    with pytest.raises(IdlError) as caught:
        generate(program)
    text = "streams; a request and an answer are one message each"
    assert [each.text for each in caught.value.mistakes] == [f'"S.{name}" {text}' for name in ("Both", "Down", "Up")]


def test_what_is_reserved() -> None:
    proto = file()
    message = proto.message_type.add(name="M", reserved_name=["old", "older"])
    for start, end in ((9, 12), (2, 3), (3, 5)):
        message.reserved_range.add(start=start, end=end)
    enum = proto.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    enum.reserved_range.add(start=-3, end=-3)
    enum.reserved_range.add(start=7, end=2_147_483_647)
    program = from_descriptor_set(serialized(proto))["shop/orders.proto"]
    reserved = struct(program, "M").reserved
    assert reserved == Reserved(((2, 5), (9, 12)), ("old", "older"))
    assert [number for number in range(14) if reserved.has(number)] == [2, 3, 4, 9, 10, 11]
    found = next(each for each in program.document.definitions if isinstance(each, Enum))
    assert found.reserved == Reserved(((-3, -2), (7, 2_147_483_648)))


def test_names_in_json() -> None:
    proto = file()
    message = proto.message_type.add(name="M")
    names = {"unit_price": "unitPrice", "_a__b_": "AB", "c_2d": "c2d", "E_f": "EF", "plain": "plain"}
    for number, name in enumerate(names, 1):
        add(message, name, number, "int32")
    add(message, "own", 9, "int32", json_name="another")
    fields = struct(from_descriptor_set(serialized(proto))["shop/orders.proto"], "M").fields
    assert {each.name: each.json_name for each in fields} == {**dict.fromkeys(names, ""), "own": "another"}
    assert {name: json_name(name) for name in names} == names


def test_comments_and_places() -> None:
    proto = file()
    message = proto.message_type.add(name="M")
    add(message, "a", 1, "int32")
    nested = message.nested_type.add(name="N")
    add(nested, "b", 1, "int32")
    proto.enum_type.add(name="E").value.add(name="ZERO", number=0)
    proto.service.add(name="S").method.add(name="Do", input_type=".shop.M", output_type=".shop.M")
    comments = {
        (4, 0): " A message.\n Of two lines.\n", (4, 0, 2, 0): " of a\n", (4, 0, 3, 0): " of N\n",
        (4, 0, 3, 0, 2, 0): " of b\n", (5, 0): " of E\n", (5, 0, 2, 0): "of ZERO",
        (6, 0): " of S\n", (6, 0, 2, 0): " of Do\n",
    }  # fmt: skip
    for line, (path, comment) in enumerate(comments.items()):
        proto.source_code_info.location.add(path=path, span=[line, 4, 9], leading_comments=comment)
    program = from_descriptor_set(serialized(proto))["shop/orders.proto"]
    enum, outer, inner, service = program.document.definitions
    assert isinstance(enum, Enum)
    assert isinstance(outer, Struct)
    assert isinstance(inner, Struct)
    assert isinstance(service, Service)
    found: list[Any] = [
        outer,
        outer.fields[0],
        inner,
        inner.fields[0],
        enum,
        enum.values[0],
        service,
        service.methods[0],
    ]
    assert [each.comment for each in found] == [
        "A message.\nOf two lines.", "of a", "of N", "of b", "of E", "of ZERO", "of S", "of Do",
    ]  # fmt: skip
    assert [str(each.position) for each in found] == [f"shop/orders.proto:{line}:5" for line in range(1, 9)]


def test_what_is_refused() -> None:
    proto = file()
    proto.message_type.add(name="M")
    service = proto.service.add(name="S")
    service.method.add(name="Down", input_type=".shop.M", output_type=".shop.M")
    service.method.add(name="down", input_type=".shop.M", output_type=".shop.M")
    assert mistakes(proto) == ['shop/orders.proto:1:1: "S" has "Down" already, and "down" is the same on the wire']
    proto = file()
    proto.message_type.add(name="A_B")
    proto.message_type.add(name="A").nested_type.add(name="B")
    assert mistakes(proto) == ['shop/orders.proto:1:1: two types of the file would be named "A_B"; rename shop.A.B']
    assert mistakes(file("a/b.proto"), file("a.b.proto")) == [
        "a.b.proto:1:1: 'a/b.proto' and 'a.b.proto' would have the same name"
    ]
    proto = file(syntax="proto2")
    message = proto.message_type.add(name="M")
    add(message, "m", 1, ".shop.M", REQUIRED)
    assert mistakes(proto) == [
        'shop/orders.proto:1:1: no value could end: "M" needs "M"; make one of these fields optional'
    ]
    proto = file(syntax="proto2")
    add(proto.message_type.add(name="M"), "data", 1, "bytes", default_value="\\377")
    assert mistakes(proto) == ['shop/orders.proto:1:1: the default of "data" is no UTF-8, so it cannot be a constant']


def test_sets_that_are_not_complete_or_sound() -> None:
    assert mistakes(file(imports=["gone.proto"])) == [
        "shop/orders.proto:1:1: it imports 'gone.proto', which the set lacks; write the set with protoc "
        "--include_imports"
    ]
    assert mistakes(file("a.proto", imports=["b.proto"]), file("b.proto", imports=["a.proto"])) == [
        'a.proto:1:1: files import each other: "a.proto" imports "b.proto" imports "a.proto"'
    ]
    assert mistakes(file("a.proto"), file("a.proto")) == ["descriptor set:1:1: the set has two files of one name"]
    for path in ("../a.proto", "a\n.proto", "", "/a.proto"):
        assert mistakes(file(path)) == [f"descriptor set:1:1: {path!r} is no path of a file, or its package no name"]
    proto = file()
    add(proto.message_type.add(name="M"), "x", 1, ".shop.Gone")
    (mistake,) = mistakes(proto)
    assert mistake.startswith("shop/orders.proto:1:1: Protobuf refuses the file: ")
    assert "Gone" in mistake
    proto = file()
    proto.message_type.add(name="import os; x")
    assert mistakes(proto)[0].startswith("shop/orders.proto:1:1: Protobuf refuses the file: ")
    with pytest.raises(IdlError, match=r"^descriptor set:1:1: these bytes are no descriptor set: "):
        from_descriptor_set(b"\xff")
    assert from_descriptor_set(b"") == {}


def test_limits_of_sets() -> None:
    with pytest.raises(IdlError, match=f"the set has {SET_BYTES_MAX + 1:,} bytes; {SET_BYTES_MAX:,} are the most"):
        from_descriptor_set(bytes(SET_BYTES_MAX + 1))
    assert mistakes(*(file(f"f{number}.proto") for number in range(SET_FILES_MAX + 1))) == [
        f"descriptor set:1:1: the set has {SET_FILES_MAX + 1} files; {SET_FILES_MAX} are the most"
    ]
    proto = file()
    for number in range(10):
        enum = proto.enum_type.add(name=f"E{number}")
        for value in range(SET_MEMBERS_MAX // 10):
            enum.value.add(name=f"V{number}_{value}", number=value)
    assert mistakes(proto) == [f"shop/orders.proto:1:1: the set has more than {SET_MEMBERS_MAX:,} members, the most"]

    def chain(length: int) -> list[Any]:
        imported = [file(f"f{number}.proto", imports=[f"f{number + 1}.proto"]) for number in range(length - 1)]
        return [*imported, file(f"f{length - 1}.proto")]

    assert len(from_descriptor_set(serialized(*chain(IMPORT_DEPTH_MAX)))) == IMPORT_DEPTH_MAX
    assert mistakes(*chain(IMPORT_DEPTH_MAX + 1)) == [
        f"f0.proto:1:1: it is the head of a chain of more than {IMPORT_DEPTH_MAX} imports, the most"
    ]


def test_the_name_of_an_included_file() -> None:
    assert include_name("google/protobuf/timestamp.proto") == "google.protobuf.timestamp"


def test_files_of_google_itself() -> None:
    from google.protobuf import api_pb2, descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2

    files: dict[str, Any] = {}

    def gather(descriptor: Any) -> None:
        for needed in descriptor.dependencies:
            gather(needed)
        proto = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(proto)
        files[descriptor.name] = proto

    for module in (api_pb2, descriptor_pb2, struct_pb2, timestamp_pb2):
        gather(module.DESCRIPTOR)
    assert descriptor_pool is not None
    programs = from_descriptor_set(serialized(*files.values()))
    assert set(programs) == set(files)
    descriptor = programs["google/protobuf/descriptor.proto"]
    for name, found in descriptor_pb2.DESCRIPTOR.message_types_by_name.items():
        fields = struct(descriptor, name).fields
        assert {each.id: each.name for each in fields} == {each.number: each.name for each in found.fields}
    value = struct(programs["google/protobuf/struct.proto"], "Value")
    assert {each.annotations for each in value.fields} == {(Annotation("oneof", "kind"),)}


@pytest.fixture(scope="module")
def sound() -> bytes:
    proto = file(syntax="proto2")
    message = proto.message_type.add(name="M")
    add(message, "a", 1, "int32", default_value="7")
    add(message, "m", 2, ".shop.M", REPEATED)
    proto.enum_type.add(name="E").value.add(name="A", number=0)
    proto.service.add(name="S").method.add(name="Do", input_type=".shop.M", output_type=".shop.M")
    proto.source_code_info.location.add(path=[4, 0], span=[1, 2, 3], leading_comments="why")
    return serialized(proto)


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_sets_are_read_or_their_mistakes_are_told(sound: bytes, edits: list[tuple[int, int]]) -> None:
    data = bytearray(sound)
    for at, value in edits:
        data[at % len(data)] = value
    try:
        programs = from_descriptor_set(bytes(data))
    except IdlError as error:
        str(error).encode()
    else:
        assert all(program.document.file == path for path, program in programs.items())


def test_without_the_library_it_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"protobuf is not installed, .*\[protobuf\]"):
        from_descriptor_set(b"")
