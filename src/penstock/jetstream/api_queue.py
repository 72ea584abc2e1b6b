"""Queue of API requests: those of a read wait as rows of its bytes, and become calls a slice at a time.

Rules: it has at most API_QUEUE_MAX requests and API_QUEUE_BYTES_MAX; what does not fit is for the caller to refuse.
Oldest first: calls are taken before further rows become calls.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.base import limits
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.api_call import ApiCall

API_QUEUE_MAX = 10_000
"""As many as nats-server queues: half a second of the more costly ones."""
API_QUEUE_BYTES_MAX = 32 * limits.MIB
"""Of the reads that the waiting rows are in."""
ROWS_AT_ONCE = 1_024
"""Rows that are looked at in one slice: half a millisecond if each is answered from memory."""


class ApiRows(NamedTuple):
    """Requests of a read."""

    group: MessageGroup
    begin: int
    end: int
    hops: int  # how often brokers have passed them on
    received_us: int  # wall time


class ApiQueue:
    """Requests that wait; true if there are some."""

    def __init__(self) -> None:
        self.calls: deque[ApiCall] = deque()  # next ones
        self._reads: deque[ApiRows] = deque()
        self._rows = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self.calls or self._reads)

    def add(self, group: MessageGroup, hops: int, received_us: int) -> int:
        """Queue the rows of a read, or what another broker passed on; return the first one that does not fit."""
        if self._reads and self._bytes + len(group.data) > API_QUEUE_BYTES_MAX:
            return 0
        end = min(len(group), self._room)
        if end:
            self._reads.append(ApiRows(group, 0, end, hops, received_us))
            self._rows += end
            self._bytes += len(group.data)
        return end

    @property
    def _room(self) -> int:
        return max(0, API_QUEUE_MAX - self._rows - len(self.calls))

    def take_rows(self) -> ApiRows | None:
        """Take the next rows, at most ROWS_AT_ONCE; None: there are none."""
        if not self._reads:
            return None
        group, begin, end, hops, received_us = self._reads.popleft()
        taken = ApiRows(group, begin, min(end, begin + ROWS_AT_ONCE), hops, received_us)
        self._rows -= taken.end - begin
        if taken.end < end:
            self._reads.appendleft(ApiRows(group, taken.end, end, hops, received_us))
        else:
            self._bytes -= len(group.data)
        return taken
