"""Times in files are named in UTC, whatever the session's time zone."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from penstock.lake.reading.columns import in_utc

MOMENT = datetime(2026, 11, 20, 10, tzinfo=UTC)
BERLIN = pa.timestamp("us", "Europe/Berlin")


def test_the_same_moments_are_named_in_utc_wherever_they_are_nested() -> None:
    fields = {
        "plain": (BERLIN, MOMENT),
        "list": (pa.list_(pa.field("element", BERLIN)), [MOMENT, None]),
        "struct": (
            pa.struct([pa.field("at", BERLIN), pa.field("n", pa.int32(), nullable=False)]),
            {"at": None, "n": 3},
        ),
        "map": (pa.map_(pa.string(), pa.struct([("at", BERLIN)])), [("k", {"at": MOMENT})]),
        "local": (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    }
    schema = pa.schema([pa.field("data", pa.struct([(name, kind) for name, (kind, _) in fields.items()]))])
    row = {name: value for name, (_, value) in fields.items()}
    rows = pa.RecordBatch.from_pylist([{"data": row}, {"data": None}], schema=schema)
    found = in_utc(rows)
    assert "Europe/Berlin" not in str(found.schema.to_string(truncate_metadata=False, show_field_metadata=True))
    assert "Europe/Berlin" not in repr([field.type for field in found.schema.field("data").type])
    assert found.to_pylist() == rows.to_pylist()
    assert found.schema.field("data").type.field("local").type == pa.timestamp("us")
    assert not found.schema.field("data").type.field("struct").type.field("n").nullable
    assert in_utc(found).schema == found.schema
