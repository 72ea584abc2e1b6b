"""Safety rules of replication, as pure functions. All ends are half-open.

1. A message is committed once all possible ISR members have it: those of the image's ISR, and those of every proposal
   with unknown outcome. Whatever ISR comes into force, its members have every acked message.
2. Nothing is committed while the ISR has fewer than `min_isr` members. Nor while a member has not fetched in this
   epoch: the end of its log may belong to another history.
3. A replica that joins the ISR has everything committed, and everything written before this epoch. And it has on its
   disk what was on the leader's disk when it had caught up: otherwise, if all brokers lose power then, it may be
   elected, and what was on the other disks for long would be cut off.
4. Logs are compared by their epochs, never by their ends alone: two logs that hold the same epoch hold the same batches
   up to the earlier of the two ends of that epoch. A follower cuts there, and asks again. It never cuts to its
   `committed_end`, which may lag behind what was acked.
5. A follower's high watermark (`committed_end`) is what its leader says, as far as its own log reaches: never its own
   log end.

Why 4 terminates: each diverging answer names an epoch below the follower's last one, or an end below its own. Its last
epoch is that of a batch, so either way the cut takes at least that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.ids import BrokerId


class EpochEnd(NamedTuple):
    """The largest epoch of a log up to a requested one, and its end offset; epoch 0: none."""

    leader_epoch: int
    end_offset: int


class EpochLineage(Protocol):
    """The leader epochs of one log (KIP-101's leader epoch cache)."""

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` that has batches here, and its end offset."""


@lru_cache(limits.SHARED_ISRS_MAX)
def _members(isr: tuple[BrokerId, ...]) -> frozenset[BrokerId]:
    return frozenset(isr)  # one for all partitions whose ISR is the same


def must_have(isr: tuple[BrokerId, ...], proposed: Iterable[Iterable[BrokerId]]) -> frozenset[BrokerId]:
    """Return the brokers that must have a message before it is committed."""
    members = _members(isr)
    return members if all(members.issuperset(one) for one in proposed) else members.union(*proposed)


def may_commit(isr_size: int, min_isr: int) -> bool:
    """True if messages are accepted and committed with this many in-sync replicas."""
    return isr_size >= min_isr


def waits_for_own_disk(durability: Durability, smallest_isr: int) -> bool:
    """True if only the leader's flushed offset counts, because it may be the only broker that has a message."""
    return durability is Durability.FSYNC or (durability is Durability.AUTO and smallest_isr == 1)


def waits_for_all_disks(durability: Durability) -> bool:
    """True if only the followers' flushed offsets count."""
    return durability is Durability.FSYNC


def may_join(reached: int | None, committed_end: int, epoch_start: int) -> bool:
    """True if a follower that reached this offset in this epoch has everything that a member of the ISR must have."""
    return reached is not None and reached >= max(committed_end, epoch_start)


def is_as_durable(flushed_end: int | None, joins_at: int | None) -> bool:
    """True if a follower has flushed what it must to join; `joins_at` None: it has not caught up yet."""
    return flushed_end is not None and joins_at is not None and flushed_end >= joins_at


def divergence(
    last_epoch: int, log_end: int, log: EpochLineage, log_start: int, leader_log_end: int
) -> EpochEnd | None:
    """Return where the leader's `log` diverges from a follower's; None if the follower can fetch from its `log_end` on.

    A follower's log that ends below the leader's `log_start` must agree, too: new batches are appended to it.
    `end_offset` is never below `log_start`, so the follower removes such a log completely.
    """
    if last_epoch == 0:  # holds nothing: only its end can be wrong
        return EpochEnd(0, leader_log_end) if log_end > leader_log_end else None
    epoch, end = log.epoch_end(last_epoch)
    if epoch == last_epoch and end >= log_end:
        return None
    return EpochEnd(epoch, max(end, log_start))


def truncation_end(leader: EpochEnd, log: EpochLineage) -> int:
    """Return the offset up to which a follower's `log` may agree with its leader's, by the leader's answer."""
    _, own_end = log.epoch_end(leader.leader_epoch)
    return min(leader.end_offset, own_end)


def follower_committed_end(leader_committed_end: int, log_end: int) -> int:
    """Return the high watermark that a follower may show to readers."""
    return min(leader_committed_end, log_end)
