"""Rows of a stream as typed columns: which schema, version and framing each row gets, and what the columns are."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.base.ids import StreamId, TimestampUs
from penstock.batch.schema import PARTITION_KEY
from penstock.schemas.avro_fingerprint import single_object_mark
from penstock.schemas.decoding import Reason, ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind, text_of_arrow
from penstock.schemas.plans import EnumStyle, SchemaError
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from penstock.schemas.report import Counted, DecodeReport
from penstock.schemas.row_decoder import RowDecoder
from penstock.schemas.thrift import ThriftProtocol
from tests.typed_values import thrift_bytes

POINT = "struct Point { 1: i32 x }"
NATIVE = {"Frugal-Operation": "Moved", "Content-Type": "application/vnd.apache.thrift.binary"}


def frugal(text: str, name: str) -> Schema:
    return Schema(SchemaKind.FRUGAL, text, type_name=name)


def version(schema: Schema, subject: str, number: int = 1, **typed: Any) -> SchemaVersion:
    return SchemaVersion(Typed(subject, **typed), number, schema, schema.hash(), TimestampUs(0))


def decoder(*versions: SchemaVersion, **options: Any) -> RowDecoder:
    return RowDecoder(StreamSchemas("s", StreamId(1), versions), **options)


def thrift(schema: Schema, value: Any, protocol: ThriftProtocol = ThriftProtocol.BINARY) -> bytes:
    program, type_ = schema.contract()
    return thrift_bytes(program, type_, value, protocol, None)


def framed(value: bytes, operation: bytes) -> bytes:
    message = struct.pack(">iI", -0x7FFEFFFF, len(operation)) + operation + bytes(4) + value
    return struct.pack(">ibi", len(message) + 5, 0, 0) + message


def block(**headers: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode()


def rows(*each: tuple[str, bytes | None, dict[str, str] | None], **more: Any) -> pa.RecordBatch:
    subjects, values, headers = zip(*each, strict=True) if each else ((), (), ())
    blocks = [None if one is None else block(**one) for one in headers]
    columns = {
        "subject": pa.array(subjects, pa.string()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array(blocks, pa.binary()),
    }
    return pa.record_batch({**more, **columns})


def found(of: RowDecoder, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = pa.record_batch(of.decode(batch).columns, schema=of.schema).to_pylist()
    return listed


def test_fields_of_one_type_are_columns_and_each_refused_row_has_a_reason() -> None:
    point = frugal(POINT, "Point")
    one = decoder(version(point, "a.*"))
    batch = rows(
        ("a.b", thrift(point, {"x": 1}), None),
        ("a.b", b"", None),
        ("a.b.c", thrift(point, {"x": 2}), None),
        ("a.b", None, None),
        ("b", None, None),
        ("a.b", thrift(point, {"x": 3}), {"Penstock-Schema": "f" * 64}),
        ("a.c", thrift(point, {"x": 4}), {"Other": "1"}),
    )
    decoded = one.decode(batch)
    assert one.schema == pa.schema([("x", pa.int32()), ("decode_error", pa.dictionary(pa.int8(), pa.string()))])
    assert decoded.columns[0].to_pylist() == [1, None, None, None, None, None, 4]
    reasons = [None, Reason.ENDS, Reason.SUBJECT, None, None, Reason.VERSION, None]
    assert decoded.columns[1].to_pylist() == [reason and reason.text for reason in reasons]
    assert decoded.report == DecodeReport(
        7,
        2,
        {
            Reason.ENDS: Counted(1, "row 1", "the value is empty"),
            Reason.SUBJECT: Counted(1, "row 2"),
            Reason.VERSION: Counted(1, "row 5"),
        },
        {("a.*", 1): 2},
    )
    assert decoded.report.sentences()[:2] == [
        "1 of 7 values not decoded: the bytes end within a value (first: row 1; the value is empty)",
        "1 of 7 values not decoded: no schema for this subject (first: row 2)",
    ]


def test_the_first_of_each_reason_is_explained() -> None:
    text = '{"properties":{"x":{"type":"integer"},"y":{"type":"string"}},"required":["x"]}'
    one = decoder(version(Schema(SchemaKind.JSON_SCHEMA, text), "a"))
    values = [b'{"x":1}', b'{"x":[]}', b'{"x":{}}', b"{}", b'{"x":1,"y":2}', None]
    table = pa.Table.from_batches([rows(*(("a", each, None) for each in values[place:])) for place in (0, 2)])
    assert one.decode(table).report.refused == {
        Reason.MISSING: Counted(2, "row 3", "x: a whole number is required, and is missing or null"),
        Reason.FORM: Counted(5, "row 1", "x: a whole number is expected, an array is found"),
    }
    # Values may be text, and of other rows than the first.
    texts = rows(("a", None, None), ("a", None, None)).set_column(1, "value", pa.array(["{}", '{"x":1,"y":2}']))
    assert one.explained(texts, 1) == "y: a string is expected, a number is found"
    assert one.explained(rows(("a", b'{"x":1}', None), ("a", None, None), ("b", b"", None)), 2) == ""


def test_a_value_in_avros_single_object_encoding_is_explained() -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"x","type":"string"}]}'
    one = decoder(version(Schema(SchemaKind.AVRO, text), "a"))
    batch = rows(("a", single_object_mark(text) + b"\x02\xff", None))
    assert one.decode(batch).report.refused == {
        Reason.ENCODING: Counted(1, "row 0", "x: a string is expected, near byte 2 of 2")
    }


def test_positions_in_the_report_are_those_of_the_log() -> None:
    one = decoder(version(frugal(POINT, "Point"), "a"))
    bad = ("b", b"", None)
    at = pa.array([7, 9])
    for batch, place in (
        (rows(bad, bad, offset=at), "offset 7"),
        (rows(bad, bad, offset=at, partition=pa.array([3, 4])), "partition 3, offset 7"),
        (rows(bad, bad, offset=at).replace_schema_metadata({PARTITION_KEY: b"0000000a"}), "partition 10, offset 7"),
    ):
        assert one.decode(batch).report.refused[Reason.SUBJECT] == Counted(2, place)
    table = pa.Table.from_batches([rows(bad), rows(("a", None, None), bad)])
    report = one.decode(table, rows_before=10).report
    assert report.refused == {Reason.SUBJECT: Counted(2, "row 10")}
    assert report.rows == 3


def test_headers_of_the_native_framing_give_framing_and_protocol() -> None:
    point = frugal(POINT, "Point")
    one = decoder(version(point, "a", message="Moved", framing=ValueFraming.FRUGAL))
    bare, compact = thrift(point, {"x": 1}), thrift(point, {"x": 2}, ThriftProtocol.COMPACT)
    kind = "application/vnd.apache.thrift"
    batch = rows(
        ("a", framed(bare, b"Moved"), None),
        ("a", framed(bare, b"Gone"), None),
        ("a", bare, NATIVE),
        ("a", bare, {"Frugal-Operation": "Moved"}),
        ("a", compact, {**NATIVE, "Content-Type": "Application/VND.apache.thrift.compact; q=1"}),
        ("a", bare, {**NATIVE, "Content-Type": f"{kind}.json"}),
        ("a", bare, {**NATIVE, "Frugal-Operation": "Gone"}),
        ("a", bare, {"Content-Type": "text/plain"}),
        ("a", framed(bare, b"Moved"), {"Content-Type": "text/plain", "frugal-operation": "Moved"}),
    )
    name, frame, content = Reason.NAME.text, Reason.FRAME.text, Reason.CONTENT_TYPE.text
    assert [row["x"] for row in found(one, batch)] == [1, None, 1, 1, 2, None, None, None, 1]
    errors = [row["decode_error"] for row in found(one, batch)]
    assert errors[:7] == [None, name, None, None, None, content, name]
    assert errors[8] is None
    assert errors[7] in (frame, Reason.ENDS.text)


def test_rows_of_an_older_version_have_the_columns_of_the_newest() -> None:
    def avro(*fields: Any) -> Schema:
        listed = [{"name": name, "type": kind} for name, kind in fields]
        return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": listed}))

    def encoded(schema: Schema, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema.text)), value)
        return out.getvalue()

    old = avro(("n", "int"), ("gone", "string"), ("t", "long"))
    new = avro(("t", "int"), ("m", "string"), ("n", "long"))
    one = decoder(version(old, "a", 1), version(new, "a", 2))
    said = {"Penstock-Schema": old.hash()}
    batch = rows(
        ("a", encoded(new, {"n": 2**40, "m": "é", "t": 5}), {"Penstock-Schema": new.hash()}),
        ("a", encoded(old, {"n": 7, "gone": "x", "t": 8}), said),
        ("a", encoded(old, {"n": 9, "gone": "x", "t": 2**40}), {"Penstock-Schema": old.hash().upper()}),
        ("a", encoded(new, {"n": 1, "m": "", "t": 6}), {"Penstock-Schema": new.hash()}),
    )
    assert one.schema.names == ["t", "m", "n", "decode_error"]
    assert found(one, batch) == [
        {"t": 5, "m": "é", "n": 2**40, "decode_error": None},
        {"t": 8, "m": None, "n": 7, "decode_error": None},
        {"t": None, "m": None, "n": 9, "decode_error": Reason.CHANGED.text},
        {"t": 6, "m": "", "n": 1, "decode_error": None},
    ]
    report = one.decode(batch).report
    assert (report.decoded, report.versions) == (3, {("a", 1): 1, ("a", 2): 2})


def test_avro_fields_that_an_older_version_lacks_have_their_default() -> None:
    """Avro's schema resolution, also of names that have changed and in rows beside those of the newest version."""
    old = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}))
    fields = [
        {"name": "m", "type": "long", "aliases": ["n"]},
        {"name": "t", "type": "string", "default": "none"},
        {"name": "u", "type": ["null", "int"], "default": None},
    ]
    new = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}))
    one = decoder(version(old, "a", 1), version(new, "a", 2))
    by_old, by_new = ({"Penstock-Schema": each.hash()} for each in (old, new))
    batch = rows(("a", b"\x02", by_old), ("a", b"\x04\x02x\x02\x06", by_new), ("a", None, by_old), ("a", b"", by_old))
    assert found(one, batch) == [
        {"m": 1, "t": "none", "u": None, "decode_error": None},
        {"m": 2, "t": "x", "u": 3, "decode_error": None},
        {"m": None, "t": None, "u": None, "decode_error": None},
        {"m": None, "t": None, "u": None, "decode_error": Reason.ENDS.text},
    ]


def test_avro_single_objects_name_their_version_by_its_fingerprint() -> None:
    def avro(*fields: tuple[str, str, Any]) -> Schema:
        listed = [{"name": name, "type": kind, "default": default} for name, kind, default in fields]
        return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": listed}))

    def mark(schema: Schema) -> bytes:
        form = fastavro.schema.to_parsing_canonical_form(json.loads(schema.text))
        return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO"))

    old, new, other = avro(("n", "int", 0)), avro(("t", "string", "-"), ("n", "int", 0)), avro(("x", "double", 0.0))
    one = decoder(version(old, "a", 1), version(new, "a", 2), version(frugal(POINT, "Point"), "b"))
    by_old = {"Penstock-Schema": old.hash()}
    batch = rows(
        ("a", mark(old) + b"\x02", None),
        ("a", mark(new) + b"\x02x\x04", by_old),  # what the value says itself counts
        ("a", b"\x06", by_old),
        ("a", mark(other) + bytes(8), None),
        ("a", mark(old), None),
        ("a", mark(old)[:-1], by_old),
        ("b", mark(old) + b"\x02", None),
        ("a", None, None),
        ("a", b"\x06", None),
        ("a", mark(new) + b"\0\x08", {"Penstock-Schema": "0" * 64}),
    )
    made = found(one, batch)
    assert [row["R"] for row in made] == [
        {"t": "-", "n": 1},
        {"t": "x", "n": 2},
        {"t": "-", "n": 3},
        *[None] * 6,
        {"t": "", "n": 4},
    ]
    errors = [None, None, None, Reason.UNVERSIONED, Reason.ENDS, Reason.TRAILING]
    assert [row["decode_error"] for row in made[:6]] == [each and each.text for each in errors]
    assert made[6]["decode_error"]
    assert [row["decode_error"] for row in made[7:]] == [None, Reason.UNVERSIONED.text, None]
    assert one.reasons(batch).to_pylist()[:6] == [each or 0 for each in errors]
    alone = decoder(version(old, "a", 1))
    batch = rows(*[("a", mark(old) + bytes([2 * n]), None) for n in range(4)], ("a", b"\x08", None))
    assert [row["n"] for row in found(alone, batch[2:])] == [2, 3, 4]
    assert [row["n"] for row in found(alone, batch[:2])] == [0, 1]
    assert found(alone, rows(("a", mark(old), None)))[0]["decode_error"] == Reason.ENDS.text


def test_avro_values_that_name_no_version_are_not_guessed_at() -> None:
    """Avro's bytes do not say what they are: with the wrong schema two names would change places."""

    def avro(*names: str, **more: Any) -> Schema:
        fields = [{"name": name, "type": "string", **more} for name in names]
        return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}))

    value = b"\x06bob\x0aalice"
    old, new = avro("to", "frm"), avro("frm", "to")
    two = decoder(version(old, "a", 1), version(new, "a", 2))
    batch = rows(("a", value, None), ("a", value, {"Penstock-Schema": old.hash()}))
    assert [each["decode_error"] for each in found(two, batch)] == [Reason.UNVERSIONED.text, None]
    assert found(two, batch)[1] == {"frm": "alice", "to": "bob", "decode_error": None}
    confluent = decoder(version(old, "a", 1, framing="confluent"), version(new, "a", 2, framing="confluent"))
    assert found(confluent, rows(("a", bytes(5) + value, None)))[0]["decode_error"] == Reason.UNVERSIONED.text
    same = decoder(version(old, "a", 1), version(avro("to", "frm", doc="the name"), "a", 2))
    assert found(same, rows(("a", value, None)))[0] == {"to": "bob", "frm": "alice", "decode_error": None}


def test_several_types_are_structs_named_by_them() -> None:
    point, size = frugal(POINT, "Point"), frugal("struct Size { 1: i64 offset }", "Size")
    listed = frugal("scope S { Counts: list<i32> }", "S.Counts")
    shape = Schema(SchemaKind.JSON_SCHEMA, '{"title":"POINT","properties":{"y":{"type":"integer"}}}')
    nameless = Schema(SchemaKind.ARROW, text_of_arrow(pa.schema([("z", pa.int8())])))
    one = decoder(
        version(point, "a"),
        version(size, "b.>"),
        version(listed, "c", message="Counts"),
        version(shape, "d"),
        version(nameless, "e.*.f"),
        version(point, "g"),
    )
    assert one.schema.names == ["Point", "Size", "Counts", "POINT_2", "e_f", "decode_error"]
    made = found(
        one,
        rows(
            ("b.c.d", thrift(size, {"offset": 9}), None),
            ("g", thrift(point, {"x": 1}), None),
            ("c", thrift(listed, [3]), None),
            ("e.1.f", b'{"z":5}', None),
            ("e.1", b'{"z":5}', None),
            ("d", b'{"y":4}', None),
            ("a", thrift(point, {"x": 2}), None),
        ),
    )
    kept = [{name: value for name, value in row.items() if value is not None} for row in made]
    assert kept == [
        {"Size": {"offset": 9}},
        {"Point": {"x": 1}},
        {"Counts": {"value": [3]}},
        {"e_f": {"z": 5}},
        {"decode_error": Reason.SUBJECT.text},
        {"POINT_2": {"y": 4}},
        {"Point": {"x": 2}},
    ]
    assert decoder(*one_version(size), subjects=["b.*"]).schema.names == ["data_offset", "decode_error"]


def one_version(schema: Schema) -> list[SchemaVersion]:
    return [version(frugal(POINT, "Point"), "a"), version(schema, "b.>")]


def test_patterns_of_one_type_share_columns_if_one_includes_the_other() -> None:
    small, large = frugal(POINT, "Point"), frugal("struct Point { 1: i32 x 2: string t }", "Point")
    other = frugal("struct Point { 1: string x }", "Point")
    one = decoder(version(small, "a"), version(large, "b"))
    assert found(one, rows(("a", thrift(small, {"x": 1}), None), ("b", thrift(large, {"x": 2, "t": "t"}), None))) == [
        {"x": 1, "t": None, "decode_error": None},
        {"x": 2, "t": "t", "decode_error": None},
    ]
    assert decoder(version(small, "a"), version(other, "b")).schema.names == ["Point", "Point_2", "decode_error"]


def test_names_of_the_logs_columns_stay_theirs() -> None:
    fields = ["offset", "Value", "decode_error", "data_offset", "x"]
    text = "struct P { " + " ".join(f"{place}: i32 {name}" for place, name in enumerate(fields, 1)) + " }"
    assert decoder(version(frugal(text, "P"), "a")).schema.names == [
        *("data_data_offset", "data_Value", "data_decode_error", "data_offset", "x", "decode_error"),
    ]


def test_enums_are_dictionaries_strings_or_numbers() -> None:
    schema = frugal("enum C { RED = 1, BLUE = 2 } struct P { 1: C c }", "P")
    batch = rows(*(("a", thrift(schema, {"c": number}), None) for number in (2, 7, 1)))
    for style, expected in (
        (EnumStyle.DICTIONARY, ["BLUE", "7", "RED"]),
        (EnumStyle.STRING, ["BLUE", "7", "RED"]),
        (EnumStyle.NUMBER, [2, 7, 1]),
    ):
        one = decoder(version(schema, "a"), enums=style)
        assert one.schema.field("c").type == style.type
        assert [row["c"] for row in found(one, batch)] == expected


def test_other_types_of_columns_and_slices_and_empty_batches() -> None:
    point = frugal(POINT, "Point")
    one = decoder(version(point, "a.*"))
    batch = rows(*((f"a.{place % 3}", thrift(point, {"x": place}), NATIVE) for place in range(9)))
    for kinds in (
        {"subject": pa.dictionary(pa.int8(), pa.string()), "value": pa.large_binary(), "headers": pa.large_binary()},
        {"subject": pa.large_string(), "value": pa.binary_view(), "headers": pa.binary_view()},
    ):
        other = pa.record_batch({name: batch.column(name).cast(kind) for name, kind in kinds.items()})
        assert [row["x"] for row in found(one, other.slice(4, 3))] == [4, 5, 6]
    assert found(one, batch.slice(3, 0)) == []
    empty = one.decode(pa.Table.from_batches([], schema=batch.schema))
    assert [(each.type, len(each)) for each in empty.columns] == [(kind, 0) for kind in one.schema.types]
    assert (
        pa.Table.from_arrays(one.decode(pa.Table.from_batches([batch] * 2)).columns, schema=one.schema).num_rows == 18
    )


def test_what_it_cannot_decode() -> None:
    with pytest.raises(SchemaError, match=r"stream 's' has no schemas for b.c"):
        decoder(version(frugal(POINT, "Point"), "a"), subjects=["b.c"])
    with pytest.raises(SchemaError, match="'s' has no schemas;"):
        decoder()
    one = decoder(version(frugal(POINT, "Point"), "a"))
    with pytest.raises(ValueError, match="have no 'headers'; decoding takes subject, value, headers"):
        one.decode(rows().drop_columns(["headers"]))


def test_reasons_alone_are_those_of_the_columns() -> None:
    made = decoder(version(frugal(POINT, "Point"), "a.*"), version(frugal("struct P { }", "P"), "b.*"))
    batch = rows(("a.1", b"?", None), ("b.1", b"?", None), ("c", b"?", None), ("a.1", None, None), ("b.1", b"\0", None))
    said = made.decode(batch).columns[-1].to_pylist()
    assert [None if one == 0 else Reason(one).text for one in made.reasons(batch).to_pylist()] == said
    assert said[3:] == [None, None]
    assert len(made.reasons(batch.slice(0, 0))) == 0


def test_a_stream_may_have_as_many_operations_as_versions() -> None:
    point = frugal(POINT, "Point")
    versions = [version(point, f"a.{number}", message=f"Moved{number}") for number in range(1_000)]
    assert decoder(*versions).reasons(rows(("a.999", b"?", None))).to_pylist() != [0]


def test_the_version_of_another_pattern_is_none_of_this_one() -> None:
    point, size = frugal(POINT, "Point"), frugal("struct Size { 1: i64 y }", "Size")
    made = decoder(version(point, "a"), version(size, "b"), decodes_unknown=True)
    value = thrift(point, {"x": 1})
    batch = rows(("a", value, {"Penstock-Schema": size.hash()}), ("a", value, {"Penstock-Schema": "0" * 64}))
    assert made.reasons(batch).to_pylist() == [Reason.VERSION, 0]


def test_dead_letters_are_decoded_by_the_subject_on_which_they_were_published() -> None:
    point = frugal(POINT, "Point")
    size = frugal("struct Size { 1: i32 x }", "Size")
    value = thrift(point, {"x": 1})
    batch = rows(
        ("penstock.dead.s-dead.a.b", value, None),
        ("penstock.dead.s-dead.unfit", value, {"Penstock-Dead-Subject": "a.c"}),
        ("penstock.dead.s-dead.too-long", value, {"Trace": "t", "Penstock-Dead-Subject": "b"}),
        ("penstock.dead.s-dead.unfit", value, None),
        ("penstock.dead.s-dead.c", value, {"Penstock-Dead-Subject": "a.c"}),
        ("a.b", value, None),
        ("penstock.dead.s-dead.unfit", value, {"Penstock-Dead-Subject": "\xff"}),
    )
    one = decoder(version(point, "a.*"), version(size, "b"))
    expected = [{"x": 1}, {"x": 1}, None, None, None, {"x": 1}, None]
    for subjects in (pa.string(), pa.binary()):
        made = batch.set_column(0, "subject", batch.column("subject").cast(subjects))
        assert [row["Point"] for row in found(one, made)] == expected
        assert [row["Size"] for row in found(one, made)] == [None, None, {"x": 1}, None, None, None, None]
        subject = Reason.SUBJECT.text
        assert [row["decode_error"] for row in found(one, made)] == [*[None] * 3, subject, subject, None, subject]
    assert one.reasons(batch).to_pylist() == [0, 0, 0, Reason.SUBJECT, Reason.SUBJECT, 0, Reason.SUBJECT]
    for subject in ("penstock.dead.s-dead.a.>", "penstock.dead.*.a.b"):
        filtered = decoder(version(point, "a.*"), version(size, "b"), subjects=[subject])
        assert filtered.schema.names == ["x", "decode_error"]
        assert found(filtered, batch[:1])[0] == {"x": 1, "decode_error": None}
    for subject in ("penstock.dead.>", "penstock.dead.s-dead.>", "penstock.dead.*.*", "penstock.dead.s-dead.unfit"):
        filtered = decoder(version(point, "a.*"), version(size, "b"), subjects=[subject])
        assert [row["Point"] for row in found(filtered, batch)] == expected
    plain = rows(("unfit", value, {"Penstock-Dead-Subject": "a.c"}), ("penstock.dead.s-dead.a.b", value, None))
    assert one.reasons(plain).to_pylist() == [Reason.SUBJECT, 0], "no dead letter, whatever is beside it"
    own = decoder(version(size, "penstock.dead.s-dead.>"), version(point, "a.*"))  # a schema of its own comes first
    assert [row["Size"] for row in found(own, batch)][:2] == [{"x": 1}] * 2


def test_combinations_of_headers_that_publishers_choose_are_not_kept() -> None:
    names = [f"Op{number}" for number in range(40)]
    versions = [
        version(frugal(f"struct Point {{ {number}: i32 x }}", "Point"), f"s.{name}", message=name)
        for number, name in enumerate(names, 1)
    ]
    one = decoder(*versions)
    kinds = [None, "text/plain", *(f"application/vnd.apache.thrift.{each}" for each in ThriftProtocol)]
    headers = [
        {"Penstock-Schema": each.hash, "Frugal-Operation": name, **({} if kind is None else {"Content-Type": kind})}
        for kind in kinds
        for each in versions
        for name in names
    ]
    value = thrift(versions[0].schema, {"x": 1})
    # Every outcome is among these; the others differ in headers alone.
    of_first = [each for each in headers if versions[0].hash == each["Penstock-Schema"]]
    assert one.decode(rows(*(("s.Op0", value, each) for each in [*of_first, headers[40]]))).report.decoded
    batch = rows(*(("s.Op0", value, each) for each in headers))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        report = one.decode(batch).report
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.decoded
    assert after - before < 8 * len(headers)  # not even a pointer for each
