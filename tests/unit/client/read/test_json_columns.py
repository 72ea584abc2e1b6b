"""JSON values become typed columns; no row moves, and what is in no column is counted."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.client.read.batches import of_partition
from penstock.client.read.json_columns import JsonColumns, json_table


def batch(*values, start=0):
    """Return a batch of values (None: a tombstone; dicts are encoded) from an offset on."""
    raw = [json.dumps(one).encode() if isinstance(one, dict) else one for one in values]
    offsets = pa.array(range(start, start + len(raw)), pa.int64())
    return pa.record_batch({"offset": offsets, "value": pa.array(raw, pa.binary())})


def decoded(*values):
    table, report = json_table(pa.Table.from_batches([batch(*values)]))
    return table.drop_columns(["offset"]), report


def test_objects_become_columns_and_tombstones_are_null():
    table, report = decoded(
        {
            "id": 1,
            "city": "Oslo",
            "price": 2,
            "at": "2026-11-28T10:00:00Z",
            "tags": ["a"],
            "to": {"zip": "1"},
            "ok": True,
        },
        None,
        {"id": 2, "price": 2.5, "at": "2026-11-28T12:00:00.5+02:00"},
    )
    assert not report
    assert report.sentences() == []
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == {
        "id": pa.int64(),
        "city": pa.string(),
        "price": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "to": pa.struct([("zip", pa.string())]),
        "ok": pa.bool_(),
    }
    assert table["at"].to_pylist() == [
        datetime(2026, 11, 28, 10, tzinfo=UTC),
        None,
        datetime(2026, 11, 28, 10, 0, 0, 500000, tzinfo=UTC),
    ]
    assert table["id"].to_pylist() == [1, None, 2]
    assert table.to_pylist()[1] == dict.fromkeys(table.schema.names)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"5",
        b"null",
        b"[1]",
        b'"text"',
        b'{"a":1',
        b'{"a":}',
        b'{"a":1} x',
        b'{"a":1}{"a":2}',
        b'{"a":1},"w":2',
        b'{"a":1}}\n{"v":{"a":2}',
        b'{"a":1}}{"v":{"a":2}',
        b'{"a":1},"v":{"a":2}',
        b'{"a":"\xff"}',
        b'{"a":"line\nend"}',
        b'{"a":1}\0',
        b'\0{"a":1}',
        b"\xef\xbb\xbf{}",
        b'{"a":01}',
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"a":' * 100_000,
        '{"a":1}'.encode("utf-16-le"),
    ],
)
@pytest.mark.parametrize("neighbour", [b'{"a": 7}', b"", b'{"b": "x"}}\n{"v":null'])
def test_a_value_that_is_no_json_object_is_counted_and_moves_no_other_row(value, neighbour):
    table, report = decoded({"a": 1}, value, {"a": 3}, neighbour, {"a": 5})
    assert table["a"].to_pylist() == [1, None, 3, 7 if neighbour.startswith(b'{"a"') else None, 5]
    count = 1 if neighbour.startswith(b'{"a"') else 2
    assert report.not_objects == (count, "offset 1")
    assert report.sentences()[0].startswith(f"{count} of 5 values {'is' if count == 1 else 'are'} not ")
    assert not report.unfit
    assert not report.left_out


def test_text_that_is_nothing_but_bad_has_no_columns():
    table, report = decoded(b"plain", b"\xff\xfe", None)
    assert table.num_columns == 0
    assert report.not_objects == (2, "offset 0")
    assert json_table(pa.Table.from_batches([], batch().schema))[0].schema.names == ["offset"]


def test_pretty_printed_and_escaped_values():
    table, report = decoded(json.dumps({"a": {"b": "x\ny"}, "c": [1, 2]}, indent=2).encode(), b'\r\n {"c":[]}\n')
    assert not report
    assert table.to_pylist() == [{"a": {"b": "x\ny"}, "c": [1, 2]}, {"a": None, "c": []}]


def test_values_of_different_kinds_are_text():
    table, report = decoded({"a": 1, "b": 1, "n": {"x": 1}}, {"a": "x", "b": 2, "n": {"x": "y"}}, {"a": None, "n": {}})
    assert not report
    assert table.to_pylist() == [
        {"a": "1", "b": 1, "n": '{"x": 1}'},
        {"a": "x", "b": 2, "n": '{"x": "y"}'},
        {"a": None, "b": None, "n": "{}"},
    ]


def test_numbers():
    table, report = decoded(
        {"int": 2**63 - 1, "big": 2**63, "nan": float("nan")},
        {"int": -(2**63), "big": 1, "nan": float("inf")},
    )
    assert not report
    assert table["int"].to_pylist() == [2**63 - 1, -(2**63)]
    assert table["big"].to_pylist() == [float(2**63), 1.0]
    assert str(table["nan"].to_pylist()) == "[nan, inf]"


def test_a_number_that_no_double_holds_is_null_and_counted():
    table, report = decoded(b'{"a":1.5}', b'{"a":1e400}', b'{"a":2}')
    assert table["a"].to_pylist() == [1.5, None, 2.0]
    assert report.unfit == {"a": (1, "offset 1")}
    assert report.sentences() == ["1 value of 'a' does not fit its type (first: offset 1): null"]


def test_of_a_repeated_field_the_last_counts():
    assert decoded(b'{"a":1,"a":2,"b":3}', {"a": 4})[0].to_pylist() == [{"a": 2, "b": 3}, {"a": 4, "b": None}]


def test_half_a_surrogate_pair_is_kept_as_text():
    assert decoded(b'{"a":"\\ud800"}', b'{"a":"x"}')[0]["a"].to_pylist() == ['"\\ud800"', "x"]


def test_what_files_cannot_hold_is_text():
    table, _ = decoded({"a": {}, "b": None, "c": [], "d": {"e": {}}, "f": {"g": None}})
    assert [str(one) for one in table.schema.types] == [
        "string",
        "string",
        "list<item: string>",
        "string",
        "struct<g: string>",
    ]
    assert table.to_pylist() == [{"a": "{}", "b": None, "c": [], "d": '{"e": {}}', "f": {"g": None}}]


def test_an_object_with_many_names_is_a_map_and_becomes_text():
    values = [{"scores": {f"user{one}": one}} for one in range(limits.JSON_NESTED_FIELDS_MAX + 1)]
    table, report = decoded(*values)
    assert not report
    assert table["scores"].to_pylist()[:2] == ['{"user0": 0}', '{"user1": 1}']


def test_too_many_columns_are_refused():
    with pytest.raises(ValueError, match="more than 1,000 different fields"):
        decoded(*({f"field{one}": one} for one in range(1001)))


def test_names_of_the_logs_columns_stay_theirs():
    table, _ = decoded({"offset": 5, "Key": 1, "value": 2, "": 3, "data_offset": 4, "headers": 6})
    assert table.to_pylist() == [
        {"data_data_offset": 5, "data_Key": 1, "value": 2, "data_": 3, "data_offset": 4, "data_headers": 6}
    ]


def test_the_first_rows_fix_the_schema():
    columns = JsonColumns()
    source = [batch({"a": 1, "to": {"zip": "1"}, "s": "x"}), batch(b"no", {"a": 1.5, "s": 5}, {"a": "x"}, start=1)]
    source += [batch({"a": 3, "b": 1, "to": {"zip": "2", "no": 4}}, {"l": [{"m": 1}]}, start=4)]
    rows = [row for one in columns.batches(source, inferred_rows=1) for row in one.to_pylist()]
    assert rows == [
        {"offset": 0, "a": 1, "to": {"zip": "1"}, "s": "x"},
        {"offset": 1, "a": None, "to": None, "s": None},
        {"offset": 2, "a": None, "to": None, "s": "5"},
        {"offset": 3, "a": None, "to": None, "s": None},
        {"offset": 4, "a": 3, "to": {"zip": "2"}, "s": None},
        {"offset": 5, "a": None, "to": None, "s": None},
    ]
    report = columns.report
    assert report.not_objects == (1, "offset 1")
    assert report.unfit == {"a": (2, "offset 2")}
    assert report.left_out == {"b": (1, "offset 4"), "to.no": (1, "offset 4"), "l": (1, "offset 5")}
    assert report.sentences() == [
        "1 of 6 values is not a JSON object (first: offset 1): null in all columns",
        "2 values of 'a' do not fit its type (first: offset 2): null",
        "1 value of 'to.no', which the schema lacks, left out (first: offset 4)",
        "1 value of 'b', which the schema lacks, left out (first: offset 4)",
        "1 value of 'l', which the schema lacks, left out (first: offset 5)",
    ]


def test_the_report_names_partitions_and_rows_and_is_bounded():
    columns = JsonColumns()
    columns.infer([])
    columns.batch(of_partition(batch(b"x", start=7), 3))
    assert columns.report.not_objects.first == "partition 3, offset 7"
    table, report = json_table(pa.table({"value": pa.array([b'{"a":1}', b"x"])}))
    assert table.num_rows == 2
    assert report.not_objects == (1, "row 1")
    columns.batch(batch({f"field{one}": 1 for one in range(100)}))
    assert len(columns.report.left_out) == limits.JSON_REPORT_NAMES_MAX + 1
    assert columns.report.left_out["other fields"].values == 80


def test_without_values_there_is_nothing_to_decode():
    with pytest.raises(ValueError, match="have no 'value'"):
        json_table(pa.table({"offset": [1]}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.sampled_from("xyz"), json_values, max_size=3)


@given(st.lists(st.one_of(st.none(), objects, st.binary(max_size=8)), max_size=12), st.integers(0, 12))
def test_any_values_keep_their_rows(values, inferred_rows):
    columns = JsonColumns()
    source = [batch(*values[start : start + 3], start=start) for start in range(0, len(values), 3)]
    rows = [row for one in columns.batches(source, inferred_rows=inferred_rows) for row in one.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(len(values)))
    known = set(rows[0]) if rows else set()
    for row, value in zip(rows, values, strict=True):
        for name, one in (value if isinstance(value, dict) else {}).items():
            if name in known and isinstance(one, bool) and row[name] is not None:
                assert row[name] in (one, json.dumps(one))
            if name in known and isinstance(one, str) and isinstance(row[name], str):
                assert row[name] == one
        if not isinstance(value, dict):
            assert {*row.values()} <= {row["offset"], None}
    bad = sum(isinstance(one, bytes) for one in values)
    assert columns.report.not_objects.values == bad


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2**64 - 1, 1234567890123456789], pa.string()),
        ([BIG, 1.5], pa.string()),
        ([BIG, 3], pa.int64()),
        ([2**64, 1], pa.float64()),
        ([1e300, 3], pa.float64()),
        ([[BIG], [0.5]], pa.string()),
        (
            [{"id": BIG, "price": 0.5}, {"id": 3, "price": 1e300}],
            pa.struct([("id", pa.int64()), ("price", pa.float64())]),
        ),
        ([{"id": BIG}, {"id": 0.5}], pa.string()),
        ([10**400, 1], pa.string()),
    ],
)
def test_no_whole_number_becomes_another(values, kind):
    for together in (True, False):
        batches = [batch(*({"n": one} for one in values))]
        if not together:
            batches = [batch({"n": one}) for one in values]
        table, report = json_table(pa.Table.from_batches(batches))
        assert table["n"].type == kind
        assert not report
        found = table["n"].to_pylist()
        assert [json.loads(one) if kind == pa.string() else one for one in found] == values


def test_a_whole_number_that_a_double_would_change_is_null_and_counted():
    decoder = JsonColumns()
    decoder.infer([batch({"n": 0.5, "s": {"m": 0.5}})])
    found = decoder.batch(batch({"n": BIG, "x": 1}, {"n": 2**60, "s": {"m": 2**64 - 1}}, {"n": 2.5}))
    assert found["n"].to_pylist() == [None, 2.0**60, 2.5]
    assert found["s"].to_pylist() == [None, None, None]
    assert {name: one.values for name, one in decoder.report.unfit.items()} == {"n": 1, "s": 1}
    assert {name: one.values for name, one in decoder.report.left_out.items()} == {"x": 1}


def test_names_stay_distinct_for_programs_that_end_them_at_nul():
    table, _ = decoded({"a\0b": 1, "a\0c": 2, "a\N{SYMBOL FOR NULL}b": 3, "s": {"x\0y": 1}, "t": {"id": 1, "ID": 2}})
    assert table.column_names[:3] == [f"a{NUL}b{NUL}", f"a{NUL}c", f"a{NUL}b"]
    assert table["s"].to_pylist() == ['{"x\\u0000y": 1}']
    assert table["t"].to_pylist() == ['{"id": 1, "ID": 2}']


NUL = "\N{SYMBOL FOR NULL}"


def test_columns_of_text_hold_what_comes():
    decoder = JsonColumns()
    found = pa.Table.from_batches(
        decoder.batches([batch({"n": 3}), batch({"n": 2.5}, {"n": "x"}, {"n": [1]})], inferred_rows=1, as_text=True)
    )
    assert found["n"].to_pylist() == ["3", "2.5", "x", "[1]"]
    assert not decoder.report
