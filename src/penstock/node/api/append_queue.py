"""Append queue of the socket API: batches are checked in disk threads and stored in the order of their requests.

Rules: the owner's thread never parses a client's data. Checks may finish in any order; a batch waits for those before
it, and one of a producer also until the producers of the log are known. One whose row names an unknown version of a
schema is checked once more, by a list of versions that was asked for after it came. The queue is bounded; beyond the
bound appends are refused, never queued.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import PartitionKey
from penstock.node.partition.log_queries import CheckAppend, MistypedError, UnknownVersionError
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.security.access import Call
from penstock.node.step import Lane, Outbox


@dataclass(slots=True)
class _Append:
    call: Call
    user: str
    check: CheckAppend
    size_bytes: int
    arrived_us: int
    is_last_check: bool = False
    error: Exception | None = None
    checked: bool = False


class AppendQueue:
    """All pending appends, by partition. `store` puts a checked one into its partition."""

    def __init__(
        self,
        outbox: Outbox,
        bytes_max: int,
        *,
        store: Callable[[PartitionKey, Call, CheckAppend], bool],
        renew: Callable[[PartitionKey, CheckAppend, int], bool],
        counters: Counter[str],
    ) -> None:
        """`store` returns False if it did not take the batch; `go_on` must be called later then.

        `renew` gives a check the schemas that are known since that elapsed time, or returns False; RemoteError not_yet.
        """
        self._shares = FairShares()  # of the bytes in the queue
        self._outbox = outbox
        self._bytes_max = bytes_max
        self._store = store
        self._renew = renew
        self._counters = counters
        self._behind: list[tuple[PartitionKey, _Append]] = []  # await schemas
        self._queues: dict[PartitionKey, deque[_Append]] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes in the queue."""
        return self._shares.used

    def add(self, call: Call, key: PartitionKey, check: CheckAppend) -> None:
        """Check a batch, then store it. RemoteError overloaded: the user has its share of the queue.

        A single batch is taken whatever its size, and so is the first of a user where there is room.
        """
        raw, user = check.raw, call.auth.sharer
        is_first = not self._shares.held(user) and self.size_bytes + len(raw) <= self._bytes_max
        if self.size_bytes and not (is_first or self._shares.fits(user, len(raw), self._bytes_max)):
            raise RemoteError(ErrorCode.OVERLOADED, "too many appends at once; wait for some to be answered")
        append = _Append(call.without_raw(), user, check, len(raw), call.now.elapsed_us)
        self._shares.add(user, len(raw))
        self._queues.setdefault(key, deque()).append(append)
        self._check(key, append)

    def _check(self, key: PartitionKey, append: _Append) -> None:
        def done(error: Exception | None) -> None:
            if isinstance(error, UnknownVersionError) and not append.is_last_check:
                self._check_again(key, append)
            else:
                self._checked(key, append, error)

        name = append.user.partition("/")[0]  # turns are shared by user name
        self._outbox.work(Lane.READ, append.check.run, done, user=name)

    def _check_again(self, key: PartitionKey, append: _Append) -> None:
        try:
            append.is_last_check = self._renew(key, append.check, append.arrived_us)
        except RemoteError as error:
            self._checked(key, append, error)
            return
        if append.is_last_check:
            self._check(key, append)
        else:
            self._behind.append((key, append))

    def _checked(self, key: PartitionKey, append: _Append, error: Exception | None) -> None:
        append.error = error
        append.checked = True
        self.go_on(key)

    @property
    def awaits_schemas(self) -> bool:
        """True while appends wait for a newer list of versions of schemas."""
        return bool(self._behind)

    def tick(self) -> None:
        """Check those appends again whose schemas are known now."""
        behind, self._behind = self._behind, []
        for key, append in behind:
            if key in self._queues:
                self._check_again(key, append)

    def go_on(self, key: PartitionKey) -> None:
        """Store the batches at the head of the queue that are checked."""
        queue = self._queues.get(key)
        if queue is None:
            return  # the stream was deleted, and its callers were answered
        while queue and queue[0].checked:
            append = queue.popleft()
            self._shares.remove(append.user, append.size_bytes)
            if append.error is not None:
                self._counters["schema_refused"] += isinstance(append.error, MistypedError)
                self._outbox.step.reply(append.call.caller, as_remote_error(append.error))
            elif not self._store(key, append.call, append.check):
                queue.appendleft(append)
                self._shares.add(append.user, append.size_bytes)
                return
        if not queue:
            self._queues.pop(key, None)

    def refuse(self, key: PartitionKey, error: RemoteError) -> None:
        """Answer all that wait for a partition: its stream was deleted."""
        for append in self._queues.pop(key, ()):
            self._shares.remove(append.user, append.size_bytes)
            self._outbox.step.reply(append.call.caller, error)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait: the broker is stopping."""
        for key in list(self._queues):
            self.refuse(key, error)
