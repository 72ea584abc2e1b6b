"""A command whose process ends when ours does, however we end.

Rules: Linux sends the child SIGKILL at its parent's death (prctl PR_SET_PDEATHSIG, which survives exec). The child asks
for it itself, in a small Python program that then becomes the command: to ask between fork and exec (preexec_fn) would
run Python in a forked copy of a process with threads, which may deadlock. Elsewhere than on Linux a killed parent
leaves its child behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

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
