"""Streams as clients see them: what there is, where it lives, how it fares; and the requests that change it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base import limits
from penstock.base.config import Intake, StreamConfig
from penstock.base.ids import PartitionId
from penstock.base.partitioning import PartitionBy
from penstock.messages.fields import (
    ArchiveField,
    BrokerIdField,
    Int32Field,
    Int64Field,
    LeaderEpochField,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
    TimestampField,
)

if TYPE_CHECKING:
    ReportedConfig = StreamConfig
else:

    class ReportedConfig(StreamConfig, frozen=True, kw_only=True, forbid_unknown_fields=False):
        """A config as a broker reports it: further fields of a newer one are ignored; a request refuses them."""


CONSUMER_CONTROL = "consumer_control"
"""In `PartitionInfo.dropped`: heartbeats and flow control requests of JetStream push consumers: no messages."""


class PartitionHealth(StrEnum):
    """What a partition can do now. Travels as a string: a newer broker may know more states."""

    ONLINE = "online"  # stores and serves
    READ_ONLY = "read_only"  # serves; appends are refused (damage below what was known to be on disk)
    FENCED = "fenced"  # a sync of its file failed: serves what was committed, stores nothing until a restart
    IMPEDED = "impeded"  # the disk took nothing last, because it is full (it is tried again), or a sync hangs
    STARTING = "starting"  # recovering, or its subscription is not confirmed yet
    NO_LEADER = "no_leader"  # nobody leads it, as far as the broker that answers can see: nothing is stored or acked
    FAILED = "failed"  # its log cannot be opened; nothing of it was touched
    NOT_FOLLOWING = "not_following"  # a replica that is not in sync and gets nothing of its leader, or cannot take it


class GapInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A time without a subscribed leader, at most: what was published then may not be stored; what was acked is."""

    start_us: TimestampField
    end_us: TimestampField | None = None  # None: it lasts
    reason: str = ""


def joined(gaps: Iterable[GapInfo]) -> tuple[GapInfo, ...]:
    """The times that these make together, earliest first: several brokers may tell of one, each as far as it knows."""
    found: list[GapInfo] = []
    for gap in sorted(gaps, key=_extent):
        last = found[-1] if found else None
        if last is None or (last.end_us is not None and last.end_us <= gap.start_us):
            found.append(gap)
        elif last.end_us is not None and (gap.end_us is None or gap.end_us > last.end_us):
            found[-1] = msgspec.structs.replace(last, end_us=gap.end_us)
    return tuple(found)


def _extent(gap: GapInfo) -> tuple[int, bool, int]:
    return gap.start_us, gap.end_us is not None, -(gap.end_us or 0)


class DamageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Stored bytes that fail their check, and the offsets that cannot be read for it."""

    file: str
    position: Int64Field
    expected: str
    found: str
    base_offset: OffsetField | None = None
    end_offset: OffsetField | None = None


class FollowerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far one follower, or observer, has come, as its leader sees it."""

    broker_id: BrokerIdField
    lag: Int64Field | None = None  # offsets that it is behind the leader's log end; None: not heard of in this epoch
    is_impeded: bool = False  # its log takes nothing: its disk is full, or has failed
    behind_us: Int64Field | None = None  # of an observer, as it says itself to a client that asks it; see PartitionInfo
    # What one that is not in sync, or observes, says of its replica to a client that asks it. Empty: it is well, or was
    # not asked, or has not answered.
    state: str = ""
    state_reason: str = ""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: who leads it, what it holds, what is wrong with it.

    What it holds is None where the broker that answers has no copy, or cannot open it: its leader is to be asked.
    """

    partition: PartitionField = PartitionId(0)
    # HOST:PORT of the leader's socket API. Empty: nobody leads now; without `replicas`, the broker that answers does.
    leader: str = ""
    leader_id: BrokerIdField | None = None
    leader_epoch: LeaderEpochField
    log_start: OffsetField | None = None
    committed_end: OffsetField | None = None
    log_end: OffsetField | None = None
    flushed_end: OffsetField | None = None
    replicas: tuple[BrokerIdField, ...] = ()  # the preferred leader first
    isr: tuple[BrokerIdField, ...] = ()
    eligible: tuple[BrokerIdField, ...] = ()  # left the ISR, and may lead until commits resume
    observers: tuple[BrokerIdField, ...] = ()  # have a copy for readers, and are in none of the others
    # All that was committed so long ago is shown by the broker that answers; None: it has no copy, or does not know.
    behind_us: Int64Field | None = None
    followers: tuple[FollowerInfo, ...] = ()  # told by the leader alone
    size_bytes: Int64Field = 0
    segment_count: Int32Field = 0
    last_timestamp_us: TimestampField | None = None  # None: holds no message
    state: str = PartitionHealth.ONLINE  # a PartitionHealth, or a newer broker's
    state_reason: str = ""
    damage: tuple[DamageInfo, ...] = ()
    gaps: tuple[GapInfo, ...] = ()  # the latest ones, oldest first
    # Reason → messages that matched and were not stored, since the start.
    dropped: dict[str, Int64Field] = msgspec.field(default_factory=dict)
    dedup_ids: Int64Field = 0  # message ids that its leader knows; 0: nobody sent one to it yet
    dedup_ids_forgotten: Int64Field = 0  # those of them that went before the window ended: there were too many
    archives: dict[str, OffsetField] = msgspec.field(default_factory=dict)  # up to where each has it
    archived_end: OffsetField | None = None  # up to where all have it, as this log stands; None: there is no archive
    producers: Int64Field = 0  # producers that its leader knows; 0: none has appended since that one leads


class KeyMark(msgspec.Struct, frozen=True, array_like=True):
    """Where in a partition the keys end that left it when there came to be so many partitions."""

    partitions: Int32Field
    partition: PartitionField
    end_offset: OffsetField


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its id, its config and its partitions in order."""

    stream_id: StreamIdField
    config: ReportedConfig
    partitions: tuple[PartitionInfo, ...] = ()
    created_us: TimestampField | None = None
    intake: str = Intake.OPEN  # an Intake, or a newer broker's
    intake_us: TimestampField | None = None  # since when; None: it was never another one
    counts: tuple[Int32Field, ...] = ()  # how many partitions it had, one after the other; none: always as many
    key_marks: tuple[KeyMark, ...] = ()  # by number of partitions, then by partition
    owner: str = ""  # the user who made it; "": nobody had to log in then, or it is Penstock's own
    overlapping: tuple[str, ...] = ()  # only in the answer to create: streams, of those that the asker may see, that
    # store messages of its subjects, too; by name, OVERLAPPING_TOLD_MAX of them

    @property
    def is_moving(self) -> bool:
        """Whether keys are on their way to partitions that were added last."""
        marked = sum(one.partitions == len(self.partitions) for one in self.key_marks)
        by_keys = self.config.split.how is not PartitionBy.GROUP and not self.config.is_internal
        return bool(self.counts) and by_keys and marked < self.counts[-2]

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    @property
    def subject(self) -> str:
        """The NATS subject, perhaps with wildcards, that it stores."""
        return self.config.subject


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One broker and where clients reach it."""

    broker_id: BrokerIdField
    address: str  # HOST:PORT
    broker_version: str = ""
    rack: str | None = None
    is_live: bool = True
    votes: bool = True  # on the metadata: most of those who do must be there for it to change
    is_reachable: bool | None = None  # by the broker that answers; None: it does not say


class MetadataRequest(Request, frozen=True, kw_only=True):
    """Streams by name, or all in the order of their names, page by page. A name that does not exist is left out."""

    names: tuple[str, ...] | None = None
    after: str | None = None  # with all: begin behind this name
    streams_max: Int32Field = limits.METADATA_STREAMS_MAX


class MetadataResponse(Response, frozen=True, kw_only=True):
    """`next_after` is the `after` of the next page, or None on the last."""

    streams: tuple[StreamInfo, ...]
    brokers: tuple[BrokerInfo, ...] = ()
    next_after: str | None = None


class FindStreamsRequest(Request, frozen=True, kw_only=True):
    """Which streams store a message on this plain subject?"""

    subject: str


class FindStreamsResponse(Response, frozen=True, kw_only=True):
    """The streams, in the order of their names."""

    streams: tuple[StreamInfo, ...]


class CreateStreamRequest(Request, frozen=True, kw_only=True):
    """Create a stream; the same name with the same config gives the stream that is there, paused or not.

    With `is_paused` (from version 2 on) nobody listens for it until it is resumed.
    """

    config: StreamConfig
    timeout_ms: Int64Field = 10_000
    is_paused: bool = False

    def version_needed(self) -> int:
        """2 where it matters: a broker of before would have it take messages at once."""
        return 2 if self.is_paused else 1

    @property
    def intake(self) -> Intake:
        """The one that it begins with."""
        return Intake.PAUSED if self.is_paused else Intake.OPEN


class CreateStreamResponse(Response, frozen=True, kw_only=True):
    """Sent once the subscriptions of all its partitions are confirmed: what is published afterwards is stored."""

    stream: StreamInfo
    created: bool  # False: it was there already


class AlterStreamRequest(Request, frozen=True, kw_only=True):
    """Change fields of a stream's config (`base.config.ALTERABLE`); all of them or none."""

    name: str
    stream_id: StreamIdField | None = None  # None: whichever has the name now
    changes: dict[str, Any]


class AlterStreamResponse(Response, frozen=True, kw_only=True):
    """The stream as it is now."""

    stream: StreamInfo


class SetIntakeRequest(Request, frozen=True, kw_only=True):
    """Have a stream take messages, or not; a sealed one stays so."""

    name: str
    stream_id: StreamIdField | None = None  # None: whichever has the name now
    intake: Intake


class SetIntakeResponse(Response, frozen=True, kw_only=True):
    """The stream as it is now, on every live broker: one that is open listens again."""

    stream: StreamInfo


class TruncateRequest(Request, frozen=True, kw_only=True):
    """Give up what comes before an offset of a partition, which is at most its committed end.

    Goes to the partition's leader, which hands it on to the metadata leader with its `leader_epoch`.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    before: OffsetField
    is_dry_run: bool = False  # say only what would go
    leader_epoch: LeaderEpochField | None = None


class TruncateResponse(Response, frozen=True, kw_only=True):
    """What went with this request, or would go: messages as offsets count them, and bytes on one broker's disk."""

    log_start: OffsetField
    messages: Int64Field = 0
    size_bytes: Int64Field = 0


class ReportArchivedRequest(Request, frozen=True, kw_only=True):
    """An archive has all of a partition before `end_offset`, at most its committed end; None: there is no such archive.

    Goes to the partition's leader, which hands it on to the metadata leader with its `leader_epoch`.
    `archived_epoch`: of the leader who told the archive that end; None: nobody can know whether the log was cut since.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)  # without an `end_offset` any of the stream: it is forgotten for all
    archive: ArchiveField
    end_offset: OffsetField | None
    leader_epoch: LeaderEpochField | None = None
    archived_epoch: LeaderEpochField | None = None


class ReportArchivedResponse(Response, frozen=True, kw_only=True):
    """Up to where all archives of the stream have the partition; None: it has none."""

    archived_end: OffsetField | None


class DeleteStreamRequest(Request, frozen=True, kw_only=True):
    """Delete a stream and its data."""

    name: str
    stream_id: StreamIdField | None = None  # None: whichever has the name now


class DeleteStreamResponse(Response, frozen=True, kw_only=True):
    """What was deleted."""

    stream_id: StreamIdField
