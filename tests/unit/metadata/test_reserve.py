"""On a full disk the commands that can empty it still find room, and the room is taken back later."""

from __future__ import annotations

import errno

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, StartBroker
from penstock.metadata.journal import JOURNAL_PATH, MARK_PATH, RESERVE_PATH, Journal
from penstock.vfs.faulty import Fault, FaultyVfs, Kind, nth
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.reserve import RESERVE_BYTES
from tests.full_disk import blocks_of, fill, full_at

CREATE = CreateStream(config=StreamConfig(name="orders", subject="orders.>"), created_us=2)
ROOM: list[Command] = [
    StartBroker(started_us=3),
    AlterStream(stream_id=2, changes={"max_bytes": 1_000}),
    DeleteStream(stream_id=2),
]


@pytest.fixture
def vfs() -> FaultyVfs:
    return FaultyVfs(MemoryVfs())


def opened(vfs: FaultyVfs) -> Journal:
    journal, _, _ = Journal.open(vfs)
    append(journal, StartBroker(started_us=1))
    journal.keep_reserve()
    return journal


def full(journal: Journal, command: Command) -> bool:
    """Whether there is no room for it; it is appended if there is."""
    try:
        journal.append(command)
    except OperationalError:
        return True
    return False


def reserve_bytes(vfs: FaultyVfs) -> int:
    file = vfs.inner.open(RESERVE_PATH, read_only=True)
    return file.size()


def append(journal: Journal, *commands: Command) -> None:
    for command in commands:
        journal.append(command)
        flush = journal.flush()
        flush.run()
        journal.flushed(flush)


def commands(vfs: FaultyVfs) -> list[Command]:
    assert isinstance(vfs.inner, MemoryVfs)
    return [entry.command for entry in Journal.open(vfs.inner.crash_clone())[1]]


def test_what_makes_room_goes_through_on_a_full_disk(vfs: FaultyVfs) -> None:
    journal = opened(vfs)
    append(journal, CREATE)
    fill(vfs)
    long = CreateStream(config=StreamConfig(name="more", subject="more." + "x" * 900), created_us=4)
    while not full(journal, long):
        pass  # the first may still fit into the journal's last block
    assert journal.index < 8
    assert reserve_bytes(vfs) == RESERVE_BYTES
    append(journal, *ROOM * 50)
    assert commands(vfs)[-150:] == ROOM * 50
    assert RESERVE_BYTES - reserve_bytes(vfs) == blocks_of(vfs, JOURNAL_PATH) - 4096


def test_the_room_is_taken_back(vfs: FaultyVfs) -> None:
    journal = opened(vfs)
    fill(vfs)
    append(journal, *ROOM * 100)
    given = RESERVE_BYTES - reserve_bytes(vfs)
    assert given > 0
    journal.keep_reserve()
    assert reserve_bytes(vfs) == RESERVE_BYTES - given
    vfs.plan = full_at(vfs, 10**9)
    journal.keep_reserve()
    assert reserve_bytes(vfs) == RESERVE_BYTES


def test_an_empty_reserve_refuses_as_before(vfs: FaultyVfs) -> None:
    journal = opened(vfs)
    fill(vfs)
    while not full(journal, StartBroker(started_us=1)):
        assert journal.index < 10_000
    assert reserve_bytes(vfs) == 0
    last = journal.index
    vfs.plan = full_at(vfs, 10**9)
    append(journal, DeleteStream(stream_id=2))
    assert len(commands(vfs)) == last + 1


def test_other_errors_take_nothing_from_it(vfs: FaultyVfs) -> None:
    journal = opened(vfs)
    vfs.plan = nth(0, Fault(errno.EIO), Kind.WRITE)
    with pytest.raises(OperationalError):
        journal.append(ROOM[0])
    assert reserve_bytes(vfs) == RESERVE_BYTES


def test_a_reserve_that_was_lost_or_cannot_be_made_stops_nothing(vfs: FaultyVfs) -> None:
    opened(vfs)
    vfs.inner.remove(RESERVE_PATH)
    vfs.plan = lambda operation: Fault(errno.EACCES) if operation.path == RESERVE_PATH else None
    opened(vfs)
    vfs.plan = lambda operation: None
    opened(vfs)
    assert reserve_bytes(vfs) == RESERVE_BYTES
    assert len(commands(vfs)) == 3


def test_a_torn_tail_is_kept_aside_on_a_full_disk(vfs: FaultyVfs) -> None:
    opened(vfs)
    end = vfs.inner.open(JOURNAL_PATH).size()
    vfs.inner.open(JOURNAL_PATH).write_at(end, b"torn")
    fill(vfs)
    _, _, note = Journal.open(vfs)
    assert f"kept in {JOURNAL_PATH}.cut-{end}" in (note or "")
    assert vfs.inner.open(f"{JOURNAL_PATH}.cut-{end}").read_at(0, 9) == b"torn"
    assert reserve_bytes(vfs) == RESERVE_BYTES - 4096


def test_the_mark_is_moved_on_a_full_disk(vfs: FaultyVfs) -> None:
    opened(vfs)
    vfs.inner.remove(MARK_PATH)
    fill(vfs)
    _, entries, _ = Journal.open(vfs)
    assert len(entries) == 1
    assert MARK_PATH in set(vfs.list(""))
