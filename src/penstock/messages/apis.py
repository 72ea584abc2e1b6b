"""API table: number → request → response → versions.

Numbers are never reused. Hello stays at version 1 for ever, so that any two versions can negotiate. `repeatable`: a
client that lost the answer may retry without a second effect. `quota`: the user's rate that its bytes count for.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from penstock.messages.access import (
    AlterUserRequest,
    AlterUserResponse,
    AuthenticateRequest,
    AuthenticateResponse,
    AwaitMetadataRequest,
    AwaitMetadataResponse,
    ChangeRulesRequest,
    ChangeRulesResponse,
    CreateUserRequest,
    CreateUserResponse,
    DeleteUserRequest,
    DeleteUserResponse,
    ExportUsersRequest,
    ExportUsersResponse,
    ListUsersRequest,
    ListUsersResponse,
    TestAccessRequest,
    TestAccessResponse,
)
from penstock.messages.cluster import (
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    TakeApiRequest,
    TakeApiResponse,
)
from penstock.messages.consumers import AskConsumersRequest, AskConsumersResponse
from penstock.messages.dead_letters import StoreLetterRequest, StoreLetterResponse
from penstock.messages.deleting import (
    AwaitErasureRequest,
    AwaitErasureResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ErasedRequest,
    ErasedResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
)
from penstock.messages.fields import Request, Response
from penstock.messages.groups import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
)
from penstock.messages.peers import (
    AddCompanionRequest,
    AddCompanionResponse,
    AwaitStreamRequest,
    AwaitStreamResponse,
    ChangeIsrRequest,
    ChangeIsrResponse,
    ForwardRequest,
    ForwardResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    MarkKeysRequest,
    MarkKeysResponse,
    MessageIdsRequest,
    MessageIdsResponse,
    PassApiCallsRequest,
    PassApiCallsResponse,
    RecordDeletionRequest,
    RecordDeletionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportApiRequest,
    ReportApiResponse,
    StopBrokerRequest,
    StopBrokerResponse,
)
from penstock.messages.records import (
    AppendAtRequest,
    AppendAtResponse,
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    FindMessagesRequest,
    FindMessagesResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListProducersRequest,
    ListProducersResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
)
from penstock.messages.replicas import (
    LeaseRequest,
    LeaseResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
    ReplicaRangeRequest,
    ReplicaRangeResponse,
)
from penstock.messages.schemas import (
    ForgetSchemasRequest,
    ForgetSchemasResponse,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.messages.session import ApiVersions, HelloRequest, HelloResponse, StatusRequest, StatusResponse
from penstock.messages.staging import (
    ListPublishedRequest,
    ListPublishedResponse,
    PublishStagedRequest,
    PublishStagedResponse,
    StagedStreamRequest,
    StagedStreamResponse,
    StageRequest,
    StageResponse,
)
from penstock.messages.streams import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    FindStreamsRequest,
    FindStreamsResponse,
    MetadataRequest,
    MetadataResponse,
    ReportArchivedRequest,
    ReportArchivedResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.messages.verifying import VerifyRequest, VerifyResponse


class Api(IntEnum):
    """The number of a request in its frame."""

    HELLO = 1
    METADATA = 2
    CREATE_STREAM = 3
    ALTER_STREAM = 4
    DELETE_STREAM = 5
    FIND_STREAMS = 6
    FETCH = 7
    GET = 8
    LIST_OFFSETS = 9
    APPEND = 10
    STATUS = 11
    TRUNCATE = 12
    SET_INTAKE = 13
    APPEND_ONCE = 14
    LIST_PRODUCERS = 15
    REPORT_ARCHIVED = 16
    VERIFY = 18
    OFFSETS_STREAM = 20
    COMMIT_OFFSETS = 21
    FETCH_OFFSETS = 22
    LIST_GROUPS = 23
    GROUP_HEARTBEAT = 24
    STAGED_STREAM = 25
    STAGE = 26
    PUBLISH_STAGED = 27
    LIST_PUBLISHED = 28
    AUTHENTICATE = 29
    LIST_USERS = 30
    CREATE_USER = 31
    ALTER_USER = 32
    DELETE_USER = 33
    CHANGE_RULES = 34
    TEST_ACCESS = 35
    APPEND_AT = 36
    EXPORT_USERS = 37
    SCHEMAS_STREAM = 38
    REGISTER_SCHEMAS = 39
    LIST_SCHEMAS = 40
    GET_SCHEMA_TEXT = 41
    FORGET_SCHEMAS = 42
    RAISE_FEATURE_LEVEL = 43
    DELETE_MESSAGES = 44
    PURGE_SUBJECT = 45
    AWAIT_ERASURE = 46
    LIST_SUBJECTS = 48
    FIND_MESSAGES = 49
    TAKE_API = 50
    ASK_CONSUMERS = 51
    # Between the brokers of a cluster:
    PEER_HELLO = 64
    RAFT = 65
    REPLICA_FETCH = 66
    REPLICA_PROGRESS = 67
    HEARTBEAT = 68
    REGISTER_BROKER = 69
    CHANGE_ISR = 70
    STOP_BROKER = 71
    FORWARD = 72
    JOIN = 73
    AWAIT_STREAM = 74
    REPLICA_RANGE = 75
    MARK_KEYS = 76
    MESSAGE_IDS = 77
    AWAIT_METADATA = 78
    ADD_COMPANION = 79
    ERASED = 80
    RECORD_DELETION = 81
    PASS_API_CALLS = 82
    LEASE = 83
    REPORT_API = 84
    STORE_LETTER = 85


class QuotaKind(Enum):
    """Kind of traffic of a user that is limited."""

    APPEND = "append"
    FETCH = "fetch"


class Target(Enum):
    """The broker that a client asks."""

    ANY = "any"
    LEADER = "leader"  # of the partition that the request names


class ApiSpec(NamedTuple):
    """One row of the table; the version range includes both ends."""

    api: Api
    request: type[Request]
    response: type[Response]
    version_min: int
    version_max: int
    repeatable: bool
    target: Target = Target.ANY
    quota: QuotaKind | None = None


_TABLE = (
    ApiSpec(Api.HELLO, HelloRequest, HelloResponse, 1, 1, True),
    ApiSpec(Api.METADATA, MetadataRequest, MetadataResponse, 1, 1, True),
    ApiSpec(Api.CREATE_STREAM, CreateStreamRequest, CreateStreamResponse, 1, 3, True),
    ApiSpec(Api.ALTER_STREAM, AlterStreamRequest, AlterStreamResponse, 1, 3, True),
    ApiSpec(Api.DELETE_STREAM, DeleteStreamRequest, DeleteStreamResponse, 1, 2, True),
    ApiSpec(Api.FIND_STREAMS, FindStreamsRequest, FindStreamsResponse, 1, 1, True),
    ApiSpec(Api.FETCH, FetchRequest, FetchResponse, 1, 3, True, Target.LEADER, QuotaKind.FETCH),
    ApiSpec(Api.GET, GetRequest, GetResponse, 1, 1, True, Target.LEADER, QuotaKind.FETCH),
    ApiSpec(Api.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.APPEND, AppendRequest, AppendResponse, 1, 1, False, Target.LEADER, QuotaKind.APPEND),
    ApiSpec(Api.STATUS, StatusRequest, StatusResponse, 1, 1, True),
    ApiSpec(Api.TRUNCATE, TruncateRequest, TruncateResponse, 1, 2, True, Target.LEADER),
    ApiSpec(Api.SET_INTAKE, SetIntakeRequest, SetIntakeResponse, 1, 1, True),
    ApiSpec(Api.APPEND_ONCE, AppendOnceRequest, AppendOnceResponse, 1, 1, True, Target.LEADER, QuotaKind.APPEND),
    ApiSpec(Api.LIST_PRODUCERS, ListProducersRequest, ListProducersResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.REPORT_ARCHIVED, ReportArchivedRequest, ReportArchivedResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.VERIFY, VerifyRequest, VerifyResponse, 1, 1, True),
    ApiSpec(Api.OFFSETS_STREAM, OffsetsStreamRequest, OffsetsStreamResponse, 1, 1, True),
    ApiSpec(Api.COMMIT_OFFSETS, CommitOffsetsRequest, CommitOffsetsResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.FETCH_OFFSETS, FetchOffsetsRequest, FetchOffsetsResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.LIST_GROUPS, ListGroupsRequest, ListGroupsResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.GROUP_HEARTBEAT, GroupHeartbeatRequest, GroupHeartbeatResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.STAGED_STREAM, StagedStreamRequest, StagedStreamResponse, 1, 1, True),
    ApiSpec(Api.STAGE, StageRequest, StageResponse, 1, 1, True, Target.LEADER, QuotaKind.APPEND),
    ApiSpec(Api.PUBLISH_STAGED, PublishStagedRequest, PublishStagedResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.LIST_PUBLISHED, ListPublishedRequest, ListPublishedResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, 1, 1, False),
    ApiSpec(Api.LIST_USERS, ListUsersRequest, ListUsersResponse, 1, 1, True),
    ApiSpec(Api.CREATE_USER, CreateUserRequest, CreateUserResponse, 1, 1, True),
    ApiSpec(Api.ALTER_USER, AlterUserRequest, AlterUserResponse, 1, 1, True),
    ApiSpec(Api.DELETE_USER, DeleteUserRequest, DeleteUserResponse, 1, 1, True),
    ApiSpec(Api.CHANGE_RULES, ChangeRulesRequest, ChangeRulesResponse, 1, 1, True),
    ApiSpec(Api.TEST_ACCESS, TestAccessRequest, TestAccessResponse, 1, 1, True),
    ApiSpec(Api.APPEND_AT, AppendAtRequest, AppendAtResponse, 1, 2, True, Target.LEADER, QuotaKind.APPEND),
    ApiSpec(Api.EXPORT_USERS, ExportUsersRequest, ExportUsersResponse, 1, 1, True),
    ApiSpec(Api.SCHEMAS_STREAM, SchemasStreamRequest, SchemasStreamResponse, 1, 1, True),
    ApiSpec(Api.REGISTER_SCHEMAS, RegisterSchemasRequest, RegisterSchemasResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.LIST_SCHEMAS, ListSchemasRequest, ListSchemasResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.GET_SCHEMA_TEXT, GetSchemaTextRequest, GetSchemaTextResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.FORGET_SCHEMAS, ForgetSchemasRequest, ForgetSchemasResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.RAISE_FEATURE_LEVEL, RaiseFeatureLevelRequest, RaiseFeatureLevelResponse, 1, 1, True),
    ApiSpec(Api.DELETE_MESSAGES, DeleteMessagesRequest, DeleteMessagesResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.PURGE_SUBJECT, PurgeSubjectRequest, PurgeSubjectResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.AWAIT_ERASURE, AwaitErasureRequest, AwaitErasureResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.LIST_SUBJECTS, ListSubjectsRequest, ListSubjectsResponse, 1, 1, True, Target.LEADER, QuotaKind.FETCH),
    ApiSpec(Api.FIND_MESSAGES, FindMessagesRequest, FindMessagesResponse, 1, 1, True, Target.LEADER, QuotaKind.FETCH),
    ApiSpec(Api.TAKE_API, TakeApiRequest, TakeApiResponse, 1, 1, True),
    ApiSpec(Api.ASK_CONSUMERS, AskConsumersRequest, AskConsumersResponse, 1, 1, True, Target.LEADER),
    ApiSpec(Api.PEER_HELLO, PeerHelloRequest, PeerHelloResponse, 1, 1, True),
    ApiSpec(Api.RAFT, RaftRequest, RaftResponse, 1, 1, True),
    ApiSpec(Api.REPLICA_FETCH, ReplicaFetchRequest, ReplicaFetchResponse, 1, 1, True),
    ApiSpec(Api.REPLICA_PROGRESS, ReplicaProgressRequest, ReplicaProgressResponse, 1, 1, True),
    ApiSpec(Api.HEARTBEAT, HeartbeatRequest, HeartbeatResponse, 1, 1, True),
    ApiSpec(Api.REGISTER_BROKER, RegisterBrokerRequest, RegisterBrokerResponse, 1, 1, True),
    ApiSpec(Api.CHANGE_ISR, ChangeIsrRequest, ChangeIsrResponse, 1, 1, True),
    ApiSpec(Api.STOP_BROKER, StopBrokerRequest, StopBrokerResponse, 1, 1, True),
    ApiSpec(Api.FORWARD, ForwardRequest, ForwardResponse, 1, 1, False),
    ApiSpec(Api.JOIN, JoinRequest, JoinResponse, 1, 1, True),
    ApiSpec(Api.AWAIT_STREAM, AwaitStreamRequest, AwaitStreamResponse, 1, 1, True),
    ApiSpec(Api.REPLICA_RANGE, ReplicaRangeRequest, ReplicaRangeResponse, 1, 1, True),
    ApiSpec(Api.MARK_KEYS, MarkKeysRequest, MarkKeysResponse, 1, 1, True),
    ApiSpec(Api.MESSAGE_IDS, MessageIdsRequest, MessageIdsResponse, 1, 1, True),
    ApiSpec(Api.AWAIT_METADATA, AwaitMetadataRequest, AwaitMetadataResponse, 1, 1, True),
    ApiSpec(Api.ADD_COMPANION, AddCompanionRequest, AddCompanionResponse, 1, 1, True),
    ApiSpec(Api.ERASED, ErasedRequest, ErasedResponse, 1, 1, True),
    ApiSpec(Api.RECORD_DELETION, RecordDeletionRequest, RecordDeletionResponse, 1, 1, True),
    ApiSpec(Api.PASS_API_CALLS, PassApiCallsRequest, PassApiCallsResponse, 1, 1, True),
    ApiSpec(Api.LEASE, LeaseRequest, LeaseResponse, 1, 1, True),
    ApiSpec(Api.REPORT_API, ReportApiRequest, ReportApiResponse, 1, 1, True),
    ApiSpec(Api.STORE_LETTER, StoreLetterRequest, StoreLetterResponse, 1, 1, True),
)

APIS: dict[int, ApiSpec] = {int(spec.api): spec for spec in _TABLE}
"""By number, for received frames."""

API_OF_REQUEST: dict[type[Request], ApiSpec] = {spec.request: spec for spec in _TABLE}
"""By type, for requests to send."""


_OF_BOTH = frozenset(
    {
        Api.HELLO,
        Api.LIST_OFFSETS,
        Api.LIST_SUBJECTS,
        Api.TRUNCATE,
        Api.LIST_SCHEMAS,
        Api.GET_SCHEMA_TEXT,
        Api.PEER_HELLO,
        Api.FETCH_OFFSETS,
    }
)
"""Requests of clients and of brokers: hello, what a partition's leader knows and truncates, schemas, offsets."""


def is_asked_by_clients(api: int) -> bool:
    """True if clients send the request with this number."""
    return api in _OF_BOTH or api < Api.PEER_HELLO


def is_asked_by_brokers(api: int) -> bool:
    """True if other brokers of the cluster send the request with this number."""
    return api in _OF_BOTH or api > Api.PEER_HELLO


def api_versions() -> tuple[ApiVersions, ...]:
    """The versions that this Penstock speaks, for a hello."""
    return tuple(
        ApiVersions(api=int(spec.api), version_min=spec.version_min, version_max=spec.version_max) for spec in _TABLE
    )
