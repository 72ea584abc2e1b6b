"""The CPU time of a tree of processes, also of those that nobody has waited for."""

from __future__ import annotations

import subprocess
import sys
import time

from penstock_bench.machine.process_tree import ProcessTree
from tests.extent import each_change

_BURN = "import time\nwhile time.process_time() < 0.6: pass"
_FORGETS = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what its children used is added to nobody's count
if os.fork() == 0:
    {_BURN.splitlines()[0]}
    {_BURN.splitlines()[1]}
    os._exit(0)
sys.stdin.read()
"""


def used_s(program: str, tree: ProcessTree, wanted_s: float) -> float:
    """Until the tree has used so much, or a minute has passed."""
    before = tree.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        deadline_s = time.monotonic() + 60
        while (used := tree.cpu_seconds() - before) < wanted_s and time.monotonic() < deadline_s:
            pass
        assert child.stdin is not None
        child.stdin.close()
    return used


@each_change
def test_children_count_also_when_they_have_ended() -> None:
    with ProcessTree() as tree:
        before = tree.cpu_seconds()
        subprocess.run([sys.executable, "-c", _BURN], check=True)
        assert tree.cpu_seconds() - before > 0.4


@each_change
def test_what_nobody_waits_for_is_not_lost() -> None:
    with ProcessTree() as tree:
        assert used_s(_FORGETS, tree, 0.5) > 0.4
        after = tree.cpu_seconds()
        assert tree.cpu_seconds() >= after
