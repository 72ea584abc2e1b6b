"""The blocking face of a table; see `client.tables`.

Rules: look-ups cross no thread: the table's own one changes it in single steps, each of which leaves it whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from penstock.base.errors import OperationalError
from penstock.client import tables
from penstock.client.asynchronous import End, next_of
from penstock.client.of_this_process import OfThisProcess
from penstock.client.threads import LoopThread
from penstock.client.values import Message


class Table(OfThisProcess):
    """The latest message of each key of a stream, as `Client.table` makes it; `close` it, or use it in `with`."""

    def __init__(self, table: tables.Table, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread

    def get(self, key: bytes | str) -> Message | None:
        """The latest message of a key; None: there is none, or it was a tombstone."""
        return self._table.get(key)

    def __contains__(self, key: bytes | str) -> bool:
        """Whether a key has a message, as `get` would give it."""
        return key in self._table

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._table)

    def __iter__(self) -> Iterator[Message]:
        """The messages of all keys, as they are now; those of keys that came first come first."""
        return iter(self._table)

    def changes(self) -> Iterator[Message]:
        """Each message that changes the table from this call on; of several of one key the latest. Tombstones, too.

        Ends when the table is closed.
        """
        return _Changes(self._thread.run(_begun(self._table)), self._thread)

    def wait_for(self, offset: int, *, partition: int = 0, timeout: float = 10.0) -> None:
        """Return once the table has what is at that offset, such as that of an ack, or is past its gap. TimedOut.

        A partition that was just added is waited for, too.
        """
        self._thread.run(self._table.wait_for(offset, partition=partition, timeout=timeout))

    def close(self) -> None:
        """Follow no more, and forget what is there. Twice is fine."""
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
    """The blocking face of `tables.Changes`."""

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
