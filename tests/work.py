"""How much work a call is, counted: what a clock would say depends on the machine and on what else runs on it.

A line counts each time that it runs; in a loop or a comprehension, once for each turn. What compiled code does counts
nothing: count its calls, bytes or rows instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(work: Callable[[], Any]) -> int:
    """How many lines of Python `work` runs. Errors of `work` are its caller's."""
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
