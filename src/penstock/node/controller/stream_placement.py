"""Chooses the brokers that hold a new stream, or a stream's added replicas.

Rules: only brokers with recent heartbeats are chosen; for encrypted streams only those that have reported encryption
keys. A broker without NATS is not chosen to lead if there is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.effects.streams import replicas_wanted
from penstock.metadata.image import PartitionState, StreamState
from penstock.metadata.placement import place, place_more, place_observers
from penstock.node.context import Context
from penstock.node.quorum.quorum import Quorum


class PlacementCandidates(Protocol):
    """Broker states that the metadata leader's `Controller` knows."""

    def ready(self, now: Now) -> frozenset[BrokerId]:
        """Return the brokers on which streams can be placed now."""

    def without_nats(self) -> frozenset[BrokerId]:
        """Return the brokers that should not lead, because they have no NATS."""

    def without_keys(self) -> frozenset[BrokerId]:
        """Return the brokers that cannot hold encrypted streams."""

    def keys_unsaid(self) -> frozenset[BrokerId]:
        """Return the brokers that have not reported whether they have keys."""


class StreamPlacement:
    """Placement for `StreamAdmin`, on the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum, candidates: PlacementCandidates) -> None:
        """`chance` is a source of randomness, such as a seeded random.Random."""
        self._quorum = quorum
        self._candidates = candidates
        self._chance = context.chance
        self._context = context

    def brokers(self) -> frozenset[BrokerId]:
        """Return all brokers of the cluster: a stream must not get fewer replicas because a broker is away."""
        membership = self._quorum.membership
        return frozenset((*self._quorum.image.brokers, *membership.voters, *membership.learners))

    def ready(self, config: StreamConfig) -> frozenset[BrokerId]:
        """Return the brokers for a stream of this config. Raise RemoteError (no_encryption_key): too few have keys."""
        ready = self._candidates.ready(self._context.now)
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
        """Return the replicas of each new partition."""
        without_nats = self._candidates.without_nats()
        able = ready - without_nats
        among = able if len(able) >= replicas else ready
        placed = place(self._quorum.image, partitions, replicas, self._chance, among)
        # The first one leads, and the creation waits for its subscription.
        return tuple(tuple(sorted(one, key=without_nats.__contains__)) for one in placed)

    def more(self, state: StreamState, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...] | None:
        """Return each partition's replicas with one more of `ready`; None if there is none for some partition."""
        return place_more(self._quorum.image, state.partitions, self._chance, ready)

    def observers(
        self, partitions: Sequence[PartitionState | tuple[BrokerId, ...]], config: StreamConfig
    ) -> tuple[tuple[BrokerId, ...], ...]:
        """Return the observers of each partition."""
        if not (config.observers or any(isinstance(one, PartitionState) for one in partitions)):
            return ()
        ready = self.ready(config) if config.observers else frozenset()
        return place_observers(self._quorum.image, partitions, config.observers, self._chance, ready)
