"""An archive is continued by the job on Spark and by `penstock.ops.archive_stream`, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import ops
from penstock.base.errors import ConfigError
from penstock.lake.tables.formats import FORMATS, open_table
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.jobs.test_archive import Dies, Killed, expected, job_of, run, small_plan, table_rows
from tests.spark.reading.test_source import filled

pytestmark = needs_time


@pytest.mark.parametrize("table_format", FORMATS)
def test_one_goes_on_where_the_other_stopped(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, table_format: str
) -> None:
    name = f"both-{table_format}"
    filled(client, name, 100, partitions=2)
    options = ops.ArchiveOptions(table_format)
    first = ops.archive_stream(client, name, tmp_path, options)
    client.append(name, [{"value": b"more"}], partition=1)
    second = run(spark, broker, name, tmp_path, format=table_format)
    client.append(name, [{"value": b"more"}], partition=1)
    third = ops.archive_stream(client, name, tmp_path, options)
    assert [one.rows for one in (first, second, third)] == [200, 1, 1]
    assert len({one.name for one in (first, second, third)}) == 1
    assert table_rows(tmp_path, table_format) == [*expected(2, 100), (1, 100), (1, 101)]


@pytest.mark.parametrize("after", [False, True])
def test_what_a_killed_job_on_spark_left_is_continued_without_spark(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, after: bool
) -> None:
    name = f"left-{after}"
    filled(client, name, 100, partitions=2)
    plan = small_plan(name, tmp_path, "parquet", fail_on_data_loss=True)
    with pytest.raises(Killed):
        job_of(spark, broker, plan, Dies(plan.open_table(), after=after)).run(once=True)
    assert ops.archive_stream(client, name, tmp_path).rows == (140 if after else 200)
    assert table_rows(tmp_path, "parquet") == expected(2, 100)


def test_an_archive_of_json_is_continued_on_spark_only(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("json-both", "json-both")
    client.append("json-both", [{"value": b'{"a": 1}'}])
    run(spark, broker, "json-both", tmp_path, decode="json")
    with pytest.raises(ConfigError, match=r"decodes json, which needs Spark: `penstock pipeline archive`"):
        ops.archive_stream(client, "json-both", tmp_path)
    assert len(open_table(tmp_path, "parquet", None).files()) == 1
