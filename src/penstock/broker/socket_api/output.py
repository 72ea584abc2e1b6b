"""Output queue of one connection: bytes in memory, and ranges of files.

Rules: a turn writes at most one slice, so that a large answer to one client does not delay another. A range of a file
is sent with sendfile(2) where the transport can; if it is not in the page cache, a disk thread reads it first.
Otherwise, and if the file has no descriptor, it is read a slice at a time: while sending (a memory file), or beforehand
by a disk thread if reading takes work (an encrypted stream). Memory and open files are taken from budgets shared by all
connections, and returned when sent or dropped.

| `write` says | meaning                                             |
|--------------|-----------------------------------------------------|
| DONE         | nothing is left                                     |
| MORE         | the socket is full, or this turn is over            |
| COLD         | `cold` must be read by a disk thread, then `warmed` |

OSError from `write` means that the connection cannot continue: an answer is cut off in the middle.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.base import limits
from penstock.broker.socket_api.shared_budget import SharedBudget, UsersBudget
from penstock.broker.transport.transport import Transport
from penstock.node.step import FileRange
from penstock.vfs import File

_READ_BYTES = 64 * limits.KIB  # per read of a disk thread
_PAGE_BYTES = 4 * limits.KIB  # granularity of the page cache


class WriteOutcome(Enum):
    """Result of a turn; see the module's table."""

    DONE = "done"
    MORE = "more"
    COLD = "cold"


class FileRangeError(OSError):
    """The file failed, not the socket."""


@dataclass(slots=True, eq=False)
class _Opened:
    """A file opened for answers, shared by consecutive ranges."""

    file: File
    users: int = 1  # the last one closes it


_NOTHING = memoryview(b"")


@dataclass(slots=True)
class _Range:
    """A part of a file that still has to be sent."""

    extent: FileRange
    opened: _Opened
    position: int
    length: int
    warm_end: int = 0  # the page cache has the file up to here
    read: memoryview = _NOTHING  # decrypted bytes that come next, in the budget until sent


@dataclass(slots=True)
class _Memory:
    rest: memoryview
    size_bytes: int  # in the budget until all of it is sent


@dataclass(slots=True)
class ColdRead:
    """A part of a file that a disk thread must read: to fill the page cache, or because reading takes work."""

    opened: _Opened  # this object counts as one user
    position: int
    size: int
    data: bytes = b""  # of a file whose reading takes work

    def read(self) -> None:
        """Read the part, on a disk thread; raise OSError if the file cannot be read."""
        if self.opened.file.takes_work:
            self.data = self.opened.file.read_at(self.position, self.size)
            return
        position, end = self.position, self.position + self.size
        while position < end:
            length = min(end - position, _READ_BYTES)
            if not self.opened.file.read_at(position, length):
                return
            position += length


class Output:
    """Output queue of one connection."""

    def __init__(
        self,
        transport: Transport,
        buffers: SharedBudget | UsersBudget,
        files: SharedBudget | UsersBudget,
        elapsed_us: Callable[[], int],
    ) -> None:
        self.waiting_bytes = 0  # in memory and in files
        self.cold: ColdRead | None = None
        self._transport = transport
        self._buffers = buffers
        self._files = files
        self._elapsed_us = elapsed_us
        self._queue: deque[_Memory | _Range] = deque()
        self._held_bytes = 0  # in memory
        self._held_files = 0
        self._window_start_us = 0  # start of the interval in which the client must take enough
        self._window_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, *parts: bytes | bytearray) -> None:
        """Queue these without a check of the budget: heads, and small answers."""
        for part in parts:
            if part:
                self._buffers.take_anyway(len(part))
                self._held_bytes += len(part)
                self._enqueue(_Memory(memoryview(part), len(part)))

    def prepare(self, *pieces: bytes | bytearray | FileRange) -> list[_Memory | _Range] | None:
        """Return the parts that `send` takes next; None if the broker's buffers or open files are used up.

        Raise OSError if a file cannot be opened.
        """
        parts: list[_Memory | _Range] = []
        is_whole = False
        try:
            is_whole = all(self._take(piece, parts) for piece in pieces)
        finally:
            if not is_whole:
                for part in parts:
                    self._give_back(part)
        return parts if is_whole else None

    def send(self, head: bytes, parts: list[_Memory | _Range]) -> None:
        """Queue a head and the parts that were just prepared."""
        self.add(head)
        for part in parts:
            self._enqueue(part)

    def _take(self, piece: bytes | bytearray | FileRange, parts: list[_Memory | _Range]) -> bool:
        """Append the part made of `piece` to `parts`; return False if its budget has no room."""
        if isinstance(piece, FileRange):
            before = parts[-1] if parts else self._queue[-1] if self._queue else None
            part: _Memory | _Range | None = self._range(piece, before)
        else:
            part = self._memory(piece)
        if part is not None:
            parts.append(part)
        return part is not None

    def _memory(self, piece: bytes | bytearray) -> _Memory | None:
        """Return a part with its place in the budget; None if there is none."""
        if piece and not self._buffers.take(len(piece)):
            return None
        self._held_bytes += len(piece)
        return _Memory(memoryview(piece), len(piece))

    def _range(self, extent: FileRange, before: _Memory | _Range | None) -> _Range | None:
        """Return a part with its file open; None if too many are. `before` is sent right before it."""
        if isinstance(before, _Range) and before.extent.vfs is extent.vfs and before.extent.path == extent.path:
            before.opened.users += 1
            return _Range(extent, before.opened, extent.position, extent.length)
        if not self._files.take(1):
            return None
        try:
            file = extent.vfs.open(extent.path, read_only=True)
        except BaseException:
            self._files.give(1)
            raise
        self._held_files += 1
        return _Range(extent, _Opened(file), extent.position, extent.length)

    def _enqueue(self, part: _Memory | _Range) -> None:
        if not self._queue:
            self._begin_window()
        self._queue.append(part)
        self.waiting_bytes += part.size_bytes if isinstance(part, _Memory) else part.length

    def use(self, buffers: SharedBudget | UsersBudget, files: SharedBudget | UsersBudget) -> None:
        """Account what is held to these budgets from now on, beyond their limits if need be."""
        buffers.take_anyway(self._held_bytes)
        self._buffers.give(self._held_bytes)
        files.take_anyway(self._held_files)
        self._files.give(self._held_files)
        self._buffers, self._files = buffers, files

    # Writing

    def write(self) -> WriteOutcome:
        """Write one turn. Raise OSError (FileRangeError if a file is at fault) if the connection cannot continue."""
        budget = self._transport.slice_bytes
        try:
            while self._queue and budget > 0:
                part = self._queue[0]
                sent = self._send_memory(part) if isinstance(part, _Memory) else self._send_range(part)
                if sent is None:
                    return WriteOutcome.COLD
                budget -= sent
        except (BlockingIOError, InterruptedError):
            pass
        return WriteOutcome.MORE if self._queue else WriteOutcome.DONE

    def _send_memory(self, part: _Memory) -> int:
        sent = self._transport.send(part.rest, more=len(self._queue) > 1)
        part.rest = part.rest[sent:]
        if not part.rest:
            self._queue.popleft()
            self._give_back(part)
        self._took(sent)
        return sent

    def _send_range(self, part: _Range) -> int | None:
        """Return the bytes sent; None if the part must be read ahead first."""
        size = min(part.length, self._transport.slice_bytes)
        file = part.opened.file
        fileno = file.fileno()
        if file.takes_work:
            if not part.read and part.warm_end <= part.position:
                self._have_read(part, size)
                return None
            sent = self._send_read(part)
        elif fileno is None:
            sent = self._send_copy(part, size)
        elif part.position + size > part.warm_end and not _is_cached(fileno, part.position, size):
            self._have_read(part, size)
            return None
        else:
            sent = self._send_file(part, fileno, size)
        if sent == 0 and part.length:
            # Permanent corruption: the next fetch gets an error instead of a cut-off answer. (A read error may be
            # transient.)
            reason = "the file is shorter than its index says"
            part.extent.damage_found(file.path, part.position, reason)
            raise FileRangeError(errno.EIO, f"cannot read {file.path} at byte {part.position}: {reason}")
        part.position += sent
        part.length -= sent
        if not part.length:
            self._queue.popleft()
            self._give_back(part)
        self._took(sent)
        return sent

    def _have_read(self, part: _Range, size: int) -> None:
        part.opened.users += 1
        self.cold = ColdRead(part.opened, part.position, size)

    def _send_read(self, part: _Range) -> int:
        if not part.read:
            return 0  # end of file
        sent = self._transport.send(part.read, more=part.length > len(part.read) or len(self._queue) > 1)
        part.read = part.read[sent:]
        self._give_held(sent)
        return sent

    def _give_held(self, size: int) -> None:
        self._held_bytes -= size
        self._buffers.give(size)

    def _send_copy(self, part: _Range, size: int) -> int:
        data = part.opened.file.read_at(part.position, size)
        return self._transport.send(data, more=len(self._queue) > 1) if data else 0

    def _send_file(self, part: _Range, fileno: int, size: int) -> int:
        try:
            if not self._transport.sends_files:
                return self._send_copy(part, size)
            return self._transport.send_file(fileno, part.position, size)
        except OSError as error:
            if error.errno == errno.EIO:  # sockets do not report EIO
                raise FileRangeError(error.errno, f"cannot read {part.opened.file.path}: {error.strerror}") from error
            raise

    def _took(self, sent: int) -> None:
        self.waiting_bytes -= sent
        self._window_bytes += sent
        if self._window_bytes >= self._window_bytes_min or not self._queue:
            self._begin_window()

    def warmed(self, error: Exception | None) -> None:
        """The disk thread has finished. Raise FileRangeError if it could not read."""
        cold, self.cold = self.cold, None
        assert cold is not None
        part = self._queue[0] if self._queue else None
        self._leave(cold.opened)
        if not isinstance(part, _Range) or part.opened is not cold.opened:
            return  # dropped meanwhile
        if error is not None:
            raise FileRangeError(errno.EIO, f"cannot read {cold.opened.file.path}: {error}")
        part.warm_end = cold.position + cold.size
        if cold.data:
            part.read = memoryview(cold.data)
            part.warm_end = cold.position + len(cold.data)
            self._buffers.take_anyway(len(cold.data))
            self._held_bytes += len(cold.data)
        self._begin_window()  # the disk was slow, not the client

    # Progress and the end

    def _begin_window(self) -> None:
        self._window_start_us = self._elapsed_us()
        self._window_bytes = 0

    @property
    def _window_bytes_min(self) -> int:
        # Queued file ranges cost little memory, so that any progress suffices for them.
        wanted = limits.TRANSFER_BYTES_PER_S_MIN * limits.WRITE_STALL_MS_MAX // 1_000
        return max(1, min(wanted, self._held_bytes))

    def is_stalled(self, now_us: int) -> bool:
        """True if the client takes its answers too slowly."""
        waits_for_client = bool(self._queue) and self.cold is None
        return waits_for_client and now_us - self._window_start_us > limits.WRITE_STALL_MS_MAX * 1_000

    def drop(self) -> None:
        """Drop all output, and return it to the budgets."""
        parts, self._queue = self._queue, deque()
        for part in parts:
            self._give_back(part)
        self.waiting_bytes = 0

    def _give_back(self, part: _Memory | _Range) -> None:
        if isinstance(part, _Memory):
            self._give_held(part.size_bytes)
        else:
            if part.read:
                self._give_held(len(part.read))
            self._leave(part.opened)

    def _leave(self, opened: _Opened) -> None:
        opened.users -= 1
        if not opened.users:
            with contextlib.suppress(OSError):  # it was only read
                opened.file.close()
            self._held_files -= 1
            self._files.give(1)


def _is_cached(fileno: int, position: int, size: int) -> bool:
    """True if both ends and the middle of a range are in the page cache, or if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    probe = bytearray(1)
    first, last = position // _PAGE_BYTES, (position + size - 1) // _PAGE_BYTES
    for page in dict.fromkeys((first, (first + last) // 2, last)):  # a lone message spans one or two
        try:
            os.preadv(fileno, [probe], page * _PAGE_BYTES, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # this file system does not support the flag
    return True
