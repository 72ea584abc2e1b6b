"""Retries of calls that failed on the way: of idempotent methods only, and within the deadline of the call.

| the try ended with                                    | then                                                   |
|-------------------------------------------------------|--------------------------------------------------------|
| a result, or a declared exception                     | it is that of the call                                 |
| `ServiceNotAvailable`, `ServiceOverloaded`,           | another try after a pause, if there is one left, and   |
| `ServiceDraining`, `Disconnected`                     | the pause ends before the deadline                     |
| `DeadlineExceeded`, `TransportClosed`, any other one  | it is that of the call                                 |

The pause before try n + 1 is a random time up to `pause_ms_first` · 2^(n-1), at most `pause_ms_max` ("full jitter"), so
that clients which failed together do not come back together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.frugal.context import Context
from penstock.frugal.errors import (
    Disconnected,
    FrugalError,
    ServiceDraining,
    ServiceNotAvailable,
    ServiceOverloaded,
)
from penstock.frugal.middleware import Call, Middleware, Proceed

RETRIED: tuple[type[FrugalError], ...] = (ServiceNotAvailable, ServiceOverloaded, ServiceDraining, Disconnected)
"""Errors after which another try may succeed."""


def retry(
    tries_max: int = 3,
    *,
    pause_ms_first: int = 50,
    pause_ms_max: int = 2_000,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Middleware:
    """Return the middleware. `tries_max`: the first try included."""
    if tries_max < 1 or pause_ms_first < 0 or pause_ms_max < pause_ms_first:
        raise ValueError("give a try at least, and pauses from 0 ms on, the longest last")

    async def retried(ctx: Context, call: Call, proceed: Proceed) -> Any:
        if not call.is_idempotent or call.is_oneway:
            return await proceed(ctx, call)
        for tried in range(1, tries_max + 1):
            try:
                return await proceed(ctx, call)
            except RETRIED:
                longest_ms = min(pause_ms_max, pause_ms_first * 2 ** min(tried - 1, 32))
                pause_s = uniform(0, longest_ms) / 1_000
                if tried == tries_max or now() + pause_s >= ctx.deadline:
                    raise
            await sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    return retried
