"""What the brokers of one cluster tell each other, over the same frames as clients.

Rules: every request of a broker that something may depend on names the run of it that asks, its incarnation: a broker
that was taken for dead and does not know it is refused. What only the metadata leader can answer is refused elsewhere
with `not_metadata_leader`, which names the leader if it is known. All of these may be asked again: the metadata leader
compares before it changes anything.

| request         | asked by → of                              | raw part of request and of response         |
|-----------------|--------------------------------------------|---------------------------------------------|
| heartbeat       | every broker → metadata leader             |                                             |
| register broker | a broker that starts → metadata leader     |                                             |
| change isr      | a broker that leads → metadata leader      |                                             |
| mark keys       | a broker that leads → metadata leader      |                                             |
| message ids     | a broker that leads → another one          |                                             |
| stop broker     | a broker that is to stop → metadata leader |                                             |
| forward         | any broker → metadata leader               | a client's request; the answer to it, as bodies |
| join            | a broker that is new → any                 |                                             |
| await stream    | metadata leader → every live broker        |                                             |
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.messages.fields import (
    AddressField,
    IncarnationField,
    Int32Field,
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
    TimestampField,
)


class UnreachableLeader(msgspec.Struct, frozen=True, array_like=True):
    """A broker from which this one cannot fetch what it leads; of that run of it only."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class ResignedLeadership(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the sender leads in that epoch and cannot serve: its log has failed, its disk is full, or NATS
    is not there for it.

    `is_whole`: the log has all that it had. `is_refused`: NATS refuses the sender's subscription.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    is_whole: bool = False
    is_refused: bool = False


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """Where the sender's log of a partition ends that nobody leads since that leader epoch, until somebody does.

    `last_epoch`: of its newest batch, 0 if it never had one. `has_failed`: the log cannot lead; with a `last_epoch` of
    0 it is not known where it ends.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    last_epoch: LeaderEpochField
    log_end: OffsetField
    has_failed: bool = False


class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """I am there, and have applied the metadata log up to `applied_index`; what I can reach no more, NATS among it.

    `log_ends`: of partitions that the longest log is to lead. `has_keys`: encrypted streams can be placed here.
    """

    broker_id: PeerIdField
    incarnation: IncarnationField
    applied_index: Int64Field
    unreachable: Annotated[tuple[UnreachableLeader, ...], msgspec.Meta(max_length=limits.BROKERS_MAX)] = ()
    resigned: Annotated[tuple[ResignedLeadership, ...], msgspec.Meta(max_length=limits.ELECTIONS_PER_COMMAND_MAX)] = ()
    has_nats: bool = True
    log_ends: Annotated[tuple[LogEnd, ...], msgspec.Meta(max_length=limits.LOG_ENDS_PER_HEARTBEAT_MAX)] = ()
    has_keys: bool = False


class HeartbeatResponse(Response, frozen=True, kw_only=True):
    """Who answers, in which term, and up to where the metadata log is committed."""

    metadata_leader: PeerIdField
    raft_term: Int64Field
    committed_index: Int64Field


class RegisterBrokerRequest(Request, frozen=True, kw_only=True):
    """A broker has started. `clean_stop`: nothing that it had written can be lost since the run `run_before`.

    `process` is random for each start: the same one asks again where an answer is lost. `runs` are the processes that
    are known to have run on this data directory, the present one last, an empty name for any that may have; none: not
    known. `log_index` is that of the last entry of its Raft log, and `raft_term` the term that it was in; both as they
    were when the process was started.
    """

    broker_id: PeerIdField
    data_dir_id: NameField
    address: AddressField  # HOST:PORT of its socket API
    rack: NameField | None = None
    broker_version: NameField
    clean_stop: bool
    run_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    process: ProcessField = ""
    runs: Annotated[tuple[ProcessField, ...], msgspec.Meta(max_length=limits.RUNS_MAX)] = ()
    log_index: Int64Field | None = None  # None: not known
    raft_term: Int64Field = 0


class RegisterBrokerResponse(Response, frozen=True, kw_only=True):
    """The number of this run, for every further request."""

    incarnation: IncarnationField


class IsrMember(msgspec.Struct, frozen=True, array_like=True):
    """A replica that is to be in sync, and the run of its broker in which it is."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """The ISR that a partition's leader wants instead of the one at `version`.

    `commits_resumed`: the leader commits again, so that replicas which left the ISR may lack what is acked.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    version: Int64Field
    isr: Annotated[tuple[IsrMember, ...], msgspec.Meta(min_length=1, max_length=limits.REPLICAS_MAX)]
    commits_resumed: bool = False


class ChangeIsrRequest(Request, frozen=True, kw_only=True):
    """Compare-and-set of the ISRs of partitions that the sender leads; each for itself."""

    broker_id: PeerIdField
    incarnation: IncarnationField
    changes: Annotated[tuple[IsrChange, ...], msgspec.Meta(min_length=1, max_length=limits.ISR_CHANGES_PER_COMMAND_MAX)]


class IsrResult(msgspec.Struct, frozen=True, array_like=True):
    """What one change came to: the partition's new version, or an error code and what it means."""

    version: Int64Field = 0
    error: str = ""
    message: str = ""


class ChangeIsrResponse(Response, frozen=True, kw_only=True):
    """One result for each change, in their order."""

    results: tuple[IsrResult, ...]


class MarkKeysRequest(Request, frozen=True, kw_only=True):
    """The leader of a partition that keys left for others has committed all it has of them: that ends there."""

    stream_id: StreamIdField
    partition: PartitionField
    partitions: Int32Field  # how many there were once the others were added
    leader_epoch: LeaderEpochField
    end_offset: OffsetField
    marked_us: Int64Field  # now, by the sender's clock, or when it wrote its last message


class MarkKeysResponse(Response, frozen=True, kw_only=True):
    """It is part of what the cluster agreed on."""


class MessageIdsRequest(Request, frozen=True, kw_only=True):
    """Which message ids does the partition's log hold, of messages below `end_offset` and no older than `since_us`?

    Its leader answers, of what is committed. `leader_epoch`: in which the sender knows it to lead, or a later one.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    since_us: TimestampField
    end_offset: OffsetField


class KnownId(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that has an id, and what the id is known by; see `hot.message_ids`."""

    offset: OffsetField
    timestamp_us: TimestampField
    key: Annotated[bytes, msgspec.Meta(min_length=1, max_length=limits.MESSAGE_ID_KEY_BYTES_MAX)]


class MessageIdsResponse(Response, frozen=True, kw_only=True):
    """One page, the newest first. `end_offset`: what to ask for the next one with; None: there is no more."""

    ids: Annotated[tuple[KnownId, ...], msgspec.Meta(max_length=limits.MESSAGE_IDS_PER_ANSWER_MAX)]
    end_offset: OffsetField | None = None


class StopBrokerRequest(Request, frozen=True, kw_only=True):
    """The sender stops: let others lead what it leads."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class StopBrokerResponse(Response, frozen=True, kw_only=True):
    """Leaderships have moved where another replica may lead; the sender is not part of the cluster now."""


class ForwardRequest(Request, frozen=True, kw_only=True):
    """A client's request to create, alter or delete, for the metadata leader; its body is the raw part."""

    api: Int32Field
    version: Int32Field
    user: str = ""  # who asks, where somebody had to log in; "$broker": the sender itself
    user_index: Int64Field = 0  # of the user


class ForwardResponse(Response, frozen=True, kw_only=True):
    """The raw part is the body of the response, whether it is an answer or an error."""


class JoinRequest(Request, frozen=True, kw_only=True):
    """A broker with an empty data directory asks to be part of the cluster."""

    broker_id: PeerIdField
    data_dir_id: NameField
    address: AddressField
    broker_version: NameField


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the metadata's Raft group."""

    broker_id: PeerIdField
    address: AddressField
    is_voter: bool


class JoinResponse(Response, frozen=True, kw_only=True):
    """The cluster that the broker now belongs to, and who is in it."""

    cluster_id: NameField
    members: tuple[ClusterMember, ...]


class AwaitStreamRequest(Request, frozen=True, kw_only=True):
    """Answer once you know this stream, and NATS has confirmed your subscriptions to what you lead of it."""

    stream_id: StreamIdField
    timeout_ms: Int64Field
    intake_us: Int64Field = 0  # and have heard of this change of its intake, or a later one
    partitions: Int32Field = 0  # and that it has so many, at least


class AwaitStreamResponse(Response, frozen=True, kw_only=True):
    """What is published from now on reaches the partitions that the sender leads."""
