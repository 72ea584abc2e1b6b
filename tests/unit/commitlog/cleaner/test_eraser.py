"""When hidden rows leave the files, and what is left of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from penstock.base import limits
from penstock.batch.codec import BatchProducer, check_rows, read_header
from penstock.commitlog import Cleaning, LiveCounts, Log, LogConfig, Masked, SubjectQueries
from penstock.live.row_set import NONE, RowSet
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults
from penstock.vfs.memory import MemoryVfs
from tests.expiring import Told, append_told, offsets_of
from tests.logs import DIRECTORY, clean_all, finished, flush_and_note, open_log, retain, run, save

S = 1_000_000
NOW = 100 * S
WAIT = limits.ERASURE_WAIT_MS * 1_000
CONFIG = LogConfig(1 << 20, 10 * S)


def sealed(rows: int = 100, config: LogConfig = CONFIG) -> tuple[MemoryVfs, Log]:
    """A sealed segment of large batches, which need no merging, and one row behind it."""
    vfs = MemoryVfs()
    log = open_log(vfs, config, now_us=NOW)
    log.start_epoch(1)
    append_told(log, [Told({"X": "block"}, b"key%d." % at, b"value%d." % at, b"s.%d." % at) for at in range(rows)], NOW)
    log.tick(NOW + 10 * S)  # rolls
    append_told(log, [Told(value=b"last")], NOW + 11 * S)
    commit(log)
    clean_all(log, NOW + 11 * S)
    return vfs, log


def commit(log: Log) -> None:
    save(log)
    flush_and_note(log)
    log.note_committed(log.log_end)


def offsets_in(data: bytes) -> list[int]:
    """The offsets of the rows of batches one after the other."""
    found: list[int] = []
    while data:
        size_bytes = read_header(data).size_bytes
        found += check_rows(data[:size_bytes]).column("offset").to_pylist()
        data = data[size_bytes:]
    return found


def bytes_of(vfs: MemoryVfs, log: Log) -> bytes:
    """All files of the log's segments."""
    if (task := log.dispose()) is not None:
        task.run()
        log.disposed()
    found = []
    for name in vfs.list(log.view().segments[0].path.rpartition("/")[0]):
        file = vfs.open(f"{log.view().segments[0].path.rpartition('/')[0]}/{name}", read_only=True)
        found.append(file.read_at(0, file.size()))
        file.close()
    return b"".join(found)


def test_a_few_hidden_rows_wait_for_others_and_then_go_together() -> None:
    vfs, log = sealed()
    now_us = NOW + 20 * S
    log.hide(RowSet.of([7]))
    assert clean_all(log, now_us) == 0
    assert log.cleaning_due_us(now_us) == now_us + WAIT
    log.hide(RowSet.of([7, 8]))
    assert clean_all(log, now_us + WAIT - 1) == 0
    assert clean_all(log, now_us + WAIT) == 1
    data = bytes_of(vfs, log)
    for gone in (b"value7.", b"key8.", b"s.8."):
        assert gone not in data
    assert b"value9." in data
    assert log.cleaning_due_us(now_us + WAIT) is None


def test_many_hidden_rows_go_at_once() -> None:
    _, log = sealed()
    log.hide(RowSet.of(range(12)))
    assert clean_all(log, NOW + 20 * S) == 0
    log.hide(RowSet.of(range(13)))
    assert clean_all(log, NOW + 20 * S) == 1
    assert offsets_of(log.view()) == list(range(13, 101))


def test_a_secure_deletion_waits_for_no_others() -> None:
    vfs, log = sealed()
    log.hide(RowSet.of([7]), RowSet.of([7]))
    assert clean_all(log, NOW + 20 * S) == 1
    assert b"value7." not in bytes_of(vfs, log)
    log.hide(RowSet.of([7, 9]), RowSet.of([7]))
    assert clean_all(log, NOW + 20 * S) == 0, "the secure one has gone before"


def test_hidden_rows_stay_while_their_message_ids_are_needed_and_while_nothing_may_go() -> None:
    _, log = sealed(config=replace(CONFIG, dedup_window_us=60 * S))
    log.hide(RowSet.of(range(50)))
    assert clean_all(log, NOW + 59 * S) == 0
    log.configure(log.config.untouched())
    assert clean_all(log, NOW + 60 * S) == 0
    log.configure(replace(CONFIG, dedup_window_us=60 * S))
    assert clean_all(log, NOW + 60 * S) == 1


def test_after_a_restart_a_look_finds_that_all_has_gone() -> None:
    vfs, log = sealed()
    log.hide(RowSet.of(range(100)))
    assert clean_all(log, NOW + 20 * S) == 1
    log.close()
    log = open_log(vfs, CONFIG, now_us=NOW + 21 * S)
    log.hide(RowSet.of(range(100)))
    log.note_committed(log.log_end)
    assert clean_all(log, NOW + 22 * S) == 0
    assert not log.wants_cleaning(NOW + 22 * S)
    view = log.view().hiding(log.hidden)
    assert offsets_of(view) == [100]
    assert LiveCounts(view, 101).rows() == 1


def test_once_a_look_has_found_that_all_has_gone_the_file_counts_as_a_whole() -> None:
    vfs, log = sealed()
    hidden = RowSet.of(range(50))
    log.hide(hidden)
    assert clean_all(log, NOW + 20 * S) == 1
    assert log.live_bytes == log.size_bytes
    log = open_log(vfs, CONFIG, now_us=NOW + 20 * S, must_exist=True)
    log.note_committed(log.log_end)
    log.hide(hidden)
    assert log.live_bytes < log.size_bytes  # nobody has looked
    assert clean_all(log, NOW + 20 * S) == 0
    assert log.live_bytes == log.size_bytes


@pytest.mark.parametrize("producer", [None, BatchProducer(9, 1, 1)])
def test_where_all_rows_are_hidden_a_cover_has_only_offset_and_timestamp(producer: BatchProducer | None) -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, CONFIG, now_us=NOW)
    log.start_epoch(1)
    told = [Told({"X": "block"}, b"key.", b"value.", b"subject.")] * 3
    append_told(log, told, NOW) if producer is None else append_told(log, told, NOW, producer)
    log.start_epoch(2)
    append_told(log, [Told()], NOW)
    log.tick(NOW + 10 * S)
    append_told(log, [Told()], NOW + 11 * S)
    commit(log)
    log.hide(RowSet.of([0, 1, 2]))
    assert clean_all(log, NOW + 20 * S) == 1
    header, data = next(iter(log.view().batches(0, 1)))
    assert (header.base_offset, header.end_offset, header.leader_epoch) == (0, 3, 1)
    assert (header.producer_id, header.producer_sequence) == ((0, 0) if producer is None else (9, 1))
    (row,) = check_rows(data).to_pylist()
    assert (row["offset"], row["subject"], row["key"], row["value"], row["headers"]) == (2, "", None, None, None)
    found = bytes_of(vfs, log)
    assert not [one for one in (b"key.", b"value.", b"subject.", b"block") if one in found]
    view = log.view().hiding(log.hidden)
    assert offsets_of(view) == [3, 4]
    slice_ = view.readable(3, end=5, bytes_max=1)
    assert slice_ == view.slice(3, end=5, bytes_max=1), "what has no hidden row any more is sent from the file"


@pytest.mark.parametrize("hidden_before", [(), (3,)], ids=["none was hidden", "another was hidden"])
def test_a_view_from_before_a_deletion_shows_no_cover_once_the_segment_is_rewritten(
    hidden_before: tuple[int, ...],
) -> None:
    log = open_log(MemoryVfs(), CONFIG, now_us=NOW)
    log.start_epoch(1)
    append_told(log, [Told({"X": "block"}, b"key.", b"value.", b"subject.")] * 3, NOW, BatchProducer(9, 1, 1))
    append_told(log, [Told()] * 2, NOW)
    log.tick(NOW + 10 * S)
    append_told(log, [Told()], NOW + 11 * S)
    commit(log)
    log.hide(RowSet.of(hidden_before))
    view = log.view().hiding(log.hidden)
    log.hide(RowSet.of([0, 1, 2, *hidden_before]))
    assert clean_all(log, NOW + 20 * S) == 1
    (cover,) = [row for _, data in log.view().batches(0, 1) for row in check_rows(data).to_pylist()]
    assert (cover["offset"], cover["subject"]) == (2, ""), "replicas get it, as it is stored"

    shown = [one for one in (3, 4, 5) if one not in hidden_before]
    assert offsets_of(view) == shown
    found, offset = list[int](), 0
    while offset < 6:
        piece = view.readable(offset, end=6, bytes_max=1)
        assert piece is not None
        if isinstance(piece, Masked):
            found += offsets_in(piece.data)
        else:
            with closing(view.vfs.open(piece.path, read_only=True)) as file:
                found += offsets_in(file.read_at(piece.position, piece.length))
        offset = piece.end_offset
    assert found == shown


def test_a_consumer_crosses_hidden_rows_of_another_leader_epoch() -> None:
    log = open_log(MemoryVfs(), CONFIG, now_us=NOW)
    for epoch in (1, 2, 3):
        log.start_epoch(epoch)
        append_told(log, [Told()] * 5, NOW)
    log.hide(RowSet.of([1, *range(5, 10), 12]))
    view = log.view().hiding(log.hidden)
    found = []
    offset = 0
    while offset < 15:
        piece = view.readable(offset, end=15, bytes_max=1)
        assert piece is not None
        found.append((piece.base_offset, piece.end_offset, bool(getattr(piece, "data", True))))
        offset = piece.end_offset
    assert found == [(0, 5, True), (5, 10, False), (10, 15, True)], "no batch covers offsets of a later epoch"


def test_a_hidden_row_is_no_current_one_of_its_key() -> None:
    config = replace(CONFIG, compact=True)
    log = open_log(MemoryVfs(), config, now_us=NOW)
    log.start_epoch(1)
    append_told(log, [Told(key=key) for key in (b"a", b"b", b"a", b"b")], NOW)
    log.tick(NOW + 10 * S)
    append_told(log, [Told()], NOW + 11 * S)
    commit(log)
    log.hide(RowSet.of([2]))
    clean_all(log, NOW + 20 * S)
    assert offsets_of(log.view().hiding(log.hidden)) == [0, 3, 4]


def test_a_truncation_gives_the_offsets_of_hidden_rows_to_others() -> None:
    _, log = sealed()
    log.hide(RowSet.of([7, 100]), NONE, log.last_epoch)
    cut = log.truncate(100)
    assert cut is not None
    cut.run()
    log.truncated(cut)
    append_told(log, [Told(value=b"the same, from its leader")], NOW + 12 * S)
    assert offsets_of(log.view().hiding(log.hidden))[-1] == 99, "row 100 is hidden on the leader, too"
    cut = log.truncate(100)
    assert cut is not None
    cut.run()
    log.truncated(cut)
    log.start_epoch(log.leader_epoch + 1)
    append_told(log, [Told(value=b"another")], NOW + 13 * S)
    assert offsets_of(log.view().hiding(log.hidden))[-1] == 100
    assert 7 not in offsets_of(log.view().hiding(log.hidden))


def test_as_many_hidden_rows_as_were_erased_below_the_log_start_are_hidden_all_the_same() -> None:
    vfs, log = sealed()
    erased = RowSet.of([1, 2, 3])
    log.hide(erased, erased)
    clean_all(log, NOW + 40 * S)
    assert log.view().segments[0].erased is not None
    log.raise_start(4)
    later = RowSet.of([7, 8, 9])  # the fold forgets what lies below the log start
    log.hide(later, later)
    readable = log.view().hiding(log.hidden)
    assert isinstance(readable.readable(4, end=log.log_end, bytes_max=1 << 20), Masked)
    assert not {7, 8, 9} & {*offsets_of(readable)}
    clean_all(log, NOW + 60 * S)
    assert b"value7." not in bytes_of(vfs, log)


# Files that no step names any more.


def sealed_on_a_faulty_disk() -> tuple[FaultyVfs, Log]:
    """As `sealed`; the file system can be made to fail."""
    disk, log = sealed()
    log.close()
    vfs = FaultyVfs(disk)
    log = open_log(vfs, CONFIG, now_us=NOW + 12 * S)
    log.note_committed(log.log_end)
    clean_all(log, NOW + 12 * S)
    return vfs, log


def fails(*kinds: FileOperationKind, path_end: str) -> Callable[[FileOperation], FileFault | None]:
    """A plan by which these operations on files of this kind fail."""
    return lambda one: FileFault(errno.EIO) if one.kind in kinds and one.path.endswith(path_end) else None


def left(vfs: FaultyVfs, *suffixes: str) -> list[str]:
    return [name for name in vfs.list(DIRECTORY) if name.endswith(suffixes)]


def remove_what_was_replaced(log: Log) -> None:
    while (task := log.dispose()) is not None:
        task.run()
        log.disposed()


def remove_before(log: Log, offset: int) -> None:
    """Raise the log start, and remove the segments below it."""
    log.raise_start(offset)
    removal = retain(log, NOW + 1_000 * S)
    assert removal is not None
    removal.run()
    log.removed(removal)


@pytest.mark.parametrize("is_failed_first", [True, False], ids=["failed before the deletion", "failed after it"])
def test_a_rewrite_that_could_not_be_removed_counts_as_a_copy_of_what_is_deleted(is_failed_first: bool) -> None:
    vfs, log = sealed_on_a_faulty_disk()
    log.hide(RowSet.of(range(20)))
    cleaning = log.clean(NOW + 20 * S)
    assert isinstance(cleaning, Cleaning)
    secure = RowSet.of([50])

    def delete() -> None:
        log.hide(RowSet.of([*range(20), 50]), secure)
        remove_what_was_replaced(log)

    def fail() -> None:
        vfs.plan = fails(FileOperationKind.SYNC, FileOperationKind.REMOVE, path_end=".cleaned")
        with pytest.raises(OSError, match="Input/output"):
            finished(cleaning)
        vfs.plan = no_faults
        log.cleaned(cleaning, NOW + 20 * S)

    for step in (fail, delete) if is_failed_first else (delete, fail):
        step()
    remove_before(log, 100)
    if log.unerased(secure) is None:
        assert not left(vfs, ".cleaned")
    remove_what_was_replaced(log)
    assert log.unerased(secure) is None
    assert not left(vfs, ".cleaned")


def test_a_rewrite_that_a_truncation_has_voided_counts_as_a_copy_of_what_is_deleted() -> None:
    vfs, log = sealed_on_a_faulty_disk()
    log.hide(RowSet.of(range(20)))
    cleaning = finished(log.clean(NOW + 20 * S))
    cut = log.truncate(100)
    log.cleaned(cleaning, NOW + 20 * S)
    run(log, cut)
    assert left(vfs, ".cleaned")
    append_told(log, [Told()], NOW + 30 * S)
    commit(log)
    secure = RowSet.of([50])
    log.hide(secure, secure)
    remove_before(log, 100)
    remove_what_was_replaced(log)
    assert log.unerased(secure) is None
    assert not left(vfs, ".cleaned")


def test_an_unfinished_subject_index_counts_as_a_copy_of_what_is_deleted() -> None:
    vfs, log = sealed_on_a_faulty_disk()
    vfs.plan = fails(FileOperationKind.SYNC, FileOperationKind.REMOVE, path_end=".subjects.new")
    assert SubjectQueries(log.view(), 100).last("s.7.") == 7
    vfs.plan = no_faults
    assert left(vfs, ".subjects.new")
    secure = RowSet.of([7])
    log.hide(secure, secure)
    assert log.unerased(secure) is not None
    clean_all(log, NOW + 20 * S)
    remove_what_was_replaced(log)
    assert log.unerased(secure) is None
    assert not left(vfs, ".subjects.new")


def test_a_sweep_leaves_the_rewrite_that_is_under_way() -> None:
    vfs, log = sealed_on_a_faulty_disk()
    log.hide(RowSet.of(range(20)))
    cleaning = log.clean(NOW + 20 * S)
    assert cleaning is not None
    cleaning.run()
    secure = RowSet.of([50])
    log.hide(RowSet.of([*range(20), 50]), secure)
    remove_what_was_replaced(log)
    assert log.cleaned(finished(cleaning), NOW + 20 * S)
    assert clean_all(log, NOW + 20 * S) == 1
    remove_what_was_replaced(log)
    assert log.unerased(secure) is None
    assert offsets_of(log.view())[0] == 20
    assert not left(vfs, ".cleaned")


def test_hidden_rows_count_for_the_limit_in_bytes_while_they_cannot_be_erased() -> None:
    """A full disk has no room for a rewrite: retention, which needs none, makes some."""
    vfs = FaultyVfs(MemoryVfs(), no_faults)
    log = open_log(vfs, replace(CONFIG, segment_bytes=20_000, max_bytes=60_000), now_us=NOW)
    log.start_epoch(1)
    for at in range(0, 400, 20):
        append_told(log, [Told(value=b"." * 900, subject=b"s.%d" % row) for row in range(at, at + 20)], NOW)
    commit(log)
    log.hide(RowSet.of(range(390)))
    assert retain(log, NOW + 20 * S) is None
    assert (log.log_start, log.live_bytes < 60_000 < log.size_bytes) == (0, True)
    vfs.plan = fails(FileOperationKind.WRITE, path_end=".cleaned")
    for second in range(20, 920, 60):
        while (cleaning := log.clean(NOW + second * S)) is not None:
            with suppress(OSError):
                finished(cleaning)
            log.cleaned(cleaning, NOW + second * S)
        if (removal := retain(log, NOW + second * S)) is not None:
            removal.run()
            log.removed(removal)
    assert log.live_bytes == log.size_bytes < 90_000
    assert log.log_start > 300
    vfs.plan = no_faults
    clean_all(log, NOW + 20_000 * S)
    assert log.live_bytes < 20_000
