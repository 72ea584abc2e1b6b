"""Advisories and metrics of consumers, on the subjects where JetStream tells them.

Rules: they are for people and monitors, not for work: beyond ADVISORIES_PER_S of one broker they are left out, and
counted. A monitor that must not miss a message reads the stream of dead letters.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from penstock.jetstream.answers import publish_command
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.reader import Bucket
from penstock.jetstream.stream_state import NO_TIME, api_time

ADVISORIES_PER_S = 100
"""Of one broker, and as many at once."""
_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER"
_TYPE = "io.nats.jetstream.advisory.v1"
_encode = msgspec.json.Encoder().encode


class Advisories:
    """Sends advisories."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._bucket = Bucket(ADVISORIES_PER_S, ADVISORIES_PER_S, gateway.node.now.elapsed_us)
        self._numbers = count(1)
        self.left_out = 0

    @property
    def has_room(self) -> bool:
        """True if another one is sent now."""
        self._bucket.refill(self._gateway.node.now.elapsed_us)
        return self._bucket.tokens >= 1

    def acted(self, stream: str, name: str, action: str) -> None:
        """A consumer was created or deleted: `action` is create or delete."""
        self._tell(f"{_ADVISORY}.{action.upper()}D", f"{_TYPE}.consumer_action", stream, name, action=action)

    def paused(self, stream: str, name: str, until_us: int) -> None:
        """A consumer is paused until a wall time; 0: it is no more."""
        now_us = self._gateway.node.now.wall_us
        until = api_time(until_us) if until_us else NO_TIME
        fields = {"paused": now_us < until_us, "pause_until": until}
        self._tell(f"{_ADVISORY}.PAUSE", f"{_TYPE}.consumer_pause", stream, name, **fields)

    def pinned(self, stream: str, name: str, group: str, pin: str) -> None:
        """A client of a priority group got the pin."""
        kind = f"{_TYPE}.consumer_group_pinned"
        self._tell(f"{_ADVISORY}.PINNED", kind, stream, name, group=group, pinned_id=pin)

    def unpinned(self, stream: str, name: str, group: str, reason: str) -> None:
        """A client of a priority group lost the pin: `reason` is admin or timeout."""
        kind = f"{_TYPE}.consumer_group_unpinned"
        self._tell(f"{_ADVISORY}.UNPINNED", kind, stream, name, group=group, reason=reason)

    def exceeded(self, stream: str, name: str, offset: int, deliveries: int) -> None:
        """A message was delivered as often as it may be."""
        fields = {"stream_seq": offset + 1, "deliveries": deliveries}
        self._tell(f"{_ADVISORY}.MAX_DELIVERIES", f"{_TYPE}.max_deliver", stream, name, **fields)

    def refused(self, stream: str, name: str, offset: int, sequence: int, deliveries: int) -> None:
        """A client does not take a message now."""
        fields = {"consumer_seq": sequence, "stream_seq": offset + 1, "deliveries": deliveries}
        self._tell(f"{_ADVISORY}.MSG_NAKED", f"{_TYPE}.nak", stream, name, **fields)

    def terminated(self, stream: str, name: str, offset: int, sequence: int, deliveries: int, reason: str) -> None:
        """A client never wants a message again."""
        fields: dict[str, Any] = {"consumer_seq": sequence, "stream_seq": offset + 1, "deliveries": deliveries}
        if reason:
            fields["reason"] = reason
        self._tell(f"{_ADVISORY}.MSG_TERMINATED", f"{_TYPE}.terminated", stream, name, **fields)

    def acked(self, stream: str, name: str, stream_seq: int, sequence: int, deliveries: int, took_us: int) -> None:
        """A sample of an ack."""
        fields = {
            "consumer_seq": sequence, "stream_seq": stream_seq, "ack_time": 1_000 * took_us, "deliveries": deliveries,
        }  # fmt: skip
        kind = "io.nats.jetstream.metric.v1.consumer_ack"
        self._tell("$JS.EVENT.METRIC.CONSUMER.ACK", kind, stream, name, **fields)

    def _tell(self, subject: str, kind: str, stream: str, name: str, **fields: Any) -> None:
        node = self._gateway.node
        self._bucket.refill(node.now.elapsed_us)
        if self._bucket.tokens < 1:
            self.left_out += 1
            return
        self._bucket.tokens -= 1
        number = f"{node.process}-{node.broker_id}-{next(self._numbers)}"
        told = {"type": kind, "id": number, "timestamp": api_time(node.now.wall_us), "stream": stream, "consumer": name}
        if self._gateway.domain:
            fields["domain"] = self._gateway.domain
        self._gateway.send(publish_command(f"{subject}.{stream}.{name}".encode(), _encode({**told, **fields})))
