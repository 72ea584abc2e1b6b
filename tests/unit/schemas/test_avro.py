"""Avro values as typed columns; fastavro is the oracle."""

from __future__ import annotations

import io
import itertools
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.avro import avro_decoder, avro_plan
from penstock.schemas.decoding import Decoded, Reason, ValueFraming
from penstock.schemas.plans import EnumStyle, SchemaError

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}


def written(schema: Any, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    found = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        found.append(out.getvalue())
    return found


def decode(schema: Any, values: list[bytes | None], **options: Any) -> Decoded:
    found = avro_decoder(avro_plan(json.dumps(schema)), **options).decode(pa.array(values, pa.binary()))
    found.columns.validate(full=True)
    return found


@st.composite
def schemas(draw: st.DrawFn, names: list[str], depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema, and a strategy of pairs: a value, and what it is in a column."""
    kinds = ["primitive"] * 3 + (["array", "map", "record", "optional", "union", "enum", "fixed"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "primitive":
        name = draw(st.sampled_from(list(PRIMITIVES)))
        return name, PRIMITIVES[name].map(lambda value: (value, value))
    names.append(name := f"N{len(names)}")
    if kind == "enum":
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols).map(lambda one: (one, one))
    if kind == "fixed":
        size = draw(st.integers(0, 4))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size).map(
            lambda b: (b, b)
        )
    if kind == "union":
        # Values of a record's type would be ambiguous, so the branches are primitive.
        order = draw(st.permutations(["null", "int", "string", "bytes", "boolean"]))
        branches = [each for each in order if each != "null"]

        def in_branch(one: str) -> st.SearchStrategy[Any]:
            if one == "null":
                return st.just((None, None))
            empty = dict.fromkeys(branches)
            return PRIMITIVES[one].map(lambda value: (value, {**empty, one: value}))

        return list(order), st.sampled_from(order).flatmap(in_branch)
    if kind == "record":
        fields = [draw(schemas(names, depth - 1)) for _ in range(draw(st.integers(0, 4)))]
        schema = {
            "type": "record",
            "name": name,
            "namespace": draw(st.sampled_from(["", "a.b"])),
            "fields": [{"name": f"f{place}", "type": one} for place, (one, _) in enumerate(fields)],
        }
        return schema, st.tuples(*(values for _, values in fields)).map(
            lambda made: (
                {f"f{place}": value for place, (value, _) in enumerate(made)},
                {f"f{place}": column for place, (_, column) in enumerate(made)},
            )
        )
    inner, values = draw(schemas(names, depth - 1))
    if kind == "optional":
        if inner == "null" or isinstance(inner, list):
            return inner, values
        order = draw(st.permutations([inner, "null"]))
        return list(order), st.just((None, None)) | values
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3).map(
            lambda made: ([value for value, _ in made], [column for _, column in made])
        )
    return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=2), values, max_size=3).map(
        lambda made: ({key: one[0] for key, one in made.items()}, [(key, one[1]) for key, one in made.items()])
    )


@given(st.data())
def test_what_fastavro_writes_is_read(data: st.DataObject) -> None:
    schema, values = data.draw(schemas([], 3))
    pairs = data.draw(st.lists(values, min_size=1, max_size=3))
    encoded = written(schema, *(value for value, _ in pairs))
    found = decode(schema, [*encoded, None])
    assert found.refused.count == 0
    rows = found.columns.to_pylist()
    is_record = isinstance(schema, dict) and schema["type"] == "record"
    assert rows == [column if is_record else {"value": column} for _, column in pairs] + [None]
    whole = encoded[0]
    cut = decode(schema, [whole[:end] for end in range(len(whole))] + [whole + b"\0"])
    assert cut.refused.count == len(whole) + 1


def test_logical_types() -> None:
    kinds = {
        "d": ({"type": "int", "logicalType": "date"}, pa.date32()),
        "t": ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
        "l": ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("ms")),
        "b": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
        "f": (
            {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 2},
            pa.decimal128(9, 2),
        ),
        "u": ({"type": "string", "logicalType": "uuid"}, pa.string()),
        "x": ({"type": "bytes", "logicalType": "decimal", "precision": 90}, pa.binary()),
    }
    schema = {
        "type": "record",
        "name": "L",
        "fields": [{"name": name, "type": one} for name, (one, _) in kinds.items()],
    }
    plan = avro_plan(json.dumps(schema))
    assert plan.schema == pa.schema([(name, kind) for name, (_, kind) in kinds.items()])
    times = pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC"))[0].as_py()
    row = {
        "d": times.date(),
        "t": times,
        "l": times.replace(tzinfo=None, microsecond=123_000),
        "b": Decimal("-12.34"),
        "f": Decimal("123456.78"),
        "u": "00000000-0000-4000-8000-0123456789ab",
        "x": Decimal(12),
    }
    found = avro_decoder(plan).decode(pa.array(written(schema, row)))
    assert found.columns.to_pylist() == [{**row, "x": b"\x0c"}]


def test_named_types_are_found_and_a_record_inside_itself_stays_encoded() -> None:
    schema = {
        "type": "record",
        "name": "shop.Node",
        "fields": [
            {"name": "n", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "again", "type": "Kind"},
            {"name": "next", "type": ["null", "Node"]},
            {"name": "all", "type": {"type": "array", "items": "shop.Node"}},
        ],
    }
    leaf: Any = {"n": "B", "again": "A", "next": None, "all": []}
    inner = {"n": "A", "again": "A", "next": leaf, "all": [leaf, leaf]}
    raw_leaf, raw_inner, whole = written(schema, leaf, inner, {"n": "B", "again": "B", "next": inner, "all": [leaf]})
    found = decode(schema, [whole, raw_leaf])
    assert found.columns.to_pylist() == [{"n": "B", "again": "B", "next": raw_inner, "all": [raw_leaf]}, leaf]
    chain = bytes((0, 0)) + bytes((2, 0, 0)) * 100 + bytes((0, 0)) + bytes(100)
    assert decode(schema, [chain]).refused.first == ((0, Reason.DEEP),)


def test_bad_values_are_refused() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    array = {"type": "array", "items": "null"}
    for schema, value, reason in (
        (enum, b"\x04", Reason.NUMBER),
        (enum, b"\x01", Reason.NUMBER),
        ("int", b"\xff\xff\xff\xff\x7f", Reason.NUMBER),
        ("long", b"\xff" * 9 + b"\x02", Reason.NUMBER),
        ("string", b"\x03", Reason.SIZE),
        ("string", b"\x04\xff\xff", Reason.ENCODING),
        (["null", "int"], b"\x04", Reason.NUMBER),
        (array, b"\xfe\xff\xff\xff\x0f", Reason.EXPANDS),
        (array, b"\xff" * 9 + b"\x01", Reason.SIZE),
        (array, b"\x01\x7f", Reason.SIZE),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, b"\x22" + bytes(17), Reason.NUMBER),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x02\x64", Reason.NUMBER),  # 100
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x02\x9c", Reason.NUMBER),  # -100
    ):
        assert decode(schema, [value]).refused.first == ((0, reason),), (schema, value)


def test_confluent_header() -> None:
    found = decode(
        "string", [b"\0\0\0\0\7" + one for one in written("string", "x")] + [b"\2x"], framing=ValueFraming.CONFLUENT
    )
    assert found.columns.to_pylist() == [{"value": "x"}, None]


EMPTY = {"type": "record", "name": "Empty", "fields": []}
NO_BYTES = {"type": "fixed", "name": "F", "size": 0}
NULLS = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null"]}, {"name": "m", "type": "int"}]}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (["null"], [None]),
        ({"type": "array", "items": ["null"]}, [[None, None], []]),
        ({"type": "map", "values": ["null"]}, [{"a": None}]),
        (["int"], [5]),
        (EMPTY, [{}]),
        ({"type": "array", "items": EMPTY}, [[{}, {}], []]),
        (["null", EMPTY], [None, {}]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}, ["A", "B"]),
        (NO_BYTES, [b""]),
        ({"type": "array", "items": NO_BYTES}, [[b"", b""], []]),
        (NULLS, [{"n": None, "m": 1}]),
    ],
)
def test_types_of_few_bytes_are_read_as_fastavro_reads_them(schema: Any, values: list[Any]) -> None:
    """Fastavro's own values and all short bytes. It takes negative numbers of branches and symbols, as Python does."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    kind = schema["type"] if isinstance(schema, dict) else "union"
    encoded = written(schema, *values)
    encoded += [bytes(each) for size in range(4) for each in itertools.product((0, 2, 4, 1), repeat=size)]
    found = decode(schema, [*encoded, None])
    rows = found.columns.to_pylist()
    for text, row, code in zip(encoded, rows, found.refused.codes.to_pylist(), strict=False):
        source = io.BytesIO(text)
        try:
            value: Any = fastavro.schemaless_reader(source, parsed)
        except (EOFError, IndexError, ValueError):
            assert code, text
            continue
        if code:
            assert source.read() or 1 in text, text
            continue
        assert not source.read()
        if kind == "map":
            value = list(value.items())
        elif schema == ["int"]:
            value = {"int": value}
        assert row == (value if kind == "record" else {"value": value}), text
    assert rows[-1] is None


def test_enums_by_style() -> None:
    schema = json.dumps({"type": "enum", "name": "E", "symbols": ["A", "B"]})
    for style, expected in ((EnumStyle.STRING, "B"), (EnumStyle.NUMBER, 1), (EnumStyle.DICTIONARY, "B")):
        found = avro_decoder(avro_plan(schema, style)).decode(pa.array([b"\x02"]))
        assert found.columns.to_pylist() == [{"value": expected}]
        assert found.columns.type == pa.struct([("value", style.type)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '"Unknown"',
        "{}",
        "7",
        "[]",
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":"fixed","name":"F","size":"1"}',
        '{"type":"enum","name":"E","symbols":5}',
        '[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":1}]',
        "[" * 100_000,
        '{"type":' * 50 + '"int"' + "}" * 50,
    ],
)
def test_schemas_that_are_none(text: str) -> None:
    with pytest.raises(SchemaError):
        avro_plan(text)


@given(st.integers(1, 38), st.integers(-(10**39), 10**39))
def test_a_decimal_is_taken_if_it_has_no_more_digits_than_its_type(digits: int, number: int) -> None:
    number %= 10 ** (digits + 1) * (-1 if number < 0 else 1)
    schema = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": digits})
    text = number.to_bytes(16, "big", signed=True) if abs(number) < 2**127 else b"\x7f" * 16
    found = avro_decoder(avro_plan(schema)).decode(pa.array([b"\x20" + text]))
    fits = abs(number) < 10**digits
    assert found.refused.count == (0 if fits else 1)
    assert found.table().column(0).to_pylist() == [Decimal(number) if fits else None]
    found.table().validate(full=True)
