"""Queries by subject of a log, and what becomes of the files that answer them."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from penstock.base import limits
from penstock.commitlog import (
    Log,
    LogConfig,
    LogState,
    Scrub,
    SubjectIndexing,
    SubjectQueries,
    SubjectRow,
    subject_queries,
    subject_rows,
)
from penstock.commitlog.subjects import writing
from penstock.commitlog.subjects.layout import TRAILER_BYTES
from penstock.commitlog.subjects.summing import SubjectSum
from penstock.commitlog.verify import dump
from penstock.commitlog.verify.verifying import verify_log
from penstock.hot.crc import crc32c
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import content, flip, write
from tests.encryption import encryption_keys
from tests.logs import (
    DIRECTORY,
    clean_all,
    encrypted_logs,
    finished,
    flush_and_note,
    give_up_before,
    open_log,
    run,
    save,
)
from tests.subjects import append_on, rows_on

CONFIG = LogConfig(segment_bytes=4_000)
INDEXED = replace(CONFIG, indexes_subjects=True)


def filled(vfs: MemoryVfs | FaultyVfs, config: LogConfig = CONFIG, batches: int = 20) -> Log:
    """A log of some segments, all of it committed: each batch on `common`, and on a subject of its own."""
    log = open_log(vfs, config)
    log.start_epoch(1)
    for number in range(batches):
        append_on(log, ["common", f"own.{number}", "common"])
    commit(log)
    return log


def commit(log: Log) -> None:
    save(log)
    log.note_committed(log.log_end)


def indexes(vfs: MemoryVfs) -> list[str]:
    return [name for name in vfs.list(DIRECTORY) if ".subjects" in name]


def sealed_indexes(log: Log) -> list[str]:
    """The names of the indexes that the sealed segments may have."""
    paths = [one.path.removesuffix(".arrows") for one in log.view().segments[:-1]]
    return [f"{path.rpartition('/')[2]}.subjects" for path in paths]


def queries(log: Log) -> SubjectQueries:
    view = log.view()
    return SubjectQueries(view, view.log_end)


def test_a_query_makes_the_indexes_that_it_needs() -> None:
    vfs = MemoryVfs()
    log = filled(vfs)
    assert not indexes(vfs)
    assert queries(log).last("own.19") == 58
    assert not indexes(vfs)  # it is in the active segment
    assert queries(log).last("own.0") == 1
    assert indexes(vfs) == sealed_indexes(log)
    assert queries(log).of("common") == SubjectRow("common", 40, 0, 59)
    assert queries(log).last("absent") is None


def test_the_cleaner_makes_them_before() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    assert indexes(vfs) == sealed_indexes(log)
    assert not log.wants_cleaning(0)


def test_a_rewritten_segment_gets_another_one_and_the_old_one_goes_with_its_segment() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, INDEXED)
    for number in range(200):
        append_on(log, [f"own.{number}"])
    commit(log)
    assert queries(log).count([">"]) == 200  # of the segments before they are cleaned
    before = indexes(vfs)
    view = log.view()
    assert clean_all(log)
    assert set(indexes(vfs)) == {*before, *sealed_indexes(log)}
    disposal = log.dispose()
    assert disposal is not None
    disposal.run()
    log.disposed()
    assert indexes(vfs) == sealed_indexes(log)
    assert not set(before) & set(indexes(vfs))
    for one in (queries(log), SubjectQueries(view, view.log_end)):
        assert [row.subject for row in one.matching(["own.*"], limit=3)] == ["own.0", "own.1", "own.10"]


def test_what_retention_took_away_is_not_found() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    removal = give_up_before(log, 5)  # within the first segment
    assert removal is not None
    removal.run()
    assert queries(log).last("own.0") is None
    assert queries(log).last("own.1") is None
    assert queries(log).of("common") == SubjectRow("common", 37, 5, 59)
    second = log.view().segments[1]
    removal = give_up_before(log, second.end_offset)
    assert removal is not None
    removal.run()
    assert indexes(vfs) == sealed_indexes(log)
    assert queries(log).matching(["own.*"], limit=1)[0].first >= second.end_offset


@pytest.mark.parametrize("end", [2, 30])
def test_a_truncation_takes_the_indexes_of_what_it_takes(end: int) -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    run(log, log.truncate(end))
    assert set(indexes(vfs)) <= set(sealed_indexes(log))
    append_on(log, ["other"] * 30)
    append_on(log, ["other"] * 30)
    commit(log)
    clean_all(log)
    assert indexes(vfs) == sealed_indexes(log)
    assert queries(log).count(["other"]) == 60
    assert queries(log).count([">"]) == log.log_end


def test_a_reset_takes_all_of_them() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    run(log, log.reset(1_000))
    assert not indexes(vfs)


def test_an_index_of_other_messages_is_not_believed() -> None:
    """A version that does not know these files left one behind, of a segment that it truncated and wrote again."""
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    name = indexes(vfs)[0]
    stale = content(vfs, f"{DIRECTORY}/{name}")
    log.close()
    others = MemoryVfs()
    other = open_log(others, INDEXED)
    other.start_epoch(1)
    for number in range(20):
        append_on(other, ["common", f"new.{number}", "common"])
    commit(other)
    other.close()
    others.open(f"{DIRECTORY}/{name}", create=True).write_at(0, stale)
    other = open_log(others, INDEXED, must_exist=True)
    assert queries(other).last("own.0") is None
    assert queries(other).last("new.0") == 1
    other.close()


def test_a_start_removes_what_belongs_to_no_sealed_segment() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    kept = indexes(vfs)
    active = log.view().segments[-1].base_offset
    log.close()
    for name in (f"{active:020}", f"{active + 5:020}", f"{0:020}.3", f"{7:020}"):
        vfs.open(f"{DIRECTORY}/{name}.subjects", create=True)
    vfs.open(f"{DIRECTORY}/{0:020}.subjects.new", create=True)
    log = open_log(vfs, INDEXED, must_exist=True)
    assert not log.notices
    assert indexes(vfs) == kept


def test_damage_is_reported_and_the_index_made_again() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    paths = [f"{DIRECTORY}/{name}" for name in indexes(vfs)]
    sound = [content(vfs, path) for path in paths]
    for path in paths:
        flip(vfs, path, 400)  # in a block
    view = log.view()
    assert SubjectQueries(view, view.log_end).matching(["own.*"], limit=99)[0] == SubjectRow("own.0", 1, 1, 1)
    assert [mistake.file for mistake in view.wrong_indexes] == paths
    assert [content(vfs, path) for path in paths] == sound


def test_one_of_a_later_version_is_kept_aside() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    path = f"{DIRECTORY}/{indexes(vfs)[0]}"
    data = bytearray(content(vfs, path))
    data[-TRAILER_BYTES + 8] = 9
    data[-4:] = crc32c(bytes(data[-TRAILER_BYTES:-4])).to_bytes(4, "little")
    write(vfs, path, 0, bytes(data))
    log.close()
    log = open_log(vfs, INDEXED, must_exist=True)
    assert queries(log).last("own.0") == 1
    assert content(vfs, f"{path}.cut-0") == bytes(data)
    assert not open_log(vfs.crash_clone(Keep.ALL), INDEXED, must_exist=True).notices


def test_a_full_disk_costs_only_time() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = filled(vfs)

    def full(operation: FileOperation) -> FileFault | None:
        is_index = ".subjects" in operation.path and operation.kind is FileOperationKind.WRITE
        return FileFault(errno.ENOSPC) if is_index else None

    vfs.plan = full
    assert queries(log).last("own.0") == 1
    assert queries(log).of("common") == SubjectRow("common", 40, 0, 59)
    log.configure(INDEXED)
    while not isinstance(task := log.clean(0), SubjectIndexing):
        log.cleaned(finished(task), 0)
    with pytest.raises(OSError, match="No space"):
        finished(task)
    log.cleaned(task, 0)
    assert not log.wants_cleaning(0)  # it backs off
    vfs.plan = no_faults
    assert log.cleaning_due_us(0) is not None
    clean_all(log, log.cleaning_due_us(0) or 0)
    assert not log.wants_cleaning(10**12)


def test_a_query_of_a_corrupt_segment_says_so_and_makes_no_index() -> None:
    vfs = MemoryVfs()
    log = filled(vfs)
    flip(vfs, log.view().segments[0].path, 1_500)
    with pytest.raises(Exception, match="is damaged at byte"):
        queries(log).last("own.0")
    assert log.state is LogState.READ_ONLY
    assert sealed_indexes(log)[0] not in indexes(vfs)


def test_an_active_segment_is_read_once() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, LogConfig(segment_bytes=10**6))
    read: list[str] = []
    vfs.watcher = lambda operation: (
        read.append(operation.path)
        if operation.kind is FileOperationKind.READ and ".arrows" in operation.path
        else None
    )
    for number in range(5):
        append_on(log, ["a", f"b.{number}"])
        assert queries(log).of("a") == SubjectRow("a", number + 1, 0, 2 * number)
        count = len(read)
        assert queries(log).of(f"b.{number}") == SubjectRow(f"b.{number}", 1, 2 * number + 1, 2 * number + 1)
        assert len(read) == count
    memory = log.view().segments[-1].subjects.summed
    assert memory is not None
    assert sum(map(len, memory[2])) <= 2 * 6


def test_a_look_up_reads_little() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, LogConfig(segment_bytes=300_000))
    for number in range(600):
        append_on(log, [f"own.{number}.{row}" for row in range(20)])
    commit(log)
    assert queries(log).last("own.0.0") == 0  # makes the indexes
    read: list[str] = []
    vfs.watcher = lambda operation: read.append(f"{operation.kind} {operation.path}")
    assert queries(log).last("absent") is None
    segments = len(log.view().segments) - 1
    assert segments >= 3
    assert len([one for one in read if ".subjects" in one]) <= 3 * segments  # open, a page of the filter, close
    assert not any(".arrows" in one for one in read)


def test_subjects_are_encrypted_where_logs_are() -> None:
    with encrypted_logs():
        vfs = MemoryVfs()
        log = filled(vfs, INDEXED)
        clean_all(log)
        assert queries(log).last("own.0") == 1
        path = f"{DIRECTORY}/{indexes(vfs)[0]}"
        assert b"own.1" not in content(vfs, path)
        plain = EncryptedVfs(vfs, encryption_keys(), lambda _: True).open(path, read_only=True)
        assert plain.read_at(0, 10**6).find(b"subject") > 0


def test_an_older_view_answers_from_a_segment_that_was_rewritten_meanwhile() -> None:
    """The cleaner rewrites the segment while its index is made: the rows of two files would be mixed."""
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, replace(CONFIG, segment_bytes=20_000))
    for number in range(120):
        append_on(log, [f"own.{number}"])
    commit(log)
    view = log.view()

    def cleaned_meanwhile(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.WRITE and operation.path.endswith(".subjects.new"):
            vfs.watcher = None
            clean_all(log)

    vfs.watcher = cleaned_meanwhile
    assert SubjectQueries(view, view.log_end).count(["own.*"]) == 120
    rewritten = view.segments[0].successor
    assert rewritten is not None
    assert [name for name in vfs.list(DIRECTORY) if ".subjects" in name] == sealed_indexes(log)


def test_the_next_match_of_a_filter() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED, batches=40)
    clean_all(log)
    flush_and_note(log)
    assert queries(log).next(["own.3"], 0) == 10
    assert queries(log).next(["own.3"], 11) is None
    assert queries(log).next(["common"], 4) == 5
    assert queries(log).next(["common", "own.*"], 4) == 4
    assert queries(log).next(["nothing.>"], 0) is None


def scrub(log: Log) -> Scrub:
    view = log.view()
    return finished(Scrub(view, view.log_start, view.log_end, log.damage_found))


def test_a_scrub_finds_damage_and_makes_the_index_again() -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    assert not scrub(log).wrong_indexes
    paths = [f"{DIRECTORY}/{name}" for name in indexes(vfs)]
    sound = [content(vfs, path) for path in paths]
    flip(vfs, paths[0], 400)
    vfs.remove(paths[1])
    work = scrub(log)
    assert [mistake.file for mistake in work.wrong_indexes] == paths[:1]
    assert work.damaged == 0
    assert [content(vfs, path) for path in (paths[0], *paths[2:])] == [sound[0], *sound[2:]]


@pytest.mark.parametrize("at", [100, 700, -300, -50, -5])
def test_verify_reports_damage_of_an_index(at: int) -> None:
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    log.close()
    assert verify_log(vfs, DIRECTORY).is_sound
    path = f"{DIRECTORY}/{indexes(vfs)[0]}"
    flip(vfs, path, at % len(content(vfs, path)))
    assert [mistake.file for mistake in verify_log(vfs, DIRECTORY).mistakes] == [path]
    assert any("damage" in row for row in dump.file_rows(vfs, path))


def test_verify_compares_an_index_with_the_rows() -> None:
    """The index is whole, and of this segment; but it says other things of it."""
    vfs = MemoryVfs()
    log = filled(vfs, INDEXED)
    clean_all(log)
    view = log.view()
    first = view.segments[0]
    log.close()
    rows = [*dump.file_rows(vfs, f"{DIRECTORY}/{indexes(vfs)[0]}")]
    assert rows[0]["base_offset"] == 0
    assert SubjectRow(**rows[1]) == SubjectRow("common", first.end_offset // 3 * 2, 0, first.end_offset - 1)  # type: ignore[arg-type]
    total = SubjectSum()
    total.add(rows_on(["other"] * first.end_offset, 0))
    path = f"{DIRECTORY}/{indexes(vfs)[0]}"
    file = vfs.open(path)
    for _ in writing.write(file, total, subject_queries.identity_of(view, first)):
        pass
    found = verify_log(vfs, DIRECTORY).mistakes
    assert [(mistake.file, mistake.expected) for mistake in found] == [(path, "the subjects of the segment")]


def test_only_the_active_segment_is_in_memory() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    for number in range(30):
        append_on(log, ["common", f"own.{number}", "common"])
        assert queries(log).last(f"own.{number}") == 3 * number + 1
    commit(log)
    vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.path.endswith(".subjects.new") else None
    assert queries(log).count([">"]) == 90
    *sealed, active = log.view().segments
    assert len(sealed) > 2
    assert [one.subjects.summed for one in sealed] == [None] * len(sealed)
    assert active.subjects.summed is not None


class GivenUpError(Exception):
    pass


def test_a_query_can_be_given_up_while_an_index_is_made() -> None:
    vfs = MemoryVfs()
    log = filled(vfs)
    told: list[int] = []

    def tell(size_bytes: int) -> None:
        told.append(size_bytes)
        if sum(told) > 4_000:
            raise GivenUpError

    view = log.view()
    with pytest.raises(GivenUpError):
        SubjectQueries(view, view.log_end, tell).count([">"])
    assert not [name for name in indexes(vfs) if name.endswith(".new")]
    assert queries(log).count([">"]) == 60


def test_rows_come_once_though_the_cleaner_merges_batches_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was merged meanwhile may begin below the rows that are left."""
    monkeypatch.setattr(limits, "CLEANING_SLICE_BYTES", 1_500)
    log = filled(MemoryVfs(), LogConfig(segment_bytes=8_000))
    view = log.view()
    found: list[int] = []
    for number, (rows, _) in enumerate(subject_rows(view, 0, view.log_end)):
        found += rows.column(0).to_pylist()
        if not number:
            assert clean_all(log)
    assert found == list(range(view.log_end))


def test_an_index_that_is_exchanged_for_that_of_another_segment_is_not_believed() -> None:
    """Each page and block of it is valid: what was read of the trailer before is compared with the file."""
    vfs = MemoryVfs()
    log = filled(vfs)
    assert queries(log).last("own.0") == 1
    first, second = sealed_indexes(log)[:2]
    data = content(vfs, f"{DIRECTORY}/{second}")
    vfs.open(f"{DIRECTORY}/{first}").truncate(0)
    write(vfs, f"{DIRECTORY}/{first}", 0, data)
    view = log.view()
    asked = SubjectQueries(view, view.log_end)
    assert asked.last("own.0") == 1
    assert [one.position > 0 for one in view.wrong_indexes] == [True]
    assert queries(log).of("common") == SubjectRow("common", 40, 0, 59)
