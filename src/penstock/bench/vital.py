"""Processes without which nothing can be measured: when one ends by itself, the bench ends too, at once, and says why.

Rules: whoever starts such a process registers it for as long as it is wanted, and is told of its end by a thread that
waits for it. Whoever waits for something else looks here now and then (`check`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.base.errors import OperationalError

_changed = threading.Condition()
_wanted: list[Vital] = []  # of this process: it has one bench


class EndedError(OperationalError):
    """A process that everything depends on has ended; no later round can succeed."""


class Vital:
    """One such process."""

    def __init__(self, give_up: Callable[[], None] | None = None) -> None:
        self.give_up = give_up  # frees who waits for an answer of it
        self.end = ""

    def ended(self, name: str, code: int, said: str) -> None:
        """It has ended; `said` is the end of its log."""
        with _changed:
            self.end = f"{name} ended while it was measured ({how(code)}){_log(said)}"
            _changed.notify_all()
        if self.give_up is not None:
            self.give_up()


@contextmanager
def vital() -> Iterator[Vital]:
    """A process that is wanted for as long as the context."""
    one = Vital()
    with _changed:
        _wanted.append(one)
    try:
        yield one
    finally:
        with _changed:
            _wanted.remove(one)


def check(within_s: float = 0.0) -> None:
    """EndedError if one of them has ended, or does within the time: what it leaves behind may be seen before."""
    with _changed:
        _changed.wait_for(lambda: any(one.end for one in _wanted), within_s)
        for one in _wanted:
            if one.end:
                raise EndedError(one.end)


def how(code: int) -> str:
    """How a process ended, by its return code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _log(said: str) -> str:
    return f"; its log ends with:\n{said}" if said else "; it said nothing"
