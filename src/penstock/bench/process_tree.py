"""The CPU time of this process and all that descend from it, as Linux counts it: also of those that have ended.

Theory: what an ended child has used is added to its parent's count only if that has waited for it, and is gone if
nobody has, or if its parent had died before it. So all are looked at often, and what each was last seen to have used is
kept: of one that ends, no more than the time since the last look is missed.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES, _STARTED = 1, slice(11, 13), 19  # of the fields behind the name: state is the first
_LOOK_S = 0.1

_Process = tuple[int, int]  # its id, and when it was started: ids are used again


class ProcessTree:
    """Looks at the tree as long as it is entered: `with ProcessTree() as tree: … tree.cpu_seconds()`."""

    def __init__(self) -> None:
        self._used: dict[_Process, int] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-cpu", daemon=True)

    def __enter__(self) -> ProcessTree:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def cpu_seconds(self) -> float:
        """User and system time of all that were ever seen."""
        self._look()
        with self._lock:
            return sum(self._used.values()) / _TICKS_PER_S

    def _look(self) -> None:
        parents: dict[int, int] = {}
        seen: dict[int, tuple[_Process, int]] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:  # it has ended
                continue
            pid = int(folder.name)
            parents[pid] = int(fields[_PARENT])
            seen[pid] = (pid, int(fields[_STARTED])), sum(int(one) for one in fields[_TIMES])
        with self._lock:
            known = {pid for pid, _ in self._used}
            for pid, (process, ticks) in seen.items():
                # One that lost its parent is nobody's child here any more, but was seen before.
                if process in self._used or _descends(pid, parents, known & seen.keys()):
                    self._used[process] = ticks


def _descends(pid: int, parents: dict[int, int], known: set[int]) -> bool:
    me = os.getpid()
    while pid and pid != me and pid not in known:
        pid = parents.get(pid, 0)
    return pid != 0
