"""Divergence check: does what a reader has read still agree with the log?

A log can be truncated (durability `os`, power loss) or begin anew (memory).

Rules: a reader says which offset it wants and which leader epoch wrote what it read last. Within one epoch there was
one leader, which only appended: so reader and log agree up to where that epoch ended here, which is where the next
known one began. A reader that has read beyond that gets an error; no reader skips or repeats offsets without knowing.

    lineage here         (1, 0) (3, 80)           log_end 150
    reader wants 100, has read epoch 1 last       epoch 1 ended at 80: rows 80 to 99 were lost
    reader wants 100, has read epoch 2 last       epoch 2 is unknown; 3 began at 80: as above
    reader wants 100, has read epoch 3 last       agrees
    reader wants 100, has read epoch 4 last       the log is an older copy: only what came before 3 is certain

The present epoch is in the lineage once it has written something; until then it begins where the log ends. Epochs that
ended below log_start may be forgotten. The first known epoch began no later than that, so the rule holds for a reader
of a forgotten epoch, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter

from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import LineageEntry
from penstock.node.partition.partition import Partition

_leader_epoch = attrgetter("leader_epoch")
_start_offset = attrgetter("start_offset")


def check_agreement(partition: Partition, offset: int, leader_epoch: int | None) -> None:
    """Raise RemoteError log_truncated if the log no longer holds what a reader has below `offset`, whose last rows are
    of `leader_epoch`; not_yet if another replica has shown the reader more than this one has or knows of.
    """
    if partition.is_copied:
        _check_knowledge(partition, offset, leader_epoch)
    if leader_epoch is None:
        return
    end_offset = _agreed_end(partition, leader_epoch, offset)
    if offset <= end_offset:
        return
    if partition.is_copied and end_offset >= partition.committed_end and not _is_settled(partition, leader_epoch):
        # The uncommitted part may still be truncated to agree with what the reader has from another replica.
        raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} is not committed so far here; ask again in a moment")
    lost = f"offsets {end_offset} to {offset - 1}, as this reader knows them, are not in it any more"
    raise RemoteError(
        ErrorCode.LOG_TRUNCATED,
        f"the log of {partition.label} was cut or began anew: {lost}; drop what was made of them, "
        f"then read on from {end_offset}",
        offset=int(offset),
        end_offset=end_offset,
        log_start=partition.log_start,
        committed_end=partition.committed_end,
    )


def _check_knowledge(partition: Partition, offset: int, leader_epoch: int | None) -> None:
    """Raise RemoteError not_yet if another replica has shown the reader more than this one has or knows of."""
    if not _is_leader(partition) and offset > partition.log.log_end:
        text = f"this replica of {partition.label} ends at offset {partition.log.log_end}; ask again in a moment"
        raise RemoteError(ErrorCode.NOT_YET, text, log_end=partition.log.log_end)
    if leader_epoch is not None and leader_epoch > _last_epoch(partition):
        text = f"this broker does not know leader epoch {leader_epoch} of {partition.label} yet; ask again"
        raise RemoteError(ErrorCode.NOT_YET, text, leader_epoch=int(partition.leader_epoch))


def _is_settled(partition: Partition, leader_epoch: int) -> bool:
    """True if the data of an earlier epoch is final: its successor leads here, followed by all possible leaders.

    Before that, one of them may still be elected with data that this log does not have.
    """
    leadership = partition.leadership if _is_leader(partition) else None
    return leadership is not None and leader_epoch < partition.leader_epoch and leadership.is_followed


def _is_leader(partition: Partition) -> bool:
    """True if this broker leads the partition and, as far as it can know, no other broker does."""
    return partition.leadership is not None and not partition.is_mute


def _last_epoch(partition: Partition) -> int:
    """Return the latest epoch known here: a follower's log may be ahead of its broker's metadata."""
    lineage = partition.log.lineage
    return max(partition.leader_epoch, lineage[-1].leader_epoch) if lineage else partition.leader_epoch


def _agreed_end(partition: Partition, leader_epoch: int, offset: int) -> int:
    """Return the offset up to which the log agrees with a reader at `offset` whose last rows are of that epoch."""
    lineage = partition.log.lineage
    if not lineage or lineage[-1].leader_epoch < partition.leader_epoch:
        lineage = (*lineage, LineageEntry(partition.leader_epoch, partition.log.log_end))
    if leader_epoch > _last_epoch(partition):
        began = bisect_left(lineage, offset, key=_start_offset)
        return lineage[began - 1].start_offset if began else 0
    later = bisect_right(lineage, leader_epoch, key=_leader_epoch)
    return lineage[later].start_offset if later < len(lineage) else partition.log.log_end
