"""Helpers of the blocking client for asynchronous generators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

T = TypeVar("T")


class End:
    """Returned by `next_of` after the last item."""


async def next_of(source: AsyncIterator[T]) -> T | End:
    """Return the next item, or `End` after the last."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return End()


def close_soon(source: AsyncGenerator[Any, None]) -> None:
    """Close the generator on its own loop, without waiting for it."""
    task = asyncio.get_running_loop().create_task(_close(source))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


async def _close(source: AsyncGenerator[Any, None]) -> None:
    with contextlib.suppress(Exception):  # it may still be running; its cancellation ends it then
        await source.aclose()
