"""Publishers that keep a broker busy through crashes, and record the acks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import nats
from nats.aio.client import Client as Nats
from nats.js.errors import NoStreamResponseError

from penstock import aio

Place = tuple[str, int]  # publisher's subject, number of its message


class Publisher:
    """Publishes numbered messages on its own subject over one connection, at most `window` without an ack."""

    def __init__(self, connection: Nats, subject: str, window: int, padding: bytes) -> None:
        self.subject = subject
        self.sent = 0
        self.acked: dict[int, list[int]] = {}  # message number → offsets of its acks
        self.refused: Counter[str] = Counter()
        self._connection = connection
        self._window = asyncio.Semaphore(window)
        self._padding = padding
        self._inbox = connection.new_inbox()
        self._js = connection.jetstream(publish_async_max_pending=1_000_000)

    async def publish_until(self, stop: asyncio.Event, count: int | None = None) -> None:
        """Publish as fast as acks allow, up to `count` messages, until `stop` is set."""
        while not stop.is_set() and (count is None or count > 0):
            count = None if count is None else count - 1
            await self._window.acquire()
            number = self.sent
            self.sent += 1
            future = await self._js.publish_async(self.subject, b"%d " % number + self._padding)
            future.add_done_callback(lambda done, number=number: self._done(number, done))  # type: ignore[misc]

    def _done(self, number: int, future: asyncio.Future[nats.js.api.PubAck]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.acked.setdefault(number, []).append(future.result().seq - 1)
        else:
            self.refused["nobody" if isinstance(error, NoStreamResponseError) else str(error)] += 1
        self._window.release()

    def forget_unacked(self) -> None:
        """Free the window of messages whose acks will never arrive."""
        pending = self._js._publish_async_futures
        for future in list(pending.values()):
            if not future.done():
                future.cancel()
                self._window.release()

    @property
    def acked_count(self) -> int:
        return len(self.acked)


@asynccontextmanager
async def publishers(
    url: str, prefix: str, count: int, *, window: int, padding: bytes
) -> AsyncIterator[list[Publisher]]:
    """Run `count` publishers, each with its own connection to NATS, which reconnects."""
    async with AsyncExitStack() as stack:
        yield [
            Publisher(await stack.enter_async_context(connected_to(url)), f"{prefix}.{number}", window, padding)
            for number in range(count)
        ]


@asynccontextmanager
async def connected_to(url: str) -> AsyncIterator[Nats]:
    """Connect an unmodified NATS client that always reconnects."""
    connection = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.02, error_cb=_ignore)
    try:
        yield connection
    finally:
        await connection.close()


async def _ignore(error: Exception) -> None:
    """Ignore errors: these tests interrupt connections on purpose."""


async def check_nothing_acked_is_lost(client: aio.Client, stream: str, senders: list[Publisher]) -> int:
    """Check that acked messages are at their offsets, offsets are dense, and messages are unique and in order.

    Return the number of messages.
    """
    places: dict[Place, int] = {}
    last: dict[str, int] = {}
    next_offset = 0
    async for batch in client.read(stream):
        columns = [batch.column(name).to_pylist() for name in ("offset", "subject", "value")]
        for offset, subject, value in zip(*columns, strict=True):
            assert offset == next_offset, f"offset {offset} follows {next_offset - 1}"
            next_offset += 1
            number = int(value.split(b" ", 1)[0])
            assert (subject, number) not in places, f"{subject} {number} is stored twice"
            assert last.get(subject, -1) < number, f"{subject} {number} comes after {last[subject]}"
            last[subject] = number
            places[subject, number] = offset
    for sender in senders:
        for number, offsets in sender.acked.items():
            assert len(offsets) == 1, f"{sender.subject} {number} was acked {len(offsets)} times: {offsets}"
            found = places.get((sender.subject, number))
            assert found == offsets[0], f"{sender.subject} {number} was acked at {offsets[0]} and is at {found}"
    return next_offset
