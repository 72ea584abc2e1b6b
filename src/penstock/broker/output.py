"""What one connection still has to send: bytes in memory, and ranges of files.

Rules: a turn writes at most one slice, so that a large answer to one client does not hold up another. A range of a file
goes out with sendfile(2), and is read by a disk thread first where the page cache does not have it; a range of a file
without a descriptor (a memory stream's) is read a slice at a time, as it is sent. Bytes in memory and open files come
out of budgets that all connections share, and go back when they are sent or dropped.

| `write` says | meaning                                             |
|--------------|-----------------------------------------------------|
| DONE         | nothing is left                                     |
| MORE         | the socket is full, or this turn is over            |
| COLD         | `cold` must be read by a disk thread, then `warmed` |

OSError from `write` means that the connection cannot go on: an answer is broken off in the middle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.base import limits
from penstock.broker.shared_budget import SharedBudget
from penstock.node.step import Extent
from penstock.vfs import File

_SLICE_BYTES = limits.SENDFILE_SLICE_BYTES
_READ_BYTES = 64 * limits.KIB  # by a disk thread at once
_PAGE_BYTES = 4 * limits.KIB  # the least that the page cache has or has not
_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: a head waits for what comes behind it


class Written(Enum):
    """How a turn ended. See the module's table."""

    DONE = "done"
    MORE = "more"
    COLD = "cold"


class RangeError(OSError):
    """It was the file, not the socket."""


@dataclass(slots=True)
class _Range:
    """A part of a file that still has to be sent."""

    extent: Extent
    file: File
    position: int
    length: int
    warm_end: int = 0  # up to here the page cache has it
    is_last_user: bool = True  # else the next range in the queue goes on with the same file


@dataclass(slots=True)
class _Memory:
    rest: memoryview
    size_bytes: int  # in the budget until all of it is sent


@dataclass(frozen=True, slots=True)
class Cold:
    """A piece of a file that a disk thread has to read for the sake of the page cache."""

    file: File
    position: int
    size: int

    def read(self) -> None:
        """In a disk thread; OSError if the file cannot be read."""
        position, end = self.position, self.position + self.size
        while position < end:
            length = min(end - position, _READ_BYTES)
            if not self.file.read_at(position, length):
                return
            position += length


class Output:
    """One connection's queue. See the module's rules."""

    def __init__(
        self, sock: socket.socket, buffers: SharedBudget, files: SharedBudget, elapsed_us: Callable[[], int]
    ) -> None:
        self.waiting_bytes = 0  # in memory and in files
        self.cold: Cold | None = None
        self._socket = sock
        self._buffers = buffers
        self._files = files
        self._elapsed_us = elapsed_us
        self._queue: deque[_Memory | _Range] = deque()
        self._held_bytes = 0  # in memory
        self._window_start_us = 0  # the client must have taken enough from here on
        self._window_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, *parts: bytes | bytearray) -> None:
        """Send these, whatever the budget says: heads, and answers that are small."""
        for part in parts:
            if part:
                self._buffers.take_anyway(len(part))
                self._hold(part)

    def add_payload(self, head: bytes, payload: bytes | bytearray) -> bool:
        """Send both; False, and nothing is sent, if the broker's buffers have no room for it."""
        if payload and not self._buffers.take(len(payload)):
            return False
        self.add(head)
        if payload:
            self._hold(payload)
        return True

    def _hold(self, part: bytes | bytearray) -> None:
        self._enqueue(_Memory(memoryview(part), len(part)), len(part))
        self._held_bytes += len(part)

    def add_extent(self, head: bytes, extent: Extent) -> bool:
        """Send both; False, and nothing is sent, if too many files are open for answers. OSError if it cannot open."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Range) and last.extent.vfs is extent.vfs and last.file.path == extent.path:
            file = last.file
            last.is_last_user = False
        else:
            if not self._files.take(1):
                return False
            try:
                file = extent.vfs.open(extent.path, read_only=True)
            except BaseException:
                self._files.give(1)
                raise
        self.add(head)
        self._enqueue(_Range(extent, file, extent.position, extent.length), extent.length)
        return True

    def _enqueue(self, part: _Memory | _Range, size: int) -> None:
        if not self._queue:
            self._begin_window()
        self._queue.append(part)
        self.waiting_bytes += size

    # Writing

    def write(self) -> Written:
        """One turn. OSError (RangeError where a file is at fault) if the connection cannot go on."""
        budget = _SLICE_BYTES
        try:
            while self._queue and budget > 0:
                part = self._queue[0]
                sent = self._send_memory(part) if isinstance(part, _Memory) else self._send_range(part)
                if sent is None:
                    return Written.COLD
                budget -= sent
        except (BlockingIOError, InterruptedError):
            pass
        return Written.MORE if self._queue else Written.DONE

    def _send_memory(self, part: _Memory) -> int:
        sent = self._socket.send(part.rest, _MSG_MORE if len(self._queue) > 1 else 0)
        part.rest = part.rest[sent:]
        if not part.rest:
            self._queue.popleft()
            self._give_back(part)
        self._took(sent)
        return sent

    def _send_range(self, part: _Range) -> int | None:
        """How much was sent; None if it must be read ahead first."""
        size = min(part.length, _SLICE_BYTES)
        fileno = part.file.fileno()
        if fileno is None:
            data = part.file.read_at(part.position, size)
            sent = self._socket.send(data, _MSG_MORE if len(self._queue) > 1 else 0) if data else 0
        elif part.position + size > part.warm_end and not _is_cached(fileno, part.position, size):
            self.cold = Cold(part.file, part.position, size)
            return None
        else:
            sent = self._send_file(part, fileno, size)
        if sent == 0 and part.length:
            # Damage, and here to stay: the next fetch is told so instead of cut off. (A read error may pass.)
            reason = "the file is shorter than its index says"
            part.extent.damage_found(part.file.path, part.position, reason)
            raise RangeError(errno.EIO, f"cannot read {part.file.path} at byte {part.position}: {reason}")
        part.position += sent
        part.length -= sent
        if not part.length:
            self._queue.popleft()
            self._give_back(part)
        self._took(sent)
        return sent

    def _send_file(self, part: _Range, fileno: int, size: int) -> int:
        try:
            return os.sendfile(self._socket.fileno(), fileno, part.position, size)
        except OSError as error:
            if error.errno == errno.EIO:  # no socket says that
                raise RangeError(error.errno, f"cannot read {part.file.path}: {error.strerror}") from error
            raise

    def _took(self, sent: int) -> None:
        self.waiting_bytes -= sent
        self._window_bytes += sent
        if self._window_bytes >= self._window_bytes_min or not self._queue:
            self._begin_window()

    def warmed(self, error: Exception | None) -> None:
        """The disk thread is done. RangeError if it could not read."""
        cold, self.cold = self.cold, None
        assert cold is not None
        part = self._queue[0] if self._queue else None
        if not isinstance(part, _Range) or part.file is not cold.file:
            _close(cold.file)  # dropped meanwhile
            self._files.give(1)
        elif error is not None:
            raise RangeError(errno.EIO, f"cannot read {cold.file.path}: {error}")
        else:
            part.warm_end = cold.position + cold.size
            self._begin_window()  # the disk was slow, not the client

    # Progress and the end

    def _begin_window(self) -> None:
        self._window_start_us = self._elapsed_us()
        self._window_bytes = 0

    @property
    def _window_bytes_min(self) -> int:
        # What lies in files costs little: there any progress will do.
        wanted = limits.TRANSFER_BYTES_PER_S_MIN * limits.WRITE_STALL_MS_MAX // 1_000
        return max(1, min(wanted, self._held_bytes))

    def is_stalled(self, now_us: int) -> bool:
        """Whether the client takes too little of what waits for it."""
        waits_for_client = bool(self._queue) and self.cold is None
        return waits_for_client and now_us - self._window_start_us > limits.WRITE_STALL_MS_MAX * 1_000

    def drop(self) -> None:
        """Send no more, and give everything back."""
        parts, self._queue = self._queue, deque()
        for part in parts:
            self._give_back(part)
        self.waiting_bytes = 0

    def _give_back(self, part: _Memory | _Range) -> None:
        if isinstance(part, _Memory):
            self._held_bytes -= part.size_bytes
            self._buffers.give(part.size_bytes)
        elif part.is_last_user and (self.cold is None or self.cold.file is not part.file):
            _close(part.file)
            self._files.give(1)


def _close(file: File) -> None:
    with contextlib.suppress(OSError):  # it was only read
        file.close()


def _is_cached(fileno: int, position: int, size: int) -> bool:
    """Whether the ends and the middle of a range are in the page cache; True where the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    probe = bytearray(1)
    first, last = position // _PAGE_BYTES, (position + size - 1) // _PAGE_BYTES
    for page in dict.fromkeys((first, (first + last) // 2, last)):  # a lone message lies in one or two
        try:
            os.preadv(fileno, [probe], page * _PAGE_BYTES, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # this file system does not know the flag
    return True
