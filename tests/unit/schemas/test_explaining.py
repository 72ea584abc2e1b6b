"""Explanations of refused values: the path of the field, what is expected there, and what was found."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.idl.model import Field, ListOf, MapOf, Program, Reference, Requiredness
from penstock.schemas.avro import avro_decoder, avro_plan
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.explaining import explained
from penstock.schemas.json_values import arrow_of_json_schema, json_decoder, json_plan
from penstock.schemas.protobuf import protobuf_decoder, protobuf_plan
from penstock.schemas.thrift import ThriftProtocol, thrift_decoder, thrift_plan
from tests.typed_values import program, scalar, struct, thrift_bytes
from tests.unit.schemas.test_avro import written
from tests.unit.schemas.test_protobuf import ALL_CLASS, PROGRAM

ORDER = {
    "type": "object",
    "required": ["shop"],
    "properties": {
        "shop": {"type": "string"},
        "id": {"type": "integer"},
        "paid": {"type": "boolean"},
        "price": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]},
        },
        "stock": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {},
    },
}
JSON = json_decoder(json_plan(arrow_of_json_schema(json.dumps(ORDER))))


def json_of(**fields: pa.DataType) -> Decoder:
    return json_decoder(json_plan(pa.schema(list(fields.items()))))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "the value is empty"),
        (b" [1]", "an object is expected, an array is found"),
        (b"7", "an object is expected, a number is found"),
        (b"shop", "an object is expected, something that is no JSON is found"),
        (b"{}", "shop: a string is required, and is missing or null"),
        (b'{"shop":null}', "shop: a string is required, and is missing or null"),
        (b'{"shop":-7}', "shop: a string is expected, a number is found"),
        (b'{"shop":true}', "shop: a string is expected, true is found"),
        (b'{"shop":"a","id":"7"}', "id: a whole number is expected, a string is found"),
        (b'{"shop":"a","id":1.5}', "id: a whole number is expected, a fraction is found"),
        (b'{"shop":"a","paid":0}', "paid: true or false is expected, a number is found"),
        (b'{"shop":"a","price":{}}', "price: a number is expected, an object is found"),
        (b'{"shop":"a","price":1e999}', "price: a number is expected, one beyond its range is found"),
        (b'{"shop":"a","at":5}', "at: a time string like 2026-11-29T12:00:00Z is expected, a number is found"),
        (b'{"shop":"a","at":"x"}', "at: a time string like 2026-11-29T12:00:00Z is expected, another string is found"),
        (b'{"shop":"a","day":"29.11."}', "day: a date string like 2026-11-29 is expected, another string is found"),
        (b'{"shop":"a","lines":{}}', "lines: an array is expected, an object is found"),
        (b'{"shop":"a","lines":[{"price":1},7]}', "lines[1]: an object is expected, a number is found"),
        (b'{"shop":"a","lines":[{"price":1},{"price":""}]}', "lines[1].price: a number is expected, a string is found"),
        (b'{"shop":"a","lines":[{}]}', "lines[0].price: a number is required, and is missing or null"),
        (b'{"shop":"a","stock":{"b":1,"c":[]}}', "stock{1}: a whole number is expected, an array is found"),
        (b'{"shop":"a"', "near byte 11 of 11"),
        (b'{"shop":"a"} x', "near byte 13 of 14"),
        (b'{"shop":"a\xff"}', "near byte 10 of 13"),
        (b'{"shop":nul}', "shop: near byte 8 of 12"),
        (b'{"shop":"a","note":[1,2,}', "note: near byte 24 of 25"),
        (b'{"shop":"a"}', ""),
    ],
)  # fmt: skip
def test_json(value: bytes, why: str) -> None:
    assert explained(JSON, value) == why


def test_json_numbers_beyond_their_type() -> None:
    of = json_of(small=pa.int8(), unsigned=pa.uint16(), nano=pa.timestamp("ns"))
    assert explained(of, b'{"small":128}') == (
        "small: a whole number from -128 to 127 is expected, one beyond its range is found"
    )
    assert explained(of, b'{"unsigned":-1}') == (
        "unsigned: a whole number from 0 to 65535 is expected, one beyond its range is found"
    )
    assert explained(of, b'{"nano":"9999-01-01T00:00:00Z"}') == (
        "nano: a time string like 2026-11-29T12:00:00Z is expected, one beyond its range is found"
    )


def test_an_element_counts_from_the_begin_of_its_own_list() -> None:
    of = json_of(rows=pa.list_(pa.list_(pa.int64())))
    assert explained(of, b'{"rows":[[1,2,3],[4,"5"]]}') == "rows[1][1]: a whole number is expected, a string is found"
    assert explained(of, b'{"rows":[[1,2,3]],"rows":[[4],[],[5,6,[]]]}') == (
        "rows[2][2]: a whole number is expected, an array is found"
    )


def test_avro() -> None:
    line = {
        "type": "record",
        "name": "L",
        "fields": [{"name": "price", "type": "int"}, {"name": "t", "type": "string"}],
    }
    schema = {
        "type": "record",
        "name": "O",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "lines", "type": {"type": "array", "items": line}},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    value = {"id": 7, "lines": [{"price": 1, "t": "abc"}, {"price": 2, "t": "defg"}], "note": "hij"}
    (whole,) = written(schema, value)
    decoder = avro_decoder(avro_plan(json.dumps(schema)))
    size = len(whole)
    assert explained(decoder, whole) == ""
    assert explained(decoder, whole + b"x") == f"near byte {size} of {size + 1}"
    place = f"near byte {whole.index(b'defg') + 4} of {size}"
    assert explained(decoder, whole.replace(b"defg", b"\xff" * 4)) == f"lines[1].t: a string is expected, {place}"
    assert explained(decoder, whole[:-1]) == f"note: a string is expected, near byte {size - 3} of {size - 1}"


def contract(requiredness: Requiredness) -> Program:
    return program(
        struct("Line", Field(1, "price", scalar("i32"), requiredness), Field(2, "text", scalar("string"))),
        struct(
            "Order",
            Field(1, "lines", ListOf(Reference("Line"))),
            Field(2, "by", MapOf(scalar("string"), Reference("Line"))),
        ),
    )


@pytest.mark.parametrize("protocol", ThriftProtocol)
def test_thrift(protocol: ThriftProtocol) -> None:
    decoder = thrift_decoder(thrift_plan(contract(Requiredness.REQUIRED), "Order"), protocol)

    def encoded(*lines: dict[str, object], **by: dict[str, object]) -> bytes:
        value = {"lines": list(lines), "by": list(by.items())}
        return thrift_bytes(contract(Requiredness.OPTIONAL), Reference("Order"), value, protocol, None)

    good = {"price": 1, "text": "some"}
    assert explained(decoder, encoded(good, x=good)) == ""
    assert explained(decoder, encoded(good, {"text": "other"})) == (
        "lines[1].price: a whole number of 32 bits is required, and is missing or of another type"
    )
    assert "by{0}.price: a whole number of 32 bits is required" in explained(decoder, encoded(x={}))
    value = encoded(good, {"price": 1, "text": "other"})
    place = f"near byte {value.index(b'other') + 5} of {len(value)}"
    assert explained(decoder, value.replace(b"other", b"\xff" * 5)) == f"lines[1].text: a string is expected, {place}"
    value = encoded(keys=good).replace(b"keys", b"\xff" * 4)
    assert explained(decoder, value).startswith("by{0}.key: a string is expected, near byte")


def test_protobuf() -> None:
    decoder = protobuf_decoder(protobuf_plan(PROGRAM, "All"))
    message = ALL_CLASS(inners=[{}, {"n": 1, "all": ["a", "some"]}], by_name={"k": {"all": ["other"]}})
    value = message.SerializeToString()
    assert explained(decoder, value) == ""
    place = f"near byte {value.index(b'some') + 4} of {len(value)}"
    assert explained(decoder, value.replace(b"some", b"\xff" * 4)) == (
        f"inners[1].all[1]: a string is expected, {place}"
    )
    assert explained(decoder, value.replace(b"other", b"\xff" * 5)).startswith("by_name{0}.all[0]: a string")
    assert explained(decoder, b"\x0b") == "near byte 1 of 1"


def test_frames() -> None:
    decoder = json_decoder(json_plan(arrow_of_json_schema(json.dumps(ORDER))), ValueFraming.CONFLUENT)
    for value in (b'{"shop":1}', b"\0\0\0"):
        assert explained(decoder, value) == "a zero byte and a schema id of 4 bytes are expected first"
    assert explained(decoder, b'\0\0\0\0\1{"shop":1}') == "shop: a string is expected, a number is found"
    of_message = thrift_decoder(thrift_plan(contract(Requiredness.OPTIONAL), "Order"), framing=ValueFraming.MESSAGE)
    assert explained(of_message, b"\x80\x07\0\1") == ""


def test_nothing_of_the_value_is_told() -> None:
    for value in (
        b'{"shop":"a","stock":{"secret":"secret"}}',
        b'{"shop":"a","at":"secret"}',
        b'{"secret":secret}',
        b'{"shop":"a","id":4711.5}',
        b'{"shop":"a","stock":{"secret":4711e400}}',
    ):
        why = explained(JSON, value)
        assert why
        assert "secret" not in why
        assert "4711" not in why


def test_a_large_value_is_not_explained() -> None:
    value = b'{"shop":7}'
    assert explained(JSON, value.ljust(limits.SCHEMA_EXPLAINED_BYTES_MAX))
    assert explained(JSON, value.ljust(limits.SCHEMA_EXPLAINED_BYTES_MAX + 1)) == ""


def test_names_of_a_schema_are_cut_and_printable() -> None:
    why = explained(
        json_of(**{"é" * 500: pa.struct([("last", pa.bool_())])}), ('{"%s":{"last":0}}' % ("é" * 500)).encode()
    )
    assert why.startswith("…é")
    assert why.endswith("é.last: true or false is expected, a number is found")
    assert len(why.encode()) < 200
    assert explained(json_of(**{"a\r\n\0b": pa.bool_()}), rb'{"a\r\n\u0000b":0}') == (
        r"'a\r\n\x00b': true or false is expected, a number is found"
    )
    assert explained(json_of(**{"": pa.bool_()}), b'{"":0}') == "'': true or false is expected, a number is found"
