"""Process history of a disk: detects an older copy of a broker's data directory.

Rules: `runs` are the processes known to have run on a disk, as its broker says (`node/data_dir/process_history.py`
keeps them), including the one that asks to be registered. Without information a disk is never taken for an older copy.
"""

from __future__ import annotations

ANY_RUN = ""
"""Wildcard in `runs`: any process may have run on the disk."""


def may_have_run(process: str, runs: tuple[str, ...]) -> bool:
    """True if the process that was registered last may be one of these runs."""
    return not process or not runs or process in runs or ANY_RUN in runs
