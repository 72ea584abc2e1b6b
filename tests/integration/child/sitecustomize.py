"""Imported by a broker that a test starts with this folder on its path: slow disks and counted system calls.

| variable         | effect                                                                                |
|------------------|---------------------------------------------------------------------------------------|
| TEST_SYNC_GATE   | every fdatasync waits while somebody holds an exclusive flock(2) on that file          |
| TEST_SYNC_FAILS  | every fdatasync of a segment fails with EIO while that file is there                   |
| TEST_CALLS_FILE  | one byte is appended to that file per call: `s` os.sendfile, `a` a read-ahead          |
"""

import errno
import fcntl
import os

_gate = os.environ.get("TEST_SYNC_GATE")
_fails = os.environ.get("TEST_SYNC_FAILS")
_calls = os.environ.get("TEST_CALLS_FILE")
_fdatasync = os.fdatasync
_sendfile = os.sendfile
_preadv = os.preadv


def _gated_fdatasync(descriptor: int) -> None:
    if _gate:
        gate = os.open(_gate, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(gate, fcntl.LOCK_SH)
        finally:
            os.close(gate)
    if _fails and os.path.exists(_fails) and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".arrows"):
        raise OSError(errno.EIO, "Input/output error")
    _fdatasync(descriptor)


if _gate or _fails:
    os.fdatasync = _gated_fdatasync

if _calls:
    _file = os.open(_calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def _counted_sendfile(out: int, source: int, offset: int, count: int) -> int:
        os.write(_file, b"s")
        return _sendfile(out, source, offset, count)

    def _counted_preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        try:
            return _preadv(descriptor, buffers, offset, flags)
        except BlockingIOError:
            os.write(_file, b"a")
            raise

    os.sendfile = _counted_sendfile
    os.preadv = _counted_preadv
