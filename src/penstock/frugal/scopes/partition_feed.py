"""Reads one partition of a stream for its subscription, from a position on, without an end.

Rules: it asks for room before each message, so what waits for handlers is bounded. What passes (a leader change, a
broker that restarts, a network) it waits for, and goes on behind the last message that it gave. What does not pass
(messages that retention deleted unread, a truncated log, a deleted stream, damage, a missing right) it raises: nothing
is skipped silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.errors import CorruptionError, OperationalError, RemoteError
from penstock.base.ids import LeaderEpoch, PartitionId
from penstock.client.errors import (
    CorruptRange,
    LogTruncated,
    NotAuthorized,
    OffsetOutOfRange,
    StreamChanged,
    StreamNotFound,
    Unauthenticated,
)
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.client.read.reading import Reader, plan
from penstock.client.values import Message
from penstock.frugal.scopes.redelivery import Mark
from penstock.messages import StreamInfo

BATCH_ROWS_MAX: Final = 1_024
"""Rows that become messages together."""
PAUSE_S: Final = 0.5
"""Before a partition is asked again whose leader did not answer."""

_LASTING = (
    CorruptRange,
    CorruptionError,
    LogTruncated,
    NotAuthorized,
    OffsetOutOfRange,
    StreamChanged,
    StreamNotFound,
    Unauthenticated,
)


def is_lasting(error: BaseException) -> bool:
    """True if trying again does not help: the subscription ends."""
    return isinstance(error, _LASTING) or not isinstance(error, RemoteError | OperationalError)


class PartitionFeed:
    """One partition. `give` takes a message and the position behind it, and returns when there is room for the next."""

    def __init__(
        self,
        link: Link,
        info: StreamInfo,
        number: int,
        start: Mark,
        *,
        timeout_s: float,
        give: Callable[[Message, Mark], Awaitable[None]],
        troubled: Callable[[Exception], None],
    ) -> None:
        """`troubled` is told of what passes."""
        self._link = link
        self._info = info
        self._number = PartitionId(number)
        self._reached = start
        self._timeout_s = timeout_s
        self._give = give
        self._troubled = troubled

    async def run(self) -> None:
        """Read until cancelled. Raises what does not pass."""
        while True:
            try:
                await self._read()
            except Exception as error:
                if is_lasting(error):
                    raise
                self._troubled(error)
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        start = self._reached
        what = await plan(
            self._link, self._info, self._number, start.offset, None, follow=True, timeout_s=self._timeout_s
        )
        if start.epoch is not None:
            what = what._replace(leader_epoch=LeaderEpoch(start.epoch))  # to detect a log truncated meanwhile
        async with Reader(
            self._link, [what], batch_rows_max=BATCH_ROWS_MAX, columns=None, timeout_s=self._timeout_s
        ) as reader:
            while (found := await reader.next_batches()) is not None:
                epoch = int(reader.leader_epochs[self._number])
                for batch in found:
                    for message in batches.messages_of(batch, self._number):
                        mark = Mark(message.offset + 1, epoch)
                        await self._give(message, mark)
                        self._reached = mark
