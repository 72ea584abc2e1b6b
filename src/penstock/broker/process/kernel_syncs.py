"""Kernel syncs: fdatasync by a worker of the kernel (Linux AIO), which tells the event loop when it is done.

Theory: a sync in a thread of ours wakes that thread, and then the loop; both are Python, so they also wait for each
other's interpreter lock: 150 µs of CPU for a lone message. `io_submit` with IOCB_CMD_FDSYNC only queues the sync, and
never waits for the disk. Its result comes through an eventfd. A disk that hangs holds a worker of the kernel, not the
loop.

Rules: it is used only where a trial at the start has worked, and where the data is on a file system of this machine: a
look at a file's name, which follows each sync, must not wait for a server. What the kernel does not take is synced in a
thread. The kernel holds the file until its sync is done, so that its descriptor may be closed meanwhile.

Source: io_submit(2), linux/aio_abi.h.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock.base import limits

_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit, by machine."""
_IOCB = struct.Struct("=QIiHhIQQqQII")  # data, key, flags, opcode, priority, file, 3 unused, unused, flags, eventfd
_EVENT = struct.Struct("=QQqq")  # data, the iocb's address, result, unused
_FDSYNC = 3  # IOCB_CMD_FDSYNC
_RESFD = 1  # IOCB_FLAG_RESFD: tell the eventfd
_EVENTS_MAX = limits.KERNEL_SYNCS_MAX
_TRIAL_S = 2.0  # a disk that is slower than that at the start may as well have threads
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "tmpfs", "overlay"})
"""File systems of which no look at a name waits for another machine or process."""

Back = Callable[[OSError | None], None]


class SyncCalls(Protocol):
    """The kernel's side of it."""

    def submit(self, number: int, descriptor: int, event_descriptor: int) -> bool:
        """Begin the sync `number`; False if the kernel does not take it."""

    def completed(self, timeout_s: float = 0.0) -> Iterable[tuple[int, int]]:
        """Return the number of each sync that has ended, and its error number or 0; wait for the first one."""

    def close(self) -> None:
        """Release the kernel's context; it waits for syncs under way."""


class UnavailableError(Exception):
    """The kernel cannot be asked to sync here; the text says why."""


class LinuxAio:
    """An AIO context of Linux. UnavailableError."""

    def __init__(self) -> None:
        numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
        if numbers is None or struct.calcsize("P") != 8:
            raise UnavailableError(f"not known for {sys.platform} on {platform.machine()}")
        library = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock: no call of these waits for a disk
        number, pointer = ctypes.c_long, ctypes.c_void_p
        self._number = tuple(map(number, numbers))
        self._submit = library["syscall"]
        self._submit.argtypes = (number, ctypes.c_ulong, number, pointer)
        self._get = library["syscall"]
        self._get.argtypes = (number, ctypes.c_ulong, number, number, pointer, pointer)
        self._destroy = library["syscall"]
        self._destroy.argtypes = (number, ctypes.c_ulong)
        self._waiting_get = ctypes.CDLL(None, use_errno=True)["syscall"]  # releases the interpreter lock
        self._waiting_get.argtypes = self._get.argtypes
        setup = library["syscall"]
        setup.argtypes = (number, ctypes.c_uint, pointer)
        context = ctypes.c_ulong(0)
        if setup(self._number[0], _EVENTS_MAX, ctypes.addressof(context)) != 0:
            raise UnavailableError(f"io_setup: {os.strerror(ctypes.get_errno())}")
        self._context = context.value
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._iocbs_at = ctypes.addressof(self._iocbs)
        self._events = ctypes.create_string_buffer(_EVENTS_MAX * _EVENT.size)
        self._events_at = ctypes.addressof(self._events)
        self._time = (ctypes.c_long * 2)(0, 0)
        self._time_at = ctypes.addressof(self._time)

    def submit(self, number: int, descriptor: int, event_descriptor: int) -> bool:
        _IOCB.pack_into(self._iocb, 0, number, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _RESFD, event_descriptor)
        return bool(self._submit(self._number[3], self._context, 1, self._iocbs_at) == 1)

    def completed(self, timeout_s: float = 0.0) -> Iterable[tuple[int, int]]:
        get, least = self._get, 0
        self._time[0] = self._time[1] = 0
        if timeout_s:
            get, least = self._waiting_get, 1
            self._time[0], self._time[1] = int(timeout_s), int(timeout_s % 1 * 1e9)
        count = get(self._number[2], self._context, least, _EVENTS_MAX, self._events_at, self._time_at)
        for at in range(0, count * _EVENT.size, _EVENT.size):
            number, _, result, _ = _EVENT.unpack_from(self._events, at)
            yield number, max(0, -result)

    def close(self) -> None:
        self._destroy(self._number[1], self._context)


class KernelSyncs:
    """Syncs under way in the kernel. `back` is called on the loop with the error or None, `taken` after each group."""

    def __init__(self, calls: SyncCalls, loop: asyncio.AbstractEventLoop, taken: Callable[[], None]) -> None:
        self._calls = calls
        self._loop = loop
        self._taken = taken
        self._under_way: dict[int, Back] = {}
        self._ended: deque[tuple[int, int]] = deque()  # results that are not given back yet
        self._next = 0
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._look)

    @property
    def open_count(self) -> int:
        """Number of syncs under way."""
        return len(self._under_way)

    def submit(self, descriptor: int, back: Back) -> bool:
        """Begin to sync a file; False if the kernel does not take it. Every loop turn may call it."""
        number = self._next
        if len(self._under_way) >= _EVENTS_MAX or descriptor < 0:  # below 0: a closed file, whose error a thread tells
            return False
        if not self._calls.submit(number, descriptor, self._event):
            return False
        self._next = (number + 1) % 2**63
        self._under_way[number] = back
        return True

    def _look(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._ended.extend(self._calls.completed())
        self._give_back()

    def _give_back(self) -> None:
        try:
            while self._ended:
                number, error = self._ended.popleft()
                self._under_way.pop(number)(OSError(error, os.strerror(error)) if error else None)
        finally:
            if self._ended:  # after a callback that raised: a log whose sync gives no result would wait for ever
                self._loop.call_soon(self._give_back)
            self._taken()

    def close(self) -> None:
        """Stop listening; with syncs under way the context stays, for releasing it would wait for the disk."""
        self._loop.remove_reader(self._event)
        if not self._under_way:
            self._calls.close()
            os.close(self._event)


def try_kernel(folder: str) -> LinuxAio:
    """Return what syncs files in that folder, after a trial. UnavailableError, OSError; blocks."""
    if (kind := file_system_of(folder, _mounts())) not in _LOCAL:
        raise UnavailableError(f"not used on a file system of type {kind or 'unknown'}")
    calls = LinuxAio()
    event = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        _try(calls, folder, event)
    finally:
        os.close(event)
    return calls


def _try(calls: LinuxAio, folder: str, event: int) -> None:
    path = os.path.join(folder, "sync-trial")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.unlink(path)
        with suppress(OSError):  # a full disk: its broker must not have threads until the next start
            os.pwrite(file, b"sync", 0)
        if not calls.submit(0, file, event):
            calls.close()
            raise UnavailableError(f"io_submit: {os.strerror(ctypes.get_errno())}")
        results = list(calls.completed(_TRIAL_S))
    finally:
        os.close(file)
    if results != [(0, 0)]:
        raise UnavailableError(f"a trial gave {os.strerror(results[0][1]) if results else 'no answer'}")


def _mounts() -> str:
    try:
        return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return ""


def file_system_of(folder: str, mounts: str) -> str:
    """Return the type of the file system that holds a folder; empty if unknown. `mounts`: see proc_pid_mountinfo(5)."""
    real = os.path.realpath(folder)
    found, length = "", -1
    for line in mounts.split("\n"):  # a name may have any other line break in it
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mounted = _unescaped(fields[4])
        is_above = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        if is_above and len(mounted) >= length:  # of two at one place the later one hides the other
            found, length = after.split(" ")[0], len(mounted)
    return found


def _unescaped(path: str) -> str:
    for code in ("\\040", "\\011", "\\012", "\\134"):
        path = path.replace(code, chr(int(code[1:], 8)))
    return path
