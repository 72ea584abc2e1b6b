"""Index writes that fail: the index file never has a hole, and look-ups over a hole of an older version are right."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.base import limits
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig
from penstock.commitlog.files.index import ENTRY_BYTES, pack_entry
from penstock.commitlog.verify.verifying import verify_log
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import MemoryVfs
from tests.damage import content, write
from tests.logs import DIRECTORY, append, flush, make_batch, open_log, read_slices, run, save

WIDE = LogConfig(segment_bytes=1 << 20)
SEGMENT = f"{DIRECTORY}/{0:020d}.arrows"
INDEX = f"{DIRECTORY}/{0:020d}.index"


def setup(config: LogConfig = WIDE) -> tuple[MemoryVfs, FaultyVfs, Log]:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = open_log(vfs, config)
    log.start_epoch(1)
    return disk, vfs, log


def expected_index(batches: int) -> bytes:
    """What the index says of so many batches of one row: all are of the same size."""
    data, _ = make_batch(0, 1, 0)
    return b"".join(
        pack_entry(SCHEMA_BYTES + number * len(data), make_batch(number, 1, number)[1]) for number in range(batches)
    )


def is_sound(disk: MemoryVfs) -> bool:
    """Whether `penstock verify` of the files would say so."""
    return verify_log(disk, DIRECTORY).is_sound


def index_flush(log: Log) -> None:
    """A flush that brings the index what it lacks."""
    task = log.flush(with_index=True)
    assert task is not None
    task.run()
    log.flushed(task)
    log.note_flushed()


@pytest.mark.parametrize("written_bytes", [0, 1, 64, 100])
@pytest.mark.parametrize("kind", [FileOperationKind.WRITE, FileOperationKind.OPEN])
def test_what_a_failed_index_write_left_out_is_written_with_the_next(
    kind: FileOperationKind, written_bytes: int
) -> None:
    disk, vfs, log = setup()
    for number in range(12):
        append(log, 1, number)
        if number in {3, 4, 7}:
            vfs.plan = nth(0, FileFault(errno.ENOSPC, written_bytes), kind, path_end=".index")
        index_flush(log)
        vfs.plan = no_faults
        assert is_sound(disk)
    assert content(disk, INDEX) == expected_index(12)


def test_what_a_failed_write_before_a_rest_left_out_is_written_later() -> None:
    disk, vfs, log = setup()
    append(log, 1, 0)
    flush(log)
    vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".index")
    assert log.rest()
    vfs.plan = no_faults
    append(log, 1, 1)
    index_flush(log)
    assert content(disk, INDEX) == expected_index(2)


def test_a_sealed_segment_gets_what_its_index_lacks() -> None:
    disk, vfs, log = setup()
    for number in range(3):
        append(log, 1, number)
    vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".index")
    index_flush(log)
    vfs.plan = no_faults
    log.configure(LogConfig(segment_bytes=1))
    append(log, 1, 3)
    index_flush(log)
    assert log.segment_count == 2
    assert content(disk, INDEX) == expected_index(3)
    assert is_sound(disk)


def test_an_index_that_lacks_much_gets_it_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_GAP_BATCHES_MAX", 4)
    disk, vfs, log = setup()
    vfs.plan = lambda operation: _full_index(operation)
    for number in range(10):
        append(log, 1, number)
        index_flush(log)
    vfs.plan = no_faults
    sizes = []
    for number in range(10, 14):
        append(log, 1, number)
        index_flush(log)
        sizes.append(len(content(disk, INDEX)) // ENTRY_BYTES)
        assert content(disk, INDEX) == expected_index(sizes[-1])
    assert sizes == [4, 8, 13, 14]


def _full_index(operation: FileOperation) -> FileFault | None:
    is_index = operation.kind is FileOperationKind.WRITE and operation.path.endswith(".index")
    return FileFault(errno.ENOSPC) if is_index else None


def test_after_a_start_that_could_not_write_it_the_index_has_no_hole() -> None:
    disk, _, log = setup()
    for number in range(3):
        append(log, 1, number)
        save(log)
    disk.remove(INDEX)
    vfs = FaultyVfs(disk.crash_clone())
    vfs.plan = _full_index
    log = open_log(vfs, WIDE)
    vfs.plan = no_faults
    append(log, 1, 3)
    index_flush(log)
    assert isinstance(vfs.inner, MemoryVfs)
    assert content(vfs.inner, INDEX) == expected_index(4)


def test_after_a_cut_that_could_not_write_it_the_index_has_no_hole() -> None:
    disk, vfs, log = setup()
    for number in range(5):
        append(log, 1, number)
    flush(log)
    assert INDEX.rpartition("/")[2] not in disk.list(DIRECTORY)
    vfs.plan = _full_index
    run(log, log.truncate(3))
    vfs.plan = no_faults
    for number in range(3, 5):
        append(log, 1, number)
    index_flush(log)
    assert content(disk, INDEX) == expected_index(5)


def test_entries_of_batches_that_were_cut_off_do_not_come_back() -> None:
    """Neither could the index be written after the cut, nor be removed: what it says of these batches is not so."""
    disk, _, log = setup()
    for number in range(3):
        append(log, 1, number)
    save(log)
    log.close()
    write(disk, INDEX, 3 * ENTRY_BYTES, expected_index(7)[5 * ENTRY_BYTES :])  # as of batches that are gone
    vfs = FaultyVfs(disk)
    vfs.plan = lambda operation: FileFault(errno.EIO) if operation.path == INDEX and _changes(operation) else None
    log = open_log(vfs, WIDE)
    vfs.plan = no_faults
    append(log, 1, 3)
    index_flush(log)
    assert content(disk, INDEX) == expected_index(4)


def _changes(operation: FileOperation) -> bool:
    return operation.kind in {FileOperationKind.WRITE, FileOperationKind.TRUNCATE, FileOperationKind.REMOVE}


def _zeroed(disk: MemoryVfs, first: int, end: int) -> None:
    write(disk, INDEX, first * ENTRY_BYTES, bytes((end - first) * ENTRY_BYTES))


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(("first", "end"), [(0, 1), (0, 19), (5, 6), (3, 12), (19, 20)])
def test_look_ups_over_a_hole_are_right(is_sealed: bool, first: int, end: int) -> None:
    """An older version left such holes."""
    disk, _, log = setup()
    wanted = [append(log, 1, 10 * number)[0] for number in range(20)]
    save(log)
    if is_sealed:
        log.configure(LogConfig(segment_bytes=1))
        append(log, 1, 1_000)
        save(log)
    log.close()
    _zeroed(disk, first, end)
    assert not is_sound(disk)

    def asked(ask: Callable[[Log], object]) -> object:
        return ask(open_log(disk.crash_clone(), WIDE))

    for offset, time_us, _ in wanted:
        for time in (time_us, time_us - 5):
            assert asked(lambda log: log.view().offset_at(time, end=20)) == offset  # noqa: B023
        assert asked(lambda log: log.view().batch_at(offset)[1].base_offset) == offset  # noqa: B023
    clone = disk.crash_clone()
    assert read_slices(clone, open_log(clone, WIDE).view())[:20] == wanted
