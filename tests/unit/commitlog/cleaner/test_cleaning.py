"""Sealed segments are written anew, with the same rows in fewer batches; readers of before go on."""

from __future__ import annotations

import pytest

from penstock.commitlog import Cleaning, Log, LogConfig, LogState, LogView
from penstock.vfs.memory import Keep, MemoryVfs
from tests.logs import (
    DIRECTORY,
    Message,
    append,
    clean_all,
    finished,
    flush_and_note,
    messages_in,
    open_log,
    read_slices,
    run,
    save,
)

CONFIG = LogConfig(segment_bytes=10_000)


def grown(vfs: MemoryVfs, batches: int = 60, config: LogConfig = CONFIG) -> tuple[Log, list[Message]]:
    """A log of several segments, all of it committed."""
    log = open_log(vfs, config)
    log.start_epoch(1)
    messages = [message for number in range(batches) for message in append(log, 1 + number % 3, number * 10)]
    save(log)
    log.note_committed(log.log_end)
    return log, messages


def rows(view: LogView) -> list[Message]:
    """All messages, by another way than slices."""
    return [one for _, data in view.batches(view.log_start, view.log_end) for one in messages_in(data)]


def dispose(log: Log) -> None:
    task = log.dispose()
    assert task is not None
    assert log.is_disposing
    task.run()
    log.disposed()


def test_small_batches_become_one() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    assert log.segment_count > 3
    before, size_bytes, names = log.view(), log.size_bytes, vfs.list(DIRECTORY)
    assert clean_all(log) == log.segment_count - 1
    assert not log.wants_cleaning(0)
    after = log.view()
    headers = [header for header, _ in after.batches(0, log.log_end)]
    sealed = [one.end_offset for one in after.segments[:-1]]
    assert [header.end_offset for header in headers[: len(sealed)]] == sealed
    assert read_slices(vfs, after) == read_slices(vfs, before) == messages
    assert log.size_bytes == sum(one.size_bytes for one in after.segments) < size_bytes / 2
    assert after.bytes_between(0, log.log_end) == log.size_bytes - after.batch_at(0)[1].position
    assert set(names) < set(vfs.list(DIRECTORY))
    dispose(log)
    assert [name for name in vfs.list(DIRECTORY) if name.endswith(".arrows")] == [
        one.path.rpartition("/")[2] for one in after.segments
    ]
    # Whoever has a view of before reads the new files.
    assert rows(before) == messages
    assert read_slices(vfs, before) == messages
    assert before.first_at(300, end=log.log_end) == after.first_at(300, end=log.log_end)
    assert before.start_keeping(3_000) == after.start_keeping(3_000)
    again = open_log(vfs.crash_clone(Keep.ALL), CONFIG, must_exist=True)
    assert again.state is LogState.WRITABLE
    assert rows(again.view()) == messages


def test_a_reader_goes_on_with_the_file_that_it_has_begun() -> None:
    vfs = MemoryVfs()
    log, _ = grown(vfs)
    segment = log.view().segments[0]
    batches = log.view().batches(0, log.log_end)
    first, _ = next(batches)
    backwards = log.view().batches(0, segment.end_offset, reverse=True)
    last, _ = next(backwards)
    clean_all(log)
    dispose(log)
    later = [header for header, _ in batches]
    assert [first.end_offset, *(one.end_offset for one in later)] == [*(one.base_offset for one in later), log.log_end]
    before = [header for header, _ in backwards]
    assert [last.base_offset, *(one.base_offset for one in before)] == [*(one.end_offset for one in before), 0]
    assert log.state is LogState.WRITABLE
    assert [name for name in vfs.list(DIRECTORY) if name.startswith("0" * 20) and name.endswith(".index")] == [
        "00000000000000000000.1.index"
    ]


def test_nothing_is_merged_across_epochs() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, LogConfig(segment_bytes=60_000))
    messages = []
    for epoch in (1, 2, 5):
        log.start_epoch(epoch)
        messages += [message for _ in range(30) for message in append(log, 1, epoch)]
    save(log)
    log.note_committed(log.log_end)
    clean_all(log)
    headers = [header for header, _ in log.view().batches(0, log.log_end)]
    assert [(one.leader_epoch, one.base_offset) for one in headers[:2]] == [(1, 0), (2, 30)]
    assert len(headers) < 40
    assert rows(log.view()) == messages


@pytest.mark.parametrize("what", ["uncommitted", "unflushed", "active"])
def test_only_what_is_sealed_committed_and_on_the_disk_is_cleaned(what: str) -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    for number in range(8 if what == "active" else 60):
        append(log, 1, number)
    if what != "unflushed":
        save(log)
    if what != "uncommitted":
        log.note_committed(log.log_end)
    assert not log.wants_cleaning(0)
    assert log.clean(0) is None


def test_large_batches_are_left_alone() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, LogConfig(segment_bytes=400_000))
    log.start_epoch(1)
    for number in range(20):
        append(log, 1, number, size_bytes=100_000)
    save(log)
    log.note_committed(log.log_end)
    names = vfs.list(DIRECTORY)
    assert log.wants_cleaning(0)
    assert clean_all(log) == 0
    assert vfs.list(DIRECTORY) == names


def test_a_cut_makes_void_what_is_under_way() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    cleaning = log.clean(0)
    assert cleaning is not None
    cleaning.run()
    run(log, log.truncate(5))
    finished(cleaning)
    assert not log.cleaned(cleaning, 0)
    messages = messages[: log.log_end]
    for number in range(40):
        messages += append(log, 1, 10_000 + number)
    save(log)
    log.note_committed(log.log_end)
    assert clean_all(log)
    dispose(log)
    assert rows(log.view()) == messages
    assert rows(open_log(vfs.crash_clone(Keep.ALL), CONFIG).view()) == messages


def test_a_cut_takes_all_generations() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    clean_all(log)
    keeper = log.view().segments[1]
    run(log, log.truncate(keeper.base_offset + 1))  # within the merged batch: all of it goes
    assert log.log_end == keeper.base_offset
    left = [name for name in vfs.list(DIRECTORY) if name.endswith((".arrows", ".cleaned"))]
    assert left == ["00000000000000000000.1.arrows", "00000000000000000000.arrows"]
    messages = messages[: log.log_end]
    assert rows(open_log(vfs.crash_clone(Keep.ALL), CONFIG).view()) == messages
    for number in range(40):
        messages += append(log, 1, 10_000 + number)
    dispose_if_any = log.dispose()
    if dispose_if_any is not None:
        dispose_if_any.run()
        log.disposed()
    flush_and_note(log)
    assert rows(log.view()) == messages
    assert rows(open_log(vfs.crash_clone(Keep.ALL), CONFIG).view()) == messages


def listed(vfs: MemoryVfs) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in vfs.list(DIRECTORY)]


def test_what_was_written_anew_is_read_before_a_start_removes_what_it_was_made_of() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    clean_all(log)
    segment = log.view().segments[0]
    assert segment.path.endswith(".1.arrows")
    old = segment.path.replace(".1.arrows", ".arrows")
    after = vfs.crash_clone(Keep.ALL)
    assert rows(open_log(after, CONFIG).view()) == messages
    assert old not in listed(after), "it is sound, and the older one is not needed"
    after = vfs.crash_clone(Keep.ALL)
    file = after.open(segment.path)
    position = segment.size_bytes // 2
    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1]))
    file.sync()
    damaged = open_log(after, CONFIG)
    assert damaged.state is LogState.READ_ONLY
    assert [one.file for one in damaged.damage] == [segment.path]
    assert old in listed(after), "the only copy that is whole"


def test_damage_is_told_and_kept() -> None:
    vfs = MemoryVfs()
    log, _ = grown(vfs)
    segment = log.view().segments[0]
    file = vfs.open(segment.path)
    position = segment.size_bytes // 2
    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1]))
    names = vfs.list(DIRECTORY)
    assert not log.cleaned(finished(log.clean(0)), 0)
    assert log.state is LogState.READ_ONLY
    assert [one.file for one in log.damage] == [segment.path]
    assert set(names) - set(vfs.list(DIRECTORY)) == {"00000000000000000000.index"}  # it would vouch for the damage
    assert not log.wants_cleaning(0)


def test_what_was_not_finished_goes_at_the_next_start() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    cleaning = finished(log.clean(0))
    assert isinstance(cleaning, Cleaning)
    clone = vfs.crash_clone(Keep.ALL)
    assert cleaning.cleaned_path.rpartition("/")[2] in clone.list(DIRECTORY)
    again = open_log(clone, CONFIG, must_exist=True)
    assert not any(name.endswith((".cleaned", ".1.index")) for name in clone.list(DIRECTORY))
    assert rows(again.view()) == messages
    assert log.cleaned(cleaning, 0)
    clone = vfs.crash_clone(Keep.ALL)  # both are there
    again = open_log(clone, CONFIG, must_exist=True)
    assert again.notices == ()
    assert [name for name in clone.list(DIRECTORY) if name.startswith("0" * 20)] == [
        "00000000000000000000.1.arrows",
        "00000000000000000000.1.index",
    ]
    assert rows(again.view()) == messages
