"""Limits the open segment files of a broker, whatever the number of streams.

Rules: a log takes a place before it opens its file and gives it back after closing it. If no place is left, other logs
are asked to close theirs, in the order in which they took them. A log with unsynced bytes refuses, because the kernel
may report a disk error only to a descriptor that was open all the time. If none agrees, nothing is opened: the write
waits or is refused, as with any other limit.

A sealed segment that waits for its sync holds a place, too. A log may roll while there is a free place, and once in any
case; then its segment grows beyond its size until a sync is done.

All methods but `give_back` are for the one task that writes.
"""

from __future__ import annotations

import errno
from typing import Protocol

from penstock.base import limits


class Restful(Protocol):
    """A log, as far as its open file is concerned."""

    def rest(self) -> bool:
        """Close the file and give the place back unless a sync is pending; return True if no file is open."""


class OpenFiles:
    """The places for open files of one broker."""

    __slots__ = ("_files_max", "_holders", "_sealed")

    def __init__(self, files_max: int = limits.LOG_FILES_MAX) -> None:
        self._files_max = files_max
        # Number of sealed segments by log, ordered by when a log took its place or was last asked.
        self._holders: dict[Restful, int] = {}
        self._sealed = 0  # sum over all logs

    def __len__(self) -> int:
        return len(self._holders) + self._sealed

    def take(self, log: Restful) -> None:
        """Take a place for `log`, which may have one already. OSError (EMFILE) if there is none."""
        if not self.has_room(log):
            raise OSError(errno.EMFILE, f"{self._files_max} logs are open, and the disk has not caught up with them")
        self._holders.setdefault(log, 0)

    def has_room(self, log: Restful) -> bool:
        """True if `log` has a place, or can take one now."""
        if log in self._holders or len(self) < self._files_max:
            return True
        return self._try_to_make_room()

    def give_back(self, log: Restful) -> None:
        """Give back all places of `log`. Idempotent. Also used when another thread is to close the log."""
        self._sealed -= self._holders.pop(log, 0)

    def may_roll(self, log: Restful) -> bool:
        """True if `log` may seal a segment that waits for a sync, and begin another one."""
        return len(self) < self._files_max or not self._holders.get(log)

    def sealed(self, log: Restful) -> None:
        """Record that `log` sealed such a segment."""
        self._holders[log] += 1
        self._sealed += 1

    def synced(self, log: Restful, segments: int) -> None:
        """Record that so many sealed segments of `log` were closed."""
        if log in self._holders:  # otherwise it has given back all places
            self._holders[log] -= segments
            self._sealed -= segments

    def _try_to_make_room(self) -> bool:
        for log in list(self._holders)[: limits.LOG_FILES_LOOKS_MAX]:
            if log.rest():
                return True
            # A busy log is asked again only after all others.
            self._holders[log] = self._holders.pop(log)
        return False
