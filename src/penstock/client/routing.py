"""Which partition a message is published to: that of its key, else of its message id, or with neither the next in turn.

Rules: a key's partition is the same in every client (`penstock.hot.keymap`), and so is an id's: a leader
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
from penstock.hot.keymap import KeyMap
from penstock.messages import StreamInfo

_ONE = (1,)


class _Route:
    """What is known of one subject."""

    __slots__ = ("counts", "expires_s", "key_map", "turn")

    def __init__(self, counts: tuple[int, ...], expires_s: float) -> None:
        """`counts`: how many partitions the stream had, one after the other."""
        self.counts = counts
        self.key_map = KeyMap(counts) if counts[-1] > 1 else None
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
            self._keep(info.subject, _Route(_ONE, 0.0))

    def must_ask(self, subject: str, key: bytes | str | None, now_s: float) -> bool:
        """Whether to ask first which streams store the subject: a message of a key has one right place."""
        route = self._routes.get(subject)
        return key is not None if route is None else now_s >= route.expires_s

    def learn(self, subject: str, infos: Iterable[StreamInfo], now_s: float) -> None:
        """These are the streams that store the subject."""
        counts = {
            (info.counts or (len(info.partitions),)) if info.config.split.how is PartitionBy.PUBLISHER else _ONE
            for info in infos
            if info.subject == subject
        }
        old = self._routes.pop(subject, None)
        route = _Route(counts.pop() if len(counts) == 1 else _ONE, now_s + limits.PUBLISH_ROUTE_S)
        if old is not None:
            route.turn = old.turn
        self._keep(subject, route)

    def forget(self, subject: str) -> None:
        """What is known of it is not so any more: ask before the next message."""
        if (route := self._routes.get(subject)) is not None:
            route.expires_s = 0.0

    def _keep(self, subject: str, route: _Route) -> None:
        self._routes[subject] = route
        if len(self._routes) > limits.PUBLISH_ROUTES_MAX:
            del self._routes[next(iter(self._routes))]

    def subject_for(self, subject: str, key: bytes | str | None) -> str:
        """Where a message on `subject` goes, as far as is known."""
        route = self._routes.get(subject)
        if route is None or route.key_map is None:
            return subject
        if key is not None:
            number = route.key_map.partition_of(key.encode() if isinstance(key, str) else bytes(key))
        else:
            number = route.turn % route.counts[-1]
            route.turn += 1
        return partition_subject(subject, number)
