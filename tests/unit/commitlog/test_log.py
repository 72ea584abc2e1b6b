"""Append, roll, flush, look up, with a disk that works."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from penstock.base.config import StreamConfig, SuspendDeletion
from penstock.base.errors import RemoteError
from penstock.commitlog import LineageEntry, LogConfig, LogState, NotWritableError
from penstock.vfs import Vfs
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.extent import each_change
from tests.logs import DIRECTORY, SMALL, append, flush, give_up_before, make_batch, open_log, read_batches, read_slices


@pytest.fixture(params=["real", "memory"])
def vfs(request: pytest.FixtureRequest, tmp_path: Path) -> Vfs:
    return RealVfs(tmp_path) if request.param == "real" else MemoryVfs()


def test_a_new_log_is_empty_and_durable() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    assert (log.log_start, log.log_end, log.flushed_end, log.last_timestamp_us) == (0, 0, 0, 0)
    assert (log.state, log.damage, log.segment_count) == (LogState.WRITABLE, (), 1)
    assert log.view().slice(0, end=0, bytes_max=1) is None
    assert log.flush() is None
    names = disk.crash_clone().list(DIRECTORY)
    assert "00000000000000000000.arrows" in names
    assert "checkpoint" in names
    assert log.view().offset_at(5, end=0) == 0
    assert open_log(disk.crash_clone()).log_end == 0


def test_segments_roll_by_bytes_and_everything_reads_back(vfs: Vfs) -> None:
    log = open_log(vfs)
    wanted = []
    for number in range(40):
        wanted += append(log, 1 + number % 3, number * 1000, size_bytes=200)
        if number % 7 == 0:
            flush(log)
    assert log.segment_count > 5
    assert read_slices(vfs, log.view()) == wanted
    assert read_slices(vfs, log.view(), bytes_max=1) == wanted, "at least one batch each"
    assert read_batches(log.view(), 5, log.log_end - 5) == wanted[5:-5]
    assert read_batches(log.view(), 5, log.log_end - 5, reverse=True) == wanted[5:-5]
    size = sum(vfs.open(f"{DIRECTORY}/{name}").size() for name in vfs.list(DIRECTORY) if name.endswith("arrows"))
    assert log.size_bytes == size
    log.close()
    again = open_log(vfs)
    assert (again.log_end, again.flushed_end, again.segment_count) == (len(wanted), len(wanted), log.segment_count)
    assert read_slices(vfs, again.view()) == wanted
    again.close()


def test_segment_files_are_plain_arrow_streams(tmp_path: Path) -> None:
    log = open_log(RealVfs(tmp_path), LogConfig(segment_bytes=20_000))
    wanted = [message for _ in range(5) for message in append(log, 3)]
    with pa.OSFile(str(tmp_path / DIRECTORY / f"{0:020d}.arrows")) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
    assert table["value"].to_pylist() == [message[2] for message in wanted]
    log.close()


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(vfs: Vfs) -> None:
    log = open_log(vfs)
    append(log, 1, size_bytes=20_000)
    append(log, 1, size_bytes=20_000)
    assert log.segment_count == 2
    piece = log.view().slice(1, end=2, bytes_max=10)
    assert piece is not None
    assert piece.length > 20_000
    log.close()


def test_one_flush_serves_all_that_waits_and_the_next_one_the_rest() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for _ in range(10):
        append(log)
    task = log.flush()
    assert task is not None
    task.run()
    append(log)
    assert log.flush() is None, "one at a time"
    assert log.flushed_end == 0, "not before the log is told"
    log.flushed(task)
    assert (log.flushed_end, log.log_end) == (10, 11)
    assert open_log(disk.crash_clone()).log_end == 10
    flush(log)
    assert log.flushed_end == 11
    assert log.flush() is None


def test_a_memory_log_is_the_same_log() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs)
    wanted = [message for number in range(30) for message in append(log, 2, number, size_bytes=100)]
    assert read_slices(vfs, log.view()) == wanted
    piece = log.view().slice(0, end=60, bytes_max=1)
    assert piece is not None
    assert vfs.open(piece.path).fileno() is None


def test_a_slice_is_whole_batches_up_to_the_committed_end() -> None:
    log = open_log(MemoryVfs())
    for _ in range(3):
        append(log, 4)
    view = log.view()
    piece = view.slice(5, end=8, bytes_max=10**6)
    assert piece is not None
    assert (piece.base_offset, piece.end_offset) == (4, 8)
    assert view.slice(8, end=8, bytes_max=10**6) is None
    assert view.slice(5, end=7, bytes_max=10**6) is None, "the batch is not committed as a whole"
    assert view.slice(12, end=12, bytes_max=1) is None


def test_offsets_out_of_range_say_what_there_is() -> None:
    log = open_log(MemoryVfs())
    append(log, 10)
    flush(log)
    give_up_before(log, 4)
    for offset in (3, 11):
        with pytest.raises(RemoteError, match="from 4 up to, but not including, 10") as caught:
            log.view().slice(offset, end=10, bytes_max=1)
        assert caught.value.code == "offset_out_of_range"
        assert caught.value.details == {"log_start": 4, "log_end": 10}
    with pytest.raises(RemoteError):
        list(log.view().batches(3, 5))


def test_time_lookup_finds_the_first_message_at_or_after(vfs: Vfs) -> None:
    log = open_log(vfs)
    for number in range(60):
        append(log, 2, number // 3 * 1000, size_bytes=150)
    flush(log)
    assert log.segment_count > 3
    view = log.view()
    for number in range(20):
        assert view.offset_at(number * 1000, end=120) == number * 6
        assert view.offset_at(number * 1000 - 1, end=120) == number * 6
    assert view.offset_at(19_001, end=120) == 120
    assert view.offset_at(0, end=120) == 0
    assert view.offset_at(15_000, end=50) == 50, "never beyond the end that was asked for"
    log.close()


def test_a_clock_that_steps_back_an_hour_keeps_time_in_order() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    hour_us = 3_600_000_000
    now_us = 10 * hour_us
    wanted = append(log, 2, now_us)
    wanted += append(log, 2, now_us - hour_us)
    log.tick(now_us - hour_us)
    flush(log)
    log = open_log(disk.crash_clone(), now_us=now_us - hour_us)
    assert log.last_timestamp_us == now_us
    wanted += append(log, 2, now_us - hour_us + 1)
    wanted += append(log, 1, now_us + 5)
    assert [message[1] for message in wanted] == [now_us] * 6 + [now_us + 5]
    assert log.view().offset_at(now_us, end=7) == 0
    assert log.view().offset_at(now_us + 1, end=7) == 6


def test_out_of_order_appends_are_programmer_errors() -> None:
    log = open_log(MemoryVfs())
    append(log, 2, 1000)
    for data, header in (make_batch(3, 1, 1000), make_batch(1, 1, 1000), make_batch(2, 1, 999)):
        with pytest.raises(AssertionError):
            log.append(data, header)
    assert log.log_end == 2


def test_views_stay_as_they_were_while_the_log_goes_on() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs)
    before = append(log, 3)
    view = log.view()
    for _ in range(50):
        append(log, 3, size_bytes=300)
        flush(log)
    assert read_slices(vfs, view) == before
    assert (view.log_end, log.log_end) == (3, 153)


@each_change
def test_readers_in_threads_see_only_whole_batches_while_one_task_writes(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs, LogConfig(segment_bytes=30_000))
    views = [log.view()]
    done = threading.Event()
    mistakes: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                view = views[-1]
                found = read_slices(vfs, view, max(0, view.log_end - 40))
                assert [message[0] for message in found] == list(range(max(0, view.log_end - 40), view.log_end))
        except BaseException as error:  # noqa: BLE001 (it is raised again below)
            mistakes.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(400):
        append(log, 1 + number % 3, number, size_bytes=300)
        views.append(log.view())
        if number % 10 == 0:
            flush(log)
    done.set()
    for thread in threads:
        thread.join()
    assert not mistakes
    log.close()


def test_lineage_says_which_epoch_began_where() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(1)
    append(log, 3)
    log.start_epoch(2)
    log.start_epoch(5)
    append(log, 1)
    flush(log)
    assert log.lineage == (LineageEntry(1, 0), LineageEntry(5, 3))
    again = open_log(disk.crash_clone())
    assert (again.lineage, again.leader_epoch) == (log.lineage, 5)
    with pytest.raises(AssertionError):
        again.start_epoch(5)


def test_a_restarted_leader_never_gets_an_old_epoch_again_after_power_loss() -> None:
    """Elsewhere a restarted leader kept its epoch and reused offsets: silent divergence."""
    disk = MemoryVfs()
    log = open_log(disk)
    log.start_epoch(3)
    append(log, 2)
    flush(log)
    log.start_epoch(4)
    append(log, 2)
    again = open_log(disk.crash_clone(Keep.SYNCED))
    assert (again.log_end, again.leader_epoch) == (2, 3)
    again.start_epoch(4)
    append(again, 1)
    flush(again)
    assert open_log(disk.crash_clone(Keep.SYNCED)).log_end == 2


def test_config_can_change_while_the_log_is_open() -> None:
    log = open_log(MemoryVfs())
    append(log, 1, size_bytes=3000)
    log.configure(LogConfig(segment_bytes=50_000))
    append(log, 1, size_bytes=3000)
    assert log.segment_count == 1
    assert log.config.segment_bytes == 50_000


def test_the_config_of_a_stream_becomes_that_of_its_logs() -> None:
    config = StreamConfig(name="s", subject="s", max_age_ms=5, max_messages=6, max_bytes=7, segment_age_ms=8)
    day_us = 24 * 3_600_000_000
    window_us = 120_000_000
    wanted = LogConfig(config.segment_bytes, 8000, 5000, None, 7, False, window_us, day_us, dedup_window_us=window_us)
    assert LogConfig.of(config) == wanted
    config = structs.replace(config, compact=True, compaction_lag_ms=120_001, tombstone_retention_ms=9)
    assert LogConfig.of(config) == LogConfig(
        config.segment_bytes, 8000, 5000, None, 7, True, 120_001_000, 9000, dedup_window_us=window_us
    )
    assert LogConfig.of(config).following() == LogConfig(
        config.segment_bytes, 8000, None, None, None, True, 120_001_000, 9000, dedup_window_us=window_us
    )
    expiring = LogConfig.of(StreamConfig(name="s", subject="s", compact=True, allow_message_ttl=True))
    assert (expiring.expires, expiring.compact) == (True, True)
    assert (expiring.following().expires, expiring.following().compact) == (True, True)
    assert (expiring.untouched().expires, expiring.untouched().compact) == (False, False)


@pytest.mark.parametrize("choice", [SuspendDeletion.YES, SuspendDeletion.COPYING])
def test_suspended_deletion_leaves_a_log_untouched(choice: SuspendDeletion) -> None:
    limits_of = {"max_age_ms": 5, "max_messages": 6, "max_bytes": 7, "compact": True}
    config = StreamConfig(name="s", subject="s", allow_message_ttl=True, allow_rollup=True, **limits_of)
    suspended = structs.replace(config, suspend_deletion=choice)
    assert LogConfig.of(suspended) == LogConfig.of(config).untouched()
    assert LogConfig.of(structs.replace(suspended, suspend_deletion=SuspendDeletion.NO)) == LogConfig.of(config)


def test_a_closed_log_leaves_no_work_for_the_next_start(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs, SMALL)
    log.start_epoch(1)
    for _ in range(30):
        append(log, 2)
    log.close()
    log.close()
    before = {name: vfs.open(f"{DIRECTORY}/{name}").read_at(0, 10**6) for name in vfs.list(DIRECTORY)}
    again = open_log(vfs, SMALL)
    after = {name: vfs.open(f"{DIRECTORY}/{name}").read_at(0, 10**6) for name in vfs.list(DIRECTORY)}
    assert {name for name in after if before.get(name) != after[name]} <= {"checkpoint"}
    assert again.log_end == 60
    again.close()


def test_a_read_only_log_takes_nothing() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    append(log, 2)
    log.close()
    disk.open(f"{DIRECTORY}/{0:020d}.arrows").write_at(900, b"\xff")
    log = open_log(disk)
    assert log.state is LogState.READ_ONLY
    with pytest.raises(NotWritableError):
        log.append(*make_batch(2, 1, 0))
    with pytest.raises(NotWritableError):
        log.start_epoch(9)
    assert log.flush() is None
    assert log.tick(10**12) is None
    log.close()
