"""Batches that clients append over the socket: checked in disk threads, stored in the order of their requests.

Rules: nothing of a client's is looked into on the owner's side. Checks may finish in any order; a batch waits for those
before it, and one of a producer until the producers of the log are known. What waits is bounded, and refused beyond the
bound, never queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import PartitionKey
from penstock.node.queries import CheckAppend
from penstock.node.step import Lane, Outbox
from penstock.node.wording import as_remote


@dataclass(slots=True)
class _Append:
    """An append on its way."""

    caller: Hashable
    user: str
    check: CheckAppend
    size_bytes: int
    error: Exception | None = None
    checked: bool = False


class Appends:
    """All appends on their way, by partition. `store` puts a checked one into its partition."""

    def __init__(
        self, outbox: Outbox, bytes_max: int, *, store: Callable[[PartitionKey, Hashable, CheckAppend], bool]
    ) -> None:
        """`store` tells whether it took the batch; if not, `go_on` is to be called."""
        self._shares = FairShares()  # of the bytes
        self._outbox = outbox
        self._bytes_max = bytes_max
        self._store = store
        self._queues: dict[PartitionKey, deque[_Append]] = {}

    @property
    def size_bytes(self) -> int:
        """What is on its way."""
        return self._shares.used

    def add(self, caller: Hashable, key: PartitionKey, check: CheckAppend, user: str) -> None:
        """Check a batch of a user's, then store it; RemoteError overloaded: the user has its share of what may be on
        its way. A single one is taken whatever its size, and the first of a user where there is room.
        """
        raw = check.raw
        is_first = not self._shares.held(user) and self.size_bytes + len(raw) <= self._bytes_max
        if self.size_bytes and not (is_first or self._shares.fits(user, len(raw), self._bytes_max)):
            raise RemoteError(ErrorCode.OVERLOADED, "too many appends at once; wait for some to be answered")
        append = _Append(caller, user, check, len(raw))
        self._shares.add(user, len(raw))
        self._queues.setdefault(key, deque()).append(append)

        def done(error: Exception | None) -> None:
            append.error = error
            append.checked = True
            self.go_on(key)

        name = user.partition("/")[0]  # by which all turns of a user are taken
        self._outbox.work(Lane.READ, append.check.run, done, user=name)

    def go_on(self, key: PartitionKey) -> None:
        """Store what waits for nothing any more."""
        queue = self._queues.get(key)
        if queue is None:
            return  # the stream was deleted, and everybody told
        while queue and queue[0].checked:
            append = queue.popleft()
            self._shares.remove(append.user, append.size_bytes)
            if append.error is not None:
                self._outbox.step.answer(append.caller, as_remote(append.error))
            elif not self._store(key, append.caller, append.check):
                queue.appendleft(append)
                self._shares.add(append.user, append.size_bytes)
                return
        if not queue:
            self._queues.pop(key, None)

    def refuse(self, key: PartitionKey, error: RemoteError) -> None:
        """The stream is gone: tell all that wait."""
        for append in self._queues.pop(key, ()):
            self._shares.remove(append.user, append.size_bytes)
            self._outbox.step.answer(append.caller, error)

    def stop(self, error: RemoteError) -> None:
        """The broker stops: tell all that wait."""
        for key in list(self._queues):
            self.refuse(key, error)
