"""Consumers of JetStream's API: list, show, create, pause, reset and delete them over the socket.

They belong to one partition of a stream, and its leader answers. A consumer's info and its config are JSON, with the
fields of JetStream's API: what a later Penstock tells more of needs no other request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionId, TimestampUs
from penstock.messages.fields import (
    Int32Field,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
)

ConsumerNameField = Annotated[str, msgspec.Meta(max_length=limits.CONSUMER_NAME_CHARS_MAX)]


class ConsumerOperation(StrEnum):
    """An operation on the consumers of a partition."""

    LIST = "list"
    INFO = "info"
    CREATE = "create"
    PAUSE = "pause"
    RESET = "reset"
    DELETE = "delete"


class AskConsumersRequest(Request, frozen=True, kw_only=True):
    """Ask about the consumers of a partition; `consumer` names one of them, but for `list`.

    | operation | fields                                                                                   |
    |-----------|------------------------------------------------------------------------------------------|
    | `list`    | `skip`: how many consumers, in the order of their names, earlier pages have had          |
    | `create`  | `config`: JSON, as `config` of JetStream's CONSUMER.CREATE, without a `deliver_subject`  |
    | `pause`   | `until_us`: nothing is delivered until then; None: it goes on now                        |
    | `reset`   | `next_offset`: where it goes on; None: behind what it has delivered                      |
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    operation: ConsumerOperation
    consumer: ConsumerNameField = ""
    skip: Int32Field = 0
    config: Annotated[str, msgspec.Meta(max_length=limits.CONSUMER_CONFIG_CHARS_MAX)] = ""
    until_us: Annotated[TimestampUs, msgspec.Meta(ge=0, le=limits.CONSUMER_PAUSE_UNTIL_US_MAX)] | None = None
    next_offset: OffsetField | None = None


class AskConsumersResponse(Response, frozen=True, kw_only=True):
    """The raw part is a JSON array of infos: those of a page, or that of the consumer as it is now; none if deleted.

    `skip_next`: `skip` of the next page; None: this is the last one.
    """

    skip_next: Int32Field | None = None
