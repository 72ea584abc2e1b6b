"""The journal keeps what was synced, and refuses what it cannot trust."""

from __future__ import annotations

import errno
import struct

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.hot.crc import crc32c
from penstock.metadata.commands import Command, CreateStream, DeleteStream, StartBroker
from penstock.metadata.journal import JOURNAL_PATH, MARK_PATH, Journal
from penstock.vfs.faulty import Fault, FaultyVfs, Kind, nth
from penstock.vfs.memory import MemoryVfs

COMMANDS: list[Command] = [
    StartBroker(started_us=1),
    CreateStream(config=StreamConfig(name="orders", subject="orders.>"), created_us=2),
    DeleteStream(stream_id=2),
]


def written(*commands: Command) -> MemoryVfs:
    vfs = MemoryVfs()
    journal, _, _ = Journal.open(vfs)
    for command in commands:
        journal.append(command)
        flush = journal.flush()
        flush.run()
        journal.flushed(flush)
    journal.close()
    return vfs


def content(vfs: MemoryVfs, path: str = JOURNAL_PATH) -> bytes:
    file = vfs.open(path, read_only=True)
    return file.read_at(0, file.size())


def holding(data: bytes) -> MemoryVfs:
    vfs = MemoryVfs()
    file = vfs.open(JOURNAL_PATH, create=True)
    file.write_at(0, data)
    file.sync()
    vfs.sync_dir("")
    return vfs


def read(vfs: MemoryVfs) -> list[Command]:
    return [entry.command for entry in Journal.open(vfs)[1]]


def test_commands_come_back_in_order() -> None:
    journal, entries, note = Journal.open(written(*COMMANDS).crash_clone())
    assert [entry.command for entry in entries] == COMMANDS
    assert [entry.index for entry in entries] == [1, 2, 3]
    assert (journal.index, note) == (3, None)


def test_golden_bytes() -> None:
    command = b"\x82\xa4type\xacstart_broker\xaastarted_us\x01"
    body = struct.pack("<QQ", 1, 0) + command
    assert content(written(COMMANDS[0])) == b"PNSJ\x01\0\0\0" + struct.pack("<II", len(body), crc32c(body)) + body


@pytest.mark.parametrize("data", [b"", b"P", b"PNSJ\x01\0\0", bytes(7)])
def test_a_start_that_was_cut_short_begins_anew(data: bytes) -> None:
    vfs = holding(data)
    assert Journal.open(vfs)[1:] == ([], None)
    assert list(vfs.files()) == [JOURNAL_PATH]


def test_a_few_foreign_bytes_are_kept_aside() -> None:
    vfs = holding(b"hello")
    _, entries, note = Journal.open(vfs)
    assert entries == []
    assert note is not None
    assert content(vfs, f"{JOURNAL_PATH}.cut-0") == b"hello"


@pytest.mark.parametrize("lost", [1, 5, 20])
def test_torn_tail_is_cut_and_kept(lost: int) -> None:
    whole = content(written(*COMMANDS))
    two = content(written(*COMMANDS[:2]))
    vfs = holding(whole[:-lost])
    journal, entries, note = Journal.open(vfs)
    assert [entry.command for entry in entries] == COMMANDS[:2]
    assert note is not None
    assert f"{JOURNAL_PATH}.cut-{len(two)}" in note
    assert content(vfs, f"{JOURNAL_PATH}.cut-{len(two)}") == whole[len(two) : -lost]
    assert journal.append(COMMANDS[2]) == 3
    journal.flush().run()
    assert read(vfs.crash_clone()) == COMMANDS


def test_a_damaged_last_entry_that_was_synced_is_no_torn_tail() -> None:
    vfs = written(*COMMANDS)
    data = bytearray(content(vfs))
    position = len(content(written(*COMMANDS[:2])))
    data[-5] ^= 1
    vfs.open(JOURNAL_PATH).write_at(0, data)
    with pytest.raises(CorruptionError, match=r"entry 3.*synced") as caught:
        Journal.open(vfs)
    assert caught.value.position == position
    assert content(vfs) == data


def test_an_entry_that_was_not_synced_is_a_torn_tail_behind_a_mark() -> None:
    vfs = written(*COMMANDS[:2])
    file = vfs.open(JOURNAL_PATH)
    file.write_at(file.size(), content(written(*COMMANDS))[file.size() : -1])
    assert read(vfs) == COMMANDS[:2]


def test_a_mark_that_the_disk_does_not_take_keeps_the_flush_from_being_done() -> None:
    vfs = FaultyVfs(MemoryVfs())
    journal, _, _ = Journal.open(vfs)
    journal.append(COMMANDS[0])
    vfs.plan = nth(0, Fault(errno.EIO), Kind.SYNC, path_end=MARK_PATH)
    with pytest.raises(OSError, match="Input/output"):
        journal.flush().run()


def test_a_second_torn_tail_does_not_overwrite_the_first() -> None:
    head = content(written())
    vfs = holding(head + b"first")
    Journal.open(vfs)
    file = vfs.open(JOURNAL_PATH)
    file.write_at(len(head), b"second")
    Journal.open(vfs)
    assert content(vfs, f"{JOURNAL_PATH}.cut-8") == b"first"
    assert content(vfs, f"{JOURNAL_PATH}.cut-8.2") == b"second"


def test_sound_entries_behind_a_hole_that_was_never_synced_are_a_torn_tail() -> None:
    vfs = MemoryVfs()
    journal, _, _ = Journal.open(vfs)
    ends = []
    for command in COMMANDS:
        journal.append(command)
        ends.append(len(content(vfs)))
    file = vfs.open(JOURNAL_PATH)
    file.write_at(ends[0], bytes(ends[1] - ends[0]))  # this one never reached the disk, the next one did
    tail = content(vfs)[ends[0] :]
    assert read(vfs) == COMMANDS[:1]
    assert content(vfs, f"{JOURNAL_PATH}.cut-{ends[0]}") == tail


def test_damage_before_a_sound_entry_is_refused_with_its_position() -> None:
    data = bytearray(content(written(*COMMANDS)))
    position = len(content(written(COMMANDS[0])))
    data[position + 20] ^= 1
    vfs = holding(bytes(data))
    with pytest.raises(CorruptionError) as caught:
        Journal.open(vfs)
    assert (caught.value.file, caught.value.position) == (JOURNAL_PATH, position)
    assert content(vfs) == data
    assert list(vfs.files()) == [JOURNAL_PATH]


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"JSNP\x01\0\0\0", CorruptionError), (b"PNSJ\0\0\0\0", CorruptionError), (b"PNSJ\x02\0\0\0", RemoteError)],
)
def test_a_head_that_is_not_ours(head: bytes, kind: type[Exception]) -> None:
    data = head + content(written(*COMMANDS))[8:]
    vfs = holding(data)
    with pytest.raises(kind):
        Journal.open(vfs)
    assert content(vfs) == data


def test_a_command_of_a_newer_version_is_refused() -> None:
    body = struct.pack("<QQ", 1, 0) + b"\x81\xa4type\xa9make_toast"
    vfs = holding(b"PNSJ\x01\0\0\0" + struct.pack("<II", len(body), crc32c(body)) + body)
    with pytest.raises(RemoteError, match="upgrade") as caught:
        Journal.open(vfs)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_missing_entry_is_refused() -> None:
    one, two, three = (content(written(*COMMANDS[:n])) for n in (1, 2, 3))
    with pytest.raises(CorruptionError, match="entry 2"):
        Journal.open(holding(one + three[len(two) :]))


def test_full_disk_leaves_the_journal_as_it_was() -> None:
    vfs = FaultyVfs(MemoryVfs())
    journal, _, _ = Journal.open(vfs)
    vfs.plan = nth(0, Fault(errno.ENOSPC, written_bytes=11), Kind.WRITE)
    with pytest.raises(OperationalError, match="No space"):
        journal.append(COMMANDS[0])
    assert journal.index == 0
    assert journal.append(COMMANDS[0]) == 1
    journal.flush().run()
    assert read(vfs.inner.crash_clone()) == COMMANDS[:1]  # type: ignore[attr-defined]


def test_a_write_that_cannot_be_undone_ends_it() -> None:
    vfs = FaultyVfs(MemoryVfs())
    journal, _, _ = Journal.open(vfs)
    vfs.plan = lambda operation: Fault(errno.EIO, 5) if operation.kind in (Kind.WRITE, Kind.TRUNCATE) else None
    with pytest.raises(OperationalError):
        journal.append(COMMANDS[0])
    vfs.plan = lambda operation: None
    with pytest.raises(OperationalError, match="restart"):
        journal.append(COMMANDS[0])


def test_a_failed_sync_ends_it() -> None:
    journal, _, _ = Journal.open(MemoryVfs())
    journal.append(COMMANDS[0])
    journal.flush_failed(OSError(errno.EIO, "bad"))
    with pytest.raises(OperationalError, match="restart"):
        journal.append(COMMANDS[0])


@pytest.mark.parametrize("path", [JOURNAL_PATH, MARK_PATH])
def test_a_file_that_somebody_removed_makes_nothing_durable(path: str) -> None:
    vfs = MemoryVfs()
    journal, _, _ = Journal.open(vfs)
    journal.append(StartBroker(started_us=1))
    first = journal.flush()
    first.run()
    vfs.remove(path)
    journal.append(StartBroker(started_us=2))
    with pytest.raises(FileNotFoundError, match="removed or moved"):
        journal.flush().run()
