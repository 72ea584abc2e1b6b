"""`penstock.spark.archive`: each message is in the lake once, whatever is killed, and whoever reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import COLUMNS
from penstock.lake.archiving.job import ArchiveJob
from penstock.lake.archiving.plan import Plan, default_name, plan_of
from penstock.lake.progress import BatchDone
from penstock.lake.reading.columns import arrow_schema
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.parquet import ParquetTable
from penstock.lake.tables.table import Commit, LakeFile, Table
from penstock.spark import Archived, archive, brokers
from penstock.spark.jobs.archive_job import SparkRunner
from penstock.spark.options.options import source_options
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.reading.test_source import filled

Rows = list[tuple[int, int]]


class Killed(BaseException):
    """Stands for kill -9: what runs then does nothing more."""


def run(spark: SparkSession, broker: BrokerProcess, stream: str, to: Path, **options: Any) -> Archived:
    return archive(stream, to, spark=spark, servers=broker.client_address, **options)


def rows_of(folder: Path) -> Rows:
    """(partition, offset) of each row that a reader of Parquet files finds."""
    found = ds.dataset(folder, partitioning="hive").to_table(columns=["partition", "offset"])
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def table_rows(folder: Path, table_format: str) -> Rows:
    """The same, as a reader of that table format finds them."""
    if table_format == "parquet":
        return rows_of(folder)
    if table_format == "delta":
        found = pl.read_delta(str(folder)).select("partition", "offset")
    else:
        found = pl.DataFrame(iceberg_table(folder).scan(selected_fields=("partition", "offset")).to_arrow())
    return sorted(found.select("partition", "offset").rows())


def iceberg_table(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("penstock", uri=f"sqlite:///{folder}/_penstock/catalog.db")
    return catalog.load_table("penstock.archive")


def expected(partitions: int, rows: int) -> Rows:
    return [(partition, offset) for partition in range(partitions) for offset in range(rows)]


@needs_time
def test_each_row_is_there_once_for_every_reader(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "readers", 1_000, partitions=3)
    told: list[BatchDone] = []
    done = run(spark, broker, "readers", tmp_path, max_batch=2_000, report=told.append)
    assert (done.rows, done.batches) == (3_000, 2)
    assert [(one.number, one.rows, one.lag) for one in told] == [(1, 2_000, 1_000), (2, 1_000, 0)]
    assert rows_of(tmp_path) == expected(3, 1_000)
    glob = f"{tmp_path}/date=*/*/*.parquet"
    counted: Any = duckdb.sql(f"SELECT count(*), count(DISTINCT (partition, \"offset\")), min(topic) FROM '{glob}'")
    assert counted.fetchall() == [(3_000, 3_000, "readers")]
    assert pl.scan_parquet(glob).select(pl.struct("partition", "offset").n_unique()).collect().item() == 3_000
    assert spark.read.parquet(str(tmp_path)).distinct().count() == 3_000


@needs_time
def test_a_row_has_all_columns_of_the_source(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("columns", "columns.>")
    client.publish("columns.a", b"\xff", key="k", headers={"A": "1"})
    client.publish("columns.b", None, key="k")
    run(spark, broker, "columns", tmp_path)
    source = spark.read.format("penstock").options(servers=broker.client_address, stream="columns", includeHeaders=True)
    columns = source.load().columns
    found = spark.read.parquet(str(tmp_path)).select(columns).orderBy("offset").collect()
    assert found == source.load().orderBy("offset").collect()


@needs_time
def test_the_next_run_goes_on_and_a_group_shows_how_far_it_is(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "next", 100, partitions=2)
    lake = tmp_path / "lake of orders"
    assert run(spark, broker, "next", lake).rows == 200
    client.append("next", [{"value": b"more"}], partition=1)
    again = run(spark, broker, "next", lake)
    assert (again.rows, again.files) == (1, 1)
    assert run(spark, broker, "next", lake).batches == 0
    assert rows_of(lake) == [*expected(2, 100), (1, 100)]
    name = run(spark, broker, "next", lake).name
    assert re.fullmatch("lake-of-orders-[0-9a-f]{8}", name)
    assert {one.partition: one.offset for one in client.groups.offsets(f"archive-{name}", "next")} == {
        0: 100,
        1: 101,
    }


@needs_time
def test_partitions_that_are_added_are_archived_from_their_beginning(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "added", 100, partitions=2)
    assert run(spark, broker, "added", tmp_path).rows == 200

    def told(done: BatchDone) -> None:
        if done.number == 2:
            raise Killed
        client.alter_stream("added", partitions=3)
        client.append("added", [{"value": b"new"}] * 5, partition=2)

    client.append("added", [{"value": b"more"}], partition=1)
    with pytest.raises(Killed):
        run(spark, broker, "added", tmp_path, once=False, trigger_s=0.0, report=told)
    assert run(spark, broker, "added", tmp_path).batches == 0
    assert rows_of(tmp_path) == [*expected(2, 100), (1, 100), *((2, offset) for offset in range(5))]


@needs_time
def test_the_brokers_know_what_may_go_of_a_stream_that_is_kept_until_it_is_archived(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "until", 100, partitions=2)
    run(spark, broker, "until", tmp_path, name="a")
    assert client.report_archived("until", 1, 40, archive="b") == 40  # of the two, who has less
    assert client.report_archived("until", 1, None, archive="b") == 100


@needs_time
def test_small_partitions_share_a_file_and_large_ones_are_parted(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "sizes", 200, partitions=4)
    assert run(spark, broker, "sizes", tmp_path / "a").files == 1
    client.create_stream("large", "large")
    client.append("large", [{"value": os.urandom(1_000)} for _ in range(20_000)])
    done = run(spark, broker, "large", tmp_path / "b", file_bytes=4 * 2**20)
    assert 2 <= done.files <= 8
    assert rows_of(tmp_path / "b") == expected(1, 20_000)


# Killed


class Dies:
    """A table whose user is killed before or after a commit."""

    def __init__(self, table: Table, *, after: bool) -> None:
        self._table = table
        self._after = after

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        return self._table.ends(keys)

    def finish(self) -> None:
        self._table.finish()

    def drop_staged(self) -> None:
        self._table.drop_staged()

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        return self._table.files(topics)

    def commit(self, commit: Commit) -> None:
        if self._after:
            self._table.commit(commit)
        raise Killed


def small_plan(stream: str, to: Path, table_format: str, *, fail_on_data_loss: bool) -> Plan:
    """An archive in batches of 60 rows."""
    return plan_of(
        stream,
        to,
        format=table_format,
        name="",
        max_batch=60,
        min_batch=1,
        max_delay_s=1,
        trigger_s=1,
        file_bytes=2**20,
        fail_on_data_loss=fail_on_data_loss,
    )


def job(
    spark: SparkSession, broker: BrokerProcess, stream: str, to: Path, table: Table, table_format: str
) -> ArchiveJob:
    return job_of(spark, broker, small_plan(stream, to, table_format, fail_on_data_loss=True), table)


def job_of(
    spark: SparkSession, broker: BrokerProcess, plan: Plan, table: Table, rejects: Table | None = None
) -> ArchiveJob:
    loss = str(plan.fail_on_data_loss).lower()
    source = source_options({"stream": plan.stream, "servers": broker.client_address, "failOnDataLoss": loss})
    client = brokers.client(source.servers, plan.timeout_s)
    return ArchiveJob(client, plan, SparkRunner(spark, source), table, rejects)


@needs_time
@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("after", [False, True])
def test_a_job_that_is_killed_around_its_commit_goes_on(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, after: bool, table_format: str
) -> None:
    name = f"killed_{table_format}_{after}"
    filled(client, name, 100, partitions=2)
    for _ in range(2):
        table = Dies(open_table(tmp_path, table_format, arrow_schema(COLUMNS)), after=after)
        with pytest.raises(Killed):
            job(spark, broker, name, tmp_path, table, table_format).run(once=True)
    client.append(name, [{"value": b"more"}], partition=1)
    done = run(spark, broker, name, tmp_path, format=table_format)
    assert done.rows == (201 - 120 if after else 201)
    assert table_rows(tmp_path, table_format) == [*expected(2, 100), (1, 100)]


@needs_time
@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_files_of_a_commit_are_moved_by_the_next_one_if_a_job_is_killed_before(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, moved: int
) -> None:
    name = f"moves_{moved}"
    filled(client, name, 100, partitions=2)
    left = moved

    def move(old: Path, new: Path) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        os.replace(old, new)

    table = ParquetTable(tmp_path, move)
    with pytest.raises(Killed):
        job(spark, broker, name, tmp_path, table, "parquet").run(once=True)
    assert len(list(tmp_path.glob("date=*/*/*.parquet"))) == moved
    run(spark, broker, name, tmp_path)
    assert rows_of(tmp_path) == expected(2, 100)


# What cannot be


@needs_time
def test_what_retention_was_quicker_with_is_said(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "quick", 100)
    run(spark, broker, "quick", tmp_path)
    client.append("quick", [{"value": b"x"} for _ in range(50)])
    client.truncate_stream("quick", 120)
    with pytest.raises(DataLossError, match="messages 100 to 119 of stream quick, partition 0, are not in the log"):
        run(spark, broker, "quick", tmp_path)
    told: list[BatchDone] = []
    assert run(spark, broker, "quick", tmp_path, fail_on_data_loss=False, max_batch=10, report=told.append).rows == 30
    assert [(one.rows, one.lag) for one in told] == [(0, 30), (0, 30), (10, 20), (10, 10), (10, 0)]
    assert rows_of(tmp_path) == [(0, one) for one in (*range(100), *range(120, 150))]


@needs_time
def test_an_archive_is_of_one_stream_of_a_name_and_of_one_format(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "anew", 10)
    run(spark, broker, "anew", tmp_path)
    with pytest.raises(ConfigError, match="is an archive as parquet, not delta"):
        run(spark, broker, "anew", tmp_path, format="delta")
    client.delete_stream("anew")
    filled(client, "anew", 20)
    with pytest.raises(DataLossError, match="was deleted and made anew since it was archived"):
        run(spark, broker, "anew", tmp_path)
    with pytest.raises(ConfigError) as told:
        run(spark, broker, "anew", tmp_path, format="orc", min_batch=0, file_bytes=1)
    assert len(told.value.mistakes) == 3
    for name in ("some.parquet", "_delta_log"):
        (tmp_path / name / "other" / name).mkdir(parents=True)
        (tmp_path / name / "other" / name / "0.json").touch()
        with pytest.raises(ConfigError, match=rf"other is not an archive and contains {name}; give an empty folder"):
            run(spark, broker, "anew", tmp_path / name / "other")
    with pytest.raises(ConfigError, match="schema: nothing is decoded by it"):
        run(spark, broker, "anew", tmp_path / "schema", schema="a INT")


@needs_time
def test_archives_whose_folders_have_the_same_name_are_two(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Else retention would delete what only the quicker one has."""
    filled(client, "two", 10)
    first, second = tmp_path / "a" / "lake", tmp_path / "b" / "lake"
    run(spark, broker, "two", first)
    client.append("two", [{"value": b"more"}])
    run(spark, broker, "two", second)
    part = client.stream("two").partitions[0]
    assert sorted(part.archives.values()) == [10, 11]
    assert part.archived_end == 10


def test_a_name_is_checked_before_anything_is_written(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    for name in ("n" * 65, "a b"):
        with pytest.raises(ConfigError, match=r"name: it is .*; give up to 64 letters"):
            run(spark, broker, "none", tmp_path / "lake", name=name)
    assert not (tmp_path / "lake").exists()
    assert len(default_name(Path("/" + "n" * 100))) == limits.ARCHIVE_NAME_CHARS_MAX


@needs_time
def test_the_first_run_fixes_the_name(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "named", 10)
    assert run(spark, broker, "named", tmp_path, name="first").name == "first"
    assert run(spark, broker, "named", tmp_path).name == "first"
    with pytest.raises(ConfigError, match="has named this archive first"):
        run(spark, broker, "named", tmp_path, name="second")
