"""CPU time of this process and all its descendants, as Linux counts it, including those that have ended.

Theory: The CPU time of an ended child is added to its parent only if the parent has waited for it; it is lost if no
process has, or if the parent died first. So all processes are polled ten times a second, and their last known usage is
kept: of a process that ends, only the time since the last poll is missing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES, _STARTED = 1, slice(11, 13), 19  # positions of the fields after the name: state is the first
_LOOK_S = 0.1

_Process = tuple[int, int]  # process id and start time: ids are reused


class ProcessTree:
    """Polls the tree while it is entered: `with ProcessTree() as tree: … tree.cpu_seconds()`."""

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
        """Return the user and system time of all processes seen so far."""
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
                # An orphaned process has another parent now, but was seen before.
                if process in self._used or _descends(pid, parents, known & seen.keys()):
                    self._used[process] = ticks


def _descends(pid: int, parents: dict[int, int], known: set[int]) -> bool:
    me = os.getpid()
    while pid and pid != me and pid not in known:
        pid = parents.get(pid, 0)
    return pid != 0
