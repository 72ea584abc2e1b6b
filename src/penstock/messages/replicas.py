"""Messages between replicas: of a partition, and of the metadata.

Rules: one connection per pair of brokers and direction; its first request after hello is a peer hello, so that a broker
of another cluster, or one that took over another's address, is refused first. A fetch session lives on that connection:
TCP keeps its order. A later session of the same incarnation has a higher number, so a fetch that comes late from a
broken connection is detected.

| request          | from → to                              | raw part of request and of response                   |
|------------------|----------------------------------------|--------------------------------------------------------|
| peer hello       | client side → server side of a connection |                                                     |
| raft             | any → any                              | request: one encoded Raft message                      |
| replica fetch    | follower's broker → leader's broker    | answer: for each news its batches, back to back         |
| replica progress | the same                               |                                                        |
| lease            | a leader's broker → any broker that may lead next |                                             |
| replica range    | a broker with a corrupt log → any other replica's | answer: batches, back to back               |

**A fetch session.** `is_first` begins one. A follower names a partition by its position; the leader remembers it, and
answers it once: with batches, with a divergence, with a new start offset, or with an error. After that the leader sends
only news of `committed_end` and `log_start` until the partition is named again. So a follower that wants no more for
now (slow disk, used-up budget) does not name it. A follower whose log accepts nothing, because its disk is full or has
failed, says so (`impeded`), and is out of sync until it names the partition without that. A request names at most
REPLICA_POSITIONS_MAX partitions: a position takes up to 44 bytes, so that many fit a request's body. A follower names
at most REPLICA_NAMED_AT_ONCE of them, and the others in the requests that follow, with `wait_ms_max` = 0 until all are
named: so the leader's event loop is never held up for long.
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
    """Identifies a broker, its cluster and its disk. `cluster_id` is empty while it is unset, or unknown to the sender.

    `address` is the sender's: a broker that was away when the sender moved knows only the old one.
    """

    cluster_id: ClusterIdField
    broker_id: PeerIdField
    data_dir_id: NameField
    broker_version: NameField
    address: Annotated[str, msgspec.Meta(max_length=261)] = ""  # HOST:PORT
    process: ProcessField = ""  # random for each start


class PeerHelloResponse(Response, frozen=True, kw_only=True):
    """The receiver's identity."""

    cluster_id: ClusterIdField
    broker_id: PeerIdField
    data_dir_id: NameField
    broker_version: NameField


class RaftRequest(Request, frozen=True, kw_only=True):
    """Deliver a Raft message, which is the raw part.

    It is dropped if the sender is registered with another data directory, or means another one of the receiver: a
    broker that returns with an empty disk could otherwise vote twice. The same holds while another process of the
    sender is heard of, for a response to another process than the receiver, and for a sender whose data directory is an
    older copy: until it is registered it sends the processes that have run on it, and the end of its log when it was
    started (as in `RegisterBrokerRequest`). An older copy is refused with cluster_mismatch, to inform it.
    """

    data_dir_id: NameField
    to_data_dir_id: DataDirIdField = ""  # empty: unknown to the sender
    process: ProcessField = ""
    to_process: ProcessField = ""  # of a response: the requesting process; empty: unknown
    runs: Annotated[tuple[ProcessField, ...], msgspec.Meta(max_length=limits.RUNS_MAX)] = ()
    log_index: Int64Field | None = None
    raft_term: Int64Field = 0


class RaftResponse(Response, frozen=True, kw_only=True):
    """The message was taken. Its result is a Raft message of its own."""


class FetchPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A follower's position in a partition. `last_epoch` is that of its last batch, 0 without any."""

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
    """Fetch news for these partitions and for those named before; answered when there are any, or after `wait_ms_max`.

    At least one batch comes, even if it is larger than `bytes_max`.
    """

    broker_id: PeerIdField
    incarnation: IncarnationField
    session: Int64Field  # rises with each session of an incarnation
    is_first: bool = False  # of its session: all earlier positions are forgotten
    changed: Annotated[tuple[FetchPosition, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    forgotten: Annotated[tuple[PartitionName, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    impeded: Annotated[tuple[PartitionName, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)] = ()
    bytes_max: Int64Field = limits.REPLICA_FETCH_BYTES
    wait_ms_max: Int64Field = 0


class Divergence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The leader's largest epoch up to the follower's last one, and its end offset."""

    leader_epoch: LeaderEpochField
    end_offset: OffsetField


class ReplicaNews(msgspec.Struct, frozen=True, array_like=True):
    """News of one partition; its batches are `size_bytes` of the raw part.

    `error` is an `ErrorCode`, or a newer one; then no other field is set. If the logs diverge, only `log_start` is.
    `committed_end` may lie beyond the follower's log end, which then bounds it. `replica_start` is for a follower that
    lacks batches that the leader has removed: it starts over there, at the base of the batch that holds `log_start`; 0:
    it need not. `is_settled`: no earlier leader committed more than `committed_end`. `image_index`: a follower whose
    metadata ends before that command does not know which of these rows to show.
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
    image_index: Int64Field = 0


class ReplicaFetchResponse(Response, frozen=True, kw_only=True):
    """Partitions with news, in the order of their batches in the raw part.

    `has_nats`: the leader is connected to NATS, and so subscribed where that is not refused.

    `held_us`: how long the fetch waited here. `is_all`: the answer has all news of that moment about `committed_end`
    and about partitions no longer answered for; named partitions that are not in `partitions` are unchanged.
    `confirmed_us`: time since the answering broker last asked the metadata leader to confirm its incarnation; it has
    applied everything decided by then, and leads what it answers for. None: not reported.
    """

    partitions: tuple[ReplicaNews, ...] = ()
    has_nats: bool = True
    held_us: Int64Field = 0
    is_all: bool = False
    confirmed_us: Int64Field | None = None


class FlushedEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A follower's flushed end of a partition."""

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    flushed_end: OffsetField


class ReplicaProgressRequest(Request, frozen=True, kw_only=True):
    """Report flushed ends beside the waiting fetch, where commits depend on them."""

    broker_id: PeerIdField
    incarnation: IncarnationField
    session: Int64Field
    flushed: Annotated[tuple[FlushedEnd, ...], msgspec.Meta(max_length=limits.REPLICA_POSITIONS_MAX)]


class ReplicaProgressResponse(Response, frozen=True, kw_only=True):
    """The report was taken."""


class ReplicaRangeRequest(Request, frozen=True, kw_only=True):
    """Request another replica's batches from `offset` up to `end`, to repair corruption.

    The leader of `leader_epoch` sends all it has, other replicas only committed batches. At least one batch comes, if
    there is any, even if it is larger than `bytes_max`. Refused like a consumer's fetch.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    offset: OffsetField
    end: OffsetField
    bytes_max: Int64Field = limits.REPLICA_FETCH_BYTES


class ReplicaRangeResponse(Response, frozen=True, kw_only=True):
    """The raw part has the verified batches; empty: there are none. `leads`: in that epoch."""

    leads: bool


class LeaseRequest(Request, frozen=True, kw_only=True):
    """Ask for a promise: leaderships that begin at the receiver later commit nothing for a moment.

    Meanwhile the sender answers look-ups; see `replication.lease`.
    """

    broker_id: PeerIdField
    incarnation: IncarnationField


class LeaseResponse(Response, frozen=True, kw_only=True):
    """The promise: for `lease_us` from now on, of leaderships that begin by metadata behind `index`."""

    lease_us: Int64Field
    index: Int64Field
