"""What must go through on a full disk finds room in the reserve, and the room is taken back later."""

from __future__ import annotations

import errno

import pytest

from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.reserve import RESERVE_BYTES, Reserve
from tests.full_disk import BLOCK_BYTES, blocks_of, fill, full_at

PATH = "reserve"


@pytest.fixture
def vfs() -> FaultyVfs:
    return FaultyVfs(MemoryVfs())


def filled(vfs: FaultyVfs) -> Reserve:
    reserve = Reserve(vfs, PATH)
    reserve.fill()
    return reserve


class Log:
    """A file that grows."""

    def __init__(self, vfs: FaultyVfs) -> None:
        self._file = vfs.open("log", create=True)
        self.size_bytes = 0

    def append(self, reserve: Reserve, size_bytes: int = 100) -> None:
        """With the reserve's help."""
        reserve.make_room(size_bytes, lambda: self._file.write_at(self.size_bytes, bytes(size_bytes)))
        self.size_bytes += size_bytes


def test_room_is_given_block_by_block_until_there_is_none(vfs: FaultyVfs) -> None:
    reserve, log = filled(vfs), Log(vfs)
    fill(vfs)
    for _ in range(RESERVE_BYTES // 100):
        log.append(reserve)
        assert blocks_of(vfs, "log") + reserve.size_bytes == RESERVE_BYTES
    assert reserve.size_bytes == 0
    with pytest.raises(OSError, match="No space"):
        log.append(reserve)
    vfs.plan = full_at(vfs, 10**9)
    log.append(reserve)


def test_what_is_larger_than_a_block_gets_as_many(vfs: FaultyVfs) -> None:
    reserve, log = filled(vfs), Log(vfs)
    fill(vfs)
    log.append(reserve, 3 * BLOCK_BYTES)
    assert reserve.size_bytes == RESERVE_BYTES - 3 * BLOCK_BYTES


def test_the_room_is_taken_back_as_far_as_there_is_any(vfs: FaultyVfs) -> None:
    reserve, log = filled(vfs), Log(vfs)
    fill(vfs)
    log.append(reserve)
    reserve.fill()
    assert (reserve.size_bytes, reserve.is_whole) == (RESERVE_BYTES - BLOCK_BYTES, False)
    vfs.plan = no_faults
    reserve.fill()
    assert reserve.is_whole


def test_other_errors_take_nothing_from_it(vfs: FaultyVfs) -> None:
    reserve, log = filled(vfs), Log(vfs)
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.WRITE)
    with pytest.raises(OSError, match="Input/output"):
        log.append(reserve)
    assert reserve.size_bytes == RESERVE_BYTES


def test_one_that_was_lost_or_cannot_be_made_stops_nothing(vfs: FaultyVfs) -> None:
    filled(vfs).close()
    vfs.inner.remove(PATH)
    vfs.plan = lambda operation: FileFault(errno.EACCES) if operation.path == PATH else None
    reserve, log = filled(vfs), Log(vfs)
    log.append(reserve)
    assert (log.size_bytes, reserve.size_bytes) == (100, 0)
    reserve.close()


def test_a_later_start_goes_on_with_what_is_left(vfs: FaultyVfs) -> None:
    reserve, log = filled(vfs), Log(vfs)
    fill(vfs)
    log.append(reserve)
    reserve.close()
    again = Reserve(vfs, PATH)
    assert again.size_bytes == RESERVE_BYTES - BLOCK_BYTES
    log.append(again, 2 * BLOCK_BYTES)
    assert again.size_bytes == RESERVE_BYTES - 3 * BLOCK_BYTES
