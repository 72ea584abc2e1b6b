"""Messages in Protobuf's language, made of descriptor sets."""

from __future__ import annotations

from penstock.idl.model import Field, MapOf, Reference
from penstock.idl.protobuf_text import message_text
from tests.protobuf_contracts import protobuf_program
from tests.typed_values import program, scalar, struct

SHOP = """
message Unused { int32 a = 1 }
message Order {
  string id = 1; optional sint32 cents = 2; repeated Line lines = 3; Line first = 4;
  how: string card = 5; how: Color voucher = 6; fixed64 at = 7; reserved 8; reserved 10 to 12; reserved old
}
message Line { Order order = 1; bytes data = 2 }
enum Color { NONE = 0; RED = 1; reserved 5 }
"""
TEXT = """\
message shop.Order {
  reserved 8, 10 to 12;
  reserved "old";
  string id = 1;
  optional sint32 cents = 2;
  repeated shop.Line lines = 3;
  shop.Line first = 4;
  oneof how {
    string card = 5;
    shop.Color voucher = 6;
  }
  fixed64 at = 7;
}

message shop.Line {
  shop.Order order = 1;
  bytes data = 2;
}

enum shop.Color {
  reserved 5;
  NONE = 0;
  RED = 1;
}
"""


def test_a_message_and_the_types_that_it_reaches() -> None:
    assert message_text(protobuf_program(SHOP), Reference("Order")) == TEXT


def test_labels_and_defaults_of_proto2() -> None:
    found = protobuf_program("message M { required int32 a = 1; optional int32 b = 2 [default = 7] }", syntax="proto2")
    assert message_text(found, Reference("M")) == (
        "message shop.M {\n  required int32 a = 1;\n  optional int32 b = 2 [default = 7];\n}\n"
    )


def test_maps_say_the_encoding_of_their_keys_and_values() -> None:
    of = program(
        struct("Inner", Field(1, "n", scalar("i32"))),
        struct(
            "M",
            Field(1, "a", MapOf(scalar("i32"), scalar("u64")), encoding="map<sint32, fixed64>"),
            Field(2, "b", MapOf(scalar("string"), Reference("Inner")), comment="By name.\nAll of them."),
        ),
    )
    assert message_text(of, Reference("M")) == (
        "message M {\n  map<sint32, fixed64> a = 1;\n  // By name.\n  // All of them.\n  map<string, Inner> b = 2;\n"
        "}\n\nmessage Inner {\n  int32 n = 1;\n}\n"
    )
