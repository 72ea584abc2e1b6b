"""Counts the work of a call in executed lines: unlike time, the count does not depend on the machine and its load.

A line counts each time that it runs; in a loop or a comprehension, once per iteration. Compiled code is not counted:
count its calls, bytes or rows instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(work: Callable[[], Any]) -> int:
    """Return the number of lines of Python that `work` runs. Errors of `work` propagate."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
