"""Answers other brokers' requests about the cluster.

| request                                     | answered by                                                    |
|---------------------------------------------|----------------------------------------------------------------|
| raft                                        | at once; the quorum takes the message                          |
| peer hello                                  | the receiver, with its identity                                |
| await stream                                | the receiver, once the stream is here                          |
| await metadata                              | the receiver, once it has applied the index                    |
| join                                        | the receiver, with the members of the cluster                  |
| forward: create, alter, truncate, delete …  | the metadata leader; other brokers name it                     |
| heartbeat, register, change ISR, stop,      | the metadata leader                                            |
| report API                                  |                                                                |
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AddCompanionRequest,
    AwaitMetadataRequest,
    AwaitMetadataResponse,
    AwaitStreamRequest,
    AwaitStreamResponse,
    ChangeIsrRequest,
    ClusterMember,
    ForwardRequest,
    ForwardResponse,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    MarkKeysRequest,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    RecordDeletionRequest,
    RegisterBrokerRequest,
    ReportApiRequest,
    Request,
    Response,
    StopBrokerRequest,
)
from penstock.node.context import Context
from penstock.node.controller.apply_barriers import LocalApplyBarrier
from penstock.node.controller.metadata_leader import MetadataLeader
from penstock.node.quorum.metadata_forwarding import Administrative
from penstock.node.quorum.peer_client import introduced
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.stream_waiters import ExpectedStream, WaitFor
from penstock.wire.bodies import answer_body, decode_request_body

PEER_REQUESTS: tuple[type[Request], ...] = (
    RaftRequest,
    PeerHelloRequest,
    AwaitStreamRequest,
    AwaitMetadataRequest,
    JoinRequest,
    ForwardRequest,
    HeartbeatRequest,
    RegisterBrokerRequest,
    ChangeIsrRequest,
    AddCompanionRequest,
    RecordDeletionRequest,
    MarkKeysRequest,
    ReportApiRequest,
    StopBrokerRequest,
)
"""Requests that `PeerRequests` answers."""


class PeerRequestTarget(Protocol):
    """The cluster identity of the broker that is asked."""

    @property
    def cluster_id(self) -> str:
        """Id of its cluster; empty while unknown."""

    def peer_said(self, hello: PeerHelloRequest) -> None:
        """Take another broker's address, version and cluster id, which is empty if it knows none."""


class PeerRequests:
    """Answers the requests in PEER_REQUESTS."""

    def __init__(
        self,
        context: Context,
        asked: PeerRequestTarget,
        quorum: Quorum,
        metadata_leader: MetadataLeader,
        wait_for: WaitFor,
        applied: LocalApplyBarrier,
    ) -> None:
        """`wait_for` calls back once a stream is here, or with the error."""
        self._applied = applied
        self._asked = asked
        self._settings = context.settings
        self._outbox = context.outbox
        self._context = context
        self._quorum = quorum
        self._metadata_leader = metadata_leader
        self._wait_for = wait_for

    def take(self, caller: Hashable, request: Request, raw: bytes | memoryview) -> None:
        """Answer another broker's request. Raise RemoteError."""
        if isinstance(request, RaftRequest):
            self._quorum.received(request, raw)
            self._outbox.reply(caller, RaftResponse())
        elif isinstance(request, PeerHelloRequest):
            self._outbox.reply(caller, introduced(request, self._introduction()))
            self._asked.peer_said(request)
        elif isinstance(request, AwaitStreamRequest):
            self._await_stream(caller, request)
        elif isinstance(request, AwaitMetadataRequest):
            self._await_metadata(caller, request)
        elif isinstance(request, JoinRequest):
            self._outbox.reply(caller, self._members())
        elif isinstance(request, ForwardRequest):
            self._forwarded(caller, request, raw)
        else:
            assert isinstance(
                request,
                HeartbeatRequest
                | RegisterBrokerRequest
                | ChangeIsrRequest
                | MarkKeysRequest
                | AddCompanionRequest
                | RecordDeletionRequest
                | ReportApiRequest
                | StopBrokerRequest,
            ), request
            self._metadata_leader.request(request, lambda response: self._outbox.reply(caller, response))

    def _introduction(self) -> PeerHelloResponse:
        settings = self._settings
        return PeerHelloResponse(
            cluster_id=self._asked.cluster_id,
            broker_id=settings.broker_id,
            data_dir_id=settings.data_dir_id,
            broker_version=settings.broker_version,
        )

    def _await_stream(self, caller: Hashable, request: AwaitStreamRequest) -> None:
        deadline_us = self._context.now.elapsed_us + min(request.timeout_ms, limits.FETCH_WAIT_MS_MAX) * 1_000

        def done(error: RemoteError | None) -> None:
            self._outbox.reply(caller, AwaitStreamResponse() if error is None else error)

        self._wait_for(request.stream_id, deadline_us, done, ExpectedStream(request.intake_us, request.partitions))

    def _await_metadata(self, caller: Hashable, request: AwaitMetadataRequest) -> None:
        deadline_us = self._context.now.elapsed_us + min(request.timeout_ms, limits.FETCH_WAIT_MS_MAX) * 1_000

        def done(error: RemoteError | None) -> None:
            self._outbox.reply(caller, AwaitMetadataResponse() if error is None else error)

        self._applied.wait(request.index, deadline_us, done)

    def _members(self) -> JoinResponse:
        image = self._quorum.image
        if not image.cluster_id:
            raise RemoteError(ErrorCode.BROKER_UNAVAILABLE, "the cluster is not formed yet; ask again in a moment")
        membership = self._quorum.membership
        known = {**self._settings.voters, **{one.broker_id: one.address for one in image.brokers.values()}}
        members = tuple(
            ClusterMember(broker_id=broker_id, address=address, is_voter=broker_id in membership.voters)
            for broker_id, address in sorted(known.items())
            if broker_id in membership
        )
        return JoinResponse(cluster_id=image.cluster_id, members=members)

    def _forwarded(self, caller: Hashable, request: ForwardRequest, raw: bytes | memoryview) -> None:
        asked = decode_request_body(request.api, request.version, bytes(raw))
        if not isinstance(asked, Administrative):
            raise RemoteError(ErrorCode.BAD_REQUEST, f"request number {request.api} is not forwarded")
        if not self._quorum.is_leader:
            leader = self._quorum.leader
            text = f"broker {self._settings.broker_id} is not the metadata leader; ask again"
            raise RemoteError(ErrorCode.NOT_METADATA_LEADER, text, leader=leader)

        def done(response: Response | RemoteError) -> None:
            # Such refusals go back as errors of the forward, so that the sender retries at the next leader.
            if isinstance(response, RemoteError) and response.code == ErrorCode.NOT_METADATA_LEADER:
                self._outbox.reply(caller, response)
            else:
                self._outbox.reply(caller, ForwardResponse(), answer_body(response))

        who = Principal(request.user, request.user_index) if request.user else None
        self._metadata_leader.request(asked, done, who)
