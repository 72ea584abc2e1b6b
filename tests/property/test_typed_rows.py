"""Rows of random subjects, versions, framings and bytes become the columns that other libraries make of each alone.

The oracle knows a row's pattern by `matches`, and the value from what Apache thrift, fastavro, json and Google's
protobuf encoded; bytes that they did not write are decoded alone by the schema's own decoder.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import StreamId, TimestampUs
from penstock.base.subjects import matches
from penstock.schemas.decoding import Reason, ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind, text_of_arrow
from penstock.schemas.plans import EnumStyle
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from penstock.schemas.row_decoder import RowDecoder
from penstock.schemas.thrift import ThriftProtocol
from tests.typed_values import thrift_bytes
from tests.unit.schemas.test_kinds import descriptor_set

OLD = "enum Color { RED = 1 } struct Order { 1: i32 n, 2: Color c, 3: list<string> l, 5: string gone }"
NEW = "enum Color { RED = 1, BLUE = 2 } struct Order { 1: i32 n, 2: Color c, 3: list<string> l, 4: double d }"
COLORS = {1: "RED", 2: "BLUE"}


def _avro(n: str, *more: Any) -> Schema:
    fields = [{"name": "n", "type": n}, *more]
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "Gone", "fields": fields}))


def _version(typed: Typed, number: int, schema: Schema) -> SchemaVersion:
    return SchemaVersion(typed, number, schema, schema.hash(), TimestampUs(0))


SCOPE = Typed("shop.*.made", "Made", ValueFraming.FRUGAL)
COMPACT = Typed("back.>", "", ValueFraming.BARE, ThriftProtocol.COMPACT)
VERSIONS = (
    _version(COMPACT, 1, Schema(SchemaKind.FRUGAL, OLD, type_name="Order")),
    _version(COMPACT, 2, Schema(SchemaKind.FRUGAL, NEW, type_name="Order")),
    _version(Typed("gone"), 1, _avro("int", {"name": "t", "type": "string"})),
    _version(Typed("gone"), 2, _avro("long", {"name": "u", "type": ["null", {"type": "array", "items": "string"}]})),
    _version(
        Typed("json.*"), 1, Schema(SchemaKind.ARROW, text_of_arrow(pa.schema([("n", pa.int64()), ("s", pa.string())])))
    ),
    _version(Typed("proto"), 1, Schema(SchemaKind.PROTOBUF, descriptor_set(x=5, s=9), type_name="Point")),
    _version(SCOPE, 1, Schema(SchemaKind.FRUGAL, OLD, type_name="Order")),
    _version(SCOPE, 2, Schema(SchemaKind.FRUGAL, NEW, type_name="Order")),
)
COLUMN = {"back.>": "Order", "gone": "Gone", "json.*": "json", "proto": "Point", "shop.*.made": "Order"}
NEWEST = StreamSchemas("s", StreamId(1), VERSIONS).newest()
SUBJECTS = ("back.a", "back.a.b", "gone", "json.1", "json.2", "proto", "shop.eu.made", "shop.us.made", "shop.made", "x")
TEXTS = st.text(max_size=5)
INTS = st.integers(-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Row:
    """A row, and what it should become: the struct of its type, or the reason."""

    subject: str
    value: bytes | None
    headers: dict[str, str] | None
    expected: dict[str, Any] | None
    reason: Reason | None = None


@cache
def decoder(enums: EnumStyle, place: int) -> RowDecoder:
    """Return the decoder of all types, or of the one of a pattern."""
    subjects = None if place < 0 else [list(COLUMN)[place]]
    return RowDecoder(StreamSchemas("s", StreamId(1), VERSIONS), subjects=subjects, enums=enums)


def _framed(value: bytes, operation: bytes, protocol: ThriftProtocol) -> bytes:
    if protocol is ThriftProtocol.COMPACT:
        message = b"\x82\x21\0" + bytes((len(operation),)) + operation + value
    else:
        message = struct.pack(">iI", -0x7FFEFFFF, len(operation)) + operation + bytes(4) + value
    headers = struct.pack(">i4si2s", 4, b"_cid", 2, b"c1")
    return struct.pack(">ibi", len(headers) + len(message) + 5, 0, len(headers)) + headers + message


def _thrift(draw: st.DrawFn, version: SchemaVersion) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    value: dict[str, Any] = {"n": draw(INTS), "l": draw(st.lists(TEXTS, max_size=2))}
    expected = {"n": value["n"], "l": value["l"], "c": None, "d": None}
    if draw(st.booleans()):
        value["c"] = draw(st.sampled_from([1, 2, 9]))
        names = COLORS if version.number == 2 else {1: "RED"}
        expected["c"] = names.get(value["c"], str(value["c"]))
    if version.number == 2:
        value["d"] = expected["d"] = draw(st.floats(allow_nan=False))
    else:
        value["gone"] = draw(TEXTS)
    program, type_ = version.schema.contract()
    headers, protocol, framing = {}, version.typed.protocol, version.typed.framing
    if draw(st.booleans()):
        protocol, framing = draw(st.sampled_from(ThriftProtocol)), ValueFraming.BARE
        headers = {"Frugal-Operation": "Made", "Content-Type": f"application/vnd.apache.thrift.{protocol}"}
    data = thrift_bytes(program, type_, value, protocol, None)
    return data if framing is ValueFraming.BARE else _framed(data, b"Made", protocol), headers, expected


def _gone(draw: st.DrawFn, version: SchemaVersion) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    value: dict[str, Any] = {"n": draw(INTS)}
    if version.number == 1:
        value["t"] = draw(TEXTS)
    else:
        value["u"] = draw(st.none() | st.lists(TEXTS, max_size=2))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(version.schema.text)), value)
    return out.getvalue(), {}, {"n": value["n"], "u": value.get("u")}


def _json(draw: st.DrawFn) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    value = {"n": draw(INTS | st.none()), "s": draw(TEXTS)}
    return json.dumps(value, ensure_ascii=draw(st.booleans())).encode(), {"Content-Type": "application/json"}, value


@cache
def _message() -> Any:
    found = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(NEWEST["proto"].schema.text))
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Point"))


def _proto(draw: st.DrawFn) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    made = _message()(x=draw(INTS), s=draw(TEXTS))
    return made.SerializeToString(), {}, {"x": made.x, "s": made.s}


def _pattern_of(subject: str) -> str | None:
    return next((pattern for pattern in COLUMN if matches(pattern, subject)), None)


@st.composite
def drawn(draw: st.DrawFn) -> Row:
    """Draw a row, sound or not."""
    subject = draw(st.sampled_from(SUBJECTS))
    pattern = _pattern_of(subject)
    kind = draw(st.sampled_from(["sound"] * 4 + ["garbage", "null", "hash"]))
    more = {"Frugal-Correlation-Id": draw(st.uuids()).hex} if draw(st.booleans()) else {}
    if kind == "null":
        return Row(subject, None, more or None, None)
    if pattern is None:
        return Row(subject, draw(st.binary(max_size=5)), more, None, Reason.SUBJECT)
    version = draw(st.sampled_from([each for each in VERSIONS if each.typed.subject == pattern]))
    is_newest = version is NEWEST[pattern]
    hashes = {} if is_newest and draw(st.booleans()) else {"Penstock-Schema": version.hash}
    if kind == "hash":
        return Row(
            subject, b"", {**more, "Penstock-Schema": draw(st.sampled_from(["0" * 64, "", "é"]))}, None, Reason.VERSION
        )
    if pattern == "gone" and not hashes:
        return Row(subject, draw(st.binary(max_size=20)), more, None, Reason.UNVERSIONED)
    if kind == "garbage":
        data = draw(st.binary(max_size=20))
        typed = version.typed
        alone = version.schema.decoder(typed.framing, typed.protocol, EnumStyle.STRING, typed.message).decode(
            pa.array([data])
        )
        if alone.refused.first:
            return Row(subject, data, {**more, **hashes}, None, alone.refused.first[0][1])
        found = alone.columns.to_pylist()[0]
        expected = {name: found.get(name) for name in NEWEST[pattern].schema.plan().schema.names}
        return Row(subject, data, {**more, **hashes}, expected)
    if pattern in ("back.>", "shop.*.made"):
        data, headers, expected = _thrift(draw, version)
    elif pattern == "gone":
        data, headers, expected = _gone(draw, version)
    else:
        data, headers, expected = (_json if pattern == "json.*" else _proto)(draw)
    return Row(subject, data, {**headers, **more, **hashes} or None, expected)


def _block(headers: dict[str, str] | None) -> bytes | None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return None if headers is None else f"NATS/1.0\r\n{lines}\r\n".encode()


@given(st.lists(drawn(), max_size=12), st.sampled_from(EnumStyle), st.integers(-1, len(COLUMN) - 1), st.integers(0, 2))
def test_rows_are_what_each_is_alone(rows: list[Row], enums: EnumStyle, place: int, skipped: int) -> None:
    of = decoder(EnumStyle.STRING if enums is EnumStyle.NUMBER else enums, place)
    batch = pa.record_batch(
        {
            "subject": pa.array([row.subject for row in rows], pa.string()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "headers": pa.array([_block(row.headers) for row in rows], pa.binary()),
        }
    )[skipped:]
    rows = rows[skipped:]
    decoded = of.decode(batch)
    found = pa.record_batch(decoded.columns, schema=of.schema).to_pylist()
    wanted = None if place < 0 else list(COLUMN)[place]
    reasons = [Reason(each).text if each else None for each in of.reasons(batch).to_pylist()]
    assert reasons == [None if each == Reason.CHANGED.text else each for each in decoded.columns[-1].to_pylist()]
    count = 0
    for row, made in zip(rows, found, strict=True):
        pattern = _pattern_of(row.subject)
        is_read = wanted is None or pattern == wanted
        reason = row.reason if is_read or row.value is None else Reason.SUBJECT
        assert made.pop("decode_error") == (None if reason is None else reason.text)
        fields = row.expected if is_read else None
        if wanted is None:
            assert made == {**dict.fromkeys(made), **({} if fields is None else {COLUMN[str(pattern)]: fields})}
        else:
            assert made == (fields or dict.fromkeys(made))
        count += fields is not None
    assert (decoded.report.rows, decoded.report.decoded) == (len(rows), count)
    assert sum(decoded.report.versions.values()) == count
    assert decoded.report.refused_rows == sum(row["decode_error"] is not None for row in _errors(decoded.columns[-1]))


def _errors(column: Any) -> list[dict[str, Any]]:
    return [{"decode_error": each} for each in column.to_pylist()]
