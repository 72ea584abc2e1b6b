"""What Spark writes becomes rows of the log: columns by Spark's case rule, headers that NATS can carry."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ConfigError
from penstock.base.ids import StreamId
from penstock.lake.reading.columns import HEADER, parsed_headers
from penstock.messages import StreamInfo
from penstock.spark.writing.rows import (
    BadRowsError,
    check_columns,
    header_blocks,
    named,
    shares,
    streams_of,
    valid_headers,
)

HEADERS = "array<struct<key:string,value:binary>>"


def headers_of(*rows: list[tuple[str | None, bytes | None]] | None) -> pa.ListArray:
    made = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    return pa.array(made, pa.list_(HEADER))


def rows_of(*rows: list[tuple[str | None, bytes | None]] | None) -> pa.RecordBatch:
    headers = headers_of(*rows)
    return pa.RecordBatch.from_pydict({"key": [b"k%d" % number for number in range(len(rows))], "headers": headers})


def test_headers_are_written_as_they_are_read() -> None:
    given = headers_of([("A", b"1"), ("A", b"x: y")], None, [], [("C", b"")])
    blocks = header_blocks(given)
    assert blocks.to_pylist()[:2] == [b"NATS/1.0\r\nA: 1\r\nA: x: y\r\n\r\n", None]
    assert parsed_headers(blocks).to_pylist() == [given[0].as_py(), None, None, given[3].as_py()]
    assert parsed_headers(header_blocks(given.slice(2, 2))).to_pylist() == [None, given[3].as_py()]


def test_a_header_without_a_value_is_one_with_an_empty_value() -> None:
    """As Spark's Kafka source gives them: a query that meets one goes on."""
    rows = rows_of([("trace", None), ("A", b"1")], None, [("B", None)])
    found, left_out = valid_headers(rows, drop=False)
    assert left_out == 0
    assert header_blocks(found).to_pylist() == [
        b"NATS/1.0\r\ntrace: \r\nA: 1\r\n\r\n",
        None,
        b"NATS/1.0\r\nB: \r\n\r\n",
    ]


BROKEN = [("A B", b"1"), ("", b"1"), ("A:", b"1"), ("Ä", b"1"), (None, b"1"), ("A", b"1\r\nX: 2"), ("A", b"\x00")]


@pytest.mark.parametrize("header", BROKEN)
def test_a_header_that_would_break_the_block_is_refused_with_its_row_and_what_to_do(
    header: tuple[str | None, bytes | None],
) -> None:
    rows = rows_of(None, [("fine", b"1")], [("fine", b"1"), header])
    with pytest.raises(BadRowsError, match=r"a header's .* key b'k2'.* invalidHeaders .*drop"):
        valid_headers(rows, drop=False)
    with pytest.raises(BadRowsError, match="key b'k2'"):
        valid_headers(rows.slice(1), drop=False)


@pytest.mark.parametrize("header", BROKEN)
def test_or_it_is_left_out_and_counted(header: tuple[str | None, bytes | None]) -> None:
    rows = rows_of([header], None, [("fine", b"1"), header, ("B", None)])
    for given, expected in (
        (rows, [None, None, [("fine", b"1"), ("B", b"")]]),
        (rows.slice(1), [None, [("fine", b"1"), ("B", b"")]]),
    ):
        found, left_out = valid_headers(given, drop=True)
        blocks = parsed_headers(header_blocks(found)).to_pylist()
        assert blocks == headers_of(*expected).to_pylist()
        assert left_out == given.num_rows - 1


def test_a_null_in_the_place_of_a_header_is_none() -> None:
    headers = pa.array([[None, {"key": "A", "value": b"1"}], [None]], pa.list_(HEADER))
    found, left_out = valid_headers(pa.RecordBatch.from_pydict({"headers": headers}), drop=False)
    assert (header_blocks(found).to_pylist(), left_out) == ([b"NATS/1.0\r\nA: 1\r\n\r\n", None], 0)


def test_columns_are_known_by_their_names_in_any_case() -> None:
    types = {"VALUE": "binary", "Key": "string", "Headers": "array<struct<Key:string,VALUE:binary>>"}
    check_columns(types, stream="orders")
    batch = pa.RecordBatch.from_pydict({"VALUE": [b"v"], "Key": ["k"], "Partition": pa.array([0], pa.int32())})
    assert named(batch).schema.names == ["value", "key", "partition"]
    same = named(batch)
    assert named(same) is same


def test_a_topic_in_capitals_says_where_rows_go() -> None:
    check_columns({"value": "binary", "TOPIC": "string"}, stream="")


def test_two_columns_that_differ_by_case_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="KEY: key is given, too: drop or rename one"):
        check_columns({"value": "binary", "key": "binary", "KEY": "string"}, stream="orders")


@pytest.mark.parametrize(
    "stream", ["orders", "other", "another"]
)  # the option sorts before and behind the column's names
@pytest.mark.parametrize(
    "topics",
    [
        [None, "orders"],
        ["", "orders"],
        [None, "", "orders", "other", None],
        [None, None],
        ["", ""],
        [None, ""],
        ["other", "orders", "other"],
    ],
    ids=str,
)
def test_each_row_goes_to_its_stream_once_and_to_the_option_s_where_it_names_none(
    topics: list[str | None], stream: str
) -> None:
    wanted: dict[str, list[bytes]] = {}
    for number, topic in enumerate(topics):
        wanted.setdefault(topic or stream, []).append(b"%d" % number)
    values = [b"%d" % number for number in range(len(topics))]
    batch = pa.RecordBatch.from_pydict({"value": values, "topic": pa.array(topics, pa.string())})
    assert streams_of(batch, stream) == sorted(wanted)
    streams = {
        name: StreamInfo(stream_id=StreamId(7), config=StreamConfig(name=name, subject=name), partitions=())
        for name in wanted
    }
    found = [(share.stream, share.rows.column("value").to_pylist()) for share in shares(batch, streams, stream)]
    assert found == sorted(wanted.items())
