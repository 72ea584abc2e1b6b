"""The job `replay`: an archive goes into a stream again, each row once and in its key's order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import ConfigError
from penstock.lake.progress import BatchDone
from penstock.lake.tables.data_files import staged
from penstock.lake.tables.folder import OvertakenError
from penstock.lake.tables.formats import FORMATS
from penstock.spark import archive, table
from penstock.spark.jobs.replay_job import Note, Replayed, ReplaySpan, replay
from tests.broker_process import BrokerProcess
from tests.extent import needs_time


class KilledError(Exception):
    pass


def die(done: BatchDone) -> None:
    raise KilledError


@pytest.fixture
def lake(client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Path:
    """200 rows of two partitions, with 7 keys each."""
    name = f"from_{tmp_path.name}".replace("-", "_")
    client.create_stream(name, f"{name}.in", partitions=2)
    for partition in range(2):
        data = [{"key": b"%d-%d" % (partition, one % 7), "value": b"%d" % one} for one in range(100)]
        client.append(name, data, partition=partition)
    archive(name, tmp_path / "lake", spark=spark, servers=broker.client_address)
    return tmp_path / "lake"


def by_key(client: penstock.Client, stream: str) -> dict[bytes, list[int]]:
    """The values of each key, in the order in which they are in the log; a key is in one partition."""
    out: dict[bytes, list[int]] = {}
    for one in client.stream(stream).partitions:
        rows = client.to_table(stream, partition=one.partition).to_pylist()
        assert not {row["key"] for row in rows} & out.keys()
        for row in rows:
            out.setdefault(row["key"], []).append(int(row["value"]))
    return out


EXPECTED = {b"%d-%d" % (one, key): list(range(key, 100, 7)) for one in range(2) for key in range(7)}


@needs_time
def test_each_row_comes_once_and_in_the_order_of_its_key(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path
) -> None:
    client.create_stream("again", "again.in", partitions=3)
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark, "subject": "again.in"}
    told: list[BatchDone] = []
    with pytest.raises(KilledError):
        replay(lake, "again", max_batch=80, report=die, **go)
    assert replay(lake, "again", max_batch=80, report=told.append, **go) == Replayed(2, 134)
    assert [(one.number, one.lag) for one in told] == [(1, 68), (2, 0)]
    assert by_key(client, "again") == EXPECTED
    assert replay(lake, "again", **go) == Replayed(0, 0)
    assert by_key(client, "again") == EXPECTED


@needs_time
def test_headers_that_nats_cannot_carry_end_a_replay_which_goes_on_without_them(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("lacks", "lacks.in")
    headers = [[{"key": "fine", "value": b"1"}], [{"key": "a b", "value": b"2"}, {"key": "fine", "value": b"3"}], None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = {"value": [b"0", b"1", b"2"], "headers": pa.array(headers, kind)}
    where = {"partition": pa.array([0] * 3, pa.int32()), "offset": pa.array(range(3), pa.int64())}
    (tmp_path / "lake").mkdir()
    parquet.write_table(pa.table(rows | where), tmp_path / "lake" / "some.parquet")
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark}
    with pytest.raises(ConfigError, match="invalid_headers: it is 'leave'; there are fail and drop"):
        replay(tmp_path / "lake", "lacks", invalid_headers="leave", **go)
    with pytest.raises(PySparkException, match=r"one is b'a b', .* invalid_headers, or --invalid-headers"):
        replay(tmp_path / "lake", "lacks", **go)
    assert replay(tmp_path / "lake", "lacks", invalid_headers="drop", **go) == Replayed(1, 3)
    found = sorted((one.value, one.headers) for one in client.messages("lacks"))
    assert found == [(b"0", {"fine": "1"}), (b"1", {"fine": "3"}), (b"2", {})]


@needs_time
def test_a_batch_of_which_nobody_took_a_note_is_written_once(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path, tmp_path: Path
) -> None:
    client.create_stream("unnoted", "unnoted.in", partitions=2)
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark, "subject": "unnoted.in", "max_batch": 100}
    note = tmp_path / "note"
    with pytest.raises(KilledError):
        replay(lake, "unnoted", checkpoint=note, report=die, **go)
    file = note / "replay.json"
    text = file.read_text()
    assert '"done": 1' in text
    file.write_text(text.replace('"done": 1', '"done": 0'))  # as if killed between the two
    assert replay(lake, "unnoted", checkpoint=note, **go) == Replayed(2, 200)
    assert by_key(client, "unnoted") == EXPECTED


@needs_time
def test_rows_are_chosen_and_delta_tables_are_replayed(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path, tmp_path: Path
) -> None:
    client.create_stream("chosen", "chosen.in")
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark, "subject": "chosen.in"}
    replay(lake, "chosen", where="offset >= 10 AND offset < 20 AND partition = 1", rate=1_000_000, **go)
    assert [row["value"] for row in client.to_table("chosen").to_pylist()] == [b"%d" % one for one in range(10, 20)]
    with pytest.raises(ConfigError, match="they are not as when"):
        replay(lake, "chosen", where="offset >= 20", **go)
    table("chosen", tmp_path / "t", servers=broker.client_address, spark=spark)
    client.create_stream("latest", "latest.in")
    assert replay(tmp_path / "t", "latest", **{**go, "subject": "latest.in"}).rows == 7
    assert client.to_table("latest").num_rows == 7


@needs_time
@pytest.mark.parametrize("table_format", FORMATS)
def test_what_no_commit_of_an_archive_names_is_not_replayed(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path, table_format: str
) -> None:
    name, again = f"orphans_{table_format}", f"orphans_{table_format}_again"
    client.create_stream(name, f"{name}.in")
    client.append(name, [{"value": b"%d" % one} for one in range(50)])
    archive(name, tmp_path / "lake", format=table_format, spark=spark, servers=broker.client_address)
    (file,) = tmp_path.glob("lake/date=*/*/*.parquet")
    shutil.copy(file, file.with_name("00000000000000000000-of-a-killed-run.parquet"))
    client.create_stream(again, f"{again}.in")
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark, "subject": f"{again}.in"}
    replay(tmp_path / "lake", again, **go)
    assert client.to_table(again)["value"].to_pylist() == [b"%d" % one for one in range(50)]


@needs_time
def test_files_that_are_committed_and_not_moved_are_replayed_once_they_are(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path
) -> None:
    files = sorted(lake.glob("date=*/*/*.parquet"))
    for file in files:  # as a job leaves them that is killed behind its commit
        aside = lake / staged(str(file))
        aside.parent.mkdir(exist_ok=True)
        file.rename(aside)
    client.create_stream("moved", "moved.in", partitions=2)
    assert replay(lake, "moved", servers=broker.client_address, spark=spark, subject="moved.in").rows == 200
    assert by_key(client, "moved") == EXPECTED
    assert sorted(lake.glob("date=*/*/*.parquet")) == files


@needs_time
def test_of_two_at_once_one_is_refused(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path
) -> None:
    client.create_stream("both", "both.in", partitions=2)
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark, "subject": "both.in"}
    refused = []

    def another(done: BatchDone) -> None:
        with pytest.raises(OvertakenError, match=r"another replay with the checkpoint .* is running"):
            replay(lake, "both", **go)
        refused.append(done)

    replay(lake, "both", report=another, **go)
    assert refused
    assert by_key(client, "both") == EXPECTED


@needs_time
def test_what_was_asked_for_may_change_until_something_is_written(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, lake: Path
) -> None:
    client.create_stream("changed", "changed.in", partitions=2)
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark}
    with pytest.raises(PySparkException, match="subject"):
        replay(lake, "changed", **go)  # the rows have the subject of where they are from
    with pytest.raises(KilledError):
        replay(lake, "changed", subject="changed.in", max_batch=80, report=die, **go)
    with pytest.raises(ConfigError, match="where, subject: they are not as when"):
        replay(lake, "changed", **go)
    replay(lake, "changed", subject="changed.in", **go)
    assert by_key(client, "changed") == EXPECTED


@needs_time
def test_what_cannot_be_replayed_is_said(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("refuses", "refuses.in")
    go: dict[str, Any] = {"servers": broker.client_address, "spark": spark}
    with pytest.raises(ConfigError) as told:
        replay(tmp_path / "none", "refuses", rate=0, max_batch=0, **go)
    assert len(told.value.mistakes) == 3
    spark.range(3).write.parquet(str(tmp_path / "ids"))
    with pytest.raises(ConfigError, match="has no column value; it has id"):
        replay(tmp_path / "ids", "refuses", **go)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="path, where: "):
        replay(tmp_path / "empty", "refuses", **go)


def test_the_batches_of_a_plan_have_each_offset_once() -> None:
    note = Note("q", "s", 1, (ReplaySpan("a", 0, 5, 18), ReplaySpan("a", 1, 0, 2), ReplaySpan("b", 0, 7, 7)), batches=5)
    seen = [
        (one.topic, one.partition, at) for n in range(5) for one in note.spans(n) for at in range(one.start, one.end)
    ]
    assert sorted(seen) == [("a", 0, at) for at in range(5, 18)] + [("a", 1, at) for at in range(2)]
    assert note.rows == 15
