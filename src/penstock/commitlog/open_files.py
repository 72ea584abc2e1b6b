"""How many logs of a broker hold the file that they write to: a bounded number, whatever the number of streams.

Rules: a log takes its place before it opens the file, and gives it back when it has closed it. Where no place is left,
logs are asked to rest, those that took theirs first before the others; one with bytes that wait for a sync does not,
because an error of the disk may be told only to who has the file open all the time. If none can, nothing is opened: who
writes waits, or is refused, as over any other budget.

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

    __slots__ = ("_files_max", "_holders")

    def __init__(self, files_max: int = limits.LOG_FILES_MAX) -> None:
        self._files_max = files_max
        self._holders: dict[Restful, None] = {}  # in the order in which they took their places, or were looked at

    def __len__(self) -> int:
        return len(self._holders)

    def take(self, log: Restful) -> None:
        """A place for `log`, which may have one already. OSError (EMFILE) if there is none."""
        if not self.has_room(log):
            raise OSError(errno.EMFILE, f"{self._files_max} logs are open, and the disk has not caught up with them")
        self._holders[log] = None

    def has_room(self, log: Restful) -> bool:
        """Whether `log` has a place, or can take one now."""
        if log in self._holders or len(self._holders) < self._files_max:
            return True
        return self._try_to_make_room()

    def give_back(self, log: Restful) -> None:
        """`log` holds no file any more, or nobody else is to close it. Twice is fine."""
        self._holders.pop(log, None)

    def _try_to_make_room(self) -> bool:
        for log in list(self._holders)[: limits.LOG_FILES_LOOKS_MAX]:
            if log.rest():
                return True
            # Whoever is busy now is looked at after all others the next time.
            self.give_back(log)
            self._holders[log] = None
        return False
