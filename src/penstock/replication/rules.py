"""What the safety of replication rests on, as pure functions. All ends are half-open.

1. A message is committed when all have it who may be in the ISR: the members that the image last named, and those of
   every proposal whose end is not known. Whatever the image turns out to be, its members have what was acked.
2. Nothing is committed while the ISR has fewer than `min_isr` members. Nor is it while a member has not fetched in this
   epoch: where its log ends may be the end of another history.
3. Who joins the ISR has all that is committed, and all that was written before this epoch. And it has on its disk what
   was on the leader's when it had come so far: else, if all lose their power then, it may be the one that leads, and
   what was on the others' disks for long would be cut off.
4. Logs are compared by the epochs in them, never by their ends alone: two logs that hold the same epoch hold the same
   batches up to where it ends first. A follower cuts there, and asks again. It never cuts to its `committed_end`, which
   may lag behind what was acked.
5. A follower's `committed_end` is what its leader says, as far as it has that itself: never its own end.

Why 4 ends: each answer that diverges names an epoch below the follower's last one, or an end below its own. Its last
epoch is that of a batch, so either way the cut takes at least that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.config import Durability


class EpochEnd(NamedTuple):
    """The largest epoch that a log has of those up to one that was asked for, and where it ends; epoch 0: none."""

    leader_epoch: int
    end_offset: int


class Lineage(Protocol):
    """The history of one log."""

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to `leader_epoch` that has batches here, and where it ends."""


@lru_cache(limits.SHARED_ISRS_MAX)
def _members(isr: tuple[int, ...]) -> frozenset[int]:
    return frozenset(isr)  # one for all partitions whose ISR is the same


def must_have(isr: tuple[int, ...], proposed: Iterable[Iterable[int]]) -> frozenset[int]:
    """Who must have a message before it is committed."""
    members = _members(isr)
    return members if all(members.issuperset(one) for one in proposed) else members.union(*proposed)


def may_commit(isr_size: int, min_isr: int) -> bool:
    """Whether anything is committed, and taken, with so many in sync."""
    return isr_size >= min_isr


def waits_for_own_disk(durability: Durability, smallest_isr: int) -> bool:
    """Whether only what is on the leader's own disk counts: it may be the only one that has it."""
    return durability is Durability.FSYNC or (durability is Durability.AUTO and smallest_isr == 1)


def waits_for_all_disks(durability: Durability) -> bool:
    """Whether only what is on the followers' disks counts."""
    return durability is Durability.FSYNC


def may_join(reached: int | None, committed_end: int, epoch_start: int) -> bool:
    """Whether a follower that has reached so far in this epoch has all that a member of the ISR must have."""
    return reached is not None and reached >= max(committed_end, epoch_start)


def is_as_durable(flushed_end: int | None, joins_at: int | None) -> bool:
    """Whether a follower has on its disk what it must have there; `joins_at` None: it has not come so far."""
    return flushed_end is not None and joins_at is not None and flushed_end >= joins_at


def divergence(last_epoch: int, log_end: int, log: Lineage, log_start: int, leader_log_end: int) -> EpochEnd | None:
    """Where the leader's `log` stops agreeing with that of a follower; None if it can fetch from its `log_end` on.

    Also a log that ends below the leader's `log_start` must agree: what comes is appended to it. `end_offset` is never
    below `log_start`, so such a log is told that all of it goes.
    """
    if last_epoch == 0:  # holds nothing: only its end can be wrong
        return EpochEnd(0, leader_log_end) if log_end > leader_log_end else None
    epoch, end = log.epoch_end(last_epoch)
    if epoch == last_epoch and end >= log_end:
        return None
    return EpochEnd(epoch, max(end, log_start))


def truncation_end(leader: EpochEnd, log: Lineage) -> int:
    """Up to where a follower's `log` may agree with its leader's, by the leader's answer."""
    _, own_end = log.epoch_end(leader.leader_epoch)
    return min(leader.end_offset, own_end)


def follower_committed_end(leader_committed_end: int, log_end: int) -> int:
    """What a follower may show to readers."""
    return min(leader_committed_end, log_end)
