"""Penstock: a durable log for NATS whose on-disk format is Arrow.

    import penstock

    with penstock.connect() as client:
        client.create_stream("orders", "orders.>")
        client.publish("orders.eu", b"42", key="customer-7")
        for batch in client.read("orders"):
            print(batch.num_rows)

`penstock.aio` has the same calls for asyncio. Names are imported on first use, so that `import penstock` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.access.credentials import Credentials as Credentials
    from penstock.base.config import StreamConfig as StreamConfig
    from penstock.base.errors import (
        ConfigError as ConfigError,
    )
    from penstock.base.errors import (
        CorruptionError as CorruptionError,
    )
    from penstock.base.errors import (
        OperationalError as OperationalError,
    )
    from penstock.base.errors import (
        PenstockError as PenstockError,
    )
    from penstock.base.errors import (
        RemoteError as RemoteError,
    )
    from penstock.batch.reader import open_segment as open_segment
    from penstock.batch.reader import segment_files as segment_files
    from penstock.client.append.partitioning import (
        partitions_of as partitions_of,
    )
    from penstock.client.append.staged_runs import (
        Published as Published,
    )
    from penstock.client.append.staging import (
        PublishedQuery as PublishedQuery,
    )
    from penstock.client.append.staging import (
        Staged as Staged,
    )
    from penstock.client.blocking.client import Client as Client
    from penstock.client.blocking.client import Consumer as Consumer
    from penstock.client.blocking.client import Producer as Producer
    from penstock.client.blocking.client import Table as Table
    from penstock.client.blocking.client import connect as connect
    from penstock.client.consume.groups import (
        Group as Group,
    )
    from penstock.client.consume.groups import (
        GroupConsumer as GroupConsumer,
    )
    from penstock.client.consume.groups import (
        GroupOffset as GroupOffset,
    )
    from penstock.client.consume.stream_consumers import (
        ConsumerInfo as ConsumerInfo,
    )
    from penstock.client.errors import (
        ConsumerExists as ConsumerExists,
    )
    from penstock.client.errors import (
        ConsumerNotFound as ConsumerNotFound,
    )
    from penstock.client.errors import (
        CorruptRange as CorruptRange,
    )
    from penstock.client.errors import (
        GroupInUse as GroupInUse,
    )
    from penstock.client.errors import (
        IncompatibleSchema as IncompatibleSchema,
    )
    from penstock.client.errors import (
        InvalidConfig as InvalidConfig,
    )
    from penstock.client.errors import (
        InvalidSchema as InvalidSchema,
    )
    from penstock.client.errors import (
        LateAck as LateAck,
    )
    from penstock.client.errors import (
        LogTruncated as LogTruncated,
    )
    from penstock.client.errors import (
        MemberFenced as MemberFenced,
    )
    from penstock.client.errors import (
        MessageNotFound as MessageNotFound,
    )
    from penstock.client.errors import (
        NotAuthorized as NotAuthorized,
    )
    from penstock.client.errors import (
        NotEnoughReplicas as NotEnoughReplicas,
    )
    from penstock.client.errors import (
        OffsetOutOfRange as OffsetOutOfRange,
    )
    from penstock.client.errors import (
        OutcomeUnknown as OutcomeUnknown,
    )
    from penstock.client.errors import (
        Overloaded as Overloaded,
    )
    from penstock.client.errors import (
        ReadOnly as ReadOnly,
    )
    from penstock.client.errors import (
        StagedLost as StagedLost,
    )
    from penstock.client.errors import (
        StorageFailed as StorageFailed,
    )
    from penstock.client.errors import (
        StreamChanged as StreamChanged,
    )
    from penstock.client.errors import (
        StreamExists as StreamExists,
    )
    from penstock.client.errors import (
        StreamNotFound as StreamNotFound,
    )
    from penstock.client.errors import (
        TimedOut as TimedOut,
    )
    from penstock.client.errors import (
        Unauthenticated as Unauthenticated,
    )
    from penstock.client.errors import (
        Unavailable as Unavailable,
    )
    from penstock.client.link.read_from import ReadFrom as ReadFrom
    from penstock.client.link.tls import TlsOptions as TlsOptions
    from penstock.client.publish.unseen import PublishWarning as PublishWarning
    from penstock.client.read.filters import Filter as Filter
    from penstock.client.read.gathering import DecodeWarning as DecodeWarning
    from penstock.client.values import (
        EARLIEST as EARLIEST,
    )
    from penstock.client.values import (
        LATEST as LATEST,
    )
    from penstock.client.values import (
        AppendResult as AppendResult,
    )
    from penstock.client.values import (
        Deletion as Deletion,
    )
    from penstock.client.values import (
        Envelope as Envelope,
    )
    from penstock.client.values import (
        Erasure as Erasure,
    )
    from penstock.client.values import (
        Headers as Headers,
    )
    from penstock.client.values import (
        KnownProducer as KnownProducer,
    )
    from penstock.client.values import (
        Message as Message,
    )
    from penstock.client.values import (
        OffsetAt as OffsetAt,
    )
    from penstock.client.values import (
        PubAck as PubAck,
    )
    from penstock.client.values import (
        SubjectPurge as SubjectPurge,
    )
    from penstock.client.values import (
        SubjectState as SubjectState,
    )
    from penstock.client.values import (
        Truncation as Truncation,
    )
    from penstock.messages import StreamInfo as StreamInfo
    from penstock.schemas.kinds import (
        Schema as Schema,
    )
    from penstock.schemas.kinds import (
        SchemaKind as SchemaKind,
    )
    from penstock.schemas.registry import (
        SchemaVersion as SchemaVersion,
    )
    from penstock.schemas.registry import (
        StreamSchemas as StreamSchemas,
    )

__version__ = "0.4.0.dev0"  # of both distributions, read by their builds: docs/how-to/release.md

_MODULE_OF = {
    "aio": "penstock.aio",
    "StreamConfig": "penstock.base.config",
    "ConfigError": "penstock.base.errors",
    "CorruptionError": "penstock.base.errors",
    "OperationalError": "penstock.base.errors",
    "PenstockError": "penstock.base.errors",
    "RemoteError": "penstock.base.errors",
    "open_segment": "penstock.batch.reader",
    "segment_files": "penstock.batch.reader",
    "Client": "penstock.client.blocking.client",
    "connect": "penstock.client.blocking.client",
    "Consumer": "penstock.client.blocking.client",
    "Producer": "penstock.client.blocking.client",
    "ConsumerExists": "penstock.client.errors",
    "ConsumerNotFound": "penstock.client.errors",
    "ConsumerInfo": "penstock.client.consume.stream_consumers",
    "LateAck": "penstock.client.errors",
    "CorruptRange": "penstock.client.errors",
    "GroupInUse": "penstock.client.errors",
    "IncompatibleSchema": "penstock.client.errors",
    "InvalidConfig": "penstock.client.errors",
    "InvalidSchema": "penstock.client.errors",
    "DecodeWarning": "penstock.client.read.gathering",
    "LogTruncated": "penstock.client.errors",
    "MemberFenced": "penstock.client.errors",
    "MessageNotFound": "penstock.client.errors",
    "NotAuthorized": "penstock.client.errors",
    "Unauthenticated": "penstock.client.errors",
    "Credentials": "penstock.access.credentials",
    "OffsetOutOfRange": "penstock.client.errors",
    "OutcomeUnknown": "penstock.client.errors",
    "NotEnoughReplicas": "penstock.client.errors",
    "Overloaded": "penstock.client.errors",
    "ReadOnly": "penstock.client.errors",
    "StagedLost": "penstock.client.errors",
    "StorageFailed": "penstock.client.errors",
    "StreamChanged": "penstock.client.errors",
    "StreamExists": "penstock.client.errors",
    "StreamNotFound": "penstock.client.errors",
    "TimedOut": "penstock.client.errors",
    "Unavailable": "penstock.client.errors",
    "Group": "penstock.client.consume.groups",
    "GroupConsumer": "penstock.client.consume.groups",
    "GroupOffset": "penstock.client.consume.groups",
    "KnownProducer": "penstock.client.values",
    "Table": "penstock.client.blocking.client",
    "partitions_of": "penstock.client.append.partitioning",
    "PublishWarning": "penstock.client.publish.unseen",
    "Published": "penstock.client.append.staged_runs",
    "PublishedQuery": "penstock.client.append.staging",
    "Staged": "penstock.client.append.staging",
    "Filter": "penstock.client.read.filters",
    "ReadFrom": "penstock.client.link.read_from",
    "TlsOptions": "penstock.client.link.tls",
    "EARLIEST": "penstock.client.values",
    "LATEST": "penstock.client.values",
    "AppendResult": "penstock.client.values",
    "Deletion": "penstock.client.values",
    "Erasure": "penstock.client.values",
    "Envelope": "penstock.client.values",
    "Headers": "penstock.client.values",
    "Message": "penstock.client.values",
    "OffsetAt": "penstock.client.values",
    "PubAck": "penstock.client.values",
    "SubjectPurge": "penstock.client.values",
    "SubjectState": "penstock.client.values",
    "Truncation": "penstock.client.values",
    "StreamInfo": "penstock.messages",
    "Schema": "penstock.schemas.kinds",
    "SchemaKind": "penstock.schemas.kinds",
    "SchemaVersion": "penstock.schemas.registry",
    "StreamSchemas": "penstock.schemas.registry",
}

__all__ = [  # noqa: RUF022 (most used names first)
    "connect",
    "Client",
    "EARLIEST",
    "LATEST",
    "aio",
    "open_segment",
    "segment_files",
    "AppendResult",
    "Consumer",
    "Producer",
    "KnownProducer",
    "Table",
    "Staged",
    "Published",
    "PublishedQuery",
    "partitions_of",
    "Envelope",
    "Group",
    "GroupConsumer",
    "GroupOffset",
    "Filter",
    "Headers",
    "Message",
    "OffsetAt",
    "PubAck",
    "StreamConfig",
    "StreamInfo",
    "Schema",
    "SchemaKind",
    "SchemaVersion",
    "StreamSchemas",
    "Truncation",
    "Deletion",
    "Erasure",
    "SubjectPurge",
    "SubjectState",
    "PenstockError",
    "RemoteError",
    "OperationalError",
    "ConfigError",
    "CorruptionError",
    "ConsumerExists",
    "ConsumerNotFound",
    "ConsumerInfo",
    "LateAck",
    "CorruptRange",
    "GroupInUse",
    "IncompatibleSchema",
    "InvalidConfig",
    "InvalidSchema",
    "DecodeWarning",
    "LogTruncated",
    "MemberFenced",
    "MessageNotFound",
    "NotAuthorized",
    "Unauthenticated",
    "Credentials",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "NotEnoughReplicas",
    "Overloaded",
    "PublishWarning",
    "ReadFrom",
    "ReadOnly",
    "StagedLost",
    "StorageFailed",
    "StreamChanged",
    "StreamExists",
    "StreamNotFound",
    "TimedOut",
    "TlsOptions",
    "Unavailable",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = importlib.import_module(module)
    value = found if name == "aio" else getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
