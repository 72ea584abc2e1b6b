"""What a view answers without a file, and what it may rely on while the log goes on."""

from __future__ import annotations

import errno
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Flush, Log, LogConfig, LogCutError, LogState, LogView
from penstock.commitlog.files.index import ENTRY_BYTES, PackedEntries
from penstock.commitlog.segment.segment_scan import RebuiltIndexes
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import MemoryVfs
from tests.logs import append, clean_all, flush, open_log, read_batches, read_slices, run, save


def test_in_memory_says_whether_a_slice_asks_a_file() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs)
    for _ in range(12):
        append(log, 1, size_bytes=900)
    assert log.segment_count > 2
    assert all(log.view().in_memory(offset) for offset in range(12)), "nothing is flushed, no index file is there yet"
    flush(log)
    view = log.view()
    assert not view.in_memory(0)
    assert view.in_memory(11)
    assert view.in_memory(12), "nothing is there yet"
    opened: list[str] = []
    vfs.watcher = lambda operation: opened.append(operation.path) if operation.kind is FileOperationKind.OPEN else None
    for offset in range(13):
        opened.clear()
        view.slice(offset, end=12, bytes_max=1)
        assert view.in_memory(offset) == (not opened), offset


def test_in_memory_is_true_of_offsets_that_are_refused_at_once() -> None:
    log = open_log(MemoryVfs())
    append(log, 1)
    assert log.view().in_memory(-1)
    assert log.view().in_memory(99)


def test_a_lookup_survives_that_a_flush_ends_meanwhile() -> None:
    """The log's task forgets a sealed segment's entries at any step of a reader's thread."""
    reached, step = True, 0
    while reached:
        step += 1
        log = open_log(MemoryVfs())
        for _ in range(8):
            append(log, 1, size_bytes=900)
        task = log.flush()
        assert task is not None
        task.run()
        view = log.view()
        reached = _slice_with_flush_at(step, view, log, task)
    assert step > 50, "it was tried at every one"


def _slice_with_flush_at(step: int, view: LogView, log: Log, task: Flush) -> bool:
    left = step

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("commitlog/view.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                log.flushed(task)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        piece = view.slice(0, end=8, bytes_max=10)
    finally:
        sys.settrace(before)
    assert piece is not None
    assert (piece.base_offset, piece.end_offset) == (0, 1)
    return left <= 0


def test_an_index_that_cannot_be_written_is_rebuilt_once() -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = open_log(vfs)
    wanted = [message for _ in range(12) for message in append(log, 1, size_bytes=900)]
    flush(log)
    for path in [path for path in disk.files() if path.endswith(".index")]:
        disk.remove(path)

    def full(operation: FileOperation) -> FileFault | None:
        return FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.WRITE else None

    vfs.plan = full
    read: list[str] = []
    vfs.watcher = lambda operation: read.append(operation.path) if operation.kind is FileOperationKind.READ else None
    view = log.view()
    assert view.slice(0, end=12, bytes_max=1) is not None
    assert any(path.endswith(".arrows") for path in read)
    read.clear()
    for each in (view, log.view()):
        assert each.slice(0, end=12, bytes_max=1) is not None
        assert each.offset_at(0, end=12) == 0
    assert not any(path.endswith(".arrows") for path in read)
    assert read_slices(vfs, view) == wanted


def entries(count: int) -> PackedEntries:
    return PackedEntries(bytes(count * ENTRY_BYTES))


def test_rebuilt_indexes_are_bounded_and_the_oldest_goes_first() -> None:
    rebuilt = RebuiltIndexes(bytes_max=10 * ENTRY_BYTES)
    made: list[str] = []

    def use(path: str, count: int) -> None:
        def rebuild() -> PackedEntries:
            made.append(path)
            return entries(count)

        assert rebuilt.entries(path, rebuild).count == count

    for path in "abacab":
        use(path, 4)
    use("large", 11)
    use("large", 11)
    use("a", 4)
    assert made == ["a", "b", "c", "a", "b", "large", "large"]


def test_bytes_between_offsets_are_those_of_the_batches_in_the_files() -> None:
    log = open_log(MemoryVfs())
    for number in range(12):
        append(log, 2, size_bytes=100 * number)
    view = log.view()
    assert log.segment_count > 2
    sizes = [view.bytes_between(one, other) for one, other in pairwise(range(0, 26, 2))]
    assert all(size > 200 * number for number, size in enumerate(sizes[:-1]))
    assert sum(sizes[:-1]) + view.bytes_between(22, 24) == view.bytes_between(0, 24)
    assert view.bytes_between(0, 24) + SCHEMA_BYTES == log.size_bytes
    assert view.bytes_between(4, 5) == 0, "the batch stays"
    assert view.bytes_between(24, 24) == 0
    for start, end in ((0, 25), (-1, 3)):
        with pytest.raises(RemoteError):
            view.bytes_between(start, end)


def test_a_view_that_starts_later_shows_nothing_of_what_came_before() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs)
    messages = [message for _ in range(6) for message in append(log, 2, size_bytes=900)]
    view = log.view().starting_at(5)
    assert read_slices(vfs, view) == messages[5:]
    assert view.offset_at(0, end=12) == 5
    with pytest.raises(RemoteError) as refused:
        view.slice(4, end=12, bytes_max=1)
    assert refused.value.details["log_start"] == 5
    with pytest.raises(RemoteError):
        list(view.batches(4, 12))


@pytest.mark.parametrize("rolls", [False, True])
def test_a_view_from_before_a_segment_was_sealed_is_told_to_read_again_once_it_was_rewritten(*, rolls: bool) -> None:
    """The file is gone, and no corruption is reported: a log must not become read-only by a reader that took long.

    `rolls`: it was sealed once before, and a truncation made it the active one again.
    """
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=20_000))
    for _ in range(15):
        append(log)
    if rolls:
        log.configure(LogConfig(segment_bytes=4_096))
        append(log)
        log.configure(LogConfig(segment_bytes=20_000))
    view = log.view()
    assert log.segment_count == 1 + rolls
    if rolls:
        save(log)
        run(log, log.truncate(15))
        assert log.segment_count == 1
    for _ in range(30):
        append(log)
    save(log)
    log.note_committed(log.log_end)
    assert clean_all(log)
    assert len(read_batches(view, 0, 15)) == 15
    disposal = log.dispose()
    assert disposal is not None
    disposal.run()
    log.disposed()
    with pytest.raises(LogCutError, match="read again"):
        read_batches(view, 0, 15)
    assert (log.state, log.damage) == (LogState.WRITABLE, ())
    assert len(read_batches(log.view(), 0, 45)) == 45
