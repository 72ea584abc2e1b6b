"""The journal of before, with flipped bytes and cut: a sound prefix or a refusal, never something else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import CorruptionError, RemoteError
from penstock.metadata.persistence.journal import JOURNAL_PATH, MARK_PATH, read_journal
from tests.extent import each_change, examples
from tests.old_journal import COMMANDS, content, holding, journal_bytes, synced

SYNCED = synced(*COMMANDS)
WHOLE = journal_bytes(*COMMANDS)


@each_change
@pytest.mark.parametrize("bit", [0, 7])
def test_no_flipped_bit_makes_a_synced_command_vanish(bit: int) -> None:
    for position in range(len(WHOLE)):
        vfs = SYNCED.crash_clone()
        data = bytearray(WHOLE)
        data[position] ^= 1 << bit
        vfs.open(JOURNAL_PATH).write_at(0, data)
        with pytest.raises((CorruptionError, RemoteError)):
            read_journal(vfs)
        assert content(vfs) == data
        assert set(vfs.files()) == {JOURNAL_PATH, MARK_PATH}


@each_change
def test_no_cut_makes_a_synced_command_vanish() -> None:
    for length in range(len(WHOLE)):
        vfs = SYNCED.crash_clone()
        vfs.open(JOURNAL_PATH).truncate(length)
        with pytest.raises(CorruptionError):
            read_journal(vfs)


def test_a_damaged_mark_alone_does_no_harm() -> None:
    for position in range(len(content(SYNCED, MARK_PATH))):
        vfs = SYNCED.crash_clone()
        data = bytearray(content(vfs, MARK_PATH))
        data[position] ^= 0x10
        vfs.open(MARK_PATH).write_at(0, data)
        assert [entry.command for entry in read_journal(vfs)[0]] == COMMANDS


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=examples(400))
def test_one_flipped_byte_without_a_mark(position: int, mask: int) -> None:
    data = bytearray(WHOLE)
    data[position] ^= mask
    _check_damaged(bytes(data))


@given(st.integers(0, len(WHOLE)), st.binary(max_size=40))
@settings(max_examples=examples(200))
def test_cut_anywhere_with_anything_behind(length: int, behind: bytes) -> None:
    _check_damaged(WHOLE[:length] + behind)


@given(st.binary(max_size=200))
def test_anything_at_all(data: bytes) -> None:
    _check_damaged(data)


def _check_damaged(data: bytes) -> None:
    vfs = holding(data)
    try:
        entries, note = read_journal(vfs)
    except (CorruptionError, RemoteError):
        entries, note = [], "refused"
    found = [entry.command for entry in entries]
    assert found == COMMANDS[: len(found)]
    if note is None and any(data):
        assert WHOLE.startswith(data)  # nothing is left out in silence
    assert content(vfs) == data
    assert list(vfs.files()) == [JOURNAL_PATH]
