"""Processes that a benchmark depends on: if one ends by itself, the benchmark ends at once and says why.

Rules: The code that starts such a process registers it for as long as it is needed; a thread that waits for the process
reports its end. Code that waits for anything calls `check` repeatedly.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.base.errors import OperationalError

_changed = threading.Condition()
_wanted: list[Vital] = []  # of this process: it runs one benchmark


class EndedError(OperationalError):
    """A vital process has ended; no later round can succeed."""


class Vital:
    """One vital process."""

    def __init__(self, give_up: Callable[[], None] | None = None) -> None:
        self.give_up = give_up  # unblocks a caller that waits for an answer of the process
        self.end = ""

    def ended(self, name: str, code: int, said: str) -> None:
        """Record that the process has ended; `said` is the end of its log."""
        with _changed:
            self.end = f"{name} ended while it was measured ({how(code)}){_log(said)}"
            _changed.notify_all()
        if self.give_up is not None:
            self.give_up()


@contextmanager
def vital() -> Iterator[Vital]:
    """Register a vital process until the context ends."""
    one = Vital()
    with _changed:
        _wanted.append(one)
    try:
        yield one
    finally:
        with _changed:
            _wanted.remove(one)


def check(within_s: float = 0.0) -> None:
    """Raise EndedError if a vital process has ended, or ends in `within_s`: its errors may come before its end."""
    with _changed:
        _changed.wait_for(lambda: any(one.end for one in _wanted), within_s)
        for one in _wanted:
            if one.end:
                raise EndedError(one.end)


def wait(seconds: float) -> None:
    """Wait so long. Raise EndedError if a vital process ends meanwhile."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        check(left_s)


def how(code: int) -> str:
    """Describe how a process ended, by its return code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _log(said: str) -> str:
    return f"; its log ends with:\n{said}" if said else "; it said nothing"
