"""Handles standard streams that are closed, full, non-blocking or not UTF-8.

Rules: none of our files gets a descriptor from 0 to 2, because C code that prints there would write into the file;
/dev/null replaces a closed stream. A command whose output must not be lost calls `need_stdout` first. A write to stdout
is complete or fails, also with PYTHONUNBUFFERED and on a non-blocking descriptor. A character that the encoding lacks
is written as an escape.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.base.errors import OperationalError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_MODES = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY))
_closed: set[str] = set()


class _Waiting(io.BufferedWriter):
    """A buffered writer that waits until a non-blocking descriptor is writable."""

    def write(self, data: ReadableBuffer) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while True:
            try:
                super().write(left)
            except BlockingIOError as error:
                left = left[error.characters_written :]
                self._wait()
            else:
                return size

    def flush(self) -> None:
        while True:
            try:
                super().flush()
            except BlockingIOError:
                self._wait()
            else:
                return

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        poll.poll()


def secure() -> None:
    """Open /dev/null in place of closed standard streams. Call it before the process opens anything else."""
    _closed.clear()
    for descriptor, (name, mode, flags) in enumerate(_MODES):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            found = os.open(os.devnull, flags)
            assert found == descriptor, f"{found} is free, and {descriptor} is not"
            os.set_inheritable(found, True)
            _closed.add(name)
        if getattr(sys, name) is None:  # Python sets a closed stream to None
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
            stream.reconfigure(errors="backslashreplace")
    with suppress(io.UnsupportedOperation):  # a replacement stream without a descriptor
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = _whole(sys.stdout)


def _whole(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream on the same descriptor that writes everything or fails.

    With PYTHONUNBUFFERED the original has no buffer, so its writes can be short.
    """
    stream.flush()
    return io.TextIOWrapper(
        _Waiting(io.FileIO(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering or stream.write_through,
    )


def need_stdout() -> None:
    """Raise OperationalError if stdout was closed at the start; for a command whose output must not be lost."""
    if "stdout" in _closed:
        raise OperationalError("stdout is closed, so the command's output would be lost: nothing was done")


def is_utf8(stream: object) -> bool:
    """True if the stream's encoding is UTF-8."""
    return str(getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def forget_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's flush at exit reports no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
