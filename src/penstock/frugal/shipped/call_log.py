"""A log line for each call: what, on which side, how it ended and how long it took.

Arguments and headers are not logged: they may be secrets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from penstock.frugal.context import Context
from penstock.frugal.middleware import Call, Middleware, Proceed


def log_calls(
    logger: logging.Logger | None = None,
    *,
    level: int = logging.INFO,
    failed_level: int = logging.WARNING,
    now: Callable[[], float] = time.monotonic,
) -> Middleware:
    """Return the middleware. Lines go to the logger "penstock.frugal.calls" if none is given."""
    log = logger or logging.getLogger("penstock.frugal.calls")

    async def logged(ctx: Context, call: Call, proceed: Proceed) -> Any:
        began = now()
        outcome, at = "ok", level
        try:
            return await proceed(ctx, call)
        except BaseException as error:
            outcome, at = type(error).__name__, failed_level
            raise
        finally:
            took_ms = (now() - began) * 1_000
            log.log(at, "%s %s %s %.1f ms, correlation id %r", call.side, call, outcome, took_ms, ctx.correlation_id)

    return logged
