"""Filters of subject indexes in memory, under one budget of the broker: so an absent subject costs no read.

Rules: a filter is kept with its segment, and goes with it: the budget only refers to it. Its pages, its directory and
the checksums of the segment's blocks were checked, and are of the index that was compared with the segment; the places
of its batches are of the offset index. Disk threads keep filters, without locks: each value is replaced as a whole, and
each sum is of what is there. If several threads keep one at once, the budget is exceeded by as many filters, until the
next one is kept.

Theory: a look-up asks the segments of a log from the newest to the oldest. So a log that has more filters than it may
keep, keeps those of its newest segments; least recently used ones would all be gone before they are used again.

| if there is no room for a filter, these go, oldest segments first     | while                                     |
|-----------------------------------------------------------------------|-------------------------------------------|
| those of logs without a look-up among the last FILTERS_IDLE_LOOK_UPS  |                                           |
| those of other logs beyond a fair share, the least recently used first| the log stays within its own fair share   |
| those of older segments of the log                                    |                                           |
"""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections.abc import Callable
from typing import TypeVar

from penstock.base import limits
from penstock.commitlog.files.index import ActiveEntries
from penstock.commitlog.subjects.layout import Directory

_T = TypeVar("_T")


class KeptFilter:
    """Filter, directory and checksums of blocks of the index of one segment, and the places of its batches.

    `pages` None: they had to go.
    """

    __slots__ = ("__weakref__", "base_offset", "directory", "entries", "pages", "size_bytes", "sums")

    def __init__(
        self, base_offset: int, pages: bytes, directory: Directory, sums: array[int], entries: ActiveEntries | None
    ) -> None:
        """`sums`: of each block of the segment; empty if the index has none. `entries`: None if there are many."""
        self.base_offset = base_offset
        self.size_bytes = len(pages) + directory.size_bytes + sums.itemsize * len(sums) + size_of(entries)
        self.entries = entries
        self.directory: Directory | None = directory
        self.pages: bytes | None = pages
        self.sums: array[int] | None = sums

    def drop(self) -> None:
        """Give the memory back."""
        self.pages = self.directory = self.sums = self.entries = None


def size_of(entries: ActiveEntries | None) -> int:
    """Return the bytes that entries take in memory."""
    return 0 if entries is None else entries.count * entries.BYTES_PER_BATCH


class FilterBudget:
    """Memory of the kept filters of all logs of a broker."""

    def __init__(self, bytes_max: int = limits.KEPT_FILTERS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.look_ups = 0
        self.bytes_at_most = 0  # of what was kept since all was counted, and of what was there then
        self._numbers = itertools.count()  # never used again: what refers to a log that is gone can be dropped
        self._logs: dict[int, weakref.ref[LogFilters]] = {}

    def add(self, log: LogFilters) -> None:
        """Count the filters of a log."""
        self._logs[next(self._numbers)] = weakref.ref(log)

    def logs(self) -> list[LogFilters]:
        """Return all logs."""
        return _present(self._logs)

    @property
    def size_bytes(self) -> int:
        """Bytes of all kept filters."""
        return sum(one.size_bytes for one in self.logs())


class LogFilters:
    """The kept filters of one log."""

    __slots__ = ("__weakref__", "_budget", "_filters", "_numbers", "_refused_at", "used_at")

    def __init__(self, budget: FilterBudget) -> None:
        self._budget = budget
        self._numbers = itertools.count()
        self._filters: dict[int, weakref.ref[KeptFilter]] = {}
        self.used_at = budget.look_ups
        self._refused_at = -limits.FILTERS_RETRY_LOOK_UPS
        budget.add(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of the filters of this log."""
        return sum(one.size_bytes for one in self._kept())

    @property
    def may_have_room(self) -> bool:
        """False if there was no room for a filter a short while ago."""
        return self._budget.look_ups - self._refused_at >= limits.FILTERS_RETRY_LOOK_UPS

    def look_up(self) -> None:
        """Record a look-up in this log."""
        self._budget.look_ups += 1
        self.used_at = self._budget.look_ups

    def keep(self, base_offset: int, size_bytes: int, read: Callable[[], KeptFilter]) -> KeptFilter | None:
        """Read the filter of the segment that begins at `base_offset`, if there is room for so much; raise its errors.

        The caller keeps it with its segment.
        """
        if not self._make_room(base_offset, size_bytes):
            self._refused_at = self._budget.look_ups
            return None
        found = read()
        self._filters[next(self._numbers)] = weakref.ref(found)
        return found

    def _kept(self) -> list[KeptFilter]:
        return [one for one in _present(self._filters) if one.pages is not None]

    def _make_room(self, base_offset: int, size_bytes: int) -> bool:
        """Drop filters until there is room for one of so many bytes; False: there is none."""
        budget = self._budget
        if budget.bytes_at_most + size_bytes <= budget.bytes_max:  # counting takes a look at each filter of the broker
            budget.bytes_at_most += size_bytes
            return True
        sizes = {log: size for log in budget.logs() if (size := log.size_bytes) or log is self}
        lacking = sum(sizes.values()) + size_bytes - budget.bytes_max
        share = budget.bytes_max // len(sizes)
        own = sizes.pop(self)
        for log in sorted(sizes, key=lambda one: one.used_at):
            if lacking <= 0:
                break
            if budget.look_ups - log.used_at > limits.FILTERS_IDLE_LOOK_UPS:
                lacking -= log.drop(lacking)
            elif own + size_bytes <= share:
                lacking -= log.drop(min(lacking, sizes[log] - share))
        has_room = lacking <= sum(one.size_bytes for one in self._kept() if one.base_offset < base_offset)
        if has_room:
            lacking -= self.drop(lacking, below=base_offset)
        budget.bytes_at_most = budget.bytes_max + lacking - (0 if has_room else size_bytes)
        return has_room

    def drop(self, size_bytes: int, below: int = limits.OFFSET_MAX) -> int:
        """Drop the filters of the oldest segments, of at least so many bytes; return the bytes that are free then.

        `below`: only of segments that begin before it.
        """
        freed = 0
        for one in sorted(self._kept(), key=lambda one: one.base_offset):
            if freed >= size_bytes or one.base_offset >= below:
                break
            one.drop()
            freed += one.size_bytes
        return freed


def _present(references: dict[int, weakref.ref[_T]]) -> list[_T]:
    """Return what is still there, and forget the rest."""
    found = []
    for number, reference in list(references.items()):
        if (one := reference()) is None:
            references.pop(number, None)
        else:
            found.append(one)
    return found
