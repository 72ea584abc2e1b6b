"""Log lines for failures to reach NATS: new ones at once, repeated ones once a minute.

Rules: an outage is retried several times a second, and its log must stay readable. `over` ends it.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.broker.security.nats_credentials import NatsServer

_KNOWN_MAX = 16  # bounds servers that give a different reason each time


class NatsFailureLog:
    """The failures of one outage. Times are monotonic."""

    def __init__(self) -> None:
        self._known: set[tuple[NatsServer, str]] = set()
        self._count = 0
        self._told_ms = 0

    def line(self, server: NatsServer, reason: str, now_ms: int) -> str | None:
        """Return the log line for one more failure, or None."""
        self._count += 1
        is_new = (server, reason) not in self._known and len(self._known) < _KNOWN_MAX
        if not is_new and now_ms - self._told_ms < limits.NATS_OUTAGE_LOG_MS:
            return None
        self._known.add((server, reason))
        self._told_ms = now_ms
        so_far = f" (tried {self._count} times so far)" if self._count > 1 else ""
        return f"no connection to {server}: {reason}{so_far}"

    def over(self) -> None:
        """The link is up: log the next failure at once."""
        self._known.clear()
        self._count = 0
