"""Changes of Protobuf files, the rules that name them here, and what Buf says: for tests, and a table of the docs."""

from __future__ import annotations

from typing import NamedTuple

ALL = "all"
_SOURCE = "`FILE`, `PACKAGE`"
_JSON = "`FILE`, `PACKAGE`, `WIRE_JSON`"


class ProtobufChange(NamedTuple):
    """A change: `found` has rules and what each is about; `buf` the categories of Buf that fail."""

    change: str
    old: str
    new: str
    found: dict[str, str]
    buf: str
    buf_rule: str
    syntax: str = "proto3"


def _change(
    change: str, old: str, new: str, buf: str, buf_rule: str, *, syntax: str = "proto3", **found: str
) -> ProtobufChange:
    rules = {rule.replace("_", "-"): subject for rule, subject in found.items()}
    return ProtobufChange(change, old, new, rules, buf, buf_rule, syntax)


PROTOBUF_CHANGES = [
    _change(
        "a field moves into a `oneof` that has others",
        "message M { optional int32 a = 1; choice: int32 b = 2 }",
        "message M { choice: int32 a = 1; choice: int32 b = 2 }",
        ALL,
        "FIELD_SAME_ONEOF",
        oneof_joined="M.a",
    ),
    _change(
        "a field leaves a `oneof` that keeps others",
        "message M { choice: int32 a = 1; choice: int32 b = 2 }",
        "message M { optional int32 a = 1; choice: int32 b = 2 }",
        ALL,
        "FIELD_SAME_ONEOF",
        oneof_left="M.a",
    ),
    _change(
        "a field moves into a `oneof` of its own, or the `oneof` has another name",
        "message M { optional int32 a = 1 }",
        "message M { choice: int32 a = 1 }",
        ALL,
        "FIELD_SAME_ONEOF",
        oneof_changed="M.a",
    ),
    _change(
        "a field is removed, its number is reserved",
        "message M { int32 a = 1; int32 b = 2 }",
        "message M { int32 a = 1; reserved 2; reserved b }",
        _SOURCE,
        "FIELD_NO_DELETE",
        optional_field_removed="M.b",
    ),
    _change(
        "a field is removed, its number is not reserved",
        "message M { int32 a = 1; int32 b = 2 }",
        "message M { int32 a = 1 }",
        ALL,
        "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED",
        field_removed_unreserved="M.b",
    ),
    _change(
        "a `required` field is removed",
        "message M { required int32 a = 1; optional int32 b = 2 }",
        "message M { optional int32 b = 2; reserved 1 }",
        ALL,
        "MESSAGE_SAME_REQUIRED_FIELDS",
        syntax="proto2",
        required_field_removed="M.a",
    ),
    _change(
        "a `required` field is added",
        "message M { optional int32 a = 1 }",
        "message M { optional int32 a = 1; required int32 b = 2 }",
        ALL,
        "MESSAGE_SAME_REQUIRED_FIELDS",
        syntax="proto2",
        required_field_added="M.b",
    ),
    _change(
        "a reserved number is used again",
        "message M { int32 a = 1; reserved 2 to 4 }",
        "message M { int32 a = 1; int32 b = 3; reserved 2; reserved 4 }",
        ALL,
        "RESERVED_MESSAGE_NO_DELETE",
        reserved_number_used="M.b",
        field_added="M.b",
    ),
    _change(
        "a reserved name is used again",
        "message M { int32 a = 1; reserved b }",
        "message M { int32 a = 1; int32 b = 2 }",
        ALL,
        "RESERVED_MESSAGE_NO_DELETE",
        reserved_name_used="M.b",
        field_added="M.b",
    ),
    _change(
        "a reservation is removed",
        "message M { int32 a = 1; reserved 2 to 4 }",
        "message M { int32 a = 1; reserved 2; reserved 4 }",
        ALL,
        "RESERVED_MESSAGE_NO_DELETE",
        reservation_removed="M",
    ),
    _change(
        "a field becomes `repeated`, or is no longer",
        "message M { string a = 1 }",
        "message M { repeated string a = 1 }",
        ALL,
        "FIELD_WIRE_COMPATIBLE_CARDINALITY",
        type_changed="M.a",
    ),
    _change(
        "a field becomes `optional`, or is no longer",
        "message M { int32 a = 1 }",
        "message M { optional int32 a = 1 }",
        _SOURCE,
        "FIELD_SAME_CARDINALITY",
        field_optionality_changed="M.a",
    ),
    _change(
        "`int32` becomes `uint32`",
        "message M { int32 a = 1 }",
        "message M { uint32 a = 1 }",
        _SOURCE,
        "FIELD_SAME_TYPE",
        type_changed="M.a",
    ),
    _change(
        "`int32` becomes `int64`",
        "message M { int32 a = 1 }",
        "message M { int64 a = 1 }",
        _JSON,
        "FIELD_WIRE_JSON_COMPATIBLE_TYPE",
        type_changed="M.a",
    ),
    _change(
        "`string` becomes `bytes`",
        "message M { string a = 1 }",
        "message M { bytes a = 1 }",
        _JSON,
        "FIELD_WIRE_JSON_COMPATIBLE_TYPE",
        text_bytes_changed="M.a",
    ),
    _change(
        "`int32` becomes `sint32`",
        "message M { int32 a = 1 }",
        "message M { sint32 a = 1 }",
        ALL,
        "FIELD_WIRE_COMPATIBLE_TYPE",
        field_encoding_changed="M.a",
    ),
    _change(
        "a field has another name",
        "message M { int32 a = 1 }",
        "message M { int32 b = 1 }",
        _JSON,
        "FIELD_SAME_NAME",
        field_renamed="M.a",
        json_name_changed="M.a",
    ),
    _change(
        "`json_name` changes",
        "message M { int32 unit_price = 1 }",
        "message M { int32 unit_price = 1 [json_name = price] }",
        _JSON,
        "FIELD_SAME_JSON_NAME",
        json_name_changed="M.unit_price",
    ),
    _change(
        "a default changes",
        "message M { optional int32 a = 1 [default = 1] }",
        "message M { optional int32 a = 1 [default = 2] }",
        ALL,
        "FIELD_SAME_DEFAULT",
        syntax="proto2",
        field_default_changed="M.a",
    ),
    _change(
        "the zero value of an enum has another name",
        "enum E { A = 0; B = 1 }",
        "enum E { C = 0; B = 1 }",
        _JSON,
        "ENUM_VALUE_SAME_NAME",
        enum_value_renamed="E.A",
    ),
    _change(
        "another value of an enum comes first",
        "enum E { A = 0; B = 1 }",
        "enum E { B = 1; A = 0 }",
        "none",
        "",
        syntax="proto2",
        enum_default_changed="E",
    ),
    _change(
        "a value of an enum is removed, its number and name are reserved",
        "enum E { A = 0; B = 1 }",
        "enum E { A = 0; reserved 1; reserved B }",
        _SOURCE,
        "ENUM_VALUE_NO_DELETE",
        enum_value_removed="E.B",
    ),
    _change(
        "a value of an enum has another number",
        "enum E { A = 0; B = 1 }",
        "enum E { A = 0; B = 2 }",
        ALL,
        "ENUM_VALUE_NO_DELETE_UNLESS_NUMBER_RESERVED",
        enum_value_renumbered="E.B",
    ),
    _change(
        "a message is removed",
        "message M { int32 a = 1 } message N { string b = 1 }",
        "message M { int32 a = 1 }",
        _SOURCE,
        "MESSAGE_NO_DELETE",
        struct_removed="N",
    ),
    _change(
        "a service is removed",
        "message M { int32 a = 1 } service S { Get M M }",
        "message M { int32 a = 1 }",
        _SOURCE,
        "SERVICE_NO_DELETE",
        service_removed="S",
    ),
    _change(
        "a method is removed",
        "message M { int32 a = 1 } service S { Get M M; Put M M }",
        "message M { int32 a = 1 } service S { Get M M }",
        _SOURCE,
        "RPC_NO_DELETE",
        method_removed="S.Put",
    ),
    _change(
        "a method streams, or no longer",
        "message M { int32 a = 1 } service S { Get M M }",
        "message M { int32 a = 1 } service S { Get M stream M }",
        ALL,
        "RPC_SAME_SERVER_STREAMING",
        method_streaming_changed="S.Get",
    ),
    _change(
        "a method takes or returns another message",
        "message M { int32 a = 1 } message N { string b = 1 } service S { Get M M }",
        "message M { int32 a = 1 } message N { string b = 1 } service S { Get M N }",
        ALL,
        "RPC_SAME_RESPONSE_TYPE",
        type_replaced="S.Get",
    ),
]
