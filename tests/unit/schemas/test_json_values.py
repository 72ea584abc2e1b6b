"""JSON as columns of a given schema; Python's `json` and `datetime` are the oracles."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.schemas.decoding import Decoded, Reason, ValueFraming
from penstock.schemas.json_values import JSON_TEXT, arrow_of_json_schema, json_decoder, json_plan
from penstock.schemas.plans import SchemaError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 (the zone is what is tested)
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 2**8 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.string(), TEXTS),
    (pa.null(), st.none()),
]


@st.composite
def typed(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, Any]:
    """Draw a type, and a strategy of its values."""
    kind = draw(st.sampled_from(["scalar"] * 3 + ["list", "map", "struct"])) if depth else "scalar"
    if kind == "scalar":
        return draw(st.sampled_from(SCALARS))
    if kind == "struct":
        names = draw(st.lists(TEXTS, unique=True, max_size=4))
        fields = {name: draw(typed(depth - 1)) for name in names}
        values = {name: st.none() | each for name, (_, each) in fields.items()}
        return pa.struct([(name, of) for name, (of, _) in fields.items()]), st.fixed_dictionaries(values)
    inner, values = draw(typed(depth - 1))
    if kind == "list":
        return pa.list_(inner), st.lists(st.none() | values, max_size=3)
    return pa.map_(pa.string(), inner), st.dictionaries(TEXTS, st.none() | values, max_size=3)


def decode(schema: pa.Schema, values: list[Any], **options: Any) -> Decoded:
    found = json_decoder(json_plan(schema), **options).decode(pa.array(values, pa.binary()))
    found.columns.validate(full=True)
    return found


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return what a value is in a column, as Python has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, plain(each, kind.item_type)) for key, each in value.items()]
    return value


@given(st.data(), st.booleans(), st.sampled_from([None, 1]))
def test_what_python_writes_is_read(data: st.DataObject, is_ascii: bool, indent: int | None) -> None:
    names = data.draw(st.lists(TEXTS, unique=True, max_size=4))
    fields = {name: data.draw(typed(3)) for name in names}
    schema = pa.schema([(name, of) for name, (of, _) in fields.items()])
    row = {name: data.draw(st.none() | values) for name, (_, values) in fields.items()}
    text = json.dumps(row, ensure_ascii=is_ascii, indent=indent)
    extra = '{"more":[{}, "\\u00e9", 1e5, true], ' + text.lstrip()[1:] if row else text
    found = decode(schema, [text.encode(), None, extra.encode()])
    assert found.refused.count == 0, (text, found.refused.first)
    expected = plain(row, pa.struct(list(schema)))
    expected_extra = dict(expected)
    if row and "more" in names:
        expected_extra = expected  # the last one counts
    assert found.columns.to_pylist() == [expected, None, expected_extra]


@given(st.data())
def test_a_prefix_or_more_than_an_object_is_refused(data: st.DataObject) -> None:
    kind, values = data.draw(typed(2))
    text = json.dumps({"v": data.draw(values)}).encode()
    cut = [text[:end] for end in range(len(text))]
    found = decode(pa.schema([("v", kind)]), [*cut, text + b"x", text + b"{}", text + b" \n"])
    assert found.refused.codes.to_pylist()[:-3] == [Reason.ENDS] * len(cut)
    assert found.refused.codes.to_pylist()[-3:] == [Reason.TRAILING, Reason.TRAILING, 0]


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?\Z"))
@example("9007199254740993")
@example("1.00000000000000000000000")
@example("179769313486231580793e289")
@example("0.000000000000000000000000000000001e33")
@example("18446744073709551615")
@example("-9223372036854775808")
@example("123456789012345678e-17")
@example("4.9e-324")
@example("2.2250738585072011e-308")
@example("3.4028235677973366e38")
@example("-0")
def test_numbers_are_pythons(text: str) -> None:
    schema = pa.schema([("d", pa.float64()), ("f", pa.float32())])
    real = float(text)
    (row,) = decode(schema, [f'{{"d":{text}}}'.encode()]).columns.to_pylist()
    assert row is None if math.isinf(real) else (row["d"], math.copysign(1, row["d"])) == (real, math.copysign(1, real))
    narrow = pa.array([real], pa.float64()).cast(pa.float32(), safe=False)[0].as_py()
    (row,) = decode(schema, [f'{{"f":{text}}}'.encode()]).columns.to_pylist()
    assert row is None if math.isinf(narrow) else row["f"] == narrow
    for kind, low, high in ((pa.int64(), -(2**63), 2**63), (pa.uint64(), 0, 2**64), (pa.int8(), -128, 128)):
        (row,) = decode(pa.schema([("i", kind)]), [f'{{"i":{text}}}'.encode()]).columns.to_pylist()
        whole = exact(text)
        assert row == (None if whole is None or not low <= whole < high else {"i": whole}), text


def exact(text: str) -> int | None:
    """Return the whole number that a text is, exactly; None: a fraction, or one beyond reach."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, power = int(whole + fraction), int(exponent or 0) - len(fraction)
    if digits == 0:
        return 0
    if power >= 0:
        return digits * 10**power
    return None if digits % 10**-power else digits // 10**-power


@given(
    st.datetimes(EPOCH.replace(year=1), EPOCH.replace(year=9999)),
    st.sampled_from(["T", " ", "t"]),
    st.integers(-14 * 60, 14 * 60),
    st.booleans(),
)
def test_times_are_pythons(time: datetime.datetime, between: str, zone_minutes: int, is_short: bool) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.timestamp("s"))])
    zone = datetime.timezone(datetime.timedelta(minutes=zone_minutes))
    text = time.replace(tzinfo=zone).isoformat(between)
    if is_short:
        text = text[:-3] + text[-2:]
    rows = [{"t": text, "d": time.date().isoformat()}, {"t": time.isoformat(), "s": time.isoformat() + "Z"}]
    found = decode(schema, [json.dumps(row).encode() for row in rows])
    assert found.refused.count == 0, (text, found.refused.first)
    table = found.table()
    wall = (time - EPOCH) // datetime.timedelta(microseconds=1)
    assert table.column("t").cast(pa.int64()).to_pylist() == [wall - 60_000_000 * zone_minutes, wall]
    assert table.column("d").cast(pa.int32()).to_pylist()[0] == (time - EPOCH).days
    assert table.column("s").cast(pa.int64()).to_pylist()[1] == (time - EPOCH) // datetime.timedelta(seconds=1)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29",
        "2026-13-01T00:00:00",
        "2026-01-00T00:00:00",
        "1900-02-29T00:00:00Z",
        "2026-01-01",
        "2026-01-01X00:00:00",
        "2026-01-01T24:00:00",
        "2026-01-01T00:60",
        "2026-01-01T00:00:60",
        "2026-01-01T00:00:00.",
        "2026-01-01T00:00:00+1",
        "2026-01-01T00:00:00+01:0",
        "2026-01-01T00:00:00Zx",
        "2026-01-01T00",
        "26-01-01T00:00:00",
        "",
        "now",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    found = decode(pa.schema([("t", pa.timestamp("ms", "UTC"))]), [json.dumps({"t": text}).encode()])
    assert found.refused.first == ((0, Reason.FORM),)


def test_nanoseconds_reach_to_2262() -> None:
    schema = pa.schema([("t", pa.timestamp("ns"))])
    values = [b'{"t":"2026-01-01T00:00:00.123456789Z"}', b'{"t":"2400-01-01T00:00:00Z"}', b'{"t":"2026-01-01T00:00"}']
    found = decode(schema, values)
    assert found.refused.first == ((1, Reason.NUMBER),)
    assert found.columns.field("t").cast(pa.int64()).to_pylist()[0] % 10**9 == 123_456_789


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", Reason.ENDS),
        (b"null", Reason.FORM),
        (b"[]", Reason.FORM),
        (b"7", Reason.FORM),
        (b'{"s":1}', Reason.FORM),
        (b'{"i":"1"}', Reason.FORM),
        (b'{"i":1.5}', Reason.FORM),
        (b'{"i":true}', Reason.FORM),
        (b'{"l":{}}', Reason.FORM),
        (b'{"l":[1]}', Reason.FORM),
        (b'{"b":"true"}', Reason.FORM),
        (b'{"i":2147483648}', Reason.NUMBER),
        (b'{"s":"\\ud800"}', Reason.ENCODING),
        (b'{"s":"\\udc00\\ud800"}', Reason.ENCODING),
        (b'{"s":"\xff"}', Reason.ENCODING),
        (b'{"\xff":1}', Reason.ENCODING),
        (b'{"s":"\\x41"}', Reason.SYNTAX),
        (b'{"s":"\\u00g0"}', Reason.SYNTAX),
        (b'{"s":"a\nb"}', Reason.SYNTAX),
        (b'{"i":01}', Reason.SYNTAX),
        (b'{"i":+1}', Reason.SYNTAX),
        (b'{"i":1.}', Reason.SYNTAX),
        (b'{"i":NaN}', Reason.SYNTAX),
        (b'{"i":1,}', Reason.SYNTAX),
        (b'{"i" 1}', Reason.SYNTAX),
        (b"{i:1}", Reason.SYNTAX),
        (b'{"x":nulL}', Reason.SYNTAX),
        (b'{"x":[1,]}', Reason.SYNTAX),
        (b'{"x":{"a"}}', Reason.SYNTAX),
        (b'{"x":tru', Reason.ENDS),
        (b'{"x":' + b"[" * 100 + b"]" * 100 + b"}", 0),
        (b'{"x":' + b"[" * 101 + b"]" * 101 + b"}", Reason.DEEP),
        (b'{"x":' + b'{"":' * 100_000, Reason.DEEP),
        (b'{"i":1,"i":2}', 0),
        (b'{"\\u0069":2}', 0),
    ],
)
def test_bad_json_is_refused(text: bytes, reason: int) -> None:
    schema = pa.schema([("s", pa.string()), ("i", pa.int32()), ("l", pa.list_(pa.string())), ("b", pa.bool_())])
    found = decode(schema, [text, b'{"i":1}'])
    assert found.refused.codes.to_pylist() == [reason, 0]
    if text.endswith(b":2}"):
        assert found.columns.to_pylist()[0]["i"] == 2


def test_a_needed_member_must_be_there() -> None:
    schema = pa.schema(
        [pa.field("a", pa.int8(), nullable=False), pa.field("l", pa.list_(pa.field("item", pa.int8(), False)))]
    )
    found = decode(schema, [b'{"a":1,"l":[2]}', b'{"a":null}', b"{}", b'{"a":1,"l":[null]}'])
    assert found.refused.codes.to_pylist() == [0, Reason.MISSING, Reason.MISSING, Reason.MISSING]
    assert found.columns.to_pylist() == [{"a": 1, "l": [2]}, None, None, None]
    assert found.table().schema.field("a").nullable


def test_a_value_of_many_more_cells_than_bytes_is_refused() -> None:
    wide = pa.struct([(f"f{n}", pa.int64()) for n in range(1_000)])
    bomb = b'{"l":[' + b",".join([b"{}"] * 500) + b"]}"
    found = decode(pa.schema([("l", pa.list_(wide))]), [b'{"l":[{},{}]}', bomb])
    assert found.refused.codes.to_pylist() == [0, Reason.EXPANDS]


def test_a_member_that_comes_very_often_is_refused() -> None:
    schema = pa.schema([("o", pa.struct([(f"f{n}", pa.int64()) for n in range(1_000)]))])
    values = [b"{" + b",".join([b'"o":{}'] * count) + b"}" for count in (50, 400)]
    assert decode(schema, values).refused.codes.to_pylist() == [0, Reason.EXPANDS]


def test_json_text_holds_anything() -> None:
    schema = pa.schema([pa.field("j", pa.string(), metadata=JSON_TEXT)])
    texts = ['{"a": [1,2]}', "1e5", "true", "null", '"x\\n"', "[]"]
    found = decode(schema, [f'{{"j": {text} }}'.encode() for text in texts] + [b'{"j":[1,}'])
    assert found.columns.field("j").to_pylist()[:-1] == ['{"a": [1,2]}', "1e5", "true", None, "x\n", "[]"]
    assert found.refused.first == ((6, Reason.SYNTAX),)


def test_a_confluent_header_is_skipped() -> None:
    found = decode(pa.schema([("a", pa.int8())]), [b'\0\0\0\0\7{"a":1}', b'{"a":1}'], framing=ValueFraming.CONFLUENT)
    assert found.columns.to_pylist() == [{"a": 1}, None]


def test_types_that_json_is_not_decoded_to() -> None:
    for kind in (pa.decimal128(5), pa.time32("s"), pa.map_(pa.int8(), pa.int8()), pa.large_string()):
        with pytest.raises(SchemaError, match=r"a\.b: JSON is not decoded"):
            json_plan(pa.schema([("a", pa.struct([("b", kind)]))]))
    with pytest.raises(SchemaError, match="two fields"):
        json_plan(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    deep = pa.int8()
    for _ in range(40):
        deep = pa.list_(deep)
    with pytest.raises(SchemaError, match="deep"):
        json_plan(pa.schema([("a", deep)]))


def test_an_arrow_schema_of_a_json_schema() -> None:
    schema = {
        "$defs": {
            "money": {"type": "object", "properties": {"amount": {"type": "number"}, "unit": {"type": "string"}}},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}},
        },
        "type": "object",
        "required": ["id", "at", "maybe"],
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "maybe": {"type": ["string", "null"]},
            "price": {"$ref": "#/$defs/money"},
            "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "object", "additionalProperties": {"type": "integer"}},
            "many": {"type": ["string", "integer"]},
            "free": {"type": "object"},
            "any": True,
            "node": {"$ref": "#/$defs/node"},
        },
    }
    text = pa.field("many", pa.string(), metadata=JSON_TEXT)
    expected = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("maybe", pa.string()),
            pa.field("price", pa.struct([("amount", pa.float64()), ("unit", pa.string())])),
            pa.field("either", pa.bool_()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("by", pa.map_(pa.string(), pa.int64())),
            text,
            text.with_name("free"),
            text.with_name("any"),
            pa.field("node", pa.struct([text.with_name("next"), pa.field("n", pa.int64())])),
        ]
    )
    found = arrow_of_json_schema(json.dumps(schema))
    assert found.equals(expected, check_metadata=True), found
    row = {"id": 1, "at": "2026-01-01T00:00:00Z", "many": 5, "free": {"a": 1}, "node": {"next": {"n": 2}}}
    made = decode(found, [json.dumps(row).encode()]).columns.to_pylist()[0]
    assert (made["many"], made["free"], made["node"]["next"]) == ("5", '{"a": 1}', '{"n": 2}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "true",
        '{"type":"string"}',
        '{"type":"object"}',
        '{"properties":5}',
        '{"properties":{"a":{"$ref":"#/$defs/none"}}}',
        '{"properties":{"a":{"$ref":"https://example.com/x"}}}',
        "[" * 100_000,
        '{"properties":{"a":' * 60 + "{}" + "}}" * 60,
    ],
)
def test_json_schemas_without_columns(text: str) -> None:
    with pytest.raises(SchemaError):
        arrow_of_json_schema(text)
