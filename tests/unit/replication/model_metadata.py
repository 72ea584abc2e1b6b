"""What the metadata decides of one partition: a small model, written for itself, so that it repeats no mistake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.base.errors import ErrorCode
from penstock.messages import IsrChange, IsrResult


@dataclass(frozen=True)
class Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    version: int
    eligible: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    observers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Image:
    index: int
    partition: Partition
    live: dict[int, int]  # broker → incarnation


class Metadata:
    """All images there were; brokers hear of them one by one."""

    def __init__(self, brokers: Iterable[int]) -> None:
        replicas = tuple(brokers)
        self.history = [Image(1, Partition(replicas, replicas, None, 0, 1), {})]

    @property
    def now(self) -> Image:
        return self.history[-1]

    def register(self, broker: int, *, clean: bool) -> int:
        if broker in self.now.live:
            self.fence(broker)
        image = self.now
        partition = image.partition if clean else _without(image.partition, broker)
        self._publish(partition, {**image.live, broker: image.index + 1})
        return self.now.live[broker]

    def fence(self, broker: int) -> None:
        image = self.now
        partition = _without(image.partition, broker)
        if partition.leader == broker:
            partition = replace(partition, leader=None)
        self._publish(partition, {other: run for other, run in image.live.items() if other != broker})

    def elect(self, broker: int, *, unclean: bool = False, instead: bool = False) -> None:
        """Let another replica lead; `instead`: followers do not reach the leader, which leaves the ISR."""
        partition = self.now.partition
        assert unclean or broker in partition.isr
        isr = (broker,) if unclean else partition.isr
        if instead:
            isr = tuple(one for one in isr if one != partition.leader)
        partition = replace(partition, leader=broker, isr=isr, leader_epoch=partition.leader_epoch + 1)
        self._publish(partition, self.now.live)

    def change(self, broker: int, incarnation: int, change: IsrChange) -> IsrResult:
        """A leader's wish, by compare-and-set."""
        image, partition = self.now, self.now.partition
        if image.live.get(broker) != incarnation or partition.leader != broker:
            return IsrResult(0, ErrorCode.STALE_INCARNATION)
        if (change.leader_epoch, change.version) != (partition.leader_epoch, partition.version):
            return IsrResult(0, ErrorCode.VERSION_CONFLICT)
        if any(image.live.get(member.broker_id) != member.incarnation for member in change.isr):
            return IsrResult(0, ErrorCode.STALE_INCARNATION)
        isr = tuple(member.broker_id for member in change.isr)
        self._publish(replace(partition, isr=isr, version=partition.version + 1), image.live)
        return IsrResult(self.now.partition.version)

    def _publish(self, partition: Partition, live: dict[int, int]) -> None:
        before = self.now.partition
        if partition.leader is None:
            chosen = [broker for broker in partition.replicas if broker in partition.isr and broker in live]
            if chosen:
                partition = replace(partition, leader=chosen[0], leader_epoch=partition.leader_epoch + 1)
        if partition != before:
            partition = replace(partition, version=before.version + 1)
        self.history.append(Image(self.now.index + 1, partition, live))


def _without(partition: Partition, broker: int) -> Partition:
    """Out of the ISR, unless it is the last one there."""
    isr = tuple(member for member in partition.isr if member != broker)
    return replace(partition, isr=isr or partition.isr)
