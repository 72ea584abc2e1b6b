"""Imported by a broker that a test starts with this folder on its path: slow and broken disks, counted system calls.

| variable        | effect                                                                                  |
|-----------------|-----------------------------------------------------------------------------------------|
| TEST_SYNC_GATE  | every fdatasync waits while somebody holds an exclusive flock(2) on that file           |
| TEST_SYNC_FAILS | every fdatasync of a segment fails with EIO while that file is there                    |
| TEST_CALLS_FILE | one byte is appended to that file per call: `s` os.sendfile, `a` a read-ahead           |
| TEST_COLD       | while that file is there, nothing is in the page cache that no pread(2) has read before |
| TEST_READ_FAILS | every pread of a segment fails with EIO while that file is there                        |
| TEST_SEND_FAILS | while that file is there (`call errno port`), `call`s to the peer on that port fail so  |
| TEST_ONE_TURN   | a turn takes all requests that are there, however slow the machine is                   |
"""

import errno
import fcntl
import os
import socket

_gate = os.environ.get("TEST_SYNC_GATE")
_sync_fails = os.environ.get("TEST_SYNC_FAILS")
_calls = os.environ.get("TEST_CALLS_FILE")
_cold = os.environ.get("TEST_COLD")
_read_fails = os.environ.get("TEST_READ_FAILS")
_send_fails = os.environ.get("TEST_SEND_FAILS")
_one_turn = os.environ.get("TEST_ONE_TURN")
_fdatasync = os.fdatasync
_sendfile = os.sendfile
_preadv = os.preadv
_pread = os.pread
_send = socket.socket.send
_warmed: set[tuple[str, int]] = set()  # (file, 4 KiB page)


def _is_segment(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").endswith(".arrows")


def _gated_fdatasync(descriptor: int) -> None:
    if _gate:
        gate = os.open(_gate, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(gate, fcntl.LOCK_SH)
        finally:
            os.close(gate)
    if _sync_fails and os.path.exists(_sync_fails) and _is_segment(descriptor):
        raise OSError(errno.EIO, "Input/output error")
    _fdatasync(descriptor)


if _gate or _sync_fails:
    os.fdatasync = _gated_fdatasync
    os.environ["PENSTOCK_SYNC_BY"] = "threads"  # the kernel's syncs do not come through here

_calls_file = os.open(_calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC) if _calls else -1


def _count(call: bytes) -> None:
    if _calls:
        os.write(_calls_file, call)


def _fail_to(call: str, peer_port: int) -> None:
    try:
        with open(_send_fails) as file:
            failing, number, port = file.read().split()
    except FileNotFoundError:
        return
    if call == failing and peer_port == int(port):
        raise OSError(int(number), os.strerror(int(number)))


def _seen_sendfile(out: int, source: int, offset: int, count: int) -> int:
    _count(b"s")
    if _send_fails:
        with socket.socket(fileno=os.dup(out)) as connection:
            _fail_to("sendfile", connection.getpeername()[1])
    return _sendfile(out, source, offset, count)


def _seen_preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
    try:
        page = (os.readlink(f"/proc/self/fd/{descriptor}"), offset // 4096)
        if _cold and os.path.exists(_cold) and page not in _warmed:
            raise BlockingIOError
        return _preadv(descriptor, buffers, offset, flags)
    except BlockingIOError:
        _count(b"a")
        raise


def _seen_pread(descriptor: int, length: int, offset: int) -> bytes:
    if _read_fails and os.path.exists(_read_fails) and _is_segment(descriptor):
        raise OSError(errno.EIO, "Input/output error")
    if _cold and os.path.exists(_cold):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        _warmed.update((path, page) for page in range(offset // 4096, (offset + length) // 4096 + 1))
    return _pread(descriptor, length, offset)


def _seen_send(self: socket.socket, data: bytes, flags: int = 0) -> int:
    if self.family == socket.AF_INET:
        _fail_to("send", self.getpeername()[1])
    return _send(self, data, flags)


if _calls or _cold or _send_fails:
    os.sendfile = _seen_sendfile
    os.preadv = _seen_preadv
if _cold or _read_fails:
    os.pread = _seen_pread
if _send_fails:
    socket.socket.send = _seen_send

if _one_turn:
    from penstock.base import limits

    limits.REQUEST_TURN_US_MAX = 60_000_000
