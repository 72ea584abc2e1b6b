"""Standard input, output and error as a program finds them: closed, full, or of another encoding.

Rules: no file of ours gets a descriptor from 0 to 2, for what C code prints there would go into it: /dev/null is opened
in the place of one that is closed; a command whose output would be missed asks `need_stdout` first. What goes to stdout
is written whole, or the write fails: also with PYTHONUNBUFFERED, and where the descriptor does not block. A character
that a terminal cannot show is written as an escape.
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
    """A buffer that waits for a descriptor that takes nothing at the moment."""

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
        if getattr(sys, name) is None:  # so Python leaves one that was closed
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
            stream.reconfigure(errors="backslashreplace")
    with suppress(io.UnsupportedOperation):  # one that a program has put in its place, without a descriptor
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = _whole(sys.stdout)


def _whole(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, which writes all or fails. With PYTHONUNBUFFERED its `buffer` is none: writes are short."""
    stream.flush()
    return io.TextIOWrapper(
        _Waiting(io.FileIO(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering or stream.write_through,
    )


def need_stdout() -> None:
    """OperationalError where stdout was closed at the start: for a command whose output would be lost."""
    if "stdout" in _closed:
        raise OperationalError("stdout is closed, and what the command prints would be lost: nothing was done")


def is_utf8(stream: object) -> bool:
    """True if the stream's encoding is UTF-8."""
    return str(getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def forget_stdout() -> None:
    """Write nothing to it any more: the interpreter flushes it once more when it exits, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
