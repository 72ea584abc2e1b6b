"""Consumers of JetStream's API: list, show, create, pause, reset, export, restore and delete them over the socket.

They belong to one partition of a stream, and its leader answers. A consumer's info and its config are JSON, with the
fields of JetStream's API: what a later Penstock tells more of needs no other request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from penstock.base import limits
from penstock.base.ids import Offset, PartitionId, TimestampUs
from penstock.messages.fields import (
    Int32Field,
    Int64Field,
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
    EXPORT = "export"
    EXPORT_ALL = "export_all"
    RESTORE = "restore"


class AskConsumersRequest(Request, frozen=True, kw_only=True):
    """Ask about the consumers of a partition; `consumer` names one of them, but for `list` and `export_all`.

    | operation | fields                                                                                   |
    |-----------|------------------------------------------------------------------------------------------|
    | `list`    | `skip`: how many consumers, in the order of their names, earlier pages have had          |
    | `export_all` | `consumer`: the name behind which the page begins; empty: it is the first page        |
    | `create`  | `config`: JSON, as `config` of JetStream's CONSUMER.CREATE, without a `deliver_subject`  |
    | `pause`   | `until_us`: nothing is delivered until then; None: it goes on now                        |
    | `reset`   | `next_offset`: where it goes on; None: behind what it has delivered                      |
    | `restore` | as `create`; also `since`, `next_offset` and `deliveries`; or the raw part: `state` of   |
    |           | an export                                                                                |

    A consumer that is restored has the place and the messages in hand of another one, and nothing else of it: acks of
    the other one's deliveries name nothing. If it exists with that config, it stays as it is.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    operation: ConsumerOperation
    consumer: ConsumerNameField = ""
    skip: Int32Field = 0
    config: Annotated[str, msgspec.Meta(max_length=limits.CONSUMER_CONFIG_CHARS_MAX)] = ""
    until_us: Annotated[TimestampUs, msgspec.Meta(ge=0, le=limits.CONSUMER_PAUSE_UNTIL_US_MAX)] | None = None
    next_offset: OffsetField | None = None
    deliveries: Int64Field = 0
    since: OffsetField = Offset(0)


class AskConsumersResponse(Response, frozen=True, kw_only=True):
    """The raw part is a JSON array of infos: those of a page, or that of the consumer as it is now; none if deleted.

    Of an export it is a JSON array of one `ExportedConsumer`; of `export_all` of those of a page.

    `skip_next`: `skip` of the next page of a list, `after_next`: `consumer` of the next one of `export_all`; None: this
    is the last one.
    """

    skip_next: Int32Field | None = None
    after_next: ConsumerNameField | None = None


EXPORT_FORMAT = 1


class ExportedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer with its place and its messages in hand, to be restored at another stream with the same offsets.

    `state`: a snapshot, as `penstock.consumers.rows` has it: the place, and what is in hand with its deliveries and the
    time that is left; empty: nothing is in hand. `since`: of a work queue's consumer, before which offset it is not
    known what was acked, as it had other filters, or stepped over it: these messages stay.
    """

    format: int = EXPORT_FORMAT
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.CONSUMER_NAME_CHARS_MAX)]
    config: dict[str, Any]  # JetStream's
    next_offset: OffsetField  # behind the last message that it has delivered
    deliveries: Int64Field = 0
    ack_pending: Int64Field = 0
    since: OffsetField = Offset(0)
    state: Annotated[bytes, msgspec.Meta(max_length=limits.CONSUMER_ROW_BYTES_MAX)] = b""  # Base64 in JSON
