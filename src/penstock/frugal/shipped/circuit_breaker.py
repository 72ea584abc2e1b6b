"""A circuit breaker: a client stops calling a service that fails, and tries again later with one call.

            failures_max failures in a row                 open_s are over, the next call comes
    CLOSED ───────────────────────────────▶ OPEN ─────────────────────────────────────────────▶ PROBING
      ▲                                      ▲                                                     │
      │              the probe succeeds      │            the probe fails or is cancelled           │
      └──────────────────────────────────────┴─────────────────────────────────────────────────────┘

Rules: in OPEN, and besides the one probe in PROBING, calls fail with `CircuitOpen` at once. A failure is an error of
the way or of the service (`FAILURES`); declared exceptions and refusals of one caller are answers of a service that
works. One breaker is for one service: give each client its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from penstock.frugal.context import Context
from penstock.frugal.errors import (
    CircuitOpen,
    DeadlineExceeded,
    Disconnected,
    FrugalError,
    InternalError,
    ServiceDraining,
    ServiceNotAvailable,
    ServiceOverloaded,
)
from penstock.frugal.middleware import Call, Proceed

FAILURES: tuple[type[FrugalError], ...] = (
    DeadlineExceeded,
    Disconnected,
    InternalError,
    ServiceDraining,
    ServiceNotAvailable,
    ServiceOverloaded,
)
"""Errors that count as failures of the service."""


class CircuitState(StrEnum):
    """State of a breaker: its decision about the next call."""

    CLOSED = "closed"  # it is made
    OPEN = "open"  # it is made if the time is over, as the probe
    PROBING = "probing"  # it fails: the probe is under way


class CircuitBreaker:
    """A middleware of one client. `failures_max`: failures in a row that open it, `open_s`: for how long."""

    def __init__(
        self, failures_max: int = 5, *, open_s: float = 5.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        if failures_max < 1 or open_s <= 0:
            raise ValueError("failures_max begins with 1, and open_s is more than 0")
        self.state = CircuitState.CLOSED
        self._failures_max = failures_max
        self._open_s = open_s
        self._now = now
        self._failures = 0
        self._open_until = 0.0

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> Any:
        """Make a call, or raise CircuitOpen."""
        is_probe = self._begin(call)
        try:
            result = await proceed(ctx, call)
        except FAILURES:
            self._end(is_probe=is_probe, has_failed=True)
            raise
        except Exception:
            self._end(is_probe=is_probe, has_failed=False)
            raise
        except BaseException:  # cancelled: it tells nothing
            if is_probe:
                self.state = CircuitState.OPEN
            raise
        self._end(is_probe=is_probe, has_failed=False)
        return result

    def _begin(self, call: Call) -> bool:
        """Return whether the call is a probe."""
        if self.state is CircuitState.CLOSED:
            return False
        if self.state is CircuitState.OPEN and self._now() >= self._open_until:
            self.state = CircuitState.PROBING
            return True
        raise CircuitOpen(f"{call} was not called: its service has failed {self._failures} times in a row")

    def _end(self, *, is_probe: bool, has_failed: bool) -> None:
        """Take the outcome of a call. One that began before the breaker opened tells nothing any more."""
        if not is_probe and self.state is not CircuitState.CLOSED:
            return
        self._failures = self._failures + 1 if has_failed else 0
        if has_failed and (is_probe or self._failures >= self._failures_max):
            self.state = CircuitState.OPEN
            self._open_until = self._now() + self._open_s
        elif is_probe:
            self.state = CircuitState.CLOSED
