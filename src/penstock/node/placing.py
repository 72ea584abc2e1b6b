"""Which brokers are to hold a stream that is made, or what is added to it: those that can.

Rules: only on brokers that were heard of lately something is placed; what is encrypted only on those of them that have
keys, and have said so. Who has no NATS leads nothing where another one can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.image import PartitionState, StreamState
from penstock.metadata.placement import place, place_more, place_observers
from penstock.metadata.streams import replicas_wanted
from penstock.node.quorum import Quorum


class Candidates(Protocol):
    """Who can hold something: what the metadata leader's `Controller` knows."""

    def ready(self, now: Now) -> frozenset[BrokerId]:
        """On whom streams can be placed now."""

    def without_nats(self) -> frozenset[BrokerId]:
        """Who of them is to lead none of them."""

    def without_keys(self) -> frozenset[BrokerId]:
        """Who of them can hold nothing that is encrypted."""

    def keys_unsaid(self) -> frozenset[BrokerId]:
        """Of whom of them that is not known yet."""


class Placing:
    """The metadata leader's, for `Administration`."""

    def __init__(self, quorum: Quorum, candidates: Candidates, chance: Any, clock: Callable[[], Now]) -> None:
        """`chance` is a seeded generator, such as random.Random."""
        self._quorum = quorum
        self._candidates = candidates
        self._chance = chance
        self._clock = clock

    def brokers(self) -> frozenset[BrokerId]:
        """All of the cluster, there or not: a stream must not have fewer replicas for who happens to be away."""
        membership = self._quorum.membership
        return frozenset((*self._quorum.image.brokers, *membership.voters, *membership.learners))

    def ready(self, config: StreamConfig) -> frozenset[BrokerId]:
        """On whom such a stream can be placed now. RemoteError no_encryption_key: too few of those there have keys."""
        ready = self._candidates.ready(self._clock())
        if not config.is_encrypted:
            return ready
        without = ready & self._candidates.without_keys()
        wanted = replicas_wanted(config, len(self.brokers())) + config.observers
        if len(ready) - len(without) < wanted <= len(ready):
            names = ", ".join(map(str, sorted(without)))
            who = f"broker {names} has" if len(without) == 1 else f"brokers {names} have"
            copies = "1 broker is to hold a copy" if wanted == 1 else f"{wanted} brokers are to hold a copy each"
            text = f"encryption: {copies}, and {who} no encryption keys; set "
            raise RemoteError(ErrorCode.NO_ENCRYPTION_KEY, f"{text}encryption_keys_file there and start it again")
        return ready - without - self._candidates.keys_unsaid()

    def assign(self, partitions: int, replicas: int, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...]:
        """The replicas of each new partition."""
        without_nats = self._candidates.without_nats()
        able = ready - without_nats
        among = able if len(able) >= replicas else ready
        placed = place(self._quorum.image, partitions, replicas, self._chance, among)
        # The first is to lead, and the creation waits for its subscription.
        return tuple(tuple(sorted(one, key=without_nats.__contains__)) for one in placed)

    def more(self, state: StreamState, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...] | None:
        """The replicas of each partition and one more, among these; None: there is none for some."""
        return place_more(self._quorum.image, state.partitions, self._chance, ready)

    def observers(
        self, partitions: Sequence[PartitionState | tuple[BrokerId, ...]], config: StreamConfig
    ) -> tuple[tuple[BrokerId, ...], ...]:
        """The observers of each partition, beside its replicas."""
        if not (config.observers or any(isinstance(one, PartitionState) for one in partitions)):
            return ()
        ready = self.ready(config) if config.observers else frozenset()
        return place_observers(self._quorum.image, partitions, config.observers, self._chance, ready)
