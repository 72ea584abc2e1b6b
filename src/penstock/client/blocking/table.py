"""The table of the blocking client; see `client.tables`.

Rules: look-ups run on the caller's thread. The table is changed only on its own thread, in single steps, each of which
leaves it consistent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from penstock.base.errors import OperationalError
from penstock.client.blocking.asynchronous import End, next_of
from penstock.client.blocking.threads import LoopThread
from penstock.client.consume import tables
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.values import Message


class Table(OfThisProcess):
    """The latest message of each key of a stream, made by `Client.table`. Call `close`, or use it in `with`."""

    def __init__(self, table: tables.Table, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread

    def get(self, key: bytes | str) -> Message | None:
        """Return the latest message of a key; None if there is none, or it is a tombstone."""
        return self._table.get(key)

    def __contains__(self, key: bytes | str) -> bool:
        """True if `get` would return a message for the key."""
        return key in self._table

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._table)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the current messages of all keys, in the order in which the keys first appeared."""
        return iter(self._table)

    def changes(self) -> Iterator[Message]:
        """Iterate over messages that change the table from this call on, tombstones included; only the latest of each
        key.

        Ends when the table is closed.
        """
        return _Changes(self._thread.run(_begun(self._table)), self._thread)

    def wait_for(self, offset: int, *, partition: int = 0, timeout: float = 10.0) -> None:
        """Wait until the table has applied that offset, such as that of an ack, or has passed its gap. TimedOut.

        Also waits for a partition that was just added.
        """
        self._thread.run(self._table.wait_for(offset, partition=partition, timeout=timeout))

    def close(self) -> None:
        """Stop following the stream and free the memory. May be called twice."""
        if self._thread.is_running:
            with contextlib.suppress(OperationalError):
                self._thread.run(self._table.close())

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Changes:
    """The changes of a table for the blocking client; see `tables.Changes`."""

    def __init__(self, changes: tables.Changes, thread: LoopThread) -> None:
        self._changes = changes
        self._thread = thread

    def __iter__(self) -> _Changes:
        return self

    def __next__(self) -> Message:
        message = self._thread.run(next_of(self._changes))
        if isinstance(message, End):
            raise StopIteration
        return message


async def _begun(table: tables.Table) -> tables.Changes:
    return table.changes()
