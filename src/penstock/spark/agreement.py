"""Whether a log still holds what was read of it, up to a place that was kept.

Theory: an offset names a message only together with a leader epoch. A log that was cut (power loss, an unclean
election) or began anew (a memory stream) has other messages at the same offsets once it has been written on. Its leader
knows where each epoch ended, and says up to where a reader agrees (`penstock.node.divergence`). Streams' ids, epochs
and offsets mean something within one cluster only: in another one, or in one whose disks were emptied, they come again.
"""

from __future__ import annotations

from penstock.base.ids import are_different_clusters
from penstock.client.blocking import Client
from penstock.client.ranges import agreed_end
from penstock.client.values import LATEST
from penstock.messages import StreamInfo
from penstock.spark.places import Key, Position
from penstock.spark.planning import DataLossError


def held_end(client: Client, info: StreamInfo, key: Key, at: Position, timeout_s: float) -> int:
    """Up to where the log holds what it held when `at` was told: at most its offset. Asks only if the leader changed.

    `info` is of now. Without an epoch nothing is known but where the log ends. Unavailable, TimedOut.
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
    """DataLossError: the log does not hold any more what was taken of it up to there."""
    end = held_end(client, info, key, at, timeout_s)
    if end < at.offset:
        where = f"stream {key.stream}, partition {key.partition}"
        text = f"{where}: messages {end} to {at.offset - 1} as they are {where_it_is} are not in the log any more"
        raise DataLossError(f"{text}: it was cut, or began anew; {instead}")


def checked_cluster(client: Client, known: str, what: str, instead: str, timeout_s: float) -> str:
    """The id of the cluster. DataLossError: `what` was noted in another one; `known` is empty if it does not say."""
    now = client.cluster_id(timeout=timeout_s)
    if are_different_clusters(known, now):
        text = f"{what} is of another cluster, {known}; these brokers are {now}, and have other messages"
        raise DataLossError(f"{text}: {instead}")
    return now
