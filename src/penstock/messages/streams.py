"""Streams in the client protocol: description, placement and state; and the requests that change them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base import limits, notebook
from penstock.base.config import Intake, StreamConfig
from penstock.base.ids import PartitionId
from penstock.base.partitioning import PartitionBy
from penstock.base.units import format_bytes
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
        """A config in an answer: unknown fields of a newer broker are ignored; requests refuse them."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CONSUMER_CONTROL = "consumer_control"
"""Reason in `PartitionInfo.dropped`: heartbeats and flow control of JetStream push consumers, which are no messages."""

UNMET_EXPECTATION = "unmet_expectation"
"""Reason in `PartitionInfo.dropped`: another publisher was first, so the expected last sequence or id was not there."""

NO_TROUBLE = (CONSUMER_CONTROL, UNMET_EXPECTATION)
"""Reasons that a healthy stream has, too."""


BROKER_STOPPED = "the broker was stopped"
LEADER_CHANGED = "the leader changed"
"""Reasons of a `GapInfo` that an orderly stop of a broker has."""

NATS_NOT_CONNECTED = "not subscribed: NATS is not connected"
"""Reason of a partition that is STARTING only because its leader has no connection to NATS."""


class PartitionHealth(StrEnum):
    """The state of a partition. Travels as a string: a newer broker may have more states."""

    ONLINE = "online"  # stores and serves
    READ_ONLY = "read_only"  # serves; refuses appends (corruption of flushed data)
    FENCED = "fenced"  # a sync of its file failed: serves committed data, stores nothing until a restart
    IMPEDED = "impeded"  # the last write failed because the disk is full (it is retried), or a sync hangs
    STARTING = "starting"  # recovering, or its subscription is not confirmed yet
    NO_LEADER = "no_leader"  # no leader, as far as the answering broker knows: nothing is stored or acked
    FAILED = "failed"  # its log cannot be opened; nothing was changed
    NOT_FOLLOWING = "not_following"  # a replica outside the ISR that gets nothing from its leader, or cannot store it


class GapInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A possible time without a subscription: messages published then may not be stored; acked ones are."""

    start_us: TimestampField
    end_us: TimestampField | None = None  # None: it lasts
    reason: str = ""


def joined(gaps: Iterable[GapInfo]) -> tuple[GapInfo, ...]:
    """Merge overlapping gaps, earliest first: several brokers may report one, each as far as it knows."""
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
    """Corruption: stored bytes that fail their check, and the offsets that cannot be read because of it."""

    file: str
    position: Int64Field
    expected: str
    found: str
    base_offset: OffsetField | None = None
    end_offset: OffsetField | None = None


class FollowerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Replication state of one follower or observer (read replica), by its leader."""

    broker_id: BrokerIdField
    lag: Int64Field | None = None  # offsets behind the leader's log end; None: it has not fetched in this epoch
    is_impeded: bool = False  # its log accepts nothing: its disk is full, or has failed
    behind_us: Int64Field | None = None  # of an observer, asked from it directly by a client; see PartitionInfo
    # State of a replica that is not in sync, or an observer, asked from it directly by a client. Empty: it is well, was
    # not asked, or has not answered.
    state: str = ""
    state_reason: str = ""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: leader, replicas, offsets and state.

    Offsets are None if the answering broker has no copy, or cannot open it: ask its leader.
    """

    partition: PartitionField = PartitionId(0)
    # HOST:PORT of the leader's socket API. Empty: no leader now; without `replicas` the answering broker leads.
    leader: str = ""
    leader_id: BrokerIdField | None = None
    leader_epoch: LeaderEpochField
    log_start: OffsetField | None = None  # log start offset
    committed_end: OffsetField | None = None  # high watermark
    # Messages that readers are shown, without deleted ones; None: the offsets are, or an earlier version does not tell.
    messages: Int64Field | None = None
    log_end: OffsetField | None = None  # log end offset
    flushed_end: OffsetField | None = None  # end of what is synced to disk
    replicas: tuple[BrokerIdField, ...] = ()  # the preferred leader first
    isr: tuple[BrokerIdField, ...] = ()
    eligible: tuple[BrokerIdField, ...] = ()  # left the ISR, and may lead until commits resume (KIP-966's ELR)
    observers: tuple[BrokerIdField, ...] = ()  # read replicas, in none of the other lists
    # Staleness: the answering broker shows everything committed so long ago; None: it has no copy, or does not know.
    behind_us: Int64Field | None = None
    followers: tuple[FollowerInfo, ...] = ()  # reported by the leader only
    size_bytes: Int64Field = 0
    segment_count: Int32Field = 0
    last_timestamp_us: TimestampField | None = None  # None: holds no message
    state: str = PartitionHealth.ONLINE  # a PartitionHealth, or a newer broker's state
    state_reason: str = ""
    damage: tuple[DamageInfo, ...] = ()
    gaps: tuple[GapInfo, ...] = ()  # the latest ones, oldest first
    # Reason → messages that matched the subject and were not stored, since the start.
    dropped: dict[str, Int64Field] = msgspec.field(default_factory=dict)
    dedup_ids: Int64Field = 0  # message ids in the leader's deduplication window
    dedup_ids_forgotten: Int64Field = 0  # ids that were evicted before the window ended, because there were too many
    archives: dict[str, OffsetField] = msgspec.field(default_factory=dict)  # the archived end of each archive
    archived_end: OffsetField | None = None  # the lowest of them, for the present log; None: there is no archive
    producers: Int64Field = 0  # idempotent producers known to the leader; 0: none has appended since it leads
    to_erase: Int64Field = 0  # securely deleted messages that files of the answering broker may still hold
    to_erase_reason: str = ""  # what their erasing waits for; also for replaced files, with `to_erase` 0


class KeyMark(msgspec.Struct, frozen=True, array_like=True):
    """The end of the messages in a partition whose keys moved when the stream grew to that number of partitions."""

    partitions: Int32Field
    partition: PartitionField
    end_offset: OffsetField


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its id, its config and its partitions in order. `messages`, `size_bytes` and `last_timestamp` sum up
    what they hold.
    """

    stream_id: StreamIdField
    config: ReportedConfig
    partitions: tuple[PartitionInfo, ...] = ()
    created_us: TimestampField | None = None
    intake: str = Intake.OPEN  # an Intake, or a newer broker's value
    intake_us: TimestampField | None = None  # when it began; None: never changed
    counts: tuple[Int32Field, ...] = ()  # its partition counts, in order; empty: never changed
    key_marks: tuple[KeyMark, ...] = ()  # by number of partitions, then by partition
    owner: str = ""  # the user who created it; "": authentication was off, or it is an internal stream
    # Only in the answer to create: other streams, as far as the caller may see them, that store messages of its
    # subjects, too; by name, at most OVERLAPPING_TOLD_MAX.
    overlapping: tuple[str, ...] = ()

    @property
    def is_moving(self) -> bool:
        """True while keys move to the partitions that were added last."""
        marked = sum(one.partitions == len(self.partitions) for one in self.key_marks)
        by_keys = self.config.split.how is not PartitionBy.GROUP and not self.config.is_internal
        return bool(self.counts) and by_keys and marked < self.counts[-2]

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    @property
    def subject(self) -> str:
        """The first NATS subject that it stores, perhaps with wildcards."""
        return self.config.subject

    @property
    def subjects(self) -> tuple[str, ...]:
        """All NATS subjects that it stores."""
        return self.config.subjects

    @property
    def messages(self) -> int | None:
        """Number of messages, without deleted ones.

        Offsets without a message that no broker has deleted count, too: gaps of an imported stream, and what an earlier
        version has compacted. `client.row_count` counts without them. None: the leader of a partition did not answer.
        """
        count = 0
        for part in self.partitions:
            if part.committed_end is None or part.log_start is None:
                return None
            count += part.committed_end - part.log_start if part.messages is None else part.messages
        return count

    @property
    def size_bytes(self) -> int | None:
        """Size of the log in one replica of each partition, in bytes. None: a leader did not answer."""
        return None if self.messages is None else sum(part.size_bytes for part in self.partitions)

    @property
    def last_timestamp(self) -> datetime | None:
        """Append time of the latest message, in UTC. None: there is no message, or a leader did not answer."""
        if self.messages is None:
            return None
        latest = max(
            (one.last_timestamp_us for one in self.partitions if one.last_timestamp_us is not None), default=None
        )
        return None if latest is None else _EPOCH + timedelta(microseconds=latest)

    def __repr__(self) -> str:
        last = self.last_timestamp
        fields = {
            "subject": ", ".join(map(repr, self.subjects)),
            "partitions": len(self.partitions),
            "messages": self.messages,
            "size_bytes": self.size_bytes,
            "last_timestamp": None if last is None else repr(last.isoformat()),
        }
        return f"StreamInfo({self.name!r}, {', '.join(f'{name}={value}' for name, value in fields.items())})"

    def _repr_html_(self) -> str:
        fields = {
            one.name: (getattr(self.config, one.name), one.default) for one in msgspec.structs.fields(self.config)
        }
        chosen = {name: value for name, (value, default) in fields.items() if value != default and name not in _SUMMARY}
        return notebook.html_pairs(dict(zip(_SUMMARY, _summary(self), strict=True)) | chosen)


class StreamList(list[StreamInfo]):
    """Streams; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return notebook.html_table(_SUMMARY, map(_summary, self), count=len(self))


_SUMMARY = ("name", "subject", "partitions", "messages", "size", "last message", "state")


def _summary(info: StreamInfo) -> tuple[object, ...]:
    states = [*dict.fromkeys(str(one.state) for one in info.partitions)]
    state = info.intake if states == [PartitionHealth.ONLINE] else ", ".join(states)
    size = None if info.size_bytes is None else format_bytes(info.size_bytes)
    return info.name, ", ".join(info.subjects), len(info.partitions), info.messages, size, info.last_timestamp, state


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One broker and its address for clients."""

    broker_id: BrokerIdField
    address: str  # HOST:PORT
    broker_version: str = ""
    rack: str | None = None
    is_live: bool = True
    votes: bool = True  # a voter of the metadata quorum
    is_reachable: bool | None = None  # from the answering broker; None: it does not report it
    # Milliseconds since the metadata leader has heard of it; its session ends after SESSION_MS. Only in
    # the status of the metadata leader; None: not known.
    silent_ms: Int64Field | None = None


class MetadataRequest(Request, frozen=True, kw_only=True):
    """Request streams by name, or all in name order, page by page. Unknown names are left out."""

    names: tuple[str, ...] | None = None
    after: str | None = None  # with all: begin after this name
    streams_max: Int32Field = limits.METADATA_STREAMS_MAX


class MetadataResponse(Response, frozen=True, kw_only=True):
    """The streams; `next_after` is the `after` of the next page, or None on the last."""

    streams: tuple[StreamInfo, ...]
    brokers: tuple[BrokerInfo, ...] = ()
    next_after: str | None = None


class FindStreamsRequest(Request, frozen=True, kw_only=True):
    """Request the streams that store messages of this subject without wildcards."""

    subject: str


class FindStreamsResponse(Response, frozen=True, kw_only=True):
    """The streams, in name order."""

    streams: tuple[StreamInfo, ...]


class CreateStreamRequest(Request, frozen=True, kw_only=True):
    """Create a stream; an existing one with the same name and config is returned, paused or not.

    With `is_paused` (from version 2 on) it has no subscription until it is resumed. `refuse_overlap` (from version 3
    on): not beside another stream of users with overlapping subjects, also if both are created at once.
    """

    config: StreamConfig
    timeout_ms: Int64Field = 10_000
    is_paused: bool = False
    refuse_overlap: bool = False

    def version_needed(self) -> int:
        """3 with `refuse_overlap`, 2 with `is_paused`: an older broker would store messages at once."""
        return 3 if self.refuse_overlap else 2 if self.is_paused else 1

    @property
    def intake(self) -> Intake:
        """The stream's initial intake."""
        return Intake.PAUSED if self.is_paused else Intake.OPEN


class CreateStreamResponse(Response, frozen=True, kw_only=True):
    """Sent once the subscriptions of all its partitions are confirmed: messages published afterwards are stored."""

    stream: StreamInfo
    created: bool  # False: it existed already


_SINCE_3 = frozenset(
    {
        "schema_check", "description", "metadata", "max_messages_per_subject", "discard", "deny_delete", "deny_purge",
        "discard_new_per_subject", "subject_delete_marker_ttl_ms", "nats_readable", "allow_message_schedules",
        "allow_atomic", "retention", "interest_of",
    }
)  # fmt: skip


class AlterStreamRequest(Request, frozen=True, kw_only=True):
    """Change fields of a stream's config (`base.config.ALTERABLE`) and its subjects, atomically.

    With other subjects it is answered once the leaders' subscriptions are confirmed; with `everywhere` (from version 3
    on) not before all live brokers have the change. `refuse_overlap` (from version 3 on) as in CreateStreamRequest.
    """

    name: str
    stream_id: StreamIdField | None = None  # None: the stream that has the name now
    changes: dict[str, Any]
    keep_suspended: bool = False  # leave `suspend_deletion` as it is if it is `yes`, which only a user sets
    add_subjects: tuple[str, ...] = ()
    remove_subjects: tuple[str, ...] = ()
    everywhere: bool = False
    refuse_overlap: bool = False

    def version_needed(self) -> int:
        """3 for what is new in 0.4, 2 for `suspend_deletion`: older brokers do not know them."""
        is_new = self.everywhere or self.refuse_overlap or self.add_subjects or self.remove_subjects
        if is_new or self.changes.keys() & _SINCE_3:
            return 3
        return 2 if self.keep_suspended or "suspend_deletion" in self.changes else 1


class AlterStreamResponse(Response, frozen=True, kw_only=True):
    """The stream as it is now."""

    stream: StreamInfo


class SetIntakeRequest(Request, frozen=True, kw_only=True):
    """Set a stream's intake: open, paused, read-only or sealed, which is final."""

    name: str
    stream_id: StreamIdField | None = None  # None: the stream that has the name now
    intake: Intake


class SetIntakeResponse(Response, frozen=True, kw_only=True):
    """The stream, as now known to every live broker; an open one is subscribed again."""

    stream: StreamInfo


class TruncateRequest(Request, frozen=True, kw_only=True):
    """Truncate a partition before an offset, which is at most its committed end.

    Goes to the partition's leader, which forwards it to the metadata leader with its `leader_epoch`. `keep`: so many of
    the last messages before the offset stay.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    before: OffsetField
    is_dry_run: bool = False  # report only what would be removed
    keep: Int64Field = 0
    leader_epoch: LeaderEpochField | None = None
    user: str = ""  # of a broker: the user for whom it asks, and who is named in `__audit`
    user_index: Int64Field = 0  # the index of the user's creation

    def version_needed(self) -> int:
        """2 with `keep`: an older broker would delete what is to stay; and with `user`, which it does not know."""
        return 2 if self.keep or self.user else 1


class TruncateResponse(Response, frozen=True, kw_only=True):
    """The number of removed messages, and bytes on one broker's disk; for a dry run, those to remove.

    Where too much would have to be read to tell messages from offsets, they are offsets.
    """

    log_start: OffsetField
    messages: Int64Field = 0
    size_bytes: Int64Field = 0


class ReportArchivedRequest(Request, frozen=True, kw_only=True):
    """Report that an archive has a partition up to `end_offset`, at most its committed end; None: forget it.

    Goes to the partition's leader, which forwards it to the metadata leader with its `leader_epoch`. `archived_epoch`:
    that of the leader that reported this end to the archive; None: unknown, so the log may have been truncated since.
    """

    stream_id: StreamIdField
    # any partition without an `end_offset`: the archive is forgotten for all
    partition: PartitionField = PartitionId(0)
    archive: ArchiveField
    end_offset: OffsetField | None
    leader_epoch: LeaderEpochField | None = None
    archived_epoch: LeaderEpochField | None = None


class ReportArchivedResponse(Response, frozen=True, kw_only=True):
    """The end up to which all archives of the stream have the partition; None: it has no archive."""

    archived_end: OffsetField | None


class DeleteStreamRequest(Request, frozen=True, kw_only=True):
    """Delete a stream and its data. With `everywhere` (from version 2 on) answered once all live brokers know it."""

    name: str
    stream_id: StreamIdField | None = None  # None: the stream that has the name now
    everywhere: bool = False

    def version_needed(self) -> int:
        """2 with `everywhere`: an older broker would answer before."""
        return 2 if self.everywhere else 1


class DeleteStreamResponse(Response, frozen=True, kw_only=True):
    """The id of the deleted stream."""

    stream_id: StreamIdField
