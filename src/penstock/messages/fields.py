"""Bounded integers and the two base types of messages.

A bound is part of the type, so that a hostile number is refused where it is read, with the name of its field.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.base import limits
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId, TimestampUs
from penstock.base.nats_logins import shown_url

INT64_MAX = 2**63 - 1

Int32Field = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Int64Field = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
OffsetField = Annotated[Offset, msgspec.Meta(ge=0, le=INT64_MAX)]
TimestampField = Annotated[TimestampUs, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
StreamIdField = Annotated[StreamId, msgspec.Meta(ge=1, le=INT64_MAX)]
PartitionField = Annotated[PartitionId, msgspec.Meta(ge=0, lt=2**31)]
ProducerIdField = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]  # random, or chosen by the producer
ProducerEpochField = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
LeaderEpochField = Annotated[LeaderEpoch, msgspec.Meta(ge=0, lt=2**32)]
BrokerIdField = Annotated[BrokerId, msgspec.Meta(ge=0, lt=2**31)]
PeerIdField = Annotated[BrokerId, msgspec.Meta(ge=1, lt=2**31)]  # a member of a cluster
IncarnationField = Annotated[Incarnation, msgspec.Meta(ge=1, le=INT64_MAX)]
NameField = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]  # an id, a version, a rack
SubjectField = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.SUBJECT_BYTES_MAX)]
ColumnField = Literal["offset", "timestamp", "subject", "key", "value", "headers"]
CrcField = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]  # CRC-32C
ArchiveField = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+$", min_length=1, max_length=limits.ARCHIVE_NAME_CHARS_MAX)
]
ProcessField = Annotated[str, msgspec.Meta(max_length=limits.PROCESS_ID_CHARS_MAX)]  # identifies one start of a broker
AddressField = Annotated[str, msgspec.Meta(min_length=3, max_length=261)]  # HOST:PORT; a host has up to 255 bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all requests."""

    def version_needed(self) -> int:
        """Return the lowest version that can express this request: a broker of an earlier one would misread it."""
        return 1


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all responses; a failed request is answered with an `ErrorBody` instead."""


def repr_without_logins(response: Response) -> str:
    """`repr` of a response with `nats_urls` for logs, without the NATS credentials."""
    urls = tuple(map(shown_url, response.nats_urls))  # type: ignore[attr-defined]
    return msgspec.Struct.__repr__(msgspec.structs.replace(response, nats_urls=urls))
