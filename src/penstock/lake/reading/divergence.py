"""Divergence check: detects that the log no longer holds the messages that were read up to a recorded position.

Theory: an offset identifies a message only together with a leader epoch. A log that was truncated (power loss, unclean
leader election) or started again empty (a memory stream) gets other messages at the same offsets. Its leader knows the
end offset of each epoch, and reports the offset up to which a reader agrees with the log
(`penstock.node.partition.divergence`). Stream ids, epochs and offsets are valid within one cluster only: another
cluster, or one with emptied disks, uses the same numbers again.
"""

from __future__ import annotations

from penstock.base.ids import are_different_clusters
from penstock.client.blocking.client import Client
from penstock.client.bulk.ranges import agreed_end
from penstock.client.values import LATEST
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.positions import Key, Position
from penstock.messages import StreamInfo


def held_end(client: Client, info: StreamInfo, key: Key, at: Position, timeout_s: float) -> int:
    """Return the offset, at most that of `at`, up to which the log holds the same messages as when `at` was recorded.

    `info` must be current; the leader is queried only if `info` does not decide. Without a leader epoch only the high
    watermark (`committed_end`) is checked. Raise Unavailable or TimedOut.
    """
    now = info.partitions[key.partition]
    if at.leader_epoch and int(now.leader_epoch) == at.leader_epoch and int(now.committed_end or 0) >= at.offset:
        return at.offset
    if not at.leader_epoch:
        if int(now.committed_end or 0) >= at.offset:
            return at.offset
        found = client.offsets(info, LATEST, partition=key.partition, timeout=timeout_s)
        return min(at.offset, found.committed_end)
    return agreed_end(client, info, key.partition, at.offset, at.leader_epoch, timeout=timeout_s)


def check_held(
    client: Client,
    info: StreamInfo,
    key: Key,
    at: Position,
    timeout_s: float,
    *,
    where_it_is: str = "archived",
    instead: str = "archive it elsewhere",
) -> None:
    """Raise DataLossError if the log no longer holds the messages that were read below `at`."""
    end = held_end(client, info, key, at, timeout_s)
    if end < at.offset:
        where = f"stream {key.stream}, partition {key.partition}"
        text = f"{where}: messages {end} to {at.offset - 1} as they are {where_it_is} are not in the log any more"
        raise DataLossError(f"{text}: it was cut, or began anew; {instead}")


def checked_cluster(client: Client, known: str, what: str, instead: str, timeout_s: float) -> str:
    """Return the cluster id of the brokers. Raise DataLossError if it differs from `known`, the id recorded in `what`.

    An empty `known` (none was recorded) matches every cluster.
    """
    now = client.cluster_id(timeout=timeout_s)
    if are_different_clusters(known, now):
        text = f"{what} is of another cluster, {known}; these brokers are {now}, and have other messages"
        raise DataLossError(f"{text}: {instead}")
    return now
