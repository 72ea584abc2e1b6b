"""Request router: which part of the node answers which request.

| request                                       | handler                                         |
|-----------------------------------------------|-------------------------------------------------|
| hello, metadata, find streams, status         | `MetadataApi`                                   |
| list users, test access                       | `UserApi`                                       |
| changes of streams, users and rules           | the metadata leader, through `cluster`          |
| fetch                                         | `fetches`                                       |
| get, list offsets                             | `lookups`                                       |
| append, append once, stage, list producers    | `storing`                                       |
| publish staged, list published, staged stream | `publishing`                                    |
| all requests about consumer groups            | `offsets`                                       |
| all requests about schemas                    | `schemas`                                       |
| delete messages, purge subject                | `deletions`                                     |
| truncate, report archived, verify             | `truncations`, `archives`, `verifying`          |
| peers: fetch, progress, ranges, ids, leases   | `leader_replication`, `repairs`, `remote_dedup`, `leases` |
| peers: all others                             | `peer_requests`, through `cluster`              |
| ask consumers                                 | refused: the gateway answers them, if it is on  |
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    AskConsumersRequest,
    ChangeRulesRequest,
    CreateStreamRequest,
    CreateUserRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    FetchRequest,
    FindMessagesRequest,
    GetRequest,
    LeaseRequest,
    ListOffsetsRequest,
    ListSubjectsRequest,
    MessageIdsRequest,
    RaiseFeatureLevelRequest,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
    ReplicaRangeRequest,
    ReportArchivedRequest,
    Request,
    SetIntakeRequest,
    StoreLetterRequest,
    TakeApiRequest,
    TruncateRequest,
    VerifyRequest,
)
from penstock.metadata.feature_levels import FIRST_LEVEL, NEWEST_LEVEL, level_of
from penstock.metadata.feature_versions import too_old_for
from penstock.node.api.append_api import AppendApi
from penstock.node.api.commit_bounds import CommitBounds
from penstock.node.api.consumption import Consumption
from penstock.node.api.deletions import Deletions
from penstock.node.api.erasures import Erasures
from penstock.node.api.expiries import Expiries
from penstock.node.api.fetch_api import FetchApi
from penstock.node.api.in_flight_total import InFlightTotal
from penstock.node.api.letters import Letters
from penstock.node.api.lookup_api import LookupApi
from penstock.node.api.mark_snapshots import MarkSnapshots
from penstock.node.api.metadata_api import Handler, MetadataApi
from penstock.node.api.offsets import GroupOffsets
from penstock.node.api.row_decisions import RowDecisions
from penstock.node.api.schedules import Schedules
from penstock.node.api.schema_checks import SchemaChecks
from penstock.node.api.schema_registry import SchemaRegistry
from penstock.node.api.staged_publishing import StagedPublisher
from penstock.node.api.status_report import StatusReport
from penstock.node.api.stream_index import StreamIndex
from penstock.node.api.stream_interest import StreamInterest
from penstock.node.api.survey_marks import SurveyMarks
from penstock.node.api.user_api import UserApi
from penstock.node.api.verify_api import VerifyApi
from penstock.node.consumers.consumer_logs import ConsumerLogs
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.control.peer_requests import PEER_REQUESTS
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.internal_streams import check_users_own
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.replicas import Replicas
from penstock.node.security.access import Access, Call
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from penstock.node.subscriptions.nats_listener import NatsListener

STOPPING = RemoteError(ErrorCode.STOPPING, "the broker is stopping; connect again in a moment")


class RequestRouter:
    """Builds the handlers of all requests."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        replicas: Replicas,
        access: Access,
        peers: PeerClient,
        listener: NatsListener,
        backlog: IngestBacklog,
        budget: InFlightBudget,
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        failures, companions = replicas.streams.failures, replicas.companions
        find = self.find = PartitionLookup(context, cluster, replicas.partitions, failures, companions)
        self.fetches = FetchApi(context, replicas)
        self.verifying = VerifyApi(context.outbox, stopping=STOPPING)
        self.storing = AppendApi(context, find, replicas, budget.meters.counters)
        write = self.storing.append_to
        interest = StreamInterest()
        self.decisions = RowDecisions(context, replicas, interest, write=self.storing.append_to_companion)
        self.consumption = Consumption(
            context, replicas, interest, self.decisions, write=self.storing.append_to_companion
        )
        self.lookups = LookupApi(context, self.decisions, replicas.leases, stopping=STOPPING)
        bounds = CommitBounds(context, find, peers, budget.refusals)
        self.offsets = GroupOffsets(context, cluster, find, bounds, replicas.leases, write=write)
        self.schemas = SchemaRegistry(context, cluster, find, budget.meters.counters, write=write)
        self.schema_checks = SchemaChecks(context, self.schemas, peers, backlog, budget.meters.counters)
        self.publishing = StagedPublisher(context, cluster, find, write=write)
        self.deletions = Deletions(
            context,
            cluster,
            find,
            replicas.hidden_rows,
            self.decisions,
            write=self.storing.append_to_companion,
            stopping=STOPPING,
        )
        self.erasures = Erasures(context, find, replicas.hidden_rows, peers, replicas.roles, stopping=STOPPING)
        self.survey_marks = SurveyMarks(
            context,
            cluster,
            replicas.hidden_rows,
            replicas.log_maintenance,
            write=self.storing.append_to_companion,
        )
        self.expiries = Expiries(context, cluster, replicas, self.storing, self.deletions)
        self.schedules = Schedules(context, replicas, self.storing, self.deletions)
        troubles = companions.troubles
        self.consumer_logs = ConsumerLogs(context, cluster, find, replicas.partitions, troubles, append=write)
        self.letters = Letters(context, self.storing)
        self.mark_snapshots = MarkSnapshots(context, replicas, write=self.storing.append_to_companion)
        self.report = StatusReport(context, cluster, replicas, listener, budget.meters)
        self.in_flight = InFlightTotal(self.storing.appends, backlog, budget)
        self.stream_index = StreamIndex()
        metadata = MetadataApi(context, cluster, access, self.report, self.in_flight, self.stream_index)
        self.handlers: Mapping[type[Request], Handler] = {
            CreateStreamRequest: self._administer,
            AlterStreamRequest: self._administer,
            DeleteStreamRequest: self._administer,
            SetIntakeRequest: self._administer,
            CreateUserRequest: self._administer,
            AlterUserRequest: self._administer,
            DeleteUserRequest: self._administer,
            ChangeRulesRequest: self._administer,
            ExportUsersRequest: self._administer,
            RaiseFeatureLevelRequest: self._raise_feature_level,
            TakeApiRequest: self._administer,
            FetchRequest: partial(self.fetches.ask, find),
            GetRequest: partial(self.lookups.ask_get, find),
            ListOffsetsRequest: partial(self.lookups.ask_offsets, find),
            ListSubjectsRequest: partial(self.lookups.ask_subjects, find),
            FindMessagesRequest: partial(self.lookups.ask_messages, find),
            TruncateRequest: partial(replicas.truncations.ask_for, find),
            VerifyRequest: partial(self.verifying.ask, find),
            ReportArchivedRequest: partial(replicas.archives.ask, find),
            LeaseRequest: replicas.leases.promise,
            AskConsumersRequest: self._without_api,
            ReplicaFetchRequest: self._replica_fetch,
            ReplicaProgressRequest: self._replica_progress,
            ReplicaRangeRequest: partial(replicas.repairs.serve, find),
            MessageIdsRequest: partial(replicas.remote_dedup.serve, find),
            StoreLetterRequest: partial(self.letters.store, find),
            **self.storing.handlers,
            **self.publishing.handlers,
            **self.offsets.handlers,
            **self.schemas.handlers,
            **self.deletions.handlers,
            **self.erasures.handlers,
            **dict.fromkeys(PEER_REQUESTS, self._peer_request),
            **metadata.handlers,
            **UserApi(context, access).handlers,
        }

    def _administer(self, call: Call, request: Any) -> None:
        check_users_own(self._cluster.image, request)
        self._cluster.administer(call, request)

    def _raise_feature_level(self, call: Call, request: RaiseFeatureLevelRequest) -> None:
        image, leader = self._cluster.image, self._cluster.quorum.leader
        state = None if leader is None else image.brokers.get(leader)
        if state is not None and level_of(state.broker_version) == FIRST_LEVEL:  # it does not know the request
            error = too_old_for(image.brokers.values(), NEWEST_LEVEL)
            if error is not None:
                raise error
        self._cluster.administer(call, request)

    def _peer_request(self, call: Call, request: Request) -> None:
        self._cluster.peer_request(call.caller, request, call.raw)

    def _replica_fetch(self, call: Call, request: ReplicaFetchRequest) -> None:
        self._replicas.leader_replication.fetch(call.caller, request, self._replicas.roles.live, call.now)

    def _replica_progress(self, call: Call, request: ReplicaProgressRequest) -> None:
        self._replicas.leader_replication.progress(call.caller, request, self._replicas.roles.live, call.now)

    def _without_api(self, call: Call, request: AskConsumersRequest) -> None:
        """Refuse; `has_consumers` tells whether consumers may be stored that a broker with the API would serve."""
        state = self._cluster.image.streams.get(request.stream_id)
        text = "this broker does not answer JetStream's API (setting jetstream_api = off)"
        text = f"{text}, so its streams have no consumers; start the brokers with --jetstream-api auto"
        has_consumers = state is not None and state.has_consumers
        raise RemoteError(ErrorCode.JETSTREAM_OFF, text, has_consumers=has_consumers)
