"""Stream config: name, subject and settings. Parsed once; all errors are reported together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.base.partitioning import (
    PUBLISHER,
    PartitionBy,
    PartitionSplit,
    bounds_mistakes,
    parse_split,
    token_mistake,
)
from penstock.base.subjects import (
    INTERNAL_NAME_PREFIX,
    INTERNAL_SUBJECT_PREFIX,
    begins_with_wildcard,
    is_reserved,
    is_wildcard,
    is_within,
    matches,
    overlap,
    partition_subject,
    queue_group_mistake,
    stream_name_mistake,
    subject_mistake,
)


class Acks(StrEnum):
    """Policy for acks to a message's reply subject."""

    REPLY = "reply"  # every message with a reply subject is acked on it, as JetStream does
    ENVELOPE = "envelope"  # only messages in an envelope are acked; plain reply subjects are the application's
    NEVER = "never"  # nothing is acked


class Durability(StrEnum):
    """Durability that a message must reach before it is acked and can be read."""

    AUTO = "auto"  # `fsync` if one in-sync replica may suffice for an ack; otherwise `os`
    FSYNC = "fsync"  # on disk (fdatasync; group commit)
    OS = "os"  # in the page cache: survives a crash of the process, not a power loss


class Intake(StrEnum):
    """State of a stream's intake of messages. Not a field of its config: separate requests change it."""

    OPEN = "open"
    PAUSED = "paused"  # the stream is not subscribed, and appends are refused
    READ_ONLY = "read_only"  # messages are refused, each with an error
    SEALED = "sealed"  # like READ_ONLY, permanently; messages are removed only with the whole stream


class Storage(StrEnum):
    """Storage of a stream's log."""

    FILE = "file"
    MEMORY = "memory"  # lost when the broker stops


class Retain(StrEnum):
    """Policy for what `max_age_ms`, `max_messages` and `max_bytes` may delete."""

    LIMITS = "limits"  # all that exceed a limit
    UNTIL_ARCHIVED = (
        "until-archived"  # of those, only the ones that every archive has: see `penstock.node.replicas.archives`
    )


class RetentionPolicy(StrEnum):
    """Which messages stay, beside the limits, as in JetStream."""

    LIMITS = "limits"  # all, until a limit deletes them
    WORKQUEUE = "workqueue"  # those that no consumer has acked: each belongs to one consumer at most
    INTEREST = "interest"  # those that a consumer wants and has not acked; without consumers none


class Discard(StrEnum):
    """Handling of a message that would exceed `max_messages` or `max_bytes`, as in JetStream."""

    OLD = "old"  # it is stored, and the oldest ones go
    NEW = "new"  # it is refused


class Compression(StrEnum):
    """Compression that the cleaner applies to rewritten segments: Arrow's own body compression."""

    NONE = "none"
    LZ4 = "lz4"  # LZ4 frames; fast to read
    ZSTD = "zstd"  # better compression, slower


class Encryption(StrEnum):
    """Encryption of files on disk; each replica's files have their own keys."""

    NONE = "none"
    AES_256_GCM = "aes-256-gcm"


class SuspendDeletion(StrEnum):
    """State of deletion by retention, compaction, message TTLs and rollups; the limits stay as they are."""

    NO = "no"
    YES = "yes"  # until a user sets it to `no`
    COPYING = "copying"  # set by a copy, restore or import into the stream, which sets `no` when it is complete


class SchemaCheck(StrEnum):
    """Handling of messages whose values do not fit the registered schema of their subject."""

    NO = "no"  # they are stored; nothing is checked
    COUNT = "count"  # they are stored, and counted
    REFUSE = "refuse"  # they are refused, with the reason


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config of one stream. `None` means no limit.

    A field added in a later version is UNSET where it keeps the earlier behaviour. It is then neither stored nor sent,
    so that earlier versions can read streams that do not use it.
    """

    name: str
    subject: str  # the first of its subjects: see `subjects`
    acks: Acks = Acks.REPLY
    durability: Durability = Durability.AUTO
    storage: Storage = Storage.FILE
    max_age_ms: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    max_message_bytes: int = limits.MESSAGE_BYTES_DEFAULT
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    segment_age_ms: int | None = 24 * 3_600_000
    partitions: int = 1
    partition_by: str = PartitionBy.PUBLISHER  # how a message is assigned to a partition: see `base.partitioning`
    range_bounds: tuple[str, ...] = ()  # for `range`: the first key of partition n + 1, in any order
    group: str | None = None  # streams of one group form a NATS queue group: each message goes to a random one of them
    replicas: int | None = None  # per partition; None: decided at creation by the number of brokers
    min_isr: int | None = None  # in-sync replicas required for an ack; None: more than half of the replicas, or half
    allow_unclean_election: bool = False  # a replica that lacks acked messages may be elected if no other is available
    dedup_window_ms: int | None = limits.DEDUP_WINDOW_MS_DEFAULT  # a repeated message id is a duplicate; None: never
    dedup_ids_max: int = limits.DEDUP_IDS_DEFAULT  # ids kept per partition; beyond it the oldest are dropped
    compact: bool = False  # keep only the last message of each key
    compaction_lag_ms: int = 0  # minimum age before compaction; dedup_window_ms is another lower bound
    tombstone_retention_ms: int = limits.TOMBSTONE_RETENTION_MS_DEFAULT  # minimum time that tombstones are kept
    compression: Compression = Compression.NONE  # of sealed segments, from the cleaner's next rewrite on
    allow_message_ttl: bool = False  # messages may have their own time to live, in a Nats-TTL header
    allow_rollup: bool = False  # a Nats-Rollup header may remove older messages
    retain: Retain = Retain.LIMITS  # which messages the three limits may delete
    observers: int = 0  # read replicas per partition, in addition to `replicas`
    encryption: Encryption | msgspec.UnsetType = msgspec.UNSET  # of files with messages; UNSET: none. Cannot be altered
    suspend_deletion: SuspendDeletion | msgspec.UnsetType = msgspec.UNSET  # UNSET: no
    schema_check: SchemaCheck | msgspec.UnsetType = msgspec.UNSET  # of values before they are stored; UNSET: no
    more_subjects: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # in addition to `subject`; UNSET: none
    # Removed ones whose messages may still be there: rules on subjects must cover them, and copies carry such messages.
    former_subjects: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType = msgspec.UNSET  # for people; UNSET: none
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # for programs; Penstock does not read it
    # In each partition: readers are shown the last ones of each subject only. UNSET: all; so is None, in changes.
    max_messages_per_subject: int | msgspec.UnsetType | None = msgspec.UNSET
    discard: Discard | msgspec.UnsetType = msgspec.UNSET  # at max_messages and max_bytes; UNSET: old
    # At max_messages_per_subject, too, what is beyond is refused, and nothing is hidden. UNSET: no
    discard_new_per_subject: bool | msgspec.UnsetType = msgspec.UNSET
    deny_delete: bool | msgspec.UnsetType = msgspec.UNSET  # no single message can be deleted, for ever; UNSET: no
    deny_purge: bool | msgspec.UnsetType = msgspec.UNSET  # nothing can be purged, for ever; UNSET: no
    # The last message of a subject leaves a marker for so long when it expires. UNSET: none; so is None, in changes.
    subject_delete_marker_ttl_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    # Messages with a Nats-Schedule header are sent to another subject of the stream at their time. UNSET: refused
    allow_message_schedules: bool | msgspec.UnsetType = msgspec.UNSET
    # JetStream's API sends its messages over NATS, in clear. UNSET: unless its files are encrypted
    nats_readable: bool | msgspec.UnsetType = msgspec.UNSET
    first_offset: int | msgspec.UnsetType = msgspec.UNSET  # of each partition's log. UNSET: 0. Cannot be altered
    # Whether an ack of its consumers removes a message. UNSET: limits. Never to or from workqueue once it exists
    retention: RetentionPolicy | msgspec.UnsetType = msgspec.UNSET
    # With retention interest: `group:NAME` and `archive:NAME` whose committed offsets count as acks. UNSET: none
    interest_of: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    # Messages with Nats-Batch-Id are stored together, or none of them. UNSET: no, they are refused
    allow_atomic: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def subjects(self) -> tuple[str, ...]:
        """All subjects that the stream stores, the first one first; no two of them overlap."""
        return (self.subject,) if self.more_subjects is msgspec.UNSET else (self.subject, *self.more_subjects)

    @property
    def held_subjects(self) -> tuple[str, ...]:
        """Subjects of all messages that its log may hold: `subjects` and the former ones."""
        return self.subjects if self.former_subjects is msgspec.UNSET else (*self.subjects, *self.former_subjects)

    @property
    def split(self) -> PartitionSplit:
        """Assignment of messages to partitions; irrelevant with one partition."""
        return parse_split(self.partition_by) if self.partitions > 1 else PUBLISHER

    @property
    def competes(self) -> bool:
        """True if a message goes to a random log: a republished message may go to another one."""
        return self.group is not None or self.split.how is PartitionBy.GROUP

    def subject_of(self, partition: int) -> str:
        """Return the subject of one partition: `<subject>.<n>`, or the stream's subject for all partitions."""
        split = self.split
        if split.how is PartitionBy.MAPPED:
            return f"{self.subject}.{partition}"
        return partition_subject(self.subject, partition) if split.has_subjects else self.subject

    def subjects_of(self, partition: int) -> tuple[str, ...]:
        """Return the subjects on which the leader of one partition listens."""
        return self.subjects if self.more_subjects is not msgspec.UNSET else (self.subject_of(partition),)

    def stores(self, subject: str) -> bool:
        """True if one of the stream's subjects is, or covers, that plain subject."""
        return any(matches(one, subject) for one in self.subjects)

    @property
    def listening_patterns(self) -> tuple[str, ...]:
        """Patterns that cover the subjects of all partitions, including ones added later."""
        subjects = self.subjects
        if len(subjects) > 1 or not parse_split(self.partition_by).has_subjects or self.subject.endswith(">"):
            return subjects
        return self.subject, f"{self.subject}.*"

    def __post_init__(self) -> None:
        if self.encryption is Encryption.NONE:  # one representation only: equal configs compare equal
            msgspec.structs.force_setattr(self, "encryption", msgspec.UNSET)
        if self.suspend_deletion is SuspendDeletion.NO:
            msgspec.structs.force_setattr(self, "suspend_deletion", msgspec.UNSET)
        if self.schema_check is SchemaCheck.NO:
            msgspec.structs.force_setattr(self, "schema_check", msgspec.UNSET)
        if self.max_messages_per_subject is None:
            msgspec.structs.force_setattr(self, "max_messages_per_subject", msgspec.UNSET)
        if self.subject_delete_marker_ttl_ms is None:
            msgspec.structs.force_setattr(self, "subject_delete_marker_ttl_ms", msgspec.UNSET)
        if self.discard is Discard.OLD:
            msgspec.structs.force_setattr(self, "discard", msgspec.UNSET)
        if self.retention is RetentionPolicy.LIMITS:
            msgspec.structs.force_setattr(self, "retention", msgspec.UNSET)
        for name in (
            "more_subjects", "former_subjects", "description", "metadata", "deny_delete", "deny_purge",
            "discard_new_per_subject", "first_offset", "allow_message_schedules", "allow_atomic",
            "interest_of",
        ):  # fmt: skip
            if not getattr(self, name):  # UNSET is false, too
                msgspec.structs.force_setattr(self, name, msgspec.UNSET)
        if self.nats_readable is not self.is_encrypted:  # the default
            msgspec.structs.force_setattr(self, "nats_readable", msgspec.UNSET)

    @property
    def log_begin(self) -> int:
        """Offset at which the log of each partition begins when it is created."""
        return 0 if self.first_offset is msgspec.UNSET else self.first_offset

    @property
    def is_encrypted(self) -> bool:
        """True if the files that hold its messages are encrypted."""
        return self.encryption is Encryption.AES_256_GCM

    @property
    def is_nats_readable(self) -> bool:
        """True if its messages and their subjects may be read through JetStream's API."""
        return (not self.is_encrypted) if self.nats_readable is msgspec.UNSET else self.nats_readable

    @property
    def is_deletion_suspended(self) -> bool:
        """True if brokers delete none of its messages, except by a purge or with the stream."""
        return self.suspend_deletion is not msgspec.UNSET

    @property
    def subject_limit(self) -> int | None:
        """Number of messages of each subject that readers are shown of a partition; None: no limit hides any."""
        most = self.max_messages_per_subject
        return None if most is msgspec.UNSET or self.discard_new_per_subject is not msgspec.UNSET else most

    @property
    def allows_schedules(self) -> bool:
        """True if its messages may be schedules."""
        return self.allow_message_schedules is True

    @property
    def marker_ttl_ms(self) -> int:
        """Time to live of the marker that the last message of a subject leaves when it expires; 0: it leaves none."""
        ttl_ms = self.subject_delete_marker_ttl_ms
        return 0 if ttl_ms is msgspec.UNSET or ttl_ms is None else ttl_ms

    @property
    def retention_policy(self) -> RetentionPolicy:
        """Policy for what acks of its consumers remove."""
        return RetentionPolicy.LIMITS if self.retention is msgspec.UNSET else self.retention

    @property
    def named_consumers(self) -> tuple[str, ...]:
        """Groups and archives whose committed offsets count as acks: `group:NAME`, `archive:NAME`."""
        return () if self.interest_of is msgspec.UNSET else self.interest_of

    @property
    def is_consumed(self) -> bool:
        """True if an ack of its consumers removes a message."""
        return self.retention is not msgspec.UNSET

    @property
    def drops_unwanted(self) -> bool:
        """True if a message that no consumer wants is never shown."""
        return self.retention is RetentionPolicy.INTEREST

    @property
    def allows_batches(self) -> bool:
        """True if it takes atomic batches: messages that are stored together, or none of them."""
        return self.allow_atomic is not msgspec.UNSET

    @property
    def denies_deletion(self) -> bool:
        """True if no single message can be deleted; limits still apply."""
        return self.deny_delete is not msgspec.UNSET

    @property
    def denies_purge(self) -> bool:
        """True if nothing can be purged or truncated; limits still apply."""
        return self.deny_purge is not msgspec.UNSET

    @property
    def refuses_new(self) -> bool:
        """True if what would exceed a limit of size is refused; not while a copy of other rows is placed into it."""
        return self.discard is Discard.NEW and self.suspend_deletion is not SuspendDeletion.COPYING

    @property
    def refuses_new_per_subject(self) -> bool:
        """True if a message on a subject that has max_messages_per_subject in its partition is refused."""
        return self.discard_new_per_subject is not msgspec.UNSET and self.refuses_new

    @property
    def admitted_per_subject(self) -> int:
        """Number of messages of a subject, beyond which one is refused or needs no room below max_messages; 0: any."""
        most = self.max_messages_per_subject
        if most is msgspec.UNSET or most is None or not self.refuses_new:
            return 0
        replaces = self.max_messages is not None and self.subject_limit is not None and not self.is_deletion_suspended
        return most if self.refuses_new_per_subject or replaces else 0

    @property
    def checks_schemas(self) -> bool:
        """True if values are checked before they are stored."""
        return self.schema_check is not msgspec.UNSET

    @property
    def is_internal(self) -> bool:
        """True if it is one of Penstock's own streams: not subscribed to NATS, and read-only for clients."""
        return self.name.startswith(INTERNAL_NAME_PREFIX) and self.subject.startswith(INTERNAL_SUBJECT_PREFIX)


ALTERABLE = frozenset(
    {
        "acks",
        "durability",
        "max_age_ms",
        "max_messages",
        "max_bytes",
        "max_messages_per_subject",
        "max_message_bytes",
        "segment_bytes",
        "segment_age_ms",
        "min_isr",
        "allow_unclean_election",
        "dedup_window_ms",
        "dedup_ids_max",
        "compact",
        "compaction_lag_ms",
        "tombstone_retention_ms",
        "compression",
        "allow_message_ttl",
        "allow_rollup",
        "retain",
        "observers",
        "suspend_deletion",
        "schema_check",
        "description",
        "metadata",
        "discard",
        "discard_new_per_subject",
        "deny_delete",
        "deny_purge",
        "subject_delete_marker_ttl_ms",
        "allow_message_schedules",
        "nats_readable",
        "retention",  # from limits to interest and back
        "interest_of",
        "allow_atomic",
        "partitions",  # can only increase, alone or with
        "range_bounds",
    }
)
"""Fields that can be altered while a stream has data."""

ALTERABLE_SEALED = frozenset(
    {
        "min_isr",
        "allow_unclean_election",
        "durability",
        "observers",
        "suspend_deletion",
        "description",
        "metadata",
        "deny_delete",
        "deny_purge",
        "nats_readable",
    }
)
"""Alterable fields of a sealed stream: they concern leaders, replicas and readers, or none of its messages."""


_PYTHONS = {"null": "None", "array": "list", "object": "dict"}
_NAMED = re.compile("`[^`]*`")  # msgspec's notation of types


def field_type_mistake(name: str, value: object) -> str | None:
    """Return why a value has the wrong type for its field, or is not one of its choices; None if it is valid."""
    field_type = get_type_hints(StreamConfig)[name]
    try:
        msgspec.convert(value, field_type)
    except msgspec.ValidationError as error:
        for key, one in value.items() if isinstance(value, Mapping) else ():
            if not (isinstance(key, str) and isinstance(one, str)):
                return f"{name}: keys and values are str, and the key {key!r} has the value {one!r}"
        text = _NAMED.sub(_in_python, str(error))
        return f"{name}: {_choices(field_type) or text[:1].lower() + text[1:]}"
    return None


def _in_python(found: re.Match[str]) -> str:
    return re.sub(r"\w+", lambda word: _PYTHONS.get(word[0], word[0]), found[0])


def _choices(field_type: Any) -> str:
    """Return the choices of an enum field as text; empty for other types."""
    field_type = next((one for one in get_args(field_type) if one is not msgspec.UnsetType), field_type)
    if not (isinstance(field_type, type) and issubclass(field_type, StrEnum)):
        return ""
    names = [f"'{one}'" for one in field_type]
    return f"it is {' or '.join(names)}" if len(names) < 3 else f"it is one of {', '.join(names)}"


def stream_config_mistakes(config: StreamConfig) -> list[str]:
    """Return all errors in `config`, each naming its field; empty if it is valid."""
    mistakes = []
    if (mistake := stream_name_mistake(config.name)) is not None:
        mistakes.append(f"name: {mistake}")
    if of_subjects := [*_mistakes_of_subjects(config)]:
        mistakes += of_subjects
    else:
        mistakes += _consequences(config)
    mistakes += annotation_mistakes(config)
    bounds: tuple[tuple[str, int | None, int, int], ...] = (
        ("max_age_ms", config.max_age_ms, 1, 2**53),
        ("max_messages", config.max_messages, 1, 2**53),
        ("max_bytes", config.max_bytes, 1, 2**53),
        (
            "max_messages_per_subject",
            None if config.max_messages_per_subject is msgspec.UNSET else config.max_messages_per_subject,
            1,
            limits.MESSAGES_PER_SUBJECT_MAX,
        ),
        (
            "subject_delete_marker_ttl_ms",
            None if config.subject_delete_marker_ttl_ms is msgspec.UNSET else config.subject_delete_marker_ttl_ms,
            limits.SUBJECT_DELETE_MARKER_TTL_MS_MIN,
            limits.TTL_S_MAX * 1_000,
        ),
        ("max_message_bytes", config.max_message_bytes, 1, limits.MESSAGE_BYTES_MAX),
        ("segment_bytes", config.segment_bytes, limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        ("segment_age_ms", config.segment_age_ms, 1, 2**53),
        ("partitions", config.partitions, 1, limits.STREAM_PARTITIONS_MAX),
        ("replicas", config.replicas, 1, limits.REPLICAS_MAX),
        ("observers", config.observers, 0, limits.OBSERVERS_MAX),
        ("dedup_window_ms", config.dedup_window_ms, 1, 2**53),
        ("dedup_ids_max", config.dedup_ids_max, 1, limits.DEDUP_IDS_MAX),
        ("compaction_lag_ms", config.compaction_lag_ms, 0, 2**53),
        ("tombstone_retention_ms", config.tombstone_retention_ms, 0, 2**53),
        ("first_offset", config.log_begin, 0, limits.FIRST_OFFSET_MAX),
        ("min_isr", config.min_isr, 1, limits.REPLICAS_MAX if config.replicas is None else config.replicas),
    )
    mistakes += [
        f"{field}: {value} is not between {low} and {high}"
        for field, value, low, high in bounds
        if value is not None and not low <= value <= high
    ]
    return mistakes


def _mistakes_of_subjects(config: StreamConfig) -> Iterator[str]:
    """Yield the errors in the subjects, each alone and beside the others."""
    if (mistake := subject_mistake(config.subject, wildcards=True)) is not None:
        yield f"subject: {mistake}"
    former = config.held_subjects[len(config.subjects) :]
    if len(former) > limits.STREAM_SUBJECTS_MAX:
        text = f"{len(former)} subjects were removed from the stream; the limit is {limits.STREAM_SUBJECTS_MAX}"
        yield f"former_subjects: {text}: make another stream"
    elif mistakes := list(filter(None, (subject_mistake(one, wildcards=True) for one in former))):
        yield f"former_subjects: {mistakes[0]}"
    if config.more_subjects is msgspec.UNSET:
        return
    if len(subjects := config.subjects) > limits.STREAM_SUBJECTS_MAX:
        text = f"a stream has at most {limits.STREAM_SUBJECTS_MAX} subjects, and these are {len(subjects)}"
        yield f"subject: {text}; a wildcard covers many, as 'orders.>'"
        return
    found = (subject_mistake(one, wildcards=True) for one in config.more_subjects)
    yield from (f"subject: {mistake}" for mistake in found if mistake is not None)
    if (clash := first_overlap(subjects)) is not None:
        yield f"subject: {_overlap_text(*clash)}"
    widest, reserved = next(filter(begins_with_wildcard, subjects), None), next(filter(is_reserved, subjects), None)
    if widest is not None and reserved is not None:
        text = f"{widest!r} begins with a wildcard, which takes nothing of NATS's own subjects, as {reserved!r}"
        yield f"subject: {text}; make a stream of its own for these"


def first_overlap(subjects: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two subjects that some message matches both; None if there are none."""
    return next(((one, other) for one, other in combinations(subjects, 2) if overlap(one, other)), None)


def irrevocable_mistakes(before: StreamConfig, after: StreamConfig) -> list[str]:
    """Return the errors of a change that takes back what is for ever."""
    kept = (
        ("deny_delete", before.denies_deletion, after.denies_deletion),
        ("deny_purge", before.denies_purge, after.denies_purge),
    )
    mistakes = [f"{name}: cannot be taken back once it is set" for name, was, now in kept if was and not now]
    was, now = before.retention_policy, after.retention_policy
    if was is not now and RetentionPolicy.WORKQUEUE in (was, now):
        mistakes.append(f"retention: cannot be changed from {was.value!r} to {now.value!r}: make another stream")
    return mistakes


def with_altered_subjects(config: StreamConfig, add: Sequence[str], remove: Sequence[str]) -> StreamConfig:
    """Return `config` with and without these subjects; the first one that stays is `subject`. ConfigError.

    No limits are checked: this is also how a committed change is applied.
    """
    for one in remove:
        if one not in config.subjects:
            text = f"{one!r} is none of the stream's, which are {', '.join(map(repr, config.subjects))}"
            raise ConfigError([f"remove_subjects: {text}"])
    subjects = tuple(dict.fromkeys((*(one for one in config.subjects if one not in remove), *add)))
    if not subjects:
        text = f"a stream has a subject, and {config.subject!r} is its last one: pause the stream, or delete it"
        raise ConfigError([f"remove_subjects: {text}"])
    if (clash := first_overlap(subjects)) is not None:  # checked here, too: two requests may come at once
        raise ConfigError([f"add_subjects: {_overlap_text(*clash)}"])
    left = dict.fromkeys((*remove, *config.held_subjects[len(config.subjects) :]))
    former = [one for one in left if not any(is_within(one, other) for other in (*subjects, *left) if other != one)]
    former = [one for one in former if one not in subjects]
    return msgspec.structs.replace(
        config, subject=subjects[0], more_subjects=subjects[1:], former_subjects=tuple(former)
    )


def _overlap_text(one: str, other: str) -> str:
    text = f"{one!r} and {other!r} overlap" if one != other else f"{one!r} is given twice"
    return f"{text}: a message on both would be stored twice; keep the wider one"


def annotation_mistakes(config: StreamConfig) -> list[str]:
    """Return the errors in the description and the metadata."""
    mistakes = []
    if config.description is not msgspec.UNSET:
        size, most = len(config.description.encode("utf-8", "surrogatepass")), limits.STREAM_DESCRIPTION_BYTES_MAX
        if size > most:
            mistakes.append(f"description: it has {size} bytes; the limit is {most}")
    if config.metadata is not msgspec.UNSET:
        mistakes += [f"metadata: {one}" for one in _metadata_mistakes(config.metadata)]
    return mistakes


def _metadata_mistakes(metadata: Mapping[str, str]) -> Iterator[str]:
    if "" in metadata:
        yield f"the value {metadata['']!r} has no key"
    if len(metadata) > limits.STREAM_METADATA_ENTRIES_MAX:
        yield f"it has {len(metadata)} entries; the limit is {limits.STREAM_METADATA_ENTRIES_MAX}"
    size = sum(len(text.encode("utf-8", "surrogatepass")) for pair in metadata.items() for text in pair)
    if size > limits.STREAM_METADATA_BYTES_MAX:
        yield f"its keys and values have {size} bytes; the limit is {limits.STREAM_METADATA_BYTES_MAX}"


def _consequences(config: StreamConfig) -> list[str]:
    """Return conflicts between the settings and the subjects, which are valid."""
    mistakes = []
    wide = next(filter(begins_with_wildcard, config.subjects), None)
    if config.acks is Acks.REPLY and wide is not None:
        mistakes.append(
            f"acks: the subject {wide!r} begins with a wildcard, so 'reply' would answer requests that are "
            "meant for others; choose 'envelope' or 'never'"
        )
    if config.storage is Storage.MEMORY and config.is_encrypted:
        mistakes.append("encryption: nothing of a stream in memory is on the disk; choose 'none', or storage 'file'")
    if config.max_messages_per_subject is not msgspec.UNSET:
        mistakes += [f"max_messages_per_subject: {one}" for one in _subject_limit_mistakes(config)]
    if config.discard_new_per_subject is not msgspec.UNSET:
        mistakes += [f"discard_new_per_subject: {one}" for one in _new_per_subject_mistakes(config)]
    if config.subject_delete_marker_ttl_ms is not msgspec.UNSET:
        mistakes += [f"subject_delete_marker_ttl_ms: {one}" for one in _marker_mistakes(config)]
    if config.allow_message_schedules is not msgspec.UNSET:
        mistakes += [f"allow_message_schedules: {one}" for one in _schedule_mistakes(config)]
    if config.is_consumed:
        mistakes += [f"retention: {one}" for one in _consumed_mistakes(config)]
    if config.interest_of is not msgspec.UNSET:
        mistakes += [f"interest_of: {one}" for one in _interest_mistakes(config)]
    if config.allows_batches:
        mistakes += [f"allow_atomic: {one}" for one in _atomic_mistakes(config)]
    if config.denies_purge and config.allow_rollup:
        mistakes.append("deny_purge: a rollup purges; choose one of deny_purge and allow_rollup")
    mistakes += _split_mistakes(config)
    return mistakes


def _subject_limit_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield conflicts of the limit by subject."""
    if config.is_internal:
        yield "an internal stream has none"
    if config.compact:
        yield "with 'compact' brokers remove messages by key, each in its own time; choose one of the two"
    if config.competes and (config.partitions > 1 or config.group is not None):
        text = "messages of a subject go to random partitions or streams of a group, and each would keep its own last"
        yield f"{text} ones; choose a partition_by that keeps a subject together, as 'token:N'"


def _atomic_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what keeps a batch from one place in one log."""
    if config.is_internal:
        yield "an internal stream takes no messages from NATS"
    if config.partitions > 1:
        text = f"a batch is stored as a whole in one log, and the stream has {config.partitions} partitions"
        yield f"{text}; choose one of the two"
    if config.group is not None:
        yield "each message of a batch would go to a random stream of the group; choose one of the two"


def _marker_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what keeps delete markers from working."""
    if not config.allow_message_ttl:
        yield "it needs allow_message_ttl, as a marker has a time to live"
    if not config.allow_rollup:
        yield "it needs allow_rollup, as a marker takes the place of what expires"
    if config.compact:
        yield "with 'compact' messages with a key go after a pass; choose one of the two"
    if config.max_age_ms is not None and config.retain is Retain.UNTIL_ARCHIVED:
        yield "a message that leaves one at its max_age_ms does not wait for archives, as retain 'until-archived' says"


def _schedule_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what keeps scheduled messages from being sent exactly once."""
    if not config.allow_rollup:
        yield "it needs allow_rollup, as a schedule takes the place of the one before on its subject"
    if config.partitions > 1 or config.competes:
        yield "a schedule and its target subject may belong to different logs; it needs one partition, and no group"
    if config.discard is Discard.NEW:
        yield "a full stream would refuse scheduled messages; choose discard 'old'"
    if config.compact:
        yield "with 'compact' brokers remove schedules by key; choose one of the two"
    if config.schema_check is SchemaCheck.REFUSE:
        yield "no check is made when a scheduled message is sent; choose schema_check 'count' or 'no'"


def _consumed_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what does not go with messages that acks remove."""
    policy = f"'{config.retention_policy}'"
    if config.is_internal:
        yield f"an internal stream has none but 'limits', not {policy}"
    if config.compact:
        yield f"with 'compact' the last message of each key stays, with {policy} none that is acked; choose one"
    if config.retain is Retain.UNTIL_ARCHIVED:
        yield f"with {policy} an ack removes a message, which then does not wait for archives; set retain to 'limits'"
    if config.group is not None:
        yield f"of a group a message goes to a random stream, and with {policy} its consumers belong to one"
    if config.partitions > 1:
        yield f"each partition has its own consumers, so with {policy} a stream has one; give it more workers instead"


_NAMED_CONSUMER = re.compile(
    rf"group:[A-Za-z0-9._-]{{1,{limits.GROUP_NAME_CHARS_MAX}}}"
    rf"|archive:[A-Za-z0-9._-]{{1,{limits.ARCHIVE_NAME_CHARS_MAX}}}"
)


def _interest_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what keeps groups and archives from counting as consumers."""
    names = config.named_consumers
    if config.retention_policy is not RetentionPolicy.INTEREST:
        yield f"it needs retention 'interest', and the stream has {config.retention_policy.value!r}"
    if len(names) > limits.INTEREST_OF_MAX:
        yield f"{len(names)} are given; the limit is {limits.INTEREST_OF_MAX}"
    if len(set(names)) < len(names):
        yield "a name is given twice"
    if bad := next((one for one in names if not _NAMED_CONSUMER.fullmatch(one)), None):
        yield f"{bad!r} is neither group:NAME nor archive:NAME"


def _new_per_subject_mistakes(config: StreamConfig) -> Iterator[str]:
    """Yield what is missing for the limit by subject to refuse messages."""
    if config.discard is not Discard.NEW:
        yield "it needs discard 'new'"
    if config.max_messages_per_subject is msgspec.UNSET:
        yield "it needs max_messages_per_subject"


def _split_mistakes(config: StreamConfig) -> list[str]:
    """Return conflicts of the partitions or the group."""
    mistakes = []
    if config.group is not None and (mistake := queue_group_mistake(config.group)) is not None:
        mistakes.append(f"group: {mistake}")
    try:
        split = parse_split(config.partition_by)
    except ValueError as error:
        return [*mistakes, f"partition_by: {error}"]
    if split.how is PartitionBy.RANGE:
        mistakes += [f"range_bounds: {one}" for one in bounds_mistakes(config.range_bounds)]
        if len(config.range_bounds) != config.partitions - 1:
            text = f"{config.partitions} partitions have {config.partitions - 1}, the first key of each but the first"
            mistakes.append(f"range_bounds: {len(config.range_bounds)} are given; {text}")
    elif config.range_bounds:
        mistakes.append("range_bounds: only partition_by 'range' or 'range:N' has any")
    if split.token:
        found = (token_mistake(split.token, one) for one in config.subjects)
        mistakes += [f"partition_by: {mistake}" for mistake in found if mistake is not None]
    if not 1 < config.partitions <= limits.STREAM_PARTITIONS_MAX:
        return mistakes
    if config.group is not None and split.is_by_leaders:
        text = f"of a group only one stream gets a message, and with partition_by {config.partition_by!r} each "
        mistakes.append(f"group: {text}partition has to see them all; choose 'group' or 'publisher'")
    if split.has_subjects:
        mistakes += _subject_mistakes(config, split)
    return mistakes


def _subject_mistakes(config: StreamConfig, split: PartitionSplit) -> list[str]:
    """Return errors where each partition has its own subject."""
    if len(config.subjects) > 1:
        text = f"with partition_by {str(split.how)!r} partition n listens on <subject>.<n>, so the stream has one"
        return [f"subject: {text} subject; choose 'key', 'token:N', 'range' or 'group', or make several streams"]
    if split.how is PartitionBy.PUBLISHER and is_wildcard(config.subject):
        token = next(n for n, one in enumerate(config.subject.split("."), start=1) if one in ("*", ">"))
        text = f"a stream on a subject with wildcards, as {config.subject!r}, has more than one only with partition_by"
        choices = (
            f"create it with partition_by='token:{token}' (by that token of the subject), 'key', 'range' or 'group'"
        )
        return [f"partitions: {text}, which says what is in which: {choices}"]
    if config.subject.endswith(">"):
        return [f"partition_by: partition n listens on <subject>.<n>, and nothing can follow {config.subject!r}"]
    mistake = subject_mistake(config.subject_of(config.partitions - 1), wildcards=True)
    return [] if mistake is None else [f"partitions: on the last partition, {mistake}"]


def check_stream_config(config: StreamConfig) -> StreamConfig:
    """Return `config`, or raise ConfigError with all errors."""
    if mistakes := stream_config_mistakes(config):
        raise ConfigError(mistakes)
    return config
