"""`format("penstock")` writes streams: what is written is read back, once, and what no stream can hold is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.base import limits
from penstock.hot import keyhash
from tests.broker_process import BrokerProcess
from tests.extent import needs_time

pytestmark = needs_time

WITHOUT_ASSERTS = """
from pyspark import TaskContext
from penstock.base.errors import OperationalError
from penstock.spark.options.options import sink_options
from penstock.spark.writing.sink import StreamWriter

assert False, "python -O passes over this"
writer = StreamWriter(sink_options({"servers": "127.0.0.1:1", "stream": "orders"}))
told = [None, {}, {"sql.streaming.queryId": "q"}, {"sql.streaming.queryId": "q", "streaming.sql.batchId": "x"}]
for properties in told:
    if properties is not None:
        TaskContext._getOrCreate()._localProperties = properties
    try:
        print("wrote", writer.write(iter(())))
    except OperationalError as error:
        print(error)
"""


def write(rows: DataFrame, broker: BrokerProcess, **options: str) -> None:
    rows.write.format("penstock").options(servers=broker.client_address, **options).mode("append").save()


def test_rows_go_to_the_partition_of_their_key_as_a_publisher_s_do(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client
) -> None:
    client.create_stream("keyed", "keyed.in", partitions=4)
    rows = spark.range(1_000).selectExpr("concat('k', id % 50) as key", "cast(id as string) as value")
    write(rows, broker, stream="keyed")
    found = [message for number in range(4) for message in client.messages("keyed", partition=number)]
    assert sorted(int(message.value or b"") for message in found) == list(range(1_000))
    assert all(message.partition == keyhash.partition_of(message.key or b"", 4) for message in found)
    assert {message.subject for message in found} == {"keyed.in", "keyed.in.1", "keyed.in.2", "keyed.in.3"}


def test_all_columns_come_back(spark: SparkSession, broker: BrokerProcess, client: penstock.Client) -> None:
    for name in ("one", "two"):
        client.create_stream(name, f"{name}.>", partitions=1)
    rows = spark.sql(
        """
        select 'one' as topic, 'one.a' as subject, binary('k') as key, binary('v') as value,
            array(struct('A' as key, binary('1') as value)) as headers, cast(null as int) as partition
        union all select null, 'two.b', null, null, null, 0
        """
    )
    write(rows, broker, stream="two")
    (first,) = client.messages("one")
    assert (first.subject, first.key, first.value, dict(first.headers)) == ("one.a", b"k", b"v", {"A": "1"})
    (second,) = client.messages("two")
    assert (second.subject, second.key, second.value) == ("two.b", None, None)


def test_columns_are_known_by_spark_s_case_rule_and_a_header_without_a_value_ends_nothing(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client
) -> None:
    client.create_stream("cased", "cased.in")
    rows = spark.sql(
        "select 'k' as KEY, 'v' as Value, 'cased' as TOPIC,"
        " array(struct('trace' as Key, cast(null as binary) as value)) as HEADERS"
    )
    write(rows, broker)
    broken = "array(struct('a b' as key, '1' as value), struct('A' as key, '1' as value)) as headers"
    bad = spark.sql(f"select 'k' as key, 'v' as value, {broken}")
    with pytest.raises(
        PySparkException, match=r"one is b'a b', of the row with key 'k'; set the option invalidHeaders"
    ):
        write(bad, broker, stream="cased")
    write(bad, broker, stream="cased", invalidHeaders="drop")
    assert [(one.key, one.value, dict(one.headers)) for one in client.messages("cased")] == [
        (b"k", b"v", {"trace": ""}),
        (b"k", b"v", {"A": "1"}),
    ]
    told_apart = spark.newSession()
    told_apart.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(PySparkException, match=r"KEY: a message has no such column, with spark\.sql\.caseSensitive"):
        write(told_apart.sql("select 'k' as KEY, 'v' as value"), broker, stream="cased")


def test_what_a_stream_cannot_hold_is_refused_before_anything_is_written(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client
) -> None:
    client.create_stream("refused", "refused.*")
    rows = spark.range(5)
    for select, told in (
        ("id as value", "value: it is of type bigint, not binary or string; to_json, or a cast, is yours to choose"),
        ("'k' as key", "value: the column is missing"),
        ("'v' as value, 1 as price", "price: a message has no such column"),
        ("'v' as value", "rows for stream refused have no subject, and its own, 'refused.*', is a pattern"),
        ("'v' as value, 'elsewhere' as subject", "'elsewhere'"),
        ("'v' as value, 'refused.a' as subject, 7 as partition", "the column 'partition' holds 7 to 7"),
        ("'v' as value, 'refused.a' as subject, 'nowhere' as topic", "nowhere"),
    ):
        with pytest.raises(PySparkException, match=told):
            write(rows.selectExpr(*select.split(", ")), broker, stream="refused")
    with pytest.raises(PySparkException, match="never overwritten"):
        rows.selectExpr("'v' as value").write.format("penstock").option("stream", "refused").mode("overwrite").save()
    with pytest.raises(PySparkException, match='use either the "Append"'):  # Spark's own words about its default
        rows.selectExpr("'v' as value").write.format("penstock").option("stream", "refused").save()
    assert client.offsets("refused", "latest").offset == 0


def test_a_batch_that_spark_replays_is_not_written_twice(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path
) -> None:
    client.create_stream("replayed_in", "replayed_in")
    client.create_stream("replayed_out", "replayed_out", partitions=2)
    client.append("replayed_in", [{"key": b"k%d" % (one % 9), "value": b"%d" % one} for one in range(300)])

    def run() -> None:
        source = spark.readStream.format("penstock").options(
            servers=broker.client_address, stream="replayed_in", startingOffsets="earliest", maxOffsetsPerTrigger=100
        )
        sink = source.load().select("key", "value").writeStream.format("penstock")
        sink = sink.options(servers=broker.client_address, stream="replayed_out")
        sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    def values() -> list[int]:
        return sorted(int(one.value or b"") for one in client.messages("replayed_out"))

    run()
    assert values() == list(range(300))
    for file in (tmp_path / "commits").glob("*2*"):  # Spark has not heard that the last batch was committed
        file.unlink()
    run()
    assert values() == list(range(300))


@pytest.mark.parametrize("named", [False, True])
def test_a_query_may_write_a_batch_more_than_once_on_purpose(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path, named: bool
) -> None:
    name = f"each_{named}".lower()
    client.create_stream(f"{name}_in", f"{name}_in")
    client.create_stream(name, name)
    client.append(f"{name}_in", [{"value": b"%d" % one} for one in range(5)])

    def write_twice(rows: DataFrame, number: int) -> None:
        for which in ("a", "b"):
            options = {"txnAppId": f"{name}-{which}", "txnVersion": str(number)} if named else {}
            write(rows.selectExpr(f"concat('{which}', cast(value as string)) as value"), broker, stream=name, **options)

    def run() -> None:
        source = spark.readStream.format("penstock").options(
            servers=broker.client_address, stream=f"{name}_in", startingOffsets="earliest"
        )
        sink = source.load().writeStream.foreachBatch(write_twice).option("checkpointLocation", str(tmp_path))
        sink.trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(one.value or b"" for one in client.messages(name)) == [
        b"%c%d" % (which, one) for which in b"ab" for one in range(5)
    ]
    for file in (tmp_path / "commits").iterdir():
        file.unlink()
    run()
    assert len(list(client.messages(name))) == (10 if named else 20)  # without a name nobody can know it again


def test_what_is_written_is_published_on_nats_if_that_is_wanted(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client
) -> None:
    client.create_stream("shown", "shown.>")
    client.create_stream("seen", "live.>", acks="never")  # hears what a subscriber would
    rows = spark.sql(
        "select 'shown.a' as subject, 'k' as key, 'v' as value, array(struct('A' as key, '1' as value)) as headers"
    )
    write(rows, broker, stream="shown", republish="live")
    (seen,) = client.messages("seen", follow=True, end=1)
    assert (seen.subject, seen.key, seen.value, seen.headers["A"]) == ("live.shown.a", b"k", b"v", "1")


def test_what_is_not_written_is_not_published_on_nats_either(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client
) -> None:
    client.create_stream("once", "once.>")
    client.create_stream("heard", "aside.>", acks="never")
    for version, values in ((2, "'two'"), (1, "'one'"), (2, "'two'"), (2, "'other', 'rows'"), (3, "'three'")):
        rows = spark.sql(f"select 'once.a' as subject, value from (select explode(array({values})) as value)")
        options = {"txnAppId": "loader", "txnVersion": str(version)}
        write(rows, broker, stream="once", republish="aside", **options)
    assert [one.value for one in client.messages("once")] == [b"two", b"three"]
    # A batch that is there already may have been cut short before it was published: that is done again.
    assert [one.value for one in client.messages("heard", follow=True, end=3)] == [b"two", b"two", b"three"]


def test_a_large_batch_that_is_replayed_is_not_written_twice(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path
) -> None:
    rows = limits.BATCH_ROWS_MAX + 5_000  # so many that it goes in two pieces
    for name in ("large_in", "large_out"):
        client.create_stream(name, name)
    client.append("large_in", [{"value": b"%d" % one} for one in range(rows)])

    def run() -> None:
        source = spark.readStream.format("penstock").options(
            servers=broker.client_address, stream="large_in", startingOffsets="earliest"
        )
        sink = source.load().select("value").writeStream.format("penstock")
        sink = sink.options(servers=broker.client_address, stream="large_out")
        sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    run()
    for file in (tmp_path / "commits").iterdir():
        file.unlink()
    run()
    assert client.offsets("large_out", "latest").offset == rows


def test_a_task_that_fails_is_tried_again_and_its_first_rows_are_not_there(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path
) -> None:
    """In a Spark of its own: this one tries each task three times."""
    client.create_stream("retried", "retried", partitions=2)
    program = f"""
import pathlib
from penstock.spark import session
spark = session("local[2,3]")
def once(batches):
    for batch in batches:
        yield batch
    marker = pathlib.Path({str(tmp_path / "failed")!r})
    if not marker.exists():
        marker.touch()
        raise RuntimeError("the test has this fail")
rows = spark.range(0, 20_000, 1, 2).selectExpr("cast(id as string) as value").mapInArrow(once, "value string")
rows.write.format("penstock").options(servers={broker.client_address!r}, stream="retried").mode("append").save()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "failed").exists()
    assert sorted(int(one.value or b"") for one in client.messages("retried")) == list(range(20_000))


def test_an_old_checkpoint_that_is_put_back_is_noticed(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path
) -> None:
    for name in ("old_in", "old_out"):
        client.create_stream(name, name)

    def run() -> None:
        client.append("old_in", [{"value": b"%d" % one} for one in range(10)])
        source = spark.readStream.format("penstock").options(
            servers=broker.client_address, stream="old_in", startingOffsets="earliest"
        )
        sink = source.load().select("value").writeStream.format("penstock")
        sink = sink.options(servers=broker.client_address, stream="old_out")
        sink.option("checkpointLocation", str(tmp_path / "now")).trigger(availableNow=True).start().awaitTermination()

    run()
    shutil.copytree(tmp_path / "now", tmp_path / "before")
    run()
    run()
    shutil.rmtree(tmp_path / "now")
    shutil.copytree(tmp_path / "before", tmp_path / "now")
    with pytest.raises(PySparkException, match="has a later batch than 1 of this query"):
        run()


def test_a_task_without_a_query_and_a_batch_writes_nothing_also_without_asserts() -> None:
    """What makes rows the same rows comes of properties that no documentation of Spark promises."""
    answer = subprocess.run([sys.executable, "-O", "-c", WITHOUT_ASSERTS], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    no_task, no_query, no_batch, no_number = answer.stdout.splitlines()
    assert no_task.startswith("rows can be staged only in a task of Spark")
    assert no_query.startswith("Spark's property sql.streaming.queryId is None: without it no row can be written")
    assert no_batch.startswith("Spark's property streaming.sql.batchId is None")
    assert no_number.startswith("Spark's property streaming.sql.batchId is 'x'")
