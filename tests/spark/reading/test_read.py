"""`penstock.spark.read`, and what options leave out: it is not fetched."""

from __future__ import annotations

import gc
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import ConfigError
from penstock.spark import Where, brokers, read
from tests.broker_process import BrokerProcess
from tests.extent import each_change, needs_time
from tests.metrics_page import url_of
from tests.spark.reading.test_reused_frames import LATE, loaded, two_partitions


@pytest.fixture(scope="module")
def options(broker: BrokerProcess) -> dict[str, str]:
    """Of a stream of two partitions, with two subjects in each."""
    return two_partitions(broker)


@pytest.fixture(scope="module")
def heavy(broker: BrokerProcess) -> dict[str, str]:
    """Of a stream of 4 MB in two partitions, where one message in 64 is on a subject of its own."""
    with penstock.connect(broker.client_address) as client:
        client.create_stream("heavy", "heavy.*", partitions=2, partition_by="token:2")
        info = client.stream("heavy")
        for number in range(16):
            names = ["rare" if row % 64 == number else f"s{row}" for row in range(64)]
            data = pa.table(
                {"value": [bytes([row]) * 2_000 for row in range(64)], "subject": [f"heavy.{one}" for one in names]}
            )
            where = penstock.partitions_of(data, info)
            for partition in range(2):
                part = data.filter(pa.array([one == partition for one in where.to_pylist()]))
                client.append("heavy", part, partition=partition)
    return {"servers": broker.client_address, "stream": "heavy"}


def fetched_bytes(broker: BrokerProcess) -> int:
    """What clients were given, as the broker counts it."""
    with urllib.request.urlopen(f"{url_of(broker)}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("penstock_fetched_bytes_total "))))


@needs_time
def test_options_have_less_fetched(spark: SparkSession, broker: BrokerProcess, heavy: dict[str, str]) -> None:
    def fetched(**options: str) -> tuple[int, int]:
        before = fetched_bytes(broker)
        rows = len(loaded(spark, heavy | options).select("offset").collect())
        return rows, fetched_bytes(broker) - before

    rows, whole = fetched()
    assert (rows, whole > 2_000_000) == (1_024, True)
    offsets = '{"heavy": {"0": %d, "1": %d}}'
    less = {
        "subject": fetched(subject="heavy.rare"),
        "columns": fetched(columns="partition,offset"),
        "assign": fetched(stream="", assign='{"heavy": [1]}'),
        "offsets": fetched(startingOffsets=offsets % (2, 2), endingOffsets=offsets % (5, 5)),
        "times": fetched(startingTimestamp=LATE, startingOffsetsByTimestampStrategy="latest"),
        "where subject": fetched(where='{"subject": ["heavy.rare"]}'),
        "where partition": fetched(where='{"partition": 1}'),
        "where offset": fetched(where='{"offset": [2, 5]}'),
        "where timestamp": fetched(where=f'{{"timestamp": ["{LATE}", null]}}'),
    }
    there = {name: found[0] for name, found in less.items()}
    of_one = there["assign"]
    assert 0 < of_one < 1_024
    assert there == {
        "subject": 16, "columns": 1_024, "assign": of_one, "offsets": 6, "times": 0,
        "where subject": 16, "where partition": of_one, "where offset": 6, "where timestamp": 0,
    }  # fmt: skip
    share = {name: found[1] / whole for name, found in less.items()}
    assert {name for name, one in share.items() if one > 0.25} == {"assign", "where partition"}, share
    assert share["assign"] < 0.75, share
    assert share["subject"] < 0.05, share


@each_change
def test_a_table_is_planned_with_each_statement_by_its_options(
    client: penstock.Client, spark: SparkSession, options: dict[str, str]
) -> None:
    spark.sql(
        f"CREATE TABLE narrowed USING penstock OPTIONS (servers '{options['servers']}', stream 'reused', "
        'where \'{"offset": [4, null], "partition": [0]}\')'
    )
    try:
        assert spark.sql("SELECT min(offset), max(partition), count(*) FROM narrowed").collect() == [(4, 0, 2)]
    finally:
        spark.sql("DROP TABLE narrowed")


# penstock.spark.read


def test_read_takes_conditions_and_columns(
    client: penstock.Client, spark: SparkSession, options: dict[str, str]
) -> None:
    servers = options["servers"]
    moment = client.get("reused", 3, partition=1).timestamp
    found = read(spark, "reused", where={"offset": (1, 5), "partition": [1]}, columns=["offset"], servers=servers)
    assert found.columns == ["offset"]
    assert sorted(row.offset for row in found.collect()) == [1, 2, 3, 4]
    assert found.where("offset < 3").count() == 2
    times: Where = {"timestamp": (moment, moment + timedelta(microseconds=1)), "subject": "reused.1"}
    assert read(spark, where=times, servers=servers).where("partition = 1").count() >= 1
    assert read(spark, "reused", where={"timestamp": (None, moment)}, servers=servers).count() < 12
    assert read(spark, "reused", where={"offset": (7, None)}, servers=servers).count() == 0
    always: Where = {"timestamp": ("1960-01-01", "9999-12-31T23:59:59.999999Z")}
    assert read(spark, "reused", where=always, servers=servers).count() == 12
    assert read(spark, "reused", where={"timestamp": (None, "1960-01-01")}, servers=servers).count() == 0
    with_headers = read(spark, "reused", servers=servers, options={"includeHeaders": "true"})
    assert "headers" in with_headers.columns
    with pytest.raises(PySparkException, match="no stream that is read has a partition 2"):
        read(spark, "reused", where={"partition": [1, 2]}, servers=servers).count()


MISTAKES: dict[str, tuple[Any, str]] = {
    "another column": (
        {"value": b"x"},
        "value: messages can be left out by offset, partition, subject, timestamp alone; filter the DataFrame",
    ),
    "the key": ({"key": "k"}, "key: .*a log is not sorted by key"),
    "the stream": ({"topic": "k"}, "topic: .*the option stream names the streams"),
    "no range": ({"offset": 5}, "offset: 5 is no range; give FROM and TO"),
    "a range of three": ({"offset": (1, 2, 3)}, "is no range"),
    "a negative offset": ({"offset": (-1, None)}, "-1 is no offset"),
    "an end before its beginning": ({"offset": (5, 1)}, "ends before it begins"),
    "a naive time": ({"timestamp": (datetime.now(UTC).replace(tzinfo=None), None)}, "has no time zone"),
    "no time": ({"timestamp": ("yesterday", None)}, "'yesterday' is neither milliseconds since 1970 nor a time"),
    "a time beyond the calendar": ({"timestamp": (10**18, None)}, "beyond the calendar"),
    "no partition": ({"partition": []}, "is no partition"),
    "a partition as text": ({"partition": "1"}, "is no partition"),
    "no subject": ({"subject": []}, "is no subject"),
    "a subject that cannot be": ({"subject": "a..b"}, "subject: "),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_read_refuses_what_cannot_be_planned(mistake: str) -> None:
    where, text = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=text):
        read(cast("SparkSession", None), "orders", where=where)  # said before Spark is asked


def test_mistakes_of_read_are_told_together() -> None:
    with pytest.raises(ConfigError) as told:
        read(cast("SparkSession", None), "", where={"offset": (3, 1)}, columns=["price"], options={"grup": "x"})
    assert [one.partition(":")[0] for one in told.value.mistakes] == ["grup", "where", "stream", "columns"]
    with pytest.raises(ConfigError, match="where names subjects, too"):
        read(cast("SparkSession", None), "a", where={"subject": "a"}, options={"subject": "b"})


@each_change
def test_a_query_takes_no_condition(spark: SparkSession, options: dict[str, str]) -> None:
    stream = spark.readStream.format("penstock").options(**options, where='{"partition": 0}').load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=r"where: only spark\.read takes it"):
        query.awaitTermination()


def test_tasks_of_a_worker_leave_what_is_loaded_out_of_garbage_collections(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    servers, before = (broker.client_address,), gc.get_freeze_count()

    def exempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            brokers.client(servers, 30.0)
            brokers.client(servers, 30.0)
            yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(exempt, "objects long").collect()
    assert row.objects > 10_000
    brokers.client(servers, 30.0)
    brokers.client(servers, 30.0)
    assert gc.get_freeze_count() <= before  # the driver is the user's process, which may let go of what it froze
