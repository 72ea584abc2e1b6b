"""The trace of a run: one line of text for each event, hashed as it grows.

Rules: A line contains only what the seed decides: no addresses, no order of a set of strings, no real time. So the
same seed gives the same hash in every process and every version of Python; if not, something is not seeded.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from penstock.testing.simulation.scheduler import Scheduler

_HASHED_LINES = 1_000


class Trace:
    """The lines of one run. `show` receives each of them."""

    def __init__(self, scheduler: Scheduler, show: Callable[[str], None] | None = None) -> None:
        self._scheduler = scheduler
        self._show = show
        self._hash = sha256()
        self._lines: list[str] = []

    def add(self, who: str, what: str) -> None:
        """Add one event."""
        line = f"{self._scheduler.now_us} {who} {what}"
        self._lines.append(line)
        if self._show is not None:
            self._show(line)
        if len(self._lines) >= _HASHED_LINES:
            self._take_in()

    def _take_in(self) -> None:
        self._hash.update("\n".join(self._lines).encode())
        self._lines.clear()

    def digest(self) -> str:
        """Return the hash of all lines so far."""
        self._take_in()
        return self._hash.hexdigest()[:16]
