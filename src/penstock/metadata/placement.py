"""Placement of a new stream's partitions: replicas and preferred leaders.

Rules: each replica of a partition is on a broker of its own, on as many racks as possible, and otherwise on the brokers
with the fewest replicas. The first is the preferred leader: the broker that is preferred leader of the fewest
partitions, regardless of current leaders. Ties are broken at random.

Theory: a broker without a rack counts as its own rack. Streams created at the same moment do not see each other: a
broker that joins empty may get a few more than its share of them, and fewer afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.image import BrokerLoad, BrokerState, ClusterImage, PartitionState


class PlacementRandom(Protocol):
    """A seeded random generator."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""


def place(
    image: ClusterImage, partitions: int, replicas: int, chance: PlacementRandom, among: Set[BrokerId]
) -> tuple[tuple[BrokerId, ...], ...]:
    """Return each partition's replicas, preferred leader first. Raise RemoteError (not_enough_replicas)."""
    live = [broker for broker_id, broker in sorted(image.brokers.items()) if broker.is_live and broker_id in among]
    if replicas > len(live) or not live:
        replicas = max(1, replicas)
        text = f"{replicas} brokers are to hold each partition, but only {len(live)} of {len(image.brokers)} are there"
        raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, text, live_brokers=len(live))
    preferred = Counter({one.broker_id: image.loads.get(one.broker_id, BrokerLoad()).preferred for one in live})
    held = Counter({one.broker_id: image.loads.get(one.broker_id, BrokerLoad()).replicas for one in live})
    placed = []
    for _ in range(partitions):
        first = _least(live, lambda one: (preferred[one.broker_id], held[one.broker_id]), chance)
        chosen = _with_followers(first, live, replicas, held, chance)
        preferred[first.broker_id] += 1
        held.update(chosen)
        placed.append(chosen)
    return tuple(placed)


def place_observers(
    image: ClusterImage,
    partitions: Sequence[PartitionState | tuple[BrokerId, ...]],
    observers: int,
    chance: PlacementRandom,
    among: Set[BrokerId],
) -> tuple[tuple[BrokerId, ...], ...]:
    """Return the observers of each partition, which is given as its state or its replicas.

    Existing observers are kept as far as needed, because they have the data already. A replica is no observer. Racks
    without a copy come first: their readers are the farthest. Raise RemoteError (not_enough_replicas).
    """
    live = {
        broker_id: broker
        for broker_id, broker in sorted(image.brokers.items())
        if broker.is_live and broker_id in among
    }
    held = Counter({broker_id: image.loads.get(broker_id, BrokerLoad()).replicas for broker_id in live})
    placed = []
    for one in partitions:
        state = one if isinstance(one, PartitionState) else PartitionState.made(one)
        chosen = list(state.observers[:observers])
        left = [broker for broker_id, broker in live.items() if broker_id not in state.holders]
        if observers - len(chosen) > len(left):
            text = f"observers: {observers} brokers are to observe a partition beside those that hold"
            text += f" {list(state.replicas)}, but only {len(left) + len(chosen)} others are live"
            raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, text, live_brokers=len(live))
        on_rack = Counter(rack_of(image.brokers[one]) for one in (*state.replicas, *chosen) if one in image.brokers)
        while len(chosen) < observers:
            best = _least(left, lambda one: (on_rack[rack_of(one)], held[one.broker_id]), chance)  # noqa: B023 (at once)
            chosen.append(best.broker_id)
            held[best.broker_id] += 1
            on_rack[rack_of(best)] += 1
            left.remove(best)
        placed.append(tuple(chosen))
    return tuple(placed)


def place_more(
    image: ClusterImage, partitions: Sequence[PartitionState], chance: PlacementRandom, among: Set[BrokerId]
) -> tuple[tuple[BrokerId, ...], ...] | None:
    """Return the replicas of each partition and one more, `among` these; None if a partition has no candidate."""
    live = [broker for broker_id, broker in sorted(image.brokers.items()) if broker.is_live and broker_id in among]
    held = Counter({one.broker_id: image.loads.get(one.broker_id, BrokerLoad()).replicas for one in live})
    placed = []
    for one in partitions:
        left = [broker for broker in live if broker.broker_id not in one.holders]
        if not left:
            return None
        on_rack = Counter(rack_of(image.brokers[other]) for other in one.holders if other in image.brokers)
        best = _least(left, lambda broker: (on_rack[rack_of(broker)], held[broker.broker_id]), chance)  # noqa: B023
        held[best.broker_id] += 1
        placed.append((*one.replicas, best.broker_id))
    return tuple(placed)


def _with_followers(
    first: BrokerState, live: list[BrokerState], replicas: int, held: Counter[BrokerId], chance: PlacementRandom
) -> tuple[BrokerId, ...]:
    chosen = [first.broker_id]
    on_rack = Counter([rack_of(first)])
    left = [one for one in live if one is not first]
    while len(chosen) < replicas:
        best = _least(left, lambda one: (on_rack[rack_of(one)], held[one.broker_id]), chance)
        chosen.append(best.broker_id)
        on_rack[rack_of(best)] += 1
        left.remove(best)
    return tuple(chosen)


def _least(
    brokers: Iterable[BrokerState], load: Callable[[BrokerState], tuple[int, int]], chance: PlacementRandom
) -> BrokerState:
    return min(brokers, key=lambda one: (*load(one), chance.random()))


def rack_of(broker: BrokerState) -> str | BrokerId:
    """The broker's rack; a broker without one is its own rack."""
    return broker.broker_id if broker.rack is None else broker.rack
