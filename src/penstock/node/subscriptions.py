"""What NATS was asked for and what it has confirmed, stream by stream.

Rules: a stream is subscribed once a PONG has come from behind its SUB and no refusal before it. nats-server answers in
order but does not always say which SUB it refuses: so each SUB has a barrier of its own, and a refusal that names
nobody is about the oldest that waits for its barrier. What is refused is asked for again every
NATS_SUBSCRIBE_RETRY_MS: permissions come back, other subscriptions end.

After a reconnect the link subscribes everything it was given by itself with one barrier; so whose turn to be asked for
had not come is given to it when the connection is lost. If NATS refuses then without saying whom,
everything is asked for again, one by one.

    down ──up──▶ proving ──barrier, nothing unclear──▶ settled
                    └──barrier, somebody was refused──▶ one by one ──last barrier──▶ settled
    any  ──lost─▶ down
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.base import limits
from penstock.base.clock import Now
from penstock.node.step import Barrier, Outbox, Subscribe, Unsubscribe


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Who is told what NATS says."""

    confirmed: Callable[[int, Now], None]
    refused: Callable[[int, str, Now], None]
    settled: Callable[[Now], None]  # all that was to be subscribed after a reconnect has its verdict


@dataclass(frozen=True, slots=True)
class _Asked:
    """A barrier on its way, and the stream whose SUB lies before it; None: all that the link subscribed by itself."""

    token: int
    stream_id: int | None


class Subscriptions:
    """The subscriptions of all streams that this broker leads. See the module's rules."""

    def __init__(self, outbox: Outbox, verdicts: Verdicts) -> None:
        self._outbox = outbox
        self._verdicts = verdicts
        self._subjects: dict[int, str] = {}
        self._refused: set[int] = set()
        self._asked: deque[_Asked] = deque()
        self._to_ask: dict[int, None] = {}  # in order; their turn comes when there is room among the asked
        self._is_up = False
        self._is_settled = False
        self._is_unclear = False  # somebody was refused, nobody knows who
        self._last_token = 0
        self._retry_us: int | None = None

    def add(self, stream_id: int, subject: str) -> None:
        """Subscribe; the verdict comes once NATS is there."""
        self._subjects[stream_id] = subject
        if self._is_up:
            self._to_ask[stream_id] = None
            self._ask_more()
        else:
            self._outbox.step.nats.append(Subscribe(stream_id, subject))

    def remove(self, stream_id: int) -> None:
        """End a subscription."""
        if self._subjects.pop(stream_id, None) is not None:
            self._refused.discard(stream_id)
            self._to_ask.pop(stream_id, None)
            self._outbox.step.nats.append(Unsubscribe(stream_id))

    def up(self) -> None:
        """The link has subscribed everything by itself; some perhaps behind its own barrier: so one of ours follows."""
        self._is_up = True
        self._ask_barrier(None)

    def lost(self) -> None:
        """The connection is gone, and every subscription with it."""
        self._is_up = self._is_settled = self._is_unclear = False
        self._refused.clear()
        self._asked.clear()
        for stream_id in self._to_ask:  # the link may never have heard of it, or have it already: it takes no id twice
            self._give(stream_id)
        self._to_ask.clear()
        self._retry_us = None

    def reached(self, token: int, now: Now) -> None:
        """NATS has answered the barrier `token`. One of an earlier connection says nothing."""
        if not self._asked or self._asked[0].token != token:
            return
        stream_id = self._asked.popleft().stream_id
        if stream_id is None:
            self._proven(now)
        elif stream_id in self._subjects and stream_id not in self._refused:
            self._verdicts.confirmed(stream_id, now)
        self._ask_more()
        if not self._is_settled and not self._asked and not self._to_ask:
            self._is_settled = True
            self._verdicts.settled(now)

    def refused(self, stream_id: int | None, reason: str, now: Now) -> None:
        """NATS refuses a subscription (None: it does not say which), or takes one away."""
        if stream_id is None and self._asked:
            stream_id = self._asked[0].stream_id
        if stream_id is None:
            self._is_unclear = True
        elif stream_id in self._subjects:
            self._refused.add(stream_id)
            if self._retry_us is None:
                self._retry_us = now.elapsed_us + limits.NATS_SUBSCRIBE_RETRY_MS * 1_000
            self._verdicts.refused(stream_id, reason, now)

    def tick(self, now: Now) -> None:
        """Ask again for what was refused, when it is time."""
        if self._retry_us is None or now.elapsed_us < self._retry_us or not self._is_settled:
            return
        self._retry_us = None
        self._to_ask.update(dict.fromkeys(sorted(self._refused)))
        self._ask_more()

    def _proven(self, now: Now) -> None:
        waiting = {asked.stream_id for asked in self._asked} | self._to_ask.keys()
        rest = [one for one in self._subjects if one not in self._refused and one not in waiting]
        if self._is_unclear:
            self._is_unclear = False
            self._to_ask = {**dict.fromkeys(rest), **self._to_ask}
            return
        for stream_id in rest:
            self._verdicts.confirmed(stream_id, now)

    def _ask_more(self) -> None:
        while self._to_ask and len(self._asked) < limits.NATS_SUBSCRIBES_ASKED_MAX:
            stream_id = next(iter(self._to_ask))
            del self._to_ask[stream_id]
            self._refused.discard(stream_id)
            self._give(stream_id)
            self._ask_barrier(stream_id)

    def _give(self, stream_id: int) -> None:
        # One that NATS may have already would count twice against its limits.
        self._outbox.step.nats += (Unsubscribe(stream_id), Subscribe(stream_id, self._subjects[stream_id]))

    def _ask_barrier(self, stream_id: int | None) -> None:
        self._last_token += 1
        self._asked.append(_Asked(self._last_token, stream_id))
        self._outbox.step.nats.append(Barrier(self._last_token))
