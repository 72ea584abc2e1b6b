"""What crosses the socket, as frozen types: requests, responses, and the table that pairs them.

Rules:
- A message is a MessagePack map, so that fields can be added: a reader ignores fields that it does not know, and every
  field added later has a default that means what its absence meant.
- A field never changes its type or meaning; a request that an older broker must not misread gets a new version.
- Values that may grow new names later (states, error codes, counters) travel as plain strings.
- Offsets are half-open; times are microseconds since 1970 UTC; `None` is "without limit" or "not known", as stated.
- Every request about a stream's data names `stream_id`: the id of a deleted stream is answered with `stream_changed`.

| module      | what it holds                                             |
|-------------|-----------------------------------------------------------|
| `fields`    | bounded integers and the base types                        |
| `streams`   | streams, partitions, their state; create, alter, delete    |
| `records`   | fetch, get, list offsets, append                           |
| `session`   | hello, status, errors                                      |
| `peers`     | what brokers of one cluster tell each other                |
| `replicas`  | what replicas of one partition, or of the metadata, do     |
| `apis`      | number → request → response → versions                     |
"""

from __future__ import annotations

from penstock.messages.apis import API_OF_REQUEST, APIS, Api, ApiSpec, api_versions
from penstock.messages.fields import Request, Response
from penstock.messages.peers import (
    AwaitStreamRequest,
    AwaitStreamResponse,
    ChangeIsrRequest,
    ChangeIsrResponse,
    ClusterMember,
    ForwardRequest,
    ForwardResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IsrChange,
    IsrMember,
    IsrResult,
    JoinRequest,
    JoinResponse,
    LogEnd,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ResignedLeadership,
    StopBrokerRequest,
    StopBrokerResponse,
    UnreachableLeader,
)
from penstock.messages.records import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from penstock.messages.replicas import (
    Divergence,
    FetchPosition,
    FlushedEnd,
    PartitionName,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaNews,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
)
from penstock.messages.session import (
    ApiVersions,
    BrokerLimits,
    ErrorBody,
    HelloRequest,
    HelloResponse,
    NatsStatus,
    StatusRequest,
    StatusResponse,
)
from penstock.messages.streams import (
    AlterStreamRequest,
    AlterStreamResponse,
    BrokerInfo,
    CreateStreamRequest,
    CreateStreamResponse,
    DamageInfo,
    DeleteStreamRequest,
    DeleteStreamResponse,
    FindStreamsRequest,
    FindStreamsResponse,
    FollowerInfo,
    GapInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionHealth,
    PartitionInfo,
    SetIntakeRequest,
    SetIntakeResponse,
    StreamInfo,
    TruncateRequest,
    TruncateResponse,
)

__all__ = [
    "APIS",
    "API_OF_REQUEST",
    "AlterStreamRequest",
    "AlterStreamResponse",
    "Api",
    "ApiSpec",
    "ApiVersions",
    "AppendRequest",
    "AppendResponse",
    "AwaitStreamRequest",
    "AwaitStreamResponse",
    "BrokerInfo",
    "BrokerLimits",
    "ChangeIsrRequest",
    "ChangeIsrResponse",
    "ClusterMember",
    "CreateStreamRequest",
    "CreateStreamResponse",
    "DamageInfo",
    "DeleteStreamRequest",
    "DeleteStreamResponse",
    "Divergence",
    "ErrorBody",
    "FetchPosition",
    "FetchRequest",
    "FetchResponse",
    "FindStreamsRequest",
    "FindStreamsResponse",
    "FlushedEnd",
    "FollowerInfo",
    "ForwardRequest",
    "ForwardResponse",
    "GapInfo",
    "GetRequest",
    "GetResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "HelloRequest",
    "HelloResponse",
    "IsrChange",
    "IsrMember",
    "IsrResult",
    "JoinRequest",
    "JoinResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "LogEnd",
    "MetadataRequest",
    "MetadataResponse",
    "NatsStatus",
    "PartitionHealth",
    "PartitionInfo",
    "PartitionName",
    "PeerHelloRequest",
    "PeerHelloResponse",
    "RaftRequest",
    "RaftResponse",
    "RegisterBrokerRequest",
    "RegisterBrokerResponse",
    "ReplicaFetchRequest",
    "ReplicaFetchResponse",
    "ReplicaNews",
    "ReplicaProgressRequest",
    "ReplicaProgressResponse",
    "Request",
    "ResignedLeadership",
    "Response",
    "SetIntakeRequest",
    "SetIntakeResponse",
    "StatusRequest",
    "StatusResponse",
    "StopBrokerRequest",
    "StopBrokerResponse",
    "StreamInfo",
    "TruncateRequest",
    "TruncateResponse",
    "UnreachableLeader",
    "api_versions",
]
