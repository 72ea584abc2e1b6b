"""Messages between the brokers of one cluster, over the same frames as clients'.

Rules: every request with an effect carries the sender's incarnation (broker epoch): a broker that was fenced and does
not know it is refused. Requests that only the metadata leader can answer are refused elsewhere with
`not_metadata_leader`, which names the leader if it is known. All of these may be retried: the metadata leader compares
before it changes anything.

| request         | from → to                            | raw part of request and of response             |
|-----------------|--------------------------------------|-------------------------------------------------|
| heartbeat       | every broker → metadata leader       |                                                 |
| register broker | a starting broker → metadata leader  |                                                 |
| change isr      | a partition leader → metadata leader |                                                 |
| mark keys       | a partition leader → metadata leader |                                                 |
| add companion   | a partition leader → metadata leader |                                                 |
| message ids     | a partition leader → another one     |                                                 |
| stop broker     | a stopping broker → metadata leader  |                                                 |
| forward         | any broker → metadata leader         | a client's request; the answer to it, as bodies |
| join            | a new broker → any                   |                                                 |
| await stream    | metadata leader → every live broker  |                                                 |
| report API      | a broker → metadata leader           |                                                 |
| pass API calls  | any broker → the leader of a stream  | calls, as MessagePack                           |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.ids import LeaderEpoch, Offset
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
    """A broker, in that incarnation, from which the sender cannot fetch the partitions that it leads."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class ResignedLeadership(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the sender leads in that epoch and cannot serve: log failed, disk full, or no NATS.

    `is_whole`: the log is complete. `is_refused`: NATS refuses the sender's subscription.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    is_whole: bool = False
    is_refused: bool = False


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of the sender's log of a partition without a leader since that leader epoch; repeated until there is one.

    `last_epoch`: of its last batch, 0 without any. `has_failed`: the log cannot lead; with a `last_epoch` of 0 its end
    is unknown. `marks_epoch` and `marks_end`: the same of its log of marks, if there is one; `consumers_epoch` and
    `consumers_end`: of its log of consumers, 0 also if that cannot be read to its end.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    last_epoch: LeaderEpochField
    log_end: OffsetField
    has_failed: bool = False
    marks_epoch: LeaderEpochField = LeaderEpoch(0)
    marks_end: OffsetField = Offset(0)
    consumers_epoch: LeaderEpochField = LeaderEpoch(0)
    consumers_end: OffsetField = Offset(0)

    @property
    def is_unknown(self) -> bool:
        """True if the end of the log is unknown."""
        return self.has_failed and not self.last_epoch


class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """Heartbeat of a broker: the applied metadata index, unreachable leaders, resigned leaderships, NATS state.

    `log_ends`: for partitions in recovery. `has_keys`: encrypted streams can be placed here.
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
    """The metadata leader, its term, and the commit index of the metadata log."""

    metadata_leader: PeerIdField
    raft_term: Int64Field
    committed_index: Int64Field


class ApiFinding(StrEnum):
    """Answer to the question who else serves JetStream's API under a prefix."""

    UNKNOWN = "unknown"  # no answer, or no NATS
    NOBODY = "nobody"  # no responders, or a broker of this cluster
    ANOTHER = "another"  # another service


class ApiEvidence(msgspec.Struct, frozen=True, array_like=True):
    """The sender's finding under a prefix that it wants to serve.

    `since`: `ApiDecision.since` of the decision that it had applied when it asked; 0: none.
    """

    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.API_PREFIX_CHARS_MAX)]
    finding: ApiFinding
    since: Int64Field
    why: Annotated[str, msgspec.Meta(max_length=limits.API_WHY_CHARS_MAX)] = ""


class ReportApiRequest(Request, frozen=True, kw_only=True):
    """A broker reports under which prefixes it wants to serve JetStream's API, and what it found there."""

    broker_id: PeerIdField
    incarnation: IncarnationField
    prefixes: Annotated[tuple[ApiEvidence, ...], msgspec.Meta(max_length=limits.API_PREFIXES_PER_BROKER_MAX)] = ()


class ReportApiResponse(Response, frozen=True, kw_only=True):
    """The report counts."""


class RegisterBrokerRequest(Request, frozen=True, kw_only=True):
    """Register a started broker. `clean_stop`: nothing written was lost since the incarnation `run_before`.

    `process` is random for each start, so a retry has the same one. `runs` are the processes known to have run on this
    data directory, the present one last, an empty name as wildcard; empty: unknown. `log_index` is that of the last
    entry of its Raft log, and `raft_term` its term; both as of the process's start.
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
    log_index: Int64Field | None = None  # None: unknown
    raft_term: Int64Field = 0


class RegisterBrokerResponse(Response, frozen=True, kw_only=True):
    """The incarnation of this run, for all further requests."""

    incarnation: IncarnationField


class IsrMember(msgspec.Struct, frozen=True, array_like=True):
    """A replica that is to be in sync, and the incarnation of its broker."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class IsrChange(msgspec.Struct, frozen=True, array_like=True):
    """The ISR that a partition's leader wants instead of the one at `version`.

    `commits_resumed`: the leader commits again, so replicas that left the ISR may lack acked messages.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    version: Int64Field
    isr: Annotated[tuple[IsrMember, ...], msgspec.Meta(min_length=1, max_length=limits.REPLICAS_MAX)]
    commits_resumed: bool = False


class ChangeIsrRequest(Request, frozen=True, kw_only=True):
    """Compare-and-set of ISRs of partitions that the sender leads, each for itself."""

    broker_id: PeerIdField
    incarnation: IncarnationField
    changes: Annotated[tuple[IsrChange, ...], msgspec.Meta(min_length=1, max_length=limits.ISR_CHANGES_PER_COMMAND_MAX)]


class IsrResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one change: the partition's new version, or an error code with its text."""

    version: Int64Field = 0
    error: str = ""
    message: str = ""


class ChangeIsrResponse(Response, frozen=True, kw_only=True):
    """One result for each change, in their order."""

    results: tuple[IsrResult, ...]


class MarkKeysRequest(Request, frozen=True, kw_only=True):
    """The leader of a partition that keys left has committed all its messages of these keys, up to `end_offset`."""

    stream_id: StreamIdField
    partition: PartitionField
    partitions: Int32Field  # the number of partitions after the growth that moved the keys
    leader_epoch: LeaderEpochField
    end_offset: OffsetField
    marked_us: Int64Field  # the sender's clock now, or when it wrote its last message


class MarkKeysResponse(Response, frozen=True, kw_only=True):
    """The mark is in the metadata."""


class AddCompanionRequest(Request, frozen=True, kw_only=True):
    """Give each partition of a stream a companion log, unless it has one of that kind."""

    stream_id: StreamIdField
    kind: CompanionKind = CompanionKind.MARKS


class AddCompanionResponse(Response, frozen=True, kw_only=True):
    """The metadata says so; the sender's image shows it once its logs are to be opened."""


class RecordDeletionRequest(Request, frozen=True, kw_only=True):
    """Record for `__audit` which messages of a partition a user deletes, as its leader has found them.

    `ranges`: their offsets, half-open, the first ones only. `subject`, `keep`: of a purge.
    """

    stream_id: StreamIdField
    partition: PartitionField
    by: str
    messages: Int64Field
    ranges: Annotated[tuple[tuple[OffsetField, OffsetField], ...], msgspec.Meta(max_length=limits.AUDITED_RANGES_MAX)]
    subject: str = ""
    keep: Int64Field = 0
    is_secure: bool = False


class RecordDeletionResponse(Response, frozen=True, kw_only=True):
    """It is in the metadata."""


class PassApiCallsRequest(Request, frozen=True, kw_only=True):
    """Pass on requests to JetStream's API to the leader of their stream, which answers them over NATS.

    The raw part is a MessagePack list of calls: see `penstock.jetstream.api_call.ApiCall`.
    """


class PassApiCallsResponse(Response, frozen=True, kw_only=True):
    """The calls have arrived."""


class MessageIdsRequest(Request, frozen=True, kw_only=True):
    """Request the message ids in a partition's log, of messages below `end_offset` and not older than `since_us`.

    Its leader answers, for committed messages. `leader_epoch`: the epoch known to the sender; the leader's may be
    later.
    """

    stream_id: StreamIdField
    partition: PartitionField
    leader_epoch: LeaderEpochField
    since_us: TimestampField
    end_offset: OffsetField


class KnownId(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message with an id, and the key of that id; see `hot.message_ids`."""

    offset: OffsetField
    timestamp_us: TimestampField
    key: Annotated[bytes, msgspec.Meta(min_length=1, max_length=limits.MESSAGE_ID_KEY_BYTES_MAX)]


class MessageIdsResponse(Response, frozen=True, kw_only=True):
    """One page, newest first. `end_offset`: that of the next request; None: there is no more."""

    ids: Annotated[tuple[KnownId, ...], msgspec.Meta(max_length=limits.MESSAGE_IDS_PER_ANSWER_MAX)]
    end_offset: OffsetField | None = None


class StopBrokerRequest(Request, frozen=True, kw_only=True):
    """The sender stops: move its leaderships."""

    broker_id: PeerIdField
    incarnation: IncarnationField


class StopBrokerResponse(Response, frozen=True, kw_only=True):
    """Its leaderships have moved where possible; the sender is no longer registered."""


class ForwardRequest(Request, frozen=True, kw_only=True):
    """Forward a client's request (create, alter, delete …) to the metadata leader; its body is the raw part."""

    api: Int32Field
    version: Int32Field
    user: str = ""  # the calling user if authentication is on; "$broker": the sender itself
    user_index: Int64Field = 0  # the index of the user's creation


class ForwardResponse(Response, frozen=True, kw_only=True):
    """The raw part is the body of the response or error."""


class JoinRequest(Request, frozen=True, kw_only=True):
    """A broker with an empty data directory asks to join the cluster."""

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
    """The cluster that the broker has joined, and its members."""

    cluster_id: NameField
    members: tuple[ClusterMember, ...]


class AwaitStreamRequest(Request, frozen=True, kw_only=True):
    """Wait until the receiver knows this stream, and NATS has confirmed the subscriptions that it has for it."""

    stream_id: StreamIdField
    timeout_ms: Int64Field
    intake_us: Int64Field = 0  # and this change of its intake, or a later one
    partitions: Int32Field = 0  # and at least that many partitions


class AwaitStreamResponse(Response, frozen=True, kw_only=True):
    """Messages published from now on reach the partitions that the answering broker leads."""
