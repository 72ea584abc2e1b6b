"""The journal through power losses and flipped bytes: a sound prefix or a refusal, never something else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, RemoteError
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, StartBroker
from penstock.metadata.journal import JOURNAL_PATH, MARK_PATH, Journal
from penstock.vfs.faulty import CHANGES, FaultyVfs, Operation
from penstock.vfs.memory import Keep, MemoryVfs

COMMANDS: list[Command] = [
    StartBroker(started_us=1),
    CreateStream(config=StreamConfig(name="orders", subject="orders.>"), created_us=2),
    AlterStream(stream_id=2, changes={"max_bytes": 1_000_000}),
    CreateStream(config=StreamConfig(name="b" * 100, subject="b." + "c" * 700), created_us=3),
    DeleteStream(stream_id=2),
    StartBroker(started_us=4),
]


def content(vfs: MemoryVfs, path: str = JOURNAL_PATH) -> bytes:
    file = vfs.open(path, read_only=True)
    return file.read_at(0, file.size())


def reopened(vfs: MemoryVfs) -> list[Command]:
    """What is found, and found again after another crash: opening is repeatable."""
    journal, entries, _ = Journal.open(vfs)
    journal.close()
    commands = [entry.command for entry in entries]
    again, entries, _ = Journal.open(vfs.crash_clone())
    assert [entry.command for entry in entries] == commands
    assert again.append(StartBroker(started_us=9)) == len(commands) + 1
    return commands


@pytest.mark.parametrize("seed", range(10))
def test_power_loss_at_every_boundary(seed: int) -> None:
    memory = MemoryVfs()
    random = Random(seed)
    durable = appended = 0
    crashes = 0

    def cut_the_power(operation: Operation) -> None:
        nonlocal crashes
        if operation.kind not in CHANGES:
            return
        crashes += 1
        for clone in (memory.crash_clone(), memory.crash_clone(Keep.SUBSET, random), memory.crash_clone(Keep.ALL)):
            found = reopened(clone)
            assert durable <= len(found) <= appended + 1
            assert found == COMMANDS[: len(found)]

    vfs = FaultyVfs(memory, watcher=cut_the_power)
    journal, _, _ = Journal.open(vfs)
    for number, command in enumerate(COMMANDS):
        journal.append(command)
        appended = number + 1
        if random.random() < 0.6:
            flush = journal.flush()
            flush.run()
            journal.flushed(flush)
            durable = flush.index
    assert crashes > 8


def whole() -> MemoryVfs:
    vfs = MemoryVfs()
    journal, _, _ = Journal.open(vfs)
    for command in COMMANDS:
        journal.append(command)
        flush = journal.flush()
        flush.run()
        journal.flushed(flush)
    return vfs


SYNCED = whole()
WHOLE = content(SYNCED)
HEAD_BYTES = 8


@pytest.mark.parametrize("bit", [0, 7])
def test_no_flipped_bit_makes_a_synced_command_vanish(bit: int) -> None:
    for position in range(len(WHOLE)):
        vfs = SYNCED.crash_clone()
        data = bytearray(WHOLE)
        data[position] ^= 1 << bit
        vfs.open(JOURNAL_PATH).write_at(0, data)
        with pytest.raises((CorruptionError, RemoteError)):
            Journal.open(vfs)
        assert content(vfs) == data
        assert set(vfs.files()) == {JOURNAL_PATH, MARK_PATH}


def test_no_cut_makes_a_synced_command_vanish() -> None:
    for length in range(len(WHOLE)):
        vfs = SYNCED.crash_clone()
        vfs.open(JOURNAL_PATH).truncate(length)
        with pytest.raises(CorruptionError):
            Journal.open(vfs)


def test_a_damaged_mark_alone_does_no_harm() -> None:
    for position in range(len(content(SYNCED, MARK_PATH))):
        vfs = SYNCED.crash_clone()
        data = bytearray(content(vfs, MARK_PATH))
        data[position] ^= 0x10
        vfs.open(MARK_PATH).write_at(0, data)
        assert reopened(vfs) == COMMANDS


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=400)
def test_one_flipped_byte_without_a_mark(position: int, mask: int) -> None:
    data = bytearray(WHOLE)
    data[position] ^= mask
    _check_damaged(bytes(data))


@given(st.integers(0, len(WHOLE)), st.binary(max_size=40))
@settings(max_examples=200)
def test_cut_anywhere_with_anything_behind(length: int, behind: bytes) -> None:
    _check_damaged(WHOLE[:length] + behind)


@given(st.binary(max_size=200))
def test_anything_at_all(data: bytes) -> None:
    _check_damaged(data)


def _check_damaged(data: bytes) -> None:
    vfs = MemoryVfs()
    file = vfs.open(JOURNAL_PATH, create=True)
    file.write_at(0, data)
    try:
        _, entries, note = Journal.open(vfs)
    except (CorruptionError, RemoteError):
        assert content(vfs) == data  # refused, and left as it was
        assert list(vfs.files()) == [JOURNAL_PATH]
        return
    found = [entry.command for entry in entries]
    assert found == COMMANDS[: len(found)]
    if note is None:
        # A head that was never written whole is begun anew; otherwise nothing has changed.
        assert content(vfs).startswith(data) or (len(data) < HEAD_BYTES and not any(data))
    else:
        (side,) = (path for path in vfs.files() if path not in (JOURNAL_PATH, MARK_PATH))
        position = int(side.rpartition("-")[2])
        assert data[:position] + content(vfs, side) == data  # no byte is lost
