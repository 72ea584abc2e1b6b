"""The end of a run, as the others see it: one of them leads the metadata, then they lead what this broker led.

Rules: the metadata goes first, while this broker is still listened to. Who takes a partition over asks the metadata
leader at once whether it may go on, and would ask one that is about to leave. Another one leads once it has answered:
one that was just elected must save that first, and refuses all until then. So does one that is about to leave itself;
who leaves asks again until it is answered. All of it has an end: where nobody can take over, the broker stops as it is
and says so, and others do what they can when its session is over.

    hand_over ─▶ (drain of NATS) ─▶ leave ─▶ (the logs are closed)

The order is that of Kafka's controlled shutdown, with a controller that may be the broker that stops.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Incarnation
from penstock.messages import Response, StopBrokerRequest
from penstock.node.metadata_link import MetadataLink
from penstock.node.peers import Peers
from penstock.node.quorum import Quorum
from penstock.node.standing import Standing
from penstock.node.step import Outbox

_LEAVE_US = limits.METADATA_LEAVE_MS * 1_000
_RETRY_US = limits.LEAVE_RETRY_MS * 1_000
_PASSES = frozenset(
    {ErrorCode.NOT_METADATA_LEADER, ErrorCode.BROKER_UNAVAILABLE, ErrorCode.STOPPING, ErrorCode.OVERLOADED}
)
_LATER = "others take over when the session of this broker is over"


class Departure:
    """Of the broker whose standing it is."""

    def __init__(
        self,
        quorum: Quorum,
        link: MetadataLink,
        peers: Peers,
        standing: Standing,
        outbox: Outbox,
        clock: Callable[[], Now],
    ) -> None:
        self._quorum = quorum
        self._link = link
        self._peers = peers
        self._standing = standing
        self._outbox = outbox
        self._clock = clock
        self._broker_id = standing.broker_id
        self._handed_over: Callable[[], None] | None = None  # who waits for another metadata leader
        self._led_us: int | None = None  # since when another one leads, as far as Raft says
        self._leave: Callable[[], None] | None = None  # asks again
        self._retry_us = 0
        self._deadline_us = 0

    def hand_over(self, done: Callable[[], None]) -> None:
        """Have another voter lead the metadata; `done` once it answers, or if that cannot be had in time."""
        if not self._ask_another():
            done()
            return
        self._handed_over = done
        self._led_us = None
        self._deadline_us = self._clock().elapsed_us + _LEAVE_US

    def _ask_another(self) -> bool:
        """False if this broker leads no metadata, or nobody is there who could."""
        if self._quorum.leader != self._broker_id:
            return False
        voters = self._quorum.membership.voters
        others = [one for one in voters if one != self._broker_id and self._peers.is_up(one)]
        if not others:
            return False
        self._quorum.hand_over(max(others, key=self._quorum.match_index))
        return True

    def leave(self, incarnation: Incarnation, done: Callable[[], None]) -> None:
        """Have others lead what this broker leads in that run; `done` once they do, or if that cannot be had."""
        self._deadline_us = self._clock().elapsed_us + _LEAVE_US

        def ask() -> None:
            self._link.ask(StopBrokerRequest(broker_id=self._broker_id, incarnation=incarnation), left)

        def left(response: Response | RemoteError) -> None:
            now_us = self._clock().elapsed_us
            if not isinstance(response, RemoteError):
                self._ask_another()  # it may have become the metadata leader again
                done()
            elif response.code in _PASSES and self._link.knows_somebody and now_us < self._deadline_us:
                self._leave, self._retry_us = ask, now_us + _RETRY_US
            else:
                self._outbox.notice(f"no metadata leader lets this broker go ({response.message}): {_LATER}")
                done()

        ask()

    def look(self) -> None:
        """Another broker may lead by now, or be able to answer, or the time may be up."""
        if self._handed_over is not None:
            self._look_for_leader(self._handed_over)
        if self._leave is not None and self._clock().elapsed_us >= self._retry_us:
            ask, self._leave = self._leave, None
            ask()

    def _look_for_leader(self, done: Callable[[], None]) -> None:
        now_us = self._clock().elapsed_us
        if self._quorum.leader in (None, self._broker_id):
            self._led_us = None
        elif self._led_us is None:
            self._led_us = now_us
            self._standing.hurry()
        answers = self._led_us is not None and self._standing.answered_us >= self._led_us
        if answers or now_us >= self._deadline_us:
            self._handed_over = None
            if not answers:
                self._outbox.notice(f"no other broker has come to lead the metadata in {limits.METADATA_LEAVE_MS} ms")
            done()

    @property
    def next_deadline_us(self) -> int | None:
        """When `look` has something to do, at the latest; None: never by itself."""
        return earliest(
            None if self._handed_over is None else self._deadline_us,
            None if self._leave is None else self._retry_us,
        )
