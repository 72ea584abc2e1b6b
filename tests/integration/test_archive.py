"""`penstock archive`: each message is in the lake once, without Spark, whatever is killed or stopped."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import penstock
from penstock import ops
from penstock.base.errors import ConfigError, ErrorCode
from penstock.lake.archiving.decoding import rejects_schema
from penstock.lake.archiving.plan import Plan
from penstock.lake.progress import BatchDone
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.folder import OvertakenError, locked
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.manifest import read_about
from penstock.lake.tables.table import Commit, LakeFile, Table
from tests.broker_process import BrokerProcess, running_broker
from tests.cli_process import command, ended, launched
from tests.extent import each_change, needs_time

pytestmark = each_change


class Killed(BaseException):
    """Stands for kill -9: what runs then does nothing more."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as shared:
        yield shared


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.connect(broker.client_address) as made:
        yield made


def filled(client: penstock.Client, name: str, rows: int, partitions: int = 1) -> None:
    client.create_stream(name, name, partitions=partitions)
    for partition in range(partitions):
        values = [{"key": f"k{row % 7}", "value": b"%d" % row} for row in range(rows)]
        client.append(name, values, partition=partition)


def more(client: penstock.Client, name: str, partition: int = 0) -> None:
    client.append(name, [{"value": b"more"}], partition=partition)


def rows_of(folder: Path, table_format: str = "parquet") -> list[tuple[int, int]]:
    """(partition, offset) of each row of the table."""
    paths = [str(folder / one.path) for one in open_table(folder, table_format, None).files()]
    if table_format == "parquet":
        assert sorted(paths) == sorted(map(str, folder.glob("date=*/*/*.parquet")))
    found = ds.dataset(paths).to_table(columns=["partition", "offset"])
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def expected(partitions: int, rows: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(rows)]


def test_the_next_run_continues_and_a_group_shows_how_far_it_is(client: penstock.Client, tmp_path: Path) -> None:
    filled(client, "next", 1_000, partitions=3)
    told: list[BatchDone] = []
    lake = tmp_path / "lake"
    done = ops.archive_stream(client, "next", lake, ops.ArchiveOptions(max_batch=2_000), report=told.append)
    assert (done.rows, done.batches) == (3_000, 2)
    assert [(one.number, one.rows, one.lag) for one in told] == [(1, 2_000, 1_000), (2, 1_000, 0)]
    more(client, "next", 1)
    assert ops.archive_stream(client, "next", lake).rows == 1
    assert ops.archive_stream(client, "next", lake).batches == 0
    assert rows_of(lake) == sorted([*expected(3, 1_000), (1, 1_000)])
    places = client.groups.offsets(f"archive-{done.name}", "next")
    assert {one.partition: one.offset for one in places} == {0: 1_000, 1: 1_001, 2: 1_000}
    assert client.stream("next").partitions[1].archives == {done.name: 1_001}


class Around:
    """A table around whose commits something happens."""

    def __init__(self, table: Table, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._table = table
        self._before = before
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
        self._before()
        self._table.commit(commit)
        self._after()


def nothing() -> None:
    pass


def dies() -> None:
    raise Killed


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_killed_around_its_commit_is_continued(
    client: penstock.Client, tmp_path: Path, table_format: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"killed-{table_format}-{after}"
    filled(client, name, 100, partitions=2)
    options = ops.ArchiveOptions(table_format, max_batch=60)
    opened = Plan.open_table
    what = (nothing, dies) if after else (dies, nothing)
    for _ in range(2):
        with monkeypatch.context() as dying:
            dying.setattr(Plan, "open_table", lambda plan: Around(opened(plan), *what))
            with pytest.raises(Killed):
                ops.archive_stream(client, name, tmp_path, options)
    more(client, name)
    assert ops.archive_stream(client, name, tmp_path, options).rows == (201 - 120 if after else 201)
    assert rows_of(tmp_path, table_format) == sorted([*expected(2, 100), (0, 100)])


def test_a_run_that_is_stopped_leaves_no_files_and_the_next_one_continues(
    client: penstock.Client, tmp_path: Path
) -> None:
    filled(client, "stopped", 1_000)
    stop = threading.Event()
    options = ops.ArchiveOptions(max_batch=300)
    with pytest.raises(ops.StoppedError):
        ops.archive_stream(client, "stopped", tmp_path, options, report=lambda _: stop.set(), stop=stop)
    assert rows_of(tmp_path) == expected(1, 300)
    stop.set()
    with pytest.raises(ops.StoppedError):
        ops.archive_stream(client, "stopped", tmp_path, options, stop=stop)
    assert ops.archive_stream(client, "stopped", tmp_path, options).rows == 700
    assert rows_of(tmp_path) == expected(1, 1_000)
    assert list((tmp_path / "_penstock" / "staged").iterdir()) == []


def test_several_streams_are_archived(client: penstock.Client, tmp_path: Path) -> None:
    for name in ("first", "second"):
        filled(client, name, 10)
    assert ops.archive_stream(client, ["first", "seco*"], tmp_path / "a").rows == 20
    assert ops.archive_stream(client, "first,second", tmp_path / "b").rows == 20
    with pytest.raises(ConfigError, match="give a stream's name"):
        ops.archive_stream(client, [], tmp_path / "c")


def test_two_runs_do_not_write_one_archive(client: penstock.Client, tmp_path: Path) -> None:
    filled(client, "locked", 10)
    with locked(tmp_path), pytest.raises(OvertakenError, match="another job writes the archive"):
        ops.archive_stream(client, "locked", tmp_path)


def test_lost_messages_are_an_error_and_leave_no_files(client: penstock.Client, tmp_path: Path) -> None:
    filled(client, "lost", 100)
    ops.archive_stream(client, "lost", tmp_path)
    for _ in range(50):
        more(client, "lost")
    client.truncate_stream("lost", 120)
    text = "messages 100 to 119 of stream lost, partition 0, are not in the log.* Set fail_on_data_loss to False"
    with pytest.raises(DataLossError, match=text):
        ops.archive_stream(client, "lost", tmp_path)
    assert ops.archive_stream(client, "lost", tmp_path, ops.ArchiveOptions(fail_on_data_loss=False)).rows == 30
    client.delete_stream("lost")
    filled(client, "lost", 10)
    with pytest.raises(DataLossError, match="was deleted and made anew since it was archived"):
        ops.archive_stream(client, "lost", tmp_path)


def test_a_stream_of_a_pattern_that_was_made_anew_leaves_the_others_to_be_archived(
    client: penstock.Client, tmp_path: Path
) -> None:
    for name in ("many-a", "many-b"):
        filled(client, name, 10)
    assert ops.archive_stream(client, "many-*", tmp_path).rows == 20
    client.delete_stream("many-a")
    filled(client, "many-a", 5)
    client.append("many-b", [{"value": b"more"}] * 3)
    text = "stream many-a was deleted and made anew since .*; archive the new one elsewhere; all other streams were"
    with pytest.raises(DataLossError, match=text):
        ops.archive_stream(client, "many-*", tmp_path)
    assert len(rows_of(tmp_path)) == 23
    assert client.stream("many-b").partitions[0].archives == {client_name(tmp_path): 13}
    filled(client, "many-c", 2)
    with pytest.raises(DataLossError, match=text):
        ops.archive_stream(client, "many-*", tmp_path)
    assert len(rows_of(tmp_path)) == 25


def test_the_end_of_a_stream_is_not_reported_for_another_one_of_its_name(
    client: penstock.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the brokers could delete messages that no archive has."""
    filled(client, "renewed", 10)
    opened = Plan.open_table

    def made_anew() -> None:
        client.delete_stream("renewed")
        filled(client, "renewed", 20)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "open_table", lambda plan: Around(opened(plan), nothing, made_anew))
        assert ops.archive_stream(client, "renewed", tmp_path).rows == 10
    with pytest.raises(DataLossError, match="made anew since it was archived"):
        ops.archive_stream(client, "renewed", tmp_path)
    assert client.stream("renewed").partitions[0].archives == {}
    offsets = client.groups.offsets(f"archive-{client_name(tmp_path)}", "renewed")
    assert [one.offset for one in offsets] == [None]


def client_name(root: Path) -> str:
    """Return the name of an archive at the brokers."""
    about = read_about(root)
    assert about is not None
    return about.name


def test_a_copy_of_an_archive_from_before_it_had_a_stream_is_told_what_it_lacks(
    client: penstock.Client, tmp_path: Path
) -> None:
    lake, older = tmp_path / "lake", tmp_path / "older"
    filled(client, "copied-a", 10)
    ops.archive_stream(client, "copied-*", lake)
    shutil.copytree(lake, older)
    filled(client, "copied-b", 50)
    ops.archive_stream(client, "copied-*", lake)
    client.truncate_stream("copied-b", 40)
    text = "ends at 0 of stream copied-b, partition 0, but it had reported 50 to the brokers: it has lost commits"
    for _ in range(2):
        with pytest.raises(DataLossError, match=text):
            ops.archive_stream(client, "copied-*", older)
    options = ops.ArchiveOptions(fail_on_data_loss=False)
    assert ops.archive_stream(client, "copied-*", older, options).rows == 10
    assert ops.archive_stream(client, "copied-*", tmp_path / "new", ops.ArchiveOptions(name="new")).rows == 20


def test_an_archive_whose_offsets_are_refused_reports_to_the_brokers_all_the_same(
    client: penstock.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a hold of the archive would never end."""
    filled(client, "held", 10)

    def refused(*_args: object, **_options: object) -> None:
        raise penstock.NotAuthorized(ErrorCode.NOT_AUTHORIZED, "no")

    with monkeypatch.context() as patch:
        patch.setattr(type(client.groups), "commit", refused)
        done = ops.archive_stream(client, "held", tmp_path)
    assert client.stream("held").partitions[0].archives == {done.name: 10}


def test_an_archive_that_lost_what_it_had_reported_is_told_so(client: penstock.Client, tmp_path: Path) -> None:
    lake, older = tmp_path / "lake", tmp_path / "older"
    filled(client, "reported", 50)
    ops.archive_stream(client, "reported", lake)
    shutil.copytree(lake, older)
    client.append("reported", [{"value": b"more"}] * 50)
    ops.archive_stream(client, "reported", lake)
    again = shutil.copytree(older, tmp_path / "again")
    assert ops.archive_stream(client, "reported", again).rows == 50, "the log still has what the copy lacks"
    client.truncate_stream("reported", 100)
    text = (
        f"archive in {older} ends at 50 of stream reported, partition 0, but it had reported 100 to the brokers: .* "
        "the log begins at 100.* Restore .*newer copy.* Set fail_on_data_loss to False"
    )
    with pytest.raises(DataLossError, match=text):
        ops.archive_stream(client, "reported", older)
    more(client, "reported")
    assert ops.archive_stream(client, "reported", older, ops.ArchiveOptions(fail_on_data_loss=False)).rows == 1


def test_lost_messages_of_an_added_partition_are_an_error(client: penstock.Client, tmp_path: Path) -> None:
    filled(client, "grown", 10)
    ops.archive_stream(client, "grown", tmp_path)
    client.alter_stream("grown", partitions=2)
    for _ in range(9):
        more(client, "grown", 1)
    client.truncate_stream("grown", 6, partition=1)
    text = "messages 0 to 5 of stream grown, partition 1, are not in the log"
    with pytest.raises(DataLossError, match=text):
        ops.archive_stream(client, "grown", tmp_path)
    assert ops.archive_stream(client, "grown", tmp_path, ops.ArchiveOptions(fail_on_data_loss=False)).rows == 3
    more(client, "grown", 1)
    assert ops.archive_stream(client, "grown", tmp_path).rows == 1


def test_avro_is_decoded_and_json_needs_spark(client: penstock.Client, tmp_path: Path) -> None:
    client.create_stream("decoded", "decoded")
    client.append("decoded", [{"value": b"\x02"}, {"value": b"\xff"}, {"value": None}])
    schema = '{"type": "record", "name": "r", "fields": [{"name": "number", "type": "int"}]}'
    options = ops.ArchiveOptions(decode="avro", schema=schema)
    assert ops.archive_stream(client, "decoded", tmp_path / "avro", options).rejected == 1
    found = ds.dataset(list(map(str, (tmp_path / "avro").glob("date=*/*/*.parquet")))).to_table()
    assert found["data"].to_pylist() == [{"number": 1}, None, None]
    rejected = ds.dataset(list(map(str, (tmp_path / "avro/_rejects").glob("date=*/*/*.parquet")))).to_table()
    assert rejected["offset"].to_pylist() == [1]
    assert set(rejected.column_names) <= set(rejects_schema().names)
    with pytest.raises(ConfigError, match="decode: it is json, which needs Spark: `penstock pipeline archive`"):
        ops.archive_stream(client, "decoded", tmp_path / "json", ops.ArchiveOptions(decode="json"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"to: .*/file is no folder"):
        ops.archive_stream(client, "decoded", tmp_path / "file")
    assert not (tmp_path / "json").exists()


async def test_the_command_repeats_until_it_is_told_to_end(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "repeated", 10)
    lake = str(tmp_path / "lake")
    with launched(broker.client_address, "archive", "repeated", "--to", lake, "--every", "100ms", "--json") as running:
        assert running.stdout is not None
        for rows in (10, 1):
            batch = next(line for line in iter(running.stdout.readline, "") if '"event":"batch"' in line)
            assert f'"rows":{rows},' in batch
            assert f'"rows":{rows},' in running.stdout.readline()
            assert '"rows":0,' in running.stdout.readline(), "a run without new messages ends with its object, too"
            more(client, "repeated")
        running.send_signal(signal.SIGTERM)
        await ended(running)
    said, _ = await command(broker.client_address, "archive", "repeated", "--to", lake)
    assert "messages of repeated archived in" in said or "message of repeated archived in" in said
    assert rows_of(tmp_path / "lake") == expected(1, 12)


async def test_the_command_waits_for_the_first_stream_of_a_pattern(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with launched(broker.client_address, "archive", "later-*", "--to", lake, "--every", "100ms", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert "no stream matches later-*" in running.stderr.readline()
        filled(client, "later-1", 10)
        assert '"rows":10' in running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        await ended(running)


async def test_a_command_that_cannot_reach_a_broker_tries_again(tmp_path: Path) -> None:
    arguments = ("archive", "orders", "--to", str(tmp_path / "lake"), "--every", "100ms", "--timeout", "200ms")
    with launched("127.0.0.1:1", *arguments) as running:
        assert running.stderr is not None
        error = next(line for line in iter(running.stderr.readline, "") if line.startswith("Error:"))
        running.send_signal(signal.SIGTERM)
        await ended(running, 1)
    assert "127.0.0.1:1" in error


async def test_a_backup_repeats_too(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    filled(client, "backed-up", 10)
    folder = str(tmp_path / "backup")
    arguments = ("backup", folder, "--stream", "backed-up", "--every", "100ms", "--json")
    with launched(broker.client_address, *arguments) as running:
        assert running.stdout is not None
        assert '"rows":10' in running.stdout.readline()
        assert '"rows":0,' in running.stdout.readline(), "a run without new messages is told, too"
        more(client, "backed-up")
        assert any('"rows":1,' in line for line in iter(running.stdout.readline, ""))
        running.send_signal(signal.SIGTERM)
        await ended(running)
    await command(broker.client_address, "verify", folder)


@needs_time
async def test_a_command_that_is_killed_anywhere_is_continued(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "kills", 20_000, partitions=2)
    lake = tmp_path / "lake"
    arguments = ("archive", "kills", "--to", str(lake), "--max-batch", "1000", "--json")
    for lines in range(1, 12, 2):
        with launched(broker.client_address, *arguments) as running:
            assert running.stdout is not None
            for _ in range(lines):
                running.stdout.readline()
            os.kill(running.pid, signal.SIGKILL)
    await command(broker.client_address, *arguments)
    assert rows_of(lake) == expected(2, 20_000)
