"""Corrupts files of logs, and reads what a consumer can still read."""

from __future__ import annotations

from penstock.base.errors import RemoteError
from penstock.commitlog import Log, LogConfig
from penstock.vfs.encrypted_format import AREA_BYTES
from penstock.vfs.keys import ENCRYPTED_BEGIN
from penstock.vfs.memory import MemoryVfs
from tests.logs import DIRECTORY, Message, append, open_log, read_slices

WIDE = LogConfig(segment_bytes=100_000)
"""All messages fit into one segment."""


def write(disk: MemoryVfs, path: str, position: int, data: bytes) -> None:
    disk.open(path).write_at(position, data)


def flip(disk: MemoryVfs, path: str, position: int, bit: int = 0) -> None:
    """Flip one bit; in an encrypted file, `position` counts from the start of its records."""
    file = disk.open(path)
    if file.read_at(0, len(ENCRYPTED_BEGIN)) == ENCRYPTED_BEGIN:
        position += AREA_BYTES
    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1 << bit]))


def content(disk: MemoryVfs, path: str) -> bytes:
    return disk.open(path).read_at(0, 10**7)


def closed_log(batches: int = 12, config: LogConfig = WIDE, size_bytes: int = 40) -> tuple[MemoryVfs, list[Message]]:
    """Return the disk of a cleanly stopped log, and its messages: batches of two, with timestamps 0, 1, 2 …"""
    disk = MemoryVfs()
    log = open_log(disk, config)
    wanted = [message for number in range(batches) for message in append(log, 2, number, size_bytes=size_bytes)]
    log.close()
    return disk, wanted


def indexes(disk: MemoryVfs) -> list[str]:
    """Return the paths of the index files."""
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".index")]


def readable(disk: MemoryVfs, log: Log) -> list[Message]:
    """Return all messages that a consumer reads who skips corrupt ranges."""
    view = log.view()
    found: list[Message] = []
    offset = view.log_start
    while offset < view.log_end:
        try:
            found += read_slices(disk, view, offset, bytes_max=1)
            return found
        except RemoteError as error:
            refused = error
        assert refused.code == "corrupt_range"
        # Everything below the corruption must be readable.
        found += read_slices(disk, view, offset, refused.details["base_offset"])
        offset = refused.details["end_offset"]
    return found
