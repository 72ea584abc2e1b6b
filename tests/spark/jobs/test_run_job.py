"""The job `run`: a user's function over a stream, and what it is told when it cannot be run."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.base.errors import ConfigError, OperationalError
from penstock.client.errors import StreamNotFound
from penstock.lake.progress import BatchDone
from penstock.spark.jobs.run_job import Ran, loaded, run
from penstock.spark.jobs.streaming_query import JobError, reason
from penstock.spark.writing.delta_sink import DeltaSink, write
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.delta import delta_rows

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

FILE = """
from pyspark.sql import functions as f
from pyspark.sql.functions import udf

def shout(text):
    return text.upper() + "!"

def louder(rows):
    return rows.select("offset", udf(shout, "string")(f.col("value").cast("string")).alias("text"))

def nothing(rows):
    return 7

NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "mine.py"
    made.write_text(FILE)
    return made


def filled(client: penstock.Client, name: str, rows: int) -> None:
    client.create_stream(name, f"{name}.in")
    client.append(name, [{"value": b"v%d" % one} for one in range(rows)])


@needs_time
def test_a_function_of_a_file_runs_over_a_stream_once_each(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, file: Path, tmp_path: Path
) -> None:
    filled(client, "loud", 100)
    told: list[BatchDone] = []

    def go(**options: Any) -> Ran:
        return run(
            f"{file}:louder", "loud", tmp_path / "out", servers=broker.client_address, spark=spark, once=True, **options
        )

    assert go(max_batch=60, report=told.append) == Ran(2, 100)
    assert [(one.number, one.rows) for one in told] == [(1, 60), (2, 40)]
    client.append("loud", [{"value": b"more"}])
    assert go() == Ran(1, 1)
    rows = sorted(delta_rows(tmp_path / "out").to_pylist(), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(101))
    assert (rows[7]["text"], rows[100]["text"]) == ("V7!", "MORE!")


@needs_time
def test_a_batch_that_is_run_again_is_written_once(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, file: Path, tmp_path: Path
) -> None:
    filled(client, "again", 50)
    go = {"servers": broker.client_address, "spark": spark, "once": True, "max_batch": 30}
    run(f"{file}:louder", "again", tmp_path / "out", **go)
    # As if killed between the table's commit and Spark's note of it.
    commits = tmp_path / "out" / "_penstock" / "checkpoint" / "commits"
    for one in (commits / "1", commits / ".1.crc"):
        one.unlink()
    assert run(f"{file}:louder", "again", tmp_path / "out", **go) == Ran(0, 0)
    assert delta_rows(tmp_path / "out").num_rows == 50


@needs_time
def test_a_result_that_changes_replaces_the_table(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("counted", "counted.in")
    go = {"servers": broker.client_address, "spark": spark, "once": True, "output_mode": "complete"}
    for count in (3, 5):
        client.append("counted", [{"key": b"k%d" % (one % 2), "value": b""} for one in range(count)])
        run(lambda rows: rows.groupBy("key").count(), "counted", tmp_path / "out", **go)
    found = delta_rows(tmp_path / "out").to_pylist()
    assert {row["key"]: row["count"] for row in found} == {b"k0": 5, b"k1": 3}


@needs_time
def test_parquet_is_written_by_spark_itself(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "plain", 10)
    to = str(tmp_path / "out")
    run(
        lambda rows: rows.select("offset"),
        "plain",
        to,
        format="parquet",
        servers=broker.client_address,
        spark=spark,
        once=True,
    )
    assert sorted(spark.read.parquet(to).collect()) == [(one,) for one in range(10)]


@needs_time
def test_a_table_of_other_columns_and_a_function_that_fails_are_told(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "fails", 10)
    go = {"servers": broker.client_address, "spark": spark, "once": True}
    run(lambda rows: rows.select("offset"), "fails", tmp_path / "out", **go)
    with pytest.raises(JobError, match=r"holds another table: its columns are offset; those of the result are key"):
        run(lambda rows: rows.select("key"), "fails", tmp_path / "out", checkpoint=str(tmp_path / "other"), **go)

    def bad(rows: DataFrame) -> DataFrame:
        return rows.select(f.udf(lambda value: json.loads(value), "string")("value"))

    with pytest.raises(JobError, match=r"^JSONDecodeError: Expecting value"):
        run(bad, "fails", tmp_path / "bad", **go)


@needs_time
def test_a_table_of_other_types_takes_nothing(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "types", 10)
    go = {"servers": broker.client_address, "spark": spark, "once": True}

    def made(*columns: str, number: int = 0) -> None:
        run(lambda rows: rows.selectExpr(*columns), "types", tmp_path / "out", checkpoint=f"{tmp_path}/c{number}", **go)

    made("offset AS a", "array(partition) AS b", "timestamp AS c")
    files = set((tmp_path / "out").glob("*.parquet"))
    with pytest.raises(JobError, match=r"its column a is long, that of the result string; b is .*integer.*, that of"):
        made("CAST(offset AS STRING) AS a", "array(offset) AS b", "timestamp AS c", number=1)
    assert set((tmp_path / "out").glob("*.parquet")) == files
    made("offset + 1 AS a", "array(partition, 7) AS b", "timestamp AS c", number=2)
    assert delta_rows(tmp_path / "out").num_rows == 20


@needs_time
def test_where_a_job_begins_is_said_in_any_way_that_a_reader_has(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "begins", 10)
    for number, (options, rows) in enumerate(
        [
            ({"startingOffsetsByTimestamp": '{"begins": {"0": 1000}}'}, 10),
            ({"STARTINGTIMESTAMP": "2020-01-01T00:00:00Z"}, 10),
            ({"startingoffsets": '{"begins": {"0": 4}}'}, 6),
            ({"startingOffsetsByTimestampStrategy": "latest", "MaxOffsetsPerTrigger": "4"}, 10),
        ]
    ):
        done = run(
            lambda rows: rows.select("offset"), "begins", tmp_path / str(number), servers=broker.client_address,
            spark=spark, once=True, options=options,
        )  # fmt: skip
        assert done == Ran(3 if number == 3 else 1, rows)


def test_a_file_is_on_the_disk_with_its_name(synced: list[Path], tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    (written,) = write(str(tmp_path), [batch])
    assert synced == [tmp_path / written.column("path")[0].as_py(), tmp_path]
    assert list(write(str(tmp_path), [])) == []


def test_files_of_sessions_of_any_time_zone_have_the_same_columns(tmp_path: Path) -> None:
    """Polars, for one, reads no table whose files name times in several zones."""
    zones = ("UTC", "Europe/Berlin")
    for zone in zones:
        (written,) = write(str(tmp_path), [pa.RecordBatch.from_pydict({"at": pa.array([0], pa.timestamp("us", zone))})])
        file = tmp_path / written.column("path")[0].as_py()
        assert parquet.read_schema(file) == pa.schema([("at", pa.timestamp("us", "UTC"))])
    assert pl.read_parquet(tmp_path)["at"].to_list() == [datetime(1970, 1, 1, tzinfo=UTC)] * len(zones)


def test_what_cannot_be_loaded_is_said(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not FILE"):
        loaded(str(file))
    with pytest.raises(ConfigError, match="there is no file"):
        loaded(f"{tmp_path}/none.py:louder")
    with pytest.raises(ConfigError, match=r"mine\.py has no function 'quiet'; there are shout, louder, nothing"):
        loaded(f"{file}:quiet")
    with pytest.raises(ConfigError, match="has no function 'NUMBER'"):
        loaded(f"{file}:NUMBER")
    (tmp_path / "broken.py").write_text("1 +")
    with pytest.raises(ConfigError, match=r"broken\.py cannot be imported: SyntaxError"):
        loaded(f"{tmp_path}/broken.py:louder")
    (tmp_path / "a-b.py").write_text("")
    with pytest.raises(ConfigError, match="'a-b' is no name in Python"):
        loaded(f"{tmp_path}/a-b.py:louder")


@needs_time
def test_what_cannot_be_written_is_said_before_anything_runs(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, file: Path, tmp_path: Path
) -> None:
    client.create_stream("unsaid", "unsaid.in")
    go = {"servers": broker.client_address, "spark": spark, "once": True}
    with pytest.raises(ConfigError) as told:
        run(f"{file}:louder", "unsaid", "s3://bucket/out", format="csv", **go)
    assert len(told.value.mistakes) == 2
    with pytest.raises(ConfigError, match="only a Delta table can be replaced"):
        run(f"{file}:louder", "unsaid", tmp_path / "out", output_mode="complete", format="parquet", **go)
    with pytest.raises(ConfigError, match="checkpoint: it is missing"):
        run(f"{file}:louder", "unsaid", "other", **go)
    with pytest.raises(ConfigError, match="there is no such option; did you mean startingOffsets"):
        run(f"{file}:louder", "unsaid", tmp_path / "out", options={"startingOfsets": "latest"}, **go)
    with pytest.raises(ConfigError, match="it returned int, not a DataFrame"):
        run(f"{file}:nothing", "unsaid", tmp_path / "out", **go)
    with pytest.raises(ConfigError, match=r"function: <lambda>, line \d+: KeyError: .NO_SUCH_RATE."):
        run(lambda rows: rows.limit(int(os.environ["NO_SUCH_RATE"])), "unsaid", tmp_path / "out", **go)
    with pytest.raises(ConfigError, match="not made of its argument"):
        run(lambda rows: spark.range(3), "unsaid", tmp_path / "out", **go)
    with pytest.raises(StreamNotFound, match="there is no stream 'other'"):
        run(f"{file}:louder", "unsaid", "other", checkpoint=str(tmp_path / "checkpoint"), **go)
    client.create_stream("other", "other.in")
    with pytest.raises(ConfigError, match="value: the column is missing"):
        run(f"{file}:louder", "unsaid", "other", checkpoint=str(tmp_path / "checkpoint"), **go)


@needs_time
def test_a_result_goes_to_another_stream_each_row_once(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "from", 100)
    client.create_stream("into", "into.in", partitions=2)
    go = {"servers": broker.client_address, "spark": spark, "once": True, "checkpoint": str(tmp_path / "checkpoint")}
    evens = "CAST(value AS STRING) AS key", "value"
    assert run(lambda rows: rows.where("offset % 2 = 0").selectExpr(*evens), "from", "into", **go) == Ran(1, 100)
    client.append("from", [{"value": b"odd"}, {"value": b"odd"}])
    assert run(lambda rows: rows.where("offset % 2 = 0").selectExpr(*evens), "from", "into", **go) == Ran(1, 2)
    written = [row.as_py() for one in range(2) for row in client.to_table("into", partition=one)["value"]]
    assert sorted(written) == sorted([b"v%d" % one for one in range(0, 100, 2)] + [b"odd"])


@needs_time
def test_headers_that_nats_cannot_carry_end_a_query_which_goes_on_without_them(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "bears", 2)
    client.create_stream("bared", "bared.in")
    go = {"servers": broker.client_address, "spark": spark, "once": True, "checkpoint": str(tmp_path / "checkpoint")}
    headers = ", ".join(f"named_struct('key', '{name}', 'value', value)" for name in ("a b", "fine"))

    def with_headers(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("value", f"array({headers}) AS headers")

    with pytest.raises(JobError, match=r"one is b'a b', .* invalid_headers, or --invalid-headers"):
        run(with_headers, "bears", "bared", **go)
    assert run(with_headers, "bears", "bared", invalid_headers="drop", **go) == Ran(1, 2)
    assert [one.headers for one in client.messages("bared")] == [{"fine": "v0"}, {"fine": "v1"}]
    with pytest.raises(ConfigError, match="only what goes to a stream has headers"):
        run(with_headers, "bears", tmp_path / "out", invalid_headers="drop", **go)
    with pytest.raises(ConfigError, match="it is 'leave'; there are fail, drop"):
        run(with_headers, "bears", "bared", invalid_headers="leave", **go)


def test_reasons_are_told_in_a_line() -> None:
    error = "penstock.lake.reading.data_loss.DataLossError: gone"
    trace = f'Job aborted:\n  File "x.py", line 3\n{error}\n\n\tat org.apache.X'
    assert reason(trace) == "gone"
    assert reason("a\nValueError: no\norg.apache.spark.SparkException: x") == "ValueError: no"
    assert reason("[SOMETHING] is wrong\nat x") == "[SOMETHING] is wrong"
    java = "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job 3 cancelled\n\tat x"
    assert reason(java) == "org.apache.spark.SparkException: Job 3 cancelled"
    failed = "[STREAM_FAILED] Query [id = 3, runId = 5] terminated with exception: it is no more SQLSTATE: XXKST\nat x"
    assert reason(failed) == "it is no more"
    assert reason(f"{trace.rpartition('penstock')[0]}penstock.client.errors.NotAuthorized: no rule allows it") == (
        "no rule allows it"
    )
    assert reason("") == "Spark gives no reason"


@needs_time
def test_a_batch_of_no_query_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"property sql\.streaming\.queryId is None"):
        DeltaSink(tmp_path)(spark.range(1), 0)
    assert list(tmp_path.iterdir()) == []
