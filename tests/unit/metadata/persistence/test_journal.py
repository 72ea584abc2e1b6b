"""The journal of before is read as it was written, and what cannot be trusted is refused."""

from __future__ import annotations

import struct

import pytest

from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.hot.crc import crc32c
from penstock.metadata.commands import Command
from penstock.metadata.persistence.journal import JOURNAL_PATH, read_journal
from penstock.vfs.memory import MemoryVfs
from tests.old_journal import COMMANDS, HEAD, content, holding, journal_bytes, synced


def read(vfs: MemoryVfs) -> list[Command]:
    return [entry.command for entry in read_journal(vfs)[0]]


def test_commands_come_back_in_order() -> None:
    entries, note = read_journal(synced(*COMMANDS))
    assert [entry.command for entry in entries] == COMMANDS
    assert [entry.index for entry in entries] == list(range(1, len(COMMANDS) + 1))
    assert note is None


@pytest.mark.parametrize("data", [b"", b"P", HEAD[:7], bytes(7), HEAD])
def test_one_that_was_only_begun_has_nothing(data: bytes) -> None:
    assert read_journal(holding(data)) == ([], None)


def test_a_few_foreign_bytes_are_told_of() -> None:
    assert read_journal(holding(b"hello")) == ([], "metadata.journal held 5 bytes that are not a journal")


@pytest.mark.parametrize("lost", [1, 5, 20])
def test_a_torn_tail_is_left_out_and_told_of(lost: int) -> None:
    vfs = holding(journal_bytes(*COMMANDS)[:-lost])
    entries, note = read_journal(vfs)
    assert [entry.command for entry in entries] == COMMANDS[:-1]
    assert "unfinished entry" in (note or "")
    assert content(vfs) == journal_bytes(*COMMANDS)[:-lost]


def test_a_damaged_last_entry_that_was_synced_is_no_torn_tail() -> None:
    vfs = synced(*COMMANDS)
    data = bytearray(content(vfs))
    data[-5] ^= 1
    vfs.open(JOURNAL_PATH).write_at(0, data)
    with pytest.raises(CorruptionError, match=rf"entry {len(COMMANDS)}.*synced") as caught:
        read_journal(vfs)
    assert caught.value.position == len(journal_bytes(*COMMANDS[:-1]))


def test_an_entry_that_was_not_synced_is_a_torn_tail_behind_a_mark() -> None:
    vfs = synced(*COMMANDS[:2])
    file = vfs.open(JOURNAL_PATH)
    file.write_at(file.size(), journal_bytes(*COMMANDS[:3])[file.size() : -1])
    assert read(vfs) == COMMANDS[:2]


def test_sound_entries_behind_a_hole_that_was_never_synced_are_a_torn_tail() -> None:
    first, second = (len(journal_bytes(*COMMANDS[:count])) for count in (1, 2))
    data = bytearray(journal_bytes(*COMMANDS[:3], synced_index=0))
    data[first:second] = bytes(second - first)  # this one never reached the disk, the next one did
    assert read(holding(bytes(data))) == COMMANDS[:1]


def test_damage_before_a_sound_entry_is_refused_with_its_position() -> None:
    data = bytearray(journal_bytes(*COMMANDS))
    position = len(journal_bytes(COMMANDS[0]))
    data[position + 20] ^= 1
    with pytest.raises(CorruptionError) as caught:
        read_journal(holding(bytes(data)))
    assert (caught.value.file, caught.value.position) == (JOURNAL_PATH, position)


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"JSNP\x01\0\0\0", CorruptionError), (b"PNSJ\0\0\0\0", CorruptionError), (b"PNSJ\x02\0\0\0", RemoteError)],
)
def test_a_head_that_is_not_ours(head: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read_journal(holding(head + journal_bytes(*COMMANDS)[8:]))


def test_a_command_of_a_newer_version_is_refused() -> None:
    body = struct.pack("<QQ", 1, 0) + b"\x81\xa4type\xa9make_toast"
    with pytest.raises(RemoteError, match="upgrade") as caught:
        read_journal(holding(HEAD + struct.pack("<II", len(body), crc32c(body)) + body))
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_missing_entry_is_refused() -> None:
    one, two, three = (journal_bytes(*COMMANDS[:count]) for count in (1, 2, 3))
    with pytest.raises(CorruptionError, match="entry 2"):
        read_journal(holding(one + three[len(two) :]))
