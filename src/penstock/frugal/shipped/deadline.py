"""The most time of a call, whatever its context says.

On a server it bounds what callers can ask for; on a client it bounds contexts that come from elsewhere. The context has
the earlier deadline from then on, so that calls which a handler makes with a copy of it keep to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from penstock.frugal.context import Context
from penstock.frugal.errors import DeadlineExceeded
from penstock.frugal.middleware import Call, Middleware, Proceed


def limit_time(timeout_ms_max: int, *, now: Callable[[], float] = time.monotonic) -> Middleware:
    """Return the middleware. It raises `DeadlineExceeded` when that time, or the context's, is over."""
    if timeout_ms_max < 1:
        raise ValueError(f"timeout_ms_max is {timeout_ms_max}; give milliseconds, from 1 on")

    async def limited(ctx: Context, call: Call, proceed: Proceed) -> Any:
        began = now()
        ctx.deadline = min(ctx.deadline, began + timeout_ms_max / 1_000)
        try:
            async with asyncio.timeout(ctx.deadline - began) as limit:
                return await proceed(ctx, call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{call} took longer than it may, which is {timeout_ms_max} ms here") from None

    return limited
