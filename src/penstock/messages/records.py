"""Reading and writing records. Batches travel raw after the body, byte for byte as in a segment file.

| request      | raw part of the request        | raw part of the response                                      |
|--------------|--------------------------------|---------------------------------------------------------------|
| fetch        |                                | whole batch messages back to back, no schema; or an Arrow stream |
| get          |                                | one batch message that holds the message (perhaps among others) |
| list offsets |                                |                                                               |
| find messages |                               | one batch message whose rows are the messages                 |
| append       | one batch message; its offsets, timestamps and epoch are ignored |                              |
| append once  | the same                       |                                                               |
| append at    | one batch message; its offsets and timestamps are kept |                                       |
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.messages.fields import (
    INT64_MAX,
    ColumnField,
    CrcField,
    Int32Field,
    Int64Field,
    LeaderEpochField,
    OffsetField,
    PartitionField,
    ProducerEpochField,
    ProducerIdField,
    Request,
    Response,
    StreamIdField,
    SubjectField,
    TimestampField,
)


class FetchRequest(Request, frozen=True, kw_only=True):
    """Fetch committed batches from `offset` on; a long poll until `bytes_min` or `wait_ms_max` is reached.

    The first batch may begin below `offset` (the reader drops those rows) and comes whole, even beyond `bytes_max`.

    With `columns`, `subjects` or `end` (from version 2 on) the answer is one Arrow stream of these columns, in this
    order, of the rows from `offset` up to, not including, `end` whose subject matches one of the patterns; None: all.
    `bytes_min` then counts the bytes of the scanned batches, and `bytes_max` those of the rows.

    With `max_staleness_ms` (from version 3 on) a replica that does not lead answers too_stale if
    `FetchResponse.behind_us` would be more, or unknown.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    offset: OffsetField
    bytes_min: Int64Field = 1
    bytes_max: Int64Field = limits.FETCH_BYTES_DEFAULT
    wait_ms_max: Int64Field = 0
    leader_epoch: LeaderEpochField | None = None  # the last one that the reader saw
    columns: Annotated[tuple[ColumnField, ...], msgspec.Meta(min_length=1, max_length=6)] | None = None
    subjects: (
        Annotated[tuple[SubjectField, ...], msgspec.Meta(min_length=1, max_length=limits.FETCH_SUBJECTS_MAX)] | None
    ) = None
    end: OffsetField | None = None
    max_staleness_ms: Int64Field | None = None  # None: any staleness

    @property
    def is_projected(self) -> bool:
        """True if the answer is not whole batches of the log."""
        return self.columns is not None or self.subjects is not None or self.end is not None

    def version_needed(self) -> int:
        """2 for projections, whose Arrow stream an older broker does not send; 3 for a staleness bound."""
        return 3 if self.max_staleness_ms is not None else 2 if self.is_projected else 1


class FetchResponse(Response, frozen=True, kw_only=True):
    """`[base_offset, end_offset)` is the range of the raw part; empty at `offset` if nothing came in time.

    `end_offset` may lie beyond the last message sent (compaction makes gaps): the reader continues there. For a
    projection it is how far the broker has scanned, with or without rows to send; `raw_crc` is then the CRC-32C of the
    raw part, if there is one, and `last_epoch` the leader epoch of the last scanned batch.

    `behind_us`: everything committed that long before this answer, by any leader, is below `committed_end` here; None:
    unknown, or an older broker.
    """

    log_start: OffsetField
    committed_end: OffsetField  # high watermark
    base_offset: OffsetField
    end_offset: OffsetField
    format_version: Int32Field
    leader_epoch: LeaderEpochField
    raw_crc: CrcField | None = None
    last_epoch: LeaderEpochField | None = None
    behind_us: Int64Field | None = None
    throttle_ms: Int64Field = 0  # rate limit: wait this long before the next request


class GetRequest(Request, frozen=True, kw_only=True):
    """Get one committed message by `offset`, `key` (its latest) or `subject` (its latest).

    With `offset` and `subject`: the message at that offset, if it is on that subject; for users who may read only some.
    `is_latest`: with an offset, too, only the leader answers, so that every deletion that was acked before counts.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    offset: OffsetField | None = None
    key: bytes | None = None
    subject: str | None = None
    is_latest: bool = False


class GetResponse(Response, frozen=True, kw_only=True):
    """The offset of the message in the raw batch. `partitions`: their number in the stream; as a detail of
    `message_not_found`, too. Earlier versions do not tell.
    """

    offset: OffsetField
    log_start: OffsetField
    committed_end: OffsetField
    format_version: Int32Field
    leader_epoch: LeaderEpochField
    partitions: int | None = None
    throttle_ms: Int64Field = 0  # rate limit: wait this long before the next request


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    """Look up an offset; a timestamp (µs) finds the first committed message at or after it.

    `counts_rows`: also count the live rows of the log. `rows_from`: also count those from that offset on, as a
    consumer's lag. Earlier versions do not.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    at: Literal["earliest", "latest"] | Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
    counts_rows: bool = False
    rows_from: OffsetField | None = None


class LiveRowsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a partition: those below `committed_end` that are stored and not deleted.

    `size_bytes`: of the batches from `log_start` on, as the answering replica stores them: compressed, and with deleted
    messages until the cleaner has passed. `live_bytes`: the same without the share of deleted messages, an estimate:
    all messages count alike. `deleted`: offsets from the first message to the last one that have none.
    Without a message the fields of the first and the last one are None.
    """

    rows: Int64Field
    size_bytes: Int64Field
    deleted: Int64Field = 0
    first_offset: OffsetField | None = None
    first_us: TimestampField | None = None
    last_offset: OffsetField | None = None
    last_us: TimestampField | None = None
    live_bytes: Int64Field = 0


class ListOffsetsResponse(Response, frozen=True, kw_only=True):
    """`timestamp_us` is None if no message lies at or after `offset`, which then is `committed_end`.

    `live`: the messages from `log_start` to `committed_end`; None if they were not to be counted, if a new leader does
    not know yet which are deleted, or if that needs more reading than one request may do: the next one goes on from
    there. `rows`: the number of those from `rows_from` on; None as `live`.
    """

    offset: OffsetField
    timestamp_us: TimestampField | None = None
    log_start: OffsetField
    committed_end: OffsetField
    leader_epoch: LeaderEpochField
    live: LiveRowsInfo | None = None
    rows: Int64Field | None = None


class ListSubjectsRequest(Request, frozen=True, kw_only=True):
    """List the subjects that match, in byte order behind `after`, or with `limit` 0 count their messages only.

    It is about the messages from `begin` up to, not including, `end`; None: to the high watermark. A list is about all
    of them; a count may stop before `end`, and its answer says where. With `counts_subjects` the subjects are counted.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    subjects: Annotated[tuple[SubjectField, ...], msgspec.Meta(min_length=1, max_length=limits.FETCH_SUBJECTS_MAX)]
    after: Annotated[str, msgspec.Meta(max_length=limits.SUBJECT_BYTES_MAX)] = ""
    limit: Annotated[int, msgspec.Meta(ge=0, le=limits.SUBJECTS_LISTED_MAX)] = 0
    begin: OffsetField = 0  # type: ignore[assignment]
    end: OffsetField | None = None
    counts_subjects: bool = False


class ListedSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A subject, the number of its messages in the partition, and the first and the last of them."""

    subject: SubjectField
    messages: Int64Field
    first_offset: OffsetField
    last_offset: OffsetField


class ListSubjectsResponse(Response, frozen=True, kw_only=True):
    """Subjects or a count, without deleted messages. `end_offset`: of the messages that were counted or listed.

    `subject_count` is None if subjects were not to be counted, or are more than SUBJECTS_COUNTED_MAX.
    """

    subjects: tuple[ListedSubject, ...] = ()
    messages: Int64Field = 0
    subject_count: Int64Field | None = None
    end_offset: OffsetField
    log_start: OffsetField
    committed_end: OffsetField
    leader_epoch: LeaderEpochField
    throttle_ms: Int64Field = 0  # rate limit: wait this long before the next request


class FindMessagesRequest(Request, frozen=True, kw_only=True):
    """Find messages by subject, wildcards allowed, from `begin` up to, not including, `end`; None: all that is shown.

    `which`: the first ones (`next`), the very last one (`last`), or the last one of each subject (`last_of_each`). In
    the latter case those before `begin` are only counted. With `begin_us` or `end_us` the range begins at, or ends
    before, the first message that is not older than that time.

    At most `limit` messages come, in the order of their offsets, and no further one once they have `bytes_max` bytes.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    subjects: Annotated[tuple[SubjectField, ...], msgspec.Meta(min_length=1, max_length=limits.FOUND_SUBJECTS_MAX)] = (
        ">",
    )
    which: Literal["next", "last", "last_of_each", "at"] = "next"
    offsets: Annotated[tuple[OffsetField, ...], msgspec.Meta(max_length=limits.FOUND_SUBJECTS_MAX)] = ()
    begin: OffsetField = 0  # type: ignore[assignment]
    begin_us: TimestampField | None = None
    end: OffsetField | None = None
    end_us: TimestampField | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.FOUND_MESSAGES_MAX)] = 1
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=limits.FOUND_BYTES_MAX)] = limits.FOUND_BYTES_MAX


class FindMessagesResponse(Response, frozen=True, kw_only=True):
    """The messages are the rows of the raw batch; without a raw part there are none.

    `[begin, end_offset)` is the range that was asked about. `next_offset`: where to go on, with `end` = `end_offset`;
    all is answered once they are equal. With `last_of_each`, `subjects` is the number of subjects with a message before
    `end_offset`, and `messages` how many of the last ones are at or behind `begin`.
    """

    begin: OffsetField
    end_offset: OffsetField
    next_offset: OffsetField
    subjects: Int64Field = 0
    messages: Int64Field = 0
    log_start: OffsetField
    committed_end: OffsetField
    format_version: Int32Field
    leader_epoch: LeaderEpochField
    throttle_ms: Int64Field = 0  # rate limit: wait this long before the next request


class AppendRequest(Request, frozen=True, kw_only=True):
    """Append the batch after the body; answered once it is as durable as the stream promises."""

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)


class AppendOnceRequest(Request, frozen=True, kw_only=True):
    """Append the batch after the body, unless it is a duplicate (idempotent producer): then answer as at first.

    A producer counts its rows from 0 in each of its epochs; `sequence` is the number of the batch's first row.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField = 0
    sequence: Int64Field


class AppendAtRequest(Request, frozen=True, kw_only=True):
    """Append the batch after the body with its own offsets and timestamps, to a paused stream.

    It begins at the log end, and covers the range in its header: rows may be missing in between. So a retry after a
    lost answer shows by the log end if the batch was stored.

    With `may_be_ahead` (from version 2 on) timestamps may be any time ahead of the broker's clock.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    may_be_ahead: bool = False

    def version_needed(self) -> int:
        """2 with `may_be_ahead`: an older broker would refuse such timestamps without saying why."""
        return 2 if self.may_be_ahead else 1


class ListProducersRequest(Request, frozen=True, kw_only=True):
    """List the producers known to a partition's leader, page by page: begin after an id."""

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    after_producer_id: Int64Field = 0


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A producer, and the last row that it appended."""

    producer_id: ProducerIdField
    producer_epoch: ProducerEpochField
    last_sequence: Int64Field
    last_offset: OffsetField
    timestamp_us: TimestampField


class ListProducersResponse(Response, frozen=True, kw_only=True):
    """In the order of their ids; an empty page is the end."""

    producers: tuple[ProducerInfo, ...]


class AppendResponse(Response, frozen=True, kw_only=True):
    """The offsets of the rows: the n-th has offset `base_offset + n`, and all have one timestamp."""

    base_offset: OffsetField
    end_offset: OffsetField
    timestamp_us: TimestampField
    leader_epoch: LeaderEpochField
    fsynced: bool
    throttle_ms: Int64Field = 0  # rate limit: wait this long before the next request


class AppendAtResponse(AppendResponse, frozen=True, kw_only=True):
    """The range of the batch; `timestamp_us` is that of its last row."""


class AppendOnceResponse(AppendResponse, frozen=True, kw_only=True):
    """`duplicate`: the rows were stored before this request."""

    duplicate: bool = False
