"""Archives of logs that were cut or began anew: what stands at archived offsets are other messages, and it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import OperationalError
from penstock.client.errors import LogTruncated
from penstock.lake.archiving.job import report_archived
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.positions import Key
from penstock.lake.tables.formats import FORMATS
from penstock.lake.tables.table import Commit, LakeFile, Table
from penstock.spark import archive
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.spark.jobs.test_archive import expected, job_of, rows_of, small_plan, table_rows

pytestmark = needs_time


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that a test may restart."""
    with running_broker(tmp_path / "data") as own:
        yield own


def append(broker: BrokerProcess, name: str, count: int) -> None:
    with penstock.connect(broker.client_address) as client:
        client.append(name, [{"value": b"v%d" % number} for number in range(count)])


def in_memory(broker: BrokerProcess, name: str, count: int) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream(name, name, storage="memory")
    append(broker, name, count)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_log_that_began_anew_is_not_archived_behind_the_old_one(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, table_format: str
) -> None:
    in_memory(broker, "m", 100)
    lake = tmp_path / "lake"

    def run(**options: Any) -> None:
        archive("m", lake, spark=spark, servers=broker.client_address, format=table_format, **options)

    run()
    (end,) = plan(broker, "m", lake, table_format).open_table().ends([Key("m", 0)]).values()
    broker.restart()
    for count in (60, 60):  # shorter than the archive, then longer
        append(broker, "m", count)
        for fail in (True, False):
            with pytest.raises(
                DataLossError, match="messages 0 to 99 as they are archived are not in the log any more"
            ):
                run(fail_on_data_loss=fail)
    assert table_rows(lake, table_format) == expected(1, 100)
    with penstock.connect(broker.client_address) as client, pytest.raises(LogTruncated):
        report_archived(client, "m", {0: end}, "lake", 10)
    reader = spark.read.format("penstock").options(servers=broker.client_address, stream="m", archive=lake)
    with pytest.raises(PySparkException, match="the log was cut at 0, or began anew"):
        reader.option("failOnDataLoss", False).load().count()


def plan(broker: BrokerProcess, stream: str, to: Path, table_format: str = "parquet") -> Any:
    return small_plan(stream, to, table_format, fail_on_data_loss=False)


class Between:
    """A table whose log begins anew after its first commit."""

    def __init__(self, table: Table, broker: BrokerProcess) -> None:
        self._table = table
        self._broker = broker
        self._is_first = True

    def ends(self, keys: Any) -> Any:
        return self._table.ends(keys)

    def finish(self) -> None:
        self._table.finish()

    def drop_staged(self) -> None:
        self._table.drop_staged()

    def files(self, topics: Any = None) -> list[LakeFile]:
        return self._table.files(topics)

    def commit(self, commit: Commit) -> None:
        self._table.commit(commit)
        if self._is_first:
            self._is_first = False
            self._broker.restart()
            append(self._broker, "between", 100)


def test_a_log_that_begins_anew_between_two_batches_is_not_mixed(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    in_memory(broker, "between", 100)
    made = plan(broker, "between", tmp_path / "lake")
    with pytest.raises(DataLossError, match="it was cut, or began anew"):
        job_of(spark, broker, made, Between(made.open_table(), broker)).run(once=True)
    assert rows_of(tmp_path / "lake") == expected(1, 60)


def test_a_durable_log_goes_on_behind_a_restart(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream("durable", "durable")
    append(broker, "durable", 100)
    options: dict[str, Any] = {"spark": spark, "servers": broker.client_address}
    archive("durable", tmp_path / "lake", **options)
    broker.restart()
    append(broker, "durable", 50)
    assert archive("durable", tmp_path / "lake", **options).rows == 50
    reader = spark.read.format("penstock").options(servers=broker.client_address, stream="durable")
    append(broker, "durable", 10)
    assert reader.option("archive", tmp_path / "lake").load().count() == 160


def test_a_partition_whose_leader_is_silent_is_not_left_out(spark: SparkSession, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "brokers") as cluster:
        asyncio.run(cluster.all_live())
        with penstock.connect(cluster.brokers[1].client_address) as client:
            client.create_stream("spread", "spread", partitions=3, replicas=1, timeout=30)
            for partition in range(3):
                client.append("spread", [{"value": b"x"}] * 10, partition=partition)
            info = client.stream("spread")
        away = next(one for one in info.partitions if one.leader_id != 1)
        assert away.leader_id is not None
        made = plan(cluster.brokers[1], "spread", tmp_path / "lake")
        made = replace(made, timeout_s=3.0)
        assert job_of(spark, cluster.brokers[1], made, made.open_table()).run(once=True).rows == 30
        cluster.brokers[away.leader_id].kill()
        with pytest.raises(OperationalError, match=rf"stream spread, partition {away.partition}, does not answer"):
            job_of(spark, cluster.brokers[1], made, made.open_table()).run(once=True)
