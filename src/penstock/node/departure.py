"""The end of a run, as the others see it: one of them leads the metadata, then they lead what this broker led.

Rules: the metadata goes first, while this broker is still listened to. Who takes a partition over asks the metadata
leader at once whether it may go on, and would ask one that is about to leave. All of it has an end: where nobody can
take over, the broker stops as it is, and others do what they can when its session is over.

    hand_over ─▶ (drain of NATS) ─▶ leave ─▶ (the logs are closed)

The order is that of Kafka's controlled shutdown, with a controller that may be the broker that stops.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import Response, StopBrokerRequest
from penstock.node.metadata_link import MetadataLink
from penstock.node.peers import Peers
from penstock.node.quorum import Quorum

_HAND_OVER_US = limits.METADATA_LEAVE_MS * 1_000


class Departure:
    """Of the broker `broker_id`."""

    def __init__(
        self, quorum: Quorum, link: MetadataLink, peers: Peers, broker_id: BrokerId, clock: Callable[[], Now]
    ) -> None:
        self._quorum = quorum
        self._link = link
        self._peers = peers
        self._broker_id = broker_id
        self._clock = clock
        self._handed_over: Callable[[], None] | None = None  # who waits for another metadata leader
        self._deadline_us = 0

    def hand_over(self, done: Callable[[], None]) -> None:
        """Have another voter lead the metadata; `done` once one does, or if that cannot be had in time."""
        if not self._ask_another():
            done()
            return
        self._handed_over = done
        self._deadline_us = self._clock().elapsed_us + _HAND_OVER_US

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

    def look(self) -> None:
        """Another broker may lead by now, or the time may be up."""
        done = self._handed_over
        if done is None:
            return
        leader = self._quorum.leader
        if leader not in (None, self._broker_id) or self._clock().elapsed_us >= self._deadline_us:
            self._handed_over = None
            done()

    def leave(self, incarnation: Incarnation, done: Callable[[], None]) -> None:
        """Have others lead what this broker leads in that run; `done` once they do, or if that cannot be had."""

        def left(response: Response | RemoteError) -> None:
            self._ask_another()  # it may have become the metadata leader again
            done()

        self._link.ask(StopBrokerRequest(broker_id=self._broker_id, incarnation=incarnation), left)
