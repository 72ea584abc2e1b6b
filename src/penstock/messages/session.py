"""Saying hello, asking how a broker fares, and being told what went wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.base import limits
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
    """What went wrong; the body of a failed response is `{"error": …}`. `code` is an `ErrorCode`, or a newer one."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class ApiVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of one request that a side speaks, both ends included."""

    api: Int32Field
    version_min: Int32Field
    version_max: Int32Field


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker takes."""

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
    """Who the broker is, where publishers find NATS, and which requests it speaks."""

    broker_id: BrokerIdField
    broker_version: str
    cluster_id: str
    format_version: Int32Field  # of the data: the record batches it sends
    nats_urls: tuple[str, ...] = ()  # for publishers; without credentials
    api_versions: tuple[ApiVersions, ...] = ()
    limits: BrokerLimits = BrokerLimits()
    mechanisms: tuple[str, ...] = ()  # one of which the client logs in with before anything else; none: it need not
    proves_brokers: bool = False  # whether it knows a secret of the cluster, and asks other brokers for it

    def __repr__(self) -> str:
        return repr_without_logins(self)


class StatusRequest(Request, frozen=True, kw_only=True):
    """How does this broker fare?"""


class NatsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's connection to NATS."""

    state: str  # "connected", "connecting", "stopped"
    url: str = ""  # without credentials
    server_name: str = ""
    server_version: str = ""
    embedded: bool = False
    reading_paused: bool = False  # at the limit of memory in flight
    since_us: TimestampField | None = None
    last_error: str = ""  # why there was no connection, the last time; it stays when there is one again
    reconnects: Int64Field = 0
    answers_dropped: Int64Field = 0  # of the acks and refusals made, those that nats-server did not take in time
    complaints: Int64Field = 0  # of nats-server about what the broker sent, such as acks that it may not publish
    last_complaint: str = ""
    messages_skipped: Int64Field = 0  # from nats-server, not understood, not stored
    unanswerable: Int64Field = 0  # messages whose reply subject nats-server would not let the broker publish to
    announced: tuple[str, ...] = ()  # URLs of other nats-servers that NATS announces, and that the broker would use
    gaps: tuple[GapInfo, ...] = ()  # the latest ones, oldest first


class CertificateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates that a broker uses."""

    setting: str  # that names their file
    expires_us: TimestampField  # when the first of them ends
    last_expires_us: TimestampField | None = None  # when none of several authorities is left; None: not told


class StatusResponse(Response, frozen=True, kw_only=True):
    """The state of one broker."""

    broker_id: BrokerIdField
    broker_version: str
    cluster_id: str
    address: str  # HOST:PORT of the socket API
    data_dir: str = ""
    started_us: TimestampField
    now_us: TimestampField | None = None  # the broker's clock when it answered; None: an earlier version
    uptime_ms: Int64Field
    nats: NatsStatus
    metadata_leader: BrokerIdField | None = None  # as far as this broker knows; None: what it knows may be out of date
    metadata_heard_ms: Int64Field | None = None  # so long ago it knew one last; None: not since it started
    voters: Int64Field = 0  # on the metadata
    voters_reachable: Int64Field = 0  # by this broker, itself included
    waits_for: str = ""  # what stands between it and its part in the cluster
    brokers: tuple[BrokerInfo, ...] = ()  # of the cluster, by id
    streams: Int64Field = 0
    partitions: Int64Field = 0  # of all streams, wherever they are
    partitions_by_state: dict[str, Int64Field] = msgspec.field(default_factory=dict)
    connections: Int64Field = 0  # of clients
    requests_in_flight: Int64Field = 0
    tls_expires_us: TimestampField | None = None  # when its certificate ends; None: it speaks no TLS
    certificates: tuple[CertificateInfo, ...] = ()  # its own, and those that it checks others against; not of NATS
    in_flight_bytes: Int64Field = 0  # appended, not yet acked
    in_flight_bytes_max: Int64Field = limits.BROKER_IN_FLIGHT_BYTES_MAX
    # Since the start: messages_in, bytes_in, acks_made, dropped, …
    counters: dict[str, Int64Field] = msgspec.field(default_factory=dict)
