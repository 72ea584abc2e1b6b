"""A DataFrame, view or table that is used several times has the same rows each time, whatever else was asked of it.

In PySpark 4.2 and 4.3 filters that a Python source takes stay with the relation: the next query that uses it reads what
the one before asked for. So the source takes none, and what it may leave out is said in its options.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.spark import read
from penstock.spark.runtime import sessions
from tests.broker_process import BrokerProcess
from tests.docs.test_consumer_groups import environment
from tests.extent import each_change, needs_time

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
ROWS = 6  # of each partition, on two subjects in turn
LATE = "2100-01-01"
TIMEOUT_S = 240

PRUNING: dict[str, tuple[dict[str, str], int]] = {
    "nothing": ({}, 12),
    "subject": ({"subject": "reused.0"}, 6),
    "subjects": ({"subjects": "reused.0,reused.x"}, 6),
    "columns": ({"columns": "topic,partition,offset,subject,timestamp"}, 12),
    "assign": ({"assign": '{"reused": [1]}', "stream": ""}, 6),
    "offsets": (
        {"startingOffsets": '{"reused": {"0": 1, "1": 1}}', "endingOffsets": '{"reused": {"0": 5, "1": 5}}'},
        8,
    ),
    "timestamps": ({"startingTimestamp": "2020-01-01", "endingTimestamp": LATE}, 12),
    "where": (
        {"where": '{"partition": 0, "offset": [1, 5], "subject": "reused.0", "timestamp": ["2020-01-01", null]}'},
        2,
    ),
}
"""Options that have less fetched, and how many rows are left."""

FILTERS = ("offset < 2", "partition = 1", "subject = 'reused.1'", f"timestamp > timestamp'{LATE}'")


@pytest.fixture(params=["true", "false"])
def switched(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Spark, with its switch for filters on and off."""
    before = spark.conf.get(PUSH_DOWN)
    spark.conf.set(PUSH_DOWN, request.param)
    yield spark
    spark.conf.set(PUSH_DOWN, str(before))


@pytest.fixture(scope="module")
def options(broker: BrokerProcess) -> dict[str, str]:
    """Of a stream of two partitions, with two subjects in each."""
    return two_partitions(broker)


def two_partitions(broker: BrokerProcess) -> dict[str, str]:
    """The options of a new stream `reused`, of two partitions with two subjects in each."""
    with penstock.connect(broker.client_address) as client:
        info = client.create_stream("reused", "reused.>", partitions=2, partition_by="key")
        keys = pa.table({"key": [b"k%d" % one for one in range(64)]})
        partitions = penstock.partitions_of(keys, info).to_pylist()
        for partition in range(2):
            key = keys["key"][partitions.index(partition)].as_py()
            rows = [{"key": key, "value": b"v%d" % one, "subject": f"reused.{one % 2}"} for one in range(ROWS)]
            client.append("reused", rows, partition=partition)
    return {"servers": broker.client_address, "stream": "reused"}


def loaded(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("penstock").options(**{name: text for name, text in options.items() if text}).load()


def test_a_session_leaves_the_switch_for_filters_alone() -> None:
    assert PUSH_DOWN not in sessions._DEFAULTS


@each_change
def test_a_filter_narrows_its_own_use_of_a_frame_alone(switched: SparkSession, options: dict[str, str]) -> None:
    frame = loaded(switched, options)
    assert frame.where("offset < 2").count() == 4
    assert frame.count() == 12
    assert frame.where("offset = 0").union(frame.where("offset = 1")).count() == 4
    first, second = frame.where("offset = 0").alias("a"), frame.where("offset = 1").alias("b")
    assert first.join(second, f.col("a.partition") == f.col("b.partition")).count() == 2


@needs_time
@pytest.mark.parametrize("pruning", PRUNING)
def test_frames_views_and_tables_are_the_same_at_each_use(
    switched: SparkSession, options: dict[str, str], pruning: str
) -> None:
    given, count = PRUNING[pruning]
    frame = loaded(switched, options | given)
    rows = frame.selectExpr("topic", "partition", "offset", "subject").collect()
    assert len(rows) == count
    early = sum(row.offset < 2 for row in rows)

    for condition in FILTERS:  # a frame that is used again
        frame.where(condition).count()
    assert frame.count() == count
    assert frame.where("offset < 2").union(frame).count() == early + count
    assert frame.where("offset < 2").union(frame.where("offset >= 2")).count() == count
    one, other = frame.where("offset < 2").alias("a"), frame.where("offset >= 2").alias("b")
    pairs = [(a, b) for a in rows for b in rows if a.offset < 2 <= b.offset and a.partition == b.partition]
    assert one.join(other, f.col("a.partition") == f.col("b.partition")).count() == len(pairs)
    assert frame.alias("a").join(frame.alias("b"), ["partition", "offset"]).count() == count

    frame.createOrReplaceTempView("reused_view")
    assert switched.sql("SELECT count(*) FROM reused_view WHERE offset < 2").collect() == [(early,)]
    assert switched.sql("SELECT count(*) FROM reused_view").collect() == [(count,)]
    union = "SELECT * FROM reused_view WHERE offset < 2 UNION ALL SELECT * FROM reused_view WHERE partition = 7"
    assert switched.sql(f"SELECT count(*) FROM ({union})").collect() == [(early,)]
    switched.catalog.dropTempView("reused_view")

    told = ", ".join(f"`{name}` '{text}'" for name, text in (options | given).items() if text)
    switched.sql(f"CREATE TABLE reused_table USING penstock OPTIONS ({told})")
    try:
        both = "WITH x AS (SELECT * FROM reused_table) SELECT (SELECT count(*) FROM x WHERE offset = 1)"
        found = switched.sql(f"{both}, (SELECT count(*) FROM x WHERE offset < 2), (SELECT count(*) FROM x)")
        assert found.collect() == [(sum(row.offset == 1 for row in rows), early, count)]
    finally:
        switched.sql("DROP TABLE reused_table")

    kept = frame.where(
        "offset < 2"
    ).cache()  # what is kept of a filter is not taken for the whole, nor for other options
    try:
        assert kept.count() == early
        assert frame.count() == count
        assert loaded(switched, options).count() == 12
    finally:
        kept.unpersist()


@each_change
def test_what_is_read_with_other_options_is_not_taken_from_a_cache(
    spark: SparkSession, options: dict[str, str]
) -> None:
    kept = loaded(spark, options | {"subject": "reused.0"}).cache()
    try:
        assert kept.count() == 6
        other = loaded(spark, options | {"where": '{"subject": "reused.1", "offset": [0, 2]}'})
        assert other.union(kept).selectExpr("count(*)", "count_if(subject = 'reused.0')").collect() == [(8, 6)]
    finally:
        kept.unpersist()


@each_change
def test_a_frame_is_what_the_log_held_at_its_first_action(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    """As the reference says: whoever wants what came since loads again."""
    client.create_stream("frozen", "frozen")
    client.append("frozen", [{"value": b"a"}] * 5)
    options = {"servers": broker.client_address, "stream": "frozen"}
    frame = loaded(spark, options)
    late = loaded(spark, options)
    frame.createOrReplaceTempView("frozen_view")
    assert frame.count() == 5
    client.append("frozen", [{"value": b"b"}] * 5)
    assert frame.count() == 5
    assert spark.sql("SELECT count(*) FROM frozen_view").collect() == [(5,)], "a view is the frame that it is of"
    assert late.count() == 10, "it is planned with its first action, not with its load"
    assert loaded(spark, options).count() == 10
    spark.catalog.dropTempView("frozen_view")


@needs_time
def test_the_static_side_of_a_query_s_join_stays_as_it_was_and_a_load_in_each_batch_does_not(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    servers = broker.client_address
    for name in ("events", "looked_up"):
        client.create_stream(name, name)
    client.append("events", [{"key": b"1", "value": b"e"}, {"key": b"2", "value": b"e"}])
    client.append("looked_up", [{"key": b"1", "value": b"r"}])
    static = read(spark, "looked_up", columns=["key", "offset"], servers=servers).withColumnRenamed("offset", "found")
    events = spark.readStream.format("penstock").options(
        servers=servers, stream="events", startingOffsets="earliest", maxOffsetsPerTrigger=1
    )
    seen: list[tuple[list[bytes], int]] = []

    def look(rows: DataFrame, batch_id: int) -> None:
        now = read(rows.sparkSession, "looked_up", columns=["key"], servers=servers)
        seen.append(([bytes(row.key) for row in rows.collect()], now.count()))
        if batch_id == 0:
            client.append("looked_up", [{"key": b"2", "value": b"r"}])

    writer = events.load().join(static, "key").writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert seen == [([b"1"], 1), ([], 2)]


@needs_time
def test_the_reference_s_look_ups_run(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/spark.md").read_text(encoding="utf-8")
    reads, looks_up = re.findall(r"```python\n(from penstock.spark import .*?)```", page, flags=re.DOTALL)[:2]
    for name in ("orders", "customers"):
        client.create_stream(name, f"{name}.>")
        client.append(name, [{"key": b"anna", "value": b"x", "subject": f"{name}.eu.a"}])
    assert looks_up.count(".start()") == 1
    once = looks_up.replace(".start()", ".trigger(availableNow=True).start()")
    for program, said in ((f"{reads}\nprint(orders.count(), same.count())", "1 1\n"), (once, "")):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, env=environment(broker.client_address),
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == said
