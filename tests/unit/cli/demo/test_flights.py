"""The demo's messages, and the check that finds every difference."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.batch.schema import arrow_schema
from penstock.cli.demo import check as demo_check
from penstock.cli.demo import flights
from penstock.cli.demo.flights import Messages
from tests.flights_package import flight, write_flights_package

LINES = [
    flight(1, hour=9),
    flight(2, hour=5, minute=30, tailnum="NA"),
    flight(3, hour=5, minute=30, origin="EWR"),
    flight(4, day=2, hour=0),
    flight(5, hour=5),
]


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Messages:
    monkeypatch.syspath_prepend(write_flights_package(tmp_path, LINES))
    return flights.load()


def test_flights_come_in_the_order_of_their_departure(messages: Messages) -> None:
    documents = [json.loads(value) for value in messages.values]
    assert [document["flight"] for document in documents] == [5, 2, 3, 1, 4]
    assert messages.subjects[2] == "flights.EWR.UA"
    assert messages.keys == ["N1", None, "N1", "N1", "N1"]
    assert documents[1]["tailnum"] is None
    assert documents[1]["dep_time"] is None
    assert documents[0]["time_hour"] == "2013-01-01T10:00:00Z"
    assert messages.payload_bytes == sum(len(value) for value in messages.values)


def test_only_the_first_flights(messages: Messages) -> None:
    assert flights.load(2) == Messages(messages.subjects[:2], messages.keys[:2], messages.values[:2])


def test_without_the_package_the_flights_are_invented_the_same_ones_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.meta_path", [*__import__("sys").meta_path[-1:]])
    assert not flights.are_real()
    found = flights.load()
    assert found == flights.load()
    documents = [json.loads(value) for value in found.values]
    assert len(documents) == flights.INVENTED
    assert {one["year"] for one in documents} == {2013}
    assert [field.split()[0] for field in flights.SCHEMA.split(", ")] == list(documents[0])
    assert None in found.keys
    assert all(key is None or key.isascii() for key in found.keys)
    assert documents[0]["time_hour"] == "2013-01-01T10:00:00Z"
    assert flights.load(3).values == found.values[:3]


def batches_of(messages: Messages, *, rows: int = 2) -> list[pa.RecordBatch]:
    count = len(messages.values)
    columns = [
        list(range(count)),
        [1_000 + row for row in range(count)],
        messages.subjects,
        [None if key is None else key.encode() for key in messages.keys],
        messages.values,
        [demo_check.header_block(key) for key in messages.keys],
    ]
    schema = arrow_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return [whole.slice(start, rows) for start in range(0, count, rows)]


def test_what_agrees_passes_unchanged(messages: Messages) -> None:
    batches = batches_of(messages)
    assert list(demo_check.Expected(messages).checked(batches)) == batches


@pytest.mark.parametrize("column", ["offset", "timestamp", "subject", "key", "value", "headers"])
@pytest.mark.parametrize("row", range(len(LINES)))
def test_every_difference_is_found(messages: Messages, column: str, row: int) -> None:
    batches = batches_of(messages)
    at, within = divmod(row, 2)
    cells = batches[at].column(column).cast(pa.int64() if column == "timestamp" else batches[at].column(column).type)
    changed = cells.to_pylist()
    changed[within] = {"offset": 99, "subject": "flights.X.Y"}.get(column, -1 if column == "timestamp" else b"changed")
    position = batches[at].schema.get_field_index(column)
    field = batches[at].schema.field(position)
    batches[at] = batches[at].set_column(position, field, pa.array(changed, field.type))
    if column == "timestamp" and row == 0:
        assert list(demo_check.Expected(messages).checked(batches))  # an earlier first one is no step back
        return
    with pytest.raises(demo_check.Disagreement):
        list(demo_check.Expected(messages).checked(batches))


def test_missing_and_additional_messages_are_found(messages: Messages) -> None:
    batches = batches_of(messages)
    with pytest.raises(demo_check.Disagreement, match="4 came back"):
        list(demo_check.Expected(messages).checked(batches[:-1]))
    with pytest.raises(demo_check.Disagreement):
        list(demo_check.Expected(messages).checked([*batches, batches[0]]))
    with pytest.raises(demo_check.Disagreement):
        list(demo_check.Expected(messages).checked([batches[1], batches[0], batches[2]]))


def test_busiest_routes(messages: Messages) -> None:
    routes = demo_check.busiest_of(demo_check.routes_of(batches_of(messages)), 1)
    assert routes == [("JFK", "LAX", 4, (1 + 2 + 4 + 5) / 4)]


def test_a_route_is_among_the_most_delayed_with_enough_flights_only(messages: Messages) -> None:
    routes = demo_check.routes_of(batches_of(messages))
    jfk, ewr = ("JFK", "LAX", 4, 3.0), ("EWR", "LAX", 1, 3.0)
    assert demo_check.most_delayed_of(routes, 10, 1) == [ewr, jfk]  # equal: by name
    assert demo_check.most_delayed_of(routes, 1, 1) == [ewr]
    assert demo_check.most_delayed_of(routes, 10, 2) == [jfk]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([("JFK", "LAX", 4, 3.0), ("EWR", "LAX", 1, 3.5)], r"busiest, place 2: Spark has .*3\.0.*, Arrow .*3\.5"),
        ([("JFK", "LAX", 4, 3.0)], "Spark has 2 routes, Arrow 1"),
    ],
)
def test_two_answers_that_differ_are_told_apart(others: list[tuple[str, str, int, float]], said: str) -> None:
    routes = [demo_check.FlightRoute("JFK", "LAX", 4, 3.0), demo_check.FlightRoute("EWR", "LAX", 1, 3.0)]
    demo_check.check_equal("busiest", ("Spark", routes), ("Arrow", list(routes)))
    with pytest.raises(demo_check.Disagreement, match=said):
        demo_check.check_equal(
            "busiest", ("Spark", routes), ("Arrow", [demo_check.FlightRoute(*one) for one in others])
        )


def test_the_schema_has_all_that_a_document_has(messages: Messages) -> None:
    assert [field.split()[0] for field in flights.SCHEMA.split(", ")] == list(json.loads(messages.values[0]))
