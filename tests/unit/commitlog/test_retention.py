"""Exact retention, removal of segments, and when a log wants to be woken."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig, LogState
from penstock.vfs.faulty import FaultyVfs, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.logs import DIRECTORY, append, flush, give_up_before, open_log, read_slices, retain

SECOND_US = 1_000_000


def segments(disk: MemoryVfs) -> list[int]:
    return [int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows")]


def tick(log: Log, now_us: int) -> None:
    if (removal := retain(log, now_us)) is not None:
        removal.run()


def test_max_age_keeps_exactly_the_messages_that_are_young_enough() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=4096, max_age_us=10 * SECOND_US))
    wanted = [message for second in range(20) for message in append(log, 2, second * SECOND_US, size_bytes=300)]
    flush(log)
    for now_us, start in ((10 * SECOND_US, 0), (15 * SECOND_US, 10), (16 * SECOND_US + 1, 14), (27 * SECOND_US, 34)):
        tick(log, now_us)
        assert log.log_start == start, now_us
        assert read_slices(disk, log.view()) == wanted[start:]
    assert segments(disk)[0] > 0
    assert segments(disk)[0] <= 34 < segments(disk)[0] + 10


def test_max_messages_keeps_exactly_so_many() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=4096, max_messages=7))
    for number in range(30):
        append(log, 1 + number % 3, number, size_bytes=200)
        flush(log)
        tick(log, (number + 1) * SECOND_US)
        assert log.log_start == max(0, log.log_end - 7)
    assert log.segment_count <= 3


def test_max_bytes_keeps_the_newest_batches_that_fit() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=8192, max_bytes=5000))
    sizes = []
    for number in range(25):
        before = log.size_bytes - log.segment_count * SCHEMA_BYTES
        append(log, 1, number, size_bytes=100 * (number % 5))
        sizes.append(log.size_bytes - log.segment_count * SCHEMA_BYTES - before)
    flush(log)
    tick(log, SECOND_US)
    kept = sum(sizes[log.log_start :])
    # A segment's schema message counts, too.
    assert kept <= 5000
    assert kept + sizes[log.log_start - 1] > 5000 - 2 * SCHEMA_BYTES
    assert segments(disk)[0] > 0


def test_the_newest_batch_is_kept_whatever_max_bytes_says() -> None:
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=4096, max_bytes=10))
    for _ in range(3):
        append(log, 1, size_bytes=3000)
    flush(log)
    tick(log, SECOND_US)
    assert (log.log_start, log.log_end) == (2, 3)


def test_only_what_is_flushed_is_given_up() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=4096, max_messages=1))
    for _ in range(4):
        append(log, 1)
    flush(log)
    for _ in range(4):
        append(log, 1)
    tick(log, SECOND_US)
    assert log.log_start == 4
    assert open_log(disk.crash_clone()).log_start == 4


def test_when_everything_is_too_old_the_space_comes_back() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=10**6, max_age_us=SECOND_US))
    append(log, 10, size_bytes=1000)
    flush(log)
    tick(log, 5 * SECOND_US)
    assert (log.log_start, log.log_end, log.size_bytes) == (10, 10, SCHEMA_BYTES)
    assert segments(disk) == [10]
    assert log.view().slice(10, end=10, bytes_max=1) is None
    wanted = append(log, 1, 6 * SECOND_US)
    flush(log)
    again = open_log(disk.crash_clone(), now_us=0)
    assert (again.log_start, again.log_end) == (10, 11)
    assert read_slices(disk.crash_clone(), again.view()) == wanted


def test_log_start_never_goes_back_after_a_crash() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for _ in range(20):
        append(log, 1, size_bytes=900)
    flush(log)
    removal = give_up_before(log, 7)
    assert removal is not None
    removal.run()
    for keep in (Keep.SYNCED, Keep.ALL):
        assert open_log(disk.crash_clone(keep)).log_start == 7
    assert give_up_before(log, 3) is None
    assert log.log_start == 7
    removal = give_up_before(log, 10**6)
    assert removal is not None
    assert log.log_start == 20


def test_a_removal_that_a_crash_cut_short_is_finished_at_the_next_start() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = [message for _ in range(20) for message in append(log, 1, size_bytes=900)]
    flush(log)
    assert len(segments(disk)) > 5
    removal = give_up_before(log, 15)
    assert removal is not None
    log.checkpoint()
    again = open_log(disk)
    assert again.log_start == 15
    rest = retain(again, 0)
    assert rest is not None
    rest.run()
    assert segments(disk)[1] > 15 >= segments(disk)[0]
    assert read_slices(disk, again.view()) == wanted[15:]


def test_a_segment_that_is_removed_before_its_index_was_written_leaves_nothing() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    append(log, 3, size_bytes=900)
    flush(log)
    append(log, 1, size_bytes=900)  # rolls
    removal = give_up_before(log, 3)
    assert removal is not None
    removal.run()
    flush(log)
    assert [int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith((".index", ".arrows"))] == [3, 3]


def test_a_reader_of_a_removed_segment_is_told_that_it_is_out_of_range() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    for _ in range(20):
        append(log, 1, size_bytes=900)
    flush(log)
    view = log.view()
    removal = give_up_before(log, 15)
    assert removal is not None
    removal.run()
    with pytest.raises(RemoteError, match="removed by retention") as caught:
        view.slice(0, end=20, bytes_max=100)
    assert caught.value.code == "offset_out_of_range"
    with pytest.raises(RemoteError, match="removed by retention"):
        list(view.batches(0, 20))


def test_segments_roll_by_age_so_that_retention_can_follow() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=10**6, segment_age_us=60 * SECOND_US))
    append(log, 1, 100 * SECOND_US)
    tick(log, 160 * SECOND_US - 1)
    assert log.segment_count == 1
    tick(log, 160 * SECOND_US)
    assert log.segment_count == 2
    append(log, 1, 170 * SECOND_US)
    append(log, 1, 231 * SECOND_US)
    assert log.segment_count == 3, "an append does not wait for the tick"


def test_retention_looks_nothing_up_while_nothing_can_be_too_old_or_too_much() -> None:
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=10**6, max_age_us=60 * SECOND_US, max_messages=5))
    assert log.tick(50 * SECOND_US) is None
    append(log, 3, 100 * SECOND_US)
    append(log, 2, 130 * SECOND_US)
    flush(log)
    assert log.tick(160 * SECOND_US) is None
    assert retain(log, 160 * SECOND_US + 1) is not None
    assert log.log_start == 3
    append(log, 4, 131 * SECOND_US)
    flush(log)
    assert log.tick(161 * SECOND_US) is None, "a second has not passed"
    assert retain(log, 162 * SECOND_US) is not None, "too many messages"
    assert log.log_start == 4


def test_one_retention_at_a_time_and_none_by_rules_that_have_changed() -> None:
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=4096, max_messages=2))
    append(log, 9)
    flush(log)
    retention = log.tick(SECOND_US)
    assert retention is not None
    assert log.tick(9 * SECOND_US) is None
    retention.run()
    log.configure(LogConfig(segment_bytes=4096, max_messages=5))
    assert log.apply_retention(retention) is None
    assert log.log_start == 0
    assert retain(log, 10 * SECOND_US) is not None
    assert log.log_start == 4
    late = log.tick(20 * SECOND_US)
    assert late is None
    log.configure(LogConfig(segment_bytes=4096, max_messages=1))
    late = log.tick(20 * SECOND_US)
    assert late is not None
    log.close()
    late.run()
    assert log.apply_retention(late) is None
    assert log.log_start == 4


def test_what_comes_while_retention_looks_up_is_kept_and_grows_old_in_its_time() -> None:
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=4096, max_age_us=60 * SECOND_US))
    append(log, 3, 100 * SECOND_US)
    flush(log)
    retention = log.tick(200 * SECOND_US)
    assert retention is not None
    append(log, 2, 200 * SECOND_US)
    flush(log)
    retention.run()
    log.apply_retention(retention)
    assert (log.log_start, log.log_end) == (3, 5)
    tick(log, 201 * SECOND_US)
    assert log.log_start == 3
    tick(log, 260 * SECOND_US)
    assert log.log_start == 3
    tick(log, 261 * SECOND_US)
    assert log.log_start == 5


def test_the_task_of_a_log_asks_no_file_for_retention() -> None:
    """A lost index costs a scan of its whole segment; that is for a disk thread."""
    disk = MemoryVfs()
    log = open_log(disk)
    for number in range(20):
        append(log, 1, number * SECOND_US, size_bytes=900)
    log.close()
    for path in [path for path in disk.files() if path.endswith(".index")]:
        disk.remove(path)
    vfs = FaultyVfs(disk)
    log = open_log(vfs, LogConfig(segment_bytes=4096, max_age_us=10 * SECOND_US, max_messages=18, max_bytes=15_000))
    read: list[str] = []
    vfs.watcher = lambda operation: read.append(operation.path) if operation.kind is FileOperationKind.READ else None
    retention = log.tick(26 * SECOND_US)
    assert retention is not None
    assert read == []
    retention.run()
    assert read != []
    read.clear()
    removal = log.apply_retention(retention)
    assert (log.log_start, read) == (16, [])
    assert removal is not None


def test_the_checkpoint_is_synced_at_most_once_a_second_and_only_if_it_changed() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LogConfig(segment_bytes=10**6))
    append(log, 3)
    flush(log)
    log.tick(SECOND_US // 2)
    assert log.flush() is None
    log.tick(SECOND_US)
    flush(log)
    log.tick(3 * SECOND_US)
    assert log.flush() is None
    # The checkpoint itself survives: nothing is left to scan, so nothing is cut even if the tail were torn.
    assert open_log(disk.crash_clone()).log_end == 3


def test_a_clock_that_steps_back_does_not_stop_retention() -> None:
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=4096, max_messages=2), now_us=10**12)
    for _ in range(5):
        append(log, 1)
    flush(log)
    tick(log, 10**12 - 3600 * SECOND_US)
    assert log.log_start == 0
    tick(log, 10**12 - 3599 * SECOND_US)
    assert log.log_start == 3


def test_retention_leaves_the_file_to_the_sync_that_is_at_it(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    config = LogConfig(segment_bytes=1 << 20, max_age_us=10)
    log = open_log(vfs, config)
    append(log, 1, 1)
    flush(log)
    log.close()
    log = open_log(vfs, config)
    log.start_epoch(log.leader_epoch + 1)
    sync = log.flush()  # of the lineage; slow
    assert sync is not None
    removal = retain(log, 1_000 * SECOND_US)
    assert removal is not None
    removal.run()
    sync.run()
    log.flushed(sync)
    assert log.state is LogState.WRITABLE
    append(log, 1, 2_000 * SECOND_US)
    flush(log)
    log.close()
    assert len([path for path in (tmp_path / DIRECTORY).iterdir() if path.name.endswith((".arrows", ".index"))]) == 2


def test_what_is_not_committed_is_kept() -> None:
    log = open_log(MemoryVfs(), LogConfig(4096, max_messages=1))
    append(log, 9)
    flush(log)
    for now_us, committed_end, kept_from in ((10**12, 3, 3), (10**13, 20, 8)):
        retention = log.tick(now_us, committed_end)
        assert retention is not None
        retention.run()
        log.apply_retention(retention)
        assert log.log_start == kept_from
