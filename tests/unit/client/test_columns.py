"""From what callers have to batch messages."""

from __future__ import annotations

from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.batch import codec
from penstock.client.columns import batch_messages, to_table

WANTED = {"subject": ["s", "s"], "key": [b"k", None], "value": [b"1", None], "headers": [None, None]}
PLAIN = {"key": ["k", None], "value": ["1", None]}
VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([b"0", b"1"], pa.binary_view()))


@pytest.mark.parametrize(
    "data",
    [
        pa.table(PLAIN),
        pa.record_batch(PLAIN),
        pa.table(
            {"key": pa.array(PLAIN["key"], pa.large_string()), "value": pa.array([b"1", None], pa.large_binary())}
        ),
        pa.table({"key": pa.array(PLAIN["key"]).dictionary_encode(), "value": pa.array(["1", None], pa.string_view())}),
        pa.table({**PLAIN, "offset": [7, 8], "timestamp": [1, 2]}),
        pd.DataFrame(PLAIN),
        pl.DataFrame(PLAIN),
        pl.DataFrame(PLAIN, schema={"key": pl.Categorical, "value": pl.Enum(["0", "1"])}),
        pa.table({**PLAIN, "value": pa.chunked_array([VIEWS.slice(1, 1), VIEWS.slice(2, 1)])}),
        [{"key": "k", "value": b"1"}, {"value": None}],
        [{"key": memoryview(b"k"), "value": bytearray(b"1")}, {"key": None, "value": None, "headers": {}}],
    ],
    ids=[
        "table",
        "batch",
        "large",
        "dictionary",
        "as read",
        "pandas",
        "polars",
        "categories",
        "views",
        "dicts",
        "buffers",
    ],
)
def test_whatever_holds_rows_gives_the_same_table(data: Any) -> None:
    table = to_table(data, stream_subject="s")
    assert table.to_pydict() == WANTED
    assert table.schema.types == [pa.utf8(), pa.binary(), pa.binary(), pa.binary()]


def test_what_was_read_is_appended_as_it_is() -> None:
    """nats-server checks no header block, so a log may hold one that is none."""
    read = pa.table(
        {"offset": [7], "timestamp": [1], "subject": ["s"], "value": [b"1"], "headers": [b"NATS/1.0\r\nA: b"]}
    )
    for data in (read, read.to_pylist()):
        table = to_table(data, stream_subject="s")
        assert table.to_pylist() == [{"subject": "s", "key": None, "value": b"1", "headers": b"NATS/1.0\r\nA: b"}]


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (pa.table({"value": ["1"], "colour": ["red"]}), ValueError, "unknown columns colour"),
        (pa.table({"key": ["1"]}), ValueError, "'value' is missing"),
        ([{}], ValueError, "'value' is missing"),
        (
            [{"value": b"1", "offset": 1}],
            ValueError,
            "row 0: unknown columns offset; an append takes subject, key, val",
        ),
        ([{"value": b"1"}, {"value": b"2", "timestamp": 1, "a": 2}], ValueError, "row 1: unknown columns timestamp, a"),
        (pa.table({"colour": pa.array([], pa.utf8())}), ValueError, "unknown columns colour"),
        ([{"value": b"1"}, {"key": b"2"}], ValueError, "row 1 has no 'value'"),
        (pa.table({"value": [1]}), TypeError, "'value' is int64"),
        (pa.table({"value": ["1"], "subject": pa.array([None], pa.utf8())}), ValueError, "holds nulls"),
        (pa.table({"value": ["1"], "subject": pa.array([b"\xff"])}), ValueError, "'subject' cannot be string"),
        (pa.table([["1"], ["2"]], names=["value", "value"]), ValueError, "twice"),
        ([{"value": 7}], TypeError, "row 0: 'value' is an int"),
        ([7], TypeError, "row 0 is an int"),
        ([{"value": b"", "headers": {"a b": "c"}}], ValueError, "header name"),
        (
            [{"value": b""}, {"value": b"", "headers": "x"}],
            ValueError,
            "row 1: 'headers' is b'x', no NATS header block",
        ),
        ([{"value": b"", "headers": b"A: b"}], ValueError, "give a dict, or a block such as"),
        (
            pa.table({"value": ["1", "2"], "headers": [None, "A: b"]}),
            ValueError,
            "row 1: 'headers' is b'A: b', no NATS",
        ),
        (pa.table({"value": ["1"], "headers": [b"NATS/1.0\r\nA: b"]}), ValueError, "no NATS header block"),
        (
            pa.table({"value": ["1"], "headers": [{"A": "b"}]}),
            TypeError,
            "'headers' is struct.*a list of dicts takes dicts",
        ),
        (b"rows", TypeError, "cannot append a bytes"),
        (7, TypeError, "cannot append an int"),
        (pl.LazyFrame(PLAIN), TypeError, r"cannot append a LazyFrame: call \.collect\(\) first"),
        (dataset(pa.table(PLAIN)), TypeError, r"cannot append an InMemoryDataset: call \.to_table\(\) first"),
        ((row for row in [{"value": b"1"}]), TypeError, r"cannot append a generator: give list\(…\)"),
        ({"value": b"1"}, TypeError, r"cannot append a dict: give \[row\] for one row"),
        (pd.Series(["1"]), TypeError, "cannot append a Series: it is one column, not a table"),
        (pl.Series(["1"]), TypeError, "cannot append a Series: it is one column, not a table"),
        (pa.chunked_array([["1"]]), TypeError, "cannot append a ChunkedArray: it is one column, not a table"),
        (pd.DataFrame({"value": ["1", 2]}), TypeError, "cannot append a DataFrame: .*column value"),
        (pd.DataFrame({"colour": ["red", 2], "value": "1"}), ValueError, "unknown columns colour"),
        (
            pd.DataFrame({"value": ["1"], "key": ["k"]}).set_index("value"),
            ValueError,
            r"is the index; .*reset_index\(\)",
        ),
    ],
)
def test_what_cannot_be_appended_is_told(data: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        to_table(data, stream_subject="s")


def test_the_index_of_pandas_is_no_column() -> None:
    frame = pd.DataFrame({"id": [3, 1, 2], "key": ["k", "k", None], "value": ["c", "a", "b"], "n": [1, 2, 3]})
    for given, values in (
        (frame[frame.n > 1][["key", "value"]], [b"a", b"b"]),
        (frame.sort_values("id")[["value"]], [b"a", b"b", b"c"]),
        (frame.set_index("id")[["value"]], [b"c", b"a", b"b"]),
        (frame.set_index(["id", "n"]), [b"c", b"a", b"b"]),
        (frame.set_index(pd.date_range("2026-01-01", periods=3))[["value"]], [b"c", b"a", b"b"]),
        (frame.set_index("value", drop=False)[["value"]], [b"c", b"a", b"b"]),
        (frame.convert_dtypes(dtype_backend="pyarrow").set_index("n").iloc[::-1][["value"]], [b"b", b"a", b"c"]),
    ):
        table = to_table(given, stream_subject="s")
        assert table.column("value").to_pylist() == values
        assert table.column_names == ["subject", "key", "value", "headers"]


def test_a_relation_of_duckdb_is_taken() -> None:
    with duckdb.connect() as connection:
        table = to_table(connection.sql("select 'k' as key, '1' as value"), stream_subject="s")
    assert table.select(["key", "value"]).to_pylist() == [{"key": b"k", "value": b"1"}]


def test_a_data_frame_of_spark_is_told_how_spark_writes() -> None:
    classic = pytest.importorskip("pyspark.sql.classic.dataframe")
    frame = object.__new__(classic.DataFrame)  # without a JVM: nothing of it is looked at
    with pytest.raises(TypeError, match=r'cannot append a DataFrame of Spark: .*\.write\.format\("penstock"\)'):
        to_table(frame, stream_subject="s")


def test_blocks_of_headers_are_appended_as_they_are_and_empty_ones_are_none() -> None:
    blocks = [b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0 100 Idle\r\n\r\n", None, b""]
    table = to_table(pa.table({"value": ["1", "2", "3", "4"], "headers": blocks}), stream_subject="s")
    assert table.column("headers").to_pylist() == [*blocks[:3], None]
    rows = [{"value": b"1", "headers": block} for block in blocks]
    assert to_table(rows, stream_subject="s").column("headers").to_pylist() == [*blocks[:3], None]


def test_a_pattern_is_no_subject_for_rows_without_one() -> None:
    with pytest.raises(ValueError, match="pattern"):
        to_table([{"value": b"1"}], stream_subject="s.>")
    assert to_table([{"value": b"1", "subject": "s.1"}], stream_subject="s.>").column("subject").to_pylist() == ["s.1"]


def test_no_rows_give_no_batches() -> None:
    empty: tuple[Any, ...] = ([], pa.table({"value": pa.array([], pa.binary())}), pa.table({}), pd.DataFrame())
    for data in empty:
        for subject in ("s", "s.>"):
            assert list(batch_messages(to_table(data, stream_subject=subject), bytes_max=10**6)) == []


def rows_of(messages: list[bytearray]) -> list[dict]:
    found = []
    for message in messages:
        codec.verify(message)
        found += codec.check_rows(message).select(["subject", "key", "value", "headers"]).to_pylist()
    return found


def test_rows_are_split_by_count_and_by_bytes_and_keep_their_order() -> None:
    table = to_table(pa.table({"value": [b"%d" % number for number in range(70_000)]}), stream_subject="s")
    messages = list(batch_messages(table, bytes_max=limits.APPEND_BYTES_MAX))
    assert [codec.read_header(message).count for message in messages] == [
        limits.BATCH_ROWS_MAX,
        70_000 - limits.BATCH_ROWS_MAX,
    ]
    assert rows_of(messages) == table.to_pylist()
    large = to_table(pa.table({"value": [bytes(50_000), b"", bytes(60_000), bytes(10)] * 20}), stream_subject="s")
    messages = list(batch_messages(large, bytes_max=200_000))
    assert max(map(len, messages)) <= 200_000
    assert rows_of(messages) == large.to_pylist()


def test_slices_and_chunks_are_appended_as_they_read() -> None:
    chunks = pa.chunked_array([["a", None, "c"], ["d"], ["e", "f", None]])
    table = to_table(pa.table({"value": chunks, "key": chunks}).slice(1, 5), stream_subject="s")
    assert rows_of(list(batch_messages(table, bytes_max=10**6))) == table.to_pylist()


def test_a_row_that_fits_nowhere_is_refused_after_those_before_it() -> None:
    table = to_table([{"value": b"1"}, {"value": bytes(300_000)}, {"value": b"3"}], stream_subject="s")
    messages = batch_messages(table, bytes_max=200_000)
    assert rows_of([next(messages)])[0]["value"] == b"1"
    with pytest.raises(RemoteError, match="at most 200000"):
        next(messages)
