"""Which partition a message is published to: that of its key, else of its message id, or with neither the next in turn.

Rules: a key's partition is XXH64(key, seed 0) mod partitions, the same in every client, and so is an id's: a leader
knows the ids of its own partition alone, so each try of a message must come to the same one. Which streams store a
subject is asked before the first message with a key or an id (or without, of a stream that this client has seen to have
partitions), and believed for PUBLISH_ROUTE_S. As much is known as PUBLISH_ROUTES_MAX says; the oldest is forgotten.
Where streams with different numbers of partitions are on one subject, all messages go to the subject itself, which is
partition 0 of each: no stream misses any. So they do where the leaders find the partition, or nats-server does: only
`partition_by = publisher` leaves it to us.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base import limits
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import partition_subject
from penstock.hot import keyhash
from penstock.messages import StreamInfo


class _Route:
    """What is known of one subject."""

    __slots__ = ("expires_s", "partitions", "turn")

    def __init__(self, partitions: int, expires_s: float) -> None:
        self.partitions = partitions
        self.expires_s = expires_s
        self.turn = 0


class Routes:
    """The subjects that one client publishes to."""

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}

    def note(self, info: StreamInfo) -> None:
        """A stream was seen: if it has several partitions, its subject is one to ask about."""
        by_us = len(info.partitions) > 1 and info.config.split.how is PartitionBy.PUBLISHER
        if by_us and info.subject not in self._routes:
            self._keep(info.subject, _Route(1, 0.0))

    def must_ask(self, subject: str, key: bytes | str | None, now_s: float) -> bool:
        """Whether to ask first which streams store the subject: a message of a key has one right place."""
        route = self._routes.get(subject)
        return key is not None if route is None else now_s >= route.expires_s

    def learn(self, subject: str, infos: Iterable[StreamInfo], now_s: float) -> None:
        """These are the streams that store the subject."""
        counts = {
            len(info.partitions) if info.config.split.how is PartitionBy.PUBLISHER else 1
            for info in infos
            if info.subject == subject
        }
        old = self._routes.pop(subject, None)
        route = _Route(counts.pop() if len(counts) == 1 else 1, now_s + limits.PUBLISH_ROUTE_S)
        if old is not None:
            route.turn = old.turn
        self._keep(subject, route)

    def _keep(self, subject: str, route: _Route) -> None:
        self._routes[subject] = route
        if len(self._routes) > limits.PUBLISH_ROUTES_MAX:
            del self._routes[next(iter(self._routes))]

    def subject_for(self, subject: str, key: bytes | str | None) -> str:
        """Where a message on `subject` goes, as far as is known."""
        route = self._routes.get(subject)
        if route is None or route.partitions <= 1:
            return subject
        if key is not None:
            number = keyhash.partition_of(key.encode() if isinstance(key, str) else bytes(key), route.partitions)
        else:
            number = route.turn % route.partitions
            route.turn += 1
        return partition_subject(subject, number)
