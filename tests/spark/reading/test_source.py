"""`format("penstock")` reads what the brokers hold: in batches, and as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import penstock
from penstock.base.errors import ConfigError
from penstock.lake.reading.data_loss import DataLossError
from penstock.spark.options.options import source_options
from penstock.spark.options.positions import LOG_STARTS, Positions
from penstock.spark.reading.batch_reader import Task
from penstock.spark.reading.stream_reader import StreamReader
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster

Reads = Callable[..., DataFrame]


@pytest.fixture
def reads(spark: SparkSession, broker: BrokerProcess) -> Reads:
    """Reads a stream with options."""

    def read(stream: str, **options: Any) -> DataFrame:
        found = spark.read.format("penstock").option("servers", broker.client_address).option("stream", stream)
        return found.options(**options).load()

    return read


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    with running_cluster(tmp_path) as brokers:
        await brokers.all_live()
        yield brokers


def filled(client: penstock.Client, name: str, rows: int, *, partitions: int = 1) -> None:
    """A stream `name` with so many messages in each partition."""
    client.create_stream(name, f"{name}.in", partitions=partitions)
    for partition in range(partitions):
        data = [{"key": b"k%d" % (one % 7), "value": b"v%d" % one} for one in range(rows)]
        client.append(name, data, partition=partition)


@needs_time
def test_all_columns_are_as_they_were_stored(client: penstock.Client, reads: Reads) -> None:
    client.create_stream("columns", "columns.>")
    client.publish("columns.a", b"\xff", key="k", headers={"A": "1"})
    client.publish("columns.b", None, key="k")
    first, second = reads("columns", includeHeaders=True).orderBy("offset").collect()
    message = client.get("columns", 0)
    assert first.asDict(recursive=True) == {
        "key": b"k",
        "value": b"\xff",
        "topic": "columns",
        "partition": 0,
        "offset": 0,
        "timestamp": message.timestamp.replace(tzinfo=None),
        "timestampType": 1,
        "subject": "columns.a",
        "headers": [{"key": "A", "value": b"1"}, {"key": "Penstock-Key", "value": b"k"}],
    }
    assert second.value is None


def test_each_message_is_read_once_in_however_many_pieces(client: penstock.Client, reads: Reads) -> None:
    filled(client, "pieces", 1_000, partitions=4)
    found = reads("pieces", minPartitions=10)
    assert found.rdd.getNumPartitions() >= 10
    rows = found.select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, o) for p in range(4) for o in range(1_000)]
    most = reads("pieces", maxRecordsPerPartition=300).rdd.glom().map(len).collect()
    assert max(most) <= 300
    assert sum(most) == 4_000


@needs_time
def test_a_narrow_schema_is_taken_and_a_wrong_one_refused(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess
) -> None:
    filled(client, "narrow", 10)
    reader = spark.read.format("penstock").option("servers", broker.client_address).option("stream", "narrow")
    assert reader.schema("offset long").load().collect() == [(one,) for one in range(10)]
    assert [row.asDict() for row in reader.schema("topic string, offset long").load().limit(1).collect()] == [
        {"topic": "narrow", "offset": 0}
    ]
    cased = reader.schema("Topic string, OFFSET long").load()
    assert cased.columns == ["Topic", "OFFSET"]
    assert cased.where("offset = 3").select("topic", "Offset").collect() == [("narrow", 3)]
    fresh = spark.read.format("penstock").options(servers=broker.client_address, stream="narrow")
    assert fresh.option("columns", "OFFSET,TIMESTAMPTYPE").load().columns == ["offset", "timestampType"]
    with pytest.raises(PySparkException, match="offset: it is of type bigint, not int; cast it after reading"):
        reader.schema("offset int").load().collect()
    with pytest.raises(PySparkException, match="price: there is no such column; there are key, value"):
        reader.schema("price int").load().collect()


@needs_time
def test_bounds_are_kept(client: penstock.Client, reads: Reads) -> None:
    filled(client, "bounds", 100, partitions=2)
    starts = '{"bounds": {"0": 90, "1": -1}}'
    assert reads("bounds", startingOffsets=starts).count() == 10
    assert reads("bounds", endingOffsets='{"bounds": {"0": 5, "1": 6}}').count() == 11
    assert reads("bounds", startingTimestamp="2020-01-01T00:00:00Z").count() == 200
    later = "2100-01-01T00:00:00Z"
    with pytest.raises(PySparkException, match="no message of bounds, partition 0, is as late as 2100"):
        reads("bounds", startingTimestamp=later).count()
    assert reads("bounds", startingTimestamp=later, startingOffsetsByTimestampStrategy="latest").count() == 0
    with pytest.raises(PySparkException, match="offset 101 of bounds, partition 0, is beyond its end, 100"):
        reads("bounds", startingOffsets='{"bounds": {"0": 101}}').count()
    with pytest.raises(PySparkException, match="are beyond the calendar"):
        reads("bounds", startingTimestamp=10**18).count()
    with pytest.raises(PySparkException, match="bounds, partition 2, is not among the partitions that are read"):
        reads("bounds", startingOffsets='{"bounds": {"2": 1}}').count()


@needs_time
def test_streams_are_chosen_by_pattern_and_by_subject(
    client: penstock.Client, reads: Reads, spark: SparkSession, broker: BrokerProcess
) -> None:
    for name in ("chosen_a", "chosen_b", "other"):
        filled(client, name, 5)
    assert reads("chosen_*").select("topic").distinct().count() == 2
    assert reads("chosen_a,other").count() == 10

    def chosen(**options: str) -> DataFrame:
        return spark.read.format("penstock").options(servers=broker.client_address, **options).load()

    assert chosen(subscribePattern="chosen_[ab]").count() == 10
    assert chosen(subject="chosen_a.*").select("topic").distinct().collect() == [("chosen_a",)]
    assert chosen(assign='{"other": [0]}').count() == 5
    with pytest.raises(PySparkException, match="no stream matches"):
        chosen(subscribePattern="nothing.*").count()


@needs_time
def test_mistakes_are_told_together(reads: Reads) -> None:
    with pytest.raises(PySparkException) as told:
        reads("orders", startingOfsets="earliest", minPartitions="0", failOnDataLoss="perhaps")
    assert "there is no such option; did you mean startingOffsets?" in str(told.value)
    assert "minPartitions: it is '0'" in str(told.value)
    assert "failOnDataLoss: it is 'perhaps'" in str(told.value)


# Streaming


def run(spark: SparkSession, broker: BrokerProcess, folder: Path, stream: str, **options: Any) -> list[tuple[int, int]]:
    """Reads what is there into a Parquet folder; (batch, rows) of each batch of this run."""
    query = (
        spark.readStream.format("penstock")
        .options(servers=broker.client_address, stream=stream, startingOffsets="earliest", **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [(one["batchId"], one["numInputRows"]) for one in query.recentProgress]


@needs_time
def test_a_query_goes_on_where_it_was(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "goes_on", 1_000, partitions=2)
    assert run(spark, broker, tmp_path, "goes_on", maxOffsetsPerTrigger=800, group="g") == [
        (0, 800),
        (1, 800),
        (2, 400),
    ]
    client.append("goes_on", [{"value": b"more"}], partition=1)
    assert run(spark, broker, tmp_path, "goes_on", group="g") == [(3, 1)]
    rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == sorted(
        [(p, o) for p in range(2) for o in range(1_000)] + [(1, 1_000)]
    )
    assert {one.partition: one.offset for one in client.groups.offsets("g", "goes_on")} == {0: 1_000, 1: 1_000}
    client.alter_stream("goes_on", partitions=3)
    client.append("goes_on", [{"value": b"new"}] * 5, partition=2)
    assert run(spark, broker, tmp_path, "goes_on", group="g") == [(4, 5)]


def test_partitions_that_are_added_come_with_the_next_batch(client: penstock.Client, broker: BrokerProcess) -> None:
    filled(client, "adds", 10)
    options = source_options({"servers": broker.client_address, "stream": "adds", "startingOffsets": "latest"})
    reader = StreamReader(options, ("offset",))
    begin = reader.initialOffset()
    client.append("adds", [{"value": b"more"}])
    first = reader.latestOffset(begin, ReadAllAvailable())
    assert first["adds"]["offsets"] == {"0": 11}
    client.alter_stream("adds", partitions=3)
    client.append("adds", [{"value": b"new"}] * 5, partition=2)
    second = reader.latestOffset(first, ReadAllAvailable())
    assert second["adds"]["offsets"] == {"0": 11, "1": 0, "2": 5}
    (task,) = reader.partitions(first, second)
    assert isinstance(task, Task)
    assert (task.piece.partition, task.piece.start, task.piece.end) == (2, 0, 5)
    client.truncate_stream("adds", 3, partition=2)
    with pytest.raises(DataLossError, match="messages 0 to 2 of stream adds, partition 2, are not in the log"):
        reader.partitions(first, reader.latestOffset(first, ReadAllAvailable()))


@pytest.mark.parametrize("is_available_now", [False, True])
def test_the_latest_offset_says_where_the_log_begins_for_the_lag(
    client: penstock.Client, broker: BrokerProcess, is_available_now: bool
) -> None:
    name = f"begins-{is_available_now}"
    filled(client, name, 10, partitions=2)
    reader = StreamReader(source_options({"servers": broker.client_address, "stream": name}), ("offset",))
    reader.initialOffset()
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    client.truncate_stream(name, 7, partition=1)
    told = reader.reportLatestOffset()
    assert told is not None
    assert told[name][LOG_STARTS] == {"0": 0, "1": 7}
    assert told[name]["offsets"] == {"0": 10, "1": 10}


def test_each_query_has_a_group_of_its_own_which_its_checkpoint_keeps(
    client: penstock.Client, broker: BrokerProcess
) -> None:
    filled(client, "grouped", 10)
    given = {"servers": broker.client_address, "stream": "grouped", "startingOffsets": "earliest"}

    def committed(start: dict[str, Any] | None, **options: str) -> dict[str, Any]:
        """A run of a query, from its start or its checkpoint on, that does one batch."""
        reader = StreamReader(source_options(given | options), ("offset",))
        end = reader.latestOffset(reader.initialOffset() if start is None else start, ReadMaxRows(3))
        reader.commit(json.loads(json.dumps(end)))
        return end

    def groups_of(client: penstock.Client) -> dict[str, int]:
        names = [one.group for one in client.groups.all() if one.stream == "grouped"]
        return {name: client.groups.offsets(name, "grouped")[0].offset or 0 for name in names}

    first, second = committed(None), committed(None)
    mine, other = first["grouped"]["group"], second["grouped"]["group"]
    assert mine != other
    assert mine.startswith("spark-")
    assert committed(first)["grouped"]["group"] == mine
    assert groups_of(client) == {mine: 6, other: 3}
    named = committed(None, Group="of-mine")
    assert "group" not in named["grouped"]
    committed(None, group="")
    assert groups_of(client) == {mine: 6, other: 3, "of-mine": 3}
    committed(named)  # as a checkpoint of an earlier version: without a group
    assert groups_of(client) == {mine: 6, other: 3, "of-mine": 3, "spark": 6}


def test_what_a_checkpoint_holds_says_where_another_query_begins(
    client: penstock.Client, broker: BrokerProcess
) -> None:
    given = {"servers": broker.client_address, "stream": "noted"}

    def begins(**options: str) -> Positions:
        return Positions.of_json(StreamReader(source_options(given | options), ("offset",)).initialOffset())

    filled(client, "noted", 10, partitions=2)
    reader = StreamReader(source_options(given | {"startingOffsets": "earliest"}), ("offset",))
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(7))
    noted = json.dumps(end)
    found = begins(startingOffsets=noted)
    assert {key: place.offset for key, place in found.positions.items()} == {
        key: place.offset for key, place in Positions.of_json(end).positions.items()
    }
    assert sum(place.offset for place in found.positions.values()) == 7
    told = json.dumps(reader.reportLatestOffset())  # as the progress of a query shows it
    assert sum(place.offset for place in begins(startingOffsets=told).positions.values()) == 20
    foreign = json.dumps({"noted": {**end["noted"], "cluster": "another"}})
    with pytest.raises(
        ConfigError, match="startingOffsets, endingOffsets: they are of another cluster, another; these"
    ):
        begins(startingOffsets=foreign)
    client.delete_stream("noted")
    filled(client, "noted", 10, partitions=2)
    with pytest.raises(ConfigError, match="they are of stream noted as it was before it was deleted and made anew"):
        begins(startingOffsets=noted)


@needs_time
def test_what_retention_has_taken_fails_a_query_unless_it_may_be_passed_over(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "lost", 100)
    assert run(spark, broker, tmp_path, "lost") == [(0, 100)]
    client.append("lost", [{"value": b"x"} for _ in range(50)])
    client.truncate_stream("lost", 120)
    with pytest.raises(PySparkException, match="messages 100 to 119 of stream lost, partition 0, are not in the log"):
        run(spark, broker, tmp_path, "lost")
    assert run(spark, broker, tmp_path, "lost", failOnDataLoss=False)[-1][1] == 30


@needs_time
def test_a_stream_made_anew_is_not_taken_for_the_one_before(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "anew", 10)
    assert run(spark, broker, tmp_path, "anew") == [(0, 10)]
    client.delete_stream("anew")
    filled(client, "anew", 20)
    with pytest.raises(PySparkException, match="was deleted and made anew"):
        run(spark, broker, tmp_path, "anew")


@needs_time
def test_a_stream_made_anew_is_read_from_its_beginning_where_that_may_be(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "anew_too", 10)
    assert run(spark, broker, tmp_path, "anew_*", failOnDataLoss=False) == [(0, 10)]
    client.delete_stream("anew_too")
    filled(client, "anew_too", 5)
    filled(client, "anew_other", 2)
    assert run(spark, broker, tmp_path, "anew_*", failOnDataLoss=False)[-1][1] == 7
    client.delete_stream("anew_too")
    filled(client, "anew_too", 5)  # of the same offsets, in the same epoch
    assert run(spark, broker, tmp_path, "anew_*", failOnDataLoss=False)[-1][1] == 5
    client.delete_stream("anew_too")
    client.append("anew_other", [{"value": b"x"}])
    assert run(spark, broker, tmp_path, "anew_*", failOnDataLoss=False)[-1][1] == 1


@needs_time
def test_a_stream_that_was_deleted_while_the_query_was_down_is_said(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """There may have been messages that it has not read."""
    for selection, names in (("down_*", ("down_a", "down_b")), ("named_a,named_b", ("named_a", "named_b"))):
        for name in names:
            filled(client, name, 10)
        checkpoint = tmp_path / names[0]
        assert run(spark, broker, checkpoint, selection)[-1][1] == 20
        client.append(names[1], [{"value": b"never read"}])
        client.delete_stream(names[1])
        client.append(names[0], [{"value": b"x"}])
        with pytest.raises(PySparkException, match=f"{names[1]}.* was deleted|no stream '{names[1]}'"):
            run(spark, broker, checkpoint, selection)
        assert run(spark, broker, checkpoint, selection, failOnDataLoss=False)[-1][1] == 1
        client.append(names[0], [{"value": b"y"}])
        if "*" in selection:  # it was said
            assert run(spark, broker, checkpoint, selection)[-1][1] == 1


@needs_time
def test_a_stream_that_comes_back_is_gone_on_with_where_it_was(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    for name in ("back_a", "back_b"):
        filled(client, name, 10)
    assert run(spark, broker, tmp_path, "back_*")[-1][1] == 20
    client.append("back_a", [{"value": b"x"}])
    with pytest.raises(PySparkException, match="stream back_b, which this query has read, is no longer among its"):
        run(spark, broker, tmp_path, "back_a")
    assert run(spark, broker, tmp_path, "back_a", failOnDataLoss=False)[-1][1] == 1
    client.append("back_b", [{"value": b"x"}])
    assert run(spark, broker, tmp_path, "back_*")[-1][1] == 1


@needs_time
def test_a_log_that_begins_anew_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:

        def fill(rows: int) -> None:
            with penstock.connect(broker.client_address) as client:
                client.create_stream("memory", "memory", storage="memory")
                client.append("memory", [{"value": b"%d" % one} for one in range(rows)])

        fill(100)
        assert run(spark, broker, tmp_path, "memory") == [(0, 100)]
        broker.restart()
        with pytest.raises(PySparkException, match="messages 0 to 99 of stream memory, partition 0, were read and are"):
            run(spark, broker, tmp_path, "memory")
        fill(150)
        with pytest.raises(PySparkException, match="messages 0 to 99 of stream memory"):
            run(spark, broker, tmp_path, "memory")
        assert run(spark, broker, tmp_path, "memory", failOnDataLoss=False)[-1][1] == 150
        broker.restart()
        fill(30)
        assert run(spark, broker, tmp_path, "memory", failOnDataLoss=False)[-1][1] == 30
        assert sum(rows for _, rows in run(spark, broker, tmp_path, "memory")) == 0


@needs_time
def test_a_batch_may_lie_across_a_change_of_leaders(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:

        def fill() -> None:
            with penstock.connect(broker.client_address) as client:
                client.create_stream("across", "across")
                client.append("across", [{"value": b"%d" % one} for one in range(10)])

        fill()
        assert run(spark, broker, tmp_path, "across") == [(0, 10)]
        fill()
        broker.restart()  # it leads in another epoch now
        fill()
        assert run(spark, broker, tmp_path, "across", minPartitions=4) == [(1, 20)]


def test_a_checkpoint_of_the_same_positions_is_the_same_text() -> None:
    one = {"b": {"id": 2, "offsets": {"1": 5, "0": 3}}, "a": {"id": 1, "offsets": {"0": 1}, "epochs": {"0": 4}}}
    text = Positions.of_json(one).to_json()
    assert list(text) == ["a", "b"]
    assert list(text["b"]["offsets"]) == ["0", "1"]
    assert Positions.of_json(text).to_json() == text
    text["b"]["begins"] = {"1": 4}
    assert Positions.of_json(text).begins == {("b", 1): 4}
    assert Positions.of_json(text).to_json() == text


@needs_time
def test_times_are_in_utc(client: penstock.Client, reads: Reads) -> None:
    filled(client, "times", 1)
    stored = reads("times").collect()[0].timestamp
    assert abs((datetime.now(UTC) - stored.replace(tzinfo=UTC)).total_seconds()) < 600


@needs_time
async def test_a_partition_without_a_leader_stays_where_it_is(
    spark: SparkSession, cluster: ClusterProcesses, tmp_path: Path
) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("stays", "stays", partitions=3, replicas=1)
        for number in range(3):
            await client.append("stays", [{"value": b"%d" % one} for one in range(10)], partition=number)
        leaders = [int(one.leader_id or 0) for one in (await client.stream("stays")).partitions]
    assert sorted(leaders) == [1, 2, 3]
    first, *_ = cluster.brokers.values()
    servers = ",".join(one.client_address for one in cluster.brokers.values())

    assert await asyncio.to_thread(run, spark, first, tmp_path, "stays") == [(0, 30)]
    away = leaders.index(3)
    cluster.brokers[3].kill()
    async with cluster.client(1) as client:
        await client.append("stays", [{"value": b"more"}], partition=leaders.index(1), timeout=60)
    reader = StreamReader(source_options({"servers": servers, "stream": "stays", "timeout": "5s"}), ("offset",))
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    before = json.loads(offsets[-1].read_text().splitlines()[-1])
    after = await asyncio.to_thread(reader.latestOffset, before, ReadAllAvailable())
    assert after["stays"]["offsets"] == before["stays"]["offsets"] | {str(leaders.index(1)): 11}
    assert after["stays"]["offsets"][str(away)] == 10
