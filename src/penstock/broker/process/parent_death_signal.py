"""Commands whose process is killed when this process dies, however it dies.

Rules: Linux sends the child SIGKILL at its parent's death (prctl PR_SET_PDEATHSIG, which survives exec). The child
requests that itself, in a small Python program that then execs the command: a preexec_fn would run Python in a forked
copy of a process with threads, which may deadlock. On other systems a killed parent leaves its child behind.

A Ctrl-C during the start of a child would leave a process that is not known here: `uninterrupted` defers it until the
child is recorded. Only the main thread handles signals, so that in other threads nothing needs to be deferred.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_STARTER = """\
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Return `command`, which begins with the path of a program, as a command that dies with this process."""
    return [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid()), *command]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals that would end this process until the context is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, keep) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
