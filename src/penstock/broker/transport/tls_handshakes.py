"""Unfinished TLS handshakes of a server: their number, and their share of the event loop.

Rules: a handshake costs some hundred microseconds of the loop; a loop turn does as many as fit into
TLS_HANDSHAKE_TURN_US_MAX, and the other sockets stay readable until the next turn. Above TLS_HANDSHAKES_MAX the address
with most unfinished handshakes loses one: a client that abandons handshakes delays no other client. Failures are logged
rate-limited, because any host can cause them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.base import limits
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.transport.unauthenticated_slots import UnauthenticatedSlots

_log = logging.getLogger("penstock.server")


class TlsHandshakes:
    """Limits unfinished handshakes, each identified by the callable that closes its connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        elapsed_us: Callable[[], int],
        unfinished_max: int = limits.TLS_HANDSHAKES_MAX,
    ) -> None:
        self.failed_count = 0
        self._loop = loop
        self._elapsed_us = elapsed_us
        self._unfinished_max = unfinished_max
        self._unfinished: UnauthenticatedSlots[Callable[[], None]] = UnauthenticatedSlots()
        self._used_us = 0  # in this loop turn
        self._is_turn_noted = False
        self._complaints = RateLimitedLog()

    def __len__(self) -> int:
        return len(self._unfinished)

    def begin(self, give_way: Callable[[], None], peer: str) -> None:
        """Add a handshake from HOST:PORT; close one if there are too many."""
        self._unfinished.take(give_way, peer)
        if len(self._unfinished) > self._unfinished_max:
            first = self._unfinished.first_to_go()
            self._unfinished.leave(first)
            first()

    def end(self, give_way: Callable[[], None]) -> None:
        """The handshake is finished, or its connection closed; idempotent."""
        self._unfinished.leave(give_way)

    def step(self, run: Callable[[], None]) -> bool:
        """Run a part of a handshake now; return False if this loop turn has done enough."""
        if self._used_us >= limits.TLS_HANDSHAKE_TURN_US_MAX:
            return False
        if not self._is_turn_noted:
            self._is_turn_noted = True
            self._loop.call_soon(self._next_turn)
        started_us = self._elapsed_us()
        try:
            run()
        finally:
            self._used_us += self._elapsed_us() - started_us
        return True

    def _next_turn(self) -> None:
        self._is_turn_noted = False
        self._used_us = 0

    def failed(self, peer: str, error: OSError) -> None:
        """Count and log a failure."""
        self.failed_count += 1
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        line = self._complaints.line("handshake", f"no TLS with {peer}: {reason}", self._elapsed_us())
        if line is not None:
            _log.info("%s", line)
