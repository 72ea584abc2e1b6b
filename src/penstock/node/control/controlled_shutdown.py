"""Controlled shutdown: another voter takes over the metadata, then other brokers take over the partitions.

Rules: the metadata is handed over first, while the other brokers still accept this one's messages: new partition
leaders contact the metadata leader at once, and that must not be the broker that is shutting down. The handover counts
once the new metadata leader has answered a heartbeat: one that was just elected must save that first, and refuses
everything until then. A metadata leader that is shutting down itself refuses, too; this broker asks again until it is
answered. All waits have a deadline: if no broker can take over, this one stops as it is and says so, and the others
react when its session expires.

    hand_over ─▶ (drain of NATS) ─▶ leave ─▶ (the logs are closed)

The order is that of Kafka's controlled shutdown, with a controller that may be the broker that stops.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import earliest
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Incarnation
from penstock.messages import Response, StopBrokerRequest
from penstock.node.context import Context
from penstock.node.quorum.metadata_forwarding import MetadataForwarder
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.registration import BrokerRegistration

_LEAVE_US = limits.METADATA_LEAVE_MS * 1_000
_RETRY_US = limits.LEAVE_RETRY_MS * 1_000
_PASSES = frozenset(
    {ErrorCode.NOT_METADATA_LEADER, ErrorCode.BROKER_UNAVAILABLE, ErrorCode.STOPPING, ErrorCode.OVERLOADED}
)
_LATER = "others take over when the session of this broker is over"


class ControlledShutdown:
    def __init__(
        self, context: Context, quorum: Quorum, link: MetadataForwarder, peers: PeerClient, standing: BrokerRegistration
    ) -> None:
        self._quorum = quorum
        self._link = link
        self._peers = peers
        self._standing = standing
        self._outbox = context.outbox
        self._context = context
        self._broker_id = standing.broker_id
        self._handed_over: Callable[[], None] | None = None  # called once there is another metadata leader
        self._led_us: int | None = None  # since when another broker leads, by Raft
        self._leave: Callable[[], None] | None = None  # repeats the request
        self._retry_us = 0
        self._deadline_us = 0

    def hand_over(self, done: Callable[[], None]) -> None:
        """Have another voter lead the metadata; call `done` once it answers, or at the deadline."""
        if not self._ask_another():
            done()
            return
        self._handed_over = done
        self._led_us = None
        self._deadline_us = self._context.now.elapsed_us + _LEAVE_US

    def _ask_another(self) -> bool:
        """Start a transfer; return False if this broker is not the metadata leader or no other voter is connected."""
        if self._quorum.leader != self._broker_id:
            return False
        voters = self._quorum.membership.voters
        others = [one for one in voters if one != self._broker_id and self._peers.is_up(one)]
        if not others:
            return False
        self._quorum.hand_over(max(others, key=self._quorum.match_index))
        return True

    def leave(self, incarnation: Incarnation, done: Callable[[], None]) -> None:
        """Have others lead what this broker leads in that incarnation; call `done` then, or if that is impossible."""
        self._deadline_us = self._context.now.elapsed_us + _LEAVE_US

        def ask() -> None:
            self._link.ask(StopBrokerRequest(broker_id=self._broker_id, incarnation=incarnation), left)

        def left(response: Response | RemoteError) -> None:
            now_us = self._context.now.elapsed_us
            if not isinstance(response, RemoteError):
                self._ask_another()  # it may have become the metadata leader again
                done()
            elif response.code in _PASSES and self._link.knows_somebody and now_us < self._deadline_us:
                self._leave, self._retry_us = ask, now_us + _RETRY_US
            else:
                self._outbox.notice(
                    f"no metadata leader takes over this broker's partitions ({response.message}): {_LATER}"
                )
                done()

        ask()

    @property
    def is_under_way(self) -> bool:
        """True if `check_progress` may have something to do."""
        return self._handed_over is not None or self._leave is not None

    def check_progress(self) -> None:
        """Check the handover and repeat the request that is due."""
        if self._handed_over is not None:
            self._look_for_leader(self._handed_over)
        if self._leave is not None and self._context.now.elapsed_us >= self._retry_us:
            ask, self._leave = self._leave, None
            ask()

    def _look_for_leader(self, done: Callable[[], None]) -> None:
        now_us = self._context.now.elapsed_us
        if self._quorum.leader in (None, self._broker_id):
            self._led_us = None
        elif self._led_us is None:
            self._led_us = now_us
            self._standing.heartbeat_now()
        answers = self._led_us is not None and self._standing.answered_us >= self._led_us
        if answers or now_us >= self._deadline_us:
            self._handed_over = None
            if not answers:
                self._outbox.notice(
                    f"no other broker has become the metadata leader within {limits.METADATA_LEAVE_MS} ms"
                )
            done()

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `check_progress` has something to do; None: never by itself."""
        return earliest(
            None if self._handed_over is None else self._deadline_us,
            None if self._leave is None else self._retry_us,
        )
