"""Pull requests that are held until it is known which clients had unsubscribed before them.

Rules: a request and the end of a subscription of the same client come over two connections, so the request may be here
first, and a message would go to an inbox without a subscriber. nats-server tells the leaf connection of the
end before it takes the request; what it answers there behind the request comes behind that. So one barrier is asked
for at a time, for all requests that came before it: requests that come meanwhile share the next one.
A request whose inbox is not known yet is known then, too, without a look each few ms.
Between the servers of a cluster there is no such order: then interest is looked at as without a barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.clock import Now
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.pulls import REQUEST_BYTES_MAX

HELD_MAX = 10_000
"""Requests that are held, at most 4 KiB each; others are served at once."""
Serve = Callable[[Now], None]


class HeldPulls:
    """The requests that are held."""

    def __init__(self, gateway: Gateway, deliveries: Deliveries) -> None:
        self._gateway = gateway
        self._deliveries = deliveries
        self._next: list[Serve] = []  # for the next barrier
        self._asked: list[Serve] = []  # for the barrier that is on its way
        self._is_asked = False

    def hold(self, payload: bytes, serve: Serve) -> bool:
        """Hold a request, which `serve` then takes; False: serve it at once."""
        has_room = len(self._next) + len(self._asked) < HELD_MAX and len(payload) <= REQUEST_BYTES_MAX
        if not has_room or not self._deliveries.is_up:
            return False
        self._next.append(serve)
        return True

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        return bool(self._next) and not self._is_asked

    def turn(self, now: Now) -> None:
        """Ask for a barrier for the requests that have come."""
        if not self.has_next_turn:
            return
        self._asked, self._next = self._next, []
        self._is_asked = self._deliveries.ask_interest()
        if not self._is_asked:
            self._serve(now)

    def known(self, now: Now) -> None:
        """The barrier is back, or its connection is lost: serve who waited for it."""
        self._is_asked = False
        self._serve(now)

    def release(self) -> None:
        """Serve all: the broker stops."""
        self._asked += self._next
        self._next = []
        self._serve(self._gateway.node.now)

    def _serve(self, now: Now) -> None:
        asked, self._asked = self._asked, []
        for serve in asked:
            try:
                serve(now)
            except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
                self._gateway.note_bug(bug)
