"""Keyword arguments of calls, for type checkers.

A test compares the fields with those of `StreamConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from penstock.base.config import (
    Acks,
    Compression,
    Discard,
    Durability,
    Encryption,
    Retain,
    RetentionPolicy,
    SchemaCheck,
    Storage,
    SuspendDeletion,
)
from penstock.client.consumer_config import AckPolicy
from penstock.client.link.read_from import ReadFrom, Which
from penstock.client.values import Envelope, Start

if TYPE_CHECKING:
    from penstock.schemas.registry import StreamSchemas


class StreamChanges(TypedDict, total=False):
    """The fields that `alter_stream` can change; None: no limit."""

    acks: Acks | Literal["reply", "envelope", "never"]
    durability: Durability | Literal["auto", "fsync", "os"]
    max_age_ms: int | None
    max_messages: int | None
    max_bytes: int | None
    max_messages_per_subject: int | None
    max_message_bytes: int
    segment_bytes: int
    segment_age_ms: int | None
    min_isr: int | None
    allow_unclean_election: bool
    dedup_window_ms: int | None
    dedup_ids_max: int
    compact: bool
    compaction_lag_ms: int
    tombstone_retention_ms: int
    compression: Compression | Literal["none", "lz4", "zstd"]
    allow_message_ttl: bool
    allow_rollup: bool
    retain: Retain | Literal["limits", "until-archived"]
    observers: int
    suspend_deletion: SuspendDeletion | Literal["no", "yes", "copying"]
    schema_check: SchemaCheck | Literal["no", "count", "refuse"]
    description: str
    metadata: Mapping[str, str]
    discard: Discard | Literal["old", "new"]
    discard_new_per_subject: bool
    deny_delete: bool
    deny_purge: bool
    subject_delete_marker_ttl_ms: int | None
    allow_message_schedules: bool
    nats_readable: bool
    retention: RetentionPolicy | Literal["limits", "workqueue", "interest"]
    interest_of: tuple[str, ...]
    allow_atomic: bool
    partitions: int
    range_bounds: tuple[str, ...]


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `Client.consumer` besides stream, group, start and time-out."""

    partition: int | None
    follow: bool
    batch_rows_max: int
    columns: Iterable[str] | None
    decode: Literal["schema"] | StreamSchemas | bool | None
    checkpoint_interval: float
    session: float
    read_from: ReadFrom | Which | None


class QueueConfig(TypedDict, total=False):
    """The keyword arguments of `Client.queue` that describe its consumer, as those of `client.consumers.create`."""

    subject: str | Sequence[str]
    start: Start
    acks: AckPolicy
    ack_wait: float | None
    deliveries_max: int | None
    ack_pending_max: int | None
    backoff: Sequence[float]
    order_by: str | None
    inactive_after: float | None
    description: str


class StreamOptions(StreamChanges, total=False):
    """The keyword arguments of `create_stream` besides name and subject."""

    storage: Storage | Literal["file", "memory"]
    encryption: Encryption | Literal["none", "aes-256-gcm"]
    first_offset: int
    partition_by: str
    group: str | None
    replicas: int | None


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of a publish besides subject, value and `ack`."""

    key: bytes | str | None
    headers: Mapping[str, str] | None
    stream: str | None
    envelope: Envelope | None
    retries: int
    timeout: float
