"""What replicas tell each other: those of a partition, and those of the metadata.

Rules: one connection per pair of brokers and direction; its first request after hello is a peer hello, so that a broker
of another cluster, or one that took another's address, is refused before it is believed. A fetch session lives on that
connection: TCP keeps the order of what it says. A later session of the same run has a higher number, so a fetch that
comes late on a broken connection is told apart.

| request          | asked by → of                         | raw part of request and of response                   |
|------------------|----------------------------------------|--------------------------------------------------------|
| peer hello       | whoever connects → who is connected to |                                                        |
| raft             | any → any                              | request: one encoded Raft message                      |
| replica fetch    | follower's broker → leader's broker    | answer: for each news its batches, back to back         |
| replica progress | the same                               |                                                        |
| replica range    | a broker whose log is damaged → any other replica's | answer: batches, back to back             |

**A fetch session.** `is_first` begins one. A follower names a partition by its position; the leader remembers it, and
answers it once: with batches, with a divergence, with where to begin anew, or with an error. After that, nothing but
news of `committed_end` and `log_start` until the partition is named again. So whoever wants no more for now (its disk
is slow, its budget is used up) just does not name it. Whose log takes nothing, because its disk is full or has failed,
says so (`impeded`), and is not in sync until the partition is named without that. A request names at most
REPLICA_POSITIONS_MAX partitions: a position takes up to 44 bytes, so that many fit a request's body. A follower names
REPLICA_NAMED_AT_ONCE of them at most, and the others in the requests that follow, with `wait_ms_max` = 0 until all are
named: so the leader's loop is never held up for long.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.messages.fields import (
    IncarnationField,
    Int64Field,
    LeaderEpochField,
    NameField,
    OffsetField,
    PartitionField,
    PeerIdField,
    ProcessField,
    Request,
    Response,
    StreamIdField,
)

ClusterIdField = Annotated[str, msgspec.Meta(max_length=128)]
DataDirIdField = Annotated[str, msgspec.Meta(max_length=128)]


class PeerHelloRequest(Request, frozen=True, kw_only=True):
    """I am a broker of this cluster, on this disk. Before it has a name, or I know it, `cluster_id` is empty.

    `address` is where I am reached: whoever was away when I moved knows only where I was.
    """

    cluster_id: ClusterIdField
    broker_id: PeerIdField
    data_dir_id: NameField
    broker_version: NameField
    address: Annotated[str, msgspec.Meta(max_length=261)] = ""  # HOST:PORT
    process: ProcessField = ""  # random for each start


class PeerHelloResponse(Response, frozen=True, kw_only=True):
    """So am I."""

    cluster_id: ClusterIdField
    broker_id: PeerIdField
    data_dir_id: NameField
    broker_version: NameField


class RaftRequest(Request, frozen=True, kw_only=True):
    """Take this Raft message, which is the raw part.

    It is dropped if the sender is registered with another data directory, or means another one of the receiver: who
    returns with an empty disk could else vote a second time. The same holds for its process while another one of it is
    heard of, for an answer to another process than the receiver, and for a sender whose data directory is an older
    copy: until it is registered it says which processes have run on that, and where its log ended when it was started
    (as in `RegisterBrokerRequest`). An older copy is refused, with cluster_mismatch, so that it hears of it.
    """

    data_dir_id: NameField
    to_data_dir_id: DataDirIdField = ""  # empty: the sender does not know it
    process: ProcessField = ""
    to_process: ProcessField = ""  # of an answer: who has asked; empty: not known
    runs: Annotated[tuple[ProcessField, ...], msgspec.Meta(max_length=limits.RUNS_MAX)] = ()
    log_index: Int64Field | None = None
    raft_term: Int64Field = 0


class RaftResponse(Response, frozen=True, kw_only=True):
    """It was taken. What comes of it is a Raft message of its own."""


class FetchPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Up to where a follower has a partition. `last_epoch` is that of its last batch, 0 if it has none."""

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    log_end: OffsetField
    flushed_end: OffsetField
    last_epoch: LeaderEpochField


class PartitionName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition."""

    stream_id: StreamIdField
    partition: PartitionField


class ReplicaFetchRequest(Request, frozen=True, kw_only=True):
    """What is new for these partitions, and for those named before? Answered when there is any, or after `wait_ms_max`.

    At least one batch comes, also if it is larger than `bytes_max`.
    """

    broker_id: PeerIdField
    incarnation: IncarnationField
    session: Int64Field  # rises with each session of an incarnation
    is_first: bool = False  # of its session: all that was named before is forgotten
    changed: Annotated[tuple[FetchPosition, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    forgotten: Annotated[tuple[PartitionName, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    impeded: Annotated[tuple[PartitionName, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    bytes_max: Int64Field = limits.REPLICA_FETCH_BYTES
    wait_ms_max: Int64Field = 0


class Divergence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The largest epoch that the leader has of those up to the follower's last one, and where it ends there."""

    leader_epoch: LeaderEpochField
    end_offset: OffsetField


class ReplicaNews(msgspec.Struct, frozen=True, array_like=True):
    """What is new of one partition; `size_bytes` of the raw part are its batches.

    `error` is an `ErrorCode`, or a newer one; then nothing else is said. Where the logs diverge, only `log_start` is.
    `committed_end` may lie beyond what the follower has: it takes no more of it than that. `replica_start` is said to
    a follower that lacks what the leader has removed: where it begins anew, which is the base of the batch that holds
    `log_start`. 0: it need not. `is_settled`: no leader before has committed more than `committed_end`.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    committed_end: OffsetField = 0  # type: ignore[assignment]
    log_start: OffsetField = 0  # type: ignore[assignment]
    size_bytes: Int64Field = 0
    diverging: Divergence | None = None
    error: str = ""
    replica_start: OffsetField = 0  # type: ignore[assignment]
    is_settled: bool = False


class ReplicaFetchResponse(Response, frozen=True, kw_only=True):
    """Only partitions of which there is news, in the order of their batches in the raw part.

    `has_nats`: the leader is connected to NATS, and so listens where that is not refused.

    `held_us`: so long before this answer the fetch was there. `is_all`: all is told that was news at that moment of
    `committed_end`, and of what is not answered for any more; of what was named, and is not among `partitions`, nothing
    has changed. `confirmed_us`: so long before, the metadata leader was asked last whether this run of this broker goes
    on, of what it had decided by then all is known here, and it leads what it answers for. None: it does not say.
    """

    partitions: tuple[ReplicaNews, ...] = ()
    has_nats: bool = True
    held_us: Int64Field = 0
    is_all: bool = False
    confirmed_us: Int64Field | None = None


class FlushedEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Up to where a follower has a partition on its disk."""

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    flushed_end: OffsetField


class ReplicaProgressRequest(Request, frozen=True, kw_only=True):
    """What has come to the disk since the fetch that waits was asked; where commits depend on it."""

    broker_id: PeerIdField
    incarnation: IncarnationField
    session: Int64Field
    flushed: Annotated[tuple[FlushedEnd, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)]


class ReplicaProgressResponse(Response, frozen=True, kw_only=True):
    """It was taken."""


class ReplicaRangeRequest(Request, frozen=True, kw_only=True):
    """Which batches does your replica have from `offset` up to `end`? My own are damaged there.

    Who leads in `leader_epoch` gives what it has, anybody else what is committed. At least one batch comes, if there is
    any, also if it is larger than `bytes_max`. Refused as a fetch of a consumer.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    offset: OffsetField
    end: OffsetField
    bytes_max: Int64Field = limits.REPLICA_FETCH_BYTES


class ReplicaRangeResponse(Response, frozen=True, kw_only=True):
    """They are the raw part, verified as they were read; none: nothing is there. `leads`: in that epoch."""

    leads: bool
