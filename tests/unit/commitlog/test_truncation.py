"""A follower cuts off what its leader does not have, or begins anew where its leader's log begins."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import (
    LineageEntry,
    Log,
    LogConfig,
    LogCutError,
    LogState,
    LogView,
    NotWritableError,
    StorageFailedError,
)
from penstock.commitlog.files.files import index_path, segment_path
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.commitlog.segment.segment_scan import rebuild_entries
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from tests.extent import each_change
from tests.logs import (
    DIRECTORY,
    SMALL,
    Message,
    append,
    flush,
    flush_and_note,
    give_up_before,
    make_batch,
    open_log,
    read_batches,
    read_slices,
    retain,
    run,
    save,
)

WIDE = LogConfig(segment_bytes=100_000)


def filled(disk: MemoryVfs | FaultyVfs, batches: int = 24, config: LogConfig = SMALL) -> tuple[Log, list[Message]]:
    """Batches of two rows, three epochs; the last third is not flushed."""
    log = open_log(disk, config)
    wanted: list[Message] = []
    for number in range(batches):
        if number % 10 == 0:
            log.start_epoch(number // 10 + 1)
        wanted += append(log, 2, number, size_bytes=500)
        if number == 2 * batches // 3:
            flush_and_note(log)
    return log, wanted


def check(disk: MemoryVfs, log: Log, wanted: list[Message]) -> None:
    """The log is `wanted`, goes on, and is the same after a power loss and after a killed process."""
    assert (log.state, log.damage) == (LogState.WRITABLE, ())
    assert log.flushed_end == log.log_end
    assert read_slices(disk, log.view()) == wanted
    for keep in (Keep.SYNCED, Keep.ALL):
        again = open_log(disk.crash_clone(keep))
        assert (again.state, again.log_start, again.log_end) == (LogState.WRITABLE, log.log_start, log.log_end)
        assert (again.lineage, again.last_timestamp_us) == (log.lineage, log.last_timestamp_us)
        assert (again.leader_epoch, again.cuts) == (log.leader_epoch, ())
        assert read_slices(disk, again.view()) == wanted
    for rows in (3, 1, 2):
        wanted = wanted + append(log, rows, 10**6, size_bytes=700)
    assert read_slices(disk, log.view()) == wanted
    assert read_batches(log.view(), log.log_start, log.log_end) == wanted
    save(log)
    again = open_log(disk.crash_clone())
    assert (again.state, again.log_end, again.committed_end) == (LogState.WRITABLE, log.log_end, log.committed_end)
    assert read_slices(disk, again.view()) == wanted


@pytest.mark.parametrize("end", [0, 1, 2, 3, 7, 8, 15, 20, 31, 32, 33, 34, 40, 46, 47])
@pytest.mark.parametrize("config", [SMALL, WIDE], ids=["small segments", "one segment"])
def test_everything_from_the_end_on_goes(end: int, config: LogConfig) -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk, config=config)
    log.note_committed(30)
    run(log, log.truncate(end))
    cut = end - end % 2  # where the batch begins that holds it
    assert log.log_end == cut
    assert log.committed_end == min(30, cut)
    assert log.last_timestamp_us == (wanted[cut - 1][1] if cut else 0)
    assert log.lineage == tuple(one for one in (LineageEntry(1, 0), (2, 20), (3, 40)) if one[1] < cut)
    assert log.leader_epoch == log.last_epoch == (log.lineage[-1].leader_epoch if cut else 0)
    check(disk, log, wanted[:cut])


def test_nothing_is_to_be_cut_beyond_the_end() -> None:
    log, _ = filled(MemoryVfs())
    assert log.truncate(log.log_end) is None
    assert log.truncate(10**9) is None
    assert log.state is LogState.WRITABLE


def test_a_cut_never_goes_below_the_start() -> None:
    disk = MemoryVfs()
    log, _ = filled(disk)
    flush(log)
    removal = give_up_before(log, 20)
    assert removal is not None
    removal.run()
    run(log, log.truncate(3))
    assert (log.log_start, log.log_end) == (20, 20)
    assert log.last_epoch == 1, "what it had is known"
    check(disk, log, [])


def test_a_cut_in_the_batch_that_holds_the_start_leaves_nothing_of_it() -> None:
    disk = MemoryVfs()
    log, _ = filled(disk)
    flush(log)
    give_up_before(log, 21)
    run(log, log.truncate(21))
    assert (log.log_start, log.log_end) == (20, 20)
    check(disk, log, [])


def test_a_log_that_is_at_rest_can_be_cut() -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk)
    log.close()
    log = open_log(disk)
    assert not log.is_awake
    run(log, log.truncate(12))
    assert not log.is_awake
    check(disk, log, wanted[:12])


def test_the_log_takes_nothing_while_it_is_cut() -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk)
    task = log.truncate(10)
    assert task is not None
    assert log.state is LogState.TRUNCATING
    with pytest.raises(NotWritableError, match="truncating"):
        append(log)
    with pytest.raises(NotWritableError):
        log.append_fetched(make_batch(48, 1, 100)[0])
    with pytest.raises(NotWritableError):
        log.start_epoch(9)
    with pytest.raises(NotWritableError):
        log.truncate(4)
    assert log.flush() is None
    assert not log.rest()
    assert (log.tick(10**12), log.due_us(0)) == (None, None)
    log.note_flushed()
    log.note_committed(40)
    with pytest.raises(AssertionError):
        log.close()
    assert read_slices(disk, log.view(), end=10) == wanted[:10], "what stays can be read"
    task.run()
    log.truncated(task)
    assert log.committed_end == 0
    check(disk, log, wanted[:10])


def test_a_cut_while_a_flush_is_under_way_is_a_programmer_error() -> None:
    log, _ = filled(MemoryVfs())
    assert log.flush() is not None
    with pytest.raises(AssertionError):
        log.truncate(4)


def test_a_look_of_retention_that_comes_back_after_a_cut_changes_nothing() -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk)
    flush(log)
    log.configure(LogConfig(4096, max_messages=5))
    look = log.tick(10**12)
    assert look is not None
    look.run()
    run(log, log.truncate(10))
    assert log.apply_retention(look) is None
    assert (log.log_start, log.log_end) == (0, 10)
    assert read_slices(disk, log.view()) == wanted[:10]


@pytest.mark.parametrize("start", [0, 5, 20, 48, 49, 1000])
@pytest.mark.parametrize("given_up", [0, 20, 21, 48])
def test_a_log_begins_anew_anywhere(start: int, given_up: int) -> None:
    disk = MemoryVfs()
    log, _ = filled(disk)
    flush(log)
    log.note_committed(44)
    removal = give_up_before(log, given_up)
    run(log, log.reset(start))
    assert (log.log_start, log.log_end, log.committed_end, log.segment_count) == (start, start, start, 1)
    assert (log.lineage, log.last_epoch, log.leader_epoch, log.last_timestamp_us) == ((), 0, 0, 0)
    assert log.size_bytes == SCHEMA_BYTES
    if removal is not None:
        removal.run()  # it comes late: the log has removed its files, and may have made one of that name
        log.removal_failed(removal)
    assert retain(log, 10**15) is None
    names = [name for name in disk.list(DIRECTORY) if files_of_segments(name)]
    assert names == [segment_path("", start)[1:]]
    check(disk, log, [])


def files_of_segments(name: str) -> bool:
    return name.endswith((".arrows", ".index")) or "cut" in name


def test_a_log_that_began_anew_takes_what_its_leader_has() -> None:
    log, _ = filled(MemoryVfs())
    run(log, log.reset(100))
    log.append_fetched(make_batch(100, 2, 0, leader_epoch=1)[0])
    assert (log.lineage, log.last_epoch) == ((LineageEntry(1, 100),), 1)


# Views that were taken before.


def readings(disk: MemoryVfs, view: LogView) -> list[object]:
    """What each way of reading the whole of a view comes to: its rows, or the name of the error."""
    ways: dict[str, Callable[[], object]] = {
        "slices": lambda: read_slices(disk, view),
        "batches": lambda: read_batches(view, view.log_start, view.log_end),
        "reverse": lambda: read_batches(view, view.log_start, view.log_end, reverse=True),
        "time": lambda: [view.offset_at(number, end=view.log_end) for number in range(0, 24, 3)],
        "size": lambda: [view.start_keeping(size) for size in range(1, 20_000, 3_000)],
    }
    found: list[object] = []
    for way in ways.values():
        try:
            found.append(way())
        except (LogCutError, FileNotFoundError) as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("at_rest", [False, True])
@pytest.mark.parametrize("regrown", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_views_of_before_get_what_was_there_or_an_error(at_rest: bool, regrown: bool, anew: bool) -> None:
    for end in (0, 3, 8, 20, 33, 47):
        disk = MemoryVfs()
        log, wanted = filled(disk)
        if at_rest:
            log.close()
            log = open_log(disk)
        before = log.view()
        good = readings(disk, before)
        task = log.reset(60) if anew else log.truncate(end)
        assert task is not None
        during = log.view()
        assert read_slices(disk, during, end=0 if anew else end) == (wanted[: end - end % 2] if not anew else [])
        task.run()
        log.truncated(task)
        kept = [] if anew else wanted[: log.log_end]
        if regrown:
            for number in range(30):
                kept = kept + append(log, 1 + number % 3, 10**6, size_bytes=400)
        for view in (before, during):
            slices, *others = readings(disk, view)
            assert slices in ("LogCutError", "FileNotFoundError", wanted[: end - end % 2])
            for found, sound in zip(others, good[1:], strict=True):
                assert found in ("LogCutError", sound)
            assert others[:2] == ["LogCutError"] * 2, "what is gone cannot be read"
        log.damage_found(segment_path(DIRECTORY, 0), 10**6, "the file ends there")
        assert (log.state, log.damage) == (LogState.WRITABLE, ())
        assert read_slices(disk, log.view()) == kept
        flush(log)
        again = open_log(disk.crash_clone())
        assert (again.state, again.log_end) == (LogState.WRITABLE, log.log_end)


@pytest.mark.parametrize("at_rest", [False, True])
def test_a_view_of_before_feels_every_cut(at_rest: bool) -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk)
    if at_rest:
        log.close()
        log = open_log(disk)
    view = log.view()
    for end in (46, 40, 12):
        append(log, 2, 10**6, size_bytes=500)
        run(log, log.truncate(end))
    append(log, 30, 10**6, size_bytes=9_000)
    slices, *others = readings(disk, view)
    assert slices in ("LogCutError", "FileNotFoundError", wanted[:12])
    assert others[:2] == ["LogCutError"] * 2
    assert (log.state, log.damage) == (LogState.WRITABLE, ())


# What is in the way.


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.SUBSET])
def test_a_cut_that_fails_vouches_for_nothing_that_was_never_synced(keep: Keep) -> None:
    """The new segment of a roll is not synced by itself; the checkpoint of the cut took its schema message for that."""
    config = LogConfig(segment_bytes=100_000, segment_age_us=1_000)
    for seed in range(20):
        memory = MemoryVfs()
        disk = FaultyVfs(memory)
        log = open_log(disk, config)
        append(log, 2, 0)
        flush_and_note(log)
        log.tick(10**9)
        removal = give_up_before(log, 2)
        assert removal is not None
        removal.run()
        assert [one.base_offset for one in log.view().segments] == [2]
        task = log.reset(99)
        disk.plan = lambda one: (
            FileFault(errno.EIO) if one.kind is FileOperationKind.SYNC and one.path.endswith(".arrows") else None
        )
        with pytest.raises(OSError, match="Input/output error") as raised:
            task.run()
        log.truncate_failed(task, raised.value)
        again = open_log(memory.crash_clone(keep, Random(seed) if keep is Keep.SUBSET else None), config)
        assert (again.state, again.damage) == (LogState.WRITABLE, ())


@pytest.mark.parametrize("at_rest", [False, True])
@pytest.mark.parametrize("content", [None, b"", bytes(5_000), b"\xa5" * 999])
@pytest.mark.parametrize("end", [3, 20, 47])
def test_an_index_that_is_damaged_or_gone_is_not_in_the_way(at_rest: bool, content: bytes | None, end: int) -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk)
    if at_rest:
        save(log)
        log.close()
        log = open_log(disk)
    for path in [path for path in disk.files() if path.endswith(".index")]:
        disk.open(path).truncate(0)
        disk.open(path).write_at(0, content or b"")
        if content is None:
            disk.remove(path)
    run(log, log.truncate(end))
    check(disk, log, wanted[: end - end % 2])


def test_a_damaged_or_fenced_log_is_not_cut() -> None:
    disk = MemoryVfs()
    log, _ = filled(disk)
    log.damage_found(segment_path(DIRECTORY, 0), 2000, "gone")
    for cut in (lambda: log.truncate(40), lambda: log.reset(99)):
        with pytest.raises(NotWritableError, match="read_only"):
            cut()
    log, _ = filled(MemoryVfs())
    task = log.flush()
    assert task is not None
    log.flush_failed(task, OSError(errno.EIO, "broken"))
    with pytest.raises(NotWritableError, match="fenced"):
        log.truncate(4)


def test_damage_below_the_cut_is_found_before_anything_changes() -> None:
    disk = MemoryVfs()
    log, _ = filled(disk, config=WIDE)
    disk.open(segment_path(DIRECTORY, 0)).write_at(3000, b"\xff\xff")
    before = {path: disk.open(path).read_at(0, 10**7) for path in disk.files()}
    task = log.truncate(40)
    assert task is not None
    with pytest.raises(CorruptionError) as caught:
        task.run()
    log.truncate_failed(task, caught.value)
    assert {path: disk.open(path).read_at(0, 10**7) for path in disk.files()} == before
    assert log.state is LogState.READ_ONLY
    assert len(log.damage) == 1
    assert log.log_end == 48


@each_change
def test_a_disk_that_fails_at_any_operation_leaves_a_log_that_goes_on_or_is_fenced() -> None:
    for anew in (False, True):
        fenced = unchanged = 0
        for number in range(200):
            disk = MemoryVfs()
            vfs = FaultyVfs(disk)
            log, wanted = filled(vfs)
            task = log.reset(70) if anew else log.truncate(11)
            assert task is not None
            vfs.plan = nth(number, FileFault(errno.EIO))
            try:
                task.run()
            except (OSError, RemoteError, CorruptionError) as error:
                vfs.plan = no_faults
                log.truncate_failed(task, error)
            else:
                vfs.plan = no_faults
                if task.left is not None and log.state is LogState.TRUNCATING:
                    log.truncated(task)
                assert log.log_end in (10, 70)
                if number > 100:
                    break
            if log.state is LogState.FENCED:
                fenced += 1
                assert "truncated" in log.notices[-1]
                with pytest.raises(NotWritableError):
                    append(log)
            elif log.log_end == 48:
                unchanged += 1
                assert read_slices(disk, log.view()) == wanted
                flush(log)
                log.note_flushed()
            again = open_log(disk.crash_clone(Keep.ALL))
            assert (again.state, again.damage) == (LogState.WRITABLE, ())
            assert read_slices(disk, again.view()) == wanted[again.log_start : again.log_end]
            assert again.log_end >= (0 if anew else 10)
            log.close()
            assert open_log(disk).damage == (), "what it knew is not said again"
        assert fenced > 5
        assert unchanged > 5


def test_a_full_disk_before_the_cut_is_no_reason_to_fence() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log, wanted = filled(vfs)
    task = log.truncate(11)
    assert task is not None
    vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.path.endswith("lineage.new") else None
    with pytest.raises(OSError, match="No space") as caught:
        task.run()
    log.truncate_failed(task, caught.value)
    vfs.plan = no_faults
    assert (log.state, log.log_end) == (LogState.WRITABLE, 48)
    wanted += append(log, 2, 100)
    flush_and_note(log)
    assert read_slices(disk, open_log(disk.crash_clone()).view()) == wanted
    run(log, log.truncate(11))
    assert read_slices(disk, log.view()) == wanted[:10]


def test_a_segment_that_was_removed_under_the_log_fences_it() -> None:
    disk = MemoryVfs()
    log, _ = filled(disk, config=WIDE)
    task = log.truncate(40)
    assert task is not None
    disk.remove(segment_path(DIRECTORY, 0))
    with pytest.raises((OSError, RemoteError)) as caught:
        task.run()
    log.truncate_failed(task, caught.value)
    with pytest.raises(StorageFailedError):
        log.close()


def test_the_index_of_the_segment_that_is_cut_names_what_is_left() -> None:
    disk = MemoryVfs()
    log, wanted = filled(disk, config=WIDE)
    flush(log)
    save(log)
    run(log, log.truncate(20))
    assert disk.open(index_path(segment_path(DIRECTORY, 0))).size() == 64 * 10
    opened: list[FileOperation] = []
    vfs = FaultyVfs(disk.crash_clone(), watcher=lambda operation: opened.append(operation))
    again = open_log(vfs)
    assert read_slices(vfs, again.view()) == wanted[:20]
    assert (
        sum(one.length for one in opened if one.kind is FileOperationKind.READ and one.path.endswith(".arrows"))
        < 40_000
    )


def test_a_folder_of_this_machine_is_cut_as_one_in_memory_is(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs)
    log.start_epoch(1)
    wanted = [message for number in range(20) for message in append(log, 2, number, size_bytes=500)]
    flush(log)
    wanted += append(log, 2, 100)
    for end in (33, 32, 5):
        run(log, log.truncate(end))
        wanted = wanted[: end - end % 2]
        assert read_slices(vfs, log.view()) == wanted
        wanted += append(log, 2, 1000)
        assert log.log_end == len(wanted)
    log.close()
    log = open_log(vfs)
    assert read_slices(vfs, log.view()) == wanted
    run(log, log.reset(50))
    append(log, 2, 2000)
    log.close()
    again = open_log(vfs)
    assert (again.state, again.log_start, again.log_end) == (LogState.WRITABLE, 50, 52)
    again.close()


# Readers that are at it meanwhile.


def indexes_that_lie(disk: MemoryVfs, log: Log) -> list[str]:
    """Index files on the disk that name what their segment does not hold, or whose segment is gone."""
    found = []
    sizes = {segment.path: segment for segment in log.view().segments}
    for path in [path for path in disk.files() if path.endswith(".index")]:
        owner = sizes.get(path.removesuffix(".index") + ".arrows")
        content = disk.open(path).read_at(0, disk.open(path).size())
        sound = b""
        if owner is not None:
            file = disk.open(owner.path)
            base, position, end = owner.base_offset, owner.size_bytes, owner.end_offset
            sound = rebuild_entries(disk, file, base_offset=base, end_position=position, end_offset=end)[0].data
        # What a flush writes behind entries that are gone leaves a hole before it.
        places = range(0, len(content), ENTRY_BYTES)
        if any(
            content[at : at + ENTRY_BYTES] not in (sound[at : at + ENTRY_BYTES], bytes(ENTRY_BYTES)) for at in places
        ):
            found.append(path)
    return found


@each_change
@pytest.mark.parametrize("at_rest", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_no_reader_leaves_an_index_of_what_was_cut_off(at_rest: bool, anew: bool) -> None:
    """The cut comes between any two steps of a reader that misses the indexes, and the log grows again."""
    end, config = 5, LogConfig(segment_bytes=8_000)  # some four batches
    step = cuts = 0
    while step == cuts:
        memory = MemoryVfs()
        disk = FaultyVfs(memory)
        log, wanted = filled(disk, 11, config)
        flush_and_note(log)
        if at_rest:
            save(log)
            log.close()
            log = open_log(disk, config)
        view = log.view()
        for path in [path for path in memory.files() if path.endswith(".index")]:
            memory.remove(path)
        kept = [] if anew else wanted[: end - end % 2]
        left = step

        def cut(operation: FileOperation, log: Log = log, kept: list[Message] = kept, disk: FaultyVfs = disk) -> None:
            nonlocal left, cuts
            left -= 1
            if left >= 0:
                return
            disk.watcher = None
            cuts += 1
            run(log, log.reset(0) if anew else log.truncate(end))
            for number in range(6):
                kept += append(log, 1 + number % 3, 10**6, size_bytes=400)
            flush_and_note(log)

        disk.watcher = cut
        for start in (2, 0):
            with contextlib.suppress(LogCutError, RemoteError, OSError):
                read_batches(view, start, view.log_end)
        disk.watcher = None
        assert indexes_that_lie(memory, log) == [], f"cut after step {step}"
        if cuts > step:
            assert (log.state, log.damage) == (LogState.WRITABLE, ())
            again = open_log(memory.crash_clone(Keep.ALL), config)
            assert read_slices(disk, log.view()) == kept
            assert (again.state, again.damage, again.log_end) == (LogState.WRITABLE, (), log.log_end)
        step += 1
    assert step > 20
