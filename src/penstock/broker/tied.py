"""A command whose process ends when ours does, however we end.

Rules: Linux sends the child SIGKILL at its parent's death (prctl PR_SET_PDEATHSIG, which survives exec). The child asks
for it itself, in a small Python program that then becomes the command: to ask between fork and exec (preexec_fn) would
run Python in a forked copy of a process with threads, which may deadlock. Elsewhere than on Linux a killed parent
leaves its child behind.

A Ctrl-C that came while a child is being started would leave one that nobody knows of: `uninterrupted` lets it wait
until the child has a name. Only the main thread takes signals, so elsewhere there is nothing to hold back.
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


def tied(command: Sequence[str]) -> list[str]:
    """`command`, which begins with the path of a program, as a command that dies with this process."""
    return [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid()), *command]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back what would end us until the context is left; then it is handled as it would have been."""
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
