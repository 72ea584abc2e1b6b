"""Metadata queries that any broker answers from its image: hello, streams, subjects, status.

Rules: "no such stream" is an answer, too: a broker that may not know of the stream yet answers not_yet instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.access.handshake import MECHANISMS
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import subject_mistake
from penstock.messages import (
    FindStreamsRequest,
    FindStreamsResponse,
    HelloRequest,
    HelloResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    StatusRequest,
    api_versions,
)
from penstock.metadata.image import StreamState
from penstock.node.api.in_flight_total import InFlightTotal
from penstock.node.api.status_report import StatusReport
from penstock.node.api.stream_index import StreamIndex
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.security.access import Access, Call

Handler = Callable[[Call, Any], None]
"""Answers the caller of a request, now or later. Arguments: the call, its request."""


class MetadataApi:
    """`handlers` answer each request at once. RemoteError bad_request, too_large, not_yet, stream_not_found."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        access: Access,
        report: StatusReport,
        in_flight: InFlightTotal,
        stream_index: StreamIndex,
    ) -> None:
        self._settings = context.settings
        self._outbox = context.outbox
        self._cluster = cluster
        self._access = access
        self._report = report
        self._in_flight = in_flight
        self._stream_index = stream_index
        self.handlers: Mapping[type[Request], Handler] = {
            HelloRequest: self._hello,
            MetadataRequest: self._metadata,
            FindStreamsRequest: self._find_streams,
            StatusRequest: self._status,
        }

    def _hello(self, call: Call, request: HelloRequest) -> None:
        # A caller who has not logged in gets only what a login needs.
        is_told = self._access.refusal(call.auth.who) is None
        response = HelloResponse(
            broker_id=self._settings.broker_id,
            broker_version=self._settings.broker_version,
            cluster_id=self._cluster.cluster_id if is_told else "",
            format_version=self._settings.format_version,
            nats_urls=self._settings.nats_urls if is_told else (),
            api_versions=api_versions(),
            mechanisms=MECHANISMS if self._access.is_guarded else (),
            proves_brokers=self._settings.proves_brokers,
        )
        self._outbox.reply(call.caller, response)

    def _metadata(self, call: Call, request: MetadataRequest) -> None:
        image = self._cluster.image
        next_after = None
        if request.names is not None:
            if len(request.names) > limits.METADATA_STREAMS_MAX:
                text = f"{len(request.names)} names at once; the limit is {limits.METADATA_STREAMS_MAX}"
                raise RemoteError(ErrorCode.TOO_LARGE, text)
            names = [name for name in dict.fromkeys(request.names) if name in image.names]
            if len(names) < len(set(request.names)):
                self._cluster.check_knows()  # "no such stream" is an answer, too
            names = [name for name in names if call.auth.may_see(image.by_name(name))]
            _check_partitions([image.by_name(name) for name in names])
        else:
            if not image.cluster_id:
                self._cluster.check_knows()
            page = max(1, min(request.streams_max, limits.METADATA_STREAMS_MAX))
            names, next_after = self._stream_index.page(image, request.after, page, call.auth.seen_names)
        names = [name for name in names if call.auth.may_see(image.by_name(name))]
        streams = tuple(self._report.stream(image.by_name(name)) for name in names)
        self._outbox.reply(
            call.caller, MetadataResponse(streams=streams, brokers=self._report.brokers(), next_after=next_after)
        )

    def _find_streams(self, call: Call, request: FindStreamsRequest) -> None:
        if (mistake := subject_mistake(request.subject)) is not None:
            raise RemoteError(ErrorCode.BAD_REQUEST, mistake)
        found = self._stream_index.covering(self._cluster.image, request.subject)
        if not found:
            self._cluster.check_knows()
        found = [state for state in found if call.auth.may_see(state)]
        self._outbox.reply(call.caller, FindStreamsResponse(streams=tuple(map(self._report.stream, found))))

    def _status(self, call: Call, request: StatusRequest) -> None:
        self._outbox.reply(
            call.caller, self._report.status(call.now.wall_us, in_flight_bytes=self._in_flight.size_bytes)
        )


def _check_partitions(states: list[StreamState]) -> None:
    count = sum(len(state.partitions) for state in states)
    if len(states) > 1 and count > limits.METADATA_PARTITIONS_MAX:
        text = f"streams with {count} partitions at once; the limit is {limits.METADATA_PARTITIONS_MAX}: ask for fewer"
        raise RemoteError(ErrorCode.TOO_LARGE, text)
