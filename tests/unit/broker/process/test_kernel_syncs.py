"""Syncs by the kernel: results come back, what it does not take goes to a thread, a hanging one holds no loop."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.broker.process.disk_threads import DiskThreads
from penstock.broker.process.kernel_syncs import UnavailableError, file_system_of, try_kernel
from penstock.node.step import Lane

_MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /mnt/a\\040b rw,relatime - nfs4 server:/x rw
31 22 0:27 / /mnt/disk rw,relatime - xfs /dev/vdb rw
32 22 0:28 / /mnt/disk rw,relatime shared:7 master:1 - btrfs /dev/vdc rw
33 22 0:29 / /mnt/odd\f\r\u2028name rw,relatime - nfs4 server:/y rw
broken line
"""


class Kernel:
    """Syncs that end when a test says so; `room` are taken at once."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.waiting: list[tuple[int, int]] = []  # number, file
        self.ended: list[tuple[int, int]] = []
        self.is_closed = False
        self._event = -1

    def submit(self, number: int, descriptor: int, event_descriptor: int) -> bool:
        self._event = event_descriptor
        if len(self.waiting) >= self.room:
            return False
        self.waiting.append((number, descriptor))
        return True

    def completed(self, timeout_s: float = 0.0) -> Iterable[tuple[int, int]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.is_closed = True

    def end(self, *errors: int) -> None:
        """End the oldest syncs, one for each error number."""
        for error in errors:
            self.ended.append((self.waiting.pop(0)[0], error))
        os.eventfd_write(self._event, len(errors))


async def test_each_sync_gets_its_own_result_and_what_follows_is_told_once() -> None:
    kernel = Kernel()
    disk = DiskThreads(asyncio.get_running_loop(), 1, kernel)
    results: list[tuple[str, OSError | None]] = []
    taken: list[int] = []
    all_taken = asyncio.Event()

    def taken_back() -> None:
        taken.append(len(results))
        all_taken.set()

    disk.taken = taken_back
    try:
        for name in "abc":
            assert disk.sync(7, lambda error, name=name: results.append((name, error)))  # type: ignore[misc]
        assert (disk.open_count, [file for _, file in kernel.waiting]) == (3, [7, 7, 7])
        kernel.end(0, errno.EIO)
        await asyncio.wait_for(all_taken.wait(), 10)
        assert [(name, error and error.errno) for name, error in results] == [("a", None), ("b", errno.EIO)]
        assert (taken, disk.open_count) == ([2], 1)
        kernel.end(0)
        await asyncio.wait_for(disk.idle(), 10)
        assert results[2] == ("c", None)
    finally:
        disk.close()
    assert kernel.is_closed


async def test_a_callback_that_raises_takes_no_result_from_the_others() -> None:
    """A log whose sync gives no result waits for it for ever, and so does the stop."""
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda loop, context: raised.append(context["exception"]))
    kernel = Kernel()
    disk = DiskThreads(loop, 1, kernel)
    results: list[OSError | None] = []

    def fail(error: OSError | None) -> None:
        raise ValueError("a bug")

    for back in (results.append, fail, results.append, fail, results.append):
        assert disk.sync(7, back)
    kernel.end(0, 0, errno.EIO, 0, 0)
    await asyncio.wait_for(disk.idle(), 10)
    assert [error and error.errno for error in results] == [None, errno.EIO, None]
    assert len(raised) == 2
    disk.close()


async def test_a_sync_that_hangs_holds_neither_the_loop_nor_the_threads() -> None:
    kernel = Kernel()
    disk = DiskThreads(asyncio.get_running_loop(), 1, kernel)
    wrote = asyncio.Event()
    assert disk.sync(7, lambda error: None)
    disk.submit(Lane.WRITE, lambda: None, lambda error: wrote.set())
    await asyncio.wait_for(wrote.wait(), 10)
    assert disk.open_count == 1
    disk.close()
    assert not kernel.is_closed  # releasing its context would wait for the disk


async def test_what_the_kernel_does_not_take_is_said() -> None:
    for kernel, taken in ((Kernel(room=2), 2), (Kernel(room=1_000), limits.KERNEL_SYNCS_MAX), (None, 0)):
        disk = DiskThreads(asyncio.get_running_loop(), 1, kernel)
        assert [disk.sync(7, lambda error: None) for _ in range(100)].count(True) == taken
        assert not disk.sync(-1, lambda error: None)
        disk.close()


async def test_the_kernel_of_this_machine_syncs_files(tmp_path: Path) -> None:
    try:
        kernel = try_kernel(str(tmp_path))
    except UnavailableError as error:
        if sys.platform == "linux" and platform.machine() == "x86_64" and "file system" not in str(error):
            raise
        pytest.skip(str(error))
    assert not list(tmp_path.iterdir())
    disk = DiskThreads(asyncio.get_running_loop(), 1, kernel)
    errors: list[OSError | None] = []
    with (tmp_path / "a").open("wb", buffering=0) as file:
        for number in range(3 * limits.KERNEL_SYNCS_MAX):
            file.write(b"%d" % number)
            if not disk.sync(file.fileno(), errors.append):
                await asyncio.wait_for(disk.idle(), 30)
                assert disk.sync(file.fileno(), errors.append)
    gone = file_number(tmp_path)
    assert not disk.sync(gone, errors.append)  # a closed descriptor: a thread will tell the error
    await asyncio.wait_for(disk.idle(), 30)
    assert errors == [None] * 3 * limits.KERNEL_SYNCS_MAX
    disk.close()


def test_a_full_disk_at_the_start_does_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    try:
        try_kernel(str(tmp_path)).close()
    except UnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(os, "pwrite", full)
    try_kernel(str(tmp_path)).close()


def file_number(tmp_path: Path) -> int:
    """Return a descriptor that is closed."""
    with (tmp_path / "b").open("wb") as file:
        return file.fileno()


def test_where_files_are_on_another_machine_the_kernel_is_not_asked() -> None:
    assert file_system_of("/var/lib", _MOUNTS) == "ext4"
    assert file_system_of("/mnt/a b/data", _MOUNTS) == "nfs4"
    assert file_system_of("/mnt/disk", _MOUNTS) == "btrfs"  # mounted over the first one
    assert file_system_of("/mnt/diskette", _MOUNTS) == "ext4"
    assert file_system_of("/mnt/odd\f\r\u2028name/data", _MOUNTS) == "nfs4"  # only some breaks are escaped
    assert file_system_of("/", "") == ""


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, UnavailableError)):
        try_kernel(str(tmp_path / "missing"))
