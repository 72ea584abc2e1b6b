"""Raft's storage through power losses, full disks and flipped bits: what was saved or a refusal, nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.base.errors import CorruptionError, OperationalError, RemoteError
from penstock.raft import (
    Entry,
    EntryKind,
    HardState,
    NotWrittenError,
    RaftMembership,
    RaftStorage,
    Ready,
    Snapshot,
    StoredState,
)
from penstock.raft.records import read_records
from penstock.raft.tasks import LOG_PATH, MARK_PATH, RESERVE_PATH, SNAPSHOT_PATH
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.synced_mark import SyncedMark
from tests.extent import each_change

MEMBERSHIP = RaftMembership((1, 2, 3))
BEGIN = Snapshot(0, 0, MEMBERSHIP, b"")


def entry(index: int, term: int, size_bytes: int = 10) -> Entry:
    return Entry(term, index, EntryKind.COMMAND, bytes([index]) * size_bytes)


def ready(*entries: Entry, state: HardState | None = None, snapshot: Snapshot | None = None) -> Ready:
    return Ready(True, snapshot, entries, state, (), (), ())


Save = Ready | Snapshot
"""What a broker saves: what came, or its own snapshot of what it has."""

STORY: list[Save] = [
    ready(state=HardState(1, 1, 0)),
    ready(entry(1, 1), state=HardState(1, 1, 0)),
    ready(entry(2, 1), entry(3, 1, 700), entry(4, 1)),
    ready(state=HardState(3, 2, 2)),
    ready(entry(3, 3), state=HardState(3, 2, 2)),  # what an earlier leader put there goes
    ready(entry(4, 3, 1_500), entry(5, 3), state=HardState(3, 2, 3)),
    Snapshot(3, 3, MEMBERSHIP, b"three" * 200),
    ready(entry(6, 3), state=HardState(3, 2, 5)),
    ready(entry(11, 4), state=HardState(4, None, 10), snapshot=Snapshot(10, 4, RaftMembership((1, 2)), b"ten")),
    ready(entry(12, 4), state=HardState(4, None, 11)),
    Snapshot(12, 4, MEMBERSHIP, b"twelve"),
    ready(entry(13, 5), state=HardState(5, 3, 12)),
]


def save(storage: RaftStorage, what: Save) -> None:
    task = storage.save_snapshot(what) if isinstance(what, Snapshot) else storage.save(what)
    assert task is not None
    try:
        task.run()
    except Exception as error:
        storage.save_failed(task, error)
        raise
    storage.saved(task)


def essence(state: StoredState) -> tuple:
    """What counts: where the log ends and with what, term and vote; how much of it a snapshot covers does not."""
    log = [(entry.index, entry.term) for entry in state.entries]
    end = log[-1] if log else (state.snapshot.index, state.snapshot.term)
    return end, state.hard_state.term, state.hard_state.vote


def reopened(vfs: MemoryVfs) -> StoredState:
    """What is found, and found again after another crash: opening is repeatable."""
    storage = RaftStorage.open(vfs, BEGIN)
    state = storage.state
    storage.close()
    assert RaftStorage.open(vfs.crash_clone(), BEGIN).state == state
    indexes = [entry.index for entry in state.entries]
    assert indexes == list(range(state.snapshot.index + 1, state.snapshot.index + 1 + len(indexes)))
    return state


def states() -> list[StoredState]:
    """What is stored after each step of the story."""
    storage = RaftStorage.open(MemoryVfs(), BEGIN)
    found = [storage.state]
    for what in STORY:
        save(storage, what)
        found.append(storage.state)
    return found


STATES = states()


@pytest.mark.parametrize("seed", range(10))
def test_power_loss_at_every_boundary(seed: int) -> None:
    memory, random = MemoryVfs(), Random(seed)
    step = crashes = 0

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind not in CHANGES:
            return
        crashes += 1
        for clone in (memory.crash_clone(), memory.crash_clone(Keep.SUBSET, random), memory.crash_clone(Keep.ALL)):
            found = reopened(clone)
            allowed = [STATES[step], STATES[min(step + 1, len(STATES) - 1)]]
            if essence(found) in [essence(state) for state in allowed]:
                continue
            # Of a save that was not finished there may be the first records, or only the snapshot.
            assert found.hard_state[:2] in [state.hard_state[:2] for state in allowed]
            if not found.entries:
                assert found.snapshot in [state.snapshot for state in allowed]
                continue
            assert all(entry in allowed[0].entries + allowed[1].entries for entry in found.entries)
            what = STORY[step]
            assert isinstance(what, Ready)
            first_new = what.entries[0].index
            assert first_new - 1 <= found.entries[-1].index <= allowed[1].entries[-1].index

    vfs = FaultyVfs(memory, watcher=cut_the_power)
    storage = RaftStorage.open(vfs, BEGIN)
    for what in STORY:
        save(storage, what)
        step += 1
        assert essence(reopened(memory.crash_clone())) == essence(STATES[step])
    assert crashes > 60


def test_what_is_stored_is_found() -> None:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory, BEGIN)
    for what, state in zip(STORY, STATES[1:], strict=True):
        save(storage, what)
        assert reopened(memory.crash_clone()) == state


def content(vfs: MemoryVfs, path: str) -> bytes:
    file = vfs.open(path, read_only=True)
    return file.read_at(0, file.size())


def whole() -> MemoryVfs:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory, BEGIN)
    for what in STORY[:8]:
        save(storage, what)
    return memory


WHOLE = whole()


@each_change
@pytest.mark.parametrize("path", [LOG_PATH, SNAPSHOT_PATH])
def test_no_flipped_bit_goes_unnoticed(path: str) -> None:
    data = content(WHOLE, path)
    for position in range(len(data)):
        vfs = WHOLE.crash_clone()
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        vfs.open(path).write_at(0, damaged)
        before = list(vfs.files())
        with pytest.raises((CorruptionError, RemoteError)):
            RaftStorage.open(vfs, BEGIN)
        assert content(vfs, path) == damaged
        assert list(vfs.files()) == before


@each_change
@pytest.mark.parametrize("path", [LOG_PATH, SNAPSHOT_PATH])
def test_no_cut_goes_unnoticed(path: str) -> None:
    for length in range(len(content(WHOLE, path))):
        vfs = WHOLE.crash_clone()
        vfs.open(path).truncate(length)
        with pytest.raises(CorruptionError):
            RaftStorage.open(vfs, BEGIN)


@pytest.mark.parametrize("path", [LOG_PATH, SNAPSHOT_PATH])
def test_no_lost_file_goes_unnoticed(path: str) -> None:
    vfs = WHOLE.crash_clone()
    vfs.remove(path)
    for bootstrap in (BEGIN, None):
        with pytest.raises(CorruptionError):
            RaftStorage.open(vfs, bootstrap)


def test_log_and_mark_lost_with_a_snapshot_left() -> None:
    vfs = WHOLE.crash_clone()
    vfs.remove(LOG_PATH)
    vfs.remove(MARK_PATH)
    with pytest.raises(CorruptionError):
        RaftStorage.open(vfs, BEGIN)


def test_an_older_snapshot_is_noticed() -> None:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory, BEGIN)
    old = content(memory, SNAPSHOT_PATH)
    for what in STORY[:8]:
        save(storage, what)
    memory.remove(SNAPSHOT_PATH)
    memory.open(SNAPSHOT_PATH, create=True).write_at(0, old)
    with pytest.raises(CorruptionError, match="the snapshot at 3"):
        RaftStorage.open(memory, BEGIN)


def test_a_damaged_mark_alone_does_no_harm() -> None:
    for position in range(len(content(WHOLE, MARK_PATH))):
        vfs = WHOLE.crash_clone()
        data = bytearray(content(vfs, MARK_PATH))
        data[position] ^= 0x10
        vfs.open(MARK_PATH).write_at(0, data)
        assert reopened(vfs) == STATES[8]


def _older_mark(vfs: MemoryVfs) -> None:
    """The mark of two records before."""
    vfs.remove(MARK_PATH)
    SyncedMark(vfs, MARK_PATH).move(2)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (lambda vfs: vfs.remove(MARK_PATH), "no file"),
        (lambda vfs: vfs.open(MARK_PATH).truncate(0), "no mark"),
        (lambda vfs: vfs.open(MARK_PATH).write_at(0, bytes(1024)), "no mark"),
        (_older_mark, "a mark at 2: an older file"),
    ],
    ids=["missing", "empty", "zeroed", "older"],
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_without_its_mark_no_log_is_taken_for_whole(
    harm: Callable[[MemoryVfs], None], found: str, is_cut: bool
) -> None:
    """Cut between two records it would look whole, and a vote or an entry would be forgotten."""
    vfs = WHOLE.crash_clone()
    if is_cut:
        last = [record.position for record in read_records(content(vfs, LOG_PATH), LOG_PATH)][-1]
        vfs.open(LOG_PATH).truncate(last)
    harm(vfs)
    before = {path: content(vfs, path) for path in vfs.files()}
    with pytest.raises(CorruptionError, match=rf"raft/synced: .*nothing was cut off.*found {found}"):
        RaftStorage.open(vfs, BEGIN)
    assert {path: content(vfs, path) for path in vfs.files()} == before


def test_a_mark_with_one_damaged_slot_is_told_and_mended() -> None:
    for slot in (0, 1):
        vfs = WHOLE.crash_clone()
        vfs.open(MARK_PATH).write_at(512 * slot + 9, b"\xff\xff")
        storage = RaftStorage.open(vfs, BEGIN)
        assert f"raft/synced: damaged at byte {512 * slot}" in storage.notices[0]
        storage.close()
        again = RaftStorage.open(vfs, BEGIN)
        assert (again.notices, again.state) == ([], STATES[8])


def test_a_torn_tail_is_cut_and_kept() -> None:
    vfs = WHOLE.crash_clone()
    size = len(content(vfs, LOG_PATH))
    vfs.open(LOG_PATH).write_at(size, b"\x20\0\0\0half of a record")
    storage = RaftStorage.open(vfs, BEGIN)
    assert storage.state == STATES[8]
    assert f"raft/log.cut-{size}" in storage.notices[0]
    assert content(vfs, f"raft/log.cut-{size}") == b"\x20\0\0\0half of a record"
    vfs.open(LOG_PATH).write_at(size, b"another half")
    assert f"raft/log.cut-{size}.2" in RaftStorage.open(vfs, BEGIN).notices[0]
    assert content(vfs, f"raft/log.cut-{size}") == b"\x20\0\0\0half of a record"


def test_zeros_at_the_end_are_cut_and_not_kept() -> None:
    vfs = WHOLE.crash_clone()
    vfs.open(LOG_PATH).write_at(len(content(vfs, LOG_PATH)), bytes(700))
    storage = RaftStorage.open(vfs, BEGIN)
    assert storage.state == STATES[8]
    assert len(storage.notices) == 1
    assert not [path for path in vfs.files() if "cut" in path]


@pytest.mark.parametrize("path", [LOG_PATH, SNAPSHOT_PATH])
def test_a_newer_version_is_refused(path: str) -> None:
    vfs = WHOLE.crash_clone()
    vfs.open(path).write_at(4, b"\x02")
    with pytest.raises(RemoteError, match="has version 2; this Penstock reads up to 1"):
        RaftStorage.open(vfs, BEGIN)


@pytest.mark.parametrize("number", range(len(STORY)))
@pytest.mark.parametrize("written_bytes", [0, 1, 40, 10_000])
def test_a_full_disk_leaves_everything_as_it_was(number: int, written_bytes: int) -> None:
    memory = MemoryVfs()
    vfs = FaultyVfs(memory)
    storage = RaftStorage.open(vfs, BEGIN)
    for what in STORY[:number]:
        save(storage, what)
    vfs.plan = lambda operation: (
        FileFault(errno.ENOSPC, min(written_bytes, operation.length))
        if operation.kind is FileOperationKind.WRITE
        else None
    )
    for _ in range(2):
        with pytest.raises(NotWrittenError):
            save(storage, STORY[number])
        assert storage.state == STATES[number]
        assert essence(reopened(memory.crash_clone())) == essence(STATES[number])
    vfs.plan = lambda _: None
    for what in STORY[number:]:
        save(storage, what)
    assert reopened(memory.crash_clone()) == STATES[-1]


@pytest.mark.parametrize("path_end", ["raft/log", "raft/synced", "raft/log.new", "raft/snapshot.new"])
def test_after_a_failed_sync_nothing_is_written(path_end: str) -> None:
    memory = MemoryVfs()
    vfs = FaultyVfs(memory)
    storage = RaftStorage.open(vfs, BEGIN)
    save(storage, STORY[0])
    for what in STORY[1:6]:
        save(storage, what)
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=path_end)
    what = STORY[6] if path_end.endswith(".new") else ready(entry(6, 3), state=HardState(3, 2, 5))
    with pytest.raises(OSError, match="Input/output"):
        save(storage, what)
    vfs.plan = lambda _: None
    with pytest.raises(OperationalError, match="restart the broker"):
        save(storage, what)
    assert essence(reopened(memory.crash_clone())) in (essence(STATES[6]), ((6, 3), 3, 2))


def test_what_a_failed_sync_gave_up_is_written_again_before_it_counts() -> None:
    memory = MemoryVfs()
    vfs = FaultyVfs(memory)
    storage = RaftStorage.open(vfs, BEGIN)
    save(storage, ready(entry(1, 1), state=HardState(1, 1, 0)))
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=LOG_PATH)
    with pytest.raises(OSError, match="Input/output"):
        save(storage, ready(entry(2, 1), state=HardState(2, 3, 0)))
    memory.fail_sync(LOG_PATH)
    storage.close()
    state = RaftStorage.open(memory, BEGIN).state  # the page cache still has it
    assert state.hard_state.vote == 3
    assert RaftStorage.open(memory.crash_clone(), BEGIN).state == state


def test_the_reserve_gives_room_to_what_must_go_through() -> None:
    memory = MemoryVfs()
    vfs = FaultyVfs(memory)
    storage = RaftStorage.open(vfs, BEGIN)
    storage.keep_reserve()
    full_bytes = len(content(memory, RESERVE_PATH))

    def full(operation: FileOperation) -> FileFault | None:
        has_room = len(content(memory, RESERVE_PATH)) < full_bytes
        return None if operation.kind is not FileOperationKind.WRITE or has_room else FileFault(errno.ENOSPC)

    vfs.plan = full
    what = ready(entry(1, 1), state=HardState(1, 1, 0))
    task = storage.save(what, may_use_reserve=False)
    assert task is not None
    with pytest.raises(NotWrittenError) as caught:
        task.run()
    storage.save_failed(task, caught.value)
    storage.keep_reserve()
    save(storage, what)
    assert len(content(memory, RESERVE_PATH)) < full_bytes
    vfs.plan = lambda _: None
    storage.keep_reserve()
    assert len(content(memory, RESERVE_PATH)) == full_bytes


def test_a_snapshot_that_can_wait_leaves_the_reserve_alone() -> None:
    memory = MemoryVfs()
    vfs = FaultyVfs(memory)
    storage = RaftStorage.open(vfs, BEGIN)
    save(storage, ready(entry(1, 1), state=HardState(1, 1, 0)))
    storage.keep_reserve()
    full_bytes = len(content(memory, RESERVE_PATH))
    vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.WRITE else None
    with pytest.raises(NotWrittenError):
        save(storage, Snapshot(1, 1, MEMBERSHIP, b"small"))
    large = ready(snapshot=Snapshot(9, 1, MEMBERSHIP, bytes(1_000_000)), state=HardState(1, 1, 9))
    with pytest.raises(NotWrittenError):
        save(storage, large)
    assert len(content(memory, RESERVE_PATH)) == full_bytes


def test_the_log_that_is_removed_under_a_broker() -> None:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory, BEGIN)
    memory.remove(LOG_PATH)
    with pytest.raises(FileNotFoundError):
        save(storage, STORY[0])
    with pytest.raises(OperationalError):
        save(storage, STORY[0])


def test_who_joins_begins_with_nothing_and_remembers_it() -> None:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory)
    assert storage.state == StoredState(HardState(), Snapshot(0, 0, RaftMembership(), b""), ())
    save(storage, ready(state=HardState(3, 2, 0)))
    memory = memory.crash_clone()
    storage = RaftStorage.open(memory)
    assert storage.state.hard_state == HardState(3, 2, 0)
    save(storage, ready(state=HardState(3, 2, 0), snapshot=Snapshot(0, 0, MEMBERSHIP, b"")))
    assert RaftStorage.open(memory.crash_clone()).state.snapshot == BEGIN


def test_a_commit_index_alone_is_not_written() -> None:
    storage = RaftStorage.open(MemoryVfs(), BEGIN)
    assert storage.save(Ready(False, None, (), HardState(0, None, 0), (), (), ())) is None


def test_a_snapshot_makes_the_log_small() -> None:
    storage = RaftStorage.open(MemoryVfs(), BEGIN)
    empty = storage.log_bytes
    for index in range(1, 100):
        save(storage, ready(entry(index, 1, 1_000), state=HardState(1, 1, index - 1)))
    assert storage.log_bytes > 100_000
    save(storage, Snapshot(99, 1, MEMBERSHIP, b"all"))
    assert storage.log_bytes < empty + 100
