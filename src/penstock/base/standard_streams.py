"""Standard input, output and error as a program finds them: closed, full, or of another encoding.

Rules: no file of ours gets a descriptor from 0 to 2, for what C code prints there would go into it: /dev/null is opened
in the place of one that is closed. A character that a terminal cannot show is written as an escape.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

_MODES = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY))


def secure() -> None:
    """Open /dev/null in place of closed standard streams. Call it before the process opens anything else."""
    for descriptor, (name, mode, flags) in enumerate(_MODES):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            found = os.open(os.devnull, flags)
            assert found == descriptor, f"{found} is free, and {descriptor} is not"
            os.set_inheritable(found, True)
        if getattr(sys, name) is None:  # so Python leaves one that was closed
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
            stream.reconfigure(errors="backslashreplace")


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
