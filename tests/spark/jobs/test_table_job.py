"""The job `table`: the latest message of each key, each batch once, whatever happens between."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import penstock
from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.groups.rows import group_mistake
from penstock.hot.keymap import KeyMap
from penstock.lake.progress import BatchDone
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.tables.folder import OvertakenError
from penstock.spark import brokers
from penstock.spark.jobs import table_tasks
from penstock.spark.jobs.table_job import TableManifest, Upkeep, _schema, new_group, table
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time
from tests.spark.delta import delta_rows


@pytest.fixture
def keep(spark: SparkSession, broker: BrokerProcess) -> Any:
    """Runs the job once."""

    def run(stream: str, to: Path, **options: Any) -> Upkeep:
        return table(stream, to, servers=broker.client_address, spark=spark, **{"buckets": 3, **options})

    return run


def rows_of(folder: Path) -> dict[bytes, tuple[Any, ...]]:
    """key: (value, partition, offset)."""
    found = delta_rows(folder).to_pylist()
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: (row["value"], row["partition"], row["offset"]) for row in found}


def append(client: penstock.Client, stream: str, *pairs: tuple[str | None, str | None], partition: int = 0) -> None:
    data = [
        {"key": None if key is None else key.encode(), "value": None if value is None else value.encode()}
        for key, value in pairs
    ]
    client.append(stream, data, partition=partition)


@needs_time
def test_the_latest_of_each_key_stays_and_tombstones_take_it_out(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("prices", "prices.in", partitions=2)
    append(client, "prices", ("a", "1"), ("b", "1"), (None, "no key"), ("a", "2"))
    append(client, "prices", ("c", "1"), ("d", "1"), ("c", ""), partition=1)
    assert keep("prices", tmp_path / "t") == Upkeep(batches=1, rows=7, keys=4)
    assert rows_of(tmp_path / "t") == {
        b"a": (b"2", 0, 3),
        b"b": (b"1", 0, 1),
        b"c": (b"", 1, 2),
        b"d": (b"1", 1, 1),
    }
    append(client, "prices", ("b", None), ("e", "1"), ("e", None), ("a", None), ("a", "3"))
    assert keep("prices", tmp_path / "t") == Upkeep(batches=1, rows=5, keys=3)
    assert rows_of(tmp_path / "t") == {b"a": (b"3", 0, 8), b"c": (b"", 1, 2), b"d": (b"1", 1, 1)}
    with client.table("prices") as ours:
        assert {message.key: message.value for message in ours.values()} == {b"a": b"3", b"c": b"", b"d": b"1"}


@needs_time
def test_it_goes_on_where_it_was_in_batches_of_any_size(client: penstock.Client, keep: Any, tmp_path: Path) -> None:
    client.create_stream("goes_on", "goes_on.in", partitions=2)
    for partition in range(2):
        pairs = [(f"{partition}-{number % 10}", str(number)) for number in range(100)]
        append(client, "goes_on", *pairs, partition=partition)
    told: list[BatchDone] = []
    assert keep("goes_on", tmp_path / "t", max_batch=70, report=told.append).batches == 3
    assert [(one.number, one.rows, one.lag) for one in told] == [(1, 70, 130), (2, 70, 60), (3, 60, 0)]
    before = DeltaTable(tmp_path / "t").version()
    assert keep("goes_on", tmp_path / "t") == Upkeep(batches=0, rows=0, keys=20)
    assert DeltaTable(tmp_path / "t").version() == before
    assert {value for value, _, _ in rows_of(tmp_path / "t").values()} == {b"%d" % one for one in range(90, 100)}
    assert groups_of(client, "goes_on") == [{0: 100, 1: 100}]


def groups_of(client: penstock.Client, stream: str) -> list[dict[int, int | None]]:
    """Where the groups of its tables are, in the order of their names."""
    names = sorted(one.group for one in client.groups.all() if one.stream == stream)
    assert all(re.fullmatch(r"table-t(-[0-9a-f]{8})?", name) for name in names), names
    return [{one.partition: one.offset for one in client.groups.offsets(name, stream)} for name in names]


@needs_time
def test_tables_in_folders_of_one_name_have_groups_of_their_own(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("twins", "twins.in")
    append(client, "twins", ("a", "1"))
    keep("twins", tmp_path / "one" / "t")
    keep("twins", tmp_path / "two" / "t")
    append(client, "twins", ("b", "1"))
    keep("twins", tmp_path / "two" / "t")
    assert sorted(one[0] or 0 for one in groups_of(client, "twins")) == [1, 2]


@needs_time
def test_a_table_of_an_earlier_version_keeps_the_group_of_its_folder(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("older", "older.in")
    append(client, "older", ("a", "1"))
    cluster = client.cluster_id()
    stream_id = int(client.stream("older").stream_id)
    said = {"kind": "penstock table", "stream": "older", "stream_id": stream_id, "buckets": 2, "as_of": ""}
    for number, description in enumerate((said, said | {"cluster": cluster})):
        root = tmp_path / str(number) / "t"
        DeltaTable.create(root, _schema(), partition_by=["bucket"], description=json.dumps(description))
        keep("older", root)
    assert groups_of(client, "older") == [{0: 1}]
    keep("older", tmp_path / "new" / "t")
    assert groups_of(client, "older") == [{0: 1}] * 2


def test_a_group_of_a_table_has_a_name_that_brokers_take() -> None:
    for folder in ("t", "a b.c/ü", "x" * 300):
        name = new_group(Path(folder))
        assert group_mistake(name) is None
        assert re.search("-[0-9a-f]{8}$", name)
        assert name != new_group(Path(folder))


class KilledError(Exception):
    pass


@needs_time
def test_a_run_that_ends_behind_a_commit_repeats_nothing(client: penstock.Client, keep: Any, tmp_path: Path) -> None:
    client.create_stream("killed", "killed.in")
    append(client, "killed", *[(f"k{number}", "1") for number in range(30)])

    def die(done: BatchDone) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        keep("killed", tmp_path / "t", max_batch=10, report=die)
    assert len(rows_of(tmp_path / "t")) == 10
    assert keep("killed", tmp_path / "t", max_batch=10) == Upkeep(batches=2, rows=20, keys=30)


def moving(before: int, after: int) -> Iterator[str]:
    """Keys that go to a new partition when there are more."""
    old, new = KeyMap((before,)), KeyMap((before, after))
    names = (f"k{number}" for number in range(1_000))
    return (name for name in names if old.partition_of(name.encode()) != new.partition_of(name.encode()))


@needs_time
def test_a_new_partition_is_merged_once_the_table_has_what_the_older_ones_have_of_its_keys(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("grown", "grown.in", partitions=2, partition_by="key")
    key = next(moving(2, 4))
    old, new = KeyMap((2,)).partition_of(key.encode()), KeyMap((2, 4)).partition_of(key.encode())
    beside = (
        name for name in (f"other{number}" for number in count()) if KeyMap((2,)).partition_of(name.encode()) == old
    )
    append(client, "grown", *[(name, "1") for name in islice(beside, 20)], (key, "1"), partition=old)
    client.alter_stream("grown", partitions=4)
    client.publish(
        "grown.in", None, key=key, headers={"Nats-Msg-Id": "end"}, retries=20
    )  # it is acked, so all marks are there
    told: list[BatchDone] = []
    assert keep("grown", tmp_path / "t", max_batch=10, report=told.append) == Upkeep(batches=4, rows=22, keys=20)
    assert [one.rows for one in told] == [10, 10, 1, 1]
    assert key.encode() not in rows_of(tmp_path / "t")
    assert client.publish("grown.in", b"3", key=key).partition == new
    assert keep("grown", tmp_path / "t", max_batch=10) == Upkeep(batches=1, rows=1, keys=21)
    assert rows_of(tmp_path / "t")[key.encode()] == (b"3", new, 1)
    cut = json.dumps({"grown": {str(number): 5 if number == old else -1 for number in range(4)}})
    assert keep("grown", tmp_path / "cut", as_of=cut).keys == 6  # the rest of the older partition is never waited for


@needs_time
def test_partitions_that_are_added_while_a_job_runs_are_merged(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("growing", "growing.in", partition_by="key")
    keys = list(islice(moving(1, 3), 3))
    append(client, "growing", *[(key, "1") for key in keys])

    def grow(done: BatchDone) -> None:
        if done.number > 1:
            raise KilledError
        client.alter_stream("growing", partitions=3)
        client.publish("growing.in", b"2", key=keys[0], headers={"Nats-Msg-Id": "2"}, retries=20)

    with pytest.raises(KilledError):
        keep("growing", tmp_path / "t", once=False, trigger_s=0.0, report=grow)
    found = rows_of(tmp_path / "t")
    assert [found[key.encode()][0] for key in keys] == [b"2", b"1", b"1"]
    assert found[keys[0].encode()][1] > 0
    assert keep("growing", tmp_path / "t") == Upkeep(batches=0, rows=0, keys=3)


@needs_time
def test_of_two_that_keep_one_table_the_slower_is_refused(
    client: penstock.Client, keep: Any, spark: SparkSession, tmp_path: Path
) -> None:
    client.create_stream("two", "two.in")
    append(client, "two", *[(f"k{number}", "1") for number in range(30)])

    def other(done: BatchDone) -> None:
        if done.number == 1:
            keep("two", tmp_path / "t")

    with pytest.raises(OvertakenError, match="another job has changed the table"):
        keep("two", tmp_path / "t", max_batch=10, report=other)
    assert len(rows_of(tmp_path / "t")) == 30


@needs_time
def test_files_that_no_commit_names_are_no_part_of_the_table(
    client: penstock.Client, keep: Any, tmp_path: Path
) -> None:
    client.create_stream("orphans", "orphans.in")
    append(client, "orphans", ("a", "1"))
    keep("orphans", tmp_path / "t", buckets=1)
    (file,) = (tmp_path / "t" / "bucket=0").glob("*.parquet")
    (file.parent / "part-of-a-killed-task.parquet").write_bytes(b"PAR1 cut off")
    append(client, "orphans", ("a", "2"))
    assert keep("orphans", tmp_path / "t").keys == 1
    assert rows_of(tmp_path / "t") == {b"a": (b"2", 0, 1)}


@needs_time
def test_as_of_is_the_table_as_it_was(client: penstock.Client, keep: Any, tmp_path: Path) -> None:
    client.create_stream("history", "history.in")
    append(client, "history", ("a", "1"), ("b", "1"))
    append(client, "history", ("a", "2"), ("b", None))
    moment = client.get("history", 2).timestamp
    append(client, "history", ("b", "3"))
    keep("history", tmp_path / "now")
    assert keep("history", tmp_path / "two", as_of=2) == Upkeep(1, 2, 2)
    assert keep("history", tmp_path / "two", as_of=2) == Upkeep(0, 0, 2)
    assert rows_of(tmp_path / "two") == {b"a": (b"1", 0, 0), b"b": (b"1", 0, 1)}
    keep("history", tmp_path / "four", as_of='{"history": {"0": 4}}')
    assert rows_of(tmp_path / "four") == {b"a": (b"2", 0, 2)}
    keep("history", tmp_path / "then", as_of=str(int(moment.timestamp() * 1_000)))
    assert rows_of(tmp_path / "then").keys() <= {b"a", b"b"}
    assert DeltaTable(tmp_path / "then").version() == 1
    later = datetime(2100, 1, 1, tzinfo=UTC).isoformat()
    keep("history", tmp_path / "later", as_of=later)
    assert rows_of(tmp_path / "later") == rows_of(tmp_path / "now")
    with pytest.raises(ConfigError, match="holds the table of stream history as of 2; give another folder"):
        keep("history", tmp_path / "two")
    client.create_stream("history2", "history2.in", partitions=2)
    with pytest.raises(ConfigError, match="history2 has 2 partitions; give a time"):
        keep("history2", tmp_path / "no", as_of=2)
    client.truncate_stream("history", 1)
    with pytest.raises(ConfigError, match="the first messages of history, partition 0, are gone from the log"):
        keep("history", tmp_path / "no", as_of=3)


@needs_time
def test_what_is_there_already_is_not_merged_into(client: penstock.Client, keep: Any, tmp_path: Path) -> None:
    client.create_stream("mine", "mine.in")
    append(client, "mine", ("a", "1"))
    keep("mine", tmp_path / "t")
    client.create_stream("yours", "yours.in")
    with pytest.raises(ConfigError, match="holds the table of stream mine; give another folder"):
        keep("yours", tmp_path / "t")
    with pytest.raises(ConfigError, match="holds the table of stream mine as it is now; give another folder"):
        keep("mine", tmp_path / "t", as_of=1)
    client.delete_stream("mine")
    client.create_stream("mine", "mine.in")
    with pytest.raises(ConfigError, match="of before it was deleted and made anew"):
        keep("mine", tmp_path / "t")
    DeltaTable.create(tmp_path / "other", pa.schema([pa.field("a", pa.int64())]))
    with pytest.raises(ConfigError, match="holds a Delta table that is not of this kind"):
        keep("mine", tmp_path / "other")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "some.parquet").touch()
    with pytest.raises(ConfigError, match="holds something else; give a folder of its own"):
        keep("mine", tmp_path / "files")
    with pytest.raises(ConfigError) as told:
        keep("mine", "s3://bucket/t", buckets=0, max_batch=0, as_of=-1)
    assert len(told.value.mistakes) >= 4


@needs_time
def test_messages_that_are_gone_are_told(client: penstock.Client, keep: Any, tmp_path: Path) -> None:
    client.create_stream("gone", "gone.in")
    append(client, "gone", ("a", "1"), ("b", "1"))
    keep("gone", tmp_path / "t")
    append(client, "gone", ("a", "2"), ("b", "2"), ("c", "2"))
    client.truncate_stream("gone", 4)
    with pytest.raises(DataLossError, match="messages 2 to 3 of stream gone, partition 0, are not in the log"):
        keep("gone", tmp_path / "t")
    told: list[BatchDone] = []
    done = keep("gone", tmp_path / "t", fail_on_data_loss=False, max_batch=1, report=told.append)
    assert (done.keys, done.rows) == (3, 1)
    assert [(one.rows, one.lag) for one in told] == [(0, 1), (0, 1), (1, 0)]
    assert rows_of(tmp_path / "t")[b"c"] == (b"2", 0, 4)


@needs_time
def test_a_log_that_has_lost_what_the_table_holds_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Also where it is as long again by then, with other messages."""
    with running_broker(tmp_path / "data") as broker:
        go: dict[str, Any] = {"spark": spark, "buckets": 2}
        with penstock.connect(broker.client_address) as client:
            client.create_stream("memory", "memory.in", storage="memory")
            append(client, "memory", *[(f"k{number}", "old") for number in range(20)])
        assert table("memory", tmp_path / "t", servers=broker.client_address, **go) == Upkeep(1, 20, 20)
        for before, appended in ((0, 12), (12, 12)):
            if not before:
                broker.kill()
                broker.start()
                brokers._clients.clear()
            with penstock.connect(broker.client_address) as client:
                append(client, "memory", *[(f"k{number}", "new") for number in range(appended)])
            with pytest.raises(
                DataLossError, match="messages 0 to 19 as they are in the table are not in the log any more"
            ):
                table("memory", tmp_path / "t", servers=broker.client_address, fail_on_data_loss=False, **go)
        assert {value for value, _, _ in rows_of(tmp_path / "t").values()} == {b"old"}


@needs_time
def test_a_log_that_is_cut_while_a_job_runs_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:

        def fill(value: str) -> None:
            with penstock.connect(broker.client_address) as client:
                client.create_stream("running", "running.in", storage="memory")
                append(client, "running", *[(f"k{number}", value) for number in range(20)])

        def cut(done: BatchDone) -> None:
            assert done.number == 1, "it goes on with other messages"
            broker.restart()
            fill("new")

        fill("old")
        with pytest.raises(DataLossError, match="messages 0 to 19 as they are in the table are not in the log"):
            table(
                "running", tmp_path / "t", servers=broker.client_address, spark=spark, buckets=2, once=False,
                trigger_s=0.0, report=cut,
            )  # fmt: skip
        assert {value for value, _, _ in rows_of(tmp_path / "t").values()} == {b"old"}


@needs_time
def test_a_log_that_is_led_by_another_epoch_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        go: dict[str, Any] = {"spark": spark, "buckets": 2}
        for number in range(3):
            with penstock.connect(broker.client_address) as client:
                if not number:
                    client.create_stream("led", "led.in")
                append(client, "led", ("a", f"{number}"), (f"b{number}", ""))
                epoch = client.stream("led").partitions[0].leader_epoch
            assert table("led", tmp_path / "t", servers=broker.client_address, **go) == Upkeep(1, 2, number + 2)
            versions = DeltaTable(tmp_path / "t")
            name = f"penstock/{stream_id_of(tmp_path / 't')}/0"
            found = versions.transaction_version(name), versions.transaction_version(f"{name}/epoch")
            assert found == (2 * number + 2, epoch)
            broker.kill()
            broker.start()
            brokers._clients.clear()
        with penstock.connect(broker.client_address) as client:
            append(client, "led", ("c", "1"))
        broker.kill()
        broker.start()
        brokers._clients.clear()
        with penstock.connect(broker.client_address) as client:
            append(client, "led", ("d", "1"))
        assert table("led", tmp_path / "t", servers=broker.client_address, **go) == Upkeep(
            1, 2, 6
        )  # of two epochs, in one batch


def stream_id_of(folder: Path) -> int:
    about = TableManifest.of_text(DeltaTable(folder).metadata().description)
    assert about is not None
    return about.stream_id


@needs_time
def test_a_bucket_that_is_large_is_told_once(
    client: penstock.Client,
    keep: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.create_stream("large", "large.in")
    append(client, "large", *[(f"k{number}", "1") for number in range(30)])
    keep("large", tmp_path / "t", max_batch=10)
    assert not caplog.messages
    append(client, "large", *[(f"k{number}", "2") for number in range(30)])
    monkeypatch.setattr(limits, "TABLE_BUCKET_BYTES_WARN", 1)
    keep("large", tmp_path / "t", max_batch=10)
    (told,) = caplog.messages
    assert "make another table with more buckets than 3" in told


def test_a_file_is_on_the_disk_with_its_name(synced: list[Path], tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pylist([{"key": b"k", "partition": 0, "offset": 0}], schema=table_tasks.SCHEMA)
    placed = rows.append_column(table_tasks.BUCKET, pa.array([3], pa.int32()))
    filled = placed.set_column(1, placed.schema.field(1), pa.array([b"v"], pa.binary()))
    (written,) = table_tasks.rewrite(table_tasks.Rewriting(str(tmp_path), ()), [filled])
    file = tmp_path / written.column("path")[0].as_py()
    assert synced == [file, tmp_path / "bucket=3", tmp_path]


def _row(key: bytes, micros: int, partition: int, offset: int) -> dict[str, Any]:
    moment = datetime.fromtimestamp(micros / 1e6, UTC)
    return {"key": key, "value": b"", "subject": "s", "partition": partition, "offset": offset, "timestamp": moment}


def test_the_latest_row_is_the_last_in_time_then_partition_then_offset() -> None:
    rows = [_row(b"a", 5, 0, 9), _row(b"a", 7, 1, 3), _row(b"b", 1, 0, 4), _row(b"b", 1, 0, 3), _row(b"a", 7, 0, 10)]
    found = table_tasks.latest(pa.Table.from_pylist(rows, schema=table_tasks.SCHEMA)).to_pylist()
    assert {(one["key"], one["partition"], one["offset"]) for one in found} == {(b"a", 1, 3), (b"b", 0, 4)}
    assert table_tasks.latest(table_tasks.SCHEMA.empty_table()).num_rows == 0


def test_the_row_of_a_partition_that_was_added_later_is_the_latest_whatever_the_clocks_say() -> None:
    rows = [
        _row(b"moved", 9, 1, 7), _row(b"moved", 5, 2, 0), _row(b"twice", 8, 3, 4), _row(b"twice", 2, 5, 1),
        _row(b"in two", 6, 0, 3), _row(b"in two", 3, 1, 2), _row(b"stays", 1, 4, 8), _row(b"stays", 1, 4, 9),
    ]  # fmt: skip
    found = table_tasks.latest(pa.Table.from_pylist(rows, schema=table_tasks.SCHEMA), (2, 4, 6)).to_pylist()
    assert {(one["key"], one["partition"], one["offset"]) for one in found} == {
        (b"moved", 2, 0), (b"twice", 5, 1), (b"in two", 0, 3), (b"stays", 4, 9)
    }  # fmt: skip
