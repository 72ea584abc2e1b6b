"""What the runs of a disk tell: whether it may be the one that a broker was registered with last.

Rules: `runs` are the processes that are known to have run on a disk, as its broker says (`node/runs.py` keeps them).
Whoever asked to be registered is among them. What is not known is never taken for an older copy.
"""

from __future__ import annotations

ANY_RUN = ""
"""A process that nobody knows: any may have run on the disk."""


def may_have_run(process: str, runs: tuple[str, ...]) -> bool:
    """Whether the process that was registered last may be one of these runs."""
    return not process or not runs or process in runs or ANY_RUN in runs
