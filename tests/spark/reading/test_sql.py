"""Streams as tables of SQL."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.spark import run
from tests.broker_process import BrokerProcess
from tests.extent import each_change, needs_time
from tests.spark.delta import delta_rows
from tests.spark.reading.test_source import filled


@each_change
def test_a_stream_is_a_table(client: penstock.Client, spark: SparkSession, broker: BrokerProcess) -> None:
    filled(client, "sold", 100, partitions=2)
    spark.sql(
        f"CREATE TABLE sold USING penstock OPTIONS (servers '{broker.client_address}', stream 'sold', "
        "includeHeaders 'true')"
    )
    try:
        assert spark.sql("SELECT count(*), max(offset) FROM sold").collect() == [(200, 99)]
        found = spark.sql("SELECT CAST(value AS STRING) AS text FROM sold WHERE offset = 7 AND partition = 1").collect()
        assert found == [("v7",)]
        assert "headers" in spark.table("sold").columns
        assert spark.sql("SELECT a.offset FROM sold a JOIN sold b USING (partition, offset)").count() == 200
        client.append("sold", [{"value": b"more"}])
        assert spark.sql("SELECT count(*) FROM sold").collect() == [(201,)], "a table is what the log holds now"
    finally:
        spark.sql("DROP TABLE sold")
    assert client.stream("sold").partitions[0].committed_end == 101, "a table that is dropped takes no message along"


def test_a_view_has_the_columns_that_it_names(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    filled(client, "viewed", 10)
    spark.sql(
        f"CREATE TEMPORARY VIEW viewed (offset BIGINT) USING penstock "
        f"OPTIONS (servers '{broker.client_address}', stream 'viewed')"
    )
    assert spark.sql("SELECT * FROM viewed").columns == ["offset"]
    assert spark.sql("SELECT sum(offset) FROM viewed").collect() == [(45,)]
    spark.catalog.dropTempView("viewed")


@needs_time
def test_windows_of_event_time_are_closed_by_a_watermark(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("clicks", "clicks.in")

    def minutes(rows: DataFrame) -> DataFrame:
        clicks = rows.selectExpr("CAST(CAST(value AS STRING) AS TIMESTAMP) AS at").withWatermark("at", "2 minutes")
        counts = clicks.groupBy(f.window("at", "1 minute")).count()
        return counts.selectExpr("date_format(window.start, 'HH:mm') AS minute", "count")

    def after(*moments: str) -> dict[str, int]:
        client.append("clicks", [{"value": f"2026-11-20 {one}".encode()} for one in moments])
        run(minutes, "clicks", tmp_path / "out", servers=broker.client_address, spark=spark, once=True)
        found = delta_rows(tmp_path / "out").to_pylist()
        return {row["minute"]: row["count"] for row in found}

    assert after("10:00:01", "10:00:59", "10:01:10") == {}, "more may come for either"
    assert after("10:00:30", "10:09:00") == {"10:00": 3, "10:01": 1}
    assert after("10:00:31") == {"10:00": 3, "10:01": 1}, "it is too late"
