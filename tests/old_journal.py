"""Writes the metadata journal in the format that brokers used before Raft."""

from __future__ import annotations

import struct

from penstock.base.config import StreamConfig
from penstock.hot.crc import crc32c
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, StartBroker, encode_command
from penstock.metadata.persistence.journal import JOURNAL_PATH, MARK_PATH
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.synced_mark import SyncedMark

HEAD = b"PNSJ\x01\0\0\0"
COMMANDS: list[Command] = [
    StartBroker(started_us=1),
    CreateStream(config=StreamConfig(name="orders", subject="orders.>"), created_us=2),
    AlterStream(stream_id=2, changes={"max_bytes": 1_000_000}),
    CreateStream(config=StreamConfig(name="b" * 100, subject="b." + "c" * 700), created_us=3),
    DeleteStream(stream_id=2),
    StartBroker(started_us=4),
]


def journal_bytes(*commands: Command, synced_index: int | None = None) -> bytes:
    """Return the file; each entry says that all entries before it, or those up to `synced_index`, are synced."""
    data = HEAD
    for index, command in enumerate(commands, 1):
        content = struct.pack("<QQ", index, index - 1 if synced_index is None else synced_index)
        content += encode_command(command)
        data += struct.pack("<II", len(content), crc32c(content)) + content
    return data


def holding(data: bytes) -> MemoryVfs:
    """Return a disk with these bytes as the journal, without a mark of what is synced."""
    vfs = MemoryVfs()
    file = vfs.open(JOURNAL_PATH, create=True)
    file.write_at(0, data)
    file.sync()
    vfs.sync_dir("")
    return vfs


def synced(*commands: Command) -> MemoryVfs:
    """Return a disk with this journal, and the mark that all of it is synced."""
    vfs = holding(journal_bytes(*commands))
    SyncedMark(vfs, MARK_PATH).move(len(commands))
    return vfs


def content(vfs: MemoryVfs, path: str = JOURNAL_PATH) -> bytes:
    file = vfs.open(path, read_only=True)
    return file.read_at(0, file.size())
