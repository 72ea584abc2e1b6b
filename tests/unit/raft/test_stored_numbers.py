"""Numbers in Raft's files that no broker ever has: damage, whatever the checksums say; nothing is touched."""

from __future__ import annotations

import struct

import pytest

from penstock.base.errors import CorruptionError
from penstock.hot.crc import crc32c
from penstock.raft import RaftMembership, RaftStorage, Snapshot
from penstock.raft.snapshot_file import encode_snapshot
from penstock.raft.tasks import LOG_PATH, SNAPSHOT_PATH
from penstock.vfs.memory import MemoryVfs

HEAD = b"PNRL" + struct.pack("<I", 1)
HUGE = 2**62 + 1


def record(number: int, kind: int, body: bytes) -> bytes:
    content = struct.pack("<QQB", number, 0, kind) + body
    return struct.pack("<II", len(content), crc32c(content)) + content


def base(index: int = 0, term: int = 0, number: int = 1) -> bytes:
    return HEAD + record(number, 1, struct.pack("<QQB", index, term, 0))


def disk(log: bytes, snapshot: bytes = b"") -> MemoryVfs:
    vfs = MemoryVfs()
    for path, data in ((LOG_PATH, log), (SNAPSHOT_PATH, snapshot)):
        if data:
            file = vfs.open(path, create=True)
            file.write_at(0, data)
            file.sync()
    return vfs


LOGS = {
    "of a record": base(number=2**64 - 1),
    "of the base": base(index=HUGE),
    "of its term": base(term=HUGE),
    "of an entry's term": base() + record(2, 2, struct.pack("<QQB", 1, HUGE, 1)),
    "of a hard state's term": base() + record(2, 3, struct.pack("<QQQ", HUGE, 0, 0)),
    "of a commit": base() + record(2, 3, struct.pack("<QQQ", 1, 0, HUGE)),
    "of a vote": base() + record(2, 3, struct.pack("<QQQ", 1, 2**31, 0)),
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_with_a_number_that_cannot_be(log: bytes) -> None:
    vfs = disk(log)
    with pytest.raises(CorruptionError):
        RaftStorage.open(vfs)
    assert vfs.open(LOG_PATH).read_at(0, 1_000) == log


@pytest.mark.parametrize("numbers", [(HUGE, 1), (1, HUGE)])
def test_a_snapshot_with_a_number_that_cannot_be(numbers: tuple[int, int]) -> None:
    vfs = disk(base(), b"".join(encode_snapshot(Snapshot(*numbers, RaftMembership((1,)), b"image"))))
    with pytest.raises(CorruptionError):
        RaftStorage.open(vfs)
