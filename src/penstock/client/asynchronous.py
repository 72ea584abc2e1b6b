"""What the blocking face does with asynchronous generators: one item after the other, and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

T = TypeVar("T")


class End:
    """What `next_of` gives behind the last item."""


async def next_of(source: AsyncIterator[T]) -> T | End:
    """The next item, or `End`."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return End()


def close_soon(source: AsyncGenerator[Any, None]) -> None:
    """End it, on its own loop, without waiting for that."""
    task = asyncio.get_running_loop().create_task(_close(source))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


async def _close(source: AsyncGenerator[Any, None]) -> None:
    with contextlib.suppress(Exception):  # it may be running still, and ends then by its cancellation
        await source.aclose()
