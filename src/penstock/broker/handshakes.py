"""The TLS handshakes of a server that are not finished: how many there may be, and how much of the loop they get.

Rules: a handshake costs some hundred microseconds of the loop, whoever asks for it; a turn of the loop does so many as
fit into TLS_HANDSHAKE_TURN_US_MAX, and the sockets of the others stay readable until the next. Of more than
TLS_HANDSHAKES_MAX that have begun one gives way, of the address that has begun most: whoever begins handshakes and
leaves them holds up nobody who answers. What goes wrong is logged seldom: strangers can cause it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.base import limits
from penstock.broker.complaints import Complaints
from penstock.broker.places import Places

_log = logging.getLogger("penstock.server")


class Handshakes:
    """See the module. Whoever begins one is a callable that gives way."""

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
        self._unfinished: Places[Callable[[], None]] = Places()
        self._used_us = 0  # of this turn of the loop
        self._is_turn_noted = False
        self._complaints = Complaints()

    def __len__(self) -> int:
        return len(self._unfinished)

    def begin(self, give_way: Callable[[], None], peer: str) -> None:
        """One more, of HOST:PORT; one is closed if that is too many."""
        self._unfinished.take(give_way, peer)
        if len(self._unfinished) > self._unfinished_max:
            first = self._unfinished.first_to_go()
            self._unfinished.leave(first)
            first()

    def end(self, give_way: Callable[[], None]) -> None:
        """It is finished, or its connection is closed. Twice is fine."""
        self._unfinished.leave(give_way)

    def step(self, run: Callable[[], None]) -> bool:
        """Do a part of one now; False: this turn of the loop has done enough."""
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
        """Count it, and tell."""
        self.failed_count += 1
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        line = self._complaints.line("handshake", f"no TLS with {peer}: {reason}", self._elapsed_us())
        if line is not None:
            _log.info("%s", line)
