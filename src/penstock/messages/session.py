"""Hello, broker status, and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.base import limits
from penstock.messages.cluster import ApiDecisionInfo
from penstock.messages.fields import (
    BrokerIdField,
    Int32Field,
    Int64Field,
    Request,
    Response,
    TimestampField,
    repr_without_logins,
)
from penstock.messages.streams import BrokerInfo, GapInfo


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error; the body of a failed response is `{"error": …}`. `code` is an `ErrorCode`, or a newer broker's."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class ApiVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The supported versions of one request, both ends included."""

    api: Int32Field
    version_min: Int32Field
    version_max: Int32Field


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a broker."""

    request_body_bytes_max: Int64Field = limits.REQUEST_BODY_BYTES_MAX
    append_bytes_max: Int64Field = limits.APPEND_BYTES_MAX
    fetch_bytes_max: Int64Field = limits.FETCH_BYTES_MAX
    fetch_wait_ms_max: Int64Field = limits.FETCH_WAIT_MS_MAX
    in_flight_requests_max: Int64Field = limits.IN_FLIGHT_REQUESTS_MAX


class HelloRequest(Request, frozen=True, kw_only=True):
    """First frame of every connection; nothing else is answered before it. At most `HELLO_BYTES_MAX` long."""

    client_name: str
    client_version: str
    api_versions: tuple[ApiVersions, ...] = ()


class HelloResponse(Response, frozen=True, kw_only=True):
    """The broker's identity, NATS URLs for publishers, and the supported requests."""

    broker_id: BrokerIdField
    broker_version: str
    cluster_id: str
    format_version: Int32Field  # of the record batches that it sends
    nats_urls: tuple[str, ...] = ()  # for publishers; without credentials
    api_versions: tuple[ApiVersions, ...] = ()
    limits: BrokerLimits = BrokerLimits()
    mechanisms: tuple[str, ...] = ()  # login mechanisms, one of which the client must use first; empty: no login needed
    proves_brokers: bool = False  # True if it knows the cluster secret, and requires it of other brokers

    def __repr__(self) -> str:
        return repr_without_logins(self)


class StatusRequest(Request, frozen=True, kw_only=True):
    """Request the state of the broker."""


class NatsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's connection to NATS."""

    state: str  # "connected", "connecting", "stopped"
    url: str = ""  # without credentials
    server_name: str = ""
    server_version: str = ""
    embedded: bool = False
    reading_paused: bool = False  # backpressure: at the limit of memory in flight
    since_us: TimestampField | None = None
    last_error: str = ""  # of the last connection failure; kept after a reconnect
    reconnects: Int64Field = 0
    answers_dropped: Int64Field = 0  # acks and refusals that nats-server did not take in time
    complaints: Int64Field = 0  # errors of nats-server about what the broker sent, such as acks that it may not publish
    last_complaint: str = ""
    messages_skipped: Int64Field = 0  # from nats-server, malformed and not stored
    unanswerable: Int64Field = 0  # messages with a reply subject to which nats-server would not let the broker publish
    announced: tuple[str, ...] = ()  # URLs of further nats-servers announced by NATS
    gaps: tuple[GapInfo, ...] = ()  # the latest ones, oldest first
    leaf_state: str = ""  # of the leaf connection, which delivers: "connected", "connecting"; empty: there is none
    leaf_url: str = ""  # without credentials
    leaf_error: str = ""  # of the last failure; kept after a reconnect
    leaf_allowed: tuple[str, ...] = ()  # subjects on which its user may publish
    leaf_subjects: Int64Field = 0  # subjects with interest that nats-server has told of
    undelivered: Int64Field = 0  # batches of deliveries that were dropped
    api_prefixes: tuple[str, ...] = ()  # of JetStream's API, as the settings say; empty: it is off
    api_manages: bool = False  # its callers may change streams and delete messages
    api_user: str = ""  # whose rules hold for its callers; empty: none is named
    api_state: str = ""  # of its connection for the API: "connected", "connecting"; empty: the API is off
    api_error: str = ""  # of that connection's last failure; kept after a reconnect
    api_unknown: tuple[str, ...] = ()  # why this broker does not know yet if another service has a prefix


class CertificateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The expiry of certificates that a broker uses."""

    setting: str  # the setting that names their file
    expires_us: TimestampField  # first expiry
    last_expires_us: TimestampField | None = None  # of several authorities, the last expiry; None: not reported


class PeerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a broker has no connection to another one now."""

    broker_id: BrokerIdField
    address: str  # HOST:PORT that was tried last
    reason: str


class StatusResponse(Response, frozen=True, kw_only=True):
    """The state of one broker."""

    broker_id: BrokerIdField
    broker_version: str
    cluster_id: str
    address: str  # HOST:PORT of the socket API
    data_dir: str = ""
    started_us: TimestampField
    now_us: TimestampField | None = None  # the broker's clock at the answer; None: an older version
    uptime_ms: Int64Field
    nats: NatsStatus
    metadata_leader: BrokerIdField | None = None  # as known to this broker; None: its knowledge may be outdated
    metadata_heard_ms: Int64Field | None = None  # milliseconds since it last knew one; None: never since start
    voters: Int64Field = 0  # of the metadata quorum
    voters_reachable: Int64Field = 0  # by this broker, itself included
    waits_for: str = ""  # reason why it is not ready
    brokers: tuple[BrokerInfo, ...] = ()  # of the cluster, by id
    feature_level: str = ""  # of the cluster, as "0.4"; empty: an older version
    apis: tuple[ApiDecisionInfo, ...] = ()  # who serves JetStream's API, as known to this broker, by prefix
    apis_served: tuple[str, ...] = ()  # prefixes of JetStream's API that this broker serves
    peer_failures: tuple[PeerFailure, ...] = ()  # of brokers to which it has no connection, by id
    streams: Int64Field = 0
    partitions: Int64Field = 0  # of all streams, on any broker
    partitions_by_state: dict[str, Int64Field] = msgspec.field(default_factory=dict)
    connections: Int64Field = 0  # of clients
    requests_in_flight: Int64Field = 0
    tls_expires_us: TimestampField | None = None  # expiry of its certificate; None: no TLS
    # its own, and those that it checks others against; not those for NATS
    certificates: tuple[CertificateInfo, ...] = ()
    in_flight_bytes: Int64Field = 0  # appended, not yet acked
    in_flight_bytes_max: Int64Field = limits.BROKER_IN_FLIGHT_BYTES_MAX
    # Of the data directory's file system, measured seconds ago at most; None: not measured yet, or an older version.
    disk_free_bytes: Int64Field | None = None
    disk_size_bytes: Int64Field | None = None
    disk_is_full: bool = False  # it refused a write of a log, and has taken none since
    disk_answers: bool = True  # False: a measurement has not returned for long
    synced_by: str = ""  # who syncs its logs: `kernel` (Linux AIO) or `threads`; empty: an older version
    # Since the start: messages_in, bytes_in, acks_made, dropped, …
    counters: dict[str, Int64Field] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        fields = {
            "address": repr(self.address),
            "nats": repr(self.nats.state),
            "waits_for": repr(self.waits_for) if self.waits_for else None,
            "metadata_leader": self.metadata_leader,
            "brokers": len(self.brokers),
            "streams": self.streams,
            "partitions_by_state": self.partitions_by_state,
            "connections": self.connections,
        }
        shown = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "waits_for" or value)
        return f"StatusResponse({self.broker_id}, {shown})"
