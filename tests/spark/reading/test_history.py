"""`option("archive", …)`: what is archived and what is in the log, as one stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.lake.tables.formats import FORMATS
from penstock.spark import archive
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.reading.test_source import filled

Reads = Callable[..., DataFrame]


@pytest.fixture
def reads(spark: SparkSession, broker: BrokerProcess) -> Reads:
    """Reads a stream with options."""

    def read(stream: str, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").options(servers=broker.client_address, stream=stream)
        return reader.options(**options).load()

    return read


def rows_of(found: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in found.select("partition", "offset").collect())


@needs_time
@pytest.mark.parametrize("table_format", FORMATS)
def test_archive_and_log_are_one_history(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, reads: Reads, tmp_path: Path, table_format: str
) -> None:
    name = f"one_{table_format}"
    filled(client, name, 100, partitions=2)
    all_rows = reads(name, includeHeaders=True).orderBy("partition", "offset").collect()
    for size in (60, 200):  # several files
        archive(name, tmp_path, spark=spark, servers=broker.client_address, format=table_format, max_batch=size)
    client.append(name, [{"value": b"more"}], partition=0)
    client.truncate_stream(name, 70, partition=0)
    found = reads(name, archive=tmp_path, includeHeaders=True).orderBy("partition", "offset").collect()
    assert [row for row in found if row.value != b"more"] == all_rows
    assert [row.offset for row in found if row.value == b"more"] == [100]
    assert reads(name).count() == 131
    part = reads(name, archive=tmp_path, startingOffsets=f'{{"{name}": {{"0": 30, "1": 99}}}}')
    assert rows_of(part) == [*((0, one) for one in range(30, 101)), (1, 99)]
    narrow = spark.read.format("penstock").options(servers=broker.client_address, stream=name, archive=tmp_path)
    assert narrow.schema("topic string").load().distinct().collect() == [(name,)]


@needs_time
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_flipped_bit_is_said_with_its_file(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, reads: Reads, tmp_path: Path, table_format: str
) -> None:
    name = f"flipped_{table_format}"
    client.create_stream(name, f"{name}.in")
    client.append(name, [{"value": b"%032d" % (number * 7_919)} for number in range(1_000)])
    archive(name, tmp_path, spark=spark, servers=broker.client_address, format=table_format)
    (file,) = tmp_path.glob("**/*.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0).column(1)
    assert column.path_in_schema == "value"
    with file.open("r+b") as opened:
        opened.seek(column.data_page_offset + column.total_compressed_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 1]))
    with pytest.raises(PySparkException, match=rf"{file}.*a Parquet file of an archive.*CRC"):
        reads(name, archive=tmp_path).collect()
    with pytest.raises((PySparkException, Py4JError), match="CRC checksum verification failed"):
        spark.read.parquet(str(file)).collect()


@needs_time
def test_times_and_filters_hold_for_both(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, reads: Reads, tmp_path: Path
) -> None:
    client.create_stream("times", "times.>")
    for number in range(4):
        client.publish("times.a", b"%d" % number)
    moments = [client.get("times", offset).timestamp for offset in range(4)]
    archive("times", tmp_path, spark=spark, servers=broker.client_address)
    client.publish("times.b", b"4")
    client.truncate_stream("times", 3)
    since = -(-int(moments[2].timestamp() * 1e6) // 1_000)  # the millisecond behind it
    expected = [offset for offset in range(4) if moments[offset].timestamp() * 1_000 >= since]
    assert rows_of(reads("times", archive=tmp_path, startingTimestamp=since)) == [(0, one) for one in (*expected, 4)]
    before = [offset for offset in range(4) if offset not in expected]
    assert rows_of(reads("times", archive=tmp_path, endingTimestamp=since)) == [(0, one) for one in before]
    found = reads("times", archive=tmp_path)
    assert rows_of(found.where("offset >= 1 and offset < 3")) == [(0, 1), (0, 2)]
    assert rows_of(found.where(f"timestamp >= timestamp'{moments[1].isoformat()}'"))[0] <= (0, 1)
    assert rows_of(found.where("subject = 'times.b'")) == [(0, 4)]
    assert rows_of(reads("times", archive=tmp_path, subject="times.b")) == [(0, 4)]
    assert rows_of(reads("times", archive=tmp_path, subjects="times.a,times.c")) == [(0, one) for one in range(4)]


@needs_time
def test_conditions_hold_for_both(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, reads: Reads, tmp_path: Path
) -> None:
    client.create_stream("both", "both.>")
    for number in range(4):
        client.publish("both.a", b"%d" % number)
    archive("both", tmp_path, spark=spark, servers=broker.client_address)
    client.publish("both.b", b"4")
    moments = [client.get("both", offset).timestamp for offset in range(5)]
    client.truncate_stream("both", 3)

    def offsets(where: str, **options: Any) -> list[int]:
        return [offset for _, offset in rows_of(reads("both", archive=tmp_path, where=where, **options))]

    for low, high in ((1, 3), (4, 5), (0, 2), (2, 5)):  # in the archive, in the log, and from one into the other
        assert offsets(f'{{"offset": [{low}, {high}]}}') == list(range(low, high))
    for moment in moments:
        assert offsets(f'{{"timestamp": ["{moment}", null]}}') == [n for n in range(5) if moments[n] >= moment]
        assert offsets(f'{{"timestamp": [null, "{moment}"]}}') == [n for n in range(5) if moments[n] < moment]
    assert offsets('{"subject": "both.b"}') == [4]
    later = f'{{"timestamp": ["{moments[1]}", null]}}'
    assert offsets(later, startingTimestamp="2020-01-01") == [n for n in range(5) if moments[n] >= moments[1]]
    since = '{"timestamp": ["2020-01-01", null], "offset": [2, null]}'
    assert offsets(since, endingTimestamp="2100-01-01") == [2, 3, 4]


@needs_time
def test_a_hole_between_the_two_is_an_error_unless_it_may_be(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, reads: Reads, tmp_path: Path
) -> None:
    filled(client, "hole", 10)
    archive("hole", tmp_path, spark=spark, servers=broker.client_address)
    client.append("hole", [{"value": b"x"} for _ in range(10)])
    client.truncate_stream("hole", 15)
    with pytest.raises(PySparkException, match="messages 10 to 14 of stream hole, partition 0, are not in the log"):
        reads("hole", archive=tmp_path).count()
    allowed = reads("hole", archive=tmp_path, failOnDataLoss=False)
    assert rows_of(allowed) == [(0, one) for one in (*range(10), *range(15, 20))]
    with pytest.raises(PySparkException, match="archive: not found in"):
        reads("hole", archive=tmp_path / "other").count()


@needs_time
def test_a_query_reads_the_archive_first_and_then_the_log(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "first", 100, partitions=2)
    archive("first", tmp_path / "lake", spark=spark, servers=broker.client_address)
    client.append("first", [{"value": b"more"}], partition=1)
    client.truncate_stream("first", 90, partition=0)

    def run() -> list[int]:
        reader = spark.readStream.format("penstock").options(servers=broker.client_address, stream="first")
        found = reader.options(startingOffsets="earliest", archive=tmp_path / "lake", maxOffsetsPerTrigger=150).load()
        writer = found.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [one["numInputRows"] for one in query.recentProgress]

    assert run() == [150, 51]
    client.append("first", [{"value": b"last"}], partition=0)
    assert run() == [1]
    expected = [*((0, one) for one in range(101)), *((1, one) for one in range(101))]
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == expected
