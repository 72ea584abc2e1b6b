"""How many files of segments the logs of a broker hold open: a bounded number, whatever the number of streams.

Rules: a log takes its place before it opens the file, and gives it back when it has closed it. Where no place is left,
logs are asked to rest, those that took theirs first before the others; one with bytes that wait for a sync does not,
because an error of the disk may be told only to who has the file open all the time. If none can, nothing is opened: who
writes waits, or is refused, as over any other budget.

A sealed segment that waits for its sync has a place, too. A log rolls while there is one, and once in any case; then
its segment grows beyond its size until a sync has been done.

All but `give_back` is for the one task that writes.
"""

from __future__ import annotations

import errno
from typing import Protocol

from penstock.base import limits


class Restful(Protocol):
    """A log, as far as its file is concerned."""

    def rest(self) -> bool:
        """Close the file, if nothing waits for a sync, and give the place back; whether it is closed."""


class OpenFiles:
    """The places of one broker."""

    __slots__ = ("_files_max", "_holders", "_sealed")

    def __init__(self, files_max: int = limits.LOG_FILES_MAX) -> None:
        self._files_max = files_max
        # Sealed segments by log, in the order in which these took their places, or were looked at.
        self._holders: dict[Restful, int] = {}
        self._sealed = 0  # of all logs

    def __len__(self) -> int:
        return len(self._holders) + self._sealed

    def take(self, log: Restful) -> None:
        """A place for `log`, which may have one already. OSError (EMFILE) if there is none."""
        if not self.has_room(log):
            raise OSError(errno.EMFILE, f"{self._files_max} logs are open, and the disk has not caught up with them")
        self._holders.setdefault(log, 0)

    def has_room(self, log: Restful) -> bool:
        """Whether `log` has a place, or can take one now."""
        if log in self._holders or len(self) < self._files_max:
            return True
        return self._try_to_make_room()

    def give_back(self, log: Restful) -> None:
        """`log` holds no file any more, or nobody else is to close it. Twice is fine."""
        self._sealed -= self._holders.pop(log, 0)

    def may_roll(self, log: Restful) -> bool:
        """Whether `log` may seal a segment that waits for a sync, and go on with another one."""
        return len(self) < self._files_max or not self._holders.get(log)

    def sealed(self, log: Restful) -> None:
        """It has done so."""
        self._holders[log] += 1
        self._sealed += 1

    def synced(self, log: Restful, segments: int) -> None:
        """So many sealed segments of `log` are closed."""
        if log in self._holders:  # else it has given back everything
            self._holders[log] -= segments
            self._sealed -= segments

    def _try_to_make_room(self) -> bool:
        for log in list(self._holders)[: limits.LOG_FILES_LOOKS_MAX]:
            if log.rest():
                return True
            # Whoever is busy now is looked at after all others the next time.
            self._holders[log] = self._holders.pop(log)
        return False
