"""Choose the partition for a published message: by key, else by message id, else round robin.

Rules: a key has the same partition in every client (`penstock.hot.keymap`), and so has a message id: a leader knows
only the ids of its own partition, so all retries of a message must go to the same one. Before the first message with a
key or id (or without, if this client has seen that the stream has partitions) the client looks up which streams store
the subject, and caches that for PUBLISH_ROUTE_S. At most PUBLISH_ROUTES_MAX subjects are cached; the oldest is dropped.
If streams with different numbers of partitions share a subject, all messages go to the subject itself, which is
partition 0 of each, so no stream misses any. The same holds if the leaders or nats-server choose the partition: only
`partition_by = publisher` leaves the choice to the client.
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
    """Cached route of one subject."""

    __slots__ = ("counts", "expires_s", "key_map", "turn")

    def __init__(self, counts: tuple[int, ...], expires_s: float) -> None:
        """`counts`: the numbers of partitions that the stream has had, in order."""
        self.counts = counts
        self.key_map = KeyMap(counts) if counts[-1] > 1 else None
        self.expires_s = expires_s
        self.turn = 0


class Routes:
    """The cached routes of one client."""

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}

    def note(self, info: StreamInfo) -> None:
        """Note a stream: if it has several partitions, its subject must be looked up before the next publish."""
        by_us = len(info.partitions) > 1 and info.config.split.how is PartitionBy.PUBLISHER
        if by_us and info.subject not in self._routes:
            self._keep(info.subject, _Route(_ONE, 0.0))

    def must_ask(self, subject: str, key: bytes | str | None, now_s: float) -> bool:
        """True if the streams of the subject must be looked up first."""
        route = self._routes.get(subject)
        return key is not None if route is None else now_s >= route.expires_s

    def learn(self, subject: str, infos: Iterable[StreamInfo], now_s: float) -> None:
        """Cache the streams that store the subject."""
        counts = {
            (info.counts or (len(info.partitions),)) if info.config.split.how is PartitionBy.PUBLISHER else _ONE
            for info in infos
            if subject in info.subjects
        }
        old = self._routes.pop(subject, None)
        route = _Route(counts.pop() if len(counts) == 1 else _ONE, now_s + limits.PUBLISH_ROUTE_S)
        if old is not None:
            route.turn = old.turn
        self._keep(subject, route)

    def forget(self, subject: str) -> None:
        """Invalidate the route: look it up before the next message."""
        if (route := self._routes.get(subject)) is not None:
            route.expires_s = 0.0

    def _keep(self, subject: str, route: _Route) -> None:
        self._routes[subject] = route
        if len(self._routes) > limits.PUBLISH_ROUTES_MAX:
            del self._routes[next(iter(self._routes))]

    def subject_for(self, subject: str, key: bytes | str | None) -> str:
        """Return the subject to which a message on `subject` is sent, as far as known."""
        route = self._routes.get(subject)
        if route is None or route.key_map is None:
            return subject
        if key is not None:
            number = route.key_map.partition_of(key.encode() if isinstance(key, str) else bytes(key))
        else:
            number = route.turn % route.counts[-1]
            route.turn += 1
        return partition_subject(subject, number)
